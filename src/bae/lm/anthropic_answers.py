"""Reads messages from Claude, streamed or complete: their text, tool calls and usage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from bae.lm.anthropic_messages import ContentBlock, as_input
from bae.lm.http import mask
from bae.lm.prices import cost_of
from bae.lm.requests import Answer, as_echo
from bae.prompts.messages import CallPart, ResultPart
from bae.usage import Discard, Thought, Usage, read_count, read_name, tell

if TYPE_CHECKING:
    from anthropic.types import RawMessageStreamEvent

_TEXT_OF: Final[Mapping[str, str]] = {"text": "text", "thinking": "thinking"}
_COUNTED: Final = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)


@dataclass(slots=True)
class _BlockInProgress:
    """A block of content while it arrives."""

    block: ContentBlock
    """The block at its start."""
    pieces: list[str] = field(default_factory=list[str])
    """The pieces of the block's text or input."""

    @property
    def kind(self) -> str:
        return str(self.block["type"])

    @property
    def is_call(self) -> bool:
        return self.kind in ("tool_use", "server_tool_use")

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def input(self) -> dict[str, Any] | str:
        """The arguments of a call, or the raw text if it is no JSON object."""
        # A call without arguments is streamed as an empty text.
        try:
            arguments: Any = json.loads(self.text or "{}")
        except (ValueError, RecursionError):
            return self.text
        return cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else self.text

    def to_content(self) -> ContentBlock:
        """Return the complete block in the form that the API accepts in a later request."""
        if self.is_call:
            return {**self.block, "input": as_input(self.input)}
        if self.kind in _TEXT_OF:
            return {**self.block, _TEXT_OF[self.kind]: self.text}
        return self.block


