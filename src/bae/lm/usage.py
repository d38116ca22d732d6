"""What LM calls cost. A backend reports each call with `report`; the runner meters what was
reported during a step and writes it into the journal, from where `result.usage` sums it up."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """Calls, tokens and cost; add two with `+`. A cost of None is unknown, not zero."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = 0.0

    def __add__(self, other: Usage) -> Usage:
        unknown = self.cost is None or other.cost is None
        return Usage(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            None if unknown else (self.cost or 0.0) + (other.cost or 0.0),
        )

    @classmethod
    def total(cls, parts: Iterable[Usage]) -> Usage:
        """The sum of several, and nothing used where there are none."""
        return sum(parts, start=cls())


def report(usage: Usage) -> None:
    """Say what a call used: backends call this once per request. Outside a run it does nothing."""
    meter = _meter.get()
    if meter is not None:
        meter.append(usage)


@contextmanager
def metered() -> Generator[list[Usage]]:
    """Collect what is reported inside the block, by tasks started in it too."""
    reported: list[Usage] = []
    token = _meter.set(reported)
    try:
        yield reported
    finally:
        _meter.reset(token)


_meter: ContextVar[list[Usage] | None] = ContextVar("bae_usage_meter", default=None)
