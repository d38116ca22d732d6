"""Journals of runs in which people are asked about tool calls: killed, exported, forked, redacted,
replayed, and sent a message by another process."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Annotated, Any

import pytest

from bae import (
    LM,
    Ask,
    GateError,
    Graph,
    JournalError,
    Map,
    Node,
    OpenGate,
    Tool,
    ToolCall,
    Tools,
)
from bae.journal import Journal, MemoryJournal, SQLiteJournal
from bae.lm import Answer
from bae.prompts.messages import CallPart
from bae.testing import Call, ScriptedLM
from end_node import EndNode
from journal_graphs import cut_journal
from toy_backend import ToyBackend

DONE: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def nothing_done():
    DONE.clear()


async def refund(order: str) -> str:
    """Send money back."""
    DONE[f"refund {order}"] += 1
    return f"sent {order}"


async def find(order: str) -> str:
    """Find an order."""
    DONE[f"find {order}"] += 1
    return order


class Question(Node):
    text: str

    async def __call__(self) -> Reply: ...


class Reply(EndNode):
    calls: Annotated[list[ToolCall], Tools(Tool(refund, approve=True), find, Ask(int))]
    text: str


class Batch(EndNode):
    texts: list[str]
    replies: Annotated[list[Reply], Map(Graph(start=Question, end=Reply), over="texts")]


graph, batch = Graph(start=Question, end=Reply), Graph(start=Batch)
START = Question(text="where?")
ROUND = [Call("refund", order="A"), Call("find", order="B"), Call("ask_person", question="n?")]
ANSWER = {"text": "done"}


async def park(journal: Journal) -> None:
    """A run that waits at two gates, with one call done."""
    result = await graph.arun(START, ScriptedLM({"Reply": [ROUND]}), journal=journal, run_id="one")
    assert [gate.names[-1] for gate in result.waiting] == ["c1", "c3"]
    assert DONE == {"find B": 1}


async def test_a_parked_run_cut_after_any_line_parks_again_without_repeated_work():
    async with MemoryJournal() as journal:
        await park(journal)
        stored = await journal.read("one")
        for count in range(1, len(stored.lines)):
            DONE.clear()
            left = await cut_journal(journal, count)
            kinds = Counter(line.kind for line in stored.lines[:count])
            lm = ScriptedLM({"Reply": [ROUND][kinds["RoundMade"] :]})
            again = await graph.resume("one", lm, journal=left)
            assert [gate.names[-1] for gate in again.waiting] == ["c1", "c3"]
            assert DONE.total() == 1 - kinds["ToolStarted"]
            assert kinds["GateOpened"] <= 2
            opened = [line for line in (await left.read("one")).lines if line.kind == "GateOpened"]
            assert len(opened) == 2


async def test_answers_approvals_and_messages_are_exported_and_loaded(tmp_path: Path):
    async with MemoryJournal() as journal, MemoryJournal() as other:
        await park(journal)
        await graph.answer("one", "c1", "run", journal=journal, go_on=False)
        await journal.revoke("one", "refund")
        await graph.tell("one", "hurry", journal=journal)
        await journal.export(tmp_path / "runs.jsonl")
        await other.load(tmp_path / "runs.jsonl", unfinished="keep")
        assert await other.answers("one") == await journal.answers("one")
        backend = ToyBackend(ANSWER)
        backend.calls_tools = True
        result = await graph.answer("one", "c3", 7, backend, journal=other)
        assert [call.result for call in result.result.calls] == [None, "B", 7]
        assert backend.prompts[0].conversation[-1].parts[-1].text == "hurry"
        replayed = await graph.replay("one", journal=other)
        assert replayed.result == result.result


async def approve_or_answer(gate: OpenGate) -> Any:
    return 7 if gate.type is int else True


async def test_why_shows_which_calls_a_person_approved_or_answered():
    async with MemoryJournal() as journal:
        lm = ScriptedLM({"Reply": [ROUND, ANSWER]})
        await graph.arun(START, lm, journal=journal, run_id="one", answer=approve_or_answer)
        calls = await journal.why("one", "Reply.calls")
    assert [call.person for call in calls.calls] == ["approved", "", "answered"]
    assert 'round 1, approved by a person: c1 refund(order="A") = "sent A"' in str(calls)
    assert 'round 1: c2 find(order="B") = "B"' in str(calls)


class Desk(Node):
    text: str

    async def __call__(self, lm: LM) -> Reply:
        return await lm.make(self, Reply)


async def test_tool_calls_of_an_lm_in_a_body_are_listed_with_their_rounds():
    async with MemoryJournal() as journal:
        lm = ScriptedLM({"Reply": [ROUND, ANSWER]})
        run = Graph(start=Desk, end=Reply).arun(
            Desk(text="where?"), lm, journal=journal, run_id="one", answer=approve_or_answer
        )
        await run
        calls = await journal.why("one", "Reply.calls")
        text = await journal.why("one", "Reply.text")
    assert (calls.source, calls.by, calls.is_calls) == ("body", "Desk.__call__", True)
    assert [call.person for call in calls.calls] == ["approved", "", "answered"]
    assert "returned by Desk.__call__, after 3 tool calls" in str(text)


async def test_an_export_with_an_answer_for_an_unknown_gate_is_refused(tmp_path: Path):
    async with MemoryJournal() as journal, MemoryJournal() as other:
        await park(journal)
        for address in ("1:Reply.calls(refund)(c9)(abc)", "tell:first", "1:Reply.text(revoked)"):
            left = MemoryJournal()
            await left.put(await journal.read("one"))
            await left.answer("one", address, "true")
            await left.export(tmp_path / "runs.jsonl")
            with pytest.raises(JournalError, match="no line opens the gate"):
                await other.load(tmp_path / "runs.jsonl")


async def test_a_replay_of_a_parked_run_ends_at_its_gate():
    async with MemoryJournal() as journal:
        await park(journal)
        replayed = await graph.replay("one", journal=journal)
        assert [gate.names[-1] for gate in replayed.waiting] == ["c1", "c3"]
        assert DONE == {"find B": 1}


async def test_a_fork_asks_for_approval_again():
    async with MemoryJournal() as journal:
        await park(journal)
        lm = ScriptedLM({"Reply": [ANSWER]})
        await graph.answer("one", "c1", "run", lm, journal=journal)
        await graph.answer("one", "c3", 7, lm, journal=journal)
        forked = await graph.fork("one", at=0, journal=journal, text="why?")
        again = await graph.resume(forked, ScriptedLM({"Reply": [ROUND]}), journal=journal)
        assert len(again.waiting) == 2
        assert await journal.approvals(forked) == []
        await graph.tell(forked, "hello", journal=journal)


async def test_redaction_removes_approval_answers_and_messages():
    async with MemoryJournal() as journal:
        await park(journal)
        lm = ScriptedLM({"Reply": [ANSWER]})
        await graph.answer("one", "c3", 42_424_242, lm, journal=journal)
        await graph.tell("one", "the code is blue tulip", journal=journal)
        await graph.answer("one", "c1", "no: secret reason", lm, journal=journal)
        await journal.redact("one", "Reply.calls")
        stored = await journal.read("one")
        left = repr(stored)
        for text in ("42424242", "blue tulip", "secret reason"):
            assert text not in left
        assert stored.answers == {}


async def test_calls_of_several_conversations_have_separate_gates():
    async with MemoryJournal() as journal:
        script = {"Reply": lambda asked: [Call("refund", order=asked.previous.text)]}
        parked = await batch.arun(
            Batch(texts=["A", "B"]), ScriptedLM(script), journal=journal, run_id="one"
        )
        places = [gate.address.rpartition("(")[0] for gate in parked.waiting]
        assert sorted(places) == [
            f"0:Batch.replies[{n}]/1:Reply.calls(refund)(c1)" for n in range(2)
        ]
        with pytest.raises(GateError) as caught:
            await batch.answer("one", "c1", True, journal=journal)
        assert caught.value.code == "bae-gate-ambiguous"
        lm = ScriptedLM({"Reply": [ANSWER, ANSWER]})
        await batch.answer("one", parked.waiting[1].address, "run", lm, journal=journal)
        (info,) = await journal.runs()
        assert info.status == "ended"  # the yes holds for the tool in the whole run
        assert DONE == {"refund A": 1, "refund B": 1}


async def test_a_graph_used_as_a_tool_asks_about_its_own_calls():
    class Task(Node):
        order: str

        async def __call__(self) -> Reply: ...

    agent = Graph(start=Task, end=Reply)

    class Desk(Node):
        text: str

        async def __call__(self) -> Letter: ...

    class Letter(EndNode):
        calls: Annotated[list[ToolCall], Tools(Tool(agent, name="agent", approve=True))]
        text: str

    desk = Graph(start=Desk, end=Letter)
    async with MemoryJournal() as journal:
        lm = ScriptedLM(
            {
                "Letter": [[Call("agent", order="A")], ANSWER],
                "Reply": [[Call("refund", order="A")], ANSWER],
            }
        )
        parked = await desk.arun(Desk(text="a"), lm, journal=journal, run_id="one")
        assert parked.waiting[0].place == "Letter.calls(agent)(c1)"
        inside = await desk.answer("one", "c1", True, lm, journal=journal)
        assert inside.waiting[0].place == "Reply.calls(refund)(c1)"
        result = await desk.answer("one", inside.waiting[0].address, True, lm, journal=journal)
        assert result.result.calls[0].result["text"] == "done"
        assert DONE == {"refund A": 1}
        lm.assert_complete()


async def test_tools_chosen_in_a_run_ask_for_approval():
    async def pick() -> list[Tool]:
        return [Tool(refund, approve=True), Ask(int)]  # type: ignore[list-item]

    class Reply(EndNode):
        calls: Annotated[list[ToolCall], Tools(pick)]
        text: str

    class Start(Node):
        text: str

        async def __call__(self) -> Reply: ...

    graph = Graph(start=Start, end=Reply)
    calls = [
        Call("refund", order="A"),
        Call("refund", order="B"),
        Call("ask_person", question="how many?"),
        Call("ask_person", question="how many more?"),
    ]
    async with MemoryJournal() as journal:
        lm = ScriptedLM({"Reply": [calls, ANSWER]})
        await graph.arun(Start(text="a"), lm, journal=journal, run_id="one")
        answers = {"c1": "yes", "c2": {"arguments": {"order": [1]}}, "c3": 7, "c4": "many"}
        for call, answer in answers.items():
            await graph.answer("one", call, answer, journal=journal, go_on=False)
        result = await graph.resume("one", lm, journal=journal)
        done, wrong, number, word = result.result.calls
        assert (done.result, number.result) == ("sent A", 7)
        assert "which do not fit: order" in (wrong.error or "")
        assert "does not fit" in (word.error or "")
        assert DONE == {"refund A": 1}


async def test_another_process_sends_a_message_to_a_run_in_progress(tmp_path: Path):
    started, go = asyncio.Event(), asyncio.Event()

    async def wait(order: str) -> str:
        """Wait."""
        started.set()
        await go.wait()
        return order

    class Reply(EndNode):
        calls: Annotated[list[ToolCall], Tools(wait)]
        text: str

    class Start(Node):
        text: str

        async def __call__(self) -> Reply: ...

    graph = Graph(start=Start, end=Reply)
    backend = ToyBackend(Answer("", calls=(CallPart("x", "wait", {"order": "A"}),)), ANSWER)
    backend.calls_tools = True
    path = tmp_path / "runs.db"
    async with SQLiteJournal(path) as journal, asyncio.TaskGroup() as group:
        run = group.create_task(graph.arun(Start(text="a"), backend, journal=journal, run_id="one"))
        await started.wait()
        command = [sys.executable, "-m", "bae", "runs", "tell", "one", "be quick", "-j", str(path)]
        told = await asyncio.create_subprocess_exec(*command)
        assert await told.wait() == 0
        go.set()
        await run
    assert backend.prompts[1].conversation[-1].parts[-1].text == "be quick"


KILLED = """
import asyncio, os, signal, sys
sys.path.insert(0, {tests!r})
from journal.test_asked_calls import START, ROUND, graph
from bae.journal import SQLiteJournal
from bae.testing import ScriptedLM

