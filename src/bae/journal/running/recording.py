"""What a run has done already, looked up by place: the records of a run, indexed. A run that is
resumed or replayed asks this before it does anything; `keeper.py` holds it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, cast

from bae.calls import CallPlan
from bae.history import call_behind
from bae.place import Place as Place_
from bae.recorder import NOTHING, Nothing, UsageCount
from bae.records import (
    LIVE,
    WITHHELD,
    Asker,
    ChoiceMade,
    FillEnded,
    GateOpened,
    ItemEnded,
    LMAnswered,
    Recalled,
    Record,
    Returned,
    RunEnded,
    RunForked,
    RunResumed,
    RunStarted,
    SourceEnded,
    SourceStarted,
    StepStarted,
)

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
        self.inputs: dict[tuple[Hashable, str], Any] = {}
        """What was called for a dependency that is itself called once for the whole run, by the key
        of that one and the route from it: who asks for it first may be somebody else now."""
        self.failed: set[Place] = set()
        self.unkept: set[Place] = set()
        """Where values are made anew, and may be others then."""
        self.unkept_deps: set[Hashable] = set()
        """The same of dependencies that are made once in a run."""
        self.recalled: set[Place] = set()
        self.new_fields: frozenset[str] = frozenset()
        """The fields, as `Class.field`, that classes have and had not when the run began."""
        self.graphs: dict[Hashable, str] = {}
        """The path at which a graph that is run once for the whole run began."""
        self._graph_places: dict[str, Hashable] = {}
        self.items: dict[Place, dict[int, Any]] = {}
        self.opened: dict[str, float] = {}
        self.answers: dict[str, str] = {}
        """What people have answered at gates, as JSON, by the gate's address."""
        self.asked: dict[tuple[str, int, Asker], list[LMAnswered]] = {}
        self.asking: dict[Hashable, tuple[str, int, Asker]] = {}
        """Where dependencies that are called once for the whole run ask an LM from, by key."""
        self.max_iters = 10
        self.seconds = 0.0
        """How long the run was under way, added up over all the times that it was."""
        self._took_up = self._last = 0.0
        paid = UsageCount()
        for record in records:
            self._take(record)
            paid.take(record)
        self.usage = paid.total()
        self.seconds += max(0.0, self._last - self._took_up)

    @property
    def steps(self) -> int:
        """How many nodes the run itself has come to."""
        return sum(1 for path, _ in self.nodes if not path)

    def forget(self, path: str) -> None:
        """Drop what is recorded of a graph inside the run: it is begun anew. A graph that runs once
        for the whole run may have been asked for in there, and goes on for others."""
        kept = [inner for inner in self._graph_places if inner.startswith(f"{path}/")]

        def is_gone(other: str) -> bool:
            return is_inside(other, path) and not any(is_inside(other, each) for each in kept)

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
            for key in [k for k in entries if is_gone(_path_of(k))]:
                del entries[key]
        for places in (self.failed, self.unkept, self.recalled):
            places.difference_update([p for p in places if is_gone(p[0])])

    def is_anew(self, place: Place) -> bool:
        """Whether a value is made anew, as no journal has it, and may be another."""
        return place in self.unkept or _key_at(place) in self.unkept_deps

    def has_none(self, place: Place) -> bool:
        """Whether the node at a place that the run has left was there without the field, which its
        class had not then."""
        path, step, node_type, field, _ = place
        if f"{node_type.__name__}.{field}" not in self.new_fields:
            return False
        following = self.after(path, step + 1) if (path, step) in self.nodes else None
        if following is None or following is NOTHING:  # it is there, or the end of a graph inside
            return False
        if any(place in places for places in (self.sources, self.unkept, self.recalled)):
            return False
        key = _key_at(place)
        return key is None or (key not in self.deps and key not in self.unkept_deps)

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
        match record:
            case RunStarted():
                if path in self.started:
                    self.forget(path)
                if path in self._graph_places:
                    self.graphs[self._graph_places[path]] = path
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
            case SourceStarted() if record.source == "dep":
                self._take_shared(record)
            case SourceEnded():
                self._take_source(record)
            case Recalled():
                place = (*spot, record.node_type, record.field, "")
                self.recalled.add(place)
                if _is_unkept(record.value):
                    self.unkept.add(place)
            case ItemEnded():
                if not _is_unkept(record.value):
                    place = (*spot, record.node_type, record.field, "")
                    self.items.setdefault(place, {})[record.index] = record.value
            case GateOpened():
                self.opened.setdefault(record.gate.address, record.at)
            case LMAnswered() if not _is_unkept(record.value):
                self.asked.setdefault((*spot, record.asker), []).append(record)
            case RunEnded():
                self.ended[spot] = record.outcome
            case _:
                pass

    def _take_source(self, record: SourceEnded) -> None:
        place = record.path, record.step, record.node_type, record.field, record.parameter
        if record.error is not None:
            self.failed.add(place)
            return
        call, cached = call_at(record.node_type, record.field, record.parameter)
        key = call.key if call is not None and cached else None
        self._has_succeeded(place, key)
        # What was opened was closed when the run stopped.
        if _is_unkept(record.value) or (call is not None and call.opens):
            if key is not None:
                self.unkept_deps.add(key)
            else:
                self.unkept.add(place)
        elif key is not None:
            self.deps[key] = record.value
        else:
            self.sources[place] = record.value
            shared = shared_at(place)
            if shared is not None:
                self.inputs[shared] = record.value

    def _has_succeeded(self, place: Place, key: Hashable) -> None:
        self.failed.discard(place)
        self.unkept.discard(place)
        if key is not None:
            self.unkept_deps.discard(key)
            for other in [p for p in self.failed if _key_at(p) == key]:
                self.failed.discard(other)

    def _take_shared(self, record: SourceStarted) -> None:
        call, cached = call_at(record.node_type, record.field, record.parameter)
        if call is None or not cached:
            return
        by = f"{record.node_type.__name__}.{record.field}{record.parameter}"
        if call.graph is not None:
            before = f"{record.path}/" if record.path else ""
            self._graph_places[f"{before}{record.step}:{by}"] = call.key
        elif call.lm_parameters:
            asker = Asker("source", record.node_type, record.field, record.parameter)
            self.asking[call.key] = record.path, record.step, asker

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
    return call_behind(node_type, Place_(field=field, parameter=route))


def is_inside(path: str, other: str) -> bool:
    """Whether a path is another, or that of a graph inside the one that runs there."""
    return path == other or path.startswith(f"{other}/")


def shared_at(place: Place) -> tuple[Hashable, str] | None:
    """The key of the dependency, called once for the whole run, that a parameter is for, and the
    route from there; None where there is none."""
    *_, node_type, field, route = place
    below = ""
    while route:
        route, _, last = route.rpartition("(")
        below = f"({last}{below}"
        call, cached = call_at(node_type, field, route)
        if call is not None and cached:
            return call.key, below
    return None


def _key_at(place: Place) -> Hashable:
    call, cached = call_at(*place[2:])
    return call.key if call is not None and cached else None


def _is_unkept(value: object) -> bool:
    return value is LIVE or value is WITHHELD


def _path_of(key: object) -> str:
    return cast(str, key[0] if isinstance(key, tuple) else key)
