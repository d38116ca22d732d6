"""Runs with tools that stop anywhere: whatever reads a stored run reads every beginning of it."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Annotated, Any

import pytest

import tool_runs
from bae import LM, BaeError, Dep, Graph, Node, Tool, ToolCall, Tools
from bae.history import History
from bae.journal import MemoryJournal, Record
from bae.journal.decoder import decode
from bae.journal.report import report_run
from bae.journal.stored_runs import StoredRun
from bae.testing import Call, ScriptedLM
from bae.work import Work
from bounded import error_from
from end_node import EndNode


async def ask_aside(lm: LM) -> str:
    """A dependency that has an LM fill a node with tools."""
    made = await lm.make(tool_runs.Question(text="aside"), tool_runs.Answer)
    return made.text


fails: list[bool] = []


async def fetch(page: str) -> str:
    if fails:
        raise RuntimeError("not yet")
    return page


class Begin(Node):
    text: str

    async def __call__(self, lm: LM) -> Middle:
        made = await lm.make(self, tool_runs.Answer)
        return Middle(body=made.text)


class Middle(Node):
    body: str
    aside: Annotated[str, Dep(ask_aside)]

    async def __call__(self) -> End: ...


class End(EndNode):
    calls: Annotated[
        list[ToolCall],
        Tools(fetch, tool_runs.read_page, Tool(tool_runs.RESEARCH, name="research")),
    ]
    text: str


GRAPH = Graph(start=Begin, end=End)


async def record_resumed_run() -> StoredRun:
    """A run that fails in a round with three calls, and is resumed."""
    journal = MemoryJournal()
    answer = [Call("search", query="a"), Call("research", topic="b"), {"text": "so"}]
    calls = [Call("read_page", page="missing"), Call("fetch", page="x"), Call("fetch", wrong="y")]
    lm = ScriptedLM(
        {
            "Answer": [*answer, *answer],
            "Brief": [{"brief": "1"}, {"brief": "2"}, {"brief": "3"}],
            "End": [Call("research", topic="c"), calls],
        }
    )
    fails.append(True)
    await error_from(BaeError, GRAPH.arun(Begin(text="t"), lm, journal=journal, run_id="r"))
    fails.clear()
    await GRAPH.resume("r", ScriptedLM({"End": [{"text": "done"}]}), journal=journal)
    return await journal.read("r")


def every_work(history: History) -> list[Work]:
    found: list[Work] = [*history.graphs.values()]
    for work in found:
        found += [part for part in work.parts if part not in found]
    return found


async def test_every_prefix_of_a_run_with_tools_has_a_report():
    run = await record_resumed_run()
    for end in range(1, len(run.lines) + 1):
        report = report_run(replace(run, lines=run.lines[:end]))
        for node in (node for graph in report.graphs for node in graph.nodes):
            for made in node.rounds:
                assert all(str(call) for call in made.calls)
        assert all(work.spans for work in report.timeline.every())
    rounds = [made for node in report.graphs[0].nodes for made in node.rounds]
    assert [(made.by, len(made.calls)) for made in rounds] == [
        *(("Begin.__call__", 1), ("Begin.__call__", 1), ("Begin.__call__", 0)),
        *(("Middle.aside", 1), ("Middle.aside", 1), ("Middle.aside", 0)),
        *(("filling End", 1), ("filling End", 3), ("filling End", 0)),
    ]


async def records_of(run: StoredRun) -> list[Record]:
    return decode(GRAPH, run.lines)[0]


async def test_no_work_stays_open_in_the_history_of_an_interrupted_run():
    records = await records_of(await record_resumed_run())
    for end in range(1, len(records) + 1):
        history = History(records[:end])
        history.stop()
        assert not [work for work in every_work(history) if work.is_open]
    usage = history.usage
    assert usage.calls == 12
    # Of a class outside the graph, a journal has the calls, and not the nodes of graphs inside.
    assert history.complete_steps == 3 + 2


async def test_displays_and_traces_accept_every_prefix_of_a_run():
    pytest.importorskip("rich")
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from rich.console import Console

    from bae.cli.live import LiveTree
    from bae.otel import export

    class Observed:
        run_id = "r"
        past: tuple[Any, ...] = ()

    records = await records_of(await record_resumed_run())
    run: Any = Observed()
    display = LiveTree(Console(file=io.StringIO(), width=80, height=60, force_terminal=True))
    for end, record in enumerate(records, 1):
        display.observe(run, record)
        assert display.frame()
        kept, provider = InMemorySpanExporter(), TracerProvider()
        begun = 0

        class Counting(SimpleSpanProcessor):
            def on_start(self, span: Any, parent_context: Any = None) -> None:
                nonlocal begun
                begun += 1

        provider.add_span_processor(Counting(kept))
        export(records[:end], provider, content=True)
        assert len(kept.get_finished_spans()) == begun
    tools = [span.name for span in kept.get_finished_spans() if "execute_tool" in span.name]
    assert sorted(tools) == [
        *("execute_tool fetch", "execute_tool read_page"),
        *["execute_tool research"] * 3,
        *["execute_tool search"] * 2,
    ]
