"""The names and attributes of spans. If the semantic conventions for generative AI have a name,
bae uses this name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from bae.exceptions import BaeError
from bae.records import RecordedError
from bae.sources import find_source_kind
from bae.unicode import readable
from bae.work import NOTHING_USED, GraphRun, LMQuestion, Source, Step, ToolRun

if TYPE_CHECKING:
    from bae.place import Place
    from bae.usage import Attempt, Usage

Attributes = dict[str, Any]


def known(about: Mapping[str, Any]) -> Attributes:
    """Return the attributes whose values are not empty."""
    return {name: value for name, value in about.items() if value not in (None, "", [])}


def describe_work(work: GraphRun | Step | Source | LMQuestion | ToolRun) -> tuple[str, Attributes]:
    """Return the name and the attributes of the span of some work."""
    match work:
        case ToolRun():
            about = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": work.name,
                "gen_ai.tool.call.id": work.id,
                "gen_ai.tool.type": "function",
                "gen_ai.tool.description": work.loop.descriptions.get(work.name, ""),
                **_about_place(work.step.place),
                "bae.field": work.loop.field_name,
                "bae.round": work.round,
            }
            return f"execute_tool {work.name}", about
        case GraphRun():
            name = work.name or ("" if work.source is None else work.source.by)
            about = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
            return f"invoke_agent {name}".strip(), {**about, "bae.path": work.path}
        case Step():
            return f"step {work.name}", _about_place(work.place)
        case Source():
            place, by = work.place, work.by
            about = {"bae.field": place.field, "bae.source": work.kind, "bae.by": by}
            about |= {**_about_place(place), "bae.parameter": place.parameter}
            if find_source_kind(work.kind).asks_person:
                return f"{work.kind} {place.node}.{place.field}", about
            return f"{work.kind} {by}", about
        case LMQuestion():
            about, name = _about_place(work.asked_by.place), work.asker.node.__name__
            if work.asker.kind == "fill":
                return f"fill {name}", about
            offered = [name_of(cls) for cls in work.offered]
            return f"choose after {name}", {**about, "bae.offered": offered}


def _about_place(place: Place) -> Attributes:
    return {"bae.node": place.node, "bae.step": place.step, "bae.path": place.path}


def about_conversation(thread: str | None, metadata: Mapping[str, Any]) -> Attributes:
    """Return the attributes for a run's thread, session and user, which every span of the run has.

    If the metadata has no `session_id`, the thread is the session. Tracing tools group traces by
    session.
    """
    ids = {name: metadata.get(name) for name in ("session_id", "user_id")}
    texts = {name: str(value) for name, value in ids.items() if isinstance(value, str | int)}
    return known(
        {
            "gen_ai.conversation.id": thread,
            "session.id": texts.get("session_id", thread),
            "user.id": texts.get("user_id"),
        }
    )


def about_turns(source: Source) -> Attributes:
    turns = source.turns
    if turns is None:
        return {}
    about = {"bae.field": source.place.field, "bae.turns": turns.count}
    return {**about, "bae.turns_omitted": turns.omitted}


def about_recall(source: Source) -> Attributes:
    path, step, name = source.origin or ("", 0, "")
    at = f"{path}/{step}" if path else f"{step}"
    field = source.place.field + source.place.parameter
    return {"bae.field": field, "bae.origin": f"{at}.{name}" if name else at}


def about_usage(usage: Usage) -> Attributes:
    """Return the total usage of several calls, under bae's own names.

    The `chat` spans of the single calls use the names of the conventions. If the totals had the
    same names, a sum over all spans would count each call twice.
    """
    if usage == NOTHING_USED:
        return {}
    return {
        "bae.usage.calls": usage.calls,
        "bae.usage.attempts": usage.attempts,
        "bae.usage.input_tokens": usage.input_tokens if usage.tokens else None,
        "bae.usage.output_tokens": usage.output_tokens if usage.tokens else None,
        "bae.usage.cached_tokens": usage.cached_tokens or None,
        "bae.usage.cost": usage.cost,
        "bae.usage.models": list(usage.models),
    }


def about_attempt(attempt: Attempt, by: str, *, content: bool) -> Attributes:
    """Return the attributes of a model's answer: its request, its verdict and, with `content`, its
    text."""
    reason = FINISHED.get(attempt.verdict, "stop")
    about = {
        **about_chat(attempt.usage, by),
        "gen_ai.response.finish_reasons": [reason],
        **about_verdict(attempt, content=content),
    }
    if content:
        about["gen_ai.output.messages"] = _messages("assistant", attempt.answer, reason)
    return about


def about_chat(usage: Usage, by: str) -> Attributes:
    """Return the attributes of a request to a model, from the request's usage."""
    model = usage.models[-1] if usage.models else ""
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider_of(model),
        "gen_ai.output.type": "json",
        "gen_ai.response.model": model,
        "gen_ai.usage.input_tokens": usage.input_tokens if usage.tokens else None,
        "gen_ai.usage.output_tokens": usage.output_tokens if usage.tokens else None,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens or None,
        "bae.usage.cost": usage.cost,
        "bae.by": by,
    }


