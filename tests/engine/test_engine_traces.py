"""The submission of a run, its dispatch and the run itself are one trace, in whichever process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bae.engine import JournalEngine
from bae.journal import MemoryJournal, SQLiteJournal
from bae.otel import tracing
from bounded import BOUND
from engine import shop
from engine.fleet import fleet_of

Spans = Callable[[], dict[str, ReadableSpan]]


@pytest.fixture
def spans() -> Iterator[Spans]:
    """The spans of this process, by name."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with tracing(provider):
        yield lambda: {span.name: span for span in exporter.get_finished_spans()}


async def test_submit_dispatch_and_run_are_one_trace_in_two_processes(
    tmp_path: Path, spans: Spans, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SHOP_SPANS", str(tmp_path / "spans"))
    where = str(tmp_path / "runs.db")
    async with SQLiteJournal(where) as journal, fleet_of(1, tmp_path, where) as fleet:
        start = shop.Order(run="a", step=4)
        await shop.orders.submit(start, journal=journal, run_id="a", engine=JournalEngine())
        await shop.orders.result("a", journal=journal, timeout=BOUND)
        fleet.workers[0].terminate()
        assert await asyncio.to_thread(fleet.workers[0].wait, BOUND) == 0
    here = spans()
    submit, dispatch = here["submit orders"], here["dispatch orders"]
    assert submit.context is not None
    assert dispatch.parent is not None
    assert dispatch.parent.span_id == submit.context.span_id
    there = json.loads((tmp_path / "spans").read_text())
    (run,) = [span for span in there if span["name"] == "invoke_agent orders"]
    assert run["parent_id"] == f"0x{submit.context.span_id:016x}"
    trace_ids = {span["context"]["trace_id"] for span in there}
    assert trace_ids == {f"0x{submit.context.trace_id:032x}"}
    assert {span["name"] for span in there} == {
        "invoke_agent orders",
        "step Order",
        "step Shipped",
    }


async def test_a_run_that_waited_for_an_answer_continues_in_the_trace_of_its_submission(
    spans: Spans,
):
    async with MemoryJournal() as journal:
        await shop.refunds.submit(shop.Refund(amount=5), journal=journal, run_id="a")
        await shop.refunds.recover(journal=journal)
        await shop.refunds.answer("a", "approved", True, journal=journal, engine=JournalEngine())
        await shop.refunds.recover(journal=journal)
    here = spans()
    submit, run = here["submit refunds"], here["invoke_agent refunds"]
    assert run.attributes is not None
    assert run.attributes["bae.run.resumed"] is True
    assert (run.parent and run.parent.span_id) == (submit.context and submit.context.span_id)
    dispatch = here["dispatch refunds"]  # by the process that answered, in a trace of its own
    assert dispatch.parent is None


async def test_a_resumed_run_is_a_child_of_the_current_span(spans: Spans):
    tracer = TracerProvider().get_tracer("test")
    async with MemoryJournal() as journal:
        await shop.refunds.submit(shop.Refund(amount=5), journal=journal, run_id="a")
        with tracer.start_as_current_span("request") as request:
            await shop.refunds.recover(journal=journal)
    run = spans()["invoke_agent refunds"]
    assert (run.parent and run.parent.span_id) == request.get_span_context().span_id


async def test_invalid_trace_headers_are_ignored(spans: Spans):
    async with MemoryJournal() as journal:
        about = {"traceparent": "00-nonsense", "tracestate": 7}
        await shop.refunds.arun(shop.Refund(amount=5), journal=journal, metadata=about)
    assert spans()["invoke_agent refunds"].parent is None


async def test_a_refused_submission_is_a_failed_span(spans: Spans):
    async with MemoryJournal() as journal:
        await shop.refunds.submit(shop.Refund(amount=5), journal=journal, run_id="a")
        with pytest.raises(Exception, match="bae-run-exists"):
            await shop.refunds.submit(shop.Refund(amount=5), journal=journal, run_id="a")
    submit = spans()["submit refunds"]
    assert submit.status.description == "bae-run-exists"
    assert [event.name for event in submit.events] == ["exception"]
