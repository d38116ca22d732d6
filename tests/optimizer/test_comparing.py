"""Before and after, on held-out examples: the questions, the scores, and their confidence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import date
from enum import Enum
from typing import Annotated, Any

import pytest

pytest.importorskip("dspy")
pytest.importorskip("anthropic")
pytest.importorskip("h11")

from pydantic import BaseModel, Field

from bae import BaeLMError, BudgetError, Dep, Graph, Node, NodeConfig, Recall, Usage
from bae.lm import Answer, Backend, Budget, Prompt, WithPrompts
from bae.optimizer import Judge, Progress, aoptimize_node, compare, trace_to_examples
from bae.optimizer.calls import CallLog
from bae.optimizer.predictors import artifact_of, fresh_predictor
from bae.testing import ScriptedLM
from wrong_by_design import HINT, Coded, answer, fills, right_examples

pytestmark = pytest.mark.once


def make_predictor(instruction: str, part: str = "fill") -> Any:
    """A predictor of Coded with another instruction."""
    predictor = fresh_predictor(Coded)
    part_predictor = getattr(predictor, part)
    part_predictor.signature = part_predictor.signature.with_instructions(instruction)
    return predictor


async def test_an_example_is_asked_once_with_and_once_without_the_learned_prompt(provider, student):
    (comparison,) = await compare(
        Coded, make_predictor(f"Code it {HINT}"), right_examples(8, seed=1), lm=student
    )

    assert (comparison.node, comparison.part, comparison.n) == ("Coded", "fill", 8)
    assert comparison.scores == ((0.0, 1.0),) * 8
    assert (comparison.before.mean, comparison.after.mean, comparison.difference.mean) == (
        0.0,
        1.0,
        1.0,
    )
    assert 0 < comparison.difference.low < 1 == comparison.difference.high
    assert comparison.better
    assert comparison.certain
    asked = [request.body["messages"][0]["content"] for request in provider.requests]
    assert len(asked) == len({str(message) for message in asked}) == 16
    assert sum(HINT in str(text) for text in asked) == 8
    assert "on 8 examples: 0.00 [0.00, 0.32] before, 1.00 [0.68, 1.00] after" in str(comparison)


async def test_an_unchanged_part_is_not_compared(provider, student):
    assert await compare(Coded, fresh_predictor(Coded), fills(8), lm=student) == []
    assert await compare(Coded, make_predictor(HINT), [], lm=student) == []
    assert provider.received == 0


async def test_validity_is_the_share_of_valid_first_answers(provider, student):
    def say(received: Any) -> Any:
        first = len(received.body["messages"]) == 1
        if HINT not in received.text and first:
            return {"cod": 1}
        return answer(received) if HINT in received.text else {"code": "??"}

    provider.always(say)
    (comparison,) = await compare(Coded, make_predictor(HINT), fills(4), lm=student)

    assert (comparison.validity_before, comparison.validity_after) == (0.0, 1.0)
    assert comparison.after.mean == 1.0
    assert provider.received == 4 + 2 * 4


@pytest.mark.parametrize("part", ["fill", "choice"])
async def test_an_example_without_a_valid_answer_scores_zero(part, provider, student):
    provider.always(lambda received: answer(received) if HINT in received.text else "no idea")

    found = await compare(Coded, make_predictor(HINT, part), right_examples(4, seed=1), lm=student)

    assert [comparison.part for comparison in found] == [part]
    assert (found[0].before.mean, found[0].after.mean) == (0.0, 1.0)
    assert found[0].validity_before == 0.0


class Season(Enum):
    WET = "wet"
    DRY = "dry"


class Station(BaseModel):
    name: str
    opened: date
    staff: int = Field(exclude=True)  # so that nobody can make one of what a model sees


async def get_station() -> Station:
    return Station(name="Süd", opened=date(1871, 5, 1), staff=3)


class Arrived(Node):
    on: date
    season: Season
    load: list[int] = Field(default_factory=list)

    async def __call__(self) -> Weighed: ...


class Weighed(Node):
    station: Annotated[Station, Dep(get_station)]
    season: Annotated[Season, Recall()]
    grams: int = Field(ge=0)

    async def __call__(self) -> Kept | None: ...


class Kept(Node):
    until: date

    async def __call__(self) -> None: ...


async def test_a_comparison_shows_context_and_fields_as_a_run_does(provider, student):
    provider.always(
        lambda received: (
            {"choice": "None"}
            if "choice" in received.schema["properties"]
            else {"grams": 7}
            if "grams" in received.schema["properties"]
            else {"answer": {"choice": "None"}}
        )
    )
    start = Arrived(on=date(2024, 2, 29), season=Season.WET, load=[1, 2])
    result = await Graph(start=Arrived).arun(start, lm=student)
    learned = fresh_predictor(Weighed)
    learned.fill.demos = [{"source": {"Arrived": {"load": []}}, "grams": 1}]
    learned.choice.demos = [{"known": {"Weighed": {"grams": 1}}, "choice": "None"}]
    prompts = {Weighed: artifact_of(learned).prompts()}
    before = provider.received
    await Graph(start=Arrived).arun(start, lm=WithPrompts(student, prompts))
    run = [dict(request.body) for request in provider.requests[before:]]
    before = provider.received

    fill, choice = await compare(
        Weighed, learned, trace_to_examples(result), lm=student, graph=Graph(start=Arrived)
    )

    asked = [dict(request.body) for request in provider.requests[before:]]
    assert (fill.scores, choice.scores) == (((1.0, 1.0),), ((1.0, 1.0),))
    assert len(run) == 2
    assert all(prompt in asked for prompt in run)
    assert '"opened":"1871-05-01"' in json.dumps(run[0]["messages"]).replace("\\", "")


async def test_a_spent_budget_ends_a_comparison_after_calls_in_progress(
    provider, student, tmp_path
):
    calls = tmp_path / "calls.sqlite"
    with provider.held():
        task = asyncio.create_task(
            compare(
                Coded,
                make_predictor(HINT),
                fills(8),
                lm=student,
                budget=Budget(calls=3),
                calls=calls,
            )
        )
        await provider.arrived(3)  # and the fourth of the four at once is one too many
    with pytest.raises(BudgetError):
        await task
    assert provider.received == 3

    (comparison,) = await compare(Coded, make_predictor(HINT), fills(8), lm=student, calls=calls)

    assert comparison.certain
    assert provider.received == 16


async def test_concurrency_bounds_the_calls_of_a_comparison(provider, student):
    with provider.held():
        task = asyncio.create_task(
            compare(
                Coded, make_predictor(HINT), fills(8), lm=student, concurrency=3, calls=CallLog()
            )
        )
        await provider.arrived(3)
        assert provider.received == 3
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await provider.idle()


async def test_impossible_arguments_are_refused():
    class Other(Node):
        text: str

        async def __call__(self) -> None: ...

    lm, after = ScriptedLM(), make_predictor(HINT)
    with pytest.raises(ValueError, match="concurrency=0"):
        await compare(Coded, after, [], lm=lm, concurrency=0)
    for cls, predictor in ((Other, after), (Coded, {Coded: after}), (int, after)):
        with pytest.raises(TypeError, match="give a node class and its NodePredictor"):
            await compare(cls, predictor, [], lm=lm)
    for graph in (Coded, Graph(start=Other)):
        with pytest.raises(TypeError, match="give the Graph that Coded runs in"):
            await compare(Coded, after, [], lm=lm, graph=graph)


# --- as a run asks it -------------------------------------------------------------------------


class Model(Backend):
    """Answers by a function of the prompt, and keeps the prompts."""

    model = "stand-in"

    def __init__(self, say: Callable[[Prompt], Any], **options: Any) -> None:
        super().__init__(**options)
        self.say = say
        self.prompts: list[Prompt] = []

    async def answer(self, prompt: Prompt) -> Answer:
        self.prompts.append(prompt)
        return Answer(json.dumps(self.say(prompt)), Usage(1, input_tokens=100, output_tokens=10))


class Mail(Node):
    text: str

    async def __call__(self) -> Bill | Chat | None: ...


class Bill(Node):
    amount: int

    async def __call__(self) -> None: ...


class Chat(Node):
    topic: str

    async def __call__(self) -> None: ...


mails = Graph(start=Mail)
BILLS = [
    example
    for amount in range(6)
    for example in trace_to_examples([Mail(text=f"pay {amount}"), Bill(amount=amount)])
]


def pays(prompt: Prompt) -> Any:
    """Right about combined choices and fills; right about other questions only with examples in the
    prompt."""
    question = prompt.question
    knows = bool(question.fillable or prompt.examples)
    amount = int(json.loads(prompt.text.split("\n\n", 1)[1])["Mail"]["text"].split()[1])
    if question.target is not None:
        return {"amount": amount if knows else -1}
    choice = {"choice": "Bill" if knows else "None"}
    if Bill in question.fillable:
        choice["fields"] = {"amount": amount}
    return {"answer": choice} if question.fillable else choice


def make_trained_predictor(part: str) -> Any:
    """A predictor of Mail that has learned to choose, or of Bill that has learned to fill."""
    if part == "choice":
        predictor = fresh_predictor(Mail)
        predictor.choice.demos = [{"known": {"Mail": {"text": "pay 99"}}, "choice": "Bill"}]
        return predictor
    predictor = fresh_predictor(Bill)
    predictor.fill.demos = [{"source": {"Mail": {"text": "pay 99"}}, "amount": 99}]
    return predictor


@pytest.mark.parametrize("part", ["choice", "fill"])
async def test_a_comparison_sends_the_same_questions_as_runs_do(part):
    lm = Model(pays)
    after = make_trained_predictor(part)
    prompts = {after.node: artifact_of(after).prompts()}
    runs: dict[bool, list[Prompt]] = {}
    for taught in (False, True):
        for number in range(6):
            asked = WithPrompts(lm, prompts) if taught else lm
            result = await mails.arun(Mail(text=f"pay {number}"), lm=asked)
            if not taught or part == "fill":
                assert result.trace[-1] == Bill(amount=number)
        runs[taught], lm.prompts = lm.prompts, []

    (comparison,) = await compare(after.node, after, BILLS, lm=lm, graph=mails)

    assert (comparison.before.mean, comparison.after.mean, comparison.better) == (1.0, 1.0, False)
    assert len(runs[False]) == comparison.calls_before == 6
    assert comparison.calls_after == 12
    assert (comparison.tokens_before, comparison.tokens_after) == (6 * 110, 12 * 110)
    assert str(comparison).endswith("; 6 calls before, 12 after")
    assert all(prompt in lm.prompts for prompt in (*runs[False], *runs[True]))
    assert len(lm.prompts) == 18


async def test_a_fill_is_compared_by_itself_without_a_graph():
    (comparison,) = await compare(Bill, make_trained_predictor("fill"), BILLS, lm=Model(pays))

    assert (comparison.before.mean, comparison.after.mean) == (0.0, 1.0)
    assert (comparison.calls_before, comparison.calls_after) == (6, 6)


async def test_an_lm_without_one_call_steps_is_compared_by_single_parts():
    lm = Model(pays, one_call=False)

    (choice,) = await compare(Mail, make_trained_predictor("choice"), BILLS, lm=lm, graph=mails)
    (fill,) = await compare(Bill, make_trained_predictor("fill"), BILLS, lm=lm, graph=mails)

    assert [comparison.before.mean for comparison in (choice, fill)] == [0.0, 0.0]
    assert [comparison.after.mean for comparison in (choice, fill)] == [1.0, 1.0]
    assert {choice.calls_before, choice.calls_after, fill.calls_before, fill.calls_after} == {6}


def chooses(at_once: str, alone: str) -> Callable[[Prompt], Any]:
    """Chooses the one where a Bill can be made at once, and the other where it cannot."""

    def say(prompt: Prompt) -> Any:
        if prompt.question.target is not None:
            return pays(prompt)
        choice: dict[str, Any] = {"choice": at_once}
        if Bill not in prompt.question.fillable:
            choice["choice"] = alone
        amount = int(json.loads(prompt.text.split("\n\n", 1)[1])["Mail"]["text"].split()[1])
        made = {"Bill": {"amount": -amount - 1}, "Chat": {"topic": "?"}}
        if choice["choice"] in (cls.__name__ for cls in prompt.question.fillable):
            choice["fields"] = made[choice["choice"]]
        return {"answer": choice}

    return say


@pytest.mark.parametrize(
    ("at_once", "alone", "scores", "side"),
    [
        ("Bill", "Chat", (0.0, 0.0), "asked with the learned prompt"),
        ("Bill", "None", (0.0, 0.0), "asked with the learned prompt"),
        ("Chat", "Bill", (0.0, 1.0), "asked without it"),
        ("Chat", "Chat", (0.0, 1.0), ""),
        ("Bill", "Bill", (0.0, 1.0), ""),
    ],
)
async def test_a_fill_scores_zero_on_the_side_that_never_reaches_it(at_once, alone, scores, side):
    lm = Model(chooses(at_once, alone))
    heard: list[Progress] = []
    after = make_trained_predictor("fill")

    (comparison,) = await compare(Bill, after, BILLS, lm=lm, graph=mails, progress=heard.append)

    assert (comparison.before.mean, comparison.after.mean) == scores
    notes = [progress.note for progress in heard if progress.note]
    assert [note.startswith(f"{side}, the LM does not choose Bill") for note in notes] == (
        [True] if side else []
    )
    assert all("on 6 of 6 examples" in note for note in notes)
    if at_once == "Bill":  # then that is what a run comes to
        taught = WithPrompts(lm, {Bill: artifact_of(after).prompts()})
        result = await mails.arun(Mail(text="pay 3"), lm=taught)
        assert (result.trace[-1] == Bill(amount=3)) == bool(comparison.after.mean)


async def test_a_correct_choice_scores_even_if_its_fill_fails():
    def bills(prompt: Prompt) -> Any:
        if prompt.question.target is not None:
            return {"amount": "a lot"}
        choice = {"choice": "Bill", "fields": {"amount": "much"}}
        return {"answer": choice} if prompt.question.fillable else {"choice": "Bill"}

    lm = Model(bills, attempts=1)
    (comparison,) = await compare(Mail, make_trained_predictor("choice"), BILLS, lm=lm)

    assert (comparison.before.mean, comparison.after.mean) == (1.0, 1.0)
    assert (comparison.validity_before, comparison.validity_after) == (0.0, 0.0)
    assert (comparison.calls_before, comparison.calls_after) == (12, 18)


async def test_the_usage_of_a_comparison_includes_logged_answers(tmp_path):
    calls = tmp_path / "calls.sqlite"
    lm = Model(pays)
    twice = BILLS * 2  # so that equal questions meet under way, too
    comparisons = [
        await compare(
            Mail, make_trained_predictor("choice"), twice, lm=model, calls=calls, concurrency=8
        )
        for model in (lm, Model(pays))
    ]

    assert comparisons[0] == comparisons[1]
    assert (comparisons[1][0].calls_before, comparisons[1][0].calls_after) == (12, 24)
    assert comparisons[1][0].tokens_after == 24 * 110
    assert len(lm.prompts) == 18


async def test_a_prompt_refused_by_the_lm_scores_zero_with_a_note():
    def full(prompt: Prompt) -> Any:
        if prompt.examples:
            raise BaeLMError("the prompt is too long", code="bae-lm-context-exceeded")
        return pays(prompt)

    heard: list[Progress] = []
    (comparison,) = await compare(
        Bill,
        make_trained_predictor("fill"),
        BILLS,
        lm=Model(full),
        graph=mails,
        progress=heard.append,
    )

    assert (comparison.before.mean, comparison.after.mean, comparison.validity_after) == (
        1.0,
        0.0,
        0.0,
    )
    (note,) = (progress.note for progress in heard if progress.note)
    assert "with the learned prompt, the LM refused a prompt: the prompt is too long" in note


async def test_a_comparison_continues_after_a_judge_refuses_an_answer():
    def judges(prompt: Prompt) -> Any:
        if "-1" in prompt.text and '"amount":2' in prompt.text.replace(" ", ""):
            raise BaeLMError("not this one", code="bae-lm-request-refused", status=400)
        return {"reason": "near", "grade": "fair"}

    heard: list[Progress] = []
    (comparison,) = await compare(
        Bill,
        make_trained_predictor("fill"),
        BILLS,
        Judge(Model(judges)),
        lm=Model(pays),
        progress=heard.append,
    )

    assert [before for before, _ in comparison.scores] == [0.5, 0.5, 0.0, 0.5, 0.5, 0.5]
    (note,) = (progress.note for progress in heard if progress.note)
    assert note == "the judge's LM refused some answers, which count 0: not this one"


# --- an LM that is pinned to the class --------------------------------------------------------


pinned = Model(lambda prompt: {"stars": 5 if prompt.examples else 1})


class Meal(Node):
    dish: str

    async def __call__(self) -> Rated: ...


class Rated(Node):
    node_config = NodeConfig(lm=pinned)
    stars: int

    async def __call__(self) -> None: ...


async def test_a_class_with_its_own_lm_is_optimized_and_compared_with_that_lm():
    meals = [
        example
        for number in range(12)
        for example in trace_to_examples([Meal(dish=f"soup {number}"), Rated(stars=5)])
    ]
    other = Model(lambda prompt: {"stars": 5})

    learned = await aoptimize_node(Rated, meals, lm=other)
    (comparison,) = await compare(Rated, learned, meals, lm=other)

    assert other.prompts == []
    assert learned.made is not None
    assert (learned.made.model, learned.made.teacher) == ("stand-in", "stand-in")
    assert (comparison.before.mean, comparison.after.mean) == (0.0, 1.0)
