"""`Graph`: the node classes that a start class leads to. bae finds them from the type hints, proves
them once, and runs them as often as you want."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from inspect import cleandoc
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from bae import rooms
from bae.exceptions import HintError, LoopError, ProofError
from bae.graph_plan import GraphPlan, plan_of_graph
from bae.node import Node, NodeTypes, check_context
from bae.run import Run, RunOptions
from bae.runner import run_graph
from bae.turns import TurnOptions
from bae.unicode import whole_json
from bae.writer import Writer

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from bae.exceptions import Problem
    from bae.language_model import LM, Shown
    from bae.observers import RunStream
    from bae.prompts.messages import Prompt
    from bae.result import GraphResult, Recovered
    from bae.rooms import Engine, Journal, RunInfo, StoredThread
    from bae.run import GateAnswerer, RunParameters, WorkParameters
    from bae.writer import Log

S = TypeVar("S", bound=Node, contravariant=True)
T = TypeVar("T", bound=Node, covariant=True)
R = TypeVar("R")
X = TypeVar("X", bound=Node)
A = TypeVar("A", bound=Node)
B = TypeVar("B", bound=Node)
C = TypeVar("C", bound=Node)
D = TypeVar("D", bound=Node)


class GraphSettings(TypedDict, total=False):
    """The parameters of `Graph` that are passed by name."""

    name: str | None
    system: str | None
    context: Shown | None
    context_limit: int | None


class Graph(Generic[S, T]):
    """A graph that starts at one node class and follows the return types from there.

    Give `end` to type the result: `Graph(start=Ask, end=Answer)` makes `graph.run(…).result` an
    `Answer` for your editor. Give several ends as a tuple, `end=(Answer, Refusal)`; the result is
    then a union. `end` must name every node class that the graph can end at. The type of the graph
    is `Graph[Ask, Answer]`.

    - `name`: the name in pictures and journals; the name of the start class unless given.
    - `system`: the system text of every question to an LM, in place of bae's own. A graph inside
      this graph uses the same text, unless it has its own.
    - `context`: which nodes, besides the previous node, a question shows to an LM. "previous", the
      default, adds none. "start" adds the first node, "trace" all nodes, and a node class, or a
      tuple of node classes, all nodes of these classes.
    - `context_limit`: how many characters these nodes may have together; 20,000 unless given. The
      newest nodes are shown first.

    The `NodeConfig` of a class, and a graph inside, may set `context` and `context_limit` too.
    """

    @overload
    def __init__(
        self: Graph[X, Node],
        start: type[X],
        end: None = None,
        **settings: Unpack[GraphSettings],
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[X, A | B],
        start: type[X],
        end: tuple[type[A], type[B]],
        **settings: Unpack[GraphSettings],
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[X, A | B | C],
        start: type[X],
        end: tuple[type[A], type[B], type[C]],
        **settings: Unpack[GraphSettings],
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[X, A | B | C | D],
        start: type[X],
        end: tuple[type[A], type[B], type[C], type[D]],
        **settings: Unpack[GraphSettings],
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[X, A],
        start: type[X],
        end: type[A] | tuple[type[A], ...],
        **settings: Unpack[GraphSettings],
    ) -> None: ...
    def __init__(
        self,
        start: type[Node],
        end: type[Node] | tuple[type[Node], ...] | None = None,
        *,
        name: str | None = None,
        system: str | None = None,
        context: Shown | None = None,
        context_limit: int | None = None,
    ) -> None:
        ends = () if end is None else end if isinstance(end, tuple) else (end,)
        for given in (start, *ends):
            if not (isinstance(given, type) and issubclass(given, Node)):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise _no_node_class(given)
        self.start = start
        self.end = ends
        self.name = name or start.__name__
        if system is not None and not (isinstance(system, str) and system.strip()):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Graph(system={system!r}): give a text, or None for bae's own")
        check_context("Graph", context, context_limit)
        self.context, self.context_limit = context, context_limit
        self.system = None if system is None else cleandoc(system)
        self._plan = GraphPlan(self)
        self._problems: list[Problem] | None = None
        self._proved = False

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name not in _FORMER:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            import warnings

            warnings.warn(
                f"Graph.{name} is not public any more, and bae {rooms.LAST_VERSION} is the last "
                f"version that has it: {_FORMER[name]}",
                DeprecationWarning,
                stacklevel=2,
            )
            return getattr(self._plan, name)

    @property
    def nodes(self) -> NodeTypes:
        """Every node class that can be reached, the start first."""
        return NodeTypes(self._plan.plans)

    @property
    def edges(self) -> dict[type[Node], NodeTypes]:
        """The node classes that each node class may lead to, by its return type."""
        return {cls: NodeTypes(plan.successors) for cls, plan in self._plan.plans.items()}

    @property
    def terminal_nodes(self) -> NodeTypes:
        """The node classes a run may end at."""
        return NodeTypes(cls for cls, plan in self._plan.plans.items() if plan.may_end)

    @property
    def graphs(self) -> tuple[Graph[Any, Any], ...]:
        """This graph and the graphs inside it, all the way down, the outermost first."""
        return self._plan.graphs

    @property
    def needs_lm(self) -> str:
        """Why a run needs an LM passed to it; empty when it does not."""
        return self._plan.needs_lm

    def validate(self, *, journal: bool = False) -> list[Problem]:
        """Find everything that is known to go wrong, before anything runs. The list has errors
        first, and is empty when there are no problems.

        Each problem is a text to print. Its parts are `.severity`, `.code`, `.place`, `.message`
        and `.fix`. A run refuses to start while there are errors. With `journal=True` the list also
        has errors for fields that no journal can store, and notes on values that are computed again
        when a run is resumed, or that are secret.
        """
        problems = self._problems
        if problems is None:
            from bae.proof import prove

            problems = prove(self)
            if not any(problem.code == HintError.code for problem in problems):
                self._problems = problems
        if not journal or any(plan.unresolved for plan in self._plan.plans.values()):
            return list(problems)
        unstorable, notes = rooms.journal_problems(self)
        errors = [problem for problem in problems if problem.severity == "error"]
        others = [problem for problem in problems if problem.severity != "error"]
        return [*errors, *unstorable, *others, *notes]

    def prove(self) -> None:
        """Raise `ProofError` with all errors that `validate` finds. Warnings do not raise."""
        if self._proved:
            return
        errors = [problem for problem in self.validate() if problem.severity == "error"]
        if errors:
            listed = "\n".join(str(problem) for problem in errors)
            count = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
            raise ProofError(
                f"the graph {self.name} cannot run, {count}:\n{listed}",
                problems=tuple(errors),
                fix="graph.validate() lists all problems, warnings too",
            )
        self._proved = self._problems is not None

    def prompts(self, *nodes: Node, lm: LM | str | None = None) -> list[Prompt]:
        """Every prompt that this graph, and the graphs inside it, can send. Print a prompt, or read
        its `.system`, `.text`, `.schema` and `.question`. No function, body or LM is called.

        The nodes and the resolved values in the prompts are samples, along a shortest path from the
        start. Pass nodes of your own, the start or any other, to use them in place of samples. Pass
        `lm` if that LM has learned prompts, or cannot choose and fill in one call. For a written
        body, the list has the prompts of `lm.make` and `lm.decide`, not the questions that the body
        words itself: in a test, read those from `ScriptedLM.prompts`.
        """
        from bae.prompts.preview import prompts_of

        return prompts_of(self, nodes, lm)

    def to_mermaid(self, *, fields: bool = False) -> str:
        """The graph as a Mermaid flowchart, with exactly the edges of the types. With `fields=True`
        it also shows the fields by source, and the graphs inside."""
        return rooms.to_mermaid(self, fields=fields)

    def to_svg(self) -> str:
        """The graph as an SVG picture: nodes with their fields by source, arrows by who chooses,
        and the graphs inside. A notebook shows the picture of a graph automatically; `bae.pictures`
        has more formats."""
        return rooms.to_svg(self)

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def run(
        self,
        start_node: S,
        lm: LM | str | None = None,
        max_iters: int = 10,
        **options: Unpack[RunParameters],
    ) -> GraphResult[T]:
        """`arun` for sync callers. Inside a running event loop use `await graph.arun(…)`."""
        return run_sync(
            lambda: self.arun(start_node, lm, max_iters, **options),
            "graph.run()",
            "await graph.arun(…)",
        )

    async def arun(
        self,
        start_node: S,
        lm: LM | str | None = None,
        max_iters: int = 10,
        *,
        prefetch: bool = True,
        answer: GateAnswerer | None = None,
        dep_cache: dict[Any, Any] | None = None,
        journal: Journal | None = None,
        run_id: str | None = None,
        resume: bool = False,
        thread: str | None = None,
        busy: Literal["wait", "refuse", "cancel"] = "wait",
        busy_timeout: float = 300.0,
        interrupted: Literal["resume", "cancel"] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> GraphResult[T]:
        """Run the graph from `start_node` to its end.

        - `lm` chooses and fills where nodes have an empty body. Give an LM, or the name of an LM
          such as "local" or "claude-cli:sonnet". Without `lm`, the run uses the LM that the
          variable BAE_LM names; without that too, an LM that this machine offers.
        - `max_iters` bounds how many nodes may run; 0 is no bound.
        - `prefetch` starts the dependencies of a node that is sure to come while the LM is still
          filling the node before it.
        - `answer` is an async callable that answers gates. Without it, a run that reaches a gate
          stops, and the result's `.waiting` has the question.
        - `dep_cache` holds values by dependency function. A run uses a value in it instead of
          calling the function, which is how tests replace a function. The run adds the values that
          it computes.
        - `journal` is where the run is stored as it happens, so that `resume` can continue it after
          any interruption: a `SQLiteJournal`, for example.
        - `run_id` names the run; without it the run gets a random id. Each id of a journal is
          unique: a second run with the same id is refused. With `resume=True` the stored run is
          resumed instead, and `start_node` is ignored.
        - `thread` is the id of a conversation in the journal. This run is its next turn, and fields
          with `Thread()` have the earlier turns. One run of a thread is in progress at a time.
        - `busy` says what happens while another run of the thread is in progress: "wait" waits for
          it, at most `busy_timeout` seconds; "refuse" raises `JournalError` (`bae-thread-busy`);
          "cancel" cancels it, in any process. If the other run is parked at a gate, this run is
          refused with the question, except with "cancel".
        - `interrupted` is for a run of the thread whose process has died: "resume" resumes it
          first, and "cancel" cancels it. The default is "cancel" with `busy="cancel"`, otherwise
          "resume".
        - `metadata` is a JSON object that is stored with the run: `journal.runs(metadata=…)` finds
          the run by it. Telemetry uses its `user_id` and `session_id`.

        Raises a `BaeError` that carries the trace. Cancelling the call cancels everything that the
        run has started; when it returns, nothing of the run is left.
        """
        if resume and (journal is None or run_id is None):
            raise ValueError("resume=True needs a journal=… and the run_id=… of the run")
        options = RunOptions(lm, max_iters, prefetch, answer, dep_cache)
        if thread is not None or metadata is not None:
            turn = (thread, busy, busy_timeout, interrupted)
            options = with_thread(options, journal, metadata, *turn)
        run = Run(options, writer=new_writer(self, journal, run_id), run_id=run_id or "")
        if resume:
            return await rooms.begin_or_resume(self, start_node, run, checked_store(journal))
        result = await run_graph(self, start_node, run)
        if result.waiting and journal is not None:
            return await rooms.continue_if_answered(self, run, result)
        return result

    def open(self, app: object = None) -> AbstractAsyncContextManager[None]:
        """Share the dependencies of `Dep(fn, scope="app")` among the runs inside this block:

        ```python
        async with graph.open():
            await graph.arun(…)
        ```

        Such a dependency is opened when a run of the block's event loop first asks for it. All
        graphs that are open on that loop share it, and it is closed with the last of them. Leaving
        the block waits for the runs of this graph that are in progress. Leaving it by an error or a
        cancellation cancels them first. `app` is not used: it makes `FastAPI(lifespan=graph.open)`
        work.
        """
        from bae.app_scope import open_app

        return open_app(self)

    async def resume(
        self,
        run_id: str,
        lm: LM | str | None = None,
        max_iters: int | None = None,
        *,
        journal: Journal,
        given: Mapping[str, Any] | None = None,
        **options: Unpack[WorkParameters],
    ) -> GraphResult[T]:
        """Resume a run of a journal where it stopped: after a crash, a cancellation, a failure, or
        at a gate that has been answered.

        Recorded work is not repeated: dependencies, fills, choices, items of maps, answers at
        gates, bodies that returned, and graphs inside. Work that was in progress is repeated. For a
        run that has ended, the recorded result is returned. The parameters are those of `arun`.
        `max_iters` counts the nodes from the start of the run; unless given, the original bound
        holds. Budgets in force are charged what the run has spent. `given` has the secrets that the
        journal does not store, as `{"Login.token": SecretStr(…)}`.

        Raises `JournalError` if another process owns the run at this moment (`bae-run-owned`), or
        if the classes of the run have changed so that it cannot continue (`bae-run-changed`).
        """

        resumed = RunOptions(lm, max_iters, **options)
        return await rooms.resume(self, run_id, resumed, checked_store(journal), given)

    async def recover(
        self,
        lm: LM | str | None = None,
        *,
        journal: Journal,
        concurrency: int = 10,
        given: Mapping[str, Any] | None = None,
        **options: Unpack[WorkParameters],
    ) -> list[Recovered[T]]:
        """Resume every run of this graph that was interrupted and has no owner. Resume also every
        parked run that can continue, because its gate was answered or is out of time.

        Call it when a program starts, and now and then. At most `concurrency` runs continue at
        once. The list has each run with its result or its error, without the runs that another
        process takes first. Runs that failed or were cancelled are not resumed: `resume` does that.
        """

        resumed = RunOptions(lm, None, **options)
        return await rooms.recover(self, resumed, checked_store(journal), concurrency, given)

    async def submit(
        self,
        start_node: S,
        *,
        journal: Journal,
        run_id: str | None = None,
        engine: Engine | None = None,
        delay: float = 0.0,
        max_iters: int = 10,
        thread: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Store a run for a worker to carry out, and return its id. A worker is `bae worker`, or a
        call of `recover`, in any process. When this returns, the run is stored and has not begun.

        With an `engine`, such as `TemporalEngine`, the id of the run goes to a worker of the
        engine. Without it, the run waits for a worker that looks into the journal. The run begins
        in `delay` seconds at the earliest. A `run_id` that the journal has is refused
        (`bae-run-exists`), so a submission can be repeated. The start node may have no secret
        (`bae-submit-secret`). The other parameters are those of `arun`; the worker supplies the LM.
        """
        more: Any = {"thread": thread, "delay": delay, "max_iters": max_iters, "engine": engine}
        about = None if metadata is None else _checked_metadata(metadata)
        store = checked_store(journal)
        return await rooms.submit(self, start_node, store, run_id=run_id, metadata=about, **more)

    async def result(
        self, run_id: str, *, journal: Journal, timeout: float | None = None
    ) -> GraphResult[T]:
        """Wait until a run has ended, in any process, and return its result.

        Raises `RunFailed` with the code of the run's error, or `RunCancelled`. After `timeout`
        seconds, raises `JournalError` (`bae-result-timeout`), whose message has what the run waits
        for. It does not carry out the run: `resume` does.
        """
        return await rooms.wait_for_result(self, run_id, checked_store(journal), timeout)

    async def answer(
        self,
        run_id: str,
        field: str,
        value: Any,
        lm: LM | str | None = None,
        max_iters: int | None = None,
        *,
        journal: Journal,
        given: Mapping[str, Any] | None = None,
        go_on: bool = True,
        by: str = "",
        engine: Engine | None = None,
        **options: Unpack[WorkParameters],
    ) -> GraphResult[T]:
        """Answer a gate that a run waits for, and resume the run.

        `field` names the gate: as `Refund.approved`, by the field alone, by the id of a tool call,
        or by its address where several gates are open (`result.waiting` and `journal.runs()` have
        the addresses). The value is first checked against the field's type; for a tool call, it is
        an `Approval`. The first answer counts, and a second answer is refused. With `go_on=False`
        the answer is only stored, until the run is resumed. With an `engine`, a worker of the
        engine resumes the run. `by` is the person who answers: it is stored with the answer, and
        `journal.why` shows it. The other parameters are those of `resume`.
        """

        store, resumed = checked_store(journal), RunOptions(lm, max_iters, **options)
        go_on = go_on and engine is None
        answered = (run_id, field, value, resumed, store, given, go_on, by)
        result = await rooms.answer_gate(self, *answered)
        if engine is not None:
            await rooms.dispatch(engine, run_id, self.name)
        return result

    async def tell(self, run_id: str, text: str, *, journal: Journal) -> None:
        """Send a message to the LM of a run. The LM reads `text` before the next round of its
        conversation with tools.

        The run may be in progress, in any process. A run that is parked, failed or interrupted
        reads the message after it is resumed. Messages are stored and read in order, each once. A
        run that has ended is refused (`bae-tell-over`), and so is a run without a conversation with
        tools ahead (`bae-tell-nobody`). A message that arrives while the LM writes its answer stays
        for the next conversation of the run.
        """
        await rooms.tell_run(run_id, text, checked_store(journal))

    async def cancel(self, run_id: str, *, journal: Journal, timeout: float = 10.0) -> RunInfo:
        """Cancel a run. Deprecated: call `journal.cancel(run_id)`."""
        import warnings

        warnings.warn(
            f"Graph.cancel is not public any more, and bae {rooms.LAST_VERSION} is the last "
            "version that has it: call journal.cancel(run_id)",
            DeprecationWarning,
            stacklevel=2,
        )
        return await checked_store(journal).cancel(run_id, timeout=timeout)

    def thread(self, id: str, *, journal: Journal) -> StoredThread:
        """A thread of this graph in a journal: read, export, fork or delete it."""
        return rooms.StoredThread(self, id, checked_store(journal))

    async def fork(
        self,
        run_id: str,
        /,
        *,
        at: int,
        journal: Journal,
        new_id: str | None = None,
        thread: str | None = None,
        changed: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> str:
        """Make a new run that is the same as another up to its step `at`, and return its id.

        The node at that step gets other values for the `fields` that you name, and `resume` with
        the new id continues from it. Nothing before that step is repeated, and the other run stays
        unchanged. If a field has the name of a parameter of this method, pass it in `changed`:
        `changed={"at": …}`.

        A fork belongs to no thread unless you name one. In the `thread` of the other run, the fork
        replaces that turn, and the turns after it, once the fork has ended: with `at=0`, this edits
        a message or tries it again. A fork of a run without a thread becomes the next turn of the
        thread that you name.
        """

        store, given = checked_store(journal), {**(changed or {}), **fields}
        return await rooms.fork(self, run_id, at, store, new_id, given, thread)

    async def replay(
        self,
        run_id: str,
        *,
        journal: Journal,
        dep_cache: dict[Any, Any] | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> GraphResult[T]:
        """Run a recorded run again with every recorded value. Your written bodies are called;
        nothing outside is: no LM, no dependency, no person at a gate.

        Where a node, a choice or a prompt differs from the recording, `ReplayError` has both.
        `dep_cache` has stand-ins for values that no journal stores, such as clients. `given` has
        the secrets.
        """

        return await rooms.replay(self, run_id, checked_store(journal), dep_cache, given)

    def stream(
        self,
        start_node: S,
        lm: LM | str | None = None,
        max_iters: int = 10,
        **options: Unpack[RunParameters],
    ) -> RunStream[T]:
        """Run the graph and yield its records as they are written:

        ```python
        async with graph.stream(start, lm) as records:
            async for record in records:
                print(record)
            print(records.result.result)
        ```

        The parameters are those of `arun`, and the loop raises what `arun` raises. Leaving the
        block, or breaking out of a plain `async for`, cancels the run.
        """
        from bae.observers import RunStream

        return RunStream(lambda: self.arun(start_node, lm, max_iters, **options))

    def stream_resume(
        self,
        run_id: str,
        lm: LM | str | None = None,
        max_iters: int | None = None,
        *,
        journal: Journal,
        given: Mapping[str, Any] | None = None,
        **options: Unpack[WorkParameters],
    ) -> RunStream[T]:
        """Resume a run, as `resume` does, and yield the records that are written from now on, as
        `stream` does. If nothing is left to do, there are no records."""
        from bae.observers import RunStream

        known: Any = {"journal": journal, "given": given, **options}
        return RunStream(lambda: self.resume(run_id, lm, max_iters, **known))

    def stream_answer(
        self,
        run_id: str,
        field: str,
        value: Any,
        lm: LM | str | None = None,
        max_iters: int | None = None,
        *,
        journal: Journal,
        given: Mapping[str, Any] | None = None,
        **options: Unpack[WorkParameters],
    ) -> RunStream[T]:
        """Answer a gate that a run waits for and resume the run, as `answer` does. Yield the
        records that are written from now on, as `stream` does."""
        from bae.observers import RunStream

        known: Any = {"journal": journal, "given": given, **options}
        return RunStream(lambda: self.answer(run_id, field, value, lm, max_iters, **known))

    def __repr__(self) -> str:
        return f"<Graph {self.name}, {len(self._plan.plans)} nodes>"


def graph_to_fill(cls: type[Node]) -> Graph[Any, Any]:
    """A graph of one node, which an LM fills. Its body is not run."""
    graph = Graph(start=cls, name=f"{cls.__name__} (filled)")
    plan_of_graph(graph).is_filled = True
    return graph


_FORMER: Final[Mapping[str, str]] = {
    "asks_person": "bae.resolver.classify_fields(node_class) has the kind of each field",
    "filled_nodes": "graph.prompts() has the prompt of each node that an LM fills",
    "given_fields": "read graph.start.model_fields",
    "has_sources": "bae.resolver.classify_fields(node_class) has the kind of each field",
    "hidden": "read `repr` of each field in node_class.model_fields",
    "is_filled": "only graphs that bae makes itself are filled",
    "plans": "read graph.nodes, graph.edges and graph.terminal_nodes",
    "plans_with_tools": "bae.resolver.classify_fields(node_class) has the kind of each field",
    "recalls": "bae.resolver.classify_fields(node_class) has the kind of each field",
    "scene": "read graph.system",
}
"""Attributes that were public, and what to read instead."""


def with_thread(
    options: RunOptions,
    journal: Journal | None,
    metadata: Mapping[str, Any] | None,
    thread: str | None = None,
    busy: str = "wait",
    busy_timeout: float = 300.0,
    interrupted: str | None = None,
) -> RunOptions:
    """The options of a run that is a turn of a thread, or has metadata."""
    if busy not in ("wait", "refuse", "cancel"):
        raise ValueError(f'busy={busy!r}: give "wait", "refuse" or "cancel"')
    if interrupted not in (None, "resume", "cancel"):
        raise ValueError(f'interrupted={interrupted!r}: give "resume" or "cancel"')
    if not busy_timeout >= 0:
        raise ValueError(f"busy_timeout={busy_timeout!r}: give seconds, 0 or more")
    if thread is not None:
        if journal is None:
            raise ValueError(
                f"thread={thread!r} needs a journal=…, where the earlier turns of the thread are"
            )
        rooms.check_thread(thread)
        turn = TurnOptions(thread, busy, float(busy_timeout), interrupted)
        options = options._replace(turn=turn)
    return options if metadata is None else options._replace(metadata=_checked_metadata(metadata))


def _checked_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    import json

    try:
        checked = whole_json(json.loads(json.dumps(dict(metadata), allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise TypeError(f"metadata={metadata!r:.200}: give a JSON object: {error}") from error
    if not all(type(key) is str for key in metadata):
        raise TypeError(f"metadata={metadata!r:.200}: give a JSON object, with texts as keys")
    return checked


def new_writer(
    graph: Graph[Any, Any], journal: Journal | None, run_id: str | None, log: Log | None = None
) -> Writer:
    """The writer of a new run."""
    if journal is None:
        return Writer(log)
    store = checked_store(journal)
    if run_id is not None:
        rooms.check_names(run_id, graph.name)
    return rooms.JournalWriter(store, log)


def checked_store(journal: object) -> Journal:
    """The journal, checked to be a `Journal`."""
    if isinstance(journal, rooms.Journal):
        return journal
    hint = ""
    if isinstance(journal, str) or hasattr(journal, "__fspath__"):
        hint = f": journal=SQLiteJournal({str(cast(Any, journal))!r})"
    raise TypeError(f"journal={journal!r} is no Journal; give one of bae.journal{hint}")


def run_sync(work: Callable[[], Coroutine[Any, Any, R]], called: str, instead: str) -> R:
    """Run async work for a sync caller. Inside a running event loop, raise `LoopError`."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass  # not run in here, or every error of a run would show this error above it
    else:
        raise LoopError(
            f"{called} was called inside a running event loop, which it would block",
            fix=f"write `{instead}` there",
        )
    return asyncio.run(work())


def _no_node_class(given: object) -> TypeError:
    """The error for a start or an end that is not a node class."""
    from pydantic import BaseModel

    message = f"Graph takes Node classes, not {given!r}"
    if isinstance(given, type) and issubclass(given, BaseModel):
        name = given.__name__
        return TypeError(f"{message}: {name} is a BaseModel; make it a Node: class {name}(Node)")
    if isinstance(given, Node):
        return TypeError(f"{message}: give the class, {type(given).__name__}; a run takes the node")
    if isinstance(given, list):
        return TypeError(f"{message}; give several ends as a tuple")
    return TypeError(message)
