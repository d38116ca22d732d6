"""What PydanticAI streams of an answer, told as it arrives: the text of the answer, and what the
model thinks. Some servers send that as text, between tags."""

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
"""Where a model says what it thinks at the beginning of its text."""


class ToldParts:
    """Tells the parts of one response. The arguments of `answer_tool` are the answer; with
    `has_tools`, those of other tools are none of it. `tags` are those of the model."""

    def __init__(
        self, answer_tool: str, secrets: Iterable[str], *, has_tools: bool, tags: Tags = TAGS
    ) -> None:
        self._answer_tool, self._secrets, self._has_tools = answer_tool, (*secrets,), has_tools
        self._tags = tags
        self._kinds: dict[int, str] = {}
        """The parts by their index: calls of one message may arrive at the same time."""
        self._has_text = self._has_thoughts = False
        self._text = _TaggedText(tags)
        self.is_empty = True
        """Whether nothing was streamed at all."""

    def begin(self) -> None:
        """A response begins: of a message that was paused, it is the next part."""
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
                self._think("\n\n")  # of a summary, the next part
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
    """Tell what the model has thought, of a message that was not streamed."""
    from pydantic_ai.messages import ThinkingPart

    thoughts = [p.content for p in response.parts if isinstance(p, ThinkingPart) and p.content]
    if thoughts:
        tell(Thought(mask("\n\n".join(thoughts), secrets)))


class _TaggedText:
    """The text of a message, in pieces: what is between the tags at its beginning is thinking."""

    def __init__(self, tags: Tags) -> None:
        self._open, self._close = tags
        self._state = "before"
        self._held = ""
        """The end of what has arrived, which may be a part of a tag."""

    def open(self) -> None:
        """Thinking begins: PydanticAI has seen the tag, in a piece of its own."""
        if self._state == "before":
            self._state, self._held = "inside", ""

    def close(self) -> None:
        """Thinking ends: PydanticAI has seen the tag."""
        if self._state == "inside":
            self._state, self._held = "after", ""

    def take(self, piece: str) -> Iterator[tuple[bool, str]]:
        """Take a piece. Yields what is thinking, and what is not."""
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
    """The parts of a message that was streamed, with the thinking apart from the text, as where it
    was not streamed. In a stream, PydanticAI knows a tag only where that is a piece of its own."""
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
            said = [TextPart(rest)] if rest else []
            return [*parts[:at], ThinkingPart(thought), *said, *parts[at + 1 :]]
        break
    return [*parts]


def _may_be_tagged(part: Any) -> bool:
    """Whether a part of thinking comes from tags: what providers send as thinking has an id or a
    signature of theirs."""
    return part.id in (None, "content") and not part.signature
