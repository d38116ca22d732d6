"""Markers say in a field's annotation where its value comes from: `Annotated[T, Dep(fn)]`,
`Recall()`, `Map(fn, over=…)`, `Gate("question")` or `Thread()`. A field without a marker is plain:
the caller passes it with the start node, and the LM fills it on every other node. With `Text()`
the LM answers in plain text. A field with `Tools(fn, …)` holds the tool calls that the LM made
before it filled the node."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, dataclass, field
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NoReturn, cast

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node
    from bae.tools import ToolCall

FUNCTION_TIMEOUT: Final = 300.0
"""Seconds one call of a dependency function may take unless its marker says otherwise."""

MAP_LIMIT: Final = 64
"""How many items of one `Map` are worked on at once unless it says otherwise."""

SHOWN_TURNS: Final = 20
"""How many earlier turns of a thread a node shows unless its `Thread` says otherwise."""

LONGEST_HISTORY: Final = 100_000
"""How many characters these turns have together, at most, unless it says otherwise."""

TOOL_ROUNDS: Final = 8
"""How many rounds of tool calls a node may take unless its `Tools` says otherwise."""


_NO_OPTIONS: Final = ("fn", "over", "bound", "scope")
"""The parameters of `Dep` and `Map` that are no options, or whose value may be a text."""


class Marker:
    """The base of all markers: a value that is compared by its options and never changes."""

    # Written by hand, not generated as a dataclass for each class: that would slow down the import.
    __slots__ = ()
    __match_args__: tuple[str, ...] = ()

    is_source: ClassVar[bool] = True
    """Whether it names a source. A field with any other marker is plain."""
    planned_by: ClassVar[str]
    """The module of `bae.sources` that plans a field with the marker. Subclasses inherit it."""

    def _set(self, **options: object) -> None:
        for name, value in options.items():
            object.__setattr__(self, name, value)

    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__match_args__}

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"a {type(self).__name__} cannot be changed: make another one")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"a {type(self).__name__} cannot be changed: make another one")

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._options().items())
        return f"{type(self).__name__}({options})"

    def __eq__(self, other: object) -> bool:
        same = type(other) is type(self)
        return same and self._options() == cast("Marker", other)._options()

    def __hash__(self) -> int:
        return hash((type(self), *self._options().values()))

    def __getstate__(self) -> dict[str, Any]:
        return self._options()

    def __setstate__(self, options: dict[str, Any]) -> None:
        self._set(**options)


class _Called(Marker):
    """The common part of `Dep` and `Map`: something to call, and how."""

    __slots__ = ("bound", "fn", "inline", "retries", "timeout")

    fn: Callable[..., Any] | Graph[Any, Any] | type[Node] | None
    timeout: float | EllipsisType | None
    retries: int
    inline: bool
    bound: tuple[tuple[str, str | Recall], ...]
    """The parameters that are bound to a field of the node, or to a Recall."""

    def _check(self, timeout: object, retries: object) -> None:
        kind = type(self).__name__
        if type(self.fn).__module__ == "annotationlib":
            # Python 3.14 evaluates an annotation before its names exist, with stand-ins for them.
            # A marker made of a stand-in would stay, so refuse until there is a function.
            raise TypeError(f"{kind}({self.fn!r}): the name is not defined yet")
        may_be_none = self.fn is None and kind == "Dep"
        if not may_be_none and not callable(self.fn) and not hasattr(self.fn, "arun"):
            given = type(self.fn).__name__
            if inspect.iscoroutine(self.fn) or inspect.isgenerator(self.fn):
                self.fn.close()  # or Python warns later that a coroutine was never awaited
                called = self.fn.__name__
                raise TypeError(f"{kind}({called}(…)): give the function itself: {kind}({called})")
            hidden = "; a field with a default hides a function of its name, so rename one"
            raise TypeError(
                f"{kind}({self.fn!r}): give it something to call: a function, a Graph or a Node "
                f"class, not a {given}{hidden if given == 'FieldInfo' else ''}"
            )
        options = [name for name in self.__match_args__ if name not in _NO_OPTIONS]
        for name in options:
            if isinstance(getattr(self, name), str | Recall):
                raise ValueError(
                    f"{kind}({name}={getattr(self, name)!r}): {name} is an option of {kind}; a "
                    "parameter of that name cannot be bound: rename the parameter"
                )
        for name, value in self.bound:
            if not isinstance(cast(object, value), str | Recall):
                raise TypeError(
                    f"{kind}({name}={value!r}): bind a parameter to a field of the node by its "
                    f"name, or to a Recall(…); for a value of your own give {kind} "
                    f"functools.partial(…, {name}={value!r}); the options of {kind} are "
                    f"{', '.join(options)}"
                )
        seconds = isinstance(timeout, int | float) and timeout > 0
        if timeout is not None and timeout is not ... and not seconds:
            raise ValueError(f"{kind}(timeout={timeout!r}): give seconds above 0, or None")
        if not isinstance(retries, int) or retries < 0:
            raise ValueError(f"{kind}(retries={retries!r}): give a number, 0 or more")


class Dep(_Called):
    """The field's value is what `fn` returns, or without `fn` a node that the LM fills.

    Give a function (sync or async), a generator that yields one value and cleans up after the
    run, a context manager, a `Graph` or a `Node` class. Parameters of `fn` that are annotated with
    `Dep` are resolved first. A parameter annotated `LM` gets the run's LM, and a parameter
    annotated `Recall` gets a value of the trace. Any other keyword binds a parameter of `fn`, or a
    field of a graph's start node. `Dep(search, query="question")` binds it to the field `question`
    of the same node, which the LM may fill; `Dep(search, query=Recall(Question))` binds it to a
    value of the trace. Within a run `fn` is called once for equal arguments, however many fields
    and functions ask for it.

    `Dep()` is for a field whose type is a node class: `background: Annotated[Background, Dep()]`.
    bae resolves the fields of that node that have a source. The LM then fills the others, in a call
    of its own, while other fields are resolved. The LM sees the resolved values and the previous
    node. The body of that node is not run, and the node is not in the trace.

    - `timeout`: seconds for one call; unless given, 300 for a function and no bound for a graph.
      `None` is no bound.
    - `retries`: how many more times to call it when it raises.
    - `inline`: call a sync function on the event loop instead of in a worker thread. Use it for
      trivial functions and for objects tied to their thread.
    - `cache`: `False` calls `fn` again for every field that asks.
    - `scope`: `"app"` shares one value among all runs inside `async with graph.open():`.
    """

    __slots__ = ("cache", "scope")
    __match_args__ = ("fn", "timeout", "retries", "inline", "cache", "scope", "bound")
    planned_by = "dep"

    cache: bool
    scope: Literal["run", "app"]

    def __init__(
        self,
        fn: Callable[..., Any] | Graph[Any, Any] | type[Node] | None = None,
        *,
        timeout: float | EllipsisType | None = ...,
        retries: int = 0,
        inline: bool = False,
        cache: bool = True,
        scope: Literal["run", "app"] = "run",
        **bound: str | Recall,
    ) -> None:
        self._set(fn=fn, timeout=timeout, retries=retries, inline=inline, cache=cache, scope=scope)
        self._set(bound=tuple(sorted(bound.items())) if bound else ())
        self._check(timeout, retries)
        if scope not in ("run", "app"):
            raise ValueError(f'Dep(scope={scope!r}): give "run" or "app"')
        if scope == "app" and not cache:
            raise ValueError('Dep(scope="app", cache=False): a value of the app is made once')

    def for_graph(self, graph: Graph[Any, Any]) -> Dep:
        """The same marker with a graph, which runs for each field that asks for it."""
        marker = Dep(graph, timeout=self.timeout, retries=self.retries)
        marker._set(inline=self.inline, cache=False, scope=self.scope, bound=self.bound)
        return marker


class Map(_Called):
    """The field's value is the list of what `fn` returns for every item of the field `over`.

    Items are worked on concurrently, at most `limit` at once; results keep the order of the
    items. `fn` takes the item as its first parameter that nothing else fills. A `Graph` or `Node`
    class takes it as its start node, or as the start node's only plain field. `over` names a field
    of the same node, which the LM may fill. `timeout`, `retries` and `inline` are as for `Dep`, for
    each item, and so are keywords that bind other parameters.
    """

    __slots__ = ("limit", "over")
    __match_args__ = ("fn", "over", "limit", "timeout", "retries", "inline", "bound")
    planned_by = "map"

    over: str
    limit: int

    def __init__(
        self,
        fn: Callable[..., Any] | Graph[Any, Any] | type[Node],
        over: str,
        *,
        limit: int = MAP_LIMIT,
        timeout: float | EllipsisType | None = ...,
        retries: int = 0,
        inline: bool = False,
        **bound: str | Recall,
    ) -> None:
        self._set(fn=fn, over=over, limit=limit, timeout=timeout, retries=retries, inline=inline)
        self._set(bound=tuple(sorted(bound.items())) if bound else ())
        self._check(timeout, retries)
        if type(limit) is not int or limit < 1:
            raise ValueError(f"Map(limit={limit!r}): give a number, 1 or more")


class Recall(Marker):
    """The field's value is the newest value of its type in the trace of the run.

    Name a node class to look only at nodes of that class. Values that were themselves resolved by
    `Dep` or `Recall` are skipped: bae finds values that the caller passed, the LM filled, a person
    answered at a gate, or a `Map` computed. Where a node holds several values of the type, the
    field of the same name is taken, otherwise the first. A field whose type is a node class recalls
    that node.
    """

    __slots__ = ("node_type",)
    __match_args__ = ("node_type",)
    planned_by = "recall"

    node_type: type[Node] | None

    def __init__(self, node_type: type[Node] | None = None) -> None:
        from bae.node import Node

        self._set(node_type=node_type)
        given = cast(object, node_type)
        if given is not None and not (isinstance(given, type) and issubclass(given, Node)):
            raise TypeError(
                f"Recall({given!r}): give it a Node class to look at, or nothing; what is looked "
                "for is the type of the field"
            )

    def __str__(self) -> str:
        return f"Recall({self.node_type.__name__ if self.node_type else ''})"


class Thread(Marker):
    """The field's value is the earlier turns of the thread that the run belongs to, as `Messages`:
    `history: Annotated[Messages, Thread(last=20)]`.

    A thread is the runs of a graph that were started with its id, `arun(…, thread="ana-42")`. The
    LM that fills the node, and the LM that chooses or fills what follows it, reads the turns as
    messages of the user and of the assistant, before the question. A run without a thread has none.

    - `last`: how many turns there are at most; None for no bound. In a longer thread, the oldest
      quarter of these is left out at once, so that the beginning of a prompt stays the same for
      several turns and providers can cache it.
    - `limit`: how many characters the turns have together at most. A turn is shown in full or left
      out.
    - `calls`: whether the LM reads the tool calls of the turns too, with their results.
    """

    __slots__ = ("calls", "last", "limit")
    __match_args__ = ("last", "limit", "calls")
    planned_by = "thread"

    last: int | None
    limit: int
    calls: bool

    def __init__(
        self,
        last: int | None = SHOWN_TURNS,
        *,
        limit: int = LONGEST_HISTORY,
        calls: bool = False,
    ) -> None:
        self._set(last=last, limit=limit, calls=calls)
        for name, value in (("last", last), ("limit", limit)):
            if (type(value) is not int or value < 1) and (name, value) != ("last", None):
                raise ValueError(f"Thread({name}={value!r}): give a number, 1 or more")


class Gate(Marker):
    """The field's value is a person's answer to `question`.

    Give `arun(…, answer=…)` an async callable that takes the `OpenGate` and returns the answer.
    Without `answer`, the run stops at the gate, and `.waiting` of its result has the question. A
    run with a journal is parked there, and `graph.answer` resumes it.

    `timeout` is how many seconds there are to answer, counted from when the run reached the gate,
    however often it was interrupted since. After that the field takes its default; a field without
    a default fails the run.
    """

    __slots__ = ("question", "timeout")
    __match_args__ = ("question", "timeout")
    planned_by = "gate"

    question: str
    timeout: float | None

    def __init__(self, question: str, *, timeout: float | None = None) -> None:
        self._set(question=question, timeout=timeout)
        given = cast(object, timeout)
        if given is not None and not (isinstance(given, int | float) and given > 0):
            raise ValueError(f"Gate(timeout={given!r}): give seconds above 0, or None")


@dataclass(frozen=True, slots=True)
class OpenGate:
    """A gate that a run has reached: the question, and the field for the answer.

    - `type`: the type of the field.
    - `context`: the values of the node that are known so far.
    - `problem`: what was wrong with the previous answer, where the gate is asked again.
    - `path`, `step`: the subgraph, empty in the run itself, and the step.
    - `deadline`: in seconds since 1970; after it the field takes its default.
    - `call`: the tool call that the question is about, where a conversation with tools asks; None
      at a `Gate`. `parameter` has the tool and the call, as `(refund)(c3)`. `key` is a hash of the
      call, so that an answer holds for this call alone.
    """

    question: str
    node_type: type[Node]
    field_name: str
    type: Any = field(hash=False)
    context: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    problem: str | None = None
    path: str = ""
    step: int = 0
    deadline: float | None = None
    parameter: str = ""
    key: str = ""
    call: ToolCall | None = field(default=None, hash=False)

    def leave_open(self) -> NoReturn:
        """Leave the gate without an answer, in an `answer=` callable. The run then stops at the
        gate, or is parked in its journal, as without `answer=`."""
        from bae.run import Waiting

        raise Waiting([self])

    @property
    def address(self) -> str:
        """The gate among all gates of a run, as `2:Refund.approved`: step 2, the field of `Refund`.
        In a graph inside the run, its path comes first."""
        before = f"{self.path}/" if self.path else ""
        key = f"({self.key})" if self.key else ""
        return f"{before}{self.step}:{self.place}{key}"

    @property
    def place(self) -> str:
        """The field for the answer, as `Node.field` or `Node.field(refund)(c3)`."""
        return f"{self.node_type.__name__}.{self.field_name}{self.parameter}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the gate among open gates: its address, its place, its field, and the id of
        the call."""
        call = self.parameter[1:-1].split(")(")[1:2]
        return self.address, self.place, self.field_name, *call


