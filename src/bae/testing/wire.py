"""`Wire`, the base class of the model APIs that `Provider` has, with the types of their requests,
answers and faults."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, cast

from bae.exceptions import describe

if TYPE_CHECKING:
    from bae.testing.scripted import Call

Body = Mapping[str, Any]
WireChannel = tuple[Mapping[str, Any] | None, str | None, bool]
"""How the model gives its answer: the schema of the answer, the tool whose arguments are the
answer, and whether the model must call this tool. A text answer has no tool."""

STRUCTURED_OUTPUT: Final = "StructuredOutput"
"""The tool with which the Claude CLI gets a structured answer. The tool choice in the CLI's request
does not force the call."""


@dataclass(frozen=True, slots=True)
class Received:
    """A valid request for a model's answer, as a client has sent it."""

    path: str
    """The path without the query."""
    headers: Mapping[str, str] = field(repr=False)
    """The headers, with names in lower case."""
    body: Mapping[str, Any] = field(repr=False)
    """The JSON body."""
    api: Literal["openai", "anthropic"]
    stream: bool
    schema: Mapping[str, Any] | None = field(repr=False)
    """The JSON schema of the answer, wherever in the request it is. None for a free text."""
    tool: str | None
    """The name of the tool whose arguments are the answer. None if the answer is a text."""
    tools: tuple[str, ...]
    """The names of all declared tools, in order."""
    results: tuple[str, ...]
    """The tool results at the end of the conversation, as texts, in order."""
    text: str
    """The complete text of the prompt, in order, without the descriptions of tools."""
    tokens: int
    """The number of tokens of the prompt and of the descriptions of tools."""

    @property
    def model(self) -> str:
        """The requested model."""
        return str(self.body["model"])


