"""A message of Claude as it comes in, streamed or whole: its text, its tool calls and its usage."""

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
    """A block of content as it comes in: as it began, and the pieces of its text or input."""

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
        """The input of a call; its text where it is no JSON object."""
        # A tool that is given nothing at all is streamed as no text.
        try:
            given: Any = json.loads(self.text or "{}")
        except (ValueError, RecursionError):
            return self.text
        return cast("dict[str, Any]", given) if isinstance(given, dict) else self.text

    def whole(self) -> ContentBlock:
        """The block as the API takes it back."""
        if self.is_call:
            return {**self.block, "input": as_input(self.input)}
        if self.kind in _TEXT_OF:
            return {**self.block, _TEXT_OF[self.kind]: self.text}
        return self.block


@dataclass(slots=True)
class ClaudeMessage:
    """A message of Claude as it comes in. `answer_tool` is the tool that takes the answer, where
    there is one: the other calls are for the caller to run.

    A message that the provider has paused is continued in the next one, as part of this."""

    model: str
    asked: str
    """The model as it was asked for."""
    secrets: tuple[str, ...] = ()
    answer_tool: str | None = None
    blocks: list[_BlockInProgress] = field(default_factory=list[_BlockInProgress])
    reason: str | None = None
    explained: str = ""
    container: dict[str, str] | None = None
    """Where the provider has run code, and until when files there are kept."""
    began: bool = False
    ended: bool = False
    pauses: int = 0
    _counts: dict[str, int] = field(default_factory=dict[str, int])
    _before: Usage | None = None
    """What the messages that were paused have used."""
    _first: int = 0
    """The place of the first block of the message in progress."""
    _told: bool = False
    """Whether text was told that may be no part of the answer."""

    def take(self, event: RawMessageStreamEvent) -> None:
        """Take a piece of a stream."""
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

    def take_whole(self, message: Any) -> None:
        """Take a message that was not streamed."""
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
        """Whether the provider wants the message back to continue it."""
        return self.ended and self.reason == "pause_turn"

    def content(self) -> list[ContentBlock]:
        """The message as the API takes it back. A text without any letter it refuses."""
        return [each.whole() for each in self.blocks if each.kind != "text" or each.text.strip()]

    def resume(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The request that continues a message that was paused, where `request` began it."""
        said = {"role": "assistant", "content": self.content()}
        used = self._used_now()
        self._before = used if self._before is None else self._before + used
        self._counts, self.began, self.ended = {}, False, False
        self._first, self.pauses = len(self.blocks), self.pauses + 1
        again = {**request, "messages": [*request["messages"], said]}
        return again if self.container is None else {**again, "container": self.container["id"]}

    def used(self) -> Usage | None:
        """What a message that broke off has used, as far as is known; None where nothing is."""
        known = self._counts or self._before is not None
        return replace(self._usage(), cost=None) if known else None

    def answer(self, *, echoes: bool) -> Answer:
        """The answer of a message that has ended, with what the API wants back if it `echoes`."""
        usage, text = self._usage(), self._text()
        if self.reason in ("max_tokens", "model_context_window_exceeded"):
            return Answer(self._given() or text, usage, "cut-off")
        if self.reason == "refusal":
            return Answer(text or self.explained, usage, "refused")
        if not echoes:
            return Answer(text if (given := self._given()) is None else given, usage)
        calls = tuple(
            CallPart(str(each.block["id"]), str(each.block["name"]), each.input)
            for each in self.blocks
            if each.kind == "tool_use" and not self._is_answer(each)
        )
        given = None if calls else self._given()
        if given is None:
            given = self._text(calls=bool(calls))
        return Answer(given, usage, calls=calls, ran=self._ran(), echo=self._echo())

    def _text(self, *, calls: bool = True) -> str:
        """The text of the message. Of an answer, it is what follows the provider's own tools."""
        texts: list[str] = []
        for each in self.blocks:
            if each.kind == "text":
                texts.append(each.text)
            elif not calls and each.kind.endswith("_tool_result"):
                texts.clear()
        return "".join(texts)

    def _is_answer(self, block: _BlockInProgress) -> bool:
        return block.kind == "tool_use" and block.block["name"] == self.answer_tool

    def _given(self) -> str | None:
        """What the answer tool was given first; None where it was not called."""
        found = next(filter(self._is_answer, self.blocks), None)
        return None if found is None else found.text or "{}"

    def _ran(self) -> tuple[tuple[CallPart, ResultPart], ...]:
        """The calls that the provider has run, with their results."""
        results = {
            str(each.block["tool_use_id"]): each.block.get("content")
            for each in self.blocks
            if each.kind.endswith("_tool_result")
        }
        return tuple(
            (
                CallPart(id := str(each.block["id"]), name := str(each.block["name"]), each.input),
                _result_of(id, name, results[id]),
            )
            for each in self.blocks
            if each.kind == "server_tool_use" and str(each.block["id"]) in results
        )

    def _echo(self) -> dict[str, Any] | None:
        """The message as the API wants it back; None where nothing of it is an answer or a call,
        which it refuses."""
        content = self.content()
        if not any(each["type"] in ("text", "tool_use") for each in content):
            return None
        answers = [str(each.block["id"]) for each in self.blocks if self._is_answer(each)]
        echo: dict[str, Any] = {"model": self.asked, "content": content}
        if self.container is not None:
            echo["container"] = self.container
        return as_echo({**echo, "answers": answers} if answers else echo)

    def _begin(self, block: Any, *, streams: bool = False) -> None:
        begun = _BlockInProgress(block.model_dump(exclude_unset=True, warnings=False))
        self.blocks.append(begun)
        if self._told and begun.kind not in _TEXT_OF:
            # The answer is what follows the provider's own tools, or the input of its tool.
            self._told = False
            tell(Discard())
        if begun.is_call:
            given = begun.block.pop("input", None)
            self._piece(begun, json.dumps(given) if given or not streams else "")
        elif begun.kind in _TEXT_OF:
            self._piece(begun, str(begun.block.get(_TEXT_OF[begun.kind]) or ""))

    def _add(self, to: _BlockInProgress, delta: Any) -> None:
        match delta.type:
            case "text_delta":
                self._piece(to, delta.text)
            case "input_json_delta":
                self._piece(to, delta.partial_json)
            case "thinking_delta":
                self._piece(to, delta.thinking)
            case "signature_delta":
                to.block["signature"] = delta.signature
            case "citations_delta":
                cited = delta.citation.model_dump(exclude_unset=True, warnings=False)
                to.block["citations"] = [*(to.block.get("citations") or ()), cited]
            case _:
                pass

    def _piece(self, to: _BlockInProgress, piece: str) -> None:
        if piece:
            to.pieces.append(piece)
            # Of calls, the arguments are no part of the answer.
            if to.kind == "text" or self._is_answer(to):
                self._told = self._told or to.kind == "text"
                tell(mask(piece, self.secrets))
            elif to.kind == "thinking":
                tell(Thought(mask(piece, self.secrets)))

    def _stop(self, said: Any) -> None:
        self.reason = said.stop_reason
        details = getattr(said, "stop_details", None)
        self.explained = (details.explanation if details is not None else None) or ""
        used = getattr(said, "container", None)
        if used is not None:
            self.container = {"id": str(used.id), "expires_at": used.expires_at.isoformat()}

    def _count(self, usage: Any) -> None:
        """Take the token counts so far; those at the end of a stream are of the whole."""
        for name in _COUNTED:
            found = getattr(usage, name, None)
            if found is not None:
                self._counts[name] = read_count(found)

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
    """The result of a tool that the provider has run, as text. What only the API can read is left
    out of it."""
    kind: Any = cast("dict[str, Any]", content).get("type") if isinstance(content, dict) else ""
    is_error = str(kind).endswith("_error")
    text = json.dumps(_readable(content), ensure_ascii=False)
    return ResultPart(id, name, text, is_error)


def _readable(value: Any) -> Any:
    if isinstance(value, list):
        return [_readable(each) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        found = cast("dict[str, Any]", value).items()
        return {
            k: _readable(v) for k, v in found if not k.startswith("encrypted") and v is not None
        }
    return value
