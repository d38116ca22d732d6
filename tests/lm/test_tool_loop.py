"""Conversations with tools over a backend: rounds with native tool calls, and by structured output
for models without them."""

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from bae import (
    BaeLMError,
    BudgetError,
    Dep,
    FillError,
    Graph,
    Native,
    Node,
    NodeConfig,
    Recall,
    Text,
    Tool,
    ToolCall,
    ToolCallError,
    ToolError,
    Tools,
)
from bae.journal import MemoryJournal
from bae.lm import Answer, Budget, Budgeted, CallPart, Prompt, ResultPart
from bounded import error_from, run
from end_node import EndNode, leading_to
from tool_backends import ToolBackend, call, head, offers_calls
from toy_backend import FourMethods

both = pytest.mark.parametrize("native", [True, False], ids=["native", "structured"])


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def read_page(page: str) -> str:
    """Read a page."""
    if page == "missing":
        raise ToolError("there is no such page")
    return f"the text of {page}"


class Reply(EndNode):
    calls: Annotated[list[ToolCall], Tools(add, read_page, limit=8)]
    answer: str


Ask = leading_to(Reply, name="Ask", question=str)
ASK = Ask(question="How much is it?")


def parts_of_message(prompt: Prompt, number: int = -1) -> list[str]:
    """The parts of a message of a prompt: results and texts, as the model reads them."""
    return [
        part.result if isinstance(part, ResultPart) else part.text.partition(":\n")[2] or part.text
        for part in prompt.conversation[number].parts
    ]


# --- rounds -------------------------------------------------------------------------------------


@both
async def test_the_last_message_after_tool_calls_fills_the_node(
    native: bool,
):
    lm = ToolBackend(
        [call("add", a=1, b=2)], [call("read_page", page="x")], {"answer": "3"}, native=native
    )
    reply = (await run(ASK, lm)).result

    assert reply.answer == "3"
    assert [
        (tool_call.name, tool_call.arguments, tool_call.result) for tool_call in reply.calls
    ] == [
        ("add", {"a": 1, "b": 2}, 3),
        ("read_page", {"page": "x"}, "the text of x"),
    ]
    assert all(call.seconds > 0 and call.error is None for call in reply.calls)
    assert len(lm.prompts) == 3  # and no request more for the fill
    assert [parts_of_message(prompt) for prompt in lm.prompts[1:]] == [["3"], ["the text of x"]]


@both
async def test_a_model_that_needs_no_tool_answers_at_once(native: bool):
    lm = ToolBackend({"answer": "3"}, native=native)
    reply = (await run(ASK, lm)).result
    assert (reply.calls, reply.answer) == ([], "3")


async def test_native_tools_and_the_schema_of_the_other_fields_are_in_one_request():
    lm = ToolBackend({"answer": "3"})
    await run(ASK, lm)
    (prompt,) = lm.prompts
    assert [tool.name for tool in prompt.tools] == ["add", "read_page"]
    assert [*(prompt.schema or {})["properties"]] == ["answer"]
    assert "add" not in prompt.text


async def test_a_model_without_native_calls_gets_the_tools_in_the_question():
    lm = ToolBackend([call("add", a=1, b=2)], {"answer": "3"}, native=False)
    await run(ASK, lm)
    prompt = lm.prompts[0]
    assert prompt.tools == ()
    assert "- add: Add two numbers." in prompt.text
    options = (prompt.schema or {})["properties"]["next_step"]["anyOf"]
    # Each alternative is closed, and says first what it is.
    assert [next(iter(option["properties"].items())) for option in options] == [
        ("action", {"type": "string", "const": name}) for name in ("add", "read_page", "answer")
    ]
    assert not any(option["additionalProperties"] for option in options)
    assert options[0]["required"] == ["action", "a", "b"]


