"""The questions for optimizing a node: each question once and as a run asks it, with the
corrections of people; questions that no LLM accepts, and teachers with useless answers."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import pytest

pytest.importorskip("dspy")
pytest.importorskip("optuna")
pytest.importorskip("gepa")

from bae import BaeLMError, Graph, Node, NodeConfig, Recall
from bae.journal import MemoryJournal
from bae.lm import Answer
from bae.optimizer import (
    OPTIONS,
    Improvement,
    aoptimize_node,
    examples_from,
    optimize_node,
    trace_to_examples,
)
from bae.optimizer.optimizers import OPTIMIZERS
from bae.optimizer.predictors import artifact_of
from bae.prompts.questions import SYSTEM
from toy_backend import ToyBackend
from wrong_by_design import CODES, COLOURS, HINT, SMALL, Coded, Parcel, fills, right_traces

pytestmark = pytest.mark.once


class Asked(Node):
    text: str

    async def __call__(self) -> Told: ...


class Told(Node):
    text: str

    async def __call__(self) -> None: ...


def make_example(asked: str, text: str, run: str, corrected: bool = False) -> Any:
    """The training example of a run with this question and this answer."""
    (example,) = trace_to_examples([Asked(text=asked), Told(text=text)])
    said = {"run_id": run, "root": run, "corrected": ["text"] if corrected else []}
    return example.copy(**said)


def list_demos(predictor: Any) -> list[tuple[str, str]]:
    """The questions and answers in the prompt of an optimized Told."""
    learned = artifact_of(predictor).fill
    assert learned is not None
    return [
        (example.known["Asked"]["text"], example.answer["text"]) for example in learned.examples
    ]


def always(text: str) -> ToyBackend:
    return ToyBackend(lambda prompt: {"text": text})


def data_of_prompt(prompt: Any) -> Any:
    return json.loads(prompt.text.split("\n\n", 1)[1])


def coding(right: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """A model that knows the code book where that is `right`; its instruction is the hint."""

    def say(prompt: Any) -> Any:
        if "code" not in prompt.schema["properties"]:
            return dict.fromkeys(prompt.schema["properties"], f"Write the code {HINT}")
        return {
            "code": CODES[data_of_prompt(prompt)["Parcel"]["colour"]] if right(prompt) else "??"
        }

    return say


# Equal questions


@pytest.mark.parametrize("teacher", ["wrong", "right"])
async def test_a_correction_is_learned_for_every_repetition_of_its_question(teacher):
    examples = [make_example("same", "wrong", f"run {n}") for n in range(11)]
    examples.insert(7, make_example("same", "right", "fork", corrected=True))

    optimized = await aoptimize_node(Told, examples, lm=always(teacher), minimum=1)

    assert list_demos(optimized) == [("same", "right")]
    assert (optimized.made.examples["fill"], optimized.made.questions["fill"]) == (12, 1)


async def test_an_answer_of_a_person_has_precedence_over_the_teacher():
    examples = [
        make_example(f"nr {n}", "it is a red one", f"run {n}", corrected=n == 3) for n in range(12)
    ]

    optimized = await aoptimize_node(
        Told,
        examples,
        lm=always("a red one"),
        accept=0.5,
        max_bootstrapped_demos=12,
        max_labeled_demos=12,
    )

    answers = dict(list_demos(optimized))
    assert answers.pop("nr 3") == "it is a red one"
    assert set(answers.values()) == {"a red one"}
    assert len(answers) == 11


async def test_a_repeated_question_is_learned_once_with_its_most_frequent_answer():
    answers = ["no", "yes", "yes", "no", "yes"]
    examples = [make_example(f"nr {n % 4}", answers[n // 4], f"run {n}") for n in range(20)]
    lm = always("something else")

    optimized = await aoptimize_node(Told, examples, lm=lm, minimum=4)

    assert sorted(list_demos(optimized)) == [(f"nr {n}", "yes") for n in range(4)]
    assert lm.calls == 4


async def test_ten_runs_of_one_question_give_one_training_question():
    lm = always("yes")
    examples = [make_example("same", "yes", f"run {n}") for n in range(10)]

    optimized = await aoptimize_node(Told, examples, lm=lm)

    assert optimized.is_fresh
    assert lm.calls == 0
    assert optimized.made.examples == {"fill": 10}
    assert optimized.made.notes == [
        "fill: there are 10 examples of 1 question, and learning needs 10 or more questions: "
        "the prompt stays as it is"
    ]
    more = [*examples, *(make_example(f"nr {n}", "yes", f"run {n}") for n in range(9))]
    assert not (await aoptimize_node(Told, more, lm=lm)).is_fresh


async def test_no_lm_is_needed_if_there_is_nothing_to_learn(monkeypatch):
    monkeypatch.setenv("BAE_LM", "no-such-lm")

    optimized = await aoptimize_node(Told, [make_example("nr 1", "yes", "run 1")])

    assert optimized.is_fresh
    assert (optimized.made.model, optimized.made.teacher) == ("", "")
    with pytest.raises(BaeLMError, match="no-such-lm"):
        await aoptimize_node(Told, [make_example("nr 1", "yes", "run 1")], minimum=1)


async def test_candidates_are_not_scored_on_their_training_runs():
    examples: list[Any] = []
    for run in range(6):
        for place, colour in enumerate(COLOURS):
            trace = [Parcel(colour=colour, weight=10 * run + place), Coded(code=CODES[colour])]
            first = trace_to_examples(trace)[0]
            examples.append(first.copy(run_id=f"run {run}", root=f"run {run}"))
    student = ToyBackend(coding(lambda prompt: False))
    teacher = ToyBackend(coding(lambda prompt: True))
    teacher.model = "teacher"

    await aoptimize_node(
        Coded, examples, lm=student, teacher=teacher, optimizer="miprov2", **SMALL["miprov2"]
    )

    scored = {data_of_prompt(prompt)["Parcel"]["weight"] // 10 for prompt in student.prompts}
    made = {
        data_of_prompt(prompt)["Parcel"]["weight"] // 10
        for prompt in teacher.prompts
        if code(prompt)
    }
    made |= {
        data_of_text(example.asked)["Parcel"]["weight"] // 10
        for prompt in student.prompts
        for example in prompt.examples
    }
    assert len(scored) == len(made) == 3
    assert not scored & made


def code(prompt: Any) -> bool:
    return "code" in prompt.schema["properties"]


def data_of_text(text: str) -> Any:
    return json.loads(text.split("\n\n", 1)[1])


class Start(Node):
    city: str

    async def __call__(self) -> Visit | Stop: ...


class Stop(Node):
    why: str

    async def __call__(self) -> Visit: ...


class Visit(Node):
    why: Annotated[str | None, Recall(Stop)] = None
    what: str

    async def __call__(self) -> None: ...


async def test_an_optimizer_omits_default_values_like_a_run():
    graph = Graph(start=Start)
    lm = ToyBackend(
        lambda prompt: {"choice": "Visit"} if prompt.name == "Choice" else {"what": "the tower"},
        one_call=False,
    )
    async with MemoryJournal() as journal:
        for number in range(12):
            await graph.arun(Start(city=str(number)), lm, journal=journal)
        run = {prompt.text for prompt in lm.prompts if prompt.name == "Visit"}
        examples = await examples_from(journal, graph)
    lm.prompts.clear()

    optimized = await aoptimize_node(Visit, examples, lm=lm)

    asked = [prompt for prompt in lm.prompts if prompt.name == "Visit"]
    assert asked
    assert {question_prompt.text for question_prompt in asked} <= run
    assert {example.asked for prompt in asked for example in prompt.examples} <= run
    learned = artifact_of(optimized).fill
    assert learned is not None
    assert len(learned.examples) == 8
    assert all(example.known.keys() == {"Start"} for example in learned.examples)


# Metrics and scores


async def test_a_dspy_metric_gets_a_trace_only_during_bootstrapping():
    traced: dict[str, set[bool]] = {"bootstrap": set(), "miprov2": set(), "gepa": set()}

    async def optimized(optimizer: str) -> None:
        def metric(example: Any, prediction: Any, trace: Any = None) -> Any:
            traced[optimizer].add(bool(trace))
            return example.code == prediction.code

        lm = ToyBackend(coding(lambda prompt: True))
        await aoptimize_node(
            Coded, fills(12), metric, lm=lm, optimizer=optimizer, **SMALL[optimizer]
        )

    for optimizer in OPTIMIZERS:
        await optimized(optimizer)
    assert traced == {"bootstrap": {True}, "miprov2": {True, False}, "gepa": {False}}


# Questions that are not taken


def too_long(prompt: Any) -> BaeLMError:
    return BaeLMError(
        f"the prompt has {len(prompt.examples)} examples too many", code="bae-lm-context-exceeded"
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
async def test_overlong_questions_do_not_end_an_optimization(optimizer):
    say = coding(lambda prompt: HINT in prompt.text)
    lm = ToyBackend(lambda prompt: too_long(prompt) if len(prompt.examples) > 2 else say(prompt))

    optimized = await aoptimize_node(Coded, fills(), lm=lm, optimizer=optimizer, **SMALL[optimizer])

    notes = optimized.made.notes
    assert len(optimized.fill.demos) <= 2  # what does not fit is not what was found
    if optimizer == "bootstrap":
        assert optimized.is_fresh
        assert "refused all 20 questions, so the prompt stays as it is" in notes[0]
        assert "lower max_labeled_demos" in notes[0]
    elif optimizer == "miprov2":
        assert any("the LM refused " in note for note in notes)
    else:
        assert HINT in optimized.fill.signature.instructions


async def test_a_refused_question_does_not_end_an_optimization():
    say = coding(lambda prompt: True)

    def picky(prompt: Any) -> Any:
        if data_of_prompt(prompt)["Parcel"]["weight"] in (3, 5):
            return BaeLMError("nothing about these", code="bae-lm-request-refused", status=400)
        if data_of_prompt(prompt)["Parcel"]["weight"] == 7:
            return Answer("I had rather not", stop="refused")
        return say(prompt)

    optimized = await aoptimize_node(
        Coded, fills(12), lm=ToyBackend(picky), max_bootstrapped_demos=12
    )

    assert optimized.made.notes[0] == (
        "fill: the LM refused 2 of 12 questions, which score 0: nothing about these"
    )
    assert len(optimized.fill.demos) == 9


@pytest.mark.parametrize(
    ("status", "said", "ends"),
    [
        (400, "Your credit balance is too low", True),
        (400, "prompt is too long: 210000 tokens > 200000 maximum", False),
        (400, "This model's maximum context length is 8192 tokens", False),
        (413, "no", False),
    ],
)
async def test_an_lm_that_refuses_every_question_ends_the_optimization(status, said, ends):
    lm = ToyBackend(
        lambda prompt: BaeLMError(said, code="bae-lm-request-refused", status=status, fix="pay")
    )
    if ends:
        with pytest.raises(BaeLMError, match="credit balance"):
            await aoptimize_node(Coded, fills(), lm=lm)
        assert lm.calls == 5
    else:
        optimized = await aoptimize_node(Coded, fills(), lm=lm)
        assert optimized.is_fresh
        assert said in optimized.made.notes[0]


async def test_a_teacher_without_proposals_leaves_the_instruction_unchanged():
    lm = ToyBackend(
        lambda prompt: {"code": "??"} if code(prompt) else too_long(prompt),
    )
    optimized = await aoptimize_node(
        Coded, fills(), lm=lm, optimizer="gepa", max_metric_calls=30, minimum=24
    )
    assert optimized.is_fresh
    assert "could not be asked for an instruction" in optimized.made.notes[0]


# Teachers


async def test_a_teacher_with_useless_answers_is_not_asked_again():
    examples = [make_example(f"nr {n}", f"a sunny day in {n}", f"run {n}") for n in range(40)]
    lm = always("a day")

    optimized = await aoptimize_node(Told, examples, lm=lm)

    assert lm.calls == 4 * OPTIONS["bootstrap"]["max_bootstrapped_demos"] + 4
    (note,) = optimized.made.notes
    assert note.startswith("fill: none of 20 answers of the teacher were good enough")
    assert "it takes a score of 1, and the best had 0." in note
    assert len(list_demos(optimized)) == 8

    more = always("a day")
    await aoptimize_node(Told, examples, lm=more, max_fruitless=3)
    assert more.calls == 4 + 3


async def test_a_further_round_shows_the_teacher_examples_in_another_order():
    lm = ToyBackend(coding(lambda prompt: False))

    await aoptimize_node(Coded, fills(10), lm=lm, max_rounds=3, max_fruitless=100)

    asked = [
        (prompt.text, tuple(example.asked for example in prompt.examples)) for prompt in lm.prompts
    ]
    assert len(asked) == 30
    assert len(set(asked)) == 30
    assert len({(text, frozenset(others)) for text, others in asked}) == 10


# What is given


async def test_traces_and_results_can_be_passed_as_training_examples():
    traces = right_traces(12)
    lm = ToyBackend(coding(lambda prompt: True))

    optimized = await aoptimize_node(Coded, traces, lm=lm)

    assert optimized.made.examples["fill"] == 12
    result = await Graph(start=Asked).arun(Asked(text="what"), always("that"), max_iters=4)
    optimized = await aoptimize_node(Told, [result], lm=always("that"), minimum=1)
    assert list_demos(optimized) == [("what", "that")]
    optimized = await aoptimize_node(Told, result, lm=always("that"), minimum=1)
    assert list_demos(optimized) == [("what", "that")]


@pytest.mark.parametrize("given", [["a"], [Told(text="x")], [{"text": "x"}], "abc", 3])
def test_a_wrong_trainset_is_refused(given: Any):
    with pytest.raises(TypeError, match="in the place of an example: give what examples_from"):
        optimize_node(Told, given, lm=always("x"))


@pytest.mark.parametrize("given", [int, Told(text="x"), "Told"])
def test_an_object_that_is_not_a_node_class_is_refused(given: Any):
    with pytest.raises(TypeError, match="give a node class"):
        optimize_node(given, [], lm=always("x"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"minimum": 0}, "minimum=0"),
        ({"concurrency": 1.5}, "concurrency=1.5"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**32}, "seed=4294967296"),
        ({"optimizer": "best"}, "'best': give one of bootstrap, miprov2, gepa"),
        ({"trials": 3}, "bootstrap: trials: .*; its options are max_bootstrapped_demos, "),
        ({"accept": 7}, "accept: .*less than or equal to 1"),
        ({"max_fruitless": 0}, "max_fruitless: .*greater than or equal to 1"),
        ({"optimizer": "gepa", "validation": 1}, "validation: .*less than 1"),
        ({"optimizer": "gepa", "candidate_selection_strategy": "x"}, "'pareto', 'current_best'"),
        ({"optimizer": "miprov2", "max_bootstrapped_demos": 0}, "max_bootstrapped_demos=0"),
    ],
)
def test_a_wrong_option_is_refused_before_any_call(given: Any, said: str):
    lm = always("x")
    with pytest.raises(ValueError, match=said):
        optimize_node(
            Told, [make_example(f"nr {n}", "x", f"run {n}") for n in range(12)], lm=lm, **given
        )
    assert lm.calls == 0


# Words of the user's


class Rated(Node):
    node_config = NodeConfig(instruction="Rate it.")
    code: str

    async def __call__(self) -> None: ...


class Rating(Node):
    colour: str

    async def __call__(self) -> Rated: ...


async def test_an_optimized_instruction_replaces_the_written_instruction(caplog):
    def say(prompt: Any) -> Any:
        if "code" not in prompt.schema["properties"]:
            return dict.fromkeys(prompt.schema["properties"], f"Write the code {HINT}")
        return {"code": "K1" if HINT in prompt.text else "??"}

    lm = ToyBackend(say)
    traces = [[Rating(colour=f"nr {n}"), Rated(code="K1")] for n in range(12)]
    graph = Graph(start=Rating, system="You keep the book.")
    optimized = await aoptimize_node(
        Rated, traces, lm=lm, optimizer="gepa", graph=graph, **SMALL["gepa"]
    )
    assert HINT in optimized.fill.signature.instructions
    assert "fill: its instruction replaces the one in NodeConfig" in optimized.made.notes
    assert optimized.made.system == "You keep the book."
    schema = artifact_of(optimized).schema_
    assert schema.words == {"instruction": "Rate it."}

    systems = {("code" in prompt.schema["properties"], prompt.system) for prompt in lm.prompts}
    assert systems == {(True, "You keep the book."), (False, SYSTEM)}


async def test_an_improvement_uses_the_system_text_of_its_graph(tmp_path):
    graph, journal = Graph(start=Rating, system="You keep the book."), MemoryJournal()
    for n in range(20):
        await graph.arun(Rating(colour=f"nr {n}"), ToyBackend({"code": "K1"}), journal=journal)
    teacher, student = ToyBackend(lambda _: {"code": "K1"}), ToyBackend(lambda _: {"code": "??"})
    improvement_result = await Improvement(
        graph, journal, tmp_path, lm=student, teacher=teacher
    ).run()
    assert improvement_result.done
    for lm in (teacher, student):
        assert {prompt.system for prompt in lm.prompts} == {"You keep the book."}


async def test_dspy_warnings_are_silenced_only_during_an_optimization():
    during: list[Any] = []
    examples = [make_example(f"nr {n}", "x", f"run {n}") for n in range(12)]

    def see(_: Any) -> None:
        during.append(list(warnings.filters))
        warnings.filterwarnings("ignore", message="mine")

    with warnings.catch_warnings():
        before = list(warnings.filters)
        await aoptimize_node(Told, examples, lm=always("x"), progress=see)
        mine, *rest = warnings.filters
    assert rest == before
    assert mine not in before
    assert any(len(filters) > len(before) + 1 for filters in during)


async def test_a_stop_iteration_in_an_optimizer_does_not_hang():
    from bae.optimizer.bridge import Bridge

    with pytest.raises(RuntimeError, match="raised StopIteration"):
        await Bridge().run(lambda: next(iter(())))
