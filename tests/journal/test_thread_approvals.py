"""A yes for a thread holds in the other turns of the thread, and nowhere else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest
import pytest_asyncio

from bae import Approval, GateError, Graph, JournalError, Node, OpenGate, Tool, ToolCall, Tools
from bae.journal import Journal, MemoryJournal, SQLiteJournal
from bae.lm import Answer, Backend, CallPart, Prompt
from bae.testing import Call, ScriptedLM
from end_node import EndNode

DONE: list[str] = []


@pytest.fixture(autouse=True)
def nothing_done():
    DONE.clear()


def refund(order: str) -> str:
    """Send money back."""
    DONE.append(order)
    return f"sent for {order}"


def close(order: str) -> str:
    """Close an order."""
    DONE.append(f"closed {order}")
    return f"closed {order}"


class Question(Node):
    text: str

    async def __call__(self) -> Reply: ...


class Reply(EndNode):
    calls: Annotated[list[ToolCall], Tools(Tool(refund, approve=True), Tool(close, approve=True))]
    text: str


graph = Graph(start=Question, end=Reply)


@pytest_asyncio.fixture(params=["memory", "file"])
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Journal]:
    made = MemoryJournal() if request.param == "memory" else SQLiteJournal(tmp_path / "runs.db")
    async with made as opened:
        yield opened


def calling(*calls: Call) -> ScriptedLM:
    return ScriptedLM({"Reply": [*([call] for call in calls), {"text": "done"}]})


class Meanwhile(Backend):
    """Calls the refund, after something else has happened."""

    model = "meanwhile"
    calls_tools = True

    def __init__(self, happens: Callable[[], Awaitable[None]]) -> None:
        self._happens = happens

    async def answer(self, prompt: Prompt) -> Answer:
        await self._happens()
        return Answer("", calls=(CallPart("", "refund", {"order": "B"}),))


async def turn(journal: Journal, order: str, thread: str | None = "ana", **options: Any) -> Any:
    """A turn in which the LM refunds an order."""
    options = {"run_id": order, "thread": thread, **options}
    lm = calling(Call("refund", order=order))
    return await graph.arun(Question(text=order), lm, journal=journal, **options)


async def approve_turn(journal: Journal, order: str, answer: Any = "thread") -> Any:
    """A turn whose refund a person approves."""
    assert (await turn(journal, order)).waiting
    lm = ScriptedLM({"Reply": {"text": "done"}})
    return await graph.answer(order, "c1", answer, lm, journal=journal)


async def test_an_approval_for_the_thread_covers_only_this_tool_in_later_turns(journal: Journal):
    assert (await approve_turn(journal, "A")).result.text == "done"
    assert (await turn(journal, "B")).result.calls[0].result == "sent for B"
    lm = calling(Call("refund", order="C"), Call("close", order="C"))
    options: Any = {"thread": "ana", "journal": journal, "run_id": "C"}
    parked = await graph.arun(Question(text="C"), lm, **options)
    assert [gate.place for gate in parked.waiting] == ["Reply.calls(close)(c2)"]
    assert DONE == ["A", "B", "C"]


async def test_a_thread_approval_by_the_answerer_covers_later_turns(journal: Journal):
    asked: list[str] = []

    async def person(gate: OpenGate) -> Any:
        asked.append(gate.place)
        return Approval(approve=True, scope="thread")

    both = [Call("refund", order="A"), Call("refund", order="B")]
    lm = ScriptedLM({"Reply": [both, {"text": "done"}]})
    options: Any = {"thread": "ana", "journal": journal, "answer": person}
    await graph.arun(Question(text="both"), lm, **options)
    asked.clear()
    await turn(journal, "C", answer=person)
    assert asked == []
    assert sorted(DONE) == ["A", "B", "C"]


async def test_an_approval_survives_a_restart_and_is_listed_and_revoked_by_another_process(
    tmp_path: Path,
):
    path = tmp_path / "runs.db"
    async with SQLiteJournal(path) as journal:
        await approve_turn(journal, "A")
    async with SQLiteJournal(path) as journal, SQLiteJournal(path) as other:
        assert not (await turn(journal, "B")).waiting
        thread = graph.thread("ana", journal=other)
        (grant,) = await thread.approvals()
        assert (grant.tool, grant.place) == ("refund", "Reply.calls(refund)")
        assert (grant.scope, grant.run_id, grant.revoked) == ("thread", "A", False)
        assert await other.approvals("B") == [grant]
        assert [approval.revoked for approval in await thread.revoke("refund")] == [True]
        assert (await turn(journal, "C")).waiting
        for revoke in (thread.revoke, lambda tool: other.revoke("B", tool)):
            with pytest.raises(JournalError) as caught:
                await revoke("refund")
            assert caught.value.code == "bae-approval-unknown"


async def test_an_approval_is_revoked_through_any_run_of_the_thread_even_in_progress(
    journal: Journal,
):
    await approve_turn(journal, "A")
    went_on: list[str] = []

    async def revoke() -> None:
        """A person elsewhere, while the LM is asked."""
        await journal.revoke("B", "Reply.calls(refund)")
        went_on.append((await journal.info("B")).status)

    lm = Meanwhile(revoke)
    options: Any = {"thread": "ana", "journal": journal, "run_id": "B"}
    parked = await graph.arun(Question(text="B"), lm, **options)
    assert went_on == ["running"]
    assert [gate.place for gate in parked.waiting] == ["Reply.calls(refund)(c1)"]
    assert DONE == ["A"]


async def test_an_approval_for_the_run_does_not_cover_the_next_turn(journal: Journal):
    await approve_turn(journal, "A", "run")
    assert (await turn(journal, "B")).waiting
    assert await graph.thread("ana", journal=journal).approvals() == []


async def test_an_approval_does_not_cover_other_threads_or_forks(journal: Journal):
    await approve_turn(journal, "A")
    for thread in ("ben", "an", "ANA", "ana ", None):
        assert (await turn(journal, f"B {thread}", thread)).waiting
    apart = await graph.fork("A", at=0, journal=journal)
    lm = calling(Call("refund", order="A"))
    assert (await graph.resume(apart, lm, journal=journal)).waiting
    await graph.thread("ana", journal=journal).fork("copy")
    assert await graph.thread("copy", journal=journal).approvals() == []
    assert (await turn(journal, "C", "copy")).waiting
    assert DONE == ["A"]


async def test_an_approval_does_not_cover_another_graph_of_the_thread(
    journal: Journal,
):
    def wire(order: str) -> str:
        DONE.append(f"wired {order}")
        return order

    other = _with_reply(Tool(wire, name="refund", approve=True))
    await approve_turn(journal, "A")
    lm = calling(Call("refund", order="B"))
    parked = await other.arun(other.start(text="B"), lm, journal=journal, thread="ana")
    assert [gate.place for gate in parked.waiting] == ["Reply.calls(refund)(c1)"]


def _with_reply(tool: Any) -> Graph[Any, Any]:
    class Reply(EndNode):
        calls: Annotated[list[ToolCall], Tools(tool)]
        text: str

    class Ask(Node):
        text: str

        async def __call__(self) -> Reply: ...

    return Graph(start=Ask, end=Reply)


async def test_an_approval_outlives_a_failed_or_replaced_turn(journal: Journal):
    async def broken(asked: Any) -> Any:
        raise RuntimeError("broken")

    await turn(journal, "A")
    lm = ScriptedLM({"Reply": [broken]})
    with pytest.raises(Exception, match="broken"):
        await graph.answer("A", "c1", "thread", lm, journal=journal)
    assert (await journal.info("A")).status == "failed"
    assert not (await turn(journal, "B")).waiting
    new = await graph.fork("B", at=0, journal=journal, thread="ana", text="C")
    again = await graph.resume(new, calling(Call("refund", order="C")), journal=journal)
    assert not again.waiting
    await journal.delete(["A"])
    assert (await turn(journal, "D")).waiting


async def test_a_run_without_a_thread_refuses_an_approval_for_the_thread(journal: Journal):
    await turn(journal, "A", None)
    with pytest.raises(GateError, match="belongs to no thread") as caught:
        await graph.answer("A", "c1", "thread", journal=journal)
    assert caught.value.code == "bae-gate-invalid"
    problems: list[str] = []

    async def person(gate: OpenGate) -> Any:
        problems.append(gate.problem or "")
        return "run" if gate.problem else "thread"

    for given in (journal, None):
        lm = calling(Call("refund", order="B"))
        await graph.arun(Question(text="B"), lm, journal=given, answer=person)
    assert ["no thread" in problem for problem in problems] == [False, True, False, True]


async def test_a_loaded_thread_approval_covers_only_its_run_by_default(
    tmp_path: Path,
):
    async with MemoryJournal() as journal:
        await approve_turn(journal, "A")
        await journal.export(tmp_path / "runs.jsonl")
    async with MemoryJournal() as copy:
        await copy.load(tmp_path / "runs.jsonl")
        assert [approval.scope for approval in await copy.approvals("A")] == ["run"]
        assert (await turn(copy, "B")).waiting
        assert (await graph.replay("A", journal=copy)).result.text == "done"
    async with MemoryJournal() as moved:
        await moved.load(tmp_path / "runs.jsonl", unfinished="keep")
        assert not (await turn(moved, "B")).waiting


async def test_a_turn_with_an_approved_call_is_replayed_and_resumed_after_any_line(
    journal: Journal,
):
    await approve_turn(journal, "A")
    first = await turn(journal, "B")
    assert (await graph.replay("B", journal=journal)).trace == first.trace
    stored = await journal.read("B")
    for count in range(1, len(stored.lines)):
        async with MemoryJournal() as left:
            await left.put(await journal.read("A"))
            info = replace(stored.info, status="running", summary=None)
            await left.put(replace(stored, info=info, lines=stored.lines[:count]))
            asked = [line.kind for line in stored.lines[:count]].count("RoundMade")
            lm = ScriptedLM({"Reply": [[Call("refund", order="B")], {"text": "done"}][asked:]})
            again = await graph.resume("B", lm, journal=left)
            assert again.result.text == "done"
            assert not again.waiting
