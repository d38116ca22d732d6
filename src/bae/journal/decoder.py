"""Read the lines of a journal into records, through the classes of a graph or without the code of
the run. Names in a line are looked up in the graph. No name in the data is ever imported."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache
from functools import partial as partial_of
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

from pydantic import SecretStr, create_model

from bae import records
from bae.calls import every_call, is_by_value
from bae.draft import empty_draft
from bae.exceptions import JournalError, describe
from bae.files import visible
from bae.graph_plan import plan_of_graph
from bae.history import History
from bae.journal.lines import AskerData, ErrorData, StoredNode, damaged_line_error, parse_line
from bae.journal.node_codec import call_codec, missing_secrets_error, node_codec, unreadable
from bae.journal.outside_nodes import CallName, resolve_call_name
from bae.journal.shape import Json, ShapeView
from bae.markers import OpenGate
from bae.node import Node
from bae.place import Place
from bae.plan import FieldPlan, plan_of
from bae.records import (
    LIVE,
    NOTHING,
    WITHHELD,
    WITHHELD_MESSAGE,
    Asker,
    Origin,
    Record,
    RecordedError,
    Unstored,
)
from bae.run import Waiting
from bae.run_tree import Exit, find_call
from bae.sources import find_source_kind
from bae.threads import in_thread
from bae.tools import ToolCall
from bae.turns import Messages, turns_in_use
from bae.usage import Attempt

if TYPE_CHECKING:
    from bae.calls import CallPlan
    from bae.graph import Graph
    from bae.journal.stored_runs import Line, StoredRun
    from bae.work import Step

P = ParamSpec("P")
T = TypeVar("T")

MANY_LINES: Final = 500
"""From this number of lines on, a worker thread reads them, so that the event loop stays free."""


def decode(
    graph: Graph[Any, Any],
    lines: Iterable[Line],
    *,
    given: Mapping[str, Any] | None = None,
    partial: bool = False,
    files: Mapping[str, bytes] | None = None,
    turns: Messages | None = None,
) -> tuple[list[Record], History]:
    """Read the lines of a run. Returns its records, as the run wrote them, and its history.

    - `given`: values of plain fields that were withheld as secrets or redacted, by `Class.field`.
      If a value is missing, `JournalError` (`bae-journal-secret`) names every field that needs a
      value.
    - `partial`: leave fields without a value out, and raise no error. The history can then be
      shown, but not resumed.
    - `files`: the files of the run.
    - `turns`: the earlier turns of the run's thread, which no line has.
    """
    reader = LineReader(graph, given, partial, turns=turns)
    token = turns_in_use.set(turns)
    try:
        with visible(files or {}):
            records = [record for line in lines if (record := reader.read(line)) is not None]
    finally:
        turns_in_use.reset(token)
    if reader.missing_secrets:
        raise missing_secrets_error(reader.missing_secrets)
    reader.history.replaying = False
    return records, reader.history


async def decode_run(
    graph: Graph[Any, Any],
    lines: Sequence[Line],
    *,
    given: Mapping[str, Any] | None = None,
    partial: bool = False,
    files: Mapping[str, bytes] | None = None,
    turns: Messages | None = None,
) -> tuple[list[Record], History]:
    """Read the lines of a run as `decode` does, without blocking the event loop."""
    work = partial_of(decode, given=given, partial=partial, files=files, turns=turns)
    return await off_loop(MANY_LINES if files else len(lines), work, graph, lines)


def read_history(stored: StoredRun) -> StoredHistory:
    """Read the history of a stored run, without the code of the run."""
    try:
        history = StoredHistory(ShapeView(stored.shape, stored.info.shape))
        reader = LineReader(history=history)
        for line in stored.lines:
            reader.read(line)
    except JournalError as error:
        error.run_id = stored.info.run_id
        raise
    return history


async def off_loop(count: int, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `work` and return its result. If `count`, the number of lines, is large, a worker thread
    calls `work`."""
    if count < MANY_LINES:
        return work(*args, **kwargs)
    return await in_thread(work, *args, **kwargs)


