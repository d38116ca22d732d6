"""Faulty tools and models: the fault of a call stays in the call, secrets stay hidden, and the LLM
reads no wrong statements."""

from __future__ import annotations

import asyncio
import io
import json
from contextvars import ContextVar
from typing import Annotated, Any

import pytest
from pydantic import SecretStr

from bae import (
    BaeError,
    Dep,
    GateError,
    Graph,
    Node,
    OpenGate,
    Tool,
    ToolCall,
    ToolCallError,
    ToolError,
    Tools,
)
from bae.journal import MemoryJournal
from bae.lm import Answer, CallPart
from bae.testing import Call, ScriptedLM
from bae.tools import ToolServer
from bounded import error_from
from end_node import EndNode
from naming import describe_value
from tool_backends import ToolBackend, call

ANSWER = {"text": "done"}


def graph_with(*tools: Any, **options: Any) -> Graph[Any, Any]:
    """A graph whose reply is filled with these tools."""

    class Question(Node):
        text: str

        async def __call__(self) -> Reply: ...

    class Reply(EndNode):
        calls: Annotated[list[ToolCall], Tools(*tools, **options)]
        text: str

    return Graph(start=Question, end=Reply)


async def run(graph: Graph[Any, Any], lm: Any, **options: Any) -> list[ToolCall]:
    return (await graph.arun(graph.start(text="?"), lm, **options)).result.calls


def read_last(lm: ToolBackend) -> list[str]:
    """What the LM read in its last request."""
    return [getattr(part, "result", "") for part in lm.prompts[-1].conversation[-1].parts]


# --- arguments and results ----------------------------------------------------------------------


def rewrite(order: dict[str, Any], lines: list[Any], anything: Any) -> str:
    """Change the arguments."""
    order["of"]["name"] = "another"
    lines[0].append("more")
    anything["seen"] = True
    return "ok"


async def test_a_tool_that_mutates_its_arguments_does_not_change_the_recorded_call():
    written = {"order": {"of": {"name": "Ada"}}, "lines": [[1]], "anything": {}}
    graph = graph_with(rewrite)
    lm = ToolBackend([call("rewrite", **written)], RuntimeError("no connection"))
    async with MemoryJournal() as journal:
        await error_from(BaeError, run(graph, lm, journal=journal, run_id="one"))
        (before,) = lm.prompts[-1].conversation[-2].parts
        assert before == CallPart("c1", "rewrite", written)
        again = ToolBackend(ANSWER)
        (made,) = (await graph.resume("one", again, journal=journal)).result.calls
    assert made.arguments == written
    assert read_last(again) == ["ok"]  # and nothing of a person who changed them


@pytest.mark.parametrize("value", ["a\ud800b", {"names": ["a\ud800b"]}])
async def test_a_lone_surrogate_in_a_result_is_replaced(value: Any):
    async def list_files() -> Any:
        """List files, as os.listdir does where a name is no Unicode."""
        return value

    graph = graph_with(list_files)
    async with MemoryJournal() as journal:
        lm = ScriptedLM([Call("list_files"), ANSWER])
        (made,) = await run(graph, lm, journal=journal, run_id="one")
        assert "\ud800" not in str(made.result)
        assert (await graph.replay("one", journal=journal)).result.calls == [made]


place: ContextVar[str] = ContextVar("place", default="nowhere")


@pytest.mark.parametrize("at_once", [1, 64])
async def test_context_variables_set_in_a_tool_call_do_not_leak_into_other_calls(at_once: int):
    async def go(to: str) -> str:
        """Go somewhere."""
        before = place.get()
        place.set(to)
        return before

    calls = [call("go", to=name) for name in ("a", "b", "c")]
    made = await run(graph_with(go, at_once=at_once), ToolBackend(calls, ANSWER))
    assert [tool_call.result for tool_call in made] == ["nowhere"] * 3


async def test_the_model_reads_a_tool_error_of_a_task_started_by_the_tool():
    async def fail(what: str) -> None:
        raise ToolError(f"no {what}")

    async def search(words: str) -> None:
        """Search in two shops at once."""
        async with asyncio.TaskGroup() as group:
            group.create_task(fail(words))
            group.create_task(fail(words))

    (made,) = await run(graph_with(search), ToolBackend([call("search", words="lamp")], ANSWER))
    assert made.error == "no lamp"


async def test_a_tool_call_over_its_timeout_is_not_retried():
    begun: list[str] = []

    async def pay(to: str) -> None:
        """Pay."""
        begun.append(to)
        await asyncio.Event().wait()

    tool = Tool(pay, timeout=0.01, retries=3)
    (made,) = await run(graph_with(tool), ToolBackend([call("pay", to="Ada")], ANSWER))
    assert "it is unknown whether this call ran" in (made.error or "")
    assert begun == ["Ada"]


# --- what models and functions that pick tools give ----------------------------------------------


