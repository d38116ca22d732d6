"""Reads the events that the program `claude` prints while the model writes an answer."""

from __future__ import annotations

import contextvars
import json
from collections.abc import Iterable
from typing import Any, Final, cast

from bae.lm.http import mask
from bae.usage import Discard, Thought, tell

JSON_OUTPUT: Final = "--output-format", "json", "--verbose"
"""Arguments to print all messages at the end, including an invalid answer."""
STREAM_OUTPUT: Final = "--output-format", "stream-json", "--include-partial-messages", "--verbose"
"""Arguments to print a line for each message, and for each event of a message in progress."""
WITH_FILES: Final = "--input-format", "stream-json"
"""Arguments to read a message with images and documents. They require `STREAM_OUTPUT`."""
TOOL: Final = "StructuredOutput"
"""The tool that the model calls to give an answer that fits the schema."""

_EVENT: Final = "stream_event"


class PrintedEvents:
    """Parses the output of the program, in pieces of any size. Observers get the text of the answer
    and the thoughts of the model."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = (*secrets,)
        self._context = contextvars.copy_context()
        """The question's context, in which to report events. Output arrives in another context."""
        self._partial_line = bytearray()
        self._lines: list[bytes] = []
        self._block_kind = ""
        """The kind of the block that the model is writing."""
        self._has_text = False
        """Whether observers got text that may turn out not to be part of the answer."""

    def take(self, printed: bytes) -> None:
        """Parse a piece of output."""
        at = len(self._partial_line)
        self._partial_line += printed
        while (end := self._partial_line.find(b"\n", at)) >= 0:
            line = bytes(self._partial_line[:end])
            del self._partial_line[: end + 1]
            at = 0
            self._take_line(line)

    def messages(self) -> bytes:
        """Return the messages as a JSON list, the form that the program prints without events.
        Output that is not JSON is returned unchanged."""
        lines = (
            [*self._lines, bytes(self._partial_line)] if self._partial_line.strip() else self._lines
        )
        if all(line.startswith(b"{") for line in lines):
            return b"[" + b",".join(lines) + b"]" if lines else b""
        return b"\n".join(lines)

    def _take_line(self, line: bytes) -> None:
        if b'"stream_event"' in line[:100]:
            try:
                data: Any = json.loads(line)
            except ValueError:
                data = None
            if isinstance(data, dict) and cast("dict[str, Any]", data).get("type") == _EVENT:
                self._context.run(
                    self._take_event, _dict(cast("dict[str, Any]", data).get("event"))
                )
                return
        if line.strip():
            self._lines.append(line)

    def _take_event(self, event: dict[str, Any]) -> None:
        match event.get("type"):
            case "content_block_start":
                block = _dict(event.get("content_block"))
                self._block_kind = str(block.get("type"))
                if self._block_kind == "tool_use":
                    self._block_kind = "answer" if block.get("name") == TOOL else ""
                if self._has_text and self._block_kind not in ("text", "thinking"):
                    self._discard()
            case "content_block_delta":
                self._tell(_dict(event.get("delta")))
            case "message_start" if self._has_text:
                self._discard()
            case _:
                pass

    def _tell(self, delta: dict[str, Any]) -> None:
        for key in ("text", "partial_json", "thinking"):
            piece = delta.get(key)
            if isinstance(piece, str) and piece:
                piece = mask(piece, self._secrets)
                if self._block_kind == "thinking":
                    tell(Thought(piece))
                elif self._block_kind in ("text", "answer"):
                    self._has_text = self._has_text or self._block_kind == "text"
                    tell(piece)

    def _discard(self) -> None:
        self._has_text = False
        tell(Discard())


def _dict(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
