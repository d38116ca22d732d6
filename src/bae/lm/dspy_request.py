"""One request to an LM of DSPy's, with the schema of the answer in the provider's channel for
structured output, or in words; and what its response says."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from bae.lm.extras import is_there, load_dspy
from bae.lm.provider_schemas import closed, for_claude, is_strict, unfit

_dspy = load_dspy("JSONSchemaAdapter")


@dataclass(frozen=True, slots=True)
class Request:
    """A question to a model. `own` are the settings of this call alone, where those of the LM
    itself are not enough."""

    body: Mapping[str, Any]
    schema: Mapping[str, Any]
    prompt_cache: Any
    control: Mapping[str, Any]
    own: Mapping[str, Any]
    by_channel: bool = True

    def send(self, lm: Any) -> Any:
        """Send it; what comes back is DSPy's response."""
        request = self._typed()
        if request is not None:
            return lm(request, **self.control)
        with _by_messages(lm, self.body["messages"]) as asked:
            asked.lm(messages=asked.messages, **self._options())
        return asked.response

    async def asend(self, lm: Any) -> Any:
        """Send it; what comes back is DSPy's response."""
        request = self._typed()
        if request is not None:
            return await lm.acall(request, **self.control)
        with _by_messages(lm, self.body["messages"]) as asked:
            await asked.lm.acall(messages=asked.messages, **self._options())
        return asked.response

    def in_words(self) -> Request:
        """The same with the schema in the prompt, for a model without a channel for it."""
        system, *rest = self.body["messages"]
        first = {**system, "content": f"{system['content']}\n\nThe schema: {_json(self.schema)}"}
        return replace(self, body={**self.body, "messages": [first, *rest]}, by_channel=False)

    def _typed(self) -> Any:
        """A request of DSPy's own engine, or None where it cannot carry a setting of the LM."""
        try:
            request = _dspy.lm15.request_from_openai_chat({**self.body, **self._channel()})
        except _dspy.lm15.UnsupportedFeatureError:
            return None
        if self.prompt_cache is None:
            return request
        return replace(request, config=replace(request.config, cache=self.prompt_cache))

    def _options(self) -> dict[str, Any]:
        return {**self.own, **self.control, **self._channel()}

    def _channel(self) -> dict[str, Any]:
        return _channel(self.body["model"], self.schema) if self.by_channel else {}


def options_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of an LM's settings that are part of a request."""
    return {k: v for k, v in settings.items() if k not in _NOT_SENT and v is not None}


def can_be_carried(settings: Mapping[str, Any]) -> bool:
    """Whether a request of DSPy's own engine can carry these settings."""
    body = {"model": "any", "messages": [{"role": "user", "content": "any"}], **settings}
    try:
        _dspy.lm15.request_from_openai_chat(body)
    except _dspy.lm15.UnsupportedFeatureError:
        return False
    except (TypeError, ValueError):  # the question itself will show what is wrong
        return True
    return True


def text_of(response: Any) -> str:
    """What a response says, without thoughts and refusals."""
    said: list[str] = []
    for part in response.message.parts:
        if part.type == "text":
            said.append(part.text)
        elif part.type == "data":  # JSON that was parsed on the way
            said.append(_json(part.value))
        elif part.type == "tool_call":
            return _json(part.input)
    return "".join(said)


def refusal_of(response: Any) -> str:
    """What a response says about why there is no answer, if it is a refusal."""
    said = [part.text for part in response.message.parts if part.type == "refusal"]
    if not said:
        # LiteLLM puts it where dspy does not look.
        match response.provider_data:
            case {"choices": [{"message": {"provider_specific_fields": {"refusal": str(text)}}}]}:
                said.append(text)
            case _:
                pass
    return "\n".join(said)


def _channel(model: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a request, in OpenAI's words, that holds the answer to a schema. A schema that
    Claude's structured output refuses goes by a tool, which Claude is made to use."""
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", str(schema.get("title", "Answer")))[:64]
    if not model.startswith("anthropic/"):
        sent = closed(schema)
        strict = {"strict": True} if is_strict(sent) else {}
        return _format({"name": name, "schema": sent, **strict})
    if is_there("anthropic") and unfit(schema) is None:
        return _format({"name": name, "schema": for_claude(schema)})
    about = "Give your answer, the whole of it, to this function."
    function = {"name": name, "description": about, "parameters": dict(schema)}
    return {
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": name}},
    }


def _format(sent: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": sent}}


@dataclass(slots=True)
class _ByMessages:
    """An LM to ask by `messages`, and after that its `response`."""

    lm: Any
    messages: list[dict[str, Any]]
    kept: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def response(self) -> Any:
        """The answer, in the form in which DSPy answers a request."""
        lm15 = _dspy.lm15
        raw = self.kept[0]["response"]
        if isinstance(raw, lm15.Response):
            return raw
        bare = lm15.request_from_openai_chat({"model": self.lm.model, "messages": self.messages})
        boundary: Any = import_module("dspy.clients.lm15_boundary")
        response: Any = boundary.response_value(raw, self.lm.model_type, bare)
        if getattr(raw, "cache_hit", False):
            response = replace(response, usage=lm15.Usage(input_tokens=0, output_tokens=0))
        return response


@contextmanager
def _by_messages(lm: Any, messages: list[dict[str, Any]]) -> Generator[_ByMessages]:
    """A copy of an LM that keeps its responses, for settings that no request carries: credentials
    of a cloud, options of a server, whatever LiteLLM knows. Where the LM itself keeps a history,
    the call is in it too."""
    adapters: Any = import_module("dspy.adapters.base")
    copy = lm.copy()
    for name in ("n", "num_generations"):  # each answer is asked for by itself
        copy.kwargs.pop(name, None)
    asked = _ByMessages(copy, messages)
    copy.update_history = asked.kept.append
    # What is answered besides the text, such as why it ended, is only in the history.
    with adapters.adapter_message_call(copy, messages), _dspy.context(disable_history=False):
        yield asked
    if not _dspy.settings.disable_history:
        for entry in asked.kept:
            lm.update_history(entry)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_NOT_SENT = frozenset(
    {
        *("api_base", "api_key", "api_version", "azure_ad_token_provider", "base_url", "cache"),
        *("custom_llm_provider", "extra_headers", "extra_query", "headers", "n", "num_generations"),
        *("organization", "project", "prompt_cache", "rollout_id", "timeout"),
    }
)
"""Settings of an LM that are for the connection, or for dspy, and no part of a request."""
