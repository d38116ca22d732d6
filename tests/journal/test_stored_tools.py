"""Tool calls in a journal: interrupted calls, secrets, redacted conversations, changed tools,
forks, replays, and the provenance of values."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from random import Random
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, SecretStr

from bae import (
    LM,
    BaeLMError,
    BudgetError,
    Dep,
    Graph,
    JournalError,
    Node,
    NodeConfig,
    Recall,
    ReplayError,
    Tool,
    ToolCall,
    ToolCallError,
    ToolError,
    Tools,
)
from bae.journal import Journal, MemoryJournal, SQLiteJournal, check
from bae.journal.decoder import read_history
from bae.lm import Answer, Budget, Budgeted, Prompt, Usage
from bae.lm.backend import CallPart
from bae.testing import Call
from crash.workshop import check_history
from end_node import EndNode
from journal_graphs import cut_journal
from toy_backend import ToyBackend

pytestmark = pytest.mark.once

DONE: list[str] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


class CallingBackend(ToyBackend):
    """Gives answers in order: a list of calls is a round. It refuses a history that providers
    would."""

    calls_tools = True

    async def answer(self, prompt: Prompt) -> Answer:
        check_history(prompt)
        if self.answers and isinstance(self.answers[0], list):
            self.prompts.append(prompt)
            made: Any = self.answers.pop(0)
            calls = tuple(
                CallPart(f"x{n}", call.name, call.arguments) for n, call in enumerate(made)
            )
            return Answer("I call.", USED, calls=calls, echo={"raw": repr(made)})
        said = await super().answer(prompt)
        return said if said.calls else Answer(said.text, USED)


USED = Usage(calls=1, input_tokens=100, output_tokens=10)


async def get_city() -> str:
    DONE.append("get_city")
    return "Bern"


async def search(word: str, city: Annotated[str, Dep(get_city)]) -> list[str]:
    """Search the catalog."""
    DONE.append(f"search {word}")
    if word == "broken":
        raise RuntimeError("the catalog is down")
    return [f"{word} in {city}"]


def refund(amount: int) -> str:
    """Pay money back."""
    DONE.append(f"refund {amount}")
    return f"paid {amount}"


class Question(Node):
    text: str

    async def __call__(self) -> Reply: ...


class Reply(Node):
    question: Annotated[str, Recall(Question)]
    calls: Annotated[list[ToolCall], Tools(search, refund)]
    text: str

    async def __call__(self) -> Sent:
        return Sent(body=self.text)


class Sent(EndNode):
    body: str


graph = Graph(start=Question, end=Sent)
START = Question(text="a lamp?")
ROUND = [Call("search", word="lamp"), Call("refund", amount=5)]
ANSWERS: list[Any] = [ROUND, [Call("search", word="bulb")], {"text": "done"}]


async def record_run(journal: Journal, run_id: str = "one") -> Any:
    return await graph.arun(START, CallingBackend(*ANSWERS), journal=journal, run_id=run_id)


async def cut_journal_after(journal: Journal, *parts: str) -> MemoryJournal:
    """The run as it is when it is killed after the first line that has these texts."""
    stored = await journal.read("one")
    found = next(
        n for n, e in enumerate(stored.lines) if all(p in f"{e.kind} {e.data}" for p in parts)
    )
    return await cut_journal(journal, found + 1)


# Calls that were interrupted


async def test_an_interrupted_tool_call_is_reported_to_the_model_and_not_repeated():
    async with MemoryJournal() as journal:
        await record_run(journal)
        left = await cut_journal_after(journal, "ToolStarted", "refund")
        DONE.clear()
        lm = CallingBackend([Call("search", word="bulb")], {"text": "done"})
        result = await graph.resume("one", lm, journal=left)
    assert "refund 5" not in DONE
    calls = {call.name: call for call in result.trace[1].calls[:2]}
    assert calls["refund"].result is None
    assert "interrupted" in (calls["refund"].error or "")
    assert "unknown whether this call ran" in str(lm.prompts[0])
    assert result.usage.calls == 3


async def test_an_interrupted_repeatable_tool_call_is_made_again():
    class Meter(EndNode):
        calls: Annotated[list[ToolCall], Tools(Tool(refund, unfinished="repeat"))]
        text: str

    class Begin(Node):
        async def __call__(self) -> Meter: ...

    metered = Graph(start=Begin, end=Meter)
    async with MemoryJournal() as journal:
        lm = CallingBackend([Call("refund", amount=1)], {"text": "done"})
        first = await metered.arun(Begin(), lm, journal=journal, run_id="one")
        left = await cut_journal_after(journal, "ToolStarted")
        lm = CallingBackend({"text": "done"})
        again = await metered.resume("one", lm, journal=left)
    assert DONE == ["refund 1", "refund 1"]
    assert again.trace == first.trace


async def test_a_run_that_failed_in_a_tool_call_resumes_with_a_valid_history():
    async with MemoryJournal() as journal:
        failing = [[Call("search", word="broken"), Call("refund", amount=5)]]
        with pytest.raises(ToolCallError):
            await graph.arun(START, CallingBackend(*failing), journal=journal, run_id="one")
        done = [*DONE]
        lm = CallingBackend({"text": "done"})
        result = await graph.resume("one", lm, journal=journal)
    assert result.result == Sent(body="done")
    assert done == DONE
    broken, refunded = result.trace[1].calls
    assert "unknown whether this call ran" in (broken.error or "")
    assert refunded.result == "paid 5" or "unknown" in (refunded.error or "")


async def test_a_run_that_failed_between_rounds_requests_only_the_next_round():
    async with MemoryJournal() as journal:
        with pytest.raises(Exception, match="no line"):
            lm = CallingBackend(ROUND, BaeLMError("no line"))
            await graph.arun(START, lm, journal=journal, run_id="one")
        done = [*DONE]
        lm = CallingBackend({"text": "done"})
        result = await graph.resume("one", lm, journal=journal)
    assert (done, lm.calls) == (DONE, 1)
    assert [call.name for call in result.trace[1].calls] == ["search", "refund"]
    assert result.usage.input_tokens == 200


async def test_a_retried_function_continues_its_conversation():
    async def ask(lm: LM) -> str:
        return (await lm.fill(Draft, {}, "Draft it.")).text

    class Draft(EndNode):
        calls: Annotated[list[ToolCall], Tools(refund)]
        text: str

    class Letter(EndNode):
        text: Annotated[str, Dep(ask, retries=1)]

    letter = Graph(start=Letter)
    async with MemoryJournal() as journal:
        lm = CallingBackend([Call("refund", amount=3)], BaeLMError("no line"), {"text": "end"})
        result = await letter.arun(Letter(), lm, journal=journal, run_id="one")
        assert result.trace[0].text == "end"
        assert DONE == ["refund 3"]
        stored = await journal.read("one")
        rounds = [json.loads(e.data)["number"] for e in stored.lines if e.kind == "RoundMade"]
        assert rounds == [1, 2]
        assert (await letter.replay("one", journal=journal)).trace == result.trace


# Whatever a tool returns


@pytest.mark.parametrize(
    "value",
    [
        *(float("nan"), -0.0, 10**400, "half \ud800", {1: "a"}, {"a": (1, {2})}, b"abc", "", {}),
        *(datetime(2026, 1, 2), Decimal("1.50"), ["\udfff"], ToolError("half \ud800"), None),
    ],
    ids=repr,
)
async def test_the_result_of_a_tool_is_stored_as_the_model_read_it(value: Any):
    def odd() -> Any:
        """Return something."""
        if isinstance(value, ToolError):
            raise value
        return value

    odds = variant(Tools(odd))
    async with MemoryJournal() as journal:
        lm = CallingBackend([Call("odd")], {"text": "done"})
        first = await odds.arun(odds.start(text="q"), lm, journal=journal, run_id="one")
        left = await cut_journal_after(journal, "ToolEnded")
        lm = CallingBackend({"text": "done"})
        again = await odds.resume("one", lm, journal=left)
        replayed = await odds.replay("one", journal=journal)
    assert repr(first.trace) == repr(again.trace) == repr(replayed.trace)


# Budgets


async def test_a_budget_includes_the_rounds_before_a_resume():
    async with MemoryJournal() as journal:
        await record_run(journal)
        left = await cut_journal_after(journal, "RoundMade", '"number":2')
        assert read_history(await left.read("one")).usage.calls == 2
        lm = Budgeted(CallingBackend({"text": "done"}), Budget(calls=2))
        with pytest.raises(BudgetError):
            await graph.resume("one", lm, journal=left)
        lm = Budgeted(CallingBackend({"text": "done"}), Budget(calls=3))
        assert (await graph.resume("one", lm, journal=left)).usage.calls == 3


# Secrets


class Account(BaseModel):
    owner: str
    code: str = Field(repr=False)


def read_account(token: SecretStr, note: str) -> Account:
    """Read an account."""
    assert token.get_secret_value() == "hunter2-token"
    return Account(owner="ann", code="hunter2-code")


def read_key(hint: Annotated[str, Field(repr=False)]) -> SecretStr:
    """Read a key."""
    if hint == "hunter2-wrong":
        raise ToolError("no such key")
    return SecretStr("hunter2-key")


class Login(Node):
    user: str

    async def __call__(self) -> Opened: ...


class Opened(EndNode):
    calls: Annotated[list[ToolCall], Tools(read_account, read_key)]
    text: str


logins = Graph(start=Login, end=Opened)
SECRET_ROUNDS: list[Any] = [
    [
        Call("read_account", token="hunter2-token", note="first"),
        Call("read_key", hint="hunter2-hint"),
    ],
    [Call("read_key", hint="hunter2-wrong"), Call("read_account", token=["hunter2-list"])],
    {"text": "done"},
]


def run_secrets(journal: Journal | None) -> Any:
    lm = CallingBackend(*SECRET_ROUNDS)
    return logins.arun(Login(user="ann"), lm, journal=journal, run_id="one")


@pytest.mark.parametrize("prompts", [True, False])
async def test_secret_tool_arguments_and_results_are_not_stored(prompts: bool, tmp_path: Any):
    async with SQLiteJournal(tmp_path / "runs.db", prompts=prompts) as journal:
        result = await run_secrets(journal)
        await journal.export(tmp_path / "runs.jsonl")
        why = str(await journal.why("one", "Opened.calls"))
    for path in tmp_path.iterdir():
        assert b"hunter2" not in path.read_bytes(), path.name
    assert "hunter2" not in why
    assert "hunter2" not in repr(result) + str(result.trace) + repr([*result.journal])
    account, key, *_ = result.trace[-1].calls
    assert account.arguments == {"token": "**********", "note": "first"}
    assert account.result == {"owner": "ann", "code": "**********"}
    assert key.result == "**********"


async def test_a_model_sees_its_own_secret_arguments_during_the_conversation():
    lm = CallingBackend(*SECRET_ROUNDS)
    await logins.arun(Login(user="ann"), lm)
    assert "hunter2-token" in str(lm.prompts[1])
    assert "hunter2-code" not in str(lm.prompts[1])
    assert "hunter2-key" not in str(lm.prompts[1])


async def test_a_resumed_run_asks_the_model_to_repeat_a_call_with_a_secret():
    async with MemoryJournal() as journal:
        await run_secrets(journal)
        for last in ("RoundMade", "ToolStarted"):
            left = await cut_journal_after(journal, last)
            lm = CallingBackend(*SECRET_ROUNDS)
            result = await logins.resume("one", lm, journal=left)
            first, second = result.trace[-1].calls[:2]
            for call in (first, second):
                is_told = "unknown whether" in (call.error or "")
                assert is_told or "call it again" in (call.error or "")
            assert result.trace[-1].calls[2].result == {"owner": "ann", "code": "**********"}


async def test_an_approval_question_masks_secret_arguments():
    def pay(card: SecretStr, amount: int) -> str:
        """Pay."""
        DONE.append(f"{card.get_secret_value()} {amount}")
        return "paid"

    asking = variant(Tools(Tool(pay, approve=True)))
    shown: list[str] = []

    async def approve(gate: Any) -> bool:
        shown.append(f"{gate.question} {gate.context} {gate.call}")
        return True

    async with MemoryJournal() as journal:
        lm = CallingBackend([Call("pay", card="hunter2", amount=3)], {"text": "done"})
        start = asking.start(text="pay")
        await asking.arun(start, lm, journal=journal, run_id="one", answer=approve)
        assert DONE == ["hunter2 3"]
        assert "hunter2" not in repr(await journal.read("one"))
    assert "amount" in shown[0]
    assert "hunter2" not in shown[0]
    assert [problem.code for problem in asking.validate()] == ["bae-tool-secret"]


async def test_an_error_in_a_tool_does_not_quote_its_secret_arguments():
    def broken(token: SecretStr) -> str:
        """Read it."""
        raise RuntimeError("down")

    class Opens(EndNode):
        calls: Annotated[list[ToolCall], Tools(broken)]
        text: str

    class Begin(Node):
        async def __call__(self) -> Opens: ...

    async with MemoryJournal() as journal:
        lm = CallingBackend([Call("broken", token="hunter2")])
        with pytest.raises(ToolCallError) as caught:
            await Graph(start=Begin).arun(Begin(), lm, journal=journal, run_id="one")
        assert "hunter2" not in str(caught.value)
        assert "hunter2" not in repr(await journal.read("one"))


async def test_an_llm_answer_with_a_secret_is_not_stored_but_requested_again():
    class Vault(EndNode):
        calls: Annotated[list[ToolCall], Tools(refund)]
        code: SecretStr

    class Begin(Node):
        async def __call__(self) -> Vault: ...

    vault, answers = Graph(start=Begin), [[Call("refund", amount=2)], {"code": "hunter2"}]
    async with MemoryJournal() as journal:
        lm = CallingBackend(*answers)
        await vault.arun(Begin(), lm, journal=journal, run_id="one")
        assert "hunter2" not in repr(await journal.read("one"))
        left = await cut_journal_after(journal, "RoundMade", '"number":2')
        DONE.clear()
        lm = CallingBackend({"code": "hunter2"})
        result = await vault.resume("one", lm, journal=left)
        assert result.result.code.get_secret_value() == "hunter2"
        assert DONE == []


# Redaction


async def test_a_redacted_conversation_resumes_without_repeated_calls():
    async with MemoryJournal() as journal:
        await record_run(journal)
        for last in ("ToolEnded", "RoundMade"):
            left = await cut_journal_after(journal, last)
            done = await left.redact("one", "Question.text")
            assert done.texts > 0
            assert "lamp" not in repr((await left.read("one")).lines)
            DONE.clear()
            lm = CallingBackend([Call("search", word="lamp")], {"text": "done"})
            given = {"Question.text": "a lamp?"}
            result = await graph.resume("one", lm, journal=left, given=given)
            assert result.result == Sent(body="done")
            assert [effect for effect in DONE if effect != "get_city"] == ["search lamp"]
            assert [call.name for call in result.trace[1].calls] == ["search", "refund", "search"]


async def test_redacting_a_node_with_tool_calls_keeps_its_usage():
    class Draft(Node):
        calls: Annotated[list[ToolCall], Tools(refund)]
        text: str

    class Letter(EndNode):
        draft: Annotated[Draft, Dep()]

    letter = Graph(start=Letter)
    async with MemoryJournal() as journal:
        lm = CallingBackend([Call("refund", amount=987654321987)], {"text": "done"})
        first = await letter.arun(Letter(), lm, journal=journal, run_id="one")
        assert first.usage.calls == (await journal.runs())[0].summary.calls == 2
        await journal.redact("one", "Letter.draft")
        stored = await journal.read("one")
        assert "987654321987" not in repr(stored)
        assert read_history(stored).usage.calls == 2


async def test_redaction_removes_approval_questions_and_their_answers():
    asking = variant(Tools(search, Tool(refund, approve=True)))
    start = asking.start(text="a lamp?")
    async with MemoryJournal() as journal:
        lm = CallingBackend([Call("refund", amount=987654321987)], {"text": "done"})
        parked = await asking.arun(start, lm, journal=journal, run_id="one")
        gate = parked.waiting[0].address
        answer = {"approve": False, "reason": "987654321987 is too much"}
        await asking.answer("one", gate, answer, journal=journal, go_on=False)
        assert "987654321987" in repr(await journal.read("one"))
        await journal.redact("one", "Question.text")
        assert "987654321987" not in repr(await journal.read("one"))


# Replay


def variant(tools: Any, instruction: str = "") -> Graph[Any, Any]:
    """The graph with other tools, or another instruction."""
    annotated: Any = Annotated[list[ToolCall], tools]

    class Question(Node):
        text: str

        async def __call__(self) -> Reply: ...

    class Reply(Node):
        node_config = NodeConfig(instruction=instruction or None)

        question: Annotated[str, Recall(Question)]
        calls: annotated
        text: str

        async def __call__(self) -> Sent:
            return Sent(body=self.text)

    return Graph(start=Question, end=Sent)


def other_search(word: str, city: Annotated[str, Dep(get_city)], limit: int = 3) -> list[str]:
    """Search the catalog."""
    return []


def told_otherwise(word: str, city: Annotated[str, Dep(get_city)]) -> list[str]:
    """Search what is on sale."""
    return []


async def test_a_replay_makes_no_tool_call_and_no_llm_request():
    async with MemoryJournal() as journal:
        first = await record_run(journal)
        DONE.clear()
        assert (await variant(Tools(search, refund)).replay("one", journal=journal)).trace
        again = await graph.replay("one", journal=journal)
    assert (again.trace, DONE) == (first.trace, [])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda: variant(Tools(Tool(other_search, name="search"), refund)), "the tool search"),
        (lambda: variant(Tools(Tool(told_otherwise, name="search"), refund)), "the tool search"),
        (lambda: variant(Tools(search)), "the tool refund"),
        (lambda: variant(Tools(search, refund, get_city_name)), "are not recorded: get_city_name"),
        (lambda: variant(Tools(search, refund), "Answer in rhymes."), "the question to the LM"),
    ],
)
async def test_a_replay_reports_a_changed_tool_or_question(changed: Callable[[], Any], said: str):
    async with MemoryJournal() as journal:
        await record_run(journal)
        with pytest.raises(ReplayError, match=said) as caught:
            await changed().replay("one", journal=journal)
    assert caught.value.diff


def get_city_name() -> str:
    """Get the name of the city."""
    return "Bern"


# Changed code


async def test_a_resume_reports_a_changed_tool(caplog: Any):
    async with MemoryJournal() as journal:
        await record_run(journal)
        left = await cut_journal_after(journal, "ToolEnded", "refund")
        changed = variant(Tools(Tool(other_search, name="search"), refund))
        lm = CallingBackend({"text": "done"})
        with caplog.at_level(logging.WARNING, "bae"):
            result = await changed.resume("one", lm, journal=left)
        assert result.result == Sent(body="done")
        assert "Reply.calls: its tools are not what they were" in caplog.text
        assert "bae mcp list" not in caplog.text  # there is no server
        assert "search" in caplog.text
        offered = [e for e in (await left.read("one")).lines if e.kind == "ToolsOffered"]
        assert len(offered) == 2


async def test_a_run_resumes_although_a_tool_was_removed():
    async with MemoryJournal() as journal:
        await record_run(journal)
        for last, said in (("ToolStarted", "unknown whether"), ("RoundMade", "there is no tool")):
            left = await cut_journal_after(journal, last, "refund")
            fewer = variant(Tools(search))
            assert await check(fewer, left) == []
            lm = CallingBackend({"text": "done"})
            result = await fewer.resume("one", lm, journal=left)
            refunded = next(call for call in result.trace[1].calls if call.name == "refund")
            assert said in (refunded.error or "")


async def test_a_resume_reports_a_changed_schema_of_an_mcp_server(caplog: Any):
    def tools(described: str) -> Callable[[], list[Tool]]:
        async def call(**given: Any) -> str:
            return "42"

        schema = {"type": "object", "properties": {"x": {"type": described}}}

        def pick() -> list[Tool]:
            return [Tool(call, name="remote", schema=schema)]

        return pick

    async with MemoryJournal() as journal:
        lm = CallingBackend([Call("remote", x=1)], [Call("remote", x=2)], {"text": "done"})
        before = variant(Tools(tools("integer")))
        await before.arun(before.start(text="q"), lm, journal=journal, run_id="one")
        left = await cut_journal_after(journal, "ToolEnded")
        with caplog.at_level(logging.WARNING, "bae"):
            lm = CallingBackend({"text": "done"})
            await variant(Tools(tools("integer"))).resume("one", lm, journal=left)
            assert "tools are not what they were" not in caplog.text
            left = await cut_journal_after(journal, "ToolEnded")
            lm = CallingBackend({"text": "done"})
            await variant(Tools(tools("string"))).resume("one", lm, journal=left)
        assert "its tools are not what they were when the conversation began: remote" in caplog.text


# Forks


async def test_a_fork_repeats_only_tool_calls_after_its_step():
    async with MemoryJournal() as journal:
        await record_run(journal)
        DONE.clear()
        after = await graph.fork("one", at=1, journal=journal, text="other")
        result = await graph.resume(after, journal=journal)
        assert result.result == Sent(body="other")
        assert [call.name for call in result.trace[1].calls] == ["search", "refund", "search"]
        assert DONE == []
        why = await journal.why(after, "Reply.calls")
        assert [call["name"] for call in why.value] == ["search", "refund", "search"]
        before = await graph.fork("one", at=0, journal=journal, text="a bulb?")
        lm = CallingBackend([Call("refund", amount=9)], {"text": "end"})
        result = await graph.resume(before, lm, journal=journal)
        assert [call.name for call in result.trace[1].calls] == ["refund"]
        assert DONE == ["refund 9"]
        assert (await graph.replay(before, journal=journal)).trace == result.trace


# Where values came from


async def test_why_shows_rounds_calls_and_injected_tool_arguments():
    async with MemoryJournal() as journal:
        await record_run(journal)
        text = await journal.why("one", "Reply.text")
        calls = await journal.why("one", "Reply.calls")
        city = await journal.why("one", "Reply.calls(search)(city)")
    assert (text.source, text.value, calls.source) == ("lm", "done", "tools")
    assert text.rounds == calls.rounds
    assert [[call.name for call in round_.calls] for round_ in text.rounds] == [
        ["search", "refund"],
        ["search"],
        [],
    ]
    assert text.rounds[0].calls[1].result == "paid 5"
    assert [round_.usage.input_tokens for round_ in text.rounds] == [100] * 3
    assert text.usage.calls == 3
    assert calls.inputs["search(city)"].value == "Bern"
    assert (city.source, city.by, city.value) == ("dep", "get_city", "Bern")
    shown = str(calls)
    assert "the LLM made 3 tool calls" in shown
    assert 'round 1: c1 search(word="lamp") = ["lamp in Bern"]' in shown
    assert 'round 2: c3 search(word="bulb") = ["bulb in Bern"]' in shown


def want_more(reply: Picky) -> None:
    if reply.text == "short":
        raise ToolError("write more")


async def look_up(word: str) -> str:
    return word


class Picky(EndNode):
    calls: Annotated[list[ToolCall], Tools(look_up, accept=want_more)]
    text: str


class Wanted(Node):
    async def __call__(self) -> Picky: ...


async def test_why_distinguishes_rejected_and_valid_answers():
    lm = CallingBackend({"text": "short"}, {"text": "long enough"})
    async with MemoryJournal() as journal:
        await Graph(start=Wanted).arun(Wanted(), lm, journal=journal, run_id="one")
        provenance = await journal.why("one", "Picky.text")
    judged = [(attempt.verdict, attempt.errors) for attempt in provenance.attempts]
    assert judged == [("refused", ("write more",)), ("valid", ())]
    assert "answer 1 was refused: write more" in str(provenance)


async def test_why_of_a_finished_tool_call_names_the_field_that_lists_it():
    async with MemoryJournal() as journal:
        await record_run(journal)
        with pytest.raises(JournalError) as raised:
            await journal.why("one", "Reply.calls(c2)")
    assert raised.value.code == "bae-why-unknown"
    assert raised.value.fix == "look at the field: 1:Reply.calls"


async def test_why_shows_the_progress_of_an_unfinished_conversation():
    async with MemoryJournal() as journal:
        await record_run(journal)
        left = await cut_journal_after(journal, "ToolStarted", "bulb")
        with pytest.raises(Exception, match=r"in round 2: c3 search\(word=\"bulb\"\) had begun"):
            await left.why("one", "Reply.text")


# Any conversation, cut anywhere, again and again


def random_rounds(chance: Random) -> list[Any]:
    """Rounds of calls, some of them wrong; a text is a wrong answer."""

    def call() -> tuple[str, dict[str, Any]]:
        if chance.random() < 0.4:
            return "search", {"word": str(chance.random())}
        number = chance.randrange(10**9)
        return chance.choice(["refund", "nothing"]), {chance.choice(["amount", "much"]): number}

    return [
        '{"text": 7}' if chance.random() < 0.15 else [call() for _ in range(chance.randrange(1, 4))]
        for _ in range(chance.randrange(1, 5))
    ]


def by_round(rounds: list[Any]) -> CallingBackend:
    """A model that answers by the number of rounds that it sees."""

    def answer(prompt: Prompt) -> Any:
        number = sum(message.role == "assistant" for message in prompt.conversation)
        if number == len(rounds):
            return {"text": "end"}
        if isinstance(rounds[number], str):
            return rounds[number]
        calls = tuple(CallPart("", *call) for call in rounds[number])
        return Answer("I call.", USED, calls=calls, echo={"number": number})

    return CallingBackend(answer, attempts=9)


@pytest.mark.parametrize("seeds", [8, pytest.param(200, marks=pytest.mark.slow)])
async def test_a_conversation_cut_repeatedly_makes_no_call_twice(seeds: int):
    for seed in range(seeds):
        await check_cuts(Random(f"cut {seed}"))


async def check_cuts(chance: Random) -> None:
    rounds = random_rounds(chance)
    names = [call[0] for round_ in rounds if not isinstance(round_, str) for call in round_]
    async with MemoryJournal() as left:
        await graph.arun(START, by_round(rounds), journal=left, run_id="one")
        for _ in range(3):
            count = len((await left.read("one")).lines)
            left = await cut_journal(left, chance.randrange(1, count))
            lines = [(e.kind, json.loads(e.data)) for e in (await left.read("one")).lines]
            started = [data["arguments"] for kind, data in lines if kind == "ToolStarted"]
            begun = {str(value) for arguments in started for value in arguments.values()}
            known = sum(kind == "RoundMade" for kind, _ in lines)
            DONE.clear()
            lm = by_round(rounds)
            result = await graph.resume("one", lm, journal=left)
            assert not [effect for effect in DONE if effect.split()[-1] in begun]
            assert lm.calls == len(rounds) + 1 - known
            assert result.usage.input_tokens == 100 * (len(rounds) + 1)
            assert [call.name for call in result.trace[1].calls] == names
            assert (await graph.replay("one", journal=left)).trace == result.trace


@pytest.mark.parametrize("thinking", [False, True])
async def test_thinking_of_an_answer_without_calls_is_stored_only_on_request(thinking: bool):
    class Thinker(ToyBackend):
        calls_tools = True

        async def answer(self, prompt: Prompt) -> Answer:
            self.prompts.append(prompt)
            return self.answers.pop(0)

    def answer(text: str, *calls: CallPart, thought: str) -> Answer:
        return Answer(text, USED, calls=calls, echo={"thinking": thought})

    search = answer("I look.", CallPart("x", "search", {"word": "lamp"}), thought="which lamp")
    wrong = answer("a lamp", thought="hush")
    right = answer('{"text": "done"}', thought="hush")
    async with MemoryJournal(thinking=thinking) as journal:
        await graph.arun(START, Thinker(search, wrong, right), journal=journal, run_id="one")
        stored = "".join(line.data for line in (await journal.read("one")).lines)
        assert "which lamp" in stored  # the provider needs it with the result of the call
        assert ("hush" in stored) == thinking
        lines = (await journal.read("one")).lines
        count = next(n for n, line in enumerate(lines, 1) if '"a lamp"' in line.data)
        left = await cut_journal(journal, count)
        lm = Thinker(right)
        await graph.resume("one", lm, journal=left)
        assert [message.text for message in lm.prompts[0].conversation[3:4]] == ["a lamp"]


# Cancelling


async def test_a_run_cancelled_during_tool_calls_can_be_resumed():
    begun, ended = asyncio.Event(), list[str]()

    async def wait(word: str) -> str:
        """Wait for ever."""
        try:
            if word == "b":
                begun.set()
            await asyncio.Event().wait()
        finally:
            ended.append(word)
        return word

    class Waits(EndNode):
        calls: Annotated[list[ToolCall], Tools(wait)]
        text: str

    class Begin(Node):
        async def __call__(self) -> Waits: ...

    waits = Graph(start=Begin)
    async with MemoryJournal() as journal:
        before = asyncio.all_tasks()
        lm = CallingBackend([Call("wait", word="a"), Call("wait", word="b")])
        running = asyncio.create_task(waits.arun(Begin(), lm, journal=journal, run_id="one"))
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert sorted(ended) == ["a", "b"]
        assert asyncio.all_tasks() == before
        assert (await journal.read("one")).info.status == "cancelled"
        lm = CallingBackend({"text": "end"})
        result = await waits.resume("one", lm, journal=journal)
        assert all("unknown whether" in (call.error or "") for call in result.trace[-1].calls)


# Files that are not trusted


def dropped(kind: str) -> Callable[[list[Any]], Any]:
    return lambda rows: rows.remove(first_of(rows, kind))


def first_of(rows: list[Any], kind: str, nth: int = 0) -> Any:
    return [row for row in rows if row.get("kind") == kind][nth]


def twice(kind: str) -> Callable[[list[Any]], Any]:
    def change(rows: list[Any]) -> None:
        at = rows.index(first_of(rows, kind))
        rows.insert(at, json.loads(json.dumps(rows[at])))

    return change


def swap_rows(one: tuple[str, int], other: tuple[str, int]) -> Callable[[list[Any]], Any]:
    def change(rows: list[Any]) -> None:
        a, b = rows.index(first_of(rows, *one)), rows.index(first_of(rows, *other))
        rows[a], rows[b] = rows[b], rows[a]

    return change


def with_data(kind: str, **data: Any) -> Callable[[list[Any]], Any]:
    return lambda rows: first_of(rows, kind)["data"].update(data)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dropped("ToolsOffered"), "no tools were offered"),
        (dropped("RoundMade"), "has not called"),
        (twice("RoundMade"), "round 2 is next"),
        (twice("ToolEnded"), "the call has ended"),
        (swap_rows(("RoundMade", 0), ("RoundMade", 1)), "round 1 is next"),
        (swap_rows(("ToolEnded", 0), ("RoundMade", 1)), "has no result"),
        (swap_rows(("RoundMade", 0), ("ToolStarted", 0)), "has not called"),
        (with_data("RoundMade", number=3), "round 1 is next"),
        (with_data("RoundMade", calls=[{"id": "c1", "name": "search"}]), "arguments"),
        (with_data("RoundMade", calls=[{"id": "x", "name": "a", "arguments": {}}]), "the id of"),
        (with_data("ToolStarted", id="c9"), "has not called"),
        (with_data("ToolStarted", name="sell"), "has not called"),
        (with_data("ToolEnded", id="c9"), "has not called"),
        (with_data("ToolEnded", reused="c3"), "no result to use again"),
        (with_data("ToolEnded", error="no", result=1), "not both"),
        (with_data("RoundReplied", number=0), "no round 0"),
        (with_data("RoundReplied", number=7), "no round 7"),
        (with_data("ToolEnded", seconds=-1.0), "seconds is -1.0"),
        (with_data("RoundMade", question="other"), "no tools were offered"),
        (with_data("ToolStarted", asker={"kind": "fill", "node": "Elsewhere"}), "Elsewhere"),
        (with_data("ToolsOffered", asker={"kind": "choice", "node": "Question"}), "nothing asks"),
    ],
)
async def test_conversation_lines_in_a_wrong_order_are_refused(change: Any, said: str):
    async with MemoryJournal() as journal:
        lm = CallingBackend(ROUND, [Call("search", word="bulb")], {"text": 7}, {"text": "done"})
        await graph.arun(START, lm, journal=journal, run_id="one")
        file = io.BytesIO()
        await journal.export(file)
    rows = [json.loads(line) for line in file.getvalue().splitlines()]
    change(rows)
    rows[0]["lines"] = len(rows) - 1
    for n, row in enumerate(rows[1:]):
        row["n"] = n
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    async with MemoryJournal() as other:
        with pytest.raises(JournalError, match=said) as caught:
            await other.load(io.StringIO(text))
        assert caught.value.code == "bae-journal-damaged"
        assert await other.runs() == []


async def test_a_run_cancelled_in_a_worker_thread_leaves_no_thread_behind(tmp_path: Any):
    begun, release, left = asyncio.Event(), threading.Event(), list[str]()
    loop = asyncio.get_running_loop()

    def block(word: str) -> str:
        """Wait in a thread."""
        loop.call_soon_threadsafe(begun.set)
        release.wait(30)
        left.append(word)
        return word

    class Waits(EndNode):
        calls: Annotated[list[ToolCall], Tools(block)]
        text: str

    class Begin(Node):
        async def __call__(self) -> Waits: ...

    waits = Graph(start=Begin)
    async with SQLiteJournal(tmp_path / "runs.db") as journal:
        lm = CallingBackend([Call("block", word="a")])
        running = asyncio.create_task(waits.arun(Begin(), lm, journal=journal, run_id="one"))
        await begun.wait()
        running.cancel()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert left == ["a"]  # the thread was waited for
        assert (await journal.read("one")).info.status == "cancelled"
        result = await waits.resume("one", CallingBackend({"text": "end"}), journal=journal)
        assert "unknown whether" in (result.trace[-1].calls[0].error or "")
    assert asyncio.all_tasks() == {asyncio.current_task()}
