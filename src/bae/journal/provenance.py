"""`Provenance`: the origin of one value of a run, and how it is printed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from bae.sources import KINDS, Told, kind_named
from bae.usage import Usage
from bae.work import NOTHING_USED

ValueSource = str
"""The origin of a value: "caller", "lm", "body", "default", "fork", or the kind of a source, as
"dep"."""

Kept = Literal["value", "live", "withheld", "turns", "missing"]
"""Where a value is: the journal has it, no journal can store it, it is a secret that was not
stored, it is in other runs of the thread, or there is none because its source failed."""


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """One answer of a model, and what was wrong with it.

    - `by`: the part of the graph that asked, as `filling Outfit`.
    - `prompt`: a hash of the question. `asked` and `answer` are the texts, if the journal stores
      prompts, and `thinking` the model's thinking, if it stores that.
    - `model`: the model that answered. With the verdict "restarted", the LM that a `Fallback` asked
      after the error; empty if the same LM was asked again.
    """

    number: int
    verdict: str
    errors: tuple[str, ...] = ()
    prompt: str = ""
    at: float = 0.0
    usage: Usage = NOTHING_USED
    asked: str | None = None
    answer: str | None = None
    by: str = ""
    model: str = ""
    thinking: str = ""


CallState = Literal["done", "failed", "waiting", "begun", "asked"]
"""The state of a tool call: see `MadeCall`."""


@dataclass(frozen=True, slots=True)
class MadeCall:
    """One call of a tool.

    - `state`: "done" with a result, "failed" if the model read an error or the run failed with the
      call, "waiting" if a person is asked about it, "begun" without a result, or "asked" if the
      tool was not called.
    - `reused`: the id of the equal call whose result this is.
    - `place`: the place of the call, as `1:Reply.calls(search)[2]`. A graph that ran for the call
      is at this path.
    - `is_native`: whether the provider ran the tool.
    - `person`: "approved" if a person approved the call, "answered" if a person gave the result.
    """

    id: str
    name: str
    arguments: dict[str, Any]
    state: CallState
    result: Any = None
    error: str | None = None
    seconds: float = 0.0
    reused: str = ""
    place: str = ""
    is_native: bool = False
    person: Literal["", "approved", "answered"] = ""

    @property
    def text(self) -> str:
        """The tool with its arguments, as `search(query="kettle")`."""
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
    """One answer of a model in a conversation with tools: its calls, or a text. `told` has the
    messages to the model after it, besides the results. `by` is the part of the graph that
    asked."""

    number: int
    at: float = 0.0
    text: str = ""
    calls: tuple[MadeCall, ...] = ()
    told: tuple[str, ...] = ()
    usage: Usage = NOTHING_USED
    by: str = ""


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of the value of a field. Print it, or read:

    - `place`: the field, as `2:Outfit.mood`, after the `path` of its graph if that is inside the
      run; `step`, `node` and `field` are its parts. An empty field is the whole node.
    - `source`: "caller", "lm", "dep", "map", "recall", "thread", "gate", "body" (returned by the
      previous node), "default" or "fork" (changed in `graph.fork`).
    - `by`: the function, graph, model, question or body that it came from.
    - `value`: the value as JSON, if `kept` is "value"; otherwise `kept` says why it is missing.
    - `state`: "there", or "failed" if its source has failed. In the report of a run also "begun",
      "waiting" for a person, or "absent" if nothing is recorded about it.
    - `at`: when the value was known; `seconds`: how long it took; `usage`, `cost` and `models`: the
      usage of the LM calls behind it, including those of a graph inside.
    - `rounds`: the conversation with tools, if the LM could call tools before it filled the node;
      `is_calls`: whether the value is the list of its calls.
    - `attempts`: the LM's answers with their verdicts; `prompts`: hashes of the questions.
    - `inputs`: the provenance of the parameters of a function, and of the field that a map goes
      over.
    - `items`: the provenance of each item of a map; None for an item that is not finished.
    - `origin`: the provenance of a recalled value. For a function that is called once for the whole
      run, of the field that it was called for.
    - `inside`: the path of the graph that computed it, for places such as
      `2:Report.x/1:Summary.text`.
    - `error`: why the source failed; `note`: any other remark.

    `dataclasses.asdict` makes JSON of it.
    """

    run_id: str
    place: str
    path: str
    step: int
    node: str
    field: str
    source: ValueSource
    by: str = ""
    at: float = 0.0
    kept: Kept = "value"
    value: Any = None
    state: Literal["there", "failed", "begun", "waiting", "absent"] = "there"
    seconds: float | None = None
    usage: Usage = NOTHING_USED
    models: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()
    attempts: tuple[JudgedAnswer, ...] = ()
    inputs: dict[str, Provenance] = dataclasses.field(default_factory=dict[str, "Provenance"])
    items: tuple[Provenance | None, ...] = ()
    origin: Provenance | None = None
    inside: str = ""
    error: str = ""
    note: str = ""
    rounds: tuple[ToolRound, ...] = ()
    is_calls: bool = False

    @property
    def calls(self) -> list[MadeCall]:
        """The tool calls in all rounds."""
        return [call for made in self.rounds for call in made.calls]

    @property
    def cost(self) -> float | None:
        """The cost of the LM calls behind the value; None if it is not known."""
        return self.usage.cost

    def __str__(self) -> str:
        return "\n".join([_title(self.place, self), *_lines(self, "  ", _DEEPEST)])


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """A tool with its arguments, as `search(query="kettle")`."""
    given = ", ".join(f"{key}={_json(value)}" for key, value in arguments.items())
    return f"{name}({given})"


