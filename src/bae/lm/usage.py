"""What LM calls cost. A backend reports each call with `report`; the runner meters what was
reported during a step and writes it into the journal, from where `result.usage` sums it up."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Usage:
    """Calls, tokens, cost and time; add two with `+`. A cost of None is unknown, not zero.

    `calls` counts requests that were sent, failed ones too, and `attempts` the answers that were
    judged: a node filled at the second try has two. `seconds` is the time spent waiting for
    answers, added up over calls that ran at the same time; `models` names who answered.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = 0.0
    attempts: int = 0
    seconds: float = 0.0
    models: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Those in and those out; cached ones are among those in."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        unknown = self.cost is None or other.cost is None
        models = self.models
        if other.models != models:
            models += tuple(model for model in other.models if model not in models)
        return Usage(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            None if unknown else (self.cost or 0.0) + (other.cost or 0.0),
            self.attempts + other.attempts,
            self.seconds + other.seconds,
            models,
        )

    @classmethod
    def total(cls, parts: Iterable[Usage]) -> Usage:
        """The sum of several, and nothing used where there are none."""
        return sum(parts, start=cls())


Verdict = Literal["valid", "invalid", "unparsable", "empty", "cut-off", "refused"]
"""What an answer is found to be."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One answer of a model, what was found wrong with it, and what it used."""

    number: int
    answer: str
    verdict: Verdict
    errors: tuple[str, ...] = ()
    usage: Usage = Usage()


Event = Attempt | str
"""What can be told of a call while it lasts: an answer that was judged, or a piece of text that
arrived."""


def report(usage: Usage) -> None:
    """Say what a call used: backends call this once per request. Outside a run it does nothing."""
    meter = _meter.get()
    if meter is not None:
        meter[0].append(usage)


def tell(event: Event) -> None:
    """Tell whoever watches the run of an answer that was judged, or of text as it streams in."""
    meter = _meter.get()
    if meter is not None and meter[1] is not None:
        meter[1](event)


@contextmanager
def metered(watch: Callable[[Event], None] | None = None) -> Generator[list[Usage]]:
    """Collect what is reported inside the block, by tasks started in it too.

    `watch` is called with every event; without one, whoever watched before still does.
    """
    reported: list[Usage] = []
    if watch is None:
        outer = _meter.get()
        watch = outer[1] if outer is not None else None
    token = _meter.set((reported, watch))
    try:
        yield reported
    finally:
        _meter.reset(token)


_meter: ContextVar[tuple[list[Usage], Callable[[Event], None] | None] | None] = ContextVar(
    "bae_usage_meter", default=None
)
