"""Shared code of backends that talk to a provider: a client for each event loop, errors for HTTP
statuses and failed connections, and masks for keys and passwords."""

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
    """A client for each event loop: made on first use in a loop, closed with that loop.

    A connection belongs to the loop that opened it. If `graph.run` uses a backend twice, it is used
    in two loops, and a shared client would fail in the second. A suspended async generator holds
    the client: `asyncio.run` closes such generators at the end of the loop, which closes the
    client. The client is also closed when the `PerLoop` is dropped, unless `close` refers to it.
    """

    def __init__(self, make: Callable[[], C], close: Callable[[C], Awaitable[None]]) -> None:
        self._make = make
        self._close = close
        self._open: _Open[C] = WeakKeyDictionary()

    async def get(self) -> C:
        """The client of the running loop."""
        loop = asyncio.get_running_loop()
        entry = self._open.get(loop)
        if entry is not None:
            return entry[0]
        for other in [each for each in self._open if each.is_closed()]:
            del self._open[other]  # this loop was closed without closing its client
        client = self._make()
        holder = _hold(client, self._close, ref(self._open))
        self._open[loop] = client, holder
        await anext(holder)
        return client

    async def aclose(self) -> None:
        """Close the client of the running loop. The next `get` makes a new client."""
        entry = self._open.pop(asyncio.get_running_loop(), None)
        if entry is not None:
            await entry[1].aclose()


_Open = WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[C, AsyncGenerator[None]]]


async def _hold(
    client: C, close: Callable[[C], Awaitable[None]], among: ref[_Open[C]]
) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        # A suspended generator refers to its loop, so the entry would keep the loop alive.
        entries = among()
        loop = asyncio.get_running_loop()
        entry = entries.get(loop) if entries is not None else None
        if entries is not None and entry is not None and entry[0] is client:
            del entries[loop]
        await close(client)


# --- errors -----------------------------------------------------------------------------------


def error_for(who: str, error: Exception, seconds: float | None) -> Exception:
    """The error to raise instead of an SDK's error. The SDK's error is recognized by the name of
    its class, so that no SDK has to be installed. An error that is not about the call, such as a
    wrong argument, is returned unchanged. `seconds` is the timeout that was in effect."""
    own = error
    while own is not None and not isinstance(own, BaeLMError):
        own = own.__cause__
    if own is not None:
        return own  # raised by bae, below the SDK
    kinds = [kind.__name__ for kind in type(error).__mro__]
    failure = next((_FAILURES[kind] for kind in kinds if kind in _FAILURES), None)
    status = _status(error)
    if isinstance(failure, int) and (status is None or status < 400):
        # The error has no status, or came inside a stream that began with status 200.
        kind = getattr(error, "type", "")
        status = _IN_STREAM.get(kind, failure) if isinstance(kind, str) else failure
    match failure:
        case None if status is None:
            return error
        case "timeout":
            # A timeout of the socket is not the timeout of the backend.
            bound = None if "TimeoutError" in kinds else getattr(error, "timeout", seconds)
            return timeout_error(who, bound, error)
        case "connection":
            return connection_error(who, error)
        case "malformed" if status is None or status < 400:
            return malformed_error(who, error)
        case _:
            message: Any = getattr(error, "body", None)
            while isinstance(message, Mapping):
                body = cast(Mapping[str, Any], message)
                message = body.get("error") or body.get("message")
            answer = getattr(error, "response", error)
            headers: dict[str, str] = dict(getattr(answer, "headers", None) or {})
            wait = getattr(error, "retry_after", None)
            if wait is not None:
                wait_text = f"{wait:f}" if isinstance(wait, float) else str(wait)
                headers.setdefault("retry-after", wait_text)
            if not isinstance(message, str) or not message:
                message = getattr(error, "message", None)
            message = message if isinstance(message, str) and message else text_of(error)
            made = status_error(who, cast(int, status), message, headers=headers, cause=error)
            if not _CONTEXT_FULL.isdisjoint(kinds):
                made.code = "bae-lm-context-exceeded"
                made.fix = "show the model less, or use a model with a larger context"
            return made


