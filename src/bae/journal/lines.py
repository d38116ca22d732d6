"""What a line of a journal holds: `Encoder` writes a record as JSON, `parse_line` checks what was
written. `docs/journal-format.md` describes the format."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from hashlib import sha256
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

from pydantic import BaseModel, Field, ValidationError, create_model
from pydantic_core import from_json, to_json

from bae import records
from bae.exceptions import BaeError, JournalError, describe, faults
from bae.journal.codec import Unkeepable, ValueCodec, quoted
from bae.journal.node_codec import EndCodec, node_codec
from bae.journal.shape import Json
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
from bae.sources import STARTED, kind_named
from bae.unicode import LONGEST_INT, readable
from bae.usage import AnswerVerdict, Usage

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Line
    from bae.node import Node

FOLLOWS: Final = "{}"
"""The data of a `StepStarted` whose node follows from the lines before it."""


class Encoder:
    """Writes the records of a run, and of the graphs inside it, as the JSON that is stored.

    `secrets` and `prompts` are those of the `Journal`: whether secrets are written in clear, and
    whether the text of prompts and answers is written at all.
    """

    def __init__(
        self, graph: Graph[Any, Any] | Secrets, *, secrets: bool = False, prompts: bool = True
    ) -> None:
        self._in_clear = secrets
        self._prompts = prompts
        self._secrets = graph if isinstance(graph, Secrets) else Secrets.of(graph)
        self._sources: dict[tuple[type[Node], str, str], ValueCodec | EndCodec | Unstored] = {}

    @property
    def _hides_messages(self) -> bool:
        # Where there is a secret, the message of any error may quote it.
        return not self._in_clear and self._secrets.any

    def hiding(self, cls: type[Node]) -> Encoder:
        """An encoder that hides the secrets of a class outside the graph too."""
        return Encoder(self._secrets.including(cls), secrets=self._in_clear, prompts=self._prompts)

    def encode(self, record: Record) -> str:
        """The `data` of a record's line: a JSON object.

        Raises `JournalError` (`bae-journal-field`) where a plain field holds a value that cannot
        be stored. A `StepStarted` is written with its node; where that follows from the lines
        before it, store `FOLLOWS` instead.
        """
        data: Json = {}
        rest = ""  # what is JSON already
        match record:  # what is most frequent comes first
            case records.SourceStarted():
                data = {**_field(record), "source": record.source, "by": record.by}
            case records.SourceEnded():
                data = {**_field(record), "source": record.source, "by": record.by}
                data["seconds"] = record.seconds
                rest = self._outcome(record, data, record.parameter)
            case records.FillStarted():
                data = {"target": record.target.__name__}
            case records.FillEnded():
                data = {"seconds": record.seconds, "usage": _usage(record.usage)}
                rest = f'"node":{self.node(record.node, plain=True)}'
            case records.AnswerJudged():
                data = self._judged(record)
            case records.StepStarted() if record.made:
                rest = self._made(record)
            case records.StepStarted() | records.Returned():
                rest = f'"node":{self.node(record.node)}'
            case records.Recalled():
                data = {**_field(record), "origin": record.origin}
            case records.CallEnded():
                data = {**_field(record), "by": record.by, "seconds": record.seconds}
                more = {"graph": record.graph, "place": record.place, "function": record.function}
                more["arguments"] = record.arguments
                data |= {name: each for name, each in more.items() if each}
                rest = self._outcome(record, data, record.parameter)
            case records.ItemEnded():
                data = {**_field(record), "index": record.index}
                rest = self._outcome(record, data)
            case records.ChoiceStarted():
                data = {"node": type(record.node).__name__}
                data["offered"] = [_class_name(cls) for cls in record.offered]
            case records.ChoiceMade():
                data = {"node": type(record.node).__name__, "chosen": _class_name(record.chosen)}
                data |= {"seconds": record.seconds, "usage": _usage(record.usage)}
            case records.RunStarted():
                data = {"run_id": record.run_id, "graph": record.graph}
                data["max_iters"] = record.max_iters
                # What a graph inside starts with may be a copy of a secret.
                copies = self._secrets.fields(type(record.node)) if record.path else ()
                rest = f'"node":{self.node(record.node, copies=copies)}'
            case records.RunEnded():
                data = {"outcome": record.outcome, "gates": [gate.address for gate in record.gates]}
                if record.error is not None:
                    data["error"] = self._error(record.error)
            case records.LMUsed():
                data = {"asker": _asker(record.asker), "usage": _usage(record.usage)}
            case records.LMAnswered():
                data = {"asker": _asker(record.asker), "method": record.method}
                data |= {"asked": record.asked, "target": record.target}
                data |= {"number": record.number, "value": None}
                if isinstance(record.value, type):
                    data["value"] = {"class": _class_name(record.value)}
                elif record.value is not None:
                    del data["value"]
                    rest = f'"value":{self.node(record.value)}'
            case records.ClassMet():
                data = {"node": record.node_type.__name__}
            case records.AnswerRestarted():
                data = {"asker": _asker(record.asker), "error": self._error(record.error)}
                data["wait"] = record.wait
            case records.GateOpened(gate=gate):
                data = {"gate": gate.address, "node": gate.node_type.__name__}
                data |= {"field": gate.field_name, "question": gate.question}
                if gate.deadline is not None:
                    data["deadline"] = gate.deadline
            case records.RunForked():
                data = {"parent": record.parent, "changed": record.changed}
                rest = f'"node":{self.node(record.node)}'
            case records.RunResumed():
                data = {"owner": record.owner, "changes": record.changes}
            case _:
                raise TypeError(f"a {type(record).__name__} is not stored")
        if not data:
            return f"{{{rest}}}"
        try:
            try:
                text = to_json(data, inf_nan_mode="constants").decode()
            except ValueError:  # half of a character pair
                text = quoted(data)
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
        """The `data` of a `StepStarted` with its node."""
        return f'{{"node":{self.node(node)}}}'

    def node(self, node: Node, plain: bool = False, copies: Collection[str] = ()) -> str:
        """A node as it is stored, as JSON; `plain` leaves out the fields that have a source, and
        `copies` are fields that hold copies of secrets."""
        codec = node_codec(node.__class__)
        return codec.dump(node, secrets=self._in_clear, plain=plain, copies=copies)

    def error_line(self, error: BaseException) -> str:
        """One line about what a run failed with, without words that may quote a secret."""
        hides = self._hides_messages
        if not isinstance(error, BaeError):
            return type(error).__name__ if hides else describe(error)
        said = self._error(error)
        line = f"[{said['code']}] {said['message']}"
        if error.cause is None:
            return line
        cause = type(error.cause).__name__ if hides else describe(error.cause)
        if cause.partition(": ")[2] in said["message"]:  # which has it already
            cause = type(error.cause).__name__
        return readable(f"{line} ({cause})")

    def _made(self, step: records.StepStarted) -> str:
        """The defaults that factories made for a node, as a node that has nothing else."""
        codec = node_codec(type(step.node))
        stored: list[str] = []
        for name in step.made:
            if name in codec.secret and not self._in_clear:
                continue  # it is made again
            try:
                value = codec.fields[name].dump(step.node.__dict__[name])
            except Unkeepable:
                continue
            stored.append(f"{quoted(name)}:{value}")
        name = quoted(type(step.node).__name__)
        return f'"node":{{"type":{name},"fields":{{{",".join(stored)}}}}},"made":true'

    def _outcome(
        self,
        record: records.SourceEnded | records.ItemEnded | records.CallEnded,
        data: Json,
        parameter: str = "",
    ) -> str:
        """The value of a source or of an item; or add to its data what is stored instead."""
        value = record.value
        if isinstance(record, records.SourceEnded):
            if record.error is not None:
                data["error"] = self._error(record.error)
                return ""
            is_text = isinstance(value, str)  # most are, and no map has one
            if not is_text and not parameter and kind_named(record.source).stored == "items":
                data["items"] = None if isinstance(value, Unstored) else len(value)
                return ""
            if record.called_at:  # whose line has the value
                data["called_at"] = record.called_at
                return ""
        if not isinstance(value, Unstored):
            value = self._value(record.node_type, record.field, parameter, value)
        if not isinstance(value, Unstored):
            return f'"value":{value}'
        data["unstored"] = "live" if value is LIVE else "withheld"
        return ""

    def _value(self, cls: type[Node], field: str, parameter: str, value: Any) -> str | Unstored:
        """The value of a source as JSON, or why it is not stored."""
        source = self._sources.get((cls, field, parameter))
        if source is None:
            source = self._sources[cls, field, parameter] = self._source(cls, field, parameter)
        if isinstance(source, Unstored):
            return source
        if type(value) is str is source.plain and value.isascii():  # most are
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
        """How the values of a source are stored, or why they are not."""
        source = node_codec(cls).call(field, parameter)
        if source.verdict == "live":
            return LIVE
        if not self._in_clear and self._secrets.source(cls, field, parameter):
            return WITHHELD
        return source

    def _judged(self, record: records.AnswerJudged) -> Json:
        attempt = record.attempt
        data: Json = {"asker": _asker(record.asker), "number": attempt.number}
        data |= {"verdict": attempt.verdict, "errors": [*map(readable, attempt.errors)]}
        data["usage"] = _usage(attempt.usage)
        if attempt.asked:  # an LM that is no backend has a prompt of its own that is not known
            asked = attempt.asked.encode("utf-8", "surrogatepass")
            data["prompt"] = sha256(asked).hexdigest()[:16]
        if self._hides_messages and self._secrets.asks(record.asker):
            # What a validator says about a value may quote it.
            data["errors"] = [self._secrets.field_named(error) for error in attempt.errors]
        elif self._prompts:
            data |= {"asked": attempt.asked, "answer": attempt.answer}
            if attempt.filled is not None:
                data["filled"] = attempt.filled
        return data

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


def _field(
    record: records.SourceStarted
    | records.SourceEnded
    | records.CallEnded
    | records.ItemEnded
    | records.Recalled,
) -> Json:
    data = {"node": record.node_type.__name__, "field": record.field}
    parameter = getattr(record, "parameter", "")
    if parameter:
        data["parameter"] = parameter
    return data


def _asker(asker: Asker) -> Json:
    data: Json = {"kind": asker.kind, "node": asker.node.__name__}
    more = {"field": asker.field, "parameter": asker.parameter}
    data |= {key: value for key, value in more.items() if value}
    return data if asker.item is None else {**data, "item": asker.item}


def _usage(usage: Usage) -> Json:
    return {n: v for n, default in _DEFAULTS if (v := getattr(usage, n)) != default}


_DEFAULTS: Final = [(name, field.default) for name, field in Usage.__dataclass_fields__.items()]


def parse_line(line: Line) -> Json:
    """The data of a line, with the defaults of what it may leave out. Raises `JournalError` where
    it is not what its kind must have (`bae-journal-damaged`), or the kind is not known
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
        raise damaged(line, "; ".join(faults(error)), error) from error


