"""What an HTTP status, or a connection that failed, means for whoever asked: one wording and one
judgement on whether asking again can help, for all backends that speak HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from socket import gaierror

from bae.exceptions import BaeLMError


def status_error(
    who: str,
    status: int,
    said: str,
    *,
    headers: Mapping[str, str] | None = None,
    cause: BaseException | None = None,
    besides: str = "",
) -> BaeLMError:
    """The error for an answer with a status of 400 or more.

    `who` is the backend with its model, `said` what the provider said, which is shortened,
    `headers` those of the answer, looked up in lower case, and `besides` ends the message as it is.
    """
    found = headers or {}
    wait = retry_after(found)
    match status:
        case 401 | 403:
            code, fix = "bae-lm-unauthorised", "check the key, and that it may use this model"
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
    # 409 is a lock that was not had in time; providers ask to try again.
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
        fix="give it longer with timeout=…, or ask for less at once",
    )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds a provider asks to wait: a number, a number of milliseconds, or a date."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    given = headers.get("retry-after")
    if given is None:
        return None
    seconds = _number(given)
    if seconds is not None:
        return seconds
    try:
        until = parsedate_to_datetime(given)
        if until.tzinfo is None:
            until = until.replace(tzinfo=UTC)
        return max(0.0, (until - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, IndexError, OverflowError):  # whatever this is, it is no date
        return None


def _connected(error: BaseException | None) -> bool:
    """Whether there was a connection to send by, as far as the causes of an error tell."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if isinstance(error, ConnectionRefusedError | gaierror) or type(error).__name__ in _UNMADE:
            return False
        seen.append(error)
        error = error.__cause__ or error.__context__
    return True


_UNMADE = frozenset({"ClientConnectorError", "ConnectError", "ConnectTimeout"})
"""What HTTP clients raise where no connection was made. Which of them a backend uses is not known
here, nor whether it is installed."""


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return max(0.0, number) if isfinite(number) else None


def _short(text: str, longest: int = 500) -> str:
    text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[:longest]}…"
