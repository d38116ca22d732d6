"""What metrics promise: a score from 0 to 1 whatever is compared, users' metrics in every form they
come in, and errors that say which answer to which example a metric could not judge."""

from __future__ import annotations

import asyncio
import math
import threading
from datetime import date
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, field_validator, model_validator

from bae import BaeError, BudgetError, Dep, Node
from bae.optimizer import Score, fields_metric
from bae.optimizer.metrics import metrics_for


class Size(Enum):
    SMALL = "S"
    LARGE = "L"


class Button(BaseModel):
    colour: str
    holes: int = 2


async def get_weather() -> str: ...


class Outfit(Node):
    weather: Annotated[str, Dep(get_weather)]
    top: str
    size: Size = Size.SMALL
    cut: Literal["slim fit", "loose fit"] = "slim fit"
    when: date | None = None
    price: Decimal = Decimal(0)
    warmth: float = 0.5
    layers: list[str] = []
    tags: set[str] = set()
    button: Button | None = None

    @field_validator("top")
    @classmethod
    def _no_hats(cls, top: str) -> str:
        if "hat" in top:
            raise ValueError("a hat is no top")
        return top

    async def __call__(self) -> None: ...


class AskBack(Node):
    question: str

    async def __call__(self) -> None: ...


class Waking(Node):
    message: str

    async def __call__(self) -> Outfit | AskBack | None: ...


def outfit(**fields: Any) -> Outfit:
    return Outfit(**{"weather": "rain", "top": "a linen shirt", **fields})


# --- metrics_for ------------------------------------------------------------------------------

FILL = {
    "source": {"Waking": {"message": "hi"}},
    "weather": "rain",
    "top": "a linen shirt",
    "size": "S",
    "when": "2024-01-02",
    "bae": {"run_id": "r7", "root": "r1", "corrected": []},
}
CHOICE = {"known": {"Waking": {"message": "hi"}}, "choice": "Outfit"}


async def test_the_default_metric_compares_fields_and_choices() -> None:
    fill, choice = metrics_for(Outfit, "fill", None), metrics_for(Waking, "choice", None)
    same = {"top": "a linen shirt", "size": "S", "when": "2024-01-02"}
    assert await fill(FILL, same) == Score(1.0)
    assert (await fill(FILL, {**same, "size": "L"})).value == pytest.approx(8 / 9)
    assert await choice(CHOICE, {"choice": "Outfit"}) == Score(1.0)
    assert await choice(CHOICE, {"choice": "AskBack"}) == Score(
        0.0, "AskBack was chosen, where Outfit was right"
    )
    assert (await choice({**CHOICE, "choice": "None"}, {"choice": "None"})).value == 1


async def test_missing_and_rejected_answers_score_zero() -> None:
    async def fond(expected: Outfit, given: Outfit) -> float:
        return 1.0

    for metric in (None, {Outfit: fond}, lambda example, prediction, trace: 1.0):
        fill = metrics_for(Outfit, "fill", metric)
        assert (await fill(FILL, None)).value == 0
        refused = await fill(FILL, {"top": "a hat", "size": "S"})
        assert refused.value == 0
        assert "a hat is no top" in refused.why
        assert (await fill(FILL, {"size": "S"})).value == 0
    choice = metrics_for(Waking, "choice", lambda example, prediction, trace: 1.0)
    assert (await choice(CHOICE, None)).value == 0
    assert (await choice(CHOICE, {"choice": "Elsewhere"})).value == 0
    assert (await choice(CHOICE, {})).value == 0


async def test_a_metric_by_node_type_gets_nodes_with_their_context() -> None:
    seen: list[tuple[Outfit, Outfit]] = []

    def by_price(expected: Outfit, given: Outfit) -> Score:
        seen.append((expected, given))
        return Score(0.25, "dear")

    fill = metrics_for(Outfit, "fill", {Outfit: by_price})
    assert await fill(FILL, {"top": "a coat", "price": "9.99"}) == Score(0.25, "dear")
    [(expected, given)] = seen
    assert expected == outfit(size=Size.SMALL, when=date(2024, 1, 2))
    assert given == outfit(top="a coat", price=Decimal("9.99"))
    # It is for fields alone; other classes are compared as ever.
    assert await metrics_for(Waking, "choice", {Waking: by_price})(CHOICE, {"choice": "Outfit"})
    other = metrics_for(AskBack, "fill", {Outfit: by_price})
    assert await other({"question": "what?"}, {"question": "what?"}) == Score(1.0)
    assert len(seen) == 1


async def test_a_node_built_by_an_lm_is_scored_without_validation() -> None:
    fill = metrics_for(Outfit, "fill", None)
    assert await fill(FILL, outfit(when=date(2024, 1, 2))) == Score(1.0)


async def test_unreadable_context_is_left_out() -> None:
    class Client:
        pass

    async def get_client() -> Client: ...

    class Order(Node):
        model_config = {"arbitrary_types_allowed": True}
        client: Annotated[Client, Dep(get_client)]
        stock: Annotated[int, Dep(get_weather)]
        amount: int

        @model_validator(mode="after")
        def _enough(self) -> Order:
            if self.amount > self.stock:
                raise ValueError("there are not so many")
            return self

        async def __call__(self) -> None: ...

    fill = metrics_for(Order, "fill", None)
    example = {"source": {}, "stock": "many", "amount": 3}
    assert await fill(example, {"amount": 3}) == Score(1.0)


