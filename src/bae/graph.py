"""`Graph`: the node classes that a start class leads to. bae finds these classes by their type
hints, checks them once, and runs the graph as often as you want."""

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
from bae.unicode import join_json_surrogates
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
    """The parameters of `Graph` that can only be passed by name."""

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

    - `name`: the name in pictures and journals. The default is the name of the start class.
    - `system`: the system text of every question to an LLM, in place of bae's own text. A graph
      inside this graph uses the same text, unless it has its own text.
    - `context`: which nodes, besides the previous node, a question shows to an LLM. "previous", the
      default, adds no nodes. "start" adds the first node. "trace" adds all nodes. A node class, or
      a tuple of node classes, adds all nodes of these classes.
    - `context_limit`: how many characters the added nodes may have together, by default 20,000. If
      there are more, the oldest nodes are left out.

    A graph inside this graph, and the `NodeConfig` of a class, may have their own `context` and
    `context_limit`.
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
        for cls in (start, *ends):
            if not (isinstance(cls, type) and issubclass(cls, Node)):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise _no_node_class(cls)
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
            return getattr(self._plan, "start_fields" if name == "given_fields" else name)

    @property
    def nodes(self) -> NodeTypes:
        """Every node class that a run can reach, the start class first."""
        return NodeTypes(self._plan.plans)

    @property
    def edges(self) -> dict[type[Node], NodeTypes]:
        """For each node class, the next node classes that its return type declares."""
        return {cls: NodeTypes(plan.successors) for cls, plan in self._plan.plans.items()}

    @property
    def terminal_nodes(self) -> NodeTypes:
        """The node classes at which a run may end."""
        return NodeTypes(cls for cls, plan in self._plan.plans.items() if plan.may_end)

    @property
    def graphs(self) -> tuple[Graph[Any, Any], ...]:
        """This graph and all graphs inside it, at any depth, the outermost first."""
        return self._plan.graphs

    @property
    def needs_lm(self) -> str:
        """Why a run needs an LM; empty if it needs none."""
        return self._plan.needs_lm

    def validate(self, *, journal: bool = False) -> list[Problem]:
        """Find the problems of the graph before a run. The list has errors first, and is empty if
        there are no problems.

        Each problem is a text to print. Its parts are `.severity`, `.code`, `.place`, `.message`
        and `.fix`. A graph with errors does not run. With `journal=True`, the list also has errors
        for fields that no journal can store. It then has notes, too: on secrets, and on values that
        a resumed run computes again.
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
        """Return every prompt that this graph, and the graphs inside it, can send. Print a prompt,
        or read its `.system`, `.text`, `.schema` and `.question`. No function, body or LM is
        called.

        The prompts show sample nodes and sample values, along a shortest path from the start. To
        use your own `nodes` in place of samples, pass a start node or any other node. Pass `lm` if
        the LM has learned prompts, or if it cannot choose and fill in one call. For a written body,
        the list has the prompts of `lm.make` and `lm.decide`. It does not have questions that the
        body words itself: in a test, read these from `ScriptedLM.prompts`.
        """
        from bae.prompts.preview import prompts_of

        return prompts_of(self, nodes, lm)

    def to_mermaid(self, *, fields: bool = False) -> str:
        """Return the graph as a Mermaid flowchart. Its arrows are the edges that the return types
        declare. With `fields=True`, the chart also shows the fields by source, and the graphs
        inside."""
        return rooms.to_mermaid(self, fields=fields)

    def to_svg(self) -> str:
        """Return the graph as an SVG picture. The picture shows the nodes, their fields by source,
        and the graphs inside. The style of an arrow tells whether an LLM or code chooses the next
        node. A notebook shows the picture of a graph automatically. `bae.pictures` has more
        formats."""
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
        """Run the graph as `arun` does, for sync callers.

        Inside a running event loop, use `await graph.arun(…)`.
        """
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

        - `lm` chooses and fills the next node after a node with an empty body. Pass an LM, or the
          name of an LM, such as "local" or "claude-cli:sonnet". Without `lm`, the run uses the LM
          that the environment variable BAE_LM names. If the variable is not set, the run uses an LM
          that this machine offers.
        - `max_iters` limits how many nodes may run; 0 is no limit.
        - `prefetch`: while the LLM fills a node with only one successor, the run already starts the
          successor's dependencies.
        - `answer` is an async callable that answers gates. Without it, a run that reaches a gate
          stops, and the result's `.waiting` has the question.
        - `dep_cache` has values by dependency function. The run uses such a value instead of
          calling the function, so a test can replace the function. The run adds the values that it
          computes.
        - `journal` is where the run is stored as it happens, so that `resume` can continue it after
          any interruption: a `SQLiteJournal`, for example.
        - `run_id` names the run. By default the id is random. If the journal already has a run with
          the id, the new run is refused.
        - `resume=True` resumes the run `run_id` if the journal has it. Only secrets are then taken
          from `start_node`.
        - `thread` is the id of a conversation in the journal. This run is the next turn of the
          conversation, and fields with `Thread()` have the earlier turns. One run of a thread is in
          progress at a time.
        - `busy` says what to do if another run of the thread is in progress. "wait" waits for the
          other run, at most `busy_timeout` seconds. "refuse" raises `JournalError`
          (`bae-thread-busy`). "cancel" cancels the other run, in any process. If the other run is
          parked at a gate, "wait" also raises this error, with the gate's question.
        - `interrupted` says what to do if another run of the thread was interrupted because its
          process died. "resume" first resumes the other run, and "cancel" cancels it. The default
          is "cancel" with `busy="cancel"`, otherwise "resume".
        - `metadata` is a JSON object that is stored with the run: `journal.runs(metadata=…)` finds
          the run by it. Telemetry uses its `user_id` and `session_id`.

        Raises a `BaeError`, which has the trace. If the call is cancelled, it cancels everything
        that the run has started. When the call returns or raises, no part of the run is still
        running.
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
        """Share the values of `Dep(fn, scope="app")` among the runs inside this block:

        ```python
        async with graph.open():
            await graph.arun(…)
        ```

        A value is opened when a run on the block's event loop first asks for it. All graphs that
        are open on this event loop share the value. It is closed with the last of these graphs.

        Leaving the block waits for this graph's runs in progress. If an error or a cancellation
        leaves the block, these runs are cancelled first. `app` is not used: with this parameter,
        `FastAPI(lifespan=graph.open)` works.
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
        """Resume a run where it stopped: after a crash, a cancellation, a failure, or at a gate
        that has been answered.

        Recorded work is not repeated: dependencies, fills, choices, items of maps, answers at
        gates, bodies that returned, and graphs inside. Work that was in progress is repeated. If
        the run has ended, return the recorded result.

        - `max_iters` counts the nodes from the start of the run. By default, the run keeps its
          limit.
        - `given` has the secrets that the journal does not store, such as
          `{"Login.token": SecretStr(…)}`.

        The other parameters are those of `arun`. A budget around this call is also charged what the
        run spent before. Raises `JournalError` if another process owns the run at this moment
        (`bae-run-owned`), or if its classes have changed so that it cannot continue
        (`bae-run-changed`).
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
        """Carry out all runs of this graph that wait for a process: queued runs, interrupted runs,
        and parked runs whose gate has an answer or is past its deadline.

        Call this method when a program starts, and from time to time. At most `concurrency` runs
        are in progress at once. Return each run with its result or its error. Runs that another
        process takes first are left out. Runs that failed or were cancelled are not resumed: use
        `resume` for them.
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
        """Store a run for a worker to carry out, and return the run's id. A worker is `bae worker`,
        or a call of `recover`, in any process. This method does not wait until the run begins.

        - `run_id` is refused (`bae-run-exists`) if the journal has a run with this id. So a
          submission can be repeated safely.
        - `engine`, such as a `TemporalEngine`, passes the run to one of its workers. Without an
          engine, the run waits for a worker that looks into the journal.
        - `delay`: the run begins at the earliest after this many seconds.

        The other parameters are those of `arun`. The worker supplies the LM. A start node with a
        secret is refused (`bae-submit-secret`).
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
        seconds, raises `JournalError` (`bae-result-timeout`) with a message that says what the run
        waits for. This method does not carry out the run: `resume` does.
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

        - `field` names the gate: a class and its field, such as `Refund.approved`, the field alone,
          or the id of a tool call. If several open gates have this name, pass the gate's address,
          which `result.waiting` and `journal.runs()` have.
        - `value` is the answer. It is first checked against the field's type. For a tool call, the
          answer is an `Approval`. A gate takes one answer: a second answer is refused.
        - `go_on=False` only stores the answer. The run continues when it is resumed.
        - `by` is the person who answers. The name is stored with the answer, and `journal.why`
          shows it.
        - `engine`: one of its workers resumes the run, not this call.

        The other parameters are those of `resume`.
        """

        store, resumed = checked_store(journal), RunOptions(lm, max_iters, **options)
        go_on = go_on and engine is None
        arguments = (run_id, field, value, resumed, store, given, go_on, by)
        result = await rooms.answer_gate(self, *arguments)
        if engine is not None:
            await rooms.dispatch(engine, run_id, self.name)
        return result

    async def tell(self, run_id: str, text: str, *, journal: Journal) -> None:
        """Send a message to the LLM of a run. The LLM reads `text` before the next round of its
        conversation with tools.

        The run may be in progress, in any process. A run that is parked, failed or interrupted
        reads the message after it is resumed. Messages are stored. The LLM reads them in order, and
        each message once. If a message arrives while the LLM writes its answer, the LLM reads the
        message in the run's next conversation with tools.

        Raises `JournalError` if the run has ended (`bae-tell-over`), or if no conversation with
        tools can follow in the run (`bae-tell-nobody`).
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
        """Return a thread of this graph in a journal. You can read, export, fork or delete the
        thread."""
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
        """Copy a run up to its step `at` into a new run, and return the new run's id.

        The node at step `at` gets the values that you pass as `fields`. Call `resume` with the new
        id to continue from this node. No earlier step is repeated, and the original run stays
        unchanged. If a field has the name of a parameter of this method, pass its value in
        `changed`, such as `changed={"at": …}`.

        The new run belongs to no thread unless you pass `thread`. If `thread` is the original run's
        thread, the new run replaces the original turn and all later turns when the new run ends.
        Pass the thread with `at=0` to edit a message or to try a message again. If the original run
        has no thread, the new run becomes the next turn of `thread`.
        """

        store, values = checked_store(journal), {**(changed or {}), **fields}
        return await rooms.fork(self, run_id, at, store, new_id, values, thread)

    async def replay(
        self,
        run_id: str,
        *,
        journal: Journal,
        dep_cache: dict[Any, Any] | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> GraphResult[T]:
        """Run a recorded run again with its recorded values. Only your written bodies are called:
        no LM, no dependency, and no person at a gate.

        If a node, a choice or a prompt differs from the recording, raise `ReplayError`, which shows
        both. `dep_cache` has replacements for values that no journal stores, such as clients.
        `given` has the secrets.
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

        The parameters are those of `arun`. If the run fails, the loop raises the error that `arun`
        would raise. Leaving the block cancels the run, and so does breaking out of an `async for`
        without a block.
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
        """Resume a run as `resume` does, and yield the new records as `stream` does. If the run has
        ended, there are no records."""
        from bae.observers import RunStream

        arguments: Any = {"journal": journal, "given": given, **options}
        return RunStream(lambda: self.resume(run_id, lm, max_iters, **arguments))

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
        """Answer a gate and resume the run as `answer` does. Yield the new records as `stream`
        does."""
        from bae.observers import RunStream

        arguments: Any = {"journal": journal, "given": given, **options}
        return RunStream(lambda: self.answer(run_id, field, value, lm, max_iters, **arguments))

    def __repr__(self) -> str:
        return f"<Graph {self.name}, {len(self._plan.plans)} nodes>"


