"""What `ScriptedLM` promises to a test: its answers in order or by type, validated as any LM's are,
every question remembered, and a loud failure when it is asked more or less."""

from __future__ import annotations

import json
from pathlib import Path
from types import NoneType
from typing import Annotated, Any

import pytest
from pydantic import Field, ValidationError, model_validator

from bae import LM, BaeLMError, Dep, FillError, Graph, Map, Node, Recall, Usage
from bae.journal import AnswerJudged
from bae.lm import metered
from bae.testing import Asked, ScriptedLM, ScriptError
from end_node import EndNode


class Start(Node):
    topic: str = "t"

    async def __call__(self) -> Draft | Refusal | None: ...


class Draft(Node):
    text: str = Field(min_length=3)
    stars: int = 1

    async def __call__(self) -> Review: ...


class Review(Node):
    fine: bool

    async def __call__(self) -> Draft | None: ...


class Refusal(Node):
    async def __call__(self) -> None: ...


graph = Graph(start=Start)


def way(trace: list[Node]) -> list[str]:
    return [type(node).__name__ for node in trace]


# Answers in order


async def test_answers_are_given_in_order_a_choice_and_a_fill_taking_one_each():
    lm = ScriptedLM(
        [Draft, {"text": "one"}, {"fine": False}, Draft, {"text": "two"}, {"fine": 1}, None]
    )
    result = await graph.arun(Start(), lm)

    assert way(result.trace) == ["Start", "Draft", "Review", "Draft", "Review"]
    assert [node.text for node in result.trace if isinstance(node, Draft)] == ["one", "two"]
    lm.assert_complete()


@pytest.mark.parametrize("choice", [None, NoneType, "None"], ids=str)
async def test_none_chooses_to_end_the_run(choice: Any):
    result = await graph.arun(Start(), ScriptedLM([choice]))

    assert way(result.trace) == ["Start"]


async def test_a_node_fills_as_well_as_its_values_do():
    lm = ScriptedLM(["Draft", Draft(text="a node", stars=5), {"fine": True}, None])
    result = await graph.arun(Start(), lm)

    assert result.trace[1].model_dump() == {"text": "a node", "stars": 5}
    assert result.trace[1].model_fields_set >= {"text", "stars"}


async def test_only_the_plain_fields_of_a_scripted_node_are_taken():
    def get_number() -> int:
        return 7

    class Resolved(EndNode):
        text: str
        number: Annotated[int, Dep(get_number)]

    lm = ScriptedLM([Resolved(text="x", number=-1)])
    filled = await lm.fill(Resolved, {"number": 7}, "Resolved")

    assert filled.model_dump() == {"text": "x", "number": 7}


async def test_a_node_with_nothing_to_fill_takes_no_answer():
    lm = ScriptedLM([Refusal])
    result = await graph.arun(Start(), lm)

    assert way(result.trace) == ["Start", "Refusal"]
    lm.assert_complete()


# Answers by type


async def test_answers_by_type_are_given_to_the_type_that_is_filled():
    lm = ScriptedLM(
        {Review: [{"fine": False}, {"fine": True}], Draft: [{"text": "one"}, {"text": "two"}]},
        choices=[Draft, Draft, None],
    )
    result = await graph.arun(Start(), lm)

    assert way(result.trace) == ["Start", "Draft", "Review", "Draft", "Review"]
    assert [node.text for node in result.trace if isinstance(node, Draft)] == ["one", "two"]
    lm.assert_complete()


async def test_without_choices_the_one_offered_type_with_answers_left_is_chosen():
    lm = ScriptedLM({"Draft": {"text": "one"}, Review: lambda question: {"fine": True}})
    assert await lm.choose_type([Draft, Refusal, NoneType], {}) is Draft
    with pytest.raises(ScriptError) as caught:
        await lm.choose_type([Draft, Review], {})

    assert "asked to choose among Draft, Review" in caught.value.message
    assert "answers left for Draft, Review" in caught.value.message
    assert caught.value.fix == "say which in choices=[…]"