@pytest.mark.parametrize("arguments", [[1], 3, None])
async def test_arguments_that_are_not_an_object_are_reported_to_the_model(arguments: Any):
    async def look(at: str) -> str:
        """Look."""
        return at

    lm = ToolBackend(Answer("", calls=(CallPart("", "look", arguments),)), ANSWER)
    (made,) = await run(graph_with(look), lm)
    assert made.error == "the arguments are no JSON object"


@pytest.mark.parametrize("value", ["go on", {"action": "look", "at": "b"}])
async def test_a_field_may_share_its_name_with_a_field_of_structured_rounds(value: Any):
    """Also where it is the only one, and the model is offered the answer alone."""

    async def look(at: str) -> str:
        """Look."""
        return at

    class Plan(EndNode):
        calls: Annotated[list[ToolCall], Tools(look)]
        next_step: Any

    class Ask(Node):
        async def __call__(self) -> Plan: ...

    looking = Answer('{"next_step": {"action": "look", "at": "a"}}')
    lm = ToolBackend(looking, looking, Answer(json.dumps({"next_step": value})), native=False)
    result = await Graph(start=Ask, end=Plan).arun(Ask(), lm)
    assert result.result.next_step == value
    assert len(result.result.calls) == 2


def read_clock(zone: Annotated[str, Dep(lambda: "UTC")]) -> str:
    return f"noon {zone}"


async def test_the_model_may_pick_a_tool_that_the_proof_only_warns_about():
    def pick() -> list[Tool]:
        return [Tool(read_clock)]

    (made,) = await run(graph_with(pick), ToolBackend([call("read_clock")], ANSWER))
    assert made.result == "noon UTC"


class Unopened(ToolServer):
    name = "nothing"

    def open(self) -> Any:
        raise AssertionError("it is opened before a run, or not at all")


@pytest.mark.parametrize("picked", [None, "look", [3], [Unopened()]], ids=describe_value)
async def test_the_error_for_an_invalid_list_of_tools_names_the_picking_function(picked: Any):
    def pick() -> list[Tool]:
        return picked

    error = await error_from(ToolCallError, run(graph_with(pick), ToolBackend(ANSWER)))
    assert error.code == "bae-tool-invalid"
    assert "pick" in str(error)


# --- bounds that are others when a run is resumed -----------------------------------------------


@pytest.mark.parametrize(
    "bounds", [{"limit": 1, "on_limit": "answer"}, {"max_calls": 1}], ids=["limit", "max_calls"]
)
async def test_an_interrupted_call_is_reported_as_unknown_under_changed_limits(
    bounds: Any,
):
    async def look(at: str) -> str:
        """Look."""
        return at

    async def send(to: str) -> str:
        """Send."""
        raise RuntimeError("broken")

    rounds = [call("look", at="0")], [call("look", at="1"), call("send", to="Ada")]
    async with MemoryJournal() as journal:
        graph = graph_with(look, send)
        failed = run(graph, ToolBackend(*rounds), journal=journal, run_id="one")
        await error_from(BaeError, failed)
        less = graph_with(look, send, **bounds)
        result = await less.resume("one", ToolBackend(ANSWER), journal=journal)
    assert "it is unknown whether this call ran" in result.result.calls[-1].error


@pytest.mark.parametrize("unfinished", ["tell", "ask", "repeat"])
async def test_an_interrupted_call_stays_unknown_if_its_tool_takes_other_arguments_now(
    unfinished: Any,
):
    async def send(to: str) -> str:
        """Send."""
        raise RuntimeError("broken")

    async def send_now(address: str) -> str:
        """Send."""
        return address

    async with MemoryJournal() as journal:
        graph = graph_with(Tool(send, unfinished=unfinished))
        lm = ToolBackend([call("send", to="Ada")])
        await error_from(BaeError, run(graph, lm, journal=journal, run_id="one"))
        now = graph_with(Tool(send_now, name="send", unfinished=unfinished))
        result = await now.resume("one", ToolBackend(ANSWER), journal=journal)
    assert "it is unknown whether this call ran" in result.result.calls[0].error


# --- secrets ------------------------------------------------------------------------------------

SECRET = "swordfish-7000"
GIVEN: list[tuple[str, str]] = []


async def log_in(user: str, password: SecretStr) -> str:
    """Log in."""
    GIVEN.append((user, password.get_secret_value()))
    return "welcome"


@pytest.fixture(autouse=True)
def nothing_given():
    GIVEN.clear()


async def export_text(journal: MemoryJournal) -> str:
    file = io.BytesIO()
    await journal.export(file)
    return file.getvalue().decode()


async def test_a_changed_secret_argument_is_not_reported_to_the_model():
    lm = ToolBackend([call("log_in", user="ada", password=SECRET)], ANSWER)
    await run(graph_with(log_in), lm)
    assert read_last(lm) == ["welcome"]


