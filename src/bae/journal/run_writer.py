"""`JournalWriter`: the writer of a run with a journal. It numbers the records and passes them to
the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from threading import Lock
from time import time
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakKeyDictionary

from bae.exceptions import JournalError
from bae.files import Attached, File, collect_files, in_use, visible
from bae.graph_plan import plan_of_graph
from bae.journal.cancellation import CancelWatch
from bae.journal.lines import FOLLOWS, Encoder, line_of
from bae.journal.node_codec import dump_gate_answer, node_codec, read_gate_answer, unstorable_fields
from bae.journal.outside_nodes import OutsideWriter
from bae.journal.run_checks import check_names
from bae.journal.shape import Shape, shape_of
from bae.journal.storability import STORABLE, prove_storable
from bae.journal.store import Journal, keeps_files, store_answer, without_files
from bae.journal.stored_runs import (
    Claim,
    Line,
    ParkedGate,
    RunInfo,
    RunSummary,
    StoredRun,
    messages_in,
)
from bae.records import (
    ClassMet,
    LMFailed,
    Record,
    Returned,
    RunEnded,
    RunStarted,
    StepStarted,
    TurnStarted,
)
from bae.result import COUNTED, UsageCount
from bae.tasks import finish_despite_cancel
from bae.usage import Usage
from bae.writer import Log, Writer

if TYPE_CHECKING:
    from bae.approvals import Grant
    from bae.arguments import Arguments
    from bae.exceptions import BaeError
    from bae.given_lm import AskedLM
    from bae.graph import Graph
    from bae.markers import OpenGate
    from bae.node import Node
    from bae.plan import NodePlan
    from bae.records import Asker, RoundReplied, SourceEnded
    from bae.run import Run
    from bae.writer import StartStep


class JournalWriter(Writer):
    """Writes a run, and the graphs inside it, to a journal."""

    stores = True

    _graph: Graph[Any, Any]
    _encoder: Encoder
    """Set when the run begins, because a graph that cannot run has no encoder."""

    def __init__(self, journal: Journal, log: Log | None = None) -> None:
        self.log = [] if log is None else log
        self.unstorable = partial(unstorable_fields, secrets=journal.secrets)
        self._journal = journal
        self._claim: Claim | None = None
        self._watch: CancelWatch | None = None
        self._n = 0
        self._token = 0
        self.message_count = 0
        """The number of messages of people in the records."""
        self._message_lock = asyncio.Lock()
        self._broken: JournalError | None = None
        self._files: set[str] = set()
        """The hashes of the files of the run that the store has."""
        # Keeps lines in order: an LM may report an answer from a thread of its own.
        self._order = Lock()

    @property
    def journal(self) -> Journal:
        """The journal to which the run is written."""
        return self._journal

    @property
    def token(self) -> int:
        """The fencing token, which grows with every claim on the run."""
        return self._token

    @property
    def lines(self) -> int:
        """How many lines the run has."""
        return self._n

    @property
    def has_claim(self) -> bool:
        """Whether this writer may still write the run."""
        return self._claim is not None

    def continue_run(self, graph: Graph[Any, Any], claim: Claim, stored: StoredRun) -> None:
        """Continue a run that this process has claimed, after its stored lines."""
        self._graph, self._encoder = graph, encoder_for(graph, self._journal)
        self._claim, self._n = claim, len(stored.lines)
        # Each process that claims the run stores a line before any work. So a later claim has more
        # lines before it, and a greater token.
        self._token = claim.token = self._n + 1
        self._files.update(stored.files)

    async def begin(self, run: Run, graph: Graph[Any, Any], start: Node) -> None:
        """Record that a run, or a graph inside it, begins. A new run is claimed, and stored before
        this method returns."""
        started = RunStarted(time(), run.path, 0, run.run_id, graph.name, start, run.max_iters)
        if run.path:
            self.write(started)
            return
        if graph not in STORABLE:
            check_names(run.run_id, graph.name)
            prove_storable(graph)
        self._graph, (self._encoder, shape) = graph, form_of(graph, self._journal)
        self.log.append(started)
        with collect_files() as collected_files:
            data, now = self._encoder.encode(started), started.at
        files = _bytes_of(collected_files.values())
        if files and not keeps_files(self._journal):
            raise without_files(self._journal)
        self._files.update(files)
        turn, metadata = run.options.turn, dict(run.options.metadata)

        async def create(now: float) -> None:
            line = Line(0, RunStarted.__name__, now, run.path, 0, data)
            thread = None if turn is None else turn.thread
            info = RunInfo(run.run_id, graph.name, "running", now, now, shape.hash)
            if turn is not None or metadata:
                info = replace(info, thread=thread, metadata=metadata)
            creating = self._journal.create(StoredRun(info, shape.json, (line,), {}, files))
            await finish_despite_cancel(creating, self._take_claim)

        self._n = 1
        if turn is None:
            await create(now)
        else:
            from bae.journal.thread_queue import wait_for_turn

            options = run.options._replace(lm=run.lm)
            await wait_for_turn(graph, self._journal, turn, options, create)
        self._journal.ring(run.run_id)
        self.watch(run.run_id)
        await self.confirm()
        run.restore_limits(Usage(), 0.0)
        if turn is not None:
            await self.begin_turn(run, graph, turn.thread)

    async def begin_turn(self, run: Run, graph: Graph[Any, Any], thread: str) -> None:
        """Find the turn before this run in its thread, and record the id of that turn."""
        from bae.journal.earlier_turns import begin_turn

        previous, number, run.turns = await begin_turn(self._journal, graph, thread, run.run_id)
        self.write(TurnStarted(time(), run.path, 0, previous, number))

    def watch(self, run_id: str, requests: int = 0) -> None:
        """Watch for a new request to cancel the run. `requests` is the number of earlier
        requests."""
        self._watch = CancelWatch(self._journal, run_id, requests)

    async def stop_watching(self) -> None:
        """Stop watching for requests to cancel the run."""
        if self._watch is not None:
            await self._watch.stop()

    def explain(self, failure: BaseException | None) -> BaseException | None:
        """Return the error with which the run failed. If a request cancelled the run, that is the
        error for the request."""
        return failure if self._watch is None else self._watch.explain(failure)

    def step_starter(self, run: Run, plans: Mapping[type[Node], NodePlan]) -> StartStep:
        """Return the function that stores each step of a run."""

        def start_step(now: float) -> Awaitable[None] | None:
            node = run.trace[-1]
            return self._start_step(run, node, plans[type(node)], now)

        return start_step

    def _start_step(
        self, run: Run, node: Node, plan: NodePlan, now: float
    ) -> Awaitable[None] | None:
        """Store that a node is complete. If a body has just returned the node, store the node.
        Otherwise store only the values of its default factories, because earlier lines have its
        other values."""
        is_returned = run.returned is node
        run.returned = None
        default_names: tuple[str, ...] = ()
        if plan.factories and not is_returned:
            default_names = tuple(sorted(plan.factories - node.__pydantic_fields_set__))
        started = StepStarted(now, run.path, run.step, node, default_names)
        self.log.append(started)
        follows = not is_returned and not default_names
        if self._broken is not None and not follows:
            raise self._broken
        if self._claim is None or self._broken is not None:
            return None
        data = FOLLOWS
        if not follows:
            encoder = self._encoder
            if is_returned:
                data = self._encode(encoder.step, node)
            else:
                data = self._encode(encoder.encode, started)
            # Wait only if a body or another node follows. Otherwise the end is stored next.
            if plan.written or plan.successors:
                return self.store_unlogged(started, data=data)
        with self._order:
            line = Line(self._n, StepStarted.__name__, now, run.path, run.step, data)
            self._n += 1
            self._journal.note(self._claim, line)
        self._journal.ring(self._claim.run_id)
        return None

    def write(self, record: Record) -> None:
        """Add a record to the log. The journal stores it with the next awaited record."""
        self.log.append(record)
        self.note_unlogged(record)

    def note_unlogged(self, record: Record) -> None:
        """Store a record with the next awaited record, without adding it to the log."""
        claim = self._claim
        if isinstance(record, ClassMet):
            self._encoder = self._encoder.hiding(record.node_type)
        if claim is None or not record.stored:
            return
        data = self._encode(self._encoder.encode, record)
        with self._order:
            if self._claim is claim and self._broken is None:
                line = line_of(self._n, record, data)
                self._n += 1
                self._journal.note(claim, line)
        self._journal.ring(claim.run_id)

    async def store(self, *records: Record) -> None:
        """Add records of finished work to the log, and wait until the records are stored."""
        self.log.extend(records)
        await self.store_unlogged(*records)

    async def store_unlogged(self, *records: Record, data: str | None = None) -> None:
        """Store records without adding them to the log, and wait until they are stored. `data` is
        the stored form of a single record, if the caller has encoded it. Without records, only
        check that this process still owns the run."""
        claim = self._claim
        if self._broken is not None:
            raise self._broken
        if claim is None:
            return
        encoded = [data] if data is not None else self._encode_all(records)
        try:
            with self._order:
                lines = [*map(line_of, count(self._n), records, encoded)]
                self._n += len(lines)
                stored = self._journal.append(claim, lines)
            await stored
            # The process may have been suspended since its lines were stored. Check before the run
            # continues: another process may have taken over, and done the next work already.
            while claim.is_in_doubt():
                await self._journal.append(claim, ())
        except Exception as error:
            self._refuse(error, claim)
        self._journal.ring(claim.run_id)

    async def store_value(self, ended: SourceEnded, asked: Arguments | None) -> None:
        """Record the value of a source, and wait until it is stored."""
        self.log.append(ended)
        await self.store_unlogged(ended)

    def write_shared_value(self, ended: SourceEnded, is_given: bool) -> None:
        """Record a value that existed before a field asked for it."""
        self.write(ended)

    async def store_returned_node(self, run: Run, node: Node) -> None:
        """Store the node that a body has returned, before its fields are resolved."""
        await self.store(Returned(time(), run.path, run.step, node))

    async def ask(self, asked: AskedLM) -> None:
        """Give a question its number before bae asks it, because answers to equal questions may
        arrive in any order."""
        asked.record()
        await self.confirm()

    async def store_answer(self, asked: AskedLM, value: Any) -> None:
        """Store the answer of an LM to a body or a dependency."""
        await self.store(asked.record(value))

    def write_failure(self, asked: AskedLM, error: BaeError) -> None:
        """Record that a question of a body failed."""
        if isinstance(error, JournalError):
            return
        asking = asked.record()
        at = time(), asking.path, asking.step, asking.asker
        self.write(LMFailed(*at, asking.method, asking.asked, asking.target, error, asking.number))

    async def settle_answer(self, run: Run, gate: OpenGate, value: Any) -> Any:
        """Store the answer to a gate, and return the answer that any process stored first."""
        is_field = not gate.parameter
        secret = node_codec(gate.node_type).secret if is_field else ()
        if not self._journal.secrets and gate.field_name in secret:
            return value  # no other process can store an answer that is a secret
        # After the deadline, `value` is the default of the field, and not stored as an answer.
        is_late = gate.deadline is not None and gate.deadline <= time()
        journal, (text, files) = self._journal, dump_gate_answer(gate, value)
        answer = run.run_id, gate.address, text
        if not is_late and await store_answer(journal, *answer, files=files):
            return value
        stored = await journal.read(run.run_id)
        first = stored.answers.get(gate.address)
        with visible(stored.files):
            return value if first is None else read_gate_answer(gate, first)

    async def answers(self, run: Run) -> Mapping[str, str]:
        """Return the answers of people so far, including answers that other processes stored."""
        return await self._journal.answers(run.run_id)

    async def grants(self, run: Run) -> Sequence[Grant]:
        """Return the approvals that hold for every call of a tool, in the run or in its thread.
        Revoked approvals are included."""
        return await self._journal.approvals(run.run_id)

    async def take_messages(self, run: Run, record: Callable[[str], RoundReplied]) -> Sequence[str]:
        """Return the messages that people sent to the LMs of the run since the last call."""
        async with self._message_lock:  # two calls at once would return the same messages
            messages = messages_in(await self._journal.answers(run.run_id))
            new = [text for number, text in messages if number > self.message_count]
            if new:
                await self.store(*map(record, new))
                self.message_count += len(new)
            return new

    async def finish(self, run: Run, ended: RunEnded) -> None:
        """Record how the run, or a graph inside it, ended. For the run, store the end and release
        the claim, even if the caller is cancelled meanwhile."""
        if run.path or self._claim is None:
            if not run.path:
                await self.stop_watching()
            self.write(ended)
            return
        if self._watch is not None:
            await self._watch.stop()
        self.log.append(ended)
        waiting = [
            ParkedGate(gate.address, gate.place, gate.question, gate.deadline)
            for gate in ended.gates
        ]
        error = self._encoder.error_line(ended.error) if ended.error is not None else ""
        summary = self._summary(run)
        data = self._encode(self._encoder.encode, ended)
        claim, self._claim = self._claim, None
        # If earlier lines could not be stored, a further line would leave a gap.
        with self._order:
            lines = [] if self._broken is not None else [line_of(self._n, ended, data)]
            self._n += len(lines)
        release = self._journal.release(claim, ended.outcome, lines, waiting, error, summary)
        await finish_despite_cancel(release, lambda _: self._journal.ring(claim.run_id))

    async def hand_over(self, run: Run, error: BaseException | None = None) -> None:
        """Release the claim without ending the run. The run is then interrupted, and can be resumed
        at once. If this process stopped because of an `error`, the entry of the run describes the
        error."""
        await self.stop_watching()
        claim, self._claim = self._claim, None
        if claim is not None:
            why = "" if error is None else self._encoder.error_line(error)
            summary = self._summary(run)
            release = self._journal.release(claim, "running", (), error=why, summary=summary)
            await finish_despite_cancel(release, lambda _: self._journal.ring(claim.run_id))

    def keep_files(self, files: Iterable[Attached]) -> None:
        """Store files with the lines that are written next. A file that the store has is left
        out."""
        claim, new = self._claim, _bytes_of(files, self._files)
        if new and claim is not None and self._broken is None:
            with self._order:
                self._journal.put_files(claim, new)
                self._files.update(new)

    def _encode(self, encode: Callable[[Any], str], written: Any) -> str:
        """Return the stored form of a record or a node, and store its files."""
        if not in_use():
            return encode(written)
        with collect_files() as files:
            data = encode(written)
        if files:
            self.keep_files(files.values())
        return data

    def _encode_all(self, records: Sequence[Record]) -> list[str]:
        encode = self._encoder.encode
        if not in_use():
            return [*map(encode, records)]
        return [self._encode(encode, record) for record in records]

    def _summary(self, run: Run) -> RunSummary:
        """Return the summary of the run for lists of runs."""
        nodes = run.trace
        last = type(nodes[-1]).__name__ if nodes else ""
        counted = [record for record in self.log if type(record) in COUNTED]
        if not counted:
            return RunSummary(len(nodes), last)
        usage_count = UsageCount()
        for record in counted:
            usage_count.take(record)
        used = usage_count.total()
        return RunSummary(len(nodes), last, used.calls, used.tokens, used.cost)

    def outside(self, path: str, step: int, asker: Asker) -> Writer:
        """Return the writer for a class outside the graph."""
        return OutsideWriter(self, self._graph, path, step, asker)

    async def confirm(self) -> None:
        """Raise an error if another process has taken over the run."""
        if self._claim is not None and self._claim.is_in_doubt():
            await self.store_unlogged()

    def _take_claim(self, claim: Claim | None) -> None:
        self._claim = claim
        if claim is not None:
            self._token = claim.token = 1

    def _refuse(self, error: Exception, claim: Claim) -> NoReturn:
        """Raise an error for a line that could not be stored. Later lines raise the same error."""
        if isinstance(error, JournalError):
            self._broken = error
            raise error
        self._broken = JournalError(  # a store of the user may raise any error
            f"the journal raised {type(error).__name__} instead of storing a line",
            run_id=claim.run_id,
            cause=error,
            fix="see the cause; resume the run once it is fixed",
        )
        raise self._broken from error


def _bytes_of(files: Iterable[Attached], known: Collection[str] = ()) -> dict[str, bytes]:
    """Return the bytes of files by hash, without the files whose hashes are in `known`."""
    return {f.hash: f.data for f in files if isinstance(f, File) and f.hash not in known}


def encoder_for(graph: Graph[Any, Any], journal: Journal) -> Encoder:
    """Return the encoder of a graph's records, with the settings of a journal."""
    settings = {"prompts": journal.prompts, "thinking": journal.thinking}
    return Encoder(graph, secrets=journal.secrets, **settings)


def form_of(graph: Graph[Any, Any], journal: Journal) -> tuple[Encoder, Shape]:
    """Return the encoder of a graph's records, and the graph's shape. Both are computed once for
    each setting of a journal."""
    key = journal.secrets, journal.prompts, journal.thinking
    form = _FORMS.setdefault(graph, {}).get(key)
    if form is None:
        form = encoder_for(graph, journal), shape_of(graph)
        if not any(plan.provisional for plan in plan_of_graph(graph).plans.values()):
            _FORMS[graph][key] = form
    return form


_Forms = dict[tuple[bool, bool, bool], tuple[Encoder, Shape]]
_FORMS: WeakKeyDictionary[Graph[Any, Any], _Forms] = WeakKeyDictionary()
