"""A function steers a conversation with tools before each round, and a tool names its call for
services that take an idempotency key."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest

from bae import (
    LM,
    BaeError,
    Dep,
    Graph,
    Node,
    ProofError,
    Recall,
    Tool,
    ToolCall,
    ToolCallError,
    ToolError,
    ToolProgress,
    Tools,
    idempotency_key,
)
from bae.journal import MemoryJournal
from bae.testing import Call, ScriptedLM
from end_node import EndNode
from journal_graphs import cut_journal
from tool_backends import ToolBackend, call

SEEN: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    SEEN.clear()


def search(word: str) -> str:
    """Search for a word."""
    return f"{word} found"


def graph_with(**options: Any) -> Any:
    """A graph whose node has these options of Tools."""

    class Reply(EndNode):
        calls: Annotated[list[ToolCall], Tools(search, limit=4, **options)]
        text: str

    class Question(Node):
        text: str

        async def __call__(self) -> Reply: ...

    return Graph(start=Question, end=Reply)


ROUNDS: list[Any] = [
    [call("search", word="a"), call("search", word="b")],
    [call("search", word="c")],
    {"text": "done"},
]


async def run(graph: Any, lm: Any, **options: Any) -> Any:
    return await graph.arun(graph.start(text="q"), lm, **options)


def texts_of(prompt: Any) -> list[str]:
    """The texts of the user's messages after the question, in order, results included."""
    messages = [
        message
        for message in prompt.conversation
        if message.role == "user" and message.kind == "round"
    ]
    texts = [part.text for message in messages for part in message.parts]
    return [text.removeprefix("Result of search:\n") for text in texts]


@pytest.mark.parametrize("native", [True, False])
async def test_a_text_of_before_round_is_read_after_the_results_of_the_last_round(native: bool):
    def steer(progress: ToolProgress) -> str | None:
        SEEN.append(progress)
        return ["begin", None, "answer now"][progress.rounds]

    rounds = ROUNDS if native else [[call("search", word="a")], *ROUNDS[1:]]
    lm = ToolBackend(*rounds, native=native)
    await run(graph_with(before_round=steer), lm)
    first, second, third = map(texts_of, lm.prompts)
    assert first == ["begin"]
    assert second[-1] == ("b found" if native else "a found")
    assert third[-2:] == ["c found", "answer now"]
    assert [progress.rounds for progress in SEEN] == [0, 1, 2]
    words = [[call.result for call in calls] for calls in SEEN[-1].by_round]
    assert words == [["a found", "b found"][: 2 if native else 1], ["c found"]]
    assert [call.name for call in SEEN[-1].calls] == ["search"] * (3 if native else 2)
    assert SEEN[-1].limit == 4
    assert [progress.messages for progress in SEEN] == [(), ("begin",), ("begin",)]


async def test_before_round_may_be_async_and_have_dependencies():
    async def get_shop() -> str:
        return "Bern"

    async def steer(
        progress: ToolProgress, shop: Annotated[str, Dep(get_shop)], text: Annotated[str, Recall()]
    ) -> str | None:
        await asyncio.sleep(0)
        return f"{text} in {shop}" if progress.rounds == 1 else ""

    lm = ScriptedLM([Call("search", word="a"), {"text": "done"}])
    await run(graph_with(before_round=steer), lm)
    assert texts_of(lm.prompts[1]) == ["a found", "q in Bern"]
    assert texts_of(lm.prompts[0]) == []


async def test_before_round_sees_refused_answers_and_can_announce_the_last_round():
    def accept(reply: Any) -> None:
        if reply.text == "no":
            raise ToolError("try again")

    def steer(progress: ToolProgress) -> str | None:
        SEEN.append(progress.refused)
        return "this is your last round" if progress.limit - progress.rounds == 1 else None

    lm = ToolBackend({"text": "no"}, {"text": "no"}, [call("search", word="a")], {"text": "yes"})
    result = await run(graph_with(before_round=steer, accept=accept), lm)
    assert result.result.text == "yes"
    assert SEEN == [0, 1, 2, 2]
    assert texts_of(lm.prompts[-1])[-1] == "this is your last round"


