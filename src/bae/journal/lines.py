"""Records as lines of a journal, and back: `Encoder` writes them, `LineReader` reads them without
the code of the run."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from bae.exceptions import BaeError, JournalError, describe
from bae.history import History
from bae.journal.line_data import Data, Json, Missing, damaged, parse_line, quoted
from bae.journal.line_table import TABLE, Kind, place_of
from bae.journal.node_codec import node_codec
from bae.journal.shape import ShapeView
from bae.markers import OpenGate
from bae.place import Place
from bae.records import (
    Origin,
    Record,
    Unstored,
)
from bae.run_tree import Exit
from bae.secrets import Secrets

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Line, StoredRun
    from bae.node import Node

FOLLOWS: Final = "{}"
"""The data of a `StepStarted` whose node follows from the lines before it."""


class Encoder:
    """Writes the records of a run, and of the graphs inside it, as the JSON that is stored.

    `secrets` and `prompts` are those of the `Journal`: whether secrets are written in clear, and
    whether the text of prompts and answers is written at all.
    """

    def __init__(
        self, graph: Graph[Any, Any], *, secrets: bool = False, prompts: bool = True
    ) -> None:
        self.in_clear = secrets
        self.prompts = prompts
        self.secrets = Secrets.of(graph)
        # Where there is a secret, the message of any error may quote it.
        self.hides_messages = not secrets and self.secrets.any

    def encode(self, record: Record) -> str:
        """The `data` of a record's line: a JSON object.

        Raises `JournalError` (`bae-journal-field`) where a plain field holds a value that cannot
        be stored. A `StepStarted` is written with its node; where that follows from the lines
        before it, store `FOLLOWS` instead.
        """
        data: Json = {}
        parts: list[str] = []
        for column in TABLE[type(record).__name__].columns:
            column.write(self, record, data, parts)
        head = quoted(data)
        if not parts:
            return head
        return f"{head[:-1]}{',' if data else ''}{','.join(parts)}}}"

    def step(self, node: Node) -> str:
        """The `data` of a `StepStarted` with its node."""
        return f'{{"node":{self.node(node)}}}'

    def node(self, node: Node, plain: bool = False) -> str:
        """A node as it is stored, as JSON; `plain` leaves out the fields that have a source."""
        return node_codec(node.__class__).dump(node, secrets=self.in_clear, plain=plain)

    def error_line(self, error: BaseException) -> str:
        """One line about what a run failed with, without words that may quote a secret."""
        hides = self.hides_messages
        if not isinstance(error, BaeError):
            return type(error).__name__ if hides else describe(error)
        message = place_of(error) if hides else error.message.splitlines()[0]
        if error.cause is None:
            return f"[{error.code}] {message}"
        cause = type(error.cause).__name__ if hides else describe(error.cause)
        return f"[{error.code}] {message} ({cause})"


class LineReader:
    """Reads the lines of a run in order, without its code: classes are stand-ins that have the
    recorded name, values are JSON. `history` is what the lines so far tell."""

    def __init__(self, history: History | None = None) -> None:
        self.history = History() if history is None else history
        self._stand_ins: dict[str, type[StoredNode]] = {}

    def read(self, line: Line) -> Record | None:
        """The record of the next line; None if the line no longer means anything."""
        kind = TABLE.get(line.kind)
        if kind is None:
            raise JournalError(
                f"line {line.n} is a {line.kind}, which this version of bae does not know",
                code="bae-journal-version",
                fix="read the journal with the version of bae that wrote it, or a newer one",
            )
        data = parse_line(line)
        try:
            record = self.record(kind, line, data)
        except Missing as error:
            raise damaged(line, str(error)) from error
        if record is not None:
            self.history.add(record)
        return record

    def record(self, kind: Kind, line: Line, data: Data) -> Record | None:
        """Make the record of a line from its columns."""
        values: Json = {}
        for column in kind.columns:
            column.read(self, line, data, values)
        return kind.record(line.at, line.path, line.step, **values)

    def cls(self, path: str, name: str) -> type[Node]:
        """The class of a name in the graph at a path."""
        found = self._stand_ins.get(name)
        if found is None:
            found = self._stand_ins[name] = type(name, (StoredNode,), {"__slots__": ()})
        return cast("type[Node]", found)

    def field(self, line: Line, cls: type[Node], field: str, parameter: str) -> None:
        """Check that a class has a field, and a parameter behind it."""

    def node(self, line: Line, data: Data) -> Node:
        """A node as it is stored."""
        cls = cast("type[StoredNode]", self.cls(line.path, data.text("type")))
        withheld = data.texts("withheld") if "withheld" in data else ()
        unset = data.texts("unset") if "unset" in data else ()
        return cast("Node", cls(data.inside("fields").held, withheld, unset))

    def unknown_node(self, line: Line, name: str) -> Node:
        """Stands for the node before the step of a line, of which no line tells."""
        return cast("Node", cast("type[StoredNode]", self.cls(line.path, name))({}))

    def step_node(self, line: Line, data: Data) -> tuple[Node | None, tuple[str, ...]]:
        """The node of a `StepStarted`, and the fields whose default a factory made."""
        if "made" in data:
            return None, tuple(data.inside("node").inside("fields").held)
        return (self.node(line, data.inside("node")) if "node" in data else None), ()

    def filled(self, line: Line, data: Data) -> Node:
        """The node of a `FillEnded`."""
        return self.node(line, data)

    def context(self, line: Line, target: type[Node]) -> dict[str, Any]:
        """The values that were known before the LM filled a node."""
        return {}

    def value(self, line: Line, cls: type[Node], field: str, parameter: str, data: Any) -> Any:
        """The value of a source, from its JSON."""
        return data

    def items(self, line: Line, cls: type[Node], field: str, count: int | None) -> Any:
        """The values of the items of a map, in order."""
        source = self.history.source(Place(line.path, line.step, cls.__name__, field))
        done = {} if source is None else source.items
        wanted = sorted(done) if count is None else range(count)
        values = [done[index].value for index in wanted if index in done]
        return next((each for each in values if isinstance(each, Unstored)), values)

    def recalled(self, line: Line, origin: Origin) -> Any:
        """The value that a recall found."""
        return None

    def answer(self, line: Line, data: Any) -> Any:
        """What an LM answered a body or a dependency."""
        return data

    def gate(self, line: Line, cls: type[Node], field: str, question: str, at: Any) -> OpenGate:
        """A gate that was reached; `at` is its deadline."""
        return OpenGate(question, cls, field, Any, {}, None, line.path, line.step, at)

    def gate_at(self, address: str) -> OpenGate:
        """The gate of an address."""
        source = self.history.gates.get(address)
        if source is not None and source.gate is not None:
            return source.gate
        place = Place.parse(address)
        if place is None or not place.field:
            raise Missing(f"has {address!r}, which is no gate")
        cls = self.cls(place.path, place.node)
        return OpenGate("", cls, place.field, Any, {}, None, place.path, place.step)

    def last_node(self, line: Line) -> Node | None:
        """The node that the graph of a line ended at."""
        graph = self.history.graphs.get(line.path)
        whole = [] if graph is None else [step for step in graph.trace if step.whole]
        return whole[-1].node if whole else None


class StoredNode:
    """A node read without its class: `fields` as JSON, and the names of fields that were
    `withheld`, or `unset` so that their default is used."""

    __slots__ = ("fields", "unset", "withheld")

    def __init__(
        self, fields: Json, withheld: Sequence[str] = (), unset: Sequence[str] = ()
    ) -> None:
        self.fields = fields
        self.withheld = frozenset(withheld)
        self.unset = frozenset(unset)


def read_history(stored: StoredRun) -> StoredHistory:
    """What happened in a stored run, read without its code."""
    history = StoredHistory(ShapeView(stored.shape))
    reader = LineReader(history)
    for line in stored.lines:
        try:
            reader.read(line)
        except JournalError as error:
            error.run_id = stored.info.run_id
            raise
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise damaged(line, "cannot be read", error) from error
    return history


class StoredHistory(History):
    """A history that takes what it must know about classes from the shape that a run is stored
    with."""

    def __init__(self, shape: ShapeView) -> None:
        super().__init__()
        self.shape = shape

    def shared_key(self, place: Place, node_type: type[Node] | None = None) -> Hashable | None:
        """The number of the call behind a place, if it is called once for the whole run."""
        where = place.path, place.node, place.field, place.parameter
        return self.shape.call_at(*where) if self.shape.is_shared(*where) else None

    def exit_of(self, path: str, node_type: type[Node]) -> Exit:
        """What leads on from a node of a class."""
        cls = self.shape.class_at(path, node_type.__name__)
        if cls is None or cls.get("written"):
            return "body"
        return "choice" if len(cls.get("next", ())) + bool(cls.get("ends")) > 1 else "other"