def damaged(line: Line, what: str, cause: BaseException | None = None) -> JournalError:
    """The error of a line that cannot be read."""
    return JournalError(
        f"line {line.n}, a {line.kind}, is damaged: {what}",
        code="bae-journal-damaged",
        cause=cause,
        fix="take the journal from a backup; the lines before this one are readable",
    )


class StoredNode(BaseModel, defer_build=True):
    """A node, or some fields of it, as JSON. Without the code of a run, its nodes are read as
    these, in subclasses that have the names of theirs."""

    type: str
    fields: Json
    withheld: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()


class AskerData(BaseModel, defer_build=True):
    """Who asks an LM."""

    kind: Literal["fill", "choice", "body", "source"]
    node: str
    field: str = ""
    parameter: str = ""
    item: int | None = None


class ErrorData(BaseModel, defer_build=True):
    """An exception."""

    type: str
    code: str | None
    message: str


_CLASS: Final[Any] = Annotated[dict[Literal["class"], str | None], Field(min_length=1)]
_TEXTS: Final = tuple[str, ...]
_FIELD: Final[Json] = {"node": str, "field": str}
_SOURCE: Final[Json] = {
    **_FIELD,
    "parameter": (str, ""),
    "source": cast(Any, Literal)[STARTED],
    "by": str,
}
_VALUE: Final[Json] = {
    "value": (Any, NOTHING),
    "unstored": (Literal["live", "withheld"], None),
}

