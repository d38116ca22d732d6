"""What an API looks like to `Provider`: how its requests are read, its answers written, and how it
fails. One module each for OpenAI's and Anthropic's."""

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
"""The schema of the answer, the tool that it is given by, and whether that tool must be called."""

STRUCTURED_OUTPUT: Final = "StructuredOutput"
"""The tool by which the Claude CLI has a model answer to a schema, though it need not call it."""


@dataclass(frozen=True, slots=True)
class Received:
    """One request for an answer. Look at it to see what a client sent."""

    path: str
    """Where it was sent, without the query."""
    headers: Mapping[str, str] = field(repr=False)
    """Its headers, by names in lower case."""
    body: Mapping[str, Any] = field(repr=False)
    """All of it, as the client's JSON says it."""
    api: Literal["openai", "anthropic"]
    stream: bool
    schema: Mapping[str, Any] | None = field(repr=False)
    """The JSON schema of the answer, wherever the API has the client put it; None without one."""
    tool: str | None
    """The tool by which the answer is given, where it is."""
    tools: tuple[str, ...]
    """The names of all tools that are declared, in their order."""
    results: tuple[str, ...]
    """The results of tool calls in the last message, as text, in their order."""
    text: str
    """All the text of the prompt, the system part first."""
    tokens: int
    """How many tokens the prompt is counted as, with the descriptions of tools."""

    @property
    def model(self) -> str:
        """The model that was asked for."""
        return str(self.body["model"])


