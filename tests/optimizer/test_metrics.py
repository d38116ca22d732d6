"""What metrics promise: a score from 0 to 1 whatever is compared, users' metrics in every form they
come in, and errors that say which answer to which example a metric could not judge."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import threading
import time
from datetime import date
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr, field_validator, model_validator

from bae import BaeError, BudgetError, Dep, Node
from bae.optimizer import (
    Score,
    fields_metric,
    metrics_for,
    node_transition_metric,
)
from bae.optimizer.likeness import likeness
from bae.optimizer.word_likeness import text_likeness, words


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


# --- how alike values are ---------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from([0.5, -1.5, 2.0, 1e300, math.inf])  # rounding has a test of its own
    | st.text("ab C!", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(derandomize=True, max_examples=120, deadline=None)
@given(one=JSON, other=JSON)
def test_likeness_is_from_0_to_1_and_does_not_ask_which_came_first(one: Any, other: Any) -> None:
    found = likeness(one, other)
    assert 0 <= found <= 1
    assert found == likeness(other, one)
    assert likeness(one, one) == 1


def normal(value: Any) -> Any:
    """A JSON value without what likeness does not look at, worked out in another way."""
    match value:
        case bool() | None:
            return repr(value)
        case int() | float():
            return ("number", float(value))
        case str():
            letters = "".join(c if c.isalnum() else " " for c in value.lower())
            said = letters.split()
            return ("text", said, "" if said else value.strip())
        case list():
            return ["list", *map(normal, value)]
        case dict():
            return {k: normal(v) for k, v in value.items() if v is not None}


@settings(derandomize=True, max_examples=150, deadline=None)
@given(one=JSON, data=st.data())
def test_values_are_wholly_alike_when_they_are_equal_and_only_then(
    one: Any, data: st.DataObject
) -> None:
    other = data.draw(JSON | st.just(one))
    assert (likeness(one, other) == 1) == (normal(one) == normal(other))


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
        ("don't", "don’t", 1),
        ("5 €", "5 $", 0.5),
        ("ok 👍", "ok 👎", 0.5),
        ("Straße", "STRASSE", 1),
        ("ｆｕｌｌ", "full", 1),
        ("naïve", "nai\u0308ve", 1),
        ("大きい犬", "大きい猫", 0.75),
        ("東京タワー", "京都タワー", 0.8),
        ("किताब", "किताब है", 2 / 3),
        ("the the the", "the", 0.5),
        ("1,000", "1000", 1),
        ("-1,234,567.5", "-1234567.5", 1),
        ("1,00", "100", 0),
        ("1.5", "1,5", 0),
        ("½ cup", "1/2 cup", 1),
        ("10–20", "10-20", 1),
        ("co\u00adoperate", "cooperate", 1),
        ("❤️", "❤", 1),
        ("ภาษาไทย", "ภาษา", 8 / 11),
        ("犬abc猫", "犬 abc 猫", 1),
        ("the dogs' 'bone'", "The dogs bone", 1),
    ],
)
def test_text_is_compared_by_its_words_in_any_script(
    expected: str, given: str, score: float
) -> None:
    assert text_likeness(expected, given) == pytest.approx(score)


@pytest.mark.parametrize(
    ("expected", "given", "score"),
    [
        ("2024-01-02", "2024-02-01", 0),
        ("at 10:30", "at 30:10", 0.5),
        ("1/2", "2/1", 0),
        ("C#", "C", 2 / 3),
        ("50%", "50", 2 / 3),
        ("#1", "1", 2 / 3),
        ("AB-12", "12-AB", 0.5),
        ("dog bites man", "man bites dog", 2 / 3),
        ("$5", "5$", 0.5),
        ("犬人", "人犬", 0.5),
    ],
)
def test_texts_that_say_something_else_are_less_than_alike(
    expected: str, given: str, score: float
) -> None:
    assert text_likeness(expected, given) == pytest.approx(score)
    assert text_likeness(given, expected) == pytest.approx(score)
    assert fields_metric({"said": expected}, {"said": given}).why


def test_words_keep_numbers_whole_and_lose_punctuation() -> None:
    assert words("Pay -3.50 (or 1,000), OK? a_b — 2024-05-01, # 3 C# 5 % 3-day") == [
        *("pay", "-3.50", "or", "1000", "ok", "a_b", "2024-05-01"),
        *("3", "c", "#", "5", "%", "3", "day"),
    ]


def test_long_texts_are_compared_in_a_moment() -> None:
    for said in ("The quick brown fox, 3.5 jumps! ", "größer, 大きい "):
        text = said * (200_000 // len(said))
        began = time.process_time()
        assert 0.99 < text_likeness(text, text + " more") < 1
        assert time.process_time() - began < 1.0


@settings(derandomize=True, max_examples=100, deadline=None)
@given(text=st.text(max_size=30))
def test_any_text_is_like_itself_in_other_letters_and_spaces(text: str) -> None:
    assert text_likeness(text, f"  {text}\n") == 1
    assert all(word and not word.isspace() for word in words(text))


@pytest.mark.parametrize(
    ("one", "other", "score"),
    [
        (1, 1.0, 1),
        (0.1 + 0.2, 0.3, 1),
        (10**400, 10**400 + 1, 0),
        (10**400, 1.0, 0),
        (True, 1, 0),
        (math.nan, math.nan, 1),
        (Decimal("1.50"), Decimal("1.5"), 1),
        (Decimal("1.5"), 1.5, 1),
        (Fraction(1, 3), 1 / 3, 1),
        (None, 0, 0),
        (None, "", 0),
        ([], [], 1),
        ([1, 2], [1, 2, 3], 2 / 3),
        ([1, 2], [2, 1], 0.5),
        ([1, 2, 3], [0, 1, 2, 3], 0.75),
        (["a", "b", "c", "d"], ["b", "c", "d"], 0.75),
        (["a", "b", "c", "d"], ["a", "b", "x", "c", "d"], 0.8),
        (["a b", "c"], ["x", "a", "c"], (2 / 3 + 1) / 3),
        ([[1, 2], [3]], [[1], [3]], 0.75),
        ([], [1], 0),
        ((1, 2), [1, 2], 1),
        ({"a", "b"}, {"B", "c"}, 0.5),
        ({"dog bites man"}, {"man bites dog"}, 0),
        ({Size.SMALL, Size.LARGE}, {"S"}, 2 / 3),
        ({True}, {1}, 0),
        (set(), set(), 1),
        ({1, 2}, frozenset({2, 1}), 1),
        ({"x": 1}, {"x": 1, "y": None}, 1),
        ({"x": 1}, {"x": 1, "y": 2}, 0.5),
        (Button(colour="red"), Button(colour="red", holes=4), 0.5),
        (Button(colour="red"), {"colour": "red", "holes": 2}, 1),
        (Size.SMALL, "S", 1),
        (Size.SMALL, Size.LARGE, 0),
        (date(2024, 1, 2), date(2024, 1, 2), 1),
        (date(2024, 1, 2), date(2024, 1, 3), 0),
        ("red", ["red"], 0),
        (b"x", b"x", 1),
    ],
)
def test_values_of_each_kind_are_compared_as_that_kind_is(
    one: Any, other: Any, score: float
) -> None:
    assert likeness(one, other) == pytest.approx(score)
    assert likeness(other, one) == pytest.approx(score)


def test_tuples_with_a_type_for_each_place_are_compared_by_place() -> None:
    assert likeness((1, 2), (2, 1), tuple[int, int]) == 0
    assert likeness((1, 2, 3), (2, 3), tuple[int, ...]) == pytest.approx(2 / 3)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(data=st.data())
def test_lists_are_aligned_as_well_as_they_can_be(data: st.DataObject) -> None:
    items = st.lists(st.sampled_from(["a", "a b", "b c", "c"]), min_size=1, max_size=4)
    one, other = data.draw(items), data.draw(items)

    def most(i: int, j: int) -> float:
        if i == len(one) or j == len(other):
            return 0.0
        both = likeness(one[i], other[j]) + most(i + 1, j + 1)
        return max(both, most(i + 1, j), most(i, j + 1))

    assert likeness(one, other) == pytest.approx(most(0, 0) / max(len(one), len(other)))


def test_long_lists_are_aligned_in_a_moment_too() -> None:
    names = [f"name {n}" for n in range(3000)]
    began = time.process_time()
    assert likeness(names, names[1:]) == pytest.approx(2999 / 3000)
    assert likeness(names, ["new", *names[:1500], *names[1501:]]) == pytest.approx(
        2999.5 / 3000, abs=2e-4
    )
    assert likeness(names, [f"other {n}" for n in range(9000)]) < 0.4
    assert time.process_time() - began < 3.0


def test_labels_in_sets_and_lists_are_right_or_wrong_too() -> None:
    class Sent(Node):
        to: set[Literal["US", "us"]] = set()
        by: frozenset[Literal["by air", "air by"] | None] = frozenset()
        sizes: list[Literal["very big", "very small"]] = []

        async def __call__(self) -> None: ...

    assert fields_metric({"to": ["US"]}, Sent(to={"us"})).value == 0
    assert fields_metric({"to": ["US"]}, Sent(to={"US"})).value == 1
    assert fields_metric({"by": ["by air"]}, Sent(by=frozenset({"air by"}))).value == 0
    assert fields_metric({"sizes": ["very big"]}, Sent(sizes=["very small"])).value == 0


def test_two_models_of_different_classes_are_different_things() -> None:
    class Patch(BaseModel):
        colour: str
        holes: int = 2

    assert likeness(Button(colour="red"), Patch(colour="red")) == 0


def test_a_value_that_cannot_be_compared_is_like_none() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no")

        __hash__ = None  # type: ignore[assignment]

    odd = Odd()
    assert likeness(odd, Odd()) == 0
    assert likeness(odd, odd) == 1


# --- fields_metric ----------------------------------------------------------------------------


def test_equal_nodes_score_one_without_a_word() -> None:
    assert fields_metric(outfit(), outfit()) == Score(1.0)


def test_the_score_is_the_mean_over_filled_fields_and_says_which_differ() -> None:
    score = fields_metric(outfit(weather="sun"), outfit(top="a shirt", size="L", warmth=0.5))
    assert score.value == pytest.approx((0.8 + 0 + 7) / 9)
    assert "top: 'a shirt', where 'a linen shirt' was expected" in score.why
    assert "size" in score.why
    assert "weather" not in score.why  # nobody fills it


def test_labels_are_right_or_wrong_though_they_share_words() -> None:
    score = fields_metric(outfit(), outfit(cut="loose fit"), fields=["cut"])
    assert score.value == 0


def test_a_mapping_is_read_as_the_class_takes_it_and_only_its_fields_count() -> None:
    said = {"size": "S", "when": "2024-01-02", "price": "3.10", "tags": ["b", "a", "b"]}
    node = outfit(when=date(2024, 1, 2), price=Decimal("3.1"), tags={"a", "b"}, top="anything")
    assert fields_metric(said, node) == Score(1.0)
    assert fields_metric(node, {**said, "top": "anything", "weather": "?"}) == Score(1.0)
    assert fields_metric({"button": {"colour": "red"}}, outfit(button={"colour": "red"})).value == 1
    assert fields_metric({"when": "no date"}, node).value == 0


def test_python_values_in_a_mapping_serve_as_well() -> None:
    said = {"size": Size.LARGE, "when": date(2024, 1, 2), "button": Button(colour="red")}
    node = outfit(size="L", when="2024-01-02", button={"colour": "red"})
    assert fields_metric(said, node) == Score(1.0)


def test_two_mappings_are_compared_by_what_is_expected() -> None:
    assert fields_metric({"a": 1}, {"a": 1, "b": 2}).value == 1
    assert fields_metric({"a": 1, "b": None}, {"a": 1}).value == 1
    assert fields_metric({"a": 1, "b": 2}, {"a": 1}).value == 0.5
    assert fields_metric({}, {"a": 1}).value == 1


def test_a_node_of_another_class_scores_nothing() -> None:
    score = fields_metric(outfit(), AskBack(question="what?"))
    assert score == Score(0.0, "a AskBack, where an Outfit was expected")


def test_a_secret_is_compared_and_not_quoted() -> None:
    class Login(Node):
        token: SecretStr
        pin: str = Field(repr=False)

        async def __call__(self) -> None: ...

    score = fields_metric(Login(token="aaa", pin="123"), Login(token="bbb", pin="456"))
    assert score == Score(0.0, "token differs; pin differs")


def test_long_values_are_cut_where_they_are_quoted() -> None:
    assert len(fields_metric({"a": "x" * 10_000}, {"a": "y" * 10_000}).why) < 400


def test_a_field_that_is_asked_for_by_a_wrong_name_is_refused() -> None:
    with pytest.raises(ValueError, match="no field 'topp'; it has weather, top"):
        fields_metric(outfit(), outfit(), fields=["topp"])
    with pytest.raises(TypeError, match="list of names"):
        fields_metric(outfit(), outfit(), fields="top")
    with pytest.raises(ValueError, match="no field 'z'; it has x, y"):
        fields_metric({"x": 1}, {"x": 1, "y": 2}, fields=["x", "z"])
    assert fields_metric({"x": 1}, {"x": 1, "y": 2}, fields=["y"]).value == 0


@pytest.mark.parametrize("wrong", [None, "top", 3])
def test_what_has_no_fields_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"given=.*: give a node or a mapping"):
        fields_metric(outfit(), wrong)
    with pytest.raises(TypeError, match=r"expected=.*: give a node or a mapping"):
        fields_metric(wrong, {})


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
def test_a_transition_is_right_in_whatever_form_it_comes(prediction: Any) -> None:
    example = {"message": "hi", "node_type": "Waking", "next_node_type": "Outfit"}
    assert node_transition_metric(example, prediction) == 1.0
    assert type(node_transition_metric(example, prediction)) is float
    assert node_transition_metric(example, prediction, trace=[]) is True
    other = {**example, "next_node_type": "AskBack"}
    assert node_transition_metric(other, prediction) == 0.0
    assert type(node_transition_metric(other, prediction)) is float
    assert node_transition_metric(other, prediction, trace=[]) is False


@pytest.mark.parametrize("prediction", [None, type(None), "None", {"choice": "None"}])
def test_the_end_of_a_run_is_a_transition_too(prediction: Any) -> None:
    assert node_transition_metric({"next_node_type": "None"}, prediction) == 1.0
    assert node_transition_metric({"next_node_type": "Outfit"}, prediction) == 0.0


@pytest.mark.parametrize("unread", [{"choice": None}, {"next_node_type": None}])
def test_an_answer_that_could_not_be_read_is_no_right_stop(unread: Any) -> None:
    assert node_transition_metric({"next_node_type": "None"}, unread) == 0.0
    assert node_transition_metric({"next_node_type": None}, unread, trace=[]) is False
    assert node_transition_metric({"choice": "Outfit"}, {**unread, "choice": "Outfit"}) == 1.0


def test_a_prediction_that_says_nothing_is_wrong_and_such_an_example_is_refused() -> None:
    assert node_transition_metric({"choice": "Outfit"}, {"reason": "?"}) == 0.0
    assert node_transition_metric({"choice": "Outfit"}, 3) == 0.0
    with pytest.raises(ValueError, match="trace_to_examples"):
        node_transition_metric({"top": "shirt"}, "Outfit")


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


async def test_without_a_metric_fields_and_choices_are_compared() -> None:
    fill, choice = metrics_for(Outfit, "fill", None), metrics_for(Waking, "choice", None)
    same = {"top": "a linen shirt", "size": "S", "when": "2024-01-02"}
    assert await fill(FILL, same) == Score(1.0)
    assert (await fill(FILL, {**same, "size": "L"})).value == pytest.approx(8 / 9)
    assert await choice(CHOICE, {"choice": "Outfit"}) == Score(1.0)
    assert await choice(CHOICE, {"choice": "AskBack"}) == Score(
        0.0, "AskBack was chosen, where Outfit was right"
    )
    assert (await choice({**CHOICE, "choice": "None"}, {"choice": "None"})).value == 1


async def test_no_answer_and_one_that_validators_refuse_score_nothing() -> None:
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


async def test_a_metric_by_node_type_is_given_nodes_with_their_context() -> None:
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


async def test_a_node_that_an_lm_has_built_is_scored_as_it_is() -> None:
    fill = metrics_for(Outfit, "fill", None)
    assert await fill(FILL, outfit(when=date(2024, 1, 2))) == Score(1.0)


async def test_context_that_cannot_be_read_back_is_left_out() -> None:
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


async def test_the_context_takes_part_in_validation() -> None:
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


async def test_an_example_that_does_not_fit_its_class_is_named() -> None:
    fill = metrics_for(Outfit, "fill", None)
    with pytest.raises(BaeError) as raised:
        await fill({**FILL, "size": "XXL"}, {"top": "shirt"}, index=4)
    assert raised.value.code == "bae-metric-example"
    assert "the fields of Outfit, example 4 (run r7)" in raised.value.message
    assert "size" in raised.value.message


@pytest.mark.parametrize("kind", ["def", "async def", "object"])
async def test_a_metric_that_raises_is_told_with_node_part_and_example(kind: str) -> None:
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


async def test_errors_of_bae_pass_through_a_metric_as_they_are() -> None:
    async def asking(expected: Outfit, given: Outfit) -> float:
        raise BudgetError("spent", limit="calls")

    with pytest.raises(BudgetError, match="spent"):
        await metrics_for(Outfit, "fill", {Outfit: asking})(FILL, {"top": "shirt"})


async def test_a_sync_metric_does_not_hold_up_the_loop() -> None:
    loop_goes_on = threading.Event()

    def slow(expected: Outfit, given: Outfit) -> float:
        assert loop_goes_on.wait(10)
        return 1.0

    async def go_on() -> None:
        loop_goes_on.set()

    scoring = metrics_for(Outfit, "fill", {Outfit: slow})(FILL, {"top": "shirt"})
    score, _ = await asyncio.gather(scoring, go_on())
    assert score.value == 1


@pytest.mark.parametrize("said", [True, 1, 1.0, Decimal(1), Fraction(1), Score(1.0), {"score": 1}])
async def test_every_form_of_a_score_is_taken(said: Any) -> None:
    metric = metrics_for(Outfit, "fill", {Outfit: lambda expected, given: said})
    assert await metric(FILL, {"top": "shirt"}) == Score(1.0)


async def test_feedback_becomes_the_reason() -> None:
    said = {"score": 0.5, "feedback": "too warm"}
    metric = metrics_for(Outfit, "fill", {Outfit: lambda expected, given: said})
    assert await metric(FILL, {"top": "shirt"}) == Score(0.5, "too warm")


@pytest.mark.parametrize(
    "said", [None, "0.5", math.nan, math.inf, -0.1, 1.5, 10**400, Score(2.0), [1], {"points": 1}]
)
async def test_what_is_no_score_is_refused(said: Any) -> None:
    metric = metrics_for(Outfit, "fill", {Outfit: lambda expected, given: said})
    with pytest.raises(BaeError) as raised:
        await metric(FILL, {"top": "shirt"}, index=3)
    assert raised.value.code == "bae-metric-score"
    assert "the fields of Outfit, example 3" in raised.value.message
    assert "0 to 1" in str(raised.value.fix)


def test_what_is_no_metric_is_refused_before_anything_is_scored() -> None:
    with pytest.raises(TypeError, match="is no metric"):
        metrics_for(Outfit, "fill", "exact")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="by node class"):
        metrics_for(Outfit, "fill", {"Outfit": fields_metric})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="the metric for Outfit"):
        metrics_for(Outfit, "fill", {Outfit: 1})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="part='fil': give 'fill' or 'choice'"):
        metrics_for(Outfit, "fil")  # type: ignore[arg-type]


@pytest.mark.parametrize("part", ["fill", "choice"])
def test_a_function_of_two_that_may_be_meant_for_nodes_is_refused(part: Any) -> None:
    for metric in (lambda expected, given: expected == given, lambda example: 1.0):
        with pytest.raises(TypeError, match=r"give \{NodeClass: function\}"):
            metrics_for(Waking, part, metric)


async def test_an_example_without_a_choice_is_named() -> None:
    with pytest.raises(BaeError, match="the choice after Waking, example 2: the example has no"):
        await metrics_for(Waking, "choice")({"known": {}}, {"choice": "Outfit"}, index=2)


async def test_fields_are_not_compared_on_the_event_loop() -> None:
    threads: set[int] = set()

    class Seen(str):
        def __eq__(self, other: object) -> bool:
            threads.add(threading.get_ident())
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    await metrics_for(AskBack, "fill")(
        {"question": "a"}, AskBack.model_construct(question=Seen("b"))
    )
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.once
def test_metrics_are_imported_without_dspy() -> None:
    code = "import sys, bae.optimizer.metrics, bae.optimizer.judging, bae.evals.intervals\n"
    code += "sys.exit('dspy' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
