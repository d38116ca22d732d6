"""OpenTelemetry traces of runs. They follow the semantic conventions for generative AI and need the
extra `otel`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from time import time_ns
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, finalize

from bae.lm.extras import need

need("opentelemetry.trace", extra="otel", by="bae.otel")

from opentelemetry import context as contexts  # noqa: E402
from opentelemetry.trace import (  # noqa: E402
    SpanContext,
    SpanKind,
    Tracer,
    TracerProvider,
    get_current_span,
    get_tracer,
)
from opentelemetry.trace.propagation.tracecontext import (  # noqa: E402
    TraceContextTextMapPropagator,
)

from bae import __version__  # noqa: E402
from bae.observers import ObservedRun, observe, observing  # noqa: E402
from bae.otel.attributes import about_conversation  # noqa: E402
from bae.otel.spans import RunSpans, fail_span  # noqa: E402

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Journal
    from bae.records import Record

_PROPAGATOR = TraceContextTextMapPropagator()

__all__ = ["export", "export_run", "instrument", "tracing"]


def instrument(
    tracer_provider: TracerProvider | None = None, *, content: bool = False
) -> Callable[[], None]:
    """Trace all runs of this process that begin from now on. Call the returned function to stop.

    The default provider is the one set with OpenTelemetry's `trace.set_tracer_provider`. With
    `content=True`, spans also have prompts, LLM answers, tool calls and exception messages. If a
    class in an LLM call can hold a secret, the spans of the call have no content.
    """
    return observe(_Watching(_tracer(tracer_provider), content))


@contextmanager
def tracing(
    tracer_provider: TracerProvider | None = None, *, content: bool = False
) -> Generator[None]:
    """Trace the runs that begin inside the `with` block. Takes the arguments of `instrument`."""
    with observing(_Watching(_tracer(tracer_provider), content)):
        yield


def export(
    records: Iterable[Record],
    tracer_provider: TracerProvider | None = None,
    *,
    content: bool = False,
    run_id: str = "",
    thread: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Export the spans of a finished or interrupted run from its records.

    The records are `result.journal`, or the `.journal` of an error. For a run in a journal, use
    `export_run`. The spans are inside the current span and have the times of the records.

    If the run is a fork, pass its `run_id`, because its first records have the id of its parent.
    Pass the run's `thread` and `metadata` too: the records do not have them.
    """
    spans = RunSpans(
        _tracer(tracer_provider),
        content=content,
        run_id=run_id,
        around=contexts.get_current(),
        common=about_conversation(thread, metadata or {}),
    )
    for record in records:
        spans.write(record)
    spans.close()


async def export_run(
    graph: Graph[Any, Any],
    run_id: str,
    *,
    journal: Journal,
    tracer_provider: TracerProvider | None = None,
    content: bool = False,
) -> None:
    """Export the spans of a run in a journal.

    The run has one root span for each time that a process started or resumed it. Each root span
    links to the root span before it.
    """
    from bae.journal.decoder import decode_run

    stored = await journal.read(run_id)
    records, _ = await decode_run(graph, stored.lines, files=stored.files, partial=True)
    info = stored.info
    about: dict[str, Any] = {"thread": info.thread, "metadata": info.metadata}
    export(records, tracer_provider, content=content, run_id=run_id, **about)


class _Watching:
    """The observer that traces runs. It has one `RunSpans` for each run in progress."""

    def __init__(self, tracer: Tracer, content: bool) -> None:
        self._tracer = tracer
        self._content = content
        self._runs: WeakKeyDictionary[ObservedRun, RunSpans] = WeakKeyDictionary()

    def __call__(self, run: ObservedRun, record: Record) -> None:
        spans = self._runs.get(run)
        if spans is None:
            spans = self._runs[run] = RunSpans(
                self._tracer,
                content=self._content,
                run_id=run.run_id,
                past=run.past,
                common=about_conversation(run.thread, run.metadata),
                submitted=_submission(run.metadata),
            )
            # If the event loop of a run was stopped, the run never ends. Then its spans end when
            # Python drops the run or exits.
            finalize(run, spans.close)
        spans.write(record)

    @contextmanager
    def carry(self, work: str, run_id: str, graph: str) -> Generator[dict[str, str]]:
        """Open a span around the submission or dispatch of a run. Yield the trace headers, with
        which a worker continues the trace."""
        with self._tracer.start_as_current_span(
            f"{work} {graph}",
            kind=SpanKind.PRODUCER,
            attributes={"bae.run.id": run_id, "gen_ai.agent.name": graph},
            record_exception=False,  # it would include the message
            set_status_on_exception=False,
        ) as span:
            headers: dict[str, str] = {}
            _PROPAGATOR.inject(headers)
            try:
                yield headers
            except BaseException as error:
                fail_span(span, time_ns(), error, content=False)
                raise

    def __repr__(self) -> str:
        return "<bae.otel>"


def _submission(metadata: Mapping[str, Any]) -> SpanContext | None:
    """Return the span in which a run was submitted. Its headers are in the run's metadata."""
    headers = {name: value for name, value in metadata.items() if isinstance(value, str)}
    span = get_current_span(_PROPAGATOR.extract(headers, contexts.Context()))
    context = span.get_span_context()
    return context if context.is_valid else None


def _tracer(provider: TracerProvider | None) -> Tracer:
    return get_tracer("bae", __version__, provider)