def graph_at(graph: Graph[Any, Any], path: str) -> Graph[Any, Any]:
    """Return the graph that runs at a path of another graph. An empty path leads to that graph
    itself. Raises `JournalError` (`bae-journal-unreadable`) if no graph runs there."""
    for part in path.split("/") if path else ():
        graph = _find_part_graph(graph, part)
    return graph


def _find_part_graph(outer: Graph[Any, Any], part: str) -> Graph[Any, Any]:
    """Return the subgraph that runs for a field. `part` is the place of the field in the outer
    graph."""
    place = Place.parse(part)
    if place is None:
        raise LineRefused(f"{part!r} is no place in a run")
    cls = next((cls for cls in outer.nodes if cls.__name__ == place.node), None)
    if cls is None:
        raise LineRefused(f"the graph {outer.name} has no node {place.node}")
    call = _call_at(cls, place)
    if call is None or call.graph is None:
        raise Gone(f"the graph {outer.name} runs no graph for {place}")
    return call.graph


def _call_at(cls: type[Node], place: Place) -> CallPlan | None:
    try:
        return find_call(cls, place)[0]
    except KeyError:
        missing = f"{cls.__name__}.{place.field}{place.parameter}"
        raise Gone(f"there is no {missing}") from None


class LineRefused(JournalError):
    """Raised for a line that does not fit today's classes."""

    def __init__(self, what: str) -> None:
        fix = "use the classes that the run began with, or give today's classes the old names"
        super().__init__(what, code="bae-journal-unreadable", fix=fix)


class Gone(LineRefused):
    """Raised for a field that its class no longer has, or a parameter that its function no longer
    has."""


_Read = Callable[[Any, "Line", Json, str], None]
_READ: Final[dict[str, _Read]] = {}
"""The function that reads the data of an attribute, by the role of the attribute."""


def _reads(*roles: str) -> Callable[[_Read], _Read]:
    def register(read: _Read) -> _Read:
        _READ.update(dict.fromkeys(roles, read))
        return read

    return register


