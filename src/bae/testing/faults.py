"""What goes wrong with real providers, for a `Provider` to do on purpose: give one in place of an
answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Fault:
    """Something other than an answer. Use one of its subclasses."""


@dataclass(frozen=True, slots=True)
class Status(Fault):
    """An error with an HTTP status, in the shape the API gives its errors.

    `retry_after`, in seconds, is sent as the header of that name; so are `headers`.
    """

    code: int
    retry_after: float | None = None
    message: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if not 400 <= self.code <= 599:
            raise ValueError(f"Status({self.code!r}): give an error, 400 to 599")


@dataclass(frozen=True, slots=True)
class Stall(Fault):
    """Headers, and in a stream the first `after` events; then nothing until the client goes."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class Cut(Fault):
    """The connection is closed in the middle of the body: in a stream after `after` events, else
    after half of it."""

    after: int = 1


@dataclass(frozen=True, slots=True)
class Malformed(Fault):
    """A body that is not JSON; in a stream, an event that is not, after the first that is."""


@dataclass(frozen=True, slots=True)
class WrongSchema(Fault):
    """A whole answer of valid JSON that does not fit the schema: one property has a wrong type."""


@dataclass(frozen=True, slots=True)
class Overlong(Fault):
    """Half an answer, cut off by the limit on its length, with the stop reason that says so."""


@dataclass(frozen=True, slots=True)
class Refusal(Fault):
    """The model declines, and says `text`."""

    text: str = "I cannot help with that."


@dataclass(frozen=True, slots=True)
class Empty(Fault):
    """A whole answer with nothing in it."""
