"""Measure and score runs: the LM work for each node class, and the score from the metric or from
the expectations of the case."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from bae.evals.metrics import Score, call_metric, fields_metric
from bae.exceptions import BaeError
from bae.graph_plan import plan_of_graph
from bae.history import History
from bae.threads import in_thread
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.evals.case_types import CaseTypes
    from bae.evals.cases import Case, CaseMetric
    from bae.evals.metrics import NodeMetric
    from bae.node import Node
    from bae.place import Place
    from bae.records import Record
    from bae.result import GraphResult
    from bae.work import GraphRun, LMQuestion, Step


@dataclass(slots=True)
class NodeMeasure:
    """The LM work for the nodes of one class in one run: their fills, the choices of their
    successors, questions from their bodies and dependencies, and tool calls."""

    usage: Usage = field(default_factory=Usage)
    judged: int = 0
    """The number of answers that bae checked against the types and validators."""
    valid: int = 0
    """The number of answers that were valid."""
    seconds: dict[Place, float] = field(default_factory=dict["Place", float])
    """The time of the LM work for each node."""
    last: Node | None = None
    """The last complete node of the class. In a map, the node of the last item."""
    rounds: int = 0
    """The number of rounds of conversations with tools."""
    tool_calls: int = 0
    tool_errors: int = 0
    """The number of tool calls whose result was an error."""
    chose: list[type[Node] | type[None] | None] = field(
        default_factory=list["type[Node] | type[None] | None"]
    )
    """The successors that the LM chose for nodes of the class, without inner graphs. None means
    that a question got no valid choice."""


Measures: TypeAlias = "dict[type[Node], NodeMeasure]"
"""The LM work of one run by node class, in the order in which the run reached the classes."""


def measure(records: Iterable[Record]) -> Measures:
    """Measure the LM work of a run from its records.

    If an answer chooses and fills in one call, it counts for the node that chooses, because an
    invalid answer may not say which node it fills. If a question was interrupted, its answers so
    far count.
    """
    measured: Measures = {}
    history = History(records)
    for step in _in_order(history.run):
        if step.node_type is None:
            continue
        questions = [*step.questions]
        if not step.is_complete and not questions:
            continue
        node = measured.setdefault(step.node_type, NodeMeasure())
        if step.is_complete:
            node.last = step.node
        if step.choice is not None and step.graph is history.run:
            node.chose.append(step.choice.chosen)
        for question in questions:
            _count(node, step, question)
        node.rounds += sum(len(loop.rounds) for loop in step.loops.values())
        for call in step.tool_calls:
            node.tool_calls += 1
            node.tool_errors += call.tool_error is not None or call.state == "failed"
    return measured


def _in_order(graph: GraphRun) -> Iterator[Step]:
    """Yield the steps of a graph and of its inner graphs. Items of a map are yielded in the order
    of the list, because the order in which they ended is random."""
    for step in graph.trace:
        yield step
        for source in step.sources.values():
            for inner in sorted(
                source.graphs,
                key=lambda inner_graph: inner_graph.item.index if inner_graph.item else -1,
            ):
                yield from _in_order(inner)
        for call in step.tool_calls:
            if call.graph is not None:
                yield from _in_order(call.graph)


def _count(node: NodeMeasure, step: Step, question: LMQuestion) -> None:
    node.usage += question.paid
    node.judged += len(question.answers)
    node.valid += sum(answer.attempt.verdict == "valid" for answer in question.answers)
    # The time of a failed question does not count. If one answer chose and filled, its time has
    # already been counted for the choice.
    by_choice = question is step.fill and step.filled_by is not question
    if question.state == "done" and not by_choice:
        by_runner = question.asker.kind in ("fill", "choice")
        seconds = question.took if by_runner else question.usage.seconds
        node.seconds[step.place] = node.seconds.get(step.place, 0.0) + seconds


_NOT_REACHED: Final = Score(0.0, "the run did not reach it")


@dataclass(slots=True)
class Scored:
    """The scores of a run."""

    total: Score | None = None
    """The score of the run, or None."""
    nodes: dict[str, Score] = field(default_factory=dict[str, Score])
    """The scores of nodes by class name."""
    errors: list[BaeError] = field(default_factory=list[BaeError])
    """The errors of metrics."""

    async def collect(self, score: Awaitable[Score]) -> Score | None:
        """Return the score of a metric. If the metric fails, store its error and return None, so
        that other scores are still collected."""
        try:
            return await score
        except BaeError as error:
            self.errors.append(error)
            return None


class Scoring:
    """Scores runs with the metrics of an evaluation."""

    def __init__(
        self,
        types: CaseTypes,
        metric: CaseMetric | None = None,
        by_node: Mapping[type[Node], NodeMetric[Any]] | None = None,
    ) -> None:
        self._types = types
        self._metric = metric
        self._by_node = by_node or {}
        self._offered = {
            cls: plan.offered
            for cls, plan in plan_of_graph(types.graph).plans.items()
            if not plan.written and len(plan.offered) > 1
        }

    def asks(self, case: Case) -> bool:
        """Whether a user's metric scores a case. Such a metric may fail."""
        return bool(self._metric or case.metric or self._by_node)

    async def score(self, case: Case, result: GraphResult[Any] | None, nodes: Measures) -> Scored:
        """Score a run. For a failed run, `result` is None.

        Without a metric, the score is the mean over all nodes that the case expects. A node that
        the run did not reach scores 0. A case that expects nothing scores 1 if its run ended.
        """
        scored = Scored()
        for name, expected in case.nodes.items():
            cls = self._types.by_name.get(name)
            last = nodes[cls].last if cls in nodes else None
            score: Score | None = _NOT_REACHED
            if last is not None:
                score = await scored.collect(self._score_node(case, last, expected))
            if score is not None:
                scored.nodes[name] = score
        metric = self._metric or case.metric
        end: Score | None = _NOT_REACHED
        if result is not None and metric is not None:
            where = f"the case {case.name!r}"
            scored.total = await scored.collect(call_metric(metric, case, result, where=where))
        elif result is not None:
            end = await scored.collect(self._score_end(case, result.result))
            if end is not None and not scored.errors:
                scored.total = self._mean(case, result.result, end, scored.nodes)
        expected_end = None
        if self._metric is None or case.expected_type:  # with a metric, `expected` may be anything
            expected_end = self._types.expected_end(case)
        if metric is None and case.expected is not None and expected_end and end is not None:
            scored.nodes.setdefault(self._types.names[expected_end], end)
        for name, choice in self._score_choices(case, expected_end, nodes):
            fields = scored.nodes.get(name)
            scored.nodes[name] = choice if fields is None else _average(fields, choice)
        return scored

    async def _score_end(self, case: Case, end: Node) -> Score:
        """Score the last node of a run by the expectations of the case. Without expectations, the
        score is 1."""
        if case.expected_type and type(end) is not self._types.by_name.get(case.expected_type):
            name = self._types.names[type(end)]
            return Score(0.0, f"ended at {name}, not at {case.expected_type}")
        if case.expected is None:
            return Score(1.0)
        return await self._score_node(case, end, case.expected)

    async def _score_node(self, case: Case, node: Node, expected: Mapping[str, Any]) -> Score:
        cls = type(node)
        name = self._types.names[cls]
        fields = self._types.by_field(cls, expected)
        absent = [field_name for field_name in fields if field_name not in cls.__pydantic_fields__]
        if absent:  # the case expects another class
            return Score(0.0, f"{name} has no {', '.join(absent)}")
        metric = self._by_node.get(cls)
        if metric is None:
            return await in_thread(fields_metric, fields, node)  # long texts take time
        # A field without an expectation gets the given value, so that it is right.
        try:
            expected_node = node.model_copy(update=self._types.expectation(cls, fields))
        except Exception:  # the case expects another class with the same field names
            return Score(0.0, f"{name} cannot be as expected")
        return await call_metric(
            metric, expected_node, node, where=f"{name} in the case {case.name!r}"
        )

    def _mean(self, case: Case, end: Node, score: Score, nodes: Mapping[str, Score]) -> Score:
        """Return the mean over all nodes that a case expects. The reason lists the missed
        expectations."""
        if not nodes:
            return score
        parts = list(nodes.values())
        missed = [f"{n}: {s.why or f'{s.value:.2g}'}" for n, s in nodes.items() if s.value < 1]
        if case.expected is not None or case.expected_type:
            parts.append(score)
            if score.value < 1:
                missed.insert(0, score.why or f"{self._types.names[type(end)]}: {score.value:.2g}")
        return Score(fmean(part.value for part in parts), "; ".join(missed))

    def _score_choices(
        self, case: Case, end: type[Node] | None, nodes: Measures
    ) -> Iterator[tuple[str, Score]]:
        """Yield the scores of the choices of successors, by class name.

        If the case names some of the successors, a choice is right if it is one of them. If the run
        reaches the class several times, one right choice is enough.

        If the case names none or all of the successors, the last choice is right if it can lead to
        the expected end. If none or all of the successors can, there is no score.
        """
        named_classes = [self._types.by_name.get(name) for name in case.nodes]
        for cls, offered in self._offered.items():
            counting = chose = nodes[cls].chose if cls in nodes else []
            if not chose:
                continue
            # The case may name this class for its fields. That does not make it a right successor.
            right = [
                successor
                for successor in offered
                if successor in named_classes and successor is not cls
            ]
            if not right or len(right) == len(offered):
                right, counting = self._successors_leading_to(end, cls), chose[-1:]
            if not right or len(right) == len(offered):
                continue
            score = Score(1.0)
            if not any(successor in right for successor in counting):
                expected = " or ".join(_name(successor) for successor in right)
                choice = "no valid choice" if chose[-1] is None else f"chose {_name(chose[-1])}"
                score = Score(0.0, f"{choice}, where {expected} was expected")
            yield self._types.names[cls], score

    def _successors_leading_to(self, end: type[Node] | None, cls: type[Node]) -> list[type[Any]]:
        """Return the successors of a class that can lead to the end."""
        if end is None:
            return []
        leading = {end}
        before = 0
        while len(leading) > before:
            before = len(leading)
            edges = self._types.graph.edges
            leading |= {cls_ for cls_, to in edges.items() if not leading.isdisjoint(to)}
        return [
            successor
            for successor in self._offered[cls]
            if (cls is end if successor is NoneType else successor in leading)
        ]


def _average(fields: Score, choice: Score) -> Score:
    why = "; ".join(filter(None, (fields.why, choice.why)))
    return Score((fields.value + choice.value) / 2, why)


def _name(chosen: type[Any]) -> str:
    return "the end" if chosen is NoneType else chosen.__name__
