"""Lines of a journal into the records that the run wrote, through the classes of its graph. Names
in a line are looked up in the graph; nothing is imported by a name found in data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from bae.calls import every_call
from bae.exceptions import JournalError
from bae.journal.line_data import Data, Missing, Refused
from bae.journal.line_table import Kind
from bae.journal.lines import LineReader
from bae.journal.node_codec import node_codec, secret_needed, unreadable
from bae.markers import Dep, Gate, Map, OpenGate
from bae.place import Place
from bae.plan import FieldPlan, plan_of
from bae.records import LIVE, WITHHELD, Origin, Record, Unstored
from bae.run_tree import call_behind
from bae.threads import in_thread

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.history import History
    from bae.journal.store import Line
    from bae.node import Node
    from bae.work import Step

P = ParamSpec("P")
T = TypeVar("T")

MANY_LINES: Final = 500
"""From how many lines on they are read in a worker thread, so that the event loop goes on."""


def decode(
    graph: Graph[Any, Any],
    lines: Iterable[Line],
    *,
    given: Mapping[str, Any] | None = None,
    partial: bool = False,
) -> list[Record]:
    """The records of a run, as the run wrote them.

    `given` has the values of plain fields that were withheld as secrets, by `Class.field`; without
    them `JournalError` (`bae-journal-secret`) names all that are missing. With `partial` such a
    field is absent, which serves to show a run and not to resume it.
    """
    return read_run(graph, lines, given=given, partial=partial)[0]


def read_run(
    graph: Graph[Any, Any],
    lines: Iterable[Line],
    *,
    given: Mapping[str, Any] | None = None,
    partial: bool = False,
) -> tuple[list[Record], History]:
    """The records of a run and their history; see `decode`."""
    reader = GraphReader(graph, given or {}, partial)
    records = [record for line in lines if (record := reader.read(line)) is not None]
    if reader.missing_secrets:
        raise secret_needed(reader.missing_secrets)
    reader.history.replaying = False
    return records, reader.history


async def decode_run(
    graph: Graph[Any, Any],
    lines: Sequence[Line],
    *,
    given: Mapping[str, Any] | None = None,
    partial: bool = False,
) -> tuple[list[Record], History]:
    """The records of a run and their history, without blocking the event loop; see `decode`."""
    return await off_loop(len(lines), read_run, graph, lines, given=given, partial=partial)


async def off_loop(count: int, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` on so many lines returns: done in a worker thread if they are many."""
    if count < MANY_LINES:
        return work(*args, **kwargs)
    return await in_thread(work, *args, **kwargs)


def graph_at(graph: Graph[Any, Any], path: str) -> Graph[Any, Any]:
    """The graph that runs at a path of another, which is that one itself where the path is empty.
    Raises `JournalError` (`bae-journal-unreadable`) where there is none."""
    try:
        return _graph_at(graph, path)
    except Refused as error:
        raise JournalError(
            str(error), code="bae-journal-unreadable", fix="use the classes that the run began with"
        ) from error