async def test_calls_of_one_round_run_concurrently_and_keep_their_order():
    second = asyncio.Event()

    async def wait() -> str:
        """Wait for the other."""
        await second.wait()
        return "first"

    async def release() -> str:
        """Release the other."""
        second.set()
        return "second"

    class Waited(EndNode):
        calls: Annotated[list[ToolCall], Tools(wait, release)]
        answer: str

    lm = ToolBackend([call("wait"), call("release")], {"answer": "done"})
    waited = (await run(leading_to(Waited)(), lm)).result
    assert [tool_call.result for tool_call in waited.calls] == ["first", "second"]
    assert parts_of_message(lm.prompts[1]) == ["first", "second"]  # all in the one next message


async def test_an_answer_that_comes_with_calls_is_not_final():
    with_calls = Answer('{"answer": "early"}', calls=(CallPart("x", "add", {"a": 1, "b": 1}),))
    lm = ToolBackend(with_calls, {"answer": "late"})
    reply = (await run(ASK, lm)).result
    assert (reply.answer, [call.result for call in reply.calls]) == ("late", [2])
    said = lm.prompts[1].conversation[1]
    assert [part.kind for part in said.parts] == ["text", "call"]


async def test_call_ids_are_independent_of_the_providers_ids():
    lm = ToolBackend(
        [call("add", a=1, b=1), call("add", a=2, b=2)], [call("add", a=3, b=3)], {"answer": "6"}
    )
    reply = (await run(ASK, lm)).result
    assert [tool_call.id for tool_call in reply.calls] == ["c1", "c2", "c3"]
    parts = [part for message in lm.prompts[-1].conversation for part in message.parts]
    assert [part.id for part in parts if isinstance(part, CallPart)] == ["c1", "c2", "c3"]
    assert [part.id for part in parts if isinstance(part, ResultPart)] == ["c1", "c2", "c3"]


@both
async def test_a_conversation_only_grows_and_keeps_its_beginning(native: bool):
    lm = ToolBackend(
        [call("add", a=1, b=1)],
        [call("add", a="one", b=1)],
        {"answer": 3},
        [call("add", a=1, b=1)],  # repeated: without native calls, the answer alone is offered
        {"answer": 4},
        {"answer": "2"},
        native=native,
    )
    await run(ASK, lm)
    assert len(lm.prompts) == 6
    for before, after in zip(lm.prompts, lm.prompts[1:], strict=False):
        assert len(after.conversation) == len(before.conversation) + 2
        assert head(after, len(before.conversation)) == head(before, len(before.conversation))


async def test_provider_data_is_sent_back_in_every_later_round():
    echo = {"thinking": "signed"}
    first = Answer("", calls=(CallPart("x", "add", {"a": 1, "b": 1}),), echo=echo)
    lm = ToolBackend(first, [call("add", a=2, b=2)], {"answer": "4"})
    await run(ASK, lm)
    for prompt in lm.prompts[1:]:
        assert prompt.conversation[1].echo == echo


async def test_a_truncated_message_is_asked_for_again():
    half = Answer("", stop="cut-off", calls=(CallPart("x", "add", {"a": 1}),), echo={"half": 1})
    lm = ToolBackend(half, {"answer": "3"})
    reply = (await run(ASK, lm)).result
    assert (reply.calls, reply.answer) == ([], "3")
    said, correction = lm.prompts[1].conversation[-2:]
    assert (said.echo, [part.kind for part in said.parts]) == (None, ["text"])
    assert "cut off" in correction.text or "length" in correction.text


async def test_an_empty_answer_after_tool_results_is_asked_for_again():
    lm = ToolBackend([call("add", a=1, b=1)], Answer(""), {"answer": "2"})
    assert (await run(ASK, lm)).result.answer == "2"


async def test_a_refusal_fails_the_fill_at_once():
    lm = ToolBackend([call("add", a=1, b=1)], Answer("I will not", stop="refused"))
    error = await error_from(FillError, run(ASK, lm))
    assert error.code == "bae-fill-refused"


# --- the fill -----------------------------------------------------------------------------------


