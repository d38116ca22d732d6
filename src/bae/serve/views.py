"""The models of responses: rows of lists, and views of runs, steps, gates and work. A long value is
cut, and its full length is given."""

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
"""The maximum length of a value that is shown alone, unless the complete value is requested."""
SHORT: Final = 1_000
"""The maximum length of a value in a list."""
PAGE_SIZE: Final = 4 << 20
"""The maximum length of a page. A longer page has fewer items than requested."""
_WAITING: Final = 5
"""How many questions a row has."""
_LONGEST_ERROR: Final = 120
_LABELS: Final = 20
"""How many entries of the metadata a row has."""


class WaitingGate(BaseModel):
    """A question of a waiting run in a list. `answered` says that the run has an answer that it has
    not used yet."""

    gate: str
    place: str
    question: str
    deadline: float | None = None
    answered: bool = False


class RunRow(BaseModel):
    """A run in a list. Long texts in its `error` and `metadata` are cut: `/runs/R` has all of them.
    A `cost` of null is unknown. `change` is the number of its last change: give the greatest to
    the feed of runs to follow the list. `waiting` has the first five questions of
    `waiting_count`: `/runs/R/gates` has all of them. `preview` has the first words of the start,
    or the changed fields of a fork; the feed of runs leaves it out."""

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
    """The usage of LLM calls. A `cost` of null is unknown. Input tokens include cached tokens."""

    calls: int
    attempts: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float | None
    seconds: float
    models: list[str]


class LimitView(BaseModel):
    """A limit of a budget, and the amount spent. A spent cost of null is unknown."""

    name: Literal["calls", "tokens", "cost", "seconds"]
    spent: float | None
    limit: float


class BudgetView(BaseModel):
    """A budget of the LLM of this server: its `scope`, as "budget", and its limits. All runs of the
    server share it."""

    scope: str
    limits: list[LimitView]


class Value(BaseModel):
    """A value as JSON. For a long value, `text` has the beginning of its JSON and `size` the number
    of its characters. `kept` says why there is no value."""

    kept: str = "value"
    value: Any = None
    text: str | None = None
    size: int | None = None


class FieldView(Value):
    """A field of a node, with the source of its value; `/why` explains it in full."""

    name: str
    place: str
    source: str
    by: str = ""
    state: str
    seconds: float | None = None
    error: str = ""
    note: str = ""


class StepView(BaseModel):
    """A node of a run, and the origin of its fields."""

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
    """Nodes in order, and how many there are."""

    steps: list[StepView]
    total: int
    paths: list[str] = Field(default_factory=list[str])
    """The graphs that ran inside the run."""


class GateView(BaseModel):
    """A question to a person, with the context needed to decide: the JSON schema of the answer, and
    the values of the node so far, or the arguments of the tool call. The kind "approval" asks
    whether a call may be made, and `arguments_schema` describes its arguments. The kinds
    "blocker" and "plan" belong to a `team` and to no run. An answered question has an `answer`."""

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
    """Questions of a run, in order, and how many there are."""

    gates: list[GateView]
    total: int


class InboxPage(BaseModel):
    """Questions to people, the oldest first. `more` has the number of further questions by run:
    `/runs/R/gates` has all of them."""

    gates: list[GateView]
    next: float | None = None
    more: dict[str, int] = Field(default_factory=dict[str, int])


class LineView(BaseModel):
    """A stored record of a run: see docs/journal-format.md."""

    n: int
    kind: str
    at: float
    path: str
    step: int
    data: dict[str, Any]


class LinePage(BaseModel):
    """Records in order. Give the number of the last record as `after` for the next page."""

    records: list[LineView]
    last: int
    status: Listed


class CallView(BaseModel):
    """A question to an LLM, with its answers, their verdicts and the rounds of tool calls. `asked`
    is the text at the start of a conversation with tools; each answer has its own text."""

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
    """Questions to LLMs in order, without their texts."""

    calls: list[CallView]
    total: int


