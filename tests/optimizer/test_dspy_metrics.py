"""Metrics in DSPy's manner: what they are given for a choice and for filled fields, and whatever
they may return."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from bae import BaeError, Dep, Node
from bae.optimizer import Score, fields_metric, node_transition_metric, trace_to_examples
from bae.optimizer.examples import choice_examples, fill_examples
from bae.optimizer.metrics import metrics_for

dspy = pytest.importorskip("dspy")

pytestmark = pytest.mark.once


async def get_stock() -> int: ...


class Asking(Node):
    message: str

    async def __call__(self) -> Order | Refusal: ...


class Order(Node):
    stock: Annotated[int, Dep(get_stock)]
    amount: int
    config: str = ""

    async def __call__(self) -> None: ...


class Refusal(Node):
    reason: str

    async def __call__(self) -> None: ...


TRACE = [Asking(message="three, please"), Order(stock=5, amount=3, config="gift")]


def examples() -> tuple[Any, Any]:
    examples = trace_to_examples(TRACE)
    [fill] = fill_examples(Order, examples)
    [choice] = choice_examples(Asking, examples)
    return fill, choice


@pytest.mark.parametrize("metric", [node_transition_metric, fields_metric])
async def test_a_built_in_metric_scores_fills_or_choices(metric: Any) -> None:
    fill, choice = examples()
    answer = {"amount": 4, "config": "gift"}
    assert (await metrics_for(Order, "fill", metric)(fill, answer)).value == 0.5
    assert (await metrics_for(Asking, "choice", metric)(choice, {"choice": "Refusal"})).value == 0


async def test_a_metric_gets_typed_fields_by_their_signature_names() -> None:
    seen: list[Any] = []

    def metric(example: Any, prediction: Any, trace: Any = None) -> float:
        seen.append((example, prediction, trace))
        return 1 - abs(example.amount - prediction.amount) / 10

    fill, _ = examples()
    score = await metrics_for(Order, "fill", metric)(fill, {"amount": 5, "config": "x"})
    assert score.value == pytest.approx(0.8)
    [(example, prediction, trace)] = seen
    assert isinstance(example, dspy.Example)
    assert isinstance(prediction, dspy.Prediction)
    assert trace is None
    assert (example.stock, example.config_, prediction.config_) == (5, "gift", "x")
    assert dict(example.inputs()) == dict(fill.inputs())


async def test_fields_with_names_reserved_by_examples_are_scored() -> None:
    class Odd(Node):
        bae: str
        config: str
        config_: str

        async def __call__(self) -> None: ...

    class Even(Node):
        async def __call__(self) -> Odd: ...

    answer = {"bae": "a", "config": "b", "config_": "c"}
    [fill] = fill_examples(Odd, trace_to_examples([Even(), Odd(**answer)]))
    score = metrics_for(Odd, "fill")
    assert (await score(fill, answer)).value == 1
    assert [(await score(fill, {**answer, name: "?"})).value for name in answer] == [
        pytest.approx(2 / 3)
    ] * 3


async def test_a_metric_gets_the_choice_under_both_its_names() -> None:
    def metric(example: Any, prediction: Any, trace: Any = None) -> bool:
        assert example.node_type == "Asking"
        assert prediction.choice == prediction.next_node_type
        return example.next_node_type == prediction.next_node_type

    _, choice = examples()
    score = metrics_for(Asking, "choice", metric)
    assert (await score(choice, {"choice": "Order"})).value == 1
    assert (await score(choice, {"choice": "Refusal"})).value == 0


async def test_the_trace_of_a_bootstrap_is_passed_on() -> None:
    def strict(example: Any, prediction: Any, trace: Any = None) -> float | bool:
        close = 0.5
        return close if trace is None else close == 1

    fill, _ = examples()
    score = metrics_for(Order, "fill", strict)
    assert (await score(fill, {"amount": 1})).value == 0.5
    assert (await score(fill, {"amount": 1}, trace=[])).value == 0


async def test_metrics_with_three_or_five_parameters_get_all_arguments() -> None:
    async def three(example: Any, prediction: Any, trace: Any) -> float:
        return 0.3

    def five(gold: Any, pred: Any, trace: Any, pred_name: Any, pred_trace: Any) -> Any:
        assert (trace, pred_name, pred_trace) == (None, None, None)
        return dspy.Prediction(score=0.5, feedback="shorter, please")

    fill, _ = examples()
    assert (await metrics_for(Order, "fill", three)(fill, {"amount": 3})).value == 0.3
    score = await metrics_for(Order, "fill", five)(fill, {"amount": 3})
    assert score == Score(0.5, "shorter, please")


async def test_numpy_numbers_are_accepted_as_scores() -> None:
    numpy = pytest.importorskip("numpy")
    fill, _ = examples()
    for said in (numpy.float32(0.5), numpy.float64(0.5), numpy.mean([0, 1])):
        metric = metrics_for(Order, "fill", lambda *given, said=said: said)
        assert (await metric(fill, {"amount": 3})).value == 0.5
    truth = metrics_for(Order, "fill", lambda *given: numpy.bool_(True))
    assert (await truth(fill, {"amount": 3})).value == 1


async def test_the_error_of_a_metric_for_the_wrong_part_has_a_fix() -> None:
    def for_choices(example: Any, prediction: Any, trace: Any = None) -> bool:
        return example.choice == prediction.choice

    fill, _ = examples()
    with pytest.raises(BaeError) as raised:
        await metrics_for(Order, "fill", for_choices)(fill, {"amount": 3}, index=0)
    assert raised.value.code == "bae-metric-failed"
    assert "the fields of Order, example 0" in raised.value.message
    assert "{NodeClass: function of (expected, given)}" in str(raised.value.fix)


@pytest.mark.parametrize("as_example", [True, False])
async def test_a_function_can_compare_the_fields_of_its_example_and_prediction(
    as_example: bool,
) -> None:
    def metric(example: Any, prediction: Any, trace: Any = None) -> Score:
        return fields_metric(example, prediction)

    fill, _ = examples()
    score = metrics_for(Order, "fill", metric)
    given = fill if as_example else dict(fill)
    assert await score(given, {"amount": 3, "config": "gift"}) == Score(1.0)
    assert (await score(given, {"amount": 4, "config": "gift"})).value == 0.5