@both
async def test_a_wrong_answer_is_corrected_in_the_same_conversation(native: bool):
    lm = ToolBackend([call("add", a=1, b=1)], {"reply": "2"}, {"answer": "2"}, native=native)
    reply = (await run(ASK, lm)).result
    assert (reply.answer, len(reply.calls)) == ("2", 1)
    assert "answer" in lm.prompts[2].conversation[-1].text
    assert len(lm.rejected) == 1


@both
async def test_wrong_answers_in_a_row_are_bounded_by_attempts(native: bool):
    lm = ToolBackend(*[{"reply": "2"}] * 3, native=native, attempts=2)
    error = await error_from(FillError, run(ASK, lm))
    assert (error.code, len(error.tried)) == ("bae-fill-invalid", 3)


@both
async def test_the_last_message_fills_a_text_field(native: bool):
    class Letter(EndNode):
        calls: Annotated[list[ToolCall], Tools(add)]
        text: Annotated[str, Text()]

    lm = ToolBackend([call("add", a=1, b=2)], "Dear Ana,\nit is 3.", native=native)
    letter = (await run(leading_to(Letter)(), lm)).result
    assert (letter.text, len(letter.calls)) == ("Dear Ana,\nit is 3.", 1)
    if native:
        assert [prompt.schema for prompt in lm.prompts] == [None, None]


async def test_the_answer_at_the_limit_of_a_node_with_a_text_is_plain_text():
    class Letter(EndNode):
        calls: Annotated[list[ToolCall], Tools(add, limit=1, on_limit="answer")]
        text: Annotated[str, Text()]

    lm = ToolBackend([call("add", a=1, b=2)], "It is {3}.", native=False)
    letter = (await run(leading_to(Letter)(), lm)).result
    assert letter.text == "It is {3}."
    assert lm.prompts[1].schema is None
    assert "Answer in plain text" in lm.prompts[1].conversation[-1].text


@both
async def test_a_node_with_only_tools_is_filled_once_the_model_calls_no_tool(native: bool):
    class Done(EndNode):
        calls: Annotated[list[ToolCall], Tools(add)]

    lm = ToolBackend([call("add", a=1, b=2)], "added" if native else {}, native=native)
    done = (await run(leading_to(Done)(), lm)).result
    assert [tool_call.result for tool_call in done.calls] == [3]
    assert len(lm.prompts) == 2


async def test_a_refusal_fails_a_node_with_only_tools():
    class Done(EndNode):
        calls: Annotated[list[ToolCall], Tools(add)]

    lm = ToolBackend(Answer("I will not", stop="refused"))
    await error_from(FillError, run(leading_to(Done)(), lm))


async def test_fields_may_use_the_key_names_of_a_structured_round():
    class Odd(EndNode):
        calls: Annotated[list[ToolCall], Tools(Tool(add, name="answer"))]
        action: str
        next_step: str

    first = {"next_step": {"_action": "answer", "a": 1, "b": 2}}
    last = {"next_step": {"_action": "final_answer", "action": "go", "next_step": "on"}}
    lm = ToolBackend(Answer(json.dumps(first)), Answer(json.dumps(last)), native=False)
    odd = (await run(leading_to(Odd)(), lm)).result
    assert (odd.action, odd.next_step, odd.calls[0].result) == ("go", "on", 3)


# --- where a node is filled ---------------------------------------------------------------------


async def test_a_chosen_node_with_tools_is_filled_in_its_own_conversation():
    class Other(EndNode):
        word: str

    lm = ToolBackend(
        {"answer": {"choice": "Reply"}}, [call("add", a=1, b=2)], {"answer": "3"}, native=True
    )
    result = await run(leading_to(Reply, Other)(), lm)
    assert isinstance(result.result, Reply)
    choice, *rounds = lm.prompts
    assert choice.tools == ()
    # The other candidate can come filled with the choice; the one with tools cannot.
    assert "Reply" in str(choice.schema)
    assert [len(prompt.tools) for prompt in rounds] == [2, 2]


