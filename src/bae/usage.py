"""What LM calls cost. Each call is reported with `report`; the runner collects what was reported
during a step and writes it into the journal, from where `result.usage` sums it up."""

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

    `calls` counts requests that were sent, failed ones too, and `attempts` the answers that came
    back: a node filled at the second try has two. `seconds` is the time spent waiting for
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
        listed = list(parts)
        return listed[0] if len(listed) == 1 else sum(listed, start=cls())


def sound(used: Usage) -> Usage:
    """A usage that can be added up and stored, from one that another program reports: counts are
    whole numbers from 0 on, a cost that is no amount of money is unknown, and names are short."""
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
    """Whether a usage is as `sound` makes it, which it nearly always is."""
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


def read_count(said: object) -> int:
    """A number of tokens or calls, as another program reports it; 0 where it is none."""
    if type(said) is int:  # nearly always
        return min(said, MOST) if said > 0 else 0
    if isinstance(said, int | float) and not isinstance(said, bool) and said > 0:
        return int(min(said, MOST))
    return 0


def read_amount(said: Any) -> float | None:
    """Dollars or seconds, as another program reports them; None where they are no number. A text
    is none, whatever Python's `float` makes of it."""
    if type(said) is float:  # nearly always
        return said if 0 <= said <= MOST else None
    if not isinstance(said, int | float | Decimal) or isinstance(said, bool):
        return None
    try:
        return float(said) if 0 <= said <= MOST else None
    except ArithmeticError:  # decimals that are no numbers cannot be compared
        return None


def read_number(text: str) -> float | None:
    """The number that a text is, in a header or an argument: ASCII digits, which may have a
    fraction. None for all else that Python's `float` takes, such as `1_0`, `nan` and `1e9`."""
    return float(text) if _NUMBER.fullmatch(text) else None


_NUMBER: Final = re.compile(r"[0-9]{1,300}(?:\.[0-9]{1,300})?|\.[0-9]{1,300}")
"""300 digits are less than infinity."""


def read_name(said: object) -> str:
    """The name of a model, as another program reports it: one short line."""
    return "".join(filter(str.isprintable, said[:LONGEST_NAME])) if isinstance(said, str) else ""


MOST: Final = 2**53 - 1
"""The largest count or amount: every program that reads JSON can read it."""

LONGEST_NAME: Final = 200
"""Characters of the name of a model."""

AnswerVerdict = Literal["valid", "invalid", "unparsable", "empty", "cut-off", "refused"]
"""What an answer is found to be."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One answer of a model, what was found wrong with it, what it used, and what was asked: the
    text of the prompt, without the schema. `prompt` is a hash of that, in a run read from a
    journal. `filled` are the options that came filled with a choice; None where no record says
    so, as in a journal of an older bae. `thinking` is what the model thought before, as far as its
    provider shows it."""

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
    """A request failed with `error` and is sent again after `wait` seconds: what was told of its
    answer so far is void. `model` is the LM that a `Fallback` asks now; empty where the same LM is
    asked again."""

    error: BaseException
    wait: float
    model: str = ""


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of what a model thinks before it answers, or of a summary of that."""

    text: str


@dataclass(frozen=True, slots=True)
class Discard:
    """The text that was told of this answer so far is not part of it, as text before a tool call.
    A backend may tell this; otherwise the text is void when the answer has ended."""


@dataclass(frozen=True, slots=True)
class Asking:
    """An LM is asked: what is told from here on is of an answer of the form that `form` makes."""

    form: Callable[[], AnswerForm]


CallEvent = Attempt | str | Restart | Thought | Discard | Asking
"""What can be told of a call while it lasts: an answer that was judged, a piece of its text, or
that all of it begins again; and for those who follow the text, what it is of."""

Meter = tuple[Callable[[Usage], None], Callable[[CallEvent], None] | None]
"""Who hears what is reported, and what is told."""


def report(usage: Usage) -> None:
    """Say what a call used: an LM of your own calls this once per request, a backend returns it
    with its answer. Outside a run it does nothing."""
    meter = meter_in_force.get()
    if meter is not None:
        meter[0](sound(usage))


def tell(event: CallEvent) -> None:
    """Report something of a call to those who watch the run. A backend that streams tells each
    piece of the answer's text, and each `Thought`."""
    meter = meter_in_force.get()
    if meter is not None and meter[1] is not None:
        meter[1](event)


@contextmanager
def metered(
    watch: Callable[[CallEvent], None] | None = None, *, alone: bool = False
) -> Generator[list[Usage]]:
    """Collect what is reported inside the block, by tasks started in it too; `watch` is called
    with every event. Meters and observers around the block get it as well; with `alone`,
    not of what was used: for callers that report it themselves."""
    reported: list[Usage] = []
    used, told = meter_in_force.get() or (None, None)

    def count(usage: Usage) -> None:
        reported.append(usage)
        if used is not None and not alone:
            used(usage)

    def hear(event: CallEvent) -> None:
        if told is not None:
            told(event)
        if watch is not None and not isinstance(event, Asking):
            watch(event)

    token = meter_in_force.set((count, hear if told or watch else None))
    try:
        yield reported
    finally:
        meter_in_force.reset(token)


meter_in_force: ContextVar[Meter | None] = ContextVar("bae_usage_meter", default=None)
text_is_followed: ContextVar[bool] = ContextVar("bae_text_is_followed", default=False)
"""Whether somebody follows the text of answers, so that a backend that can stream should."""
