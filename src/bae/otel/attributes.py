"""What spans say, as attributes: usage, LM calls and errors, by the semantic conventions where they
have a name for it and under `bae.` elsewhere. Nothing here says what was asked, answered or raised
unless `content` is asked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from bae.exceptions import BaeError, describe

if TYPE_CHECKING:
    from bae.usage import Attempt, Usage

Value = str | bool | int | float | list[str]
Attributes = dict[str, Value]


def of_place(path: str, step: int, node: str) -> Attributes:
    """Where in a run something stands."""
    said: Attributes = {"bae.node": node, "bae.step": step}
    return {**said, "bae.path": path} if path else said


def of_usage(usage: Usage) -> Attributes:
    """What several calls used together. Not under the names of the conventions: these stand on the
    calls themselves, and who adds them up would count them twice."""
    said: Attributes = {"bae.usage.calls": usage.calls, "bae.usage.attempts": usage.attempts}
    if usage.tokens:
        said["bae.usage.input_tokens"] = usage.input_tokens
        said["bae.usage.output_tokens"] = usage.output_tokens
    if usage.cached_tokens:
        said["bae.usage.cached_tokens"] = usage.cached_tokens
    if usage.cost is not None:
        said["bae.usage.cost"] = usage.cost
    if usage.models:
        said["bae.usage.models"] = list(usage.models)
    return said


def of_attempt(attempt: Attempt, by: str, *, content: bool) -> Attributes:
    """One answer of a model, and what was found wrong with it."""
    usage = attempt.usage
    said: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider_of(usage.models[-1] if usage.models else ""),
        "gen_ai.output.type": "json",
        "gen_ai.response.finish_reasons": [_FINISHED.get(attempt.verdict, "stop")],
        "bae.by": by,
        "bae.attempt": attempt.number,
        "bae.verdict": attempt.verdict,
    }
    if usage.models:
        said["gen_ai.response.model"] = usage.models[-1]
    if usage.tokens:
        said["gen_ai.usage.input_tokens"] = usage.input_tokens
        said["gen_ai.usage.output_tokens"] = usage.output_tokens
    if usage.cached_tokens:
        said["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    if usage.cost is not None:
        said["bae.usage.cost"] = usage.cost
    if content:
        if attempt.asked:
            said["gen_ai.input.messages"] = _messages("user", attempt.asked)
        if attempt.answer:
            reason = _FINISHED.get(attempt.verdict, "stop")
            said["gen_ai.output.messages"] = _messages("assistant", attempt.answer, reason)
        if attempt.errors:
            said["bae.errors"] = list(attempt.errors)
    return said


def of_error(error: BaseException) -> Attributes:
    """Which error it was, by type and code."""
    said: Attributes = {"error.type": error_type(error)}
    code = getattr(error, "code", None)
    if isinstance(code, str) and code:
        said["bae.error.code"] = code
    return said


def error_type(error: BaseException) -> str:
    """The name of an error's class, that of the original one where it was read from a journal."""
    recorded = getattr(error, "type_name", None)
    if isinstance(recorded, str):
        return recorded
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{_name(cls)}"


def error_text(error: BaseException, *, content: bool) -> str:
    """One line about an error; without `content` one that quotes nothing."""
    if content:
        return error.message if isinstance(error, BaeError) else describe(error)
    return str(getattr(error, "code", None) or error_type(error))


def provider_of(model: str) -> str:
    """Who offers a model, as the conventions name them: the best that its name tells."""
    before, slash, rest = model.lower().partition("/")
    if slash and before in _PROVIDERS.values():
        return before
    if slash and before in _PREFIXES:
        return _PREFIXES[before]
    name = rest if slash else before
    for start, provider in _PROVIDERS.items():
        if name.startswith(start):
            return provider
    return "unknown"


def _messages(role: str, text: str, reason: str = "") -> str:
    message: dict[str, object] = {"role": role, "parts": [{"type": "text", "content": text}]}
    if reason:
        message["finish_reason"] = reason
    return json.dumps([message], ensure_ascii=False)


def _name(cls: type) -> str:
    return cls.__qualname__.replace("<locals>.", "")


_FINISHED: Final = {"cut-off": "length", "refused": "content_filter"}
_PROVIDERS: Final = {
    "claude": "anthropic",
    "gpt-": "openai",
    "chatgpt": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "codestral": "mistral_ai",
    "deepseek": "deepseek",
    "command": "cohere",
    "grok": "x_ai",
    "sonar": "perplexity",
}
_PREFIXES: Final = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex_ai": "gcp.vertex_ai",
    "xai": "x_ai",
    "groq": "groq",
}
"""How model names that name their provider spell it, where the conventions spell it otherwise."""
