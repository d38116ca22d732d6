"""How good a run came out: the metric that was given, or else all that is expected, for the run as
a whole and for the nodes in it. `case_runs.py` asks it once for every case."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from math import fsum
from typing import TYPE_CHECKING, Any, Final

from bae.evals.choosing import Choosing
from bae.evals.measuring import measure
from bae.exceptions import BaeError
from bae.optimizer.scores import Score, scored
from bae.tasks import cancellations
from bae.threads import in_thread

if TYPE_CHECKING:
    from bae.evals.cases import Case, CaseMetric
    from bae.evals.fitting import Fitting
    from bae.evals.measuring import RunMeasure
    from bae.node import Node
    from bae.optimizer.metrics import NodeMetric
    from bae.result import GraphResult


NOT_REACHED: Final = "the run did not get to it"


class Scoring:
    """Scores runs by what an evaluation was given to score by."""

    def __init__(
        self,
        fitting: Fitting,
        metric: CaseMetric | None,
        by_node: Mapping[type[Node], NodeMetric[Any]],
    ) -> None:
        self._fitting = fitting
        self._metric = metric
        self._by_node = by_node
        self._choosing = Choosing(fitting.graph)
        self._ends: dict[str, type[Node] | None] = {}

    def asks(self, case: Case) -> bool:
        """Whether somebody's own code scores a case, which may fail."""
        return bool(self._metric or case.metric or self._by_node)

    def by_metric(self, case: Case, result: GraphResult[Any]) -> Awaitable[Score] | None:
        """How good a run is that came to its end, where a metric says it. None where none does: it
        is `together` then."""
        metric = self._metric or case.metric
        if metric is None:
            return None
        return _asked(metric, case, result, where=f"the case {case.name!r}")

    async def of_end(self, case: Case, result: GraphResult[Any]) -> Score:
        """How good the last node of a run is by what the case expects of it; 1 where that is
        nothing."""
        return await _of_end(self._fitting, case, result, self._by_node)

    def together(
        self, case: Case, result: GraphResult[Any], end: Score, nodes: Mapping[str, Score]
    ) -> Score:
        """How good a run is by all that its case expects, of the end and of nodes on the way."""
        return _together(case, self._fitting.names[type(result.result)], end, nodes)

    async def of_node(self, case: Case, name: str, run: RunMeasure) -> Score:
        """How good the last node of a class was of which the case expects something. One that the
        run did not get to scores 0."""
        return await _of_named(self._fitting, case, name, run, self._by_node)

    def end_of(self, case: Case) -> str:
        """The name of the node class that the score of the end is the score of: that of the
        expected end, where no metric is given. Empty where nobody knows which end is meant."""
        if self._metric is not None or case.metric is not None or case.expected is None:
            return ""
        end = self._expected_end(case)
        name = "" if end is None else self._fitting.names[end]
        return "" if name in case.nodes else name

    def of_choices(self, case: Case, run: RunMeasure) -> dict[str, Score]:
        """How good the choices were, where the nodes that the case names say so, or the end."""
        named = frozenset(cls for name in case.nodes if (cls := self._fitting.named(name)))
        found = self._choosing.scores(run, self._expected_end(case), named)
        return {self._fitting.names[cls]: score for cls, score in found.items()}

    def _expected_end(self, case: Case) -> type[Node] | None:
        if case.name not in self._ends:
            own = self._metric is not None  # and what is expected is for that to say
            end = None if own and not case.expected_type else self._fitting.expected_end(case)
            self._ends[case.name] = end
        return self._ends[case.name]


async def score_by_expected(fitting: Fitting, case: Case, result: GraphResult[Any]) -> Score:
    """How good a run is by all that its case expects, field by field."""
    run = measure(result.journal)
    end = await _of_end(fitting, case, result, {})
    nodes = {name: await _of_named(fitting, case, name, run, {}) for name in case.nodes}
    return _together(case, fitting.names[type(result.result)], end, nodes)


def _together(case: Case, ended_at: str, end: Score, nodes: Mapping[str, Score]) -> Score:
    """The mean of all that a case expects, with what was missed. Only a case that expects nothing
    at all is as it should be by ending."""
    if not nodes:
        return end
    parts = list(nodes.values())
    missed = [f"{n}: {s.why or format(s.value, '.2g')}" for n, s in nodes.items() if s.value < 1]
    if case.expected is not None or case.expected_type:
        parts.append(end)
        if end.value < 1:
            missed.insert(0, end.why or f"{ended_at}: {end.value:.2g}")
    return Score(fsum(part.value for part in parts) / len(parts), "; ".join(missed))


async def _of_end(
    fitting: Fitting,
    case: Case,
    result: GraphResult[Any],
    by_node: Mapping[type[Node], NodeMetric[Any]],
) -> Score:
    end: Node = result.result
    if case.expected_type and type(end) is not fitting.named(case.expected_type):
        return Score(0.0, f"ended at {fitting.names[type(end)]}, not at {case.expected_type}")
    if case.expected is None:
        return Score(1.0)
    return await _of_node(fitting, case, end, case.expected, by_node)


async def _of_named(
    fitting: Fitting,
    case: Case,
    name: str,
    run: RunMeasure,
    by_node: Mapping[type[Node], NodeMetric[Any]],
) -> Score:
    cls = fitting.named(name)
    measured = None if cls is None else run.nodes.get(cls)
    if measured is None or measured.last is None:
        return Score(0.0, NOT_REACHED)
    return await _of_node(fitting, case, measured.last, case.nodes[name], by_node)


async def _of_node(
    fitting: Fitting,
    case: Case,
    node: Node,
    expected: Mapping[str, Any],
    by_node: Mapping[type[Node], NodeMetric[Any]],
) -> Score:
    cls = type(node)
    fields = fitting.by_field(cls, expected)
    absent = [name for name in fields if name not in cls.__pydantic_fields__]
    if absent:  # the end that was meant is another one
        return Score(0.0, f"{fitting.names[cls]} has no {', '.join(absent)}")
    metric = by_node.get(cls)
    if metric is None:
        from bae.optimizer.metrics import fields_metric

        return await in_thread(fields_metric, fields, node)  # long texts take their time
    # The fields that nobody expects anything of are as right as they can be.
    try:
        whole = node.model_copy(update=fitting.expectation(cls, fields))
    except Exception:  # the end that was meant is another one, with fields of the same names
        return Score(0.0, f"{fitting.names[cls]} cannot be as expected")
    where = f"{fitting.names[cls]} in the case {case.name!r}"
    return await _asked(metric, whole, node, where=where)


async def _asked(metric: Callable[..., Any], *given: Any, where: str) -> Score:
    """What a metric says. One that raises what would end the program has failed like any other."""
    try:
        return await scored(metric, *given, where=where)
    except (asyncio.CancelledError, SystemExit) as error:
        if isinstance(error, asyncio.CancelledError) and cancellations():
            raise
        raise BaeError(
            f"{where}: the metric raised {type(error).__name__}",
            code="bae-metric-failed",
            cause=error,
            fix="mend the metric: what it cannot judge it may score with 0",
        ) from error