async def test_policies_see_each_round():
    rounds = [call("add", a=1, b=2)], [call("add", a=2, b=2)], {"answer": "4"}
    result = await run(ASK, Budgeted(ToolBackend(*rounds), Budget(calls=3)))
    assert result.usage.calls == 3

    lm = ToolBackend(*rounds)
    await error_from(BudgetError, run(ASK, Budgeted(lm, Budget(calls=2))))
    assert len(lm.prompts) == 2


# --- models that repeat themselves --------------------------------------------------------------


async def test_a_structured_model_that_repeats_a_call_is_offered_only_the_answer():
    def play(prompt: Prompt) -> Any:
        return [call("add", a=1, b=2)] if offers_calls(prompt) else {"answer": "3"}

    lm = ToolBackend(play, native=False)
    reply = (await run(ASK, lm)).result
    assert (reply.answer, len(reply.calls)) == ("3", 2)
    assert [offers_calls(prompt) for prompt in lm.prompts] == [True, True, False]
    assert (
        lm.prompts[-1].conversation[-1].text.endswith("Answer now. No tool can be called any more.")
    )


async def test_a_wrong_last_answer_is_asked_for_again_without_tools():
    answers = iter([{"reply": "3"}, {"answer": "3"}])

    def play(prompt: Prompt) -> Any:
        return [call("add", a=1, b=2)] if offers_calls(prompt) else next(answers)

    lm = ToolBackend(play, native=False)
    assert (await run(ASK, lm)).result.answer == "3"
    assert [offers_calls(prompt) for prompt in lm.prompts] == [True, True, False, False]


@pytest.mark.parametrize(
    ("repeat", "native", "alone"),
    [("call", False, False), ("reuse", False, True), ("", False, True), ("", True, False)],
)
async def test_a_tool_that_may_repeat_is_offered_again(
    repeat: Literal["", "call", "reuse"], native: bool, alone: bool
):
    class Polled(EndNode):
        calls: Annotated[list[ToolCall], Tools(Tool(add, repeat=repeat))]
        answer: str

    same = [call("add", a=1, b=2)]
    lm = ToolBackend(same, same, {"answer": "3"}, native=native)
    await run(leading_to(Polled)(), lm)
    offered = lm.prompts[-1].may_call if native else offers_calls(lm.prompts[-1])
    assert offered is not alone


# --- limits -------------------------------------------------------------------------------------


def make_limited(**options: Any) -> type[Any]:
    class Limited(EndNode):
        calls: Annotated[list[ToolCall], Tools(add, **options)]
        answer: str

    return leading_to(Limited)


@both
async def test_reaching_the_limit_of_rounds_is_an_error_with_the_calls(native: bool):
    lm = ToolBackend(*[[call("add", a=n, b=n)] for n in range(3)], native=native)
    error = await error_from(ToolCallError, run(make_limited(limit=3)(), lm))
    assert error.code == "bae-tools-limit"
    assert [tool_call.result for tool_call in error.calls] == [
        0,
        2,
    ]  # no round is left for a third result
    assert "add(a=1, b=1)" in error.message
    assert "limit=" in (error.fix or "")


@both
async def test_a_last_round_at_the_limit_can_offer_only_the_answer(native: bool):
    lm = ToolBackend([call("add", a=1, b=1)], {"answer": "2"}, native=native)
    limit = make_limited(limit=1, on_limit="answer")
    reply = (await run(limit(), lm)).result
    assert (reply.answer, len(reply.calls)) == ("2", 1)
    first, last = lm.prompts
    if native:  # the tools stay declared, or the provider's cache would miss
        assert (first.may_call, last.may_call) == (True, False)
        assert first.tools == last.tools
    else:
        assert (offers_calls(first), offers_calls(last)) == (True, False)


