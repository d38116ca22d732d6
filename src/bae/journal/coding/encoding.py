"""Records into lines: the JSON object that a journal stores for each. A node is written once, with
one call of pydantic's serializer; values of sources go through the declared type of their function.
`decoding.py` reads them back, `keeper.py` hands them to the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from hashlib import sha256
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic_core import to_json

from bae.exceptions import JournalError
from bae.journal.codec import Unkeepable
from bae.journal.coding.failing import error_data, error_line
from bae.journal.node_codec import node_codec
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
    Recalled,
    Record,
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
from bae.secrets import Secrets
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node

FOLLOWS: Final = "{}"
"""What is stored of a `StepStarted` whose node follows from what is stored already."""


class Encoder:
    """Writes the records of a run, and of the graphs inside it, as the JSON that is stored.

    `secrets` and `prompts` are those of the `Journal`: whether secrets are written in clear, and
    whether the text of prompts and answers is written at all.
    """

    def __init__(
        self, graph: Graph[Any, Any], *, secrets: bool = False, prompts: bool = True
    ) -> None:
        self._secrets = secrets
        self._prompts = prompts
        self._hidden = Secrets.of(graph)
        # Where there is a secret, what anything says when it fails may quote it.
        self._hides = not secrets and self._hidden.any

    def encode(self, record: Record) -> str:
        """The `data` of a record's line: a JSON object.

        Raises `JournalError` (`bae-journal-field`) where a plain field holds what no journal can.
        A `StepStarted` is written with its node; where that follows from what is stored already,
        store `FOLLOWS` instead.
        """
        return _KINDS[type(record)](self, record)

    def step(self, node: Node) -> str:
        """The `data` of a `StepStarted` with its node."""
        return f'{{"node":{node_codec(node.__class__).dump(node, secrets=self._secrets)}}}'

    def node(self, node: Node) -> str:
        """A node as it is stored, as JSON."""
        return self._node(node)

    def error_line(self, error: BaseException) -> str:
        """What the store has of a run that failed: one line, without words that may quote a
        secret."""
        return error_line(error, self._hides)

    def _error(self, error: BaseException) -> str:
        return _quoted(error_data(error, self._hides))

    def _node(self, node: Node, plain: bool = False) -> str:
        return node_codec(type(node)).dump(node, secrets=self._secrets, plain=plain)

    def _step_started(self, record: StepStarted) -> str:
        if record.made:
            return f'{{"node":{self._made(record.node, record.made)},"made":true}}'
        return f'{{"node":{self._node(record.node)}}}'

    def _returned(self, record: Returned) -> str:
        return f'{{"node":{self._node(record.node)}}}'

    def _made(self, node: Node, names: Iterable[str]) -> str:
        """The defaults that a node has, as a node that has nothing else."""
        kept = node_codec(type(node))
        said: list[str] = []
        for name in names:
            if name in kept.live or (name in kept.secret and not self._secrets):
                continue  # it is made anew
            try:
                said.append(f"{_quoted(name)}:{kept.fields[name].dump(node.__dict__[name])}")
            except Unkeepable:
                continue
        return f'{{"type":{_quoted(type(node).__name__)},"fields":{{{",".join(said)}}}}}'

    def _run_started(self, record: RunStarted) -> str:
        run_id, graph = _quoted(record.run_id), _quoted(record.graph)
        head = f'"run_id":{run_id},"graph":{graph},"max_iters":{record.max_iters}'
        return f'{{{head},"node":{self._node(record.node)}}}'

    def _run_forked(self, record: RunForked) -> str:
        parent, changed = _quoted(record.parent), _quoted(record.changed)
        return f'{{"parent":{parent},"node":{self._node(record.node)},"changed":{changed}}}'

    def _run_resumed(self, record: RunResumed) -> str:
        return _quoted({"owner": record.owner, "changes": record.changes})

    def _source_started(self, record: SourceStarted) -> str:
        return f"{_source(record)}}}"

    def _source_ended(self, record: SourceEnded) -> str:
        said = f'{_source(record)},"seconds":{_quoted(record.seconds)}'
        if record.error is not None:
            return f'{said},"error":{self._error(record.error)}}}'
        if record.source == "map" and not record.route:
            items = cast("list[Any] | Unstored", record.value)
            count = "" if isinstance(items, Unstored) else f',"count":{len(items)}'
            return f'{said},"items":true{count}}}'
        value = self._value(record.node_type, record.field, record.route, record.value)
        return f"{said},{value}}}"

    def _item_ended(self, record: ItemEnded) -> str:
        value = self._value(record.node_type, record.field, "", record.value)
        return f'{{{_place(record.node_type, record.field)},"index":{record.index},{value}}}'

    def _value(self, node_type: type[Node], field: str, route: str, value: Any) -> str:
        if value is LIVE or value is WITHHELD:
            return _LIVE if value is LIVE else _WITHHELD
        kept = node_codec(node_type)
        source = kept.call(field, route)
        if source.verdict == "live":
            return _LIVE
        if not self._secrets and self._hidden.source(node_type, field, route):
            return _WITHHELD
        gate = kept.plan.fields[field].kind == "gate"
        try:
            return f'"value":{kept.dump_answer(field, value) if gate else source.dump(value)}'
        except Unkeepable:
            return _LIVE

    def _recalled(self, record: Recalled) -> str:
        place = _place(record.node_type, record.field)
        return f'{{{place},"origin":{_quoted(record.origin)}}}'

    def _gate_opened(self, record: GateOpened) -> str:
        gate = record.gate
        said: dict[str, Any] = {
            "gate": gate.address,
            "node": gate.node_type.__name__,
            "field": gate.field_name,
            "question": gate.question,
        }
        if gate.deadline is not None:
            said["deadline"] = gate.deadline
        return _quoted(said)

    def _choice_started(self, record: ChoiceStarted) -> str:
        offered = [_class_name(each) for each in record.offered]
        return _quoted({"node": type(record.node).__name__, "offered": offered})

    def _choice_made(self, record: ChoiceMade) -> str:
        said = {
            "node": type(record.node).__name__,
            "chosen": _class_name(record.chosen),
            "seconds": record.seconds,
            "usage": _usage(record.usage),
        }
        return _quoted(said)

    def _fill_started(self, record: FillStarted) -> str:
        return f'{{"target":{_quoted(record.target.__name__)}}}'

    def _fill_ended(self, record: FillEnded) -> str:
        more = _quoted({"seconds": record.seconds, "usage": _usage(record.usage)})
        return f'{{"node":{self._node(record.node, plain=True)},{more[1:]}'

    def _answer_judged(self, record: AnswerJudged) -> str:
        attempt = record.attempt
        said: dict[str, Any] = {
            "asker": _asker(record.asker),
            "number": attempt.number,
            "verdict": attempt.verdict,
            "errors": attempt.errors,
            "usage": _usage(attempt.usage),
        }
        if attempt.asked:  # an LM that is no backend has a prompt of its own that nobody knows
            said["prompt"] = sha256(_encoded(attempt.asked)).hexdigest()[:16]
        if not self._secrets and self._hidden.asks(record.asker):
            # What a validator says of a value may quote it.
            said["errors"] = [self._hidden.field_named(error) for error in attempt.errors]
        elif self._prompts:
            said |= {"asked": attempt.asked, "answer": attempt.answer}
        return _quoted(said)

    def _answer_restarted(self, record: AnswerRestarted) -> str:
        asker, wait = _quoted(_asker(record.asker)), _quoted(record.wait)
        return f'{{"asker":{asker},"error":{self._error(record.error)},"wait":{wait}}}'

    def _lm_answered(self, record: LMAnswered) -> str:
        value = record.value
        if value is None:
            dumped = "null"
        elif isinstance(value, type):
            dumped = _quoted({"class": _class_name(value)})
        else:
            dumped = self._node(value)
        said = {"asker": _asker(record.asker), "method": record.method}
        head = _quoted({**said, "asked": record.asked, "target": record.target})
        return f'{head[:-1]},"value":{dumped}}}'

    def _lm_used(self, record: LMUsed) -> str:
        return _quoted({"asker": _asker(record.asker), "usage": _usage(record.usage)})

    def _run_ended(self, record: RunEnded) -> str:
        gates = _quoted([gate.address for gate in record.gates])
        error = "" if record.error is None else f',"error":{self._error(record.error)}'
        return f'{{"outcome":{_quoted(record.outcome)}{error},"gates":{gates}}}'


_KINDS: Final = cast(
    "dict[type[Record], Callable[[Encoder, Record], str]]",
    {
        kind: getattr(Encoder, name)
        for kind, name in (
            (RunStarted, "_run_started"),
            (StepStarted, "_step_started"),
            (Returned, "_returned"),
            (RunResumed, "_run_resumed"),
            (RunForked, "_run_forked"),
            (SourceStarted, "_source_started"),
            (SourceEnded, "_source_ended"),
            (ItemEnded, "_item_ended"),
            (Recalled, "_recalled"),
            (GateOpened, "_gate_opened"),
            (ChoiceStarted, "_choice_started"),
            (ChoiceMade, "_choice_made"),
            (FillStarted, "_fill_started"),
            (FillEnded, "_fill_ended"),
            (AnswerJudged, "_answer_judged"),
            (AnswerRestarted, "_answer_restarted"),
            (LMAnswered, "_lm_answered"),
            (LMUsed, "_lm_used"),
            (RunEnded, "_run_ended"),
        )
    },
)


_LIVE: Final = '"live":true'
_WITHHELD: Final = '"withheld":true'


def _place(node_type: type[Node], field: str) -> str:
    return f'"node":{_quoted(node_type.__name__)},"field":{_quoted(field)}'


def _source(record: SourceStarted | SourceEnded) -> str:
    by = _quoted(record.by)
    route = f',"route":{_quoted(record.route)}' if record.route else ""
    place = _place(record.node_type, record.field)
    return f'{{{place},"source":"{record.source}","by":{by}{route}'


def _asker(asker: Asker) -> dict[str, str]:
    said = {"kind": asker.kind, "node": asker.node.__name__}
    if asker.field:
        said["field"] = asker.field
    if asker.parameter:
        said["parameter"] = asker.parameter
    return said


def _class_name(cls: type[Any]) -> str | None:
    return None if cls is NoneType else cls.__name__


_USAGE: Final = tuple((field.name, field.default) for field in fields(Usage))


def _usage(usage: Usage) -> dict[str, Any]:
    return {n: v for n, default in _USAGE if (v := getattr(usage, n)) != default}


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _quoted(value: Any) -> str:
    try:
        return to_json(value, inf_nan_mode="constants").decode()
    except (ValueError, TypeError) as error:  # half of a character, from a model or in a message
        if isinstance(value, str):
            return to_json(_mended(value)).decode()
        if isinstance(value, dict):
            entries = cast(dict[str, Any], value)
            return f"{{{','.join(f'{_quoted(k)}:{_quoted(v)}' for k, v in entries.items())}}}"
        if isinstance(value, list | tuple):
            return f"[{','.join(_quoted(each) for each in cast(list[Any], value))}]"
        raise JournalError(f"{value!r} cannot be written as JSON", cause=error) from error


def _mended(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