@pytest.mark.parametrize(
    "wrong",
    [
        CallPart("", "log_in", {"user": "ada", "passwort": SECRET}),
        CallPart("", "login", {"user": "ada", "password": SECRET}),
        CallPart("", "log_in", f'{{"user": "ada", "password": "{SECRET}'),
    ],
    ids=["parameter", "tool", "JSON"],
)
async def test_a_secret_in_an_invalid_call_is_hidden_too(wrong: CallPart):
    graph = graph_with(log_in)
    lm = ToolBackend(Answer("", calls=(wrong,)), RuntimeError("no connection"))
    async with MemoryJournal() as journal:
        await error_from(BaeError, run(graph, lm, journal=journal, run_id="one"))
        assert SECRET not in await export_text(journal)
        again = ToolBackend([call("log_in", user="ada", password=SECRET)], ANSWER)
        result = await graph.resume("one", again, journal=journal)
        assert SECRET not in await export_text(journal)
    assert SECRET not in str(result.result.calls)
    assert GIVEN == [("ada", SECRET)]


async def test_a_person_can_change_arguments_without_changing_a_secret_argument():
    async def person(gate: OpenGate) -> Any:
        assert gate.call is not None
        return {"arguments": {**gate.call.arguments, "user": "bob"}}

    lm = ToolBackend([call("log_in", user="ada", password=SECRET)], ANSWER)
    (made,) = await run(graph_with(Tool(log_in, approve=True)), lm, answer=person)
    assert GIVEN == [("bob", SECRET)]
    assert made.arguments == {"user": "bob", "password": "**********"}


async def test_a_secret_from_a_person_is_used_and_not_stored():
    async def person(gate: OpenGate) -> Any:
        return {"arguments": {"user": "ada", "password": SECRET}}

    graph = graph_with(Tool(log_in, approve=True))
    async with MemoryJournal() as journal:
        lm = ToolBackend([call("log_in", user="ada", password="guess-1")], ANSWER)
        await run(graph, lm, answer=person, journal=journal, run_id="one")
        assert GIVEN == [("ada", SECRET)]
        assert SECRET not in await export_text(journal)
        lm = ToolBackend([call("log_in", user="ada", password="guess-1")], ANSWER)
        await graph.arun(graph.start(text="?"), lm, journal=journal, run_id="two")
        answer = {"arguments": {"user": "ada", "password": SECRET}}
        answering = graph.answer("two", "c1", answer, lm, journal=journal)
        refused = await error_from(GateError, answering)
        assert refused.code == "bae-gate-invalid"
        assert SECRET not in await export_text(journal) + str(refused)


async def test_a_reused_result_is_recorded_with_the_arguments_that_produced_it():
    async def refund(order: str) -> str:
        """Send money back."""
        return f"sent for {order}"

    async def person(gate: OpenGate) -> Any:
        return {"arguments": {"order": "A2"}}

    lm = ToolBackend([call("refund", order="A1"), call("refund", order="A1")], ANSWER)
    tool = Tool(refund, approve=True, repeat="reuse")
    made = await run(graph_with(tool), lm, answer=person)
    assert [(tool_call.arguments, tool_call.result) for tool_call in made] == [
        ({"order": "A2"}, "sent for A2")
    ] * 2
    assert all(text.startswith("[a person changed") for text in read_last(lm))


# --- a CancelledError that nobody asked for -----------------------------------------------------


async def give_up(text: str) -> str:
    """Give up."""
    raise asyncio.CancelledError(text)


def give_up_in_thread(text: str) -> str:
    """Give up."""
    raise asyncio.CancelledError(text)


@pytest.mark.parametrize("tool", [give_up, give_up_in_thread])
async def test_a_cancelled_error_raised_by_a_tool_is_a_failure_of_the_tool(tool: Any):
    journal, others = MemoryJournal(), asyncio.Event()

    async def wait() -> str:
        """Wait."""
        try:
            await asyncio.Event().wait()
        finally:
            others.set()
        return ""

    name = tool.__name__
    lm = ScriptedLM([[Call("wait"), Call(name, text="by myself")], ANSWER])
    async with asyncio.timeout(30):
        running = run(graph_with(tool, wait), lm, journal=journal)
        error = await error_from(ToolCallError, running)
    assert error.code == "bae-tool-failed"
    assert f"{name} raised CancelledError" in error.message
    assert isinstance(error.cause, asyncio.CancelledError)
    assert others.is_set()
    assert [info.status for info in await journal.runs()] == ["failed"]


async def test_a_cancelled_error_raised_by_accept_or_approve_names_the_function():
    def refuse(reply: Any) -> None:
        raise asyncio.CancelledError

    def ask(text: str) -> bool:
        raise asyncio.CancelledError

    error = await error_from(
        ToolCallError, run(graph_with(give_up, accept=refuse), ScriptedLM([ANSWER]))
    )
    assert (error.code, "refuse" in error.message) == ("bae-tools-accept", True)
    graph, lm = graph_with(Tool(give_up, approve=ask)), ScriptedLM([Call("give_up", text="")])
    error = await error_from(ToolCallError, run(graph, lm))
    assert (error.code, "give_up" in error.message) == ("bae-tool-approve", True)
