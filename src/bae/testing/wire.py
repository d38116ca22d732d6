"""The base class of the APIs that `Provider` speaks: how to read a request, write an answer, and
fail. OpenAI's and Anthropic's APIs each have their own module."""

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
"""The schema of the answer, the tool that takes the answer, and whether that tool must be
called."""

STRUCTURED_OUTPUT: Final = "StructuredOutput"
"""The tool through which the Claude CLI gets a structured answer. The model need not call it."""


@dataclass(frozen=True, slots=True)
class Received:
    """A request that a client has sent."""

    path: str
    """The path without the query."""
    headers: Mapping[str, str] = field(repr=False)
    """The headers, with names in lower case."""
    body: Mapping[str, Any] = field(repr=False)
    """The JSON body."""
    api: Literal["openai", "anthropic"]
    stream: bool
    schema: Mapping[str, Any] | None = field(repr=False)
    """The JSON schema of the answer, from any of the places that the API allows, or None."""
    tool: str | None
    """The tool that takes the answer, or None."""
    tools: tuple[str, ...]
    """The names of all declared tools, in order."""
    results: tuple[str, ...]
    """The results of tool calls in the last message, as texts, in order."""
    text: str
    """All the text of the prompt, the system part first."""
    tokens: int
    """The number of tokens of the prompt, with the descriptions of tools."""

    @property
    def model(self) -> str:
        """The requested model."""
        return str(self.body["model"])


