"""`RunSpans`, which makes the spans of a run from its records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import RLock
from traceback import format_exception
from typing import TYPE_CHECKING, Final

from opentelemetry import context as contexts
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    get_current_span,
    set_span_in_context,
)

from bae.exceptions import BaeError, describe, text_of
from bae.history import History
from bae.otel.attributes import (
    FINISHED,
    LONGEST,
    NOT_CALLED,
    Attributes,
    about_attempt,
    about_chat,
    about_error,
    about_recall,
    about_turns,
    about_usage,
    about_verdict,
    code_of,
    describe_work,
    error_type,
    known,
    name_of,
    round_message,
    text_of_json,
)
from bae.plan import plan_of
from bae.records import Record, RecordedError
from bae.run_tree import WorkChange
from bae.secrets import depends_on_secret, is_near_secret, may_show
from bae.tools import ToolError
from bae.unicode import readable
from bae.work import (
    NOTHING_USED,
    BodyCall,
    GraphRun,
    Item,
    LMQuestion,
    Source,
    Step,
    ToolRun,
    Work,
)

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

    from bae.records import AnswerJudged
    from bae.usage import Usage

STEPS_KEPT: Final = 200
_HAVE_SPANS: Final = ("fill", "choice")
"""The kinds of questions that have a span. The other questions are part of the span of a step or a
source."""


class RunSpans:
    """Makes the spans of a run from its records. A resumed run has one root span for each time that
    a process started or resumed it. Each root span links to the root span before it.

    With `content`, spans include prompts, LLM answers, tool calls and error messages, but no
    secrets. `common` are attributes of every span. `past` are the records from before the run was
    resumed, which get no spans.

    For a finished run, pass `around`: the run's spans are inside this context. Without `around`,
    the run is in progress, and its spans are inside the current span. While bae calls code of the
    run, the span of the call is the current span. Spans of other libraries are then inside the
    span of the call.

    `submitted` is the span in which another process submitted the run. If no other span is current,
    `submitted` is the parent of the run's span.
    """

    def __init__(
        self,
        tracer: Tracer,
        *,
        content: bool = False,
        run_id: str = "",
        past: Iterable[Record] = (),
        around: Context | None = None,
        common: Attributes | None = None,
        submitted: SpanContext | None = None,
    ) -> None:
        self._tracer = tracer
        self._submitted = submitted
        self._common = common or {}
        self._content = content
        self._run_id = run_id
        self._around = around
        self._current = around is None
        self._open: dict[Work, _OpenSpan] = {}
        self._rounds: dict[LMQuestion, tuple[Span, float]] = {}
        """The open span of the last answer in each conversation with tools, and the time when the
        answer arrived."""
        self._before: SpanContext | None = None
        """The newest root span of the run."""
        # A sync dependency runs in a worker thread. If the dependency asks an LM, records arrive
        # from this thread.
        self._lock = RLock()
        self._history = History(past, keep=STEPS_KEPT)
        self._history.stop()
        self._history.on_change = self._change

    def write(self, record: Record) -> None:
        """Add the next record: start and end spans accordingly."""
        with self._lock:
            self._history.add(record)

    def close(self) -> None:
        """End all open spans. Call this after the last record."""
        with self._lock:
            self._current = False
            self._history.stop()

    def _change(self, change: WorkChange, work: Work) -> None:
        match change, work:
            case "started", BodyCall():
                # The task that writes this record also runs the body, so a context attached here is
                # current in the body. `_leave` attaches the earlier context again.
                around = self._nearest(work)
                self._attach(None if around is None else around.context)
            case "started", GraphRun() | Step() | Source() | LMQuestion() | ToolRun():
                if not isinstance(work, LMQuestion) or work.asker.kind in _HAVE_SPANS:
                    self._start(work, work.since or 0.0)
            case "answered", LMQuestion() if work.is_last_of_round:
                self._end_round(work, work.answers[-1])
            case "answered", LMQuestion():
                self._add_chat(work)
            case "round", LMQuestion():
                self._start_round(work)
            case "restarted", LMQuestion():
                restart = work.restarts[-1]
                about = {**about_error(restart.error), "bae.wait": restart.wait}
                if restart.model:
                    about["bae.fallback"] = restart.model
                self._add_event(work, "bae.restarted", restart.at, about)
            case "waiting", Source():
                gate = {"bae.gate": str(work.place)}
                self._add_event(work, "bae.gate_opened", work.since or 0.0, gate)
            case "ended", _:
                self._ended(work)
            case _:
                pass

    # Spans that start.

    def _start(self, work: GraphRun | Step | Source | LMQuestion | ToolRun, at: float) -> None:
        if isinstance(work, ToolRun):
            self._end_round(work.question)
        nearest, links = self._nearest(work.inside), list[Link]()
        around = self._around if nearest is None else nearest.context
        around = contexts.get_current() if around is None else around
        name, about = describe_work(work)
        if isinstance(work, GraphRun):
            about["bae.run.id"] = self._run_id or self._history.run_id
            if not work.path:
                about |= self._about_run(work)
                links = [] if self._before is None else [Link(self._before)]
        if isinstance(work, ToolRun) and self._may_show(work.question):
            about["gen_ai.tool.call.arguments"] = text_of_json(work.arguments)
        is_current = get_current_span(around).get_span_context().is_valid
        parent = around
        if self._submitted is not None and not is_current:
            parent = set_span_in_context(NonRecordingSpan(self._submitted), around)
        span = self._span(name, parent, at, about, links)
        context = set_span_in_context(span, around)
        self._open[work] = _OpenSpan(span, around, context, at)
        if isinstance(work, GraphRun):
            self._before = self._before if work.path else span.get_span_context()
        elif not isinstance(work, Step):
            self._attach(context)

    def _about_run(self, run: GraphRun) -> Attributes:
        forks, resumed = self._history.forks, self._history.changes[-1:]
        about: Attributes = {"bae.run.parent": forks[-1].parent if forks else ""}
        if resumed and resumed[0].at == run.since:
            about |= {"bae.run.resumed": True, "bae.run.changes": list(resumed[0].changes)}
        return about

    def _add_chat(self, question: LMQuestion) -> None:
        """Add a span for a model's answer. The span begins when bae sent the request."""
        judged, around = question.answers[-1], self._nearest(question)
        if around is None:
            return
        attempt, seconds = judged.attempt, judged.attempt.usage.seconds
        began = judged.at - seconds
        if question.asker.kind in _HAVE_SPANS:  # each request follows the previous answer directly
            others = [*question.answers[-2:-1], *question.restarts[-1:]]
            sent = max([question.started, *(other.at for other in others)])
            began = max(sent, began) if seconds else sent
        began = max(around.since, began)
        about = about_attempt(attempt, str(question.asker), content=self._may_show(question))
        if question.text_since:
            waited = max(0.0, question.text_since - began)
            about["gen_ai.response.time_to_first_chunk"] = waited
        name = " ".join(["chat", *attempt.usage.models[-1:]])
        span = self._span(name, around.context, began, about, kind=SpanKind.CLIENT)
        span.end(_ns(max(began, judged.at)))

    def _start_round(self, question: LMQuestion) -> None:
        """Start the span of a model's answer in a conversation with tools.

        The answer has arrived already. The span stays open until the verdict on the answer is
        known, and then ends with the time when the answer arrived.
        """
        self._end_round(question)
        loop, around = question.loop, self._nearest(question)
        if loop is None or around is None:
            return
        round_, content = loop.rounds[-1], self._may_show(question)
        others = [*loop.rounds[-2:-1], *question.restarts[-1:]]
        ends = [call.ended for call in loop.calls.values() if call.ended is not None]
        sent = max([question.started, *(other.at for other in others), *ends, around.since])
        began = max(sent, round_.at - round_.usage.seconds) if round_.usage.seconds else sent
        about = about_chat(round_.usage, str(question.asker))
        reason = "tool_calls" if round_.calls else "stop"
        about |= {"gen_ai.response.finish_reasons": [reason], "bae.round": round_.number}
        if question.text_since:
            waited = max(0.0, question.text_since - began)
            about["gen_ai.response.time_to_first_chunk"] = waited
        if content:
            about["gen_ai.output.messages"] = round_message(round_.text, round_.calls, reason)
            if round_.number == 1:
                about["gen_ai.tool.definitions"] = text_of_json(
                    [{"type": "function", **tool} for tool in loop.tools]
                )
        name = " ".join(["chat", *round_.usage.models[-1:]])
        span = self._span(name, around.context, min(began, round_.at), about, kind=SpanKind.CLIENT)
        self._rounds[question] = span, round_.at

    def _end_round(self, question: LMQuestion, judged: AnswerJudged | None = None) -> None:
        span, at = self._rounds.pop(question, (None, 0.0))
        if span is None:
            return
        if judged is not None:
            attempt, content = judged.attempt, self._may_show(question)
            about = about_verdict(attempt, content=content)
            if attempt.verdict in FINISHED:
                about["gen_ai.response.finish_reasons"] = [FINISHED[attempt.verdict]]
            span.set_attributes(known(about))
        span.end(_ns(at))

    def _span(
        self,
        name: str,
        around: Context,
        at: float,
        about: Attributes,
        links: Sequence[Link] = (),
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        about = {**known(about), **self._common}
        return self._tracer.start_span(name, around, kind, about, links, _ns(at))

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
            case Source() if work.origin is not None:
                self._add_event(work.step, "bae.recalled", work.started, about_recall(work))
            case Source() if work.turns is not None:
                self._add_event(work.step, "bae.turns_shown", work.started, about_turns(work))
            case Source() if work not in self._open and work.state in ("done", "failed"):
                # The source has no open span. Either it has no start record, or its span has ended:
                # the node used the field's default, while the call went on for another node.
                self._start(work, (work.ended or 0.0) - work.took)
                self._end(work)
            case ToolRun():
                self._end_call(work)
            case LMQuestion():
                self._end_round(work)
                self._count(work)
                self._end(work)
                if work.asker.kind in _HAVE_SPANS:
                    self._leave(work)
            case GraphRun():
                self._end_graph(work)
            case _:
                self._end(work)

    def _end_call(self, call: ToolRun) -> None:
        opened = self._open.get(call)
        if opened is None:  # bae did not call the tool
            about = {**describe_work(call)[1], "bae.reused": call.reused}
            about |= {} if call.tool_error is None else {"error.type": NOT_CALLED}
            self._add_event(call.question, "bae.tool_not_called", call.ended or 0.0, known(about))
            return
        if call.state == "done":
            content = self._may_show(call.question)
            if call.tool_error is not None:
                opened.span.set_attribute("error.type", ToolError.__name__)
                text = readable(call.tool_error) if content else ToolError.__name__
                opened.span.set_status(Status(StatusCode.ERROR, text))
            elif content:
                opened.span.set_attribute("gen_ai.tool.call.result", text_of_json(call.result))
        self._end(call)
        self._attach(opened.around)

    def _end_graph(self, graph: GraphRun) -> None:
        opened = self._open.get(graph)
        if opened is None:
            return
        if graph.outcome:
            opened.span.set_attribute("bae.steps", graph.end_step)
        if graph.gates:
            gates = [f"{gate.node_type.__name__}.{gate.field_name}" for gate in graph.gates]
            opened.span.set_attribute("bae.gates", gates)
        self._end(graph, graph.outcome or graph.state)
        if graph.outcome:
            self._attach(opened.around)

    def _end_item(self, item: Item) -> None:
        """Add the span of a finished map item. No record has the item's start, so its span begins
        when an earlier item ended."""
        source, opened = item.source, self._open.get(item.source)
        if opened is None or item.state != "done" or item.ended is None:
            return
        if item.graph is None:  # the item of a graph has the span of the graph
            plan = plan_of(source.node_type).fields[source.place.field]
            turn = item.index - plan.items_at_once
            began = opened.ends[turn] if 0 <= turn < len(opened.ends) else opened.since
            about = {"bae.item": item.index, "bae.by": source.by}
            span = self._span(f"item {source.by}", opened.context, began, about)
            span.end(_ns(max(began, item.ended)))
        opened.ends.append(item.ended)

    def _end(self, work: Work, outcome: str = "") -> None:
        opened = self._open.pop(work, None)
        if opened is None:
            return
        ended = _ns(max(work.ended or 0.0, opened.since))  # clocks are sometimes set back
        outcome = outcome or ("" if work.state == "done" else work.state)
        chosen = work.chosen if isinstance(work, LMQuestion) else None
        about = {"bae.outcome": outcome, "bae.chosen": None if chosen is None else name_of(chosen)}
        opened.span.set_attributes(known({**about, **about_usage(opened.usage)}))
        if work.error is not None:
            fail_span(opened.span, ended, work.error, self._may_quote_error(work))
        opened.span.end(ended)

    def _count(self, question: LMQuestion) -> None:
        """Add the usage of a question to its asker's span and to the spans of all graphs around."""
        by, usage = question.asked_by, question.usage
        if question.asker.kind == "fill" and isinstance(by, Step) and by.filled_by is not None:
            usage = by.filled_by.usage
        users: list[Work] = [question if question.asker.kind in _HAVE_SPANS else by]
        users += [outer for outer in _around(by) if isinstance(outer, GraphRun)]
        for user in users:
            if user in self._open:
                self._open[user].usage += usage

    # Spans around work.

    def _nearest(self, work: Work | None) -> _OpenSpan | None:
        """Return the open span of `work`. If it has none, return the nearest open span around."""
        return next((self._open[outer] for outer in _around(work) if outer in self._open), None)

    def _attach(self, context: Context | None) -> None:
        if self._current and context is not None:
            contexts.attach(context)

    def _leave(self, work: Work) -> None:
        """Make the context around the graph of `work` current again. Later calls in this graph are
        then outside of the span of `work`."""
        graph = next(outer for outer in _around(work) if isinstance(outer, GraphRun))
        if graph in self._open:
            self._attach(self._open[graph].around)

    # What may be shown.

    def _may_quote(self, work: Work) -> bool:
        """Return whether spans may have the content of questions from bodies and dependencies.

        Such a question may quote any value of the run. So spans have no content if a node class
        that the run has reached, or may reach next, can hold a secret, or if `work` is a source
        that depends on a secret. They have none either if the record of the run's start is missing,
        because the classes are then unknown.
        """
        if not self._content or self._history.run.start is None:
            return False
        if isinstance(work, Source):
            # If the source began before the first record, its class may be unknown.
            is_known = work.step.node_type is not None
            if not is_known or depends_on_secret(work.node_type, work.place.field):
                return False
        return may_show(self._history.node_types, following=True)

    def _may_quote_error(self, work: Work) -> bool:
        """Return whether a span may have the message of an error.

        A function that takes a secret may quote the secret in an error. The spans of the step and
        the graphs around the function have the same message.
        """
        return self._may_quote(work) and not any(map(is_near_secret, self._history.node_types))

    def _may_show(self, question: LMQuestion) -> bool:
        """Return whether a span may have the prompt, the answer and the tool results of a question.
        A tool that takes a secret may quote the secret in its result."""
        by, asker, loop = question.asked_by, question.asker, question.loop
        if (
            loop is not None
            and asker.kind == "fill"
            and depends_on_secret(asker.node, loop.field_name)
        ):
            return False
        before = by.before if isinstance(by, Step) else None
        if asker.kind == "choice":
            return self._content and may_show((asker.node, *question.offered))
        if asker.kind == "fill" and before is not None and before.node_type is not None:
            return self._content and may_show((asker.node, before.node_type))
        return self._may_quote(by)


@dataclass(slots=True)
class _OpenSpan:
    """A span that has started but not ended."""

    span: Span
    around: Context
    """The context outside of the span."""
    context: Context
    """The context for spans inside the span."""
    since: float
    """The start time."""
    usage: Usage = NOTHING_USED
    """The total usage of the questions inside the span."""
    ends: list[float] = field(default_factory=list[float])
    """The end times of the finished items of a map."""


def _around(work: Work | None) -> Iterator[Work]:
    """Yield `work` and all work around it, from the inside out."""
    while work is not None:
        yield work
        work = work.inside


def fail_span(span: Span, at: int, error: BaseException, content: bool) -> None:
    """Record an error in a span. With `content`, include the error's message and traceback."""
    span.set_attributes(about_error(error))
    about: Attributes = {"exception.type": error_type(error)}
    if content:
        about["exception.message"] = text_of(error)
        if not isinstance(error, RecordedError):
            about["exception.stacktrace"] = readable("".join(format_exception(error)), LONGEST)
    span.add_event("exception", known(about), at)
    text = code_of(error) or error_type(error)
    if content:
        text = readable(error.message) if isinstance(error, BaeError) else describe(error)
    span.set_status(Status(StatusCode.ERROR, text))


def _ns(at: float) -> int:
    return int(at * 1_000_000_000)
