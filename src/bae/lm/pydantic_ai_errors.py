"""What a failure of PydanticAI, or of the SDK under it, means for whoever asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from bae.exceptions import BaeLMError, BaeParseError
from bae.lm.http_errors import connection_error, status_error, timeout_error


def error_for(who: str, error: Exception, timeout: float) -> Exception:
    """The error to raise in place of one PydanticAI raised; what is no failure of the call stays
    as it is."""
    from pydantic_ai import exceptions as raised

    match error:
        case raised.FallbackExceptionGroup():
            return error_for(who, error.exceptions[-1], timeout)
        case raised.ModelTimeoutError() | raised.ModelRequestTimeout():
            bound = error.timeout if isinstance(error, raised.ModelRequestTimeout) else timeout
            return timeout_error(who, bound, error)
        case raised.ModelConnectionError():
            return connection_error(who, error)
        case raised.ModelAPIError():
            status = _status(error)
            if status is None:
                return _not_understood(who, error)
            found = status_error(who, status, _said(error), headers=_headers(error), cause=error)
            # No money left is told as too many requests, and waiting does not bring any.
            if isinstance(error, raised.ModelQuotaExceededError):
                found.retryable = False
            return found
        case raised.UnexpectedModelBehavior():
            return _not_understood(who, error)
        case raised.UserError():
            return BaeLMError(
                f"{who} could not be asked: {error.message}",
                code="bae-lm-request-refused",
                sent=False,
                cause=error,
                fix="check output=… and model_settings=…, and what the model can do",
            )
        case _:
            return error


def model_error(name: str, error: ImportError | RuntimeError) -> BaeLMError:
    """The error for a model that could not be made from its name."""
    from pydantic_ai.exceptions import UserError

    who = f"PydanticAIBackend({name!r})"
    match error:
        case UserError() if error.message.startswith("Unknown model"):
            return BaeLMError(
                f"{who}: PydanticAI knows no model of this name",
                code="bae-lm-not-found",
                cause=error,
                fix='give "provider:model", as "openai:gpt-5-mini"',
            )
        case ImportError():
            provider = name.partition(":")[0]
            return BaeLMError(
                f"{who} needs a package that is not installed",
                code="bae-lm-extra-missing",
                cause=error,
                fix=f"pip install 'pydantic-ai-slim[{provider}]'",
            )
        case _:
            named = re.search("`([A-Z][A-Z0-9_]+)`", str(error))
            variable = named[1] if named else "that it names"
            return BaeLMError(
                f"{who} has no key to ask with",
                code="bae-lm-unauthorised",
                cause=error,
                fix=f"set the environment variable {variable}",
            )


def no_model(given: object) -> TypeError:
    """The error for what is neither the name of a model nor a model."""
    kind = type(given)
    made = "OpenAIChatModel(name, provider=OpenAIProvider(openai_client=client))"
    if kind.__module__.partition(".")[0] == "anthropic":
        made = "AnthropicModel(name, provider=AnthropicProvider(anthropic_client=client))"
    return TypeError(
        f"PydanticAIBackend({kind.__name__}): give the name of a model, as "
        f'"openai:gpt-5-mini", or a model of PydanticAI; a client goes into one: {made}'
    )


def _status(error: Any) -> int | None:
    """The HTTP status, or the one that providers with statuses would have sent."""
    from pydantic_ai import exceptions as raised

    match error:
        case raised.ModelHTTPError():
            return error.status_code
        case raised.ModelRateLimitError():
            return 429
        case raised.ModelQuotaExceededError():
            return 402
        case raised.ModelUnavailableError():
            return 503
        case raised.ModelServerError():
            return 500
        case raised.ModelAuthenticationError():
            return 401
        case raised.ModelNotFoundError():
            return 404
        case raised.ModelRequestRejectedError():
            return 400
        case _:
            return None


def _headers(error: Any) -> dict[str, str]:
    headers: dict[str, str] = dict(getattr(error, "headers", None) or {})
    if error.retry_after is not None:
        headers.setdefault("retry-after", str(error.retry_after))
    return headers


def _said(error: Any) -> str:
    body: object = error.body
    while isinstance(body, Mapping):
        found = cast(Mapping[str, object], body)
        body = found.get("error") or found.get("message")
    return str(body or error.message)


def _not_understood(who: str, error: Exception) -> BaeParseError:
    return BaeParseError(
        f"{who} was sent something that is no answer of its API",
        retryable=True,
        cause=error,
        fix="check the base URL and what stands between; bae.lm.Retry(…) asks again by itself",
    )
