"""The spans of one run, opened and ended as its records come in. What was asked, answered or raised
is in them only where `content` is wanted, and never with secrets."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from threading import RLock
from types import NoneType
from typing import TYPE_CHECKING, Final, cast

from opentelemetry import context as contexts
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    set_span_in_context,
)

from bae.exceptions import BaeError, describe
from bae.history import History
from bae.markers import Map
from bae.plan import plan_of
from bae.run_tree import Change
from bae.secrets import may_show, secret_behind
from bae.work import NOTHING_USED, BodyCall, GraphRun, Item, Question, Source, Step, Work

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

    from bae.place import Place
    from bae.records import Record
    from bae.usage import Attempt, Usage

Attributes = dict[str, "str | bool | int | float | list[str]"]

UNNEEDED_KEPT: Final = 1000
"""How many sources are kept open that their node did without. Another node may wait for the same
value, and then they end later."""
STEPS_KEPT: Final = 200


class RunSpans:
    """Give it the records of a run in their order. A run that is interrupted and resumed has a span
    for each time a process worked on it, which links to the one before.

    Spans are under `around`. Without it the run is in progress: they are under the span that is
    current, and are made current where the code of the run is called, so that spans of other
    libraries are under them.
    """

    def __init__(
        self,
        tracer: Tracer,
        *,
        content: bool = False,
        run_id: str = "",
        past: Iterable[Record] = (),
        around: Context | None = None,
    ) -> None:
        self._tracer = tracer
        self._content = content
        self._run_id = run_id
        self._around = around
        self._current = around is None
        self._open: dict[Work, _OpenSpan] = {}
        self._unneeded: dict[Source, None] = {}
        self._before: SpanContext | None = None
        # Sync dependencies that ask an LM write records in their thread.
        self._lock = RLock()
        self._history = History(past, keep=STEPS_KEPT)
        self._history.stop()
        self._history.on_change = self._change

    def write(self, record: Record) -> None:
        """Take in the next record."""
        with self._lock:
            self._history.add(record)

    def close(self) -> None:
        """No more records come: end what is open."""
        with self._lock:
            self._current = False
            self._history.stop()

    def _change(self, change: Change, work: Work) -> None:
        match change, work:
            case "started", BodyCall():
                self._make_current(self._nearest(work))
            case "started", GraphRun() | Step() | Source():
                self._start(work, work.since or 0.0)
            case "started", Question() if work.asker.kind in _HAVE_SPANS:
                self._start(work, work.since or 0.0)
            case "answered", Question():
                self._add_chat(work)
            case "restarted", Question():
                restart = work.restarts[-1]
                about = {**_about_error(restart.error), "bae.wait": restart.wait}
                self._add_event(work, "bae.restarted", restart.at, about)
            case "waiting", Source():
                gate: Attributes = {"bae.gate": str(work.place)}
                self._add_event(work, "bae.gate_opened", work.waiting_since, gate)
            case "ended", _:
                self._ended(work)
            case _:
                pass

    # Spans that start.

    def _start(self, work: GraphRun | Step | Source | Question, at: float) -> _OpenSpan:
        around = self._nearest(work.inside)
        links: list[Link] = []
        name, about = _describe(work)
        context = self._around if around is None else around.context
        if isinstance(work, GraphRun):
            if not work.path:
                about |= self._about_run(work)
                if self._before is not None:
                    links.append(Link(self._before))
            run_id = self._run_id or self._history.run_id
            if run_id:
                about["bae.run.id"] = run_id
        if context is None:
            context = contexts.get_current()
        span = self._tracer.start_span(name, context, SpanKind.INTERNAL, about, links, _ns(at))
        opened = self._open[work] = _OpenSpan(span, context, at)
        if isinstance(work, GraphRun):
            self._before = self._before if work.path else span.get_span_context()
        elif not isinstance(work, Step):
            self._make_current(opened)
        return opened

    def _about_run(self, run: GraphRun) -> Attributes:
        about: Attributes = {}
        if self._history.forks:
            about["bae.run.parent"] = self._history.forks[-1].parent
        resumed = self._history.changes[-1] if self._history.changes else None
        if resumed is not None and resumed.at == run.since:
            about["bae.run.resumed"] = True
            if resumed.changes:
                about["bae.run.changes"] = list(resumed.changes)
        return about

    def _add_chat(self, question: Question) -> None:
        """A model has answered: the call is a span from when it was sent."""
        judged, around = question.answers[-1], self._nearest(question)
        if around is None:
            return
        attempt, seconds = judged.attempt, judged.attempt.usage.seconds
        began = judged.at - seconds
        if question.asker.kind in _HAVE_SPANS:  # one call after another, and nothing else
            others = [*question.answers[-2:-1], *question.restarts[-1:]]
            sent = max([question.started, *(each.at for each in others)])
            began = max(sent, began) if seconds else sent
        began = max(around.since, began)
        about = _about_attempt(attempt, str(question.asker), content=self._may_show(question))
        if question.text_since:
            waited = max(0.0, question.text_since - began)
            about["gen_ai.response.time_to_first_chunk"] = waited
        model = attempt.usage.models[-1] if attempt.usage.models else ""
        span = self._tracer.start_span(
            f"chat {model}".strip(), around.context, SpanKind.CLIENT, about, (), _ns(began)
        )
        span.end(_ns(max(began, judged.at)))

    def _add_event(self, work: Work, name: str, at: float, about: Attributes) -> None:
        around = self._nearest(work)
        if around is not None:
            around.span.add_event(name, about, _ns(at))

    # Spans that end.

    def _ended(self, work: Work) -> None:
        match work:
            case BodyCall():
                self._leave(work.step)
            case Item():
                self._end_item(work)
            case Source(kind="recall"):
                self._add_event(work.step, "bae.recalled", work.started, _about_recall(work))
            case Source(state="cancelled") if work in self._open:
                # Another node may wait for it, and then it ends once more.
                self._unneeded[work] = None
                if len(self._unneeded) > UNNEEDED_KEPT:
                    self._end(next(iter(self._unneeded)))
            case Source() if work not in self._open and work.state in ("done", "failed"):
                # Nothing recorded that it started.
                self._start(work, (work.ended or 0.0) - work.took)
                self._end(work)
            case Question():
                self._count(work)
                self._end(work)
                if work.asker.kind in _HAVE_SPANS:
                    self._leave(work)
            case GraphRun():
                self._end_graph(work)
            case _:
                self._end(work)

    def _end_graph(self, graph: GraphRun) -> None:
        if not graph.path:
            for source in [*self._unneeded]:
                self._end(source)
        opened = self._open.get(graph)
        if opened is None:
            return
        if graph.outcome:
            opened.span.set_attribute("bae.steps", graph.end_step)
        if graph.gates:
            gates = [f"{gate.node_type.__name__}.{gate.field_name}" for gate in graph.gates]
            opened.span.set_attribute("bae.gates", gates)
        self._end(graph, graph.outcome or graph.state)
        if graph.outcome and self._current:
            contexts.attach(opened.around)

    def _end_item(self, item: Item) -> None:
        """When an item began no record says: its turn came when another was done."""
        source, opened = item.source, self._open.get(item.source)
        if opened is None or item.state != "done" or item.ended is None:
            return
        if item.graph is None:  # else the graph has a span
            limit = cast(Map, plan_of(source.node_type).fields[source.place.field].marker).limit
            turn = item.index - limit
            began = opened.ends[turn] if 0 <= turn < len(opened.ends) else opened.since
            about: Attributes = {"bae.item": item.index, "bae.by": source.by}
            span = self._tracer.start_span(
                f"item {source.by}", opened.context, SpanKind.INTERNAL, about, (), _ns(began)
            )
            span.end(_ns(max(began, item.ended)))
        opened.ends.append(item.ended)

    def _end(self, work: Work, outcome: str = "") -> None:
        opened = self._open.pop(work, None)
        if isinstance(work, Source):
            self._unneeded.pop(work, None)
        if opened is None:
            return
        ended = _ns(max(work.ended or 0.0, opened.since))  # clocks are set back now and then
        outcome = outcome or ("" if work.state == "done" else work.state)
        if outcome:
            opened.span.set_attribute("bae.outcome", outcome)
        if isinstance(work, Question) and work.chosen is not None:
            opened.span.set_attribute("bae.chosen", _name_of(work.chosen))
        if opened.usage != NOTHING_USED:
            opened.span.set_attributes(_about_usage(opened.usage))
        if work.error is not None:
            _fail(opened.span, ended, work.error, self._may_quote(work))
        opened.span.end(ended)

    def _count(self, question: Question) -> None:
        """Add up what a question used, for who asks and for all graphs around."""
        by, usage = question.asked_by, question.usage
        if question.asker.kind == "fill" and isinstance(by, Step) and by.filled_by is not None:
            usage = by.filled_by.usage
        counting = [self._open.get(question if question.asker.kind in _HAVE_SPANS else by)]
        outer = by.inside
        while outer is not None:
            if isinstance(outer, GraphRun):
                counting.append(self._open.get(outer))
            outer = outer.inside
        for each in counting:
            if each is not None:
                each.usage += usage

    # What is around.

    def _nearest(self, work: Work | None) -> _OpenSpan | None:
        """The span of work, or the one that is open around it."""
        while work is not None:
            found = self._open.get(work)
            if found is not None:
                return found
            work = work.inside
        return None

    def _make_current(self, opened: _OpenSpan | None) -> None:
        # A record is written by the task that does what it is about, so it is enough to attach the
        # context here. What was current before a graph began is attached again when it ends.
        if self._current and opened is not None:
            contexts.attach(opened.context)

    def _leave(self, work: Work) -> None:
        """What the graph of some work calls next is not inside that work."""
        outer: Work | None = work
        while outer is not None and not isinstance(outer, GraphRun):
            outer = outer.inside
        opened = None if outer is None else self._open.get(outer)
        if self._current and opened is not None:
            contexts.attach(opened.around)

    # What may be shown.

    def _may_quote(self, work: Work) -> bool:
        """Whether content is wanted, and no class that the run has met can hold a secret. Bodies,
        dependencies and exceptions can quote whatever they have met; of a run whose start is not
        known, nobody knows what that was."""
        if not self._content or self._history.run.start is None:
            return False
        if isinstance(work, Source):
            # Of a source that began before the records do, the class may not be known.
            is_known = work.step.node_type is not None
            if not is_known or secret_behind(work.node_type, work.place.field):
                return False
        return may_show(self._history.met, following=True)

    def _may_show(self, question: Question) -> bool:
        """Whether what was asked and answered may be shown."""
        by, asker = question.asked_by, question.asker
        before = by.before if isinstance(by, Step) else None
        if asker.kind == "choice":
            return self._content and may_show((asker.node, *question.offered))
        if asker.kind == "fill" and before is not None and before.node_type is not None:
            return self._content and may_show((asker.node, before.node_type))
        return self._may_quote(by)


class _OpenSpan:
    """A span that has started: `around` is the context it is in, `context` that of its parts."""

    __slots__ = ("around", "context", "ends", "since", "span", "usage")

    def __init__(self, span: Span, around: Context, since: float) -> None:
        self.span = span
        self.around = around
        self.context = set_span_in_context(span, around)
        self.since = since
        self.usage = NOTHING_USED
        self.ends: array[float] = array("d")
        """When the items of a map ended."""


_HAVE_SPANS: Final = ("fill", "choice")
"""The kinds of questions that have spans; others are asked within that of a step or a source."""


# What spans are called and have as attributes: by the names of the conventions where there is one.


def _describe(work: GraphRun | Step | Source | Question) -> tuple[str, Attributes]:
    match work:
        case GraphRun():
            name = work.name or ("" if work.source is None else work.source.by)
            about: Attributes = {"gen_ai.operation.name": "invoke_agent"}
            if work.path:
                about["bae.path"] = work.path
            if name:
                about["gen_ai.agent.name"] = name
            return f"invoke_agent {name}".strip(), about
        case Step():
            return f"step {work.name}", _about_place(work.place)
        case Source():
            about = _about_place(work.place)
            about |= {"bae.field": work.place.field, "bae.source": work.kind, "bae.by": work.by}
            if work.place.parameter:
                about["bae.parameter"] = work.place.parameter
            if work.kind == "gate":
                return f"gate {work.place.node}.{work.place.field}", about
            return f"{work.kind} {work.by}", about
        case Question():
            by = work.asked_by
            about = _about_place(by.place)
            name = work.asker.node.__name__
            if work.asker.kind == "fill":
                return f"fill {name}", about
            about["bae.offered"] = [_name_of(each) for each in work.offered]
            return f"choose after {name}", about


def _about_place(place: Place) -> Attributes:
    about: Attributes = {"bae.node": place.node, "bae.step": place.step}
    return {**about, "bae.path": place.path} if place.path else about


def _about_recall(source: Source) -> Attributes:
    origin = source.origin
    if origin is None:
        return {"bae.field": source.place.field}
    at = f"{origin.path}/{origin.step}" if origin.path else f"{origin.step}"
    return {
        "bae.field": source.place.field,
        "bae.origin": f"{at}.{origin.field}" if origin.field else at,
    }


def _about_usage(usage: Usage) -> Attributes:
    """What several calls used together. Not by the names of the conventions: calls have those, and
    adding them up would count them twice."""
    about: Attributes = {"bae.usage.calls": usage.calls, "bae.usage.attempts": usage.attempts}
    if usage.tokens:
        about["bae.usage.input_tokens"] = usage.input_tokens
        about["bae.usage.output_tokens"] = usage.output_tokens
    if usage.cached_tokens:
        about["bae.usage.cached_tokens"] = usage.cached_tokens
    if usage.cost is not None:
        about["bae.usage.cost"] = usage.cost
    if usage.models:
        about["bae.usage.models"] = list(usage.models)
    return about


def _about_attempt(attempt: Attempt, by: str, *, content: bool) -> Attributes:
    """One answer of a model, and what was wrong with it."""
    usage, reason = attempt.usage, _FINISHED.get(attempt.verdict, "stop")
    about: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider_of(usage.models[-1] if usage.models else ""),
        "gen_ai.output.type": "json",
        "gen_ai.response.finish_reasons": [reason],
        "bae.by": by,
        "bae.attempt": attempt.number,
        "bae.verdict": attempt.verdict,
    }
    if usage.models:
        about["gen_ai.response.model"] = usage.models[-1]
    if usage.tokens:
        about["gen_ai.usage.input_tokens"] = usage.input_tokens
        about["gen_ai.usage.output_tokens"] = usage.output_tokens
    if usage.cached_tokens:
        about["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    if usage.cost is not None:
        about["bae.usage.cost"] = usage.cost
    if content:
        if attempt.asked:
            about["gen_ai.input.messages"] = _messages("user", attempt.asked)
        if attempt.answer:
            about["gen_ai.output.messages"] = _messages("assistant", attempt.answer, reason)
        if attempt.errors:
            about["bae.errors"] = list(attempt.errors)
    return about


def _about_error(error: BaseException) -> Attributes:
    about: Attributes = {"error.type": _error_type(error)}
    code = getattr(error, "code", None)
    if isinstance(code, str) and code:
        about["bae.error.code"] = code
    return about


def _fail(span: Span, at: int, error: BaseException, content: bool) -> None:
    span.set_attributes(_about_error(error))
    if content and not hasattr(error, "type_name"):
        span.record_exception(error, timestamp=at)
    else:
        about: Attributes = {"exception.type": _error_type(error)}
        if content:
            about["exception.message"] = str(error)
        span.add_event("exception", about, at)
    text = str(getattr(error, "code", None) or _error_type(error))
    if content:
        text = error.message if isinstance(error, BaeError) else describe(error)
    span.set_status(Status(StatusCode.ERROR, text))


def _error_type(error: BaseException) -> str:
    """The name of an error's class, that of the original one where it was read from a journal."""
    recorded = getattr(error, "type_name", None)
    if isinstance(recorded, str):
        return recorded
    cls = type(error)
    name = cls.__qualname__.replace("<locals>.", "")
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{name}"


