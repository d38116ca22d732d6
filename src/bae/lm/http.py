"""What backends that talk to a provider share: one client for each event loop, errors for HTTP
statuses and failed connections, and settings without their keys and passwords."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import repeat
from operator import is_
from typing import Any, Final, Generic, TypeVar, cast
from weakref import WeakKeyDictionary, ref

from bae.exceptions import BaeLMError, BaeParseError, text_of
from bae.usage import read_number

C = TypeVar("C")


class PerLoop(Generic[C]):
    """Makes a client when an event loop first needs one, and closes it with the loop.

    Connections belong to the loop they were opened in: a backend that `graph.run` uses twice is
    used in two loops, and a client shared between them would fail in the second. `asyncio.run`
    closes async generators that are still suspended at the loop's end, so one holds the client.
    The client is also closed when the `PerLoop` is dropped, unless `close` holds a reference to it.
    """

    def __init__(self, make: Callable[[], C], close: Callable[[C], Awaitable[None]]) -> None:
        self._make = make
        self._close = close
        self._open: _Open[C] = WeakKeyDictionary()

    async def get(self) -> C:
        """The client of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._open.get(loop)
        if found is not None:
            return found[0]
        for other in [each for each in self._open if each.is_closed()]:
            del self._open[other]  # closed without closing what was open in it
        client = self._make()
        holder = _hold(client, self._close, ref(self._open))
        self._open[loop] = client, holder
        await anext(holder)
        return client

    async def aclose(self) -> None:
        """Close the client of the running loop; the next `get` makes a new one."""
        found = self._open.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found[1].aclose()


_Open = WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[C, AsyncGenerator[None]]]


async def _hold(
    client: C, close: Callable[[C], Awaitable[None]], among: ref[_Open[C]]
) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        # A suspended generator refers to its loop, so an entry for a loop would keep it alive.
        still = among()
        loop = asyncio.get_running_loop()
        found = still.get(loop) if still is not None else None
        if still is not None and found is not None and found[0] is client:
            del still[loop]
        await close(client)


# --- errors -----------------------------------------------------------------------------------


def error_for(who: str, error: Exception, seconds: float | None) -> Exception:
    """The error to raise in place of one that an SDK raised, found by the names of its classes:
    no SDK need be installed. One that is no failure of the call, such as a wrong argument, stays as
    it is. `seconds` is the bound on a time that was reached."""
    own = error
    while own is not None and not isinstance(own, BaeLMError):
        own = own.__cause__
    if own is not None:
        return own  # raised by bae, below the SDK
    kinds = [kind.__name__ for kind in type(error).__mro__]
    failure = next((_FAILURES[kind] for kind in kinds if kind in _FAILURES), None)
    status = _status(error)
    if isinstance(failure, int) and (status is None or status < 400):
        # Reported without a status, or inside a stream that began well.
        kind = getattr(error, "type", "")
        status = _IN_STREAM.get(kind, failure) if isinstance(kind, str) else failure
    match failure:
        case None if status is None:
            return error
        case "timeout":
            # A socket that gives up knows no bound of ours.
            bound = None if "TimeoutError" in kinds else getattr(error, "timeout", seconds)
            return timeout_error(who, bound, error)
        case "connection":
            return connection_error(who, error)
        case "malformed" if status is None or status < 400:
            return malformed_error(who, error)
        case _:
            said: Any = getattr(error, "body", None)
            while isinstance(said, Mapping):
                found = cast(Mapping[str, Any], said)
                said = found.get("error") or found.get("message")
            answer = getattr(error, "response", error)
            headers: dict[str, str] = dict(getattr(answer, "headers", None) or {})
            wait = getattr(error, "retry_after", None)
            if wait is not None:
                said_wait = f"{wait:f}" if isinstance(wait, float) else str(wait)
                headers.setdefault("retry-after", said_wait)
            if not isinstance(said, str) or not said:
                said = getattr(error, "message", None)
            said = said if isinstance(said, str) and said else text_of(error)
            made = status_error(who, cast(int, status), said, headers=headers, cause=error)
            if not _CONTEXT_FULL.isdisjoint(kinds):
                made.code = "bae-lm-context-exceeded"
                made.fix = "show the model less, or use a model with a larger context"
            return made


