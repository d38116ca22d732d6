"""What an HTTP status, or a connection that failed, means for whoever asked: one wording and one
judgement on whether asking again can help, for all backends that speak HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite

from bae.exceptions import BaeLMError


def status_error(
    who: str,
    status: int,
    said: str,
    *,
    headers: Mapping[str, str] | None = None,
    cause: BaseException | None = None,
) -> BaeLMError:
    """The error for an answer with a status of 400 or more.

    `who` is the backend with its model, `said` what the provider said, `headers` those of the
    answer, looked up in lower case.
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
        f"{who} answered with status {status}{after}: {_short(said)}",
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
        cause=cause,
        fix="check the network and the base URL; bae.lm.Retry(…) asks again by itself",
    )


def timeout_error(who: str, seconds: float | None, cause: BaseException | None) -> BaeLMError:
    """The error for an answer that did not come in time."""
    bound = "" if seconds is None else f" within {seconds:g} s"
    return BaeLMError(
        f"{who} did not answer{bound}",
        code="bae-lm-timeout",
        retryable=True,
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


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return max(0.0, number) if isfinite(number) else None


def _short(text: str, longest: int = 500) -> str:
    text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[:longest]}…"
