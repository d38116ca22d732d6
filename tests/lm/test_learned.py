"""Learned prompts: what `WithPrompts` has a model see, on the wire of every backend too, and what
it leaves as it was."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from bae import BaeLMError, BudgetError, Graph
from bae.journal import AnswerJudged, MemoryJournal
from bae.lm import (
    Budget,
    Cached,
    Correction,
    FewShot,
    LearnedPrompt,
    MemoryCache,
    NodePrompts,
    Prompt,
    PromptExample,
    Question,
    Retry,
    WithPrompts,
)
from bae.lm.policies.budget import estimate_tokens
from bae.lm.policies.cache import cache_key
from bae.prompts.messages import ask_in_text
from bae.prompts.questions import fill_prompt
from bae.testing import Provider, Received
from bounded import BOUND
from end_node import EndNode
from http_backends import SHIRT, WIRES, AskBack, Outfit, Weather
from toy_backend import ToyBackend

GREY = Weather(sky="grey", degrees=12)
COLD = {"Weather": {"sky": "clear", "degrees": -4.0}}
WET = {"Weather": {"sky": "raining", "degrees": 9.0}}
DRESS = LearnedPrompt(
    "Dress for the weather.\n\nSay it in English.",
    (
        PromptExample(COLD, {"top": "a parka", "layers": 4}),
        PromptExample(WET, {"top": "an oilskin", "layers": 2}),
    ),
)
DECIDE = LearnedPrompt(
    "Say whether it is clear what to wear.",
    (PromptExample(COLD, {"choice": "Outfit"}), PromptExample(WET, {"choice": "AskBack"})),
)
FILL = {Outfit: NodePrompts(fill=DRESS)}
BOTH = {Outfit: NodePrompts(fill=DRESS), Weather: NodePrompts(choice=DECIDE)}
ASKED = '{"Weather":{"sky":"grey","degrees":12.0}}'
FILL_SAID = [
    f"{DRESS.instruction}\n\n" + '{"Weather":{"sky":"clear","degrees":-4.0}}',
    '{"top": "a parka", "layers": 4}',
    f"{DRESS.instruction}\n\n" + '{"Weather":{"sky":"raining","degrees":9.0}}',
    '{"top": "an oilskin", "layers": 2}',
    f"{DRESS.instruction}\n\n{ASKED}",
]
OPTIONS = """
- Outfit
  Its fields: {"properties":{"top":{"description":"a specific garment","type":"string"},\
"layers":{"maximum":5,"minimum":0,"type":"integer"}},"required":["top","layers"]}
- AskBack
  Its fields: {"properties":{"question":{"type":"string"}},"required":["question"]}"""
CHOICE_SAID = [
    f"{DECIDE.instruction}\n\n" + '{"Weather":{"sky":"clear","degrees":-4.0}}',
    '{"choice": "Outfit"}',
    f"{DECIDE.instruction}\n\n" + '{"Weather":{"sky":"raining","degrees":9.0}}',
    '{"choice": "AskBack"}',
    f"{DECIDE.instruction}{OPTIONS}\n\n{ASKED}",
]
graph = Graph(start=Weather)


def plain_fill() -> Prompt:
    return fill_prompt(Outfit, ("top", "layers"), {}, "Outfit", GREY)


# --- a prompt with examples -------------------------------------------------------------------


def test_a_prompt_has_its_examples_before_the_question_and_corrections_after_it():
    asked = Prompt("s", ask_in_text("", [Correction("", "no")]), {}, "n", Question())
    prompt = asked.with_question("q", [FewShot("a", "1"), FewShot("b", "2")])
    assert [(message["role"], message["content"]) for message in prompt.messages()] == [
        ("user", "a"),
        ("assistant", "1"),
        ("user", "b"),
        ("assistant", "2"),
        ("user", "q"),
        ("assistant", "(no answer)"),
        ("user", "no"),
    ]
    assert prompt.flat() == (
        "For example, when asked:\na\n\nthe answer is:\n1\n\n"
        "For example, when asked:\nb\n\nthe answer is:\n2\n\n"
        "Now you are asked:\nq\n\nYour answer was:\n(no answer)\n\nno"
    )


# --- what is asked ----------------------------------------------------------------------------


async def test_a_repeated_fill_keeps_the_learned_instruction_and_examples():
    model = ToyBackend({"top": "a coat", "layers": 9}, {"layers": 3})
    lm = WithPrompts(model, FILL)
    assert await lm.fill(Outfit, {}, "Outfit", GREY) == Outfit(top="a coat", layers=3)
    first, again = model.said
    assert first == again[:5] == FILL_SAID
    assert again[5] == '{"top": "a coat", "layers": 9}'
    assert model.prompts[0].schema == plain_fill().schema
    assert list(model.prompts[1].schema["properties"]) == ["layers"]


async def test_a_choice_with_a_learned_prompt_is_a_separate_request():
    model = ToyBackend({"choice": "Outfit"}, SHIRT)
    lm = WithPrompts(model, {Weather: NodePrompts(choice=DECIDE)})
    result = await graph.arun(GREY, lm)
    assert result.result == Outfit(top="a blue shirt", layers=2)
    assert model.said == [CHOICE_SAID, [f"Outfit\n\n{ASKED}"]]
    assert set(model.prompts[0].schema["properties"]) == {"choice"}


async def test_examples_of_classes_that_are_not_offered_are_not_shown():
    model = ToyBackend({"choice": "Outfit"})
    lm = WithPrompts(model, {Weather: NodePrompts(choice=DECIDE)})
    await lm.route(GREY, (Outfit, type(None)))
    assert [len(said) for said in model.said] == [3]


async def test_a_custom_instruction_from_a_body_replaces_the_learned_prompt():
    model = ToyBackend(SHIRT, {"choice": "Outfit"})
    lm = WithPrompts(model, BOTH)
    await lm.fill(Outfit, {}, "Something for a wedding", GREY)
    await lm.choose_type((Outfit, AskBack), {"sky": "grey"})
    assert [len(said) for said in model.said] == [1, 1]
    assert lm.get_stats() == {"optimized": 0, "naive": 2}


async def test_an_unused_or_empty_learned_prompt_changes_nothing():
    class Elsewhere(EndNode):
        text: str

    answer = {"answer": {"choice": "Outfit", "fields": SHIRT}}
    model, plain = ToyBackend(answer), ToyBackend(answer)
    prompts = {
        Elsewhere: NodePrompts(fill=DRESS),
        Outfit: NodePrompts(fill=LearnedPrompt()),
        AskBack: NodePrompts(),
    }
    await graph.arun(GREY, WithPrompts(model, prompts))
    await graph.arun(GREY, plain)
    assert model.prompts == plain.prompts


# --- counting, caching, budgets ---------------------------------------------------------------


async def test_a_retried_question_counts_once_in_the_statistics():
    busy = BaeLMError("the provider is busy", retryable=True)
    model = ToyBackend(
        *({"choice": "nowhere"}, {"choice": "Outfit"}, busy, {"top": "a coat"}, {"layers": 1}),
        {"question": "?"},
    )
    lm = WithPrompts(model, BOTH)
    assert lm.get_stats() == {"optimized": 0, "naive": 0}
    await lm.decide(GREY)
    await lm.fill(AskBack, {}, "AskBack", GREY)
    assert len(model.prompts) == 6
    assert lm.get_stats() == {"optimized": 2, "naive": 1}


def test_learned_prompts_are_part_of_the_cache_key():
    model, prompt = ToyBackend(), plain_fill()
    other = {Outfit: NodePrompts(fill=LearnedPrompt(DRESS.instruction, DRESS.examples[:1]))}
    keys = {
        cache_key(lm, prompt) for lm in (model, WithPrompts(model, FILL), WithPrompts(model, other))
    }
    assert len(keys) == 3
    assert cache_key(Retry(WithPrompts(model, FILL)), prompt) in keys
    assert cache_key(Retry(model), prompt) == cache_key(model, prompt)
    assert "Dress for the weather." in json.dumps(WithPrompts(model, FILL).settings)


async def test_a_cache_separates_answers_by_learned_prompt():
    store = MemoryCache()
    model = ToyBackend({"top": "plain", "layers": 1}, {"top": "taught", "layers": 1}, SHIRT)
    tops: list[str] = []
    for lm in (
        Cached(model, store),
        Cached(WithPrompts(model, FILL), store),
        Cached(model, store),
        Cached(WithPrompts(model, FILL), store),
    ):
        tops.append((await lm.fill(Outfit, {}, "Outfit", GREY)).top)
    assert tops == ["plain", "taught", "plain", "taught"]
    inside = WithPrompts(Cached(model, store), FILL)
    assert [(await inside.fill(Outfit, {}, "Outfit", GREY)).top for _ in "12"] == [SHIRT["top"]] * 2
    assert len(model.prompts) == 3


async def test_a_budget_counts_the_examples_before_they_are_sent():
    model = ToyBackend(lambda prompt: SHIRT)
    room = estimate_tokens(plain_fill()) + 20
    long = LearnedPrompt("Dress.", (PromptExample({"Weather": {"sky": "s" * 4000}}, SHIRT),))
    with Budget(tokens=room):
        await model.fill(Outfit, {}, "Outfit", GREY)
    with Budget(tokens=room), pytest.raises(BudgetError):
        await WithPrompts(model, {Outfit: NodePrompts(fill=long)}).fill(Outfit, {}, "Outfit", GREY)
    assert len(model.prompts) == 1


# --- runs -------------------------------------------------------------------------------------


async def test_a_run_with_learned_prompts_can_be_replayed():
    journal = MemoryJournal()
    model = ToyBackend({"choice": "Outfit"}, {"top": "a coat", "layers": 9}, {"layers": 3})
    lm = WithPrompts(model, BOTH)
    told = await graph.arun(GREY, lm, journal=journal, run_id="one")
    asked = [record.attempt.asked for record in told.journal if isinstance(record, AnswerJudged)]
    assert asked[:2] == [f"Choose what comes next.{OPTIONS}\n\n{ASKED}", f"Outfit\n\n{ASKED}"]
    replayed = await graph.replay("one", journal=journal)
    assert replayed.result == Outfit(top="a coat", layers=3)
    assert len(model.prompts) == 3


# --- prompts that are none --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompts", "error", "said"),
    [
        ({"Outfit": NodePrompts()}, TypeError, "the key must be a node class"),
        ({Outfit: DRESS}, TypeError, r"give NodePrompts\(fill=…, choice=…\)"),
        (
            {Weather: NodePrompts(choice=LearnedPrompt(examples=(PromptExample(COLD, SHIRT),)))},
            ValueError,
            "Weather, example 1 of its choice: its answer must be",
        ),
    ],
)
def test_an_object_that_is_not_a_prompt_is_refused_by_name(
    prompts: Any, error: type[Exception], said: str
):
    with pytest.raises(error, match=said):
        WithPrompts(ToyBackend(), prompts)


def test_an_example_that_is_not_json_is_refused_when_created():
    with pytest.raises(ValueError, match="not a valid JSON value"):
        PromptExample({}, {"top": {1}})  # type: ignore[dict-item]


# --- on the wire ------------------------------------------------------------------------------


every_wire = pytest.mark.parametrize("make", WIRES.values(), ids=list(WIRES))


def messages_of(request: Received) -> list[tuple[str, str]]:
    """The roles and texts of a request, without the system part."""
    found: list[tuple[str, str]] = []
    for message in request.body["messages"]:
        content = message["content"]
        text = content if isinstance(content, str) else "".join(part["text"] for part in content)
        if message["role"] != "system":
            found.append((message["role"], text))
    return found


def by_turns(texts: list[str]) -> list[tuple[str, str]]:
    return [("assistant" if n % 2 else "user", text) for n, text in enumerate(texts)]


@pytest.mark.once
@every_wire
async def test_every_backend_sends_the_examples_in_order_and_then_the_question(
    provider: Provider, make: Any
):
    provider.script({"choice": "Outfit"}, {"top": "a coat", "layers": 9}, {"layers": 3})
    async with make(provider) as backend, asyncio.timeout(BOUND):
        lm = WithPrompts(backend, BOTH)
        result = await graph.arun(GREY, lm)
    assert result.result == Outfit(top="a coat", layers=3)
    choice, fill, again = provider.requests
    assert messages_of(choice) == by_turns(CHOICE_SAID)
    assert messages_of(fill) == by_turns(FILL_SAID)
    assert messages_of(again)[:5] == by_turns(FILL_SAID)
    assert [role for role, _ in messages_of(again)[5:]] == ["assistant", "user"]
    assert set((choice.schema or {})["properties"]) == {"choice"}
    assert lm.get_stats() == {"optimized": 2, "naive": 0}


@pytest.mark.once
async def test_claude_caches_the_examples_for_the_next_question(provider: Provider):
    pytest.importorskip("anthropic")
    from bae.lm import AnthropicBackend

    provider.always(SHIRT)
    long = LearnedPrompt("Dress.", (PromptExample({"Weather": {"sky": "s" * 8000}}, SHIRT),))
    async with AnthropicBackend(base_url=provider.url, api_key="a key") as backend:
        lm = WithPrompts(backend, {Outfit: NodePrompts(fill=long)})
        used: list[int] = []
        for sky in ("grey", "blue"):
            prompt = fill_prompt(
                Outfit, ("top", "layers"), {}, "Outfit", Weather(sky=sky, degrees=1)
            )
            used.append((await lm.answer(prompt)).usage.cached_tokens)
        assert used[0] == 0
        assert used[1] > 2000
        backend.cache = False
        await lm.answer(prompt)
    assert "cache_control" not in json.dumps(provider.requests[-1].body)
    marks = json.dumps(provider.requests[0].body).count("cache_control")
    assert marks <= 4  # or Anthropic refuses it


@pytest.mark.once
async def test_predictors_with_the_same_learned_prompts_send_the_same_questions(provider: Provider):
    pytest.importorskip("dspy")
    from bae.lm import OptimizedLM
    from bae.optimizer.predictors import fresh_predictor

    filling, deciding = fresh_predictor(Outfit), fresh_predictor(Weather)
    for predictor, learned_prompt in ((filling.fill, DRESS), (deciding.choice, DECIDE)):
        predictor.signature = predictor.signature.with_instructions(learned_prompt.instruction)
    filling.fill.demos = [{"source": e.known, **e.answer} for e in DRESS.examples]
    deciding.choice.demos = [{"known": e.known, **e.answer} for e in DECIDE.examples]
    learned = {Outfit: filling, Weather: deciding, AskBack: fresh_predictor(AskBack)}
    provider.script({"choice": "Outfit"}, SHIRT, {"question": "where to?"}, {"choice": "Outfit"})
    options = {"api_base": f"{provider.url}/v1", "api_key": "a key"}
    async with OptimizedLM(learned, "openai/gpt-4o-mini", **options) as lm:
        await graph.arun(GREY, lm)
        await lm.fill(AskBack, {}, "AskBack", GREY)
        assert lm.get_stats() == {"optimized": 2, "naive": 1}
        assert "Say whether it is clear" in json.dumps(lm.settings)
        assert await lm.choose_type((Outfit, AskBack), {"sky": "grey"}) is Outfit
    choice, fill, fresh, own = map(messages_of, provider.requests)
    assert choice == by_turns(CHOICE_SAID)
    assert fill == by_turns(FILL_SAID)
    assert fresh == [("user", f"AskBack\n\n{ASKED}")]
    context = '{"context":{"sky":"grey"}}'
    assert own == [("user", f"Choose what comes next.{OPTIONS}\n\n{context}")]
