"""Routing in one call: a choice and the fields of the chosen class are asked for together where
that is possible, and the journal reads as if they had been two questions."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from pydantic import Field

from bae import (
    LM,
    BaeLMError,
    Dep,
    FillError,
    Gate,
    Graph,
    LimitError,
    Map,
    Node,
    NodeConfig,
    Recall,
    RecallError,
    RouteError,
    Usage,
)
from bae.journal import (
    AnswerJudged,
    ChoiceMade,
    ChoiceStarted,
    FillEnded,
    FillStarted,
    LMUsed,
    MemoryJournal,
    Recalled,
    RunEnded,
    RunStarted,
    StepStarted,
)
from bae.lm import Answer, Prompt, Retry
from bounded import run
from end_node import EndNode
from toy_backend import ToyBackend, choose, route


class Think(Node):
    thought: str
    step: int = Field(le=10)

    async def __call__(self) -> Think | Conclude | None: ...


class Conclude(EndNode):
    text: str


class Begin(Node):
    async def __call__(self) -> Think | Conclude: ...


def thinks(steps: int, end: str = "Conclude") -> Any:
    """Answers of a model that thinks that many times and concludes, asked in whatever way."""
    fields = {"Think": {"thought": "hm"}, "Conclude": {"text": "so"}, "None": {}}
    routed = 0

    def answer(prompt: Prompt) -> Any:
        nonlocal routed
        question = prompt.question
        if not question.types:
            assert question.target is not None
            name = question.target.__name__
            return {**fields[name], **({"step": routed} if name == "Think" else {})}
        routed += 1
        name = "Think" if routed <= steps else end
        if not question.fillable:
            return choose(name)
        return route(name, **fields[name], **({"step": routed} if name == "Think" else {}))

    return answer


def kinds(result: Any) -> list[type]:
    return [type(record) for record in result.journal]


# How many calls


@pytest.mark.parametrize(("one_call", "calls"), [(True, 10), (False, 20)])
async def test_ten_routed_steps_take_ten_calls_instead_of_twenty(one_call: bool, calls: int):
    lm = ToyBackend(thinks(9), one_call=one_call)
    result = await run(Begin(), lm, max_iters=20)

    assert [type(node).__name__ for node in result.trace] == ["Begin", *["Think"] * 9, "Conclude"]
    assert [node.step for node in result.trace[1:-1]] == list(range(1, 10))
    assert lm.calls == calls
    assert (result.usage.calls, result.usage.attempts) == (calls, calls)


async def test_a_model_without_union_schemas_is_asked_twice():
    class Simple(ToyBackend):
        answers_unions = False

    lm = Simple(choose("Conclude"), {"text": "so"})
    await run(Begin(), lm)

    assert lm.calls == 2
    assert "answer" not in lm.prompts[0].schema["properties"]


async def test_a_candidate_without_fields_to_fill_needs_only_the_choice():
    class Stop(Node):
        async def __call__(self) -> None: ...

    class Fork(Node):
        async def __call__(self) -> Conclude | Stop: ...

    lm = ToyBackend(route("Stop"))
    result = await run(Fork(), lm)

    assert type(result.trace[-1]) is Stop
    assert lm.calls == 1
    stop = lm.prompts[0].schema["properties"]["answer"]["anyOf"][1]
    assert list(stop["properties"]) == ["choice"]


# Who can be filled at once


class WithDep(EndNode):
    word: Annotated[str, Dep(lambda: "looked up")]
    text: str


class WithRecall(EndNode):
    topic: Annotated[str, Recall()]
    text: str


class WithGate(EndNode):
    fine: Annotated[bool, Gate("fine?")]
    text: str


class WithMap(EndNode):
    numbers: list[int]
    doubled: Annotated[list[int], Map(abs, over="numbers")]


class Topic(Node):
    topic: str = "t"

    async def __call__(self) -> WithDep | WithRecall | WithGate | WithMap | Conclude: ...


async def yes(gate: Any) -> bool:
    return True


@pytest.mark.parametrize(
    ("name", "context"),
    [
        ("WithDep", {"word": "looked up"}),
        ("WithGate", {"fine": True}),
    ],
)
async def test_a_candidate_with_context_is_filled_in_a_second_call(
    name: str, context: dict[str, Any]
):
    lm = ToyBackend(route(name), {"text": "x"})
    result = await run(Topic(), lm, answer=yes)

    assert result.trace[-1].model_dump() == {**context, "text": "x"}
    assert lm.calls == 2
    assert lm.prompts[0].question.fillable == (WithRecall, WithMap, Conclude)
    assert lm.prompts[1].question.resolved == context
    (started,) = result.journal.of(FillStarted)
    assert started.resolved == context


# Options that recall


@pytest.mark.parametrize("around", [lambda lm: lm, Retry], ids=["backend", "policy"])
async def test_a_candidate_with_only_recalled_context_is_filled_in_one_call(around: Any):
    lm = ToyBackend(route("WithRecall", text="x", topic="mine"))
    result = await run(Topic(), around(lm))

    assert lm.calls == 1
    assert result.trace[-1].model_dump() == {"topic": "t", "text": "x"}
    assert lm.prompts[0].text.endswith('\n\n{"Topic":{"topic":"t"}}')  # and not once more
    told = (ChoiceStarted, ChoiceMade, Recalled, FillStarted, FillEnded)
    two = await run(Topic(), ToyBackend(choose("WithRecall"), {"text": "x"}, one_call=False))
    assert [r for r in kinds(result) if r in told] == [r for r in kinds(two) if r in told]
    assert result.trace == two.trace
    (started,) = result.journal.of(FillStarted)
    assert started.resolved == {"topic": "t"}
    (recalled,) = result.journal.of(Recalled)
    assert (recalled.field, recalled.value) == ("topic", "t")


class Scored(EndNode):
    points: Annotated[int, Recall()]
    topic: Annotated[str, Recall(Topic)] = "none"
    text: str


class Noted(EndNode):
    topic: Annotated[str, Recall()] = "none"
    text: str


async def test_a_value_recalled_by_several_options_is_shown_once():
    class Named(Node):
        topic: str = "boats"

        async def __call__(self) -> Between: ...

    class Between(Node):
        async def __call__(self) -> Pair | Other: ...

    class Pair(EndNode):
        name: Annotated[Named, Recall()]
        topic: Annotated[str, Recall()]
        text: str

    class Other(EndNode):
        topic: Annotated[str, Recall()]
        text: str

    lm = ToyBackend(route("Pair", text="x"))
    await run(Named(), lm)

    assert json.loads(lm.prompts[0].text.partition("\n\n")[2])["context"] == {
        "Pair": {"name": {"topic": "boats"}},
        "Pair, Other": {"topic": "boats"},
    }


async def test_an_option_without_its_required_recalled_value_is_not_filled_at_once():
    class Begun(Node):
        points: str | int = "many"  # which may be the number that Scored wants

        async def __call__(self) -> Scored | Noted: ...

    lm = ToyBackend(route("Scored"))
    with pytest.raises(RecallError, match=r"Scored\.points"):
        await run(Begun(), lm)
    assert lm.prompts[0].question.fillable == (Noted,)
    assert "- Scored\n  Its fields: {" in lm.prompts[0].text


@pytest.mark.parametrize("one_call", [True, False])
async def test_a_run_with_values_recalled_for_a_choice_can_be_resumed(one_call: bool):
    class Ends(Node):
        topic: Annotated[str, Recall()]
        text: str

        async def __call__(self) -> Fails: ...

    class Fails(EndNode):
        text: str

    class Starts(Node):
        topic: str = "boats"

        async def __call__(self) -> Ends | Noted: ...

    graph, journal = Graph(start=Starts), MemoryJournal()
    first = [route("Ends", text="x")] if one_call else [choose("Ends"), {"text": "x"}]
    failing = ToyBackend(*first, OSError("gone"), one_call=one_call)
    with pytest.raises(BaeLMError):
        await graph.arun(Starts(), failing, journal=journal, run_id="one")
    lm = ToyBackend({"text": "y"})
    result = await graph.resume("one", lm, journal=journal)
    assert lm.calls == 1
    assert result.trace[1] == Ends(topic="boats", text="x")
    replayed = await graph.replay("one", journal=journal)
    assert replayed.trace == result.trace


async def test_a_candidate_filled_before_its_context_is_known_is_asked_for_again():
    lm = ToyBackend(route("WithDep", text="too early", word="mine"), {"text": "x"})
    result = await run(Topic(), lm)

    assert result.trace[-1].model_dump() == {"word": "looked up", "text": "x"}


async def test_a_candidate_pinned_to_an_lm_is_filled_by_that_lm():
    other = ToyBackend({"text": "other"})

    class Pinned(EndNode):
        node_config = NodeConfig(lm=other)
        text: str

    class Fork(Node):
        async def __call__(self) -> Pinned | Conclude: ...

    lm = ToyBackend(route("Pinned"))
    result = await run(Fork(), lm)

    assert result.trace[-1].text == "other"
    assert (lm.calls, other.calls) == (1, 1)
    assert lm.prompts[0].question.fillable == (Conclude,)
    assert (result.usage.calls, result.usage.attempts) == (2, 2)


# The bound on steps


async def test_the_last_choice_before_the_step_limit_fills_no_node():
    lm = ToyBackend(thinks(99))
    with pytest.raises(LimitError) as caught:
        await run(Begin(), lm, max_iters=4)

    assert len(caught.value.trace) == 4
    assert lm.calls == 4
    assert [bool(prompt.question.fillable) for prompt in lm.prompts] == [True, True, True, False]
    assert caught.value.journal is not None
    assert len(caught.value.journal.of(FillEnded)) == 3
    assert caught.value.journal.usage().calls == 4


# What is written down


async def test_one_call_is_recorded_as_a_choice_and_then_a_fill():
    answer_text = json.dumps(route("Conclude", text="so"))
    lm = ToyBackend(Answer(answer_text, Usage(1, 100, 20, 0, 0.25)))
    result = await run(Begin(), lm)

    assert kinds(result) == [
        RunStarted,
        StepStarted,
        ChoiceStarted,
        AnswerJudged,
        ChoiceMade,
        FillStarted,
        FillEnded,
        StepStarted,
        RunEnded,
    ]
    (made,) = result.journal.of(ChoiceMade)
    (started,) = result.journal.of(FillStarted)
    (ended,) = result.journal.of(FillEnded)
    assert (made.node, made.chosen) == (result.trace[0], Conclude)
    assert (started.target, started.resolved) == (Conclude, {})
    assert ended.node is result.trace[1]
    assert made.usage + ended.usage == result.usage
    assert result.usage == Usage(1, 100, 20, 0, 0.25, 1, result.usage.seconds, ("toy",))


async def test_wrong_fields_after_a_valid_choice_are_asked_for_again_as_a_fill():
    lm = ToyBackend(route("Think", thought="hm", step=99), {"step": 1}, route("None"))
    result = await run(Begin(), lm)

    assert result.trace[1] == Think(thought="hm", step=1)
    again = lm.prompts[1]
    assert (again.question.target, again.question.fields) == (Think, ("step",))
    assert again.text == 'Think\n\n{"Begin":{}}'
    assert list(again.schema["properties"]) == ["step"]
    assert '"step": 99' in again.corrections[0].answer
    assert "- step: Input should be less than or equal to 10" in again.corrections[0].correction
    assert lm.rejected == [lm.prompts[0]]
    judged = [(r.attempt.number, r.attempt.verdict) for r in result.journal.of(AnswerJudged)]
    assert judged == [(1, "invalid"), (2, "valid"), (1, "valid")]
    assert (result.usage.calls, result.usage.attempts) == (3, 3)
    assert len(result.journal.of(FillEnded)) == 1


async def test_fields_that_stay_wrong_end_in_a_fill_error_with_all_answers():
    lm = ToyBackend(route("Think", thought="hm", step=99), {"step": 98}, {"step": 97})
    with pytest.raises(FillError) as caught:
        await run(Begin(), lm)

    assert (caught.value.node_type, caught.value.attempts) == (Think, 3)
    assert [attempt.number for attempt in caught.value.tried] == [1, 2, 3]
    assert caught.value.journal is not None
    assert caught.value.journal.usage().calls == 3
    (used,) = caught.value.journal.of(LMUsed)
    assert used.usage.attempts == 3


async def test_fields_of_another_candidate_are_asked_for_again():
    class Easy(EndNode):
        text: str = "default"

    class Fork(Node):
        async def __call__(self) -> Easy | None: ...

    for fields in ("rubbish", 3, [], None):
        lm = ToyBackend({"answer": {"choice": "Easy", "fields": fields}}, {"text": "x"})
        assert (await run(Fork(), lm)).trace[-1].text == "x"
        assert "- fields: they are no object" in lm.prompts[1].corrections[0].correction
    lm = ToyBackend(route("Conclude", thought="hm", step=1), {"text": "so"})
    assert (await run(Begin(), lm)).trace[-1] == Conclude(text="so")


@pytest.mark.parametrize(
    "outside",
    [
        route("Elsewhere"),
        choose("Conclude"),
        {"answer": ["Conclude"]},
        {},
    ],
    ids=str,
)
async def test_a_choice_outside_the_offered_classes_repeats_the_whole_request(outside: Any):
    lm = ToyBackend(outside, route("Conclude", text="so"))
    result = await run(Begin(), lm)
    assert result.trace[-1] == Conclude(text="so")
    assert lm.prompts[1].schema == lm.prompts[0].schema
    assert (result.usage.calls, result.usage.attempts) == (2, 2)

    with pytest.raises(RouteError) as caught:
        await run(Begin(), ToyBackend(lambda prompt: outside))
    assert caught.value.code == "bae-choice-outside"


# LMs with ways of their own


async def test_a_wrapper_around_a_backend_gets_the_questions_itself():
    seen: list[str] = []

    class Front:
        def __init__(self, inner: ToyBackend) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        async def choose_type(self, types: Any, context: Any) -> Any:
            seen.append("choose_type")
            return await self.inner.choose_type(types, context)

        async def fill(self, target: Any, resolved: Any, instruction: str, source: Any) -> Any:
            seen.append(f"fill {instruction}")
            return await self.inner.fill(target, resolved, instruction, source)

    lm: Any = Front(ToyBackend(choose("Conclude"), {"text": "so"}))
    result = await run(Begin(), lm)

    assert result.trace[-1] == Conclude(text="so")
    assert seen == ["choose_type", "fill Conclude"]


@pytest.mark.parametrize("inside", ["run", "decide"])
async def test_a_backend_that_overrides_fill_or_choose_type_is_asked_through_it(inside: str):
    class Body(Node):
        async def __call__(self, lm: LM) -> Think | Conclude:
            return await lm.decide(self)  # type: ignore[return-value]

    start = Begin() if inside == "run" else Body()
    seen: list[str] = []

    class Fills(ToyBackend):
        async def fill(self, target: Any, *more: Any, **named: Any) -> Any:
            seen.append("fill")
            return await super().fill(target, *more, **named)

    assert type((await run(start, Fills(choose("Conclude"), {"text": "x"}))).trace[-1]) is Conclude
    assert seen == ["fill"]

    class Chooses(ToyBackend):
        async def choose_type(self, types: Any, context: Any) -> Any:
            seen.append("choose_type")
            return types[1]

    assert type((await run(start, Chooses({"text": "x"}))).trace[-1]) is Conclude
    assert seen == ["fill", "choose_type"]
