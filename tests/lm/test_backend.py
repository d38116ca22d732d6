"""Filling on top of one method: only the faulty fields of a wrong answer are asked for again, a
bounded number of times, and every answer is recorded."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ConfigDict, field_validator, model_validator

from asked_nodes import GOOD, Ask, Found, Left, attempts_of
from bae import LM, Dep, FillError, Graph, Map, Node, NodeError
from bae.journal import AnswerJudged, ChoiceStarted, FillEnded, LMUsed
from bae.lm import Answer, Prompt
from bounded import run
from end_node import EndNode
from toy_backend import ToyBackend, choose, route

# Wrong answers


async def test_only_invalid_fields_of_an_answer_are_requested_again():
    lm = ToyBackend(
        {"person": {"name": "Ada", "age": 36}, "score": 70, "note": 3},
        {"score": 7, "note": "fine", "person": {"name": "Eve", "age": 1}},  # which stays as it was
    )
    result = await run(Ask(), lm)

    assert result.trace[-1] == Found(**GOOD)
    again = lm.prompts[1]
    assert again.question.fields == ("score", "note")
    assert list(again.schema["properties"]) == ["score", "note"]
    assert again.schema["required"] == ["score", "note"]
    assert again.corrections[0].correction == (
        "That was not valid:\n"
        "- score: Input should be less than or equal to 10\n"
        "- note: Input should be a valid string\n"
        "Answer again with these fields alone: score, note."
    )
    assert json.loads(again.corrections[0].answer)["score"] == 70
    assert lm.rejected == [lm.prompts[0]]
    first, second = (record.attempt for record in result.journal.of(AnswerJudged))
    assert first.asked == lm.prompts[0].text
    assert first.asked in second.asked
    assert "- note: Input should be a valid string" in second.asked
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


async def test_an_error_deep_inside_a_field_requests_the_whole_field_again():
    lm = ToyBackend({**GOOD, "person": {"name": "A", "age": -1}}, {"person": GOOD["person"]})
    await run(Ask(), lm)

    assert lm.prompts[1].question.fields == ("person",)
    assert (
        "- person.name: String should have at least 2 characters\n"
        "- person.age: Input should be greater than or equal to 0"
    ) in lm.prompts[1].corrections[0].correction


async def test_an_invalid_value_is_dropped_if_the_next_answer_omits_it():
    class Easy(EndNode):
        number: int = 3

    assert (await ToyBackend({"number": "x"}, {}).fill(Easy, {}, "Easy")).number == 3

    lm = ToyBackend({**GOOD, "score": 99}, {}, {"score": 7})
    await run(Ask(), lm)
    assert "- score: Field required" in lm.prompts[2].corrections[1].correction


class Range(EndNode):
    low: int
    high: int

    @model_validator(mode="after")
    def in_order(self) -> Range:
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


async def test_an_error_of_a_model_validator_requests_all_fields_again():
    lm = ToyBackend({"low": 3, "high": "x"}, {"high": 1}, {"low": 1, "high": 3})
    node = await lm.fill(Range, {}, "Range")

    assert [prompt.question.fields for prompt in lm.prompts] == [
        ("low", "high"),
        ("high",),
        ("low", "high"),
    ]
    assert (node.low, node.high) == (1, 3)


async def test_an_error_of_a_cross_field_validator_is_reported_for_its_own_field():
    class Looks(EndNode):
        word: str
        length: int

        @field_validator("length")
        @classmethod
        def fits(cls, length: int, info: Any) -> int:
            if length != len(info.data["word"]):
                raise ValueError("not the length of word")
            return length

    lm = ToyBackend({"word": "abc", "length": 2}, {"length": 3})
    node = await lm.fill(Looks, {}, "Looks")

    assert (node.word, node.length) == ("abc", 3)
    assert lm.prompts[1].question.fields == ("length",)


CUT_OFF = Answer('{"score": 7}', stop="cut-off")
WRONG: list[tuple[Any, str]] = [
    ({**GOOD, "score": 99}, "invalid"),
    (" \n", "empty"),
    ("null", "empty"),
    ("```json\n{}\n```", "unparsable"),
    (json.dumps(GOOD) + " and more", "unparsable"),
    ("[1]", "unparsable"),
    ('{"a":' * 5000 + "1" + "}" * 5000, "unparsable"),
    (Answer('{"person": {"na', stop="cut-off"), "cut-off"),
    (CUT_OFF, "cut-off"),
    (Answer(value=None), "empty"),
    (Answer(value=[GOOD]), "unparsable"),
]
CORRECTIONS = {
    "invalid": "That was not valid:",
    "empty": "That was no answer.",
    "unparsable": "That was not ",
    "cut-off": "That was cut off for its length.",
}


@pytest.mark.parametrize(("wrong", "verdict"), WRONG, ids=range(len(WRONG)))
async def test_an_invalid_answer_is_requested_again_until_the_limit(wrong: Any, verdict: str):
    lm = ToyBackend(wrong, GOOD)
    result = await run(Ask(), lm)
    assert result.trace[-1] == Found(**GOOD)
    assert [attempt[1] for attempt in attempts_of(result)] == [verdict, "valid"]
    assert lm.prompts[1].corrections[0].correction.startswith(CORRECTIONS[verdict])

    lm = ToyBackend(lambda prompt: wrong)
    with pytest.raises(FillError) as caught:
        await run(Ask(), lm)
    error = caught.value
    assert (error.code, error.node_type) == (f"bae-fill-{verdict}", Found)
    assert (error.attempts, lm.calls) == (3, 3)
    assert [attempt.number for attempt in error.tried] == [1, 2, 3]
    assert {attempt.verdict for attempt in error.tried} == {verdict}
    assert all(attempt.errors for attempt in error.tried)
    assert attempts_of(error) == [(n, verdict, error.tried[n - 1].errors) for n in (1, 2, 3)]
    assert bool(error.validation_errors) == (verdict == "invalid" or wrong is CUT_OFF)
    assert error.fix
    assert lm.rejected == lm.prompts
    assert error.journal is not None
    assert error.journal.usage().attempts == 3


@pytest.mark.parametrize(
    "given", [Answer(json.dumps(GOOD), stop="cut-off"), Answer(value=GOOD)], ids=["cut", "parsed"]
)
async def test_an_answer_may_be_cut_off_after_its_json_or_already_parsed(given: Answer):
    result = await run(Ask(), ToyBackend(given))

    assert result.trace[-1] == Found(**GOOD)
    (judged,) = result.journal.of(AnswerJudged)
    assert json.loads(judged.attempt.answer) == GOOD


@pytest.mark.parametrize("attempts", [0, 4])
async def test_attempts_limits_the_number_of_further_answers(attempts: int):
    lm = ToyBackend(lambda prompt: {}, attempts=attempts)
    with pytest.raises(FillError) as caught:
        await lm.fill(Found, {}, "Found")

    assert (caught.value.attempts, lm.calls) == (attempts + 1, attempts + 1)


@pytest.mark.parametrize("bad", [-1, 1.5, "2", None, True])
@pytest.mark.parametrize("name", ["attempts", "retries"])
def test_an_invalid_number_of_attempts_is_refused(name: str, bad: Any):
    with pytest.raises(ValueError, match=f"{name}="):
        ToyBackend(**{name: bad})


async def test_a_refusal_ends_the_fill_with_its_text_in_the_error():
    lm = ToyBackend(Answer("I would rather not.", stop="refused"))
    with pytest.raises(FillError) as caught:
        await run(Ask(), lm)

    assert caught.value.code == "bae-fill-refused"
    assert "I would rather not." in caught.value.message
    assert lm.calls == 1
    assert [attempt.verdict for attempt in caught.value.tried] == ["refused"]


async def test_a_failed_fill_has_the_error_code_of_its_last_answer():
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


@pytest.mark.parametrize("strict", [False, True], ids=["lax", "strict"])
async def test_an_unexpected_error_of_a_validator_is_an_error_of_the_node(
    strict: bool,
):
    class Broken(EndNode):
        model_config = ConfigDict(strict=strict)
        number: int

        @field_validator("number")
        @classmethod
        def divide(cls, number: int) -> float:
            return 1 / number

    class Before(Node):
        async def __call__(self) -> Broken: ...

    lm = ToyBackend({"number": 0})
    with pytest.raises(NodeError) as caught:
        await run(Before(), lm)

    assert (caught.value.code, caught.value.node_type) == ("bae-node-invalid", Broken)
    assert isinstance(caught.value.cause, ZeroDivisionError)
    assert caught.value.message == "Broken: a validator raised ZeroDivisionError"
    assert lm.calls == 1


async def test_a_long_invalid_answer_is_shortened_before_it_is_sent_back():
    lm = ToyBackend({"note": "x" * 100_000}, GOOD)
    await run(Ask(), lm)
    assert len(lm.prompts[1].corrections[0].answer) < 5000

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


@settings(max_examples=60)
@given(st.lists(NEARLY.map(json.dumps) | JSON.map(json.dumps) | st.text(max_size=9), max_size=4))
async def test_any_answer_leads_to_a_valid_node_or_a_fill_error(
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


@pytest.mark.parametrize("raised", [ValueError("no"), KeyError("no")], ids=["refuses", "breaks"])
async def test_an_invalid_node_without_llm_fields_is_an_error_of_the_node(
    raised: Exception,
):
    class Sourced(EndNode):
        word: Annotated[str, Dep(lambda: "w")]

        @model_validator(mode="after")
        def never(self) -> Sourced:
            raise raised

    class Before(Node):
        async def __call__(self) -> Sourced: ...

    with pytest.raises(NodeError) as caught:
        await run(Before(), ToyBackend())

    assert (caught.value.code, caught.value.node_type) == ("bae-node-invalid", Sourced)


async def test_a_sourced_value_that_contradicts_the_answer_requests_another_answer():
    class Sourced(EndNode):
        text: str
        longest: Annotated[int, Dep(lambda: 1)]

        @field_validator("longest")
        @classmethod
        def long_enough(cls, longest: int, info: Any) -> int:
            if len(info.data["text"]) > longest:
                raise ValueError("text is too long")
            return longest

    lm = ToyBackend({"text": "xxx"}, {"text": "x"})
    assert (await lm.fill(Sourced, {"longest": 1}, "Sourced")).text == "x"
    assert "text is too long" in lm.prompts[1].corrections[0].correction


async def test_a_graph_without_llm_fields_needs_no_lm():
    async def get_word() -> str:
        return "word"

    class Looked(EndNode):
        word: Annotated[str, Dep(get_word)]

    class Begin(Node):
        async def __call__(self) -> Looked: ...

    result = await run(Begin(), None)

    assert result.trace[-1].word == "word"
    assert [record.node for record in result.journal.of(FillEnded)] == [result.trace[-1]]


# The four methods


async def test_decide_chooses_and_builds_in_one_call_whose_usage_belongs_to_the_body():
    class Begin(Node):
        async def __call__(self, lm: LM) -> Found | Left | None:
            return await lm.decide(self)

    for answer, ending in (
        (route("Found", **GOOD), [Found(**GOOD)]),
        (route("Left"), [Left()]),
        (route("None"), []),
    ):
        lm = ToyBackend(answer)
        result = await run(Begin(), lm)
        assert result.trace[1:] == ending
        assert [type(record) for record in result.journal.of(LMUsed)] == [LMUsed]
        assert result.usage.calls == lm.calls == 1
        assert result.journal.of(ChoiceStarted) == []


async def test_decide_with_a_single_option_needs_no_choice():
    lm = ToyBackend(GOOD)
    assert await lm.decide(Ask()) == Found(**GOOD)
    assert lm.calls == 1
    assert await ToyBackend().decide(Left()) is None


async def test_concurrent_fills_do_not_mix_up_their_turns():
    def answer(prompt: Prompt) -> Any:
        source = prompt.question.source
        assert isinstance(source, Numbered)
        if not prompt.corrections:
            return {"number": "wrong", "word": str(source.number)}
        assert prompt.question.fields == ("number",)
        assert f'"word": "{source.number}"' in prompt.corrections[0].answer
        return {"number": source.number}

    class Numbered(Node):
        number: int

        async def __call__(self) -> Answered: ...

    class Answered(EndNode):
        number: int
        word: str

    class Begin(EndNode):
        numbers: list[int]
        answers: Annotated[list[Answered], Map(Graph(start=Numbered), over="numbers")]

    result = await run(Begin(numbers=list(range(20))), ToyBackend(answer))
    found = [(answer.number, answer.word) for answer in result.trace[0].answers]
    assert found == [(n, str(n)) for n in range(20)]
    assert result.usage.attempts == 40


def test_an_invalid_answer_object_is_refused_by_its_constructor():
    with pytest.raises(TypeError, match="Answer\\(value="):
        Answer({"text": "x"})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='"end", "cut-off" or "refused"'):
        Answer("{}", stop="length")  # type: ignore[arg-type]
