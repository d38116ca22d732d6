"""Between a prompt and the messages of PydanticAI: the conversation so far, and the answer that a
response makes. `pydantic_ai_backend.py` sends and receives them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bae.exceptions import BaeLMError
from bae.lm.backend import Answer, Prompt
from bae.lm.prices import cost_of
from bae.usage import Usage

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse


def conversation(prompt: Prompt) -> tuple[list[ModelMessage], str]:
    """What was said before, and what is said now."""
    from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

    *before, last = prompt.messages()
    history: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart(said["content"])])
        if said["role"] == "user"
        else ModelResponse(parts=[TextPart(said["content"])])
        for said in before
    ]
    return history, last["content"]


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
