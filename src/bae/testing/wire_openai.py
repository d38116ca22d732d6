"""OpenAI's chat completions and responses, as `Provider` speaks them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from bae.testing.wire import (
    Body,
    ModelReply,
    Piece,
    TokenCount,
    Wire,
    WireChannel,
    channel_of,
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
) -> WireChannel:
    choice = body.get("tool_choice")
    return channel_of(
        tools,
        schema={"type": "object"} if asked.get("type") == "json_object" else schema,
        formatted=asked.get("type") in ("json_schema", "json_object"),
        named=named,
        forced=choice == "required" or named is not None,
        forbidden=choice == "none",
        replied=replied,
    )


class ChatCompletions(OpenAIWire):
    """POST /v1/chat/completions."""

    needed = ("model", "messages")

    def pieces(self, body: Body) -> Iterator[Piece]:
        """The prompt in order."""
        for tool in body.get("tools") or ():
            yield Piece(json.dumps(tool), spoken=False)
        for message in body["messages"]:
            for text in texts_in(message.get("content")):
                yield Piece(text)
            for call in message.get("tool_calls") or ():
                yield Piece(call.get("function", {}).get("arguments", ""))

    def channel(self, body: Body) -> WireChannel:
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

    def whole(self, reply: ModelReply) -> Body:
        """The answer as one body."""
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        if reply.stop == "refused":
            message["refusal"] = reply.text
        elif reply.tool is None:
            message["content"] = reply.text
        else:
            message["tool_calls"] = [_call(reply, reply.text)]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(reply)}
        return {
            **_frame(reply, "chat.completion"),
            "choices": [choice],
            "usage": _usage(reply.counted),
        }

    def events(self, reply: ModelReply) -> list[bytes]:
        """The answer as the events of a stream."""
        frame = _frame(reply, "chat.completion.chunk")

        def chunk(delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return {**frame, "choices": [choice]}

        def said(text: str) -> dict[str, Any]:
            if reply.tool is not None:
                return {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
            return {"refusal" if reply.stop == "refused" else "content": text}

        first: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
        if reply.tool is not None:
            calls = [{"index": 0, **_call(reply, "")}]
            first = {"role": "assistant", "content": None, "tool_calls": calls}
        bodies = [chunk(first), *(chunk(said(text)) for text in reply.chunks())]
        bodies.append(chunk({}, _finish(reply)))
        if reply.with_usage:
            bodies = [{**body, "usage": None} for body in bodies]
            bodies.append({**frame, "choices": [], "usage": _usage(reply.counted)})
        return [*map(event, bodies), b"data: [DONE]\n\n"]


def _frame(reply: ModelReply, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{reply.number}",
        "object": kind,
        "created": CREATED,
        "model": reply.model,
        "system_fingerprint": None,
    }


def _call(reply: ModelReply, arguments: str) -> dict[str, Any]:
    return {
        "id": f"call_{reply.number}",
        "type": "function",
        "function": {"name": reply.tool, "arguments": arguments},
    }


def _finish(reply: ModelReply) -> str:
    if reply.stop == "cut-off":
        return "length"
    return "stop" if reply.tool is None or reply.stop == "refused" else "tool_calls"


def _usage(counted: TokenCount) -> dict[str, Any]:
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

    def channel(self, body: Body) -> WireChannel:
        """How to answer."""
        tools = {
            tool["name"]: tool.get("parameters")
            for tool in body.get("tools") or ()
            if tool.get("type") == "function"
        }
        asked = mapping(mapping(body.get("text")).get("format"))
        named = mapping(body.get("tool_choice")).get("name")
        replied = mapping(body["input"][-1]).get("type") == "function_call_output"
        return _channel(body, tools, asked, asked.get("schema"), named=named, replied=replied)

    def whole(self, reply: ModelReply) -> Body:
        """The answer as one body."""
        return _response(reply, [_item(reply, reply.text)] if reply.text else [], done=True)

    def events(self, reply: ModelReply) -> list[bytes]:
        """The answer as the events of a stream."""
        started = _response(reply, [], done=False)
        bodies: list[dict[str, Any]] = [
            {"type": "response.created", "response": started},
            {"type": "response.in_progress", "response": started},
        ]
        if reply.text:
            bodies += _item_events(reply)
        end = "response.incomplete" if reply.stop == "cut-off" else "response.completed"
        bodies.append({"type": end, "response": self.whole(reply)})
        return [
            event({**body, "sequence_number": number}, body["type"])
            for number, body in enumerate(bodies)
        ]


def _item_events(reply: ModelReply) -> list[dict[str, Any]]:
    added = {**_item(reply, ""), "status": "in_progress"}
    done = _item(reply, reply.text)
    place: dict[str, Any] = {"item_id": _id(reply), "output_index": 0}
    before: list[dict[str, Any]] = []
    after: list[dict[str, Any]] = []
    extra: dict[str, Any] = {}
    if reply.tool is not None:
        name, key = "response.function_call_arguments", "arguments"
    else:
        added["content"], place["content_index"] = [], 0
        refused = reply.stop == "refused"
        name = "response.refusal" if refused else "response.output_text"
        key = "refusal" if refused else "text"
        extra = {} if refused else {"logprobs": []}
        part = "response.content_part"
        before = [{"type": f"{part}.added", **place, "part": _part(reply, "")}]
        after = [{"type": f"{part}.done", **place, "part": _part(reply, reply.text)}]
    return [
        {"type": "response.output_item.added", "output_index": 0, "item": added},
        *before,
        *({"type": f"{name}.delta", **place, "delta": chunk, **extra} for chunk in reply.chunks()),
        {"type": f"{name}.done", **place, key: reply.text, **extra},
        *after,
        {"type": "response.output_item.done", "output_index": 0, "item": done},
    ]


def _id(reply: ModelReply) -> str:
    return f"msg_{reply.number}" if reply.tool is None else f"fc_{reply.number}"


def _item(reply: ModelReply, text: str) -> dict[str, Any]:
    status = "incomplete" if reply.stop == "cut-off" else "completed"
    if reply.tool is not None:
        return {
            "type": "function_call",
            "id": _id(reply),
            "call_id": f"call_{reply.number}",
            "name": reply.tool,
            "arguments": text,
            "status": status,
        }
    return {
        "type": "message",
        "id": _id(reply),
        "role": "assistant",
        "status": status,
        "content": [_part(reply, text)],
    }


def _part(reply: ModelReply, text: str) -> dict[str, Any]:
    if reply.stop == "refused":
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _response(reply: ModelReply, output: list[dict[str, Any]], *, done: bool) -> dict[str, Any]:
    cut = done and reply.stop == "cut-off"
    status = "in_progress" if not done else "incomplete" if cut else "completed"
    return {
        "id": f"resp_{reply.number}",
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": None,
        "metadata": {},
        "model": reply.model,
        "output": output,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": _response_usage(reply.counted) if done else None,
    }


def _response_usage(counted: TokenCount) -> dict[str, Any]:
    return {
        "input_tokens": counted.input,
        "input_tokens_details": {"cached_tokens": counted.read, "cache_write_tokens": 0},
        "output_tokens": counted.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counted.input + counted.output,
    }
