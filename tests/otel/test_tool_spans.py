"""The spans of conversations with tools: one for each answer of the model, and one for each call
of a tool, with whatever runs for it inside."""

from __future__ import annotations

import json
from asyncio import Event
from typing import Annotated, Any

import pytest
from pydantic import SecretStr

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import tool_runs
from bae import BaeError, Dep, Graph, Node, Tool, ToolCall, Tools
from bae.journal import MemoryJournal
from bae.lm import Answer, CallPart, Usage
from bae.otel import export, export_run, tracing
from bae.testing import Call, ScriptedLM
from bounded import error_from
from end_node import EndNode
from toy_backend import ToyBackend

pytestmark = pytest.mark.once

TREE = [
    "invoke_agent Question",
    "  step Question",
    "  step Reply",
    "    dep get_shop",
    "    fill Reply",
    "      chat",
    "      chat",
    "      chat",
    "      execute_tool read_page",
    "      execute_tool read_page",
    "      execute_tool research",
    "        invoke_agent Topic",
    "          step Brief",
    "            fill Brief",
    "              chat",
    "          step Topic",
    "      execute_tool search",
]


class Traced:
    """A provider whose spans are kept."""

    def __init__(self) -> None:
        self.kept = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.kept))
        self.tracer = self.provider.get_tracer("test")

    @property
    def spans(self) -> list[ReadableSpan]:
        spans = self.kept.get_finished_spans()
        return sorted(spans, key=lambda span: (span.start_time or 0, span.end_time or 0))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def inside(self, span: ReadableSpan) -> list[str]:
        return [child.name for child in self._below(span.context.span_id)]

    def _below(self, parent: int | None) -> list[ReadableSpan]:
        return [s for s in self.spans if (s.parent.span_id if s.parent else None) == parent]

    def tree(self, parent: int | None = None, indent: str = "") -> list[str]:
        """The names of all spans, siblings in the order of the alphabet."""
        lines: list[str] = []
        for span in sorted(self._below(parent), key=lambda span: span.name):
            lines += [f"{indent}{span.name}", *self.tree(span.context.span_id, f"{indent}  ")]
        return lines

    def text(self) -> str:
        return "".join(span.to_json() for span in self.spans)


@pytest.fixture
def traced() -> Traced:
    return Traced()


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_tool_call_is_a_span_inside_the_fill(
    traced: Traced,
):
    journal = MemoryJournal()
    with tracing(traced.provider):
        result = await tool_runs.GRAPH.arun(
            tool_runs.Question(text="how large?"), tool_runs.make_scripted_lm(), journal=journal
        )
    assert traced.tree() == TREE

    of_records, of_journal = Traced(), Traced()
    export(result.journal, of_records.provider)
    assert of_records.tree() == TREE
    await export_run(
        tool_runs.GRAPH, result.run_id, journal=journal, tracer_provider=of_journal.provider
    )
    assert of_journal.tree() == TREE


async def test_a_tool_call_span_has_the_standard_attributes_without_content(traced: Traced):
    with tracing(traced.provider):
        await tool_runs.run_to_end()
    [search] = traced.named("execute_tool search")
    assert search.kind is SpanKind.INTERNAL
    assert about(search) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.description": "Search the catalog.",
        "bae.node": "Reply",
        "bae.step": 1,
        "bae.field": "calls",
        "bae.round": 1,
    }
    _, missing = traced.named("execute_tool read_page")
    assert about(missing)["error.type"] == "ToolError"
    assert missing.status.status_code is StatusCode.ERROR
    [fill] = traced.named("fill Reply")
    [event] = fill.events
    assert event.name == "bae.tool_not_called"
    assert (event.attributes or {})["error.type"] == "not_called"
    assert (event.attributes or {})["gen_ai.tool.call.id"] == "c4"
    assert "kettle" not in traced.text()
    assert "no such page" not in traced.text()


async def test_each_round_is_a_chat_span_with_its_usage_and_verdict(
    traced: Traced,
):
    with tracing(traced.provider):
        await tool_runs.run_to_end()
    [fill] = traced.named("fill Reply")
    chats = [
        span
        for span in traced.named("chat")
        if span.parent is not None and span.parent.span_id == fill.context.span_id
    ]
    assert [span.kind for span in chats] == [SpanKind.CLIENT] * 3
    assert [about(span)["bae.round"] for span in chats] == [1, 2, 3]
    reasons = [about(span)["gen_ai.response.finish_reasons"] for span in chats]
    assert reasons == [("tool_calls",), ("tool_calls",), ("stop",)]
    assert [about(span).get("bae.verdict") for span in chats] == [None, None, "valid"]
    # No round overlaps with calls: the model answers when it has all results.
    ends = [call.end_time for call in traced.spans if call.name.startswith("execute_tool")]
    assert (chats[2].start_time or 0) >= max(end or 0 for end in ends)
    assert about(fill)["bae.usage.calls"] == 3


