"""Write records as lines of a journal, and check lines. `Encoder` writes a record as JSON, and
`parse_line` checks a line. `docs/journal-format.md` describes the format."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from hashlib import sha256
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

from pydantic import BaseModel, Field, ValidationError, create_model
from pydantic_core import from_json, to_json

from bae import records
from bae.exceptions import BaeError, JournalError, describe, faults
from bae.journal.codec import Unkeepable, ValueCodec, json_text
from bae.journal.node_codec import EndCodec, node_codec
from bae.journal.shape import Json
from bae.journal.stored_runs import Line
from bae.records import (
    LIVE,
    NOTHING,
    WITHHELD,
    WITHHELD_MESSAGE,
    Asker,
    Record,
    RecordedError,
    Unstored,
)
from bae.run import Waiting
from bae.secrets import Secrets
from bae.sources import STARTED, find_source_kind
from bae.unicode import LONGEST_INT, readable
from bae.usage import AnswerVerdict, Usage

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node

FOLLOWS: Final = "{}"
"""The data of a `StepStarted` whose node follows from earlier lines, and is not stored."""


class StoredNode(BaseModel, defer_build=True):
    """A node, or some fields of it, as JSON. If a run is read without its code, its nodes are
    objects of subclasses of this class. Each subclass has the name of a node class."""

    type: str
    fields: Json
    withheld: tuple[str, ...] = ()
    """The fields that were not written because they are secrets or were redacted."""
    unset: tuple[str, ...] = ()
    """The fields that were not given: their defaults were used."""
    bare: tuple[str, ...] = ()
    """The fields whose values are read without the validators of the field."""


class AskerData(BaseModel, defer_build=True):
    """The asker of an LM, as JSON."""

    kind: Literal["fill", "choice", "body", "source"]
    node: str
    field: str = ""
    parameter: str = ""
    item: int | None = None


class ErrorData(BaseModel, defer_build=True):
    """An exception, as JSON."""

    type: str
    code: str | None
    message: str


class ToolData(BaseModel, defer_build=True, extra="allow"):
    """A tool that an LM was offered, with its schema. After a redaction, only the name remains."""

    name: str
    description: str = ""


class CallData(BaseModel, defer_build=True):
    """A tool call in a round. If the provider has run the tool, the call has the result or
    error."""

    id: str
    name: str
    arguments: dict[str, Any] | str
    withheld: bool = False
    """Whether `arguments` are not what the LM wrote, because secrets in them are masked or a
    redaction has removed them."""
    result: Any = None
    error: str | None = None


_CLASS: Final[Any] = Annotated[dict[Literal["class"], str | None], Field(min_length=1)]
_VALUE: Final[Json] = {
    "value": (Any, NOTHING),
    "unstored": (Literal["live", "withheld"], None),
}
_OUTCOME: Final[Json] = {
    **_VALUE,
    "items": (int | None, NOTHING),
    "called_at": (str, ""),
    "error": (ErrorData, None),
}
_GATE: Final[Json] = {
    "gate": str,
    "node": str,
    "field": str,
    "question": str,
    "deadline": (float, None),
}
_ATTEMPT: Final[Json] = {
    "number": int,
    "verdict": AnswerVerdict,
    "errors": tuple[str, ...],
    "usage": Usage,
    "prompt": (str, ""),
    "asked": (str, ""),
    "answer": (str, ""),
    "filled": (tuple[str, ...] | None, None),
    "thinking": (str, ""),
}

_Write = Callable[[Any, Any, str, Json], str | None]
_ROLES: Final[dict[str, tuple[_Write | None, Json]]] = dict.fromkeys(
    ("json", "called", "context", "last node", "recalled", "run", "turns"), (None, {})
)
"""The function that writes an attribute, and the attribute's fields in a line, by the role of the
attribute. An empty field name stands for the name of the attribute. Without a function, the
attribute is written as JSON, or follows from other fields."""


def _writes(columns: Json, *roles: str) -> Callable[[_Write], _Write]:
    def register(write: _Write) -> _Write:
        _ROLES.update(dict.fromkeys(roles, (write, columns)))
        return write

    return register


class Encoder:
    """Writes the records of a run and of its subgraphs as JSON.

    - `secrets`: write secrets in clear text.
    - `prompts`: write the texts of prompts and answers.
    - `thinking`: write the thinking of models.
    """

    def __init__(
        self,
        graph: Graph[Any, Any] | Secrets,
        *,
        secrets: bool = False,
        prompts: bool = True,
        thinking: bool = False,
    ) -> None:
        self._in_clear = secrets
        self._prompts = prompts
        self._thinking = thinking
        self._secrets = graph if isinstance(graph, Secrets) else Secrets.of(graph)
        self._sources: dict[tuple[type[Node], str, str], ValueCodec | EndCodec | Unstored] = {}

    @property
    def _hides_messages(self) -> bool:
        # If the run has a secret, the message of any error may quote the secret.
        return not self._in_clear and self._secrets.any

    def hiding(self, cls: type[Node]) -> Encoder:
        """Return an encoder that also hides the secrets of a class outside the graph."""
        options = {"prompts": self._prompts, "thinking": self._thinking}
        return Encoder(self._secrets.including(cls), secrets=self._in_clear, **options)

    def encode(self, record: Record) -> str:
        """Return the `data` of a record's line: a JSON object.

        Raises `JournalError` (`bae-journal-field`) if a plain field has a value that cannot be
        stored. A `StepStarted` is written with its node. If the node follows from earlier lines,
        store `FOLLOWS` instead.
        """
        data: Json = {}
        rest = ""  # parts that are JSON already
        for name, write in _writers(type(record)):
            rest = write(self, record, name, data) or rest
        if not data:
            return f"{{{rest}}}"
        try:
            try:
                text = to_json(data, inf_nan_mode="constants").decode()
            except ValueError:  # half of a surrogate pair
                text = json_text(data)
            if len(text) > LONGEST_INT:
                from_json(text, cache_strings="none")
        except ValueError as error:
            raise JournalError(
                f"a {type(record).__name__} cannot be stored",
                code="bae-journal-field",
                cause=error,
                fix=f"give it numbers of at most {LONGEST_INT:,} digits",
            ) from error
        return f"{text[:-1]},{rest}}}" if rest else text

    def step(self, node: Node) -> str:
        """Return the `data` of a `StepStarted` with its node."""
        return f'{{"node":{self.node(node)}}}'

    def node(self, node: Node, plain: bool = False, copies: Collection[str] = ()) -> str:
        """Return a node in its stored form, as JSON. With `plain`, fields with a source are left
        out. `copies` are the names of fields with copies of secrets."""
        codec = node_codec(node.__class__)
        return codec.dump(node, secrets=self._in_clear, plain=plain, copies=copies)

    def error_line(self, error: BaseException) -> str:
        """Describe the error of a run in one line. In a run with secrets, the line has no words
        that may quote a secret."""
        hides = self._hides_messages
        if not isinstance(error, BaeError):
            return type(error).__name__ if hides else describe(error)
        error_data = self._error(error)
        line = f"[{error_data['code']}] {error_data['message']}"
        if error.cause is None:
            return line
        cause = type(error.cause).__name__ if hides else describe(error.cause)
        if cause.partition(": ")[2] in error_data["message"]:  # the message has the cause already
            cause = type(error.cause).__name__
        return readable(f"{line} ({cause})")

    # The writers of the roles. Each writes into `data`, or returns JSON for the end of the line.

    @_writes({"node": str}, "field class", "outside class", "secret class")
    def _write_class_name(self, record: Any, name: str, data: Json) -> None:
        data["node"] = record.node_type.__name__

    @_writes({"": cast(Any, Literal)[STARTED]}, "source")
    def _write_source(self, record: Record, name: str, data: Json) -> None:
        data[name] = getattr(record, name)

    @_writes({"": str}, "class")
    @_writes({"": str | None}, "class or end")
    def _write_class(self, record: Record, name: str, data: Json) -> None:
        data[name] = _class_name(getattr(record, name))

    @_writes({"": tuple[str | None, ...]}, "classes")
    def _write_classes(self, record: Record, name: str, data: Json) -> None:
        data[name] = [*map(_class_name, getattr(record, name))]

    @_writes({"": str}, "previous node")
    def _write_node_name(self, record: Record, name: str, data: Json) -> None:
        data[name] = type(getattr(record, name)).__name__

    @_writes({"": StoredNode}, "node")
    def _write_node(self, record: Record, name: str, data: Json) -> str:
        return f'"{name}":{self.node(getattr(record, name))}'

    @_writes({"": AskerData}, "asker")
    def _write_asker(self, record: Record, name: str, data: Json) -> None:
        data[name] = _asker(getattr(record, name))

    @_writes({"": Usage}, "usage")
    def _write_usage(self, record: Record, name: str, data: Json) -> None:
        data[name] = _usage(getattr(record, name))

    @_writes(_GATE, "gate")
    def _write_gate(self, record: records.GateOpened, name: str, data: Json) -> None:
        gate = record.gate
        data |= {"gate": gate.address, "node": gate.node_type.__name__, "field": gate.field_name}
        data["question"] = gate.question
        if gate.deadline is not None:
            data["deadline"] = gate.deadline

    @_writes({"": tuple[str, ...]}, "gates")
    def _write_gates(self, record: Record, name: str, data: Json) -> None:
        data[name] = [gate.address for gate in getattr(record, name)]

    @_writes({"": StoredNode}, "start node")
    def _write_start(self, record: records.RunStarted, name: str, data: Json) -> str:
        # The start node of a subgraph may have a copy of a secret.
        copies = self._secrets.fields(type(record.node)) if record.path else ()
        return f'"node":{self.node(record.node, copies=copies)}'

    @_writes({"": StoredNode}, "filled node")
    def _write_filled(self, record: Record, name: str, data: Json) -> str:
        return f'"{name}":{self.node(getattr(record, name), plain=True)}'

    @_writes({"node": (StoredNode, None), "made": (bool, False)}, "step node")
    def _write_step(self, record: records.StepStarted, name: str, data: Json) -> str:
        """Write the node of a step. For a node that follows from earlier lines, write only its
        defaults from factories."""
        if not record.made:
            return f'"node":{self.node(record.node)}'
        codec = node_codec(type(record.node))
        stored: list[str] = []
        for field in record.made:
            if field in codec.secret and not self._in_clear:
                continue  # computed again on resume
            try:
                value = codec.fields[field].dump(record.node.__dict__[field])
            except Unkeepable:
                continue
            stored.append(f"{json_text(field)}:{value}")
        cls = json_text(type(record.node).__name__)
        return f'"node":{{"type":{cls},"fields":{{{",".join(stored)}}}}},"made":true'

    @_writes(_OUTCOME, "outcome")
    def _write_outcome(self, record: records.SourceEnded, name: str, data: Json) -> str | None:
        """Write the value of a source, or what replaces the value in the journal."""
        if record.error is not None:
            data["error"] = self._error(record.error)
        elif self._has_items(record):
            items = record.value
            data["items"] = None if isinstance(items, Unstored) else len(items)
        elif record.called_at:  # another place has a line with the value
            data["called_at"] = record.called_at
        else:
            return self._write_value(record, name, data)
        return None

    def _has_items(self, record: records.SourceEnded) -> bool:
        is_text = isinstance(record.value, str)  # most values are texts, but a map's value is not
        may_be_map = not is_text and not record.parameter
        return may_be_map and find_source_kind(record.source).stored == "items"

    @_writes(_VALUE, "value", "called value")
    def _write_value(self, record: Any, name: str, data: Json) -> str:
        """Write the value of a source or of an item, or why it is not stored."""
        value = record.value
        if not isinstance(value, Unstored):
            parameter = getattr(record, "parameter", "")
            value = self._value(record.node_type, record.field, parameter, value)
        if not isinstance(value, Unstored):
            return f'"value":{value}'
        data["unstored"] = "live" if value is LIVE else "withheld"
        return ""

    @_writes({"": ErrorData}, "error")
    def _write_error(self, record: Record, name: str, data: Json) -> None:
        error: BaseException | None = getattr(record, name)
        if error is not None:
            data[name] = self._error(error)

    @_writes({"": StoredNode | _CLASS | None}, "answer")
    def _write_answer(self, record: records.LMAnswered, name: str, data: Json) -> str:
        value = record.value
        if value is not None and not isinstance(value, type):
            return f'"value":{self.node(value)}'
        data["value"] = None if value is None else {"class": _class_name(value)}
        return ""

    def _value(self, cls: type[Node], field: str, parameter: str, value: Any) -> str | Unstored:
        """Return the value of a source as JSON, or why it is not stored."""
        source = self._sources.get((cls, field, parameter))
        if source is None:
            source = self._sources[cls, field, parameter] = self._source(cls, field, parameter)
        if isinstance(source, Unstored):
            return source
        if type(value) is str is source.plain and value.isascii():  # the most common case
            return to_json(value).decode()
        codec = node_codec(cls)
        try:
            if codec.plan.fields[field].stored == "answer":
                return codec.dump_answer(field, value)
            return source.dump(value)
        except Unkeepable:
            return LIVE

    def _source(
        self, cls: type[Node], field: str, parameter: str
    ) -> ValueCodec | EndCodec | Unstored:
        """Return the codec for the values of a source, or why the values are not stored."""
        source = node_codec(cls).call(field, parameter)
        if source.verdict == "live":
            return LIVE
        if not self._in_clear and self._secrets.source(cls, field, parameter):
            return WITHHELD
        return source

    @_writes(_ATTEMPT, "attempt")
    def _write_attempt(self, record: records.AnswerJudged, name: str, data: Json) -> None:
        attempt = record.attempt
        data |= {"number": attempt.number, "verdict": attempt.verdict}
        data["errors"] = [*map(readable, attempt.errors)]
        data["usage"] = _usage(attempt.usage)
        if attempt.asked:  # bae does not know the prompt of an `LM` that is not a backend
            encoded = attempt.asked.encode("utf-8", "surrogatepass")
            data["prompt"] = sha256(encoded).hexdigest()[:16]
        if self._hides_messages and self._secrets.asks(record.asker):
            # The message of a validator may quote the value.
            data["errors"] = [self._secrets.find_field_name(error) for error in attempt.errors]
            return
        if self._prompts:
            data |= {"asked": attempt.asked, "answer": attempt.answer}
            if attempt.filled is not None:
                data["filled"] = attempt.filled
        if self._thinking and attempt.thinking:
            data["thinking"] = attempt.thinking

    @_writes({}, "asked")
    def _write_asked(self, record: Any, name: str, data: Json) -> None:
        """Write the text of a question, if the journal stores prompts."""
        if self._prompts:
            self._write_said(record, name, data)

    @_writes({}, "said")
    def _write_said(self, record: Any, name: str, data: Json) -> None:
        """Write a text of a conversation with tools, unless the text may contain a secret."""
        value = getattr(record, name)
        if value and self._hides_messages and self._secrets.asks(record.asker):
            if isinstance(value, str):
                data[name] = WITHHELD_MESSAGE
            if "withheld" in record.stored:
                data["withheld"] = True
        elif value:
            data[name] = value

    @_writes({}, "echo")
    def _write_echo(self, record: records.RoundMade, name: str, data: Json) -> None:
        """Write the data that a backend needs back after tool calls. The data may contain the
        model's thinking. After an answer without calls, a backend needs only the text, so the data
        are written only with `thinking`."""
        if record.calls or record.ran or self._thinking:
            self._write_said(record, name, data)

    def _error(self, error: BaseException) -> Json:
        name, code, place = type(error).__name__, None, ""
        if isinstance(error, BaeError):
            code = readable(f"{error.code}")
            message = readable(f"{error.message}".partition("\n")[0])
            cls: type | None = getattr(error, "node_type", None)
            field: str = getattr(error, "field_name", "")
            place = "" if cls is None else f"{cls.__name__}{'.' if field else ''}{field}: "
        elif isinstance(error, RecordedError):
            name, code, message = error.type_name, error.code, error.message
        else:
            code = error.code if isinstance(error, Waiting) else None
            message = describe(error).partition(": ")[2]
        if self._hides_messages and message:
            message = f"{place}{WITHHELD_MESSAGE}"
        return {"type": name, "code": code, "message": message}


def _class_name(cls: type[Any]) -> str | None:
    return None if cls is NoneType else cls.__name__


def _asker(asker: Asker) -> Json:
    data: Json = {"kind": asker.kind, "node": asker.node.__name__}
    more = {"field": asker.field, "parameter": asker.parameter}
    data |= {key: value for key, value in more.items() if value}
    return data if asker.item is None else {**data, "item": asker.item}


def _usage(usage: Usage) -> Json:
    return {n: v for n, default in _DEFAULTS if (v := getattr(usage, n)) != default}


_DEFAULTS: Final = [(name, field.default) for name, field in Usage.__dataclass_fields__.items()]


def line_of(n: int, record: Record, data: str) -> Line:
    """Return the line of a record. `n` is the number of the line."""
    return Line(n, type(record).__name__, record.at, record.path, record.step, data)


def parse_line(line: Line) -> Json:
    """Return the data of a line, with defaults for optional fields. Raises `JournalError` if the
    data do not fit the kind of line (`bae-journal-damaged`), or if bae does not know the kind
    (`bae-journal-version`)."""
    if line.kind not in DATA:
        raise JournalError(
            f"line {line.n} is a {line.kind}, which this version of bae does not know",
            code="bae-journal-version",
            fix="read the journal with the version of bae that wrote it, or a newer one",
        )
    try:
        return vars(_form(line.kind).model_validate_json(line.data, strict=True))
    except ValidationError as error:
        raise damaged_line_error(line, "; ".join(faults(error)), error) from error


def damaged_line_error(line: Line, what: str, cause: BaseException | None = None) -> JournalError:
    """Return the error for a line that cannot be read."""
    return JournalError(
        f"line {line.n}, a {line.kind}, is damaged: {what}",
        code="bae-journal-damaged",
        cause=cause,
        fix="take the journal from a backup; the lines before this one are readable",
    )


_LAST: Final = ("node", "start node", "filled node", "value", "called value", "outcome")
"""The roles whose data may be long. These data come last in a line."""


@cache
def _writers(kind: type[Record]) -> list[tuple[str, _Write]]:
    """Return the functions that write the attributes of a kind of record, with the names of the
    attributes, in the order of a line."""
    if not kind.stored:
        raise TypeError(f"a {kind.__name__} is not stored")
    writers: list[tuple[str, _Write]] = []
    for name, role in sorted(kind.stored.items(), key=lambda item: item[1].name in _LAST):
        write = _ROLES[role.name][0]
        if role.name in ("json", "called", "run"):
            write = _write_json
            if role.default is not NOTHING and role.is_omitted:
                write = _write_if_any if role.default is not None else _write_if_not_none
        if write is not None:
            writers.append((name, write))
    return writers


def _write_json(encoder: Encoder, record: Record, name: str, data: Json) -> None:
    data[name] = getattr(record, name)


def _write_if_any(encoder: Encoder, record: Record, name: str, data: Json) -> None:
    if value := getattr(record, name):
        data[name] = value


def _write_if_not_none(encoder: Encoder, record: Record, name: str, data: Json) -> None:
    if (value := getattr(record, name)) is not None:
        data[name] = value


_ROLES["tools"] = _write_json, {"": tuple[ToolData, ...]}
_ROLES["calls"] = _write_if_any, {"": tuple[CallData, ...]}


def _columns(kind: type[Record]) -> Json:
    """Return the fields of a kind of line: their types, with a default if the field may be
    absent."""
    columns: Json = {}
    for name, role in kind.stored.items():
        role_columns = _ROLES[role.name][1] if role.type is None else {"": role.type}
        is_optional = role.default is not NOTHING
        columns |= {
            key or name: (t, role.default) if is_optional else t for key, t in role_columns.items()
        }
    return columns


DATA: Final[Mapping[str, Mapping[str, Any]]] = {
    name: _columns(kind) for name, kind in records.KINDS.items() if kind.stored
}
"""The fields of each kind of line: their types by name, with a default if the field may be
absent."""


@cache
def _form(kind: str) -> type[BaseModel]:
    columns: Json = {n: t if isinstance(t, tuple) else (t, ...) for n, t in DATA[kind].items()}
    return create_model(kind, **columns)
