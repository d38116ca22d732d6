"""One case with one contender: its run, timed and recorded, and its score. An error of the run is
the result of the case; an error that is not the fault of the case is raised."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from os import urandom
from time import gmtime, perf_counter, strftime
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from pydantic import ValidationError

from bae.evals.measures import measure
from bae.evals.metrics import Score
from bae.evals.report import CaseResult, as_json
from bae.evals.scoring import NOT_REACHED
from bae.exceptions import BaeError, BudgetError, GateError, JournalError, describe
from bae.journal.node_codec import node_codec
from bae.language_model import is_lm
from bae.lm.policies.budget import budgets_in_force
from bae.node import Node
from bae.observers import ObservedRun, observing
from bae.records import Record, TextArrived
from bae.secrets import Secrets, secret_fields
from bae.tasks import cancellations, explained, finish_despite_cancel
from bae.usage import Usage, metered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bae.evals.case_types import CaseTypes
    from bae.evals.cases import Case
    from bae.evals.scoring import Scoring
    from bae.journal import Journal
    from bae.journal.store import Claim
    from bae.lm import LM
    from bae.markers import OpenGate
    from bae.result import GraphResult
    from bae.run import Answer

Contending: TypeAlias = "LM | str | Callable[[], LM] | None"
"""An LM, the name of one, a function that makes one for each run, or None for the default LM of
runs."""


def new_stamp() -> str:
    """What the run ids of one evaluation have in common, and no other's have."""
    return f"{strftime('%Y%m%d-%H%M%S', gmtime())}-{urandom(3).hex()}"


def eval_run_id(stamp: str, number: int) -> str:
    """The id of a run of an evaluation."""
    return f"eval-{stamp}-{number}"


def is_eval_run(run_id: str) -> bool:
    """Whether a run belongs to an evaluation; one that a user named `eval-monday` does not."""
    return re.fullmatch(r"eval-\d{8}-\d{6}-[0-9a-f]{6}-\d+", run_id) is not None


@dataclass(frozen=True, slots=True)
class Options:
    """The options of every run of an evaluation."""

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

    def observe(self, run: ObservedRun, record: Record) -> None:
        """Take a record of the run."""
        # A body may run graphs of its own, which are other runs.
        if run.run_id == self.run_id and not isinstance(record, TextArrived):
            self.records.append(record)

    def not_run(self, why: str) -> CaseResult:
        """The result of a case that was not run to its end."""
        return CaseResult(self.case, self.run_id, outcome="not run", error=why)

    def forget(self) -> None:
        """Free the run, which may be large."""
        self.records.clear()
        self.result = None


class CaseRuns:
    """Runs and scores cases."""

    def __init__(self, types: CaseTypes, scoring: Scoring, options: Options) -> None:
        self._types = types
        self._scoring = scoring
        self._options = options
        self._hides = Secrets.of(types.graph).any

    async def result(self, job: Job) -> CaseResult:
        """Run a case and score it. It is "not run" if a budget around the evaluation is spent.

        Raises what is not the fault of the case: a run that cannot start, a journal that cannot be
        written.
        """
        error = await self._run(job)
        if spent := _spent_by(error):
            return job.not_run(spent.message)
        result = CaseResult(job.case, job.run_id, seconds=job.seconds)
        if error is not None:
            why = _described(error, self._hides)
            result = replace(result, outcome="failed", score=0.0, error=why)
        elif job.result is not None:
            result = replace(result, end=node_as_json(self._types, job.result.result))
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
        """Run the case, keep its records and its time, and return the error that it failed with."""
        options = self._options
        bound = asyncio.timeout(options.timeout)
        late = TimeoutError(f"the case took longer than {options.timeout:g} s")
        task = asyncio.current_task()
        assert task is not None
        # The journal keeps a run that is out of time as failed, not as cancelled.
        explained(task, lambda _: late if bound.expired() else None)
        began = perf_counter()
        try:
            with observing(job.observe, patience=inf):
                async with bound:
                    job.result = await self._types.graph.arun(
                        self._types.start(job.case.inputs),
                        _lm_for_run(job.lm),
                        options.max_iters,
                        answer=self._types.answerer(job.case, options.answer),
                        dep_cache=None if options.dep_cache is None else dict(options.dep_cache),
                        journal=options.journal,
                        run_id=job.run_id,
                    )
        except JournalError as error:
            if error.code != "bae-journal-field":  # about a value of the run
                raise  # about the store: the next run cannot be kept either
            return error
        except asyncio.CancelledError as error:
            if cancellations():
                raise
            return error  # raised by the case's own code: a failure like any other
        except Exception as error:
            if bound.expired():
                return late
            if not job.records:
                raise  # no run has started: it is not the case's fault
            return error
        finally:
            job.seconds = perf_counter() - began
            explained(task, lambda _: None)
        if job.result.waiting:
            met = _gate_met(job.result.waiting)
            job.result = None
            if options.journal is not None:
                await _fail_parked(options.journal, job.run_id, met)
            return met
        return None

    async def _scored(self, job: Job, result: CaseResult) -> CaseResult:
        """The result with its score, and those of its nodes. What a metric cannot score has no
        score; the rest is scored all the same."""
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
            if (found := await known(scoring.of_named(case, name, run))) is not None:
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
                why = _described(errors[-1], self._hides)
                result = _unscored(result, f"it could not be scored: {why}")
        if end is not None and (name := scoring.end_of(case)):
            nodes[name] = end
        for name, choice in scoring.of_choices(case, run).items():
            nodes[name] = _both(nodes[name], choice) if name in nodes else choice
        job.metric_error = next((e for e in errors if e.code in _OF_METRICS), None)
        metric_error = "" if job.metric_error is None else _described(job.metric_error, self._hides)
        return replace(result, nodes=nodes, metric_error=metric_error)


