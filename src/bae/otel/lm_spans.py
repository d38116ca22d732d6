"""The spans of choices and fills, and of the LM calls in them and in bodies and dependencies.
`run_spans.py` hands over the records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.trace import SpanKind

from bae.otel.attributes import Attributes, of_attempt, of_error, of_place
from bae.otel.open_spans import OpenAsking, OpenSource, OpenSpan, nanoseconds
from bae.records import Asker
from bae.secrets import may_show

if TYPE_CHECKING:
    from bae.otel.graph_spans import GraphSpans
    from bae.otel.run_spans import RunSpans
    from bae.records import (
        AnswerJudged,
        AnswerRestarted,
        ChoiceMade,
        ChoiceStarted,
        FillEnded,
        FillStarted,
        LMUsed,
        TextArrived,
    )
    from bae.usage import Usage


def choice_started(spans: RunSpans, record: ChoiceStarted) -> None:
    """The LM is asked where to go on, as the last part of a step."""
    graph, cls = spans.graph(record), type(record.node)
    step = graph.step(record.step - 1, cls, record.at)
    step.called = True
    said = of_place(record.path, record.step - 1, cls.__name__)
    said["bae.offered"] = [_name_of(offered) for offered in record.offered]
    by = str(Asker("choice", cls))
    title = f"choose after {cls.__name__}"
    graph.asking = OpenAsking(spans.tracer, title, step.context, record.at, said, by=by)
    graph.asking.classes = (cls, *record.offered)
    spans.make_current(graph.asking.context)


def choice_made(spans: RunSpans, record: ChoiceMade) -> None:
    """It has chosen."""
    graph = spans.graph(record)
    if graph.asking is not None:
        graph.asking.span.set_attribute("bae.chosen", _name_of(record.chosen))
        _answered(spans, graph, graph.asking, record.at, record.usage)
    graph.end_step(record.step - 1, record.at)


def fill_started(spans: RunSpans, record: FillStarted) -> None:
    """The LM is asked to fill a node, as a part of the node's step."""
    graph, name = spans.graph(record), record.target.__name__
    graph.end_step(record.step - 1, record.at)
    step = graph.step(record.step, record.target, record.at)
    step.filled = True
    said = of_place(record.path, record.step, name)
    by, title = str(Asker("fill", record.target)), f"fill {name}"
    graph.asking = OpenAsking(spans.tracer, title, step.context, record.at, said, by=by)
    if graph.newest is not None:
        graph.asking.classes = (record.target, graph.newest)
    spans.make_current(graph.asking.context)


def fill_ended(spans: RunSpans, record: FillEnded) -> None:
    """It has filled it."""
    graph = spans.graph(record)
    if graph.asking is not None:
        _answered(spans, graph, graph.asking, record.at, record.usage)


def answer_judged(spans: RunSpans, record: AnswerJudged) -> None:
    """A model has answered: the call is a span from when it was sent."""
    attempt, doing = record.attempt, spans.doing(record)
    began = _began(record, doing)
    said = of_attempt(attempt, str(record.asker), content=_may_show(spans, doing))
    if doing.heard is not None:
        said["gen_ai.response.time_to_first_chunk"] = max(0.0, doing.heard - began)
    _mark(doing, record.at)
    model = attempt.usage.models[-1] if attempt.usage.models else ""
    span = spans.tracer.start_span(
        f"chat {model}".strip(), doing.context, SpanKind.CLIENT, said, (), nanoseconds(began)
    )
    span.end(nanoseconds(max(began, record.at)))


def answer_restarted(spans: RunSpans, record: AnswerRestarted) -> None:
    """A request failed and is sent again."""
    doing = spans.doing(record)
    _mark(doing, record.at)
    said: Attributes = {**of_error(record.error), "bae.wait": record.wait}
    doing.event("bae.restarted", record.at, said)


def text_arrived(spans: RunSpans, record: TextArrived) -> None:
    """A piece of an answer is there."""
    doing = spans.doing(record)
    if doing.heard is None:
        doing.heard = record.at


def used(spans: RunSpans, record: LMUsed) -> None:
    """What calls in bodies and dependencies used, and those that failed."""
    doing = spans.doing(record)
    graph = spans.graphs.get(record.path)
    if graph is None or doing is not graph.whole:
        doing.usage += record.usage
    _count(spans, record.path, record.usage)


def _answered(
    spans: RunSpans, graph: GraphSpans, asking: OpenSpan, at: float, usage: Usage
) -> None:
    graph.asking = None
    _count(spans, graph.path, usage)
    asking.usage += usage
    asking.end(at)
    spans.make_current(graph.whole.around)


def _count(spans: RunSpans, path: str, usage: Usage) -> None:
    """Add usage up for a graph and for all that it is inside of."""
    while True:
        if path in spans.graphs:
            spans.graphs[path].whole.usage += usage
        if not path:
            return
        path = path.rpartition("/")[0]


def _mark(doing: OpenSpan, at: float) -> None:
    """What comes after is of the next call."""
    doing.heard = None
    if isinstance(doing, OpenAsking):
        doing.marked = at


def _began(record: AnswerJudged, doing: OpenSpan) -> float:
    """When a call was sent."""
    seconds = record.attempt.usage.seconds
    if isinstance(doing, OpenAsking):  # one call after another, and nothing else
        return max(doing.marked, record.at - seconds) if seconds else doing.marked
    return max(doing.at, record.at - seconds)


def _may_show(spans: RunSpans, doing: OpenSpan) -> bool:
    """Whether what was asked and answered may be said."""
    if isinstance(doing, OpenAsking) and doing.classes is not None:
        return spans.content and may_show(doing.classes)
    return spans.may_quote() and not (isinstance(doing, OpenSource) and doing.hides)


def _name_of(cls: type) -> str:
    return "None" if cls is type(None) else cls.__name__
