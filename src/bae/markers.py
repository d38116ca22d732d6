"""The markers of fields. A marker in a field's annotation names the source of the field's value:
`Annotated[T, Dep(fn)]`, `Recall()`, `Map(fn, over=…)`, `Gate("question")` or `Thread()`.

A field without a marker is plain: the caller passes its value with the start node, and the LM fills
it on every other node. With `Text()`, the LM answers in plain text. With `Tools(fn, …)`, the value
is the list of tool calls that the LM made before it filled the node.
"""

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
"""The default timeout for one call of a dependency function, in seconds."""

MAP_LIMIT: Final = 64
"""The default of `Map.limit`: how many items bae works on at once."""

SHOWN_TURNS: Final = 20
"""The default of `Thread.last`: how many earlier turns of a thread a node shows."""

LONGEST_HISTORY: Final = 100_000
"""The default of `Thread.limit`: how many characters the shown turns have together at most."""

TOOL_ROUNDS: Final = 8
"""The default of `Tools.limit`: how many rounds of tool calls a node may take."""


_NO_OPTIONS: Final = ("fn", "over", "bound", "scope")
"""The parameters of `Dep` and `Map` that are not options, or whose value may be a text."""


class Marker:
    """The base of all markers. A marker cannot be changed, and two markers are equal if their types
    and options are."""

    # Not a dataclass: generating one for each marker would slow down the import.
    __slots__ = ()
    __match_args__: tuple[str, ...] = ()

    is_source: ClassVar[bool] = True
    """Whether the marker names a source. If not, a field with the marker is plain."""
    planned_by: ClassVar[str]
    """The module of `bae.sources` that plans a field with this marker or a subclass."""

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
        is_same_type = type(other) is type(self)
        return is_same_type and self._options() == cast("Marker", other)._options()

    def __hash__(self) -> int:
        return hash((type(self), *self._options().values()))

    def __getstate__(self) -> dict[str, Any]:
        return self._options()

    def __setstate__(self, options: dict[str, Any]) -> None:
        self._set(**options)


