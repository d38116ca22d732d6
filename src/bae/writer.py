"""`Writer`: a run writes its records through it. This writer keeps them in memory; the writer of a
journal stores them too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from time import time
from typing import TYPE_CHECKING, Any

from bae.records import Record, RunEnded, RunStarted, StepStarted

if TYPE_CHECKING:
    from bae.approvals import Grant
    from bae.arguments import Arguments
    from bae.exceptions import BaeError
    from bae.files import Attached
    from bae.given_lm import AskedLM
    from bae.graph import Graph
    from bae.markers import OpenGate
    from bae.node import Node
    from bae.plan import NodePlan
    from bae.records import Asker, RoundReplied, SourceEnded
    from bae.rooms import Journal
    from bae.run import Run

Log = list[Record]
"""The list in memory to which a run appends its records."""
StartStep = Callable[[float], Awaitable[None] | None]
"""Called with the time when a node is complete and in the trace. Its result is awaited."""


class Writer:
    """Keeps the records of a run in memory: the writer of a run without a journal. The graphs
    inside the run share the writer."""

    __slots__ = ("log", "unstorable")

    unstorable: Callable[[Node], Mapping[str, str]] | None
    """Finds fields that an LM has filled with values that cannot be stored, and the reasons."""
    stores = False
    """Whether the values of sources are stored."""

    def __init__(self, log: Log | None = None) -> None:
        self.log: Log = [] if log is None else log
        self.unstorable = None

    @property
    def token(self) -> int:
        """The fencing token of the run in this process; 0 without a journal."""
        return 0

    @property
    def journal(self) -> Journal | None:
        """The journal that the run is written to."""
        return None

    async def begin(self, run: Run, graph: Graph[Any, Any], start: Node) -> None:
        """Record that a run, or a graph inside it, begins at `start`."""
        self.log.append(
            RunStarted(time(), run.path, 0, run.run_id, graph.name, start, run.max_iters)
        )

    def step_starter(self, run: Run, plans: Mapping[type[Node], NodePlan]) -> StartStep | None:
        """The function that records each step of a run. None if the log gets only the time."""
        log, trace, path = self.log, run.trace, run.path
        if type(log) is list and not path:
            # A step of a trivial body takes 2.0 µs, and making its record 0.38 µs of that. So
            # the list gets the time, and `RunJournal` makes the record when it is read.
            return None

        def start_step(now: float) -> None:
            log.append(StepStarted(now, path, run.step, trace[-1]))

        return start_step

    def write(self, record: Record) -> None:
        """Record something. A journal stores it together with the next record that is awaited."""
        self.log.append(record)

    def keep_files(self, files: Iterable[Attached]) -> None:
        """Have a journal store files beside the lines that refer to them."""

    async def store(self, *records: Record) -> None:
        """Record finished work, and wait until a journal has stored it."""
        self.log.extend(records)

    async def store_value(self, ended: SourceEnded, asked: Arguments | None) -> None:
        """Record the value of a source, and wait until a journal has stored it. `asked` are the
        arguments of the function that come from the run."""
        self.log.append(ended)

    def write_shared(self, ended: SourceEnded, is_given: bool) -> None:
        """Store a value that existed before a field asked for it: the caller gave it, or it was
        computed where nothing is stored."""

    async def store_returned(self, run: Run, node: Node) -> None:
        """Store the node that a body has returned, before its fields are resolved."""

    async def ask(self, asked: AskedLM) -> None:
        """Called before a body or a dependency asks an LM."""
        await self.confirm()

    async def store_answer(self, asked: AskedLM, value: Any) -> None:
        """Store the answer of an LM to a body or a dependency."""

    def write_failure(self, asked: AskedLM, error: BaeError) -> None:
        """Record that a question of a body failed, for a replay."""

    async def settle_answer(self, run: Run, gate: OpenGate, value: Any) -> Any:
        """Store the answer to a gate. Returns the answer that counts: the first."""
        return value

    async def answers(self, run: Run) -> Mapping[str, str]:
        """The answers of people so far, as JSON, by the address of the gate."""
        return {}

    async def grants(self, run: Run) -> Sequence[Grant]:
        """The approvals that hold for all calls of a tool in the run."""
        return ()

    async def take_told(self, run: Run, record: Callable[[str], RoundReplied]) -> Sequence[str]:
        """The messages of people to the LMs of the run since the last call. The records of the
        messages are stored before it returns."""
        return ()

    async def confirm(self) -> None:
        """Raise an error if another process has taken over the run."""

    def outside(self, path: str, step: int, asker: Asker) -> Writer:
        """The writer for a class outside the graph that the asker has an LM fill."""
        return self

    def explain(self, failure: BaseException | None) -> BaseException | None:
        """The error that a run failed with, once it has ended."""
        return failure

    async def finish(self, run: Run, ended: RunEnded) -> None:
        """Record how a run, or a graph inside it, ended."""
        self.log.append(ended)

    async def hand_over(self, run: Run, error: BaseException | None = None) -> None:
        """Give up a run in progress, so that another process can continue it, or this process after
        an error."""


writer_in_use: ContextVar[Writer | None] = ContextVar("bae_writer", default=None)
"""The writer of the run with a journal that this code runs in, or of a run inside of such a run."""


def fencing_token() -> int:
    """A number that grows each time a process takes over the run. A service that stores the
    greatest number it has seen can refuse a process that was paused while another process took over
    its run.

    Call it inside a body, a dependency or a tool. Outside a run, and in a run without a journal, it
    is 0: no other process can take over such a run. The journal itself refuses writes of a process
    that has lost its run; the token is for effects outside the journal.
    """
    writer = writer_in_use.get()
    return 0 if writer is None else writer.token