async def test_a_call_in_the_last_round_is_refused_with_an_error():
    lm = ToolBackend([call("add", a=1, b=1)], [call("add", a=2, b=2)], {"answer": "2"})
    reply = (await run(make_limited(limit=1, on_limit="answer")(), lm)).result
    assert [tool_call.error for tool_call in reply.calls] == [
        None,
        "no tool can be called any more: answer now",
    ]


async def test_refused_calls_in_the_last_round_are_bounded():
    lm = ToolBackend(lambda _: [call("add", a=1, b=1)])
    error = await error_from(ToolCallError, run(make_limited(limit=2, on_limit="answer")(), lm))
    assert error.code == "bae-tool-wrong-rounds"
    assert len(lm.prompts) == 5


async def test_the_limit_of_rounds_is_independent_of_the_limit_of_steps():
    lm = ToolBackend(*[[call("add", a=n, b=n)] for n in range(5)], {"answer": "4"})
    result = await run(ASK, lm, max_iters=2)
    assert len(result.result.calls) == 5


@both
async def test_consecutive_rounds_of_wrong_calls_are_bounded_by_attempts(native: bool):
    wrong = [[call("add", a=1)], [call("add", a="x", b=1)], [call("add", a=1, b=1, c=1)]]
    lm = ToolBackend(*wrong, native=native, attempts=2)
    error = await error_from(ToolCallError, run(ASK, lm))
    assert error.code == "bae-tool-wrong-rounds"
    assert "wrong arguments: c:" in error.message
    assert "b" in parts_of_message(lm.prompts[1])[0]
    assert len(error.calls) == 3

    lm = ToolBackend(*wrong[:2], [call("add", a=1, b=1)], *wrong[:2], {"answer": "2"})
    assert (await run(ASK, lm)).result.answer == "2"  # not in a row


async def test_a_round_with_a_valid_call_is_not_a_wrong_round():
    mixed = [call("add", a=1), call("add", a=1, b=1)]
    lm = ToolBackend(*[mixed] * 5, {"answer": "2"})
    assert (await run(ASK, lm)).result.answer == "2"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (call("subtract", a=1), "there is no tool subtract; there are: add, read_page"),
        (("add", "[1, 2]"), "the arguments are no JSON object"),
        (call("add", a=1, b=None), "wrong arguments: b:"),
    ],
    ids=["unknown", "no object", "null"],
)
async def test_an_impossible_call_is_answered_with_its_fault(wrong: Any, said: str):
    lm = ToolBackend([wrong], {"answer": "2"})
    reply = (await run(ASK, lm)).result
    assert said in (reply.calls[0].error or "")
    (result,) = lm.prompts[1].conversation[-1].parts
    assert isinstance(result, ResultPart)
    assert result.is_error
    assert said in result.result


async def test_calls_beyond_the_limit_of_a_message_are_refused():
    many = [call("add", a=n, b=0) for n in range(4)]
    lm = ToolBackend(many, {"answer": "2"})
    reply = (await run(make_limited(max_calls=3)(), lm)).result
    assert [tool_call.result for tool_call in reply.calls] == [0, 1, 2, None]
    assert reply.calls[3].error == "one message may have at most 3 calls: call it again"


# --- what the model reads of results ------------------------------------------------------------


async def text_of_result(result: Any, **options: Any) -> str:
    """The text of a result as a model reads it."""

    async def look() -> Any:
        """Look."""
        return result

    class Looked(EndNode):
        calls: Annotated[list[ToolCall], Tools(Tool(look, **options))]
        answer: str

    lm = ToolBackend([call("look")], {"answer": ""})
    await run(leading_to(Looked)(), lm)
    (read,) = parts_of_message(lm.prompts[1])
    return read


class Hit(BaseModel):
    title: str
    price: float


