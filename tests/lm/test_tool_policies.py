"""Policies around a conversation with tools: each round is a request like any other."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest

from bae import LM, BaeLMError, Graph, Node, ToolCall, Tools
from bae.exceptions import BudgetError
from bae.lm import (
    Answer,
    Backend,
    Budget,
    Budgeted,
    Cached,
    CallPart,
    Concurrency,
    LearnedPrompt,
    NodePrompts,
    Prompt,
    PromptExample,
    RateLimit,
    ResultPart,
    Retry,
    Timeout,
    WithPrompts,
)
from bae.lm.policies.budget import estimate_tokens
from bae.prompts.tools import WRAPPER
from bae.testing import Call, ScriptedLM
from bae.usage import Usage
from bounded import BOUND
from end_node import EndNode
from tool_nodes import QUESTION, WRITING, Note, Question, Reply, Writing
from toy_backend import ToyBackend

ASKED = Question(text="which kettle?")
ANSWER = '{"answer": "42", "pages": [1]}'
USED = Usage(calls=1, input_tokens=10, output_tokens=5)


class Caller(ToyBackend):
    """A toy with native tool calls."""

    calls_tools = True


def call(name: str, echo: Any = None, **arguments: Any) -> Answer:
    return Answer("", USED, calls=(CallPart("x", name, arguments),), echo=echo)


def structured_call(name: str, **arguments: Any) -> dict[str, Any]:
    return {WRAPPER: {"action": name, **arguments}}


ROUNDS = [call("search", {"opaque": 1}, query="a"), call("read_page", page=1), ANSWER]
STRUCTURED = [
    structured_call("search", query="a"),
    structured_call("read_page", page=1),
    structured_call("answer", answer="42", pages=[1]),
]


async def run_graph(lm: Backend, graph: Graph[Any, Any] = QUESTION, start: Any = ASKED) -> Any:
    async with asyncio.timeout(BOUND):
        return await graph.arun(start, lm=lm)


@pytest.mark.parametrize("is_native", [True, False])
async def test_every_policy_passes_on_rounds(is_native: bool) -> None:
    toy = Caller(*ROUNDS) if is_native else ToyBackend(*STRUCTURED)
    lm = Retry(Timeout(Concurrency(RateLimit(Cached(toy), requests=100), 2), 5))
    result = await run_graph(lm)
    assert [call.name for call in result.result.calls] == ["search", "read_page"]
    assert result.usage.calls == 3
    if is_native:
        # What the backend wants back is with the message that it made.
        echoes = [message.echo for message in toy.prompts[2].conversation]
        assert echoes == [None, {"opaque": 1}, None, None, None]


class Sub(Node):
    text: str

    async def __call__(self) -> Subbed: ...


class Subbed(EndNode):
    text: str


async def ask_more(lm: LM) -> str:
    """Ask the model more."""
    return (await lm.make(Sub(text="?"), Subbed)).text


class Nested(Node):
    async def __call__(self) -> Nesting: ...


class Nesting(EndNode):
    calls: Annotated[list[ToolCall], Tools(ask_more, Graph(start=Sub, end=Subbed, name="sub"))]
    text: str


@pytest.mark.parametrize("kind", ["native", "structured", "scripted"])
async def test_a_tool_may_ask_the_model_despite_a_concurrency_of_one(kind: str) -> None:
    inner = '{"text": "inner"}'
    lms: dict[str, Any] = {
        "native": lambda: Caller(
            call("ask_more"), inner, call("sub", text="a"), inner, '{"text": "outer"}'
        ),
        "structured": lambda: ToyBackend(
            *(structured_call("ask_more"), inner, structured_call("sub", text="a"), inner),
            structured_call("answer", text="outer"),
        ),
        "scripted": lambda: ScriptedLM(
            [
                *([Call("ask_more")], {"text": "inner"}),
                *([Call("sub", text="a")], {"text": "inner"}, {"text": "outer"}),
            ]
        ),
    }
    lm = Concurrency(RateLimit(lms[kind](), requests=100), 1)
    result = await run_graph(lm, Graph(start=Nested), Nested())
    assert [tool_call.result for tool_call in result.result.calls] == ["inner", {"text": "inner"}]
    assert lm.statistics().most == 1
    assert lm.statistics().running == 0


async def test_a_budget_is_checked_before_every_round() -> None:
    budget = Budget(calls=2)
    toy = Caller(*ROUNDS)
    with pytest.raises(BudgetError):
        await run_graph(Budgeted(toy, budget))
    assert len(toy.prompts) == 2
    assert budget.remaining.calls == 0


async def test_a_failed_round_is_retried() -> None:
    busy = BaeLMError("busy", code="bae-lm-unavailable", retryable=True)
    toy = Caller(ROUNDS[0], busy, busy, *ROUNDS[1:])
    result = await run_graph(Retry(toy, first=0))
    assert len(result.result.calls) == 2
    assert len(toy.prompts) == 5


@pytest.mark.parametrize("is_native", [True, False])
async def test_a_cache_answers_every_round_of_an_equal_conversation(
    tmp_path: Path, is_native: bool
) -> None:
    toy = Caller(*ROUNDS) if is_native else ToyBackend(*STRUCTURED)
    for expected in (3, 0):
        async with Cached(toy, tmp_path / "answers.sqlite") as lm:
            result = await run_graph(lm)
        assert [call.name for call in result.result.calls] == ["search", "read_page"]
        assert result.result.answer == "42"
        assert result.usage.calls == expected
    assert len(toy.prompts) == 3


async def test_a_cache_distinguishes_conversations_by_tools_calls_and_results() -> None:
    prompts: list[Prompt] = []

    def keep(prompt: Prompt) -> Any:
        prompts.append(prompt)
        return ROUNDS[len(prompts) - 1]

    await run_graph(Caller(keep))
    first, second, _ = prompts
    spec = replace(first.tools[0], description="Another one.")
    said, told = second.conversation[-2:]
    result = told.parts[0]
    assert isinstance(result, ResultPart)
    different = [
        first,
        second,
        replace(first, tools=first.tools[1:]),
        replace(first, tools=(spec, *first.tools[1:])),
        replace(first, may_call=False),
        replace(second, conversation=(*second.conversation[:-1], replace(told, parts=()))),
        replace(
            second,
            conversation=(
                *second.conversation[:-1],
                replace(told, parts=(replace(result, is_error=True),)),
            ),
        ),
    ]
    equal = replace(
        second, conversation=(second.conversation[0], replace(said, echo={"b": 2}), told)
    )
    toy = Caller(lambda prompt: Answer(str(len(toy.prompts))))
    lm = Cached(toy)
    answers = [(await lm.answer(prompt_)).text for prompt_ in different]
    assert answers == [str(number) for number in range(1, len(different) + 1)]
    assert (await lm.answer(equal)).text == "2"


async def test_a_budget_estimate_includes_tools() -> None:
    prompts: list[Prompt] = []
    toy = Caller(lambda prompt: prompts.append(prompt) or ANSWER)
    await run_graph(toy)
    assert estimate_tokens(prompts[0]) > estimate_tokens(replace(prompts[0], tools=())) + 50


@pytest.mark.parametrize("is_native", [True, False])
async def test_learned_prompts_are_in_every_round(is_native: bool) -> None:
    example = PromptExample({"Question": {"text": "a cup?"}}, {"answer": "yes", "pages": []})
    learned = NodePrompts(fill=LearnedPrompt("Reply as a clerk.", (example,)))
    toy = Caller(*ROUNDS) if is_native else ToyBackend(*STRUCTURED)
    lm = WithPrompts(toy, {Reply: learned})
    await run_graph(lm)
    assert lm.get_stats() == {"optimized": 1, "naive": 0}
    for prompt in toy.prompts:
        assert prompt.text.startswith("Reply as a clerk.")
        (shown,) = prompt.examples
        values = {"answer": "yes", "pages": []}
        # In the form that the schema of a round asks for.
        expected = values if is_native else structured_call("answer", **values)
        assert json.loads(shown.answer) == expected


async def test_an_example_of_a_text_field_has_the_form_of_a_round() -> None:
    example = PromptExample({"Writing": {"text": "a cup?"}}, {"note": "yes"})
    learned = NodePrompts(fill=LearnedPrompt("Write as a clerk.", (example,)))
    toy = ToyBackend(structured_call("search", query="a"), structured_call("answer", text="no"))
    result = await run_graph(WithPrompts(toy, {Note: learned}), WRITING, Writing(text="a pot?"))
    assert result.result.note == "no"
    shown = toy.prompts[0].examples[0].answer
    assert json.loads(shown) == structured_call("answer", text="yes")


async def test_an_lm_without_rounds_is_refused_for_a_node_with_tools() -> None:
    class Mine:
        async def make(self, node: Any, target: Any) -> Any: ...
        async def decide(self, node: Any) -> Any: ...
        async def choose_type(self, types: Any, context: Any) -> Any: ...
        async def fill(
            self, target: Any, resolved: Any, instruction: Any, source: Any = None
        ) -> Any: ...

    for lm in (Mine(), Retry(Mine())):  # type: ignore[arg-type]
        with pytest.raises(BaeLMError) as caught:
            await run_graph(lm)  # type: ignore[arg-type]
        assert caught.value.code == "bae-tools-lm"


async def test_a_model_that_repeats_a_call_is_offered_only_the_answer() -> None:
    toy = ToyBackend(
        structured_call("search", query="a"), structured_call("search", query="a"), ANSWER
    )
    result = await run_graph(toy)
    assert result.result.answer == "42"
    assert len(result.result.calls) == 2
    schemas = [list((prompt.schema or {})["properties"]) for prompt in toy.prompts]
    assert schemas == [[WRAPPER], [WRAPPER], ["answer", "pages"]]
