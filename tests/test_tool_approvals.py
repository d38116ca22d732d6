"""People in a conversation with tools: a person approves a call, changes or refuses it, answers a
question of the model, says what became of an interrupted call, and tells a run something."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import date
from functools import partial
from typing import Annotated, Any

import pytest
from pydantic import SecretStr

from bae import (
    LM,
    Approval,
    Ask,
    Dep,
    Gate,
    GateError,
    Graph,
    Interruption,
    JournalError,
    Map,
    Node,
    OpenGate,
    ProofError,
    Tool,
    ToolCall,
    ToolCallError,
    Tools,
)
from bae.journal import MemoryJournal
from bae.lm import Answer, Prompt
from bae.prompts.messages import CallPart
from bae.testing import Call, ScriptedLM
from bounded import some_turns
from end_node import EndNode
from journal_graphs import cut_journal
from tool_backends import ToolBackend, call
from toy_backend import ToyBackend

DONE: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def nothing_done():
    DONE.clear()


async def refund(order: str, euros: int = 5) -> str:
    """Send money back."""
    DONE[f"refund {order} {euros}"] += 1
    return f"sent {euros}"


async def look_up(order: str) -> str:
    """Look up an order."""
    DONE[f"look up {order}"] += 1
    return f"{order}: a kettle"


class Question(Node):
    text: str

    async def __call__(self) -> Reply: ...


class Reply(EndNode):
    calls: Annotated[list[ToolCall], Tools(Tool(refund, approve=True), look_up)]
    text: str


graph = Graph(start=Question, end=Reply)
START = Question(text="Where is my money?")
ANSWER = {"text": "done"}


def calling(*calls: Call, then: Any = ANSWER) -> ScriptedLM:
    """An LM that makes these calls in one round, and then answers."""
    return ScriptedLM({"Reply": [[*calls], then]})


def asking(tool: Any, *more: Any, **options: Any) -> Graph[Any, Any]:
    """A graph whose reply has these tools."""

    class Question(Node):
        text: str

        async def __call__(self) -> Reply: ...

    class Reply(EndNode):
        calls: Annotated[list[ToolCall], Tools(tool, *more, **options)]
        text: str

    return Graph(start=Question, end=Reply)


def start(graph: Graph[Any, Any]) -> Any:
    return graph.start(text="Where is my money?")


class Person:
    """Answers gates with these answers, in order, and remembers the gates."""

    def __init__(self, *answers: Any) -> None:
        self.answers = [*answers]
        self.gates: list[OpenGate] = []

    async def __call__(self, gate: OpenGate) -> Any:
        self.gates.append(gate)
        return self.answers.pop(0)


# Answered at once


async def test_a_tool_call_runs_after_a_persons_approval():
    person = Person(True)
    result = await graph.arun(START, calling(Call("refund", order="A1", euros=20)), answer=person)
    (call,) = result.result.calls
    assert (call.result, call.error) == ("sent 20", None)
    (gate,) = person.gates
    assert gate.call is not None
    assert (gate.call.name, gate.call.arguments) == ("refund", {"order": "A1", "euros": 20})
    assert gate.question == "Allow refund(order='A1', euros=20)?"
    assert gate.place == "Reply.calls(refund)(c1)"
    assert gate.context == {"order": "A1", "euros": 20}


async def test_a_refused_call_does_not_run_and_the_model_reads_the_reason():
    person = Person(Approval(approve=False, reason="too much"))
    result = await graph.arun(START, calling(Call("refund", order="A1")), answer=person)
    (call,) = result.result.calls
    assert call.error == "a person refused this call: too much"
    assert not DONE


async def test_refusals_do_not_count_as_mistakes_of_the_model():
    calls = [[Call("refund", order=f"A{n}")] for n in range(6)]
    lm = ScriptedLM({"Reply": [*calls, ANSWER]}, attempts=2)
    result = await graph.arun(START, lm, answer=Person(*[False] * 6))
    assert [call.error for call in result.result.calls] == ["a person refused this call"] * 6


async def test_a_person_can_change_the_arguments_and_the_model_sees_the_change():
    backend = ToyBackend(
        Answer("", calls=(CallPart("x", "refund", {"order": "A1", "euros": 90}),)), ANSWER
    )
    backend.calls_tools = True
    person = Person({"arguments": {"order": "A1", "euros": "9"}})
    result = await graph.arun(START, backend, answer=person)
    (call,) = result.result.calls
    assert call.arguments == {"order": "A1", "euros": "9"}
    assert DONE == {"refund A1 9": 1}
    (part,) = backend.prompts[1].conversation[-1].parts
    text = '[a person changed the arguments: {"order":"A1","euros":"9"}]\nsent 9'
    assert getattr(part, "result", "") == text


async def test_changed_arguments_are_stored_as_json():
    async def book(day: date) -> str:
        """Book a day."""
        return day.isoformat()

    graph = asking(Tool(book, approve=True))
    person = Person(Approval(approve=True, arguments={"day": date(2026, 5, 1)}))
    result = await graph.arun(start(graph), calling(Call("book", day="2026-01-01")), answer=person)
    (call,) = result.result.calls
    assert (call.arguments, call.result) == ({"day": "2026-05-01"}, "2026-05-01")


async def test_invalid_changed_arguments_are_asked_for_again():
    person = Person(Approval(approve=True, arguments={"order": "A1", "euros": "lots"}), False)
    await graph.arun(START, calling(Call("refund", order="A1")), answer=person)
    assert "euros" in (person.gates[1].problem or "")
    assert not DONE


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (True, Approval(approve=True)),
        ("yes", Approval(approve=True)),
        ("N", Approval(approve=False)),
        ("no: not today", Approval(approve=False, reason="not today")),
        ("no not today", Approval(approve=False, reason="not today")),
        ("run", Approval(approve=True, scope="run")),
        ("Thread", Approval(approve=True, scope="thread")),
        ({"arguments": {"a": 1}}, Approval(approve=True, arguments={"a": 1})),
    ],
)
def test_an_approval_is_read_from_a_word(said: Any, meant: Approval):
    assert Approval.model_validate(said) == meant


@pytest.mark.parametrize(
    "said",
    [
        "perhaps",
        "nobody",
        3,
        {"approve": False, "scope": "run"},
        {"approve": False, "arguments": {}},
        {"approve": False, "scope": "thread"},
        {"approve": True, "scope": "graph"},
        {"aprove": True},
    ],
)
def test_an_invalid_approval_is_refused(said: Any):
    with pytest.raises(ValueError, match="Approval"):
        Approval.model_validate(said)


async def test_a_question_of_the_tool_is_shown_with_the_call():
    graph = asking(Tool(refund, approve="Send this refund?"))
    person = Person(True)
    await graph.arun(start(graph), calling(Call("refund", order="A1")), answer=person)
    assert person.gates[0].question == "Send this refund? refund(order='A1')"


async def test_a_long_argument_does_not_hide_others_in_an_approval():
    async def pay(note: str, bill: dict[str, Any], items: list[str], euros: int) -> str:
        """Pay."""
        return "paid"

    person = Person(False)
    bill = {"for": "lunch " * 500, "to": "mallory"}
    arguments = {"note": "thanks " * 500, "bill": bill, "items": ["soup"] * 900, "euros": 99_999}
    asked = asking(Tool(pay, approve=True))
    await asked.arun(start(asked), calling(Call("pay", **arguments)), answer=person)
    question = person.gates[0].question
    assert len(question) < 1_000
    assert "'to': 'mallory'" in question
    assert "euros=99999" in question
    assert "(3,500 characters)" in question
    assert "(900 items)" in question
    assert person.gates[0].context == arguments


async def test_an_approve_predicate_sees_defaults_and_decides_if_a_person_is_asked():
    seen: list[int] = []

    async def is_large(euros: int) -> bool:
        seen.append(euros)
        return euros > 10

    graph = asking(Tool(refund, approve=is_large))
    person = Person(False)
    lm = calling(Call("refund", order="A1"), Call("refund", order="A2", euros="90"))
    result = await graph.arun(start(graph), lm, answer=person)
    assert [call.result for call in result.result.calls] == ["sent 5", None]
    assert sorted(seen) == [5, 90]


async def test_an_approve_predicate_that_raises_fails_the_run_before_the_call():
    def broken(**arguments: Any) -> bool:
        raise KeyError("limit")

    graph = asking(Tool(refund, approve=broken))
    with pytest.raises(ToolCallError, match="KeyError") as caught:
        await graph.arun(start(graph), calling(Call("refund", order="A1")))
    assert caught.value.code == "bae-tool-approve"
    assert not DONE


def test_an_approve_predicate_with_other_parameters_is_refused_before_the_run():
    graph = asking(Tool(refund, approve=lambda arguments: True))
    with pytest.raises(
        ProofError, match="takes arguments, and the model gives refund order, euros"
    ):
        graph.prove()
    assert [problem.code for problem in graph.validate()] == ["bae-tool-approve"]


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_timeout_of_zero_for_an_answer_is_refused(seconds: float):
    with pytest.raises(ValueError, match="approve_timeout="):
        Tool(refund, approve=True, approve_timeout=seconds)
    with pytest.raises(ValueError, match="timeout="):
        Ask(timeout=seconds)


@pytest.mark.parametrize("approve", [None, 3, "", " "])
def test_an_invalid_approve_argument_is_refused(approve: Any):
    with pytest.raises((TypeError, ValueError), match="approve="):
        Tool(refund, approve=approve)


async def test_a_yes_for_the_run_covers_later_calls():
    person = Person("run")
    lm = ScriptedLM({"Reply": [[Call("refund", order="A1")], [Call("refund", order="A2")], ANSWER]})
    result = await graph.arun(START, lm, answer=person)
    assert [call.result for call in result.result.calls] == ["sent 5", "sent 5"]


async def test_calls_that_need_no_approval_do_not_wait_for_a_person():
    finished = asyncio.Event()

    async def look_up(order: str) -> str:
        """Look up."""
        finished.set()
        return order

    async def person(gate: OpenGate) -> bool:
        await finished.wait()
        return True

    graph = asking(Tool(refund, approve=True), look_up, at_once=1)
    lm = calling(Call("refund", order="A1"), Call("look_up", order="A1"))
    result = await graph.arun(start(graph), lm, answer=person)
    assert [call.result for call in result.result.calls] == ["sent 5", "A1"]


async def test_a_run_cancelled_during_an_approval_leaves_no_task():
    asked, left = asyncio.Event(), asyncio.Event()

    async def person(gate: OpenGate) -> Any:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    before = asyncio.all_tasks()
    run = asyncio.create_task(graph.arun(START, calling(Call("refund", order="A1")), answer=person))
    await asked.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert left.is_set()
    assert asyncio.all_tasks() == before


async def test_a_failed_tool_closes_the_open_approvals_of_its_round():
    asked, left = asyncio.Event(), asyncio.Event()

    async def person(gate: OpenGate) -> Any:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    async def fail(order: str) -> str:
        """Fail."""
        await asked.wait()
        raise RuntimeError("broken")

    graph = asking(Tool(refund, approve=True), fail)
    lm = calling(Call("refund", order="A1"), Call("fail", order="A1"))
    with pytest.raises(ToolCallError, match="broken"):
        await graph.arun(start(graph), lm, answer=person)
    assert left.is_set()
    assert not DONE


async def test_a_tool_with_its_own_schema_can_need_approval():
    async def send(**arguments: Any) -> str:
        DONE["send"] += 1
        return str(arguments)

    schema = {"type": "object", "properties": {"to": {"type": "string"}}}
    tool = Tool(send, schema=schema, approve=lambda to: to != "me")
    graph = asking(tool)
    person = Person({"arguments": {"to": "you"}})
    lm = calling(Call("send", to="all"), Call("send", to="me"))
    result = await graph.arun(start(graph), lm, answer=person)
    assert [call.arguments for call in result.result.calls] == [{"to": "you"}, {"to": "me"}]
    assert DONE == {"send": 2}


# Parked


TWO = (
    Call("refund", order="A1"),
    Call("look_up", order="A1"),
    Call("refund", order="A2", euros=90),
)


async def test_a_round_with_two_approvals_parks_with_both_and_keeps_finished_calls():
    async with MemoryJournal() as journal:
        lm = calling(*TWO)
        parked = await graph.arun(START, lm, journal=journal, run_id="one")
        assert [gate.place for gate in parked.waiting] == [
            "Reply.calls(refund)(c1)",
            "Reply.calls(refund)(c3)",
        ]
        assert DONE == {"look up A1": 1}
        (info,) = await journal.runs()
        assert info.status == "waiting"
        assert [gate.question for gate in info.waiting] == [
            "Allow refund(order='A1')?",
            "Allow refund(order='A2', euros=90)?",
        ]
        half = await graph.answer("one", "c1", True, lm, journal=journal)
        assert [gate.place for gate in half.waiting] == ["Reply.calls(refund)(c3)"]
        assert DONE == {"look up A1": 1, "refund A1 5": 1}
        result = await graph.answer("one", "c3", "no: too much", lm, journal=journal)
        assert [call.error for call in result.result.calls] == [
            None,
            None,
            "a person refused this call: too much",
        ]
        assert DONE == {"look up A1": 1, "refund A1 5": 1}
        lm.assert_complete()
        assert (await graph.replay("one", journal=journal)).trace == result.trace


async def test_an_answer_reaches_only_its_own_call():
    async with MemoryJournal() as journal:
        lm = calling(*TWO)
        await graph.arun(START, lm, journal=journal, run_id="one")
        with pytest.raises(GateError) as caught:
            await graph.answer("one", "calls", True, journal=journal)
        assert caught.value.code == "bae-gate-ambiguous"
        with pytest.raises(GateError) as caught:
            await graph.answer("one", "c2", True, journal=journal)  # needs nobody
        assert caught.value.code == "bae-gate-unknown"
        await graph.answer("one", "Reply.calls(refund)(c1)", True, lm, journal=journal)
        with pytest.raises(GateError) as caught:
            await graph.answer("one", "c1", False, journal=journal)
        assert caught.value.code == "bae-gate-answered"
        assert DONE["refund A2 90"] == 0


async def test_an_invalid_answer_is_refused_and_the_run_still_waits():
    async with MemoryJournal() as journal:
        lm = calling(Call("refund", order="A1"))
        await graph.arun(START, lm, journal=journal, run_id="one")
        for wrong in ("perhaps", 3, {"arguments": {"order": 1, "price": 2}}):
            with pytest.raises(GateError) as caught:
                await graph.answer("one", "c1", wrong, journal=journal)
            assert caught.value.code == "bae-gate-invalid"
        edited = {"arguments": {"order": "A1", "euros": 1}}
        result = await graph.answer("one", "c1", edited, lm, journal=journal)
        assert result.result.calls[0].arguments == edited["arguments"]
        assert DONE == {"refund A1 1": 1}


async def test_a_run_with_approvals_cut_after_any_line_repeats_no_question_and_no_call():
    async with MemoryJournal() as journal:
        lm = calling(*TWO)
        await graph.arun(START, lm, journal=journal, run_id="one")
        await graph.answer("one", "c1", "run", lm, journal=journal)
        stored = await journal.read("one")
        assert stored.info.status == "ended"  # the yes holds for c3 too
        assert DONE == {"look up A1": 1, "refund A1 5": 1, "refund A2 90": 1}
        for count in range(1, len(stored.lines)):
            DONE.clear()
            left = await cut_journal(journal, count)
            kinds = Counter(line.kind for line in stored.lines[:count])
            script = [[*TWO], ANSWER][kinds["RoundMade"] :]
            person = Person("run", "run")
            lm = ScriptedLM({"Reply": script})
            result = await graph.resume("one", lm, journal=left, answer=person)
            assert result.result.text == "done"
            ended = [line.data for line in stored.lines[:count] if line.kind == "ToolEnded"]
            began = [line.data for line in stored.lines[:count] if line.kind == "ToolStarted"]
            unknown = len(began) - len(ended)
            assert DONE.total() + len(ended) + unknown == 3
            lm.assert_complete()
            assert (await graph.replay("one", journal=left)).trace == result.trace


async def test_a_retried_call_with_other_arguments_needs_a_new_approval():
    """A graph inside that fails begins again, and makes another call with the same id."""
    tries: list[int] = []

    async def fail_once(order: str) -> str:
        """Fail."""
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("broken")
        return order

    class Inner(Node):
        text: str

        async def __call__(self) -> Reply: ...

    class Reply(EndNode):
        calls: Annotated[list[ToolCall], Tools(Tool(refund, approve=True), fail_once)]
        text: str

    inner = Graph(start=Inner, end=Reply)

    class Outer(EndNode):
        texts: list[str]
        replies: Annotated[list[Reply], Map(inner, over="texts", retries=1)]

    outer = Graph(start=Outer)
    person = Person(True, True)
    script = [
        [Call("refund", order="A1")],
        [Call("fail_once", order="A1")],
        [Call("refund", order="A1", euros=500)],
        [Call("fail_once", order="A1")],
        ANSWER,
    ]
    async with MemoryJournal() as journal:
        result = await outer.arun(
            Outer(texts=["a"]), ScriptedLM({"Reply": script}), answer=person, journal=journal
        )
    assert [gate.call.arguments for gate in person.gates if gate.call] == [
        {"order": "A1"},
        {"order": "A1", "euros": 500},
    ]
    assert result.result.replies[0].calls[0].arguments == {"order": "A1", "euros": 500}


async def test_the_approve_predicate_runs_again_in_a_resumed_run():
    limit = [10]
    graph = asking(Tool(refund, approve=lambda euros: euros > limit[0]))
    async with MemoryJournal() as journal:
        lm = calling(Call("refund", order="A1", euros=50))
        parked = await graph.arun(start(graph), lm, journal=journal, run_id="one")
        assert len(parked.waiting) == 1
        limit[0] = 100
        result = await graph.resume("one", lm, journal=journal, answer=Person())
        assert result.result.calls[0].result == "sent 50"


async def test_a_yes_for_the_run_is_stored_listed_and_revocable():
    async with MemoryJournal() as journal:
        rounds = [[Call("refund", order=f"A{n}")] for n in range(3)]
        lm = ScriptedLM({"Reply": [*rounds, ANSWER]})
        await graph.arun(START, lm, journal=journal, run_id="one")
        taken: list[str] = []

        async def person(gate: OpenGate) -> Any:
            taken.append(gate.place)
            gate.leave_open()

        await graph.answer("one", "c1", "run", go_on=False, journal=journal)
        (grant,) = await journal.approvals("one")
        assert (grant.tool, grant.place, grant.revoked) == ("refund", "Reply.calls(refund)", False)
        (revoked,) = await journal.revoke("one", "refund")
        assert revoked.revoked
        with pytest.raises(JournalError) as caught:
            await journal.revoke("one", "refund")
        assert caught.value.code == "bae-approval-unknown"
        # The call that the yes was given for has not begun: it is refused, and the next is asked.
        again = await graph.resume("one", lm, journal=journal, answer=person)
        assert not DONE
        assert taken == ["Reply.calls(refund)(c2)"]
        assert [gate.place for gate in again.waiting] == taken
        ended = await graph.answer("one", "c2", "run", lm, journal=journal)
        assert [call.error for call in ended.result.calls] == [
            "a person has revoked the approval of this tool",
            None,
            None,
        ]
        assert [approval.revoked for approval in await journal.approvals("one")] == [True, False]


async def test_an_answer_for_a_call_takes_precedence_over_a_yes_for_the_run():
    async with MemoryJournal() as journal:
        calls = [Call("refund", order=f"A{n}") for n in range(4)]
        lm = calling(*calls)
        await graph.arun(START, lm, journal=journal, run_id="one")
        answers = {"c1": "run", "c2": "no: too much", "c3": {"arguments": {"order": "B"}}}
        for call, answer in answers.items():
            await graph.answer("one", call, answer, journal=journal, go_on=False)
        result = await graph.resume("one", lm, journal=journal)
        assert [call.error for call in result.result.calls] == [
            None,
            "a person refused this call: too much",
            None,
            None,
        ]
        assert DONE == {"refund A0 5": 1, "refund B 5": 1, "refund A3 5": 1}


async def test_a_yes_for_the_run_closes_other_approvals_of_the_tool():
    both = asyncio.Event()
    asked: list[str] = []

    async def person(gate: OpenGate) -> Any:
        asked.append(gate.names[-1])
        if len(asked) == 1:
            await both.wait()
            return "run"
        both.set()
        try:
            await asyncio.Event().wait()
        finally:
            asked.append("closed")

    async with MemoryJournal() as journal:
        lm = calling(Call("refund", order="A1"), Call("refund", order="A2"))
        result = await graph.arun(START, lm, answer=person, journal=journal, run_id="one")
        assert [call.result for call in result.result.calls] == ["sent 5", "sent 5"]
        assert asked == ["c1", "c2", "closed"]
        assert len(await journal.answers("one")) == 1


async def test_a_yes_for_the_run_holds_after_a_resume():
    async with MemoryJournal() as journal:
        rounds = [[Call("refund", order="A1")], [Call("refund", order="A2")]]
        await graph.arun(START, ScriptedLM({"Reply": rounds[:1]}), journal=journal, run_id="one")
        lm = ScriptedLM({"Reply": [*rounds[1:], ANSWER]})
        result = await graph.answer("one", "c1", "run", lm, journal=journal)
        assert len(result.result.calls) == 2
        assert DONE.total() == 2


async def test_a_call_without_approval_in_time_is_refused():
    graph = asking(Tool(refund, approve=True, approve_timeout=0.01))

    async def never(gate: OpenGate) -> Any:
        assert gate.deadline is not None
        await asyncio.Event().wait()

    lm = calling(Call("refund", order="A1"))
    result = await graph.arun(start(graph), lm, answer=never)
    assert result.result.calls[0].error == "no person approved it within 0.01 s"
    assert not DONE


async def test_a_parked_call_past_its_deadline_is_refused_when_the_run_continues():
    graph = asking(Tool(refund, approve="Send it?", approve_timeout=0.001))
    async with MemoryJournal() as journal:
        lm = calling(Call("refund", order="A1"))
        parked = await graph.arun(start(graph), lm, journal=journal, run_id="one")
        if parked.waiting:
            while (await journal.runs())[0].status == "waiting":
                (recovered,) = await graph.recover(lm, journal=journal) or [None]
                if recovered is not None:
                    parked = recovered.result
        assert parked.result.calls[0].error == "no person approved it within 0.001 s"


async def test_a_body_whose_made_node_needs_approval_parks_and_continues():
    class Start(Node):
        text: str

        async def __call__(self, lm: LM) -> Reply:
            DONE["body"] += 1
            return await lm.make(self, Reply)

    graph = Graph(start=Start, end=Reply)
    async with MemoryJournal() as journal:
        lm = calling(*TWO)
        parked = await graph.arun(Start(text="a"), lm, journal=journal, run_id="one")
        assert len(parked.waiting) == 2
        await graph.answer("one", "c1", True, lm, journal=journal)
        result = await graph.answer("one", "c3", True, lm, journal=journal)
        assert [call.result for call in result.result.calls] == [
            "sent 5",
            "A1: a kettle",
            "sent 90",
        ]
        assert DONE == {"look up A1": 1, "refund A1 5": 1, "refund A2 90": 1, "body": 3}
        assert (await graph.replay("one", journal=journal)).result == result.result


@pytest.mark.parametrize("way", ["gather", "group"])
async def test_a_run_parks_after_all_questions_of_concurrent_bodies(way: str):
    async def count(order: str) -> int:
        """Count, and let others have their turn."""
        await some_turns()
        DONE[f"count {order}"] += 1
        return 3

    class Item(EndNode):
        order: str

    class Part(EndNode):
        calls: Annotated[list[ToolCall], Tools(Tool(refund, approve=True), count)]
        text: str

    class Both(Node):
        async def __call__(self, lm: LM) -> Part | None:
            makes = [partial(lm.make, Item(order=order), Part) for order in ("A1", "A2", "A3")]
            if way == "gather":
                await asyncio.gather(*(make() for make in makes))
            else:
                async with asyncio.TaskGroup() as group:
                    for make in makes:
                        group.create_task(make())
            return None

    def rounds(prompt: Prompt) -> Any:
        order = next(name for name in ("A1", "A2", "A3") if name in prompt.text)
        if len(prompt.conversation) > 1:
            return ANSWER
        return [call("count" if order == "A2" else "refund", order=order)]

    graph, lm = Graph(start=Both, end=(Both, Part)), ToolBackend(rounds)
    async with MemoryJournal() as journal:
        parked = await graph.arun(Both(), lm, journal=journal, run_id="one")
        assert [gate.place for gate in parked.waiting] == ["Part.calls(refund)(c1)"] * 2
        assert DONE == {"count A2": 1}
        for gate in parked.waiting:
            await graph.answer("one", gate.address, True, lm, journal=journal)
        assert (await journal.read("one")).info.status == "ended"
        assert DONE == {"count A2": 1, "refund A1 5": 1, "refund A3 5": 1}
        assert len(lm.prompts) == 6


async def test_a_dependency_whose_made_node_needs_approval_parks_and_continues():
    async def write(lm: LM) -> str:
        DONE["write"] += 1
        reply = await lm.make(START, Reply)
        return reply.text

    class Page(Node):
        text: Annotated[str, Dep(write)]

        async def __call__(self) -> Reply | None:
            return None

    pages = Graph(start=Page)
    async with MemoryJournal() as journal:
        lm = calling(*TWO)
        parked = await pages.arun(Page(), lm, journal=journal, run_id="one")  # type: ignore[call-arg]
        assert [gate.names[-1] for gate in parked.waiting] == ["c1", "c3"]
        await pages.answer("one", "c1", True, lm, journal=journal)
        result = await pages.answer("one", "c3", True, lm, journal=journal)
        assert result.result.text == "done"
        assert DONE == {"look up A1": 1, "refund A1 5": 1, "refund A2 90": 1, "write": 3}
        assert (await pages.replay("one", journal=journal)).result == result.result


class Draft(EndNode):
    calls: Annotated[list[ToolCall], Tools(Tool(refund, approve=True))]
    text: str


async def ask_or_give_up(lm: LM) -> str:
    try:
        return (await lm.make(Question(text="one"), Draft)).text
    except Exception:
        return "given up"


class CatchesAll(Node):
    async def __call__(self, lm: LM) -> Draft | EndNode:
        return EndNode() if await ask_or_give_up(lm) == "done" else Draft(calls=[], text="none")


class RaisesOther(Node):
    async def __call__(self, lm: LM) -> Draft | EndNode:
        try:
            await lm.make(Question(text="one"), Draft)
        except Exception as error:
            raise ValueError("it failed") from error
        return EndNode()


class InFunction(Node):
    text: Annotated[str, Dep(ask_or_give_up)]

    async def __call__(self) -> Draft | EndNode:
        return EndNode() if self.text == "done" else Draft(calls=[], text="none")


@pytest.mark.parametrize("begin", [CatchesAll, RaisesOther, InFunction])
async def test_a_body_that_catches_every_error_still_waits_for_a_person(begin: Any):
    graph = Graph(start=begin, end=(EndNode, Draft))
    lm = ScriptedLM({"Draft": [Call("refund", order="A1"), ANSWER]})
    async with MemoryJournal() as journal:
        parked = await graph.arun(begin(), lm, journal=journal, run_id="one")
        assert [gate.place for gate in parked.waiting] == ["Draft.calls(refund)(c1)"]
        result = await graph.answer("one", "c1", True, lm, journal=journal)
        assert type(result.result) is EndNode
        assert DONE == {"refund A1 5": 1}


@pytest.mark.parametrize("unfinished", ["tell", "ask"])
async def test_a_tool_whose_llm_call_needs_approval_continues_with_the_answer(unfinished: Any):
    class Part(EndNode):
        calls: Annotated[list[ToolCall], Tools(Tool(refund, approve=True))]
        text: str

    class Order(EndNode):
        order: str

    async def clerk(order: str, lm: LM) -> str:
        """Ask the clerk."""
        return (await lm.make(Order(order=order), Part)).text

    class Whole(Node):
        calls: Annotated[list[ToolCall], Tools(Tool(clerk, unfinished=unfinished))]
        text: str

        async def __call__(self) -> Part | None:
            return None

    class Begin(Node):
        async def __call__(self) -> Whole: ...

    graph = Graph(start=Begin, end=(Whole, Part))
    script = {
        "Whole": [[Call("clerk", order="A1"), Call("clerk", order="A2")], ANSWER],
        "Part": [Call("refund", order="A1"), Call("refund", order="A2"), *[{"text": "sent"}] * 2],
    }
    async with MemoryJournal() as journal:
        lm = ScriptedLM(script)
        parked = await graph.arun(Begin(), lm, journal=journal, run_id="one")
        assert len(parked.waiting) == 2
        for gate in parked.waiting:
            result = await graph.answer("one", gate.address, True, lm, journal=journal)
        assert [call.result for call in result.trace[-1].calls] == ["sent", "sent"]
        assert DONE == {"refund A1 5": 1, "refund A2 5": 1}
        lm.assert_complete()


async def test_an_approval_of_a_class_outside_the_graph_cannot_park():
    class Start(EndNode):
        text: str

        async def __call__(self, lm: LM) -> None:
            await lm.make(self, Reply)

    graph = Graph(start=Start)
    async with MemoryJournal() as journal:
        lm = calling(Call("refund", order="A1"))
        with pytest.raises(GateError) as caught:
            await graph.arun(Start(text="a"), lm, journal=journal)
        assert caught.value.code == "bae-gate-outside"
        lm = calling(Call("refund", order="A1"), Call("refund", order="A2"))
        await graph.arun(Start(text="a"), lm, journal=journal, answer=Person("run", True))
        assert DONE.total() == 2


# Questions of the model


async def test_a_model_can_ask_a_person_and_read_a_typed_answer():
    graph = asking(Ask(int, timeout=5))
    person = Person("many", "7")
    result = await graph.arun(
        start(graph), calling(Call("ask_person", question="How many?")), answer=person
    )
    (call,) = result.result.calls
    assert (call.result, call.arguments) == (7, {"question": "How many?"})
    assert [gate.question for gate in person.gates] == ["How many?", "How many?"]
    assert person.gates[1].problem


async def test_a_question_of_the_model_parks_the_run_and_a_wrong_answer_is_refused():
    graph = asking(Ask(int, name="ask_boss"), look_up)
    async with MemoryJournal() as journal:
        lm = calling(Call("ask_boss", question="How many?"), Call("look_up", order="A1"))
        parked = await graph.arun(start(graph), lm, journal=journal, run_id="one")
        assert parked.waiting[0].type is int
        with pytest.raises(GateError) as caught:
            await graph.answer("one", "c1", "many", journal=journal)
        assert caught.value.code == "bae-gate-invalid"
        result = await graph.answer("one", "c1", "7", lm, journal=journal)
        assert [call.result for call in result.result.calls] == [7, "A1: a kettle"]
        assert DONE == {"look up A1": 1}


async def test_a_model_must_ask_a_person_with_a_nonempty_question():
    graph = asking(Ask())
    lm = ScriptedLM({"Reply": [[Call("ask_person")], [Call("ask_person", question="")], ANSWER]})
    result = await graph.arun(start(graph), lm, answer=Person())
    assert all("question" in (call.error or "") for call in result.result.calls)


def test_a_model_that_asks_for_a_secret_is_refused_before_the_run():
    problems = asking(Ask(SecretStr)).validate()
    assert [problem.code for problem in problems] == ["bae-ask-secret"]


async def test_a_model_reads_that_an_answer_did_not_come_in_time():
    graph = asking(Ask(timeout=0.01))

    async def never(gate: OpenGate) -> Any:
        await asyncio.Event().wait()

    lm = calling(Call("ask_person", question="How many?"))
    result = await graph.arun(start(graph), lm, answer=never)
    assert result.result.calls[0].error == "no person answered within 0.01 s"


# Interrupted calls


async def copy_killed_run(journal: MemoryJournal, graph: Graph[Any, Any]) -> MemoryJournal:
    """A copy of the journal whose run was killed while its call ran."""
    lm = calling(Call("refund", order="A1"))
    await graph.arun(start(graph), lm, journal=journal, run_id="one")
    lines = (await journal.read("one")).lines
    began = next(line.n for line in lines if line.kind == "ToolStarted")
    return await cut_journal(journal, began + 1)


@pytest.mark.parametrize(
    ("answer", "result", "error", "again"),
    [
        (True, "sent 5", None, 1),
        ("it was sent by hand", "it was sent by hand", None, 0),
        (Interruption(repeat=False), None, "a person chose not to repeat", 0),
    ],
)
async def test_a_person_decides_about_an_interrupted_call(
    answer: Any, result: Any, error: str | None, again: int
):
    graph = asking(Tool(refund, unfinished="ask"))
    async with MemoryJournal() as journal:
        left = await copy_killed_run(journal, graph)
        DONE.clear()
        lm = ScriptedLM({"Reply": [ANSWER]})
        parked = await graph.resume("one", lm, journal=left)
        (gate,) = parked.waiting
        assert gate.place == "Reply.calls(refund)(c1)(unfinished 1)"
        assert "unknown whether it ran" in gate.question
        assert not DONE
        ended = await graph.answer("one", "c1", answer, lm, journal=left)
        (call,) = ended.result.calls
        assert call.result == result
        assert (error or "") in (call.error or "")
        assert DONE.total() == again


async def test_a_person_is_asked_about_every_interruption_of_a_call():
    graph = asking(Tool(refund, unfinished="ask"))
    async with MemoryJournal() as journal:
        left = await copy_killed_run(journal, graph)
        await graph.resume("one", ScriptedLM({"Reply": [ANSWER]}), journal=left)
        await graph.answer("one", "c1", True, ScriptedLM({"Reply": [ANSWER]}), journal=left)
        stored = await left.read("one")
        starts = [line.n for line in stored.lines if line.kind == "ToolStarted"]
        again = await cut_journal(left, starts[-1] + 1)
        parked = await graph.resume("one", ScriptedLM({"Reply": [ANSWER]}), journal=again)
        assert parked.waiting[0].place == "Reply.calls(refund)(c1)(unfinished 2)"


# Messages to a run


async def test_a_run_in_progress_reads_a_message_before_its_next_round():
    started, go = asyncio.Event(), asyncio.Event()

    async def wait(order: str) -> str:
        """Wait."""
        started.set()
        await go.wait()
        return order

    graph = asking(wait)
    backend = ToyBackend(Answer("", calls=(CallPart("x", "wait", {"order": "A1"}),)), ANSWER)
    backend.calls_tools = True
    async with MemoryJournal() as journal, asyncio.TaskGroup() as group:
        run = group.create_task(graph.arun(start(graph), backend, journal=journal, run_id="one"))
        await started.wait()
        await graph.tell("one", "and be polite", journal=journal)
        await graph.tell("one", "in French", journal=journal)
        go.set()
        await run
        _, *told = backend.prompts[1].conversation[-1].parts
        assert [part.text for part in told] == ["and be polite", "in French"]
        lines = (await journal.read("one")).lines
        assert [line.kind for line in lines].count("RoundReplied") == 2
        with pytest.raises(JournalError) as caught:
            await graph.tell("one", "too late", journal=journal)
        assert caught.value.code == "bae-tell-over"


async def test_a_parked_run_reads_a_message_when_it_continues():
    async with MemoryJournal() as journal:
        calls = (CallPart("x", "refund", {"order": "A1"}),)
        backend = ToyBackend(Answer("", calls=calls))
        backend.calls_tools = True
        await graph.arun(START, backend, journal=journal, run_id="one")
        await graph.tell("one", "hurry", journal=journal)
        backend.answers = [Answer("", calls=calls), ANSWER]
        await graph.answer("one", "c1", "run", backend, journal=journal)
        heard = [[p.text for p in prompt.conversation[-1].parts] for prompt in backend.prompts]
        assert heard[1][-1] == "hurry"
        assert "hurry" not in heard[2]
        stored = await journal.read("one")
        told = next(line.n for line in stored.lines if line.kind == "RoundReplied")
        for count in (told, told + 1):  # before it is recorded, and after
            left = await cut_journal(journal, count)
            again = ToyBackend(ANSWER)
            again.calls_tools = True
            await graph.resume("one", again, journal=left, answer=Person())
            texts = [p.text for p in again.prompts[0].conversation[-1].parts]
            assert texts.count("hurry") == 1


async def test_a_message_to_a_run_without_a_later_conversation_is_refused():
    class Start(EndNode):
        ok: Annotated[bool, Gate("ok?")]

    async with MemoryJournal() as journal:
        plain = Graph(start=Start)
        await plain.arun(Start(), journal=journal, run_id="one")
        with pytest.raises(JournalError) as caught:
            await plain.tell("one", "hello", journal=journal)
        assert caught.value.code == "bae-tell-nobody"
        with pytest.raises(ValueError, match="give a text"):
            await plain.tell("one", " ", journal=journal)


async def test_a_message_before_the_first_round_is_read_in_the_first_round():
    class Start(Node):
        ok: Annotated[bool, Gate("ok?")]

        async def __call__(self) -> Reply: ...

    gated = Graph(start=Start, end=Reply)
    async with MemoryJournal() as journal:
        await gated.arun(Start(), ScriptedLM([]), journal=journal, run_id="one")
        await gated.tell("one", "hello", journal=journal)
        backend = ToyBackend(ANSWER)
        backend.calls_tools = True
        await gated.answer("one", "ok", True, backend, journal=journal)
        assert backend.prompts[0].conversation[-1].parts[-1].text == "hello"
