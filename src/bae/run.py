"""The options and the state of a run, or of a graph inside a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import urandom
from time import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypedDict, cast

from bae.language_model import PLAIN_SCENE, RoutingLM, Scene, spending_limit, with_limit
from bae.observers import everywhere, here, observe_log, reading
from bae.past import NO_PAST, Past
from bae.records import AnswerJudged, AnswerRestarted
from bae.usage import Attempt, Restart
from bae.writer import Writer

if TYPE_CHECKING:
    from bae.files import File
    from bae.language_model import LM, Shown
    from bae.markers import OpenGate
    from bae.node import Node
    from bae.place import Place
    from bae.plan import NodePlan
    from bae.records import Asker, Found
    from bae.rooms import Journal
    from bae.sharing import Dataflow
    from bae.tool_conversation import Conversation
    from bae.turns import Messages, TurnOptions
    from bae.usage import CallEvent, Usage

GateAnswerer = Callable[["OpenGate"], Awaitable[Any]]
"""The type of `answer=`: an async callable that gets the open gate and returns the answer. To give
no answer, it calls `gate.leave_open()`."""


class WorkParameters(TypedDict, total=False):
    """The keyword parameters of all methods that run a graph; see `Graph.arun`."""

    prefetch: bool
    answer: GateAnswerer | None
    dep_cache: dict[Any, Any] | None


class RunParameters(WorkParameters, total=False):
    """The keyword parameters of `Graph.arun` and `Graph.stream`; see `Graph.arun`."""

    journal: Journal | None
    run_id: str | None
    resume: bool
    thread: str | None
    busy: Literal["wait", "refuse", "cancel"]
    busy_timeout: float
    interrupted: Literal["resume", "cancel"] | None
    metadata: Mapping[str, Any] | None


class RunOptions(NamedTuple):
    """The options of a run that the caller has passed."""

    lm: LM | str | None = None
    max_iters: int | None = 10
    """The largest number of nodes; 0 is no limit. None keeps the limit with which a resumed run was
    started."""
    prefetch: bool = True
    answer: GateAnswerer | None = None
    dep_cache: dict[Any, Any] | None = None
    turn: TurnOptions | None = None
    """The thread that the run belongs to, and how the run waits for its turn. None without a
    thread."""
    metadata: Mapping[str, Any] = MappingProxyType({})
    tries_again: Callable[[BaseException], bool] | None = None
    """Returns whether the owner of the run will try the run again after an error. The run is then
    interrupted, and not failed."""


class Waiting(Exception):
    """Stops a run in which gates have no answer. The run catches it, so callers never see it."""

    code: Final = "waiting"
    """The code with which a journal stores this exception, in place of an error code."""

    def __init__(self, gates: Sequence[OpenGate]) -> None:
        super().__init__(f"waiting for {', '.join(gate.place for gate in gates)}")
        self.gates = tuple(gates)
        self.node: Node | None = None
        """The incomplete node whose fields wait for an answer. None if the node does not exist
        yet."""

    @classmethod
    def inside(cls, error: Exception) -> Waiting | None:
        """Join the `Waiting` exceptions of an exception group into one exception. Return None if
        `error` is not a group, or if the group contains any other exception."""
        if not isinstance(error, ExceptionGroup):
            return None
        waiting, others = cast("ExceptionGroup[Exception]", error).split(cls)
        if waiting is None or others is not None:
            return None
        gates: dict[str, OpenGate] = {}
        groups: list[ExceptionGroup[Waiting]] = [waiting]
        for group in groups:
            for exception in group.exceptions:
                if isinstance(exception, ExceptionGroup):
                    groups.append(exception)
                else:
                    gates |= {gate.address: gate for gate in exception.gates}
        return cls([*gates.values()])


class HandedOver(Exception):
    """The reason for the cancellation of a run that another process will continue. The run has not
    ended, and this process releases it. See `bae.tasks.explain_cancellation`."""


DEFAULTS: Final = RunOptions()
"""The options of a run without arguments."""
CONTEXT_LIMIT: Final = 20_000
"""The default of `context_limit`: how many characters of earlier nodes a question shows."""


class LMNotes:
    """Facts that a run remembers about its questions to LMs. The graphs inside the run share
    them."""

    __slots__ = ("cut", "files", "granted", "lms", "outside_types", "streamed")

    def __init__(self, named: dict[str, LM] | None = None) -> None:
        self.lms: dict[str, LM] = {} if named is None else named
        """The LMs that nodes name, by name."""
        self.outside_types: set[type] = set()
        """The classes outside the graph about which a body or a function has asked an LM."""
        self.cut: set[type[Node]] = set()
        """The classes whose questions leave out earlier nodes. bae warns once for each class."""
        self.granted: set[str] = set()
        """The tools that a person has approved for the complete run, if the run has no journal."""
        self.files: dict[str, File] = {}
        """The files in results of tools, by the hash of the file."""
        self.streamed: dict[tuple[str, int], list[Place]] = {}
        """The places for which text has streamed in, by graph path and step."""


class Run:
    """The state of a run, or of a graph inside a run.

    - `trace`, `step`: the nodes so far, and the step that the run has reached.
    - `path`, `outer`: for a graph inside the run, the place that the graph runs for, and the run
      around the graph. Empty and None in the run itself.
    - `writer`: writes the records of the run.
    - `past`: finds the recorded values of a resumed run.
    - `flow`: schedules the work on the values of fields.
    - `lm`: the LM that the run asks, unless a node class pins another LM.
    - `max_iters`: how many nodes may run; 0 is no limit.
    - `returned`: the last node that a body has returned.
    - `conversations`: the conversations with tools that bodies and functions have begun. If a body
      or function repeats a question, the conversation of that question continues.
    - `scene`, `shows`, `shows_limit`: the contents of questions besides the previous node.
    - `turns`: the earlier turns of the thread that a node may show. None without a thread.
    """

    __slots__ = (
        "_index",
        "_notes",
        "conversations",
        "flow",
        "lm",
        "max_iters",
        "options",
        "outer",
        "past",
        "path",
        "plans",
        "returned",
        "run_id",
        "scene",
        "shows",
        "shows_limit",
        "step",
        "trace",
        "turns",
        "writer",
    )

    def __init__(
        self,
        options: RunOptions = DEFAULTS,
        *,
        writer: Writer | None = None,
        past: Past = NO_PAST,
        flow: Dataflow | None = None,
        trace: list[Node] | None = None,
        path: str = "",
        outer: Run | None = None,
        run_id: str = "",
    ) -> None:
        self.options = options
        self.lm = cast("LM | None", options.lm)  # a name is resolved before the first step
        self.max_iters = cast(int, options.max_iters)
        self.writer = Writer() if writer is None else writer
        self.past, self.flow = past, flow
        self.trace: list[Node] = [] if trace is None else trace
        self.path, self.step, self.outer = path, 0, outer
        self.run_id = run_id or urandom(12).hex()
        self.returned: Node | None = None
        self.plans: Mapping[type[Node], NodePlan] | None = None
        self.scene: Scene = PLAIN_SCENE
        self.shows: Shown | None = None
        self.shows_limit: int | None = None
        self._index: dict[type[Node], list[int]] | None = None
        self._notes: LMNotes | None = None
        self.conversations: dict[Hashable, Conversation] = {}
        self.turns: Messages | None = None
        if outer is None and (everywhere or here.get() or reading.get()):
            self.writer.log = observe_log(self.writer.log, self.run_id, options)

    def inside(self, path: str) -> Run:
        """Return the state of a graph inside this run. The graph has a trace of its own and shares
        the rest with this run."""
        run = Run(
            self.options,
            writer=self.writer,
            past=self.past,
            flow=self.flow,
            path=path,
            outer=self,
            run_id=self.run_id,
        )
        run.lm, run.scene = self.lm, self.scene
        run.shows, run.shows_limit = self.shows, self.shows_limit
        return run

    def lm_for(self, plan: NodePlan) -> LM | None:
        """Return the LM for a node class: the pinned LM with the policies of the run, or else the
        LM of the run. Two classes with the same LM get the same object."""
        if plan.lm is None:
            return self.lm
        pinned = self.get_lm(plan.lm) if isinstance(plan.lm, str) else plan.lm
        if isinstance(self.lm, RoutingLM):
            pinned = self.lm.pinned(pinned)
        return with_limit(pinned)

    def restore_limits(self, used: Usage, seconds: float) -> None:
        """Charge the earlier usage and duration of a resumed run to the active limit and to the
        budgets around its LM. A budget that this process has already charged for the run is not
        charged again."""
        limit = spending_limit.get()
        if limit is not None:
            limit.restore(self.run_id, used, seconds)
        if isinstance(self.lm, RoutingLM):
            self.lm.restore(self.run_id, used, seconds)

    def read_context_setting(self, plan: NodePlan) -> tuple[Shown, int]:
        """Return the setting `context` for questions about a class, and the largest number of
        characters that the shown nodes may have."""
        context = self.shows if plan.shows is None else plan.shows
        limit = self.shows_limit if plan.shows_limit is None else plan.shows_limit
        return context or "previous", limit or CONTEXT_LIMIT

    def scene_for(self, plan: NodePlan, previous: Node | None) -> Scene:
        """Return the scene of a question about a node class. `previous` is not in the scene,
        because every question shows it anyway."""
        context, limit = self.read_context_setting(plan)
        if context == "previous":
            return self.scene
        from bae.prompts.values import nodes_that_fit

        shown_run = self
        while not shown_run.trace and shown_run.outer is not None:
            shown_run = shown_run.outer  # a node that is filled for a field has no trace of its own
        if context == "start":
            nodes = shown_run.trace[:1]
        elif context == "trace":
            nodes = shown_run.trace
        else:
            nodes = [node for node in self.walk_earlier_nodes() if isinstance(node, context)][::-1]
        nodes = [node for node in nodes if node is not previous]
        shown_nodes = nodes_that_fit(nodes, limit, self.scene.hidden)
        omitted = len(nodes) - len(shown_nodes)
        if omitted:
            self._warn_of_cut(plan, omitted, limit)
        return replace(self.scene, shown=shown_nodes, omitted=omitted) if nodes else self.scene

    def origins(self, records: Iterable[Found]) -> dict[str, tuple[Node, str]]:
        """Return the origin of each recalled field of a node, from the records of the fields."""
        origins: dict[str, tuple[Node, str]] = {}
        for record in records:
            if record.origin is not None and not record.parameter:
                path, step, field = record.origin
                owner = self
                while owner.outer and (owner.path != path or step >= len(owner.trace)):
                    owner = owner.outer
                origins[record.field] = owner.trace[step], field
        return origins

    def _warn_of_cut(self, plan: NodePlan, omitted: int, limit: int) -> None:
        if plan.node not in self.notes.cut:
            self.notes.cut.add(plan.node)
            import logging

            logging.getLogger("bae").warning(
                "%s: %d of the earlier nodes that its questions show are left out from here on: "
                "together they have more than context_limit=%d characters",
                plan.name,
                omitted,
                limit,
            )

    @property
    def outermost(self) -> Run:
        """The state of the run itself, also for a graph inside the run."""
        run = self
        while run.outer is not None:
            run = run.outer
        return run

    @property
    def notes(self) -> LMNotes:
        """The notes of the complete run about its questions to LMs."""
        run = self.outermost
        if run._notes is None:
            run._notes = LMNotes()
        return run._notes

    def get_lm(self, name: str) -> LM:
        """Return the LM with a name. For the same name, the complete run uses the same LM."""
        lms = self.notes.lms
        if name not in lms:
            from bae.rooms import cached_lm

            lms[name] = cached_lm(name)
        return lms[name]

    def watch(self, asker: Asker, event: CallEvent, step: int | None = None) -> None:
        """Record an event of an LM call in progress. `step` is the step that the call belongs to,
        by default the step that the run has reached."""
        place = time(), self.path, self.step if step is None else step, asker
        match event:
            case Attempt():
                self.writer.write(AnswerJudged(*place, event))
            case Restart():
                self.writer.write(AnswerRestarted(*place, event.error, event.wait, event.model))
            case _:
                pass  # text, which an `AnswerStream` takes

    @property
    def is_streamed(self) -> bool:
        """Whether the run has observers or a reader. It then records text as the text arrives."""
        return type(self.writer.log) is not list

    def places(self) -> dict[type[Node], list[int]]:
        """Return the positions in the trace of the nodes of each class."""
        if self._index is None:
            self._index = {}
        for position in range(sum(map(len, self._index.values())), len(self.trace)):
            self._index.setdefault(type(self.trace[position]), []).append(position)
        return self._index

    def walk_earlier_nodes(self) -> Iterator[Node]:
        """Yield the earlier nodes, the newest first: the nodes of this run, then the nodes of the
        runs around it."""
        run: Run | None = self
        while run is not None:
            yield from reversed(run.trace)
            run = run.outer
