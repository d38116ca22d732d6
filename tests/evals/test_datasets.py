"""Datasets of pydantic-evals as cases of bae: from code and from files, with their evaluators run
on the results of real runs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from bae import BaeError, Dep, Graph, Node
from bae.evals import Case, cases_of, evaluate, load_cases
from bae.testing import ScriptedLM

pydantic_evals = pytest.importorskip("pydantic_evals")

from pydantic_evals import Case as Row  # noqa: E402
from pydantic_evals import Dataset  # noqa: E402
from pydantic_evals.evaluators import (  # noqa: E402
    ConfusionMatrixEvaluator,
    Contains,
    EqualsExpected,
    EvaluationReason,
    Evaluator,
    EvaluatorContext,
    HasMatchingSpan,
    IsInstance,
    MaxModelRequests,
)

pytestmark = pytest.mark.once


async def get_season() -> str:
    return "winter"


class Waking(Node):
    message: str

    async def __call__(self) -> Mood: ...


class Mood(Node):
    season: Annotated[str, Dep(get_season)]
    word: str
    strength: int = 1

    async def __call__(self) -> None: ...


class Asked(Node):
    question: str

    async def __call__(self) -> Reply: ...


class Reply(Node):
    text: str

    async def __call__(self) -> None: ...


class Said(BaseModel):
    message: str


class Expected(BaseModel):
    word: str


moods = Graph(start=Waking, end=Mood)
replies = Graph(start=Asked, end=Reply)


def lm(word: str = "calm", strength: int = 1) -> ScriptedLM:
    return ScriptedLM(
        {
            Mood: lambda asked: {"word": word, "strength": strength},
            Reply: lambda asked: {"text": word},
        }
    )


def dataset(*rows: Row[Any, Any, Any], evaluators: Any = ()) -> Dataset[Any, Any, Any]:
    return Dataset[Any, Any, Any](name="rows", cases=rows, evaluators=evaluators)


async def score_cases(
    graph: Graph[Any, Any], cases: list[Case], word: str = "calm", strength: int = 1
) -> list[tuple[float | None, str]]:
    evaluation = await evaluate(graph, cases, {"it": lm(word, strength)})
    return [(case_.score, case_.why) for case_ in evaluation.contenders[0].cases]


@pytest.mark.parametrize(
    "inputs", [{"message": "hi"}, Waking(message="hi"), Said(message="hi"), "hi"]
)
@pytest.mark.parametrize(
    "expected",
    [{"word": "calm"}, Mood(season="summer", word="calm", strength=1), Expected(word="calm")],
)
async def test_inputs_and_expected_outputs_are_accepted_in_every_form(
    inputs: Any, expected: Any
) -> None:
    [case] = cases_of(dataset(Row(inputs=inputs, expected_output=expected)), moods)
    assert case.name == "case 1"
    assert case.metric is None
    assert await score_cases(moods, [case]) == [(1.0, "")]
    [(score, why)] = await score_cases(moods, [case], "gloomy")
    assert score is not None
    assert score < 1
    assert "word" in why


async def test_a_plain_input_is_the_value_of_the_only_start_field() -> None:
    rows = [
        Row(name="one", inputs="who?", expected_output="me", metadata={"level": 1}),
        Row(inputs="b", metadata="hard"),
    ]
    cases = cases_of(dataset(*rows), replies)
    assert cases == [
        Case({"question": "who?"}, "one", {"text": "me"}, metadata={"level": 1}),
        Case({"question": "b"}, "case 2", metadata={"metadata": "hard"}),
    ]
    assert await score_cases(replies, cases, "me") == [(1.0, ""), (1.0, "")]


def test_all_invalid_cases_of_a_dataset_are_reported_together() -> None:
    rows = [
        Row(name="no input", inputs={"massage": "hi"}),
        Row(name="bare", inputs="hi", expected_output="calm"),
        Row(name="field", inputs="hi", expected_output={"mood": "calm"}),
        Row(name="type", inputs="hi", expected_output=Reply(text="no")),
        Row(name="fine", inputs="hi"),
        Row(name="case 8", inputs="hi"),
        Row(name="key", inputs="hi", metadata={1: "one"}),
        Row(inputs="hi"),
    ]
    with pytest.raises(BaeError) as raised:
        cases_of(dataset(*rows), moods)
    message = str(raised.value)
    assert raised.value.code == "bae-cases-invalid"
    assert "no input: input.massage" in message
    assert "bare: expected_output: give an object of the fields of Mood" in message
    assert "field: expected.mood" in message
    assert "type: expected_type" in message
    assert "fine" not in message
    assert "case 8: name: another case is called 'case 8' too" in message
    assert "key: metadata.1.[key]: Input should be a valid string" in message


# --- evaluators -------------------------------------------------------------------------------


@dataclass
class Strong(Evaluator[Any, Any, Any]):
    most: int = 4

    async def evaluate(self, ctx: EvaluatorContext[Any, Any, Any]) -> Any:
        return EvaluationReason(ctx.output.strength / self.most, "not at its strongest")


@dataclass
class Watching(Evaluator[Any, Any, Any]):
    seen: list[EvaluatorContext[Any, Any, Any]]

    def evaluate(self, ctx: EvaluatorContext[Any, Any, Any]) -> Any:
        self.seen.append(ctx)
        return {"label": "a label", "told": True}


async def test_evaluators_of_cases_and_datasets_have_equal_weight() -> None:
    rows = [
        Row(inputs="a", expected_output={"word": "calm"}, evaluators=(Strong(),)),
        Row(inputs="b", expected_output={"word": "gloomy"}),
    ]
    cases = cases_of(dataset(*rows, evaluators=[EqualsExpected()]), moods)
    scores_and_reasons = await score_cases(moods, cases, strength=3)
    assert scores_and_reasons[0] == ((1 + 0.75) / 2, "Strong: not at its strongest")
    assert scores_and_reasons[1] == (0.0, "EqualsExpected: 0")


async def test_an_evaluator_gets_the_real_output_and_the_usage_of_the_run() -> None:
    seen: list[EvaluatorContext[Any, Any, Any]] = []
    row = Row(name="n", inputs="hi", expected_output={"word": "calm"}, metadata={"level": 1})
    cases = cases_of(dataset(row, evaluators=[Watching(seen)]), moods)
    assert await score_cases(moods, cases) == [(1.0, "")]  # the label is no score
    [ctx] = seen
    assert (ctx.name, ctx.inputs, ctx.metadata) == ("n", "hi", {"level": 1})
    assert ctx.output == ctx.expected_output == Mood(season="winter", word="calm", strength=1)
    assert 0 < ctx.duration < 60
    assert ctx.metrics["requests"] == 1
    assert str(ctx.attributes["run_id"]).startswith("eval-")
    assert ctx.attributes["trace"] == ["Waking", "Mood"]


async def test_evaluators_receive_plain_values_if_the_dataset_has_plain_values() -> None:
    rows = [
        Row(inputs="a", expected_output="calm", evaluators=(EqualsExpected(),)),
        Row(inputs="b", evaluators=(Contains(value="alm"), IsInstance(type_name="str"))),
    ]
    cases = cases_of(dataset(*rows), replies)
    assert [score for score, _ in await score_cases(replies, cases)] == [1.0, 1.0]


async def test_span_and_report_evaluators_are_refused_by_name_before_the_first_run() -> None:
    requests = MaxModelRequests(max_requests=1)
    row = Row(name="n", inputs="a", evaluators=(requests,))
    whole = Dataset[Any, Any, Any](
        name="rows",
        cases=[row],
        evaluators=[HasMatchingSpan(query={"name_equals": "x"})],
        report_evaluators=[ConfusionMatrixEvaluator(predicted_from="output")],
    )

    with pytest.raises(BaeError) as raised:
        cases_of(whole, moods)

    assert raised.value.code == "bae-cases-invalid"
    for said in ("HasMatchingSpan: it looks at spans", "n: MaxModelRequests", "ConfusionMatrixE"):
        assert said in raised.value.message
    # Whoever scores by a metric of their own needs none of them.
    evaluation = await evaluate(
        moods, cases_of(whole, moods, own_metric=True), {"it": lm()}, metric=lambda *_: 0.5
    )
    assert evaluation.contenders[0].cases[0].score == 0.5


async def test_an_evaluator_that_raises_ends_the_evaluation_and_is_named() -> None:
    @dataclass
    class Spans(Evaluator[Any, Any, Any]):
        def evaluate(self, ctx: EvaluatorContext[Any, Any, Any]) -> bool:
            return ctx.span_tree.any({"name_equals": "x"})

    cases = cases_of(dataset(Row(name="n", inputs="a"), evaluators=[Spans()]), moods)
    with pytest.raises(BaeError, match="the case 'n': the evaluator Spans raised Span") as raised:
        await score_cases(moods, cases)
    assert raised.value.code == "bae-metric-failed"
    assert "bae records no spans" in str(raised.value)


async def test_an_evaluator_may_skip_a_case() -> None:
    rows = [
        Row(name="nothing", inputs="a"),
        Row(name="wrong", inputs="b", expected_output={"word": "gloomy"}),
        Row(name="others", inputs="c", evaluators=(Strong(),)),
    ]
    cases = cases_of(dataset(*rows, evaluators=[EqualsExpected()]), moods)

    evaluation = await evaluate(moods, cases, {"it": lm(strength=3)})

    assert [case_.score for case_ in evaluation.contenders[0].cases] == [1.0, 0.0, 0.75]
    assert (evaluation.complete, evaluation.metric_errors) == (True, 0)


@pytest.mark.parametrize(
    ("graph", "expected", "said"),
    [
        (moods, {"strength": "much"}, "n: expected.strength: Input should be a valid integer"),
        (moods, {"wrd": "calm"}, "n: expected.wrd: Mood has no such field, did you mean word?"),
        (replies, {"txt": "me"}, "n: expected.txt: Reply has no such field, did you mean text?"),
    ],
)
def test_unreachable_expected_outputs_are_refused_for_datasets_with_evaluators(
    graph: Graph[Any, Any], expected: Any, said: str
) -> None:
    row = Row(name="n", inputs="a", expected_output=expected)
    with pytest.raises(BaeError) as raised:
        cases_of(dataset(row, evaluators=[EqualsExpected()]), graph)
    assert raised.value.code == "bae-cases-invalid"
    assert said in raised.value.message


async def test_scores_outside_0_to_1_and_mere_labels_are_refused() -> None:
    @dataclass
    class Labels(Evaluator[Any, Any, Any]):
        def evaluate(self, ctx: EvaluatorContext[Any, Any, Any]) -> str:
            return "fine"

    for evaluator in (Strong(most=1), Labels()):
        cases = cases_of(dataset(Row(inputs="a"), evaluators=[evaluator]), moods)
        with pytest.raises(BaeError) as raised:
            await score_cases(moods, cases, strength=3)
        assert raised.value.code == "bae-metric-score"


@pytest.mark.parametrize("suffix", ["yaml", "json"])
async def test_a_dataset_file_of_pydantic_evals_is_read_with_its_evaluators(
    tmp_path: Path, suffix: str
) -> None:
    rows = dataset(
        Row(name="one", inputs={"message": "hi"}, expected_output={"word": "calm"}),
        Row(name="two", inputs="hi", expected_output={"word": "glad"}, evaluators=(Strong(),)),
        evaluators=[EqualsExpected()],
    )
    file = tmp_path / f"rows.{suffix}"
    rows.to_file(file, custom_evaluator_types=[Strong])
    cases = load_cases(file, moods, evaluators=[Strong])
    assert [case.name for case in cases] == ["one", "two"]
    assert [score for score, _ in await score_cases(moods, cases, strength=2)] == [1.0, 0.25]
    # With a metric of one's own, no evaluator need be there.
    with pytest.raises(BaeError, match="own_metric=True"):
        load_cases(file, moods)
    assert [case.metric for case in load_cases(file, moods, own_metric=True)] == [None, None]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("rows.yaml", "cases: [", "no dataset of pydantic-evals"),
        ("rows.yaml", "", "no dataset of pydantic-evals"),
        ("rows.json", '{"cases": [{"input": 1}]}', "no dataset of pydantic-evals"),
        ("rows.json", "\xff", "no dataset of pydantic-evals"),
        ("rows.yaml", "cases: [{inputs: a, evaluators: [Unknown]}]", "'Unknown'"),
        ("rows.yaml", "cases: [{inputs: a, expected_output: {mood: x}}]", "rows.yaml has cases"),
        ("gone.yaml", None, "cannot be read"),
    ],
)
def test_an_invalid_dataset_file_is_refused_by_name(
    tmp_path: Path, name: str, text: str | None, said: str
) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_bytes(text.encode("latin-1"))
    with pytest.raises(BaeError) as raised:
        load_cases(file, moods)
    assert raised.value.code == "bae-cases-invalid"
    assert name in str(raised.value)
    assert said in str(raised.value)
    assert raised.value.fix


def test_a_missing_package_is_an_error_with_its_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.yaml").write_text("cases: []")
    monkeypatch.setitem(sys.modules, "pydantic_evals", None)
    with pytest.raises(BaeError, match="needs the package pydantic_evals") as raised:
        load_cases(tmp_path / "rows.yaml", moods)
    assert "pip install '.[evals]' in a clone of bae" in str(raised.value)
