"""Conversations over HTTP: the work of a turn, the turn it replaces, and the answers of people in
it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from bae import Ask, Graph, Messages, Node, NodeConfig, Thread, Tool, ToolCall, Tools
from bae.journal import MemoryJournal
from bae.testing import Call, ScriptedLM, Streamed
from serving import serving


def look_up(number: str) -> str:
    """What an order is."""
    return f"{number} is a lamp"


def refund(euros: Annotated[int, Field(le=50)]) -> str:
    """Send money back."""
    return f"sent {euros}"


class Say(Node):
    node_config = NodeConfig(text="text")
    text: str
    language: str = "English"

    async def __call__(self) -> Reply: ...


class Reply(Node):
    history: Annotated[Messages, Thread(last=5)]
    calls: Annotated[list[ToolCall], Tools(look_up, Tool(refund, approve=True), Ask())]
    text: str

    async def __call__(self) -> None: ...


support = Graph(start=Say, end=Reply, name="support")


def replies(*answers: Any) -> dict[str, Any]:
    return {"graphs": {"support": support}, "lm": ScriptedLM({Reply: [*answers]})}


def turn(run_id: str, text: str, thread: str = "ana") -> dict[str, Any]:
    return {"run_id": run_id, "thread": thread, "start": {"text": text}}


async def test_a_turn_shows_its_fields_tool_calls_and_reply():
    call = Call("look_up", number="A-17")
    async with serving(**replies(call, {"text": "A lamp."})) as served:
        await served.post("/graphs/support/runs?wait=10", turn("one", "What is A-17?"))
        found = await served.get("/threads/ana/turns/one")
        assert found["start"]["text"]["value"] == "What is A-17?"
        assert (found["end"], found["reply"]["text"]["value"]) == ("Reply", "A lamp.")
        [made] = found["calls"]
        assert (made["name"], made["state"], made["result"]["value"]) == (
            "look_up",
            "done",
            "A-17 is a lamp",
        )
        assert found["thoughts"] == []
        for path in ("/threads/ben/turns/one", "/threads/ana/turns/two"):
            refused = await served.client.get(path)
            assert (refused.status_code, refused.json()["type"]) == (404, "bae-run-unknown")


async def test_a_resent_turn_names_the_turn_it_replaces():
    async with serving(**replies({"text": "One."}, {"text": "Two."})) as served:
        await served.post("/graphs/support/runs?wait=10", turn("one", "Hello."))
        fork = {"at": 0, "thread": "ana", "run_id": "two", "go_on": True}
        await served.post("/runs/one/forks", {**fork, "changed": {"text": "Good day."}})
        [_] = [data async for kind, _, data in served.events("two") if kind == "end"]
        turns = (await served.get("/threads/ana"))["turns"]
        assert [(turn["user"], turn["replaces"], turn["is_shown"]) for turn in turns] == [
            ("Hello.", None, False),
            ("Good day.", "one", True),
        ]
        await served.post("/runs/one/forks", {"at": 0, "run_id": "apart", "changed": {}})
        assert len((await served.get("/threads/ana"))["turns"]) == 2


async def test_threads_can_be_found_by_graph_and_part_of_the_id():
    async with serving(**replies({"text": "One."}, {"text": "Two."})) as served:
        for run_id, thread in (("one", "Ana-42"), ("two", "ben-7")):
            await served.post("/graphs/support/runs?wait=10", turn(run_id, "Hello.", thread))
        rows = (await served.get("/threads?q=ana"))["threads"]
        assert [(row["thread"], row["text"]) for row in rows] == [("Ana-42", "Hello.")]
        assert len((await served.get("/threads?graph=support"))["threads"]) == 2
        assert (await served.get("/threads?graph=other"))["threads"] == []


async def test_a_tool_call_shows_its_arguments_and_its_approver():
    calls = Call("refund", euros=20), Call("ask_person", question="Which color?")
    async with serving(**replies(*calls, {"text": "Sent."})) as served:
        await served.post("/graphs/support/runs?wait=10", turn("one", "It is wet."))
        [gate] = (await served.get("/inbox"))["gates"]
        assert (gate["kind"], gate["thread"]) == ("approval", "ana")
        assert gate["arguments_schema"]["properties"]["euros"]["maximum"] == 50
        body = {"gate": gate["gate"], "decision": "edit", "arguments": {"euros": 5}}
        await served.post("/runs/one/answers", body)
        [_] = [data async for kind, _, data in served.events("one") if kind == "end"]

        # A tool that asks a person is a question, and no call to approve.
        [gate] = (await served.get("/inbox"))["gates"]
        assert (gate["kind"], gate["question"]) == ("gate", "Which color?")
        assert gate["answer_schema"] == {"type": "string"}
        await served.post("/runs/one/answers", {"gate": gate["gate"], "value": "Blue."})
        [_] = [data async for kind, _, data in served.events("one") if kind == "end"]

        assert (await served.get("/runs/one/gates"))["total"] == 0
        past = (await served.get("/runs/one/gates?past=true"))["gates"]
        assert [gate["answered_by"] for gate in past] == ["ana", "ana"]
        assert past[0]["answer"]["value"]["arguments"] == {"euros": 5}
        assert past[1]["answer"]["value"] == "Blue."
        calls = (await served.get("/threads/ana/turns/one"))["calls"]
        assert [(call["name"], call["person"]) for call in calls] == [
            ("refund", "approved"),
            ("ask_person", "answered"),
        ]


async def test_a_turn_shows_the_thinking_kept_by_the_journal():
    thinks = Streamed({"text": "Hello."}, thinking="They greet me.")
    for keeps, thoughts in ((True, ["They greet me."]), (False, [])):
        journal = MemoryJournal(thinking=keeps)
        async with serving(journal=journal, **replies(thinks)) as served:
            await served.post("/graphs/support/runs?wait=10", turn("one", "Hello."))
            assert (await served.get("/threads/ana/turns/one"))["thoughts"] == thoughts
