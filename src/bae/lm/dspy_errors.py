"""What a failure inside DSPy means for whoever asked. DSPy has one family of errors, whichever of
its engines the request went through; this says it in bae's words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bae.exceptions import BaeLMError, BaeParseError
from bae.lm.dspy_package import load_dspy
from bae.lm.http import connection_error, status_error, timeout_error


def error_for(who: str, error: Exception) -> BaeLMError:
    """The error to raise in place of one that DSPy raised."""
    dspy = load_dspy(who)
    match error:
        case dspy.LMNotConfiguredError():
            return BaeLMError(
                f"{who} has no key to ask with, or misses another setting",
                code="bae-lm-unauthorised",
                sent=False,
                cause=error,
                fix="set the environment variable for the key, or give dspy.LM(…, api_key=…)",
            )
        case dspy.LMBillingError():
            refused = _answered(who, error, 402)
            refused.retryable = False  # some say it with the status of a rate limit
            return refused
        case dspy.LMRateLimitError():
            return _answered(who, error, 429)
        case dspy.LMTimeoutError():
            if error.status is None:
                return timeout_error(who, None, error)
            return _answered(who, error, 504)
        case dspy.LMServerError() if _is_made_up(error):
            if any(isinstance(cause, ValueError) for cause in _causes(error)):
                return _not_understood(who, error)
            return connection_error(who, error)
        case dspy.LMServerError():
            return _answered(who, error, 500)
        case dspy.LMAuthError():
            return _answered(who, error, 401)
        case dspy.LMUnsupportedModelError():
            return _answered(who, error, 404)
        case dspy.LMInvalidRequestError():
            return _answered(who, error, 400)
        case dspy.LMUnsupportedFeatureError():
            return BaeLMError(
                f"{who} cannot be asked as it is set: {error.message.partition(_ADVICE)[0]}",
                code="bae-lm-request-refused",
                sent=False,
                cause=error,
                fix="leave out the setting that it names, or give the LM another engine",
            )
        case ImportError():
            return BaeLMError(
                f"{who} needs a package that is not installed: {error}",
                code="bae-lm-extra-missing",
                sent=False,
                cause=error,
                fix=f"pip install {error.name or 'litellm'}",
            )
        case dspy.LMTransportError():
            return connection_error(who, error)
        case dspy.LMProviderError() if error.status is None or error.status < 400:
            return _not_understood(who, error)
        case dspy.LMProviderError():
            return _answered(who, error, error.status)
        case _ if isinstance(error.__cause__, TimeoutError):
            return timeout_error(who, None, error)
        case _ if isinstance(error.__cause__, ConnectionError):
            return connection_error(who, error)
        case _:
            return BaeLMError(
                f"{who} could not ask the model",
                cause=error,
                fix="see the cause; it is raised by dspy, or by the LM that was given",
            )


def _answered(who: str, error: Any, status: int) -> BaeLMError:
    headers = _headers(error)
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    return status_error(
        who,
        error.status or status,
        error.message.partition(_ADVICE)[0],
        headers=headers,
        cause=error,
    )


def _not_understood(who: str, error: Exception) -> BaeParseError:
    return BaeParseError(
        f"{who} was sent something that is no answer of its API",
        retryable=True,
        cause=error,
        fix="check the base URL and what stands between; bae.lm.Retry(…) asks again by itself",
    )


def _is_made_up(error: Exception) -> bool:
    """Whether the status is LiteLLM's, which has one where there was no answer too."""
    asked = any(type(cause).__module__.startswith("litellm.") for cause in _causes(error))
    return asked and not _headers(error)


def _headers(error: Exception) -> dict[str, str]:
    """Those of the answer, which an error of LiteLLM has, somewhere underneath."""
    for cause in _causes(error):
        found: Any = getattr(cause, "litellm_response_headers", None)
        if found is not None:
            return {str(name).lower(): str(value) for name, value in dict(found).items()}
    return {}


def _causes(error: Exception) -> Iterator[BaseException]:
    cause = error.__cause__ or error.__context__
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


_ADVICE = "\n\n"
"""What follows in a message of DSPy's is advice, and not on bae."""