@pytest.mark.parametrize(
    ("result", "read"),
    [
        ("text", "text"),
        (3, "3"),
        (None, "done"),
        (False, "false"),
        ([], "no results"),
        ("", "no results"),
        ({}, "no results"),
        ([Hit(title="tea", price=1.5)], '[{"title":"tea","price":1.5}]'),
        ({"a": (1, 2)}, '{"a":[1,2]}'),
    ],
    ids=str,
)
async def test_a_tool_result_is_shown_as_plain_text_or_json(result: Any, read: str):
    assert await text_of_result(result) == read


async def test_a_long_text_is_cut_between_lines_with_both_sizes():
    text = "\n".join(f"line {n}" for n in range(1000))
    read = await text_of_result(text, result_limit=100)
    lines = read.splitlines()
    shown = len(read) - len(lines[-1]) - 1
    assert lines[-1] == f"[cut: {shown} of {len(text):,} characters are shown]"
    assert text.startswith("\n".join(lines[:-1]) + "\n")


async def test_a_long_list_is_cut_between_items_with_both_sizes():
    read = await text_of_result([{"n": n} for n in range(1000)], result_limit=100)
    shown, cut = read.splitlines()
    items = json.loads(shown)
    assert items == [{"n": n} for n in range(len(items))]
    assert len(shown) <= 100
    assert cut.startswith(f"[cut: {len(items)} of 1,000 items are shown, ")


async def test_the_default_limit_of_a_result_is_20_000_characters():
    assert await text_of_result("x" * 20_000) == "x" * 20_000
    assert (await text_of_result("x" * 20_001)).endswith(
        "[cut: 20,000 of 20,001 characters are shown]"
    )


async def test_the_oldest_results_are_shortened_before_the_context_overflows():
    def read(page: int) -> str:
        """Read a page."""
        return f"page {page} " * 100

    class Read(EndNode):
        calls: Annotated[list[ToolCall], Tools(read, context=900)]
        answer: str

    rounds = [[call("read", page=2 * n), call("read", page=2 * n + 1)] for n in range(4)]
    lm = ToolBackend(*rounds, {"answer": ""})
    result = await run(leading_to(Read)(), lm)

    shown = [
        [part.result for part in message.parts if isinstance(part, ResultPart)]
        for message in lm.prompts[-1].conversation
    ]
    results = [content for content in shown if content]
    is_cut = [[text.startswith("[cut, ") for text in result] for result in results]
    assert is_cut == [[True, True], [True, True], [True, True], [False, False]]  # whole rounds
    assert results[0][0] == "[cut, 700 characters: call it again if you need it]"
    assert [len(tool_call.result) for tool_call in result.result.calls] == [
        700
    ] * 8  # the node has it all
    cuts = [record for record in result.journal if getattr(record, "kind", "") == "cut"]
    assert [record.number for record in cuts] == [2, 3]  # type: ignore[attr-defined]


async def test_the_context_window_of_the_model_shortens_results_too():
    class Small(ToolBackend):
        context_window = 300

    def read() -> str:
        """Read a page."""
        return "page " * 1000

    class Read(EndNode):
        calls: Annotated[list[ToolCall], Tools(read)]
        answer: str

    lm = Small([call("read")], {"answer": ""})
    error = await error_from(ToolCallError, run(leading_to(Read)(), lm))
    assert error.code == "bae-tools-context"
    assert "the limit is 300" in error.message
    assert len(lm.prompts) == 1  # the request was not sent


# --- accepting ----------------------------------------------------------------------------------


def with_accept(accept: Any, **options: Any) -> type[Any]:
    class Accepted(EndNode):
        calls: Annotated[list[ToolCall], Tools(add, accept=accept, **options)]
        answer: str

    accept.__annotations__["node"] = Accepted
    return leading_to(Accepted)


@both
async def test_a_rejected_answer_is_sent_back_with_one_message(native: bool):
    seen: list[Any] = []

    async def accept(node: Any) -> None:
        seen.append(node)
        if node.answer != "3":
            raise ToolError("it is 3")

    lm = ToolBackend({"answer": "2"}, [call("add", a=1, b=2)], {"answer": "3"}, native=native)
    accepted = (await run(with_accept(accept)(), lm)).result
    assert [(node.answer, len(node.calls)) for node in seen] == [("2", 0), ("3", 1)]
    assert seen[1] == accepted
    assert parts_of_message(lm.prompts[1]) == ["it is 3"]
    assert lm.rejected == []  # it was a valid answer


