"""The state of one run, or of a graph that runs inside one: what the runner, the resolver and the
dataflow share while it lasts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from os import urandom
from time import time
from typing import TYPE_CHECKING, Any, Final, cast

from bae.language_model import RoutingLM, with_limit
from bae.observers import in_force, observed
from bae.records import AnswerJudged, AnswerRestarted, TextArrived
from bae.run_log import Log, RunJournal
from bae.usage import Attempt, Restart

if TYPE_CHECKING:
    from bae.dataflow import Dataflow, Flight
    from bae.journal.running.keeper import Keeper
    from bae.lm import LM
    from bae.markers import OpenGate
    from bae.node import Node
    from bae.plan import NodePlan
    from bae.records import Asker, Record
    from bae.usage import Event

Answer = Callable[["OpenGate"], Awaitable[Any]]
"""What answers gates: an async callable that is given the open gate."""


class Waiting(Exception):
    """Raised inside a run where gates have nobody to answer them; it never leaves the run."""

    def __init__(self, gates: Sequence[OpenGate]) -> None:
        super().__init__(f"waiting for {', '.join(gate.place for gate in gates)}")
        self.gates = tuple(gates)
        self.node: Node | None = None
        """The draft whose fields wait, where it is there already."""


NONE: Final[frozenset[str]] = frozenset()


class Nothing:
    """What is said of a place of which nothing is recorded, as None may be a value, or the end."""

    def __repr__(self) -> str:
        return "<nothing recorded>"


NOTHING: Final = Nothing()


class Run:
    """One run: what it was given, how far it is, and where it writes.

    `ahead` are dependencies of the next node that were started early; `given_up` are fields of the
    node that is being filled whose source failed, so that their default stands.
    """

    __slots__ = (
        "ahead",
        "answer",
        "by_name",
        "dep_cache",
        "flow",
        "given_up",
        "indexed",
        "keeper",
        "lm",
        "log",
        "max_iters",
        "outer",
        "path",
        "prefetch",
        "run_id",
        "step",
        "trace",
    )

    def __init__(
        self,
        lm: LM | str | None = None,
        max_iters: int = 10,
        prefetch: bool = True,
        answer: Answer | None = None,
        dep_cache: dict[Any, Any] | None = None,
        *,
        log: Log | None = None,
        flow: Dataflow | None = None,
        trace: list[Node] | None = None,
        path: str = "",
        outer: Run | None = None,
        run_id: str | None = None,
    ) -> None:
        self.lm: LM | None = cast("LM | None", lm)  # a name is made an LM before the first step
        self.max_iters = max_iters
        self.prefetch = prefetch
        self.answer = answer
        self.dep_cache = dep_cache
        self.log: Log = [] if log is None else log
        self.flow = flow
        self.trace: list[Node] = [] if trace is None else trace
        self.path = path
        self.outer = outer
        self.keeper: Keeper | None = None if outer is None else outer.keeper
        if run_id is None:
            run_id = urandom(12).hex() if outer is None else outer.run_id
        self.run_id = run_id
        self.step = 0
        self.ahead: list[Flight] | None = None
        self.given_up = NONE
        self.indexed: dict[type[Node], list[int]] | None = None
        self.by_name: dict[str, LM] | None = None
        if outer is None and (observers := in_force()):
            self.log = observed(self.log, self.trace, self.run_id, observers)

    def inside(self, path: str) -> Run:
        """The run of a graph inside this one: a trace of its own, everything else shared."""
        return Run(
            self.lm,
            self.max_iters,
            self.prefetch,
            self.answer,
            log=self.log,
            flow=self.flow,
            path=path,
            outer=self,
        )

    def lm_for(self, plan: NodePlan) -> LM | None:
        """The LM that is pinned to a node class, asked as the run's would have it, or else the
        run's. The same one for the same LM: whether two nodes share one is seen by that."""
        if plan.lm is None:
            return self.lm
        own = self.named(plan.lm) if isinstance(plan.lm, str) else plan.lm
        if isinstance(self.lm, RoutingLM):
            own = self.lm.pinned(own)
        return with_limit(own)

    def named(self, name: str) -> LM:
        """The LM of a name, the same one for the whole run."""
        run = self
        while run.outer is not None:
            run = run.outer
        if run.by_name is None:
            run.by_name = {}
        if name not in run.by_name:
            from bae.lm.registry import cached_lm

            run.by_name[name] = cached_lm(name)
        return run.by_name[name]

    def watch(self, asker: Asker, event: Event, step: int | None = None) -> None:
        """Write down what an LM tells of a call while it lasts; `step` is of one that was started
        early."""
        place = time(), self.path, self.step if step is None else step, asker
        match event:
            case str():
                self.log.append(TextArrived(*place, event))
            case Attempt():
                self.emit(AnswerJudged(*place, event))
            case Restart():
                self.emit(AnswerRestarted(*place, event.error, event.wait))

    def emit(self, record: Record) -> None:
        """Write a record down."""
        if self.keeper is None:
            self.log.append(record)
        else:
            self.keeper.note(self, record)

    async def keep(self, *records: Record) -> None:
        """Write down what has been done; where the run has a journal, wait until it is there."""
        if self.keeper is None:
            self.log.extend(records)
        else:
            await self.keeper.keep(self, *records)

    @property
    def journal(self) -> RunJournal:
        """What has been written so far, by the whole run this is part of."""
        run = self
        while run.outer is not None:
            run = run.outer
        return RunJournal(run.log, run.trace)

    def places(self) -> dict[type[Node], list[int]]:
        """Where in the trace the nodes of each class stand; brought up to date when asked."""
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
