"""What the records of one run say that an LM did: the transitions it made, in the run and in graphs
inside it, and the answers that people corrected when they forked it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import TYPE_CHECKING, NamedTuple

from bae.history import History
from bae.lm.prompts import asked_fields
from bae.optimizer.transitions import Transition
from bae.work import GraphRun, Work

if TYPE_CHECKING:
    from bae.records import Record


class Key(NamedTuple):
    """What tells an answer of an LM from all others, in every run that has it: a fork shares the
    lines of the run it was forked from, to the very instant."""

    root: str
    path: str
    step: int
    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Correction:
    """An answer that a person has corrected, at the time `at`, in a fork of the run `parent`."""

    at: float
    parent: str
    transition: Transition


@dataclass(slots=True)
class Steps:
    """The transitions that the LM made in a run, and those of its answers that were corrected."""

    taken: dict[Key, Transition] = field(default_factory=dict[Key, Transition])
    corrected: dict[Key, Correction] = field(default_factory=dict[Key, Correction])


def steps_of(run_id: str, records: Iterable[Record]) -> Steps:
    """What an LM did in a run, and what people have corrected of it.

    Of a graph inside the run only the try that counts is there, where it has ended. Whether the run
    itself has ended is for others to look at.
    """
    history = History(records)
    root, forks, found = history.run_id, history.forks, Steps()
    # What was recorded before a fork belongs to the run that it was forked from.
    owners = [root, *(fork.parent for fork in forks[1:]), run_id] if forks else [run_id]

    def owner(at: float) -> str:
        return owners[sum(fork.at < at for fork in forks)]

    for graph in history.graphs.values():
        if not _has_ended(graph):
            continue
        for step in graph.trace:
            path, number, choice, filled = graph.path, step.number, step.choice, step.filled
            if choice is not None and choice.chosen is NoneType and step.node is not None:
                key = Key(root, path, number + 1, choice.ended or 0.0, choice.took)
                by = owner(key.at)
                found.taken[key] = Transition(step.node, NoneType, None, by, path, number, root)
            if filled is None or step.before is None or step.before.node is None:
                continue
            cls, asked = type(filled.node), asked_fields(type(filled.node))
            chosen = step.before.choice is not None and step.before.choice.chosen is cls
            if not chosen and not asked:
                continue  # with nothing to choose and nothing to fill, no LM was asked
            key = Key(root, path, number, filled.at, filled.seconds)
            whole = step.node if step.forked is None else step.replaced
            following = whole if type(whole) is cls else filled.node
            made = Transition(
                step.before.node, cls, following, owner(key.at), path, number - 1, root
            )
            found.taken[key] = made
            fork = step.forked
            if fork is not None and type(fork.node) is cls:
                corrected = tuple(name for name in asked if name in fork.changed)
                if corrected:
                    by = owners[forks.index(fork) + 1]
                    better = replace(made, next_node=fork.node, run_id=by, corrected=corrected)
                    found.corrected[key] = Correction(fork.at, fork.parent, better)
    found.taken = dict(sorted(found.taken.items(), key=lambda each: each[0].at))
    return found


def _has_ended(graph: GraphRun) -> bool:
    """Whether a graph inside the run has ended, and so have those that it runs in."""
    inside: Work | None = graph
    while inside is not None:
        if isinstance(inside, GraphRun) and inside.path and inside.outcome != "ended":
            return False
        inside = inside.inside
    return True