async def test_spans_have_arguments_results_and_definitions_on_request(traced: Traced):
    with tracing(traced.provider, content=True):
        await tool_runs.run_to_end()
    [search] = traced.named("execute_tool search")
    assert json.loads(about(search)["gen_ai.tool.call.arguments"]) == {"query": "kettle"}
    assert json.loads(about(search)["gen_ai.tool.call.result"]) == ["Kettle One", "Kettle Two"]
    _, missing = traced.named("execute_tool read_page")
    assert missing.status.description == "there is no such page"
    first = next(span for span in traced.named("chat") if about(span).get("bae.round") == 1)
    offered = json.loads(about(first)["gen_ai.tool.definitions"])
    assert [tool["name"] for tool in offered] == ["search", "read_page", "research"]
    [message] = json.loads(about(first)["gen_ai.output.messages"])
    assert message["finish_reason"] == "tool_calls"
    assert message["parts"][0] == {
        "type": "tool_call",
        "id": "c1",
        "name": "search",
        "arguments": {"query": "kettle"},
    }


async def test_tool_spans_of_a_node_with_a_secret_have_no_content(traced: Traced):
    class Start(Node):
        key: SecretStr

        async def __call__(self) -> Reply: ...

    async def search(query: str) -> str:
        return "found hunter2"

    class Reply(EndNode):
        calls: Annotated[list[ToolCall], Tools(search)]
        text: str

    lm = ScriptedLM({"Reply": [Call("search", query="hunter2"), {"text": "ok"}]})
    with tracing(traced.provider, content=True):
        await Graph(start=Start, end=Reply).arun(Start(key=SecretStr("hunter2")), lm)
    assert traced.named("execute_tool search")
    assert "hunter2" not in traced.text()


async def test_spans_of_a_conversation_with_a_secret_tool_have_no_content(traced: Traced):
    async def get_key() -> SecretStr:
        return SecretStr("hunter2")

    async def search(query: str, key: Annotated[SecretStr, Dep(get_key)]) -> str:
        return f"found with {key.get_secret_value()}"

    class Start(Node):
        async def __call__(self) -> Reply: ...

    class Reply(EndNode):
        calls: Annotated[list[ToolCall], Tools(search)]
        text: str

    lm = ScriptedLM({"Reply": [Call("search", query="x"), {"text": "hunter2"}]})
    with tracing(traced.provider, content=True):
        await Graph(start=Start, end=Reply).arun(Start(), lm)
    assert traced.named("execute_tool search")
    assert "hunter2" not in traced.text()


async def test_a_span_created_by_a_tool_is_inside_its_call(traced: Traced):
    both = Event()

    async def ask(shop: str) -> str:
        with traced.tracer.start_as_current_span(f"GET {shop}"):
            if shop == "a":
                await both.wait()
            both.set()
        return shop

    def ask_in_thread(shop: str) -> str:
        with traced.tracer.start_as_current_span(f"GET {shop}"):
            return shop

    class Start(Node):
        async def __call__(self) -> Reply: ...

    class Reply(EndNode):
        calls: Annotated[list[ToolCall], Tools(ask, ask_in_thread, at_once=2)]
        text: str

    calls = [Call("ask", shop="a"), Call("ask", shop="b"), Call("ask_in_thread", shop="c")]
    lm = ScriptedLM({"Reply": [calls, Call("ask", shop="d"), {"text": "ok"}]})
    with tracing(traced.provider, content=True):
        await Graph(start=Start, end=Reply).arun(Start(), lm)
        with traced.tracer.start_as_current_span("after"):
            pass
    by_shop = {
        json.loads(about(span)["gen_ai.tool.call.arguments"])["shop"]: traced.inside(span)
        for span in traced.spans
        if span.name.startswith("execute_tool")
    }
    assert by_shop == {shop: [f"GET {shop}"] for shop in "abcd"}
    [after] = traced.named("after")
    assert after.parent is None


