"""Requests to a model and their answers. bae counts each request against the active budgets, sends
it again after a temporary error, stops it when a budget's time is over, and reports its usage."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from time import perf_counter
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

from pydantic_core import from_json

from bae.exceptions import BaeLMError, BudgetError, describe
from bae.failures import check_awaitable
from bae.files import in_use
from bae.lm.file_limits import check_files
from bae.lm.http import mask, mask_error, mask_parts
from bae.lm.policies.budget import (
    Reservation,
    budgets_in_force,
    current_reservation,
    scope_in_force,
)
from bae.prompts.questions import answer_form
from bae.usage import (
    Asking,
    Meter,
    Restart,
    Thought,
    Usage,
    meter_in_force,
    metered,
    normalize_usage,
    read_name,
    report_usage,
    tell,
    text_is_followed,
)

if TYPE_CHECKING:
    from bae.lm.backend import Backend
    from bae.prompts.messages import CallPart, Prompt, ResultPart
    from bae.usage import CallEvent

T = TypeVar("T")


class _Unparsed:
    def __repr__(self) -> str:
        return "<unparsed>"


UNPARSED: Final = _Unparsed()
_ONE_CALL: Final = Usage(calls=1)
_RECORD_DEPTH: Final = 16
"""How many levels of a record or a node may surround a model's JSON."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a model. A backend sets the `text`, or the `value` if it parses the JSON."""

    text: str = ""
    """The text of the answer. If there are `calls`, it is the text before the calls. If the model
    refused, it is the reason."""

    usage: Usage = _ONE_CALL

    stop: Literal["end", "cut-off", "refused"] = "end"
    """Why the answer ended: the model finished ("end"), a limit on the length cut it off
    ("cut-off"), or the model refused to answer ("refused")."""

    value: Any = UNPARSED
    """The parsed JSON of the answer."""

    sent: bool = True
    """Whether a request was sent. If True, the budgets count at least one call. Pass False if, for
    example, the backend's own cache answered."""

    calls: tuple[CallPart, ...] = ()
    """The complete tool calls that the model asks for."""

    ran: tuple[tuple[CallPart, ResultPart], ...] = ()
    """The tool calls that the provider has run itself, each with its result."""

    echo: Any = None
    """JSON that the backend needs back, unchanged, together with the results of the calls. bae
    stores the echo and passes it as `Message.echo` in the next prompts. Put the model's name into
    the echo. If a message has another model's echo, ignore the echo and send the message's text and
    calls."""

    thinking: str = ""
    """The model's thoughts before the answer. bae collects them from the `Thought` events of the
    call."""

    def using(self, usage: Usage) -> Answer:
        """Return a copy with another usage and `sent=True`. Faster than `replace`."""
        tools = self.calls, self.ran, self.echo
        return Answer(self.text, usage, self.stop, self.value, True, *tools, self.thinking)

    def __post_init__(self) -> None:
        if not isinstance(cast(object, self.text), str):
            raise TypeError(
                f"Answer({type(self.text).__name__}): give the text of the model, or parsed JSON "
                "with Answer(value=…)"
            )
        if not isinstance(cast(object, self.usage), Usage):
            raise TypeError(f"Answer(usage={repr(self.usage)[:200]}): give a Usage(calls=1, …)")
        if self.stop not in ("end", "cut-off", "refused"):
            raise ValueError(f'Answer(stop={self.stop!r}): give "end", "cut-off" or "refused"')


def as_echo(message: dict[str, Any]) -> dict[str, Any] | None:
    """Return a message as `Answer.echo`. None if the message cannot be stored (`can_be_stored`).
    Without an echo, backends send the message's text and calls."""
    return message if can_be_stored(message) else None


