"""What the records of one run say that an LM did: the transitions it made, in the run and in graphs
inside it, and the answers that people corrected when they forked it. `collecting.py` puts those of
many runs together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import TYPE_CHECKING, NamedTuple

from bae.journal.running.recording import is_inside
from bae.lm.schemas import asked_fields
from bae.optimizer.transitions import Transition
from bae.records import (
    ChoiceMade,
    FillEnded,
    Record,
    RunEnded,
    RunForked,
    RunStarted,
    StepStarted,
)

if TYPE_CHECKING:
    from bae.node import Node


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
    """An answer that a person has put right, at the time `at`, in a fork of the run `parent`."""

    at: float
    parent: str
    transition: Transition


@dataclass(slots=True)
class Steps:
    """The transitions that the LM made in a run, and those of its answers that were corrected."""

    taken: dict[Key, Transition] = field(default_factory=dict[Key, Transition])
    corrected: dict[Key, Correction] = field(default_factory=dict[Key, Correction])


def steps_of(run_id: str, records: Sequence[Record]) -> Steps:
    """What an LM did in a run, and what people have put right of it.

    Of a graph inside the run only the try that counts is there, where it has ended. Whether the run
    itself has ended is for others to look at.
    """
    reading = _Reading(run_id, records)
    for record in records:
        reading.take(record)
    return reading.steps()


class _Reading:
    """Goes through the records of a run in order."""

    def __init__(self, run_id: str, records: Iterable[Record]) -> None:
        forks = [each for each in records if isinstance(each, RunForked)]
        # What stands before a fork is that run's which it was forked from, or one's before that.
        self._owners = [*(each.parent for each in forks), run_id]
        self._root = ""
        self._nodes: dict[tuple[str, int], Node] = {}
        self._chosen: set[tuple[str, int]] = set()
        self._taken: dict[tuple[str, int], tuple[Key, Transition]] = {}
        self._corrected: dict[Key, Correction] = {}
        self._outcomes: dict[str, str] = {}

    def steps(self) -> Steps:
        taken = dict(held for held in self._taken.values() if self._has_ended(held[1].path))
        return Steps(taken, self._corrected)

    def take(self, record: Record) -> None:
        spot = record.path, record.step
        match record:
            case RunStarted():
                self._begin(record)
            case StepStarted():
                self._nodes[spot] = record.node
                if spot in self._taken:
                    self._complete(spot, record.node)
            case RunForked():
                self._fork(record)
            case ChoiceMade():
                if record.chosen is NoneType:
                    self._put(record, NoneType, None)
                else:
                    self._chosen.add(spot)
            case FillEnded():
                cls = type(record.node)
                # Where nothing was to choose and nothing to fill, no LM had a part in it.
                if spot in self._chosen or asked_fields(cls):
                    self._put(record, cls, record.node)
            case RunEnded():
                self._outcomes[record.path] = record.outcome
            case _:
                pass

    def _begin(self, record: RunStarted) -> None:
        if not record.path:
            self._root = record.run_id
            if len(self._owners) > 1:
                self._owners[0] = self._root
            return
        # A graph that is begun anew: what it did before came to nothing.
        for table in (self._nodes, self._taken):
            for spot in [each for each in table if is_inside(each[0], record.path)]:
                del table[spot]
        self._chosen = {each for each in self._chosen if not is_inside(each[0], record.path)}
        self._outcomes.pop(record.path, None)

    def _put(
        self, record: ChoiceMade | FillEnded, cls: type[Node] | type[None], following: Node | None
    ) -> None:
        path, step = record.path, record.step
        node = self._nodes.get((path, step - 1))
        if node is None:
            return
        key = Key(self._root, path, step, record.at, record.seconds)
        made = Transition(node, cls, following, self._owners[0], path, step - 1, self._root)
        self._taken[path, step] = key, made

    def _complete(self, spot: tuple[str, int], node: Node) -> None:
        """The node that the LM has filled is whole now."""
        key, made = self._taken[spot]
        if type(node) is made.next_type:
            self._taken[spot] = key, replace(made, next_node=node)

    def _fork(self, record: RunForked) -> None:
        spot = record.path, record.step
        self._nodes[spot] = record.node
        self._owners.pop(0)
        held = self._taken.get(spot)
        if held is None or held[1].next_type is not type(record.node):
            return  # the caller gave it, or a written body made it
        key, made = held
        corrected = [name for name in asked_fields(type(record.node)) if name in record.changed]
        if corrected:
            better = replace(
                made, next_node=record.node, run_id=self._owners[0], corrected=tuple(corrected)
            )
            self._corrected[key] = Correction(record.at, record.parent, better)

    def _has_ended(self, path: str) -> bool:
        """Whether a graph inside has ended, and so have those that it runs in."""
        while path:
            if self._outcomes.get(path) != "ended":
                return False
            path = path.rpartition("/")[0]
        return True