DATA: Final[Mapping[str, Mapping[str, Any]]] = {
    "RunStarted": {"run_id": str, "graph": str, "max_iters": int, "node": StoredNode},
    "StepStarted": {"node": (StoredNode, None), "made": (bool, False)},
    "Returned": {"node": StoredNode},
    "RunResumed": {"owner": str, "changes": _TEXTS},
    "RunForked": {"parent": str, "node": StoredNode, "changed": _TEXTS},
    "SourceStarted": _SOURCE,
    "SourceEnded": {
        **_SOURCE,
        "seconds": float,
        **_VALUE,
        "items": (int | None, NOTHING),
        "called_at": (str, ""),
        "error": (ErrorData, None),
    },
    "CallEnded": {
        **_FIELD,
        "parameter": (str, ""),
        "by": str,
        "seconds": float,
        **_VALUE,
        "graph": (str, ""),
        "place": (str, ""),
        "function": (str, ""),
        "arguments": (str, ""),
    },
    "ClassMet": {"node": str},
    "ItemEnded": {**_FIELD, "index": int, **_VALUE},
    "Recalled": {**_FIELD, "parameter": (str, ""), "origin": records.Origin},
    "GateOpened": {"gate": str, **_FIELD, "question": str, "deadline": (float, None)},
    "ChoiceStarted": {"node": str, "offered": tuple[str | None, ...]},
    "ChoiceMade": {"node": str, "chosen": str | None, "seconds": float, "usage": Usage},
    "FillStarted": {"target": str},
    "FillEnded": {"node": StoredNode, "seconds": float, "usage": Usage},
    "AnswerJudged": {
        "asker": AskerData,
        "number": int,
        "verdict": AnswerVerdict,
        "errors": _TEXTS,
        "usage": Usage,
        "prompt": (str, ""),
        "asked": (str, ""),
        "answer": (str, ""),
        "filled": (tuple[str, ...] | None, None),
    },
    "AnswerRestarted": {"asker": AskerData, "error": ErrorData, "wait": float},
    "LMAnswered": {
        "asker": AskerData,
        "method": Literal["make", "decide", "choose_type", "fill"],
        "asked": str,
        "target": str,
        "number": (int | None, None),
        "value": StoredNode | _CLASS | None,
    },
    "LMUsed": {"asker": AskerData, "usage": Usage},
    "RunEnded": {
        "outcome": Literal["ended", "waiting", "failed", "cancelled"],
        "error": (ErrorData, None),
        "gates": _TEXTS,
    },
}
"""What the data of each kind of line has: types by name, with a default where it may be absent."""


@cache
def _form(kind: str) -> type[BaseModel]:
    columns: Json = {n: t if isinstance(t, tuple) else (t, ...) for n, t in DATA[kind].items()}
    return create_model(kind, **columns)