class Text(Marker):
    """The LM answers with the field's text, not with JSON: for code and long prose.

    `parse` makes the field's value from the text; without `parse`, the value is the text. It is a
    plain function, called on the event loop. When it raises an exception, the answer is wrong: the
    LM is asked again with the message, a bounded number of times. The LM fills no other field of
    the node.
    """

    __slots__ = ("parse",)
    __match_args__ = ("parse",)
    planned_by = "text"
    is_source = False

    parse: Callable[[str], Any] | None

    def __init__(self, parse: Callable[[str], Any] | None = None) -> None:
        self._set(parse=parse)
        if type(parse).__module__ == "annotationlib":
            raise TypeError(f"Text({parse!r}): the name is not defined yet")  # see `_Called`
        if parse is not None and not callable(cast(object, parse)):
            raise TypeError(f"Text({parse!r}): give it a function of the text, or nothing")


class Tools(Marker):
    """The LM may call these tools before it fills the node; the field's value is the list of calls.

    Filling the node is one conversation: in each round the LM calls tools and reads their results,
    and its last message fills the other fields. Give functions, sync or async, bound methods, a
    `Graph` or a `Node` class, `Tool(fn, …)` to set options, `Ask(type)` for a question to a person,
    `Native(name)` for a tool of the provider, or MCP servers. You may also give a function that
    returns `list[Tool]` and has only `Dep` and `Recall` parameters: bae calls it for the tools.

    - `limit`: how many rounds there are at most.
    - `on_limit`: "error" raises `ToolCallError` when the limit is reached. "answer" has the LM
      answer with the results so far, in one more round without tools.
    - `accept`: a function that gets the filled node. When it raises a `ToolError`, the LM reads the
      message and continues.
    - `accept_timeout`: seconds for one call of `accept`; 300 unless given, None for no bound.
    - `before_round`: a function that gets the `ToolProgress` before each request. The LM reads the
      text that it returns; it returns None to add nothing. A `BaeError` from it ends the
      conversation.
    - `show`: how much of the calls later nodes and `Recall` show to an LM: "calls" for names and
      arguments, "results" for the results too.
    - `context`: how many tokens the conversation may have. Before a longer request, the oldest
      results are cut to one line each. Without `context`, the model's own limit counts, where it is
      known.
    - `max_calls`: how many calls one round may have; `at_once`: how many of them run at once.
    """

    __slots__ = (
        "accept",
        "accept_timeout",
        "at_once",
        "before_round",
        "context",
        "limit",
        "max_calls",
        "on_limit",
        "show",
        "tools",
    )
    __match_args__ = (
        "tools",
        "limit",
        "on_limit",
        "accept",
        "show",
        "context",
        "max_calls",
        "at_once",
        "before_round",
        "accept_timeout",
    )
    planned_by = "tools"
    is_source = False

    tools: tuple[Any, ...]
    limit: int
    on_limit: Literal["error", "answer"]
    accept: Callable[..., Any] | None
    show: Literal["calls", "results"]
    context: int | None
    max_calls: int
    at_once: int
    before_round: Callable[..., Any] | None
    accept_timeout: float | EllipsisType | None

    def __init__(
        self,
        *tools: Any,
        limit: int = TOOL_ROUNDS,
        on_limit: Literal["error", "answer"] = "error",
        accept: Callable[..., Any] | None = None,
        show: Literal["calls", "results"] = "calls",
        context: int | None = None,
        max_calls: int = MAP_LIMIT,
        at_once: int = MAP_LIMIT,
        before_round: Callable[..., Any] | None = None,
        accept_timeout: float | EllipsisType | None = ...,
    ) -> None:
        for each in (*tools, accept, before_round):
            if type(each).__module__ == "annotationlib":
                raise TypeError(f"Tools({each!r}): the name is not defined yet")  # see `_Called`
            if inspect.iscoroutine(each):
                each.close()  # or Python warns later that a coroutine was never awaited
                raise TypeError(f"Tools({each.__name__}(…)): give the function itself")
        for each in tools:
            if isinstance(each, list | tuple | set | frozenset):
                raise TypeError(
                    "Tools([…]): give tools one by one, Tools(search, get_price), or Tools(*tools)"
                )
            if isinstance(each, str | bytes | int | float | dict | None):
                raise TypeError(
                    f"Tools({each!r}): give it functions, not a {type(cast(object, each)).__name__}"
                )
        self._set(tools=tools, limit=limit, on_limit=on_limit, accept=accept, show=show)
        self._set(context=context, max_calls=max_calls, at_once=at_once, before_round=before_round)
        numbers = {"limit": limit, "max_calls": max_calls, "at_once": at_once}
        for name, value in (numbers | ({} if context is None else {"context": context})).items():
            if type(value) is not int or value < 1:
                raise ValueError(f"Tools({name}={value!r}): give a number, 1 or more")
        self._set(accept_timeout=accept_timeout)
        is_seconds = isinstance(accept_timeout, int | float) and accept_timeout > 0
        if accept_timeout not in (None, ...) and not is_seconds:
            raise ValueError(f"Tools(accept_timeout={accept_timeout!r}): give seconds above 0")
        if on_limit not in ("error", "answer"):
            raise ValueError(f'Tools(on_limit={on_limit!r}): give "error" or "answer"')
        if show not in ("calls", "results"):
            raise ValueError(f'Tools(show={show!r}): give "calls" or "results"')
        if accept is not None and not callable(cast(object, accept)):
            raise TypeError(f"Tools(accept={accept!r}): give it a function of the filled node")
        if before_round is not None and not callable(cast(object, before_round)):
            raise TypeError(
                f"Tools(before_round={before_round!r}): give it a function of a ToolProgress"
            )