def about_verdict(attempt: Attempt, *, content: bool) -> Attributes:
    """Return the attributes for the verdict on an answer. With `content`, they include the prompt
    and the validation errors."""
    about: Attributes = {"bae.attempt": attempt.number, "bae.verdict": attempt.verdict}
    if content:
        about["gen_ai.input.messages"] = _messages("user", attempt.asked)
        about["bae.errors"] = list(attempt.errors)
    return about


def about_error(error: BaseException) -> Attributes:
    return known({"error.type": error_type(error), "bae.error.code": code_of(error)})


def code_of(error: BaseException) -> str:
    return error.code or "" if isinstance(error, BaeError | RecordedError) else ""


def error_type(error: BaseException) -> str:
    """Return the name of an error's class. For an error from a journal, return the name of the
    original class."""
    if isinstance(error, RecordedError):
        return error.type_name
    cls = type(error)
    name = cls.__qualname__.replace("<locals>.", "")
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{name}"


def provider_of(model: str) -> str:
    """Guess the provider from the name of a model. Return the provider's name in the conventions,
    or "unknown"."""
    before, slash, rest = model.lower().partition("/")
    name = rest if slash else before
    if slash and before in _PROVIDERS.values():
        return before
    for start, provider in _PROVIDERS.items():
        if name.startswith(start) or f"{before}{slash}".startswith(start):
            return provider
    return "unknown"


def _messages(role: str, text: str, reason: str = "") -> str:
    """Return a text as a JSON message in the format of the conventions. An empty text stays
    empty."""
    message: Attributes = {"role": role, "parts": [{"type": "text", "content": text}]}
    if reason:
        message["finish_reason"] = reason
    return json.dumps([message], ensure_ascii=False) if text else ""


def round_message(text: str, calls: Iterable[Mapping[str, Any]], reason: str) -> str:
    """Return an answer with its tool calls as a JSON message in the format of the conventions."""
    parts: list[Attributes] = [{"type": "text", "content": text}] if text else []
    parts += [{"type": "tool_call", **call} for call in calls]
    return text_of_json([{"role": "assistant", "parts": parts, "finish_reason": reason}])


def text_of_json(value: Any) -> str:
    return readable(json.dumps(value, ensure_ascii=False, default=str), LONGEST)


def name_of(cls: type) -> str:
    return "None" if cls is NoneType else cls.__name__


LONGEST: Final = 40_000
"""The maximum length of a traceback, and of a tool call's arguments and result, in characters."""
NOT_CALLED: Final = "not_called"
"""The `error.type` of a tool call with an unknown tool or wrong arguments."""
FINISHED: Final = {"cut-off": "length", "refused": "content_filter"}
"""The finish reason in the conventions for a verdict. For all other verdicts it is "stop"."""
_PROVIDERS: Final = {
    "azure/": "azure.ai.openai",
    "bedrock/": "aws.bedrock",
    "groq/": "groq",
    "vertex_ai/": "gcp.vertex_ai",
    "xai/": "x_ai",
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
"""The provider for the beginning of a model's name. The model's name may have a router's prefix:
`claude` matches `claude-…` and `router/claude-…`."""