def _status(error: Exception) -> int | None:
    """The HTTP status that an error has, or its response; None if there is none."""
    for each in (error, getattr(error, "response", None)):
        for name in ("status_code", "status"):
            found: object = getattr(each, name, None)
            if isinstance(found, int) and 300 <= found < 600:
                return found
    return None


def status_error(
    who: str,
    status: int,
    said: str,
    *,
    headers: Mapping[str, str] | None = None,
    cause: BaseException | None = None,
    besides: str = "",
) -> BaeLMError:
    """The error for an answer with a status of 300 or more.

    `who` is the backend with its model and `said` the provider's message, which is shortened.
    `headers` are those of the answer, looked up in lower case. `besides` ends the message as it is.
    """
    found = headers or {}
    wait = retry_after(found)
    match status:
        case _ if status < 400:
            code = "bae-lm-request-refused"
            fix = "prompts are not sent where a redirect points: give base_url=… the right address"
        case 401 | 403:
            code, fix = "bae-lm-unauthorized", "check the key, and that it may use this model"
        case 404:
            code, fix = "bae-lm-not-found", "check the name of the model and the base URL"
        case 408 | 504:
            code, fix = "bae-lm-timeout", "ask again later, or for less at once"
        case 429:
            code = "bae-lm-rate-limited"
            fix = "ask less often: wrap the LM in bae.lm.RateLimit(…) or bae.lm.Concurrency(…)"
        case _ if status >= 500:
            code, fix = "bae-lm-unavailable", "ask again later; bae.lm.Retry(…) does so by itself"
        case _:
            code, fix = "bae-lm-request-refused", "see what the provider says about the request"
    # 409 is a lock that was not obtained in time; providers ask to retry.
    retryable = status in (408, 409, 425, 429) or status >= 500
    if found.get("x-should-retry") in ("true", "false"):
        retryable = found["x-should-retry"] == "true"
    after = f", retry after {wait:g} s" if wait is not None else ""
    return BaeLMError(
        f"{who} answered with status {status}{after}: {_short(said)}{besides}",
        code=code,
        retryable=retryable,
        retry_after=wait,
        status=status,
        cause=cause,
        fix=fix,
    )


def connection_error(who: str, cause: BaseException) -> BaeLMError:
    """The error for a connection that could not be made, or was cut."""
    return BaeLMError(
        f"{who} could not be reached, or broke off",
        code="bae-lm-unreachable",
        retryable=True,
        sent=_connected(cause),
        cause=cause,
        fix="check the network and the base URL; bae.lm.Retry(…) asks again by itself",
    )


def timeout_error(
    who: str, seconds: float | None, cause: BaseException | None, *, besides: str = ""
) -> BaeLMError:
    """The error for an answer that did not come in time; `besides` ends the message."""
    bound = "" if seconds is None else f" within {seconds:g} s"
    return BaeLMError(
        f"{who} did not answer{bound}{besides}",
        code="bae-lm-timeout",
        retryable=True,
        sent=_connected(cause),
        cause=cause,
        fix="give it longer with timeout=…, or ask for less at once; bae.lm.Retry(…) asks again "
        "by itself",
    )


def malformed_error(who: str, cause: BaseException | None) -> BaeParseError:
    """The error for a response that is not what the provider's API promises."""
    return BaeParseError(
        f"{who} got a response that is not one of its API",
        retryable=True,
        cause=cause,
        fix="check the base URL and any proxy; bae.lm.Retry(…) asks again by itself",
    )