async def test_a_function_by_type_is_asked_every_time_and_given_the_question():
    asked: list[Asked] = []

    def draft(question: Asked) -> dict[str, Any]:
        asked.append(question)
        return {"text": f"draft {len(asked)}"}

    lm = ScriptedLM(
        {Draft: draft, Review: [{"fine": False}, {"fine": True}]}, choices=[Draft, Draft, None]
    )
    result = await graph.arun(Start(), lm)

    assert [node.text for node in result.trace if isinstance(node, Draft)] == ["draft 1", "draft 2"]
    assert [question.source for question in asked] == [result.trace[0], result.trace[2]]
    assert asked == [question for question in lm.asked if question.target is Draft]
    lm.assert_complete()


async def test_a_function_is_told_what_was_wrong_with_its_answer_before():
    def draft(question: Asked) -> dict[str, Any]:
        return {"text": "long enough" if question.errors else ""}

    assert (await ScriptedLM({Draft: draft}).fill(Draft, {}, "Draft")).text == "long enough"


# From a file


def written(path: Path, script: Any) -> Path:
    path.write_text(script if isinstance(script, str) else json.dumps(script), encoding="utf-8")
    return path


async def test_a_file_with_a_list_has_answers_in_order(tmp_path: Path):
    path = written(tmp_path / "script.json", ["Draft", {"text": "größe"}, {"fine": True}, None])
    lm = ScriptedLM.from_file(path)
    result = await graph.arun(Start(), lm)

    assert way(result.trace) == ["Start", "Draft", "Review"]
    assert result.trace[1].text == "größe"
    lm.assert_complete()


async def test_a_file_with_an_object_has_fills_by_type_and_choices(tmp_path: Path):
    script = {
        "fills": {"Draft": [{"text": "one"}], "Review": {"fine": True}},
        "choices": ["Draft", None],
    }
    lm = ScriptedLM.from_file(str(written(tmp_path / "script.json", script)))
    result = await graph.arun(Start(), lm)

    assert way(result.trace) == ["Start", "Draft", "Review"]
    lm.assert_complete()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("[1,", "neither a list of answers nor an object"),
        ('"text"', "neither a list of answers nor an object"),
        ("3", "neither a list of answers nor an object"),
        ({"Draft": []}, "neither a list of answers nor an object"),
    ],
    ids=["broken", "text", "number", "keys"],
)
def test_a_file_that_is_no_script_is_refused(tmp_path: Path, script: Any, said: str):
    path = written(tmp_path / "script.json", script)
    with pytest.raises(ScriptError) as caught:
        ScriptedLM.from_file(path)

    assert caught.value.code == "bae-script-invalid"
    assert str(path) in caught.value.message
    assert said in caught.value.message


# Wrong answers


async def test_a_wrong_answer_is_followed_by_the_next_with_the_errors_told():
    lm = ScriptedLM([Draft, {"text": "no"}, {}, {"text": "long enough"}, {"fine": True}, None])
    result = await graph.arun(Start(), lm)

    assert result.trace[1].text == "long enough"
    fills = [asked for asked in lm.asked if asked.target is Draft]
    assert [asked.errors for asked in fills] == [
        (),
        ("text: String should have at least 3 characters",),
        ("text: Field required",),
    ]


async def test_answers_that_stay_wrong_are_a_fill_error_after_the_attempts():
    lm = ScriptedLM(["Draft", {"text": "no"}, {"text": "no"}, {"text": 3, "stars": "x"}])
    with pytest.raises(FillError) as caught:
        await graph.arun(Start(), lm)

    error = caught.value
    assert (error.code, error.node_type, error.attempts) == ("bae-fill-invalid", Draft, 3)
    assert [(e["loc"], e["type"]) for e in error.validation_errors] == [
        (("text",), "string_type"),
        (("stars",), "int_parsing"),
    ]
    assert isinstance(error.cause, ValidationError)
    assert "3 answers in a row were not valid" in error.message
    assert "text: Input should be a valid string" in error.message
    assert way(error.trace) == ["Start"]
    assert [(each.answer, each.verdict) for each in error.tried] == [
        ('{"text":"no"}', "invalid"),
        ('{"text":"no"}', "invalid"),
        ('{"text":3,"stars":"x"}', "invalid"),
    ]
    lm.assert_complete()
    with pytest.raises(FillError) as caught:
        await ScriptedLM([{"text": ""}] * 9, attempts=2).fill(Draft, {}, "Draft")
    assert caught.value.attempts == 2


