"""A message from Claude, streamed or complete: its text, its tool calls and its usage."""

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
    """A block of content while it arrives: its start, and the pieces of its text or input."""

    block: ContentBlock
    pieces: list[str] = field(default_factory=list[str])

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
        """The input of a call, or its text if that is no JSON object."""
        # A call without arguments is streamed as an empty text.
        try:
            given: Any = json.loads(self.text or "{}")
        except (ValueError, RecursionError):
            return self.text
        return cast("dict[str, Any]", given) if isinstance(given, dict) else self.text

    def to_content(self) -> ContentBlock:
        """The complete block, as the API accepts it in a later request."""
        if self.is_call:
            return {**self.block, "input": as_input(self.input)}
        if self.kind in _TEXT_OF:
            return {**self.block, _TEXT_OF[self.kind]: self.text}
        return self.block


@dataclass(slots=True)
class ClaudeMessage:
    """A message from Claude while it arrives. The input of the `answer_tool`, if there is one, is
    the answer; the caller runs the other tool calls.

    If the provider pauses a message, its continuation becomes part of this message."""

    model: str
    asked: str
    """The name of the model in the request."""
    secrets: tuple[str, ...] = ()
    answer_tool: str | None = None
    blocks: list[_BlockInProgress] = field(default_factory=list[_BlockInProgress])
    reason: str | None = None
    explanation: str = ""
    container: dict[str, str] | None = None
    """The container in which the provider has run code, and when its files expire."""
    began: bool = False
    ended: bool = False
    pauses: int = 0
    _counts: dict[str, int] = field(default_factory=dict[str, int])
    _before: Usage | None = None
    """The usage of the paused messages."""
    _first: int = 0
    """The index of the first block of the message in progress."""
    _sent_text: bool = False
    """Whether observers got text that may not be part of the answer."""

    def take(self, event: RawMessageStreamEvent) -> None:
        """Add an event of a stream."""
        match event.type:
            case "message_start":
                self.model = read_name(event.message.model) or self.model
                self._count(event.message.usage)
            case "content_block_start":
                self._begin(event.content_block, streams=True)
            case "content_block_delta":
                self._add(self.blocks[self._first + event.index], event.delta)
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
        """Whether the provider has paused and waits for the message to continue it."""
        return self.ended and self.reason == "pause_turn"

    def content(self) -> list[ContentBlock]:
        """The message as the API accepts it in a later request. The API refuses a blank text."""
        return [
            block.to_content()
            for block in self.blocks
            if block.kind != "text" or block.text.strip()
        ]

    def resume(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The request that continues a paused message; `request` is the original request."""
        paused = {"role": "assistant", "content": self.content()}
        used = self._used_now()
        self._before = used if self._before is None else self._before + used
        self._counts, self.began, self.ended = {}, False, False
        self._first, self.pauses = len(self.blocks), self.pauses + 1
        more = {**request, "messages": [*request["messages"], paused]}
        return more if self.container is None else {**more, "container": self.container["id"]}

    def used(self) -> Usage | None:
        """The usage of an incomplete message, as far as it is known. None if it is unknown."""
        known = self._counts or self._before is not None
        return replace(self._usage(), cost=None) if known else None

    def answer(self, *, echoes: bool) -> Answer:
        """The answer of a complete message. With `echoes`, it includes the echo for the API."""
        usage, text = self._usage(), self._text()
        if self.reason in ("max_tokens", "model_context_window_exceeded"):
            return Answer(self._tool_answer() or text, usage, "cut-off")
        if self.reason == "refusal":
            return Answer(text or self.explanation, usage, "refused")
        if not echoes:
            return Answer(text if (given := self._tool_answer()) is None else given, usage)
        calls = tuple(
            CallPart(str(block.block["id"]), str(block.block["name"]), block.input)
            for block in self.blocks
            if block.kind == "tool_use" and not self._is_answer(block)
        )
        given = None if calls else self._tool_answer()
        if given is None:
            given = self._text(calls=bool(calls))
        return Answer(given, usage, calls=calls, ran=self._ran(), echo=self._echo())

    def _text(self, *, calls: bool = True) -> str:
        """The text of the message. Without `calls`, only the text after the provider's own
        tools."""
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
        """The input of the first call of the answer tool, or None if it was not called."""
        block = next(filter(self._is_answer, self.blocks), None)
        return None if block is None else block.text or "{}"

    def _ran(self) -> tuple[tuple[CallPart, ResultPart], ...]:
        """The calls that the provider has run, with their results."""
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
        """The message as the API needs it back, or None if it has neither an answer nor a call: the
        API refuses such a message."""
        content = self.content()
        if not any(each["type"] in ("text", "tool_use") for each in content):
            return None
        answers = [str(block.block["id"]) for block in self.blocks if self._is_answer(block)]
        echo: dict[str, Any] = {"model": self.asked, "content": content}
        if self.container is not None:
            echo["container"] = self.container
        return as_echo({**echo, "answers": answers} if answers else echo)

    def _begin(self, block: Any, *, streams: bool = False) -> None:
        started = _BlockInProgress(block.model_dump(exclude_unset=True, warnings=False))
        self.blocks.append(started)
        if self._sent_text and started.kind not in _TEXT_OF:
            # The answer is the text after the provider's own tools, or the input of the answer
            # tool.
            self._sent_text = False
            tell(Discard())
        if started.is_call:
            given = started.block.pop("input", None)
            self._add_piece(started, json.dumps(given) if given or not streams else "")
        elif started.kind in _TEXT_OF:
            self._add_piece(started, str(started.block.get(_TEXT_OF[started.kind]) or ""))

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
                cited = delta.citation.model_dump(exclude_unset=True, warnings=False)
                to.block["citations"] = [*(to.block.get("citations") or ()), cited]
            case _:
                pass

    def _add_piece(self, to: _BlockInProgress, piece: str) -> None:
        if piece:
            to.pieces.append(piece)
            # The arguments of other calls are not part of the answer.
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
        """Store the token counts so far. The counts at the end of a stream are totals."""
        for name in _COUNTED:
            count = getattr(usage, name, None)
            if count is not None:
                self._counts[name] = read_count(count)

    def _usage(self) -> Usage:
        used = self._used_now()
        return used if self._before is None else self._before + used

    def _used_now(self) -> Usage:
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
    """The result of a tool that the provider has run, as text without the encrypted parts."""
    kind: Any = cast("dict[str, Any]", content).get("type") if isinstance(content, dict) else ""
    is_error = str(kind).endswith("_error")
    text = json.dumps(_readable(content), ensure_ascii=False)
    return ResultPart(id, name, text, is_error)


def _readable(value: Any) -> Any:
    if isinstance(value, list):
        return [_readable(each) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {
            k: _readable(v) for k, v in items if not k.startswith("encrypted") and v is not None
        }
    return value
