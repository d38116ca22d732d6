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


@dataclass(frozen=True)
class Column:
    """One attribute of a record, and the key of its JSON."""

    name: str
    key: str = ""

    def __post_init__(self) -> None:
        if not self.key:
            object.__setattr__(self, "key", self.name)

    def write(self, to: Encoder, record: Record, data: Json, parts: list[str]) -> None:
        """Add the attribute to the data of a line, or, as JSON text, to its parts."""
        data[self.key] = self.dump(getattr(record, self.name))

    def read(self, reader: LineReader, line: Line, data: Data, values: Json) -> None:
        """Add the attribute to the values that the record is made from."""
        values[self.name] = self.load(reader, line, data)

    def dump(self, value: Any) -> Any:
        return value

    def load(self, reader: LineReader, line: Line, data: Data) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Plain(Column):
    """A text, a number, or whatever else JSON has; `optional` ones are left out where empty."""

    kinds: tuple[type[Any], ...] = (str,)
    optional: bool = False
    allowed: tuple[str, ...] = ()

    def write(self, to: Encoder, record: Record, data: Json, parts: list[str]) -> None:
        value = getattr(record, self.name)
        if value or not self.optional:
            data[self.key] = value

    def load(self, reader: LineReader, line: Line, data: Data) -> Any:
        if self.optional and self.key not in data:
            return self.kinds[0]()
        value: Any = data.get(self.key, *self.kinds)
        if self.allowed and value not in self.allowed:
            raise Missing(f"has {value!r} for {self.key!r}")
        return float(value) if self.kinds == _NUMBER else value


class Texts(Column):
    """Several texts."""

    def load(self, reader: LineReader, line: Line, data: Data) -> Any:
        return data.texts(self.key)


class ClassName(Column):
    """A node class, by name."""

    def dump(self, value: Any) -> Any:
        return _class_name(value if isinstance(value, type) else cast("type[Any]", type(value)))

    def load(self, reader: LineReader, line: Line, data: Data) -> Any:
        return reader.cls(line.path, data.text(self.key))


class Chosen(ClassName):
    """What the LM chose: None is the end of the run."""

    def load(self, reader: LineReader, line: Line, data: Data) -> Any:
        name = data.get(self.key, str, NoneType)
        return NoneType if name is None else reader.cls(line.path, name)


class Offered(Column):
    """The classes that the LM could choose; those that are gone today are left out."""

    def dump(self, value: Any) -> Any:
        return [_class_name(each) for each in value]

    def load(self, reader: LineReader, line: Line, data: Data) -> Any:
        found: list[Any] = []
        for name in data.listed(self.key):
            if not isinstance(name, str | None):
                raise Missing(f"has something that is no name in {self.key!r}")
            try:
                found.append(NoneType if name is None else reader.cls(line.path, name))
            except Refused:
                continue
        return tuple(found)


class PreviousNode(Column):
    """The node before the step of the record, by the name of its class."""

    def dump(self, value: Any) -> Any:
        return type(value).__name__

    def load(self, reader: LineReader, line: Line, data: Data) -> Any:
        name = data.text(self.key)
        step = reader.history.step(line.path, line.step - 1)
        if step is not None and step.node is not None and step.name == name:
            return step.node
        return reader.unknown_node(line, name)


class StoredAs(Column):
    """A node with the fields that it holds."""

    plain: ClassVar[bool] = False

    def write(self, to: Encoder, record: Record, data: Json, parts: list[str]) -> None:
        node = getattr(record, self.name)
        parts.append(f'"{self.key}":{to.node(node, plain=self.plain)}')

    def load(self, reader: LineReader, line: Line, data: Data) -> Any:
        return reader.node(line, data.inside(self.key))


class Filled(StoredAs):
    """A node with what the LM filled; the rest follows from the lines before."""

    plain = True

    def load(self, reader: LineReader, line: Line, data: Data) -> Any:
        return reader.filled(line, data.inside(self.key))


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


class Gates(Column):
    """The addresses of gates that a run waits for; those that are gone today are left out."""

    def dump(self, value: Any) -> Any:
        return [gate.address for gate in value]

    def load(self, reader: LineReader, line: Line, data: Data) -> Any:
        found: list[OpenGate] = []
        for address in data.texts(self.key):
            try:
                found.append(reader.gate_at(address))
            except Refused:
                continue
        return tuple(found)


class Context(Column):
    """The values that were there before a fill: they follow from the lines before."""

    def write(self, to: Encoder, record: Record, data: Json, parts: list[str]) -> None:
        """Nothing is stored of it."""

    def read(self, reader: LineReader, line: Line, data: Data, values: Json) -> None:
        values["resolved"] = reader.context(line, values["target"])


class Used(Column):
    """What LM calls used, without what is the default."""

    def dump(self, value: Any) -> Any:
        return {n: v for n, default in _USAGE if (v := getattr(value, n)) != default}

    def load(self, reader: LineReader, line: Line, data: Data) -> Any:
        return _usage(data.inside(self.key))