class LineReader:
    """Reads the lines of a run in order. `history` has the lines so far.

    With a `graph`, the lines are read through its classes. A node that is not stored in full is put
    together from its draft and the values of its sources, as in the run. Without a graph, classes
    are stand-ins with the recorded names, and values are JSON.
    """

    def __init__(
        self,
        graph: Graph[Any, Any] | None = None,
        given: Mapping[str, Any] | None = None,
        partial: bool = False,
        history: History | None = None,
        turns: Messages | None = None,
    ) -> None:
        self.history = History() if history is None else history
        self._turns = turns
        self.missing_secrets: dict[str, None] = {}
        """The withheld plain fields that need a value in `given`, as `Class.field`."""
        self._graph = graph
        self._given = given or {}
        self._partial = partial
        self._graphs: dict[str, Graph[Any, Any]] = {}
        """The graphs that were found so far, by path."""
        self._classes: dict[str, dict[str, type[Node]]] = {}

    def read(self, line: Line) -> Record | None:
        """Return the record of the next line. Returns None for a line about a field that no longer
        exists, or about a subgraph for such a field. No record depends on such a line."""
        data = parse_line(line)
        try:
            self._classes_at(line.path)
            record = self._record(line, data)
            self.history.add(record)
        except Gone:
            return None
        except JournalError as error:
            if error.code == "bae-journal-unreadable":
                error.message = f"line {line.n}, {line.kind}: {error.message}"
            raise
        except Exception as error:  # the line is invalid, or contradicts an earlier line
            raise damaged_line_error(line, describe(error), error) from error
        return record

    def _record(self, line: Line, data: Json) -> Record:
        """Return the record of a line. Most data are attributes with the same name."""
        kind = records.KINDS[line.kind]
        for name, read in _readers(kind):
            read(self, line, data, name)
        return kind(line.at, line.path, line.step, **data)

    # The readers of the roles. Each replaces stored data by an attribute of the record.

    @_reads("field class")
    def _read_field_class(self, line: Line, data: Json, name: str) -> None:
        cls = data[name] = self._class(line.path, data.pop("node"))
        if self._graph is not None:
            _call_at(cls, Place(field=data["field"], parameter=data.get("parameter", "")))

    @_reads("outside class")
    def _read_outside_class(self, line: Line, data: Json, name: str) -> None:
        data[name] = _make_outside_class(data.pop("node"))

    @_reads("secret class")
    def _read_secret_class(self, line: Line, data: Json, name: str) -> None:
        data[name] = _make_outside_class(data.pop("node"), _Hidden)

    @_reads("class", "class or end")
    def _read_class(self, line: Line, data: Json, name: str) -> None:
        data[name] = NoneType if data[name] is None else self._class(line.path, data[name])

    @_reads("classes")
    def _read_classes(self, line: Line, data: Json, name: str) -> None:
        classes = [self._find_offered(line.path, cls_name) for cls_name in data[name]]
        data[name] = tuple(cls for cls in classes if cls is not None)

    @_reads("previous node")
    def _read_previous(self, line: Line, data: Json, name: str) -> None:
        data[name] = self._previous(line, data[name])

    @_reads("node", "start node")
    def _read_node(self, line: Line, data: Json, name: str) -> None:
        data[name] = self._node(line, data[name])

    @_reads("filled node")
    def _read_filled(self, line: Line, data: Json, name: str) -> None:
        data[name] = self._filled_node(line, self._node(line, data[name]))

    @_reads("step node")
    def _read_step(self, line: Line, data: Json, name: str) -> None:
        data["node"], data["made"] = self._step_node(line, data["node"], data["made"])

    @_reads("asker")
    def _read_asker(self, line: Line, data: Json, name: str) -> None:
        data[name] = self._asker(line, data[name])

    @_reads("tools", "calls")
    def _read_tools(self, line: Line, data: Json, name: str) -> None:
        data[name] = tuple(item.model_dump(exclude_unset=True) for item in data[name])

    @_reads("error")
    def _read_error(self, line: Line, data: Json, name: str) -> None:
        data[name] = None if data[name] is None else _read_recorded_error(data[name])

    @_reads("value", "outcome")
    def _read_value(self, line: Line, data: Json, name: str) -> None:
        if "error" in data:
            self._read_error(line, data, "error")
        data[name] = self._value(line, data)

    @_reads("called value")
    def _read_called(self, line: Line, data: Json, name: str) -> None:
        self._find_call(data)

    @_reads("recalled")
    def _read_recalled(self, line: Line, data: Json, name: str) -> None:
        data[name] = self._recalled_value(data["origin"])

    @_reads("turns")
    def _read_turns(self, line: Line, data: Json, name: str) -> None:
        if self._graph is None:
            data[name] = None
            return
        field = plan_of(data["node_type"]).fields[data["field"]]
        earlier = Messages() if self.history.turn is None else self._turns
        turns = (
            None if earlier is None else field.select_turns(earlier, data["count"], data["omitted"])
        )
        is_same = turns is not None and turns.ends == (data["first"], data["last"])
        data[name] = turns if is_same else LIVE

    @_reads("gate")
    def _read_gate(self, line: Line, data: Json, name: str) -> None:
        self._read_field_class(line, data, "node_type")
        gate = self._gate(line, data)
        data.clear()
        data[name] = gate

    @_reads("gates")
    def _read_gates(self, line: Line, data: Json, name: str) -> None:
        gates = [self._gate_at(line, address) for address in data[name]]
        data[name] = tuple(gate for gate in gates if gate is not None)

    @_reads("attempt")
    def _read_attempt(self, line: Line, data: Json, name: str) -> None:
        asker = data.pop("asker")
        attempt = Attempt(**data)
        data.clear()
        data |= {"asker": asker, name: attempt}

    @_reads("answer")
    def _read_answer(self, line: Line, data: Json, name: str) -> None:
        data[name] = self._answer(line, data[name])

    @_reads("context")
    def _read_context(self, line: Line, data: Json, name: str) -> None:
        data[name] = self._context(line, data["target"])

    @_reads("last node")
    def _read_last_node(self, line: Line, data: Json, name: str) -> None:
        data[name] = self._last_node(line) if data["outcome"] == "ended" else None

    # Classes and fields.

    def _classes_at(self, path: str) -> dict[str, type[Node]]:
        if self._graph is None:
            return self._classes.setdefault("", {})
        classes = self._classes.get(path)
        if classes is None:
            outer, _, part = path.rpartition("/")
            around = self._graphs.get(outer) if part else None
            graph = (
                graph_at(self._graph, path) if around is None else _find_part_graph(around, part)
            )
            self._graphs[path] = graph
            classes = self._classes[path] = {cls.__name__: cls for cls in reversed(graph.nodes)}
        return classes

    def _class(self, path: str, name: str) -> type[Node]:
        """Return the class with this name in the graph at `path`."""
        classes = self._classes_at(path)
        cls = classes.get(name)
        if cls is not None:
            return cls
        if self._graph is None:
            return classes.setdefault(name, cast(Any, create_model(name, __base__=StoredNode)))
        graph, class_names = self._graphs[path], ", ".join(reversed(classes))
        raise LineRefused(f"the graph {graph.name} has no node {name}; it has {class_names}")

    def _find_offered(self, path: str, name: str | None) -> type[Node] | type[None] | None:
        """Return an offered class. None if it no longer exists."""
        try:
            return NoneType if name is None else self._class(path, name)
        except LineRefused:
            return None

    def _find_call(self, data: Json) -> None:
        """Find the function of a stored call in the graph, and read the call's value through the
        type of the function. The call was made for a class outside the graph. If no function
        matches, the value stays as stored."""
        name = data["node_type"].__name__
        value, unstored = data["value"], data.pop("unstored")
        if value is NOTHING:
            data["value"] = WITHHELD if unstored == "withheld" else LIVE
        call_name = CallName(data["graph"], data["place"], data["function"], data["arguments"])
        if self._graph is None:
            shape = getattr(self.history, "shape", None)
            data["key"] = (
                None if shape is None else shape.find_call(call_name.graph, call_name.place)
            )
            return
        target = resolve_call_name(self._graph, call_name)
        if target is None or target.call is None or is_by_value(target):
            return
        data["key"] = target.call.key
        if value is not NOTHING:
            try:
                data["value"] = call_codec(target.call, target).load(value)
            except JournalError:
                raise
            except Exception as error:
                raise unreadable(f"{name}.{data['field']}{data['parameter']}", error) from error

    def _asker(self, line: Line, asker: AskerData) -> Asker:
        cls = self._class(line.path, asker.node)
        return Asker(asker.kind, cls, asker.field, asker.parameter, asker.item)

    # Nodes.

    def _node(self, line: Line, data: StoredNode) -> Node:
        """Return a node, or its draft, from its stored form."""
        cls = self._class(line.path, data.type)
        if self._graph is None:
            return cls.model_construct(**vars(data))
        # The outer graph gives the start node of a subgraph again, with its secrets.
        is_given = bool(line.path) and line.kind == "RunStarted"
        if is_given and plan_of_graph(self._graphs[line.path]).is_filled:
            return empty_draft(cls)
        if data.withheld and not is_given and not self._partial:
            plain = {field.name for field in plan_of(cls).plain}
            places = [f"{cls.__name__}.{name}" for name in data.withheld if name in plain]
            self.missing_secrets |= dict.fromkeys(p for p in places if p not in self._given)
        return node_codec(cls).load(vars(data), self._given)

    def _previous(self, line: Line, name: str) -> Node:
        """Return the node before the step of a line. `name` is the name of the node's class."""
        step = self.history.step(line.path, line.step - 1)
        if step is not None and step.node is not None and step.name == name:
            return step.node
        cls = self._class(line.path, name)
        if self._graph is None:
            return cls.model_construct(type=name, fields={})
        raise LineRefused(f"the run is not at {name} before step {line.step}")

    def _last_node(self, line: Line) -> Node | None:
        """Return the node at which the graph of a line ended."""
        graph = self.history.graphs.get(line.path)
        complete_steps = [] if graph is None else [step for step in graph.trace if step.is_complete]
        return complete_steps[-1].node if complete_steps else None

    def _step_node(
        self, line: Line, stored: StoredNode | None, is_made: bool
    ) -> tuple[Node | None, tuple[str, ...]]:
        """Return the node of a step, and the names of its fields with a default from a factory. A
        node that is not stored is put together from its draft and its values. It stays a draft if a
        value must be computed again."""
        if stored is not None and not is_made:
            return self._node(line, stored), ()
        defaults = {} if stored is None else stored.fields
        if self._graph is None:
            return None, tuple(defaults)
        step = self.history.step(line.path, line.step)
        if step is None or step.node is None:
            raise LineRefused(f"nothing is recorded of the node at step {line.step}")
        draft, codec = step.node, node_codec(type(step.node))
        values = {n: codec.load_field(n, defaults[n]) for n in defaults if n in codec.fields}
        absent = [f for f in codec.plan.sourced if f.name not in {*draft.__dict__, *values}]
        resolved = {f.name: self._resolved_value(line, codec.cls, f) for f in absent}
        complete = not any(isinstance(value, Unstored) for value in resolved.values())
        if not resolved and not values:
            return draft, ()
        return self._join_values(draft, values | _drop_unstored(resolved), complete), tuple(values)

    def _filled_node(self, line: Line, node: Node) -> Node:
        """Return the node that the LM filled, with the values that its sources had before the
        fill."""
        if self._graph is None:
            return node
        own_values, cls = node.__dict__, type(node)
        earlier_values = {n: v for n, v in self._context(line, cls).items() if n not in own_values}
        if not earlier_values:
            return node
        names = {*earlier_values, *own_values}
        return self._join_values(
            node, earlier_values, all(f.name in names for f in plan_of(cls).sourced)
        )

    def _context(self, line: Line, target: type[Node]) -> dict[str, Any]:
        """Return the values that the sources of a `target` node had before the LM filled it."""
        if self._graph is None:
            return {}
        return _drop_unstored(
            {f.name: self._resolved_value(line, target, f) for f in plan_of(target).context}
        )

    def _join_values(self, draft: Node, values: dict[str, Any], whole: bool) -> Node:
        cls = type(draft)
        has_plain = all(field.name in draft.__dict__ for field in plan_of(cls).plain)
        try:
            return node_codec(cls).join_values(draft, values, whole and has_plain)
        except Exception as error:
            raise unreadable(cls.__name__, error) from error

    # Values.

    def _value(self, line: Line, data: Json) -> Any:
        """Return the value of a source or of an item, read through its declared type."""
        value, unstored = data.pop("value"), data.pop("unstored")
        count = data.pop("items", NOTHING)
        if data.get("error") is not None:
            return None
        if unstored is not None:
            return LIVE if unstored == "live" else WITHHELD
        cls, field = data["node_type"], data["field"]
        if data.get("called_at"):
            place = Place.parse(data["called_at"])
            source = None if place is None else self.history.source(place)
            return LIVE if source is None or source.state != "done" else source.value
        if count is not NOTHING:
            return self._items(Place(line.path, line.step, cls.__name__, field), count)
        if value is NOTHING:
            raise damaged_line_error(line, "it lacks a value")
        if self._graph is None:
            return value
        return self._load_value(line, cls, field, data.get("parameter", ""), value)

    def _load_value(
        self, line: Line, cls: type[Node], field: str, parameter: str, data: Any
    ) -> Any:
        return node_codec(cls).load_source(field, parameter, data)

    def _items(self, place: Place, count: int | None) -> Any:
        """Return the values of the items of a map, in order. More items may be recorded than
        `count`: if a map is computed again, it can have fewer items."""
        source = self.history.source(place)
        items = {} if source is None else source.items
        finished = {index: item.value for index, item in items.items() if item.state == "done"}
        indexes = range(len(finished) if count is None else count)
        if not all(index in finished for index in indexes):
            raise LineRefused(f"items of {place.node}.{place.field} are missing")
        values = [finished[index] for index in indexes]
        return next((value for value in values if isinstance(value, Unstored)), values)

    def _resolved_value(self, line: Line, cls: type[Node], field: FieldPlan) -> Any:
        """Return the value of a field's source. Returns `NOTHING` if the field's default is used,
        and `LIVE` if the value must be computed again."""
        step = self.history.step(line.path, line.step)
        source = None if step is None else step.sources.get((field.name, ""))
        if (
            source is not None
            and source.node_type is cls
            and source.state == "done"
            and find_source_kind(source.kind).is_immediate is field.is_immediate
        ):
            return source.value
        call, is_shared = find_call(cls, Place(field=field.name))
        shared = self.history.shared.get(call.key) if call is not None and is_shared else None
        if shared is not None:
            return shared.value
        is_default = field.is_immediate or self._has_failed(step, cls, field)
        return NOTHING if is_default and not field.required else LIVE

    def _has_failed(self, step: Step | None, cls: type[Node], field: FieldPlan) -> bool:
        """Return whether the source of a field has failed, or a source that the field waited
        for."""
        for source in () if step is None else step.sources.values():
            is_mine = source.place.field == field.name and source.node_type is cls
            if is_mine and source.state == "failed":
                return True
        waits_for = [plan_of(cls).fields[name] for name in field.waits_for]
        if any(self._has_failed(step, cls, needed) for needed in waits_for):
            return True
        return any(call.key in self.history.failed_keys for call in every_call(field.call))

    def _recalled_value(self, origin: Origin) -> Any:
        """Return the value that a recall found. If the journal does not have this value, return
        `LIVE` or `WITHHELD`."""
        if self._graph is None:
            return None
        step = self.history.step(origin.path, origin.step)
        if step is None or step.node is None:
            raise LineRefused(f"nothing is recorded of step {origin.step} at {origin.path!r}")
        if not origin.field:
            return step.node
        is_secret = origin.field in node_codec(type(step.node)).secret
        return step.node.__dict__.get(origin.field, WITHHELD if is_secret else LIVE)

    def _answer(self, line: Line, stored: StoredNode | Json | None) -> Any:
        """Return the answer of an LM to a body or a dependency. If the class of the answer is
        outside the graph, the answer stays as stored: the code that asks again knows the class."""
        if stored is None or self._graph is None:
            return vars(stored) if isinstance(stored, StoredNode) else stored
        classes = self._classes_at(line.path)
        if not isinstance(stored, StoredNode):
            return NoneType if stored["class"] is None else classes.get(stored["class"], stored)
        cls = classes.get(stored.type)
        plain_names = set(stored.withheld) if cls is None else {f.name for f in plan_of(cls).plain}
        if not plain_names.isdisjoint(stored.withheld) and not self._partial:
            return WITHHELD
        return vars(stored) if cls is None else self._node(line, stored)

    # Gates.

    def _gate(self, line: Line, data: Json) -> OpenGate:
        """Return a gate that the run has reached, with the values that its node had then."""
        cls, field = data["node_type"], data["field"]
        place = Place.parse(data["gate"])
        if place is not None and place.parameter:
            return self._call_gate(line, place, cls, data)
        node_values: dict[str, Any] = {}
        annotation: Any = Any
        if self._graph is not None:
            annotation = plan_of(cls).fields[field].annotation
            step = self.history.step(line.path, line.step)
            if step is not None and type(step.node) is cls:
                node_values = dict(step.node.__dict__)
            for source in () if step is None else step.sources.values():
                is_field = source.origin is not None and not source.place.parameter
                if is_field and not isinstance(source.value, Unstored):
                    node_values[source.place.field] = source.value
        where = line.path, line.step, data["deadline"]
        return OpenGate(data["question"], cls, field, annotation, node_values, None, *where)

    def _call_gate(self, line: Line, place: Place, cls: type[Node], data: Json) -> OpenGate:
        """Return the gate of a tool call, with the arguments of the call."""
        recorded_call = self.history.find_gate_call(place)
        call, answer_type = None, Any
        *parameters, key = place.parameters
        if recorded_call is not None:
            call_data = recorded_call[2]
            call = ToolCall(
                id=call_data["id"], name=call_data["name"], arguments=call_data["arguments"]
            )
            if self._graph is not None:
                answer_type = (
                    plan_of(cls).fields[place.field].answer_type(call.name, len(parameters))
                )
        return OpenGate(
            data["question"],
            cls,
            place.field,
            answer_type,
            {} if call is None else call.arguments,
            path=line.path,
            step=line.step,
            deadline=data["deadline"],
            parameter="".join(f"({parameter})" for parameter in parameters),
            key=key,
            call=call,
        )

    def _gate_at(self, line: Line, address: str) -> OpenGate | None:
        """Return the gate with this address. None if the gate no longer exists."""
        source = self.history.gates.get(address)
        if source is not None and source.gate is not None:
            return source.gate
        place = Place.parse(address)
        if place is None or not place.field or place.parameter:
            raise damaged_line_error(line, f"{address!r} is no gate")
        cls = cast("type[Node] | None", self._find_offered(place.path, place.node))
        if cls is None:
            return None
        question, annotation = "", Any
        if self._graph is not None:
            field = plan_of(cls).fields.get(place.field)
            if field is None or not field.asks_person:
                return None
            question, annotation = field.question, field.annotation
        return OpenGate(question, cls, place.field, annotation, path=place.path, step=place.step)