class BarView(BaseModel):
    """A piece of work in a timeline. `depth` counts the work around it. `critical` has the times
    when the run waited for this work alone, and `slack` the seconds that it could have taken
    longer; both are missing for work that the critical path does not include."""

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
    """The work of a run over time. `lives` are the times when a process worked on the run.
    `critical_seconds` is the duration of the critical path, without waiting for people, and
    `longest` has the places that took the longest part of it. `index` is the number of the first
    bar of the requested place."""

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
    """An edge from a node to a possible next node. `chosen_by` is "lm", "code" for the body, or
    "certain". `line` has the points of the arrow, in pixels."""

    source: str
    target: str
    chosen_by: str
    line: list[tuple[int, int]]


class BoxView(BaseModel):
    """The box of a node in a picture of the graph: its upper left corner and size, in pixels."""

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
    """A problem that the proof of a graph found."""

    severity: str
    code: str
    place: str
    message: str
    fix: str


class ClassFieldView(BaseModel):
    """A field of a node class. `source` is "given", "code", "lm" or the kind of its source.
    `origin` names the origin of the value, if the source alone does not."""

    name: str
    type: str
    source: str
    origin: str
    description: str
    required: bool


class ClassView(BaseModel):
    """A node class of a graph. `ending` says whether runs "never", "may" or "always" end there,
    `chosen_by` who chooses the next node ("lm", "code" or "certain"), and `lm` is the LLM pinned
    to it."""

    node: str
    about: str
    ending: str
    chosen_by: str
    lm: str
    fields: list[ClassFieldView]


class GraphView(GraphRow):
    """A graph: its nodes and edges with a layout, its tools and problems, and the schemas of its
    start and ends."""

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
    """A prompt that a graph can send, with sample values. The LLM fills the node `target`, or
    chooses among `options`. `by_body` marks a prompt of a body that is written in code. Without
    an `answer_schema` the answer is plain text."""

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
    """The state of the server, and the version of bae."""

    status: str = "ok"
    bae: str


def row_of(info: RunInfo, preview: str = "") -> RunRow:
    """The row of a run, with the first words of its start."""
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
    """The metadata of a run in a list."""
    first = [*metadata.items()][:_LABELS]
    return {_cut_short(name): _cut_short(value) for name, value in first}


def _cut_short(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return value if len(text) <= _LONGEST_ERROR else f"{text[:_LONGEST_ERROR]}…"


def waiting_gates(gates: Sequence[ParkedGate]) -> list[WaitingGate]:
    """The questions of a run in a list."""
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
    """The first items that fit on a page, at least one."""
    page: list[T] = []
    room = PAGE_SIZE
    for item in items:
        room -= size(item)
        if page and room < 0:
            break
        page.append(item)
    return page


def size_of(values: Iterable[Value | None]) -> int:
    """The approximate number of characters of values."""
    return sum(
        len(value.text or "") + len(json.dumps(value.value, ensure_ascii=False))
        for value in values
        if value is not None
    )


def usage_of(usage: Usage) -> UsageView:
    """The usage of LLM calls."""
    return UsageView(**asdict(usage))


def budget_view(budget: Budget) -> BudgetView:
    """The view of a budget: its limits, and the amounts spent."""
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
    """The view of a value, cut if its JSON has more than `longest` characters; 0 means never."""
    if kept != "value":
        return Value(kept=kept)
    if longest:
        text = json.dumps(value, ensure_ascii=False)
        if len(text) > longest:
            return Value(kept="cut", text=text[:longest], size=len(text))
    return Value(value=value)


def step_of(path: str, node: NodeReport, longest: int) -> StepView:
    """A node of a run."""
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
    """A field of a node."""
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
    """A timeline with its critical path."""
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
    """A dataclass as JSON, without empty fields, and with long texts and values cut."""
    if isinstance(value, Usage):
        return asdict(value)  # an unknown cost is null
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return {n: data_of(part, longest) for n, part in parts.items() if not _is_empty(part)}
    if isinstance(value, tuple):
        return [data_of(each, longest) for each in cast("tuple[Any, ...]", value)]
    entries = cast("dict[str, Any]", value if isinstance(value, dict) else {})
    if any(map(is_dataclass, entries.values())):
        return {name: data_of(each, longest) for name, each in entries.items()}
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
    """JSON that every client can read."""
    plain = to_jsonable_python(model, inf_nan_mode="strings")
    return json.dumps(readable_json(plain), ensure_ascii=False, separators=(",", ":")).encode()