def can_be_stored(value: Any) -> bool:
    """Return whether bae can write a model's JSON into a record and read it back. Half a character
    (a lone surrogate), NaN, an infinite number or deep nesting makes this impossible."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        from_json(f"{'[' * _RECORD_DEPTH}{text}{']' * _RECORD_DEPTH}")
    except (TypeError, ValueError, RecursionError):
        return False
    return True


async def ask(backend: Backend, prompt: Prompt) -> Answer:
    """Ask a backend. After a temporary error, send the request again. This function reports the
    usage of the answer, and `send` reports the usage of failed requests."""

    def request() -> Awaitable[Answer]:
        pending = backend.request(prompt)
        if type(pending) is CoroutineType:
            return pending
        return check_awaitable(pending, backend, "request")

    def send_again() -> Awaitable[Answer]:
        return retrying(request, backend.retries, backend.first_wait, is_worth=_is_resent)

    if text_is_followed.get():
        tell(Asking(partial(answer_form, prompt)))
    thoughts: list[str] = []
    count, listener = meter_in_force.get() or _NO_METER
    meter = meter_in_force.set((count, partial(_collect_thought, thoughts, listener)))
    try:
        answer = await (send_again() if scope_in_force.get() is None else in_time(send_again))
    finally:
        meter_in_force.reset(meter)
    if thoughts:
        answer = replace(answer, thinking="".join(thoughts))
    if not answer.usage.attempts:  # no request was sent
        answer = replace(answer, usage=replace(answer.usage, attempts=1))
    report_usage(answer.usage)
    outer = current_reservation.get()
    if outer is not None:
        outer.least_calls = 0  # a backend has answered, perhaps from a cache
    return answer


def _collect_thought(
    thoughts: list[str], listener: Callable[[CallEvent], None] | None, event: CallEvent
) -> None:
    """Add the model's thoughts to `thoughts`, and clear `thoughts` on a restart. Pass every event
    to the listener."""
    match event:
        case Thought(text):
            thoughts.append(text)
        case Restart():
            thoughts.clear()
        case _:
            pass
    if listener is not None:
        listener(event)


def _ignore(_: object) -> None:
    pass


_NO_METER: Final[Meter] = (_ignore, None)


async def send(backend: Backend, prompt: Prompt, *, asks_others: bool = False) -> Answer:
    """Call a backend's `answer` once and charge the active budgets. The budgets are checked before
    `answer` is called.

    With `asks_others`, the backend may ask further backends, whose requests are charged separately.
    If any usage is reported during the call, the total is this request's usage.
    """
    if in_use() and (files := prompt.files):
        check_files(backend, prompt, files)
    scope, outer, reservation = scope_in_force.get(), current_reservation.get(), None
    if scope is not None:
        if outer is not None:
            outer.settle(None)
        reservation = Reservation(scope.budgets, backend, prompt)
    inner = reservation if asks_others else None
    token = None if inner is outer else current_reservation.set(inner)
    reported: list[Usage] = []
    since = perf_counter()
    models = (backend.model,) if backend.model else ()
    try:
        if asks_others:
            with metered(alone=True) as reported:
                answer = check_answer(
                    backend, await check_awaitable(backend.answer(prompt), backend, "answer")
                )
        else:
            pending: Awaitable[Answer] = backend.answer(prompt)
            if type(pending) is not CoroutineType:
                pending = check_awaitable(pending, backend, "answer")
            answer = mask_answer(check_answer(backend, await pending), (*backend.secrets,))
    except BaseException as error:
        mask_error(error, backend.secrets)
        used = Usage.total(reported) if reported else _used_by_failure(backend, error)
        if used is not None:
            used = normalize_usage(used)
            used = replace(
                used,
                calls=used.calls or (0 if reported else 1),
                seconds=perf_counter() - since,
                models=used.models or models,
            )
            report_usage(used)
        if reservation is not None:
            if used is not None and not _is_refused(error):
                used = reservation.at_least(used)
            reservation.settle(used)
        raise
    finally:
        if token is not None:
            current_reservation.reset(token)
    used = normalize_usage(Usage.total(reported) if reported else answer.usage)
    used = replace(
        used,
        calls=used.calls or (0 if reported or not answer.sent else 1),
        # An adapted LM counts its own attempts.
        attempts=used.attempts or 1,
        seconds=perf_counter() - since,
        models=used.models or models,
    )
    if reservation is None:
        pass
    elif not answer.sent:
        reservation.settle(None)
    elif used.cost is not None:
        reservation.settle(reservation.at_least(used))
    elif reservation.settle(replace(reservation.at_least(used), cost=None)):
        for budget in reservation.budgets:
            if budget.cost is not None:
                report_usage(used)
                raise budget.cost_unknown(backend.model)
    return answer.using(used)


def check_answer(backend: Backend, answer: object) -> Answer:
    """Return the answer of a backend. Raise `BaeLMError` if it is no `Answer`."""
    if isinstance(answer, Answer):
        return answer
    name = type(backend).__name__
    raise BaeLMError(
        f"{name}.answer returned {repr(answer)[:200]}, which is no Answer",
        code="bae-lm-answer-type",
        fix=f"have {name}.answer return an Answer: return Answer(text, Usage(calls=1, …))",
    )


def mask_answer(answer: Answer, secrets: Iterable[str]) -> Answer:
    """Return an answer with its secrets masked."""
    value, used = answer.value, answer.usage
    if value is not UNPARSED:
        value = mask_parts(value, lambda text: mask(text, secrets))
    shown = f"{answer.text}{used.models}"
    calls, ran, echo = answer.calls, answer.ran, answer.echo
    if calls or ran or echo is not None:
        shown += f"{calls}{ran}{json.dumps(echo, ensure_ascii=False, default=str)}"
    if value is answer.value and not any(secret in shown for secret in secrets):
        return answer
    models = tuple(mask(read_name(model), secrets) for model in used.models)
    if models != used.models:
        used = replace(used, models=models)
    if calls or ran:
        calls = tuple(_mask_call(call, secrets) for call in calls)
        ran = tuple(
            (_mask_call(call, secrets), replace(result, result=mask(result.result, secrets)))
            for call, result in ran
        )
    text = mask(answer.text, secrets)
    # A provider refuses a changed echo, so the echo is dropped.
    return replace(answer, text=text, usage=used, value=value, calls=calls, ran=ran, echo=None)


def _mask_call(call: CallPart, secrets: Iterable[str]) -> CallPart:
    return replace(call, arguments=mask_parts(call.arguments, lambda text: mask(text, secrets)))


async def in_time(ask: Callable[[], Awaitable[T]]) -> T:
    """Call `ask`. As soon as the time of an active budget is over, cancel the call and raise
    `BudgetError`."""
    timed = [budget for budget in budgets_in_force() if budget.seconds is not None]
    if not timed:
        return await ask()
    seconds, budget = min(((b.remaining.seconds or 0.0, b) for b in timed), key=itemgetter(0))
    if seconds <= 0:
        raise budget.spent("seconds")
    bound = asyncio.timeout(seconds)
    try:
        async with bound:
            return await ask()
    except TimeoutError as error:
        if not bound.expired():
            raise
        raise budget.spent("seconds", cause=error) from error


def worth_retrying(error: BaseException) -> bool:
    """Return whether it may help to send the same request again."""
    if isinstance(error, BaeLMError):
        return error.retryable
    return isinstance(error, ConnectionError | TimeoutError)


def _is_resent(error: BaseException) -> bool:
    """Return whether bae sends a request again without `bae.lm.Retry`. bae does not repeat a
    request that timed out, because the next request would probably take as long."""
    failures = getattr(error, "failures", ())
    if failures:
        return any(map(_is_resent, failures))
    if isinstance(error, BaeLMError):
        is_late = error.code == "bae-lm-timeout" and error.status is None and error.sent
    else:
        is_late = isinstance(error, TimeoutError)
    return worth_retrying(error) and not is_late


async def retrying(
    ask: Callable[[], Awaitable[T]],
    retries: int,
    first: float = 0.5,
    *,
    longest: float = 60.0,
    factor: float = 2.0,
    jitter: float = 0.5,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    is_worth: Callable[[BaseException], bool],
) -> T:
    """Call `ask`. If it raises an error for which `is_worth` returns True, call it again, up to
    `retries` times.

    The first wait is `first` seconds. Each further wait is `factor` times longer, up to `longest`.
    Each wait is shortened at random by up to the share `jitter`, so that callers that failed
    together do not come back together. If a provider asks for a longer wait, the wait is at least
    that long. If a provider asks for more than `longest`, there is no further call. Observers see
    each retry. The last error is raised with a note on the retries.
    """
    waited = 0.0
    delay = min(first, longest)
    last: BaseException | None = None
    for tries in range(1, retries + 2):
        try:
            return await ask()
        except Exception as error:
            may_help = is_worth(error)
            requested_wait = getattr(error, "retry_after", None) or 0.0
            if may_help and tries <= retries and requested_wait <= longest:
                spread = delay * jitter * random.random()
                pause = max(delay - spread, requested_wait + spread if requested_wait else 0.0)
                last = error
                tell(Restart(error, pause))
            else:
                if last is not None:
                    error.add_note(
                        f"tried {tries} times, with {waited:.1f} s of waiting between; the failure"
                        f" before this was {describe(last)}"
                    )
                if may_help and tries <= retries:
                    error.add_note(
                        f"not tried again: the provider asks to wait {requested_wait:g} s, and the"
                        f" longest allowed is {longest:g} s"
                    )
                raise
        delay = min(delay * factor, longest)
        waited += pause
        await sleep(pause)
    raise AssertionError  # the last failure is raised


def _used_by_failure(backend: Backend, error: BaseException) -> Usage | None:
    """Return the usage of a failed request, as far as bae knows it. None if nothing was sent."""
    if isinstance(error, BudgetError):
        return None
    if isinstance(error, BaeLMError):
        if not error.sent:
            return None
        if error.usage is not None:
            return error.usage
    return Usage(calls=1, cost=0.0 if backend.free or _is_refused(error) else None)


def _is_refused(error: BaseException) -> bool:
    """Return whether a provider has refused a request and charges nothing for it."""
    return isinstance(error, BaeLMError) and error.usage is None and error.status in _UNCHARGED


_UNCHARGED = frozenset({*range(400, 500), 500, 503, 529} - {408})
"""HTTP statuses of requests that cost nothing. Other statuses from 500 up are not here, because a
proxy may send them after the model has answered."""
