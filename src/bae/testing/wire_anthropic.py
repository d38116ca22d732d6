"""Anthropic's messages API for `Provider`, also for the Claude CLI."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from bae.testing.wire import (
    STRUCTURED_OUTPUT,
    Body,
    CallBlock,
    ModelReply,
    Piece,
    RanBlock,
    ThinkingBlock,
    TokenCount,
    Wire,
    WireChannel,
    channel_of,
    error_type,
    event,
    mapping,
    signature_of,
    text_in,
)


class MessagesWire(Wire):
    """POST /v1/messages."""

    api = "anthropic"
    call_id = "toolu_"

    needed = ("model", "messages", "max_tokens")

    def pieces(self, body: Body) -> list[Piece]:
        """Return the parts of the prompt, in order."""
        pieces = [
            Piece(
                json.dumps({key: tool[key] for key in tool if key != "cache_control"}),
                cached=bool(tool.get("cache_control")),
                spoken=False,
            )
            for tool in body.get("tools") or ()
        ]
        for message in ({"content": body.get("system")}, *body["messages"]):
            for part in _parts(message):
                pieces.append(Piece(text_in(part), bool(part.get("cache_control"))))
        if body.get("cache_control") and pieces:
            # `cache_control` of the request itself asks to cache the complete prompt.
            pieces[-1] = replace(pieces[-1], cached=True)
        return pieces

    def channel(self, body: Body) -> WireChannel:
        """Return how the model gives its answer: as a text or as a tool call."""
        choice = mapping(body.get("tool_choice"))
        answer_format = mapping(mapping(body.get("output_config")).get("format"))
        kind = choice.get("type")
        return channel_of(
            tools={
                tool["name"]: tool["input_schema"]
                for tool in body.get("tools") or ()
                if "input_schema" in tool
            },
            schema=answer_format.get("schema"),
            formatted=bool(answer_format),
            named=choice.get("name") if kind == "tool" else None,
            forced=kind in ("any", "tool"),
            forbidden=kind == "none",
            replied=any(_is(part, "tool_result") for part in _last(body)),
        )

    def concludes(self, body: Body) -> bool:
        """Return whether the request only reports that the client has accepted the last structured
        answer."""
        results = [part for part in _last(body) if _is(part, "tool_result")]
        calls = {
            part.get("id"): part.get("name")
            for message in body["messages"]
            for part in _parts(message)
            if _is(part, "tool_use")
        }
        return any(
            calls.get(part.get("tool_use_id")) == STRUCTURED_OUTPUT and not part.get("is_error")
            for part in results
        )

    def tools(self, body: Body) -> list[str]:
        """Return the names of the tools."""
        return [str(tool["name"]) for tool in body.get("tools") or ()]

    def results(self, body: Body) -> list[Any]:
        """Return the contents of the tool results in the last message."""
        return [part.get("content") for part in _last(body) if _is(part, "tool_result")]

    def check(self, body: Body) -> None:
        """Raise ValueError with the API's message if the API refuses the conversation."""
        offered, choice = body.get("tools"), mapping(body.get("tool_choice")).get("type")
        if choice is not None and not offered:
            raise ValueError("tool_choice: may only be specified while providing tools")
        thinks = mapping(body.get("thinking")).get("type") == "enabled"
        open_calls: list[str] = []
        for at, (role, parts) in enumerate(_turns(body)):
            _check_blocks(at, parts)
            used = [str(part.get("id")) for part in parts if _is(part, "tool_use")]
            if (used or any(_is(part, "tool_result") for part in parts)) and not offered:
                raise ValueError("tools: requests with `tool_use` or `tool_result` must define it")
            if role == "user":
                _check_results(at, parts, open_calls)
                open_calls = []
                continue
            if len({*used}) < len(used):
                raise ValueError(f"messages.{at}.content: `tool_use` ids must be unique")
            if used and thinks and not _is(parts[0], "thinking", "redacted_thinking"):
                raise ValueError(
                    f"messages.{at}.content.0.type: Expected `thinking` or `redacted_thinking`, "
                    f"but found `{parts[0].get('type')}`"
                )
            open_calls = used
        if open_calls:
            _refuse_open(len(body["messages"]) - 1, open_calls)

    def body_of(self, reply: ModelReply) -> Body:
        """Return the answer as a JSON body."""
        content = [block for _, block, _ in _blocks(reply)]
        return {**_message(reply, content), **_stop(reply), "usage": _usage(reply.counted)}

    def events(self, reply: ModelReply) -> list[bytes]:
        """Return the answer as the events of a stream."""
        usage = _usage(reply.counted)
        start = {**_message(reply, []), "stop_reason": None, "stop_sequence": None}
        bodies: list[dict[str, Any]] = [
            {"type": "message_start", "message": {**start, "usage": {**usage, "output_tokens": 1}}},
            {"type": "ping"},
        ]
        for at, (first, _, deltas) in enumerate(_blocks(reply)):
            bodies.append({"type": "content_block_start", "index": at, "content_block": first})
            bodies += [{"type": "content_block_delta", "index": at, "delta": d} for d in deltas]
            bodies.append({"type": "content_block_stop", "index": at})
        bodies.append({"type": "message_delta", "delta": _stop(reply), "usage": usage})
        bodies.append({"type": "message_stop"})
        return [event(body, body["type"]) for body in bodies]

    def error(self, status: int, message: str) -> Body:
        """Return the body of an error."""
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


