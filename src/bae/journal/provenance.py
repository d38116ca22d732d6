"""`Provenance`: the origin of one value of a run, as data and as text."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from bae.sources import KINDS, SourceFacts, find_source_kind
from bae.usage import Usage
from bae.work import NOTHING_USED

ValueSource = str
"""A kind of origin: "caller", "lm", "body", "default", "fork", or the kind of a field's source,
such as "dep"."""

Kept = Literal["value", "live", "withheld", "turns", "missing"]
"""Where a value is stored:

- "value": in the journal.
- "live": nowhere, because no journal can store the value.
- "withheld": nowhere, because the value is a secret or was redacted.
- "turns": in earlier runs of the thread.
- "missing": nowhere, because there is no recorded value, for example after a failure.
"""


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """One answer of a model, with its verdict."""

    number: int
    """The number of the answer among the answers to its question, from 1."""
    verdict: str
    """The verdict: "valid", or "invalid", "unparsable", "empty", "cut-off" or "refused". The
    entries of `NodeReport.calls` may also have "restarted" or "used"; their `number` is 0."""
    errors: tuple[str, ...] = ()
    """What was wrong with the answer."""
    prompt: str = ""
    """A hash of the question."""
    at: float = 0.0
    """The time of the answer, in seconds since 1970."""
    usage: Usage = NOTHING_USED
    asked: str | None = None
    """The text of the question, if the journal stores prompts."""
    answer: str | None = None
    """The text of the answer, if the journal stores prompts."""
    by: str = ""
    """The part of the graph that asked, as `filling Outfit`."""
    model: str = ""
    """The model that answered. With the verdict "restarted", the LM that a `Fallback` asked after
    the error; empty if bae asked the same LM again."""
    thinking: str = ""
    """The model's thinking before the answer, if the journal stores thinking."""


CallState = Literal["done", "failed", "waiting", "begun", "asked"]
"""The state of a tool call. `MadeCall.state` explains the values."""


@dataclass(frozen=True, slots=True)
class MadeCall:
    """One call of a tool by a model."""

    id: str
    name: str
    arguments: dict[str, Any]
    state: CallState
    """The state of the call:

    - "done": the call has a result.
    - "failed": the model read an error, or the run failed with the call.
    - "waiting": the call waits for a person.
    - "begun": the tool was called and has no result.
    - "asked": the model asked for the call, and the tool was not called.
    """
    result: Any = None
    error: str | None = None
    seconds: float = 0.0
    reused: str = ""
    """The id of an earlier equal call, if this call got the result of that call."""
    place: str = ""
    """The place of the call, as `1:Reply.calls(search)[2]`. If a graph ran for the call, this is
    the path of the graph."""
    is_native: bool = False
    """Whether the provider ran the tool."""
    person: Literal["", "approved", "answered"] = ""
    """What a person did: "approved" the call, or "answered" with the result."""

    @property
    def text(self) -> str:
        """The call as text: `search(query="kettle")`."""
        return call_text(self.name, self.arguments)

    def __str__(self) -> str:
        call_line = f"{self.id} {self.text}"
        match self.state:
            case "done":
                how = f"the result of {self.reused}" if self.reused else _json(self.result)
                return f"{call_line} = {how}"
            case "failed":
                return f"{call_line} failed: {self.error}"
            case "waiting":
                return f"{call_line} waits for a person"
            case "begun":
                return f"{call_line} had begun"
            case "asked":
                return f"{call_line} had not begun"