async def test_accept_timeout_bounds_the_accept_function():
    async def accept(reply: Any) -> None:
        await asyncio.Event().wait()

    with pytest.raises(ToolCallError) as raised:
        await run(graph_with(accept=accept, accept_timeout=0.05), ToolBackend({"text": "a"}))
    assert raised.value.code == "bae-tools-accept"
    assert "0.05 s" in str(raised.value)
    with pytest.raises(ValueError, match="accept_timeout=0"):
        Tools(search, accept_timeout=0)


class StuckWork(BaeError):
    code = "app-stuck"


def stop_at_repeats(progress: ToolProgress) -> None:
    calls = [str(call) for call in progress.calls]
    if len(calls) != len(set(calls)):
        raise StuckWork(f"{calls[-1]} was called twice")


async def test_an_error_of_bae_in_before_round_passes_unchanged():
    lm = ToolBackend(*[[call("search", word="a")]] * 3)
    with pytest.raises(StuckWork, match="was called twice"):
        await run(graph_with(before_round=stop_at_repeats), lm)
    assert len(lm.prompts) == 2


async def test_an_exception_or_wrong_result_of_before_round_names_the_function():
    def fails(progress: ToolProgress) -> str:
        return progress.messages[0]

    def counts(progress: ToolProgress) -> Any:
        return 3

    for steer, what in ((fails, "raised IndexError"), (counts, "returned a int")):
        with pytest.raises(ToolCallError, match=f"before_round=.*{what}") as raised:
            await run(graph_with(before_round=steer), ToolBackend(*ROUNDS))
        assert raised.value.code == "bae-tools-before-round"
        assert "return None or a text" in (raised.value.fix or "")


def takes_nothing() -> None: ...
def takes_two(progress: ToolProgress, more: int) -> None: ...
def takes_text(progress: str) -> None: ...
def takes_lm(progress: ToolProgress, lm: LM) -> None: ...
def returns_number(progress: ToolProgress) -> int:
    return progress.rounds


@pytest.mark.parametrize(
    ("steer", "what"),
    [
        (takes_nothing, "must take a ToolProgress"),
        (takes_two, "takes progress, more"),
        (takes_text, "takes str, and not ToolProgress"),
        (takes_lm, "takes an LM"),
        (returns_number, "returns int"),
    ],
)
def test_the_proof_refuses_a_before_round_function_that_cannot_be_called(steer: Any, what: str):
    with pytest.raises(ProofError) as raised:
        graph_with(before_round=steer).prove()
    (problem,) = [problem for problem in raised.value.problems if problem.severity == "error"]
    assert problem.code == "bae-tools-before-round"
    assert what in problem.message


def test_a_before_round_that_is_not_a_function_is_refused_at_once():
    with pytest.raises(TypeError, match="before_round='now'"):
        Tools(search, before_round="now")  # type: ignore[arg-type]


async def test_a_stored_text_of_before_round_survives_a_kill():
    def steer(progress: ToolProgress) -> str:
        SEEN.append(progress.rounds)
        return f"text {progress.rounds}"

    graph, journal = graph_with(before_round=steer), MemoryJournal()
    await run(graph, ToolBackend(*ROUNDS), journal=journal, run_id="one")
    assert SEEN == [0, 1, 2]
    lines = (await journal.read("one")).lines
    stored = [n for n, line in enumerate(lines) if '"steered"' in line.data]
    assert len(stored) == 3
    SEEN.clear()
    cut, lm = await cut_journal(journal, stored[1] + 1), ToolBackend(*ROUNDS[1:])
    await graph.resume("one", lm, journal=cut)
    assert SEEN == [2]
    assert texts_of(lm.prompts[0]) == ["text 0", "a found", "b found", "text 1"]
    assert texts_of(lm.prompts[1]) == [
        "text 0",
        "a found",
        "b found",
        "text 1",
        "c found",
        "text 2",
    ]
    SEEN.clear()
    assert (await graph.replay("one", journal=cut)).result.text == "done"
    assert SEEN == []
    texts = [text for round_ in (await cut.why("one", "Reply.text")).rounds for text in round_.told]
    assert texts == ["text 0", "text 1", "text 2"]


# --- the key of a call ---------------------------------------------------------------------------


