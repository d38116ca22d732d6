"""What traces promise: one span for everything that takes time, under the right parent, with the
times of the records; ended for every outcome of the run; with the names of the conventions; with
content only on request, and never with secrets."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field, SecretStr

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from bae import (
    LM,
    Dep,
    DepError,
    Gate,
    Graph,
    Image,
    Map,
    Messages,
    Node,
    NodeError,
    Recall,
    Thread,
)
from bae.journal import Record, RunEnded, RunStarted, StepStarted
from bae.journal.sqlite import SQLiteJournal
from bae.journal.store import Journal
from bae.lm import Answer, Prompt, Usage, tell
from bae.otel import export, export_run, instrument, tracing
from bae.otel.attributes import provider_of
from bae.records import AnswerRestarted, Asker, FillStarted, RunResumed
from bae.run import Run
from bae.testing import ScriptedLM, Streamed
from bae.work import Work
from bounded import BOUND
from end_node import EndNode
from file_parts import DOT
from toy_backend import ToyBackend

pytestmark = pytest.mark.once


class Traced:
    """A provider whose spans are kept, with ways to look at them."""

    def __init__(self, **options: Any) -> None:
        self.kept = InMemorySpanExporter()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.kept))
        self.tracer = self.provider.get_tracer("test")

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.kept.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        found = [span for span in self.spans if span.name == name]
        return sorted(found, key=lambda span: span.start_time or 0)

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def parent(self, span: ReadableSpan) -> ReadableSpan | None:
        if span.parent is None:
            return None
        return next(s for s in self.spans if s.context.span_id == span.parent.span_id)

    def ways(self) -> list[str]:
        """Every span as the names from its root down to it, sorted."""
        return sorted(" / ".join(self._names(span)) for span in self.spans)

    def _names(self, span: ReadableSpan) -> list[str]:
        above = self.parent(span)
        return [*([] if above is None else self._names(above)), span.name]

    def text(self) -> str:
        """All that leaves the process."""
        return "\n".join(span.to_json() for span in self.spans)


@pytest.fixture
def traced() -> Iterator[Traced]:
    found = Traced()
    yield found
    found.provider.shutdown()
    assert trace.get_current_span() is trace.INVALID_SPAN


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    async with SQLiteJournal(tmp_path / "runs.db") as found:
        yield found


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def events(span: ReadableSpan) -> list[str]:
    return [event.name for event in span.events]


def outcome(span: ReadableSpan) -> tuple[Any, str]:
    return attributes_of(span).get("bae.outcome"), span.status.status_code.name


# --- a run with everything --------------------------------------------------------------------


async def get_place() -> str:
    return "Lisbon"


async def get_weather(place: Annotated[str, Dep(get_place)]) -> str:
    return f"sun in {place}"


async def double(number: int) -> int:
    return number * 2


class Question(Node):
    number: int

    async def __call__(self) -> Reply: ...


class Reply(EndNode):
    text: str


class Morning(Node):
    message: str

    async def __call__(self) -> Day: ...


class Day(Node):
    weather: Annotated[str, Dep(get_weather)]
    numbers: list[int]
    doubled: Annotated[list[int], Map(double, over="numbers")]
    replies: Annotated[list[Reply], Map(Graph(start=Question, end=Reply), over="numbers")]

    async def __call__(self) -> Plan | Rest: ...


class Plan(Node):
    numbers: Annotated[list[int], Recall()]
    ok: Annotated[bool, Gate("Shall we?")]
    text: str

    async def __call__(self, lm: LM) -> Rest:
        return await lm.make(self, Rest)


class Rest(EndNode):
    why: str


graph = Graph(start=Morning, end=Rest)
start = Morning(message="good morning")


def script() -> ScriptedLM:
    return ScriptedLM(
        {
            Day: [{"numbers": "none"}, {"numbers": [1, 2]}],
            Reply: lambda asked: {"text": "a reply"},
            Plan: [{"text": "a plan"}],
            Rest: [{"why": "tired"}],
        },
        choices=[Plan],
    )


async def yes(gate: object) -> bool:
    return True


RUN = "invoke_agent Morning"
REPLY = f"{RUN} / step Day / map Question / invoke_agent Question"
WAYS = [
    RUN,
    f"{RUN} / step Day",
    f"{RUN} / step Day / choose after Day",
    f"{RUN} / step Day / choose after Day / chat",
    f"{RUN} / step Day / dep get_place",
    f"{RUN} / step Day / dep get_weather",
    f"{RUN} / step Day / fill Day",
    f"{RUN} / step Day / fill Day / chat",
    f"{RUN} / step Day / fill Day / chat",
    f"{RUN} / step Day / map Question",
    *[REPLY] * 2,
    *[f"{REPLY} / step Question"] * 2,
    *[f"{REPLY} / step Reply"] * 2,
    *[f"{REPLY} / step Reply / fill Reply"] * 2,
    *[f"{REPLY} / step Reply / fill Reply / chat"] * 2,
    f"{RUN} / step Day / map double",
    *[f"{RUN} / step Day / map double / item double"] * 2,
    f"{RUN} / step Morning",
    f"{RUN} / step Plan",
    f"{RUN} / step Plan / chat",
    f"{RUN} / step Plan / fill Plan",
    f"{RUN} / step Plan / fill Plan / chat",
    f"{RUN} / step Plan / gate Plan.ok",
    f"{RUN} / step Rest",
]


async def test_live_spans_equal_spans_from_records_and_journal(traced: Traced, journal: Journal):
    def look() -> list[tuple[Any, ...]]:
        assert traced.ways() == sorted(WAYS)
        found = [
            (s.name, s.start_time, s.end_time, sorted(attributes_of(s).items()))
            for s in traced.spans
        ]
        return sorted(found)

    with tracing(traced.provider, content=True):
        result = await graph.arun(start, script(), answer=yes, journal=journal)
    live = look()
    traced.kept.clear()
    export(result.journal, traced.provider, content=True)
    assert look() == live
    traced.kept.clear()
    run_id, provider = result.run_id, traced.provider
    await export_run(graph, run_id, journal=journal, tracer_provider=provider, content=True)
    assert look() == live
    root, ended = traced.one(RUN), result.journal.of(RunEnded)[-1]
    assert root.start_time == int(result.journal[0].at * 1e9)
    assert root.end_time == int(ended.at * 1e9)


async def test_the_run_span_has_the_run_its_graph_its_outcome_and_its_usage(
    traced: Traced,
):
    with tracing(traced.provider):
        result = await graph.arun(start, script(), answer=yes)
    root = traced.one(RUN)
    assert root.kind is SpanKind.INTERNAL
    assert root.status.status_code is StatusCode.UNSET
    assert attributes_of(root) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "Morning",
        "bae.run.id": result.run_id,
        "bae.outcome": "ended",
        "bae.steps": 4,
        "bae.usage.calls": result.usage.calls,
        "bae.usage.attempts": result.usage.attempts,
        "bae.usage.cost": 0.0,
    }
    assert root.instrumentation_scope is not None
    assert root.instrumentation_scope.name == "bae"
    inside = traced.named("invoke_agent Question")
    assert [attributes_of(span)["bae.path"] for span in inside] == [
        "1:Day.replies[0]",
        "1:Day.replies[1]",
    ]
    assert [attributes_of(span)["bae.usage.calls"] for span in inside] == [1, 1]


async def test_a_source_span_names_its_field(traced: Traced):
    with tracing(traced.provider):
        await graph.arun(start, script(), answer=yes)
    where = {"bae.node": "Day", "bae.step": 1, "bae.field": "weather", "bae.source": "dep"}
    assert attributes_of(traced.one("dep get_weather")) == {**where, "bae.by": "get_weather"}
    assert attributes_of(traced.one("dep get_place")) == {
        **where,
        "bae.by": "get_place",
        "bae.parameter": "(place)",
    }
    assert [attributes_of(span)["bae.item"] for span in traced.named("item double")] == [0, 1]
    gate = traced.one("gate Plan.ok")
    assert attributes_of(gate)["bae.by"] == "Shall we?"
    assert [(e.name, dict(e.attributes or {})) for e in gate.events] == [
        ("bae.gate_opened", {"bae.gate": "2:Plan.ok"})
    ]
    assert [(e.name, dict(e.attributes or {})) for e in traced.one("step Plan").events] == [
        ("bae.recalled", {"bae.field": "numbers", "bae.origin": "1.numbers"})
    ]
    choice = attributes_of(traced.one("choose after Day"))
    assert (choice["bae.offered"], choice["bae.chosen"]) == (("Plan", "Rest"), "Plan")


# --- LM calls ---------------------------------------------------------------------------------


class Model(ToyBackend):
    """A model that answers from a list, with its usage."""

    model = "claude-test"

    async def answer(self, prompt: Prompt) -> Answer:
        answer = await super().answer(prompt)
        tell(answer.text[:3])
        return Answer(answer.text, Usage(1, 70, 5, 20, 0.25))


class Ask(Node):
    question: str

    async def __call__(self) -> Told: ...


class Told(EndNode):
    text: str


telling = Graph(start=Ask, end=Told)


async def test_an_lm_call_is_a_client_span_by_the_conventions(traced: Traced):
    with tracing(traced.provider):
        await telling.arun(Ask(question="what?"), Model({"text": "that"}))
    call = traced.one("chat claude-test")
    assert call.kind is SpanKind.CLIENT
    first = attributes_of(call).pop("gen_ai.response.time_to_first_chunk")
    assert 0 <= first < 10
    assert attributes_of(call) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.response.model": "claude-test",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": first,
        "gen_ai.output.type": "json",
        "gen_ai.usage.input_tokens": 70,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 20,
        "bae.usage.cost": 0.25,
        "bae.by": "filling Told",
        "bae.attempt": 1,
        "bae.verdict": "valid",
    }
    fill = attributes_of(traced.one("fill Told"))
    assert (fill["bae.usage.calls"], fill["bae.usage.input_tokens"]) == (1, 70)
    assert fill["bae.usage.models"] == ("claude-test",)
    assert "gen_ai.usage.input_tokens" not in attributes_of(traced.one("invoke_agent Ask"))


async def test_a_repeated_request_is_an_event_of_its_span(traced: Traced):
    lm = Model(ConnectionError("gone"), {"text": "that"})
    with tracing(traced.provider):
        await telling.arun(Ask(question="what?"), lm)
    (event,) = traced.one("fill Told").events
    assert event.name == "bae.restarted"
    assert (event.attributes or {})["error.type"] == "ConnectionError"
    assert attributes_of(traced.one("fill Told"))["bae.usage.calls"] == 2
    assert len(traced.named("chat claude-test")) == 1


async def test_a_fill_in_the_same_call_as_its_choice_is_a_child_of_the_choice(traced: Traced):
    class Fork(Node):
        async def __call__(self) -> Told | Ask: ...

    lm = Model('{"answer": {"choice": "Told", "fields": {"text": "at once"}}}')
    with tracing(traced.provider):
        await Graph(start=Fork).arun(Fork(), lm)
    assert traced.ways() == [
        "invoke_agent Fork",
        "invoke_agent Fork / step Fork",
        "invoke_agent Fork / step Fork / choose after Fork",
        "invoke_agent Fork / step Fork / choose after Fork / chat claude-test",
        "invoke_agent Fork / step Told",
        "invoke_agent Fork / step Told / fill Told",
    ]


async def test_lm_calls_in_bodies_and_dependencies_are_child_spans(traced: Traced):
    async def look(lm: LM) -> str:
        return (await lm.make(Ask(question="look"), Told)).text

    class Looks(Node):
        seen: Annotated[str, Dep(look)]

        async def __call__(self, lm: LM) -> Told:
            return await lm.make(self, Told)

    lm = Model({"text": "one"}, {"text": "two"})
    with tracing(traced.provider):
        await Graph(start=Looks).arun(Looks(), lm)
    root = "invoke_agent Looks / step Looks"
    assert f"{root} / dep look / chat claude-test" in traced.ways()
    assert f"{root} / chat claude-test" in traced.ways()
    assert attributes_of(traced.one("dep look"))["bae.usage.calls"] == 1
    assert attributes_of(traced.one("step Looks"))["bae.usage.calls"] == 1
    assert attributes_of(traced.one("invoke_agent Looks"))["bae.usage.calls"] == 2


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("claude-sonnet-5", "anthropic"),
        ("openai/gpt-6", "openai"),
        ("azure/my-deployment", "azure.ai.openai"),
        ("bedrock/anthropic.claude", "aws.bedrock"),
        ("SmolLM2-135M-Instruct", "unknown"),
    ],
)
def test_the_provider_is_derived_from_the_name_of_the_model(model: str, provider: str):
    assert provider_of(model) == provider


# --- how runs come out ------------------------------------------------------------------------


async def fail() -> int:
    raise ConnectionError("the phone number is 555-0199")


async def test_an_error_is_on_every_span_that_failed_with_it(
    traced: Traced,
):
    class Broken(EndNode):
        value: Annotated[int, Dep(fail)]

    class Tolerant(EndNode):
        value: Annotated[int, Dep(fail)] = 3

    with tracing(traced.provider):
        await Graph(start=Tolerant).arun(Tolerant())
    assert outcome(traced.one("dep fail")) == ("failed", "ERROR")
    assert outcome(traced.one("step Tolerant")) == (None, "UNSET")
    assert outcome(traced.one("invoke_agent Tolerant")) == ("ended", "UNSET")
    traced.kept.clear()
    with tracing(traced.provider), pytest.raises(DepError):
        await Graph(start=Broken).arun(Broken())
    dep = traced.one("dep fail")
    assert outcome(dep) == ("failed", "ERROR")
    assert attributes_of(dep)["error.type"] == "ConnectionError"
    assert dep.status.description == "ConnectionError"
    for name in ("step Broken", "invoke_agent Broken"):
        span = traced.one(name)
        assert outcome(span) == ("failed", "ERROR")
        assert attributes_of(span)["error.type"] == "bae.exceptions.DepError"
        assert attributes_of(span)["bae.error.code"] == "bae-dep-failed"
        assert events(span) == ["exception"]
    assert "555-0199" not in traced.text()


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "raised",
    [Silent(), ValueError("half \ud800"), ValueError("long " * 1_000_000)],
    ids=["silent", "half", "long"],
)
async def test_any_exception_text_leaves_complete_and_bounded_spans(
    traced: Traced, raised: Exception
):
    async def fail_so() -> int:
        raise raised

    class Broken(EndNode):
        value: Annotated[int, Dep(fail_so)]

    with tracing(traced.provider, content=True), pytest.raises(DepError):
        await Graph(start=Broken).arun(Broken())
    assert events(traced.one("dep fail_so")) == ["exception"]
    assert outcome(traced.one("invoke_agent Broken")) == ("failed", "ERROR")
    assert len(traced.text().encode()) < 300_000


async def test_no_span_has_the_error_text_of_a_function_with_a_secret(traced: Traced):
    async def get_password() -> SecretStr:
        return SecretStr("hunter2")

    async def log_in(password: Annotated[SecretStr, Dep(get_password)]) -> str:
        raise ValueError(f"no entry with {password.get_secret_value()}")

    class Entered(EndNode):
        session: Annotated[str, Dep(log_in)]

    with tracing(traced.provider, content=True), pytest.raises(DepError, match="hunter2"):
        await Graph(start=Entered).arun(Entered())
    assert outcome(traced.one("invoke_agent Entered")) == ("failed", "ERROR")
    assert "hunter2" not in traced.text()


async def test_the_span_of_a_run_that_waits_for_a_person_has_no_error(traced: Traced):
    class Inner(EndNode):
        ok: Annotated[bool, Gate("really?")]

    class Outer(EndNode):
        inner: Annotated[Inner, Dep(Inner)]

    with tracing(traced.provider):
        result = await Graph(start=Outer).arun(Outer())
    assert result.waiting
    for name in ("invoke_agent Outer", "step Outer", "dep Inner", "invoke_agent Inner"):
        assert outcome(traced.one(name)) == ("waiting", "UNSET")
    assert outcome(traced.one("gate Inner.ok")) == ("waiting", "UNSET")
    assert attributes_of(traced.one("invoke_agent Outer"))["bae.gates"] == ("Inner.ok",)


async def test_a_cancelled_run_ends_all_its_spans_as_cancelled(traced: Traced):
    reached = asyncio.Event()

    async def for_ever(number: int) -> int:
        reached.set()
        await asyncio.Event().wait()
        return number

    class Items(EndNode):
        numbers: list[int]
        values: Annotated[list[int], Map(for_ever, over="numbers")]

    with tracing(traced.provider):
        running = asyncio.create_task(Graph(start=Items).arun(Items(numbers=[1, 2])))
        async with asyncio.timeout(BOUND):
            await reached.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert traced.ways() == [
        "invoke_agent Items",
        "invoke_agent Items / step Items",
        "invoke_agent Items / step Items / map for_ever",
    ]
    assert {outcome(span) for span in traced.spans} == {("cancelled", "UNSET")}


async def test_an_abandoned_run_ends_its_spans_when_it_is_dropped(traced: Traced):
    ask = Ask(question="what?")
    with tracing(traced.provider):
        run = Run(run_id="r1")
    for record in life(
        100.0,
        RunStarted(0, "", 0, "r1", "Ask", ask),
        StepStarted(0, "", 0, ask),
        FillStarted(0, "", 1, Told, {}),
    ):
        run.writer.log.append(record)
    assert [span.name for span in traced.spans] == ["step Ask"]
    del run
    gc.collect()
    assert traced.ways() == [
        "invoke_agent Ask",
        "invoke_agent Ask / step Ask",
        "invoke_agent Ask / step Told",
        "invoke_agent Ask / step Told / fill Told",
    ]
    assert outcome(traced.one("invoke_agent Ask")) == ("interrupted", "UNSET")
    assert traced.one("invoke_agent Ask").end_time == int(102 * 1e9)


# --- where traces join ------------------------------------------------------------------------


async def test_a_run_is_a_child_of_the_current_span_at_its_start(traced: Traced):
    with traced.tracer.start_as_current_span("request") as request:
        with tracing(traced.provider):
            result = await telling.arun(Ask(question="what?"), Model({"text": "that"}))
            async with telling.stream(Ask(question="what?"), Model({"text": "it"})) as records:
                async for _ in records:
                    pass
        assert trace.get_current_span() is request
        export(result.journal, traced.provider)
    assert len(traced.named("invoke_agent Ask")) == 3
    for span in traced.named("invoke_agent Ask"):
        assert traced.parent(span) is traced.one("request")


async def test_custom_spans_are_children_of_the_code_that_created_them(
    traced: Traced,
):
    def mark(name: str) -> None:
        with traced.tracer.start_as_current_span(name):
            pass

    def in_thread() -> int:
        mark("in a thread")
        return 1

    async def opened() -> AsyncIterator[int]:
        mark("opened")
        yield 1

    async def item(number: int) -> int:
        mark("item")
        return number

    class Inside(Node):
        async def __call__(self) -> None:
            mark("inside")

    class Begin(Node):
        async def __call__(self) -> Work: ...

    class Work(Node):
        a: Annotated[int, Dep(in_thread)]
        b: Annotated[int, Dep(opened)]
        c: Annotated[Inside, Dep(Inside)]
        numbers: list[int]
        d: Annotated[list[int], Map(item, over="numbers")]

        async def __call__(self) -> Done | Told:
            mark("body")
            return Done()

    class Done(Node):
        async def __call__(self) -> Told | None: ...

    class Marking(Model):
        async def answer(self, prompt: Prompt) -> Answer:
            mark("http")
            return await super().answer(prompt)

    lm = Marking('{"numbers": [1]}', '{"answer": {"choice": "None"}}')
    with tracing(traced.provider):
        await Graph(start=Begin).arun(Begin(), lm)
    mark("after")
    root = "invoke_agent Begin / step Work"
    assert set(traced.ways()) >= {
        f"{root} / dep in_thread / in a thread",
        f"{root} / dep opened / opened",
        f"{root} / dep Inside / invoke_agent Inside / step Inside / inside",
        f"{root} / map item / item",
        f"{root} / body",
        f"{root} / fill Work / http",
        "invoke_agent Begin / step Done / choose after Done / http",
        "after",
    }


async def test_uninstrumenting_a_process_stops_its_spans(traced: Traced):
    uninstrument = instrument(traced.provider)
    try:
        await telling.arun(Ask(question="what?"), Model({"text": "that"}))
    finally:
        uninstrument()
    await telling.arun(Ask(question="what?"), Model({"text": "that"}))
    assert len(traced.named("invoke_agent Ask")) == 1


# --- runs with several lives ------------------------------------------------------------------


def life(at: float, *records: Record) -> list[Record]:
    for index, record in enumerate(records):
        record.at = at + index
    return list(records)


async def test_each_process_of_a_resumed_run_has_its_own_linked_span(
    traced: Traced,
):
    ask = Ask(question="what?")
    records = life(
        100.0,
        RunStarted(0, "", 0, "r1", "Ask", ask),
        StepStarted(0, "", 0, ask),
        FillStarted(0, "", 1, Told, {}),
    )
    event = Told(text="that")
    records += life(
        500.0,
        RunResumed(0, "", 1, "somebody", ("Told.text: new description",)),
        FillStarted(0, "", 1, Told, {}),
        StepStarted(0, "", 1, event),
        RunEnded(0, "", 2, "ended", event),
    )
    export(records, traced.provider)
    first, second = traced.named("invoke_agent Ask")
    assert outcome(first) == ("interrupted", "UNSET")
    assert first.end_time == int(102 * 1e9)  # the last that was heard of it
    assert outcome(second) == ("ended", "UNSET")
    assert second.start_time == int(500 * 1e9)
    assert attributes_of(second)["bae.run.resumed"] is True
    assert attributes_of(second)["bae.run.changes"] == ("Told.text: new description",)
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert {attributes_of(span)["bae.run.id"] for span in (first, second)} == {"r1"}


async def test_a_replay_is_not_traced(traced: Traced, journal: Journal):
    lm = Model({"text": "that"})
    await telling.arun(Ask(question="what?"), lm, journal=journal, run_id="r1")
    with tracing(traced.provider):
        await telling.replay("r1", journal=journal)
    assert traced.spans == []


async def test_a_journal_that_stops_anywhere_makes_a_trace_with_every_span_ended(traced: Traced):
    result = await graph.arun(start, script(), answer=yes)
    for length in range(1, len(result.journal)):
        export(result.journal[:length], traced.provider)
        began = {type(record) for record in result.journal[:length]}
        assert RunStarted in began
        (root,) = [span for span in traced.spans if span.parent is None]
        assert outcome(root) == ("interrupted", "UNSET")
        # Every span was given out: none has a parent that is missing.
        traced.ways()
        traced.kept.clear()


# --- what leaves the process ------------------------------------------------------------------


async def test_prompts_and_answers_are_recorded_only_on_request(
    traced: Traced,
):
    async def ask(**options: Any) -> None:
        traced.kept.clear()
        lm = Model('{"text": 4711}', '{"text": "the answer"}')
        with tracing(traced.provider, **options):
            await telling.arun(Ask(question="the question"), lm)

    await ask()
    for part in ("the question", "the answer", "4711", "valid string"):
        assert part not in traced.text()
    await ask(content=True)
    wrong, right = traced.named("chat claude-test")
    (asked,) = json.loads(attributes_of(wrong)["gen_ai.input.messages"])
    assert asked["role"] == "user"
    assert "the question" in asked["parts"][0]["content"]
    assert asked["parts"][0]["type"] == "text"
    (answered,) = json.loads(attributes_of(right)["gen_ai.output.messages"])
    assert answered == {
        "role": "assistant",
        "parts": [{"type": "text", "content": '{"text": "the answer"}'}],
        "finish_reason": "stop",
    }
    assert attributes_of(wrong)["bae.errors"] == ("text: Input should be a valid string",)


async def test_no_span_contains_the_thinking_of_a_model(traced: Traced):
    lm = ScriptedLM({Told: Streamed({"text": "the answer"}, thinking="hush")})
    with tracing(traced.provider, content=True):
        await telling.arun(Ask(question="the question"), lm)
    assert "the answer" in traced.text()
    assert "hush" not in traced.text()


class Card(Node):
    number: str = Field(repr=False)

    async def __call__(self) -> Told: ...


class Login(Node):
    token: SecretStr
    name: str

    async def __call__(self) -> Told | None: ...


class Deep(Node):
    cards: list[Card]

    async def __call__(self) -> Told: ...


class FillsCard(Node):
    text: str

    async def __call__(self) -> Card: ...


class AsksItself(Node):
    card: str = Field(repr=False)

    async def __call__(self, lm: LM) -> Told:
        return await lm.make(Ask(question=self.card), Told)


class Hidden(EndNode):
    """Of no graph."""

    text: SecretStr


class AsksOutside(Node):
    async def __call__(self, lm: LM) -> Told:
        hidden = await lm.make(self, Hidden)
        raise RuntimeError(hidden.text.get_secret_value())


def get_key() -> SecretStr:
    return SecretStr("s3cret")


async def ask_with_key(lm: LM, key: Annotated[SecretStr, Dep(get_key)]) -> str:
    return (await lm.make(Ask(question=key.get_secret_value()), Told)).text


class AsksInDep(EndNode):
    told: Annotated[str, Dep(ask_with_key)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Card(number="s3cret"),
        lambda: Login(token=SecretStr("s3cret"), name="n"),
        lambda: Deep(cards=[Card(number="s3cret")]),
        lambda: FillsCard(text="t"),
        lambda: AsksItself(card="s3cret"),
        lambda: AsksInDep(),
    ],
)
async def test_spans_of_calls_with_secrets_have_no_content(
    traced: Traced, make: Callable[[], Node]
):
    def repeat(prompt: Prompt) -> dict[str, Any]:
        fields = prompt.schema["properties"]
        if "choice" in fields or "answer" in fields:
            return {"answer": {"choice": "Told", "fields": {"text": "s3cret"}}}
        return dict.fromkeys(fields, "s3cret")

    lm = ToyBackend(repeat)
    node = make()
    with tracing(traced.provider, content=True):
        await Graph(start=type(node)).arun(node, lm)
    assert traced.named("chat toy")
    assert "s3cret" not in traced.text()


async def test_spans_from_before_a_resume_are_kept(traced: Traced, journal: Journal):
    tries: list[str] = []

    class Vault(Node):
        card: str = Field(repr=False)

        async def __call__(self, lm: LM) -> Told:
            tries.append("once")
            if len(tries) == 1:
                raise ConnectionError
            return await lm.make(Ask(question=self.card), Told)

    class Around(EndNode):
        told: Annotated[Told, Dep(Graph(start=Vault, end=Told), card="card")]
        card: str = Field(repr=False)

    journal.secrets = True
    around, provider = Graph(start=Around), traced.provider
    with pytest.raises(DepError):
        await around.arun(Around(card="s3cret"), Model(), journal=journal, run_id="r1")
    with tracing(provider, content=True):
        await around.resume("r1", Model({"text": "s3cret"}), journal=journal)
    inner = "invoke_agent Around / step Around / dep Vault / invoke_agent Vault"
    assert f"{inner} / step Vault / chat claude-test" in traced.ways()
    assert all(span.status.status_code is StatusCode.UNSET for span in traced.spans)
    await export_run(around, "r1", journal=journal, tracer_provider=provider, content=True)
    before, after = traced.named("invoke_agent Around")[::2]
    assert (outcome(before), outcome(after)) == (("failed", "ERROR"), ("ended", "UNSET"))
    assert len(traced.named("chat claude-test")) == 2
    assert "s3cret" not in traced.text()


async def test_no_span_quotes_an_exception_with_a_secret(traced: Traced):
    class Leaks(Node):
        card: str = Field(repr=False)

        async def __call__(self) -> None:
            raise RuntimeError(self.card)

    with tracing(traced.provider, content=True), pytest.raises(NodeError):
        await Graph(start=Leaks).arun(Leaks(card="s3cret"))
    assert outcome(traced.one("step Leaks")) == ("failed", "ERROR")
    records = life(
        1.0,
        RunStarted(0, "", 0, "r1", "Ask", Ask(question="?")),
        FillStarted(0, "", 1, Told, {}),
        AnswerRestarted(0, "", 1, Asker("fill", Told), ConnectionError("key=s3cret"), 0.5),
    )
    export(records, traced.provider, content=True)
    assert "s3cret" not in traced.text()


async def test_no_span_contains_secrets_of_a_class_outside_the_graph(
    traced: Traced, journal: Journal
):
    journal.secrets = True
    graph, lm = Graph(start=AsksOutside), ToyBackend({"text": "s3cret"})
    with tracing(traced.provider, content=True), pytest.raises(NodeError):
        await graph.arun(AsksOutside(), lm, journal=journal, run_id="r1")
    await export_run(graph, "r1", journal=journal, tracer_provider=traced.provider, content=True)

    assert len(traced.named("chat toy")) == 2
    assert "s3cret" not in traced.text()


# --- bounds and extras ------------------------------------------------------------------------


async def test_tracing_a_long_run_needs_bounded_memory(traced: Traced):
    class Count(Node):
        n: int
        word: Annotated[str, Dep(get_place)]

        async def __call__(self) -> Count | None:
            return Count(n=self.n - 1) if self.n else None

    def live() -> int:
        gc.collect()
        return sum(isinstance(object_, Work | trace.Span) for object_ in gc.get_objects())

    result = await Graph(start=Count).arun(Count(n=1000), max_iters=0)
    before = live()  # of other tests
    with tracing(traced.provider):
        run = Run(run_id="r1")
    run.writer.log.extend(result.journal[:-1])
    assert len(traced.spans) > 1000
    traced.kept.clear()
    assert 2 < live() - before < 1000
    run.writer.log.append(result.journal[-1])
    assert traced.one("invoke_agent Count")


def test_a_missing_package_is_an_import_error_with_the_install_command():
    program = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
import bae
try:
    import bae.otel
except bae.BaeError as error:
    print(error.code, error.fix)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "bae-lm-extra-missing pip install '.[otel]' in a clone of bae"


async def test_every_span_has_the_thread_the_session_and_the_user(tmp_path: Path):
    class Say(Node):
        text: str

        async def __call__(self) -> Told: ...

    class Told(EndNode):
        history: Annotated[Messages, Thread()]
        text: str

    graph, traced, about = Graph(start=Say), Traced(), {"user_id": "u1", "plan": "free"}
    async with SQLiteJournal(tmp_path / "runs.db") as journal:
        for _ in range(2):
            with tracing(traced.provider):
                lm = ScriptedLM({Told: {"text": "hello"}})
                result = await graph.arun(
                    Say(text="hi"), lm, thread="ana", journal=journal, metadata=about
                )
        for kept in (traced, Traced()):
            if kept is not traced:
                await export_run(
                    graph, result.run_id, journal=journal, tracer_provider=kept.provider
                )
            for span in kept.spans:
                attributes = dict(span.attributes or {})
                assert attributes["gen_ai.conversation.id"] == attributes["session.id"] == "ana"
                assert attributes["user.id"] == "u1"
                assert "plan" not in attributes
            (event,) = kept.named("step Told")[-1].events
            assert (event.name, dict(event.attributes or {})) == (
                "bae.turns_shown",
                {"bae.field": "history", "bae.turns": 1, "bae.turns_omitted": 0},
            )
    alone = Traced()
    with tracing(alone.provider):
        lm = ScriptedLM({Told: {"text": "hello"}})
        await graph.arun(Say(text="hi"), lm, metadata={"session_id": 7})
    for span in alone.spans:
        assert (span.attributes or {})["session.id"] == "7"
        assert "gen_ai.conversation.id" not in (span.attributes or {})


class Photo(Node):
    photo: Image

    async def __call__(self) -> Framed: ...


class Framed(Node):
    photo: Annotated[Image, Recall()]
    text: str

    async def __call__(self) -> None: ...


async def test_span_content_has_names_and_sizes_of_files_without_bytes(traced: Traced):
    class Seeing(Model):
        takes_files = frozenset({"image"})

    lm = Seeing('{"text": "white"}')
    with tracing(traced.provider, content=True):
        await Graph(start=Photo, end=Framed).arun(Photo(photo=DOT), lm)
    assert "[image 1: dot.png, image/png" in traced.text()
    assert DOT.base64[:20] not in traced.text()
