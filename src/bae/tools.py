"""Tools. `Tool` sets options of a function that a model may call. `ToolCall` is a call that a model
made. A tool raises `ToolError` to send the model a message. `Tools` in `bae.markers` puts tools on
a field."""

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
"""How many characters of a result the model reads, unless `Tool(result_limit=…)` sets another
number."""
LONGEST_NAME: Final = 64
"""How many characters the name of a tool may have. Some providers refuse longer names."""
TOOL_NAME: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{LONGEST_NAME}}}")

UNKNOWN: Final = "it is unknown whether this call ran; check before you call it again"
"""The message that a model reads about an interrupted call."""

WhenUnfinished = Literal["tell", "ask", "repeat"]
Approve = bool | str | Callable[..., bool | Awaitable[bool]]


class ToolError(Exception):
    """An error that the model reads. Raise it in a tool, and the model reads the message and
    continues; any other exception fails the run. Raise it in `Tools(accept=…)` to refuse an answer,
    and the model answers again."""


class ToolCall(BaseModel):
    """A call that a model made. Calls that differ only in `seconds` are equal.

    - `id`: unique among the calls of the field.
    - `name`: the name of the tool.
    - `arguments`: the arguments from the model, or from the person who changed them. Secrets are
      masked.
    - `result`: the tool's return value as JSON. Secrets are masked.
    - `error`: the message that the model read instead of a result, or None.
    - `seconds`: how long the call took.
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
        values, other_values = (
            (call.id, call.name, call.arguments, call.result, call.error) for call in (self, other)
        )
        return values == other_values

    def __hash__(self) -> int:
        return hash((self.id, self.name))

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.name}({arguments})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProgress:
    """The state of a conversation with tools. The function in `Tools(before_round=…)` gets it.

    - `limit`: how many rounds the model may make.
    - `by_round`: the calls of each round so far, with their results. A round without calls was a
      wrong answer, or an answer that `Tools(accept=…)` refused.
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
    """A tool with options: `Tools(Tool(refund, approve=True))`.

    `fn` is a function, sync or async, a bound method, a `functools.partial`, a `Graph` or a `Node`
    class. The model reads the docstring of the function. It does not see parameters annotated
    `Dep`, `Recall` or `LM`, because bae fills these.

    - `name`: the name that the model uses. The default is the name of the function.
    - `description`: the text that the model reads in place of the docstring.
    - `approve`: True, or a question, to have a person approve each call. Pass a function to decide
      for each call whether a person is asked. The function's parameters have the names of the
      tool's parameters. A person's answer is an `Approval`.
    - `approve_timeout`: seconds for a person to answer, counted from when the run first asked. A
      call that nobody approves in time is refused.
    - `timeout`: seconds for one call. The default is 300 for a function, and no bound for a graph.
      A call that takes longer is cancelled, and the model reads that it is unknown whether the call
      ran.
    - `retries`: how many more times bae calls a tool that raises. `ToolError` and a timeout are not
      retried.
    - `inline`: call a sync function on the event loop instead of in a worker thread.
    - `result_limit`: how many characters of a result the model reads.
    - `repeat`: what happens with a call that equals an earlier call. "call" runs it. "reuse"
      returns the earlier result. By default, the call runs, but a model without native tool calls
      then has to answer in the next round.
    - `unfinished`: what happens, when a run is resumed, with a call that has begun and has no
      result. With "tell", the model reads that it is unknown whether the call ran. With "ask", bae
      asks a person, whose answer is an `Interruption`. With "repeat", bae calls the tool again.
    - `schema`: the JSON schema of the arguments, for a function that takes arguments by keyword and
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
            kind = type(cast(object, fn)).__name__
            raise TypeError(
                f"Tool({fn!r}): give it a function, a Graph or a Node class, not a {kind}"
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
        is_positive = isinstance(timeout, int | float) and timeout > 0
        if timeout is not None and timeout is not ... and not is_positive:
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
    """A tool with which the model asks a person. The model writes the question, and the result is
    the person's answer.

    `type` is the type of the answer. The run waits as at a `Gate`. After `timeout` seconds without
    an answer, the model reads that nobody answered.
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
    """A tool that the provider runs, such as `Native("web_search", max_uses=3)`. A run does not
    start with a model whose backend lacks the tool."""

    __slots__ = ("name", "options")

    def __init__(self, name: str, **options: Any) -> None:
        self.name, self.options = name, options

    def __repr__(self) -> str:
        return f"Native({self.name!r})"


class ToolServer(ABC):
    """A server that offers tools, such as an MCP server. Its tools are known when it is open.

    bae opens the server once for a run and closes it after the run. Inside
    `async with graph.open():`, bae opens the server once for all runs and closes it with the
    block."""

    name: str
    approve: Approve = False
    """Which calls a person approves, as in `Tool(approve=…)`. bae reads this attribute before the
    run, when the tools are not known yet. `open` has to set the same option on the tools."""
    open_timeout: float | None = 300.0
    """Seconds for opening the server; None if the server has a timeout of its own."""

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[Sequence[Tool]]:
        """Open the server. The returned context manager yields the tools, which stay the same until
        the server is closed."""


class ToolInterrupted(Exception):
    """Raise it in a tool if it is unknown whether the call had an effect, for example because a
    connection broke. The model reads the message."""


Reporter = Callable[[str, float | None, float | None], None]
reporter: ContextVar[Reporter | None] = ContextVar("bae_tool_reporter", default=None)


_REPORTS: Final = 1_000
"""How many reports of a call are passed on before bae drops all but one a second."""


def report_on_loop(write: Reporter) -> Reporter:
    """Return a reporter for one call. It runs `write` on the event loop that is running now, even
    if a sync tool reports from a thread. After a thousand reports, it passes on one report a
    second and drops the others."""
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
    """Report the progress of a tool. Observers of the run read it, and an MCP client that called
    the graph. Reports are not stored, and the model does not read them.

    Call this function inside a tool; elsewhere it does nothing. After a thousand reports of a call,
    one report a second is passed on."""
    tell = reporter.get()
    if tell is not None:
        tell(text, done, total)


call_in_progress: ContextVar[str] = ContextVar("bae_tool_call", default="")
"""The idempotency key of the tool call in progress; empty outside a tool."""


def idempotency_key() -> str:
    """Return the key of the tool call in progress, for services that take an idempotency key.

    If bae repeats the call, the key is the same. bae repeats calls with `Tool(fn, retries=2)`, and
    after a resume with `Tool(fn, unfinished="repeat")`. No other call of any run has the same key.

    Call this function inside a tool that is a function. Elsewhere it raises `RuntimeError`, also in
    the bodies and dependencies of a graph that is a tool.
    """
    key = call_in_progress.get()
    if not key:
        raise RuntimeError(
            "idempotency_key() was called outside a tool: call it in a function that a model calls "
            "by Tools(…), and pass the key on from there"
        )
    return key


def as_tools(given: Iterable[Any]) -> tuple[Tool | Ask | Native | ToolServer, ...]:
    """Return the tools that a user has listed. Functions, graphs and node classes become
    `Tool`s."""
    kinds = (Tool, Ask, Native, ToolServer)
    return tuple(item if isinstance(item, kinds) else Tool(item) for item in given)


def call_key(asker: Asker, question: str, name: str, arguments: Any) -> str:
    """Return the key that binds a person's answer to one call: a hash of the conversation, the tool
    and the arguments. The id of the call is not enough, because a graph that starts again may make
    another call with the same id."""
    who = asker.kind, asker.node.__name__, asker.field, asker.parameter, asker.item
    text = json.dumps([who, question, name, arguments], sort_keys=True, default=str)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