def tokens_in(text: str) -> int:
    """Return the number of tokens of a text: the characters divided by four, rounded up."""
    return -(-len(text) // 4)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of real providers that a `Provider` simulates. In a script, put an instance of a
    subclass in the place of an answer."""


@dataclass(frozen=True, slots=True)
class Status(Fault):
    """Send an error in the API's format."""

    code: int
    """The HTTP status, from 400 to 599."""
    retry_after: float | None = None
    """The seconds in the header `retry-after`. None sends no such header."""
    message: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further headers."""

    def __post_init__(self) -> None:
        if not 400 <= self.code <= 599:
            raise ValueError(f"Status({self.code!r}): give an error, 400 to 599")


@dataclass(frozen=True, slots=True)
class Stall(Fault):
    """Send only the headers of the answer, and in a stream the first `after` events. Then wait
    until the client disconnects."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class Cut(Fault):
    """Close the connection in the middle of the body. A stream is cut after `after` events. Any
    other body is cut in half."""

    after: int = 1


@dataclass(frozen=True, slots=True)
class Malformed(Fault):
    """Send a body that is not JSON. In a stream, the second event is not JSON."""


@dataclass(frozen=True, slots=True)
class WrongSchema(Fault):
    """Send a complete JSON answer in which one property does not fit the schema."""


@dataclass(frozen=True, slots=True)
class Overlong(Fault):
    """Send half of an answer, with the API's stop reason for a too long answer."""


@dataclass(frozen=True, slots=True)
class Refusal(Fault):
    """Refuse to answer. `text` is the model's reason."""

    text: str = "I cannot help with that."


@dataclass(frozen=True, slots=True)
class Empty(Fault):
    """Send a complete but empty answer."""


@dataclass(frozen=True, slots=True, init=False)
class Calls:
    """A message in which the model calls tools:
    `Calls(Call("search", query="kettle"), Call("read", page=2), text="I will look.")`."""

    calls: tuple[Call, ...]
    text: str
    """The model's text before the calls."""
    thinking: str
    """The model's thinking before the text. The provider signs the thinking. It refuses a later
    request in which the thinking has changed. Chat completions have no thinking."""
    ran: tuple[tuple[Call, Any], ...]
    """Tool calls that the provider runs itself, with their results, such as
    `[(Call("web_search", query="kettle"), [{"title": "…"}])]`. Only for Anthropic's messages."""
    ids: tuple[str, ...]
    """The ids of the calls. By default, the provider generates them."""
    raw: str | None
    """A text to send as the arguments of the last call. It may be invalid JSON."""
    cut: bool
    """Whether the message reaches the length limit in the middle of the last call."""
    paused: bool
    """Whether the provider pauses, as Anthropic does in a long search. To continue, the client must
    send the message back. Only for Anthropic's messages."""
    size: int
    """The number of characters in each streamed piece of a text or of arguments."""

    def __init__(
        self,
        *calls: Call,
        text: str = "",
        thinking: str = "",
        ran: Iterable[tuple[Call, Any]] = (),
        ids: Iterable[str] = (),
        raw: str | None = None,
        cut: bool = False,
        paused: bool = False,
        size: int = 16,
    ) -> None:
        values = {"calls": calls, "ran": tuple(ran), "ids": tuple(ids), "text": text, "raw": raw}
        values |= {"thinking": thinking, "cut": cut, "paused": paused, "size": size}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if size < 1:
            raise ValueError(f"Calls(size={size!r}): give 1 or more")
        if self.ids and len(self.ids) != len(calls):
            raise ValueError(f"Calls(ids={self.ids!r}): give one id for each of {len(calls)} calls")


def signature_of(thinking: str) -> str:
    """Return the signature of a model's thinking. With it, the provider detects changed
    thinking."""
    return blake2b(thinking.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class TextBlock:
    """A text in a message of the model."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingBlock:
    """Thinking in a message of the model."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBlock:
    """A tool call in a message of the model."""

    id: str
    name: str
    arguments: str
    """The arguments as JSON text."""
    is_raw: bool = False
    """Whether the test has set `arguments` with `Calls(raw=…)`, so that they may be invalid
    JSON."""

    @property
    def text(self) -> str:
        """The arguments."""
        return self.arguments


@dataclass(frozen=True, slots=True)
class RanBlock:
    """A tool call that the provider has run itself, with the result."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    result: Any

    text: ClassVar[str] = ""


Block = TextBlock | ThinkingBlock | CallBlock | RanBlock
"""A part of a message of the model."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the prompt."""

    text: str
    cached: bool = False
    """Whether the client asks to cache the prompt up to the end of this part."""
    spoken: bool = True
    """Whether the part is in `Received.text`. False for the description of a tool."""


@dataclass(frozen=True, slots=True)
class TokenCount:
    """The numbers of tokens of a request and its answer."""

    input: int
    """All tokens of the prompt."""
    output: int
    read: int = 0
    """The tokens of the prompt that were read from the cache."""
    written: int = 0
    """The tokens of the prompt that were written into the cache."""


@dataclass(frozen=True, slots=True)
class ModelReply:
    """The model's message."""

    number: int
    """The number of the request, from 1."""
    model: str
    blocks: tuple[Block, ...]
    """The parts of the message. A refusal has only one text."""
    stop: Literal["end", "cut-off", "refused", "paused"]
    """Why the message ended."""
    counted: TokenCount
    with_usage: bool = True
    """Whether a stream ends with the usage."""
    size: int = 16
    """The number of characters in each streamed piece."""

    @property
    def text(self) -> str:
        """The text of the message, without calls and thinking."""
        return "".join(block.text for block in self.blocks if isinstance(block, TextBlock))

    @property
    def calls(self) -> list[CallBlock]:
        """The calls of the message that the client must run."""
        return [block for block in self.blocks if isinstance(block, CallBlock)]

    def chunks(self, text: str) -> list[str]:
        """Return the pieces in which a text is streamed."""
        return [text[start : start + self.size] for start in range(0, len(text), self.size)]


def channel_of(
    tools: Mapping[str, Any],
    schema: Mapping[str, Any] | None,
    *,
    formatted: bool,
    named: str | None,
    forced: bool,
    forbidden: bool,
    replied: bool,
) -> WireChannel:
    """Return how the model gives its answer to a request: as a text or as a tool call.

    If calls are forbidden, the answer is a text. If a call is forced, the answer is a call of the
    tool that the request names, or else of the first tool. If the request has no format for the
    text, the answer is a call of `STRUCTURED_OUTPUT`. Without that tool, the answer is a call of
    the only tool, unless the last message has a tool result. Every other answer is a text.

    Args:
        tools: The schema of each tool, by name.
        schema: The schema of a text answer.
        formatted: Whether the request has a JSON format for the text.
        named: The tool that the request names as its tool choice.
        forced: Whether the model must call a tool.
        forbidden: Whether the model must not call a tool.
        replied: Whether the last message has the result of a tool.
    """
    names = list(tools)
    if named is None and names:
        if forced:
            named = names[0]
        elif STRUCTURED_OUTPUT in names:
            named = STRUCTURED_OUTPUT
        elif len(names) == 1 and not replied:
            named = names[0]
    wants_call = not forbidden and (forced or not formatted)
    if wants_call and named is not None and named in tools:
        return mapping(tools[named]), named, forced or named == STRUCTURED_OUTPUT
    return schema, None, False


class Wire(ABC):
    """The API of a model provider: how to read requests and write answers."""

    api: ClassVar[Literal["openai", "anthropic"]]
    call_id: ClassVar[str]
    """The prefix of generated call ids."""
    needed: ClassVar[tuple[str, ...]]
    """The required parameters of a request."""

    @abstractmethod
    def pieces(self, body: Body) -> Iterable[Piece]:
        """Return the parts of the prompt, in order."""

    @abstractmethod
    def channel(self, body: Body) -> WireChannel:
        """Return how the model gives its answer: as a text or as a tool call."""

    @abstractmethod
    def results(self, body: Body) -> Iterable[Any]:
        """Return the contents of the tool results at the end of the conversation."""

    @abstractmethod
    def tools(self, body: Body) -> Iterable[str]:
        """Return the names of the tools."""

    @abstractmethod
    def check(self, body: Body) -> None:
        """Raise ValueError with the API's message if the API refuses the conversation: for a call
        without its result, a result without its call, or changed thinking."""

    @abstractmethod
    def body_of(self, reply: ModelReply) -> Body:
        """Return the answer as a JSON body."""

    @abstractmethod
    def events(self, reply: ModelReply) -> list[bytes]:
        """Return the answer as the events of a stream."""

    @abstractmethod
    def error(self, status: int, message: str) -> Body:
        """Return the body of an error."""

    def with_usage(self, body: Body) -> bool:
        """Return whether a stream ends with the usage."""
        return True

    def concludes(self, body: Body) -> bool:
        """Return whether the request only reports that the client has accepted the last structured
        answer."""
        return False


def read_request(wire: Wire, path: str, headers: Mapping[str, str], body: Body) -> Received:
    """Read and check a request. If the API refuses it, raise ValueError with the reason."""
    for name in wire.needed:
        if not body.get(name):
            raise ValueError(f"{name}: this parameter is required")
    try:
        schema, tool, _ = wire.channel(body)
        pieces = list(wire.pieces(body))
        tools = tuple(wire.tools(body))
        results = tuple("\n".join(texts_in(content)) for content in wire.results(body))
        wire.check(body)
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(
            f"the request does not have the API's format: {describe(error)}"
        ) from error
    return Received(
        path=path,
        headers=headers,
        body=body,
        api=wire.api,
        stream=bool(body.get("stream")),
        schema=schema,
        tool=tool,
        tools=tools,
        results=results,
        text="\n".join(piece.text for piece in pieces if piece.spoken),
        tokens=tokens_in("".join(piece.text for piece in pieces)),
    )


LOOKED_BACK: Final = 20
"""The number of blocks before a cache mark in which Anthropic searches for a cached prefix."""


class PromptCache:
    """A simulated prompt cache. It remembers the prefixes of earlier prompts."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def count(self, wire: Wire, received: Received, answer: str) -> TokenCount:
        """Count the tokens of a request and its answer, and cache the prompt as the API does.

        Anthropic caches a prompt up to each cache mark of the client. It searches for a cached
        prefix at each mark and in the 20 blocks before. OpenAI caches every prompt of 1024 tokens
        or more, in steps of 128 tokens.
        """
        so_far = blake2b(received.model.encode(), digest_size=16)
        text, total, read, written = "", 0, 0, 0
        before: deque[tuple[bytes, int]] = deque(maxlen=LOOKED_BACK + 1)
        marked: list[bytes] = []
        for piece in wire.pieces(received.body):
            so_far.update(b"\0" + piece.text.encode("utf-8", "surrogatepass"))
            text += piece.text
            total = tokens_in(text)
            if wire.api == "openai":
                if total >= 1024 and self._has(so_far.digest()):
                    read = total // 128 * 128
                continue
            before.append((so_far.digest(), total))
            if piece.cached:
                cached_sizes = (size for digest, size in reversed(before) if digest in self._seen)
                read = max(read, next(cached_sizes, 0))
                written = total - read
                marked.append(so_far.digest())
        self._seen.update(marked)
        return TokenCount(total, tokens_in(answer), read, written)

    def _has(self, digest: bytes) -> bool:
        """Return whether the cache has a digest, and add the digest."""
        is_cached = digest in self._seen
        self._seen.add(digest)
        return is_cached


def mapping(value: Any) -> Body:
    """Return `value` if it is a JSON object. Otherwise return an empty object."""
    return cast(Body, value) if isinstance(value, Mapping) else {}


def event(data: Body, name: str | None = None) -> bytes:
    """Return a server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def texts_in(content: Any) -> Iterator[str]:
    """Yield the texts in the content of a message. The content is a text or a list of parts."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, Sequence):
        yield from map(text_in, cast(Sequence[Any], content))


def text_in(part: Any) -> str:
    """Return the text of a part: a text, thinking, a refusal, or the arguments or the result of a
    tool call."""
    data = mapping(part)
    for key in ("text", "thinking", "arguments", "output", "refusal"):
        if isinstance(data.get(key), str):
            return data[key]
    if "input" in data:
        return json.dumps(data["input"])
    return "\n".join(texts_in(data.get("content", ())))


ERROR_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_type(status: int) -> str:
    """Return the API's error type for an HTTP status."""
    return ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
