"""What every backend that speaks HTTP promises of tools, over real HTTP against a provider on
loopback that refuses what real providers refuse."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any

import pytest

from bae import GraphResult
from bae.exceptions import FillError
from bae.lm.backend import Backend
from bae.observers import observing
from bae.prompts.tools import WRAPPER
from bae.records import AnswerJudged, Record, ToolEnded
from bae.testing import Call, Calls, Empty, Overlong, Provider, Received, Refusal, Stall, Status
from bounded import BOUND
from field_texts import Seen
from http_backends import BACKENDS, WIRES, Make
from tool_nodes import (
    HURRYING,
    PRICING,
    QUESTION,
    WORKING,
    WRITING,
    Hurrying,
    Pricing,
    Question,
    Working,
    Writing,
    rounds,
)

ANSWER = {"answer": "42", "pages": [1]}
ASKED = Question(text="which kettle?")


@pytest.fixture(params=list(WIRES))
def make(request: pytest.FixtureRequest) -> Make:
    return WIRES[request.param]


native = pytest.mark.parametrize("make", list(BACKENDS), indirect=True)
claude = pytest.mark.parametrize(
    "make", ["anthropic", "anthropic-unstreamed", "pydantic-ai-anthropic"], indirect=True
)
streamed = pytest.mark.parametrize("make", ["anthropic"], indirect=True)


@pytest.fixture
async def lm(provider: Provider, make: Make) -> AsyncIterator[Backend]:
    async with make(provider) as made, asyncio.timeout(BOUND):
        yield made


def list_calls(result: GraphResult[Any]) -> list[tuple[str, Any]]:
    calls = result.trace[-1].calls  # type: ignore[attr-defined]
    return [(str(call), call.error or call.result) for call in calls]


def messages(request: Received) -> list[Any]:
    """The messages of a request, without the marks for caching."""
    text = json.dumps(request.body["messages"])
    return json.loads(text.replace(', "cache_control": {"type": "ephemeral"}', ""))


async def test_the_last_message_after_tool_calls_is_the_answer(
    provider: Provider, lm: Backend
) -> None:
    provider.script(*rounds(lm, Call("search", query="kettle"), Call("read_page", page=3), ANSWER))
    result = await QUESTION.arun(ASKED, lm=lm)
    assert list_calls(result) == [
        ("search(query='kettle')", ["kettle 0", "kettle 1"]),
        ("read_page(page=3)", "this is page 3"),
    ]
    assert dict(result.result) == {**ANSWER, "calls": result.result.calls}
    assert result.usage.calls == 3
    assert len(provider.requests) == 3
    assert "Search the catalog." in json.dumps(provider.requests[0].body)
    assert "what to look for" in json.dumps(provider.requests[0].body)
    if lm.calls_tools:
        assert [request.tools for request in provider.requests] == [
            ("search", "read_page", "now")
        ] * 3
        assert provider.requests[1].results == ('["kettle 0","kettle 1"]',)
        assert provider.requests[2].results == ("this is page 3",)


@native
async def test_calls_of_one_message_are_answered_together_in_order(
    provider: Provider, lm: Backend
) -> None:
    calls = Call("read_page", page=1), Call("now"), Call("search", query="cup")
    provider.script(Calls(*calls, text="Let me look."), ANSWER)
    result = await QUESTION.arun(ASKED, lm=lm)
    results = ("this is page 1", "noon", '["cup 0","cup 1"]')
    assert provider.requests[1].results == results
    assert [call.id for call in result.result.calls] == ["c1", "c2", "c3"]
    assert "Let me look." in provider.requests[1].text


@native
async def test_a_conversation_only_grows_so_its_beginning_stays_cached(
    provider: Provider, lm: Backend
) -> None:
    looks = Calls(Call("search", query="kettle"), text="Hm.", thinking="a kettle")
    provider.script(looks, Call("now"), {"answer": 1}, Calls(Call("now"), Call("now")), ANSWER)
    await QUESTION.arun(ASKED, lm=lm)
    for one, next_one in zip(provider.requests, provider.requests[1:], strict=False):
        before = messages(one)
        assert messages(next_one)[: len(before)] == before
        assert next_one.body["tools"] == one.body["tools"]
        assert next_one.schema == one.schema


@native
async def test_a_tool_refusal_is_returned_to_the_model_as_an_error(
    provider: Provider, lm: Backend
) -> None:
    wrong = [Call("read_page", page=400), Call("read_page"), Call("write"), Call("now", then=1)]
    provider.script(wrong, ANSWER)
    await QUESTION.arun(ASKED, lm=lm)
    results = provider.requests[1].results
    assert "there are 100 pages" in results[0]
    assert "page: Field required" in results[1]
    assert "there is no tool write" in results[2]
    assert "then" in results[3]
    if provider.requests[1].api == "anthropic":
        sent = provider.requests[1].body["messages"][-1]["content"]
        assert [part["is_error"] for part in sent] == [True] * 4


async def test_a_wrong_answer_is_corrected_in_the_same_conversation(
    provider: Provider, lm: Backend
) -> None:
    wrong = {"answer": "42", "pages": [1, 2, 3, 4]}
    provider.script(*rounds(lm, Call("now"), wrong, ANSWER))
    result = await QUESTION.arun(ASKED, lm=lm)
    assert result.result.pages == [1]
    assert "pages: List should have at most 3 items" in provider.requests[2].text
    assert len(result.result.calls) == 1


async def test_an_unusable_answer_is_asked_for_again_but_a_refusal_is_not(
    provider: Provider, lm: Backend
) -> None:
    chat = "I would look it up." if lm.calls_tools else {WRAPPER: "?"}
    for number, wrong in enumerate((Empty(), Overlong(), chat), 1):
        provider.script(*rounds(lm, Call("now"), wrong, ANSWER))
        assert (await QUESTION.arun(ASKED, lm=lm)).result.answer == "42"
        assert len(provider.requests) == 3 * number
    provider.script(*rounds(lm, Call("now"), Refusal("no")))
    with pytest.raises(FillError) as caught:
        await QUESTION.arun(ASKED, lm=lm)
    assert caught.value.code == "bae-fill-refused"


async def test_the_last_message_fills_a_text_field(provider: Provider, lm: Backend) -> None:
    last = "a kettle\n" if lm.calls_tools else {WRAPPER: {"action": "answer", "text": "a kettle"}}
    provider.script(*rounds(lm, Call("search", query="kettle")), last)
    result = await WRITING.arun(Writing(text="write"), lm=lm)
    assert result.result.note.strip() == "a kettle"
    if lm.calls_tools:
        assert [request.schema for request in provider.requests][1:] == [None]


async def test_a_node_with_only_tools_is_filled_once_the_model_calls_no_tool(
    provider: Provider, lm: Backend
) -> None:
    provider.script(*rounds(lm, Call("now"), "I have looked." if lm.calls_tools else {}))
    result = await WORKING.arun(Working(text="look"), lm=lm)
    assert list_calls(result) == [("now()", "noon")]
    assert len(provider.requests) == 2


@native
async def test_a_schema_that_claude_cannot_enforce_is_sent_as_a_tool(
    provider: Provider, lm: Backend
) -> None:
    is_claude = "claude" in lm.model
    wrong, right = {"by_name": {"kettle": "dear"}}, {"by_name": {"kettle": 2.5}}
    script: list[Any] = [Call("search", query="kettle"), wrong, right]
    if is_claude:
        script = [
            # An answer together with calls is not the last one.
            Calls(Call("Prices", **right), Call("now")),
            Call("Prices", **wrong),
            Call("Prices", **right),
        ]
    provider.script(*script)
    result = await PRICING.arun(Pricing(text="how much?"), lm=lm)
    assert result.result.by_name == {"kettle": 2.5}
    assert len(result.result.calls) == 1
    first, _, third = provider.requests
    assert first.tools == (("search", "now", "Prices") if is_claude else ("search", "now"))
    assert "by_name.kettle: Input should be a valid number" in third.text
    assert len(provider.requests) == 3


@claude
async def test_a_model_that_answers_in_text_instead_of_the_tool_is_asked_again(
    provider: Provider, lm: Backend
) -> None:
    provider.script("It costs 2.5.", Call("Prices", by_name={"kettle": 2.5}))
    result = await PRICING.arun(Pricing(text="how much?"), lm=lm)
    assert result.result.by_name == {"kettle": 2.5}


@native
async def test_a_truncated_tool_call_is_never_run(provider: Provider, lm: Backend) -> None:
    for size in (1, 4, 16):
        half = Calls(Call("now"), Call("search", query="a long one"), cut=True, size=size)
        provider.script(half, ANSWER)
        result = await QUESTION.arun(ASKED, lm=lm)
        assert list_calls(result) == []
        assert "cut off" in provider.requests[-1].text


@native
async def test_tools_stay_declared_at_the_limit_but_cannot_be_called(
    provider: Provider, lm: Backend
) -> None:
    provider.script(Call("now"), {"answer": "noon"})
    result = await HURRYING.arun(Hurrying(text="quick"), lm=lm)
    assert result.result.answer == "noon"
    first, last = provider.requests
    assert first.tools == last.tools == ("search", "now")
    choice = last.body["tool_choice"]
    assert choice in ("none", {"type": "none"})
    assert first.body.get("tool_choice") != choice


@native
async def test_arguments_arrive_intact_however_they_are_split(
    provider: Provider, lm: Backend
) -> None:
    query = 'a "b" \\ {"c": [1, 2]} \n\t é 😀 \u2028 end'
    for size in (1, 2, 3, 5, 1000):
        call = Call("search", query=query, limit=1)
        provider.script(Calls(call, Call("now"), call, size=size), ANSWER)
        result = await QUESTION.arun(ASKED, lm=lm)
        assert [call.result for call in result.result.calls] == [
            [f"{query} 0"],
            "noon",
            [f"{query} 0"],
        ]


@pytest.mark.parametrize("make", ["anthropic", "pydantic-ai-openai"], indirect=True)
async def test_invalid_json_in_arguments_is_reported_to_the_model(
    provider: Provider, lm: Backend
) -> None:
    provider.script(Calls(Call("now"), Call("search"), raw='{"query": '), ANSWER)
    result = await QUESTION.arun(ASKED, lm=lm)
    assert [call.error for call in result.result.calls] == [
        None,
        "the arguments are no JSON object",
    ]


@native
async def test_calls_get_unique_ids_even_if_the_provider_repeats_ids(
    provider: Provider, lm: Backend
) -> None:
    for page in (1, 2):
        provider.script(Calls(Call("now"), Call("read_page", page=page), ids=["one", "two"]))
    provider.script(ANSWER)
    result = await QUESTION.arun(ASKED, lm=lm)
    assert [call.id for call in result.result.calls] == ["c1", "c2", "c3", "c4"]
    assert provider.requests[2].results == ("noon", "this is page 2")


@claude
async def test_thinking_is_sent_back_unchanged(provider: Provider, lm: Backend) -> None:
    provider.script(
        Calls(Call("now"), thinking="What time\nis it? 😀", text="Well."),
        Calls(Call("now"), Call("search", query="x"), thinking="Again."),
        ANSWER,
    )
    await QUESTION.arun(ASKED, lm=lm)  # the provider refuses a block that was changed
    sent = [m["content"] for m in provider.requests[2].body["messages"] if m["role"] == "assistant"]
    kinds = [[part["type"] for part in content] for content in sent]
    assert kinds == [["thinking", "text", "tool_use"], ["thinking", "tool_use", "tool_use"]]
    assert sent[0][0]["thinking"] == "What time\nis it? 😀"


@claude
async def test_thinking_is_recognized_in_streamed_and_complete_messages(
    provider: Provider, lm: Backend
) -> None:
    for observer in (None, lambda run, record: None):
        provider.script(Calls(Call("now"), thinking="What time is it?"), ANSWER)
        with observing(observer) if observer else nullcontext():
            result = await QUESTION.arun(ASKED, lm=lm)
        [judged] = result.journal.of(AnswerJudged)
        assert judged.attempt.thinking == "What time is it?"


async def test_a_failed_round_is_sent_again_without_repeating_tool_calls(
    provider: Provider, lm: Backend
) -> None:
    one, other = rounds(lm, Call("now"), ANSWER)
    lm.first_wait = 0.01
    provider.script(one, Status(429, retry_after=0), other)
    seen: list[Record] = []
    with observing(lambda run, record: seen.append(record)):
        result = await QUESTION.arun(ASKED, lm=lm)
    assert list_calls(result) == [("now()", "noon")]
    assert sum(isinstance(event, ToolEnded) for event in seen) == 1
    assert result.usage.calls == 3


@streamed
async def test_text_before_tool_calls_is_not_streamed_as_the_answer(
    provider: Provider, lm: Backend
) -> None:
    provider.script(Calls(Call("now"), text="Let me look.", thinking="hm"), ANSWER)
    seen = Seen()
    with observing(seen):
        await QUESTION.arun(ASKED, lm=lm)
    texts = [delta for delta in seen.deltas if ":" in delta[0] and "." in delta[0]]
    assert texts == [("1:Reply.answer", "42")]


@streamed
async def test_text_before_tool_calls_is_void_if_the_answer_is_plain_text(
    provider: Provider, lm: Backend
) -> None:
    provider.script(Calls(Call("search", query="tea"), text="Let me look."), "A fine kettle.")
    seen = Seen()
    with observing(seen):
        await WRITING.arun(Writing(text="tea"), lm=lm)
    assert seen.now == {"1:Note.note": "A fine kettle."}


@native
async def test_cancelling_during_a_later_round_leaves_no_request_open(
    provider: Provider, lm: Backend
) -> None:
    provider.script(Call("now"), Stall())
    before = asyncio.all_tasks()
    running = asyncio.create_task(QUESTION.arun(ASKED, lm=lm))
    await provider.arrived()
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert len(provider.requests) == 2
    await provider.idle()
    assert asyncio.all_tasks() <= before
