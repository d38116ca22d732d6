"""Tools: `Tool` sets options of a function that a model may call, `ToolCall` is one call, and the
model reads the message of a `ToolError`. `Tools` in `bae.markers` puts tools on a field."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256
from threading import get_ident
from time import monotonic
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node
    from bae.records import Asker

RESULT_LIMIT: Final = 20_000
"""How many characters of a result the model reads, unless its tool says otherwise."""
LONGEST_NAME: Final = 64
"""How many characters the name of a tool has at most: some providers take no more."""
TOOL_NAME: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{LONGEST_NAME}}}")

UNKNOWN: Final = "it is unknown whether this call ran; check before you call it again"
"""The error that a model reads for an interrupted call."""

WhenUnfinished = Literal["tell", "ask", "repeat"]
Approve = bool | str | Callable[..., bool | Awaitable[bool]]


class ToolError(Exception):
    """Raise it in a tool to have the model read the message, and continue. Any other exception
    fails the run. In `Tools(accept=…)` it refuses the answer, and the model answers again."""


class ToolCall(BaseModel):
    """One call that a model made.

    - `id`: unique among the calls of the field.
    - `name`, `arguments`: as the model wrote them, or as a person has changed them.
    - `result`: what the tool returned, as JSON; secrets in it are masked.
    - `error`: what the model read instead of a result, or None.
    - `seconds`: how long the call took. Calls that differ in nothing else are equal.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    name: str
    arguments: dict[str, Any]
    result: Any = None
    error: str | None = None
    seconds: float = 0.0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToolCall):
            return NotImplemented
        mine, theirs = (
            (call.id, call.name, call.arguments, call.result, call.error) for call in (self, other)
        )
        return mine == theirs

    def __hash__(self) -> int:
        return hash((self.id, self.name))

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.name}({given})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProgress:
    """The state of a conversation with tools, for the function in `Tools(before_round=…)`.

    - `limit`: how many rounds there are at most.
    - `by_round`: the calls of each round so far, with their results. A round without calls was an
      answer that was wrong or refused.
    - `refused`: how many answers `Tools(accept=…)` has refused.
    - `messages`: the texts that the function has returned in this conversation.
    """

    limit: int
    by_round: tuple[tuple[ToolCall, ...], ...] = ()
    refused: int = 0
    messages: tuple[str, ...] = ()

    @property
    def rounds(self) -> int:
        """How many rounds the model has made."""
        return len(self.by_round)

    @property
    def calls(self) -> list[ToolCall]:
        """The calls of all rounds, in order."""
        return [call for calls in self.by_round for call in calls]