_DATE: Final = re.compile(r"[A-Za-z0-9 ,:+-]{1,100}")
"""The characters of a date in a header."""


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds a provider asks to wait: a number, a number of milliseconds, or a date."""
    milliseconds = read_number(headers.get("retry-after-ms", "").strip(" \t"))
    if milliseconds is not None:
        return milliseconds / 1000
    given = headers.get("retry-after", "").strip(" \t")
    seconds = read_number(given)
    if seconds is not None:
        return seconds
    if not _DATE.fullmatch(given):
        return None
    from email.utils import parsedate_to_datetime

    try:
        until = parsedate_to_datetime(given)
        if until.tzinfo is None:
            until = until.replace(tzinfo=UTC)
        return max(0.0, (until - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, IndexError, OverflowError):  # whatever this is, it is no date
        return None


def _connected(error: BaseException | None) -> bool:
    """Whether there was a connection to send by, as far as the causes of an error show."""
    from socket import gaierror

    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if isinstance(error, ConnectionRefusedError | gaierror):
            return False
        if type(error).__name__ in _NOT_CONNECTED:
            return False
        seen.append(error)
        error = error.__cause__ or error.__context__
    return True


_FAILURES: Final[dict[str, int | str]] = {
    **dict.fromkeys(("APITimeoutError", "ModelRequestTimeout", "ModelTimeoutError"), "timeout"),
    **dict.fromkeys(("TimeoutException", "TimeoutError", "LMTimeoutError"), "timeout"),
    **dict.fromkeys(("APIConnectionError", "ModelConnectionError"), "connection"),
    **dict.fromkeys(("LMTransportError",), "connection"),
    **dict.fromkeys(("ConnectionError", "EOFError", "StreamError", "TransportError"), "connection"),
    **dict.fromkeys(("APIResponseValidationError", "DecodingError"), "malformed"),
    **dict.fromkeys(("ModelAPIError", "UnexpectedModelBehavior", "LMProviderError"), "malformed"),
    **dict.fromkeys(("ModelRequestRejectedError", "LMInvalidRequestError"), 400),
    **dict.fromkeys(("ModelAuthenticationError", "LMAuthError"), 401),
    **dict.fromkeys(("ModelQuotaExceededError", "LMBillingError"), 402),
    **dict.fromkeys(("ModelNotFoundError", "LMUnsupportedModelError"), 404),
    **dict.fromkeys(("ModelRateLimitError", "LMRateLimitError"), 429),
    **dict.fromkeys(("APIStatusError", "ModelServerError", "LMServerError"), 500),
    "ModelUnavailableError": 503,
}
"""What the errors of Anthropic's SDK, PydanticAI, DSPy, httpx and Python mean: a kind of failure,
or the HTTP status where they have none."""

_CONTEXT_FULL: Final = frozenset({"ModelContextWindowExceededError", "ContextWindowExceededError"})
"""What PydanticAI and DSPy raise where a prompt is too long for the model: no status says it."""

_IN_STREAM: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""HTTP statuses of the errors that Anthropic reports inside a stream."""

_NOT_CONNECTED: Final = frozenset({"ClientConnectorError", "ConnectError", "ConnectTimeout"})
"""What HTTP clients raise where no connection was made, by name: none of them need be installed."""


def _short(text: str, longest: int = 500) -> str:
    text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[:longest]}…"


# --- settings without secrets -----------------------------------------------------------------


def without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without those that are secrets by their names, at any depth, and without the
    user and password of a URL. Settings end up in caches and journals."""
    return {
        name: _mask(value)
        for name, value in settings.items()
        if not (
            is_secret_name(name, value)
            and (not isinstance(value, Mapping) or _contains(name, _ALWAYS_SECRET))
        )
    }


def is_secret_name(name: str, value: object = None) -> bool:
    """Whether a setting, environment variable or header is a secret, judging by its name, such as
    `API_KEY` or `Authorization`. With a `value`, a number of tokens is not a secret."""
    name = name.upper()
    if isinstance(value, int | float) or (isinstance(value, str) and value.isdecimal()):
        name = name.replace("TOKENS", "")
    return _contains(name, _ALWAYS_SECRET) or _contains(name, _SECRET_AS_TEXT)


def remove_passwords(text: str) -> str:
    """Remove users, passwords and keys from the URLs in a text."""
    if "://" not in text:
        return text
    return _PARAMETER.sub(
        lambda found: f"{found[1]}=" if is_secret_name(found[1]) else found[0], _USER.sub("", text)
    )


def secrets_in(settings: Mapping[str, Any]) -> Iterator[str]:
    """The texts among settings that are secrets by their names, at any depth; of "Bearer …" the key
    by itself too."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from secrets_in(cast(Mapping[str, Any], value))
        elif isinstance(value, str) and is_secret_name(name, value):
            yield from {value, *value.split()}