async def person(gate):
    print(gate.place, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with SQLiteJournal(sys.argv[1]) as journal:
        lm = ScriptedLM({{"Reply": [ROUND]}})
        await graph.arun(START, lm, journal=journal, run_id="one", answer=person)

asyncio.run(main())
"""


@pytest.mark.once
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills a process")
async def test_a_process_killed_at_an_open_gate_loses_no_work(tmp_path: Path):
    tests = str(Path(__file__).parents[1])
    path = tmp_path / "runs.db"
    command = [sys.executable, "-c", KILLED.format(tests=tests), str(path)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert printed.startswith(b"Reply.calls(refund)(c1)")
    async with SQLiteJournal(path) as journal:
        lm = ScriptedLM({"Reply": [ANSWER]})
        stored = await journal.read("one")
        finished = [line for line in stored.lines if line.kind == "ToolEnded"]

        async def person(gate: OpenGate) -> Any:
            return 7 if gate.type is int else True

        left = await cut_journal(journal)  # the lease of the dead process is not waited for
        result = await graph.resume("one", lm, journal=left, answer=person)
        assert [call.error for call in result.result.calls if call.name != "find"] == [None, None]
        assert DONE["refund A"] == 1
        assert DONE["find B"] <= 1 - len(finished)
        lm.assert_complete()


@pytest.mark.parametrize("seed", range(40))
async def test_every_call_follows_its_answer_wherever_the_run_is_cut(
    seed: int,
):
    random = Random(seed)
    calls = [Call("refund", order=f"A{n}") for n in range(random.randint(1, 5))]
    kinds = {f"c{n}": random.choice(["yes", "no", "edit", "run"]) for n in range(1, len(calls) + 1)}
    left, answered = [*kinds], dict[str, str]()
    random.shuffle(left)
    journal = MemoryJournal()
    lm = ScriptedLM({"Reply": [calls]})
    parked = await graph.arun(START, lm, journal=journal, run_id="one")
    while parked.waiting:
        for _ in range(random.randint(1, 2)):
            waiting = {gate.names[-1] for gate in parked.waiting} - answered.keys()
            call = next((call_id for call_id in left if call_id in waiting), None)
            if call is None:
                break
            said = {"edit": {"arguments": {"order": f"B{call[1:]}"}}}.get(kinds[call], kinds[call])
            await graph.answer("one", call, said, journal=journal, go_on=False)
            answered[call] = kinds[call]
        if random.random() < 0.5:  # killed while it was parked, or just before
            lines = (await journal.read("one")).lines
            done = max(line.n for line in lines if line.kind in ("GateOpened", "ToolEnded"))
            journal = await cut_journal(journal, random.randint(done + 1, len(lines)))
        parked = await graph.resume("one", ScriptedLM({"Reply": [ANSWER]}), journal=journal)
    wanted = Counter[str]()
    for call, kind in kinds.items():
        if answered.get(call, "run") != "no":
            is_edited = call in answered and kind == "edit"
            number = int(call[1:])
            wanted[f"refund B{number}" if is_edited else f"refund A{number - 1}"] += 1
    assert wanted == DONE
    assert len(parked.result.calls) == len(calls)
    assert set(kinds) == answered.keys() or "run" in answered.values()
    assert (await graph.replay("one", journal=journal)).result == parked.result