class _Called(Marker):
    """The common base of `Dep` and `Map`, which call a function or run a graph."""

    __slots__ = ("bound", "fn", "inline", "retries", "timeout")

    fn: Callable[..., Any] | Graph[Any, Any] | type[Node] | None
    timeout: float | EllipsisType | None
    retries: int
    inline: bool
    bound: tuple[tuple[str, str | Recall], ...]
    """The bound parameters, each with the field of the node or the `Recall` that fills it."""

    def _check(self, timeout: object, retries: object) -> None:
        kind = type(self).__name__
        if type(self.fn).__module__ == "annotationlib":
            # Python 3.14 may evaluate an annotation before its names exist, with a stand-in for
            # each name. Refuse the stand-in, or the marker would keep it.
            raise TypeError(f"{kind}({self.fn!r}): the name is not defined yet")
        may_be_none = self.fn is None and kind == "Dep"
        if not may_be_none and not callable(self.fn) and not hasattr(self.fn, "arun"):
            given_type = type(self.fn).__name__
            if inspect.iscoroutine(self.fn) or inspect.isgenerator(self.fn):
                self.fn.close()  # or Python warns later that a coroutine was never awaited
                function_name = self.fn.__name__
                raise TypeError(
                    f"{kind}({function_name}(…)): give the function itself: {kind}({function_name})"
                )
            hint = "; a field with a default hides a function of its name, so rename one"
            raise TypeError(
                f"{kind}({self.fn!r}): give it something to call: a function, a Graph or a Node "
                f"class, not a {given_type}{hint if given_type == 'FieldInfo' else ''}"
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
        is_seconds = isinstance(timeout, int | float) and timeout > 0
        if timeout is not None and timeout is not ... and not is_seconds:
            raise ValueError(f"{kind}(timeout={timeout!r}): give seconds above 0, or None")
        if not isinstance(retries, int) or retries < 0:
            raise ValueError(f"{kind}(retries={retries!r}): give a number, 0 or more")


class Dep(_Called):
    """The field's value is the return value of `fn`, or without `fn`, a node that the LM fills.

    `fn` is a function (sync or async), a generator that yields one value and cleans up after the
    run, a context manager, a `Graph` or a `Node` class. bae fills the parameters of `fn`: those
    annotated with `Dep` are resolved first, `LM` gets the run's LM, and `Recall` gets a value of
    the trace. Within a run, bae calls `fn` once for equal arguments, however many fields and
    functions ask for its value.

    Any other keyword of `Dep` binds a parameter of `fn`, or a field of a graph's start node:

    - `Dep(search, query="question")` binds `query` to the field `question` of the same node. The LM
      may fill that field.
    - `Dep(search, query=Recall(Question))` binds `query` to a value of the trace.

    `Dep()` is for a field whose type is a node class: `background: Annotated[Background, Dep()]`.
    bae first resolves the fields of `Background` that have a source. The LM then fills the other
    fields, in a call of its own. The LM sees the resolved values and the previous node. The body of
    `Background` does not run, and the filled node is not in the trace.

    The options:

    - `timeout`: seconds for one call. The default is 300 for a function, and no limit for a graph.
      `None` is no limit.
    - `retries`: how many more times bae calls `fn` if it raises an exception.
    - `inline`: call a sync function on the event loop instead of in a worker thread. Use it for
      trivial functions and for objects that belong to a thread.
    - `cache`: `False` calls `fn` again for every field.
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
        """Return this marker with a graph in place of `fn`. The graph runs once for each field."""
        marker = Dep(graph, timeout=self.timeout, retries=self.retries)
        marker._set(inline=self.inline, cache=False, scope=self.scope, bound=self.bound)
        return marker


class Map(_Called):
    """The field's value is a list: the return values of `fn` for the items of the field `over`.

    `over` names a field of the same node. The LM may fill that field. bae works on at most `limit`
    items at once, and the results have the order of the items.

    `fn` gets the item as its first parameter that nothing else fills. A `Graph` or `Node` class
    gets the item as its start node, or as the start node's only plain field. `timeout`, `retries`
    and `inline` are as for `Dep`, and apply to each item. Other keywords bind parameters, as for
    `Dep`.
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

    - `Recall(Question)` looks only at nodes of the class `Question`.
    - Values from `Dep` and `Recall` are skipped. bae finds values that the caller passed, the LM
      filled, a person gave at a gate, or a `Map` computed.
    - If a node has several values of the type, bae takes the field with the same name, otherwise
      the first field.
    - If the type of the field is a node class, the value is the newest node of that class.
    """

    __slots__ = ("node_type",)
    __match_args__ = ("node_type",)
    planned_by = "recall"

    node_type: type[Node] | None

    def __init__(self, node_type: type[Node] | None = None) -> None:
        from bae.node import Node

        self._set(node_type=node_type)
        argument = cast(object, node_type)
        if argument is not None and not (isinstance(argument, type) and issubclass(argument, Node)):
            raise TypeError(
                f"Recall({argument!r}): give it a Node class to look at, or nothing: it "
                "looks for the type of the field"
            )

    def __str__(self) -> str:
        return f"Recall({self.node_type.__name__ if self.node_type else ''})"


class Thread(Marker):
    """The field's value is the earlier turns of the run's thread, as `Messages`:
    `history: Annotated[Messages, Thread(last=20)]`.

    A thread consists of the runs of a graph that were started with the same id,
    `arun(…, thread="ana-42")`. The turns are messages of the user and of the assistant, before the
    question. An LM reads them when it fills the node, and when it chooses or fills the next node.
    In a run without a thread, the value is empty.

    - `last`: the largest number of turns, or None for no limit. In a longer thread, bae leaves out
      the oldest turns, a quarter of `last` at a time. The beginning of the prompt then stays the
      same for several turns, and providers can cache it.
    - `limit`: how many characters the turns have together at most. A turn is shown in full or not
      at all.
    - `calls`: whether the LM also reads the tool calls of the turns, with their results.
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

    Pass `arun(…, answer=…)` an async callable that takes the `OpenGate` and returns the answer.
    Without `answer`, the run stops at the gate, and `.waiting` of the result has the question. A
    run with a journal is parked at the gate, and `graph.answer` resumes it.

    `timeout` is the number of seconds that the person has to answer. The time starts when the run
    first reaches the gate, and interruptions of the run do not extend it. After the timeout, the
    field gets its default. If it has no default, the run fails.
    """

    __slots__ = ("question", "timeout")
    __match_args__ = ("question", "timeout")
    planned_by = "gate"

    question: str
    timeout: float | None

    def __init__(self, question: str, *, timeout: float | None = None) -> None:
        self._set(question=question, timeout=timeout)
        argument = cast(object, timeout)
        if argument is not None and not (isinstance(argument, int | float) and argument > 0):
            raise ValueError(f"Gate(timeout={argument!r}): give seconds above 0, or None")


@dataclass(frozen=True, slots=True)
class OpenGate:
    """A gate that a run has reached: the question, and the field for the answer."""

    question: str
    node_type: type[Node]
    """The node class with the field for the answer."""
    field_name: str
    type: Any = field(hash=False)
    """The type of the answer."""
    context: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    """The values of the node's other fields, as far as they are resolved."""
    problem: str | None = None
    """The problem of the previous answer, if the gate is asked again."""
    path: str = ""
    """If the gate is in a graph inside the run, the place of the field that the graph runs for.
    Empty in the run itself."""
    step: int = 0
    deadline: float | None = None
    """The end of the timeout, in seconds since 1970. After it, the field gets its default."""
    parameter: str = ""
    """The tool and the id of the tool call that the question is about, as `(refund)(c3)`. Empty at
    a `Gate`."""
    key: str = ""
    """A hash of the tool call, so that an answer is valid for this call alone."""
    call: ToolCall | None = field(default=None, hash=False)
    """The tool call that the question is about. None at a `Gate`."""

    def leave_open(self) -> NoReturn:
        """Leave the gate open instead of returning an answer from the `answer=` callable. The run
        then stops at the gate, or is parked in its journal, as without `answer=`."""
        from bae.run import Waiting

        raise Waiting([self])

    @property
    def address(self) -> str:
        """The unique address of the gate in a run, as `2:Refund.approved`: step 2, the field
        `approved` of `Refund`. In a graph inside the run, the path of the graph comes first."""
        prefix = f"{self.path}/" if self.path else ""
        key = f"({self.key})" if self.key else ""
        return f"{prefix}{self.step}:{self.place}{key}"

    @property
    def place(self) -> str:
        """The field for the answer, as `Node.field` or `Node.field(refund)(c3)`."""
        return f"{self.node_type.__name__}.{self.field_name}{self.parameter}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which a caller may select this gate among the open gates: the address, the
        place, the field and, for a tool call, the id of the call."""
        call = self.parameter[1:-1].split(")(")[1:2]
        return self.address, self.place, self.field_name, *call


class Text(Marker):
    """The LM answers with plain text, not with JSON. Use it for code and long prose.

    The value of the field is `parse(text)`, or the text itself without `parse`. bae calls `parse`,
    a sync function, on the event loop. If `parse` raises an exception, the answer is wrong, and bae
    asks the LM again with the message, a limited number of times. The LM fills no other field of
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
    """The LM may call these tools before it fills the node. The field's value is the list of calls.

    The LM fills the node in one conversation. In each round, the LM calls tools and reads their
    results. The last message of the LM fills the other fields.

    A tool is a function (sync or async), a bound method, a `Graph` or a `Node` class, `Tool(fn, …)`
    to set options, `Ask(type)` for a question to a person, `Native(name)` for a tool of the
    provider, or an MCP server. A function that returns `list[Tool]` and has only `Dep` and `Recall`
    parameters is no tool itself: bae calls it to get tools.

    - `limit`: the largest number of rounds.
    - `on_limit`: what happens at the limit. "error" raises `ToolCallError`. "answer" lets the LM
      answer with the results so far, in one more round without tools.
    - `accept`: a function that gets the filled node. If it raises a `ToolError`, the LM reads the
      message and continues.
    - `accept_timeout`: seconds for one call of `accept`. The default is 300, and None is no limit.
    - `before_round`: a function that bae calls with the `ToolProgress` before each request. The LM
      reads the text that the function returns; None adds nothing. If the function raises a
      `BaeError`, the conversation ends.
    - `show`: how much of the calls an LM sees in later nodes and through `Recall`: "calls" for
      names and arguments, "results" for the results too.
    - `context`: how many tokens the conversation may have. Before a longer request, bae cuts the
      oldest results to one line each. The default is the limit of the model, if bae knows it.
    - `max_calls`: how many calls one round may have.
    - `at_once`: how many calls run at the same time.
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
        for tool in (*tools, accept, before_round):
            if type(tool).__module__ == "annotationlib":
                raise TypeError(f"Tools({tool!r}): the name is not defined yet")  # see `_Called`
            if inspect.iscoroutine(tool):
                tool.close()  # or Python warns later that a coroutine was never awaited
                raise TypeError(f"Tools({tool.__name__}(…)): give the function itself")
        for tool in tools:
            if isinstance(tool, list | tuple | set | frozenset):
                raise TypeError(
                    "Tools([…]): give tools one by one, Tools(search, get_price), or Tools(*tools)"
                )
            if isinstance(tool, str | bytes | int | float | dict | None):
                raise TypeError(
                    f"Tools({tool!r}): give it functions, not a {type(cast(object, tool)).__name__}"
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
