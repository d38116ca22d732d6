"""What the intervals promise: the numbers that are published for them, bounds that hold, and the
share of truths that they are to cover."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bae.evals import Interval, interval, paired_difference

PAIRS = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30)
BINARY_PAIRS = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 1.0])), min_size=1, max_size=40
)


def hits(right: int, of: int) -> list[int]:
    return [1] * right + [0] * (of - right)


def pairs(both: int, after: int, before: int, neither: int) -> tuple[list[int], list[int]]:
    """Scores before and after, by how many are right in both, after alone, before alone, never."""
    return (
        [1] * both + [0] * after + [1] * before + [0] * neither,
        [1] * both + [1] * after + [0] * before + [0] * neither,
    )


def require_interval(scores: Interval | None) -> Interval:
    assert scores is not None
    return scores


@pytest.mark.parametrize(
    ("right", "of", "low", "high"),
    [  # the four that Newcombe's comparison of methods for one proportion (1998) is shown by
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_binary_scores_have_the_published_wilson_interval(
    right: int, of: int, low: float, high: float
) -> None:
    measured = require_interval(interval(hits(right, of)))
    assert measured.mean == pytest.approx(right / of)
    assert (measured.low, measured.high) == pytest.approx((low, high), abs=5e-5)
    assert (measured.n, measured.level) == (of, 0.95)


@pytest.mark.parametrize(
    ("table", "difference", "low", "high"),
    [  # Newcombe's own (1998), method 10; and one much used since, of 21 children
        ((36, 12, 2, 0), 0.20, 0.0569, 0.3404),
        ((1, 1, 7, 12), -0.286, -0.507, -0.026),
    ],
)
def test_paired_binary_scores_have_the_published_newcombe_interval(
    table: tuple[int, int, int, int], difference: float, low: float, high: float
) -> None:
    measured = require_interval(paired_difference(*pairs(*table)))
    assert measured.mean == pytest.approx(difference, abs=5e-4)
    assert (measured.low, measured.high) == pytest.approx((low, high), abs=5e-4)


def test_swapping_before_and_after_only_changes_the_sign_of_the_difference() -> None:
    before, after = pairs(9, 6, 2, 3)
    there, back = (
        require_interval(paired_difference(before, after)),
        require_interval(paired_difference(after, before)),
    )
    assert (there.mean, there.low, there.high) == pytest.approx((-back.mean, -back.high, -back.low))


@settings(derandomize=True, max_examples=25, deadline=None)
@given(both=PAIRS | BINARY_PAIRS, level=st.sampled_from([0.8, 0.95, 0.99]))
def test_an_interval_contains_the_mean_and_is_never_empty(
    both: list[tuple[float, float]], level: float
) -> None:
    before, after = [x for x, _ in both], [y for _, y in both]
    measured = require_interval(interval(before, level=level))
    apart = require_interval(paired_difference(before, after, level=level))
    for measured_interval, least in ((measured, 0), (apart, -1)):
        assert (
            least <= measured_interval.low <= measured_interval.mean <= measured_interval.high <= 1
        )
        assert measured_interval.low < measured_interval.high
        assert measured_interval.n == len(both)
    assert interval([]) is paired_difference([], []) is None


def test_the_same_scores_have_the_same_interval_in_any_order() -> None:
    rng = random.Random(0)
    scores = [rng.random() ** 0.1 for _ in range(30)]
    other = [rng.random() for _ in range(30)]
    order = rng.sample(range(30), k=30)
    shuffled, along = [scores[k] for k in order], [other[k] for k in order]
    assert interval(scores) == interval(shuffled)
    assert paired_difference(scores, other) == paired_difference(shuffled, along)


def test_a_few_agreeing_scores_do_not_make_a_narrow_interval() -> None:
    for odd in (0.99, 0.999999):
        assert require_interval(interval([1.0] * 9 + [odd])).low < 0.72
    assert not require_interval(paired_difference([0.5] * 10, [0.51] * 9 + [0.52])).excludes_zero
    assert require_interval(paired_difference([0.0] * 3, [0.9, 0.91, 0.92])).low < 0.1
    assert not require_interval(paired_difference([0.2, 0.3], [0.5, 0.8])).excludes_zero
    before = [0.2 + 0.01 * (k % 5) for k in range(60)]
    after = [score + 0.1 + 0.02 * (k % 3) for k, score in enumerate(before)]
    measured = require_interval(paired_difference(before, after))
    assert 0 < measured.low < measured.mean - 0.03  # what was not met may be worse
    assert require_interval(paired_difference(before[:20], after[:20])).low < 0


def test_an_obvious_gain_over_twenty_cases_is_significant() -> None:
    rng = random.Random(9)
    before = [rng.choice([0.0, 0.2, 0.5, 0.6]) for _ in range(20)]
    after = [min(1.0, score + rng.choice([0.0, 0.3, 0.5, 0.6])) for score in before]
    assert require_interval(paired_difference(before, after)).low > 0.05


@pytest.mark.parametrize("n", [1, 5, 40])
def test_equal_scores_do_not_make_an_interval_of_one_point(n: int) -> None:
    level = require_interval(interval([0.5] * n))
    ones = require_interval(interval([0.5] * n + [0.5]))
    assert level.high - level.low > ones.high - ones.low > 0
    same = require_interval(paired_difference([0.5] * n, [0.5] * n))
    assert same.mean == 0
    assert same.low < 0 < same.high
    best = require_interval(paired_difference([0.0] * n, [1.0] * n))
    assert best.low < best.mean == best.high == 1


def test_an_interval_is_printed_in_brackets_after_the_score() -> None:
    assert str(Interval(0.824, 0.7, 0.9049, 40)) == "0.82 [0.70, 0.90]"


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan"), float("inf")])
def test_an_invalid_score_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="no score from 0 to 1"):
        interval([0.5, wrong])
    with pytest.raises(ValueError, match="no score from 0 to 1"):
        paired_difference([0.5, 0.5], [wrong, 0.5])


def test_unpaired_scores_and_invalid_levels_are_refused() -> None:
    with pytest.raises(ValueError, match="2 scores before and 1 after"):
        paired_difference([0, 1], [1])
    for level in (0, 1, 95):
        with pytest.raises(ValueError, match=r"such as 0\.95"):
            interval([1, 0], level=level)


# --- how often they hold the truth ------------------------------------------------------------

Draw = Callable[[random.Random], float]


def mix_draws(*parts: tuple[float, Draw]) -> Draw:
    def draw(rng: random.Random) -> float:
        (chosen,) = rng.choices([part for _, part in parts], [share for share, _ in parts])
        return chosen(rng)

    return draw


KINDS: dict[str, tuple[Draw, float]] = {
    "right or wrong": (lambda rng: float(rng.random() < 0.8), 0.8),
    "in steps": (lambda rng: rng.choice([0.0, 0.5, 1.0, 1.0]), 0.625),
    "even": (lambda rng: rng.random(), 0.5),
    "about 0.7": (lambda rng: rng.betavariate(5, 2), 5 / 7),
    "close together": (lambda rng: rng.betavariate(50, 5), 50 / 55),
    "near 0, seldom far": (lambda rng: rng.betavariate(0.1, 1), 0.1 / 1.1),
    "near 1, seldom 0": (
        mix_draws((0.80, lambda _: 1.0), (0.17, lambda _: 0.95), (0.03, lambda _: 0.0)),
        0.80 + 0.17 * 0.95,
    ),
    "good, one in ten 0": (
        mix_draws((0.9, lambda rng: 0.8 + rng.random() / 5), (0.1, lambda _: 0.0)),
        0.81,
    ),
    "good, one in 100 0": (
        mix_draws((0.99, lambda rng: rng.random() ** 0.1), (0.01, lambda _: 0.0)),
        0.9,
    ),
}


def measure_coverage(draw: Draw, truth: float, n: int, rounds: int) -> tuple[float, float]:
    """The share of intervals of `n` scores that hold the truth, and how wide they are."""
    rng = random.Random(n)
    measured = [require_interval(interval([draw(rng) for _ in range(n)])) for _ in range(rounds)]
    inside = sum(
        measured_interval.low <= truth <= measured_interval.high for measured_interval in measured
    )
    return inside / rounds, sum(
        measured_interval.high - measured_interval.low for measured_interval in measured
    ) / rounds


@pytest.mark.once
@pytest.mark.parametrize("kind", KINDS)
def test_at_least_93_percent_of_intervals_contain_the_true_mean(
    kind: str,
) -> None:
    for n in (5, 20):
        share, _ = measure_coverage(*KINDS[kind], n, rounds=120)
        assert share >= 0.93, n


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ninety_five_percent_of_intervals_contain_the_true_mean_in_many_rounds(kind: str) -> None:
    least = 0.93 if kind == "right or wrong" else 0.947  # Wilson's is of its level on average
    for n in (2, 5, 10, 20, 50, 190, 250):
        share, _ = measure_coverage(*KINDS[kind], n, rounds=800 if n < 100 else 100)
        assert share >= least - (0.02 if n > 100 else 0), n


@pytest.mark.once
def test_intervals_of_ordinary_scores_are_hardly_wider_than_student_intervals() -> None:
    for kind, spread in (("even", 0.289), ("in steps", 0.415)):
        for n, student in ((10, 2.262), (50, 2.010)):
            _, wide = measure_coverage(*KINDS[kind], n, rounds=40)
            assert wide < 1.15 * 2 * student * spread / n**0.5


def draw_score(kind: str, rng: random.Random) -> tuple[float, float]:
    case = rng.random()  # a case that is hard is hard for both
    if kind == "right or wrong":
        return float((case + rng.random()) / 2 < 0.5), float((case + rng.random()) / 2 < 0.5)
    if kind == "even":
        return case / 2, case / 2 + rng.random() / 2
    # Nearly always a little better, and worse by everything now and then.
    return (1.0, 0.0) if case < 0.03 else (0.95, 0.96 + 0.02 * rng.random())


@pytest.mark.once
@pytest.mark.parametrize(
    ("kind", "truth"),
    [("right or wrong", 0.0), ("even", 0.25), ("seldom all lost", 0.97 * 0.02 - 0.03)],
)
@pytest.mark.parametrize("n", [10, 50])
def test_at_least_93_percent_of_difference_intervals_contain_the_true_value(
    kind: str, truth: float, n: int
) -> None:
    rng = random.Random(12)
    rounds, inside, certain = 800 if kind == "right or wrong" else 150, 0, 0
    for _ in range(rounds):
        both = [draw_score(kind, rng) for _ in range(n)]
        measured = require_interval(paired_difference([x for x, _ in both], [y for _, y in both]))
        inside += measured.low <= truth <= measured.high
        certain += measured.low > 0
    assert inside / rounds >= 0.93
    if truth <= 0:
        assert certain / rounds < 0.05
    if kind == "even" and n >= 20:
        assert certain / rounds > 0.8
