"""What `ScriptedLM` promises to a test: its answers in order or by type, validated as any LM's are,
every question remembered, and a loud failure when it is asked more or less."""

from __future__ import annotations

import json
from pathlib import Path
from types import NoneType
from typing import Annotated, Any

import pytest
from pydantic import Field, ValidationError

from bae import (
    LM,
    BaeLMError,
    Dep,
    FillError,
    Graph,
    Map,
    Node,
    Recall,
    ToolCall,
    ToolError,
    Tools,
    Usage,
)
from bae.journal import AnswerJudged
from bae.lm import metered
from bae.testing import Asked, Call, ScriptedLM, ScriptError
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
TOO_SHORT = "text: String should have at least 3 characters"


def get_number() -> int:
    return 7


def way(trace: list[Node]) -> list[str]:
    return [type(node).__name__ for node in trace]


# Answers in order, by type, and from a file

IN_ORDER: list[Any] = [
    *("Draft", {"text": "größe"}, {"fine": False}),
    *("Draft", {"text": "two"}, {"fine": 1}, None),
]
BY_TYPE: dict[str, Any] = {
    "fills": {
        "Review": [{"fine": False}, {"fine": True}],
        "Draft": [{"text": "größe"}, {"text": "two"}],
    },
    "choices": ["Draft", "Draft", None],
}


@pytest.mark.parametrize("script", [IN_ORDER, BY_TYPE], ids=["in order", "by type"])
@pytest.mark.parametrize("from_file", [False, True])
async def test_a_script_has_answers_in_order_or_by_type(
    script: Any, from_file: bool, tmp_path: Path
):
    if from_file:
        path = tmp_path / "script.json"
        path.write_text(json.dumps(script, ensure_ascii=False), encoding="utf-8")
        lm = ScriptedLM.from_file(path)
    elif script is IN_ORDER:
        lm = ScriptedLM([Draft if answer == "Draft" else answer for answer in IN_ORDER])
    else:
        lm = ScriptedLM(script["fills"], choices=[Draft, "Draft", None])

    result = await graph.arun(Start(), lm)

    assert way(result.trace) == ["Start", "Draft", "Review", "Draft", "Review"]
    assert [node.text for node in result.trace if isinstance(node, Draft)] == ["größe", "two"]
    lm.assert_complete()


@pytest.mark.parametrize("choice", [None, NoneType, "None", Refusal], ids=str)
async def test_a_scripted_choice_needs_no_answer_for_a_node_without_fields(choice: Any):
    lm = ScriptedLM([choice])

    result = await graph.arun(Start(), lm)
    assert way(result.trace) == (["Start", "Refusal"] if choice is Refusal else ["Start"])
    lm.assert_complete()


async def test_a_node_in_a_script_fills_plain_fields_like_a_dict():
    class Resolved(EndNode):
        text: str
        number: Annotated[int, Dep(get_number)]

    lm = ScriptedLM(["Draft", Draft(text="a node", stars=5), {"fine": True}, None])
    result = await graph.arun(Start(), lm)
    filled = await ScriptedLM([Resolved(text="x", number=-1)]).fill(Resolved, {"number": 7}, "R")

    assert result.trace[1].model_dump() == {"text": "a node", "stars": 5}
    assert result.trace[1].model_fields_set >= {"text", "stars"}
    assert filled.model_dump() == {"text": "x", "number": 7}


async def test_a_script_without_choices_chooses_the_only_type_with_answers_left():
    lm = ScriptedLM({"Draft": {"text": "one"}, Review: lambda question: {"fine": True}})
    assert await lm.choose_type([Draft, Refusal, NoneType], {}) is Draft
    with pytest.raises(ScriptError) as caught:
        await lm.choose_type([Draft, Review], {})

    assert "asked to choose among Draft, Review" in caught.value.message
    assert "answers left for Draft, Review" in caught.value.message
    assert caught.value.fix == "say which in choices=[…]"


async def test_a_function_by_type_is_called_every_time_and_gets_the_earlier_faults():
    asked: list[Asked] = []

    def draft(question: Asked) -> dict[str, Any]:
        asked.append(question)
        return {"text": f"draft {len(asked)}" if question.errors else ""}

    reviews = [{"fine": False}, {"fine": True}]
    lm = ScriptedLM({Draft: draft, Review: reviews}, choices=[Draft, Draft, None])
    result = await graph.arun(Start(), lm)

    assert [node.text for node in result.trace if isinstance(node, Draft)] == ["draft 2", "draft 4"]
    first, second = result.trace[0], result.trace[2]
    assert [question.previous for question in asked] == [question.source for question in asked]
    assert [question.previous for question in asked] == [first, first, second, second]
    assert asked == [question for question in lm.asked if question.target is Draft]
    lm.assert_complete()


def double(number: int) -> int:
    return 2 * number


class Doubled(EndNode):
    calls: Annotated[list[ToolCall], Tools(double)]
    text: str


class Doubling(Node):
    async def __call__(self) -> Doubled: ...


