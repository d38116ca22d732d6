"""What the lines of a journal hold: for each kind of record, the columns of its JSON, with how each
is written and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from hashlib import sha256
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from bae.exceptions import BaeError, describe
from bae.journal.codec import Unkeepable
from bae.journal.line_data import Data, Json, Missing, Refused, quoted
from bae.journal.node_codec import node_codec
from bae.markers import OpenGate
from bae.records import (
    LIVE,
    WITHHELD,
    AnswerJudged,
    AnswerRestarted,
    Asker,
    ChoiceMade,
    ChoiceStarted,
    FillEnded,
    FillStarted,
    GateOpened,
    ItemEnded,
    LMAnswered,
    LMUsed,
    Origin,
    Recalled,
    Record,
    RecordedError,
    Returned,
    RunEnded,
    RunForked,
    RunResumed,
    RunStarted,
    SourceEnded,
    SourceStarted,
    StepStarted,
    Unstored,
)
from bae.usage import Attempt, Usage

if TYPE_CHECKING:
    from bae.journal.lines import Encoder, LineReader
    from bae.journal.store import Line
    from bae.node import Node

    Load = Callable[[LineReader, Line, Data, str], Any]


@dataclass(frozen=True)
class Column:
    """One attribute of a record, under a key of the same name in its JSON. Most are written and
    read by themselves, by `dump` and `load`."""

    name: str
    load: Load = lambda reader, line, data, key: data.text(key)
    dump: Callable[[Any], Any] = lambda value: value

    def write(self, to: Encoder, record: Record, data: Json, parts: list[str]) -> None:
        """Add the attribute to the data of a line, or, as JSON text, to its parts."""
        data[self.name] = self.dump(getattr(record, self.name))

    def read(self, reader: LineReader, line: Line, data: Data, values: Json) -> None:
        """Add the attribute to the values that the record is made from."""
        values[self.name] = self.load(reader, line, data, self.name)


def one_of(name: str, allowed: tuple[str, ...]) -> Column:
    """One of a few texts."""

    def load(reader: LineReader, line: Line, data: Data, key: str) -> str:
        value = data.text(key)
        if value not in allowed:
            raise Missing(f"has {value!r} for {key!r}")
        return value

    return Column(name, load)


def integer(name: str) -> Column:
    """A whole number."""
    return Column(name, lambda reader, line, data, key: data.get(key, int))


def number(name: str) -> Column:
    """A number."""
    return Column(name, lambda reader, line, data, key: data.number(key))


def texts(name: str) -> Column:
    """Several texts."""
    return Column(name, lambda reader, line, data, key: data.texts(key))


def node_class(name: str) -> Column:
    """A node class, by name."""
    return Column(name, lambda r, line, data, key: r.cls(line.path, data.text(key)), _class_name)


def chosen_class(name: str) -> Column:
    """The class that the LM chose; None is the end of the run."""

    def load(reader: LineReader, line: Line, data: Data, key: str) -> type:
        cls = data.get(key, str, NoneType)
        return NoneType if cls is None else reader.cls(line.path, cls)

    return Column(name, load, _class_name)


def offered_classes(name: str) -> Column:
    """The classes that the LM could choose; those that are gone today are left out."""

    def load(reader: LineReader, line: Line, data: Data, key: str) -> tuple[type, ...]:
        found: list[type] = []
        for each in data.listed(key):
            if not isinstance(each, str | None):
                raise Missing(f"has something that is no name in {key!r}")
            try:
                found.append(NoneType if each is None else reader.cls(line.path, each))
            except Refused:
                continue
        return tuple(found)

    return Column(name, load, lambda value: [_class_name(each) for each in value])


def previous_node(name: str) -> Column:
    """The node before the step of the record, by the name of its class."""

    def load(reader: LineReader, line: Line, data: Data, key: str) -> Node:
        cls = data.text(key)
        step = reader.history.step(line.path, line.step - 1)
        if step is not None and step.node is not None and step.name == cls:
            return step.node
        return reader.unknown_node(line, cls)

    return Column(name, load, lambda value: type(value).__name__)


def open_gates(name: str) -> Column:
    """The addresses of gates that a run waits for; those that are gone today are left out."""

    def load(reader: LineReader, line: Line, data: Data, key: str) -> tuple[OpenGate, ...]:
        found: list[OpenGate] = []
        for address in data.texts(key):
            try:
                found.append(reader.gate_at(address))
            except Refused:
                continue
        return tuple(found)

    return Column(name, load, lambda value: [gate.address for gate in value])


def used(name: str) -> Column:
    """What LM calls used, without what is the default."""
    return Column(name, lambda reader, line, data, key: _usage(data.inside(key)), _used)


def asker(name: str) -> Column:
    """Who asks an LM."""

    def load(reader: LineReader, line: Line, data: Data, key: str) -> Asker:
        held = data.inside(key)
        kind = held.text("kind")
        if kind not in ("fill", "choice", "body", "source"):
            raise Missing(f"has {kind!r} for the kind of {key!r}")
        field = held.text("field") if "field" in held else ""
        parameter = held.text("parameter") if "parameter" in held else ""
        return Asker(kind, reader.cls(line.path, held.text("node")), field, parameter)

    def dump(value: Asker) -> Json:
        found = {"kind": value.kind, "node": value.node.__name__}
        more = {"field": value.field, "parameter": value.parameter}
        return {**found, **{key: held for key, held in more.items() if held}}

    return Column(name, load, dump)


class StoredAs(Column):
    """A node with the fields that it holds."""

    plain: ClassVar[bool] = False

    def write(self, to: Encoder, record: Record, data: Json, parts: list[str]) -> None:
        node = getattr(record, self.name)
        parts.append(f'"{self.name}":{to.node(node, plain=self.plain)}')

    def read(self, reader: LineReader, line: Line, data: Data, values: Json) -> None:
        values[self.name] = reader.node(line, data.inside(self.name))


class Filled(StoredAs):
    """A node with what the LM filled; the rest follows from the lines before."""

    plain = True

    def read(self, reader: LineReader, line: Line, data: Data, values: Json) -> None:
        values[self.name] = reader.filled(line, data.inside(self.name))


class StepNode(Column):
    """The node of a `StepStarted`: whole, or only the defaults that factories made for it."""

    def write(self, to: Encoder, record: Record, data: Json, parts: list[str]) -> None:
        step = cast(StepStarted, record)
        if step.made:
            parts.append(f'"node":{_made(to, step)},"made":true')
        else:
            parts.append(f'"node":{to.node(step.node)}')

    def read(self, reader: LineReader, line: Line, data: Data, values: Json) -> None:
        values["node"], values["made"] = reader.step_node(line, data)


class Field(Column):
    """A node class, a field of it, and a parameter of the function behind that."""

    def write(self, to: Encoder, record: Record, data: Json, parts: list[str]) -> None:
        about = cast(SourceStarted, record)
        data["node"], data["field"] = about.node_type.__name__, about.field
        parameter = getattr(record, "parameter", "")
        if parameter:
            data["parameter"] = parameter

    def read(self, reader: LineReader, line: Line, data: Data, values: Json) -> None:
        cls, field = reader.cls(line.path, data.text("node")), data.text("field")
        parameter = data.text("parameter") if "parameter" in data else ""
        reader.field(line, cls, field, parameter)
        values["node_type"], values["field"] = cls, field
        if self.name == "parameter":
            values["parameter"] = parameter


class Outcome(Column):
    """The value of a source or of an item, or the error instead."""

    def write(self, to: Encoder, record: Record, data: Json, parts: list[str]) -> None:
        ended = cast(SourceEnded, record)
        if isinstance(record, SourceEnded):
            if record.error is not None:
                data["error"] = _error_data(record.error, to.hides_messages)
                return
            if record.source == "map" and not record.parameter:
                is_list = not isinstance(record.value, Unstored)
                data["items"] = len(record.value) if is_list else None
                return
        text = _value_text(to, ended)
        if isinstance(text, Unstored):
            data["unstored"] = "live" if text is LIVE else "withheld"
        else:
            parts.append(f'"value":{text}')

    def read(self, reader: LineReader, line: Line, data: Data, values: Json) -> None:
        cls, field = values["node_type"], values["field"]
        values["value"] = None
        if "error" in data:
            values["error"] = _error(data.inside("error"))
        elif "unstored" in data:
            values["value"] = LIVE if data.text("unstored") == "live" else WITHHELD
        elif "items" in data:
            count = data.get("items", int, NoneType)
            values["value"] = reader.items(line, cls, field, count)
        elif "value" in data:
            parameter = values.get("parameter", "")
            values["value"] = reader.value(line, cls, field, parameter, data.held["value"])
        else:
            raise Missing("lacks a value")


class Found(Column):
    """Where a recalled value was found; the value follows from that."""

    def write(self, to: Encoder, record: Record, data: Json, parts: list[str]) -> None:
        data["origin"] = cast(Recalled, record).origin

    def read(self, reader: LineReader, line: Line, data: Data, values: Json) -> None:
        parts = data.listed("origin")
        if [type(each) for each in parts] != [str, int, str]:
            raise Missing("has something else for 'origin'")
        values["origin"] = Origin(*parts)
        values["value"] = reader.recalled(line, values["origin"])


class Gate(Column):
    """An open gate."""

    def write(self, to: Encoder, record: Record, data: Json, parts: list[str]) -> None:
        gate = cast(GateOpened, record).gate
        data |= {"gate": gate.address, "node": gate.node_type.__name__, "field": gate.field_name}
        data["question"] = gate.question
        if gate.deadline is not None:
            data["deadline"] = gate.deadline

    def read(self, reader: LineReader, line: Line, data: Data, values: Json) -> None:
        cls, field = reader.cls(line.path, data.text("node")), data.text("field")
        reader.field(line, cls, field, "")
        deadline = data.number("deadline") if "deadline" in data else None
        values["gate"] = reader.gate(line, cls, field, data.text("question"), deadline)


class Context(Column):
    """The values that were there before a fill: they follow from the lines before."""

    def write(self, to: Encoder, record: Record, data: Json, parts: list[str]) -> None:
        """Nothing is stored of it."""

    def read(self, reader: LineReader, line: Line, data: Data, values: Json) -> None:
        values["resolved"] = reader.context(line, values["target"])


class Judged(Column):
    """An answer of an LM, and what was wrong with it."""

    def write(self, to: Encoder, record: Record, data: Json, parts: list[str]) -> None:
        judged = cast(AnswerJudged, record)
        attempt = judged.attempt
        data |= {"number": attempt.number, "verdict": attempt.verdict, "errors": attempt.errors}
        data["usage"] = _used(attempt.usage)
        if attempt.asked:  # an LM that is no backend has a prompt of its own that is not known
            asked = attempt.asked.encode("utf-8", "surrogatepass")
            data["prompt"] = sha256(asked).hexdigest()[:16]
        if not to.in_clear and to.secrets.asks(judged.asker):
            # What a validator says about a value may quote it.
            data["errors"] = [to.secrets.field_named(error) for error in attempt.errors]
        elif to.prompts:
            data |= {"asked": attempt.asked, "answer": attempt.answer}

    def read(self, reader: LineReader, line: Line, data: Data, values: Json) -> None:
        values[self.name] = Attempt(
            data.get("number", int),
            data.text("answer") if "answer" in data else "",
            cast(Any, data.text("verdict")),
            data.texts("errors"),
            _usage(data.inside("usage")),
            data.text("asked") if "asked" in data else "",
            data.text("prompt") if "prompt" in data else "",
        )


class Raised(Column):
    """An exception, if there is one."""

    def write(self, to: Encoder, record: Record, data: Json, parts: list[str]) -> None:
        error = getattr(record, self.name)
        if error is not None:
            data[self.name] = _error_data(error, to.hides_messages)

    def read(self, reader: LineReader, line: Line, data: Data, values: Json) -> None:
        is_there = self.name in data
        values[self.name] = _error(data.inside(self.name)) if is_there else None


class Answered(Column):
    """What an LM answered: a node, a class or None."""

    def write(self, to: Encoder, record: Record, data: Json, parts: list[str]) -> None:
        value = cast(LMAnswered, record).value
        if value is None or isinstance(value, type):
            data["value"] = None if value is None else {"class": _class_name(value)}
        else:
            parts.append(f'"value":{to.node(value)}')

    def read(self, reader: LineReader, line: Line, data: Data, values: Json) -> None:
        values[self.name] = reader.answer(line, data.get("value", dict, NoneType))


class Terminal(Column):
    """The node that a run ended at, which follows from the lines before."""

    def write(self, to: Encoder, record: Record, data: Json, parts: list[str]) -> None:
        """Nothing is stored of it."""

    def read(self, reader: LineReader, line: Line, data: Data, values: Json) -> None:
        values["node"] = reader.last_node(line) if values["outcome"] == "ended" else None


@dataclass(frozen=True)
class Kind:
    """A kind of record: its class, and its columns."""

    record: Callable[..., Record]
    columns: tuple[Column, ...]


def _class_name(cls: type[Any]) -> str | None:
    return None if cls is NoneType else cls.__name__


_USAGE: Final = tuple((field.name, field.default) for field in fields(Usage))


def _used(usage: Usage) -> Json:
    return {n: v for n, default in _USAGE if (v := getattr(usage, n)) != default}


def _usage(data: Data) -> Usage:
    found: Json = {}
    for name in data.held:
        if name == "models":
            found[name] = data.texts(name)
        elif name == "cost":
            found[name] = data.get(name, int, float, NoneType)
        elif name == "seconds":
            found[name] = data.number(name)
        elif name in Usage.__dataclass_fields__:
            found[name] = data.get(name, int)
        else:
            raise Missing(f"has {name!r} in 'usage', which is not known")
    return Usage(**found)


def _error(data: Data) -> RecordedError:
    return RecordedError(data.text("type"), data.text("message"), data.get("code", str, NoneType))


def _error_data(error: BaseException, hides: bool) -> Json:
    kind, code = type(error).__name__, None
    if isinstance(error, BaeError):
        code, message = error.code, error.message.partition("\n")[0]
    elif isinstance(error, RecordedError):
        kind, code, message = error.type_name, error.code, error.message
    else:
        message = describe(error).partition(": ")[2]
    if hides and message:
        message = place_of(error)
    return {"type": kind, "code": code, "message": message}


def place_of(error: BaseException) -> str:
    """The place that an error is about, and no word of its message."""
    cls: type | None = getattr(error, "node_type", None)
    if not isinstance(error, BaeError) or cls is None:
        return "withheld"
    field: str = getattr(error, "field_name", "")
    return f"{cls.__name__}{'.' if field else ''}{field}: withheld"


def _made(to: Encoder, step: StepStarted) -> str:
    """The defaults that a node has, as a node that has nothing else."""
    codec = node_codec(type(step.node))
    stored: list[str] = []
    for name in step.made:
        if name in codec.live or (name in codec.secret and not to.in_clear):
            continue  # it is made again
        try:
            value = codec.fields[name].dump(step.node.__dict__[name])
        except Unkeepable:
            continue
        stored.append(f"{quoted(name)}:{value}")
    return f'{{"type":{quoted(type(step.node).__name__)},"fields":{{{",".join(stored)}}}}}'


def _value_text(to: Encoder, ended: SourceEnded) -> str | Unstored:
    """The value of a source as JSON, or why it is not stored."""
    if isinstance(ended.value, Unstored):
        return ended.value
    parameter = getattr(ended, "parameter", "")
    codec = node_codec(ended.node_type)
    source = codec.call(ended.field, parameter)
    if source.verdict == "live":
        return LIVE
    if not to.in_clear and to.secrets.source(ended.node_type, ended.field, parameter):
        return WITHHELD
    try:
        if codec.plan.fields[ended.field].kind == "gate":
            return codec.dump_answer(ended.field, ended.value)
        return source.dump(ended.value)
    except Unkeepable:
        return LIVE


_SOURCE: Final = one_of("source", ("dep", "map", "gate"))
_OUTCOME: Final = one_of("outcome", ("ended", "waiting", "failed", "cancelled"))
_METHOD: Final = one_of("method", ("make", "decide", "choose_type", "fill"))
_BY: Final = Column("by")

_COLUMNS: Final[Mapping[type[Record], tuple[Column, ...]]] = {
    RunStarted: (Column("run_id"), Column("graph"), integer("max_iters"), StoredAs("node")),
    StepStarted: (StepNode("node"),),
    Returned: (StoredAs("node"),),
    RunResumed: (Column("owner"), texts("changes")),
    RunForked: (Column("parent"), StoredAs("node"), texts("changed")),
    SourceStarted: (Field("parameter"), _SOURCE, _BY),
    SourceEnded: (Field("parameter"), _SOURCE, _BY, number("seconds"), Outcome("value")),
    ItemEnded: (Field("field"), integer("index"), Outcome("value")),
    Recalled: (Field("field"), Found("origin")),
    GateOpened: (Gate("gate"),),
    ChoiceStarted: (previous_node("node"), offered_classes("offered")),
    ChoiceMade: (
        previous_node("node"),
        chosen_class("chosen"),
        number("seconds"),
        used("usage"),
    ),
    FillStarted: (node_class("target"), Context("resolved")),
    FillEnded: (Filled("node"), number("seconds"), used("usage")),
    AnswerJudged: (asker("asker"), Judged("attempt")),
    AnswerRestarted: (asker("asker"), Raised("error"), number("wait")),
    LMAnswered: (asker("asker"), _METHOD, Column("asked"), Column("target"), Answered("value")),
    LMUsed: (asker("asker"), used("usage")),
    RunEnded: (_OUTCOME, Raised("error"), open_gates("gates"), Terminal("node")),
}

TABLE: Final = {kind.__name__: Kind(kind, columns) for kind, columns in _COLUMNS.items()}
"""What a line of each kind holds, by the name of the record class."""