@pytest.mark.parametrize("on_limit", ["error", "answer"])
async def test_a_refused_answer_uses_up_a_round(on_limit: str):
    def accept(node: Any) -> None:
        raise ToolError("never")

    lm = ToolBackend(lambda _: {"answer": "2"})
    start = with_accept(accept, limit=3, on_limit=on_limit)
    error = await error_from(ToolCallError, run(start(), lm))
    assert error.code == "bae-tools-limit"
    assert "the answer was refused: never" in error.message
    assert len(lm.prompts) == (3 if on_limit == "error" else 4)


async def test_any_other_exception_while_accepting_fails_the_run():
    def accept(node: Any) -> None:
        raise KeyError("oops")

    lm = ToolBackend({"answer": "2"})
    error = await error_from(ToolCallError, run(with_accept(accept)(), lm))
    assert error.code == "bae-tools-accept"
    assert isinstance(error.cause, KeyError)


async def test_an_accept_function_may_have_dependencies():
    async def get_price() -> int:
        return 3

    def accept(node: Any, price: Annotated[int, Dep(get_price)]) -> None:
        if node.answer != str(price):
            raise ToolError(f"it is {price}")

    lm = ToolBackend({"answer": "2"}, {"answer": "3"})
    assert (await run(with_accept(accept)(), lm)).result.answer == "3"


async def test_a_tool_named_accept_can_be_used_with_an_accept_function():
    async def get_price() -> int:
        return 3

    async def get_shop() -> str:
        return "tea"

    def check(node: Any, price: Annotated[int, Dep(get_price)]) -> None:
        if node.answer != str(price):
            raise ToolError(f"it is {price}")

    async def accept(offer: int, shop: Annotated[str, Dep(get_shop)]) -> str:
        """Accept an offer."""
        return f"{offer} for {shop}"

    class Sold(EndNode):
        calls: Annotated[list[ToolCall], Tools(accept, accept=check)]
        answer: str

    check.__annotations__["node"] = Sold
    lm = ToolBackend({"answer": "2"}, [call("accept", offer=2)], {"answer": "3"})
    sold = (await run(leading_to(Sold)(), lm, journal=MemoryJournal())).result
    assert sold.calls[0].result == "2 for tea"


async def test_a_node_with_only_tools_fails_at_the_limit_if_never_accepted():
    def accept(node: Any) -> None:
        if len(node.calls) < 2:
            raise ToolError("call it twice")

    class Done(EndNode):
        calls: Annotated[list[ToolCall], Tools(add, accept=accept, limit=4, on_limit="answer")]

    accept.__annotations__["node"] = Done
    start = leading_to(Done)
    lm = ToolBackend("nothing", [call("add", a=1, b=2)], [call("add", a=2, b=2)], "done")
    assert len((await run(start(), lm)).result.calls) == 2

    lm = ToolBackend(*["nothing"] * 4)
    error = await error_from(ToolCallError, run(start(), lm))
    assert error.code == "bae-tools-limit"


# --- tools of the provider ----------------------------------------------------------------------


class Searched(EndNode):
    calls: Annotated[list[ToolCall], Tools(add, Native("web_search", max_uses=3))]
    answer: str


async def test_a_tool_of_the_provider_is_passed_through_and_its_calls_are_recorded():
    class Searching(ToolBackend):
        native_tools = frozenset({"web_search"})

    ran = (
        CallPart("p1", "web_search", {"query": "tea"}),
        ResultPart("p1", "web_search", "three hits"),
    )
    both_kinds = Answer("", calls=(CallPart("p2", "add", {"a": 1, "b": 2}),), ran=(ran,))
    lm = Searching(both_kinds, {"answer": "3"})
    searched = (await run(leading_to(Searched)(), lm)).result
    assert [(call.id, call.name, call.result) for call in searched.calls] == [
        ("c1", "web_search", "three hits"),
        ("c2", "add", 3),
    ]
    spec = lm.prompts[0].tools[1]
    assert (spec.name, spec.native) == ("web_search", {"max_uses": 3})