async def test_a_scored_answer_is_validated_with_its_context() -> None:
    class Order(Node):
        stock: Annotated[int, Dep(get_weather)]
        amount: int

        @model_validator(mode="after")
        def _enough(self) -> Order:
            if self.amount > self.stock:
                raise ValueError("there are not so many")
            return self

        async def __call__(self) -> None: ...

    fill = metrics_for(Order, "fill", None)
    example = {"source": {}, "stock": 5, "amount": 3}
    assert "not so many" in (await fill(example, {"amount": 6})).why
    assert (await fill(example, {"amount": 4})).value == 0


async def test_an_example_that_does_not_fit_its_class_is_named_in_the_error() -> None:
    fill = metrics_for(Outfit, "fill", None)
    with pytest.raises(BaeError) as raised:
        await fill({**FILL, "size": "XXL"}, {"top": "shirt"}, index=4)
    assert raised.value.code == "bae-metric-example"
    assert "the fields of Outfit, example 4 (run r7)" in raised.value.message
    assert "size" in raised.value.message


@pytest.mark.parametrize("kind", ["def", "async def", "object"])
async def test_a_failing_metric_is_reported_with_node_part_and_example(kind: str) -> None:
    def failing(expected: Outfit, given: Outfit) -> float:
        raise KeyError("colour")

    async def failing_later(expected: Outfit, given: Outfit) -> float:
        await asyncio.sleep(0)
        raise KeyError("colour")

    class Failing:
        async def __call__(self, expected: Outfit, given: Outfit) -> float:
            raise KeyError("colour")

    metric: Any = {"def": failing, "async def": failing_later, "object": Failing()}[kind]
    with pytest.raises(BaeError) as raised:
        await metrics_for(Outfit, "fill", {Outfit: metric})(FILL, {"top": "shirt"}, index=12)
    error = raised.value
    assert error.code == "bae-metric-failed"
    assert "the fields of Outfit, example 12 (run r7)" in error.message
    assert isinstance(error.cause, KeyError)
    assert error.fix


async def test_bae_errors_pass_through_a_metric_unchanged() -> None:
    async def asking(expected: Outfit, given: Outfit) -> float:
        raise BudgetError("spent", limit="calls")

    with pytest.raises(BudgetError, match="spent"):
        await metrics_for(Outfit, "fill", {Outfit: asking})(FILL, {"top": "shirt"})


async def test_a_sync_metric_does_not_block_the_event_loop() -> None:
    loop_goes_on = threading.Event()

    def slow(expected: Outfit, given: Outfit) -> float:
        assert loop_goes_on.wait(10)
        return 1.0

    async def go_on() -> None:
        loop_goes_on.set()

    scoring = metrics_for(Outfit, "fill", {Outfit: slow})(FILL, {"top": "shirt"})
    score, _ = await asyncio.gather(scoring, go_on())
    assert score.value == 1


@pytest.mark.parametrize(
    "said", [True, 1, 1.0, Decimal(1), Fraction(1), Score(1.0), {"score": 1, "feedback": ""}]
)
async def test_every_form_of_a_score_is_accepted(said: Any) -> None:
    metric = metrics_for(Outfit, "fill", {Outfit: lambda expected, given: said})
    assert await metric(FILL, {"top": "shirt"}) == Score(1.0)


@pytest.mark.parametrize(
    "said", [None, "0.5", math.nan, math.inf, -0.1, 1.5, 10**400, Score(2.0), [1], {"points": 1}]
)
async def test_a_value_that_is_not_a_score_is_refused(said: Any) -> None:
    metric = metrics_for(Outfit, "fill", {Outfit: lambda expected, given: said})
    with pytest.raises(BaeError) as raised:
        await metric(FILL, {"top": "shirt"}, index=3)
    assert raised.value.code == "bae-metric-score"
    assert "the fields of Outfit, example 3" in raised.value.message
    assert "0 to 1" in str(raised.value.fix)


def test_an_object_that_is_not_a_metric_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="is no metric"):
        metrics_for(Outfit, "fill", "exact")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="by node class"):
        metrics_for(Outfit, "fill", {"Outfit": fields_metric})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="the metric for Outfit"):
        metrics_for(Outfit, "fill", {Outfit: 1})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="part='fil': give 'fill' or 'choice'"):
        metrics_for(Outfit, "fil")  # type: ignore[arg-type]


@pytest.mark.parametrize("part", ["fill", "choice"])
def test_a_metric_with_ambiguous_parameters_is_refused_with_a_fix(part: Any) -> None:
    for metric in (lambda expected, given: expected == given, lambda example: 1.0):
        with pytest.raises(TypeError, match=r"give \{NodeClass: function\}"):
            metrics_for(Waking, part, metric)


async def test_an_example_without_a_choice_is_named_in_the_error() -> None:
    with pytest.raises(BaeError, match="the choice after Waking, example 2: the example has no"):
        await metrics_for(Waking, "choice")({"known": {}}, {"choice": "Outfit"}, index=2)
