"""The teacher while examples are bootstrapped: which of its answers are good enough to be shown,
and when it is asked no more because none are. `asking_lm.py` asks before each question, and
`part_training.py` says what the answer was worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class GaveUp(Exception):
    """The teacher is not asked: its answers have not been good enough, or there is nothing new to
    ask. DSPy goes on to the next example."""


class Teaching:
    """What became of the teacher's answers, from the thread that bootstraps.

    An answer is good with a score of `accept`; after `most_fruitless` that were not, only what was
    asked before may be asked, which costs nothing.
    """

    def __init__(self, accept: float, most_fruitless: int) -> None:
        self.accept = accept
        self._most = most_fruitless
        self._scores: dict[str, float] = {}
        self._good: set[str] = set()
        self._refused = 0

    def may_ask(self, question: str) -> None:
        """Raise `GaveUp` where the teacher is to be asked no more."""
        if question not in self._scores and self._fruitless >= self._most:
            self._refused += 1
            raise GaveUp(f"{self._fruitless} answers of the teacher were not good enough")

    def judged(self, question: str, score: float, good: bool) -> None:
        """Note what an answer was worth, and whether it can be an example."""
        self._scores[question] = score
        self._good.update([question] if good else [])

    def note(self) -> str:
        """What is worth knowing about it; empty where nothing is."""
        asked, fruitless = len(self._scores), self._fruitless
        if not asked or (fruitless < asked and not self._refused):
            return ""
        best = max(self._scores.values())
        more = "a higher max_fruitless" if fruitless < asked else "a lower accept"
        said = (
            f"{fruitless} of {asked} answers of the teacher were not good enough to be examples"
            if fruitless < asked
            else f"no answer of the teacher, of {asked}, was good enough to be an example"
        )
        ended = ", and it was asked no more" if self._refused else ""
        return (
            f"{said}{ended}: it takes a score of {self.accept:g}, and the best had {best:.2g}; "
            f"give another teacher, or {more}"
        )

    @property
    def _fruitless(self) -> int:
        return len(self._scores) - len(self._good)


def most_fruitless(options: Mapping[str, Any]) -> int:
    """How many answers of the teacher may be of no use, by the options of an optimiser."""
    most = options.get("max_fruitless")
    if most is not None:
        return most
    # MIPROv2 makes two of its sets of examples without a teacher.
    sets = max(1, options.get("num_candidates", 0) - 2)
    return sets * (3 * options.get("max_bootstrapped_demos", 0) + 4)