async def test_the_models_own_validators_have_a_say():
    class Even(EndNode):
        n: int

        @model_validator(mode="after")
        def is_even(self) -> Even:
            if self.n % 2:
                raise ValueError("odd")
            return self

    lm = ScriptedLM([{"n": 1}, {"n": 2}])

    assert (await lm.fill(Even, {}, "Even")).n == 2
    assert lm.asked[1].errors == ("Value error, odd",)


# Exceptions


@pytest.mark.parametrize("where", ["choice", "fill"])
async def test_an_exception_in_the_script_is_raised(where: str):
    cause = ConnectionError("down")
    lm = ScriptedLM([cause] if where == "choice" else [Draft, cause])
    with pytest.raises(BaeLMError) as caught:
        await graph.arun(Start(), lm)

    assert caught.value.cause is cause
    lm.assert_complete()


# More and less


async def test_asked_for_one_more_fill_it_fails_loudly():
    lm = ScriptedLM([Draft, {"text": "one"}])
    with pytest.raises(ScriptError) as caught:
        await graph.arun(Start(), lm)

    assert caught.value.code == "bae-script-exhausted"
    assert caught.value.message == (
        "asked for the fields of Review, but the script has no answer left (question 3)"
    )
    assert isinstance(caught.value, BaeLMError)
    assert way(caught.value.trace) == ["Start", "Draft"]


async def test_asked_for_a_type_it_has_nothing_for_it_says_what_it_has():
    with pytest.raises(ScriptError) as caught:
        await graph.arun(Start(), ScriptedLM({Review: {"fine": True}}, choices=[Draft]))

    assert caught.value.message == (
        "asked for the fields of Draft, but the script has no answer left (question 2; it has "
        "answers for Review)"
    )


@pytest.mark.parametrize("answer", [Review, {"text": "one"}, Draft(text="one")], ids=str)
async def test_a_choice_that_is_not_offered_or_none_fails_loudly(answer: Any):
    with pytest.raises(ScriptError) as caught:
        await graph.arun(Start(), ScriptedLM([answer]))

    assert caught.value.code == "bae-script-mismatch"
    assert caught.value.message.startswith(
        "a choice among Draft, Refusal, None was asked for, but the next answer is "
    )


@pytest.mark.parametrize("answer", [Review, None, "Review", Review(fine=True)], ids=str)
async def test_a_choice_where_a_fill_is_asked_for_fails_loudly(answer: Any):
    with pytest.raises(ScriptError) as caught:
        await graph.arun(Start(), ScriptedLM([Draft, answer]))

    assert caught.value.code == "bae-script-mismatch"
    assert "asked for the fields of Draft, but the next answer is" in caught.value.message


def test_a_script_that_was_not_used_up_is_an_assertion_error_that_lists_what_is_left():
    with pytest.raises(AssertionError, match=r"2 in order: \['Draft', \{'text': 'x'\}\]"):
        ScriptedLM(["Draft", {"text": "x"}]).assert_complete()
    with pytest.raises(AssertionError, match=r"1 for Draft: \[\{'text': 'x'\}\]"):
        ScriptedLM({Draft: {"text": "x"}}).assert_complete()
    with pytest.raises(AssertionError, match="Refusal"):
        ScriptedLM(choices=[Refusal]).assert_complete()


def test_a_script_that_cannot_be_meant_is_refused():
    with pytest.raises(TypeError, match="give it a list of answers"):
        ScriptedLM("Draft")
    with pytest.raises(ValueError, match="attempts=0"):
        ScriptedLM([], attempts=0)


# What is remembered


async def test_every_part_of_every_question_is_remembered():
    def get_number() -> int:
        return 7

    class Ask(Node):
        word: str

        async def __call__(self) -> Answer | Refusal: ...

    class Answer(EndNode):
        word: Annotated[str, Recall()]
        number: Annotated[int, Dep(get_number)]
        text: str

    lm = ScriptedLM([Answer, {"text": "x"}])
    start = Ask(word="w")
    await Graph(start=Ask).arun(start, lm)

    assert lm.asked == [
        Asked("choose_type", types=(Answer, Refusal), context={"word": "w"}),
        Asked(
            "fill",
            target=Answer,
            resolved={"word": "w", "number": 7},
            instruction="Answer",
            source=start,
        ),
    ]


# From a written body


class Begin(Node):
    async def __call__(self, lm: LM) -> Middle:
        made = await lm.make(self, Draft)
        return Middle(text=made.text)


