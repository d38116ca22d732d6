"""The models of responses: rows of lists, and views of runs, steps, gates and work. A long value is
cut, and the view has the full length."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

from pydantic import BaseModel, Field
from pydantic_core import to_jsonable_python

from bae.journal.critical_paths import CriticalPath
from bae.journal.provenance import Provenance
from bae.journal.report import NodeReport, Timeline, TimelineEntry
from bae.journal.stored_runs import Listed, ParkedGate, RunInfo
from bae.unicode import readable_json
from bae.usage import Usage
from bae.work import NOTHING_USED, Span

if TYPE_CHECKING:
    from bae.lm.policies.budget import Budget

T = TypeVar("T")

CUT: Final = 65_536
"""The maximum length of a value that is shown alone, unless the client asks for the complete
value."""
SHORT: Final = 1_000
"""The maximum length of a value in a list."""
PAGE_SIZE: Final = 4 << 20
"""The maximum size of a page in characters. If the items are larger, the page has fewer items than
the client asked for."""
_WAITING: Final = 5
"""The maximum number of questions in a `RunRow`."""
_LONGEST_ERROR: Final = 120
_LABELS: Final = 20
"""The maximum number of metadata entries in a `RunRow`."""


class WaitingGate(BaseModel):
    """A question that a run waits for, in a list. If `answered` is true, the run has an answer that
    it has not used yet."""

    gate: str
    place: str
    question: str
    deadline: float | None = None
    answered: bool = False


class RunRow(BaseModel):
    """A run in a list. Texts in `error` and `metadata` are cut. `/runs/R` has the complete texts.

    - `preview`: the first words of the start, or the changed fields of a fork. Rows of the feed
      `runs` have no preview.
    - `waiting`: the first five questions to people. `/runs/R/gates` has all questions.
    - `waiting_count`: the number of all questions.
    - `node`, `steps`, `calls`, `tokens`, `cost`: the last node, the number of nodes, and the usage
      of LLM calls when the run last stopped. A `cost` of null is unknown.
    - `change`: the number of the run's last change. To follow the list, give the greatest `change`
      as `after` to the feed `runs`.
    """

    run_id: str
    graph: str
    status: Listed
    preview: str = ""
    started: float
    updated: float
    seconds: float
    error: str = ""
    parent: str | None = None
    thread: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    waiting: list[WaitingGate] = Field(default_factory=list[WaitingGate])
    waiting_count: int = 0
    node: str = ""
    steps: int | None = None
    calls: int | None = None
    tokens: int | None = None
    cost: float | None = None
    change: int


class UsageView(BaseModel):
    """The usage of LLM calls. A `cost` of null is unknown. `input_tokens` includes
    `cached_tokens`."""

    calls: int
    attempts: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float | None
    seconds: float
    models: list[str]


class LimitView(BaseModel):
    """A limit of a budget. `spent` is the amount spent so far. A `spent` of null is an unknown
    cost."""

    name: Literal["calls", "tokens", "cost", "seconds"]
    spent: float | None
    limit: float


class BudgetView(BaseModel):
    """A budget of this server's LLM. All runs of the server share the budget. `scope` is the
    budget's name, such as "budget"."""

    scope: str
    limits: list[LimitView]


class Value(BaseModel):
    """A value as JSON.

    - `kept`: "value" if `value` has the value. "cut" if the value is long: then `text` has the
      beginning of its JSON, and `size` is the length of its JSON in characters.
    - Other words in `kept` say why there is no value. "live": no journal can store the value.
      "withheld": the value is a secret or was redacted. "turns": the value is in earlier runs of
      the thread. "missing": no value is recorded.
    """

    kept: str = "value"
    value: Any = None
    text: str | None = None
    size: int | None = None


