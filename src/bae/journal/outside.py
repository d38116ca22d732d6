"""Node classes that a body has an LM make and that are none of the graph's. A journal is read
through the classes of a graph, so of these it stores what counts for the rest of the run: values of
functions that the run calls once, and what LM calls used."""

from __future__ import annotations

from collections.abc import Hashable
from hashlib import sha256
from time import time
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from bae.calls import asked_at, call_at, is_by_value, recalled_behind, routes
from bae.markers import Dep
from bae.place import Place
from bae.plan import plan_of
from bae.recorder import Log, Recorder
from bae.records import NOTHING, CallEnded, ClassMet, LMUsed, Record, SourceEnded
from bae.sources import text_to_sort_by
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.arguments import Arguments
    from bae.calls import Input
    from bae.graph import Graph
    from bae.node import Node
    from bae.plan import FieldPlan
    from bae.records import Asker


class CallName(NamedTuple):
    """What names a call in every process: a `place` that uses the function, as
    `Reply.policy(shop)`, of the `graph` of that name; or, where no graph of the run uses it, the
    module and the name of the `function`. `arguments` is a hash of those that come from the run."""

    graph: str = ""
    place: str = ""
    function: str = ""
    arguments: str = ""


class Owner(Protocol):
    """The recorder of the run that a class outside the graph is made in."""

    log: Log

    @property
    def looks_back(self) -> bool: ...
    @property
    def is_in_doubt(self) -> bool: ...
    async def confirm(self) -> None: ...

    def note_unlogged(self, record: Record) -> None:
        """Have a record stored that is not in the log."""
        ...

    async def store_unlogged(self, *records: Record) -> None:
        """Store records that are not in the log."""
        ...

    def value_outside(
        self, place: Place, asked: FieldPlan | Input, arguments: Arguments | None
    ) -> Any:
        """What a function has returned before, or `NOTHING`."""
        ...


class OutsideRecorder(Recorder):
    """The recorder of what is resolved for a class outside the graph, at the step of the `asker`.
    The log in memory has everything; the journal has a `CallEnded` for each value that is called
    for once, and an `LMUsed` for what LM calls used."""

    __slots__ = ("_asker", "_graph", "_owner", "_path", "_step")

    def __init__(
        self, owner: Owner, graph: Graph[Any, Any], path: str, step: int, asker: Asker
    ) -> None:
        super().__init__(owner.log)
        self._owner = owner
        self._graph = graph
        self._path, self._step, self._asker = path, step, asker

    @property
    def looks_back(self) -> bool:
        """Whether something was recorded before this run started here."""
        return self._owner.looks_back

    @property
    def is_in_doubt(self) -> bool:
        """Whether another process may have taken over the run."""
        return self._owner.is_in_doubt

    async def confirm(self) -> None:
        """Raise an error if another process has taken over the run."""
        await self._owner.confirm()

    def outside(self, path: str, step: int, asker: Asker) -> Recorder:
        """The recorder of a class that a function behind this one has made."""
        return self

    def write(self, record: Record) -> None:
        """Record something; the journal has what it used."""
        self.log.append(record)
        usage = getattr(record, "usage", None)
        if isinstance(usage, Usage) and usage != Usage():
            used = LMUsed(time(), self._path, self._step, self._asker, usage)
            self._owner.note_unlogged(used)
        elif isinstance(record, ClassMet):
            self._owner.note_unlogged(record)

    async def store(self, *records: Record) -> None:
        """Record what has been done."""
        for record in records:
            self.write(record)

    async def store_value(self, ended: SourceEnded, asked: Arguments | None) -> None:
        """Record a value, and store it if it counts for the whole run."""
        self.write(ended)
        call = self._call(ended, asked)
        if call is not None:
            await self._owner.store_unlogged(call)

    def recorded_value(
        self,
        place: Place,
        node_type: type[Node],
        early: bool = False,
        asked: Arguments | None = None,
    ) -> Any:
        """The value of a function that was called before, or `NOTHING`."""
        wanted = asked_at(plan_of(node_type).fields[place.field], place.parameter)
        return NOTHING if wanted is None else self._owner.value_outside(place, wanted, asked)

    def _call(self, ended: SourceEnded, asked: Arguments | None) -> CallEnded | None:
        """The record of a value that counts for the whole run."""
        wanted = asked_at(plan_of(ended.node_type).fields[ended.field], ended.parameter)
        name = None if wanted is None else call_name(self._graph, wanted, asked)
        if name is None:
            return None
        where = time(), self._path, self._step, ended.node_type, ended.field
        what = ended.by, ended.seconds, ended.value, ended.parameter
        return CallEnded(*where, *what, *name)


def call_name(
    graph: Graph[Any, Any], asked: FieldPlan | Input, arguments: Arguments | None
) -> CallName | None:
    """What names a call in every process. None where nothing does, for a function that is defined
    inside another one and that no graph of the run uses; and where it is called each time."""
    call, is_once = asked.call, isinstance(asked.marker, Dep) and asked.marker.cache
    if call is None or not is_once or is_by_value(asked) is not (arguments is not None):
        return None
    places = _PLACES.get(graph)
    if places is None:
        places = _PLACES[graph] = _places(graph)
    found, fn = places.get(call.key), call.fn
    if found is not None:
        name = CallName(*found)
    elif isinstance(fn, FunctionType) and "<" not in fn.__qualname__:
        name = CallName(function=f"{fn.__module__}:{fn.__qualname__}")
    else:
        return None
    if arguments is None:
        return name
    return name._replace(arguments=_hash_of(asked, arguments))


def _places(graph: Graph[Any, Any]) -> dict[Hashable, tuple[str, str]]:
    """The first place of each function in a graph and those inside it, by key."""
    found: dict[Hashable, tuple[str, str]] = {}
    for each in graph.graphs:
        for plan in each.plans.values():
            for field in plan.sourced:
                for route in routes(field.call):
                    call = call_at(field, route)
                    if call is not None:
                        place = Place(node=plan.name, field=field.name, parameter=route)
                        found.setdefault(call.key, (each.name, str(place)))
    return found


_PLACES: WeakKeyDictionary[Graph[Any, Any], dict[Hashable, tuple[str, str]]] = WeakKeyDictionary()


def named_call(graph: Graph[Any, Any], name: CallName) -> FieldPlan | Input | None:
    """What a graph, or one inside it, has at a place that names a function; None if nothing."""
    place = Place.parse(name.place) if name.place else None
    if place is None:
        return None
    for each in graph.graphs:
        if each.name == name.graph:
            for plan in each.plans.values():
                if plan.name == place.node and place.field in plan.fields:
                    return asked_at(plan.fields[place.field], place.parameter)
    return None


def _hash_of(asked: FieldPlan | Input, arguments: Arguments) -> str:
    """A hash of what a function is called with that comes from the run, the same in every
    process for values that are equal as JSON."""
    values = dict(arguments.own)
    for way, key, _ in recalled_behind(asked):
        if key in arguments.below:
            values[way] = arguments.below[key]
    texts = [f"{name}={text_to_sort_by(value)}" for name, value in sorted(values.items())]
    return sha256("\n".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
