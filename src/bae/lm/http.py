"""Code that backends for providers share: clients for each event loop, errors for failed requests,
and masks for keys and passwords."""

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
    """Makes a client for each event loop on first use, and closes the client with the loop.

    A connection works only in the loop that opened it. Each `graph.run` has its own loop, so a
    client that two runs share would fail in the second run.

    Each client belongs to a suspended async generator. At the end of a loop, `asyncio.run` closes
    the loop's generators, and the generator closes its client. If the `PerLoop` is deleted earlier,
    its clients are closed then, unless `close` refers to the `PerLoop`.
    """

    def __init__(self, make: Callable[[], C], close: Callable[[C], Awaitable[None]]) -> None:
        self._make = make
        self._close = close
        self._open: _Open[C] = WeakKeyDictionary()

    async def get(self) -> C:
        """Return the client of the running loop."""
        loop = asyncio.get_running_loop()
        entry = self._open.get(loop)
        if entry is not None:
            return entry[0]
        for closed_loop in [key for key in self._open if key.is_closed()]:
            del self._open[closed_loop]  # the loop was closed without closing its client
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
        # Delete the entry, because its generator refers to the loop and would keep it alive.
        entries = among()
        loop = asyncio.get_running_loop()
        entry = entries.get(loop) if entries is not None else None
        if entries is not None and entry is not None and entry[0] is client:
            del entries[loop]
        await close(client)


# --- errors -----------------------------------------------------------------------------------


def error_for(who: str, error: Exception, seconds: float | None) -> Exception:
    """Return the error to raise instead of an SDK's error. An error that is not about the call,
    such as a wrong argument, is returned unchanged.

    The class name identifies an SDK's error, so that no SDK has to be installed. `seconds` is the
    timeout of the call, for the message.
    """
    bae_error = error
    while bae_error is not None and not isinstance(bae_error, BaeLMError):
        bae_error = bae_error.__cause__
    if bae_error is not None:
        return bae_error  # bae raised it inside the SDK
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
            # A socket has its own timeout, so leave the backend's timeout out of the message.
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
            response = getattr(error, "response", error)
            headers: dict[str, str] = dict(getattr(response, "headers", None) or {})
            wait = getattr(error, "retry_after", None)
            if wait is not None:
                wait_text = f"{wait:f}" if isinstance(wait, float) else str(wait)
                headers.setdefault("retry-after", wait_text)
            if not isinstance(message, str) or not message:
                message = getattr(error, "message", None)
            message = message if isinstance(message, str) and message else text_of(error)
            bae_failure = status_error(
                who, cast(int, status), message, headers=headers, cause=error
            )
            if not _CONTEXT_FULL.isdisjoint(kinds):
                bae_failure.code = "bae-lm-context-exceeded"
                bae_failure.fix = "show the model less, or use a model with a larger context"
            return bae_failure


def _status(error: Exception) -> int | None:
    """Return the HTTP status of an error or of its response, or None."""
    for source in (error, getattr(error, "response", None)):
        for name in ("status_code", "status"):
            status: object = getattr(source, name, None)
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
    """Return the error for a response with a status of 300 or more.

    - `who`: the backend and its model.
    - `message`: the provider's message, which the error shortens.
    - `headers`: the headers of the response, with names in lower case.
    - `besides`: text to append unchanged.
    """
    response_headers = headers or {}
    wait = retry_after(response_headers)
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
    # Providers send 409 if they could not obtain a lock in time, and ask to retry.
    retryable = status in (408, 409, 425, 429) or status >= 500
    if response_headers.get("x-should-retry") in ("true", "false"):
        retryable = response_headers["x-should-retry"] == "true"
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
    """Return the error for a connection that could not be opened, or that broke."""
    return BaeLMError(
        f"{who} could not be reached, or the connection broke",
        code="bae-lm-unreachable",
        retryable=True,
        sent=_was_connected(cause),
        cause=cause,
        fix="check the network and the base URL; bae.lm.Retry(…) asks again by itself",
    )


def timeout_error(
    who: str, seconds: float | None, cause: BaseException | None, *, besides: str = ""
) -> BaeLMError:
    """Return the error for an answer that did not come in time. `besides` is appended to the
    message."""
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
    """Return the error for a response that does not follow the provider's API."""
    return BaeParseError(
        f"{who} got a response that does not follow the provider's API",
        retryable=True,
        cause=cause,
        fix="check the base URL and any proxy; bae.lm.Retry(…) asks again by itself",
    )


