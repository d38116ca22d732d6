"""The cost of LM calls. `report_usage` reports the usage of a call. The runner collects the reports
of a step and writes them into the journal, and `result.usage` is their sum."""

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
    """Calls, tokens, cost and time; add two with `+`. A cost of None is unknown, not zero.

    `calls` counts the requests that were sent, including failed requests. `attempts` counts the
    answers: a node filled at the second try has two. `seconds` is the time spent waiting for
    answers, added up over calls that ran at the same time. `models` names the models that answered.
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
        """The input and output tokens. Cached tokens are part of the input tokens."""
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
        """The sum of several usages; an empty usage if there are none."""
        listed = list(parts)
        return listed[0] if len(listed) == 1 else sum(listed, start=cls())


def normalize_usage(used: Usage) -> Usage:
    """A usage that can be added up and stored, from a usage that another program reports. Counts
    are whole numbers from 0 on, an invalid cost is unknown, and names are short."""
    if _is_sound(used):
        return used
    given: Any = used.models
    names = cast("list[Any]", given if isinstance(given, tuple | list) else [given])
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


def _is_sound(used: Usage) -> bool:
    """Whether a usage needs no normalization, which is nearly always so."""
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
    """A number of tokens or calls that another program reports; 0 if it is no number."""
    if type(given) is int:  # nearly always
        return min(given, MOST) if given > 0 else 0
    if isinstance(given, int | float) and not isinstance(given, bool) and given > 0:
        return int(min(given, MOST))
    return 0


def read_amount(given: Any) -> float | None:
    """Dollars or seconds that another program reports; None if they are no number. A text is no
    number, even if Python's `float` reads it."""
    if type(given) is float:  # nearly always
        return given if 0 <= given <= MOST else None
    if not isinstance(given, int | float | Decimal) or isinstance(given, bool):
        return None
    try:
        return float(given) if 0 <= given <= MOST else None
    except ArithmeticError:  # decimals that are no numbers cannot be compared
        return None


def read_number(text: str) -> float | None:
    """The number in a header or an argument: ASCII digits, which may have a fraction. None for any
    other text, including the texts `1_0`, `nan` and `1e9`, which Python's `float` reads."""
    return float(text) if _NUMBER.fullmatch(text) else None


_NUMBER: Final = re.compile(r"[0-9]{1,300}(?:\.[0-9]{1,300})?|\.[0-9]{1,300}")
"""At most 300 digits, so that the number is finite."""


def read_name(given: object) -> str:
    """The name of a model that another program reports, as one short line."""
    return "".join(filter(str.isprintable, given[:LONGEST_NAME])) if isinstance(given, str) else ""


MOST: Final = 2**53 - 1
"""The largest count or amount: every program that reads JSON can read it."""

LONGEST_NAME: Final = 200
"""Characters of the name of a model."""

AnswerVerdict = Literal["valid", "invalid", "unparsable", "empty", "cut-off", "refused"]
"""The verdict on an answer."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One answer of a model: what was wrong with it, what it used, and the question.

    `asked` is the text of the prompt, without the schema. In a run that is read from a journal,
    `prompt` is a hash of that text. `filled` are the options that came filled with a choice; None
    if no record has them, as in a journal of an older bae. `thinking` is the model's thinking
    before the answer, as far as its provider shows it.
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
    """A request failed with `error` and is sent again after `wait` seconds. The text of its answer
    so far is void. `model` is the LM that a `Fallback` asks now; empty if the same LM is asked
    again."""

    error: BaseException
    wait: float
    model: str = ""


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of a model's thinking before it answers, or of a summary of it."""

    text: str


@dataclass(frozen=True, slots=True)
class Discard:
    """The text so far is not part of the answer, for example text before a tool call. A backend may
    send this event. Otherwise the text is void when the answer has ended."""


@dataclass(frozen=True, slots=True)
class Asking:
    """An LM is asked. The events that follow are about an answer in the form that `form` makes."""

    form: Callable[[], AnswerForm]


CallEvent = Attempt | str | Restart | Thought | Discard | Asking
"""An event of a call in progress: a judged answer, a piece of its text, or a restart. Observers of
the text also get an `Asking`, which says what the text is of."""

Meter = tuple[Callable[[Usage], None], Callable[[CallEvent], None] | None]
"""The callable that gets each usage, and the callable that gets each event."""


def report_usage(usage: Usage) -> None:
    """Report what a call used. An LM of your own calls this once per request; a backend returns the
    usage with its answer. Outside a run it does nothing."""
    meter = meter_in_force.get()
    if meter is not None:
        meter[0](normalize_usage(usage))


def tell(event: CallEvent) -> None:
    """Send an event of a call to the observers of the run. A backend that streams sends each piece
    of the answer's text, and each `Thought`."""
    meter = meter_in_force.get()
    if meter is not None and meter[1] is not None:
        meter[1](event)


@contextmanager
def metered(
    watch: Callable[[CallEvent], None] | None = None, *, alone: bool = False
) -> Generator[list[Usage]]:
    """Collect the usage that is reported inside the block, and by tasks started in it. `watch` is
    called with every event. Meters and observers around the block get the reports too. With
    `alone`, they get no usage: the caller reports it itself."""
    reported: list[Usage] = []
    outer_count, outer_tell = meter_in_force.get() or (None, None)

    def count(usage: Usage) -> None:
        reported.append(usage)
        if outer_count is not None and not alone:
            outer_count(usage)

    def hear(event: CallEvent) -> None:
        if outer_tell is not None:
            outer_tell(event)
        if watch is not None and not isinstance(event, Asking):
            watch(event)

    token = meter_in_force.set((count, hear if outer_tell or watch else None))
    try:
        yield reported
    finally:
        meter_in_force.reset(token)


meter_in_force: ContextVar[Meter | None] = ContextVar("bae_usage_meter", default=None)
text_is_followed: ContextVar[bool] = ContextVar("bae_text_is_followed", default=False)
"""Whether the text of answers is observed, so that a backend that can stream should do so."""