async def test_the_tool_call_that_fails_a_run_has_the_error_on_its_span(
    traced: Traced,
):
    started = Event()

    async def wait_forever() -> str:
        started.set()
        await Event().wait()
        return ""

    async def fail() -> str:
        await started.wait()
        raise RuntimeError("out of paper")

    class Start(Node):
        async def __call__(self) -> Printed: ...

    class Printed(EndNode):
        calls: Annotated[list[ToolCall], Tools(wait_forever, fail)]

    lm = ScriptedLM({"Printed": [[Call("wait_forever"), Call("fail")]]})
    with tracing(traced.provider):
        await error_from(BaeError, Graph(start=Start, end=Printed).arun(Start(), lm))
    [failed], [waited] = (
        traced.named("execute_tool fail"),
        traced.named("execute_tool wait_forever"),
    )
    assert about(failed)["error.type"] == "bae.exceptions.ToolCallError"
    assert about(waited)["bae.outcome"] == "cancelled"
    assert waited.status.status_code is StatusCode.UNSET
    assert "out of paper" not in traced.text()


async def test_a_resumed_conversation_repeats_no_round_or_call_span(traced: Traced):
    fails = [True]

    async def good() -> str:
        return "fine"

    async def bad() -> str:
        if fails:
            raise RuntimeError("not yet")
        return "fine too"

    class Start(Node):
        async def __call__(self) -> Reply: ...

    class Reply(EndNode):
        calls: Annotated[list[ToolCall], Tools(good, Tool(bad, unfinished="repeat"))]
        text: str

    graph, journal = Graph(start=Start, end=Reply), MemoryJournal()
    script = {"Reply": [Call("good"), Call("bad"), {"text": "ok"}]}
    with tracing(traced.provider):
        error = await error_from(
            BaeError, graph.arun(Start(), ScriptedLM(script), journal=journal, run_id="r")
        )
        assert error.code == "bae-tool-failed"
        fails.clear()
        rest = ScriptedLM({"Reply": [{"text": "ok"}]})
        await graph.resume("r", journal=journal, lm=rest)

    def shape(spans: list[ReadableSpan]) -> list[list[str]]:
        by_trace: dict[int, list[str]] = {}
        for span in spans:
            if span.name.startswith(("chat", "execute")):
                by_trace.setdefault(span.context.trace_id, []).append(span.name)
        return [*by_trace.values()]

    expected = [
        ["chat", "execute_tool good", "chat", "execute_tool bad"],
        ["execute_tool bad", "chat"],
    ]
    assert shape(traced.spans) == expected
    exported = Traced()
    await export_run(graph, "r", journal=journal, tracer_provider=exported.provider)
    assert shape(exported.spans) == expected
    assert trace.get_current_span() is trace.INVALID_SPAN


async def test_a_wrong_answer_after_calls_is_a_chat_span_with_its_verdict(
    traced: Traced,
):
    class Start(Node):
        async def __call__(self) -> Reply: ...

    async def search(query: str) -> str:
        return query

    class Reply(EndNode):
        calls: Annotated[list[ToolCall], Tools(search)]
        count: int

    used = Usage(calls=1, input_tokens=10, output_tokens=5, attempts=1, models=("toy",))
    toy = ToyBackend(
        Answer("", used, calls=(CallPart("x", "search", {"query": "tea"}),)),
        Answer('{"count": "many"}', used),
        Answer('{"count": 3}', used),
    )
    toy.calls_tools = True
    with tracing(traced.provider):
        result = await Graph(start=Start, end=Reply).arun(Start(), toy)
    chats = traced.named("chat toy")
    assert [about(span).get("bae.verdict") for span in chats] == [None, "invalid", "valid"]
    assert [about(span)["gen_ai.usage.input_tokens"] for span in chats] == [10, 10, 10]
    [fill] = traced.named("fill Reply")
    assert about(fill)["bae.usage.input_tokens"] == result.usage.input_tokens == 30


async def test_the_span_of_a_call_that_waits_for_a_person_has_no_error(traced: Traced):
    class Start(Node):
        async def __call__(self) -> Reply: ...

    async def pay(euros: int) -> str:
        return f"paid {euros}"

    class Reply(EndNode):
        calls: Annotated[list[ToolCall], Tools(Tool(pay, approve=True))]
        text: str

    graph, journal = Graph(start=Start, end=Reply), MemoryJournal()
    with tracing(traced.provider):
        lm = ScriptedLM({"Reply": [Call("pay", euros=4)]})
        parked = await graph.arun(Start(), lm, journal=journal)
        assert parked.waiting
        assert not traced.named("execute_tool pay")
        [fill] = traced.named("fill Reply")
        assert about(fill)["bae.outcome"] == "waiting"
        [gate] = traced.named("gate Reply.calls")
        assert gate.status.status_code is StatusCode.UNSET
        rest = ScriptedLM({"Reply": [{"text": "ok"}]})
        await graph.answer(parked.run_id, parked.waiting[0].address, True, rest, journal=journal)
    assert len(traced.named("execute_tool pay")) == 1