class FieldView(Value):
    """A field of a node, with the source of its value. `/why` has the complete explanation.

    - `place`: the place of the field, such as `2:Outfit.mood`.
    - `source`: the kind of source, such as "lm", "dep" or "gate".
    - `by`: the function, graph, model, question or body that the value came from.
    - `state`: "there" if the field has its value. Otherwise "failed", "begun", "waiting" for a
      person, or "absent" if nothing is recorded about the field.
    - `seconds`: how long the source took; null if this is not known.
    - `error`: why the source failed.
    - `note`: any other remark.
    """

    name: str
    place: str
    source: str
    by: str = ""
    state: str
    seconds: float | None = None
    error: str = ""
    note: str = ""


class StepView(BaseModel):
    """A node of a run, with the origins of its fields.

    - `path`: the path of the graph; empty for the graph of the run itself.
    - `whole`: whether the node is complete.
    - `chosen_among`: the classes among which the LLM chose the node. "" is the end of the run.
    - `forked_from`: the run that was forked at this node.
    - `changed`: the fields that the fork changed.
    """

    path: str
    step: int
    node: str
    whole: bool
    chosen_among: list[str]
    fields: list[FieldView]
    usage: UsageView
    forked_from: str = ""
    changed: list[str]


class StepPage(BaseModel):
    """A page of nodes, in order. `total` is the number of nodes on all pages. `paths` has the paths
    of the graphs that ran inside the run."""

    steps: list[StepView]
    total: int
    paths: list[str] = Field(default_factory=list[str])


class GateView(BaseModel):
    """A question to a person, with the context for the answer.

    - `kind`: "gate" for a question. "approval" asks whether a tool may be called. "blocker" and
      "plan" are questions of a `team`, and belong to no run.
    - `since`: for a question of a run, the time when the run last changed. For a question of a
      team, the time when it was asked. In seconds since 1970.
    - `answered`, `answer`, `answered_by`: whether there is an answer, the answer, and the person
      who gave it.
    - `answer_schema`: the JSON schema of the answer.
    - `arguments_schema`: the JSON schema of the tool call's arguments.
    - `context`: the values of the node so far, or the arguments of the tool call.
    """

    run_id: str
    graph: str
    gate: str
    place: str
    question: str
    kind: str
    since: float
    deadline: float | None = None
    answered: bool = False
    answered_by: str | None = None
    answer: Value | None = None
    answer_schema: dict[str, Any] | None = None
    arguments_schema: dict[str, Any] | None = None
    context: dict[str, Value]
    tool: str | None = None
    thread: str | None = None
    team: str | None = None
    task: str | None = None


class GatePage(BaseModel):
    """A page of a run's questions, in order. `total` is the number of questions on all pages."""

    gates: list[GateView]
    total: int


class InboxPage(BaseModel):
    """A page of questions to people, the oldest first. Give `next` as `after` to get the next page.
    The inbox has only the first questions of each run. `more` has the number of further questions
    by run. `/runs/R/gates` has all questions of a run."""

    gates: list[GateView]
    next: float | None = None
    more: dict[str, int] = Field(default_factory=dict[str, int])


class LineView(BaseModel):
    """A stored record of a run. docs/journal-format.md describes the records."""

    n: int
    kind: str
    at: float
    path: str
    step: int
    data: dict[str, Any]


class LinePage(BaseModel):
    """A page of records, in order. `last` is the number of the run's last record. Give the number
    of the page's last record as `after` to get the next page."""

    records: list[LineView]
    last: int
    status: Listed


class CallView(BaseModel):
    """A question to an LLM.

    - `by`: the part of the graph that asked.
    - `place`: the place of the node whose step has the question.
    - `asked`: the text at the start of a conversation with tools. Without tools, each answer has
      the text of its question.
    - `answers`: the answers with their verdicts.
    - `rounds`: the rounds of tool calls.
    """

    number: int
    by: str
    place: str
    at: float
    seconds: float
    outcome: str
    error: str
    usage: UsageView
    asked: str = ""
    answers: list[dict[str, Any]] | None = None
    rounds: list[dict[str, Any]] | None = None


