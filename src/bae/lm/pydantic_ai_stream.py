"""Streamed answers of PydanticAI's models. Text and thoughts go to observers as they arrive. Some
servers send thoughts as text between tags."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from bae.lm.http import mask
from bae.usage import Discard, Thought, tell

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse, ModelResponsePart, ModelResponseStreamEvent

Tags = tuple[str, str]

TAGS: Final[Tags] = ("<think>", "</think>")
"""The usual tags around the thoughts at the beginning of a text."""


class StreamedParts:
    """Passes the parts of a response to observers.

    The arguments of the tool `answer_tool` are the answer. Without `has_tools`, the request offers
    no other tool, so the arguments of any call are the answer. `tags` are the model's tags around
    thoughts.
    """

    def __init__(
        self, answer_tool: str, secrets: Iterable[str], *, has_tools: bool, tags: Tags = TAGS
    ) -> None:
        self._answer_tool, self._secrets, self._has_tools = answer_tool, (*secrets,), has_tools
        self._kinds: dict[int, str] = {}
        """The kind of each part, by the part's index. The pieces of several calls may arrive
        interleaved."""
        self._has_text = self._has_thoughts = False
        self._text = _TaggedText(tags)
        self.is_empty = True
        """Whether no event has arrived yet."""

    def take(self, event: ModelResponseStreamEvent) -> None:
        """Pass an event of the stream to observers."""
        from pydantic_ai.messages import PartDeltaEvent, PartStartEvent

        self.is_empty = False
        match event:
            case PartStartEvent(index=index, part=part):
                self._start(index, part)
            case PartDeltaEvent(index=index, delta=delta):
                piece: Any = getattr(delta, "content_delta", None)
                if piece is None:
                    piece = getattr(delta, "args_delta", None)
                self._take(self._kinds.get(index, ""), piece)
            case _:
                pass

    def _start(self, index: int, part: Any) -> None:
        kind: str = part.part_kind
        if kind == "tool-call":
            is_answer = part.tool_name == self._answer_tool or not self._has_tools
            kind = "answer" if is_answer and "answer" not in self._kinds.values() else ""
        if self._has_text and kind not in ("text", "thinking"):
            self._has_text = False
            tell(Discard())
        if kind == "thinking":
            if self._has_thoughts:
                self._think("\n\n")  # separates the parts of a summary
            if _may_be_tagged(part):
                kind = "text"
                self._text.open()
        elif kind == "text":
            self._text.close()
        self._kinds[index] = kind
        self._take(kind, getattr(part, "args" if kind == "answer" else "content", None))

    def _take(self, kind: str, piece: Any) -> None:
        if not piece:
            return
        piece = piece if isinstance(piece, str) else json.dumps(piece)
        match kind:
            case "thinking":
                self._think(piece)
            case "answer":
                self._tell(piece)
            case "text":
                for is_thought, text in self._text.take(piece):
                    if is_thought:
                        self._think(text)
                    else:
                        self._has_text = True
                        self._tell(text)
            case _:
                pass

    def _tell(self, text: str) -> None:
        tell(mask(text, self._secrets))

    def _think(self, text: str) -> None:
        self._has_thoughts = True
        tell(Thought(mask(text, self._secrets)))


def tell_thoughts(response: ModelResponse, secrets: Iterable[str]) -> None:
    """Pass the thoughts of a response that was not streamed to observers."""
    from pydantic_ai.messages import ThinkingPart

    thoughts = [p.content for p in response.parts if isinstance(p, ThinkingPart) and p.content]
    if thoughts:
        tell(Thought(mask("\n\n".join(thoughts), secrets)))


class _TaggedText:
    """The text of a message, which arrives in pieces. If the text begins with a tag, the part up to
    the closing tag is thinking."""

    def __init__(self, tags: Tags) -> None:
        self._open, self._close = tags
        self._state = "before"
        self._tail = ""
        """The end of the text so far, if it may be the beginning of a tag."""

    def open(self) -> None:
        """Start thinking, because PydanticAI has found the opening tag."""
        if self._state == "before":
            self._state, self._tail = "inside", ""

    def close(self) -> None:
        """End thinking, because PydanticAI has found the closing tag."""
        if self._state == "inside":
            self._state, self._tail = "after", ""

    def take(self, piece: str) -> Iterator[tuple[bool, str]]:
        """Yield the texts in a piece, as pairs: whether the text is thinking, and the text."""
        text, self._tail = self._tail + piece, ""
        if self._state == "before":
            begin = text.lstrip()
            if self._open.startswith(begin):
                self._tail = text
                return
            self._state = "inside" if begin.startswith(self._open) else "after"
            text = begin[len(self._open) :] if self._state == "inside" else text
        if self._state == "inside":
            thought, tag, rest = text.partition(self._close)
            if tag:
                self._state = "after"
            else:
                self._tail = _find_partial_tag(thought, self._close)
                thought = thought.removesuffix(self._tail)
            if thought:
                yield True, thought
            text = rest
        if text:
            yield False, text


def _find_partial_tag(text: str, tag: str) -> str:
    """Return the longest end of a text that may be the beginning of a tag. May be empty."""
    sizes = range(min(len(tag) - 1, len(text)), 0, -1)
    return next((tag[:size] for size in sizes if text.endswith(tag[:size])), "")


def without_tags(parts: Sequence[ModelResponsePart], tags: Tags) -> list[ModelResponsePart]:
    """Return the parts of a streamed message with thinking separated from text.

    For messages that are not streamed, PydanticAI separates thinking itself. In a stream, it
    recognizes a tag only if the tag is a piece of its own.
    """
    from pydantic_ai.messages import TextPart, ThinkingPart

    for at, part in enumerate(parts):
        if isinstance(part, TextPart) and not part.content.strip():
            continue
        text = ""
        if isinstance(part, TextPart) and part.content.lstrip().startswith(tags[0]):
            text = part.content.lstrip()[len(tags[0]) :]
        elif isinstance(part, ThinkingPart) and _may_be_tagged(part):
            text = part.content
        thought, tag, rest = text.partition(tags[1])
        if tag:
            text_parts = [TextPart(rest)] if rest else []
            return [*parts[:at], ThinkingPart(thought), *text_parts, *parts[at + 1 :]]
        break
    return [*parts]


def _may_be_tagged(part: Any) -> bool:
    """Return whether a thinking part may come from tags. If the provider sends a part as thinking,
    the part has an id or a signature."""
    return part.id in (None, "content") and not part.signature