def provider_of(model: str) -> str:
    """Who offers a model, in the words of the conventions, as far as its name tells."""
    before, slash, rest = model.lower().partition("/")
    if slash and before in _PROVIDERS.values():
        return before
    if slash and before in _PREFIXES:
        return _PREFIXES[before]
    name = rest if slash else before
    for start, provider in _PROVIDERS.items():
        if name.startswith(start):
            return provider
    return "unknown"


def _messages(role: str, text: str, reason: str = "") -> str:
    message: dict[str, object] = {"role": role, "parts": [{"type": "text", "content": text}]}
    if reason:
        message["finish_reason"] = reason
    return json.dumps([message], ensure_ascii=False)


def _name_of(cls: type) -> str:
    return "None" if cls is NoneType else cls.__name__


def _ns(at: float) -> int:
    return int(at * 1_000_000_000)


_FINISHED: Final = {"cut-off": "length", "refused": "content_filter"}
_PROVIDERS: Final = {
    "claude": "anthropic",
    "gpt-": "openai",
    "chatgpt": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "codestral": "mistral_ai",
    "deepseek": "deepseek",
    "command": "cohere",
    "grok": "x_ai",
    "sonar": "perplexity",
}
_PREFIXES: Final = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex_ai": "gcp.vertex_ai",
    "xai": "x_ai",
    "groq": "groq",
}
"""How model names that name their provider spell it, where the conventions spell it otherwise."""
