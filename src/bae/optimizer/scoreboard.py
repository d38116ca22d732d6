"""The scores of the candidates that an optimiser tries, to say how good the best one is while it
goes on. What the optimiser itself makes of them is its own affair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Scoreboard:
    """Mean scores, by candidate, over the examples that all candidates are to be scored on."""

    def __init__(self) -> None:
        self._expected: set[int] = set()
        self._scores: dict[str, dict[int, float]] = {}
        self._best: float | None = None

    def expect(self, examples: Sequence[Any]) -> None:
        """Take these for the examples that count. They have to stay the same objects."""
        self._expected = {id(each) for each in examples}

    def add(self, candidate: str, example: Any, score: float) -> float | None:
        """Note a score, and answer the mean of the best candidate with a score for each example;
        None where there is none yet."""
        if id(example) in self._expected:
            scores = self._scores.setdefault(candidate, {})
            scores[id(example)] = score
            mean = self.mean(candidate)
            if mean is not None:
                self._best = mean if self._best is None else max(self._best, mean)
        return self._best

    @property
    def best(self) -> float | None:
        """The mean of the best candidate with a score for each example."""
        return self._best

    def mean(self, candidate: str) -> float | None:
        """The mean score of a candidate; None where it has not been scored on each example."""
        scores = self._scores.get(candidate, {})
        if not scores or len(scores) < len(self._expected):
            return None
        return sum(scores.values()) / len(scores)
