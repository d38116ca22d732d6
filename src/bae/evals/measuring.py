"""What one run was like, read from its records: per node class, what its LM work used, how long it
took, and how many of its answers were valid. `rows.py` makes tables of many of these."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bae.records import (
    AnswerJudged,
    Asker,
    ChoiceMade,
    ChoiceStarted,
    FillEnded,
    FillStarted,
    LMUsed,
    Record,
    RunStarted,
    SourceStarted,
    StepStarted,
)
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.node import Node

Place = tuple[str, int]
"""A node of a run: the path of its graph, and its place in the trace of that."""


@dataclass(slots=True)
class NodeMeasure:
    """The LM work for the nodes of one class in one run: their fills, the choices from them, and
    what their bodies and dependencies asked by themselves."""

    usage: Usage = field(default_factory=Usage)
    judged: int = 0
    valid: int = 0
    seconds: dict[Place, float] = field(default_factory=dict[Place, float])
    """The time of the LM work for each node that had some."""
    last: Node | None = None
    """The last node of the class that was whole; of those of a map, the one of the last item."""
    chose: list[type[Node] | type[None] | None] = field(
        default_factory=list["type[Node] | type[None] | None"]
    )
    """What the LM chose from the nodes of the class, in the run itself and not in graphs inside;
    None where it was asked and made no valid choice."""


@dataclass(slots=True)
class RunMeasure:
    """One run: its node classes, in the order in which they were met."""

    nodes: dict[type[Node], NodeMeasure] = field(default_factory=dict["type[Node]", NodeMeasure])

    @property
    def usage(self) -> Usage:
        """What all of it used."""
        return Usage.total(node.usage for node in self.nodes.values())


def measure(records: Iterable[Record]) -> RunMeasure:
    """What the records of a run say, taken in their order.

    An answer that chooses and fills at once is the choosing node's, valid or not: one that is not
    valid may well say nothing about which node it fills. A question that was cut off has what its
    answers until then used.
    """
    reading = _Reading()
    for record in records:
        reading.take(record)
    return reading.done()


class _Reading:
    def __init__(self) -> None:
        self._measured = RunMeasure()
        self._classes: dict[Place, type[Node]] = {}
        self._last: dict[type[Node], tuple[tuple[str, int], ...]] = {}
        self._starts: dict[str, type[Node]] = {}
        self._filling: dict[Place, type[Node]] = {}
        self._choosing: dict[Place, type[Node]] = {}
        self._at_once: set[Place] = set()
        """Where a choice came with its fields."""
        self._sources: dict[tuple[str, int, str], type[Node]] = {}
        self._open: dict[tuple[str, int, str], list[tuple[bool, Usage]]] = {}
        """Answers to questions that have not had their last one, by path, step and who asks."""

    def take(self, record: Record) -> None:
        place = record.path, record.step
        match record:
            case RunStarted():
                self._starts[record.path] = type(record.node)
            case StepStarted():
                self._stepped(place, record.node)
            case SourceStarted():
                asker = Asker("source", record.node_type, record.field, record.route)
                self._sources[*place, str(asker)] = record.node_type
            case ChoiceStarted():
                self._choosing[place] = type(record.node)
                if not record.path:
                    self._of(type(record.node)).chose.append(None)
            case FillStarted():
                self._filling[place] = record.target
            case AnswerJudged():
                answer = record.attempt.verdict == "valid", record.attempt.usage
                self._open.setdefault((*place, str(record.asker)), []).append(answer)
            case ChoiceMade():
                self._chosen(place, record)
            case FillEnded():
                if place in self._at_once:
                    self._settle(place, self._choosing[place], record.usage, _CHOICE)
                    self._took(self._choosing[place], _before(place), record.seconds)
                else:
                    self._settle(place, type(record.node), record.usage, _FILL)
                    self._took(type(record.node), place, record.seconds)
            case LMUsed():
                self._used(place, str(record.asker), record.usage)
            case _:
                pass

    def done(self) -> RunMeasure:
        for path, step, by in list(self._open):
            cls = self._class_of((path, step), by)
            answers = self._open.get((path, step, by), ())
            if cls is not None:
                used = Usage.total(usage for _, usage in answers)
                self._settle((path, step), cls, used, by)
        return self._measured

    def _chosen(self, place: Place, made: ChoiceMade) -> None:
        cls = type(made.node)
        self._choosing[place] = cls
        measured = self._of(cls)
        if not made.path:
            measured.chose[-1:] = [made.chosen]
        if made.seconds or made.usage != Usage():
            self._settle(place, cls, made.usage, _CHOICE)
            self._took(cls, _before(place), made.seconds)
        else:  # it came with its fields, and all of it is written down with these
            self._at_once.add(place)

    def _stepped(self, place: Place, node: Node) -> None:
        self._classes[place] = cls = type(node)
        measured = self._of(cls)
        rank = _rank(place)
        # Items of a map are worked on side by side: which of them ended last is chance.
        if cls not in self._last or rank >= self._last[cls]:
            self._last[cls], measured.last = rank, node

    def _used(self, place: Place, by: str, usage: Usage) -> None:
        cls = self._class_of(place, by)
        if cls is None:
            return
        self._settle(place, cls, usage, by)
        if by.startswith((_FILL, _CHOICE)):
            return  # it failed, and how long that took says nothing about the node
        own = by == f"{cls.__name__}.__call__" and self._classes.get(_before(place)) is cls
        self._took(cls, _before(place) if own else place, usage.seconds)

    def _class_of(self, place: Place, by: str) -> type[Node] | None:
        """Whose LM work it is that `by` names."""
        if by.startswith(_FILL):
            return self._filling.get(place)
        if by.startswith(_CHOICE):
            return self._choosing.get(place)
        if (*place, by) in self._sources:
            return self._sources[*place, by]
        # A body's, or of something that did not say whose it is: nothing is lost for that.
        return self._classes.get(_before(place)) or self._starts.get(place[0])

    def _settle(self, place: Place, cls: type[Node], usage: Usage, *starts: str) -> None:
        """Count what was used for a class, and the answers of those whose names start so."""
        measured = self._of(cls)
        measured.usage += usage
        for asking in [key for key in self._open if key[:2] == place]:
            if asking[2].startswith(starts):
                answers = self._open.pop(asking)
                measured.judged += len(answers)
                measured.valid += sum(valid for valid, _ in answers)

    def _took(self, cls: type[Node], place: Place, seconds: float) -> None:
        taken = self._of(cls).seconds
        taken[place] = taken.get(place, 0.0) + seconds

    def _of(self, cls: type[Node]) -> NodeMeasure:
        return self._measured.nodes.setdefault(cls, NodeMeasure())


def _before(place: Place) -> Place:
    # What leads from a node to the next is written under the step of the next.
    return place[0], place[1] - 1


def _rank(place: Place) -> tuple[tuple[str, int], ...]:
    """What sorts nodes by the steps and items that they are of, numbers as numbers."""
    text = f"{place[0]}:{place[1]}" if place[0] else str(place[1])
    return tuple((said, int(number)) for said, number in re.findall(r"(\D*)(\d+)", text))


# How the runner's questions name themselves; functions and bodies go by their own names.
_FILL = "filling "
_CHOICE = "choosing after "