# --- models that cannot -------------------------------------------------------------------------


async def test_a_model_without_the_provider_tool_is_refused_before_the_run():
    calls: list[str] = []

    class Begin(Node):
        async def __call__(self) -> Searched:
            calls.append("body")
            raise AssertionError("not reached")

    lm = ToolBackend()
    error = await error_from(BaeLMError, run(Begin(), lm))
    assert error.code == "bae-tool-native"
    assert (calls, lm.prompts) == ([], [])


async def test_an_lm_without_rounds_is_refused_before_a_run_with_tools():
    calls: list[str] = []

    class Begin(Node):
        async def __call__(self) -> Reply:
            calls.append("body")
            raise AssertionError("not reached")

    error = await error_from(BaeLMError, run(Begin(), FourMethods()))
    assert (error.code, calls) == ("bae-tools-lm", [])


async def test_a_tool_node_with_a_pinned_model_does_not_need_the_runs_lm():
    lm = ToolBackend([call("add", a=1, b=2)], {"answer": "3"})

    class Pinned(EndNode):
        node_config = NodeConfig(lm=lm)
        calls: Annotated[list[ToolCall], Tools(add)]
        answer: str

    class Begin(Node):
        async def __call__(self) -> Pinned: ...

    assert (await run(Begin(), FourMethods())).result.answer == "3"


# --- arguments ----------------------------------------------------------------------------------


class Size(BaseModel):
    width: int = Field(gt=0)
    inner: "Size | None" = None


async def measure(size: Size, units: Sequence[Literal["cm", "in"]] = ("cm",)) -> str:
    """Measure it.

    Args:
        size: the size,
            in whole units
        units (list): which units
    """
    assert isinstance(size, Size)
    return f"{size.width} {' '.join(units)}"


class Measured(EndNode):
    calls: Annotated[list[ToolCall], Tools(measure)]
    answer: str


@both
async def test_tool_arguments_are_converted_to_the_types_of_the_signature(native: bool):
    lm = ToolBackend(
        [call("measure", size={"width": 0})],
        [call("measure", size={"width": 2, "inner": {"width": 1}}, units=["in"])],
        [call("measure", size={"width": 3})],
        {"answer": ""},
        native=native,
    )
    measured = (await run(leading_to(Measured)(), lm)).result
    assert "size.width" in (measured.calls[0].error or "")
    assert [tool_call.result for tool_call in measured.calls[1:]] == ["2 in", "3 cm"]


async def test_the_docstring_of_a_tool_describes_it_and_its_parameters():
    lm = ToolBackend({"answer": ""})
    await run(leading_to(Measured)(), lm)
    (spec,) = lm.prompts[0].tools
    assert spec.description == "Measure it."
    properties = spec.schema["properties"]
    assert properties["units"]["description"] == "which units"
    assert properties["units"]["default"] == ["cm"]
    assert spec.schema["required"] == ["size"]
    assert "title" not in json.dumps(spec.schema)


async def test_recalled_and_resolved_values_are_shown_for_a_node_with_tools():
    class Kept(EndNode):
        question: Annotated[str, Recall()]
        price: Annotated[int, Dep(lambda: 7)]
        calls: Annotated[list[ToolCall], Tools(add)]
        answer: str

    lm = ToolBackend({"answer": ""})
    graph = Graph(start=leading_to(Kept, question=str))
    await graph.arun(graph.start(question="how?"), lm)
    assert '"price":7' in lm.prompts[0].text
    assert "how?" in lm.prompts[0].text