@dataclass(frozen=True, slots=True)
class ToolRound:
    """One round of a conversation with tools: an answer of the model, and the replies to it."""

    number: int
    at: float = 0.0
    """The time of the model's answer, in seconds since 1970."""
    text: str = ""
    """The text of the model's answer."""
    calls: tuple[MadeCall, ...] = ()
    """The tool calls in the model's answer."""
    told: tuple[str, ...] = ()
    """The messages that the model read next, apart from the results of its calls."""
    usage: Usage = NOTHING_USED
    by: str = ""
    """The part of the graph that asked, as `filling Outfit`."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of the value of a field.

    `print` shows it to people, and `dataclasses.asdict` makes JSON of it.
    """

    run_id: str
    place: str
    """The place of the field, as `2:Outfit.mood`. The path of the graph comes first if the graph is
    inside the run."""
    path: str
    """The path of the graph; empty for the run itself."""
    step: int
    """The number of the node in its graph."""
    node: str
    """The name of the node's class."""
    field: str
    """The name of the field; empty for the complete node."""
    source: ValueSource
    """The kind of origin:

    - "caller", "lm", "dep", "map", "recall", "thread" or "gate".
    - "tools": the LM called tools, and the value is the list of calls.
    - "body": the previous node's body returned the node.
    - "default": the default of the field.
    - "fork": `graph.fork` changed the value.
    """
    by: str = ""
    """The function, graph, model, question or body that the value came from."""
    at: float = 0.0
    """The time when the value was known, in seconds since 1970."""
    kept: Kept = "value"
    """Where the value is stored: "value" if it is in `value`, otherwise the reason why not."""
    value: Any = None
    """The value as JSON, if `kept` is "value"."""
    state: Literal["there", "failed", "begun", "waiting", "absent"] = "there"
    """The progress of the field's source. `Journal.why` returns only "there" and "failed"; the
    other states occur in the report of a run.

    - "there": the field has its value.
    - "failed": the source failed.
    - "begun": the source has begun.
    - "waiting": the source waits for a person.
    - "absent": nothing is recorded about the field.
    """
    seconds: float | None = None
    """How long the source took; None if this is not known."""
    usage: Usage = NOTHING_USED
    """The usage of the LM calls for the value, including calls in graphs inside."""
    models: tuple[str, ...] = ()
    """The models that answered the LM calls for the value."""
    prompts: tuple[str, ...] = ()
    """The hashes of the questions in the LM calls for the value."""
    attempts: tuple[JudgedAnswer, ...] = ()
    """The LM's answers with their verdicts, without answers in graphs inside."""
    inputs: dict[str, Provenance] = dataclasses.field(default_factory=dict[str, "Provenance"])
    """The provenance of a function's arguments, and of the field that a map goes over, by name."""
    items: tuple[Provenance | None, ...] = ()
    """The provenance of each item of a map; None for an unfinished item."""
    origin: Provenance | None = None
    """The provenance of the recalled value. If the function is called once for several fields, the
    provenance of the field that it was called for."""
    inside: str = ""
    """The path of the graph that computed the value. The graph's fields have places such as
    `2:Report.x/1:Summary.text`."""
    error: str = ""
    """Why the source failed."""
    note: str = ""
    """Any other remark."""
    rounds: tuple[ToolRound, ...] = ()
    """The conversation with tools, if the LM could call tools before it filled the node."""
    is_calls: bool = False
    """Whether the value is the list of tool calls in `rounds`."""

    @property
    def calls(self) -> list[MadeCall]:
        """The tool calls in all rounds."""
        return [call for round_ in self.rounds for call in round_.calls]

    @property
    def cost(self) -> float | None:
        """The cost of the LM calls for the value; None if the cost is not known."""
        return self.usage.cost

    def __str__(self) -> str:
        return "\n".join([_title(self.place, self), *_lines(self, "  ", _DEEPEST)])


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a tool call as text: `search(query="kettle")`."""
    arguments_text = ", ".join(f"{key}={_json(value)}" for key, value in arguments.items())
    return f"{name}({arguments_text})"


def when(at: float) -> str:
    """Return a time in the local zone, with the offset from UTC."""
    return datetime.fromtimestamp(at).astimezone().isoformat(" ", "seconds")


def long(seconds: float) -> str:
    """Return a duration as text, in a unit that suits its length."""
    if seconds < 0.0005:
        return "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


_DEEPEST: Final = 6
"""The greatest depth of inputs and origins that is printed."""
_ITEMS: Final = 3
"""The number of items of a map that are printed."""
_WIDTH: Final = 72


def _lines(of: Provenance, indent: str, deeper: int) -> Iterator[str]:
    yield indent + ", ".join([_describe_making(of), *_facts(of)])
    if of.error:
        yield f"{indent}  failed: {of.error}"
    if of.note:
        yield f"{indent}  {of.note}"
    if len(of.attempts) > 1 or any(attempt.errors for attempt in of.attempts):
        for attempt in of.attempts:
            errors = f": {_cut_text('; '.join(attempt.errors))}" if attempt.errors else ""
            yield f"{indent}  answer {attempt.number} was {attempt.verdict}{errors}"
    for round_ in of.rounds if of.is_calls else ():
        for call in round_.calls:
            by = f", {call.person} by a person" if call.person else ""
            yield f"{indent}  round {round_.number}{by}: {_cut_text(str(call))}"
        for text in round_.told:
            yield f"{indent}  round {round_.number}, told to the model: {_cut_text(text)}"
    if of.inside:
        yield f"{indent}  look inside with {of.inside}/…"
    if deeper == 0:
        return
    is_recalled = of.source in KINDS and find_source_kind(of.source).stored == "origin"
    if of.origin is not None and is_recalled:
        yield from _lines(of.origin, f"{indent}  ", deeper - 1)
    for name, argument in of.inputs.items():
        yield _title(f"{indent}  {name}", argument)
        yield from _lines(argument, f"{indent}    ", deeper - 1)
    for index, item in enumerate(of.items[:_ITEMS]):
        name = f"{indent}  [{index}]"
        yield f"{name} is not done" if item is None else _title(name, item)
    if len(of.items) > _ITEMS:
        yield f"{indent}  … and {len(of.items) - _ITEMS} more"


def _describe_making(of: Provenance) -> str:
    match of.source:
        case "caller":
            return f"given by {of.by or 'the caller'}"
        case "lm":
            return f"filled by {', '.join(of.models) or 'the LM'}"
        case "body":
            return f"returned by {of.by}"
        case "default":
            return "its default is used"
        case "fork":
            return f"changed when the run was forked from {of.by}"
        case _:
            facts = SourceFacts(of.by, len(of.items) or len(of.calls), is_inside=bool(of.inside))
            return find_source_kind(of.source).sentence(facts)


def _facts(of: Provenance) -> Iterator[str]:
    if of.calls and not of.is_calls:
        yield "after 1 tool call" if len(of.calls) == 1 else f"after {len(of.calls)} tool calls"
    if of.seconds:
        yield f"in {long(of.seconds)}" if of.seconds >= 0.0005 else "in less than 1 ms"
    if of.attempts:
        yield "1 answer" if len(of.attempts) == 1 else f"{len(of.attempts)} answers"
    if of.usage.tokens:
        yield f"{of.usage.tokens} tokens"
    if of.usage.cost:
        yield f"${of.usage.cost:.4g}"
    if of.prompts:
        yield f"prompt {of.prompts[-1]}"
    if of.at:
        yield when(of.at)


def _title(name: str, of: Provenance) -> str:
    """Return a name with the value after it, if the journal has the value."""
    match of.kept:
        case "value":
            return f"{name} = {_cut_text(_json(of.value))}"
        case "live":
            return f"{name} = (a live value, which no journal stores)"
        case "withheld":
            return f"{name} = (withheld)"
        case "turns" | "missing":
            return name


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cut_text(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _WIDTH else f"{flat[: _WIDTH - 1]}…"
