"""What holds for all policies: each goes around any LM and is one itself, they nest in any order,
and what they have no part in passes through as it is."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import permutations
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from bae import LM, BaeLMError, Dep, Graph, Node, RouteError, Usage
from bae.journal import AnswerJudged
from bae.lm import (
    Answer,
    Backend,
    Budget,
    Budgeted,
    Cached,
    Concurrency,
    FileLimits,
    Policy,
    Prompt,
    RateLimit,
    Retry,
    Timeout,
    metered,
    report_usage,
)
from bae.lm.adapter import LMAdapter
from bae.testing import ScriptedLM
from bounded import BOUND
from end_node import EndNode
from naming import describe_value
from policy_parts import REPLY, Ask, Held, Reply, at_once, busy, graph, prompt, settle
from toy_backend import FourMethods, ToyBackend, choose, route

WRAPS: dict[str, Callable[[Any], Policy]] = {
    "Retry": lambda lm: Retry(lm, sleep=at_once),
    "Timeout": lambda lm: Timeout(lm, BOUND),
    "Concurrency": lambda lm: Concurrency(lm, 2),
    "RateLimit": lambda lm: RateLimit(lm, requests=1000, tokens=1_000_000),
    "Budgeted": lambda lm: Budgeted(lm, Budget(calls=1000, tokens=1_000_000, seconds=BOUND)),
    "Cached": lambda lm: Cached(lm),
}


def every(test: Any) -> Any:
    return pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS.keys())(test)


class Start(Node):
    topic: str = "t"

    async def __call__(self) -> Draft | Refusal | None: ...


class Draft(Node):
    text: str = Field(min_length=3)

    async def __call__(self) -> Review: ...


async def get_style() -> str:
    return "plain"


class Review(Node):
    style: Annotated[str, Dep(get_style)]
    fine: bool

    async def __call__(self) -> Draft | None: ...


class Refusal(Node):
    async def __call__(self) -> None: ...


def way(trace: list[Node]) -> list[str]:
    return [type(node).__name__ for node in trace]


# --- around anything ----------------------------------------------------------------------------


@every
async def test_a_policy_does_not_change_a_run_with_a_scripted_lm(
    wrap: Callable[[Any], Policy],
):
    script = [Draft, {"text": "one"}, {"fine": False}, Draft, {"text": "no"}, {"text": "two"}]
    script += [{"fine": True}, None]
    lm, bare = ScriptedLM(script), ScriptedLM(script)
    wanted = await Graph(start=Start).arun(Start(), bare)
    result = await Graph(start=Start).arun(Start(), wrap(lm))
    lm.assert_complete()
    assert result.trace == wanted.trace
    assert lm.asked == bare.asked
    assert result.usage.calls == wanted.usage.calls == 8


@every
async def test_a_policy_does_not_change_a_run_with_a_backend(
    wrap: Callable[[Any], Policy],
):
    toy = ToyBackend(
        route("Draft", text="no"),  # too short, and asked for again
        {"text": "one"},
        {"fine": True},
        route("None"),
    )
    result = await Graph(start=Start).arun(Start(), wrap(toy))
    assert way(result.trace) == ["Start", "Draft", "Review"]
    assert (result.usage.calls, result.usage.attempts) == (4, 4)
    verdicts = [record.attempt.verdict for record in result.journal.of(AnswerJudged)]
    assert verdicts == ["invalid", "valid", "valid", "valid"]
    assert toy.rejected == toy.prompts[:1]


@pytest.mark.parametrize("kind", ["backend", "scripted"])
async def test_all_policies_nest_in_any_order(kind: str):
    for order in list(permutations(WRAPS))[::37]:
        lm: Any = ToyBackend(busy(), REPLY, retries=0)
        if kind == "scripted":
            lm = ScriptedLM([ConnectionError("cut"), {"text": "this"}])
        for name in order:
            lm = WRAPS[name](lm)
        result = await graph.arun(Ask(), lm)
        assert (result.result.text, result.usage.calls) == ("this", 2), order


@every
async def test_a_cancelled_call_leaves_the_queue(wrap: Callable[[Any], Policy]):
    lm = Held()
    running = asyncio.create_task(graph.arun(Ask(), wrap(lm)))
    await settle()
    assert lm.running == 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert lm.running == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


@every
async def test_a_policy_passes_on_every_property_of_its_backend(wrap: Callable[[Any], Policy]):
    class Odd(ToyBackend):
        model, answers_unions, first_wait, free = "odd", False, 7.0, True
        calls_tools, native_tools, context_window = True, frozenset({"search"}), 5
        runs_tools = False
        takes_files, file_limits = frozenset({"image"}), FileLimits(images=3)
        settings = {"seed": 3}  # type: ignore[assignment]
        secrets = ("a key",)  # type: ignore[assignment]

        def least_cost(self, usage: Usage) -> float | None:
            return 0.5 * usage.calls

    toy = Odd(attempts=5, retries=6, one_call=False)
    lm = wrap(toy)
    said = {
        name
        for name in dir(Backend)
        if not name.startswith("_") and not inspect.isfunction(getattr(Backend, name))
    }
    assert said == {
        *("model", "answers_unions", "attempts", "retries", "first_wait", "one_call", "free"),
        *("settings", "secrets", "keeps_resolved", "calls_tools", "native_tools"),
        *("runs_tools", "context_window", "takes_files", "file_limits"),
    }
    for name in said - ({"retries"} if isinstance(lm, Retry) else set()):
        assert getattr(lm, name) == getattr(toy, name) != getattr(Backend, name), name
    assert lm.least_cost(Usage(calls=3)) == 1.5
    await lm.reject(prompt())
    assert toy.rejected == [prompt()]


@every
async def test_closing_a_policy_closes_its_lm(wrap: Callable[[Any], Policy]):
    closed: list[str] = []

    class Closing(ToyBackend):
        async def aclose(self) -> None:
            closed.append("backend")

    class ClosingLM(ScriptedLM):
        async def aclose(self) -> None:
            closed.append("lm")

    async with wrap(Closing()), wrap(ClosingLM()), wrap(ScriptedLM()):
        pass
    assert closed == ["lm", "backend"]


@every
@pytest.mark.parametrize("wrong", [object(), ScriptedLM, None], ids=describe_value)
def test_wrapping_an_object_that_is_not_an_lm_is_refused(wrap: Callable[[Any], Policy], wrong: Any):
    with pytest.raises(BaeLMError) as caught:
        wrap(wrong)
    assert caught.value.code == "bae-lm-type"


def test_a_policy_takes_the_name_of_an_lm(tmp_path):
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"text": "this"}]))
    assert graph.run(Ask(), Retry(f"scripted:{script}")).result.text == "this"


async def test_a_custom_policy_needs_only_one_method():
    class Shouting(Policy):
        async def answer(self, prompt: Prompt) -> Answer:
            answer = await self.ask(prompt)
            return Answer(answer.text.upper().replace("TEXT", "text"), answer.usage)

    budget = Budget(calls=1)
    result = await graph.arun(Ask(), Shouting(Budgeted(Shouting(ToyBackend(REPLY)), budget)))
    assert result.result.text == "THIS"
    assert budget.usage.calls == 1


# --- LMs that are no backends -------------------------------------------------------------------


class Mine(FourMethods):
    """An LM written by hand, which reports nothing."""

    def __init__(self, chosen: Any = None, filled: Any = None) -> None:
        self.chosen, self.filled = chosen, filled

    async def choose_type(self, types: Sequence[Any], context: Mapping[str, Any]) -> Any:
        return self.chosen

    async def fill(self, target: Any, resolved: Any, instruction: str, source: Any = None) -> Any:
        return self.filled


async def test_a_call_without_reported_usage_is_counted():
    result = await graph.arun(Ask(), Retry(Mine(filled=Reply(text="this"))))
    assert (result.usage.calls, result.usage.cost) == (1, None)


async def test_a_node_built_by_an_lm_is_not_changed_by_a_policy():
    class Client:
        pass

    class Inner(BaseModel):
        x: int

    class Odd(EndNode):
        model_config = ConfigDict(strict=True, arbitrary_types_allowed=True)
        words: list[str]
        inner: Inner
        client: Client | None = None

        @field_validator("words", mode="before")
        @classmethod
        def split(cls, value: Any) -> Any:
            return value.split()  # takes text and nothing else

    class Before(Node):
        async def __call__(self) -> Odd: ...

    Before.__call__.__annotations__["return"] = Odd
    built = Odd(words="a b", inner=Inner(x=1), client=Client())
    for wrap in WRAPS.values():
        result = await Graph(start=Before, end=Odd).arun(Before(), wrap(Mine(filled=built)))
        assert result.result is built


class Deciding(Mine):
    """An LM with rules of its own for each of the methods."""

    settings: Mapping[str, Any] = {}

    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []

    async def choose_type(self, types: Sequence[Any], context: Mapping[str, Any]) -> Any:
        self.called.append("choose_type")
        return types[0]

    async def fill(self, target: Any, resolved: Any, instruction: str, source: Any = None) -> Any:
        self.called.append("fill")
        return target(text="filled", **resolved)

    async def make(self, node: Node, target: Any) -> Any:
        self.called.append("make")
        return target(text="made")

    async def decide(self, node: Node) -> Any:
        self.called.append("decide")
        return None if node == Start(topic="end") else Draft(text="decided")


class Written(Node):
    topic: str = "t"

    async def __call__(self, lm: LM) -> Reply:
        assert await lm.decide(Start(topic="end")) is None
        assert await lm.decide(Start()) == Draft(text="decided")
        return await lm.make(Start(), Reply)


WAYS: dict[str, Callable[[Any], Any]] = {"bare": lambda lm: lm, **WRAPS}


@pytest.mark.parametrize("wrap", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("budget", [False, True], ids=["", "in-a-budget"])
async def test_a_body_reaches_the_lm_method_that_it_calls(wrap: Callable[[Any], Any], budget: bool):
    inner = Deciding()
    with Budget(calls=10) if budget else nullcontext() as counted:
        lm = wrap(inner)
        result = await Graph(start=Written).arun(Written(), lm)
    assert result.trace[-1] == Reply(text="made")
    assert inner.called == ["decide", "decide", "make"]
    if counted is not None:
        assert counted.usage.calls == 3
    if lm is not inner or budget:
        assert (result.usage.calls, result.usage.cost) == (3, None)


async def test_cached_answers_are_separate_for_each_method_of_an_lm():
    inner = Deciding()
    lm = Cached(inner)
    for _ in range(2):
        assert await lm.decide(Start()) == Draft(text="decided")
        assert await lm.decide(Start(topic="end")) is None
        assert await lm.make(Start(), Draft) == Draft(text="made")
        assert await lm.fill(Draft, {}, "Draft", Start()) == Draft(text="filled")
    assert inner.called == ["decide", "decide", "make", "fill"]
    assert lm.statistics().unstored == 0


async def test_a_node_of_the_wrong_type_returned_by_make_is_refused():
    class Wrong(Deciding):
        async def make(self, node: Node, target: Any) -> Any:
            return Refusal()

        async def decide(self, node: Node) -> Any:
            return "Draft"

    for lm in (Retry(Wrong()), LMAdapter(Wrong())):
        with pytest.raises(BaeLMError) as caught:
            await lm.make(Start(), Draft)
        assert caught.value.code == "bae-fill-other-type"
        with pytest.raises(RouteError) as refused:
            await lm.decide(Start())
        assert refused.value.code == "bae-route-undeclared"


async def test_a_cached_choice_that_is_no_longer_offered_is_dropped():
    class Elsewhere(Policy):
        async def answer(self, prompt: Prompt) -> Answer:
            return Answer('{"choice": "Gone"}')

    with pytest.raises(RouteError) as caught:
        await Elsewhere(Deciding()).decide(Start())
    assert caught.value.code == "bae-choice-outside"


class Overriding(ToyBackend):
    """A backend with rules of its own above the one method."""

    def __init__(self, *answers: Any, **options: Any) -> None:
        super().__init__(*answers, **options)
        self.called: list[str] = []

    async def choose_type(self, types: Sequence[Any], context: Mapping[str, Any]) -> Any:
        self.called.append("choose_type")
        return await super().choose_type(types, context)

    async def fill(self, *args: Any, **options: Any) -> Any:
        self.called.append("fill")
        return await super().fill(*args, **options)


@pytest.mark.parametrize("wrap", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("budget", [False, True], ids=["", "in-a-budget"])
async def test_a_backend_that_overrides_its_methods_is_asked_through_them(
    wrap: Callable[[Any], Any], budget: bool
):
    inner = Overriding(choose("Draft"), busy(), {"text": "abc"}, {"fine": True}, choose("None"))
    with Budget(calls=10) if budget else nullcontext() as counted:
        result = await Graph(start=Start).arun(Start(), wrap(inner))
    assert way(result.trace) == ["Start", "Draft", "Review"]
    assert inner.called == ["choose_type", "fill", "fill", "choose_type"]
    assert result.usage.calls == 5
    if counted is not None:
        assert counted.usage.calls == 5


async def test_a_choice_with_only_the_name_of_an_offered_class_is_refused():
    other = type("Draft", (Refusal,), {})  # of the same name as one that is offered
    with pytest.raises(RouteError) as caught:
        await Graph(start=Start).arun(Start(), Retry(Mine(chosen=other), sleep=at_once))
    assert caught.value.code == "bae-choice-outside"


async def test_the_reported_usage_of_a_failing_lm_is_counted_once():
    class Failing(ScriptedLM):
        async def fill(self, *args: Any, **options: Any) -> Any:
            report_usage(Usage(calls=2, input_tokens=5, cost=0.1))
            raise ConnectionError("cut")

    with metered() as used, pytest.raises(ConnectionError):
        await Retry(Failing(), retries=1, sleep=at_once).make(Ask(), Reply)
    total = Usage.total(used)
    assert (total.calls, total.input_tokens, total.cost) == (4, 10, pytest.approx(0.2))


async def test_the_usage_of_a_cancelled_lm_is_counted():
    asked = asyncio.Event()

    class Slow(ScriptedLM):
        async def fill(self, *args: Any, **options: Any) -> Any:
            report_usage(Usage(calls=1, input_tokens=5))
            asked.set()
            await asyncio.Event().wait()

    with metered() as used:
        making = asyncio.create_task(Timeout(Slow(), BOUND).make(Ask(), Reply))
    async with asyncio.timeout(BOUND):
        await asked.wait()
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
    assert Usage.total(used).input_tokens == 5


def test_a_policy_refuses_an_invalid_budget_or_store():
    with pytest.raises(TypeError, match="give a Budget"):
        Budgeted(ScriptedLM(), 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="give a store"):
        Cached(ScriptedLM(), 5)  # type: ignore[arg-type]


NO_SENSE: dict[str, tuple[Callable[..., Any], list[dict[str, Any]]]] = {
    "Retry": (
        Retry,
        [
            *({"retries": -1}, {"retries": 1.5}, {"first": -1}, {"longest": float("inf")}),
            *({"factor": 0.5}, {"jitter": 2}),
        ],
    ),
    "RateLimit": (
        RateLimit,
        [
            *({}, {"requests": 0}, {"tokens": 1.5}, {"requests": 1, "per": 0}),
            {"requests": 1, "longest_wait": -1},
        ],
    ),
    "1 or more": (Concurrency, [{"limit": limit} for limit in (0, -1, 1.5, True)]),
    "a number above 0": (
        Timeout,
        [{"seconds": seconds} for seconds in (0, -1, float("inf"), float("nan"), "3")],
    ),
}


@pytest.mark.parametrize("said", NO_SENSE)
def test_impossible_arguments_of_a_policy_are_refused(said: str):
    policy, wrong = NO_SENSE[said]
    for arguments in wrong:
        with pytest.raises(ValueError, match=said):
            policy(ToyBackend(), **arguments)
