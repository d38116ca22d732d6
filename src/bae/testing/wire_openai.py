"""OpenAI's chat completions, as `Provider` speaks them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from bae.testing.wire import (
    Body,
    Channel,
    Counted,
    Piece,
    Said,
    Wire,
    chosen_tool,
    error_type,
    event,
    mapping,
    texts_in,
)

CREATED = 1_700_000_000
"""When every answer was made: a fixed time, so that equal requests have equal answers."""


class OpenAIWire(Wire):
    """What both of OpenAI's APIs share."""

    api = "openai"

    def error(self, status: int, message: str) -> Body:
        """The body of an error."""
        kind = "server_error" if status >= 500 else error_type(status)
        code = {401: "invalid_api_key", 429: "rate_limit_exceeded"}.get(status)
        return {"error": {"message": message, "type": kind, "param": None, "code": code}}


class ChatCompletions(OpenAIWire):
    """POST /v1/chat/completions."""

    def missing(self, body: Body) -> str | None:
        """The name of a parameter that the request cannot do without."""
        return next((name for name in ("model", "messages") if not body.get(name)), None)

    def pieces(self, body: Body) -> Iterator[Piece]:
        """The prompt in order."""
        for tool in body.get("tools") or ():
            yield Piece(json.dumps(tool), spoken=False)
        for message in body["messages"]:
            for text in texts_in(message.get("content")):
                yield Piece(text)
            for call in message.get("tool_calls") or ():
                yield Piece(call.get("function", {}).get("arguments", ""))

    def channel(self, body: Body) -> Channel:
        """How to answer."""
        choice = body.get("tool_choice") or "auto"
        tools = {
            tool["function"]["name"]: tool["function"].get("parameters")
            for tool in body.get("tools") or ()
            if tool.get("type") == "function"
        }
        named = mapping(mapping(choice).get("function")).get("name")
        asked = mapping(body.get("response_format"))
        forced = choice == "required" or named is not None
        if choice != "none" and (forced or asked.get("type") not in ("json_schema", "json_object")):
            replied = body["messages"][-1].get("role") == "tool"
            found = chosen_tool(tools, forced=forced, named=named, replied=replied)
            if found is not None:
                return found
        if asked.get("type") == "json_schema":
            return Channel(asked["json_schema"].get("schema"))
        return Channel({"type": "object"} if asked.get("type") == "json_object" else None)

    def with_usage(self, body: Body) -> bool:
        """Whether a stream is to end with the usage."""
        return bool(mapping(body.get("stream_options")).get("include_usage"))

    def whole(self, said: Said) -> Body:
        """The answer as one body."""
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        if said.stop == "refused":
            message["refusal"] = said.text
        elif said.tool is None:
            message["content"] = said.text
        else:
            message["tool_calls"] = [_call(said, said.text)]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(said)}
        return {
            **_frame(said, "chat.completion"),
            "choices": [choice],
            "usage": _usage(said.counted),
        }

    def events(self, said: Said) -> list[bytes]:
        """The answer as the events of a stream."""
        frame = _frame(said, "chat.completion.chunk")
        first: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
        if said.tool is not None:
            first = {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"index": 0, **_call(said, "")}],
            }
        deltas = [first]
        for chunk in said.chunks():
            if said.stop == "refused":
                deltas.append({"refusal": chunk})
            elif said.tool is None:
                deltas.append({"content": chunk})
            else:
                deltas.append({"tool_calls": [{"index": 0, "function": {"arguments": chunk}}]})
        bodies: list[dict[str, Any]] = [
            {**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
            for delta in deltas
        ]
        bodies.append(
            {**frame, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(said)}]}
        )
        if said.with_usage:
            bodies = [{**body, "usage": None} for body in bodies]
            bodies.append({**frame, "choices": [], "usage": _usage(said.counted)})
        return [*map(event, bodies), b"data: [DONE]\n\n"]

    def malformed(self) -> bytes:
        """An event of a stream that is not JSON."""
        return b'data: {"choices": [{"delta": {"content": oops\n\n'


def _frame(said: Said, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{said.number}",
        "object": kind,
        "created": CREATED,
        "model": said.model,
        "system_fingerprint": None,
    }


def _call(said: Said, arguments: str) -> dict[str, Any]:
    return {
        "id": f"call_{said.number}",
        "type": "function",
        "function": {"name": said.tool, "arguments": arguments},
    }


def _finish(said: Said) -> str:
    if said.stop == "cut-off":
        return "length"
    return "stop" if said.tool is None or said.stop == "refused" else "tool_calls"


def _usage(counted: Counted) -> dict[str, Any]:
    return {
        "prompt_tokens": counted.input,
        "completion_tokens": counted.output,
        "total_tokens": counted.input + counted.output,
        "prompt_tokens_details": {"cached_tokens": counted.read, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }
