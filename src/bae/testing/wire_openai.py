"""OpenAI's chat completions and responses APIs for `Provider`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from bae.testing.wire import (
    Block,
    Body,
    CallBlock,
    ModelReply,
    Piece,
    RanBlock,
    TextBlock,
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
    texts_in,
)

CREATED = 1_700_000_000
"""The creation time in every answer. It is constant, so that equal requests get equal answers."""


class OpenAIWire(Wire):
    """The base class of OpenAI's two APIs."""

    api = "openai"
    call_id = "call_"

    def error(self, status: int, message: str) -> Body:
        """Return the body of an error."""
        kind = "server_error" if status >= 500 else error_type(status)
        code = {401: "invalid_api_key", 429: "rate_limit_exceeded"}.get(status)
        return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _channel(
    body: Body,
    tools: Mapping[str, Any],
    answer_format: Body,
    schema: Any,
    *,
    named: str | None,
    replied: bool,
) -> WireChannel:
    choice = body.get("tool_choice")
    return channel_of(
        tools,
        schema={"type": "object"} if answer_format.get("type") == "json_object" else schema,
        formatted=answer_format.get("type") in ("json_schema", "json_object"),
        named=named,
        forced=choice == "required" or named is not None,
        forbidden=choice == "none",
        replied=replied,
    )


