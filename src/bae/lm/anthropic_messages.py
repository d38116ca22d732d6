"""A message of Claude as it comes in, whole or in the pieces of a stream, and the answer it makes.
`anthropic_backend.py` reads it from the wire."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bae.lm.backend import UNPARSED, Answer
from bae.lm.prices import cost_of
from bae.lm.secrecy import is_secret
from bae.usage import Usage, tell


@dataclass(slots=True)
class Heard:
    """What was heard so far: what was said, what was given to the tool, and why it ended."""

    model: str = ""
    text: list[str] = field(default_factory=list[str])
    given: list[str] | None = None
    value: Any = UNPARSED
    reason: str | None = None
    explained: str = ""
    counts: dict[str, int] = field(default_factory=dict[str, int])

    def begin(self, block: Any) -> None:
        """A part of the message begins; text may be in it already."""
        if block.type == "text":
            self._say(block.text)
        elif block.type == "tool_use" and self.given is None:
            self.given = []

    def add(self, delta: Any) -> None:
        """More of a part. Thinking is not for whoever asked."""
        if delta.type == "text_delta":
            self._say(delta.text)
        elif delta.type == "input_json_delta" and self.given is not None:
            self.given.append(delta.partial_json)
            tell(delta.partial_json)

    def finish(self, block: Any) -> None:
        """A part that came whole: what is given to the tool is read already."""
        if block.type == "tool_use" and self.value is UNPARSED:
            self.value = block.input

    def stop(self, said: Any) -> None:
        """Why the message ended."""
        self.reason = said.stop_reason
        details = getattr(said, "stop_details", None)
        self.explained = (details.explanation if details is not None else None) or ""

    def count(self, usage: Any) -> None:
        """Tokens so far; those told at the end of a stream are of the whole."""
        for name in _COUNTED:
            found = getattr(usage, name, None)
            if found is not None:
                self.counts[name] = found

    def used(self, asked: str) -> Usage | None:
        """What a message that broke off has used, as far as was told; None where nothing was."""
        return replace(self._usage(self.model or asked), cost=None) if self.counts else None

    def answer(self, asked: str) -> Answer:
        """The answer of a message that has ended; `asked` is the model that was asked."""
        usage = self._usage(self.model or asked)
        text = "".join(self.text if self.given is None else self.given)
        match self.reason:
            case "max_tokens" | "model_context_window_exceeded":
                return Answer(text, usage, "cut-off", self.value)
            case "refusal":
                return Answer(text or self.explained, usage, "refused")
            case _:
                # A tool that is given nothing at all is streamed as no text.
                nothing = self.given is not None and not text and self.value is UNPARSED
                return Answer(text, usage, "end", {} if nothing else self.value)

    def _say(self, piece: str) -> None:
        if piece:
            self.text.append(piece)
            tell(piece)

    def _usage(self, model: str) -> Usage:
        read = self.counts.get("cache_read_input_tokens", 0)
        written = self.counts.get("cache_creation_input_tokens", 0)
        usage = Usage(
            calls=1,
            input_tokens=self.counts.get("input_tokens", 0) + read + written,
            output_tokens=self.counts.get("output_tokens", 0),
            cached_tokens=read,
            models=(model,),
        )
        return replace(usage, cost=cost_of(model, usage, "anthropic", cache_write_tokens=written))


_COUNTED = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)


def headers_without_secrets(given: Mapping[str, str]) -> dict[str, str | None]:
    """The headers that are sent with every request, those that the SDK takes from the environment
    too; of secret ones only that they are there."""
    sent: dict[str, str] = {}
    for line in os.environ.get("ANTHROPIC_CUSTOM_HEADERS", "").split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            sent[name.strip().lower()] = value.strip()
    sent |= {name.lower(): value for name, value in given.items()}
    return {n: None if is_secret(n, sent[n]) else sent[n] for n in sorted(sent)}
