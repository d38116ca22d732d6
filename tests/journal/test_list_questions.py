"""What LMs were asked in a stored run."""

from __future__ import annotations

from typing import Annotated

import pytest

from bae import BaeError, BaeLMError, Graph, Node, ToolCall, Tools
from bae.journal import MemoryJournal, list_questions
from bae.lm import Answer
from bae.lm.backend import CallPart
from bae.testing import Call, ScriptedLM
from toy_backend import ToyBackend


def look(path: str) -> str:
    return f"the text of {path}"


class Ask(Node):
    text: str

    async def __call__(self) -> Found: ...


class Found(Node):
    calls: Annotated[list[ToolCall], Tools(look)]
    lines: int

    async def __call__(self) -> Summary: ...


class Summary(Node):
    text: str

    async def __call__(self) -> None: ...


graph = Graph(start=Ask, end=Summary)
FOUND = [Call("look", path="a.py"), Call("look", path="b.py"), {"lines": 2}]


async def test_questions_are_listed_in_order_with_their_answers_and_tool_calls():
    journal = MemoryJournal()
    lm = ScriptedLM({"Found": FOUND, "Summary": {"text": "two"}})
    ran = await graph.arun(Ask(text="?"), lm, journal=journal, run_id="r")
    found, summary = list_questions(await journal.read("r"))
    assert (found.place, summary.place) == ("1:Found", "2:Summary")
    assert found.at <= summary.at
    assert [call.text for round_ in found.rounds for call in round_.calls] == [
        'look(path="a.py")',
        'look(path="b.py")',
    ]
    assert summary.rounds == ()
    assert [answer.verdict for answer in summary.answers] == ["valid"]
    assert (found.outcome, summary.outcome, summary.error) == ("done", "done", "")
    assert found.usage + summary.usage == ran.usage


async def test_a_failed_question_is_listed_and_a_resumed_conversation_is_listed_once():
    journal = MemoryJournal()
    broken = ScriptedLM({"Found": FOUND[:1]})  # it has no second answer
    with pytest.raises(BaeError):
        await graph.arun(Ask(text="?"), broken, journal=journal, run_id="r")
    [first] = list_questions(await journal.read("r"))
    assert first.outcome == "failed"
    assert first.error.startswith("ScriptError")
    assert [call.text for round_ in first.rounds for call in round_.calls] == ['look(path="a.py")']
    lm = ScriptedLM({"Found": FOUND[1:], "Summary": {"text": "two"}})
    await graph.resume("r", journal=journal, lm=lm)
    questions = list_questions(await journal.read("r"))
    calls = [call.text for asked in questions for round_ in asked.rounds for call in round_.calls]
    assert calls == ['look(path="a.py")', 'look(path="b.py")']


async def test_an_unanswered_question_is_listed_with_its_prompt():
    class CallingBackend(ToyBackend):
        calls_tools = True

    journal = MemoryJournal()
    call = Answer("", calls=(CallPart("x", "look", {"path": "a.py"}),))
    lm = CallingBackend(call, BaeLMError("no line", retryable=False))
    with pytest.raises(BaeLMError, match="no line"):
        await graph.arun(Ask(text="How many?"), lm, journal=journal, run_id="r")
    [question] = list_questions(await journal.read("r"))
    assert question.answers == ()
    assert "How many?" in question.asked


async def test_a_run_without_llm_calls_has_no_questions():
    class Alone(Node):
        async def __call__(self) -> None: ...

    journal = MemoryJournal()
    await Graph(start=Alone, end=Alone).arun(Alone(), journal=journal, run_id="r")
    assert list_questions(await journal.read("r")) == []
