"""A run's side of its journal: it numbers the records, hands them to the store, and knows what was
recorded before. The runner and the dataflow ask it before they do anything, and wait for it before
anybody uses what was done. Runs without a journal have none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from threading import Lock
from time import time
from typing import TYPE_CHECKING, Any, TypeVar

from bae.exceptions import JournalError
from bae.journal.lines import FOLLOWS
from bae.journal.node_codec import node_codec
from bae.journal.running.recording import Place as Spot
from bae.journal.running.recording import Recording, shared_at
from bae.journal.store import Claim, Journal, Line, ParkedGate
from bae.markers import Map
from bae.records import (
    Asker,
    LMAnswered,
    Record,
    Returned,
    RunEnded,
    RunStarted,
    StepStarted,
    TextArrived,
)
from bae.run import NOTHING

if TYPE_CHECKING:
    from bae.dataflow import Place
    from bae.graph import Graph
    from bae.journal.lines import Encoder
    from bae.language_model import LM
    from bae.lm.backend import Prompt
    from bae.markers import OpenGate
    from bae.node import Node
    from bae.plan import FieldPlan, NodePlan
    from bae.run import Run

T = TypeVar("T")


class Keeper:
    """What the run of a journal, and the graphs inside it, write through and look back with."""

    def __init__(
        self,
        journal: Journal,
        encoder: Encoder,
        past: Recording | None = None,
        claim: Claim | None = None,
        lines: int = 0,
        begun: Callable[[], None] | None = None,
    ) -> None:
        self.journal = journal
        self.begins = past is None
        """Whether nothing was recorded before: then nobody needs to look."""
        self.past = Recording() if past is None else past
        self._encoder = encoder
        self._claim = claim
        self._begun = begun
        self._n = lines
        self._broken: JournalError | None = None
        self._asking: dict[tuple[str, int, Asker], tuple[str, int, Asker]] = {}
        """Under which place the answers are recorded to a dependency that asks from another."""
        self._inside: set[str] = set()
        """The graphs inside that have begun, or gone on, in this process: one that does so again
        is begun anew, and not where it was."""
        self._anew: set[str] = set()
        """The maps whose items are made anew, by path."""
        # An LM may tell of an answer from a thread of its own.
        self._order = Lock()

    @property
    def has_claim(self) -> bool:
        """Whether the run is still this one's to write."""
        return self._claim is not None

    async def begin(self, run: Run, graph: Graph[Any, Any], start: Node) -> None:
        """Store a run that begins; one that is resumed is stored already."""
        started = RunStarted(time(), run.path, 0, run.run_id, graph.name, start, run.max_iters)
        if run.path:
            if run.path in self._inside or self._is_other_item(run.path, start):
                self.past.forget(run.path)
            self._inside.add(run.path)
            if run.path not in self.past.started:
                self.past.started[run.path] = start
                self.note(run, started)
            return
        if self._claim is not None:
            return
        from bae.journal.shape import shape_of

        run.log.append(started)
        shape = shape_of(graph)
        line = Line(0, "RunStarted", started.at, "", 0, self._encoder.encode(started))
        self._n = 1
        create = self.journal.create(run.run_id, graph.name, shape.json, shape.hash, [line])
        await to_the_end(create, self._take)
        if self._begun is not None:
            self._begun()

    def first(self, path: str, start: Node) -> Node:
        """The first node of a run: as far as it got before, or as it was given."""
        recorded = self.past.nodes.get((path, 0))
        if recorded is None or not start.__dict__.keys() <= recorded.__dict__.keys():
            return start  # a secret that the journal has not is in what the run around it gives
        return recorded

    def step(
        self, run: Run, step: int, node: Node, plan: NodePlan, fresh: bool
    ) -> Awaitable[None] | None:
        """Say that a node is whole. Where it is `fresh`, what a body has just returned, this is
        what keeps it; elsewhere it keeps what nothing but a default has made. What is returned is
        to be awaited, and `broke` to be told of what that raises.

        A chain of steps spends its time here, so this does without a coroutine of its own, and
        without a record where the log needs none.
        """
        path, now = run.path, time()
        made: tuple[str, ...] = ()
        if not self.begins and (path, step) in self.past.nodes:
            return None
        if plan.factories and not fresh:
            made = tuple(sorted(plan.factories - node.__pydantic_fields_set__))
        if made or path or not self.begins:
            started = StepStarted(now, path, step, node, made)
            run.log.append(started)
            if made:
                return self._kept(started, plan)
        else:
            run.log.append(now)
        if self._broken is not None and fresh:
            raise self._broken
        if self._claim is None or self._broken is not None:
            return None
        data = self._encoder.step(node) if fresh else FOLLOWS
        with self._order:
            line = Line(self._n, "StepStarted", now, path, step, data)
            self._n += 1
            if fresh and (plan.written or plan.successors):
                return self.journal.append(self._claim, (line,))
            # It follows from what is stored, or is the last one: nothing happens before the end.
            self.journal.note(self._claim, line)
        return None

    def _kept(self, started: StepStarted, plan: NodePlan) -> Awaitable[None] | None:
        if plan.written or plan.successors:
            return self._append([started])
        self._put(started, self._encoder.encode(started))
        return None

    def broke(self, error: Exception) -> JournalError:
        """Be told that a line could not be stored: there can be none after it."""
        run_id = "" if self._claim is None else self._claim.run_id
        self._broken = _unforeseen(error, run_id)
        return self._broken

    def after(self, run: Run, step: int, plan: NodePlan) -> Any:
        """What followed the node before `step` the last time, or `NOTHING`."""
        return self.past.after(run.path, step)

    def is_left_to_step(self, run: Run, step: int, node: Node, plan: NodePlan) -> bool:
        """Whether what a body has returned is kept by `step`, as it is where the node is whole."""
        whole = not plan.sourced or all(f.name in node.__dict__ for f in plan.sourced)
        return whole and step != run.max_iters

    async def returned(self, run: Run, step: int, node: Node) -> None:
        """Keep what a body has returned, where that is not left to `step`."""
        await self.keep(run, Returned(time(), run.path, step, node))

    def chosen(self, run: Run, plan: NodePlan) -> type[Node] | type[None] | None:
        """Where the LM chose to go on the last time; None where it is not recorded."""
        return self.past.chosen.get((run.path, run.step))

    def replayed(
        self, run: Run, plan: NodePlan, resolved: Mapping[str, Any], source: Node
    ) -> Node | None:
        """What the LM filled with the same context, in a run that is replayed; None elsewhere."""
        return None

    def filled(self, run: Run, plan: NodePlan) -> Node | None:
        """What the LM filled the last time; None where it is not recorded."""
        node = self.past.filled.get((run.path, run.step))
        if node is not None:
            spot = run.path, run.step, plan.node
            run.given_up = frozenset(
                field.name
                for field in plan.context
                if field.name not in node.__dict__ and self._stood((*spot, field.name, ""), field)
            )
        return node

    def source(self, place: Place) -> Any:
        """The value that a source came to the last time, or `NOTHING`."""
        spot = place.run.path, place.step, place.node_type, place.field, place.route
        known = self.past.sources.get(spot, NOTHING)
        if known is NOTHING and place.route and self.past.inputs:
            shared = shared_at(spot)
            return NOTHING if shared is None else self.past.inputs.get(shared, NOTHING)
        return known

    def done(self, place: Place) -> Any:
        """The same for one whose inputs are not needed then."""
        return self.source(place)

    def graph_path(self, key: Hashable, path: str) -> str:
        """Where a graph runs that is run once for the whole run: at the path where it began, which
        may have been for somebody else than who asks for it first now."""
        return self.past.graphs.get(key, path)

    def items(self, place: Place) -> dict[int, Any]:
        """What the items of a map came to the last time, those that are done. None where the items
        themselves are made anew: they may be others."""
        over = place.node_type.__pydantic_fields__[place.field].metadata
        mapped = next(marker.over for marker in over if isinstance(marker, Map))
        if self.past.is_anew((place.run.path, place.step, place.node_type, mapped, "")):
            self._anew.add(place.path)
            return {}
        spot = place.run.path, place.step, place.node_type, place.field, place.route
        return self.past.items.get(spot, {})

    def left_out(
        self, run: Run, plan: NodePlan, absent: Sequence[FieldPlan]
    ) -> Sequence[FieldPlan]:
        """The fields that the node which is made whole does without. It was whole before: their
        defaults stood, or the run has left it, and it had them not when it was there."""
        spot = run.path, len(run.trace)
        if spot not in self.past.nodes:
            return ()
        return [
            field
            for field in absent
            if self._stood(place := (*spot, plan.node, field.name, ""), field)
            or (self.past.new_fields and self.past.has_none(place))
        ]

    def without(self, node: Node, values: Mapping[str, Any]) -> Node:
        """A node that the run has left, with the values that it had and not with more."""
        return node_codec(type(node)).joined(node, values, False)

    def defaults(self, run: Run, plan: NodePlan) -> Mapping[str, Any]:
        """The defaults that stood in the node that is made whole, in a run that is replayed."""
        return {}

    def answered(self, gate: OpenGate, plan: NodePlan) -> Any:
        """What a person has answered meanwhile, or `NOTHING`."""
        answer = self.past.answers.get(gate.address)
        if answer is None:
            return NOTHING
        return node_codec(plan.node).read_answer(gate.field_name, answer)

    async def settle(self, run: Run, gate: OpenGate, plan: NodePlan, value: Any) -> Any:
        """Have `value` be the answer at a gate, or answer what somebody else has said before."""
        if not self.journal.secrets and gate.field_name in node_codec(plan.node).secret:
            return value  # nobody else can have answered: it would have to be stored
        answer = node_codec(plan.node).dump_answer(gate.field_name, value)
        if await self.journal.answer(run.run_id, gate.address, answer):
            return value
        said = (await self.journal.read(run.run_id)).answers[gate.address]
        return node_codec(plan.node).read_answer(gate.field_name, said)

    def opened(self, gate: OpenGate) -> float | None:
        """When a gate was reached first; None where it is reached now."""
        return self.past.opened.get(gate.address)

    def asked(
        self,
        run: Run,
        step: int,
        asker: Asker,
        method: str,
        asked: str,
        target: str,
        prompt: Prompt,
    ) -> LMAnswered | None:
        """What an LM has answered to the same question from the same place before, each answer
        once; None where it has not."""
        spot = run.path, step, asker
        answers = self.past.asked.get(self._asking.get(spot, spot), [])
        for index, answer in enumerate(answers):
            if (answer.method, answer.asked, answer.target) == (method, asked, target):
                return answers.pop(index)
        return None

    def lm(
        self,
        run: Run,
        step: int,
        asker: Asker,
        lm: Callable[[], LM | None],
        key: Hashable = None,
    ) -> LM | None:
        """The LM as a body or a dependency gets it: one whose answers are kept. What is called once
        for the whole run has a `key`: it may have asked for somebody else."""
        from bae.journal.running.asked import Asked

        if key is not None and key in self.past.asking:
            self._asking[run.path, step, asker] = self.past.asking[key]
        return None if lm() is None else Asked(self, run, step, asker, lm)

    def forget(self, path: str) -> None:
        """A graph inside the run is begun anew."""
        self.past.forget(path)

    def note(self, run: Run, record: Record) -> None:
        """Write a record down, to be stored with the next one that is waited for."""
        run.log.append(record)
        if not isinstance(record, TextArrived):
            self._put(record, self._encoder.encode(record))

    async def keep(self, run: Run, *records: Record) -> None:
        """Write records down, and wait until they are stored."""
        run.log.extend(records)
        await self._append(records)

    async def over(self, run: Run, ended: RunEnded) -> None:
        """Store how the run came out and let go of it. A cancellation meanwhile waits for that."""
        run.log.append(ended)
        if run.path or self._claim is None:
            self._put(ended, self._encoder.encode(ended))
            return
        waiting = [
            ParkedGate(gate.address, gate.place, gate.question, gate.deadline)
            for gate in ended.gates
        ]
        said = self._encoder.error_line(ended.error) if ended.error is not None else ""
        claim, self._claim = self._claim, None
        # After lines that could not be stored there would be a gap.
        with self._order:
            lines = [] if self._broken is not None else self._numbered([ended])
        await to_the_end(self.journal.release(claim, ended.outcome, lines, waiting, said))

    def _is_other_item(self, path: str, start: Node) -> bool:
        """Whether what is recorded at a path is of an item of a map that was another: where the
        items are made anew, their numbers do not tell."""
        recorded = self.past.started.get(path)
        if recorded is None or not path.endswith("]") or path.rpartition("[")[0] not in self._anew:
            return False
        held, given = recorded.__dict__, start.__pydantic_fields_set__ & start.__dict__.keys()
        return not all(name in held and held[name] == start.__dict__[name] for name in given)

    def _stood(self, place: Spot, field: FieldPlan) -> bool:
        """Whether the default of a field stood that a recorded node does not have: its value is not
        made anew, and it has been there to have one."""
        named = f"{place[2].__name__}.{field.name}"
        is_new = named in self.past.new_fields
        return not field.required and not is_new and not self.past.is_anew(place)

    def _take(self, claim: Claim) -> None:
        self._claim = claim

    def _numbered(self, records: Sequence[Record]) -> list[Line]:
        lines: list[Line] = []
        for record in records:
            data = self._encoder.encode(record)
            kind = type(record).__name__
            lines.append(Line(self._n, kind, record.at, record.path, record.step, data))
            self._n += 1
        return lines

    def _put(self, record: Record, data: str) -> None:
        kind = type(record).__name__
        with self._order:
            if self._claim is None or self._broken is not None:
                return
            line = Line(self._n, kind, record.at, record.path, record.step, data)
            self._n += 1
            self.journal.note(self._claim, line)

    async def _append(self, records: Sequence[Record]) -> None:
        if self._broken is not None:
            raise self._broken
        if self._claim is None:
            return
        with self._order:
            before = self._n
            try:
                lines = self._numbered(records)
            except BaseException:
                self._n = before  # nothing of it is stored
                raise
            try:
                stored = self.journal.append(self._claim, lines)
            except Exception as error:
                self._broken = _unforeseen(error, self._claim.run_id)
                raise self._broken from error
        try:
            await stored
        except JournalError as error:
            self._broken = error
            raise
        except Exception as error:  # of a store that is somebody's own
            raise self.broke(error) from error


def _unforeseen(error: Exception, run_id: str) -> JournalError:
    if isinstance(error, JournalError):
        return error
    return JournalError(
        f"the journal raised {type(error).__name__} instead of storing a line",
        run_id=run_id,
        cause=error,
        fix="see the cause; resume the run once it is mended",
    )


async def to_the_end(work: Awaitable[T], then: Callable[[T], None] | None = None) -> T:
    """Wait for something however often this is cancelled meanwhile, and be cancelled only when it
    is done and `then` has been told what it came to."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while True:
        try:
            await asyncio.shield(task)
            break
        except asyncio.CancelledError as error:
            if task.done():
                if task.cancelled():
                    raise
                cancelled = error
                break
            cancelled = error
        except BaseException:
            break  # of the work: raised below, where nobody has cancelled
    if cancelled is None or task.exception() is None:
        value = task.result()
        if then is not None:
            then(value)
        if cancelled is None:
            return value
    raise cancelled
