"""`Writer`: writes the records of a run. This writer keeps the records in memory. The writer of a
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
"""A function that records a step. The run calls it with the current time when the node is complete
and in the trace, and awaits a result that is not None."""


class Writer:
    """The writer of a run without a journal, which keeps the records in memory. The graphs inside a
    run share the writer of the run."""

    __slots__ = ("log", "unstorable")

    unstorable: Callable[[Node], Mapping[str, str]] | None
    """A function that returns the fields of a node whose values cannot be stored, each with the
    reason. It checks nodes that an LLM has filled."""
    stores = False
    """Whether this writer stores the values of sources."""

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
        """Record that a run, or a graph inside a run, begins at the node `start`."""
        self.log.append(
            RunStarted(time(), run.path, 0, run.run_id, graph.name, start, run.max_iters)
        )

    def step_starter(self, run: Run, plans: Mapping[type[Node], NodePlan]) -> StartStep | None:
        """Return the function that records each step of a run. With None, the run itself appends
        the time of each step to the log."""
        log, trace, path = self.log, run.trace, run.path
        if type(log) is list and not path:
            # A step of a trivial body takes 2.0 µs, and 0.38 µs of this is for the record. So only
            # the time is logged, and `RunJournal` makes the record when the log is read.
            return None

        def start_step(now: float) -> None:
            log.append(StepStarted(now, path, run.step, trace[-1]))

        return start_step

    def write(self, record: Record) -> None:
        """Write a record without waiting. A journal stores it together with the next record that
        the run waits for."""
        self.log.append(record)

    def keep_files(self, files: Iterable[Attached]) -> None:
        """Store files in the journal, beside the records that refer to them. Without a journal, do
        nothing."""

    async def store(self, *records: Record) -> None:
        """Write records of finished work, and wait until a journal has stored them."""
        self.log.extend(records)

    async def store_value(self, ended: SourceEnded, asked: Arguments | None) -> None:
        """Write the value of a source, and wait until a journal has stored it. `asked` are the
        arguments of the function that come from the run."""
        self.log.append(ended)

    def write_shared_value(self, ended: SourceEnded, is_given: bool) -> None:
        """Record in a journal that a field uses an existing value. With `is_given`, the caller
        passed the value. Otherwise the value was computed for a class outside the graph."""

    async def store_returned_node(self, run: Run, node: Node) -> None:
        """Store in a journal the node that a body has returned, before the sources of the node's
        fields are resolved."""

    async def ask(self, asked: AskedLM) -> None:
        """Prepare a question of a body or a dependency, before an LM is asked."""
        await self.confirm()

    async def store_answer(self, asked: AskedLM, value: Any) -> None:
        """Store an LM's answer to a body or a dependency in a journal."""

    def write_failure(self, asked: AskedLM, error: BaeError) -> None:
        """Record in a journal that a body's question failed, because a replay needs the error."""

    async def settle_answer(self, run: Run, gate: OpenGate, value: Any) -> Any:
        """Store an answer to a gate in a journal. Return the answer that was stored first, which
        may be from another process."""
        return value

    async def answers(self, run: Run) -> Mapping[str, str]:
        """Return the answers of people so far, as JSON, by the address of the gate."""
        return {}

    async def grants(self, run: Run) -> Sequence[Grant]:
        """Return the approvals that hold for all calls of a tool in the run."""
        return ()

    async def take_messages(self, run: Run, record: Callable[[str], RoundReplied]) -> Sequence[str]:
        """Return the messages that people have sent to the LLMs of the run since the last call.
        `record` makes the record of a message. The records are stored before the method returns."""
        return ()

    async def confirm(self) -> None:
        """Raise an error if another process has taken over the run."""

    def outside(self, path: str, step: int, asker: Asker) -> Writer:
        """Return the writer for the values of a class outside the graph, which the asker has an LLM
        fill."""
        return self

    def explain(self, failure: BaseException | None) -> BaseException | None:
        """Return the error that a run ends with. With a journal, it is `RunCancelled` if a request
        has cancelled the run."""
        return failure

    async def finish(self, run: Run, ended: RunEnded) -> None:
        """Record how a run, or a graph inside a run, ended."""
        self.log.append(ended)

    async def hand_over(self, run: Run, error: BaseException | None = None) -> None:
        """Release a run in progress without an end, so that another process can continue it. With
        `error`, this process tries the run again."""


writer_in_use: ContextVar[Writer | None] = ContextVar("bae_writer", default=None)
"""The writer of the current run, if the run has a journal or was started inside a run with a
journal."""


def fencing_token() -> int:
    """Return a number that grows each time a process takes over the run. Pass the number to a
    service that stores the greatest number so far and refuses smaller numbers. If a process is
    paused while another process takes over its run, the service then refuses the paused process.

    Call this function inside a body, a dependency or a tool. Outside a run, and in a run without a
    journal, it returns 0, because no other process can take over. The journal needs no token: it
    refuses writes of a process that has lost its run.
    """
    writer = writer_in_use.get()
    return 0 if writer is None else writer.token