class Tool:
    """A tool that differs from its function: `Tools(Tool(refund, approve=True))`.

    `fn` is a function, sync or async, a bound method, a `functools.partial`, a `Graph` or a `Node`
    class. bae fills parameters annotated `Dep`, `Recall` or `LM`, and the model does not see them.
    The model reads the docstring of the function.

    - `name`: the name that the model uses; the name of the function unless given.
    - `description`: the text that the model reads in place of the docstring.
    - `approve`: True, or a question, to have a person approve each call. Give a function to decide
      for each call whether a person is asked; its parameters are named as those of the tool. A
      person's answer is an `Approval`.
    - `approve_timeout`: seconds for a person to answer, counted from when the run asked first. A
      call that nobody approves in time is refused.
    - `timeout`: seconds for one call; unless given, 300 for a function and no bound for a graph. A
      call that takes longer is cancelled, and the model reads that it is unknown whether it ran.
    - `retries`: how many more times to call it when it raises something other than `ToolError`. A
      call that took too long is not repeated.
    - `inline`: call a sync function on the event loop instead of in a worker thread.
    - `result_limit`: how many characters of a result the model reads.
    - `repeat`: "call" runs an equal call again, "reuse" answers it with the earlier result. Without
      `repeat`, an equal call runs again, but a model without native tool calls may then only
      answer.
    - `unfinished`: what happens, when a run is resumed, with a call that had begun and has no
      result. With "tell" the model reads that it is unknown whether the call ran. "ask" asks a
      person, whose answer is an `Interruption`. "repeat" calls the tool again.
    - `schema`: the JSON schema of the arguments, for a function that takes them by keyword and
      validates them itself.
    """

    __slots__ = (
        "approve",
        "approve_timeout",
        "description",
        "fn",
        "inline",
        "name",
        "repeat",
        "result_limit",
        "retries",
        "schema",
        "timeout",
        "unfinished",
    )

    def __init__(
        self,
        fn: Callable[..., Any] | Graph[Any, Any] | type[Node],
        *,
        name: str = "",
        description: str = "",
        approve: Approve = False,
        approve_timeout: float | None = None,
        timeout: float | EllipsisType | None = ...,
        retries: int = 0,
        inline: bool = False,
        result_limit: int = RESULT_LIMIT,
        repeat: Literal["", "call", "reuse"] = "",
        unfinished: WhenUnfinished = "tell",
        schema: Mapping[str, Any] | None = None,
    ) -> None:
        if not callable(fn) and not hasattr(fn, "arun"):
            given = type(cast(object, fn)).__name__
            raise TypeError(
                f"Tool({fn!r}): give it a function, a Graph or a Node class, not a {given}"
            )
        if name and not TOOL_NAME.fullmatch(name):
            raise ValueError(
                f"Tool(name={name!r}): use at most {LONGEST_NAME} letters, digits, _ and -"
            )
        if not isinstance(cast(object, approve), bool | str) and not callable(approve):
            raise TypeError(
                f"Tool(approve={approve!r}): give True, a question, or a function of the arguments"
            )
        if approve_timeout is not None and not approve_timeout > 0:
            raise ValueError(f"Tool(approve_timeout={approve_timeout!r}): give seconds above 0")
        if isinstance(approve, str) and not approve.strip():
            raise ValueError("Tool(approve=''): give a question, or True")
        seconds = isinstance(timeout, int | float) and timeout > 0
        if timeout is not None and timeout is not ... and not seconds:
            raise ValueError(f"Tool(timeout={timeout!r}): give seconds above 0, or None")
        for option, value, least in (("retries", retries, 0), ("result_limit", result_limit, 1)):
            if type(value) is not int or value < least:
                raise ValueError(f"Tool({option}={value!r}): give a number, {least} or more")
        if repeat not in ("", "call", "reuse"):
            raise ValueError(f'Tool(repeat={repeat!r}): give "call" or "reuse"')
        if unfinished not in ("tell", "ask", "repeat"):
            raise ValueError(f'Tool(unfinished={unfinished!r}): give "tell", "ask" or "repeat"')
        self.fn = fn
        self.name = name
        self.description = description
        self.approve: Approve = approve
        self.approve_timeout = approve_timeout
        self.timeout = timeout
        self.retries = retries
        self.inline = inline
        self.result_limit = result_limit
        self.repeat: Literal["", "call", "reuse"] = repeat
        self.unfinished: WhenUnfinished = unfinished
        self.schema = schema

    def __repr__(self) -> str:
        return f"Tool({self.name or getattr(self.fn, '__name__', repr(self.fn))})"


class Ask:
    """A tool whose result is a person's answer: the model writes the question.

    `type` is the type of the answer. The run waits as at a `Gate`, and the model reads the answer.
    After `timeout` seconds without an answer, the model reads that nobody answered.
    """

    __slots__ = ("description", "name", "timeout", "type")

    def __init__(
        self,
        type: Any = str,
        *,
        name: str = "ask_person",
        description: str = "Ask a person, who sees this conversation's task. Use it when a "
        "decision is theirs, or something that only they know is missing.",
        timeout: float | None = None,
    ) -> None:
        if not TOOL_NAME.fullmatch(name):
            raise ValueError(
                f"Ask(name={name!r}): use at most {LONGEST_NAME} letters, digits, _ and -"
            )
        if timeout is not None and not timeout > 0:
            raise ValueError(f"Ask(timeout={timeout!r}): give seconds above 0, or None")
        self.type, self.name, self.description, self.timeout = type, name, description, timeout

    def __repr__(self) -> str:
        return f"Ask({self.name})"


