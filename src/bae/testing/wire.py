"""What an API looks like to `Provider`: how to read its requests and how to write its answers. One
module each for chat completions, responses and messages."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

Body = Mapping[str, Any]

STRUCTURED_OUTPUT = "StructuredOutput"
"""The tool by which the Claude CLI has a model answer to a schema, though it need not call it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the prompt. `cached` ends a prefix that the client asks to be cached; `spoken` is
    false for what is no prompt text, as the description of a tool is."""

    text: str
    cached: bool = False
    spoken: bool = True


@dataclass(frozen=True, slots=True)
class Channel:
    """How the answer is to be given: to a `schema`, if any, and by calling a `tool`, if any."""

    schema: Mapping[str, Any] | None = None
    tool: str | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """The tokens of an exchange. `read` and `written` are the cached ones among `input`."""

    input: int
    output: int
    read: int = 0
    written: int = 0


@dataclass(frozen=True, slots=True)
class Said:
    """What the model says: `text`, as the arguments of `tool` where there is one."""

    number: int
    model: str
    text: str
    tool: str | None
    stop: Literal["end", "cut-off", "refused"]
    counted: Counted
    with_usage: bool = True

    def chunks(self) -> list[str]:
        """The text as it streams."""
        return [self.text[start : start + 16] for start in range(0, len(self.text), 16)]


class Wire(ABC):
    """One API."""

    api: ClassVar[Literal["openai", "anthropic"]]

    @abstractmethod
    def missing(self, body: Body) -> str | None:
        """The name of a parameter that the request cannot do without."""

    @abstractmethod
    def pieces(self, body: Body) -> Iterator[Piece]:
        """The prompt in order."""

    @abstractmethod
    def channel(self, body: Body) -> Channel:
        """How to answer."""

    @abstractmethod
    def whole(self, said: Said) -> Body:
        """The answer as one body."""

    @abstractmethod
    def events(self, said: Said) -> list[bytes]:
        """The answer as the events of a stream."""

    @abstractmethod
    def malformed(self) -> bytes:
        """An event of a stream that is not JSON."""

    @abstractmethod
    def error(self, status: int, message: str) -> Body:
        """The body of an error."""

    def with_usage(self, body: Body) -> bool:
        """Whether a stream is to end with the usage."""
        return True

    def concludes(self, body: Body) -> bool:
        """Whether the request only reports that the structured answer before was taken."""
        return False


def mapping(value: Any) -> Body:
    """The value where it is a JSON object, else an empty one."""
    return cast(Body, value) if isinstance(value, Mapping) else {}


def event(data: Body, name: str | None = None) -> bytes:
    """A server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def texts_in(content: Any) -> Iterator[str]:
    """The texts in the content of a message, which is a text or a list of parts."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, Sequence):
        for part in cast(Sequence[Any], content):
            yield text_in(part)


def text_in(part: Any) -> str:
    """The text of one part: what it says, or what a tool was called with or returned."""
    found = mapping(part)
    for key in ("text", "thinking", "arguments", "output", "refusal"):
        if isinstance(found.get(key), str):
            return found[key]
    if "input" in found:
        return json.dumps(found["input"])
    return "\n".join(texts_in(found.get("content", ())))


def chosen_tool(
    tools: Mapping[str, Any], *, forced: bool, named: str | None, replied: bool
) -> Channel | None:
    """The channel where a tool is called.

    One that is named or must be called is. One that may be called is called where it is the only
    one and the last message is not already what a tool returned.
    """
    if not tools:
        return None
    if named is None:
        if forced:
            named = next(iter(tools))
        elif STRUCTURED_OUTPUT in tools:
            named = STRUCTURED_OUTPUT
        elif len(tools) == 1 and not replied:
            named = next(iter(tools))
    if named is None or named not in tools:
        return None
    return Channel(mapping(tools[named]), named)


ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""The type that an error has by its status."""


def error_type(status: int) -> str:
    """The type of an error: by its status, or else by whose fault it is."""
    return ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