def graph_to_fill(cls: type[Node]) -> Graph[Any, Any]:
    """Make a graph of one node, which an LLM fills. The body of the node is not called."""
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
"""Former public attributes of `Graph`, each with what to use instead."""


def with_thread(
    options: RunOptions,
    journal: Journal | None,
    metadata: Mapping[str, Any] | None,
    thread: str | None = None,
    busy: str = "wait",
    busy_timeout: float = 300.0,
    interrupted: str | None = None,
) -> RunOptions:
    """Check the arguments for a thread and for metadata, and add them to the options of a run."""
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
        checked = join_json_surrogates(json.loads(json.dumps(dict(metadata), allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise TypeError(f"metadata={metadata!r:.200}: give a JSON object: {error}") from error
    if not all(type(key) is str for key in metadata):
        raise TypeError(f"metadata={metadata!r:.200}: give a JSON object, with texts as keys")
    return checked


def new_writer(
    graph: Graph[Any, Any], journal: Journal | None, run_id: str | None, log: Log | None = None
) -> Writer:
    """Make the writer of a new run."""
    if journal is None:
        return Writer(log)
    store = checked_store(journal)
    if run_id is not None:
        rooms.check_names(run_id, graph.name)
    return rooms.JournalWriter(store, log)


def checked_store(journal: object) -> Journal:
    """Check that the argument is a `Journal`, and return it."""
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
        pass  # call `asyncio.run` below: here, each error of the run would show this error too
    else:
        raise LoopError(
            f"{called} was called inside a running event loop, which it would block",
            fix=f"write `{instead}` there",
        )
    return asyncio.run(work())


def _no_node_class(value: object) -> TypeError:
    """Make the error for a start or an end that is not a node class."""
    from pydantic import BaseModel

    message = f"Graph takes Node classes, not {value!r}"
    if isinstance(value, type) and issubclass(value, BaseModel):
        name = value.__name__
        return TypeError(f"{message}: {name} is a BaseModel; make it a Node: class {name}(Node)")
    if isinstance(value, Node):
        return TypeError(f"{message}: give the class, {type(value).__name__}; a run takes the node")
    if isinstance(value, list):
        return TypeError(f"{message}; give several ends as a tuple")
    return TypeError(message)