@pytest.mark.parametrize("is_by_type", [False, True])
async def test_a_call_or_a_list_of_calls_in_a_script_file_is_a_round(
    tmp_path: Path, is_by_type: bool
):
    script: Any = [
        [{"call": "double", "arguments": {"number": n}} for n in (1, 2)],
        {"call": "double", "arguments": {"number": 4}},
        {"text": "8"},
    ]
    path = tmp_path / "script.json"
    text = json.dumps({"fills": {"Doubled": script}} if is_by_type else script)
    path.write_text(text, encoding="utf-8")
    lm = ScriptedLM.from_file(path)

    run = await Graph(start=Doubling, end=Doubled).arun(Doubling(), lm)

    assert [call.result for call in run.result.calls] == [2, 4, 8]
    assert (run.result.text, run.usage.calls) == ("8", 3)
    lm.assert_complete()


async def test_a_function_by_type_sees_the_calls_so_far():
    def answer(question: Asked) -> Any:
        if len(question.calls) < 2:
            last = question.calls[-1].result if question.calls else 1
            return Call("double", number=last)
        return {"text": str(question.calls[-1].result)}

    run = await Graph(start=Doubling, end=Doubled).arun(Doubling(), ScriptedLM({Doubled: answer}))

    assert (run.result.text, len(run.result.calls)) == ("4", 2)


NO_CALL = '[[{"name": "double"}]]'


@pytest.mark.parametrize(
    "script", ["[1,", '"text"', "3", '{"Draft": []}', '{"choices": [3]}', NO_CALL]
)
def test_a_file_that_is_not_a_script_is_refused(tmp_path: Path, script: str):
    path = tmp_path / "script.json"
    path.write_text(script, encoding="utf-8")
    with pytest.raises(ScriptError) as caught:
        ScriptedLM.from_file(path)

    assert caught.value.code == "bae-script-invalid"
    assert caught.value.message == f"the script {path} cannot be read"


# Wrong answers


async def test_the_next_scripted_answer_follows_a_wrong_answer():
    lm = ScriptedLM([Draft, {"text": "no"}, {}, {"text": "long enough"}, {"fine": True}, None])
    result = await graph.arun(Start(), lm)

    assert result.trace[1].text == "long enough"
    fills = [asked for asked in lm.asked if asked.target is Draft]
    assert [asked.errors for asked in fills] == [(), (TOO_SHORT,), ("text: Field required",)]
    judged = [
        (str(record.asker), record.attempt.number, record.attempt.answer, record.attempt.verdict)
        for record in result.journal.of(AnswerJudged)
    ]
    assert judged == [
        ("choosing after Start", 1, "Draft", "valid"),
        ("filling Draft", 1, '{"text":"no"}', "invalid"),
        ("filling Draft", 2, "{}", "invalid"),
        ("filling Draft", 3, '{"text":"long enough"}', "valid"),
        ("filling Review", 1, '{"fine":true}', "valid"),
        ("choosing after Review", 1, "None", "valid"),
    ]
    assert result.journal.of(AnswerJudged)[1].attempt.errors == (TOO_SHORT,)
    assert result.usage == Usage(calls=6, attempts=6)


async def test_repeated_wrong_answers_in_a_script_are_a_fill_error():
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
    assert [(attempt.answer, attempt.verdict) for attempt in error.tried] == [
        ('{"text":"no"}', "invalid"),
        ('{"text":"no"}', "invalid"),
        ('{"text":3,"stars":"x"}', "invalid"),
    ]
    lm.assert_complete()
    with pytest.raises(FillError) as caught:
        await ScriptedLM([{"text": ""}] * 9, attempts=2).fill(Draft, {}, "Draft")
    assert caught.value.attempts == 2


@pytest.mark.parametrize("before", [[], [Draft]], ids=["choice", "fill"])
async def test_an_exception_in_the_script_is_raised(before: list[Any]):
    cause = ConnectionError("down")
    lm = ScriptedLM([*before, cause])
    with pytest.raises(BaeLMError) as caught:
        await graph.arun(Start(), lm)

    assert caught.value.cause is cause
    lm.assert_complete()


# More and less

AGAIN = "asked for the fields of Draft again, but "
NO_CHOICE = "a choice among Draft, Refusal, None was asked for, but the next answer is "
NO_CHOICES: list[Any] = [Review, {"text": "one"}, Draft(text="one")]
NO_FIELDS = "asked for the fields of Draft, but the next answer is "
NO_FILLS: list[Any] = [Review, None, "Review", Review(fine=True)]