class Who(Column):
    """Who asks an LM."""

    def dump(self, value: Any) -> Any:
        asker = cast(Asker, value)
        found = {"kind": asker.kind, "node": asker.node.__name__}
        if asker.field:
            found["field"] = asker.field
        if asker.parameter:
            found["parameter"] = asker.parameter
        return found

    def load(self, reader: LineReader, line: Line, data: Data) -> Any:
        asker = data.inside(self.key)
        kind = asker.text("kind")
        if kind not in ("fill", "choice", "body", "source"):
            raise Missing(f"has {kind!r} for the kind of 'asker'")
        field = asker.text("field") if "field" in asker else ""
        parameter = asker.text("parameter") if "parameter" in asker else ""
        return Asker(kind, reader.cls(line.path, asker.text("node")), field, parameter)


class Judged(Column):
    """An answer of an LM, and what was wrong with it."""

    def write(self, to: Encoder, record: Record, data: Json, parts: list[str]) -> None:
        judged = cast(AnswerJudged, record)
        attempt = judged.attempt
        data |= {"number": attempt.number, "verdict": attempt.verdict, "errors": attempt.errors}
        data["usage"] = Used("usage").dump(attempt.usage)
        if attempt.asked:  # an LM that is no backend has a prompt of its own that is not known
            asked = attempt.asked.encode("utf-8", "surrogatepass")
            data["prompt"] = sha256(asked).hexdigest()[:16]
        if not to.in_clear and to.secrets.asks(judged.asker):
            # What a validator says about a value may quote it.
            data["errors"] = [to.secrets.field_named(error) for error in attempt.errors]
        elif to.prompts:
            data |= {"asked": attempt.asked, "answer": attempt.answer}

    def load(self, reader: LineReader, line: Line, data: Data) -> Any:
        return Attempt(
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
            data[self.key] = _error_data(error, to.hides_messages)

    def load(self, reader: LineReader, line: Line, data: Data) -> Any:
        return _error(data.inside(self.key)) if self.key in data else None


class Answered(Column):
    """What an LM answered: a node, a class or None."""

    def write(self, to: Encoder, record: Record, data: Json, parts: list[str]) -> None:
        value = cast(LMAnswered, record).value
        if value is None or isinstance(value, type):
            data["value"] = None if value is None else {"class": _class_name(value)}
        else:
            parts.append(f'"value":{to.node(value)}')

    def load(self, reader: LineReader, line: Line, data: Data) -> Any:
        return reader.answer(line, data.get("value", dict, NoneType))


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


_NUMBER: Final = (int, float)
_SECONDS: Final = Plain("seconds", kinds=_NUMBER)
_SOURCE: Final = Plain("source", allowed=("dep", "map", "gate"))
_OUTCOMES: Final = ("ended", "waiting", "failed", "cancelled")
_METHODS: Final = ("make", "decide", "choose_type", "fill")

TABLE: Final[Mapping[str, Kind]] = {
    kind.__name__: Kind(kind, columns)
    for kind, columns in cast(
        "dict[type[Record], tuple[Column, ...]]",
        {
            RunStarted: (
                Plain("run_id"),
                Plain("graph"),
                Plain("max_iters", kinds=(int,)),
                StoredAs("node"),
            ),
            StepStarted: (StepNode("node"),),
            Returned: (StoredAs("node"),),
            RunResumed: (Plain("owner"), Texts("changes")),
            RunForked: (Plain("parent"), StoredAs("node"), Texts("changed")),
            SourceStarted: (Field("parameter"), _SOURCE, Plain("by")),
            SourceEnded: (Field("parameter"), _SOURCE, Plain("by"), _SECONDS, Outcome("value")),
            ItemEnded: (Field("field"), Plain("index", kinds=(int,)), Outcome("value")),
            Recalled: (Field("field"), Found("origin")),
            GateOpened: (Gate("gate"),),
            ChoiceStarted: (PreviousNode("node"), Offered("offered")),
            ChoiceMade: (PreviousNode("node"), Chosen("chosen"), _SECONDS, Used("usage")),
            FillStarted: (ClassName("target"), Context("resolved")),
            FillEnded: (Filled("node"), _SECONDS, Used("usage")),
            AnswerJudged: (Who("asker"), Judged("attempt")),
            AnswerRestarted: (Who("asker"), Raised("error"), Plain("wait", kinds=_NUMBER)),
            LMAnswered: (
                Who("asker"),
                Plain("method", allowed=_METHODS),
                Plain("asked"),
                Plain("target"),
                Answered("value"),
            ),
            LMUsed: (Who("asker"), Used("usage")),
            RunEnded: (
                Plain("outcome", allowed=_OUTCOMES),
                Raised("error"),
                Gates("gates"),
                Terminal("node"),
            ),
        },
    ).items()
}
"""What a line of each kind holds, by the name of the record class."""


def _class_name(cls: type[Any]) -> str | None:
    return None if cls is NoneType else cls.__name__


_USAGE: Final = tuple((field.name, field.default) for field in fields(Usage))


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