class GraphReader(LineReader):
    """Reads lines through the classes of a graph. Nodes that are not stored whole are put together
    from their draft and the values of their sources, as the run did it."""

    def __init__(self, graph: Graph[Any, Any], given: Mapping[str, Any], partial: bool) -> None:
        super().__init__()
        self.missing_secrets: dict[str, None] = {}
        """The plain fields, as `Class.field`, that were withheld and are not given."""
        self._graph = graph
        self._given = given
        self._partial = partial
        self._classes: dict[str, dict[str, type[Node]]] = {}

    def record(self, kind: Kind, line: Line, data: Data) -> Record | None:
        """The record of a line; None if the line is about a field that no longer exists, or about a
        graph that runs for one: nothing that follows depends on it."""
        try:
            self._classes_at(line.path)
            return super().record(kind, line, data)
        except Gone:
            return None
        except Refused as error:
            raise JournalError(
                f"line {line.n}, {line.kind}: {error}",
                code="bae-journal-unreadable",
                cause=error.__cause__,
                fix="use the classes that the run began with, or give today's the old names",
            ) from error
        except JournalError as error:
            if error.code == "bae-journal-unreadable":
                error.message = f"line {line.n}, {line.kind}: {error.message}"
            raise

    def cls(self, path: str, name: str) -> type[Node]:
        """The class of a name in the graph at a path."""
        classes = self._classes_at(path)
        found = classes.get(name)
        if found is None:
            known = ", ".join(reversed(classes))
            graph = _graph_at(self._graph, path)
            raise Refused(f"the graph {graph.name} has no node {name}; it has {known}")
        return found

    def field(self, line: Line, cls: type[Node], field: str, parameter: str) -> None:
        """Check that a class has a field, and a parameter behind it."""
        _check_field(cls, Place(field=field, parameter=parameter))

    def node(self, line: Line, data: Data, is_inner_start: bool = False) -> Node:
        """A node, or the draft of one, as it is stored."""
        cls = self.cls(line.path, data.text("type"))
        data.inside("fields")
        withheld = data.texts("withheld") if "withheld" in data else ()
        if "unset" in data:
            data.texts("unset")
        # What a graph inside starts with, the run around it gives again, secrets too.
        is_inner_start = bool(line.path) and line.kind == "RunStarted"
        partial = self._partial or is_inner_start
        if withheld and not partial:
            plain = {field.name for field in plan_of(cls).plain}
            places = [f"{cls.__name__}.{name}" for name in withheld if name in plain]
            self.missing_secrets |= dict.fromkeys(p for p in places if p not in self._given)
            partial = bool(self.missing_secrets)
        return node_codec(cls).load(data.held, self._given, partial)

    def unknown_node(self, line: Line, name: str) -> Node:
        """The node before the step of a line must be the recorded one."""
        self.cls(line.path, name)
        raise Refused(f"the run is not at {name} before step {line.step}")

    def step_node(self, line: Line, data: Data) -> tuple[Node | None, tuple[str, ...]]:
        """The node of a step, put together where it is not stored."""
        if "node" in data and "made" not in data:
            return self.node(line, data.inside("node")), ()
        draft = self._draft(line)
        made: dict[str, Any] = {}
        if "made" in data:
            made = self._made(type(draft), data.inside("node").inside("fields").held)
        return self._whole(line, draft, made), tuple(made)

    def filled(self, line: Line, data: Data) -> Node:
        """What the LM filled, with the values that were known before."""
        node = self.node(line, data)
        cls = type(node)
        values = self.context(line, cls)
        known = {n: v for n, v in values.items() if n not in node.__dict__}
        lacks = [
            field.name
            for field in plan_of(cls).sourced
            if field.name not in known and field.name not in node.__dict__
        ]
        return self._joined(node, known, whole=bool(known) and not lacks)

    def context(self, line: Line, target: type[Node]) -> dict[str, Any]:
        """The values that were known before the LM filled a node."""
        values: dict[str, Any] = {}
        for field in plan_of(target).context:
            value = self._resolved(line, target, field)
            if not isinstance(value, Unstored | _Absent):
                values[field.name] = value
        return values

    def value(self, line: Line, cls: type[Node], field: str, parameter: str, data: Any) -> Any:
        """The value of a source, through the declared type."""
        codec = node_codec(cls)
        if codec.plan.fields[field].kind == "gate":
            return codec.load_answer(field, data)
        source = codec.call(field, parameter)
        if source.verdict == "live":  # whatever it was when it was written
            return LIVE
        try:
            return source.load(data)
        except JournalError:
            raise
        except Exception as error:
            raise unreadable(f"{cls.__name__}.{field}{parameter}", error) from error

    def items(self, line: Line, cls: type[Node], field: str, count: int | None) -> Any:
        """The values of the items of a map, in order. There may be more than counted: items that
        were made again can be fewer."""
        source = self.history.source(Place(line.path, line.step, cls.__name__, field))
        items = {} if source is None else source.items
        done = {index: item.value for index, item in items.items() if item.state == "done"}
        wanted = range(len(done) if count is None else count)
        if not all(index in done for index in wanted):
            raise Refused(f"items of {cls.__name__}.{field} are missing")
        values = [done[index] for index in wanted]
        return next((each for each in values if isinstance(each, Unstored)), values)

    def recalled(self, line: Line, origin: Origin) -> Any:
        """The value that a recall found: if that was not stored, this is not either."""
        step = self.history.step(origin.path, origin.step)
        if step is None or step.node is None:
            raise Refused(f"nothing is recorded of step {origin.step} at {origin.path!r}")
        if not origin.field:
            return step.node
        is_secret = origin.field in node_codec(type(step.node)).secret
        return step.node.__dict__.get(origin.field, WITHHELD if is_secret else LIVE)

    def answer(self, line: Line, data: Any) -> Any:
        """What an LM answered; as it is stored if the class is none of the graph's, since the code
        that asks again knows it."""
        if data is None:
            return None
        stored = Data(data)
        if "class" in stored:
            name = stored.get("class", str, type(None))
            if name is None:
                return type(None)
            return self._classes_at(line.path).get(name, data)
        if data.get("withheld") and not self._partial:
            return WITHHELD
        is_known = stored.text("type") in self._classes_at(line.path)
        return self.node(line, stored) if is_known else data

    def gate(self, line: Line, cls: type[Node], field: str, question: str, at: Any) -> OpenGate:
        """A gate that was reached, with what was known of its node then."""
        step = self.history.step(line.path, line.step)
        known: dict[str, Any] = {}
        if step is not None:
            if step.node is not None and type(step.node) is cls:
                known = dict(step.node.__dict__)
            for source in step.sources.values():
                if source.kind == "recall" and not isinstance(source.value, Unstored):
                    known[source.place.field] = source.value
        annotation = plan_of(cls).fields[field].annotation
        return OpenGate(question, cls, field, annotation, known, None, line.path, line.step, at)

    def gate_at(self, address: str) -> OpenGate:
        """The gate of an address; `Refused` if there is none today."""
        source = self.history.gates.get(address)
        if source is not None and source.gate is not None:
            return source.gate
        place = Place.parse(address)
        if place is None or not place.field:
            raise Missing(f"has {address!r}, which is no gate")
        cls = self.cls(place.path, place.node)
        field = plan_of(cls).fields.get(place.field)
        if field is None or not isinstance(field.marker, Gate):
            raise Gone(f"{cls.__name__}.{place.field} is no gate")
        question, annotation = field.marker.question, field.annotation
        return OpenGate(question, cls, place.field, annotation, path=place.path, step=place.step)

    def _classes_at(self, path: str) -> dict[str, type[Node]]:
        if path not in self._classes:
            graph = _graph_at(self._graph, path)
            self._classes[path] = {cls.__name__: cls for cls in reversed(graph.plans)}
        return self._classes[path]

    def _step_at(self, line: Line) -> Step | None:
        return self.history.step(line.path, line.step)

    def _draft(self, line: Line) -> Node:
        step = self._step_at(line)
        if step is None or step.node is None:
            raise Refused(f"nothing is recorded of the node at step {line.step}")
        return step.node

    def _made(self, cls: type[Node], data: Mapping[str, Any]) -> dict[str, Any]:
        """The defaults that factories made for a node, from their JSON."""
        codecs = node_codec(cls).fields
        values: dict[str, Any] = {}
        for name, held in data.items():
            if name in codecs:
                try:
                    values[name] = codecs[name].load(held)
                except Exception as error:
                    raise unreadable(f"{cls.__name__}.{name}", error) from error
        return values

    def _whole(self, line: Line, draft: Node, made: Mapping[str, Any]) -> Node:
        """The node at a step. It stays a draft where something must be made again."""
        cls = type(draft)
        absent = [f for f in plan_of(cls).sourced if f.name not in draft.__dict__]
        if not absent:
            return draft
        values: dict[str, Any] = {}
        lacks = False
        for field in absent:
            value = made[field.name] if field.name in made else self._resolved(line, cls, field)
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

    def _resolved(self, line: Line, cls: type[Node], field: FieldPlan) -> Any:
        """The value of a field's source; `_ABSENT` if it has none, so that the default is used."""
        step = self._step_at(line)
        source = None if step is None else step.sources.get((field.name, ""))
        if source is not None and source.node_type is not cls:
            source = None
        if field.kind == "recall":
            if source is not None and source.kind == "recall":
                return source.value
            return LIVE if field.required else _ABSENT
        if source is not None and source.state == "done" and source.kind != "recall":
            return source.value
        if isinstance(field.marker, Dep) and field.marker.cache and field.call is not None:
            shared = self.history.shared.get(field.call.key)
            if shared is not None:
                return shared.value
        return _ABSENT if not field.required and self._has_failed(step, cls, field) else LIVE

    def _has_failed(self, step: Step | None, cls: type[Node], field: FieldPlan) -> bool:
        """Whether the source of a field, or what it waited for, has failed."""
        if step is not None and any(
            source.state == "failed" and source.node_type is cls
            for (name, _), source in step.sources.items()
            if name == field.name
        ):
            return True
        if isinstance(field.marker, Map):
            over = plan_of(cls).fields[field.marker.over]
            if over.kind != "plain" and self._has_failed(step, cls, over):
                return True
        return any(call.key in self.history.failed_keys for call in every_call(field.call))


class Gone(Refused):
    """Raised for a field, or a parameter behind it, that its class no longer has."""


class _Absent:
    pass


_ABSENT: Final = _Absent()


def _graph_at(graph: Graph[Any, Any], path: str) -> Graph[Any, Any]:
    place = Place.parse(path) if path else None
    if path and place is None:
        raise Refused(f"{path!r} is no place in a run")
    if place is None:
        return graph
    outer = _graph_at(graph, place.path)
    cls = next((cls for cls in outer.plans if cls.__name__ == place.node), None)
    if cls is None:
        raise Refused(f"the graph {outer.name} has no node {place.node}")
    _check_field(cls, place)
    call, _ = call_behind(cls, place)
    if call is None or call.graph is None:
        raise Gone(f"the graph {outer.name} runs no graph for {place}")
    return call.graph


def _check_field(cls: type[Node], place: Place) -> None:
    if place.field not in plan_of(cls).fields:
        raise Gone(f"{cls.__name__} has no field {place.field}")
    try:
        call_behind(cls, place)
    except KeyError:
        name = f"{cls.__name__}.{place.field}"
        raise Gone(f"nothing behind {name} takes {place.parameter}") from None
