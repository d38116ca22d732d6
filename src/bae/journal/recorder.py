"""`JournalRecorder`: the recorder of a run with a journal. It numbers the records and gives them to
the store. `RecordingLM` is the LM that bodies and dependencies of such a run are given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from hashlib import sha256
from threading import Lock
from time import time
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from bae.exceptions import JournalError
from bae.journal.keepable import prove_storable
from bae.journal.lines import FOLLOWS, Encoder
from bae.journal.node_codec import node_codec
from bae.journal.shape import shape_of
from bae.journal.store import Claim, Journal, Line, ParkedGate
from bae.language_model import restore_limits
from bae.node import Node
from bae.plan import plan_of
from bae.recorder import Log, Recorder, StartStep
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
from bae.rooms import QuestionText, choice_question, fill_question
from bae.tasks import finish_despite_cancel
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.language_model import LM
    from bae.markers import OpenGate
    from bae.plan import NodePlan
    from bae.result import GraphResult
    from bae.run import Run

N = TypeVar("N", bound=Node)
T = TypeVar("T", bound=Node)
Method = Literal["make", "decide", "choose_type", "fill"]


class JournalRecorder(Recorder):
    """Records a run, and the graphs inside it, in a journal. This one is of a run that begins."""

    stores = True

    _encoder: Encoder
    """Made when the run begins: a graph that cannot run has none."""

    def __init__(
        self, journal: Journal, log: Log, claim: Claim | None = None, lines: int = 0
    ) -> None:
        super().__init__(log)
        self.journal = journal
        self._claim = claim
        self._n = lines
        self.given: Mapping[str, Any] | None = None
        """The secrets that the journal does not store, as the caller gave them."""
        self._broken: JournalError | None = None
        # An LM may report an answer from a thread of its own.
        self._order = Lock()

    @property
    def has_claim(self) -> bool:
        """Whether this recorder may still write the run."""
        return self._claim is not None

    # Writing

    async def begin(self, run: Run, graph: Graph[Any, Any], start: Node) -> None:
        """Store a run that begins."""
        started = RunStarted(time(), run.path, 0, run.run_id, graph.name, start, run.max_iters)
        if run.path:
            self.write(started)
            return
        if not run.run_id or not isinstance(cast(object, run.run_id), str):
            raise ValueError(f"run_id={run.run_id!r}: give a text that is not empty, or None")
        prove_storable(graph)
        self._encoder = encoder_for(graph, self.journal)
        self.log.append(started)
        shape = shape_of(graph)
        line = Line(0, "RunStarted", started.at, "", 0, self._encoder.encode(started))
        self._n = 1
        create = self.journal.create(run.run_id, graph.name, shape.json, shape.hash, [line])
        await finish_despite_cancel(create, self._take_claim)
        restore_limits(run.lm, run.run_id, Usage(), 0.0)

    def step_starter(self, run: Run, plans: Mapping[type[Node], NodePlan]) -> StartStep:
        """What stores each step of a run."""

        def start_step(now: float) -> Awaitable[None] | None:
            node = run.trace[-1]
            return self._start_step(run, node, plans[type(node)], now)

        return start_step

    def _start_step(
        self, run: Run, node: Node, plan: NodePlan, now: float
    ) -> Awaitable[None] | None:
        """Store that a node is complete: with the node, if a body has just returned it; else with
        the defaults that factories have made, since the rest follows from what is stored."""
        path, step = run.path, run.step
        is_returned = run.returned is node
        run.returned = None
        made: tuple[str, ...] = ()
        if plan.factories and not is_returned:
            made = tuple(sorted(plan.factories - node.__pydantic_fields_set__))
        started = StepStarted(now, path, step, node, made)
        # After the last node nothing happens before the end is stored.
        waits = bool(plan.written or plan.successors)
        if made:
            if waits:
                return self.store(started)
            self.write(started)
            return None
        self.log.append(started)
        if self._broken is not None and is_returned:
            raise self._broken
        if self._claim is None or self._broken is not None:
            return None
        data = self._encoder.step(node) if is_returned else FOLLOWS
        with self._order:
            line = Line(self._n, "StepStarted", now, path, step, data)
            self._n += 1
            if is_returned and waits:
                return self._wait(self.journal.append(self._claim, (line,)))
            self.journal.note(self._claim, line)
        return None

    def write(self, record: Record) -> None:
        """Record something, to be stored with the next record that is waited for."""
        self.log.append(record)
        claim = self._claim
        if claim is None or isinstance(record, TextArrived):
            return
        data = self._encoder.encode(record)
        with self._order:
            if self._claim is claim and self._broken is None:
                line = Line(
                    self._n, type(record).__name__, record.at, record.path, record.step, data
                )
                self._n += 1
                self.journal.note(claim, line)

    async def store(self, *records: Record) -> None:
        """Record what has been done, and wait until it is stored."""
        self.log.extend(records)
        await self._append(records)

    def store_returned(self, run: Run, node: Node, plan: NodePlan) -> Awaitable[None] | None:
        """Store the node that a body has returned. The next step does it, unless the node has
        fields to resolve first, or is one node too many."""
        is_complete = not plan.sourced or all(f.name in node.__dict__ for f in plan.sourced)
        if is_complete and run.step != run.max_iters:
            run.returned = node
            return None
        return self.store(Returned(time(), run.path, run.step, node))

    async def continue_if_answered(
        self, graph: Graph[Any, T], run: Run, result: GraphResult[T]
    ) -> GraphResult[T]:
        """Resume a run that stopped at gates if one of them was answered meanwhile."""
        from bae.journal.resume import resume_if_answered

        return await resume_if_answered(graph, run, result, self.journal, self.given)

    async def settle_answer(self, run: Run, gate: OpenGate, plan: NodePlan, value: Any) -> Any:
        """Store the answer to a gate; returns the one that was stored first."""
        if not self.journal.secrets and gate.field_name in node_codec(plan.node).secret:
            return value  # no other answer can be there: it would have to be stored
        answer = node_codec(plan.node).dump_answer(gate.field_name, value)
        if await self.journal.answer(run.run_id, gate.address, answer):
            return value
        first = (await self.journal.read(run.run_id)).answers[gate.address]
        return node_codec(plan.node).read_answer(gate.field_name, first)

    async def finish(self, run: Run, ended: RunEnded) -> None:
        """Store how the run ended and release the claim, even if this is cancelled meanwhile."""
        if run.path or self._claim is None:
            self.write(ended)
            return
        self.log.append(ended)
        waiting = [
            ParkedGate(gate.address, gate.place, gate.question, gate.deadline)
            for gate in ended.gates
        ]
        error = self._encoder.error_line(ended.error) if ended.error is not None else ""
        claim, self._claim = self._claim, None
        # After lines that could not be stored there would be a gap.
        with self._order:
            lines = [] if self._broken is not None else self._numbered([ended])
        await finish_despite_cancel(
            self.journal.release(claim, ended.outcome, lines, waiting, error)
        )

    def record_answers(
        self,
        run: Run,
        step: int,
        asker: Asker,
        lm: Callable[[], LM | None],
        key: Hashable = None,
    ) -> LM | None:
        """The LM that a body or a dependency is given: one whose answers are recorded."""
        return None if lm() is None else RecordingLM(self, run, step, asker, lm)

    def recorded_lm_answer(
        self,
        run: Run,
        step: int,
        asker: Asker,
        method: str,
        asked: str,
        target: str,
        question: QuestionText,
    ) -> LMAnswered | None:
        """What an LM has answered to the same question from the same place, each answer once; None
        if it has not."""
        return None

    def _take_claim(self, claim: Claim) -> None:
        self._claim = claim

    def _numbered(self, records: Sequence[Record]) -> list[Line]:
        lines: list[Line] = []
        for record in records:
            data = self._encoder.encode(record)
            kind = type(record).__name__
            lines.append(Line(self._n, kind, record.at, record.path, record.step, data))
            self._n += 1
        return lines

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
                raise self._refused(error) from error
        await self._wait(stored)

    async def _wait(self, stored: Awaitable[None]) -> None:
        try:
            await stored
        except Exception as error:
            refused = self._refused(error)
            if refused is error:
                raise
            raise refused from error

    def _refused(self, error: Exception) -> JournalError:
        """Note that a line could not be stored: there can be none after it."""
        if isinstance(error, JournalError):
            self._broken = error
        else:  # of a store that is not bae's
            self._broken = JournalError(
                f"the journal raised {type(error).__name__} instead of storing a line",
                run_id="" if self._claim is None else self._claim.run_id,
                cause=error,
                fix="see the cause; resume the run once it is fixed",
            )
        return self._broken


def encoder_for(graph: Graph[Any, Any], journal: Journal) -> Encoder:
    """The encoder of a graph's records, with the settings of a journal."""
    return Encoder(graph, secrets=journal.secrets, prompts=journal.prompts)


