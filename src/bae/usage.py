"""What LLM calls use: tokens, cost and time. An LM calls `report_usage` with the usage of a call.
The runner collects the reports of a step and writes their sum into the journal. `result.usage` is
the sum of all reports."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Literal, cast

if TYPE_CHECKING:
    from bae.answer_form import AnswerForm


@dataclass(frozen=True, slots=True)
class Usage:
    """What LLM calls used: calls, tokens, cost and time. Add two usages with `+`.

    - `calls`: the requests that were sent, including failed requests.
    - `cached_tokens`: the input tokens that the provider read from its cache.
    - `cost`: dollars; None if the cost is unknown.
    - `attempts`: the answers. A node that the LLM filled at the second attempt has two.
    - `seconds`: the time spent waiting for answers. The times of concurrent calls are added up.
    - `models`: the names of the models that answered.
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
        """The sum of input and output tokens. Cached tokens are part of the input tokens."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        is_unknown = self.cost is None or other.cost is None
        models = self.models
        if other.models != models:
            models += tuple(model for model in other.models if model not in models)
        return Usage(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            None if is_unknown else (self.cost or 0.0) + (other.cost or 0.0),
            self.attempts + other.attempts,
            self.seconds + other.seconds,
            models,
        )

    @classmethod
    def total(cls, parts: Iterable[Usage]) -> Usage:
        """Return the sum of several usages; an empty usage if there are none."""
        usages = list(parts)
        return usages[0] if len(usages) == 1 else sum(usages, start=cls())


def normalize_usage(used: Usage) -> Usage:
    """Convert a usage from another program, whose values may be of any type, to a valid usage.
    Counts become whole numbers from 0 on, an invalid cost becomes None, and names are
    shortened."""
    if _is_normalized(used):
        return used
    models: Any = used.models
    names = cast("list[Any]", models if isinstance(models, tuple | list) else [models])
    return Usage(
        read_count(used.calls),
        read_count(used.input_tokens),
        read_count(used.output_tokens),
        read_count(used.cached_tokens),
        read_amount(used.cost),
        read_count(used.attempts),
        read_amount(used.seconds) or 0.0,
        tuple(filter(None, map(read_name, names))),
    )


def _is_normalized(used: Usage) -> bool:
    """Return whether a usage is valid as it is. Nearly all are, so this saves time."""
    counts = used.calls, used.input_tokens, used.output_tokens, used.cached_tokens, used.attempts
    for count in counts:
        if type(count) is not int or not 0 <= count <= MOST:
            return False
    for amount in (used.cost, used.seconds):
        if type(amount) is not float or not 0 <= amount <= MOST:
            return False
    if type(used.models) is not tuple:
        return False
    for name in used.models:
        if type(name) is not str or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            return False
    return True


def read_count(given: object) -> int:
    """Convert a number of tokens or calls from another program to a count; 0 if it is no number."""
    if type(given) is int:  # nearly always
        return min(given, MOST) if given > 0 else 0
    if isinstance(given, int | float) and not isinstance(given, bool) and given > 0:
        return int(min(given, MOST))
    return 0


def read_amount(given: Any) -> float | None:
    """Convert dollars or seconds from another program to a float; None if they are no number from 0
    on. A text is no number, even if Python's `float` reads it."""
    if type(given) is float:  # nearly always
        return given if 0 <= given <= MOST else None
    if not isinstance(given, int | float | Decimal) or isinstance(given, bool):
        return None
    try:
        return float(given) if 0 <= given <= MOST else None
    except ArithmeticError:  # a Decimal NaN cannot be compared
        return None


def read_number(text: str) -> float | None:
    """Read the number in a header or an argument: ASCII digits, perhaps with a fraction. Return
    None for any other text, even for `1_0`, `nan` and `1e9`, which Python's `float` reads."""
    return float(text) if _NUMBER.fullmatch(text) else None


_NUMBER: Final = re.compile(r"[0-9]{1,300}(?:\.[0-9]{1,300})?|\.[0-9]{1,300}")
"""At most 300 digits, so that the number is finite."""


