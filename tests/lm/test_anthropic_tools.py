"""Tools of Claude over Anthropic's SDK: caching, messages that are sent back, tools that Anthropic
runs itself, and messages that it pauses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, Any

import pytest

pytest.importorskip("anthropic")
pytest.importorskip("h11")

from bae import BaeLMError, Graph, Native, Node, Tool, ToolCall, ToolProgress, Tools
from bae.exceptions import ToolCallError
from bae.journal import MemoryJournal
from bae.lm import AnthropicBackend
from bae.lm.backend import Backend, CallPart, Message, Prompt, ResultPart, TextPart, ToolSpec
from bae.observers import observing
from bae.records import Record, RoundMade
from bae.testing import Call, Calls, Provider
from bounded import BOUND
from end_node import EndNode
from http_backends import anthropic, anthropic_unstreamed, prompt
from tool_nodes import PRICING, QUESTION, Pricing, Question

ANSWER = {"answer": "42", "pages": [1]}
ASKED = Question(text="which kettle?")
SEARCH = ToolSpec("search", "Search.", {"type": "object", "properties": {}})


@pytest.fixture(params=[anthropic, anthropic_unstreamed])
async def lm(provider: Provider, request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    async with request.param(provider) as made, asyncio.timeout(BOUND):
        yield made


def conversation(asked: Prompt, answer: Any, *results: str, text: str = "") -> Prompt:
    """The prompt after an answer with calls, and their results."""
    said = [*([TextPart(answer.text)] if answer.text else []), *answer.calls]
    told = [ResultPart(c.id, c.name, r) for c, r in zip(answer.calls, results, strict=True)]
    return replace(
        asked,
        conversation=(
            *asked.conversation,
            Message("assistant", tuple(said), "round", answer.echo),
            Message("user", (*told, *([TextPart(text)] if text else [])), "round"),
        ),
    )


async def test_a_message_is_sent_back_verbatim_only_to_its_own_model(
    provider: Provider,
) -> None:
    asked = replace(prompt(), tools=(SEARCH,))
    provider.script(Calls(Call("search", q=1), text="Hm.", thinking="think"), *[{"top": "a"}] * 2)
    async with anthropic(provider) as lm, anthropic(provider, model="claude-opus-5") as other:
        again = conversation(asked, await lm.answer(asked), "found", text="Hurry.")
        for model in lm, other:
            await model.answer(again)
    verbatim, rebuilt = (
        request.body["messages"][1]["content"] for request in provider.requests[1:]
    )
    assert [part["type"] for part in verbatim] == ["thinking", "text", "tool_use"]
    assert [part["type"] for part in rebuilt] == ["text", "tool_use"]
    assert rebuilt[1]["input"] == verbatim[2]["input"] == {"q": 1}
    # Results are before any text, whatever the ids are.
    for request in provider.requests[1:]:
        content = request.body["messages"][2]["content"]
        assert [part["type"] for part in content] == ["tool_result", "text"]


def search(word: str) -> str:
    """Search for a word."""
    return f"{word} found"


def steer(progress: ToolProgress) -> str:
    return f"after {progress.rounds} of {progress.limit}"


class Steered(EndNode):
    calls: Annotated[list[ToolCall], Tools(search, limit=3, before_round=steer)]
    text: str


class AskSteered(Node):
    async def __call__(self) -> Steered: ...


async def test_steering_text_is_sent_after_the_results_of_the_previous_round(
    provider: Provider, lm: Backend
) -> None:
    provider.script(Calls(Call("search", word="a"), Call("search", word="b")), {"text": "done"})
    result = await Graph(start=AskSteered, end=Steered).arun(AskSteered(), lm=lm)
    assert result.result.text == "done"
    first, second = (request.body["messages"] for request in provider.requests)
    assert "after 0 of 3" in json.dumps(first[-1])
    told = second[-1]["content"]
    assert [part["type"] for part in told] == ["tool_result", "tool_result", "text"]
    assert told[-1]["text"] == "after 1 of 3"


async def test_blank_text_before_a_tool_call_is_not_sent_back(
    provider: Provider, lm: Backend
) -> None:
    provider.script(Calls(Call("now"), text=" \n"), ANSWER)
    await QUESTION.arun(ASKED, lm=lm)  # the provider refuses a text of spaces alone
    assert len(provider.requests) == 2


async def test_an_answer_that_quotes_the_api_key_has_no_echo(provider: Provider) -> None:
    asked = replace(prompt(), tools=(SEARCH,))
    provider.script(Calls(Call("search", q="my-secret-key"), thinking="of my-secret-key"))
    async with anthropic(provider, api_key="my-secret-key") as lm:
        answer = await lm.request(asked)
    assert answer.echo is None
    assert "my-secret-key" not in str(answer)
    assert len(answer.calls) == 1


async def test_every_round_reads_the_earlier_rounds_from_the_prompt_cache(
    provider: Provider, lm: Backend
) -> None:
    many = [Call("search", query=f"kettle {number}") for number in range(12)]
    provider.script(Call("now"), many, Call("now"), ANSWER)
    seen: list[Record] = []
    with observing(lambda run, record: seen.append(record)):
        await QUESTION.arun(ASKED, lm=lm)
    cached = [record.usage.cached_tokens for record in seen if isinstance(record, RoundMade)]
    assert cached == sorted(cached)
    assert cached[-1] > cached[-2] > cached[-3] >= cached[0]
    for request in provider.requests:
        marks = json.dumps(request.body).count('"cache_control"')
        assert 2 <= marks <= 4  # the API takes no more than four
    # After a round of many calls, the end of the round before it is marked too.
    marked = [
        [at for at, m in enumerate(request.body["messages"]) if "cache_control" in json.dumps(m)]
        for request in provider.requests
    ]
    assert marked == [[], [], [2], []]


async def test_requests_without_prompt_caching_have_no_cache_marks(provider: Provider) -> None:
    provider.script(Call("now"), ANSWER)
    async with anthropic(provider, cache=False) as lm:
        await QUESTION.arun(ASKED, lm=lm)
    assert all("cache_control" not in json.dumps(request.body) for request in provider.requests)


async def test_a_tool_may_have_the_name_of_the_answer_node(provider: Provider, lm: Backend) -> None:
    asked = replace(
        prompt({"type": "object", "additionalProperties": {"type": "number"}}),
        tools=(replace(SEARCH, name="Outfit"),),
    )
    provider.script(Calls(Call("Outfit"), Call("final_Outfit", a=1)), Call("final_Outfit", a=1))
    first, second = await lm.answer(asked), await lm.answer(asked)
    assert provider.requests[0].tools == ("Outfit", "final_Outfit")
    assert [call.name for call in first.calls] == ["Outfit"]
    assert (json.loads(second.text), second.calls) == ({"a": 1}, ())


async def test_the_answer_tool_is_forced_at_the_call_limit(
    provider: Provider,
) -> None:
    unfit = {"type": "object", "additionalProperties": {"type": "number"}}
    asked = replace(prompt(unfit), tools=(SEARCH,), may_call=False)
    for model, choice in (("claude-sonnet-4-6", "tool"), ("claude-sonnet-5-5", "auto")):
        async with anthropic(provider, model=model) as lm:
            await lm.answer(asked)
        assert provider.requests[-1].body["tool_choice"]["type"] == choice
        assert provider.requests[-1].tools == ("search", "Outfit")


FAILS: list[bool] = []


def check(page: int) -> str:
    """Check a page."""
    if FAILS:
        raise RuntimeError("the shop is closed")
    return f"page {page} is fine"


class Check(Node):
    async def __call__(self) -> Checked: ...


class Checked(EndNode):
    calls: Annotated[list[ToolCall], Tools(Tool(check, unfinished="repeat"))]
    answer: str


@pytest.mark.parametrize("model", ["claude-sonnet-5-5", "claude-opus-5"])
async def test_a_resumed_run_sends_thinking_back_only_to_its_own_model(
    provider: Provider, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, key = Graph(start=Check), {"base_url": provider.url, "api_key": "a key"}
    provider.script(Calls(Call("check", page=1), thinking="Hm."), {"answer": "fine"})
    async with MemoryJournal() as journal, asyncio.timeout(BOUND):
        monkeypatch.setattr(f"{__name__}.FAILS", [True])
        async with AnthropicBackend(**key) as lm:
            with pytest.raises(ToolCallError, match="the shop is closed"):
                await graph.arun(Check(), lm, journal=journal, run_id="a")
        FAILS.clear()
        async with AnthropicBackend(model, **key) as lm:
            result = await graph.resume("a", lm, journal=journal)
    assert result.result.answer == "fine"
    assert provider.requests[1].results == ("page 1 is fine",)
    assert len(provider.requests) == 2
    said = provider.requests[1].body["messages"][1]["content"]
    is_same = model == "claude-sonnet-5-5"
    assert [part["type"] for part in said] == (["thinking"] if is_same else []) + ["tool_use"]


# --- tools that Anthropic runs ----------------------------------------------------------------


class Find(Node):
    text: str

    async def __call__(self) -> Found: ...


def note(text: str) -> str:
    """Note a text."""
    return text.upper()


class Found(EndNode):
    calls: Annotated[list[ToolCall], Tools(note, Native("web_search", max_uses=3))]
    answer: str


FOUND = [{"type": "web_search_result", "title": "Kettles", "url": "https://kettles.example"}]
SEARCHED = [(Call("web_search", query="kettle"), [{**FOUND[0], "encrypted_content": "x" * 99}])]


async def test_calls_of_a_native_tool_are_listed_among_the_calls(
    provider: Provider, lm: Backend
) -> None:
    said = Calls(Call("note", text="a"), text="I have searched.", ran=SEARCHED, thinking="hm")
    provider.script(said, Calls(ran=SEARCHED, text='{"answer": "here"}'))
    result = await Graph(start=Find).arun(Find(text="?"), lm=lm)
    assert provider.requests[0].body["tools"][-1] == {
        "type": "web_search_20250305",
        "name": "web_search",
        "max_uses": 3,
    }
    assert [(call.name, call.arguments) for call in result.result.calls] == [
        ("web_search", {"query": "kettle"}),
        ("note", {"text": "a"}),
        ("web_search", {"query": "kettle"}),
    ]
    assert json.loads(result.result.calls[0].result) == FOUND
    # What only the provider can read goes back to it, with the result of the other call.
    assert "encrypted_content" in json.dumps(provider.requests[1].body)
    assert provider.requests[1].results == ("A",)


async def test_a_paused_message_is_continued_and_its_usage_is_counted(
    provider: Provider, lm: Backend
) -> None:
    paused = Calls(text="I search.", ran=[(Call("web_search", query="a"), FOUND)], paused=True)
    provider.script(paused, paused, Calls(Call("note", text="a"), ran=SEARCHED), {"answer": "b"})
    result = await Graph(start=Find).arun(Find(text="?"), lm=lm)
    assert result.usage.calls == 4
    assert [call.name for call in result.result.calls] == ["web_search"] * 3 + ["note"]
    first, second, third, last = (request.body["messages"] for request in provider.requests)
    assert [len(calls) for calls in (first, second, third, last)] == [1, 2, 2, 3]
    assert len(third[1]["content"]) == 2 * len(second[1]["content"])


async def test_an_endlessly_paused_model_is_an_error(provider: Provider, lm: Backend) -> None:
    provider.always(Calls(ran=[(Call("web_search", query="a"), FOUND)], paused=True))
    with pytest.raises(BaeLMError, match="paused 20 times") as caught:
        await lm.answer(replace(prompt(), tools=(SEARCH,)))
    assert caught.value.usage is not None
    assert caught.value.usage.calls == 21


async def test_a_failed_search_is_an_error_of_the_call(provider: Provider, lm: Backend) -> None:
    failed = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
    said = Calls(ran=[(Call("web_search", query="a"), failed)], text='{"answer": "none"}')
    provider.script(said)
    result = await Graph(start=Find).arun(Find(text="?"), lm=lm)
    assert "max_uses_exceeded" in (result.result.calls[0].error or "")


class Drawing(Node):
    async def __call__(self) -> Drawn: ...


class Drawn(EndNode):
    calls: Annotated[list[ToolCall], Tools(Native("draw"))]


async def test_an_unknown_native_tool_is_refused_with_the_known_tools(
    lm: Backend,
) -> None:
    with pytest.raises(BaeLMError, match="code_execution, web_fetch, web_search") as caught:
        await Graph(start=Drawing).arun(Drawing(), lm=lm)
    assert caught.value.code == "bae-tool-native"


async def test_a_conversation_without_echoes_can_be_continued(
    provider: Provider, lm: Backend
) -> None:
    """As after a change of the backend: a conversation needs nothing but its parts."""
    said = Message("assistant", (CallPart("c1", "search", "{half"),), "round")
    told = Message("user", (ResultPart("c1", "search", "no JSON", is_error=True),), "round")
    first = prompt()
    asked = replace(first, tools=(SEARCH,), conversation=(*first.conversation, said, told))
    await lm.answer(asked)
    sent = provider.requests[0].body["messages"][1:]
    assert sent[0]["content"][0]["input"] == {"invalid_json": "{half"}
    assert sent[1]["content"][0]["is_error"] is True


def test_a_known_model_has_its_context_window() -> None:
    known = AnthropicBackend("claude-haiku-4-5", api_key="a", max_tokens=10_000)
    assert known.context_window == 190_000
    assert AnthropicBackend("claude-of-mine", api_key="a").context_window is None


async def test_an_invalid_call_of_the_answer_tool_is_sent_back_with_a_result(
    provider: Provider, lm: Backend
) -> None:
    provider.script(Call("Prices", by_name=1), Call("now"), Call("Prices", by_name={"a": 1}))
    result = await PRICING.arun(Pricing(text="?"), lm=lm)
    assert result.result.by_name == {"a": 1}
    told = provider.requests[1].body["messages"][-1]["content"]
    assert [part["type"] for part in told] == ["tool_result", "text"]
    assert "not taken" in told[0]["content"]