class CallPage(BaseModel):
    """A page of questions to LLMs, in order. A page does not have `asked`, `answers` and `rounds`.
    `total` is the number of questions on all pages."""

    calls: list[CallView]
    total: int


class BarView(BaseModel):
    """A piece of work in a timeline.

    - `depth`: the number of bars that contain this bar.
    - `spans`: the times when a process did the work.
    - `items`: the number of finished items of a map. Items that a graph computes are bars of their
      own.
    - `waits`: whether the work is a question to a person.
    - `critical`: the times when the run waited for this work and nothing else.
    - `slack`: how many seconds longer the work could have taken without delaying the run; null if
      this is not known.
    """

    kind: str
    place: str
    name: str
    depth: int
    spans: list[Span]
    outcome: str
    error: str = ""
    note: str = ""
    items: int = 0
    waits: bool = False
    critical: list[Span] = Field(default_factory=list[Span])
    slack: float | None = None


class TimelineView(BaseModel):
    """The work of a run over time.

    - `lives`: the times when a process worked on the run.
    - `seconds`: the total duration of `lives`.
    - `bars`: the bars on this page. `total` is the number of bars on all pages.
    - `critical_seconds`: the duration of the critical path, without waiting for people.
    - `longest`: the places of the three longest pieces of work on the critical path.
    - `is_exact`: whether the inputs of all work are known. Otherwise the critical path is an
      estimate.
    - `index`: the number of the first bar of the `place` in the query.
    """

    status: Listed
    start: float
    end: float
    lives: list[Span]
    bars: list[BarView]
    total: int
    seconds: float
    critical_seconds: float
    longest: list[str]
    is_exact: bool
    index: int | None = None


class GraphRow(BaseModel):
    """A graph that is served."""

    name: str
    start: str
    ends: list[str]
    about: str = ""


class GraphList(BaseModel):
    """The graphs that are served."""

    graphs: list[GraphRow]


class EdgeView(BaseModel):
    """An edge from a node to a possible next node.

    - `chosen_by`: who chooses the next node: "lm", "code" (the body), or "certain" if there is no
      choice.
    - `line`: the points of the arrow, in pixels.
    """

    source: str
    target: str
    chosen_by: str
    line: list[tuple[int, int]]


class BoxView(BaseModel):
    """The box of a node in a picture of a graph. `x` and `y` are the upper left corner. All numbers
    are in pixels."""

    node: str
    x: int
    y: int
    width: int
    height: int


class ToolView(BaseModel):
    """A tool that the LLM may call before it fills a node."""

    node: str
    name: str
    description: str
    arguments: dict[str, Any]


class ProblemView(BaseModel):
    """A problem that the validation of a graph found."""

    severity: str
    code: str
    place: str
    message: str
    fix: str


class ClassFieldView(BaseModel):
    """A field of a node class.

    - `source`: "given" by the caller, "code", "lm", or the kind of the field's source.
    - `origin`: where the value comes from, if `source` alone does not say so.
    """

    name: str
    type: str
    source: str
    origin: str
    description: str
    required: bool


class ClassView(BaseModel):
    """A node class of a graph.

    - `ending`: whether runs "never", "may" or "always" end there.
    - `chosen_by`: who chooses the next node: "lm", "code" (the body), or "certain" if there is no
      choice.
    - `lm`: the LLM that is pinned to the class.
    """

    node: str
    about: str
    ending: str
    chosen_by: str
    lm: str
    fields: list[ClassFieldView]


class GraphView(GraphRow):
    """A graph: its nodes and edges with a layout, its tools and problems, and the schemas of its
    start and its ends."""

    nodes: list[str]
    classes: list[ClassView]
    edges: list[EdgeView]
    boxes: list[BoxView]
    tools: list[ToolView]
    problems: list[ProblemView]
    start_schema: dict[str, Any]
    end_schemas: dict[str, dict[str, Any]]
    mermaid: str