_AS_STORED: Final = ("json", "asked", "said", "echo", "called", "source", "usage", "run")
"""The roles whose data need no reader, because the attribute of the record is the stored data."""


@cache
def _readers(kind: type[Record]) -> list[tuple[str, _Read]]:
    """Return the functions that read the attributes of a kind of record, with the names of the
    attributes."""
    roles = kind.stored.items()
    return [(name, _READ[role.name]) for name, role in roles if role.name not in _AS_STORED]


class _Hidden(Node):
    secret: SecretStr

    async def __call__(self) -> None: ...


def _read_recorded_error(error: ErrorData) -> RecordedError:
    """Return the error in a line. For a waiting source, earlier versions wrote only words and no
    code."""
    code, words = error.code, error.message
    if error.type == Waiting.__name__ and code is None:
        is_old = words.startswith("waiting for ") or words in ("", WITHHELD_MESSAGE)
        code = Waiting.code if is_old else None
    return RecordedError(error.type, words, code)


def _make_outside_class(name: str, base: type[Any] = StoredNode) -> type[Node]:
    """Make a stand-in for a class outside the graph. Only its name is known."""
    return create_model(name, __base__=base)


def _drop_unstored(data: Mapping[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in data.items() if v is not NOTHING and not isinstance(v, Unstored)}


class StoredHistory(History):
    """A history that is read without the code of the run. It takes the properties of classes from
    the shape that is stored with the run."""

    def __init__(self, shape: ShapeView) -> None:
        super().__init__()
        self.shape = shape

    def shared_key(self, place: Place, node_type: type[Node] | None = None) -> Hashable | None:
        """Return the number of the call for a place, if it is called once for the whole run."""
        is_shared = self.shape.is_shared(place) and not self.shape.is_by_value(place)
        return self.shape.call_at(place) if is_shared else None

    def may_resolve(self, path: str, node_type: type[Node]) -> bool:
        """Return True: without the code, the body of any node may have an LM make the next node."""
        return True

    def exit_of(self, path: str, node_type: type[Node]) -> Exit:
        """Return how a node of a class leads to the next node."""
        cls = self.shape.class_at(path, node_type.__name__)
        if cls is None or cls.get("written"):
            return "body"
        return "choice" if len(cls.get("next", ())) + bool(cls.get("ends")) > 1 else "other"
