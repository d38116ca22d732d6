"""Running a graph over cases with one LM or several: bounded workers that share a list of jobs,
until all is done or somebody stops it. `case_runs.py` does one case, `rows.py` sums up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bae.evals.arguments import check_given, check_metrics
from bae.evals.case_runs import CaseRuns, Contending, Job, Options
from bae.evals.cases import Case, CaseMetric
from bae.evals.fitting import Fitting, fitted
from bae.evals.measuring import measure
from bae.evals.report import CaseResult, Evaluation
from bae.evals.rows import Done, contender_of, differences_of, with_equal_rows
from bae.evals.run_ids import eval_run_id, new_stamp
from bae.evals.scoring import Scoring
from bae.evals.shown import case_as_json
from bae.tasks import all_or_first_error
from bae.threads import in_thread

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal import Journal
    from bae.lm.policies.budget import Budget
    from bae.node import Node
    from bae.optimizer.metrics import NodeMetric
    from bae.run import Answer

__all__ = ["CaseMetric", "Progressing", "evaluate"]

Progressing = Callable[[int, int, str, CaseResult], object]
"""What is told of each case that is over: how many are, of how many, whose, and how it came out."""

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
    answer: Answer | None = None,
    stop: asyncio.Event | None = None,
) -> Evaluation:
    """Run a graph over cases with each of the `lms`, and say how good each is, how valid, how dear
    and how fast: in total, per node class, and each against the first.

    - `cases`: from `load_cases`, or your own. They are checked against the graph before one runs.
    - `lms`: the contenders by the names that tables call them: LMs, or names of LMs; None is the
      LM that a run without one would use. A script, `"scripted:FILE.json"`, begins anew for each
      run; and so does what a function makes that is given in place of an LM. A node class with an
      LM of its own keeps that.
    - `metric`: `(case, result) -> score` from 0 to 1, or a `Score` that says why; async or not.
      Without one, a case's own `metric` counts; or else the mean of all that it expects, of the
      end and of each class under `nodes`, by their fields: see `fields_metric`. A node that was not
      reached counts 0, and a case that expects nothing scores 1 for ending.
    - `node_metrics`: `(expected node, given node) -> score` by node class, where a case expects
      fields of such a node, of the end too; others are scored by their expected fields. They take
      part in that mean.
    - `journal`: where the runs are kept, as `eval-…`, so that a failing case can be looked at.
    - `concurrency` bounds how many cases run at once, over all contenders. Cases are begun in
      their order, each with all contenders, so that what is done when the evaluation is stopped
      can be compared.
    - `max_iters`, `answer`: as for `graph.arun`. Values in `dep_cache` are given to every run, and
      what a run adds is its own.
    - `timeout`: the seconds that a case may take, and its metric as many. Times are on the clock:
      where cases wait for their turn at an LM that is part of them, which `concurrency=1` avoids.
    - `budget`: for all of it, the LM calls of a metric too. When it runs out no further case is
      begun, and those that were not run to their end are marked as such and are not scored.
    - `progress` is told of each case as it is over.
    - `stop`: set it to end early. What is under way is cancelled and marked as not run.

    A case that fails, by an error, by its time or at a gate, scores 0 and keeps its run id. A run
    that waits at a gate stands as failed in its journal, so that nobody is asked for it.

    Where a metric raises, or a judge cannot be asked, the case is left without a score: see
    `Evaluation.complete` and `metric_errors`. So that a mistake in a metric costs little, the first
    case is run first, and where a metric raises for every contender the evaluation ends with that
    (`bae-metric-failed`, `bae-metric-score`). What is given is checked before anything runs, and so
    is the LM of a `Judge`.
    """
    check_given(graph, cases, lms)
    if concurrency < 1 or not timeout > 0:
        raise ValueError(
            f"evaluate(concurrency={concurrency!r}, timeout={timeout!r}): give one case or more at "
            "once, and a time above 0"
        )
    graph.prove()
    fitting, checked = fitted(graph, cases)
    by_node = check_metrics(fitting, checked, metric, node_metrics)
    scoring = Scoring(fitting, metric, by_node)
    evaluating = _Evaluating(
        fitting,
        checked,
        {name: _ready(lm) for name, lm in lms.items()},
        CaseRuns(fitting, scoring, Options(journal, max_iters, timeout, dep_cache, answer)),
        progress,
        str(getattr(journal, "path", "")),
        first_alone=scoring.asks(checked[0]),
    )
    with budget or nullcontext():
        await evaluating.run(concurrency, stop)
    return await in_thread(evaluating.evaluation)


class _Stopped(Exception):
    """The evaluation is to end early."""


class _Over(Exception):
    """Every case is over."""


class _Evaluating:
    def __init__(
        self,
        fitting: Fitting,
        cases: list[Case],
        lms: Mapping[str, Contending],
        runs: CaseRuns,
        progress: Progressing | None,
        journal: str,
        *,
        first_alone: bool,
    ) -> None:
        self._fitting = fitting
        self._runs = runs
        self._progress = progress
        self._journal = journal
        self._names = list(lms)
        stamp = new_stamp()
        pairs = [(case, name) for case in cases for name in lms]
        self._jobs = [
            Job(name, lms[name], case, eval_run_id(stamp, number))
            for number, (case, name) in enumerate(pairs, 1)
        ]
        self._first = self._jobs[: len(lms)] if first_alone else []
        self._asked = {case.name: case_as_json(fitting, case) for case in cases}
        self._done: dict[str, Done] = {}
        self._over = 0
        self._stopped = ""

    async def run(self, concurrency: int, stop: asyncio.Event | None) -> None:
        """Run all jobs, or those until the evaluation is stopped."""

        async def work() -> None:
            first = len(self._first)
            await self._share(self._first, concurrency)
            self._refuse_mistaken_metric()
            await self._share(self._jobs[first:], concurrency)

        if stop is None:
            await work()
            return

        async def to_the_end() -> None:
            await work()
            raise _Over

        async def watch() -> None:
            await stop.wait()
            raise _Stopped

        try:
            await all_or_first_error([to_the_end, watch])
        except _Over:
            pass
        except _Stopped:
            self._stopped = self._stopped or _WAS_STOPPED

    def evaluation(self) -> Evaluation:
        """What was found."""
        found = [
            contender_of(
                name,
                [self._said(job) for job in self._jobs if job.contender == name],
                self._fitting.names,
            )
            for name in self._names
        ]
        contenders = with_equal_rows(found, list(self._fitting.names.values()))
        apart = differences_of(contenders)
        name = self._fitting.graph.name
        return Evaluation(name, contenders, apart, self._journal, self._stopped)

    async def _share(self, jobs: Sequence[Job], concurrency: int) -> None:
        waiting = iter(jobs)
        await all_or_first_error([lambda: self._work(waiting)] * min(concurrency, len(jobs)))

    def _refuse_mistaken_metric(self) -> None:
        """Raise what the metric raised, where it did so for all contenders of the first case that
        came to its end."""
        done = [self._done[job.run_id].result for job in self._first if job.run_id in self._done]
        errors = [job.metric_error for job in self._first if job.metric_error is not None]
        if errors and not any(r.outcome == "ended" and not r.metric_error for r in done):
            raise errors[0]

    async def _work(self, waiting: Iterator[Job]) -> None:
        for job in waiting:
            if self._stopped:
                return
            try:
                result = await self._runs.result(job)
            except BaseException:
                self._keep(job, job.not_run(_WAS_STOPPED))
                raise
            self._keep(job, result)
            if result.outcome == "not run":
                self._stopped = self._stopped or result.error
            else:
                self._over += 1
                self._tell(job)

    def _keep(self, job: Job, result: CaseResult) -> None:
        run = measure(job.records)
        told = replace(result, usage=run.usage, asked=self._asked[job.case.name])
        self._done[job.run_id] = Done(told, run)
        job.forget()

    def _said(self, job: Job) -> Done:
        found = self._done.get(job.run_id)
        if found is not None:
            return found
        asked = self._asked[job.case.name]
        return Done(replace(job.not_run(self._stopped), run_id="", asked=asked), None)

    def _tell(self, job: Job) -> None:
        progress = self._progress
        if progress is None:
            return
        try:
            progress(self._over, len(self._jobs), job.contender, self._done[job.run_id].result)
        except Exception:
            self._progress = None
            _log.warning("progress=%r raised, and is not called again", progress, exc_info=True)


def _ready(lm: Contending) -> Contending:
    """An LM that a run can be given. A name is made one now, so that what is missing for it is
    said once; a script stays a name, since each run begins it anew."""
    if not isinstance(lm, str):
        return lm
    from bae.lm.registry import cached_lm

    made = cached_lm(lm)
    return lm if lm.strip().startswith("scripted:") else made


_WAS_STOPPED = "it was stopped"