def tokens_in(text: str) -> int:
    """How many tokens a text has: one for every four characters, rounded up."""
    return -(-len(text) // 4)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of real providers that a `Provider` simulates. Give a subclass instead of an
    answer."""


@dataclass(frozen=True, slots=True)
class Status(Fault):
    """An error with an HTTP status, in the API's format for errors.

    `retry_after`, in seconds, is sent as the header of that name. `headers` are further headers.
    """

    code: int
    retry_after: float | None = None
    message: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if not 400 <= self.code <= 599:
            raise ValueError(f"Status({self.code!r}): give an error, 400 to 599")


@dataclass(frozen=True, slots=True)
class Stall(Fault):
    """Send the headers, and in a stream the first `after` events. Then send nothing until the
    client disconnects."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class Cut(Fault):
    """Close the connection in the middle of the body: after `after` events of a stream, or after
    half of another body."""

    after: int = 1


@dataclass(frozen=True, slots=True)
class Malformed(Fault):
    """Send a body that is not JSON. In a stream, the second event is not JSON."""


@dataclass(frozen=True, slots=True)
class WrongSchema(Fault):
    """Send a complete JSON answer in which one property does not fit the schema."""


@dataclass(frozen=True, slots=True)
class Overlong(Fault):
    """Send half an answer with the stop reason for the limit on its length."""


@dataclass(frozen=True, slots=True)
class Refusal(Fault):
    """Refuse to answer, with `text` as the model's words."""

    text: str = "I cannot help with that."


@dataclass(frozen=True, slots=True)
class Empty(Fault):
    """Send a complete but empty answer."""


@dataclass(frozen=True, slots=True, init=False)
class Calls:
    """A message in which the model calls tools:
    `Calls(Call("search", query="kettle"), Call("read", page=2), text="I will look.")`.

    - `text`: the model's text before the calls.
    - `thinking`: the model's thinking before the text. It is sent with a signature, and a later
      request with changed thinking is refused. Chat completions leave it out.
    - `ran`: calls of tools that the provider runs itself, with their results, such as
      `[(Call("web_search", query="kettle"), [{"title": "…"}])]`. Only for Anthropic's messages.
    - `ids`: the ids of the calls. By default they are generated.
    - `raw`: a text to send as the arguments of the last call, which need not be JSON.
    - `cut`: whether the message ends in the middle of its last call, at the limit on its length.
    - `paused`: whether the provider pauses and needs its own message back to continue, as Anthropic
      does in a long search. Only for Anthropic's messages.
    - `size`: the characters of each streamed piece of a text or of arguments.
    """

    calls: tuple[Call, ...]
    text: str
    thinking: str
    ran: tuple[tuple[Call, Any], ...]
    ids: tuple[str, ...]
    raw: str | None
    cut: bool
    paused: bool
    size: int

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
            raise ValueError(f"Calls(ids={self.ids!r}): give one for each of {len(calls)} calls")


def signature_of(thinking: str) -> str:
    """The signature of thinking, by which a provider notices that it was changed."""
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
    """A call of a tool. `arguments` are the model's text; with `is_raw` they need not be JSON."""

    id: str
    name: str
    arguments: str
    is_raw: bool = False

    @property
    def text(self) -> str:
        """The arguments."""
        return self.arguments


@dataclass(frozen=True, slots=True)
class RanBlock:
    """A call that the provider has run itself, with its result as JSON."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    result: Any

    text: ClassVar[str] = ""


Block = TextBlock | ThinkingBlock | CallBlock | RanBlock
"""A part of a message of the model."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the prompt. `cached` marks the end of a prefix that the client wants cached.
    `spoken` is False for parts that are not text of the prompt, such as the description of a
    tool."""

    text: str
    cached: bool = False
    spoken: bool = True


@dataclass(frozen=True, slots=True)
class TokenCount:
    """The tokens of an exchange. Of the `input`, `read` came from the cache and `written` went into
    it."""

    input: int
    output: int
    read: int = 0
    written: int = 0


@dataclass(frozen=True, slots=True)
class ModelReply:
    """The model's message in blocks, and why it ended. A refusal is one text."""

    number: int
    model: str
    blocks: tuple[Block, ...]
    stop: Literal["end", "cut-off", "refused", "paused"]
    counted: TokenCount
    with_usage: bool = True
    size: int = 16

    @property
    def text(self) -> str:
        """The text of the message, without its calls."""
        return "".join(block.text for block in self.blocks if isinstance(block, TextBlock))

    @property
    def calls(self) -> list[CallBlock]:
        """The calls of the message."""
        return [block for block in self.blocks if isinstance(block, CallBlock)]

    def chunks(self, text: str) -> list[str]:
        """A text as it streams."""
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
    """How to give the answer to a request.

    The request may have the `schema` of a text, which is JSON if it is `formatted`. It may have
    `tools` with their schemas: one may be `named`, a call may be `forced` or `forbidden`. The last
    message may be the result of a tool (`replied`).

    The answer is the call of a tool if a tool is named or a call is forced, or if there is just one
    tool, which may be called and was not called yet."""
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
    """One API."""

    api: ClassVar[Literal["openai", "anthropic"]]
    call_id: ClassVar[str]
    """The prefix of the ids of calls."""
    needed: ClassVar[tuple[str, ...]]
    """The required parameters of a request."""

    @abstractmethod
    def pieces(self, body: Body) -> Iterable[Piece]:
        """The parts of the prompt, in order."""

    @abstractmethod
    def channel(self, body: Body) -> WireChannel:
        """How to give the answer."""

    @abstractmethod
    def results(self, body: Body) -> Iterable[Any]:
        """The contents of the tool results in the last message."""

    @abstractmethod
    def tools(self, body: Body) -> Iterable[str]:
        """The names of the tools."""

    @abstractmethod
    def check(self, body: Body) -> None:
        """Raise ValueError, in the words of the API, for a conversation that the API refuses: a
        call without its result, a result without its call, or changed thinking."""

    @abstractmethod
    def body_of(self, reply: ModelReply) -> Body:
        """The answer as one body."""

    @abstractmethod
    def events(self, reply: ModelReply) -> list[bytes]:
        """The answer as the events of a stream."""

    @abstractmethod
    def error(self, status: int, message: str) -> Body:
        """The body of an error."""

    def with_usage(self, body: Body) -> bool:
        """Whether a stream ends with the usage."""
        return True

    def concludes(self, body: Body) -> bool:
        """Whether the request only reports that the last structured answer was accepted."""
        return False


def read_request(wire: Wire, path: str, headers: Mapping[str, str], body: Body) -> Received:
    """Read a request. Raises ValueError with the reason if that fails."""
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
        raise ValueError(f"the request has not the shape it must: {describe(error)}") from error
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
"""How many blocks before a mark Anthropic searches for a cached prefix."""


class PromptCache:
    """The prefixes of earlier prompts."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def count(self, wire: Wire, received: Received, answer: str) -> TokenCount:
        """Count the tokens of an exchange. Anthropic caches a prompt up to the client's marks, and
        searches for a cached prefix there and in the 20 blocks before. OpenAI caches every prompt
        of 1024 tokens or more, in steps of 128."""
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
        """Whether a digest was seen before. Adds it."""
        is_cached = digest in self._seen
        self._seen.add(digest)
        return is_cached


def mapping(value: Any) -> Body:
    """The value if it is a JSON object, otherwise an empty object."""
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
        yield from map(text_in, cast(Sequence[Any], content))


def text_in(part: Any) -> str:
    """The text of one part: its text, or the arguments or the result of a tool call."""
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
    """The type of an error by its status."""
    return ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