class Native:
    """A tool that the provider itself runs, as `Native("web_search", max_uses=3)`. The run refuses
    to start with a model whose backend does not have the tool."""

    __slots__ = ("name", "options")

    def __init__(self, name: str, **options: Any) -> None:
        self.name, self.options = name, options

    def __repr__(self) -> str:
        return f"Native({self.name!r})"


class ToolServer(ABC):
    """A source of tools that are known once it is opened, such as an MCP server. It is opened once
    for a run, or once for all runs inside `async with graph.open():`, and closed after it."""

    name: str
    approve: Approve = False
    """Whether a person may be asked about calls of its tools."""
    open_timeout: float | None = 300.0
    """Seconds for opening it; None if the server bounds that itself."""

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[Sequence[Tool]]:
        """Open it. Its tools stay the same while it is open."""


class ToolInterrupted(Exception):
    """Raised in a tool when it is unknown whether the call had an effect, for example after a
    connection broke. The model reads the message."""


Reporter = Callable[[str, float | None, float | None], None]
reporter: ContextVar[Reporter | None] = ContextVar("bae_tool_reporter", default=None)


_REPORTS: Final = 1_000
"""How many reports of a call are passed on before they become rarer."""


def report_on_loop(write: Reporter) -> Reporter:
    """A reporter for one call. Sync tools report from threads; the reporter runs `write` on the
    running event loop. After the first thousand reports, it passes on one report a second."""
    loop, thread = get_running_loop(), get_ident()
    count, last = 0, 0.0

    def pass_on(text: str, done: float | None, total: float | None) -> None:
        nonlocal count, last
        count, now = count + 1, monotonic()
        if count > _REPORTS and now - last < 1.0:
            return
        last = now
        if get_ident() == thread:
            write(text, done, total)
        else:
            loop.call_soon_threadsafe(write, text, done, total)

    return pass_on


def report(text: str, done: float | None = None, total: float | None = None) -> None:
    """Report the progress of a tool to observers of the run and to an MCP client that called the
    graph. Call it inside a tool; elsewhere it does nothing. Reports are not stored, and the model
    does not read them. After a thousand reports of a call, one report a second is passed on."""
    tell = reporter.get()
    if tell is not None:
        tell(text, done, total)


call_in_progress: ContextVar[str] = ContextVar("bae_tool_call", default="")
"""The idempotency key of the tool call in progress."""


def idempotency_key() -> str:
    """A key that names the tool call in progress, for services that take an idempotency key.

    The key is the same whenever this call is repeated: by `Tool(fn, retries=2)`, or by
    `Tool(fn, unfinished="repeat")` after a resume in another process. No other call of any run has
    the same key. Call it inside a tool; elsewhere it raises `RuntimeError`.
    """
    key = call_in_progress.get()
    if not key:
        raise RuntimeError(
            "idempotency_key() was called outside a tool: call it in a function that a model calls "
            "by Tools(…), and pass the key on from there"
        )
    return key


def as_tools(given: Iterable[Any]) -> tuple[Tool | Ask | Native | ToolServer, ...]:
    """The tools that a user lists: a function, graph or node class becomes a `Tool`."""
    kinds = (Tool, Ask, Native, ToolServer)
    return tuple(each if isinstance(each, kinds) else Tool(each) for each in given)


def call_key(asker: Asker, question: str, name: str, arguments: Any) -> str:
    """The key that binds an answer to one call: a hash of its arguments and of the conversation. A
    graph that starts again may make another call with the same id."""
    who = asker.kind, asker.node.__name__, asker.field, asker.parameter, asker.item
    text = json.dumps([who, question, name, arguments], sort_keys=True, default=str)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
