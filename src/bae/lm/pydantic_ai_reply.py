"""What comes back from PydanticAI: a response that makes an answer, or an error."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from bae.exceptions import BaeLMError
from bae.lm.backend import Answer
from bae.lm.http import connection_error, malformed_error, status_error, timeout_error
from bae.lm.prices import cost_of
from bae.usage import Usage

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse


def response_in(messages: Sequence[ModelMessage]) -> ModelResponse | None:
    """The first response among these messages, if there is one."""
    from pydantic_ai.messages import ModelResponse

    return next((each for each in messages if isinstance(each, ModelResponse)), None)


def answer_of(response: ModelResponse, who: str) -> Answer:
    """The answer that a response of `who` makes, whatever PydanticAI thinks of it."""
    from pydantic_ai.messages import TextPart, ToolCallPart

    said = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    given = [part for part in response.parts if isinstance(part, ToolCallPart)]
    text = _arguments(given[0].args) if given else said
    usage = _usage(response)
    match response.finish_reason:
        case "length":
            return Answer(text, usage, "cut-off")
        case "content_filter":
            details = response.provider_details or {}
            return Answer(text or str(details.get("refusal") or ""), usage, "refused")
        case "error":
            raise BaeLMError(
                f"{who} ended its answer with an error",
                code="bae-lm-unavailable",
                retryable=True,
                usage=usage,
                fix="ask again later; bae.lm.Retry(…) does so by itself",
            )
        case _:
            return Answer(text, usage)


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
                return malformed_error(who, error)
            found = status_error(who, status, _said(error), headers=_headers(error), cause=error)
            # No money left is reported as too many requests, and waiting does not help.
            if isinstance(error, raised.ModelQuotaExceededError):
                found.retryable = False
            return found
        case raised.UnexpectedModelBehavior():
            return malformed_error(who, error)
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


def _arguments(given: Any) -> str:
    """What a tool was called with, as the model wrote it where that is known."""
    return given if isinstance(given, str) and given else json.dumps(given or {})


def _usage(response: ModelResponse) -> Usage:
    used = response.usage
    model = response.model_name or ""
    usage = Usage(
        calls=1,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cached_tokens=used.cache_read_tokens,
        cost=float(used.cost) if used.cost is not None else None,
        models=(model,) if model else (),
    )
    if usage.cost is not None or used.unmeasured_requests:
        return usage
    written = used.cache_write_tokens
    cost = cost_of(model, usage, response.provider_name, cache_write_tokens=written)
    return replace(usage, cost=cost)


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