def when(at: float) -> str:
    """A time in the local zone of the reader, with its offset from UTC."""
    return datetime.fromtimestamp(at).astimezone().isoformat(" ", "seconds")


def long(seconds: float) -> str:
    """How long something took, in the unit that fits."""
    if seconds < 0.0005:
        return "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


_DEEPEST: Final = 6
"""How far down inputs and origins are printed."""
_ITEMS: Final = 3
"""How many items of a map are printed."""
_WIDTH: Final = 72


def _lines(of: Provenance, indent: str, deeper: int) -> Iterator[str]:
    yield indent + ", ".join([_describe_making(of), *_facts(of)])
    if of.error:
        yield f"{indent}  failed: {of.error}"
    if of.note:
        yield f"{indent}  {of.note}"
    if len(of.attempts) > 1 or any(attempt.errors for attempt in of.attempts):
        for each in of.attempts:
            errors = f": {_cut_text('; '.join(each.errors))}" if each.errors else ""
            yield f"{indent}  answer {each.number} was {each.verdict}{errors}"
    for each in of.rounds if of.is_calls else ():
        for call in each.calls:
            by = f", {call.person} by a person" if call.person else ""
            yield f"{indent}  round {each.number}{by}: {_cut_text(str(call))}"
        for text in each.told:
            yield f"{indent}  round {each.number} was answered: {_cut_text(text)}"
    if of.inside:
        yield f"{indent}  look inside with {of.inside}/…"
    if deeper == 0:
        return
    is_found = of.source in KINDS and kind_named(of.source).stored == "origin"
    if of.origin is not None and is_found:
        yield from _lines(of.origin, f"{indent}  ", deeper - 1)
    for name, each in of.inputs.items():
        yield _title(f"{indent}  {name}", each)
        yield from _lines(each, f"{indent}    ", deeper - 1)
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
            told = Told(of.by, len(of.items) or len(of.calls), is_inside=bool(of.inside))
            return kind_named(of.source).sentence(told)


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
    """A name with the value, if there is one."""
    match of.kept:
        case "value":
            return f"{name} = {_cut_text(_json(of.value))}"
        case "live":
            return f"{name} = (a live value, which no journal holds)"
        case "withheld":
            return f"{name} = (withheld)"
        case "turns" | "missing":
            return name


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cut_text(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _WIDTH else f"{flat[: _WIDTH - 1]}…"
