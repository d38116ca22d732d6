"""Run and score one case with one contender. If the run fails, its error is the result of the case.
An error that the case did not cause is raised."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from os import urandom
from time import gmtime, perf_counter, strftime
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from pydantic import ValidationError

from bae.evals.report import CaseResult, as_json
from bae.evals.scoring import Measures, NodeMeasure, Scored, Scoring, measure
from bae.exceptions import BaeError, BudgetError, GateError, JournalError, describe
from bae.journal.node_codec import node_codec
from bae.language_model import is_lm
from bae.lm.policies.budget import budgets_in_force
from bae.node import Node
from bae.observers import ObservedRun, observing
from bae.records import ClassMet, Record
from bae.secrets import Secrets, secret_fields
from bae.tasks import cancellations, explain_cancellation, finish_despite_cancel
from bae.usage import Usage, metered

if TYPE_CHECKING:
    from bae.evals.case_types import CaseTypes
    from bae.evals.cases import Case
    from bae.journal import Journal
    from bae.journal.stored_runs import Claim
    from bae.lm import LM
    from bae.markers import OpenGate
    from bae.result import GraphResult
    from bae.run import GateAnswerer

Contending: TypeAlias = "LM | str | Callable[[], LM] | None"
"""An LM, the name of an LM, a function that makes an LM for each run, or None for the default
LM."""


def new_run_ids() -> Iterator[str]:
    """Return an endless iterator of unique run ids for one evaluation."""
    stamp = f"{strftime('%Y%m%d-%H%M%S', gmtime())}-{urandom(3).hex()}"
    return (f"eval-{stamp}-{number}" for number in count(1))


def is_eval_run(run_id: str) -> bool:
    """Whether a run belongs to an evaluation. An id that a user chose, such as `eval-monday`, does
    not count."""
    return re.fullmatch(r"eval-\d{8}-\d{6}-[0-9a-f]{6}-\d+", run_id) is not None


@dataclass(slots=True)
class CaseRun:
    """One case with one contender."""

    contender: str
    lm: Contending
    case: Case
    run_id: str
    result: CaseResult
    """The result. Its outcome is "not run" until the case has run."""
    nodes: Measures = field(default_factory=dict["type[Node]", NodeMeasure])
    """The measured LM work of each node class."""
    metric_error: BaeError | None = None


@dataclass(frozen=True, slots=True)
class CaseRunner:
    """Runs and scores cases, all with the same options."""

    types: CaseTypes
    scoring: Scoring
    journal: Journal | None
    max_iters: int
    timeout: float
    dep_cache: Mapping[Any, Any] | None
    answer: GateAnswerer | None

    async def run(self, job: CaseRun) -> None:
        """Run a case and score it. If a budget around the evaluation is spent, or if the task is
        cancelled, the outcome stays "not run".

        Errors that the case did not cause are raised, for example if a run cannot start or the
        journal cannot be written.
        """
        records: list[Record] = []
        began = perf_counter()
        try:
            ended, error = await self._run(job, records)
        finally:
            job.nodes = measure(records)
            job.result = replace(
                job.result,
                run_id=job.run_id,
                seconds=perf_counter() - began,
                usage=Usage.total(node.usage for node in job.nodes.values()),
                tool_calls=sum(node.tool_calls for node in job.nodes.values()),
                error=STOPPED,
            )
        scored, unscored = Scored(), ""
        with metered() as used:
            try:
                async with asyncio.timeout(self.timeout):
                    if not _find_spent_budget(error):
                        scored = await self.scoring.score(job.case, ended, job.nodes)
            except TimeoutError:
                unscored = f"the metric took longer than {self.timeout:g} s"
        result = replace(job.result, judging=Usage.total(used))
        spent = [
            text for failure in (error, *scored.errors) if (text := _find_spent_budget(failure))
        ]
        if spent:
            job.result = replace(result, error=spent[0])
            return
        has_secret_class = any(isinstance(record, ClassMet) for record in records)
        hides = has_secret_class or Secrets.of(self.types.graph).any
        if scored.errors:
            result = replace(result, scoring_error=_describe_chain(scored.errors[-1], hides))
            unscored = f"it could not be scored: {result.scoring_error}"
        job.metric_error = next(
            (error_ for error_ in scored.errors if error_.code in _OF_METRICS), None
        )
        if job.metric_error is not None:
            result = replace(result, metric_error=_describe_chain(job.metric_error, hides))
        result = replace(result, nodes=scored.nodes)
        if ended is not None:
            result = replace(result, end=node_as_json(self.types, ended.result))
        if error is not None:
            why = _describe_chain(error, hides)
            result = replace(result, outcome="failed", score=0.0, error=why)
        elif scored.total is None:
            result = replace(result, outcome="unscored", error=unscored)
        else:
            score, why = scored.total.value, scored.total.why
            result = replace(result, outcome="ended", score=score, why=why, error="")
        job.result = result

    async def _run(
        self, job: CaseRun, records: list[Record]
    ) -> tuple[GraphResult[Any] | None, BaseException | None]:
        """Run the case. Return the result, or the error of the failed run."""

        def observe(run: ObservedRun, record: Record) -> None:
            # A body may run other graphs. Their runs are not recorded here.
            if run.run_id == job.run_id and record.stored:
                records.append(record)

        bound = asyncio.timeout(self.timeout)
        late = TimeoutError(f"the case took longer than {self.timeout:g} s")
        task = asyncio.current_task()
        assert task is not None
        # After a timeout, the journal must mark the run as failed, not as cancelled.
        explain_cancellation(task, lambda _: late if bound.expired() else None)
        try:
            with observing(observe, patience=inf):
                async with bound:
                    result = await self.types.graph.arun(
                        self.types.start(job.case.inputs),
                        _lm_for_run(job.lm),
                        self.max_iters,
                        answer=self.types.answerer(job.case, self.answer),
                        dep_cache=None if self.dep_cache is None else dict(self.dep_cache),
                        journal=self.journal,
                        run_id=job.run_id,
                    )
        except JournalError as error:
            if error.code != "bae-journal-field":
                raise  # an error of the store: the next run cannot be stored either
            return None, error  # an error of a value in this run
        except asyncio.CancelledError as error:
            if cancellations():
                raise
            return None, error  # raised by the case's own code, like any other failure
        except Exception as error:
            if bound.expired():
                return None, late
            if not records:
                raise  # no run has started, so this is not the case's fault
            return None, error
        finally:
            explain_cancellation(task, lambda _: None)
        if not result.waiting:
            return result, None
        gate_error = _gate_error(result.waiting)
        if self.journal is not None:
            await _fail_parked(self.journal, job.run_id, gate_error)
        return None, gate_error


STOPPED: Final = "it was stopped"
_CAUSES: Final = 4
_OF_METRICS: Final = ("bae-metric-failed", "bae-metric-score")


def _find_spent_budget(error: BaseException | None) -> str:
    """Return the message of the first `BudgetError` that comes from a budget around the evaluation.
    Search `error` and its causes. Empty if there is no such error."""
    while error is not None:
        if isinstance(error, BudgetError) and error.budget in budgets_in_force():
            return error.message
        error = error.__cause__
    return ""


def _lm_for_run(given: Contending) -> LM | str | None:
    if callable(given) and not is_lm(given):
        return given()
    return cast("LM | str | None", given)


def _describe_chain(error: BaseException, hides: bool) -> str:
    """Return an error with its causes, in one line. If the graph has secrets (`hides`), only the
    types of the causes are named, because their messages may quote a secret."""
    causes = [describe(error)]
    cause = error.cause if isinstance(error, BaeError) else None
    while cause is not None and len(causes) < _CAUSES:
        text = type(cause).__name__ if hides else describe(cause)
        # The error itself already lists the invalid fields of an answer.
        if not isinstance(cause, ValidationError) or text.partition(": ")[2] not in causes[-1]:
            causes.append(text)
        cause = cause.cause if isinstance(cause, BaeError) else None
    return "; caused by ".join(causes)


# --- runs that wait for a person --------------------------------------------------------------


def _gate_error(gates: Sequence[OpenGate]) -> GateError:
    """Return the error for a case whose run waits for a person."""
    questions = "; ".join(f"{gate.place}: {gate.question}" for gate in gates)
    return GateError(
        f"the run waits for a person: {questions} (give the case its answers, as "
        f'"answers": {{"{gates[0].place}": …}})',
        gates=gates,
        fix="give the case answers, or evaluate an async answer=…",
    )


async def _fail_parked(journal: Journal, run_id: str, error: GateError) -> None:
    """Mark a waiting run as failed, so that no person is asked."""

    async def fail() -> None:
        claim: Claim = await journal.claim(run_id)
        await journal.release(claim, "failed", (), (), describe(error))

    try:
        # Until the claim is released, no other process can use the run.
        await finish_despite_cancel(fail())
    except JournalError as raised:
        # With these codes, a person has answered in the meantime.
        if raised.code not in ("bae-run-owned", "bae-run-ended"):
            raise


# --- cases and nodes in reports ---------------------------------------------------------------


def case_as_json(types: CaseTypes, case: Case) -> dict[str, Any]:
    """Return the inputs and expectations of a case as JSON, without secrets. The keys are `input`,
    and `expected`, `expected_type`, `nodes` and `answers` if the case has them."""
    if isinstance(case.inputs, Node):
        data: dict[str, Any] = {"input": node_as_json(types, case.inputs)["fields"]}
    else:
        data = {"input": _fields_as_json(types, case.inputs, [types.graph.start])}
    if case.expected is not None:
        end = types.expected_end(case)
        ends = types.graph.terminal_nodes if end is None else (end,)
        data["expected"] = _fields_as_json(types, case.expected, ends)
    if case.expected_type:
        data["expected_type"] = case.expected_type
    if case.nodes:
        data["nodes"] = {
            name: _fields_as_json(types, fields, [cls] if (cls := types.by_name.get(name)) else ())
            for name, fields in case.nodes.items()
        }
    if case.answers:
        data["answers"] = {
            place: as_json(value)
            for place, value in case.answers.items()
            if types.gates[place][1] not in secret_fields(types.gates[place][0])
        }
    return data


def node_as_json(types: CaseTypes, node: Node) -> dict[str, Any]:
    """Return a node as `{"type": …, "fields": {…}}`. Secret fields are left out, and `withheld`
    names them."""
    cls = type(node)
    codec = node_codec(cls)
    stored = {name: value for name, value in node.__dict__.items() if name not in codec.live}
    fields = {name: as_json(value) for name, value in stored.items() if name not in codec.secret}
    data: dict[str, Any] = {"type": types.names.get(cls, cls.__name__), "fields": fields}
    withheld = [name for name in stored if name in codec.secret]
    return {**data, "withheld": withheld} if withheld else data


def _fields_as_json(
    types: CaseTypes, given: Mapping[str, Any], classes: Iterable[type[Node]]
) -> dict[str, Any]:
    """Return fields as JSON, without fields that are secret in one of the classes."""
    hidden = {
        name
        for cls in classes
        for name in given
        if any(field_name in secret_fields(cls) for field_name in types.by_field(cls, {name: 0}))
    }
    return {name: as_json(value) for name, value in given.items() if name not in hidden}
