"""What metrics promise: a score from 0 to 1 whatever is compared, and reasons that say what
differs."""

from __future__ import annotations

import math
import time
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr

from bae import Dep, Node
from bae.optimizer import Score, fields_metric, node_transition_metric


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

    async def __call__(self) -> None: ...


class AskBack(Node):
    question: str

    async def __call__(self) -> None: ...


class Waking(Node):
    message: str

    async def __call__(self) -> Outfit | AskBack | None: ...


def outfit(**fields: Any) -> Outfit:
    return Outfit(**{"weather": "rain", "top": "a linen shirt", **fields})


# --- how alike values are ---------------------------------------------------------------------


def likeness(expected: Any, given: Any) -> float:
    return fields_metric({"value": expected}, {"value": given}).value


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from([0.5, -1.5, 2.0, 1e300, math.inf])
    | st.text("ab C!", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(one=JSON, other=JSON)
def test_likeness_is_symmetric_and_between_0_and_1(one: Any, other: Any) -> None:
    score = likeness(one, other)
    assert 0 <= score <= 1
    assert score == pytest.approx(likeness(other, one))
    assert likeness(one, one) == 1


@pytest.mark.parametrize(
    ("expected", "given", "score"),
    [
        ("A linen shirt", "a linen shirt!", 1),
        ("a linen shirt", "a shirt", 0.8),
        ("shirt", "trousers", 0),
        ("", "", 1),
        ("", "shirt", 0),
        ("  ", "", 1),
        ("?!", "?!", 1),
        ("?!", "!?", 0),
        ("it costs 3.5", "it costs 35", 2 / 3),
        ("-5", "5", 0),
        ("Straße", "STRASSE", 1),
        ("naïve", "nai\u0308ve", 1),
        ("大きい犬", "大きい猫", 0.75),
        ("the the the", "the", 0.5),
        ("1,000", "1000", 0),
        ("dog bites man", "man bites dog", 1),
    ],
)
def test_text_is_compared_by_token_f1(expected: str, given: str, score: float) -> None:
    assert likeness(expected, given) == pytest.approx(score)


def test_long_texts_and_lists_are_compared_quickly() -> None:
    text = "The quick brown fox, 3.5 jumps! " * 6000
    names = [f"name {n}" for n in range(3000)]
    began = time.process_time()
    assert 0.99 < likeness(text, text + " more") < 1
    assert likeness(names, [*names[:-1], "other"]) == pytest.approx(2999 / 3000)
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize(
    ("one", "other", "score"),
    [
        (1, 1.0, 1),
        (0.1 + 0.2, 0.3, 1),
        (True, 1, 0),
        (Decimal("1.50"), Decimal("1.5"), 1),
        (None, 0, 0),
        ([], [], 1),
        ([1, 2], [2, 1], 0.5),
        ([1, 2, 3], [0, 1, 2, 3], 0.75),
        (["a b", "c"], ["x", "a", "c"], (2 / 3 + 1) / 3),
        ([[1, 2], [3]], [[1], [3]], 0.75),
        ((1, 2), [1, 2], 1),
        ({"a", "b"}, {"b", "c"}, 0.5),
        (set(), set(), 1),
        ({"x": 1}, {"x": 1, "y": None}, 1),
        ({"x": 1}, {"x": 1, "y": 2}, 0.5),
        (Button(colour="red"), Button(colour="red", holes=4), 0.5),
        (Button(colour="red"), {"colour": "red", "holes": 2}, 1),
        (Size.SMALL, "S", 1),
        (Size.SMALL, Size.LARGE, 0),
        (date(2024, 1, 2), date(2024, 1, 3), 0),
        ("red", ["red"], 0),
    ],
)
def test_each_type_of_value_has_its_own_comparison(one: Any, other: Any, score: float) -> None:
    assert likeness(one, other) == pytest.approx(score)
    assert likeness(other, one) == pytest.approx(score)


def test_labels_and_models_of_different_classes_have_no_partial_score() -> None:
    class Sent(Node):
        sizes: list[Literal["very big", "very small"]] = []

        async def __call__(self) -> None: ...

    class Patch(BaseModel):
        colour: str
        holes: int = 2

    assert fields_metric({"sizes": ["very big"]}, Sent(sizes=["very small"])).value == 0
    assert fields_metric({"cut": outfit().cut}, outfit(cut="loose fit")).value == 0
    assert likeness(Button(colour="red"), Patch(colour="red")) == 0


# --- fields_metric ----------------------------------------------------------------------------


def test_the_score_is_the_mean_over_filled_fields_and_names_the_differing_fields() -> None:
    score = fields_metric(outfit(weather="sun"), outfit(top="a shirt", size="L", warmth=0.5))
    assert score.value == pytest.approx((0.8 + 0 + 7) / 9)
    assert "top: 'a shirt', where 'a linen shirt' was expected" in score.why
    assert "size" in score.why
    assert "weather" not in score.why  # nobody fills it
    assert fields_metric(outfit(), outfit()) == Score(1.0)
    other = fields_metric(outfit(), AskBack(question="what?"))
    assert other == Score(0.0, "AskBack, where Outfit was expected")


def test_a_mapping_is_validated_by_the_class_before_it_is_compared() -> None:
    said = {"size": "S", "when": "2024-01-02", "price": "3.10", "tags": ["b", "a", "b"]}
    node = outfit(when=date(2024, 1, 2), price=Decimal("3.1"), tags={"a", "b"}, top="anything")
    assert fields_metric(said, node) == Score(1.0)
    assert fields_metric(node, {**said, "top": "anything", "weather": "?"}) == Score(1.0)
    assert fields_metric({"button": {"colour": "red"}}, outfit(button={"colour": "red"})).value == 1
    assert fields_metric({"when": "no date"}, node).value == 0


def test_two_mappings_are_compared_by_the_expected_keys() -> None:
    assert fields_metric({"a": 1}, {"a": 1, "b": 2}).value == 1
    assert fields_metric({"a": 1, "b": None}, {"a": 1}).value == 1
    assert fields_metric({"a": 1, "b": 2}, {"a": 1}).value == 0.5
    assert fields_metric({}, {"a": 1}).value == 1


def test_a_secret_is_compared_and_not_quoted() -> None:
    class Login(Node):
        token: SecretStr
        pin: str = Field(repr=False)

        async def __call__(self) -> None: ...

    score = fields_metric(Login(token="aaa", pin="123"), Login(token="bbb", pin="456"))
    assert score == Score(0.0, "token differs; pin differs")


# --- node_transition_metric -------------------------------------------------------------------


@pytest.mark.parametrize(
    "prediction",
    [
        {"next_node_type": "Outfit"},
        {"choice": "Outfit"},
        {"next_node_type": Outfit},
        "Outfit",
        " Outfit\n",
        Outfit,
        outfit(),
    ],
)
def test_a_correct_transition_is_recognized_in_every_form(prediction: Any) -> None:
    example = {"message": "hi", "node_type": "Waking", "next_node_type": "Outfit"}
    other = {**example, "next_node_type": "AskBack"}
    for told, right in ((example, True), (other, False)):
        assert repr(node_transition_metric(told, prediction)) == repr(float(right))
        assert node_transition_metric(told, prediction, trace=[]) is right


def test_a_transition_to_none_differs_from_an_unreadable_answer() -> None:
    for prediction in (None, type(None), "None", {"choice": "None"}):
        assert node_transition_metric({"next_node_type": "None"}, prediction) == 1.0
        assert node_transition_metric({"next_node_type": "Outfit"}, prediction) == 0.0
    for unread in ({"choice": None}, {"next_node_type": None}):
        assert node_transition_metric({"next_node_type": "None"}, unread) == 0.0
        assert node_transition_metric({"next_node_type": None}, unread, trace=[]) is False
        assert node_transition_metric({"choice": "Outfit"}, {**unread, "choice": "Outfit"}) == 1.0


def test_an_empty_prediction_is_wrong_and_an_empty_example_is_refused() -> None:
    assert node_transition_metric({"choice": "Outfit"}, {"reason": "?"}) == 0.0
    assert node_transition_metric({"choice": "Outfit"}, 3) == 0.0
    with pytest.raises(ValueError, match="trace_to_examples"):
        node_transition_metric({"top": "shirt"}, "Outfit")
