"""Node classes outside the graph, which a body has an LM make. A journal is read through the
classes of a graph. Of these classes it stores only values that count for the rest of the run:
results of functions that the run calls once, and the usage of LM calls."""

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
from bae.calls import asked_at, call_at, is_by_value, recalled_behind, routes, siblings_of
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
    """The name of a call, the same in every process: a `place` that uses the function, as
    `Reply.policy(shop)`, of the `graph` of that name. If no graph of the run uses the function, the
    module and name of the `function`. `arguments` is a hash of the arguments from the run."""

    graph: str = ""
    place: str = ""
    function: str = ""
    arguments: str = ""


class OutsideWriter(Writer):
    """Writes the values that are resolved for a class outside the graph, at the step of the
    `asker`. The log in memory has everything. The journal has a `CallEnded` for each value that is
    computed once for the run, and an `LMUsed` for the usage of LM calls."""

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
        """Record something; the journal gets its usage."""
        self.log.append(record)
        usage = getattr(record, "usage", None) if record.partial_usage is None else None
        if isinstance(usage, Usage) and usage != Usage():
            used = LMUsed(time(), self._path, self._step, self._asker, usage)
            self._owner.note_unlogged(used)
        elif isinstance(record, ClassMet):
            self._owner.note_unlogged(record)

    async def store(self, *records: Record) -> None:
        """Record finished work."""
        for record in records:
            self.write(record)

    def write_shared(self, ended: SourceEnded, is_given: bool) -> None:
        """Store a value that the caller gave."""
        call = self._call(ended, None) if is_given else None
        if call is not None:
            self._owner.note_unlogged(call)

    async def store_value(self, ended: SourceEnded, asked: Arguments | None) -> None:
        """Record a value, and store it if it counts for the whole run."""
        self.write(ended)
        call = self._call(ended, asked)
        if call is not None:
            await self._owner.store_unlogged(call)

    def _call(self, ended: SourceEnded, asked: Arguments | None) -> CallEnded | None:
        """The record of a value that counts for the whole run."""
        wanted = asked_at(plan_of(ended.node_type).fields[ended.field], ended.parameter)
        if wanted is None or self._hashes_secret(ended.node_type, wanted):
            return None
        name = call_name(self._graph, wanted, asked)
        if name is None:
            return None
        where = time(), self._path, self._step, ended.node_type, ended.field
        what = ended.by, ended.seconds, ended.value, ended.parameter
        return CallEnded(*where, *what, *name)

    def _hashes_secret(self, cls: type[Node], asked: FieldPlan | Input) -> bool:
        """Whether an argument is a secret, which a hash in the journal would reveal."""
        if not is_by_value(asked):
            return False
        secrets = Secrets.of(self._graph).including(cls)
        names = {field for _, field in siblings_of(asked)}
        return not names.isdisjoint(secrets.fields(cls)) or any(
            secrets.recalls(field) for _, _, field in recalled_behind(asked)
        )


def call_name(
    graph: Graph[Any, Any], asked: FieldPlan | Input, arguments: Arguments | None
) -> CallName | None:
    """The name of a call in every process. None if it has no such name: for a function that no
    graph of the run uses and that is not found under its own name, for arguments without a hash,
    and for a function that is called each time."""
    call = asked.call
    if call is None or not asked.is_shared or is_by_value(asked) is not (arguments is not None):
        return None
    places = _PLACES.get(graph)
    if places is None:
        places = _PLACES[graph] = _places(graph)
    functions, fn = places.get(call.key), call.fn
    if functions is not None:
        name = CallName(*functions)
    elif isinstance(fn, FunctionType) and _leads_to(fn):
        name = CallName(function=_full_name(fn))
    else:
        return None
    if arguments is None:
        return name
    values = _hash_of(asked, arguments)
    return None if values is None else name._replace(arguments=values)


def _leads_to(fn: FunctionType) -> bool:
    """Whether the name of a function leads to it: a decorated function may have another's name."""
    target: Any = sys.modules.get(fn.__module__)
    for name in fn.__qualname__.split("."):
        target = getattr(target, name, None)
    return target is fn


def _full_name(named: FunctionType | type) -> str:
    """The module and name of a function or class. A program that is run as a script gets the name
    by which it is imported elsewhere."""
    module = named.__module__
    if module == "__main__":
        main = sys.modules[module]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec else PurePath(file).stem if file else module
    return f"{module}:{named.__qualname__}"


def _places(graph: Graph[Any, Any]) -> dict[Hashable, tuple[str, str]]:
    """The first place of each function in a graph and those inside it, by key."""
    places: dict[Hashable, tuple[str, str]] = {}
    for each in graph.graphs:
        for plan in plan_of_graph(each).plans.values():
            for field in plan.called:
                for route in routes(field.call):
                    call = call_at(field, route)
                    if call is not None:
                        place = Place(node=plan.name, field=field.name, parameter=route)
                        places.setdefault(call.key, (each.name, str(place)))
    return places


_PLACES: WeakKeyDictionary[Graph[Any, Any], dict[Hashable, tuple[str, str]]] = WeakKeyDictionary()


def named_call(graph: Graph[Any, Any], name: CallName) -> FieldPlan | Input | None:
    """The field or input of a graph, or of a graph inside it, with a call name; None if none."""
    place = Place.parse(name.place) if name.place else None
    if place is None:
        return None
    for each in graph.graphs:
        if each.name == name.graph:
            for plan in plan_of_graph(each).plans.values():
                if plan.name == place.node and place.field in plan.fields:
                    return asked_at(plan.fields[place.field], place.parameter)
    return None


def _hash_of(asked: FieldPlan | Input, arguments: Arguments) -> str | None:
    """A hash of the arguments of a function that come from the run, the same in every process for
    equal values. None if a value is not known to have such a hash."""
    values = dict(arguments.own)
    for way, key, _ in recalled_behind(asked):
        if key in arguments.below:
            values[way] = arguments.below[key]
    text = _text_of(freeze(values))
    return text and sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _text_of(frozen: Hashable) -> str | None:
    """A text of a frozen value that no other value has, in every process. None if there is no such
    text: for a secret, and for an object of a class that bae does not know."""
    if isinstance(frozen, type):
        return _full_name(frozen)
    if isinstance(frozen, tuple | frozenset):
        texts = [_text_of(each) for each in cast("Iterable[Hashable]", frozen)]
        known = [text for text in texts if text is not None]
        if len(known) < len(texts):
            return None
        return f"({','.join(known if isinstance(frozen, tuple) else sorted(known))})"
    if isinstance(frozen, Enum):
        return frozen.name
    return repr(frozen) if frozen is None or type(frozen) in _WRITTEN else None


_WRITTEN = (str, int, float, bool, bytes, Decimal, UUID, date, time_of_day, datetime, timedelta)
"""The classes of values whose `repr` is the same in every process."""
