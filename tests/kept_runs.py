"""Graphs and effects for tests of runs with a journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any


class Trouble(Exception):
    """What a test makes a dependency or a body fail with."""


class World:
    """What happens outside of a run: effects are counted, and fail when they are told to."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.failing: set[str] = set()

    def do(self, what: str) -> None:
        """Have an effect, or fail to."""
        if what in self.failing:
            raise Trouble(what)
        self.done[what] += 1

    def mend(self) -> None:
        """Let nothing fail any more."""
        self.failing.clear()


def counting(function: Callable[..., Any], world: World) -> Callable[..., Any]:
    """A dependency that says it was called."""

    async def called() -> Any:
        world.do(function.__name__)
        return function()

    called.__annotations__ = dict(function.__annotations__)
    return called