def tokens_in(text: str) -> int:
    """How many tokens a text has: one for four characters, begun ones included."""
    return -(-len(text) // 4)


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with real providers, for a `Provider` to do on purpose: give one of its
    subclasses in place of an answer."""


@dataclass(frozen=True, slots=True)
class Status(Fault):
    """An error with an HTTP status, in the shape the API gives its errors.

    `retry_after`, in seconds, is sent as the header of that name; so are `headers`.
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
    """Headers, and in a stream the first `after` events; then nothing until the client goes."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class Cut(Fault):
    """The connection is closed in the middle of the body: in a stream after `after` events, else
    after half of it."""

    after: int = 1


@dataclass(frozen=True, slots=True)
class Malformed(Fault):
    """A body that is not JSON; in a stream, an event that is not, after the first that is."""


@dataclass(frozen=True, slots=True)
class WrongSchema(Fault):
    """A whole answer of valid JSON that does not fit the schema: one property has a wrong type."""


@dataclass(frozen=True, slots=True)
class Overlong(Fault):
    """Half an answer, cut off by the limit on its length, with the stop reason that says so."""


@dataclass(frozen=True, slots=True)
class Refusal(Fault):
    """The model declines, and says `text`."""

    text: str = "I cannot help with that."


@dataclass(frozen=True, slots=True)
class Empty(Fault):
    """A whole answer with nothing in it."""


@dataclass(frozen=True, slots=True, init=False)
class Calls:
    """A message in which the model calls tools, for a `Provider` to send:
    `Calls(Call("search", query="kettle"), Call("read", page=2), text="I will look.")`.

    - `text`: what the model writes before the calls.
    - `thinking`: what it thinks before that. It is sent with a signature, and a later request that
      has it changed is refused. Chat completions have no thinking: there it is left out.
    - `ran`: calls of tools that the provider runs itself, with their results, as
      `[(Call("web_search", query="kettle"), [{"title": "…"}])]`. In Anthropic's messages alone.
    - `ids`: the ids of the calls; made up unless given.
    - `raw`: the arguments of the last call as this text, in place of its own: no JSON, for example.
    - `cut`: whether the message ends in the middle of its last call, at the limit on its length.
    - `paused`: whether the provider has stopped for a while and wants its own message back, as
      Anthropic does in a long search. In Anthropic's messages alone.
    - `size`: how many characters each piece of a streamed text, or of arguments, has.
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
        given = {"calls": calls, "ran": tuple(ran), "ids": tuple(ids), "text": text, "raw": raw}
        given |= {"thinking": thinking, "cut": cut, "paused": paused, "size": size}
        for name, value in given.items():
            object.__setattr__(self, name, value)
        if size < 1:
            raise ValueError(f"Calls(size={size!r}): give 1 or more")
        if self.ids and len(self.ids) != len(calls):
            raise ValueError(f"Calls(ids={self.ids!r}): give one for each of {len(calls)} calls")


def signature_of(thinking: str) -> str:
    """What a provider signs thinking with: it knows by this whether the thinking was changed."""
    return blake2b(thinking.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class TextBlock:
    """A text in a message of the model."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingBlock:
    """What the model thought."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBlock:
    """A call of a tool. `arguments` are the text that the model wrote; with `is_raw`, a text that
    may be no JSON."""

    id: str
    name: str
    arguments: str
    is_raw: bool = False

    @property
    def text(self) -> str:
        """What the model wrote."""
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
    """A part of the prompt. `cached` ends a prefix that the client asks to be cached; `spoken` is
    false for what is not prompt text, such as the description of a tool."""

    text: str
    cached: bool = False
    spoken: bool = True


@dataclass(frozen=True, slots=True)
class TokenCount:
    """The tokens of an exchange. `read` and `written` are the cached ones among `input`."""

    input: int
    output: int
    read: int = 0
    written: int = 0


@dataclass(frozen=True, slots=True)
class ModelReply:
    """What the model says, in parts, and why it ended. A refusal is one text."""

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
        return "".join(each.text for each in self.blocks if isinstance(each, TextBlock))

    @property
    def calls(self) -> list[CallBlock]:
        """The calls of the message."""
        return [each for each in self.blocks if isinstance(each, CallBlock)]

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
    """How a request has the answer given, by what it says: the `schema` of an answer in text, and
    whether it is to be JSON (`formatted`); or `tools` with their schemas, of which one is `named`
    or `forced`, or none may be called; and whether the last message is what a tool `replied`.

    A tool is called that is named or must be, or the only one that may be and was not."""
    names = list(tools)
    if named is None and names:
        if forced:
            named = names[0]
        elif STRUCTURED_OUTPUT in names:
            named = STRUCTURED_OUTPUT
        elif len(names) == 1 and not replied:
            named = names[0]
    wanted = not forbidden and (forced or not formatted)
    if wanted and named is not None and named in tools:
        return mapping(tools[named]), named, forced or named == STRUCTURED_OUTPUT
    return schema, None, False


class Wire(ABC):
    """One API."""

    api: ClassVar[Literal["openai", "anthropic"]]
    call_id: ClassVar[str]
    """What the ids of calls begin with."""
    needed: ClassVar[tuple[str, ...]]
    """The parameters that a request cannot do without."""

    @abstractmethod
    def pieces(self, body: Body) -> Iterable[Piece]:
        """The prompt in order."""

    @abstractmethod
    def channel(self, body: Body) -> WireChannel:
        """How to answer."""

    @abstractmethod
    def results(self, body: Body) -> Iterable[Any]:
        """What the tools replied, in the last message: contents of parts."""

    @abstractmethod
    def tools(self, body: Body) -> Iterable[str]:
        """The names of the tools."""

    @abstractmethod
    def check(self, body: Body) -> None:
        """Raise ValueError, with the words of the API, for a conversation that it refuses: a call
        without its result, a result without its call, thinking that was changed."""

    @abstractmethod
    def whole(self, reply: ModelReply) -> Body:
        """The answer as one body."""

    @abstractmethod
    def events(self, reply: ModelReply) -> list[bytes]:
        """The answer as the events of a stream."""

    @abstractmethod
    def error(self, status: int, message: str) -> Body:
        """The body of an error."""

    def with_usage(self, body: Body) -> bool:
        """Whether a stream is to end with the usage."""
        return True

    def concludes(self, body: Body) -> bool:
        """Whether the request only reports that the structured answer before was taken."""
        return False


def read(wire: Wire, path: str, headers: Mapping[str, str], body: Body) -> Received:
    """Read a request; raise ValueError, which says what is wrong with it, when that fails."""
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
"""How many blocks before a mark Anthropic looks at for what is cached."""


class PromptCache:
    """The prefixes of prompts that were seen before."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def count(self, wire: Wire, received: Received, answer: str) -> TokenCount:
        """Count an exchange. Anthropic caches a prompt up to where the client marks it, and looks
        for what is cached there and in the 20 blocks before; OpenAI caches every one of 1024 tokens
        and more, by 128 at a time."""
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
                known = (size for digest, size in reversed(before) if digest in self._seen)
                read = max(read, next(known, 0))
                written = total - read
                marked.append(so_far.digest())
        self._seen.update(marked)
        return TokenCount(total, tokens_in(answer), read, written)

    def _has(self, digest: bytes) -> bool:
        """Whether it was seen before; it is from now on."""
        known = digest in self._seen
        self._seen.add(digest)
        return known


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
        yield from map(text_in, cast(Sequence[Any], content))


def text_in(part: Any) -> str:
    """The text of one part: what it says, or what a tool was called with or returned."""
    found = mapping(part)
    for key in ("text", "thinking", "arguments", "output", "refusal"):
        if isinstance(found.get(key), str):
            return found[key]
    if "input" in found:
        return json.dumps(found["input"])
    return "\n".join(texts_in(found.get("content", ())))


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
    """The type of an error: by its status, or else by whose fault it is."""
    return ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