class PromptMessage(BaseModel):
    """A message of a prompt."""

    role: str
    text: str


class PromptView(BaseModel):
    """A prompt that a graph can send, with sample values.

    - `source`: the node class before the prompt.
    - `target`: the node class that the LLM fills.
    - `options`: the node classes among which the LLM chooses.
    - `by_body`: whether the code of a body sends the prompt.
    - `answer_schema`: the JSON schema of the answer; null for an answer in plain text.
    """

    source: str | None
    target: str | None
    options: list[str]
    by_body: bool
    system: str
    messages: list[PromptMessage]
    tools: list[str]
    answer_schema: dict[str, Any] | None


class PromptPage(BaseModel):
    """All prompts that a graph can send."""

    prompts: list[PromptView]


class Health(BaseModel):
    """The state of the server. `bae` is the version of bae."""

    status: str = "ok"
    bae: str


def row_of(info: RunInfo, preview: str = "") -> RunRow:
    """Return the row of a run. `preview` has the first words of the run's start."""
    summary = info.summary
    return RunRow(
        run_id=info.run_id,
        graph=info.graph,
        status=info.standing(),
        preview=preview,
        started=info.started,
        updated=info.updated,
        seconds=info.lasted(),
        error=info.error[:_LONGEST_ERROR],
        parent=info.parent,
        thread=info.thread,
        metadata=labels_of(info.metadata),
        waiting=waiting_gates(info.waiting),
        waiting_count=len(info.waiting),
        node="" if summary is None else summary.node,
        steps=None if summary is None else summary.steps,
        calls=None if summary is None else summary.calls,
        tokens=None if summary is None else summary.tokens,
        cost=None if summary is None else summary.cost,
        change=info.change,
    )