def read_name(given: object) -> str:
    """Convert a model's name from another program to one short line; empty if it is no text."""
    return "".join(filter(str.isprintable, given[:LONGEST_NAME])) if isinstance(given, str) else ""


MOST: Final = 2**53 - 1
"""The largest count or amount. It is the largest integer that every JSON reader reads exactly."""

LONGEST_NAME: Final = 200
"""How many characters of a model's name are stored."""

AnswerVerdict = Literal["valid", "invalid", "unparsable", "empty", "cut-off", "refused"]
"""The verdict on an answer."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An answer of a model, with its verdict.

    - `number`: 1 for the first answer to a question.
    - `errors`: what is wrong with the answer.
    - `usage`: what the answer used.
    - `asked`: the text of the prompt, without the schema.
    - `prompt`: in a run that is read from a journal, a hash of the prompt's text.
    - `filled`: the options of a choice that the LLM may fill in the same answer; None if they are
      not recorded, as in a journal of an older bae.
    - `thinking`: the model's thinking before the answer, as far as the provider shows it.
    """

    number: int
    answer: str
    verdict: AnswerVerdict
    errors: tuple[str, ...] = ()
    usage: Usage = Usage()
    asked: str = ""
    prompt: str = field(default="", compare=False)
    filled: tuple[str, ...] | None = field(default=None, compare=False)
    thinking: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Restart:
    """An event: a request failed with `error`, and is sent again after `wait` seconds. The text of
    the answer so far is void. If a `Fallback` asks another LM now, `model` is its name."""

    error: BaseException
    wait: float
    model: str = ""


@dataclass(frozen=True, slots=True)
class Thought:
    """An event: a piece of the model's thinking before the answer, or of a summary of the
    thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class Discard:
    """An event: the text so far is not part of the answer, for example text before a tool call. A
    backend need not send it, because such text is void at the latest when the answer has ended."""


@dataclass(frozen=True, slots=True)
class Asking:
    """An event: an LM is asked. The next events are about an answer in the form that `form()`
    returns."""

    form: Callable[[], AnswerForm]


CallEvent = Attempt | str | Restart | Thought | Discard | Asking
"""An event of a call in progress. A str is a piece of the answer's text, and an `Attempt` is a
complete answer with its verdict."""

Meter = tuple[Callable[[Usage], None], Callable[[CallEvent], None] | None]
"""The function that gets each usage, and the function that gets each event."""


def report_usage(usage: Usage) -> None:
    """Report what a call used. An LM of your own calls this function once per request. A backend
    need not call it, because it returns the usage with the answer. Outside a run, the function does
    nothing."""
    meter = meter_in_force.get()
    if meter is not None:
        meter[0](normalize_usage(usage))


def tell(event: CallEvent) -> None:
    """Send an event of a call to the observers of the run. A streaming backend sends each piece of
    the answer's text, and each `Thought`."""
    meter = meter_in_force.get()
    if meter is not None and meter[1] is not None:
        meter[1](event)


@contextmanager
def metered(
    watch: Callable[[CallEvent], None] | None = None, *, alone: bool = False
) -> Generator[list[Usage]]:
    """Collect the usage that is reported inside the block, also by tasks that the block starts.

    `watch` gets each event except `Asking`. Meters around the block get the usage and the events
    too. With `alone`, they get the events only, and the caller has to report the usage."""
    reported: list[Usage] = []
    outer_count, outer_tell = meter_in_force.get() or (None, None)

    def count(usage: Usage) -> None:
        reported.append(usage)
        if outer_count is not None and not alone:
            outer_count(usage)

    def send_event(event: CallEvent) -> None:
        if outer_tell is not None:
            outer_tell(event)
        if watch is not None and not isinstance(event, Asking):
            watch(event)

    token = meter_in_force.set((count, send_event if outer_tell or watch else None))
    try:
        yield reported
    finally:
        meter_in_force.reset(token)


meter_in_force: ContextVar[Meter | None] = ContextVar("bae_usage_meter", default=None)
text_is_followed: ContextVar[bool] = ContextVar("bae_text_is_followed", default=False)
"""Whether someone observes the text of answers. Then a backend that can stream should stream."""