class ChatCompletions(OpenAIWire):
    """POST /v1/chat/completions."""

    needed = ("model", "messages")

    def pieces(self, body: Body) -> Iterator[Piece]:
        """Yield the parts of the prompt, in order."""
        for tool in body.get("tools") or ():
            yield Piece(json.dumps(tool), spoken=False)
        for message in body["messages"]:
            for text in texts_in(message.get("content")):
                yield Piece(text)
            for call in message.get("tool_calls") or ():
                yield Piece(call.get("function", {}).get("arguments", ""))

    def channel(self, body: Body) -> WireChannel:
        """Return how the model gives its answer: as a text or as a tool call."""
        tools = {
            tool["function"]["name"]: tool["function"].get("parameters")
            for tool in body.get("tools") or ()
            if tool.get("type") == "function"
        }
        answer_format = mapping(body.get("response_format"))
        named = mapping(mapping(body.get("tool_choice")).get("function")).get("name")
        schema = mapping(answer_format.get("json_schema")).get("schema")
        replied = body["messages"][-1].get("role") == "tool"
        return _channel(body, tools, answer_format, schema, named=named, replied=replied)

    def with_usage(self, body: Body) -> bool:
        """Return whether a stream ends with the usage, which the client must ask for."""
        return bool(mapping(body.get("stream_options")).get("include_usage"))

    def tools(self, body: Body) -> list[str]:
        """Return the names of the tools."""
        return [str(mapping(tool.get("function")).get("name")) for tool in body.get("tools") or ()]

    def results(self, body: Body) -> list[Any]:
        """Return the contents of the tool results after the model's last message."""
        contents: list[Any] = []
        for message in reversed(body["messages"]):
            if message.get("role") == "assistant":
                break
            if message.get("role") == "tool":
                contents.insert(0, message.get("content"))
        return contents

    def check(self, body: Body) -> None:
        """Raise ValueError with the API's message if the API refuses the conversation."""
        _check_choice(body)
        open_calls: list[str] = []
        for at, message in enumerate(body["messages"]):
            if message.get("role") == "tool":
                id = str(message.get("tool_call_id"))
                if id not in open_calls:
                    raise ValueError(
                        f"messages.[{at}].role: messages with role 'tool' must be a response to a "
                        "preceding message with 'tool_calls'"
                    )
                open_calls.remove(id)
            else:
                _refuse_open(open_calls)
                open_calls = [str(call.get("id")) for call in message.get("tool_calls") or ()]
        _refuse_open(open_calls)

    def body_of(self, reply: ModelReply) -> Body:
        """Return the answer as a JSON body."""
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        if reply.stop == "refused":
            message["refusal"] = reply.text
        elif reply.text or not reply.calls:
            message["content"] = reply.text
        if reply.calls:
            message["tool_calls"] = [_call(call, call.arguments) for call in reply.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(reply)}
        return {
            **_frame(reply, "chat.completion"),
            "choices": [choice],
            "usage": _usage(reply.counted),
        }

    def events(self, reply: ModelReply) -> list[bytes]:
        """Return the answer as the events of a stream."""
        frame = _frame(reply, "chat.completion.chunk")

        def chunk(delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return {**frame, "choices": [choice]}

        key = "refusal" if reply.stop == "refused" else "content"
        first: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
        if reply.calls and not reply.text:
            first = {"role": "assistant", "content": None}
        bodies = [chunk(first), *(chunk({key: text}) for text in reply.chunks(reply.text))]
        for at, call in enumerate(reply.calls):
            bodies.append(chunk({"tool_calls": [{"index": at, **_call(call, "")}]}))
            for text in reply.chunks(call.arguments):
                piece = {"index": at, "function": {"arguments": text}}
                bodies.append(chunk({"tool_calls": [piece]}))
        bodies.append(chunk({}, _finish(reply)))
        if reply.with_usage:
            bodies = [{**body, "usage": None} for body in bodies]
            bodies.append({**frame, "choices": [], "usage": _usage(reply.counted)})
        return [*map(event, bodies), b"data: [DONE]\n\n"]


def _check_choice(body: Body) -> None:
    if body.get("tool_choice") and not body.get("tools"):
        raise ValueError("tool_choice: is only allowed when 'tools' are specified")


def _refuse_open(open_calls: list[str]) -> None:
    if open_calls:
        raise ValueError(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to"
            " each 'tool_call_id'. The following tool_call_ids did not have response messages: "
            f"{', '.join(open_calls)}"
        )


def _frame(reply: ModelReply, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{reply.number}",
        "object": kind,
        "created": CREATED,
        "model": reply.model,
        "system_fingerprint": None,
    }


def _call(call: CallBlock, arguments: str) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _finish(reply: ModelReply) -> str:
    if reply.stop == "cut-off":
        return "length"
    return "tool_calls" if reply.calls and reply.stop != "refused" else "stop"


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
        """Yield the parts of the prompt, in order."""
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
        """Return how the model gives its answer: as a text or as a tool call."""
        tools = {
            tool["name"]: tool.get("parameters")
            for tool in body.get("tools") or ()
            if tool.get("type") == "function"
        }
        answer_format = mapping(mapping(body.get("text")).get("format"))
        named = mapping(body.get("tool_choice")).get("name")
        replied = mapping(body["input"][-1]).get("type") == "function_call_output"
        return _channel(
            body, tools, answer_format, answer_format.get("schema"), named=named, replied=replied
        )

    def tools(self, body: Body) -> list[str]:
        """Return the names of the tools."""
        return [str(tool.get("name") or tool.get("type")) for tool in body.get("tools") or ()]

    def results(self, body: Body) -> list[Any]:
        """Return the contents of the tool results after the model's last item."""
        outputs: list[Any] = []
        for item in reversed(_items(body)):
            if item.get("type") in ("function_call", "reasoning") or _is_assistant(item):
                break
            if item.get("type") == "function_call_output":
                outputs.insert(0, item.get("output"))
        return outputs

    def check(self, body: Body) -> None:
        """Raise ValueError with the API's message if the API refuses the conversation."""
        _check_choice(body)
        items = _items(body)
        calls = [str(item.get("call_id")) for item in items if item.get("type") == "function_call"]
        outputs = [
            str(item.get("call_id")) for item in items if item.get("type") == "function_call_output"
        ]
        for id in calls:
            if id not in outputs:
                raise ValueError(f"No tool output found for function call {id}.")
        for id in outputs:
            if id not in calls:
                raise ValueError(f"No tool call found for function call output with call_id {id}.")
        for item, after in pairwise([*items, {}]):
            if item.get("type") != "reasoning":
                continue
            summary = "\n".join(texts_in(item.get("summary")))
            if item.get("encrypted_content") not in (None, signature_of(summary)):
                raise ValueError(
                    f"The encrypted content for item {item.get('id')} could not be verified."
                )
            if after.get("type") != "function_call" and not _is_assistant(after):
                raise ValueError(
                    f"Item '{item.get('id')}' of type 'reasoning' was provided without its required"
                    " following item."
                )

    def body_of(self, reply: ModelReply) -> Body:
        """Return the answer as a JSON body."""
        return _response(
            reply, [_item(reply, *block) for block in _numbered_blocks(reply)], done=True
        )

    def events(self, reply: ModelReply) -> list[bytes]:
        """Return the answer as the events of a stream."""
        started = _response(reply, [], done=False)
        bodies: list[dict[str, Any]] = [
            {"type": "response.created", "response": started},
            {"type": "response.in_progress", "response": started},
        ]
        for at, block in _numbered_blocks(reply):
            bodies += _item_events(reply, at, block)
        end = "response.incomplete" if reply.stop == "cut-off" else "response.completed"
        bodies.append({"type": end, "response": self.body_of(reply)})
        return [
            event({**body, "sequence_number": number}, body["type"])
            for number, body in enumerate(bodies)
        ]


def _items(body: Body) -> list[Body]:
    items = body["input"]
    return [] if isinstance(items, str) else [mapping(item) for item in items]


def _is_assistant(item: Body) -> bool:
    return item.get("role") == "assistant"


def _numbered_blocks(reply: ModelReply) -> list[tuple[int, Block]]:
    """Return the blocks of a message with their indexes, without the blocks that the API does not
    have."""
    return list(enumerate(block for block in reply.blocks if not isinstance(block, RanBlock)))


def _item_events(reply: ModelReply, at: int, block: Block) -> list[dict[str, Any]]:
    complete_item = _item(reply, at, block)
    started_item = {**_item(reply, at, replace(block, **{_TEXT_OF[type(block)]: ""}))}
    started_item["status"] = "in_progress"
    place: dict[str, Any] = {"item_id": complete_item["id"], "output_index": at}
    before: list[dict[str, Any]] = []
    after: list[dict[str, Any]] = []
    extra: dict[str, Any] = {}
    match block:
        case CallBlock():
            name, key = "response.function_call_arguments", "arguments"
        case ThinkingBlock():
            name, key = "response.reasoning_summary_text", "text"
            started_item["summary"], place["summary_index"] = [], 0
            part = "response.reasoning_summary_part"
            before = [
                {
                    "type": f"{part}.added",
                    **place,
                    "part": {**complete_item["summary"][0], "text": ""},
                }
            ]
            after = [{"type": f"{part}.done", **place, "part": complete_item["summary"][0]}]
        case _:
            started_item["content"], place["content_index"] = [], 0
            refused = reply.stop == "refused"
            name = "response.refusal" if refused else "response.output_text"
            key = "refusal" if refused else "text"
            extra = {} if refused else {"logprobs": []}
            part = "response.content_part"
            before = [{"type": f"{part}.added", **place, "part": _part(reply, "")}]
            after = [{"type": f"{part}.done", **place, "part": _part(reply, block.text)}]
    pieces = reply.chunks(block.text)
    return [
        {"type": "response.output_item.added", "output_index": at, "item": started_item},
        *before,
        *({"type": f"{name}.delta", **place, "delta": chunk, **extra} for chunk in pieces),
        {"type": f"{name}.done", **place, key: block.text, **extra},
        *after,
        {"type": "response.output_item.done", "output_index": at, "item": complete_item},
    ]


def _item(reply: ModelReply, at: int, block: Block) -> dict[str, Any]:
    last = len(_numbered_blocks(reply)) - 1
    status = "incomplete" if reply.stop == "cut-off" and at == last else "completed"
    number = f"{reply.number}_{at}" if at else f"{reply.number}"
    match block:
        case CallBlock():
            return {
                "type": "function_call",
                "id": f"fc_{number}",
                "call_id": block.id,
                "name": block.name,
                "arguments": block.arguments,
                "status": status,
            }
        case ThinkingBlock():
            return {
                "type": "reasoning",
                "id": f"rs_{number}",
                "summary": [{"type": "summary_text", "text": block.text}],
                "encrypted_content": signature_of(block.text),
            }
        case _:
            return {
                "type": "message",
                "id": f"msg_{number}",
                "role": "assistant",
                "status": status,
                "content": [_part(reply, block.text)],
            }


_TEXT_OF: Final[Mapping[type, str]] = {
    CallBlock: "arguments",
    ThinkingBlock: "text",
    TextBlock: "text",
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
