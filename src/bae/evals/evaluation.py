"""`evaluate` runs a graph over cases with one or more LMs. A limited number of workers runs the
cases until all have run or the evaluation is stopped."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from bae.evals.case_runs import (
    STOPPED,
    CaseRun,
    CaseRunner,
    Contending,
    case_as_json,
    new_run_ids,
)
from bae.evals.case_types import CaseTypes, every_node
from bae.evals.cases import Case, invalid_cases
from bae.evals.judge import Judge
from bae.evals.metrics import fields_metric, short
from bae.evals.report import NOT_RUN, CaseResult, Evaluation, contenders_of, differences_of
from bae.evals.scoring import Scoring
from bae.language_model import is_lm
from bae.lm.registry import cached_lm
from bae.tasks import all_or_first_error
from bae.threads import in_thread

if TYPE_CHECKING:
    from bae.evals.case_types import Checked
    from bae.evals.cases import CaseMetric
    from bae.evals.metrics import NodeMetric
    from bae.graph import Graph
    from bae.journal import Journal
    from bae.lm.policies.budget import Budget
    from bae.node import Node
    from bae.run import GateAnswerer

Progressing = Callable[[int, int, str, CaseResult], object]
"""A function that is called after each run of a case. It gets the number of finished runs, the
number of all runs, the contender, and the result."""

_log = logging.getLogger("bae.evals")


async def evaluate(
    graph: Graph[Any, Any],
    cases: Iterable[Case],
    lms: Mapping[str, Contending],
    *,
    metric: CaseMetric | None = None,
    node_metrics: Mapping[type[Node], NodeMetric[Any]] | None = None,
    journal: Journal | None = None,
    concurrency: int = 8,
    max_iters: int = 10,
    timeout: float = 600.0,
    budget: Budget | None = None,
    progress: Progressing | None = None,
    dep_cache: Mapping[Any, Any] | None = None,
    answer: GateAnswerer | None = None,
    stop: asyncio.Event | None = None,
) -> Evaluation:
    """Run a graph over cases with each of the `lms`, and compare the LMs.

    The result has the score, validity, cost and latency of each LM, in total and for each node
    class. It also has the difference of each LM from the first LM.

    - `cases`: from `load_cases`, or your own. All are checked against the graph before a run
      starts.
    - `lms`: the contenders by their names in tables. A contender is an LM, the name of an LM, a
      function that makes an LM for each run, or None for the default LM. A script,
      `"scripted:FILE.json"`, starts from its beginning in each run. A node class with a pinned LM
      uses the pinned LM.
    - `metric`: a function `(case, result) -> score`, async or not. It returns a number from 0 to 1,
      or a `Score` with a reason. Without `metric`, the `metric` of the case is used. If the case
      has none, its score is the mean over all expected nodes: the end, and each class in `nodes`,
      compared by `fields_metric`. A node that the run did not reach scores 0. A case that expects
      nothing scores 1 if its run ends.
    - `node_metrics`: functions `(expected node, given node) -> score` by node class. They replace
      `fields_metric` for the expected nodes of a class, including the end.
    - `journal`: stores the runs as `eval-…`, so that you can look at a failing case.
    - `concurrency`: how many cases may run at once, over all contenders. Cases start in order. A
      case starts with all contenders before the next case starts, so that a stopped evaluation can
      still compare the contenders.
    - `max_iters`, `answer`: as for `graph.arun`.
    - `dep_cache`: as for `graph.arun`. Every run gets a copy.
    - `timeout`: the most seconds for a case, and again for its metric. If an LM is busy with other
      cases, waiting for it counts too. `concurrency=1` avoids this.
    - `budget`: for the whole evaluation, including LM calls of metrics. When it is spent, no
      further case starts. Unfinished cases are marked as not run and are not scored.
    - `progress`: called after each run of a case.
    - `stop`: set it to stop early. Cases in progress are cancelled and marked as not run.

    If a case fails because of an error, its timeout or a gate, it scores 0 and keeps its run id. If
    a run waits at a gate, the journal marks the run as failed, so that no person is asked.

    If a metric raises or a judge cannot be asked, the case has no score: see `Evaluation.complete`
    and `metric_errors`. The first case runs alone, so that a mistake in a metric costs little. If
    the metric raises for every contender of this case, the evaluation ends with the metric's error
    (`bae-metric-failed`, `bae-metric-score`). All arguments, and the LM of a `Judge`, are checked
    before a run starts.
    """
    _check_lms(lms)
    if concurrency < 1 or not timeout > 0:
        raise ValueError(
            f"evaluate(concurrency={concurrency!r}, timeout={timeout!r}): give one case or more at "
            "once, and a time above 0"
        )
    graph.prove()
    types = CaseTypes(graph)
    checked = types.check(_label_cases(cases), f"there are cases that {graph.name} cannot run")
    if not checked:
        raise invalid_cases("there are no cases", fix="give one or more: Case({…}, expected={…})")
    check_metrics(graph, metric, node_metrics)
    case_metrics = () if metric is not None else (case.metric for case in checked)
    for scorer in (*(node_metrics or {}).values(), *case_metrics):
        if isinstance(scorer, Judge):
            scorer.ready()
    ready = {name: _prepare_lm(lm) for name, lm in lms.items()}
    run_ids = new_run_ids()
    runs = [
        CaseRun(name, lm, case, next(run_ids), CaseResult(case, "", outcome=NOT_RUN, asked=asked))
        for case in checked
        for asked in [case_as_json(types, case)]
        for name, lm in ready.items()
    ]
    scoring = Scoring(types, metric, node_metrics)
    runner = CaseRunner(types, scoring, journal, max_iters, timeout, dep_cache, answer)
    evaluating = _Evaluating(runs, runner, concurrency, progress)
    with budget or nullcontext():
        await evaluating.run(len(lms) if scoring.asks(checked[0]) else 0, stop)

    def make_evaluation() -> Evaluation:
        by_name = {name: [run for run in runs if run.contender == name] for name in lms}
        contenders = contenders_of(by_name, types.names)
        differences = differences_of(contenders)
        file = str(getattr(journal, "path", ""))
        return Evaluation(graph.name, contenders, differences, file, evaluating.stopped)

    return await in_thread(make_evaluation)


class _Ended(Exception):
    """Every case has run, or the evaluation was stopped."""


class _Evaluating:
    """Workers that share the runs of an evaluation."""

    def __init__(
        self,
        runs: Sequence[CaseRun],
        runner: CaseRunner,
        concurrency: int,
        progress: Progressing | None,
    ) -> None:
        self._runs = runs
        self._runner = runner
        self._concurrency = concurrency
        self._progress = progress
        self._finished = 0
        self.stopped = ""
        """Why the evaluation was stopped before all cases had run. Empty if it was not stopped."""

    async def run(self, first: int, stop: asyncio.Event | None) -> None:
        """Run all cases, until the evaluation is stopped. Finish the first `first` runs, which are
        the runs of the first case, before other runs start."""

        async def work() -> None:
            await self._run_shared(self._runs[:first])
            self._refuse_failing_metric(self._runs[:first])
            await self._run_shared(self._runs[first:])
            raise _Ended

        async def watch() -> None:
            if stop is not None:
                await stop.wait()
                self.stopped = self.stopped or STOPPED
                raise _Ended

        with suppress(_Ended):
            await all_or_first_error([work, watch])
        for run in self._runs:
            if not run.result.run_id:
                run.result = replace(run.result, error=self.stopped)

    async def _run_shared(self, runs: Sequence[CaseRun]) -> None:
        waiting = iter(runs)
        workers = min(self._concurrency, len(runs))
        await all_or_first_error([lambda: self._work(waiting)] * workers)

    def _refuse_failing_metric(self, first: Sequence[CaseRun]) -> None:
        """Raise the metric's error if the metric failed for every contender of the first case."""
        errors = [run.metric_error for run in first if run.metric_error is not None]
        results = [run.result for run in first]
        if errors and not any(
            result.outcome == "ended" and not result.metric_error for result in results
        ):
            raise errors[0]

    async def _work(self, waiting: Iterator[CaseRun]) -> None:
        for run in waiting:
            if self.stopped:
                return
            await self._runner.run(run)
            if run.result.outcome == NOT_RUN:
                self.stopped = self.stopped or run.result.error
            else:
                self._finished += 1
                self._report_progress(run)

    def _report_progress(self, run: CaseRun) -> None:
        progress = self._progress
        if progress is None:
            return
        try:
            progress(self._finished, len(self._runs), run.contender, run.result)
        except Exception:  # the caller's display must not break the evaluation
            self._progress = None
            _log.warning("progress=%r raised, and is not called again", progress, exc_info=True)