def _status(error: Exception) -> int | None:
    """The HTTP status of an error or of its response, or None."""
    for each in (error, getattr(error, "response", None)):
        for name in ("status_code", "status"):
            status: object = getattr(each, name, None)
            if isinstance(status, int) and 300 <= status < 600:
                return status
    return None


def status_error(
    who: str,
    status: int,
    message: str,
    *,
    headers: Mapping[str, str] | None = None,
    cause: BaseException | None = None,
    besides: str = "",
) -> BaeLMError:
    """The error for a response with a status of 300 or more.

    `who` is the backend with its model. `message` is the provider's message, which is shortened.
    `headers` are the response's headers, with names in lower case. `besides` is appended unchanged.
    """
    given = headers or {}
    wait = retry_after(given)
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
    # 409 means that a lock was not obtained in time, and providers ask to retry.
    retryable = status in (408, 409, 425, 429) or status >= 500
    if given.get("x-should-retry") in ("true", "false"):
        retryable = given["x-should-retry"] == "true"
    after = f", retry after {wait:g} s" if wait is not None else ""
    return BaeLMError(
        f"{who} answered with status {status}{after}: {_short(message)}{besides}",
        code=code,
        retryable=retryable,
        retry_after=wait,
        status=status,
        cause=cause,
        fix=fix,
    )


def connection_error(who: str, cause: BaseException) -> BaeLMError:
    """The error for a connection that could not be opened, or broke."""
    return BaeLMError(
        f"{who} could not be reached, or broke off",
        code="bae-lm-unreachable",
        retryable=True,
        sent=_was_connected(cause),
        cause=cause,
        fix="check the network and the base URL; bae.lm.Retry(…) asks again by itself",
    )


def timeout_error(
    who: str, seconds: float | None, cause: BaseException | None, *, besides: str = ""
) -> BaeLMError:
    """The error for an answer that did not come in time. `besides` is appended to the message."""
    bound = "" if seconds is None else f" within {seconds:g} s"
    return BaeLMError(
        f"{who} did not answer{bound}{besides}",
        code="bae-lm-timeout",
        retryable=True,
        sent=_was_connected(cause),
        cause=cause,
        fix="give it longer with timeout=…, or ask for less at once; bae.lm.Retry(…) asks again "
        "by itself",
    )


def malformed_error(who: str, cause: BaseException | None) -> BaeParseError:
    """The error for a response that does not follow the provider's API."""
    return BaeParseError(
        f"{who} got a response that is not one of its API",
        retryable=True,
        cause=cause,
        fix="check the base URL and any proxy; bae.lm.Retry(…) asks again by itself",
    )


_DATE: Final = re.compile(r"[A-Za-z0-9 ,:+-]{1,100}")
"""Matches only the characters of a date in a header."""


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that a provider asks to wait. The headers give a number of seconds, a number of
    milliseconds, or a date."""
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
    except (ValueError, TypeError, IndexError, OverflowError):  # not a date
        return None


def _was_connected(error: BaseException | None) -> bool:
    """Whether there was a connection, judging by the causes of an error."""
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
"""The errors of Anthropic's SDK, PydanticAI, DSPy, httpx and Python by name. The value is a kind of
failure, or the HTTP status to use if the error has none."""

_CONTEXT_FULL: Final = frozenset({"ModelContextWindowExceededError", "ContextWindowExceededError"})
"""Errors of PydanticAI and DSPy for a prompt that is too long. No status says that."""

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
"""HTTP statuses for the errors that Anthropic reports inside a stream."""

_NOT_CONNECTED: Final = frozenset({"ClientConnectorError", "ConnectError", "ConnectTimeout"})
"""Errors of HTTP clients for a connection that was not opened, by name, so that no client has to be
installed."""


def _short(text: str, longest: int = 500) -> str:
    text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[:longest]}…"


# --- settings without secrets -----------------------------------------------------------------


def without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Remove settings whose names suggest a secret, at any depth, and the user and password of
    URLs. Settings are stored in caches and journals."""
    return {
        name: _mask(value)
        for name, value in settings.items()
        if not (
            is_secret_name(name, value)
            and (not isinstance(value, Mapping) or _contains(name, _ALWAYS_SECRET))
        )
    }


