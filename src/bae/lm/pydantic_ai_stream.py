"""What PydanticAI streams of an answer, told as it arrives: the text of the answer, and what the
model thinks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bae.lm.http import mask
from bae.usage import Discard, Thought, tell

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponseStreamEvent


class ToldParts:
    """Tells the parts of one response. The arguments of `answer_tool` are the answer; with
    `has_tools`, those of other tools are none of it."""

    def __init__(self, answer_tool: str, secrets: Iterable[str], *, has_tools: bool) -> None:
        self._answer_tool, self._secrets, self._has_tools = answer_tool, (*secrets,), has_tools
        self._kinds: dict[int, str] = {}
        """The parts by their index: calls of one message may arrive at the same time."""
        self._has_text = False

    def begin(self) -> None:
        """A response begins: of a message that was paused, it is the next part."""
        self._kinds.clear()

    def take(self, event: ModelResponseStreamEvent) -> None:
        """Take an event of the stream."""
        from pydantic_ai.messages import PartDeltaEvent, PartStartEvent

        match event:
            case PartStartEvent(index=index, part=part):
                self._start(index, part)
            case PartDeltaEvent(index=index, delta=delta):
                added: Any = getattr(delta, "content_delta", None)
                if added is None:
                    added = getattr(delta, "args_delta", None)
                self._tell(self._kinds.get(index, ""), added)
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
        self._kinds[index] = kind
        given: Any = getattr(part, "args" if kind == "answer" else "content", None)
        self._tell(kind, given)

    def _tell(self, kind: str, added: Any) -> None:
        if not added:
            return
        text = added if isinstance(added, str) else json.dumps(added)
        text = mask(text, self._secrets)
        if kind == "thinking":
            tell(Thought(text))
        elif kind in ("text", "answer"):
            self._has_text = self._has_text or kind == "text"
            tell(text)
