"""The work: a chain of steps that each build the next node, small or with 2 KB of text, and the
answer that must come out. Nothing here knows a framework.
"""

from __future__ import annotations

import random
from typing import Any, Protocol

from pydantic import BaseModel

from benchmarks.work import expect

TEXT_LENGTH = 2_000
"""Characters of text in a heavy node; with the rest of it that makes about 2 KB."""
_WORDS = "the rain has come over hills and a grey light stays on roofs until noon while trains wait"


def _pages() -> list[str]:
    """Return texts that are all different, so that no store can share one text for several."""
    picked = random.Random(7)
    words = _WORDS.split()
    return [" ".join(picked.choices(words, k=600))[:TEXT_LENGTH] for _ in range(64)]


PAGES = _pages()


def page(n: int) -> str:
    """Return the text of step `n`."""
    return PAGES[n % len(PAGES)]


class Outcome(Protocol):
    """The result of a run: any object with these fields. Heavy results also have a `text`."""

    n: int
    left: int
    x: float


class Tick(BaseModel):
    """The node, for those whose state is a plain model."""

    n: int
    left: int
    x: float


class Page(Tick):
    """The heavy one."""

    text: str


def fields(steps: int, heavy: bool) -> dict[str, Any]:
    """Return the fields of the first node of a run of `steps` steps."""
    small = {"n": 0, "left": steps, "x": 0.0}
    return {**small, "text": page(0)} if heavy else small


def first(steps: int, heavy: bool) -> Tick:
    """Return the first node."""
    return (Page if heavy else Tick)(**fields(steps, heavy))


def following(now: Tick) -> Tick:
    """Return the node after `now`."""
    n, left, x = now.n + 1, now.left - 1, now.x + 0.5
    if type(now) is Page:
        return Page(n=n, left=left, x=x, text=page(n))
    return Tick(n=n, left=left, x=x)


def check(outcome: Outcome, steps: int, heavy: bool) -> None:
    """Raise an error if the outcome is not the result of this number of steps."""
    expect("the last node", (outcome.n, outcome.left, outcome.x), (steps, 0, 0.5 * steps))
    if heavy:
        expect("its text", getattr(outcome, "text", None), page(steps))
