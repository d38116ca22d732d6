"""The numbers of runs: usage, time and validity of the LM work for each node class of one run, and
the rows of a table that sum up many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from bae.evals.intervals import interval, paired_difference
from bae.evals.report import Contender, Difference, Row
from bae.history import History
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.evals.case_runs import CaseRun
    from bae.node import Node
    from bae.place import Place
    from bae.records import Record
    from bae.work import GraphRun, Question, Step


@dataclass(slots=True)
class NodeMeasure:
    """The LM work for the nodes of one class in one run: their fills, the choices from them, and
    what their bodies and dependencies asked by themselves."""

    usage: Usage = field(default_factory=Usage)
    judged: int = 0
    valid: int = 0
    seconds: dict[Place, float] = field(default_factory=dict["Place", float])
    """The time of the LM work for each node that had some."""
    last: Node | None = None
    """The last complete node of the class; of the items of a map, that of the last one."""
    chose: list[type[Node] | type[None] | None] = field(
        default_factory=list["type[Node] | type[None] | None"]
    )
    """What the LM chose from the nodes of the class, in the run itself and not in graphs inside;
    None where it was asked and made no valid choice."""


Measures: TypeAlias = "dict[type[Node], NodeMeasure]"
"""The LM work of one run by node class, in the order in which the classes were met."""


def measure(records: Iterable[Record]) -> Measures:
    """What the records of a run say, taken in their order.

    An answer that chooses and fills at once counts for the choosing node, valid or not: an invalid
    one may not say which node it fills. A question that was cut off has the usage of its answers so
    far.
    """
    measured: Measures = {}
    history = History(records)
    for step in _in_order(history.run):
        if step.node_type is None:
            continue
        questions = [*step.questions]
        if not step.whole and not questions:
            continue
        node = measured.setdefault(step.node_type, NodeMeasure())
        if step.whole:
            node.last = step.node
        if step.choice is not None and step.graph is history.run:
            node.chose.append(step.choice.chosen)
        for question in questions:
            _count(node, step, question)
    return measured


def _in_order(graph: GraphRun) -> Iterator[Step]:
    """The steps of a graph and of those inside it; items of a map in their order, since which of
    them ended last is chance."""
    for step in graph.trace:
        yield step
        for source in step.sources.values():
            for inner in sorted(
                source.graphs, key=lambda each: each.item.index if each.item else -1
            ):
                yield from _in_order(inner)


def _count(node: NodeMeasure, step: Step, question: Question) -> None:
    node.usage += question.paid
    node.judged += len(question.answers)
    node.valid += sum(answer.attempt.verdict == "valid" for answer in question.answers)
    # The time of a failed question says nothing about the node; where one answer chose and filled,
    # the choice has the time.
    by_choice = question is step.fill and step.filled_by is not question
    if question.state == "done" and not by_choice:
        by_runner = question.asker.kind in ("fill", "choice")
        taken = question.took if by_runner else question.usage.seconds
        node.seconds[step.place] = node.seconds.get(step.place, 0.0) + taken


# --- rows of tables ---------------------------------------------------------------------------


def contenders_of(
    runs: Mapping[str, Sequence[CaseRun]], names: Mapping[type[Node], str]
) -> list[Contender]:
    """The contenders by name, each with rows for the same node classes, in the order of `names`:
    those with LM work or a score in any."""
    rows = {
        contender: [_node_row(cls, node, cases) for cls, node in names.items()]
        for contender, cases in runs.items()
    }
    every = [row for each in rows.values() for row in each]
    shown = {row.node for row in every if row.calls or row.judged or row.score is not None}
    return [
        Contender(
            contender,
            _total(cases),
            [row for row in rows[contender] if row.node in shown],
            [each.result for each in cases],
        )
        for contender, cases in runs.items()
    ]


def differences_of(contenders: Sequence[Contender]) -> list[Difference]:
    """Each further contender against the first, over the cases that both have a score for."""
    found: list[Difference] = []
    for other in contenders[1:]:
        first = contenders[0]
        pairs = [
            (before.score, after.score)
            for before, after in zip(first.cases, other.cases, strict=True)
            if before.score is not None and after.score is not None
        ]
        apart = paired_difference([b for b, _ in pairs], [a for _, a in pairs])
        found.append(Difference(other.name, first.name, apart))
    return found


def _total(runs: Sequence[CaseRun]) -> Row:
    over = [each.result for each in runs if each.result.outcome != "not run"]
    scores = [result.score for result in over if result.score is not None]
    measured = [node for each in runs for node in each.nodes.values()]
    return _row("", len(over), measured, scores, [result.seconds for result in over])


def _node_row(cls: type[Node], name: str, runs: Sequence[CaseRun]) -> Row:
    measured = [each.nodes[cls] for each in runs if cls in each.nodes]
    scores = [each.result.nodes[name].value for each in runs if name in each.result.nodes]
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
    """The value below which that share of the others is, interpolated between neighbors."""
    if not ordered:
        return 0.0
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
