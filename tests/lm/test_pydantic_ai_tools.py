"""Tools of PydanticAI's models: the Responses API, models that take the answer as a tool, several
models behind one, and models without tools."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")
pytest.importorskip("openai")
pytest.importorskip("h11")

from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from bae import BaeLMError, Graph
from bae.lm import PydanticAIBackend
from bae.lm.backend import Message, Prompt, ResultPart, TextPart, ToolSpec
from bae.testing import Call, Calls, Provider, Status
from bounded import BOUND
from http_backends import prompt, pydantic_ai_anthropic, pydantic_ai_openai
from test_anthropic_tools import FOUND, Find
from tool_nodes import HURRYING, QUESTION, Hurrying, Question, rounds

ANSWER = {"answer": "42", "pages": [1]}
ASKED = Question(text="which kettle?")
SEARCH = ToolSpec("search", "Search.", {"type": "object", "properties": {}})


def openai(provider: Provider) -> OpenAIProvider:
    return OpenAIProvider(base_url=f"{provider.url}/v1", api_key="a key")


def chat(provider: Provider, **profile: Any) -> OpenAIChatModel:
    return OpenAIChatModel(
        "gpt-4o-mini", provider=openai(provider), profile=ModelProfile(**profile)
    )


async def test_the_responses_api_gets_its_reasoning_back(provider: Provider) -> None:
    provider.script(
        Calls(Call("now"), Call("search", query="a"), thinking="Think.", text="Hm."),
        Calls(Call("now"), thinking="More."),
        ANSWER,
    )
    model = OpenAIResponsesModel("gpt-5-mini", provider=openai(provider))
    async with PydanticAIBackend(model) as lm, asyncio.timeout(BOUND):
        assert lm.native_tools >= {"web_search", "code_execution"}
        result = await QUESTION.arun(ASKED, lm=lm)
    assert [call.name for call in result.result.calls] == ["now", "search", "now"]
    sent = [item.get("type") for item in provider.requests[2].body["input"]]
    assert sent.count("reasoning") == 2
    assert sent.count("function_call") == sent.count("function_call_output") == 3
    assert provider.requests[2].results == ("noon",)


@pytest.mark.parametrize("message", [{"kind": "of another version"}, None, {"kind": "request"}])
async def test_an_echo_of_another_pydantic_ai_version_is_rebuilt(
    provider: Provider, message: Any
) -> None:
    asked = replace(prompt(), tools=(SEARCH,))
    provider.script(Calls(Call("search", q=1), text="Hm."), {"top": "a"})
    async with pydantic_ai_openai(provider) as lm, asyncio.timeout(BOUND):
        first = await lm.answer(asked)
        echo = {**first.echo, "message": message}
        answer_message = Message("assistant", (TextPart("Hm."), *first.calls), "round", echo)
        result_message = Message(
            "user", (ResultPart(first.calls[0].id, "search", "found"),), "round"
        )
        await lm.answer(
            replace(asked, conversation=(*asked.conversation, answer_message, result_message))
        )
    assert provider.requests[1].results == ("found",)


async def test_a_model_without_structured_output_answers_by_an_extra_tool(
    provider: Provider,
) -> None:
    model = chat(provider, supports_json_schema_output=False)
    provider.script(
        Calls(Call("Hurry", answer="early"), Call("now")),  # not the last one: it has calls
        Call("Hurry", answer=1),
        Call("Hurry", answer="42"),
    )
    async with PydanticAIBackend(model) as lm, asyncio.timeout(BOUND):
        result = await HURRYING.arun(Hurrying(text="quick"), lm=lm)
    assert result.result.answer == "42"
    assert len(result.result.calls) == 1
    first, last = provider.requests[0], provider.requests[-1]
    assert first.tools == ("search", "now", "Hurry")
    assert first.body["tool_choice"] == "required"
    # At the limit, the answer alone is left.
    assert "Hurry" in str(last.body["tool_choice"]) or last.tools == ("Hurry",)


async def test_a_model_without_native_tools_calls_them_through_its_schema(
    provider: Provider,
) -> None:
    model = chat(provider, supports_tools=False)
    async with PydanticAIBackend(model) as lm, asyncio.timeout(BOUND):
        assert not lm.calls_tools
        provider.script(*rounds(lm, Call("read_page", page=2), ANSWER))
        result = await QUESTION.arun(ASKED, lm=lm)
    assert [call.result for call in result.result.calls] == ["this is page 2"]
    assert all(not request.tools for request in provider.requests)


async def test_models_of_a_fallback_never_get_messages_of_another_model(
    provider: Provider,
) -> None:
    claude = AnthropicModel(
        "claude-sonnet-4-6", provider=AnthropicProvider(base_url=provider.url, api_key="a key")
    )
    several = FallbackModel(claude, chat(provider))
    provider.script(
        Calls(Call("now"), thinking="Think.", text="Hm."),
        Status(529),
        Call("search", query="a"),
        Call("Reply", **ANSWER),  # what all of them take, so the answer is one more tool
    )
    async with PydanticAIBackend(several, retries=0) as lm, asyncio.timeout(BOUND):
        assert lm.calls_tools
        result = await QUESTION.arun(ASKED, lm=lm)
    assert [call.name for call in result.result.calls] == ["now", "search"]
    assert [request.api for request in provider.requests] == [
        *("anthropic", "anthropic", "openai", "anthropic"),
    ]
    assert all("Think." not in str(request.body) for request in provider.requests)


def after(asked: Prompt, answer: Any) -> Prompt:
    answer_message = Message("assistant", answer.calls, "round", answer.echo)
    results = tuple(ResultPart(call.id, call.name, "found") for call in answer.calls)
    result_message = Message("user", results, "round")
    return replace(asked, conversation=(*asked.conversation, answer_message, result_message))


async def test_a_message_of_another_model_is_rebuilt_from_its_calls(provider: Provider) -> None:
    asked = replace(prompt(), tools=(SEARCH,))
    provider.script(Calls(Call("search", q=1), thinking="Think."), *[{"top": "a"}] * 2)
    async with pydantic_ai_anthropic(provider) as lm, pydantic_ai_openai(provider) as other:
        first = await lm.answer(asked)
        again = after(asked, first)
        assert (await lm.answer(again)).text == '{"top": "a"}'
        assert (await other.answer(again)).text == '{"top": "a"}'
    verbatim, rebuilt = (str(request.body["messages"]) for request in provider.requests[1:])
    assert "Think." in verbatim
    assert "hink" not in rebuilt
    assert provider.requests[2].results == ("found",)


async def test_a_provider_tool_is_passed_to_the_model(provider: Provider) -> None:
    searched = [(Call("web_search", query="kettle"), [{**FOUND[0], "encrypted_content": "x"}])]
    paused = Calls(text="I search.", ran=searched, paused=True)
    provider.script(paused, Calls(Call("note", text="a"), ran=searched), {"answer": "b"})
    async with pydantic_ai_anthropic(provider) as lm, asyncio.timeout(BOUND):
        result = await Graph(start=Find).arun(Find(text="?"), lm=lm)
    assert [call.name for call in result.result.calls] == ["web_search", "web_search", "note"]
    assert "https://kettles.example" in str(result.result.calls[0].result)
    assert result.usage.calls == 3
    assert any(tool.get("max_uses") == 3 for tool in provider.requests[0].body["tools"])


async def test_a_provider_tool_that_the_model_lacks_is_refused(
    provider: Provider,
) -> None:
    async with pydantic_ai_openai(provider) as lm:
        with pytest.raises(BaeLMError) as caught:
            await Graph(start=Find).arun(Find(text="?"), lm=lm)
    assert caught.value.code == "bae-tool-native"
    assert provider.received == 0


async def test_unsupported_pydantic_ai_options_are_reported(provider: Provider) -> None:
    spec = ToolSpec("web_search", "", {"type": "object"}, {"colour": "red"})
    async with pydantic_ai_anthropic(provider) as lm:
        with pytest.raises(BaeLMError, match="colour") as caught:
            await lm.answer(replace(prompt(), tools=(spec,)))
    assert caught.value.code == "bae-lm-request-refused"
    assert not caught.value.sent
