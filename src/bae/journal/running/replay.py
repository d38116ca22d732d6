"""A recorded run again, with every recorded value and nothing called outside: what a resumed run
does, except that written bodies and graphs inside are run anew and compared with the recording.
`differences.py` words what differs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from bae.draft import hold
from bae.exceptions import BaeError, LimitError, ReplayError
from bae.journal.decoder import decoded
from bae.journal.lines import Encoder
from bae.journal.running.asked import Asked
from bae.journal.running.differences import (
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
from bae.journal.running.keeper import Keeper
from bae.journal.running.recording import Place as Spot
from bae.journal.running.recording import Recording, call_at
from bae.journal.running.resuming import check_journal
from bae.lm.prompts import choice_prompt, fill_prompt, names_of
from bae.lm.schemas import asked_fields
from bae.node import Node
from bae.records import (
    AnswerJudged,
    Asker,
    Record,
    RecordedError,
    RunEnded,
    RunForked,
    RunResumed,
    RunStarted,
    SourceEnded,
    StepStarted,
)
from bae.result import GraphResult
from bae.run import NOTHING, Run
from bae.runner import run_graph

if TYPE_CHECKING:
    from bae.dataflow import Place
    from bae.graph import Graph
    from bae.journal.store import Journal
    from bae.language_model import LM
    from bae.lm.backend import Prompt
    from bae.markers import OpenGate
    from bae.plan import FieldPlan, NodePlan
    from bae.records import LMAnswered

T = TypeVar("T", bound=Node)


async def replay(
    graph: Graph[Any, T],
    run_id: str,
    journal: Journal,
    dep_cache: dict[Any, Any] | None,
    given: Mapping[str, Any] | None,
) -> GraphResult[T]:
    """Run a recorded run again."""
    check_journal(journal)
    graph.prove()
    stored = await journal.read(run_id)
    records = await decoded(graph, stored.lines, given=given)
    limit = _limit_reached(records)
    run = Run(cast("LM", _NoLM()), limit, False, None, dep_cache, run_id=run_id)
    run.log = []  # of its own: observers have been told of all this when it happened
    encoder = Encoder(graph, secrets=True, prompts=False)
    run.keeper = keeper = Replayer(journal, encoder, records, run_id)
    start = keeper.past.started.get("")
    if start is None:
        raise beyond(run_id, "the start of the run", "")
    return await run_graph(graph, start, run)


class Replayer(Keeper):
    """The keeper of a run that is replayed: it keeps nothing, gives every recorded value, and
    raises `ReplayError` where something is not as it was."""

    def __init__(
        self, journal: Journal, encoder: Encoder, records: list[Record], run_id: str
    ) -> None:
        super().__init__(journal, encoder, Recording(records))
        self._run_id = run_id
        self._failures: dict[Spot, BaseException] = {}
        self._failed: dict[Hashable, set[Spot]] = {}
        """Where dependencies that are called once for the whole run have failed, by key."""
        self._later: dict[Hashable, Any] = {}
        """What some of these came to after all, when the run was resumed."""
        self._tried: dict[Hashable, list[tuple[int, BaseException | None]]] = {}
        """How they fared each time, with the place in the recording."""
        self._reached: dict[tuple[str, int], int] = {}
        """Where in the recording each node is."""
        self._graphs: dict[Hashable, Any] = {}
        """What graphs inside came to that run once in the whole run, by key."""
        self._prompts: dict[tuple[str, int, Asker], str] = {}
        self._made: dict[tuple[str, int], StepStarted] = {}
        self._forked: dict[tuple[str, int], Node] = {}
        self._ends: dict[str, RunEnded] = {}
        for n, record in enumerate(records):
            if isinstance(record, StepStarted):
                self._reached[record.path, record.step] = n
            if isinstance(record, AnswerJudged) and record.attempt.asked:
                spot = record.path, record.step, record.asker
                self._prompts.setdefault(spot, record.attempt.asked)
            elif isinstance(record, SourceEnded):
                self._take_source(record, n)
            elif isinstance(record, StepStarted) and record.made:
                self._made[record.path, record.step] = record
            elif isinstance(record, RunForked):
                self._forked[record.path, record.step] = record.node
            elif isinstance(record, RunEnded):
                self._ends[record.path] = record
        self._end = self._ends.get("")
        self._failed = {key: spots for key, spots in self._failed.items() if spots}
        self._later = {k: self.past.deps.pop(k) for k in self._failed if k in self.past.deps}

    async def begin(self, run: Run, graph: Graph[Any, Any], start: Node) -> None:
        """Say that a run begins."""
        run.log.append(RunStarted(0.0, run.path, 0, run.run_id, graph.name, start))

    def first(self, path: str, start: Node) -> Node:
        """The first node of a run, as it was given, or as a fork has it."""
        return self._forked.get((path, 0), start)

    def step(
        self, run: Run, step: int, node: Node, plan: NodePlan, fresh: bool
    ) -> Awaitable[None] | None:
        """Compare a node with the one that was there."""
        recorded = self.past.nodes.get((run.path, step))
        if recorded is None:
            if self.past.ended.get((run.path, step)) == "ended":
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
        run.log.append(StepStarted(0.0, run.path, step, node))
        if self._later and run.flow is not None:
            run.flow.forget_failures()

    def after(self, run: Run, step: int, plan: NodePlan) -> Any:
        """The node that a fork has put there. Elsewhere nothing: bodies are called, and what the
        LM did is asked for by `chosen` and `filled`."""
        return self._forked.get((run.path, step), NOTHING)

    def is_left_to_step(self, run: Run, step: int, node: Node, plan: NodePlan) -> bool:
        """It is: `step` compares it."""
        return True

    def chosen(self, run: Run, plan: NodePlan) -> type[Node] | type[None] | None:
        """Where the LM chose to go on, if that is still offered."""
        spot = run.path, run.step
        if spot not in self.past.chosen:
            self._nothing_more(run, f"the choice after {plan.name}")
        chosen = self.past.chosen[spot]
        if chosen not in plan.offered:
            raise not_offered(self._run_id, run, plan, chosen)
        source = run.trace[-1]
        names = names_of(plan.offered)
        variants = [
            choice_prompt(names, at_once, source, None) for at_once in ((), plan.successors)
        ]
        self._compare(run, Asker("choice", plan.node), [prompt.text for prompt in variants])
        return chosen

    def filled(self, run: Run, plan: NodePlan) -> Node | None:
        """Nothing: its context is looked up first."""
        return None

    def replayed(
        self, run: Run, plan: NodePlan, resolved: Mapping[str, Any], source: Node
    ) -> Node | None:
        """What the LM filled, if it would still be asked the same."""
        node = self.past.filled.get((run.path, run.step))
        if node is None:
            self._nothing_more(run, f"the fill of {plan.name}")
        if type(node) is not plan.node:
            raise other_node(
                self._run_id, run, run.step, self._said(node), f"{plan.name}(…)", node, plan.node
            )
        prompt = fill_prompt(plan.node, asked_fields(plan.node), resolved, plan.name, source)
        self._compare(run, Asker("fill", plan.node), [prompt.text])
        return node

    def source(self, place: Place) -> Any:
        """The value that a source came to."""
        call, cached = call_at(place.node_type, place.field, place.route)
        if call is not None and call.graph is not None:
            if cached and place.path not in self.past.started:
                return self._graphs.get(call.key, NOTHING)  # it ran for somebody else who asked
            return NOTHING  # it is run again, or each of its items is
        known = super().source(place)
        if known is not NOTHING:
            return known
        if call is not None and cached and call.key in self._later:
            return self._as_then(call.key, place)
        spot = place.run.path, place.step, place.node_type, place.field, place.route
        if spot in self._failures:
            if type(self._failures[spot]).__name__ == "Waiting":
                return NOTHING  # and so it waits again
            raise self._failures[spot]
        if call is not None and cached and call.key in self._failed:  # for somebody else who asked
            raise self._failures[min(self._failed[call.key], key=str)]
        raise unkept(self._run_id, place, call, self._how_it_ended())

    def done(self, place: Place) -> Any:
        """The value of a function whose inputs are not needed then."""
        call, _ = call_at(place.node_type, place.field, place.route)
        is_graph = call is not None and call.graph is not None
        return NOTHING if is_graph else super().source(place)

    def left_out(
        self, run: Run, plan: NodePlan, absent: Sequence[FieldPlan]
    ) -> Sequence[FieldPlan]:
        """Nothing: every field is looked up."""
        return ()

    def _as_then(self, key: Hashable, place: Place) -> Any:
        """What was known of a dependency when the run came to a node: it had failed at first."""
        reached = self._reached.get((place.run.path, place.step))
        before = [e for n, e in self._tried[key] if reached is None or n < reached]
        if before and before[-1] is not None:
            raise before[-1]
        return self._later[key]

    def defaults(self, run: Run, plan: NodePlan) -> Mapping[str, Any]:
        """The defaults that stood in the node that is made whole."""
        made = self._made.get((run.path, len(run.trace)))
        if made is None or type(made.node) is not plan.node:
            return {}
        return {n: made.node.__dict__[n] for n in made.made if n in made.node.__dict__}

    def items(self, place: Place) -> dict[int, Any]:
        """What the items of a map came to; none where graphs are run for them again."""
        call, _ = call_at(place.node_type, place.field, place.route)
        return {} if call is None or call.graph is not None else super().items(place)

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
        """What an LM has answered in a body."""
        known = super().asked(run, step, asker, method, asked, target, prompt)
        if known is not None:
            return known
        left = self.past.asked.get((run.path, step, asker), [])
        if not left and (failure := self._failure_at(run)) is not None:
            raise failure
        raise unasked(
            self._run_id,
            str(asker),
            method,
            target,
            prompt,
            left,
            self._prompts.get((run.path, step, asker)),
        )

    async def settle(self, run: Run, gate: OpenGate, plan: NodePlan, value: Any) -> Any:
        """Nothing: a replay stores no answers."""
        return value

    def lm(
        self,
        run: Run,
        step: int,
        asker: Asker,
        lm: Callable[[], LM | None],
        key: Hashable = None,
    ) -> LM | None:
        """An LM that answers from the recording."""
        return Asked(self, run, step, asker, lambda: cast("LM", _NoLM()))

    def note(self, run: Run, record: Record) -> None:
        """Write a record down."""
        run.log.append(record)

    async def keep(self, run: Run, *records: Record) -> None:
        """Write records down."""
        run.log.extend(records)

    async def over(self, run: Run, ended: RunEnded) -> None:
        """Say how the run came out; it is not to end before the recording does."""
        run.log.append(ended)
        following = self.past.nodes.get((run.path, run.step))
        if ended.outcome == "ended" and following is not None:
            raise ended_early(self._run_id, run, run.step, following, recorded=True)

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
        end = self._ends.get(run.path)
        if end is None or end.outcome != "failed" or end.step != run.step:
            return None
        return as_recorded(end.error)

    def _how_it_ended(self) -> str:
        if self._end is None or self._end.outcome == "ended":
            return ""
        error = f": {self._end.error}" if self._end.error is not None else ""
        return f"{self._end.outcome}{error}"

    def _said(self, node: Node) -> str:
        return self._encoder.node(node)

    def _take_source(self, record: SourceEnded, n: int) -> None:
        spot = record.path, record.step, record.node_type, record.field, record.parameter
        call, cached = call_at(record.node_type, record.field, record.parameter)
        failed = self._failed.setdefault(call.key, set()) if call and cached else set[Spot]()
        if call is not None and cached:
            again = None if record.error is None else raised_again(record.error)
            self._tried.setdefault(call.key, []).append((n, again))
        if record.error is not None:
            self._failures[spot] = raised_again(record.error)
            failed.add(spot)
        else:
            self._failures.pop(spot, None)
            failed.discard(spot)
        # A graph inside is run again, so what it came to is not given.
        if call is not None and call.graph is not None and cached and call.key in self.past.deps:
            self._graphs[call.key] = self.past.deps.pop(call.key)


def _as_far_as(recorded: Node, node: Node) -> Node:
    """A node without what no journal has held of the recorded one."""
    held = recorded.__dict__
    if held.keys() >= node.__dict__.keys():
        return node
    known = copy(node)
    values = {n: v for n, v in node.__dict__.items() if n in held}
    hold(known, values, node.__pydantic_extra__, node.__pydantic_fields_set__ & values.keys())
    return known


def _limit_reached(records: list[Record]) -> int:
    """The bound on nodes that the run, or a graph inside it, has reached in the end; 0 where it
    has reached none."""
    limit = furthest = 0
    for record in records:
        if isinstance(record, StepStarted):
            furthest = max(furthest, record.step + 1)
        elif isinstance(record, RunResumed):
            limit = 0
        elif isinstance(record, RunEnded):
            error = record.error
            if isinstance(error, RecordedError) and error.type_name == LimitError.__name__:
                limit = record.step
    return limit if limit >= furthest else 0


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
