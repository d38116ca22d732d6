"""What a failure of Anthropic's SDK, or of the connection under it, means for whoever asked."""

from __future__ import annotations

from bae.exceptions import BaeLMError, BaeParseError
from bae.lm.http_errors import connection_error, status_error, timeout_error


def error_for(who: str, error: Exception, *, idle: float) -> Exception:
    """The error to raise in place of one the SDK raised; one that is no failure of the call, such
    as a wrong argument, stays as it is. `idle` is the bound on the time between two pieces."""
    import anthropic
    import httpx2

    match error:
        case anthropic.APIStatusError():
            status = error.status_code
            if status < 400:  # told inside a stream that had begun well
                status = _STATUSES.get(error.type or "", 500)
            said = error.api_message or error.message
            return status_error(
                who, status, said, headers=dict(error.response.headers), cause=error
            )
        case anthropic.APITimeoutError() | httpx2.TimeoutException():
            return timeout_error(who, idle, error)
        case anthropic.APIConnectionError() | httpx2.TransportError() | httpx2.StreamError():
            return connection_error(who, error)
        case anthropic.APIResponseValidationError() | httpx2.DecodingError():
            return not_understood(who, error)
        case TimeoutError():  # of a socket, where no bound of ours is over
            return timeout_error(who, None, error)
        case ConnectionError():
            return connection_error(who, error)
        case ValueError() | AttributeError():  # no JSON, or JSON without what is promised in it
            return not_understood(who, error)
        case anthropic.CredentialsError():
            return BaeLMError(
                f"{who} has no credentials that work",
                code="bae-lm-unauthorised",
                sent=False,
                cause=error,
                fix="set the environment variable ANTHROPIC_API_KEY, or mend the profile it uses",
            )
        case _:
            return error


def not_understood(who: str, cause: BaseException | None) -> BaeParseError:
    """The error for an answer of the provider that is not what its API promises."""
    return BaeParseError(
        f"{who} was sent something that is no message of its API",
        retryable=True,
        cause=cause,
        fix="check the base URL and what stands between; bae.lm.Retry(…) asks again by itself",
    )


_STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