class RecordingLM:
    """The LM that a body or a dependency is given: it asks the LM of the run, except for what that
    has answered already to the same question from the same place. Other attributes are those of the
    LM."""

    def __init__(
        self,
        recorder: JournalRecorder,
        run: Run,
        step: int,
        asker: Asker,
        lm: Callable[[], LM | None],
    ) -> None:
        self._recorder = recorder
        self._run = run
        self._step = step
        self._asker = asker
        self._find = lm

    async def make(self, node: Node, target: type[N]) -> N:
        """Build a `target` from what `node` holds."""
        question = fill_question(target, {}, target.__name__, node)
        return await self._answer("make", question, (target,), lambda lm: lm.make(node, target))

    async def decide(self, node: Node) -> Node | None:
        """Choose among the successors of `node` and build the chosen one; None to end the run."""
        offered = plan_of(type(node), strict=True).offered
        question = choice_question(offered, (), node, None)
        return await self._answer("decide", question, offered, lambda lm: lm.decide(node))

    async def choose_type(
        self, types: Sequence[type[Node] | type[None]], context: Mapping[str, Any]
    ) -> type[Node] | type[None]:
        """Choose one of `types`, and nothing else; `type(None)`, where offered, ends the run."""
        question = choice_question(types, (), None, context)
        return await self._answer(
            "choose_type", question, tuple(types), lambda lm: lm.choose_type(types, context)
        )

    async def fill(
        self,
        target: type[N],
        resolved: Mapping[str, Any],
        instruction: str,
        source: Node | None = None,
    ) -> N:
        """Fill the plain fields of `target` and build it together with the `resolved` ones."""
        question = fill_question(target, resolved, instruction, source)
        return await self._answer(
            "fill",
            question,
            (target,),
            lambda lm: lm.fill(target, resolved, instruction, source=source),
        )

    async def _answer(
        self,
        method: Method,
        question: QuestionText,
        types: Sequence[type[Node] | type[None]],
        ask: Callable[[LM], Awaitable[Any]],
    ) -> Any:
        run, step, asker = self._run, self._step, self._asker
        target = types[0].__name__ if method in ("make", "fill") else ""
        asked = sha256(f"{question.system}\n{question.text}".encode()).hexdigest()[:16]
        known = self._recorder.recorded_lm_answer(run, step, asker, method, asked, target, question)
        if known is not None:
            return _read_answer(known, method, types)
        value = await ask(cast("LM", self._find()))
        await self._recorder.store(
            LMAnswered(time(), run.path, step, asker, method, asked, target, value)
        )
        return value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._find(), name)

    def __repr__(self) -> str:
        return repr(self._find())


def _read_answer(
    known: LMAnswered, method: Method, types: Sequence[type[Node] | type[None]]
) -> Any:
    value = cast(Any, known.value)
    if not isinstance(value, dict):
        return value
    data = cast(dict[str, Any], value)
    if method == "choose_type":
        named = {None if cls is NoneType else cls.__name__: cls for cls in types}
        return named[data["class"]]
    cls = next(cls for cls in types if cls.__name__ == data["type"])
    return node_codec(cast("type[Node]", cls)).load(data)
