"""What there is to learn from: the examples of a journal, a part of them held out, counted for each
node. `learning.py` learns from it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bae.cli.exits import refused
from bae.cli.improving.deciding import PARTS, PartOutcome

if TYPE_CHECKING:
    from bae.cli.improving.wanted import Wanted
    from bae.exceptions import BaeError
    from bae.graph import Graph
    from bae.journal.store import Journal
    from bae.node import Node


@dataclass(frozen=True, slots=True)
class Material:
    """Examples to learn from and those held out, how many were left out and why, and what there is
    for each node."""

    train: list[Any]
    held_out: list[Any]
    repeated: int
    from_evals: int
    without: int
    parts: dict[type[Node], list[PartOutcome]] = field(
        default_factory=dict["type[Node]", list[PartOutcome]]
    )


def classes_named(graph: Graph[Any, Any], names: Sequence[str]) -> tuple[type[Node], ...]:
    """The node classes of a graph that are meant by their names; without any, all."""
    from bae.optimizer import every_node

    every = every_node(graph)
    found: list[type[Node]] = []
    for name in names:
        meant = [cls for cls in every if cls.__name__ == name]
        if not meant:
            raise refused(
                f"there is no node {name} in the graph {graph.name}{_meant(name, every)}",
                fix=f"name one of {', '.join(cls.__name__ for cls in every)}",
            )
        found += [cls for cls in meant if cls not in found]
    return tuple(found) or every


async def material_for(wanted: Wanted) -> Material:
    """Read the journal. Raises where there is nothing in it to learn from."""
    from bae.cli.journals import open_to_read
    from bae.evals.case_runs import is_eval_run
    from bae.optimizer import examples_from, split_apart

    async with open_to_read(wanted.journal) as journal:
        without = {run async for run in _without(journal, wanted.without)}
        # All of them: how many are left out, and why, is said below the result.
        every = named = await examples_from(journal, wanted.graph, evals=True)
        if without:
            named = await examples_from(journal, wanted.graph, evals=True, without=without)
    # Cases are there to be evaluated on: learnt by heart, they would tell nothing any more.
    kept = [
        each
        for each in named
        if wanted.with_evals
        or not is_eval_run(str(each["root"]))
        # A fork. The mark is in other runs that ask the same, too.
        or (each["corrected"] and not is_eval_run(str(each["run_id"])))
    ]
    from_evals = len(named) - len(kept)
    # Without a mistaken fork, the run that it was forked from speaks again.
    left_out = max(0, len(every) - len(named))
    if not kept:
        raise _nothing(wanted, from_evals, left_out)
    train, held, repeated = split_apart(kept, wanted.held_out, wanted.seed)
    counted = {cls: [*_counted(cls, train, held, wanted.minimum)] for cls in wanted.classes}
    parts = {cls: found for cls, found in counted.items() if found}
    if not parts:
        names = ", ".join(cls.__name__ for cls in wanted.classes)
        raise refused(
            f"{wanted.journal} has no step to {names} that a language model took",
            fix="name another node, or run the graph with that journal until it gets there",
        )
    return Material(train, held, len(repeated), from_evals, left_out, parts)


async def _without(journal: Journal, said: Sequence[str]) -> AsyncIterator[str]:
    """The ids of the runs that are to be left out. Raises where one is not there."""
    from bae.cli.journals import run_meant

    for each in said:
        yield await run_meant(journal, each)


def _meant(name: str, every: Sequence[type[Node]]) -> str:
    from difflib import get_close_matches

    names = {cls.__name__.casefold(): cls.__name__ for cls in every}
    near = get_close_matches(name.casefold(), names, 1)
    return f"; did you mean {names[near[0]]}?" if near else ""


def _counted(
    cls: type[Node], train: Sequence[Any], held: Sequence[Any], minimum: int
) -> Iterator[PartOutcome]:
    """The parts of a node that there are examples for."""
    from bae.optimizer import choice_examples, fill_examples
    from bae.optimizer.same_questions import distinct

    for part, of in zip(PARTS, (fill_examples, choice_examples), strict=True):
        learnable, kept = of(cls, train), of(cls, held)
        every = [*learnable, *kept]
        if every:
            questions = len(distinct(learnable))  # as `aoptimize_node` counts them
            yield PartOutcome(
                cls.__name__,
                part,
                len(every),
                len(learnable),
                len(kept),
                *(
                    sum(1 for each in side if each["bae"]["corrected"])
                    for side in (learnable, kept)
                ),
                verdict="too few examples" if questions < minimum else "not compared",
                questions=questions,
            )


def _nothing(wanted: Wanted, from_evals: int, without: int) -> BaeError:
    if from_evals:
        return refused(
            f"{wanted.journal} has runs of `bae eval` alone, which are left out",
            fix="run the graph with other inputs, or learn from those too: --with-evals",
        )
    if without:
        return refused(
            f"{wanted.journal} has nothing to learn from but the runs that --without leaves out",
            fix="run the graph with `bae run` and this journal, or leave out fewer runs",
        )
    return refused(
        f"{wanted.journal} has no finished run of {wanted.graph.name} to learn from",
        fix="run the graph with `bae run` and this journal, put right what is wrong in its runs "
        "with `bae runs fork RUN --at STEP --set FIELD=VALUE`, and try again",
    )