@dataclass(slots=True)
class ClaudeMessage:
    """A message from Claude while it arrives. If the provider pauses the message, its continuations
    become part of the same `ClaudeMessage`."""

    model: str
    """The model that answers, or the requested model until the response names a model."""
    asked: str
    """The name of the model in the request."""
    secrets: tuple[str, ...] = ()
    """The values to mask in text for observers."""
    answer_tool: str | None = None
    """The tool whose input is the answer, or None. The caller runs the calls of all other tools."""
    blocks: list[_BlockInProgress] = field(default_factory=list[_BlockInProgress])
    reason: str | None = None
    """The API's reason why the message ended."""
    explanation: str = ""
    """The API's explanation of a refusal."""
    container: dict[str, str] | None = None
    """The id of the container in which the provider ran code, and the time when its files
    expire."""
    began: bool = False
    """Whether the response to the last request has begun."""
    ended: bool = False
    """Whether the response to the last request is complete."""
    pauses: int = 0
    """How often the message was continued after a pause."""
    _counts: dict[str, int] = field(default_factory=dict[str, int])
    _paused_usage: Usage | None = None
    """The usage of the responses that ended in a pause."""
    _first_block: int = 0
    """The index of the first block of the response in progress."""
    _sent_text: bool = False
    """Whether observers got text that may turn out not to be part of the answer."""

    def take(self, event: RawMessageStreamEvent) -> None:
        """Add an event of a stream."""
        match event.type:
            case "message_start":
                self.model = read_name(event.message.model) or self.model
                self._count(event.message.usage)
            case "content_block_start":
                self._begin(event.content_block, streams=True)
            case "content_block_delta":
                self._add(self.blocks[self._first_block + event.index], event.delta)
            case "message_delta":
                self._stop(event.delta)
                self._count(event.usage)
            case "message_stop":
                self.ended = True
            case _:
                pass

    def take_message(self, message: Any) -> None:
        """Add a complete message that was not streamed."""
        if message.content is None:
            raise ValueError("a message without content")
        self.model = read_name(message.model) or self.model
        self._count(message.usage)
        for block in message.content:
            self._begin(block)
        self._stop(message)
        self.ended = True

    @property
    def is_paused(self) -> bool:
        """Whether the provider has paused the message. To continue, send the request of
        `resume`."""
        return self.ended and self.reason == "pause_turn"

    def content(self) -> list[ContentBlock]:
        """Return the message in the form that the API accepts in a later request. Blank texts are
        left out, because the API refuses them."""
        return [
            block.to_content()
            for block in self.blocks
            if block.kind != "text" or block.text.strip()
        ]

    def resume(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request that continues a paused message, and get ready for its response.
        `request` is the original request."""
        paused = {"role": "assistant", "content": self.content()}
        used = self._current_usage()
        self._paused_usage = used if self._paused_usage is None else self._paused_usage + used
        self._counts, self.began, self.ended = {}, False, False
        self._first_block, self.pauses = len(self.blocks), self.pauses + 1
        continuation = {**request, "messages": [*request["messages"], paused]}
        return (
            continuation
            if self.container is None
            else {**continuation, "container": self.container["id"]}
        )

    def used(self) -> Usage | None:
        """Return the usage so far of an incomplete message, without a cost. None if nothing is
        known yet."""
        has_usage = self._counts or self._paused_usage is not None
        return replace(self._usage(), cost=None) if has_usage else None

    def answer(self, *, echoes: bool) -> Answer:
        """Return the answer of a complete message. With `echoes`, the answer also has the tool
        calls, the calls that the provider ran, and the message to send back to the API
        (`Answer.echo`)."""
        usage, text = self._usage(), self._text()
        if self.reason in ("max_tokens", "model_context_window_exceeded"):
            return Answer(self._tool_answer() or text, usage, "cut-off")
        if self.reason == "refusal":
            return Answer(text or self.explanation, usage, "refused")
        if not echoes:
            return Answer(
                text if (tool_answer := self._tool_answer()) is None else tool_answer, usage
            )
        calls = tuple(
            CallPart(str(block.block["id"]), str(block.block["name"]), block.input)
            for block in self.blocks
            if block.kind == "tool_use" and not self._is_answer(block)
        )
        tool_answer = None if calls else self._tool_answer()
        if tool_answer is None:
            tool_answer = self._text(calls=bool(calls))
        return Answer(
            tool_answer, usage, calls=calls, ran=self._provider_calls(), echo=self._echo()
        )

    def _text(self, *, calls: bool = True) -> str:
        """Return the text of the message. If `calls` is False, return only the text after the last
        result of the provider's own tools."""
        texts: list[str] = []
        for block in self.blocks:
            if block.kind == "text":
                texts.append(block.text)
            elif not calls and block.kind.endswith("_tool_result"):
                texts.clear()
        return "".join(texts)

    def _is_answer(self, block: _BlockInProgress) -> bool:
        return block.kind == "tool_use" and block.block["name"] == self.answer_tool

    def _tool_answer(self) -> str | None:
        """Return the input of the first call of the answer tool, or None if there is no such
        call."""
        block = next(filter(self._is_answer, self.blocks), None)
        return None if block is None else block.text or "{}"

    def _provider_calls(self) -> tuple[tuple[CallPart, ResultPart], ...]:
        """Return the calls that the provider has run, each with its result."""
        results = {
            str(block.block["tool_use_id"]): block.block.get("content")
            for block in self.blocks
            if block.kind.endswith("_tool_result")
        }
        return tuple(
            (
                CallPart(
                    id := str(block.block["id"]), name := str(block.block["name"]), block.input
                ),
                _result_of(id, name, results[id]),
            )
            for block in self.blocks
            if block.kind == "server_tool_use" and str(block.block["id"]) in results
        )

    def _echo(self) -> dict[str, Any] | None:
        """Return the message to send back to the API in the next request. None if the message has
        neither text nor a call, because the API refuses such a message."""
        content = self.content()
        if not any(part["type"] in ("text", "tool_use") for part in content):
            return None
        answers = [str(block.block["id"]) for block in self.blocks if self._is_answer(block)]
        echo: dict[str, Any] = {"model": self.asked, "content": content}
        if self.container is not None:
            echo["container"] = self.container
        return as_echo({**echo, "answers": answers} if answers else echo)

    def _begin(self, block: Any, *, streams: bool = False) -> None:
        new_block = _BlockInProgress(block.model_dump(exclude_unset=True, warnings=False))
        self.blocks.append(new_block)
        if self._sent_text and new_block.kind not in _TEXT_OF:
            # A tool's block follows the text, so observers must discard the text. The answer is
            # the text after the provider's own tools, or the input of the answer tool.
            self._sent_text = False
            tell(Discard())
        if new_block.is_call:
            arguments = new_block.block.pop("input", None)
            self._add_piece(new_block, json.dumps(arguments) if arguments or not streams else "")
        elif new_block.kind in _TEXT_OF:
            self._add_piece(new_block, str(new_block.block.get(_TEXT_OF[new_block.kind]) or ""))

    def _add(self, to: _BlockInProgress, delta: Any) -> None:
        match delta.type:
            case "text_delta":
                self._add_piece(to, delta.text)
            case "input_json_delta":
                self._add_piece(to, delta.partial_json)
            case "thinking_delta":
                self._add_piece(to, delta.thinking)
            case "signature_delta":
                to.block["signature"] = delta.signature
            case "citations_delta":
                citation = delta.citation.model_dump(exclude_unset=True, warnings=False)
                to.block["citations"] = [*(to.block.get("citations") or ()), citation]
            case _:
                pass

    def _add_piece(self, to: _BlockInProgress, piece: str) -> None:
        if piece:
            to.pieces.append(piece)
            # Observers get no arguments of tools other than the answer tool, because these
            # arguments are not part of the answer.
            if to.kind == "text" or self._is_answer(to):
                self._sent_text = self._sent_text or to.kind == "text"
                tell(mask(piece, self.secrets))
            elif to.kind == "thinking":
                tell(Thought(mask(piece, self.secrets)))

    def _stop(self, end: Any) -> None:
        self.reason = end.stop_reason
        details = getattr(end, "stop_details", None)
        self.explanation = (details.explanation if details is not None else None) or ""
        container = getattr(end, "container", None)
        if container is not None:
            expiry = container.expires_at.isoformat()
            self.container = {"id": str(container.id), "expires_at": expiry}

    def _count(self, usage: Any) -> None:
        """Store the token counts of an event. Later counts are totals and replace earlier
        counts."""
        for name in _COUNTED:
            count = getattr(usage, name, None)
            if count is not None:
                self._counts[name] = read_count(count)

    def _usage(self) -> Usage:
        used = self._current_usage()
        return used if self._paused_usage is None else self._paused_usage + used

    def _current_usage(self) -> Usage:
        fresh, output, read, written = (self._counts.get(name, 0) for name in _COUNTED)
        usage = Usage(
            calls=1,
            input_tokens=fresh + read + written,
            output_tokens=output,
            cached_tokens=read,
            models=(self.model,),
        )
        cost = cost_of(self.model, usage, "anthropic", cache_write_tokens=written)
        return replace(usage, cost=cost)


def _result_of(id: str, name: str, content: Any) -> ResultPart:
    """Return the result of a tool that the provider ran, as text without encrypted parts."""
    kind: Any = cast("dict[str, Any]", content).get("type") if isinstance(content, dict) else ""
    is_error = str(kind).endswith("_error")
    text = json.dumps(_readable(content), ensure_ascii=False)
    return ResultPart(id, name, text, is_error)


def _readable(value: Any) -> Any:
    if isinstance(value, list):
        return [_readable(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {
            k: _readable(v) for k, v in items if not k.startswith("encrypted") and v is not None
        }
    return value
