"""Replay: a recorded run again, with every recorded value and nothing called outside. Bodies and
graphs inside are run again and compared with the recording."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, cast

from bae.draft import hold
from bae.exceptions import BaeError, LimitError, ReplayError
from bae.history import History
from bae.journal.decoder import decode_run
from bae.journal.export import RecordedRuns
from bae.journal.lines import Encoder
from bae.journal.recorder import RecordingLM
from bae.journal.replay_errors import (
    as_recorded,
    beyond,
    ended_early,
    not_offered,
    other_node,
    other_prompt,
    raised_again,
    unasked,
    unkept,
)
from bae.journal.resumed import ResumedRecorder
from bae.node import Node
from bae.place import Place
from bae.recorder import NOTHING
from bae.records import (
    Asker,
    Record,
    RecordedError,
    RunEnded,
    RunStarted,
    StepStarted,
)
from bae.result import GraphResult
from bae.rooms import QuestionText, choice_question, fill_question
from bae.run import Run
from bae.run_tree import call_behind
from bae.runner import run_graph

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Journal, StoredRun
    from bae.language_model import LM
    from bae.markers import OpenGate
    from bae.plan import FieldPlan, NodePlan
    from bae.records import LMAnswered
    from bae.work import GraphRun

T = TypeVar("T", bound=Node)


async def replay(
    graph: Graph[Any, T],
    run_id: str,
    journal: Journal,
    dep_cache: dict[Any, Any] | None,
    given: Mapping[str, Any] | None,
) -> GraphResult[T]:
    """Run a recorded run again."""
    graph.prove()
    stored = await journal.read(run_id)
    _, past = await decode_run(graph, stored.lines, given=given)
    limit = _limit_reached(past)
    run = Run(cast("LM", _NoLM()), limit, False, None, dep_cache, run_id=run_id)
    run.recorder = Replayer(journal, graph, past, run_id)
    start = past.run.start
    if start is None:
        raise beyond(run_id, "the start of the run", "")
    return await run_graph(graph, start, run)


@dataclass(frozen=True, slots=True)
class Repeated:
    """A run that was replayed without a difference: the classes of its nodes, and its outcome, with
    the gates that it waits for, or what it failed with."""

    run_id: str
    outcome: Literal["ended", "waiting", "failed"]
    trace: tuple[str, ...]
    waiting: tuple[str, ...] = ()
    error: str = ""


async def repeat(
    graph: Graph[Any, Any], stored: StoredRun, given: Mapping[str, Any] | None = None
) -> Repeated:
    """Replay a run that was read from any journal; `given` has the secrets that no journal stores.
    A difference is raised as `ReplayError`; a recorded failure that happens again is none."""
    info = stored.info
    journal = RecordedRuns([stored], info.run_id)
    try:
        result = await graph.replay(info.run_id, journal=journal, given=given)
    except ReplayError:
        raise
    except BaeError as error:
        if info.status != "failed" or not _is_same(error, info.error):
            raise
        return Repeated(info.run_id, "failed", _names(error.trace or ()), error=info.error)
    waiting = tuple(gate.place for gate in result.waiting)
    return Repeated(info.run_id, "waiting" if waiting else "ended", _names(result.trace), waiting)


class Replayer(ResumedRecorder):
    """The recorder of a run that is replayed: it stores nothing, gives every recorded value, and
    raises `ReplayError` where something differs from the recording."""

    def __init__(
        self, journal: Journal, graph: Graph[Any, Any], past: History, run_id: str
    ) -> None:
        # A log of its own: observers were called with all this when it happened.
        super().__init__(journal, graph, [], past)
        self._encoder = Encoder(graph, secrets=True, prompts=False)
        self._run_id = run_id
        self._recovered = {
            key
            for key, calls in past.shared_calls.items()
            if key in past.shared and any(error is not None for _, error in calls)
        }
        """Dependencies that are called once in the whole run and that failed before they had a
        value."""
        self._prompts = _prompts(past)

    # Comparing

    async def begin(self, run: Run, graph: Graph[Any, Any], start: Node) -> None:
        """Record that a run begins."""
        self.log.append(RunStarted(0.0, run.path, 0, run.run_id, graph.name, start))

    def first_node(self, path: str, start: Node) -> Node:
        """The first node of a run, as it was given, or as a fork has it."""
        step = self.past.step(path, 0)
        return start if step is None or step.forked is None else step.forked.node

    def _start_step(
        self, run: Run, node: Node, plan: NodePlan, now: float
    ) -> Awaitable[None] | None:
        """Compare a node with the recorded one."""
        step = run.step
        recorded = self._recorded_node(run.path, step)
        if recorded is None:
            if self.past.following(run.path, step) is None:
                raise ended_early(self._run_id, run, step, node)
            raise beyond(self._run_id, f"{plan.name}, step {step}", self._how_it_ended())
        known = _as_far_as(recorded, node) if type(recorded) is type(node) else node
        # Not by the text alone: a set is written in another order each time.
        same = type(recorded) is type(node) and (
            recorded == known or self._said(recorded) == self._said(known)
        )
        if not same:
            raise other_node(
                self._run_id, run, step, self._said(recorded), self._said(known), recorded, node
            )
        self.log.append(StepStarted(0.0, run.path, step, node))
        if self._recovered and run.flow is not None:
            run.flow.forget_failures()
        return None

    def store_returned(self, run: Run, node: Node, plan: NodePlan) -> Awaitable[None] | None:
        """Nothing: the next step compares the node."""
        return None

    def write(self, record: Record) -> None:
        """Record something in memory alone."""
        self.log.append(record)

    async def store(self, *records: Record) -> None:
        """Record something in memory alone."""
        self.log.extend(records)

    async def continue_if_answered(
        self, graph: Graph[Any, T], run: Run, result: GraphResult[T]
    ) -> GraphResult[T]:
        """The result as it is: a replay stops where the recording does."""
        return result

    async def settle_answer(self, run: Run, gate: OpenGate, plan: NodePlan, value: Any) -> Any:
        """The answer as it is: a replay stores none."""
        return value

    async def finish(self, run: Run, ended: RunEnded) -> None:
        """Record how the run ended; it must not end before the recording does."""
        self.log.append(ended)
        following = self._recorded_node(run.path, run.step)
        if ended.outcome == "ended" and following is not None:
            raise ended_early(self._run_id, run, run.step, following, recorded=True)

    # Looking back

    def recorded_next(self, run: Run, step: int, plan: NodePlan) -> Any:
        """The node that a fork has put there. Elsewhere nothing: bodies are called, and what the LM
        did is looked up by `recorded_choice` and `replayed_fill`."""
        found = self.past.step(run.path, step)
        return NOTHING if found is None or found.forked is None else found.forked.node

    def recorded_choice(self, run: Run, plan: NodePlan) -> type[Node] | type[None] | None:
        """The class that the LM chose, if it is still offered."""
        chosen = super().recorded_choice(run, plan)
        if chosen is None:
            self._nothing_more(run, f"the choice after {plan.name}")
        if chosen not in plan.offered:
            raise not_offered(self._run_id, run, plan, chosen)
        texts = [
            choice_question(plan.offered, fillable, run.trace[-1], None).text
            for fillable in ((), plan.successors)
        ]
        self._compare(run, Asker("choice", plan.node), texts)
        return chosen

    def recorded_fill(self, run: Run, plan: NodePlan) -> Node | None:
        """None: the context is looked up first."""
        return None

    def replayed_fill(
        self, run: Run, plan: NodePlan, resolved: Mapping[str, Any], source: Node
    ) -> Node | None:
        """The node that the LM filled, if it would still be asked the same."""
        node = super().recorded_fill(run, plan)
        if node is None:
            self._nothing_more(run, f"the fill of {plan.name}")
        if type(node) is not plan.node:
            raise other_node(
                self._run_id, run, run.step, self._said(node), f"{plan.name}(…)", node, plan.node
            )
        question = fill_question(plan.node, resolved, plan.name, source)
        self._compare(run, Asker("fill", plan.node), [question.text])
        return node

    def recorded_dependencies(self) -> Mapping[Hashable, Any]:
        """The values of functions that are called once in the whole run. Graphs are run again, and
        of a function that failed at first the outcome is looked up for each node."""
        known = super().recorded_dependencies()
        return {
            key: value
            for key, value in known.items()
            if key not in self._recovered and self.past.shared[key].graph is None
        }

    def recorded_value(self, place: Place, node_type: type[Node]) -> Any:
        """The value of a source, or the error that it failed with, which is raised."""
        call, cached = call_behind(node_type, place)
        if call is not None and call.graph is not None:
            if cached and str(place) not in self._started:  # it ran for another field
                return super().recorded_dependencies().get(call.key, NOTHING)
            return NOTHING  # it is run again, or each of its items is
        known = super().recorded_value(place, node_type)
        if known is not NOTHING:
            return known
        if call is not None and cached and call.key in self._recovered:
            return self._as_then(call.key, place)
        source = self.past.source(place)
        if source is not None and source.state == "waiting":
            return NOTHING  # and so it waits again
        if source is not None and source.state == "failed" and source.error is not None:
            raise raised_again(source.error)
        if call is not None and cached and call.key in self.past.failed_keys:  # for another field
            failed = [error for _, error in self.past.shared_calls[call.key]]
            raise raised_again(next(error for error in failed if error is not None))
        raise unkept(self._run_id, place, call, self._how_it_ended())

    def known_value(self, place: Place, node_type: type[Node]) -> Any:
        """The value of a function before its inputs are started."""
        call, _ = call_behind(node_type, place)
        is_graph = call is not None and call.graph is not None
        return NOTHING if is_graph else super().recorded_value(place, node_type)

    def recorded_items(self, place: Place, node_type: type[Node]) -> dict[int, Any]:
        """The values of the items of a map; none where graphs are run for them again."""
        call, _ = call_behind(node_type, place)
        is_graph = call is None or call.graph is not None
        return {} if is_graph else super().recorded_items(place, node_type)

    def fields_left_out(
        self, run: Run, plan: NodePlan, absent: Sequence[FieldPlan]
    ) -> Sequence[FieldPlan]:
        """None: every field is looked up."""
        return ()

    def complete_node(
        self,
        run: Run,
        plan: NodePlan,
        node: Node,
        values: Mapping[str, Any],
        left_out: Sequence[FieldPlan],
    ) -> Node:
        """A copy of a node with the values of its sources, and the defaults that it had."""
        step = self.past.step(run.path, len(run.trace))
        if step is not None and type(step.node) is plan.node:
            held = step.node.__dict__
            values = {**{name: held[name] for name in step.made if name in held}, **values}
        return super().complete_node(run, plan, node, values, left_out)

    def record_answers(
        self,
        run: Run,
        step: int,
        asker: Asker,
        lm: Callable[[], LM | None],
        key: Hashable = None,
    ) -> LM | None:
        """An LM that answers from the recording."""
        return RecordingLM(self, run, step, asker, lambda: cast("LM", _NoLM()))

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
        """What an LM has answered in a body or a dependency."""
        known = super().recorded_lm_answer(run, step, asker, method, asked, target, question)
        if known is not None:
            return known
        left = self._asked.get((run.path, step, asker), [])
        if not left and (failure := self._failure_at(run)) is not None:
            raise failure
        recorded = self._prompts.get((run.path, step, asker))
        raise unasked(self._run_id, str(asker), method, target, question, left, recorded)

    def _as_then(self, key: Hashable, place: Place) -> Any:
        """The outcome of a dependency when the run reached a node: it had failed at first."""
        step = self.past.step(place.path, place.step)
        until = step.whole_count if step is not None and step.whole else self.past.count
        before = [error for count, error in self.past.shared_calls[key] if count < until]
        if before and before[-1] is not None:
            raise raised_again(before[-1])
        return self.past.shared[key].value

    def _compare(self, run: Run, asker: Asker, texts: list[str]) -> None:
        recorded = self._prompts.get((run.path, run.step, asker))
        if recorded is not None and recorded not in texts:
            raise other_prompt(self._run_id, run, str(asker), recorded, texts[0])

    def _nothing_more(self, run: Run, what: str) -> NoReturn:
        failure = self._failure_at(run)
        if failure is not None:
            raise failure
        raise beyond(self._run_id, what, self._how_it_ended())

    def _failure_at(self, run: Run) -> BaeError | None:
        """What the run, or a graph inside it, failed with where it is now."""
        graph = self.past.graphs.get(run.path)
        if graph is None or graph.outcome != "failed" or graph.end_step != run.step:
            return None
        return as_recorded(graph.end_error)

    def _how_it_ended(self) -> str:
        run = self.past.run
        if run.outcome in ("", "ended"):
            return ""
        error = f": {run.end_error}" if run.end_error is not None else ""
        return f"{run.outcome}{error}"

    def _said(self, node: Node) -> str:
        return self._encoder.node(node)


def _prompts(past: History) -> dict[tuple[str, int, Asker], str]:
    """The first text that each asker sent to the LM."""
    found: dict[tuple[str, int, Asker], str] = {}
    for step in past.steps():
        for question in step.questions:
            for judged in question.answers:
                if judged.attempt.asked:
                    spot = judged.path, judged.step, judged.asker
                    found.setdefault(spot, judged.attempt.asked)
    return found


def _as_far_as(recorded: Node, node: Node) -> Node:
    """A node without what no journal has held of the recorded one."""
    held = recorded.__dict__
    if held.keys() >= node.__dict__.keys():
        return node
    known = copy(node)
    values = {n: v for n, v in node.__dict__.items() if n in held}
    hold(known, values, node.__pydantic_extra__, node.__pydantic_fields_set__ & values.keys())
    return known


def _limit_reached(past: History) -> int:
    """The bound on nodes that the run, or a graph inside it, has reached in the end; 0 if it has
    reached none."""
    limit = max((graph.end_step for graph in past.graphs.values() if _is_limit(graph)), default=0)
    furthest = max((step.number + 1 for step in past.steps() if step.whole), default=0)
    return limit if limit >= furthest else 0


def _is_limit(graph: GraphRun) -> bool:
    error = graph.end_error
    return isinstance(error, RecordedError) and error.type_name == LimitError.__name__


class _NoLM:
    """Stands where a run has its LM: a replay asks none."""

    async def make(self, *_: Any) -> Any:
        self._refuse()

    async def decide(self, *_: Any) -> Any:
        self._refuse()

    async def choose_type(self, *_: Any) -> Any:
        self._refuse()

    async def fill(self, *_: Any, **__: Any) -> Any:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ReplayError(
            "an LM would be asked, and a replay asks none",
            fix="ask the LM that bae hands to the body or the dependency: its answers are recorded",
        )


def _names(trace: Any) -> tuple[str, ...]:
    return tuple(type(node).__name__ for node in trace)


def _is_same(error: BaseException, recorded: str) -> bool:
    """Whether a failure is the recorded one, of which a journal with secrets has no words."""
    if not isinstance(error, BaeError) or not recorded.startswith(f"[{error.code}]"):
        return False
    return error.message.splitlines()[0] in recorded or "withheld" in recorded