def _is(part: Body, *kinds: str) -> bool:
    return part.get("type") in kinds


def _turns(body: Body) -> list[tuple[str, list[Body]]]:
    """Return the role and the parts of each message. Like the API, merge neighboring messages with
    the same role."""
    turns: list[tuple[str, list[Body]]] = []
    for message in body["messages"]:
        if turns and turns[-1][0] == message["role"]:
            turns[-1][1].extend(_parts(message))
        else:
            turns.append((str(message["role"]), _parts(message)))
    return turns


def _check_blocks(at: int, parts: list[Body]) -> None:
    """Raise ValueError for a block that the API refuses."""
    served = {str(part.get("id")) for part in parts if _is(part, "server_tool_use")}
    for number, part in enumerate(parts):
        where = f"messages.{at}.content.{number}"
        if _is(part, "text") and not str(part.get("text", "")).strip():
            raise ValueError(f"{where}: text content blocks must contain non-whitespace text")
        if _is(part, "thinking") and part.get("signature") != signature_of(part["thinking"]):
            raise ValueError(f"{where}: Invalid `signature` in `thinking` block")
        if str(part.get("type")).endswith("_tool_result"):
            served.discard(str(part.get("tool_use_id")))
    if served and not _is(parts[-1], "server_tool_use"):
        raise ValueError(f"messages.{at}: `server_tool_use` without a result: {sorted(served)}")


def _check_results(at: int, parts: list[Body], open_calls: list[str]) -> None:
    """Raise ValueError if the tool results do not match the open calls, or come after other
    content."""
    results = [n for n, part in enumerate(parts) if _is(part, "tool_result")]
    result_ids = [str(parts[n].get("tool_use_id")) for n in results]
    unknown = [id for id in result_ids if id not in open_calls]
    if unknown:
        raise ValueError(
            f"messages.{at}.content: unexpected `tool_use_id` found in `tool_result` blocks: "
            f"{', '.join(unknown)}. Each `tool_result` block must have a corresponding `tool_use` "
            "block in the previous message."
        )
    if len({*result_ids}) < len(result_ids):
        raise ValueError(f"messages.{at}.content: each tool_use must have a single result")
    missing = [id for id in open_calls if id not in result_ids]
    if missing or results != list(range(len(results))):
        _refuse_open(at - 1, missing or open_calls)


def _refuse_open(at: int, open_calls: list[str]) -> None:
    raise ValueError(
        f"messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(open_calls)}. Each `tool_use` block must have a corresponding `tool_result` "
        "block in the next message."
    )


def _blocks(reply: ModelReply) -> Iterator[tuple[Body, Body, list[Body]]]:
    """Yield for each content block: the block at its start, the complete block, and the streamed
    deltas between them.

    A tool input that is not JSON is sent as a text block. A tool input that was cut off is empty.
    """
    for block in reply.blocks:
        match block:
            case CallBlock() if (input_value := _input(reply, block)) is not None:
                call = {"type": "tool_use", "id": block.id, "name": block.name}
                pieces = reply.chunks(block.arguments) if block.arguments not in ("", "{}") else []
                deltas = _deltas("input_json", "partial_json", ["", *pieces] if pieces else [])
                yield {**call, "input": {}}, {**call, "input": input_value}, deltas
            case ThinkingBlock():
                complete = {"type": "thinking", "thinking": block.text}
                complete["signature"] = signature_of(block.text)
                deltas = _deltas("thinking", "thinking", reply.chunks(block.text))
                deltas += _deltas("signature", "signature", [complete["signature"]])
                yield {"type": "thinking", "thinking": "", "signature": ""}, complete, deltas
            case RanBlock():
                call = {"type": "server_tool_use", "id": block.id, "name": block.name}
                deltas = _deltas("input_json", "partial_json", [json.dumps(block.arguments)])
                yield {**call, "input": {}}, {**call, "input": dict(block.arguments)}, deltas
                if block.result is not None:
                    kind = f"{block.name}_tool_result"
                    result = {"type": kind, "tool_use_id": block.id, "content": block.result}
                    yield result, result, []
            case _:
                text = {"type": "text", "text": block.text}
                yield {**text, "text": ""}, text, _deltas("text", "text", reply.chunks(block.text))


def _deltas(kind: str, key: str, pieces: Iterable[str]) -> list[Body]:
    return [{"type": f"{kind}_delta", key: piece} for piece in pieces]


def _input(reply: ModelReply, call: CallBlock) -> Any:
    """Return the input of a call. If the arguments are invalid JSON because they are raw or cut
    off, return an empty object. If they are invalid for another reason, return None."""
    try:
        return json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        is_last = call is reply.calls[-1]
        return {} if call.is_raw or (reply.stop == "cut-off" and is_last) else None


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
    elif reply.stop == "paused":
        reason = "pause_turn"
    elif any(_input(reply, call) is not None for call in reply.calls):
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