def mask(text: str, secrets: Iterable[str]) -> str:
    """A text with none of the secrets in it."""
    for secret in secrets:
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, MASK)
    return text


def mask_parts(value: Any, change: Callable[[str], str], depth: int = 0) -> Any:
    """A text, or lists and dicts of texts, changed; the same object where nothing is."""
    if isinstance(value, str):
        changed = change(value)
        return value if changed == value else changed
    if type(value) not in (dict, list, tuple):
        return value
    if depth > _DEEPEST:
        return MASK
    held = cast("dict[Any, Any] | list[Any]", value)
    parts = [*held, *held.values()] if isinstance(held, dict) else held
    found = [*map(mask_parts, parts, repeat(change), repeat(depth + 1))]
    if all(map(is_, found, parts)):
        return held
    if isinstance(held, dict):
        return dict(zip(found[: len(held)], found[len(held) :], strict=True))
    return type(held)(found)


def mask_error(error: BaseException, own: Iterable[str]) -> None:
    """Take a backend's `own` secrets, those of the environment and the passwords of URLs out of the
    texts of an error and its causes, in place: they are shown, logged and stored with it."""
    # The longest first, as one may be part of another.
    secrets = sorted({*own, *secrets_in(os.environ)}, key=len, reverse=True)

    def change(text: str) -> str:
        return remove_passwords(mask(text, secrets))

    chain = _with_causes(error)
    for each in chain:
        each.args = mask_parts(each.args, change)
        for name, value in [*vars(each).items()]:
            masked = mask_parts(value, change)
            if masked is not value:
                with suppress(AttributeError, TypeError):
                    setattr(each, name, masked)
    for each in chain:
        for name in ("__cause__", "__context__", "cause"):
            below = getattr(each, name, None)
            if isinstance(below, BaseException):
                shown = text_of(below)
                if shown != change(shown):  # it makes its text of something else
                    setattr(each, name, RuntimeError(f"{type(below).__name__}: {change(shown)}"))


def _with_causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and each not in found:
            found.append(each)
            left += [each.__cause__, each.__context__]
            if isinstance(each, BaseExceptionGroup):
                left += cast("BaseExceptionGroup[BaseException]", each).exceptions
    return found


def _mask(value: Any) -> Any:
    if isinstance(value, str):
        return remove_passwords(value)
    if isinstance(value, Mapping):
        return without_secrets(cast(Mapping[str, Any], value))
    if isinstance(value, list | tuple):
        return [_mask(each) for each in cast(list[Any], value)]
    return value


def _contains(name: str, parts: tuple[str, ...]) -> bool:
    return any(part in name.upper() for part in parts)


_ALWAYS_SECRET: Final = ("AUTH", "BEARER", "COOKIE", "CREDENTIAL", "JWT", "PASS", "PROXY", "SECRET")
_SECRET_AS_TEXT: Final = ("HEADER", "KEY", "TOKEN")
"""These also name things with parts, such as all headers or a field in a schema; there each part is
judged by its own name."""

MASK: Final = "***"
SHORTEST_SECRET: Final = 12
"""Characters of a key that is masked in texts: one such as "none", for a server that needs no key,
may be any word."""

_DEEPEST: Final = 200
"""JSON of more levels is not read from an answer."""

_USER: Final = re.compile(r"(?<=://)[^/?#\s]*@")
_PARAMETER: Final = re.compile(r"(?<=[?&;])([^=&;#\s]+)=[^&;#\s]*")