def labels_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a run, cut for a list."""
    first = [*metadata.items()][:_LABELS]
    return {_cut_short(name): _cut_short(value) for name, value in first}


def _cut_short(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return value if len(text) <= _LONGEST_ERROR else f"{text[:_LONGEST_ERROR]}…"


def waiting_gates(gates: Sequence[ParkedGate]) -> list[WaitingGate]:
    """Return the first questions of a run, cut for a list."""
    return [
        WaitingGate(
            gate=gate.address,
            place=gate.place,
            question=gate.question[:SHORT],
            deadline=gate.deadline,
            answered=gate.answered,
        )
        for gate in gates[:_WAITING]
    ]


def take_page(items: Iterable[T], size: Callable[[T], int]) -> list[T]:
    """Return the first items that fit on a page, but at least one item."""
    page: list[T] = []
    room = PAGE_SIZE
    for item in items:
        room -= size(item)
        if page and room < 0:
            break
        page.append(item)
    return page


def size_of(values: Iterable[Value | None]) -> int:
    """Return the approximate size of values, in characters."""
    return sum(
        len(value.text or "") + len(json.dumps(value.value, ensure_ascii=False))
        for value in values
        if value is not None
    )


def usage_of(usage: Usage) -> UsageView:
    """Return the view of a usage."""
    return UsageView(**asdict(usage))


def budget_view(budget: Budget) -> BudgetView:
    """Return the view of a budget."""
    usage = budget.usage
    spent = {
        "calls": usage.calls,
        "tokens": usage.tokens,
        "cost": usage.cost,
        "seconds": budget.elapsed,
    }
    limits = {name: getattr(budget, name) for name in spent}
    return BudgetView(
        scope=budget.scope,
        limits=[
            LimitView.model_validate({"name": name, "spent": spent[name], "limit": limit})
            for name, limit in limits.items()
            if limit is not None
        ],
    )


def value_of(value: Any, longest: int, kept: str = "value") -> Value:
    """Return the view of a value. If the value's JSON has more than `longest` characters, the value
    is cut; 0 means never."""
    if kept != "value":
        return Value(kept=kept)
    if longest:
        text = json.dumps(value, ensure_ascii=False)
        if len(text) > longest:
            return Value(kept="cut", text=text[:longest], size=len(text))
    return Value(value=value)


def step_of(path: str, node: NodeReport, longest: int) -> StepView:
    """Return the view of a node."""
    return StepView(
        path=path,
        step=node.step,
        node=node.name,
        whole=node.whole,
        chosen_among=list(node.chosen_among),
        fields=[field_of(field, longest) for field in node.fields],
        usage=usage_of(node.usage),
        forked_from=node.forked_from,
        changed=list(node.changed),
    )


def field_of(field: Provenance, longest: int) -> FieldView:
    """Return the view of a field."""
    value = value_of(field.value, longest, field.kept)
    return FieldView(
        **value.model_dump(),
        name=field.field,
        place=field.place,
        source=field.source,
        by=field.by,
        state=field.state,
        seconds=field.seconds,
        error=field.error,
        note=field.note,
    )


def timeline_of(timeline: Timeline, path: CriticalPath, start: int, limit: int) -> TimelineView:
    """Return the view of a timeline with its critical path: `limit` bars from the number `start`
    on."""
    spans = {(part.kind, part.place): part.spans for part in path.parts}
    entries = [*_entries(timeline.work, 0)]
    bars = [
        BarView(
            kind=work.kind,
            place=work.place,
            name=work.name,
            depth=depth,
            spans=list(work.spans),
            outcome=work.outcome,
            error=work.error[:SHORT],
            note=work.note[:SHORT],
            items=len(work.marks),
            waits=work.waits,
            critical=list(spans.get((work.kind, work.place), ())),
            slack=path.slack.get((work.kind, work.place)),
        )
        for depth, work in entries[start : start + limit]
    ]
    return TimelineView(
        status=timeline.status,
        start=timeline.start,
        end=timeline.end,
        lives=list(timeline.lives),
        bars=bars,
        total=len(entries),
        seconds=timeline.seconds,
        critical_seconds=path.seconds,
        longest=[part.place for part in path.longest[:3]],
        is_exact=path.is_exact,
    )


def _entries(works: Sequence[TimelineEntry], depth: int) -> Iterator[tuple[int, TimelineEntry]]:
    for work in works:
        yield depth, work
        yield from _entries(work.inside, depth + 1)


def data_of(value: Any, longest: int) -> Any:
    """Return a dataclass as JSON. Empty fields are left out. Texts and values with more than
    `longest` characters are cut; 0 means never."""
    if isinstance(value, Usage):
        return asdict(value)  # with the cost, even if it is None: null means an unknown cost
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return {n: data_of(part, longest) for n, part in parts.items() if not _is_empty(part)}
    if isinstance(value, tuple):
        return [data_of(item, longest) for item in cast("tuple[Any, ...]", value)]
    entries = cast("dict[str, Any]", value if isinstance(value, dict) else {})
    if any(map(is_dataclass, entries.values())):
        return {name: data_of(entry, longest) for name, entry in entries.items()}
    plain: Any = to_jsonable_python(value)
    if not longest:
        return plain
    if isinstance(plain, str):
        more = len(plain) - longest
        return plain if more <= 0 else f"{plain[:longest]}… ({more:,} more characters)"
    short_value = value_of(plain, longest)
    return short_value.model_dump(exclude_none=True) if short_value.kept == "cut" else plain


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or value == () or value == {} or value == NOTHING_USED


def dump(model: BaseModel | Sequence[BaseModel] | dict[str, Any]) -> bytes:
    """Return a model as JSON that every client can read."""
    plain = to_jsonable_python(model, inf_nan_mode="strings")
    return json.dumps(readable_json(plain), ensure_ascii=False, separators=(",", ":")).encode()
