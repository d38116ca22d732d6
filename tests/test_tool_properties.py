"""Random conversations with tools: whatever a model does in its rounds, every call has one result,
in the order of the calls, and the bounds hold."""

import asyncio
from itertools import pairwise
from typing import Annotated, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bae import FillError, Tool, ToolCall, ToolCallError, ToolError, Tools
from bae.lm import CallPart, Prompt, ResultPart
from bounded import BOUND, run
from end_node import EndNode, leading_to
from tool_backends import ToolBackend, call, head

ATTEMPTS = 2

one_call = st.one_of(
    st.builds(lambda n: call("count", number=n), st.integers(0, 3)),
    st.builds(lambda n: call("reused", number=n), st.integers(0, 3)),
    st.builds(lambda n: call("fail", number=n), st.integers(0, 3)),
    st.just(call("count", number="three")),
    st.just(call("count")),
    st.just(call("unknown", number=1)),
    st.just(("count", "not an object")),
)
a_round = st.one_of(
    st.lists(one_call, min_size=1, max_size=6), st.just({"wrong": 1}), st.just({"answer": "no"})
)
options = st.fixed_dictionaries(
    {
        "limit": st.integers(1, 6),
        "on_limit": st.sampled_from(["error", "answer"]),
        "max_calls": st.integers(1, 6),
        "at_once": st.integers(1, 4),
    }
)


def calls_in(prompt: Prompt) -> list[list[CallPart]]:
    """The calls of each message that has some."""
    parts = [[p for p in m.parts if isinstance(p, CallPart)] for m in prompt.conversation]
    return [part for part in parts if part]


def results_in(prompt: Prompt) -> list[list[ResultPart]]:
    """The results of each message that has some."""
    parts = [[p for p in m.parts if isinstance(p, ResultPart)] for m in prompt.conversation]
    return [part for part in parts if part]


def expected_result(made: ToolCall, is_over: bool) -> Any:
    """The result that a call must have, or a part of its error."""
    number = made.arguments.get("number")
    if is_over:
        return "answer now"
    match made.name:
        case "unknown":
            return "there is no tool"
        case "fail":
            return f"failed {number}"
        case _ if not made.arguments:
            return "wrong arguments" if made.error and "wrong" in made.error else "no JSON object"
        case _ if isinstance(number, str):
            return "wrong arguments"
        case _:
            return number


@settings(max_examples=60)
@given(script=st.lists(a_round, max_size=8), bounds=options, native=st.booleans())
async def test_a_random_conversation_keeps_its_limits(
    script: list[Any], bounds: dict[str, Any], native: bool
):
    running, most, made = 0, 0, list[int]()

    async def work(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return number

    async def count(number: int) -> int:
        """Count."""
        return await work(number)

    async def reused(number: int) -> int:
        """Count once."""
        made.append(number)
        return await work(number)

    async def fail(number: int) -> None:
        """Fail."""
        raise ToolError(f"failed {await work(number)}")

    def accept(node: Any) -> None:
        if node.answer == "no":
            raise ToolError("not this answer")

    class Reply(EndNode):
        calls: Annotated[
            list[ToolCall],
            Tools(count, fail, Tool(reused, repeat="reuse"), accept=accept, **bounds),
        ]
        answer: str

    accept.__annotations__["node"] = Reply
    if not native:  # which make one call a round
        script = [step[:1] if isinstance(step, list) else step for step in script]
        script = [step for step in script if step != [("count", "not an object")]]
    lm = ToolBackend(*script, {"answer": "yes"}, native=native, attempts=ATTEMPTS)
    lm.rounds += [{"answer": "yes"}] * (ATTEMPTS + 1)
    calls, code = list[ToolCall](), ""
    try:
        async with asyncio.timeout(BOUND):
            reply = (await run(leading_to(Reply)(), lm)).result
        calls = reply.calls
        assert reply.answer == "yes"
    except FillError:
        code = ""
    except ToolCallError as error:
        calls, code = [*error.calls], error.code
    assert code in ("", "bae-tools-limit", "bae-tool-wrong-rounds")

    # The bounds hold.
    last = bounds["limit"] + (1 + ATTEMPTS if bounds["on_limit"] == "answer" else 0)
    assert len(lm.prompts) <= last
    assert (running, most <= bounds["at_once"]) == (0, True)
    assert len(set(made)) == len(made)

    # The calls have ids in order, and their own results.
    numbers = [int(call.id[1:]) for call in calls]
    assert numbers == sorted(set(numbers))
    for tool_call in calls:
        refused = tool_call.error is not None and "call it again" in tool_call.error
        if not refused:
            is_over = tool_call.error is not None and "answer now" in tool_call.error
            wanted = expected_result(tool_call, is_over)
            assert tool_call.result == wanted or (
                tool_call.error is not None and str(wanted) in tool_call.error
            )

    # What is sent only grows, and each call has its result in the next message.
    for before, after in pairwise(lm.prompts):
        size = len(before.conversation)
        assert head(after, size) == head(before, size)
    for prompt in lm.prompts:
        asked, told = calls_in(prompt), results_in(prompt)
        assert [[p.id for p in each] for each in asked] == [[p.id for p in each] for each in told]
        ids = [part.id for message in asked for part in message]
        assert len(set(ids)) == len(ids)
        assert prompt.conversation[-1].role == "user"
        if not native:
            assert asked == []