class Failing:
    """A payment service that fails after it has taken a payment."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.fails = 1

    def pay(self, euros: int) -> str:
        """Pay an amount."""
        self.keys.append(idempotency_key())
        if self.fails:
            self.fails -= 1
            raise ConnectionError("no answer")
        return "paid"


def paying(*tools: Any) -> Any:
    class Paid(EndNode):
        calls: Annotated[list[ToolCall], Tools(*tools)]
        text: str

    class Bill(Node):
        text: str

        async def __call__(self) -> Paid: ...

    return Graph(start=Bill, end=Paid)


PAYMENTS: list[Any] = [[Call("pay", euros=1), Call("pay", euros=1)], {"text": "done"}]


async def test_a_retried_tool_call_keeps_its_idempotency_key():
    service = Failing()
    graph = paying(Tool(service.pay, retries=1))
    await run(graph, ScriptedLM([*PAYMENTS]))
    assert len(service.keys) == 3
    assert len(set(service.keys)) == 2
    await run(graph, ScriptedLM([*PAYMENTS]))
    assert len(set(service.keys)) == 4
    assert all(len(key) == 32 and key.isalnum() for key in service.keys)


async def test_a_tool_call_repeated_after_a_resume_keeps_its_idempotency_key():
    service, journal = Failing(), MemoryJournal()
    graph = paying(Tool(service.pay, unfinished="repeat"))
    one = [Call("pay", euros=1), {"text": "done"}]
    with pytest.raises(ToolCallError):
        await run(graph, ScriptedLM([*one]), journal=journal, run_id="one")
    await graph.resume("one", ScriptedLM(one[1:]), journal=journal)
    first, second = service.keys
    assert first == second
    await run(graph, ScriptedLM([*one]), journal=journal, run_id="two")
    assert service.keys[2] != first


async def test_tool_calls_of_a_retried_graph_get_new_idempotency_keys():
    service = Failing()
    inner = paying(service.pay)

    class Shown(EndNode):
        paid: Annotated[Any, Dep(inner, text="text", retries=1)]
        text: str = "t"

    result = await Graph(start=Shown).arun(Shown(text="t"), ScriptedLM([*PAYMENTS[:1], *PAYMENTS]))
    assert result.result.paid is not None
    assert len(service.keys) == len(set(service.keys))


async def test_idempotency_key_outside_a_tool_is_an_error():
    with pytest.raises(RuntimeError, match="outside a tool"):
        idempotency_key()

    async def get_key() -> str:
        return idempotency_key()

    async def pay(key: Annotated[str, Dep(get_key)]) -> str:
        """Pay."""
        return key

    with pytest.raises(BaeError, match="outside a tool"):
        await run(paying(Tool(pay, description="Pay.")), ScriptedLM([Call("pay"), {"text": "."}]))


# --- a body that catches the end of a conversation ------------------------------------------------


class Found(EndNode):
    calls: Annotated[list[ToolCall], Tools(search, before_round=stop_at_repeats)]
    text: str


class GaveUp(Node):
    reason: str
    tries: int

    async def __call__(self) -> Summary: ...


class Summary(EndNode):
    text: str


class Search(Node):
    text: str

    async def __call__(self, lm: LM) -> Found | GaveUp:
        tries = 0
        while tries < 2:
            try:
                return await lm.make(self, Found)
            except StuckWork as stuck:
                reason = stuck.message
                tries += 1
        return GaveUp(reason=reason, tries=tries)


SEARCHES: Any = Graph(start=Search, end=(Found, Summary))
SAME: list[Any] = [[call("search", word="a")]] * 2


async def test_a_body_that_catches_a_conversation_error_resumes_after_any_line():
    journal = MemoryJournal()
    lm = ToolBackend(*SAME, {"text": "gave up"})
    whole = await run(SEARCHES, lm, journal=journal, run_id="one")
    expected = [type(node).__name__ for node in whole.trace]
    assert expected == ["Search", "GaveUp", "Summary"]
    replayed = await SEARCHES.replay("one", journal=journal)
    assert replayed.trace[1] == whole.trace[1]
    lines = (await journal.read("one")).lines
    for many in range(1, len(lines)):
        cut = await cut_journal(journal, many)
        made = sum(line.kind == "RoundMade" for line in lines[:many])
        filled = any(line.kind == "FillEnded" for line in lines[:many])
        left = [*SAME[made:], *([] if filled else [{"text": "gave up"}])]
        again = await SEARCHES.resume("one", ToolBackend(*left), journal=cut)
        assert again.trace[1:] == whole.trace[1:], lines[many - 1].kind
        assert (await SEARCHES.replay("one", journal=cut)).trace[1:] == whole.trace[1:]
        await cut.why("one", "GaveUp.reason")