_CAUSES: Final = 4
_OF_METRICS: Final = ("bae-metric-failed", "bae-metric-score")


def _spent_by(error: BaseException | None) -> BudgetError | None:
    """The error of a budget around the evaluation, if that is the error or its cause."""
    while error is not None:
        if isinstance(error, BudgetError) and error.budget in budgets_in_force():
            return error
        error = error.__cause__
    return None


def _unscored(result: CaseResult, why: str) -> CaseResult:
    if result.failed:  # it scores 0 anyway; only the scores of its nodes are unknown
        return result
    return replace(result, outcome="unscored", score=None, error=why)


def _lm_for_run(given: Contending) -> LM | str | None:
    if callable(given) and not is_lm(given):
        return given()
    return cast("LM | str | None", given)


def _both(fields: Score, choice: Score) -> Score:
    why = "; ".join(filter(None, (fields.why, choice.why)))
    return Score((fields.value + choice.value) / 2, why)


def _described(error: BaseException, hides: bool) -> str:
    """An error in one line, with its causes. If the graph has secrets (`hides`), the messages of
    causes are left out, since they may quote one."""
    causes = [describe(error)]
    cause = error.cause if isinstance(error, BaeError) else None
    while cause is not None and len(causes) < _CAUSES:
        text = type(cause).__name__ if hides else describe(cause)
        # What is wrong with the fields of an answer is in the error itself.
        if not isinstance(cause, ValidationError) or text.partition(": ")[2] not in causes[-1]:
            causes.append(text)
        cause = cause.cause if isinstance(cause, BaeError) else None
    return "; caused by ".join(causes)


# --- runs that wait for a person --------------------------------------------------------------


def _gate_met(gates: Sequence[OpenGate]) -> GateError:
    """The error of a case that waits for a person."""
    questions = "; ".join(f"{gate.place}: {gate.question}" for gate in gates)
    return GateError(
        f"the run waits for a person: {questions} (give the case its answers, as "
        f'"answers": {{"{gates[0].place}": …}})',
        gates=gates,
        fix="give the case answers, or evaluate an async answer=…",
    )


async def _fail_parked(journal: Journal, run_id: str, error: GateError) -> None:
    """Mark a run that waits as failed, so that it does not stay in the queue of gates."""

    async def failed() -> None:
        claim: Claim = await journal.claim(run_id)
        await journal.release(claim, "failed", (), (), describe(error))

    try:
        # A claim that is never released would keep the run from other processes.
        await finish_despite_cancel(failed())
    except JournalError as raised:
        if raised.code not in ("bae-run-owned", "bae-run-ended"):  # someone has answered it
            raise


# --- cases and nodes in reports ---------------------------------------------------------------


def case_as_json(types: CaseTypes, case: Case) -> dict[str, Any]:
    """What a case starts with and expects, without secrets: `input`, `expected`, `expected_type`,
    `nodes` and `answers`, each if there is one."""
    if isinstance(case.inputs, Node):
        found: dict[str, Any] = {"input": node_as_json(types, case.inputs)["fields"]}
    else:
        found = {"input": _shown(case.inputs, [types.graph.start], types)}
    if case.expected is not None:
        end = types.expected_end(case)
        ends = types.graph.terminal_nodes if end is None else (end,)
        found["expected"] = _shown(case.expected, ends, types)
    if case.expected_type:
        found["expected_type"] = case.expected_type
    if case.nodes:
        found["nodes"] = {
            name: _shown(fields, [cls], types) if (cls := types.named(name)) else {}
            for name, fields in case.nodes.items()
        }
    if case.answers:
        gates = {place: types.gates[place] for place in case.answers if place in types.gates}
        found["answers"] = {
            place: as_json(case.answers[place])
            for place, (cls, name) in gates.items()
            if name not in secret_fields(cls)
        }
    return found


def node_as_json(types: CaseTypes, node: Node) -> dict[str, Any]:
    """A node as `{"type": …, "fields": {…}}`; `withheld` names the secret fields that are left
    out, if there are any."""
    cls = type(node)
    codec = node_codec(cls)
    try:
        dumped: dict[str, Any] = json.loads(codec.dump(node))
        fields, withheld = dumped["fields"], dumped.get("withheld", ())
    except Exception:  # a value that no journal can keep
        held = {n: v for n, v in node.__dict__.items() if n not in codec.live}
        withheld = [name for name in held if name in codec.secret]
        fields = {n: as_json(v) for n, v in held.items() if n not in withheld}
    found: dict[str, Any] = {"type": types.names.get(cls, cls.__name__), "fields": fields}
    return {**found, "withheld": [*withheld]} if withheld else found


def _shown(
    given: Mapping[str, Any], classes: Iterable[type[Node]], types: CaseTypes
) -> dict[str, Any]:
    """Fields as JSON, without those that are a secret of one of the classes."""
    hidden = {
        name
        for cls in classes
        for name in given
        if any(each in secret_fields(cls) for each in types.by_field(cls, {name: 0}))
    }
    return {name: as_json(value) for name, value in given.items() if name not in hidden}
