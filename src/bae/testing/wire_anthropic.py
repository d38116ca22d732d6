"""Anthropic's messages, as `Provider` speaks them, to the Claude CLI too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from bae.testing.wire import (
    STRUCTURED_OUTPUT,
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
)


class Messages(Wire):
    """POST /v1/messages."""

    api = "anthropic"

    needed = ("model", "messages", "max_tokens")

    def pieces(self, body: Body) -> list[Piece]:
        """The prompt in order."""
        found = [
            Piece(
                json.dumps({key: tool[key] for key in tool if key != "cache_control"}),
                cached=bool(tool.get("cache_control")),
                spoken=False,
            )
            for tool in body.get("tools") or ()
        ]
        for message in ({"content": body.get("system")}, *body["messages"]):
            for part in _parts(message):
                found.append(Piece(text_in(part), bool(part.get("cache_control"))))
        if body.get("cache_control") and found:
            # Caching of the whole prompt, asked for without saying up to where.
            found[-1] = replace(found[-1], cached=True)
        return found

    def channel(self, body: Body) -> WireChannel:
        """How to answer."""
        choice = mapping(body.get("tool_choice"))
        asked = mapping(mapping(body.get("output_config")).get("format"))
        kind = choice.get("type")
        return channel_of(
            tools={
                tool["name"]: tool["input_schema"]
                for tool in body.get("tools") or ()
                if "input_schema" in tool
            },
            schema=asked.get("schema"),
            formatted=bool(asked),
            named=choice.get("name") if kind == "tool" else None,
            forced=kind in ("any", "tool"),
            forbidden=kind == "none",
            replied=any(part.get("type") == "tool_result" for part in _last(body)),
        )

    def concludes(self, body: Body) -> bool:
        """Whether the request only reports that the structured answer before was taken."""
        results = [part for part in _last(body) if part.get("type") == "tool_result"]
        calls = {
            part.get("id"): part.get("name")
            for message in body["messages"]
            for part in _parts(message)
            if part.get("type") == "tool_use"
        }
        return any(
            calls.get(part.get("tool_use_id")) == STRUCTURED_OUTPUT and not part.get("is_error")
            for part in results
        )

    def whole(self, reply: ModelReply) -> Body:
        """The answer as one body."""
        content = [_block(reply)] if reply.text else []
        return {**_message(reply, content), **_stop(reply), "usage": _usage(reply.counted)}

    def events(self, reply: ModelReply) -> list[bytes]:
        """The answer as the events of a stream."""
        usage = _usage(reply.counted)
        start = {**_message(reply, []), "stop_reason": None, "stop_sequence": None}
        bodies: list[dict[str, Any]] = [
            {"type": "message_start", "message": {**start, "usage": {**usage, "output_tokens": 1}}},
            {"type": "ping"},
        ]
        if reply.text:
            block = _block(reply, empty=True)
            kind, key = "text_delta", "text"
            if block["type"] == "tool_use":
                kind, key = "input_json_delta", "partial_json"
            bodies.append({"type": "content_block_start", "index": 0, "content_block": block})
            bodies += [
                {"type": "content_block_delta", "index": 0, "delta": {"type": kind, key: chunk}}
                for chunk in reply.chunks()
            ]
            bodies.append({"type": "content_block_stop", "index": 0})
        bodies.append({"type": "message_delta", "delta": _stop(reply), "usage": usage})
        bodies.append({"type": "message_stop"})
        return [event(body, body["type"]) for body in bodies]

    def error(self, status: int, message: str) -> Body:
        """The body of an error."""
        return {
            "type": "error",
            "error": {"type": error_type(status), "message": message},
            "request_id": None,
        }


def _parts(message: Body) -> list[Body]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    parts = cast(list[Any], content if isinstance(content, list) else [])
    return [cast(Body, part) for part in parts if isinstance(part, Mapping)]


def _last(body: Body) -> list[Body]:
    return _parts(body["messages"][-1])


def _block(reply: ModelReply, *, empty: bool = False) -> dict[str, Any]:
    """The block of content that holds the answer, or will.

    What is not JSON cannot be the input of a tool: a model that says that says it as text. Of an
    input that was cut off, nothing is there.
    """
    try:
        arguments = json.loads(reply.text)
    except ValueError:
        arguments = None
    if reply.tool is None or (reply.stop != "cut-off" and arguments is None):
        return {"type": "text", "text": "" if empty else reply.text}
    given: Any = {} if empty else arguments or {}
    return {"type": "tool_use", "id": f"toolu_{reply.number}", "name": reply.tool, "input": given}


def _message(reply: ModelReply, content: list[Any]) -> dict[str, Any]:
    return {
        "id": f"msg_{reply.number}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": content,
    }


def _stop(reply: ModelReply) -> dict[str, Any]:
    details = None
    if reply.stop == "cut-off":
        reason = "max_tokens"
    elif reply.stop == "refused":
        reason = "refusal"
        details = {"type": "refusal", "category": None, "explanation": reply.text}
    elif reply.text and _block(reply)["type"] == "tool_use":
        reason = "tool_use"
    else:
        reason = "end_turn"
    return {"stop_reason": reason, "stop_sequence": None, "stop_details": details}


def _usage(counted: TokenCount) -> dict[str, Any]:
    return {
        "input_tokens": counted.input - counted.read - counted.written,
        "cache_creation_input_tokens": counted.written,
        "cache_read_input_tokens": counted.read,
        "output_tokens": counted.output,
        "service_tier": "standard",
    }