def _label_cases(cases: Iterable[Case]) -> Iterator[Checked]:
    if isinstance(cast(object, cases), str):
        raise TypeError(f"evaluate(graph, {cases!r}, …): load cases with load_cases(file, graph)")
    for number, item in enumerate(cases, 1):
        if not isinstance(cast(object, item), Case):
            yield f"case {number}", None, [f"give a Case, and not {short(item)}"]
            continue
        case = item if item.name else replace(item, name=f"case {number}")
        yield str(case.name), case, []


def _prepare_lm(lm: Contending) -> Contending:
    """Return the LM for an LM name, so that a missing LM is reported before the first run. A script
    stays a name, because it starts from its beginning in each run."""
    if not isinstance(lm, str):
        return lm
    prepared = cached_lm(lm)
    return lm if lm.strip().startswith("scripted:") else prepared


# --- arguments, checked before the first run, so that mistakes cost nothing -------------------


def _check_lms(lms: object) -> None:
    if not isinstance(lms, Mapping) or not lms:
        raise TypeError(
            f"evaluate(lms={short(cast(object, lms))}): give one LM or more by their names in "
            'tables, as {"local": "local"}'
        )
    for name, lm in cast(Mapping[object, object], lms).items():
        usable = not isinstance(lm, type) and (callable(lm) or is_lm(lm))
        if lm is not None and not isinstance(lm, str) and not usable:
            raise TypeError(
                f"evaluate(lms={{{name!r}: {short(lm)}}}): give an LM, the name of one, a "
                "function that makes one for each run, or None for the default LM"
            )


