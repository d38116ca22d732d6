"""OpenAI's chat completions and responses, as `Provider` speaks them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from bae.testing.wire import (
    Body,
    Channel,
    Counted,
    Piece,
    Said,
    Wire,
    error_type,
    event,
    mapping,
    text_in,
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


def _channel(
    body: Body,
    tools: Mapping[str, Any],
    asked: Body,
    schema: Any,
    *,
    named: str | None,
    replied: bool,
    forced: bool = False,
) -> Channel:
    choice = body.get("tool_choice")
    return Channel(
        tools=tools,
        schema={"type": "object"} if asked.get("type") == "json_object" else schema,
        formatted=asked.get("type") in ("json_schema", "json_object"),
        named=named,
        forced=forced or choice == "required" or named is not None,
        forbidden=choice == "none",
        replied=replied,
    )


class ChatCompletions(OpenAIWire):
    """POST /v1/chat/completions."""

    needed = ("model", "messages")
    malformed = b'data: {"choices": [{"delta": {"content": oops\n\n'

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
        tools = {
            tool["function"]["name"]: tool["function"].get("parameters")
            for tool in body.get("tools") or ()
            if tool.get("type") == "function"
        }
        asked = mapping(body.get("response_format"))
        named = mapping(mapping(body.get("tool_choice")).get("function")).get("name")
        schema = mapping(asked.get("json_schema")).get("schema")
        replied = body["messages"][-1].get("role") == "tool"
        return _channel(body, tools, asked, schema, named=named, replied=replied)

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


class Responses(OpenAIWire):
    """POST /v1/responses."""

    needed = ("model", "input")
    malformed = (
        b"event: response.output_text.delta\n"
        b'data: {"type": "response.output_text.delta", "delta": oops\n\n'
    )

    def pieces(self, body: Body) -> Iterator[Piece]:
        """The prompt in order."""
        for tool in body.get("tools") or ():
            yield Piece(json.dumps(tool), spoken=False)
        for text in texts_in(body.get("instructions")):
            yield Piece(text)
        if isinstance(body["input"], str):
            yield Piece(body["input"])
            return
        for item in body["input"]:
            if "content" in item:
                yield from map(Piece, texts_in(item["content"]))
            else:
                yield Piece(text_in(item))

    def channel(self, body: Body) -> Channel:
        """How to answer."""
        tools = {
            tool["name"]: tool.get("parameters")
            for tool in body.get("tools") or ()
            if tool.get("type") == "function"
        }
        picked = mapping(body.get("tool_choice"))
        if picked.get("type") == "allowed_tools":
            tools = {tool["name"]: tools[tool["name"]] for tool in picked["tools"]}
        asked = mapping(mapping(body.get("text")).get("format"))
        return _channel(
            *(body, tools, asked, asked.get("schema")),
            named=picked.get("name"),
            replied=mapping(body["input"][-1]).get("type") == "function_call_output",
            forced=picked.get("mode") == "required",
        )

    def whole(self, said: Said) -> Body:
        """The answer as one body."""
        return _response(said, [_item(said, said.text)] if said.text else [], done=True)

    def events(self, said: Said) -> list[bytes]:
        """The answer as the events of a stream."""
        started = _response(said, [], done=False)
        bodies: list[dict[str, Any]] = [
            {"type": "response.created", "response": started},
            {"type": "response.in_progress", "response": started},
        ]
        if said.text:
            bodies += _item_events(said)
        end = "response.incomplete" if said.stop == "cut-off" else "response.completed"
        bodies.append({"type": end, "response": self.whole(said)})
        return [
            event({**body, "sequence_number": number}, body["type"])
            for number, body in enumerate(bodies)
        ]


def _item_events(said: Said) -> list[dict[str, Any]]:
    place: dict[str, Any] = {"item_id": _id(said), "output_index": 0}
    empty = {**_item(said, ""), "status": "in_progress"}
    if said.tool is not None:
        name = "response.function_call_arguments"
        return [
            {"type": "response.output_item.added", "output_index": 0, "item": empty},
            *({"type": f"{name}.delta", **place, "delta": chunk} for chunk in said.chunks()),
            {"type": f"{name}.done", **place, "arguments": said.text, "name": said.tool},
            _item_done(said),
        ]
    place["content_index"] = 0
    key = "refusal" if said.stop == "refused" else "text"
    name = "response.refusal" if said.stop == "refused" else "response.output_text"
    extra: dict[str, Any] = {} if said.stop == "refused" else {"logprobs": []}
    return [
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**empty, "content": []},
        },
        {"type": "response.content_part.added", **place, "part": _part(said, "")},
        *({"type": f"{name}.delta", **place, "delta": chunk, **extra} for chunk in said.chunks()),
        {"type": f"{name}.done", **place, key: said.text, **extra},
        {"type": "response.content_part.done", **place, "part": _part(said, said.text)},
        _item_done(said),
    ]


def _item_done(said: Said) -> dict[str, Any]:
    item = _item(said, said.text)
    return {"type": "response.output_item.done", "output_index": 0, "item": item}


def _id(said: Said) -> str:
    return f"msg_{said.number}" if said.tool is None else f"fc_{said.number}"


def _item(said: Said, text: str) -> dict[str, Any]:
    status = "incomplete" if said.stop == "cut-off" else "completed"
    if said.tool is not None:
        return {
            "type": "function_call",
            "id": _id(said),
            "call_id": f"call_{said.number}",
            "name": said.tool,
            "arguments": text,
            "status": status,
        }
    return {
        "type": "message",
        "id": _id(said),
        "role": "assistant",
        "status": status,
        "content": [_part(said, text)],
    }


def _part(said: Said, text: str) -> dict[str, Any]:
    if said.stop == "refused":
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _response(said: Said, output: list[dict[str, Any]], *, done: bool) -> dict[str, Any]:
    cut = done and said.stop == "cut-off"
    status = "in_progress" if not done else "incomplete" if cut else "completed"
    return {
        "id": f"resp_{said.number}",
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": None,
        "metadata": {},
        "model": said.model,
        "output": output,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": _response_usage(said.counted) if done else None,
    }


def _response_usage(counted: Counted) -> dict[str, Any]:
    return {
        "input_tokens": counted.input,
        "input_tokens_details": {"cached_tokens": counted.read, "cache_write_tokens": 0},
        "output_tokens": counted.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counted.input + counted.output,
    }
