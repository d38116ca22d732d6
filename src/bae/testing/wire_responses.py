"""OpenAI's responses, as `Provider` speaks them."""

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
    chosen_tool,
    event,
    mapping,
    text_in,
    texts_in,
)
from bae.testing.wire_openai import CREATED, OpenAIWire


class Responses(OpenAIWire):
    """POST /v1/responses."""

    def missing(self, body: Body) -> str | None:
        """The name of a parameter that the request cannot do without."""
        return next((name for name in ("model", "input") if not body.get(name)), None)

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
        choice = body.get("tool_choice") or "auto"
        tools = {
            tool["name"]: tool.get("parameters")
            for tool in body.get("tools") or ()
            if tool.get("type") == "function"
        }
        picked = mapping(choice)
        named: str | None = picked.get("name")
        forced = choice == "required" or named is not None
        if picked.get("type") == "allowed_tools":
            allowed = [tool.get("name") for tool in picked["tools"]]
            tools = {name: tools[name] for name in allowed if name in tools}
            forced = picked.get("mode") == "required"
        asked = mapping(mapping(body.get("text")).get("format"))
        if choice != "none" and (forced or asked.get("type") not in ("json_schema", "json_object")):
            replied = mapping(body["input"][-1]).get("type") == "function_call_output"
            found = chosen_tool(tools, forced=forced, named=named, replied=replied)
            if found is not None:
                return found
        if asked.get("type") == "json_schema":
            return Channel(asked.get("schema"))
        return Channel({"type": "object"} if asked.get("type") == "json_object" else None)

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

    def malformed(self) -> bytes:
        """An event of a stream that is not JSON."""
        name = "response.output_text.delta"
        return f'event: {name}\ndata: {{"type": "{name}", "delta": oops\n\n'.encode()


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
        "usage": _usage(said.counted) if done else None,
    }


def _usage(counted: Counted) -> dict[str, Any]:
    return {
        "input_tokens": counted.input,
        "input_tokens_details": {"cached_tokens": counted.read, "cache_write_tokens": 0},
        "output_tokens": counted.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counted.input + counted.output,
    }