class Middle(Node):
    text: str

    async def __call__(self, lm: LM) -> Draft | Refusal | None:
        return await lm.decide(self)


async def test_make_and_decide_answer_from_the_script_in_a_written_body():
    lm = ScriptedLM([{"text": "made"}, Draft, {"text": "decided"}, {"fine": True}, None])
    result = await Graph(start=Begin).arun(Begin(), lm)

    assert way(result.trace) == ["Begin", "Middle", "Draft", "Review"]
    assert [node.text for node in result.trace[1:3]] == ["made", "decided"]
    assert [asked.kind for asked in lm.asked] == [
        "fill",
        "choose_type",
        "fill",
        "fill",
        "choose_type",
    ]
    assert [asked.source for asked in lm.asked[:3]] == [result.trace[0], None, result.trace[1]]
    assert lm.asked[1].types == (Draft, Refusal, NoneType)
    assert lm.asked[1].context == {"text": "made"}
    lm.assert_complete()


async def test_what_make_leaves_out_is_resolved_when_the_run_gets_there():
    def get_number() -> int:
        return 7

    def double(n: int) -> int:
        return 2 * n

    class Open(Node):
        async def __call__(self, lm: LM) -> Sourced:
            return await lm.make(self, Sourced)

    class Sourced(EndNode):
        number: Annotated[int, Dep(get_number)]
        counts: list[int]
        doubled: Annotated[list[int], Map(double, over="counts")]

    result = await Graph(start=Open).arun(Open(), ScriptedLM([{"counts": [1, 2]}]))

    assert result.trace[-1].model_dump() == {"number": 7, "counts": [1, 2], "doubled": [2, 4]}


# What it counts


async def test_every_answer_that_was_asked_for_is_one_call_and_one_attempt():
    lm = ScriptedLM([{"text": ""}, {"text": "fine"}, "Draft"])
    with metered() as used:
        await lm.fill(Draft, {}, "Draft")
        await lm.choose_type([Draft, Review], {})
        await lm.choose_type([Draft], {})
        await lm.fill(Refusal, {}, "Refusal")

    assert Usage.total(used) == Usage(calls=3, attempts=3)


async def test_an_answer_that_is_an_exception_is_a_call_and_no_attempt():
    with metered() as used, pytest.raises(ConnectionError):
        await ScriptedLM([ConnectionError("down")]).fill(Draft, {}, "Draft")

    assert used == [Usage(calls=1)]


async def test_every_answer_is_in_the_journal_with_what_was_wrong_with_it():
    lm = ScriptedLM([Draft, {"text": "no"}, {"text": "yes"}, {"fine": True}, None])
    result = await graph.arun(Start(), lm)

    judged = [
        (str(record.asker), record.attempt.number, record.attempt.answer, record.attempt.verdict)
        for record in result.journal.of(AnswerJudged)
    ]
    assert judged == [
        ("choosing after Start", 1, "Draft", "valid"),
        ("filling Draft", 1, '{"text":"no"}', "invalid"),
        ("filling Draft", 2, '{"text":"yes"}', "valid"),
        ("filling Review", 1, '{"fine":true}', "valid"),
        ("choosing after Review", 1, "None", "valid"),
    ]
    (wrong,) = [r.attempt for r in result.journal.of(AnswerJudged) if r.attempt.errors]
    assert wrong.errors == ("text: String should have at least 3 characters",)
    assert result.usage == Usage(calls=5, attempts=5)


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ([Draft, {"text": "no"}], "bae-script-exhausted", "the script has no answer left"),
        (
            {Draft: [{"text": "no"}], Review: [{"fine": True}]},
            "bae-script-exhausted",
            "the script has no answer left",
        ),
        ([Draft, {"text": "no"}, Review], "bae-script-mismatch", "the next answer is"),
    ],
    ids=["in order", "by type", "the next is another's"],
)
async def test_a_script_that_ends_after_a_wrong_answer_says_what_was_wrong_with_it(
    script: Any, code: str, said: str
):
    with pytest.raises(ScriptError) as caught:
        await graph.arun(Start(), ScriptedLM(script))

    error = caught.value
    assert error.code == code
    assert error.message.startswith("asked for the fields of Draft again, but ")
    assert said in error.message
    assert "answer 1 was refused: text: String should have at least 3 characters" in error.message
    assert (error.fix or "").startswith("fix the answer")
