"""The score of a run: by the metric that was given, or else by all that its case expects, for the
run as a whole, for the nodes in it, and for the choices of the LM."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from collections.abc import Set as AbstractSet
from math import fsum
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from bae.evals.measures import measure
from bae.evals.metrics import Score, call_metric, fields_metric
from bae.threads import in_thread

if TYPE_CHECKING:
    from bae.evals.case_types import CaseTypes
    from bae.evals.cases import Case, CaseMetric
    from bae.evals.measures import RunMeasure
    from bae.evals.metrics import NodeMetric
    from bae.graph import Graph
    from bae.node import Node
    from bae.result import GraphResult


NOT_REACHED: Final = "the run did not reach it"


class Scoring:
    """Scores runs by the metrics of an evaluation."""

    def __init__(
        self,
        types: CaseTypes,
        metric: CaseMetric | None,
        by_node: Mapping[type[Node], NodeMetric[Any]],
    ) -> None:
        self._types = types
        self._metric = metric
        self._by_node = by_node
        self._choices = _Choices(types.graph)
        self._ends: dict[str, type[Node] | None] = {}

    def asks(self, case: Case) -> bool:
        """Whether a user's metric scores a case, which may fail."""
        return bool(self._metric or case.metric or self._by_node)

    def by_metric(self, case: Case, result: GraphResult[Any]) -> Awaitable[Score] | None:
        """The score that a metric gives a run that ended; None if there is no metric: `together`
        has the score then."""
        metric = self._metric or case.metric
        if metric is None:
            return None
        return call_metric(metric, case, result, where=f"the case {case.name!r}")

    async def of_end(self, case: Case, result: GraphResult[Any]) -> Score:
        """How good the last node of a run is by what the case expects of it; 1 if that is
        nothing."""
        end: Node = result.result
        names = self._types.names
        if case.expected_type and type(end) is not self._types.named(case.expected_type):
            return Score(0.0, f"ended at {names[type(end)]}, not at {case.expected_type}")
        if case.expected is None:
            return Score(1.0)
        return await self._of_node(case, end, case.expected)

    async def of_named(self, case: Case, name: str, run: RunMeasure) -> Score:
        """How good the last node of a class is that the case expects something of. One that the
        run did not reach scores 0."""
        cls = self._types.named(name)
        measured = None if cls is None else run.nodes.get(cls)
        if measured is None or measured.last is None:
            return Score(0.0, NOT_REACHED)
        return await self._of_node(case, measured.last, case.nodes[name])

    def together(
        self, case: Case, result: GraphResult[Any], end: Score, nodes: Mapping[str, Score]
    ) -> Score:
        """The mean of all that a case expects, of the end and of nodes on the way, with what was
        missed. A case that expects nothing scores 1 for ending."""
        if not nodes:
            return end
        parts = list(nodes.values())
        missed = [
            f"{n}: {s.why or format(s.value, '.2g')}" for n, s in nodes.items() if s.value < 1
        ]
        if case.expected is not None or case.expected_type:
            parts.append(end)
            if end.value < 1:
                name = self._types.names[type(result.result)]
                missed.insert(0, end.why or f"{name}: {end.value:.2g}")
        return Score(fsum(part.value for part in parts) / len(parts), "; ".join(missed))

    def end_of(self, case: Case) -> str:
        """The name of the node class that the score of the end belongs to: that of the expected
        end, without a metric. Empty if it is not known which end is meant."""
        if self._metric is not None or case.metric is not None or case.expected is None:
            return ""
        end = self._expected_end(case)
        name = "" if end is None else self._types.names[end]
        return "" if name in case.nodes else name

    def of_choices(self, case: Case, run: RunMeasure) -> dict[str, Score]:
        """How good the choices were, where the nodes that the case names or its end say so."""
        named = frozenset(cls for name in case.nodes if (cls := self._types.named(name)))
        found = self._choices.scores(run, self._expected_end(case), named)
        return {self._types.names[cls]: score for cls, score in found.items()}

    def _expected_end(self, case: Case) -> type[Node] | None:
        if case.name not in self._ends:
            own = self._metric is not None  # which knows what is expected
            end = None if own and not case.expected_type else self._types.expected_end(case)
            self._ends[case.name] = end
        return self._ends[case.name]

    async def _of_node(self, case: Case, node: Node, expected: Mapping[str, Any]) -> Score:
        cls = type(node)
        name = self._types.names[cls]
        fields = self._types.by_field(cls, expected)
        absent = [each for each in fields if each not in cls.__pydantic_fields__]
        if absent:  # another end is meant
            return Score(0.0, f"{name} has no {', '.join(absent)}")
        metric = self._by_node.get(cls)
        if metric is None:
            return await in_thread(fields_metric, fields, node)  # long texts take time
        # Fields that nothing is expected of count as right.
        try:
            whole = node.model_copy(update=self._types.expectation(cls, fields))
        except Exception:  # another end is meant, with fields of the same names
            return Score(0.0, f"{name} cannot be as expected")
        return await call_metric(metric, whole, node, where=f"{name} in the case {case.name!r}")


async def score_by_expected(types: CaseTypes, case: Case, result: GraphResult[Any]) -> Score:
    """How good a run is by all that its case expects, field by field."""
    scoring = Scoring(types, None, {})
    run = measure(result.journal)
    end = await scoring.of_end(case, result)
    nodes = {name: await scoring.of_named(case, name, run) for name in case.nodes}
    return scoring.together(case, result, end, nodes)


class _Choices:
    """The choices that an LM makes in a graph, and which ends they can lead to."""

    def __init__(self, graph: Graph[Any, Any]) -> None:
        self._offered = {
            cls: plan.offered
            for cls, plan in graph.plans.items()
            if not plan.written and len(plan.offered) > 1
        }
        self._edges = graph.edges

    def scores(
        self, run: RunMeasure, end: type[Node] | None, named: AbstractSet[type[Node]]
    ) -> dict[type[Node], Score]:
        """How good the choices were from each class that the run reached.

        If some of the successors are `named`, one of these is right; in a run that meets the class
        several times, once is enough. Otherwise the last choice is right if it can lead to the
        `end`. If all successors can, or none, the choice has no score.
        """
        found: dict[type[Node], Score] = {}
        for cls, offered in self._offered.items():
            measured = run.nodes.get(cls)
            if measured is None or not measured.chose:
                continue
            # A class that is named for its own fields need not be chosen once more.
            right = [each for each in offered if each in named and each is not cls]
            counting = measured.chose
            if not right or len(right) == len(offered):
                right, counting = self._leading_to(end, cls), measured.chose[-1:]
            if not right or len(right) == len(offered):
                continue
            chosen = measured.chose[-1]
            if any(each in right for each in counting):
                found[cls] = Score(1.0)
            else:
                wanted = " or ".join(_name(each) for each in right)
                choice = "no valid choice" if chosen is None else f"chose {_name(chosen)}"
                found[cls] = Score(0.0, f"{choice}, where {wanted} was expected")
        return found

    def _leading_to(self, end: type[Node] | None, cls: type[Node]) -> list[type[Any]]:
        """The successors of a class that can lead to the end."""
        if end is None:
            return []
        leading = {end}
        before = 0
        while len(leading) > before:
            before = len(leading)
            leading |= {each for each, to in self._edges.items() if not leading.isdisjoint(to)}
        return [
            each
            for each in self._offered[cls]
            if (cls is end if each is NoneType else each in leading)
        ]


def _name(chosen: type[Any]) -> str:
    return "the end" if chosen is NoneType else chosen.__name__