def is_secret_name(name: str, value: object = None) -> bool:
    """Whether the name of a setting, environment variable or header suggests a secret, such as
    `API_KEY` or `Authorization`. Pass the `value` if you know it: a number of tokens is no
    secret."""
    name = name.upper()
    if isinstance(value, int | float) or (isinstance(value, str) and value.isdecimal()):
        name = name.replace("TOKENS", "")
    return _contains(name, _ALWAYS_SECRET) or _contains(name, _SECRET_AS_TEXT)


def remove_passwords(text: str) -> str:
    """Remove users, passwords and keys from the URLs in a text."""
    if "://" not in text:
        return text
    return _PARAMETER.sub(
        lambda match: f"{match[1]}=" if is_secret_name(match[1]) else match[0], _USER.sub("", text)
    )


def secrets_in(settings: Mapping[str, Any]) -> Iterator[str]:
    """The values of settings whose names suggest a secret, at any depth. For "Bearer …" also the
    key alone."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from secrets_in(cast(Mapping[str, Any], value))
        elif isinstance(value, str) and is_secret_name(name, value):
            yield from {value, *value.split()}


def mask(text: str, secrets: Iterable[str]) -> str:
    """Replace the secrets in a text."""
    for secret in secrets:
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, MASK)
    return text


def mask_parts(value: Any, change: Callable[[str], str], depth: int = 0) -> Any:
    """Apply `change` to a text, or to all texts in lists and dicts. Returns the same object if
    nothing changes."""
    if isinstance(value, str):
        changed = change(value)
        return value if changed == value else changed
    if type(value) not in (dict, list, tuple):
        return value
    if depth > _DEEPEST:
        return MASK
    container = cast("dict[Any, Any] | list[Any]", value)
    parts = [*container, *container.values()] if isinstance(container, dict) else container
    masked = [*map(mask_parts, parts, repeat(change), repeat(depth + 1))]
    if all(map(is_, masked, parts)):
        return container
    if isinstance(container, dict):
        size = len(container)
        return dict(zip(masked[:size], masked[size:], strict=True))
    return type(container)(masked)


def mask_error(error: BaseException, own: Iterable[str]) -> None:
    """Mask secrets in the texts of an error and its causes, in place, since errors are shown,
    logged and stored. The secrets are the backend's `own`, those of the environment and the
    passwords of URLs."""
    # The longest first, since one secret may be part of another.
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
                if shown != change(shown):  # its text does not come from its attributes
                    setattr(each, name, RuntimeError(f"{type(below).__name__}: {change(shown)}"))


def _with_causes(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and each not in chain:
            chain.append(each)
            left += [each.__cause__, each.__context__]
            if isinstance(each, BaseExceptionGroup):
                left += cast("BaseExceptionGroup[BaseException]", each).exceptions
    return chain


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
"""These also name mappings, such as all headers or a field in a schema. In a mapping, each entry is
judged by its own name."""

MASK: Final = "***"
SHORTEST_SECRET: Final = 12
"""How many characters a secret needs to be masked in texts. A short one, such as "none" for a
server without keys, may be an ordinary word."""

_DEEPEST: Final = 200
"""The deepest level of JSON in an answer."""

_USER: Final = re.compile(r"(?<=://)[^/?#\s]*@")
_PARAMETER: Final = re.compile(r"(?<=[?&;])([^=&;#\s]+)=[^&;#\s]*")