def check_metrics(graph: Graph[Any, Any], metric: object, node_metrics: object) -> None:
    """Raise `TypeError` if an evaluation of the graph cannot call the metric of cases or the
    metrics of nodes."""
    if isinstance(metric, Judge) or metric is fields_metric:
        raise TypeError(
            "this metric compares two nodes, but the metric of an evaluation gets a case and the "
            "result of its run: give this metric for the class to score, as {Reply: judge}"
        )
    if metric is not None and not takes_arguments(metric, 2):
        raise TypeError(
            f"the metric is {short(metric)}: give a function of a case and the result of its run, "
            "as def exact(case, result)"
        )
    check_node_metrics(graph, {} if node_metrics is None else node_metrics)


def check_node_metrics(graph: Graph[Any, Any], metrics: object) -> None:
    """Raise `TypeError` unless `metrics` maps node classes of the graph to functions of two
    nodes."""
    if not isinstance(metrics, Mapping):
        raise TypeError(f"{short(metrics)}: give metrics by the class of the node, {{Reply: same}}")
    nodes = every_node(graph)
    for cls, function in cast("Mapping[Any, Any]", metrics).items():
        if cls not in nodes:
            # Show module names, because a file may be imported twice under two names.
            class_names = ", ".join(f"{node.__module__}.{node.__qualname__}" for node in nodes)
            raise TypeError(
                f"there is a metric for {cls!r}, and the nodes of the graph are {class_names}"
            )
        if not takes_arguments(function, 2):
            raise TypeError(
                f"the metric for {cls.__name__} is {short(function)}: give a function of the "
                "expected node and the given one, as def same(expected, given)"
            )


def takes_arguments(function: object, count: int) -> bool:
    """Whether `function` can be called with `count` arguments."""
    if not callable(function) or isinstance(function, type):
        return False
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # its parameters are unknown
        pass
    return True
