"""What a run has done already, looked up by place: the records of a run, indexed. A run that is
resumed or replayed asks this before it does anything; `keeper.py` holds it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, cast

from bae.calls import CallPlan
from bae.journal.records import (
    AnswerJudged,
    ChoiceMade,
    FillEnded,
    GateOpened,
    ItemEnded,
    LMAnswered,
    Record,
    Returned,
    RunEnded,
    RunForked,
    RunResumed,
    RunStarted,
    SourceEnded,
    StepStarted,
)
from bae.journal.values import LIVE, WITHHELD
from bae.lm.usage import Usage
from bae.markers import Dep
from bae.plan import plan_of
from bae.run import NOTHING, Nothing

if TYPE_CHECKING:
    from bae.node import Node


Spot = tuple[str, int]
"""A path and a step."""
Place = tuple[str, int, "type[Node]", str, str]
"""A path, a step, a node class, a field, and the route to a parameter behind it."""


class Recording:
    """The records of a run by place. Empty for a run that begins."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.started: dict[str, Node] = {}
        self.nodes: dict[Spot, Node] = {}
        self.returned: dict[Spot, Node] = {}
        self.chosen: dict[Spot, type[Node] | type[None]] = {}
        self.filled: dict[Spot, Node] = {}
        self.ended: dict[Spot, str] = {}
        self.deps: dict[Hashable, Any] = {}
        self.sources: dict[Place, Any] = {}
        self.failed: set[Place] = set()
        self.unkept: set[tuple[type[Node], str]] = set()
        """The fields whose values are made anew, and may be others then."""
        self.items: dict[Place, dict[int, Any]] = {}
        self.opened: dict[str, float] = {}
        self.answers: dict[str, str] = {}
        """What people have answered at gates, as JSON, by the gate's address."""
        self.asked: dict[tuple[str, int, str], list[LMAnswered]] = {}
        self.usage = Usage()
        self.max_iters = 10
        self.seconds = 0.0
        """How long the run was under way, added up over all the times that it was."""
        self._took_up = self._last = 0.0
        self._judged: dict[tuple[str, int, str], Usage] = {}
        for record in records:
            self._take(record)
        self._count_cut_off()
        self.seconds += max(0.0, self._last - self._took_up)

    @property
    def steps(self) -> int:
        """How many nodes the run itself has come to."""
        return sum(1 for path, _ in self.nodes if not path)

    def forget(self, path: str) -> None:
        """Drop what is recorded of a graph inside the run: it is begun anew."""
        under = f"{path}/"
        for table in (
            self.started,
            self.nodes,
            self.returned,
            self.chosen,
            self.filled,
            self.ended,
            self.sources,
            self.items,
            self.asked,
        ):
            entries = cast("dict[Any, Any]", table)
            for key in [k for k in entries if _path_of(k) == path or _path_of(k).startswith(under)]:
                del entries[key]

    def after(self, path: str, step: int) -> Node | Nothing | None:
        """What the node before `step` led to: the node there, whole or as far as it got, None where
        the run ended, or `NOTHING`."""
        spot = path, step
        for table in (self.nodes, self.returned):
            if spot in table:
                return table[spot]
        if self.ended.get(spot) == "ended":
            return None
        return NOTHING

    def _take(self, record: Record) -> None:
        self._clock(record)
        path, spot = record.path, (record.path, record.step)
        self._count(record)
        match record:
            case RunStarted():
                if path in self.started:
                    self.forget(path)
                self.started[path] = record.node
                if not path:
                    self.max_iters = record.max_iters
            case StepStarted():
                self.nodes[spot] = record.node
            case RunForked():
                self.nodes[spot] = record.node
            case Returned():
                self.returned[spot] = record.node
            case ChoiceMade():
                self.chosen[spot] = record.chosen
            case FillEnded():
                self.filled[spot] = record.node
            case SourceEnded():
                self._take_source(record)
            case ItemEnded():
                if not _is_unkept(record.value):
                    place = (*spot, record.node_type, record.field, "")
                    self.items.setdefault(place, {})[record.index] = record.value
            case GateOpened():
                self.opened.setdefault(record.gate.address, record.at)
            case LMAnswered() if not _is_unkept(record.value):
                self.asked.setdefault((*spot, record.by), []).append(record)
            case RunEnded():
                self.ended[spot] = record.outcome
            case _:
                pass

    def _take_source(self, record: SourceEnded) -> None:
        place = record.path, record.step, record.node_type, record.field, record.route
        if record.error is not None:
            self.failed.add(place)
            return
        if _is_unkept(record.value):
            self.unkept.add((record.node_type, record.field))
            return  # it is made anew
        call, cached = call_at(record.node_type, record.field, record.route)
        if call is not None and call.opens:
            return  # it was closed when the run stopped
        if call is not None and cached:
            self.deps[call.key] = record.value
        else:
            self.sources[place] = record.value

    def _count(self, record: Record) -> None:
        spot = record.path, record.step
        if isinstance(record, RunResumed):
            self._count_cut_off()
        if isinstance(record, AnswerJudged):
            asking = (*spot, record.by)
            self._judged[asking] = self._judged.get(asking, Usage()) + record.attempt.usage
            return
        usage = getattr(record, "usage", None)
        if isinstance(usage, Usage):
            self.usage += usage
            by = getattr(record, "by", None)
            for asking in [key for key in self._judged if key[:2] == spot]:
                if by in (None, asking[2]):
                    del self._judged[asking]

    def _count_cut_off(self) -> None:
        """Add answers that were paid for, to questions that were cut off before they had their last
        one: no sum that comes later has them."""
        self.usage += Usage.total(self._judged.values())
        self._judged.clear()

    def _clock(self, record: Record) -> None:
        if isinstance(record, RunResumed):  # the time in between nobody worked
            self.seconds += max(0.0, self._last - self._took_up)
            self._took_up = record.at
        elif not self._took_up:
            self._took_up = record.at
        self._last = record.at


def call_at(node_type: type[Node], field: str, route: str) -> tuple[CallPlan | None, bool]:
    """What is called for a field, and whether its value is made once in the whole run. `route`
    leads to a parameter of the function behind the field. A gate calls nothing."""
    plan = plan_of(node_type).fields[field]
    call, marker = plan.call, plan.marker
    for parameter in route[1:-1].split(")(") if route else ():
        below = dict(cast(CallPlan, call).inputs)[parameter]
        call, marker = below.call, below.marker
    return call, isinstance(marker, Dep) and marker.cache


def _is_unkept(value: object) -> bool:
    return value is LIVE or value is WITHHELD


def _path_of(key: object) -> str:
    return cast(str, key[0] if isinstance(key, tuple) else key)
