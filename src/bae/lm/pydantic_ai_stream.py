"""Streamed answers of PydanticAI's models: the text and the thoughts are passed to observers as
they arrive. Some servers send thoughts as text between tags."""

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
"""The tags around thoughts at the beginning of a text."""


class StreamedParts:
    """Passes the parts of one response to observers. The arguments of `answer_tool` are the answer;
    with `has_tools`, the arguments of other tools are not. `tags` are the model's tags."""

    def __init__(
        self, answer_tool: str, secrets: Iterable[str], *, has_tools: bool, tags: Tags = TAGS
    ) -> None:
        self._answer_tool, self._secrets, self._has_tools = answer_tool, (*secrets,), has_tools
        self._tags = tags
        self._kinds: dict[int, str] = {}
        """The kinds of parts by their index. Calls of one message may arrive interleaved."""
        self._has_text = self._has_thoughts = False
        self._text = _TaggedText(tags)
        self.is_empty = True
        """Whether nothing was streamed yet."""

    def begin(self) -> None:
        """Start the next response of a message that was paused."""
        self._kinds.clear()
        self._text = _TaggedText(self._tags)

    def take(self, event: ModelResponseStreamEvent) -> None:
        """Take an event of the stream."""
        from pydantic_ai.messages import PartDeltaEvent, PartStartEvent

        self.is_empty = False
        match event:
            case PartStartEvent(index=index, part=part):
                self._start(index, part)
            case PartDeltaEvent(index=index, delta=delta):
                added: Any = getattr(delta, "content_delta", None)
                if added is None:
                    added = getattr(delta, "args_delta", None)
                self._take(self._kinds.get(index, ""), added)
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
                self._think("\n\n")  # the next part of a summary
            if _may_be_tagged(part):
                kind = "text"
                self._text.open()
        elif kind == "text":
            self._text.close()
        self._kinds[index] = kind
        self._take(kind, getattr(part, "args" if kind == "answer" else "content", None))

    def _take(self, kind: str, added: Any) -> None:
        if not added:
            return
        added = added if isinstance(added, str) else json.dumps(added)
        match kind:
            case "thinking":
                self._think(added)
            case "answer":
                self._tell(added)
            case "text":
                for is_thought, text in self._text.take(added):
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
    """The text of a message, in pieces. The text between tags at its beginning is thinking."""

    def __init__(self, tags: Tags) -> None:
        self._open, self._close = tags
        self._state = "before"
        self._held = ""
        """The end of the text so far, which may be the beginning of a tag."""

    def open(self) -> None:
        """Begin thinking: PydanticAI has seen the tag in its own piece."""
        if self._state == "before":
            self._state, self._held = "inside", ""

    def close(self) -> None:
        """End thinking: PydanticAI has seen the tag."""
        if self._state == "inside":
            self._state, self._held = "after", ""

    def take(self, piece: str) -> Iterator[tuple[bool, str]]:
        """Take a piece. Yields texts, each with whether it is thinking."""
        text, self._held = self._held + piece, ""
        if self._state == "before":
            begin = text.lstrip()
            if self._open.startswith(begin):
                self._held = text
                return
            self._state = "inside" if begin.startswith(self._open) else "after"
            text = begin[len(self._open) :] if self._state == "inside" else text
        if self._state == "inside":
            thought, tag, rest = text.partition(self._close)
            if tag:
                self._state = "after"
            else:
                self._held = _cut_off(thought, self._close)
                thought = thought.removesuffix(self._held)
            if thought:
                yield True, thought
            text = rest
        if text:
            yield False, text


def _cut_off(text: str, tag: str) -> str:
    """The end of a text that may be the beginning of a tag."""
    sizes = range(min(len(tag) - 1, len(text)), 0, -1)
    return next((tag[:size] for size in sizes if text.endswith(tag[:size])), "")


def without_tags(parts: Sequence[ModelResponsePart], tags: Tags) -> list[ModelResponsePart]:
    """The parts of a streamed message with thinking separated from text. PydanticAI does that
    itself for messages that are not streamed; in a stream it recognizes a tag only as its own
    piece."""
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
    """Whether a thinking part may come from tags. Thinking that a provider sends as such has an id
    or a signature."""
    return part.id in (None, "content") and not part.signature