_DATE: Final = re.compile(r"[A-Za-z0-9 ,:+-]{1,100}")
"""Matches only the characters of a date in a header."""


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds the provider asks to wait, or None. The headers have seconds,
    milliseconds or a date."""
    milliseconds = read_number(headers.get("retry-after-ms", "").strip(" \t"))
    if milliseconds is not None:
        return milliseconds / 1000
    header = headers.get("retry-after", "").strip(" \t")
    seconds = read_number(header)
    if seconds is not None:
        return seconds
    if not _DATE.fullmatch(header):
        return None
    from email.utils import parsedate_to_datetime

    try:
        until = parsedate_to_datetime(header)
        if until.tzinfo is None:
            until = until.replace(tzinfo=UTC)
        return max(0.0, (until - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, IndexError, OverflowError):  # not a date
        return None


def _was_connected(error: BaseException | None) -> bool:
    """Whether a connection was opened, judging by the causes of an error."""
    from socket import gaierror

    visited: list[BaseException] = []
    while error is not None and error not in visited:
        if isinstance(error, ConnectionRefusedError | gaierror):
            return False
        if type(error).__name__ in _NOT_CONNECTED:
            return False
        visited.append(error)
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
"""The errors of Anthropic's SDK, PydanticAI, DSPy, httpx and Python by class name. The value is a
kind of failure, or the HTTP status to use for an error without a status."""

_CONTEXT_FULL: Final = frozenset({"ModelContextWindowExceededError", "ContextWindowExceededError"})
"""Errors of PydanticAI and DSPy for a prompt that is too long. There is no HTTP status for this
failure."""

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
"""Class names of HTTP clients' errors for a connection that was not opened. With names, no client
has to be installed."""


def _short(text: str, longest: int = 500) -> str:
    text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[:longest]}…"


# --- settings without secrets -----------------------------------------------------------------


def without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without secrets, for caches and journals. Settings whose names suggest a
    secret are removed, at any depth. Users, passwords and keys are removed from URLs."""
    return {
        name: _clean_value(value)
        for name, value in settings.items()
        if not (
            is_secret_name(name, value)
            and (not isinstance(value, Mapping) or _contains(name, _ALWAYS_SECRET))
        )
    }


def is_secret_name(name: str, value: object = None) -> bool:
    """Whether the name of a setting, environment variable or header suggests a secret, such as
    `API_KEY` or `Authorization`. Pass the `value` if you know it, because `max_tokens` with a
    number is no secret."""
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
    """Yield the values of settings whose names suggest a secret, at any depth. For a value such as
    "Bearer KEY", also yield its words."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from secrets_in(cast(Mapping[str, Any], value))
        elif isinstance(value, str) and is_secret_name(name, value):
            yield from {value, *value.split()}


def mask(text: str, secrets: Iterable[str]) -> str:
    """Replace each secret in a text by `MASK`. Secrets shorter than `SHORTEST_SECRET` stay."""
    for secret in secrets:
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, MASK)
    return text


def mask_parts(value: Any, change: Callable[[str], str], depth: int = 0) -> Any:
    """Apply `change` to a text, or to all texts in lists and dicts. If nothing changes, return the
    same object."""
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
    """Mask secrets in the texts of an error and its causes, in place, because errors are shown,
    logged and stored.

    The secrets are the backend's `own`, the secrets in the environment, and the passwords in URLs.
    """
    # Mask the longest secret first, because one secret may be part of another.
    secrets = sorted({*own, *secrets_in(os.environ)}, key=len, reverse=True)

    def change(text: str) -> str:
        return remove_passwords(mask(text, secrets))

    chain = _with_causes(error)
    for link in chain:
        link.args = mask_parts(link.args, change)
        for name, value in [*vars(link).items()]:
            masked = mask_parts(value, change)
            if masked is not value:
                with suppress(AttributeError, TypeError):
                    setattr(link, name, masked)
    for link in chain:
        for name in ("__cause__", "__context__", "cause"):
            cause = getattr(link, name, None)
            if isinstance(cause, BaseException):
                shown = text_of(cause)
                if shown != change(shown):  # the text does not come from masked attributes
                    setattr(link, name, RuntimeError(f"{type(cause).__name__}: {change(shown)}"))


def _with_causes(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending:
        link = pending.pop()
        if link is not None and link not in chain:
            chain.append(link)
            pending += [link.__cause__, link.__context__]
            if isinstance(link, BaseExceptionGroup):
                pending += cast("BaseExceptionGroup[BaseException]", link).exceptions
    return chain


def _clean_value(value: Any) -> Any:
    if isinstance(value, str):
        return remove_passwords(value)
    if isinstance(value, Mapping):
        return without_secrets(cast(Mapping[str, Any], value))
    if isinstance(value, list | tuple):
        return [_clean_value(item) for item in cast(list[Any], value)]
    return value


def _contains(name: str, parts: tuple[str, ...]) -> bool:
    return any(part in name.upper() for part in parts)


_ALWAYS_SECRET: Final = ("AUTH", "BEARER", "COOKIE", "CREDENTIAL", "JWT", "PASS", "PROXY", "SECRET")
_SECRET_AS_TEXT: Final = ("HEADER", "KEY", "TOKEN")
"""Parts of names that suggest a secret only if the value is no mapping. In a mapping, such as all
headers, each entry is judged by its own name."""

MASK: Final = "***"
SHORTEST_SECRET: Final = 12
"""The fewest characters of a secret that is masked in texts. A shorter secret, such as "none" for a
server without keys, may be an ordinary word."""

_DEEPEST: Final = 200
"""The deepest level at which `mask_parts` looks for texts. Deeper values are replaced by `MASK`."""

_USER: Final = re.compile(r"(?<=://)[^/?#\s]*@")
_PARAMETER: Final = re.compile(r"(?<=[?&;])([^=&;#\s]+)=[^&;#\s]*")
