"""Optimized predictors behind `OptimizedLM`, over real HTTP against a provider on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from bae import Dep, Node
from bae.lm.signatures import node_to_signature
from bae.testing import Call, Provider, Received, Status, ThreadedProvider
from bounded import BOUND
from end_node import EndNode
from tool_nodes import HURRYING, Hurry, Hurrying, rounds

dspy = pytest.importorskip("dspy")

from bae.lm.optimized import OptimizedLM  # noqa: E402


class Weather(BaseModel):
    sky: str


async def get_weather() -> Weather: ...


class Waking(Node):
    message: str

    async def __call__(self) -> Outfit | AskBack: ...


class Outfit(EndNode):
    weather: Annotated[Weather, Dep(get_weather)]
    top: str = Field(description="a specific garment", min_length=2)
    layers: int = Field(ge=0, le=5)


class AskBack(EndNode):
    question: str


SHIRT = {"top": "a blue shirt", "layers": 2}
RESOLVED = {"weather": Weather(sky="clear")}
UP = Waking(message="just got up")


def make_optimized() -> Any:
    """What an optimizer makes: other instructions, and examples."""
    predictor = dspy.Predict(node_to_signature(Outfit).with_instructions("Dress for the day"))
    predictor.demos = [
        dspy.Example(weather=Weather(sky="snow"), top="a parka", layers=4),
        {"weather": {"sky": "rain"}, "top": "a raincoat", "layers": 3},
    ]
    return predictor


def ask(provider: Any, predictors: dict[Any, Any], **options: Any) -> OptimizedLM:
    given = {"api_base": f"{provider.url}/v1", "api_key": "a key", **options}
    return OptimizedLM(predictors, "openai/gpt-4o-mini", **given)


@pytest.fixture
async def backend(provider: Provider) -> AsyncIterator[OptimizedLM]:
    async with ask(provider, {Outfit: make_optimized()}) as made, asyncio.timeout(BOUND):
        yield made


def messages_of(request: Received) -> list[str]:
    return [
        message["content"] for message in request.body["messages"] if message["role"] != "system"
    ]


async def test_an_optimized_predictor_sends_its_instructions_and_examples(
    provider: Provider, backend: OptimizedLM
) -> None:
    provider.script(SHIRT)
    outfit = await backend.fill(Outfit, RESOLVED, "Outfit", UP)
    assert (outfit.top, outfit.layers) == ("a blue shirt", 2)
    (request,) = provider.requests
    assert messages_of(request) == [
        'Dress for the day\n\n{"context":{"weather":{"sky":"snow"}}}',
        '{"top": "a parka", "layers": 4}',
        'Dress for the day\n\n{"context":{"weather":{"sky":"rain"}}}',
        '{"top": "a raincoat", "layers": 3}',
        'Dress for the day\n\n{"Waking":{"message":"just got up"},'
        '"context":{"weather":{"sky":"clear"}}}',
    ]


async def test_only_invalid_fields_are_asked_for_again(
    provider: Provider, backend: OptimizedLM
) -> None:
    assert backend.get_stats() == {"optimized": 0, "naive": 0}
    provider.script(
        {"top": "a coat", "layers": 9},  # asked again
        {"layers": 3},
        Status(500),  # sent again
        SHIRT,
        {"choice": "AskBack"},  # a choice is no fill
        {"question": "where to?"},
    )
    assert (await backend.fill(Outfit, RESOLVED, "Outfit", UP)).layers == 3
    await backend.fill(Outfit, RESOLVED, "Outfit", UP)
    assert await backend.decide(UP) == AskBack(question="where to?")
    provider.assert_complete()
    assert backend.get_stats() == {"optimized": 2, "naive": 1}
    again, fresh = provider.requests[1], provider.requests[-1]
    assert set((again.schema or {})["properties"]) == {"layers"}
    messages = messages_of(again)
    assert messages[1] == '{"top": "a parka", "layers": 4}'
    assert "layers: Input should be less than or equal to 5" in messages[-1]
    assert messages_of(fresh) == ['AskBack\n\n{"Waking":{"message":"just got up"}}']


async def test_a_chain_of_thought_predictor_asks_for_its_reasoning(provider: Provider) -> None:
    thinking = dspy.ChainOfThought(node_to_signature(Outfit))
    provider.script(
        {"reasoning": "cold", "top": "x", "layers": 2}, {"reasoning": "hm", "top": "xx"}
    )
    async with ask(provider, {Outfit: thinking}) as backend:
        outfit = await backend.fill(Outfit, RESOLVED, "Outfit", UP)
    assert (outfit.top, outfit.layers) == ("xx", 2)
    first, second = provider.requests
    assert list((first.schema or {})["properties"]) == ["reasoning", "top", "layers"]
    assert list((second.schema or {})["properties"]) == ["reasoning", "top"]


async def test_the_passed_lm_replaces_the_lm_of_a_predictor(
    provider: Provider,
) -> None:
    predictor = make_optimized()
    predictor.lm = dspy.LM("openai/pinned", api_base=f"{provider.url}/v1", api_key="k", cache=False)
    async with ask(provider, {Outfit: predictor}) as backend:
        predictor.demos.clear()
        await backend.fill(Outfit, RESOLVED, "Outfit", UP)
    assert "a parka" in provider.requests[0].text
    with dspy.context(lm=None):
        await OptimizedLM({Outfit: predictor}).fill(Outfit, RESOLVED, "Outfit", UP)
    await predictor.lm.aclose()
    assert [request.body["model"] for request in provider.requests] == ["gpt-4o-mini", "pinned"]


def test_an_object_that_is_not_a_predictor_is_refused() -> None:
    with pytest.raises(TypeError, match=r"give a dspy\.Predict"):
        OptimizedLM({Outfit: "a predictor"}, "openai/gpt-4o-mini")
    with pytest.raises(TypeError, match="must be a node class"):
        OptimizedLM({"Outfit": make_optimized()}, "openai/gpt-4o-mini")  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="Outfit has no output layers"):
        OptimizedLM({Outfit: dspy.Predict("weather -> top")}, "openai/gpt-4o-mini")


def test_an_optimizer_result_is_accepted_as_a_predictor(tmp_path: Path) -> None:
    signature = node_to_signature(Outfit)
    train = [
        dspy.Example(weather=Weather(sky=sky), top="", layers=0).with_inputs("weather")
        for sky in ("snow", "rain", "fog")
    ]
    with ThreadedProvider() as provider:
        provider.always(SHIRT)
        url = f"{provider.url}/v1"
        lm = dspy.LM("openai/gpt-4o-mini", api_base=url, api_key="k", cache=False)
        optimizer = dspy.BootstrapFewShot(max_bootstrapped_demos=2, max_labeled_demos=0)
        with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
            best = optimizer.compile(dspy.Predict(signature), trainset=train)
        lm.close()
        best.save(tmp_path / "best.json")
        loaded = dspy.Predict(signature)
        loaded.load(tmp_path / "best.json")
        backend = ask(provider, {Outfit: loaded})
        filled = asyncio.run(backend.fill(Outfit, RESOLVED, "Outfit", UP))
        assert filled.top == "a blue shirt"
        examples = messages_of(provider.requests[-1])[1::2]
        assert [json.loads(example) for example in examples] == [SHIRT, SHIRT]


@pytest.mark.parametrize("kind", [dspy.Predict, dspy.ChainOfThought])
async def test_a_predictor_is_used_in_every_round_of_a_node_with_tools(
    provider: Provider, kind: Any
) -> None:
    predictor = kind(node_to_signature(Hurry).with_instructions("Hurry up"))
    predictor.predictors()[0].demos = [{"answer": "early"}]
    assert "calls" not in predictor.predictors()[0].signature.fields
    async with ask(provider, {Hurry: predictor}, cache=False) as lm, asyncio.timeout(BOUND):
        last = {"reasoning": "it is noon", "answer": "noon"}
        provider.script(*rounds(lm, Call("now")), last)
        result = await HURRYING.arun(Hurrying(text="quick"), lm=lm)
        assert lm.get_stats() == {"optimized": 1, "naive": 0}
    assert result.result.answer == "noon"
    assert [call.name for call in result.result.calls] == ["now"]
    first, second = provider.requests
    for request in first, second:
        assert "Hurry up" in messages_of(request)[0]
    # An example has the form that the schema of its request asks for.
    assert messages_of(first)[1] == '{"next_step": {"action": "answer", "answer": "early"}}'
    assert messages_of(second)[1] == '{"answer": "early"}'
