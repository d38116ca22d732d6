"""The nodes of a run put together again from what is recorded: drafts, the values of their sources,
recalled ones and those that are shared by the whole run, completed as the run did it. `decoding.py`
reads the lines and asks for them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from bae.calls import CallPlan, every_call
from bae.exceptions import JournalError
from bae.journal.coding.inside import SEGMENT, Inside, Refused, graph_inside
from bae.journal.coding.routes import asked_at, call_at
from bae.journal.node_codec import node_codec, unreadable
from bae.journal.running.recording import call_at as shared_call
from bae.journal.running.recording import is_inside
from bae.markers import Dep, Gate, Map, OpenGate
from bae.node import Node
from bae.plan import FieldPlan, plan_of
from bae.records import LIVE, WITHHELD, Unstored

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.records import Origin


_NOTHING: Final[Mapping[str, Any]] = {}


class Rebuilt:
    """A run as far as its lines were read."""

    def __init__(self, graph: Graph[Any, Any]) -> None:
        self.outermost = Inside(graph, "")
        self._insides: dict[str, Inside] = {"": self.outermost}
        self._shared: dict[Hashable, Any] = {}
        self._failed: set[Hashable] = set()
        self._gates: dict[str, OpenGate] = {}
        self._graphs: set[str] = set()
        """The paths of graphs that run once for the whole run."""

    def at(self, path: str) -> Inside:
        """What is known at a path."""
        found = self._insides.get(path)
        if found is None:
            found = self._insides[path] = Inside(graph_inside(self.outermost.graph, path), path)
        return found

    def class_at(self, path: str, name: object) -> type[Node] | None:
        """The class of a name in the graph at a path; None where either is not there."""
        try:
            return self.at(path).classes.get(str(name))
        except Refused:
            return None

    def begin(self, path: str) -> Inside:
        """A graph begins at a path, anew where it has run before. One that runs once for the whole
        run may have been asked for in there, and goes on for others."""
        kept = [inner for inner in self._graphs if path and inner.startswith(f"{path}/")]
        for each in [p for p in self._insides if p == path or (path and is_inside(p, path))]:
            if not any(is_inside(each, inner) for inner in kept):
                del self._insides[each]
        found = self.at(path) if path else Inside(self.outermost.graph, "")
        if not path:
            self.outermost = self._insides[""] = found
        return found

    def asked(self, here: Inside, step: int, cls: type[Node], field: str, route: str) -> None:
        """Somebody asks for what is behind a field."""
        call, shared = shared_call(cls, field, route)
        if call is not None and call.graph is not None and shared:
            before = f"{here.path}/" if here.path else ""
            self._graphs.add(f"{before}{step}:{cls.__name__}.{field}{route}")

    def check_field(self, cls: type[Node], field: str, route: str) -> None:
        """Refuse a field, or a parameter behind it, that the class does not have."""
        plan = plan_of(cls).fields.get(field)
        if plan is None:
            raise Refused(f"{cls.__name__} has no field {field}")
        if asked_at(plan, route) is None:
            raise Refused(f"nothing behind {cls.__name__}.{field} takes {route}")

    def value(self, cls: type[Node], field: str, route: str, data: Any) -> Any:
        """The value of a source, from its JSON."""
        kept = node_codec(cls)
        if kept.plan.fields[field].kind == "gate":
            return kept.load_answer(field, data)
        source = kept.call(field, route)
        if source.verdict == "live":  # whatever it was when it was written
            return LIVE
        try:
            return source.load(data)
        except JournalError:
            raise
        except Exception as error:
            raise unreadable(f"{cls.__name__}.{field}{route}", error) from error

    def found(
        self, here: Inside, step: int, cls: type[Node], field: str, route: str, value: Any
    ) -> None:
        """A source came to a value."""
        here.sources[step, cls, field, route] = value
        here.failures.discard((step, cls, field, route))
        call, shared = shared_call(cls, field, route)
        if call is not None and shared:
            self._shared[call.key] = value
            self._failed.discard(call.key)

    def failed(self, here: Inside, step: int, cls: type[Node], field: str, route: str) -> None:
        """A source failed."""
        here.failures.add((step, cls, field, route))
        call = call_at(plan_of(cls).fields[field], route)
        if call is not None and not self._is_map(cls, field, route):
            self._failed.add(call.key)

    def _is_map(self, cls: type[Node], field: str, route: str) -> bool:
        return not route and isinstance(plan_of(cls).fields[field].marker, Map)

    def recalled(self, origin: Origin) -> Any:
        """The value that a recall found: where that was not kept, this is not either."""
        node = self.at(origin.path).trace.get(origin.step)
        if node is None:
            raise Refused(f"nothing is recorded of step {origin.step} at {origin.path!r}")
        if not origin.field:
            return node
        hidden = origin.field in node_codec(type(node)).secret
        return node.__dict__.get(origin.field, WITHHELD if hidden else LIVE)

    def context(self, here: Inside, step: int, cls: type[Node]) -> dict[str, Any]:
        """The values that were there before the LM was asked to fill a node."""
        values: dict[str, Any] = {}
        for field in plan_of(cls).context:
            value = self._of(here, step, cls, field)
            if not isinstance(value, Unstored | _Absent):
                values[field.name] = value
        return values

    def filled(self, here: Inside, step: int, node: Node) -> Node:
        """What the LM filled, with the values of its context."""
        cls = type(node)
        values = self.context(here, step, cls)
        given = {n: v for n, v in values.items() if n not in node.__dict__}
        lacks = [
            field.name
            for field in plan_of(cls).sourced
            if field.name not in given and field.name not in node.__dict__
        ]
        return self._joined(node, given, whole=bool(given) and not lacks)

    def made(self, here: Inside, step: int, said: Mapping[str, Any]) -> dict[str, Any]:
        """The defaults that stood in the node at a step, from their JSON."""
        cls = type(self._draft(here, step))
        fields = node_codec(cls).fields
        values: dict[str, Any] = {}
        for name, data in said.items():
            if name in fields:
                try:
                    values[name] = fields[name].load(data)
                except Exception as error:
                    raise unreadable(f"{cls.__name__}.{name}", error) from error
        return values

    def _draft(self, here: Inside, step: int) -> Node:
        draft = here.drafts.get(step)
        if draft is None:
            raise Refused(f"nothing is recorded of the node at step {step}")
        return draft

    def whole(self, here: Inside, step: int, made: Mapping[str, Any] = _NOTHING) -> Node:
        """The node at a step, from its draft, what its sources came to and the defaults that were
        `made`. It stays a draft where something must be made anew."""
        draft = self._draft(here, step)
        cls = type(draft)
        absent = [f for f in plan_of(cls).sourced if f.name not in draft.__dict__]
        if not absent:
            return draft
        values: dict[str, Any] = {}
        lacks = False
        for field in absent:
            value = made[field.name] if field.name in made else self._of(here, step, cls, field)
            if isinstance(value, Unstored):
                lacks = True
            elif not isinstance(value, _Absent):
                values[field.name] = value
        return self._joined(draft, values, whole=not lacks)

    def _joined(self, draft: Node, values: dict[str, Any], whole: bool) -> Node:
        cls = type(draft)
        try:
            missing = [f.name for f in plan_of(cls).plain if f.name not in draft.__dict__]
            return node_codec(cls).joined(draft, values, whole and not missing)
        except JournalError:
            raise
        except Exception as error:
            raise unreadable(cls.__name__, error) from error

    def _of(self, here: Inside, step: int, cls: type[Node], field: FieldPlan) -> Any:
        """What the source of a field came to; `_ABSENT` where it came to nothing, so that the
        field's default stands."""
        if field.kind == "recall":
            return here.recalls.get(
                (step, cls, field.name), _ABSENT if not field.required else LIVE
            )
        found = here.sources.get((step, cls, field.name, ""), _ABSENT)
        if found is _ABSENT and isinstance(field.marker, Dep) and field.marker.cache:
            found = self._shared.get(cast(CallPlan, field.call).key, _ABSENT)
        if found is not _ABSENT:
            return found
        return _ABSENT if not field.required and self._has_failed(here, step, cls, field) else LIVE

    def _has_failed(self, here: Inside, step: int, cls: type[Node], field: FieldPlan) -> bool:
        """Whether the source of a field, or what it waited for, has failed."""
        if any(f[:3] == (step, cls, field.name) for f in here.failures):
            return True
        if isinstance(field.marker, Map):
            over = plan_of(cls).fields[field.marker.over]
            if over.kind != "plain" and self._has_failed(here, step, cls, over):
                return True
        return any(call.key in self._failed for call in every_call(field.call))

    def gate(
        self,
        here: Inside,
        step: int,
        cls: type[Node],
        field: str,
        question: str,
        deadline: float | None,
    ) -> OpenGate:
        """A gate that was reached, with what was known of its node then."""
        draft = here.drafts.get(step)
        known = dict(draft.__dict__) if draft is not None and type(draft) is cls else {}
        for each in plan_of(cls).sourced:
            value = here.recalls.get((step, cls, each.name), LIVE)
            if not isinstance(value, Unstored):
                known[each.name] = value
        annotation = plan_of(cls).fields[field].annotation
        gate = OpenGate(question, cls, field, annotation, known, None, here.path, step, deadline)
        self._gates[gate.address] = gate
        return gate

    def gate_at(self, address: str) -> OpenGate:
        """The gate of an address."""
        found = self._gates.get(address)
        if found is not None:
            return found
        path, _, last = address.rpartition("/")
        named = SEGMENT.fullmatch(last)
        if named is None:
            raise Refused(f"{address!r} is no gate of a run")
        here = self.at(path)
        cls = here.cls(named[2])
        marker = plan_of(cls).fields[named[3]].marker if named[3] in plan_of(cls).fields else None
        if not isinstance(marker, Gate):
            raise Refused(f"{cls.__name__}.{named[3]} is no gate")
        return self.gate(here, int(named[1]), cls, named[3], marker.question, None)


class _Absent:
    pass


_ABSENT: Final = _Absent()
