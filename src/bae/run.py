"""The state of one run, or of a graph that runs inside one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from os import urandom
from time import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

from bae.language_model import PLAIN_SCENE, RoutingLM, Scene, with_limit
from bae.observers import everywhere, here, in_force, observed
from bae.recorder import Recorder, RunJournal
from bae.records import AnswerJudged, AnswerRestarted, TextArrived
from bae.unicode import readable
from bae.usage import Attempt, Restart

if TYPE_CHECKING:
    from bae.language_model import LM, Shown
    from bae.markers import OpenGate
    from bae.node import Node
    from bae.plan import NodePlan
    from bae.records import Asker
    from bae.rooms import Journal
    from bae.scheduling import PendingValue
    from bae.sharing import Dataflow
    from bae.usage import Event

Answer = Callable[["OpenGate"], Awaitable[Any]]
"""What answers gates: an async callable that is given the open gate."""


class WorkParameters(TypedDict, total=False):
    """The parameters by name that all ways to run a graph have; `Graph.arun` explains them."""

    prefetch: bool
    answer: Answer | None
    dep_cache: dict[Any, Any] | None


class StreamParameters(WorkParameters, total=False):
    """The parameters of `Graph.stream` that are given by name."""

    journal: Journal | None
    run_id: str | None


class RunParameters(StreamParameters, total=False):
    """The parameters of `Graph.arun` that are given by name."""

    resume: bool


class RunOptions(NamedTuple):
    """How a run is resumed. `max_iters` is the one that it was started with where it is None."""

    lm: LM | str | None = None
    max_iters: int | None = None
    prefetch: bool = True
    answer: Answer | None = None
    dep_cache: dict[Any, Any] | None = None


class Waiting(Exception):
    """Raised inside a run where gates have no answer; it never leaves the run."""

    code: Final = "waiting"
    """Tells it from errors in a journal."""

    def __init__(self, gates: Sequence[OpenGate]) -> None:
        super().__init__(f"waiting for {', '.join(gate.place for gate in gates)}")
        self.gates = tuple(gates)
        self.node: Node | None = None
        """The draft whose fields wait, if it is there already."""


NONE: Final[frozenset[str]] = frozenset()
CONTEXT_LIMIT: Final = 20_000
"""How many characters of earlier nodes a question shows, unless `context_limit` says otherwise."""


@dataclass(slots=True, eq=False, repr=False)
class Run:
    """One run: its options, how far it is, and what it records with.

    `ahead` are dependencies of the next node that were started early; `given_up` are fields of the
    node that is being filled whose source failed, so that their default is used; `returned` is what
    a body has returned and the next step is to store.
    """

    lm: LM | None = None
    max_iters: int = 10
    prefetch: bool = True
    answer: Answer | None = None
    dep_cache: dict[Any, Any] | None = None
    _: KW_ONLY
    recorder: Recorder = field(default_factory=Recorder)
    flow: Dataflow | None = None
    trace: list[Node] = field(default_factory=list["Node"])
    path: str = ""
    outer: Run | None = None
    run_id: str = ""
    step: int = 0
    ahead: list[PendingValue] | None = None
    given_up: frozenset[str] = NONE
    returned: Node | None = None
    indexed: dict[type[Node], list[int]] | None = None
    by_name: dict[str, LM] | None = None
    halves: dict[Asker, str] | None = None
    scene: Scene = PLAIN_SCENE
    shows: Shown | None = None
    shows_limit: int | None = None
    cut: set[type[Node]] | None = None
    met: set[type] | None = None
    """The classes outside the graph that an LM was asked about."""
    plans: Mapping[type[Node], NodePlan] | None = None

    def __post_init__(self) -> None:
        if not self.run_id:
            self.run_id = urandom(12).hex()
        if self.outer is None and (everywhere or here.get()):
            self.recorder.log = observed(self.recorder.log, self.run_id, in_force())

    def inside(self, path: str) -> Run:
        """The run of a graph inside this one: a trace of its own, everything else shared."""
        return Run(
            self.lm,
            self.max_iters,
            self.prefetch,
            self.answer,
            recorder=self.recorder,
            flow=self.flow,
            path=path,
            outer=self,
            run_id=self.run_id,
            scene=self.scene,
            shows=self.shows,
            shows_limit=self.shows_limit,
        )

    def lm_for(self, plan: NodePlan) -> LM | None:
        """The LM that is pinned to a node class, asked as the run's LM has it asked, or else the
        run's own. It is the same object for the same LM, so nodes that share one are known."""
        if plan.lm is None or self.recorder.replays:
            return self.lm
        own = self.named(plan.lm) if isinstance(plan.lm, str) else plan.lm
        if isinstance(self.lm, RoutingLM):
            own = self.lm.pinned(own)
        return with_limit(own)

    def shown_by(self, plan: NodePlan) -> tuple[Shown, int]:
        """Which nodes a question about a class shows, and how many characters of them at most."""
        context = self.shows if plan.shows is None else plan.shows
        limit = self.shows_limit if plan.shows_limit is None else plan.shows_limit
        return context or "previous", limit or CONTEXT_LIMIT

    def scene_for(self, plan: NodePlan, source: Node | None) -> Scene:
        """The scene of a question about a node class. `source` is the previous node, which is shown
        in any case."""
        context, limit = self.shown_by(plan)
        if context == "previous":
            return self.scene
        from bae.prompts.questions import nodes_that_fit

        if context == "start":
            nodes = self.trace[:1]
        elif context == "trace":
            nodes = self.trace
        else:
            nodes = [node for node in self.seen() if isinstance(node, context)][::-1]
        nodes = [node for node in nodes if node is not source]
        shown = nodes_that_fit(nodes, limit)
        omitted = len(nodes) - len(shown)
        if omitted:
            self._warn_of_cut(plan, omitted, limit)
        return replace(self.scene, shown=shown, omitted=omitted) if nodes else self.scene

    def _warn_of_cut(self, plan: NodePlan, omitted: int, limit: int) -> None:
        run = self.outermost
        if run.cut is None:
            run.cut = set()
        if plan.node not in run.cut:
            run.cut.add(plan.node)
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
        """The run that this one is part of, or itself."""
        run = self
        while run.outer is not None:
            run = run.outer
        return run

    def named(self, name: str) -> LM:
        """The LM of a name, the same one for the whole run."""
        run = self.outermost
        if run.by_name is None:
            run.by_name = {}
        if name not in run.by_name:
            from bae.rooms import cached_lm

            run.by_name[name] = cached_lm(name)
        return run.by_name[name]

    def watch(self, asker: Asker, event: Event, step: int | None = None) -> None:
        """Record what an LM reports of a call while it is in progress; `step` is that of a call
        that was started early."""
        place = time(), self.path, self.step if step is None else step, asker
        match event:
            case str():
                text = self._whole(asker, event)
                if text:
                    self.recorder.write(TextArrived(*place, text))
            case Attempt():
                self.halves = None
                self.recorder.write(AnswerJudged(*place, event))
            case Restart():
                self.halves = None
                self.recorder.write(AnswerRestarted(*place, event.error, event.wait))

    def _whole(self, asker: Asker, piece: str) -> str:
        """A piece of text that streams in, with the half of a character that the piece before it
        ended with; half a character at its own end waits for the next."""
        if self.halves is not None:
            piece = self.halves.pop(asker, "") + piece
        if piece.isascii():
            return piece
        if "\ud800" <= piece[-1] <= "\udbff":
            self.halves = {**(self.halves or {}), asker: piece[-1]}
            piece = piece[:-1]
        return readable(piece, 0)

    @property
    def journal(self) -> RunJournal:
        """What has been recorded so far, of the whole run that this is part of."""
        run = self.outermost
        return RunJournal(run.recorder.log, run.trace)

    def places(self) -> dict[type[Node], list[int]]:
        """The positions of the nodes of each class in the trace; updated when asked for."""
        if self.indexed is None:
            self.indexed = {}
        for place in range(sum(map(len, self.indexed.values())), len(self.trace)):
            self.indexed.setdefault(type(self.trace[place]), []).append(place)
        return self.indexed

    def seen(self) -> Iterator[Node]:
        """The nodes before now, newest first, those of the surrounding run after this one's."""
        run: Run | None = self
        while run is not None:
            yield from reversed(run.trace)
            run = run.outer
