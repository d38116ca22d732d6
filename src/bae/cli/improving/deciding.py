"""Whether what was learnt is written: a part of a node, its fill or its choice, that was better on
the held-out examples. Nothing here asks anybody or writes anything; `learning.py` does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from bae.evals.intervals import Interval
    from bae.optimizer.comparing import Comparison

Part = Literal["fill", "choice"]
PARTS: Final[tuple[Part, Part]] = ("fill", "choice")
Verdict = Literal[
    "better",
    "better, not beyond chance",
    "not better",
    "no better than what is there",
    "there already",
    "nothing learnt",
    "nothing held out",
    "not compared",
    "too few examples",
]


@dataclass(slots=True)
class PartOutcome:
    """What became of one part of a node: how many examples there were, in all, to learn from and
    held out, and how many of either people have corrected; how it compares; and what was done."""

    node: str
    part: Part
    examples: int
    train: int
    held_out: int
    corrected_train: int = 0
    corrected_held_out: int = 0
    verdict: Verdict = "not compared"
    written: bool = False
    comparison: Comparison | None = None
    there: Interval | None = None
    """What the artefact that was there before scores on the same examples."""
    notes: list[str] = field(default_factory=list[str])
    questions: int = 0
    """How many different ones the examples to learn from ask."""


def verdict_on(comparison: Comparison | None, there: Interval | None, *, held_out: int) -> Verdict:
    """What a comparison on the held-out examples comes to. `there` is the score of what was learnt
    before, where there is something."""
    if not held_out:
        return "nothing held out"
    if comparison is None:
        return "not compared"
    if not comparison.better:
        return "not better"
    if there is not None and there.mean >= comparison.after.mean:
        return "no better than what is there"
    return "better" if comparison.certain else "better, not beyond chance"


def is_written(verdict: Verdict, *, force: bool, certain: bool) -> bool:
    """Whether a part with this verdict is written."""
    if verdict in ("too few examples", "nothing learnt", "there already"):
        return False  # there is nothing to write
    if force or verdict == "better":
        return True
    return verdict == "better, not beyond chance" and not certain


def counts_of(part: PartOutcome) -> str:
    """What there is to learn a part from."""
    said = f"{part.node} {part.part}: {part.train} to learn from, {part.held_out} held out"
    if not part.corrected_train and not part.corrected_held_out:
        return said
    return f"{said}, {part.corrected_train} and {part.corrected_held_out} put right by people"


def scores_of(part: PartOutcome) -> dict[str, Any]:
    """How a part compares on the held-out examples, as JSON values."""
    compared = part.comparison
    if compared is None:
        return {"n": part.held_out}
    return {
        "n": compared.n,
        "before": _interval(compared.before),
        "after": _interval(compared.after),
        "difference": _interval(compared.difference),
    }


def _interval(found: Interval) -> dict[str, float]:
    return {name: round(getattr(found, name), 4) for name in ("mean", "low", "high", "level")}
