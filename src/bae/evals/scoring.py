"""How good a run came out: the metric that was given, or else the expected fields, for the run as a
whole and for the nodes in it. `case_runs.py` asks it once for every case."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from bae.evals.choosing import Choosing
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

    async def of_run(self, case: Case, result: GraphResult[Any]) -> Score:
        """How good a run is that came to its end.

        Without a metric it is the fields that the case expects of the last node, and 1 where it
        expects nothing: it ended.
        """
        metric = self._metric or case.metric
        if metric is not None:
            return await _asked(metric, case, result, where=f"the case {case.name!r}")
        return await score_by_expected(self._fitting, case, result, self._by_node)

    async def of_node(self, case: Case, name: str, run: RunMeasure) -> Score:
        """How good the last node of a class was of which the case expects something. One that the
        run did not get to scores 0."""
        cls = self._fitting.named(name)
        measured = None if cls is None else run.nodes.get(cls)
        if measured is None or measured.last is None:
            return Score(0.0, "the run did not get to it")
        return await _of_node(self._fitting, case, measured.last, case.nodes[name], self._by_node)

    def end_of(self, case: Case) -> str:
        """The name of the node class that the score of a run is the score of, too: that of the
        expected end, where no metric is given. Empty where nobody knows which end is meant."""
        if self._metric is not None or case.metric is not None or case.expected is None:
            return ""
        end = self._expected_end(case)
        name = "" if end is None else self._fitting.names[end]
        return "" if name in case.nodes else name

    def of_choices(self, case: Case, run: RunMeasure) -> dict[str, Score]:
        """How good the choices were, where the end that the case expects says so."""
        end = self._expected_end(case)
        if end is None:
            return {}
        found = self._choosing.scores(run, end)
        return {self._fitting.names[cls]: score for cls, score in found.items()}

    def _expected_end(self, case: Case) -> type[Node] | None:
        if case.name not in self._ends:
            own = self._metric is not None  # and what is expected is for that to say
            end = None if own and not case.expected_type else self._fitting.expected_end(case)
            self._ends[case.name] = end
        return self._ends[case.name]


async def score_by_expected(
    fitting: Fitting,
    case: Case,
    result: GraphResult[Any],
    by_node: Mapping[type[Node], NodeMetric[Any]] | None = None,
) -> Score:
    """How good a run is by what its case expects, where no metric says it."""
    end: Node = result.result
    if case.expected_type and type(end) is not fitting.named(case.expected_type):
        return Score(0.0, f"ended at {fitting.names[type(end)]}, not at {case.expected_type}")
    if case.expected is None:
        return Score(1.0)
    return await _of_node(fitting, case, end, case.expected, by_node or {})


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
