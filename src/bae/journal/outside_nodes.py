"""Record values for node classes outside the graph.

The body of a node may have an LM make a node of such a class. A journal is read through the classes
of the graph, so it stores only values that the rest of the run needs: results of functions that the
run calls once, and the usage of LM calls.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from pathlib import PurePath
from time import time
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID
from weakref import WeakKeyDictionary

from bae.arguments import freeze
from bae.calls import find_call_at, find_input, is_by_value, routes, siblings_of, walk_recalls
from bae.graph_plan import plan_of_graph
from bae.place import Place
from bae.plan import plan_of
from bae.records import CallEnded, ClassMet, LMUsed, Record, SourceEnded
from bae.secrets import Secrets
from bae.usage import Usage
from bae.writer import Writer

if TYPE_CHECKING:
    from bae.arguments import Arguments
    from bae.calls import Input
    from bae.graph import Graph
    from bae.journal.run_writer import JournalWriter
    from bae.node import Node
    from bae.plan import FieldPlan
    from bae.records import Asker


class CallName(NamedTuple):
    """The name of a function call, the same in every process."""

    graph: str = ""
    """The name of the graph that uses the function; empty if no graph of the run uses it."""
    place: str = ""
    """The first place in the graph that uses the function, as `Reply.policy(shop)`."""
    function: str = ""
    """The module and name of the function, if no graph of the run uses it."""
    arguments: str = ""
    """A hash of the arguments that come from the run; empty if there are none."""


class OutsideWriter(Writer):
    """Writes the values that are resolved for a class outside the graph, at the step of the
    `asker`.

    The log in memory gets every record. The journal gets a `CallEnded` for each value that is
    computed once for the run, and an `LMUsed` for the usage of LM calls.
    """

    __slots__ = ("_asker", "_graph", "_owner", "_path", "_step")

    def __init__(
        self, owner: JournalWriter, graph: Graph[Any, Any], path: str, step: int, asker: Asker
    ) -> None:
        super().__init__(owner.log)
        self._owner = owner
        self._graph = graph
        self._path, self._step, self._asker = path, step, asker

    async def confirm(self) -> None:
        """Raise an error if another process has taken over the run."""
        await self._owner.confirm()

    def write(self, record: Record) -> None:
        """Add a record to the log. The journal gets the record's usage, or the class that the run
        has met."""
        self.log.append(record)
        usage = getattr(record, "usage", None) if record.partial_usage is None else None
        if isinstance(usage, Usage) and usage != Usage():
            used = LMUsed(time(), self._path, self._step, self._asker, usage)
            self._owner.note_unlogged(used)
        elif isinstance(record, ClassMet):
            self._owner.note_unlogged(record)

    async def store(self, *records: Record) -> None:
        """Add the records of finished work to the log."""
        for record in records:
            self.write(record)

    def write_shared_value(self, ended: SourceEnded, is_given: bool) -> None:
        """Have the journal store a shared value, if the caller gave the value."""
        call = self._call(ended, None) if is_given else None
        if call is not None:
            self._owner.note_unlogged(call)

    async def store_value(self, ended: SourceEnded, asked: Arguments | None) -> None:
        """Add a value to the log, and store it if the run computes it only once."""
        self.write(ended)
        call = self._call(ended, asked)
        if call is not None:
            await self._owner.store_unlogged(call)

    def _call(self, ended: SourceEnded, asked: Arguments | None) -> CallEnded | None:
        """Return the record of a value that the run computes only once. None for any other
        value."""
        target = find_input(plan_of(ended.node_type).fields[ended.field], ended.parameter)
        if target is None or self._hashes_secret(ended.node_type, target):
            return None
        name = call_name(self._graph, target, asked)
        if name is None:
            return None
        where = time(), self._path, self._step, ended.node_type, ended.field
        what = ended.by, ended.seconds, ended.value, ended.parameter
        return CallEnded(*where, *what, *name)

    def _hashes_secret(self, cls: type[Node], asked: FieldPlan | Input) -> bool:
        """Return whether an argument is a secret. A hash of a secret in the journal would reveal
        the secret."""
        if not is_by_value(asked):
            return False
        secrets = Secrets.of(self._graph).including(cls)
        names = {field for _, field in siblings_of(asked)}
        return not names.isdisjoint(secrets.fields(cls)) or any(
            secrets.recalls(field) for _, _, field in walk_recalls(asked)
        )


def call_name(
    graph: Graph[Any, Any], asked: FieldPlan | Input, arguments: Arguments | None
) -> CallName | None:
    """Return the name of a call in every process, or None if the call has no such name.

    A call has no name in three cases: the run calls its function each time; no graph of the run
    uses the function, and it cannot be found by its module and name; or an argument has no hash.
    """
    call = asked.call
    if call is None or not asked.is_shared or is_by_value(asked) is not (arguments is not None):
        return None
    places = _PLACES.get(graph)
    if places is None:
        places = _PLACES[graph] = _find_places(graph)
    functions, fn = places.get(call.key), call.fn
    if functions is not None:
        name = CallName(*functions)
    elif isinstance(fn, FunctionType) and _leads_to(fn):
        name = CallName(function=_full_name(fn))
    else:
        return None
    if arguments is None:
        return name
    values = _hash_arguments(asked, arguments)
    return None if values is None else name._replace(arguments=values)


def _leads_to(fn: FunctionType) -> bool:
    """Return whether a function can be found by its module and name. A decorated function may have
    the name of another function."""
    target: Any = sys.modules.get(fn.__module__)
    for name in fn.__qualname__.split("."):
        target = getattr(target, name, None)
    return target is fn


def _full_name(target: FunctionType | type) -> str:
    """Return the module and name of a function or class. `__main__` is replaced by the name under
    which another program would import the module."""
    module = target.__module__
    if module == "__main__":
        main = sys.modules[module]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec else PurePath(file).stem if file else module
    return f"{module}:{target.__qualname__}"


def _find_places(graph: Graph[Any, Any]) -> dict[Hashable, tuple[str, str]]:
    """Return the first place of each function in a graph and its subgraphs, by the key of the
    call."""
    places: dict[Hashable, tuple[str, str]] = {}
    for inner in graph.graphs:
        for plan in plan_of_graph(inner).plans.values():
            for field in plan.called:
                for route in routes(field.call):
                    call = find_call_at(field, route)
                    if call is not None:
                        place = Place(node=plan.name, field=field.name, parameter=route)
                        places.setdefault(call.key, (inner.name, str(place)))
    return places


_PLACES: WeakKeyDictionary[Graph[Any, Any], dict[Hashable, tuple[str, str]]] = WeakKeyDictionary()
"""The first places of functions, by graph."""


def resolve_call_name(graph: Graph[Any, Any], name: CallName) -> FieldPlan | Input | None:
    """Return the field or input that a call name stands for, in a graph or its subgraphs. None if
    there is none."""
    place = Place.parse(name.place) if name.place else None
    if place is None:
        return None
    for inner in graph.graphs:
        if inner.name == name.graph:
            for plan in plan_of_graph(inner).plans.values():
                if plan.name == place.node and place.field in plan.fields:
                    return find_input(plan.fields[place.field], place.parameter)
    return None


def _hash_arguments(asked: FieldPlan | Input, arguments: Arguments) -> str | None:
    """Return a hash of the arguments that come from the run. Equal arguments have the same hash in
    every process. None if a value has no hash that is the same in every process."""
    values = dict(arguments.own)
    for route, key, _ in walk_recalls(asked):
        if key in arguments.below:
            values[route] = arguments.below[key]
    text = _make_unique_text(freeze(values))
    return text and sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _make_unique_text(frozen: Hashable) -> str | None:
    """Return a text that stands for a frozen value in every process, and for no other value. None
    if there is no such text: for a secret, and for an object of a class that bae does not know."""
    if isinstance(frozen, type):
        return _full_name(frozen)
    if isinstance(frozen, tuple | frozenset):
        texts = [_make_unique_text(item) for item in cast("Iterable[Hashable]", frozen)]
        known_texts = [text for text in texts if text is not None]
        if len(known_texts) < len(texts):
            return None
        return f"({','.join(known_texts if isinstance(frozen, tuple) else sorted(known_texts))})"
    if isinstance(frozen, Enum):
        return frozen.name
    return repr(frozen) if frozen is None or type(frozen) in _WRITTEN else None


_WRITTEN = (str, int, float, bool, bytes, Decimal, UUID, date, time_of_day, datetime, timedelta)
"""The classes of values whose `repr` is the same in every process."""