@pytest.mark.parametrize(
    ("script", "code", "says"),
    [
        (
            [Draft, {"text": "one"}],
            "exhausted",
            "asked for the fields of Review, but the script has no answer left (question 3)",
        ),
        (
            {Review: {"fine": True}},
            "exhausted",
            "asked for the fields of Draft, but the script has no answer left (question 2; it has "
            "answers for Review)",
        ),
        (
            [Draft, {"text": "no"}],
            "exhausted",
            f"{AGAIN}the script has no answer left; answer 1 was refused: {TOO_SHORT}",
        ),
        (
            {Draft: [{"text": "no"}], Review: [{"fine": True}]},
            "exhausted",
            f"{AGAIN}the script has no answer left; answer 1 was refused: {TOO_SHORT}",
        ),
        (
            [Draft, {"text": "no"}, "Review"],
            "mismatch",
            f"{AGAIN}the next answer is 'Review'; answer 1 was refused: {TOO_SHORT}",
        ),
        *(([answer], "mismatch", f"{NO_CHOICE}{answer!r}") for answer in NO_CHOICES),
        *(([Draft, answer], "mismatch", f"{NO_FIELDS}{answer!r}") for answer in NO_FILLS),
    ],
)
async def test_a_script_without_a_fitting_answer_raises_a_script_error(
    script: Any, code: str, says: str
):
    choices = [Draft] if isinstance(script, dict) else []
    with pytest.raises(ScriptError) as caught:
        await graph.arun(Start(), ScriptedLM(script, choices=choices))

    assert (caught.value.code, caught.value.message) == (f"bae-script-{code}", says)
    assert isinstance(caught.value, BaeLMError)
    assert ("fix the answer; if" in (caught.value.fix or "")) == ("again" in says)


def test_a_script_with_unused_answers_is_an_assertion_error_that_lists_them():
    with pytest.raises(AssertionError, match=r"2 in order: \['Draft', \{'text': 'x'\}\]"):
        ScriptedLM(["Draft", {"text": "x"}]).assert_complete()
    with pytest.raises(AssertionError, match=r"1 for Draft: \[\{'text': 'x'\}\]"):
        ScriptedLM({Draft: {"text": "x"}}).assert_complete()
    with pytest.raises(AssertionError, match="Refusal"):
        ScriptedLM(choices=[Refusal]).assert_complete()


def test_an_invalid_script_is_refused():
    with pytest.raises(TypeError, match="give a list of answers"):
        ScriptedLM("Draft")
    with pytest.raises(ValueError, match="attempts=0"):
        ScriptedLM([], attempts=0)


# What is remembered and counted


async def test_a_scripted_lm_records_every_part_of_every_question():
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

    resolved = {"word": "w", "number": 7}
    assert lm.asked == [
        Asked("choose_type", types=(Answer, Refusal), context={"word": "w"}),
        Asked("fill", target=Answer, resolved=resolved, instruction="Answer", previous=start),
    ]


async def test_a_scripted_lm_counts_calls_and_attempts():
    lm = ScriptedLM([{"text": ""}, {"text": "fine"}, "Draft", ConnectionError("down")])
    with metered() as used:
        await lm.fill(Draft, {}, "Draft")
        await lm.choose_type([Draft, Review], {})
        await lm.choose_type([Draft], {})
        await lm.fill(Refusal, {}, "Refusal")
    with metered() as failed, pytest.raises(ConnectionError):
        await lm.fill(Draft, {}, "Draft")

    assert Usage.total(used) == Usage(calls=3, attempts=3)
    assert failed == [Usage(calls=1)]


# From a written body


class Begin(Node):
    async def __call__(self, lm: LM) -> Middle:
        made = await lm.make(self, Draft)
        return Middle(text=made.text)


class Middle(Node):
    text: str

    async def __call__(self, lm: LM) -> Draft | Refusal | None:
        return await lm.decide(self)


async def test_make_and_decide_in_a_body_take_answers_from_the_script():
    lm = ScriptedLM([{"text": "made"}, Draft, {"text": "decided"}, {"fine": True}, None])
    result = await Graph(start=Begin).arun(Begin(), lm)

    assert way(result.trace) == ["Begin", "Middle", "Draft", "Review"]
    assert [node.text for node in result.trace[1:3]] == ["made", "decided"]
    kinds = ["fill", "choose_type", "fill", "fill", "choose_type"]
    assert [asked.kind for asked in lm.asked] == kinds
    assert [asked.previous for asked in lm.asked[:3]] == [result.trace[0], None, result.trace[1]]
    assert lm.asked[1].types == (Draft, Refusal, NoneType)
    assert lm.asked[1].context == {"text": "made"}
    lm.assert_complete()


async def test_fields_that_make_leaves_out_are_resolved_by_the_run():
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


def test_a_scripted_function_sees_why_its_answer_was_refused():
    def check(reply: Total) -> None:
        if reply.euros != 7:
            raise ToolError("it has to be 7")

    class Total(EndNode):
        calls: Annotated[list[ToolCall], Tools(print_bill, accept=check)]
        euros: int

    class Bill(Node):
        async def __call__(self) -> Total: ...

    lm = ScriptedLM({Total: lambda asked: {"euros": 7 if asked.errors else 6}})

    assert Graph(start=Bill, end=Total).run(Bill(), lm=lm).result.euros == 7
    assert [asked.errors for asked in lm.asked] == [(), ("it has to be 7",)]


def print_bill() -> str:
    """Print the bill."""
    return "7 euros"
