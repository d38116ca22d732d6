"""Choosing and filling on top of one method: wrong answers are asked for again, only for what was
wrong, a bounded number of times; every answer is recorded, and every request counted."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from types import NoneType
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from bae import (
    LM,
    BaeError,
    BaeLMError,
    Dep,
    FillError,
    Graph,
    Map,
    Node,
    NodeConfig,
    NodeError,
    Recall,
    RouteError,
    Usage,
)
from bae.journal import (
    AnswerJudged,
    ChoiceMade,
    FillEnded,
    FillStarted,
    LMUsed,
    RunEnded,
    TextArrived,
)
from bae.lm import Answer, Attempt, Backend, Policy, Prompt, metered, report, tell
from bounded import BOUND, run
from toy_backend import ToyBackend, choose, route


class Person(BaseModel):
    name: str = Field(min_length=2)
    age: int = Field(ge=0)


class Ask(Node):
    async def __call__(self) -> Found: ...


class Found(Node):
    person: Person
    score: int = Field(le=10)
    note: str

    async def __call__(self) -> None: ...


GOOD = {"person": {"name": "Ada", "age": 36}, "score": 7, "note": "fine"}


def attempts_of(result: Any) -> list[tuple[int, str, tuple[str, ...]]]:
    judged = [record.attempt for record in result.journal.of(AnswerJudged)]
    return [(each.number, each.verdict, each.errors) for each in judged]


# Wrong answers


async def test_a_valid_answer_is_asked_for_once():
    lm = ToyBackend(GOOD)
    result = await run(Ask(), lm)

    assert result.trace[-1] == Found(**GOOD)
    assert lm.calls == 1
    assert lm.rejected == []
    assert attempts_of(result) == [(1, "valid", ())]


async def test_valid_fields_are_kept_and_only_the_failing_ones_asked_for_again():
    lm = ToyBackend(
        {"person": {"name": "Ada", "age": 36}, "score": 70, "note": 3},
        {"score": 7, "note": "fine"},
    )
    result = await run(Ask(), lm)

    assert result.trace[-1] == Found(**GOOD)
    again = lm.prompts[1]
    assert again.question.fields == ("score", "note")
    assert list(again.schema["properties"]) == ["score", "note"]
    assert again.schema["required"] == ["score", "note"]
    assert again.turns[0].correction == (
        "That was not valid:\n"
        "- score: Input should be less than or equal to 10\n"
        "- note: Input should be a valid string\n"
        "Answer again with these fields alone: score, note."
    )
    assert json.loads(again.turns[0].answer)["score"] == 70
    assert lm.rejected == [lm.prompts[0]]
    assert attempts_of(result) == [
        (
            1,
            "invalid",
            (
                "score: Input should be less than or equal to 10",
                "note: Input should be a valid string",
            ),
        ),
        (2, "valid", ()),
    ]


async def test_a_field_that_is_kept_cannot_be_changed_by_a_later_answer():
    lm = ToyBackend({**GOOD, "score": 70}, {**GOOD, "score": 7, "note": "changed"})
    result = await run(Ask(), lm)

    assert result.trace[-1] == Found(**GOOD)


async def test_a_fault_deep_inside_a_field_asks_for_that_field_whole():
    lm = ToyBackend({**GOOD, "person": {"name": "A", "age": -1}}, {"person": GOOD["person"]})
    await run(Ask(), lm)

    assert lm.prompts[1].question.fields == ("person",)
    assert (
        "- person.name: String should have at least 2 characters\n"
        "- person.age: Input should be greater than or equal to 0"
    ) in lm.prompts[1].turns[0].correction


async def test_a_field_that_is_missing_is_asked_for_with_those_that_are_wrong():
    lm = ToyBackend({"score": 70, "person": GOOD["person"]}, {"score": 1, "note": "fine"})
    result = await run(Ask(), lm)

    assert lm.prompts[1].question.fields == ("score", "note")
    assert "- note: Field required" in lm.prompts[1].turns[0].correction
    assert result.trace[-1].score == 1


async def test_fields_are_asked_for_again_until_all_are_valid():
    lm = ToyBackend({**GOOD, "score": 70, "note": 3}, {"score": 7, "note": 4}, {"note": "fine"})
    await run(Ask(), lm)

    assert [prompt.question.fields for prompt in lm.prompts] == [
        ("person", "score", "note"),
        ("score", "note"),
        ("note",),
    ]
    assert len(lm.prompts[2].turns) == 2


async def test_a_wrong_value_is_forgotten_when_the_next_answer_leaves_it_out():
    class Easy(Node):
        number: int = 3

        async def __call__(self) -> None: ...

    assert (await ToyBackend({"number": "x"}, {}).fill(Easy, {}, "Easy")).number == 3

    lm = ToyBackend({**GOOD, "score": 99}, {}, {"score": 7})
    await run(Ask(), lm)
    assert "- score: Field required" in lm.prompts[2].turns[1].correction


class Range(Node):
    low: int
    high: int

    @model_validator(mode="after")
    def in_order(self) -> Range:
        if self.low > self.high:
            raise ValueError("low is above high")
        return self

    async def __call__(self) -> None: ...


async def test_a_fault_between_fields_asks_for_all_of_them():
    lm = ToyBackend({"low": 3, "high": 1}, {"low": 1, "high": 3})
    node = await lm.fill(Range, {}, "Range")

    assert (node.low, node.high) == (1, 3)
    assert lm.prompts[1].question.fields == ("low", "high")
    assert "- Value error, low is above high" in lm.prompts[1].turns[0].correction


async def test_a_fault_between_fields_after_one_in_a_field_asks_for_all_again():
    lm = ToyBackend({"low": 3, "high": "x"}, {"high": 1}, {"low": 1, "high": 3})
    node = await lm.fill(Range, {}, "Range")

    assert [prompt.question.fields for prompt in lm.prompts] == [
        ("low", "high"),
        ("high",),
        ("low", "high"),
    ]
    assert (node.low, node.high) == (1, 3)


async def test_a_validator_that_looks_at_another_field_is_told_for_its_own():
    class Looks(Node):
        word: str
        length: int

        @field_validator("length")
        @classmethod
        def fits(cls, length: int, info: Any) -> int:
            if length != len(info.data["word"]):
                raise ValueError("not the length of word")
            return length

        async def __call__(self) -> None: ...

    lm = ToyBackend({"word": "abc", "length": 2}, {"length": 3})
    node = await lm.fill(Looks, {}, "Looks")

    assert (node.word, node.length) == ("abc", 3)
    assert lm.prompts[1].question.fields == ("length",)


WRONG: list[tuple[Any, str, str]] = [
    ({**GOOD, "score": 99}, "bae-fill-invalid", "invalid"),
    ({}, "bae-fill-invalid", "invalid"),
    ("", "bae-fill-empty", "empty"),
    (" \n", "bae-fill-empty", "empty"),
    ("null", "bae-fill-empty", "empty"),
    ('""', "bae-fill-empty", "empty"),
    ("not json", "bae-fill-unparsable", "unparsable"),
    ("```json\n{}\n```", "bae-fill-unparsable", "unparsable"),
    (json.dumps(GOOD) + " and more", "bae-fill-unparsable", "unparsable"),
    ("[1]", "bae-fill-unparsable", "unparsable"),
    ("3", "bae-fill-unparsable", "unparsable"),
    ("{" * 5000, "bae-fill-unparsable", "unparsable"),
    ('{"a":' * 5000 + "1" + "}" * 5000, "bae-fill-unparsable", "unparsable"),
    (Answer('{"person": {"na', stop="cut-off"), "bae-fill-cut-off", "cut-off"),
    (Answer("", stop="cut-off"), "bae-fill-cut-off", "cut-off"),
    (Answer('{"score": 7}', stop="cut-off"), "bae-fill-cut-off", "cut-off"),
    (Answer(value=None), "bae-fill-empty", "empty"),
    (Answer(value=[GOOD]), "bae-fill-unparsable", "unparsable"),
]


@pytest.mark.parametrize(("wrong", "code", "verdict"), WRONG, ids=range(len(WRONG)))
async def test_answers_that_stay_wrong_end_in_an_error_that_holds_them_all(
    wrong: Any, code: str, verdict: str
):
    lm = ToyBackend(lambda prompt: wrong)
    with pytest.raises(FillError) as caught:
        await run(Ask(), lm)

    error = caught.value
    assert (error.code, error.node_type, error.attempts, lm.calls) == (code, Found, 3, 3)
    assert [attempt.number for attempt in error.tried] == [1, 2, 3]
    assert {attempt.verdict for attempt in error.tried} == {verdict}
    assert all(attempt.errors for attempt in error.tried)
    assert attempts_of(error) == [(n, verdict, error.tried[n - 1].errors) for n in (1, 2, 3)]
    assert bool(error.validation_errors) == (verdict == "invalid" or wrong == WRONG[15][0])
    assert error.fix
    assert lm.rejected == lm.prompts
    assert error.journal is not None
    assert error.journal.usage().attempts == 3


@pytest.mark.parametrize(("wrong", "code", "verdict"), WRONG, ids=range(len(WRONG)))
async def test_every_kind_of_wrong_answer_can_be_followed_by_a_right_one(
    wrong: Any, code: str, verdict: str
):
    lm = ToyBackend(wrong, GOOD)
    result = await run(Ask(), lm)

    assert result.trace[-1] == Found(**GOOD)
    assert [each[1] for each in attempts_of(result)] == [verdict, "valid"]
    correction = lm.prompts[1].turns[0].correction
    said = {
        "invalid": "That was not valid:",
        "empty": "That was no answer.",
        "unparsable": "That was not ",
        "cut-off": "That was cut off for its length.",
    }
    assert correction.startswith(said[verdict])


async def test_an_answer_that_was_cut_off_after_its_end_is_as_good_as_any():
    lm = ToyBackend(Answer(json.dumps(GOOD), stop="cut-off"))

    assert (await run(Ask(), lm)).trace[-1] == Found(**GOOD)


async def test_an_answer_may_be_parsed_already():
    result = await run(Ask(), ToyBackend(Answer(value=GOOD)))

    assert result.trace[-1] == Found(**GOOD)
    (judged,) = result.journal.of(AnswerJudged)
    assert json.loads(judged.attempt.answer) == GOOD


@pytest.mark.parametrize("attempts", [0, 1, 4])
async def test_attempts_says_how_many_more_answers_there_may_be(attempts: int):
    lm = ToyBackend(lambda prompt: {}, attempts=attempts)
    with pytest.raises(FillError) as caught:
        await lm.fill(Found, {}, "Found")

    assert (caught.value.attempts, lm.calls) == (attempts + 1, attempts + 1)


async def test_there_are_two_more_by_default():
    assert ToyBackend().attempts == 2


@pytest.mark.parametrize("bad", [-1, 1.5, "2", None, True])
@pytest.mark.parametrize("name", ["attempts", "retries"])
def test_a_number_of_attempts_that_is_none_is_refused(name: str, bad: Any):
    with pytest.raises(ValueError, match=f"{name}="):
        ToyBackend(**{name: bad})


async def test_a_refusal_is_not_asked_again_and_says_what_was_said():
    lm = ToyBackend(Answer("I would rather not.", stop="refused"))
    with pytest.raises(FillError) as caught:
        await run(Ask(), lm)

    assert caught.value.code == "bae-fill-refused"
    assert "I would rather not." in caught.value.message
    assert lm.calls == 1
    assert [attempt.verdict for attempt in caught.value.tried] == ["refused"]


async def test_a_refusal_without_words_is_told_as_one():
    lm = ToyBackend(Answer(stop="refused"))
    with pytest.raises(FillError, match="no reason was given"):
        await run(Ask(), lm)


async def test_the_error_of_the_last_answer_is_the_one_that_counts():
    lm = ToyBackend({**GOOD, "score": 99}, "rubbish", "")
    with pytest.raises(FillError) as caught:
        await run(Ask(), lm)

    assert caught.value.code == "bae-fill-empty"
    assert [attempt.verdict for attempt in caught.value.tried] == [
        "invalid",
        "unparsable",
        "empty",
    ]
    assert lm.prompts[2].question.fields == ("score",)


async def test_the_validation_errors_of_strict_fields_are_told_too():
    class Exact(Node):
        model_config = ConfigDict(strict=True)
        number: int

        async def __call__(self) -> None: ...

    lm = ToyBackend(lambda prompt: {"number": "1"})
    with pytest.raises(FillError) as caught:
        await lm.fill(Exact, {}, "Exact")

    assert [(e["loc"], e["type"]) for e in caught.value.validation_errors] == [
        (("number",), "int_type")
    ]


@pytest.mark.parametrize("strict", [False, True], ids=["lax", "strict"])
async def test_a_validator_that_raises_something_else_is_the_nodes_fault_and_not_asked_again(
    strict: bool,
):
    class Broken(Node):
        model_config = ConfigDict(strict=strict)
        number: int

        @field_validator("number")
        @classmethod
        def divide(cls, number: int) -> float:
            return 1 / number

        async def __call__(self) -> None: ...

    class Before(Node):
        async def __call__(self) -> Broken: ...

    lm = ToyBackend({"number": 0})
    with pytest.raises(NodeError) as caught:
        await run(Before(), lm)

    assert (caught.value.code, caught.value.node_type) == ("bae-node-invalid", Broken)
    assert isinstance(caught.value.cause, ZeroDivisionError)
    assert caught.value.message == "Broken: a validator raised ZeroDivisionError"
    assert lm.calls == 1


async def test_a_long_wrong_answer_is_not_sent_back_whole():
    lm = ToyBackend({"note": "x" * 100_000}, GOOD)
    await run(Ask(), lm)

    assert len(lm.prompts[1].turns[0].answer) < 5000


async def test_a_long_wrong_choice_is_not_told_back_whole():
    lm = ToyBackend(choose("x" * 100_000), choose("Found"))
    await lm.choose_type([Found, Ask], {})

    assert len(lm.prompts[1].flat()) < 10_000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
NEARLY = st.fixed_dictionaries(
    {},
    optional={
        "person": JSON | st.just(GOOD["person"]),
        "score": JSON | st.just(7),
        "note": JSON | st.just("fine"),
        "more": JSON,
    },
)


@settings(deadline=None, max_examples=150)
@given(st.lists(NEARLY.map(json.dumps) | JSON.map(json.dumps) | st.text(max_size=9), max_size=4))
async def test_whatever_is_answered_the_outcome_is_a_valid_node_or_a_fill_error(
    answers: list[str],
):
    left = iter(answers)
    lm = ToyBackend(lambda prompt: next(left, ""))
    outcome: Found | FillError
    try:
        outcome = await lm.fill(Found, {}, "Found")
    except FillError as error:
        outcome = error

    if isinstance(outcome, FillError):
        assert outcome.attempts == lm.calls == 3
    else:
        assert Found.model_validate(outcome.model_dump()) == outcome
        assert 1 <= lm.calls <= 3


# Nothing to ask


async def test_a_target_without_plain_fields_needs_no_call():
    class Sourced(Node):
        word: Annotated[str, Dep(lambda: "w")]

        async def __call__(self) -> None: ...

    class Before(Node):
        async def __call__(self) -> Sourced: ...

    lm = ToyBackend()
    result = await run(Before(), lm)

    assert (result.trace[-1].word, lm.calls, result.usage) == ("w", 0, Usage())


@pytest.mark.parametrize("raised", [ValueError("no"), KeyError("no")], ids=["refuses", "breaks"])
async def test_a_target_for_which_nothing_was_asked_and_that_is_not_valid_is_the_nodes_fault(
    raised: Exception,
):
    class Sourced(Node):
        word: Annotated[str, Dep(lambda: "w")]

        @model_validator(mode="after")
        def never(self) -> Sourced:
            raise raised

        async def __call__(self) -> None: ...

    class Before(Node):
        async def __call__(self) -> Sourced: ...

    with pytest.raises(NodeError) as caught:
        await run(Before(), ToyBackend())

    assert (caught.value.code, caught.value.node_type) == ("bae-node-invalid", Sourced)


async def test_a_resolved_value_that_does_not_fit_is_told_and_not_asked_about_again():
    class Sourced(Node):
        number: Annotated[int, Dep(lambda: 1)]
        text: str

        async def __call__(self) -> None: ...

    lm = ToyBackend({"text": "x"})
    with pytest.raises(NodeError) as caught:
        await lm.fill(Sourced, {"number": "many"}, "Sourced")

    assert caught.value.code == "bae-node-invalid"
    assert "number: Input should be a valid integer" in caught.value.message


async def test_a_resolved_value_that_only_fits_other_answers_is_asked_about_again():
    class Sourced(Node):
        text: str
        longest: Annotated[int, Dep(lambda: 1)]

        @field_validator("longest")
        @classmethod
        def long_enough(cls, longest: int, info: Any) -> int:
            if len(info.data["text"]) > longest:
                raise ValueError("text is too long")
            return longest

        async def __call__(self) -> None: ...

    lm = ToyBackend({"text": "xxx"}, {"text": "x"})
    assert (await lm.fill(Sourced, {"longest": 1}, "Sourced")).text == "x"
    assert "text is too long" in lm.prompts[1].turns[0].correction


async def test_a_field_with_a_default_that_json_cannot_say_is_not_asked_for():
    class Client: ...

    class Uses(Node):
        client: Client = Field(default_factory=Client)

        async def __call__(self) -> None: ...

    lm = ToyBackend()
    assert isinstance((await lm.fill(Uses, {}, "Uses")).client, Client)


# Choices


class Left(Node):
    async def __call__(self) -> None: ...


class Right(Node):
    async def __call__(self) -> None: ...


class Fork(Node):
    async def __call__(self) -> Left | Right: ...


class Open(Node):
    async def __call__(self) -> Left | Right | None: ...


async def test_one_candidate_needs_no_call():
    lm = ToyBackend()

    assert await lm.choose_type([Left], {}) is Left
    assert await lm.choose_type([NoneType], {}) is NoneType
    assert lm.calls == 0


async def test_nothing_to_choose_from_is_an_error():
    with pytest.raises(ValueError, match="nothing to choose from"):
        await ToyBackend().choose_type([], {})


@pytest.mark.parametrize(
    "outside",
    [
        choose("Elsewhere"),
        choose("left"),
        choose(" Left"),
        choose("None"),
        choose(1),
        choose(True),
        choose(None),
        choose(["Left"]),
        choose({"choice": "Left"}),
        {},
        {"answer": {"choice": "Left"}},
        {"Choice": "Left"},
    ],
    ids=str,
)
async def test_a_choice_outside_is_asked_again_and_then_an_error(outside: Any):
    lm = ToyBackend(outside, choose("Right"))
    assert type((await run(Fork(), lm)).trace[-1]) is Right
    assert len(lm.prompts[1].turns) == 1
    assert lm.rejected == [lm.prompts[0]]

    lm = ToyBackend(lambda prompt: outside)
    with pytest.raises(RouteError) as caught:
        await run(Fork(), lm)
    assert (caught.value.code, caught.value.node_type) == ("bae-choice-outside", Fork)
    assert "among Left, Right" in caught.value.message
    assert lm.calls == 3
    assert caught.value.journal is not None
    assert len(caught.value.journal.of(AnswerJudged)) == 3


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("Left", "bae-choice-unparsable"),
        ('"Left"', "bae-choice-unparsable"),
        ("", "bae-choice-empty"),
        (Answer('{"choice": "Le', stop="cut-off"), "bae-choice-cut-off"),
        (Answer("I would rather not", stop="refused"), "bae-choice-refused"),
    ],
    ids=["text", "no object", "empty", "cut off", "refused"],
)
async def test_what_is_no_choice_at_all_is_told_apart(said: Any, code: str):
    lm = ToyBackend(lambda prompt: said)
    with pytest.raises(RouteError) as caught:
        await run(Fork(), lm)

    error = caught.value
    assert (error.code, error.node_type) == (code, Fork)
    assert len(error.tried) == lm.calls == (1 if code == "bae-choice-refused" else 3)
    assert error.fix


async def test_a_choice_outside_is_told_what_there_is():
    lm = ToyBackend(choose("Elsewhere"), choose("Left"))
    await run(Fork(), lm)

    assert lm.prompts[1].turns[0].correction == (
        "That was not valid:\n- choice: 'Elsewhere' is not one of Left, Right\nAnswer again."
    )


async def test_none_is_offered_only_where_the_types_allow_it():
    lm = ToyBackend(choose("None"))
    result = await run(Open(), lm)
    assert len(result.trace) == 1
    assert lm.prompts[0].schema["properties"]["choice"]["enum"] == ["Left", "Right", "None"]

    lm = ToyBackend(choose("Left"))
    await run(Fork(), lm)
    assert lm.prompts[0].schema["properties"]["choice"]["enum"] == ["Left", "Right"]
    assert "None" not in lm.prompts[0].text


async def test_a_refused_choice_is_not_asked_again():
    lm = ToyBackend(Answer("No.", stop="refused"))
    with pytest.raises(RouteError) as caught:
        await run(Fork(), lm)

    assert caught.value.code == "bae-choice-refused"
    assert "No." in caught.value.message
    assert lm.calls == 1


async def test_two_classes_of_one_name_are_told_apart():
    def twin(value: str) -> type[Node]:
        class Twin(Node):
            text: Literal["one", "two"] = value  # type: ignore[assignment]

            async def __call__(self) -> None: ...

        return Twin

    one, two = twin("one"), twin("two")
    for name, chosen in (("Twin", one), ("Twin_2", two), ("None", NoneType)):
        lm = ToyBackend(choose(name))
        assert await lm.choose_type([one, two, NoneType], {}) is chosen
        names = lm.prompts[0].schema["properties"]["choice"]["enum"]
        assert names == ["Twin", "Twin_2", "None"]


async def test_a_class_named_as_the_second_of_two_is_still_told_apart():
    def named(name: str) -> type[Node]:
        return type(name, (Left,), {"__module__": __name__})

    types = [named("A"), named("A"), named("A_2"), named("A")]
    lm = ToyBackend(lambda prompt: choose(prompt.schema["properties"]["choice"]["enum"][2]))
    assert await lm.choose_type(types, {}) is types[2]
    assert len(set(lm.prompts[0].schema["properties"]["choice"]["enum"])) == 4


async def test_a_target_of_another_type_than_chosen_is_never_guessed():
    lm = ToyBackend(choose("Left, or Right"), choose("LEFT"), choose("L"))
    with pytest.raises(RouteError):
        await run(Fork(), lm)


# Requests that fail


def failure(**more: Any) -> BaeLMError:
    return BaeLMError("no answer", **{"code": "bae-lm-unavailable", **more})


async def test_a_request_that_may_be_sent_again_is_and_is_counted():
    lm = ToyBackend(failure(retryable=True), failure(retryable=True, retry_after=0), GOOD)
    result = await run(Ask(), lm)

    assert result.trace[-1] == Found(**GOOD)
    assert (result.usage.calls, result.usage.attempts) == (3, 1)
    assert attempts_of(result) == [(1, "valid", ())]
    assert lm.prompts[0] == lm.prompts[2]
    assert lm.rejected == []


@pytest.mark.parametrize("error", [ConnectionError("cut"), TimeoutError("late")], ids=str)
async def test_a_connection_that_breaks_is_tried_again(error: Exception):
    assert (await run(Ask(), ToyBackend(error, GOOD))).usage.calls == 2


async def test_a_request_that_fails_for_good_is_not_sent_again():
    error = failure(retryable=False, status=401)
    lm = ToyBackend(error)
    with pytest.raises(BaeLMError) as caught:
        await run(Ask(), lm)

    assert caught.value is error
    assert lm.calls == 1
    assert error.journal is not None
    assert error.journal.usage().calls == 1


@pytest.mark.parametrize(
    ("error", "cost"),
    [
        (failure(status=429), 0.0),
        (failure(status=400), 0.0),
        (failure(status=529), 0.0),
        (failure(status=408), None),
        (failure(status=504), None),
        (failure(status=502), None),
        (failure(code="bae-lm-timeout"), None),
        (TimeoutError("late"), None),
        (ConnectionResetError("cut"), None),
        (KeyError("choices"), None),
    ],
    ids=repr,
)
async def test_a_request_that_failed_cost_nothing_only_where_that_is_sure(
    error: Exception, cost: float | None
):
    with metered() as used, pytest.raises(type(error)):
        await ToyBackend(error, retries=0).make(Ask(), Found)

    (one,) = used
    assert one == Usage(calls=1, cost=cost, seconds=one.seconds, models=("toy",))


async def test_a_model_that_is_free_is_so_when_it_fails():
    class Own(ToyBackend):
        free = True

    with metered() as used, pytest.raises(TimeoutError):
        await Own(TimeoutError(), retries=0).make(Ask(), Found)
    assert Usage.total(used).cost == 0.0


async def test_what_a_failed_request_is_known_to_have_used_is_counted():
    known = Usage(calls=1, input_tokens=80, output_tokens=3, cost=0.25, models=("m",))
    with metered() as used:
        await ToyBackend(failure(retryable=True, usage=known), priced(GOOD)).make(Ask(), Found)

    total = Usage.total(used)
    assert (total.calls, total.input_tokens, total.cost) == (2, 180, 0.75)


async def test_what_was_never_sent_is_no_call():
    with metered() as used, pytest.raises(BaeLMError):
        await ToyBackend(failure(sent=False)).make(Ask(), Found)
    assert used == []


async def test_a_request_that_is_cancelled_was_sent_and_nobody_knows_what_it_cost():
    asked = asyncio.Event()

    class Slow(ToyBackend):
        async def answer(self, prompt: Prompt) -> Answer:
            asked.set()
            return await asyncio.Event().wait()  # type: ignore[return-value]

    with metered() as used:
        making = asyncio.create_task(Slow().make(Ask(), Found))
    async with asyncio.timeout(BOUND):
        await asked.wait()
        making.cancel()
        await asyncio.wait([making])
    (one,) = used
    assert one == Usage(calls=1, cost=None, seconds=one.seconds, models=("toy",))


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_retries_says_how_many_more_requests_there_may_be(retries: int):
    lm = ToyBackend(lambda prompt: failure(retryable=True), retries=retries)
    with pytest.raises(BaeLMError) as caught:
        await run(Ask(), lm)

    assert lm.calls == retries + 1
    assert caught.value.journal is not None
    used = caught.value.journal.usage()
    assert used == Usage(calls=retries + 1, cost=None, seconds=used.seconds, models=("toy",))
    assert [record.by for record in caught.value.journal.of(LMUsed)] == ["filling Found"]


async def test_each_question_has_retries_of_its_own():
    down = failure(retryable=True)
    lm = ToyBackend(down, down, {**GOOD, "score": 99}, down, down, {"score": 7})
    result = await run(Ask(), lm)

    assert (result.usage.calls, result.usage.attempts) == (6, 2)


async def test_any_other_exception_is_the_backends_fault_with_the_cause():
    cause = KeyError("choices")
    with pytest.raises(BaeLMError) as caught:
        await run(Ask(), ToyBackend(cause))

    assert caught.value.code == "bae-lm-failed"
    assert caught.value.cause is cause
    assert "ToyBackend raised KeyError while filling Found" in caught.value.message


@pytest.mark.parametrize("returned", [None, json.dumps(GOOD), {"note": "x"}], ids=repr)
@pytest.mark.parametrize("around", [False, True], ids=["backend", "policy"])
async def test_a_backend_that_returns_no_answer_is_told_what_to_return(returned: Any, around: bool):
    class Mute(Policy if around else Backend):  # type: ignore[misc]
        async def answer(self, prompt: Prompt) -> Any:
            return returned

    with pytest.raises(BaeLMError, match=r"Mute\.answer returned") as caught:
        await run(Ask(), Mute(ToyBackend()) if around else Mute())
    assert caught.value.code == "bae-lm-answer-type"
    assert "return an Answer" in str(caught.value)


async def test_a_backend_may_do_without_the_constructor_of_backends():
    class Own(Backend):
        def __init__(self, url: str) -> None:
            self.url = url

        async def answer(self, prompt: Prompt) -> Answer:
            return Answer(json.dumps(GOOD))

    lm = Own("http://here")
    assert (await run(Ask(), lm)).trace[-1] == Found(**GOOD)
    assert (lm.attempts, lm.retries, lm.one_call) == (2, 2, True)


def test_a_backend_without_the_one_method_cannot_be_made():
    class Nothing(Backend): ...

    with pytest.raises(TypeError, match="answer"):
        Nothing()  # type: ignore[abstract]


# What it used


def priced(answer: Any, cost: float | None = 0.5, model: str = "m") -> Answer:
    usage = Usage(1, 100, 20, 30, cost, models=(model,))
    return Answer(json.dumps(answer), usage)


async def test_what_a_fill_used_is_in_its_record_and_in_the_sum():
    lm = ToyBackend(priced({**GOOD, "score": 99}), priced({"score": 7}))
    result = await run(Ask(), lm)

    (ended,) = result.journal.of(FillEnded)
    assert ended.usage == Usage(2, 200, 40, 60, 1.0, 2, ended.usage.seconds, ("m",))
    assert 0 < ended.usage.seconds <= ended.seconds
    assert result.usage == ended.usage
    assert result.usage.tokens == 240
    each = [record.attempt.usage for record in result.journal.of(AnswerJudged)]
    assert Usage.total(each) == ended.usage


async def test_a_cost_that_is_unknown_once_is_unknown_in_the_sum():
    lm = ToyBackend(priced({**GOOD, "score": 99}), priced({"score": 7}, cost=None))
    result = await run(Ask(), lm)

    assert result.usage.cost is None
    assert result.usage.input_tokens == 200


async def test_the_backends_model_is_named_where_the_answer_names_none():
    assert (await run(Ask(), ToyBackend(GOOD))).usage.models == ("toy",)

    class Nameless(ToyBackend):
        model = ""

    assert (await run(Ask(), Nameless(GOOD))).usage.models == ()


async def test_every_model_that_answered_is_named_once():
    wrong = {**GOOD, "score": 99}
    lm = ToyBackend(
        priced(wrong, model="one"),
        priced({"score": 99}, model="two"),
        priced({"score": 7}, model="one"),
    )
    assert (await run(Ask(), lm)).usage.models == ("one", "two")


async def test_seconds_are_the_time_spent_waiting():
    class Slow(ToyBackend):
        async def answer(self, prompt: Prompt) -> Answer:
            await asyncio.sleep(0.02)
            return await super().answer(prompt)

    result = await run(Ask(), Slow({}, GOOD))

    assert 0.04 <= result.usage.seconds < BOUND


async def test_what_was_used_before_a_failure_is_in_the_journal():
    lm = ToyBackend(priced({}), priced({}), priced({}))
    with pytest.raises(FillError) as caught:
        await run(Ask(), lm)

    assert caught.value.journal is not None
    (used,) = caught.value.journal.of(LMUsed)
    assert used.by == "filling Found"
    assert (used.usage.calls, used.usage.cost, used.usage.attempts) == (3, 1.5, 3)
    assert caught.value.journal.usage() == used.usage


async def test_usage_is_summed_over_choices_fills_graphs_inside_maps_and_written_bodies():
    class Word(Node):
        word: str

        async def __call__(self) -> Length: ...

    class Same(Node):
        async def __call__(self) -> Length: ...

    class Length(Node):
        length: int

        async def __call__(self) -> None: ...

    async def ask_too(lm: LM) -> str:
        made = await lm.make(Left(), Note)
        return made.text

    class Note(Node):
        text: str

        async def __call__(self) -> None: ...

    class Begin(Node):
        async def __call__(self, lm: LM) -> Gather:
            await lm.make(self, Note)
            return Gather(words=["a", "b", "c"])

    class Gather(Node):
        words: list[str]
        inside: Annotated[Length, Dep(Graph(start=Same))]
        asked: Annotated[str, Dep(ask_too)]
        lengths: Annotated[list[Length], Map(Graph(start=Word), over="words")]

        async def __call__(self) -> Note | None: ...

    def answer(prompt: Prompt) -> Any:
        target = prompt.question.target
        if target is Length:
            return priced({"length": 1})
        return priced({"text": "t"} if target is Note else route("Note", text="t"))

    lm = ToyBackend(answer)
    result = await run(Begin(), lm)

    # a body, a graph inside, a dependency, three items, and a choice that is filled at once
    assert lm.calls == 1 + 1 + 1 + 3 + 1
    assert result.usage == Usage(7, 700, 140, 210, 3.5, 7, result.usage.seconds, ("m",))
    by = [record.by for record in result.journal.of(LMUsed)]
    assert sorted(name.rpartition(".")[2] for name in by) == ["__call__", "ask_too"]
    paths = {record.path for record in result.journal.of(FillEnded)}
    assert len(paths) == 5
    judged = result.journal.of(AnswerJudged)
    assert len(judged) == 7
    assert {record.path for record in judged} == paths


async def test_outside_a_run_usage_is_metered_by_whoever_wants_it():
    with metered() as used:
        await ToyBackend(priced({}), priced(GOOD)).fill(Found, {}, "Found")

    assert [each.calls for each in used] == [1, 1]
    assert Usage.total(used).cost == 1.0


# What is told while it lasts


class Streams(ToyBackend):
    """Tells its text piece by piece, and waits in between."""

    async def answer(self, prompt: Prompt) -> Answer:
        answer = await super().answer(prompt)
        half = len(answer.text) // 2
        for piece in (answer.text[:half], answer.text[half:]):
            tell(piece)
            await asyncio.sleep(0)
        return answer


async def test_pieces_that_are_told_appear_in_the_stream_before_the_answer_is_judged():
    graph = Graph(start=Ask)
    kinds: list[Any] = []
    pieces = ""
    async with asyncio.timeout(BOUND), graph.stream(Ask(), Streams({}, GOOD)) as records:
        async for record in records:
            kinds.append(type(record))
            if isinstance(record, TextArrived):
                pieces += record.text
                assert record.by == "filling Found"

    middle = kinds[kinds.index(FillStarted) : kinds.index(FillEnded) + 1]
    assert middle == [
        FillStarted,
        *(TextArrived, TextArrived, AnswerJudged),
        *(TextArrived, TextArrived, AnswerJudged),
        FillEnded,
    ]
    assert pieces == "{}" + json.dumps(GOOD)


async def test_pieces_can_be_read_while_the_rest_is_still_to_come():
    come = asyncio.Event()

    class Half(ToyBackend):
        async def answer(self, prompt: Prompt) -> Answer:
            tell("first")
            await come.wait()
            return await super().answer(prompt)

    async with asyncio.timeout(BOUND), Graph(start=Ask).stream(Ask(), Half(GOOD)) as records:
        async for record in records:
            if isinstance(record, TextArrived):
                come.set()
    assert records.result.trace[-1] == Found(**GOOD)


async def test_pieces_of_a_written_body_and_of_a_graph_inside_say_where_they_belong():
    class Word(Node):
        async def __call__(self) -> Found: ...

    class Begin(Node):
        async def __call__(self, lm: LM) -> Uses:
            await lm.make(self, Found)
            return Uses()

    class Uses(Node):
        found: Annotated[Found, Dep(Graph(start=Word))]

        async def __call__(self) -> None: ...

    result = await run(Begin(), Streams(lambda prompt: GOOD))

    places = {(record.path, record.by) for record in result.journal.of(TextArrived)}
    assert places == {("", "Begin.__call__"), ("1:Uses.found", "filling Found")}


async def test_telling_and_reporting_outside_a_run_do_nothing():
    tell("text")
    tell(Attempt(1, "", "valid"))
    report(Usage(calls=1))


# Cancellation


async def test_a_cancelled_fill_is_cancelled_and_leaves_nothing():
    asked = asyncio.Event()
    ended: list[str] = []

    class Waits(ToyBackend):
        async def answer(self, prompt: Prompt) -> Answer:
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("closed")
            raise AssertionError

    before = asyncio.all_tasks()
    lm = Waits()
    task = asyncio.create_task(run(Ask(), lm))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert ended == ["closed"]
    assert asyncio.all_tasks() == before
    assert lm.rejected == []


async def test_a_run_cancelled_while_waiting_to_send_again_ends_at_once():
    sent = asyncio.Event()

    class Down(ToyBackend):
        first_wait = 1000.0

        async def answer(self, prompt: Prompt) -> Answer:
            sent.set()
            raise failure(retryable=True)

    graph = Graph(start=Ask)
    stream = graph.stream(Ask(), Down())
    async with asyncio.timeout(BOUND), stream as records:
        async for _ in records:
            if sent.is_set():
                break
        else:
            raise AssertionError
        # Leaving the block cancels the run, which waits.
    assert len(asyncio.all_tasks()) == 1


async def test_a_cancellation_is_told_as_one_in_the_journal():
    class Cancels(ToyBackend):
        async def answer(self, prompt: Prompt) -> Answer:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
            raise AssertionError

    outcomes: list[Any] = []
    with pytest.raises(asyncio.CancelledError):
        async with Graph(start=Ask).stream(Ask(), Cancels()) as records:
            async for record in records:
                outcomes.append(record)
    assert [record.outcome for record in outcomes if isinstance(record, RunEnded)] == ["cancelled"]


async def test_a_backend_is_let_go_of_when_nobody_holds_it():
    lm = ToyBackend(GOOD)
    gone = weakref.ref(lm)
    result = await run(Ask(), lm)
    del lm
    gc.collect()

    assert gone() is None
    assert result.trace


# The four methods


async def test_make_builds_from_what_a_node_holds_and_leaves_sources_to_the_run():
    class Sourced(Node):
        word: Annotated[str, Dep(lambda: "w")]
        text: str

        async def __call__(self) -> None: ...

    class Begin(Node):
        topic: str

        async def __call__(self, lm: LM) -> Sourced:
            return await lm.make(self, Sourced)

    lm = ToyBackend({"text": "x", "word": "mine"})
    result = await run(Begin(topic="t"), lm)

    assert result.trace[-1].model_dump() == {"word": "w", "text": "x"}
    assert lm.prompts[0].text == 'Sourced\n\n{"Begin":{"topic":"t"}}'


async def test_decide_chooses_and_builds():
    class Begin(Node):
        async def __call__(self, lm: LM) -> Found | Left | None:
            return await lm.decide(self)

    lm = ToyBackend(route("Found", **GOOD))
    assert (await run(Begin(), lm)).trace[-1] == Found(**GOOD)
    lm = ToyBackend(route("Left"))
    assert type((await run(Begin(), lm)).trace[-1]) is Left
    lm = ToyBackend(route("None"))
    assert len((await run(Begin(), lm)).trace) == 1


async def test_decide_where_there_is_nothing_to_decide_needs_no_choice():
    lm = ToyBackend(GOOD)
    assert await lm.decide(Ask()) == Found(**GOOD)
    assert lm.calls == 1
    assert await ToyBackend().decide(Left()) is None


async def test_a_backend_is_an_lm_and_a_context_that_closes_it():
    closed: list[str] = []

    class Closes(ToyBackend):
        async def aclose(self) -> None:
            closed.append("closed")

    async with Closes(GOOD) as lm:
        assert isinstance(lm, LM)
        await lm.fill(Found, {}, "Found")
    assert closed == ["closed"]


async def test_an_lm_that_is_pinned_fills_its_own_nodes_alone():
    special = ToyBackend({"text": "special"})

    class Begin(Node):
        async def __call__(self) -> Pinned: ...

    class Pinned(Node):
        node_config = NodeConfig(lm=special)
        text: str

        async def __call__(self) -> Last: ...

    class Last(Node):
        text: Annotated[str, Recall()]
        more: str

        async def __call__(self) -> None: ...

    lm = ToyBackend({"more": "general"})
    result = await run(Begin(), lm)

    assert (result.trace[1].text, result.trace[2].more) == ("special", "general")
    assert (special.calls, lm.calls) == (1, 1)


async def test_the_same_backend_serves_runs_in_different_loops():
    lm = ToyBackend(GOOD, GOOD)
    graph = Graph(start=Ask)
    for _ in range(2):
        result = await asyncio.to_thread(graph.run, Ask(), lm)
        assert result.trace[-1] == Found(**GOOD)


async def test_concurrent_fills_do_not_mix_up_their_turns():
    def answer(prompt: Prompt) -> Any:
        source = prompt.question.source
        assert isinstance(source, Numbered)
        if not prompt.turns:
            return {"number": "wrong", "word": str(source.number)}
        assert prompt.question.fields == ("number",)
        assert f'"word": "{source.number}"' in prompt.turns[0].answer
        return {"number": source.number}

    class Numbered(Node):
        number: int

        async def __call__(self) -> Answered: ...

    class Answered(Node):
        number: int
        word: str

        async def __call__(self) -> None: ...

    class Begin(Node):
        numbers: list[int]
        answers: Annotated[list[Answered], Map(Graph(start=Numbered), over="numbers")]

        async def __call__(self) -> None: ...

    result = await run(Begin(numbers=list(range(20))), ToyBackend(answer))
    found = [(each.number, each.word) for each in result.trace[0].answers]
    assert found == [(n, str(n)) for n in range(20)]
    assert result.usage.attempts == 40


async def test_the_choice_of_a_run_is_recorded_with_its_usage():
    result = await run(Fork(), ToyBackend(priced(choose("Left"))))

    (made,) = result.journal.of(ChoiceMade)
    assert (made.chosen, made.usage.cost, made.usage.attempts) == (Left, 0.5, 1)
    assert result.usage == made.usage


async def test_every_error_of_the_asking_layer_can_be_caught_as_one():
    for lm in (
        ToyBackend(lambda prompt: {}),
        ToyBackend(failure()),
        ToyBackend(Answer(stop="refused")),
    ):
        with pytest.raises(BaeError) as caught:
            await run(Ask(), lm)
        assert caught.value.trace == [Ask()]


# What there is nothing to ask for


async def test_a_graph_that_asks_a_model_for_nothing_needs_none():
    async def get_word() -> str:
        return "word"

    class Looked(Node):
        word: Annotated[str, Dep(get_word)]

        async def __call__(self) -> None: ...

    class Begin(Node):
        async def __call__(self) -> Looked: ...

    result = await run(Begin(), None)

    assert result.trace[-1].word == "word"
    assert [record.node for record in result.journal.of(FillEnded)] == [result.trace[-1]]


async def test_every_attempt_says_what_was_asked():
    lm = ToyBackend({}, {"text": "x"})
    result = await run(Asking(), lm)

    first, second = (record.attempt for record in result.journal.of(AnswerJudged))
    assert first.asked == lm.prompts[0].text
    assert first.asked in second.asked
    assert "text: Field required" in second.asked


class Asking(Node):
    async def __call__(self) -> Answering: ...


class Answering(Node):
    text: str

    async def __call__(self) -> None: ...


def test_an_answer_that_cannot_be_one_is_refused_where_it_is_made():
    with pytest.raises(TypeError, match="Answer\\(value="):
        Answer({"text": "x"})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='"end", "cut-off" or "refused"'):
        Answer("{}", stop="length")  # type: ignore[arg-type]


def test_a_backend_shows_itself_with_its_model():
    assert repr(ToyBackend()) == "ToyBackend('toy')"
