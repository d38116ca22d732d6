"""One case with one contender: its run, timed and listened to, and its score. What the run raises
is how the case came out; what no case is to blame for is raised. `evaluating.py` has many done at
once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from pydantic import ValidationError

from bae.evals.answering import answerer
from bae.evals.cases import Case
from bae.evals.measuring import measure
from bae.evals.parked import fail_parked, gate_met
from bae.evals.report import CaseResult
from bae.evals.scoring import NOT_REACHED
from bae.evals.shown import node_as_json
from bae.exceptions import BaeError, BudgetError, JournalError, describe
from bae.language_model import is_lm
from bae.lm.policies.budget import budgets_in_force
from bae.observers import ObservedRun, observing
from bae.optimizer.scores import Score
from bae.records import Record, TextArrived
from bae.secrets import Secrets
from bae.tasks import cancellations, explained
from bae.usage import Usage, metered

if TYPE_CHECKING:
    from bae.evals.fitting import Fitting
    from bae.evals.scoring import Scoring
    from bae.journal import Journal
    from bae.lm import LM
    from bae.result import GraphResult
    from bae.run import Answer

Contending: TypeAlias = "LM | str | Callable[[], LM] | None"
"""An LM, the name of one, a function that makes one for each run, or None for the LM of runs that
are given none."""


@dataclass(frozen=True, slots=True)
class Options:
    """What every run of an evaluation is given."""

    journal: Journal | None
    max_iters: int
    timeout: float
    dep_cache: Mapping[Any, Any] | None
    answer: Answer | None


@dataclass(slots=True)
class Job:
    """One case with one contender, and what is known of its run."""

    contender: str
    lm: Contending
    case: Case
    run_id: str
    records: list[Record] = field(default_factory=list[Record])
    result: GraphResult[Any] | None = None
    seconds: float = 0.0
    metric_error: BaeError | None = None

    def hear(self, run: ObservedRun, record: Record) -> None:
        """Take a record of the run."""
        # A body may run graphs of its own, which are not this one.
        if run.run_id == self.run_id and not isinstance(record, TextArrived):
            self.records.append(record)

    def not_run(self, why: str) -> CaseResult:
        """The result of a case that was not run to its end."""
        return CaseResult(self.case, self.run_id, outcome="not run", error=why)

    def forget(self) -> None:
        """Let go of the run: it may hold much, and there are many."""
        self.records.clear()
        self.result = None


class CaseRuns:
    """Does cases, one at a time for each who asks."""

    def __init__(self, fitting: Fitting, scoring: Scoring, options: Options) -> None:
        self._fitting = fitting
        self._scoring = scoring
        self._options = options
        self._hides = Secrets.of(fitting.graph).any

    async def result(self, job: Job) -> CaseResult:
        """Run a case and score it. It is "not run" where a budget around the evaluation is spent.

        Raises what no case is to blame for: a run that cannot begin, a journal that cannot be
        written.
        """
        error = await self._run(job)
        if spent := _spent_by(error):
            return job.not_run(spent.message)
        result = CaseResult(job.case, job.run_id, seconds=job.seconds)
        if error is not None:
            result = replace(result, outcome="failed", score=0.0, error=_told(error, self._hides))
        elif job.result is not None:
            result = replace(result, end=node_as_json(self._fitting, job.result.result))
        with metered() as used:
            try:
                async with asyncio.timeout(self._options.timeout):
                    result = await self._scored(job, result)
            except TimeoutError:
                late = f"the metric took longer than {self._options.timeout:g} s"
                result = _unscored(result, late)
            except BaeError as raised:
                spent = _spent_by(raised)
                if spent is None:
                    raise
                result = job.not_run(spent.message)
        return replace(result, judging=Usage.total(used))

    async def _run(self, job: Job) -> BaseException | None:
        """Run the case, with its records and its time kept; answers what it failed with."""
        options = self._options
        bound = asyncio.timeout(options.timeout)
        late = TimeoutError(f"the case took longer than {options.timeout:g} s")
        task = asyncio.current_task()
        assert task is not None
        # For the journal, a run that is out of time has failed: nobody has just given it up.
        explained(task, lambda _: late if bound.expired() else None)
        began = perf_counter()
        try:
            with observing(job.hear, patience=inf):
                async with bound:
                    job.result = await self._fitting.graph.arun(
                        self._fitting.start(job.case.inputs),
                        _lm_for_run(job.lm),
                        options.max_iters,
                        answer=answerer(self._fitting, job.case, options.answer),
                        dep_cache=None if options.dep_cache is None else dict(options.dep_cache),
                        journal=options.journal,
                        run_id=job.run_id,
                    )
        except JournalError as error:
            if error.code not in _OF_VALUES:
                raise  # the LM has no part in it, and the next run cannot be kept either
            return error
        except asyncio.CancelledError as error:
            if cancellations():
                raise
            return error  # raised by the case's own code: a failure like any other
        except Exception as error:
            if bound.expired():
                return late
            if not job.records:
                raise  # no run has begun: it is not the case's fault
            return error
        finally:
            job.seconds = perf_counter() - began
            explained(task, lambda _: None)
        if job.result.waiting:
            met = gate_met(job.result.waiting)
            job.result = None
            if options.journal is not None:
                await fail_parked(options.journal, job.run_id, met)
            return met
        return None

    async def _scored(self, job: Job, result: CaseResult) -> CaseResult:
        """The result with its score, and those of its nodes. What one metric cannot score is left
        without a score, and the rest is scored all the same."""
        scoring, case, run = self._scoring, job.case, measure(job.records)
        nodes: dict[str, Score] = {}
        errors: list[BaeError] = []

        async def known(score: Awaitable[Score]) -> Score | None:
            try:
                return await score
            except BaeError as error:
                if _spent_by(error):
                    raise
                errors.append(error)
                return None

        for name in case.nodes:
            if (found := await known(scoring.of_node(case, name, run))) is not None:
                nodes[name] = found
        end: Score | None = Score(0.0, NOT_REACHED)
        if (ended := job.result) is not None:
            whole: Score | None = None
            if (by_metric := scoring.by_metric(case, ended)) is not None:
                whole = await known(by_metric)
            else:
                end = await known(scoring.of_end(case, ended))
                if end is not None and not errors:
                    whole = scoring.together(case, ended, end, nodes)
            if whole is not None:
                result = replace(result, score=whole.value, why=whole.why)
            else:
                result = _unscored(
                    result, f"it could not be scored: {_told(errors[-1], self._hides)}"
                )
        if end is not None and (name := scoring.end_of(case)):
            nodes[name] = end
        for name, choice in scoring.of_choices(case, run).items():
            nodes[name] = _both(nodes[name], choice) if name in nodes else choice
        job.metric_error = next((e for e in errors if e.code in _OF_METRICS), None)
        told = "" if job.metric_error is None else _told(job.metric_error, self._hides)
        return replace(result, nodes=nodes, metric_error=told)


def _spent_by(error: BaseException | None) -> BudgetError | None:
    """The error of a budget around the evaluation, where that is the error or the cause of it."""
    while error is not None:
        if isinstance(error, BudgetError) and error.budget in budgets_in_force():
            return error
        error = error.__cause__
    return None


def _unscored(result: CaseResult, why: str) -> CaseResult:
    if result.failed:  # it scores 0 as it is; what is not known are the scores of its nodes
        return result
    return replace(result, outcome="unscored", score=None, error=why)


def _lm_for_run(given: Contending) -> LM | str | None:
    if callable(given) and not is_lm(given):
        return given()
    return cast("LM | str | None", given)


def _both(fields: Score, choice: Score) -> Score:
    """The score of a node of which the fields and the choice are known."""
    why = "; ".join(filter(None, (fields.why, choice.why)))
    return Score((fields.value + choice.value) / 2, why)


def _told(error: BaseException, hides: bool) -> str:
    """An error in one line, with what caused it, since that is mostly what is to be mended. Where a
    graph has secrets that `hides` the words of a cause, which may quote one."""
    said = [describe(error)]
    cause = error.cause if isinstance(error, BaeError) else None
    while cause is not None and len(said) < _CAUSES:
        told = type(cause).__name__ if hides else describe(cause)
        # What is wrong with the fields of an answer stands in the error itself.
        if not isinstance(cause, ValidationError) or told.partition(": ")[2] not in said[-1]:
            said.append(told)
        cause = cause.cause if isinstance(cause, BaeError) else None
    return "; caused by ".join(said)


_CAUSES: Final = 4
_OF_METRICS: Final = ("bae-metric-failed", "bae-metric-score")
_OF_VALUES: Final = ("bae-journal-field",)
"""What a journal says of a value that a run has come to; all else is about the store."""
