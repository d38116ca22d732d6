"""From many cases to a row of numbers: sums, means, percentiles and intervals, for one contender as
a whole and for each node class. `evaluating.py` hands over what it measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bae.evals.intervals import interval, paired_difference
from bae.evals.report import CaseResult, Contender, Difference, Row
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.evals.measuring import NodeMeasure, RunMeasure
    from bae.node import Node


@dataclass(frozen=True, slots=True)
class Done:
    """A case with one contender, and what its run was like; None where there was no run."""

    result: CaseResult
    run: RunMeasure | None


def contender_of(name: str, done: Sequence[Done], names: Mapping[type[Node], str]) -> Contender:
    """The rows of one contender; those of nodes in the order of `names`, where there is something
    to say about them."""
    rows = [_node_row(cls, said, done) for cls, said in names.items()]
    return Contender(
        name,
        _total(done),
        [row for row in rows if row.calls or row.judged or row.score is not None or row.cases],
        [each.result for each in done],
    )


def with_equal_rows(contenders: Sequence[Contender], order: Sequence[str]) -> list[Contender]:
    """Contenders with a row for the same node classes, so that they can stand side by side: those
    that had LM work or a score with any of them."""
    told = [row for each in contenders for row in each.nodes]
    shown = {row.node for row in told if row.calls or row.judged or row.score is not None}
    found: list[Contender] = []
    for each in contenders:
        rows = {row.node: row for row in each.nodes}
        nodes = [rows.get(node) or _row(node, 0, [], [], []) for node in order if node in shown]
        found.append(Contender(each.name, each.total, nodes, each.cases))
    return found


def differences_of(contenders: Sequence[Contender]) -> list[Difference]:
    """Each further contender against the first, over the cases that both have a score for."""
    if not contenders:
        return []
    first = contenders[0]
    found: list[Difference] = []
    for other in contenders[1:]:
        pairs = [
            (before.score, after.score)
            for before, after in zip(first.cases, other.cases, strict=True)
            if before.score is not None and after.score is not None
        ]
        apart = paired_difference([b for b, _ in pairs], [a for _, a in pairs])
        found.append(Difference(other.name, first.name, apart))
    return found


def _total(done: Sequence[Done]) -> Row:
    over = [each.result for each in done if each.result.outcome != "not run"]
    scores = [result.score for result in over if result.score is not None]
    measured = [node for each in done if each.run for node in each.run.nodes.values()]
    return _row("", len(over), measured, scores, [result.seconds for result in over])


def _node_row(cls: type[Node], name: str, done: Sequence[Done]) -> Row:
    measured = [each.run.nodes[cls] for each in done if each.run and cls in each.run.nodes]
    scores = [each.result.nodes[name].value for each in done if name in each.result.nodes]
    seconds = [taken for node in measured for taken in node.seconds.values()]
    return _row(name, len(measured), measured, scores, seconds)


def _row(
    node: str,
    cases: int,
    measured: Sequence[NodeMeasure],
    scores: Sequence[float],
    seconds: Sequence[float],
) -> Row:
    used = Usage.total(each.usage for each in measured)
    judged = sum(each.judged for each in measured)
    valid = sum(each.valid for each in measured)
    taken = sorted(seconds)
    return Row(
        node,
        cases,
        interval(scores),
        valid / judged if judged else None,
        used.calls,
        used.input_tokens,
        used.output_tokens,
        used.cost,
        sum(taken) / len(taken) if taken else 0.0,
        _percentile(taken, 0.5),
        _percentile(taken, 0.95),
        judged,
        used.cached_tokens,
    )


def _percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which that share of the others is, between two neighbours in proportion."""
    if not ordered:
        return 0.0
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
