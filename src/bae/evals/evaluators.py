"""Evaluators of pydantic-evals as the metric of a case: each is given what a run came to in the
form that it expects, and what they say becomes one score. `datasets.py` finds them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from inspect import isawaitable, iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, cast

from bae.evals.scoring import score_by_expected
from bae.exceptions import BaeError
from bae.lm.extras import need
from bae.node import Node
from bae.optimizer.scores import Score, as_score
from bae.threads import in_thread

if TYPE_CHECKING:
    from bae.evals.cases import Case
    from bae.evals.fitting import Fitting
    from bae.result import GraphResult


class Evaluators:
    """The evaluators of one case of a dataset, as its metric. `bare` names the field of the end
    that they know as the output, where they know it without its node."""

    def __init__(
        self, evaluators: Sequence[Any], case: Any, bare: str | None, fitting: Fitting
    ) -> None:
        self._evaluators = evaluators
        self._case = case
        self._bare = bare
        self._fitting = fitting

    async def __call__(self, case: Case, result: GraphResult[Any]) -> Score:
        """The mean of all they say that is no label, and their reasons. Where there is nothing to
        say for some of them, as the case expects nothing, and no score of another, the case is
        scored as one without evaluators."""
        context = self._context(case, result)
        found: list[float] = []
        reasons: list[str] = []
        silent = False
        for evaluator in self._evaluators:
            every = await self._said(evaluator, context, case)
            silent = silent or not every
            for name, value, reason in every:
                if isinstance(value, str):
                    continue
                score = as_score(value, where=f"the case {case.name!r}: the evaluator {name}")
                found.append(score.value)
                if score.value < 1:
                    reasons.append(f"{name}: {reason or format(score.value, '.2g')}")
        if not found and silent:
            return await score_by_expected(self._fitting, case, result)
        if not found:
            raise BaeError(
                f"the case {case.name!r}: its evaluators gave labels alone, and no score",
                code="bae-metric-score",
                fix="let one of them return a bool or a number from 0 to 1, or give a metric",
            )
        return Score(math.fsum(found) / len(found), "; ".join(reasons))

    async def _said(
        self, evaluator: Any, context: Any, case: Case
    ) -> list[tuple[str, Any, str | None]]:
        name: str = evaluator.get_default_evaluation_name()
        try:
            said = await _evaluated(evaluator, context)
        except BaeError:
            raise
        except Exception as error:
            raise BaeError(
                f"the case {case.name!r}: the evaluator {name} raised {type(error).__name__}",
                code="bae-metric-failed",
                cause=error,
                fix="mend the evaluator, or take it out of the dataset",
            ) from error
        if isinstance(said, Mapping):
            each = cast(Mapping[str, Any], said)
            return [(n, *_value_and_reason(value)) for n, value in each.items()]
        return [(name, *_value_and_reason(said))]

    def _context(self, case: Case, result: GraphResult[Any]) -> Any:
        found = need("pydantic_evals.evaluators", extra="evals", by="an evaluator")
        otel = need("pydantic_evals.otel", extra="evals", by="an evaluator")
        end: Node = result.result
        usage = result.usage
        metrics: dict[str, int | float] = {
            "requests": usage.calls,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
        }
        if usage.cost is not None:
            metrics["cost"] = usage.cost
        bare = self._bare if self._bare is not None and hasattr(end, self._bare) else None
        return found.EvaluatorContext(
            name=case.name,
            inputs=self._case.inputs,
            metadata=self._case.metadata,
            expected_output=self._expected(case, end) if bare is None else self._plain(case),
            output=end if bare is None else getattr(end, bare),
            duration=result.journal[-1].at - result.journal[0].at,
            _span_tree=otel.SpanTreeRecordingError(
                "bae records no spans for evaluators: look at ctx.attributes['run_id'] instead"
            ),
            attributes={"run_id": result.run_id, "trace": [type(n).__name__ for n in result.trace]},
            metrics=metrics,
        )

    def _plain(self, case: Case) -> Any:
        return None if case.expected is None else case.expected.get(cast(str, self._bare))

    def _expected(self, case: Case, end: Node) -> Any:
        """What is expected as a node, to be equal to what the run ended at where that is right."""
        said = self._case.expected_output
        if said is None or isinstance(said, Node) or case.expected is None:
            return said
        cls = type(end)
        fields = self._fitting.by_field(cls, case.expected)
        if not fields.keys() <= cls.__pydantic_fields__.keys():
            return said
        try:
            return end.model_copy(update=self._fitting.expectation(cls, fields))
        except Exception:  # the end that was meant is another one, with fields of the same names
            return said


def unusable_evaluators(dataset: Any) -> list[str]:
    """The evaluators of a dataset that bae has nothing for, each with why."""
    found = [
        f"{type(each).__name__}: it looks at a report of pydantic-evals, and there is none"
        for each in getattr(dataset, "report_evaluators", ())
    ]
    of_cases = [
        (f"{case.name or f'case {number}'}: ", each)
        for number, case in enumerate(dataset.cases, 1)
        for each in case.evaluators
    ]
    for where, each in (*(("", each) for each in dataset.evaluators), *of_cases):
        if _looks_at_spans(each):
            said = "it looks at spans of OpenTelemetry, and bae records none for evaluators"
            found.append(f"{where}{type(each).__name__}: {said}")
    return found


def _looks_at_spans(evaluator: Any) -> bool:
    """Whether it is one of those of pydantic-evals that fail every case without spans."""
    return any(
        base.__name__ in _OF_SPANS and base.__module__.startswith("pydantic_evals.")
        for base in cast(type[Any], type(evaluator)).__mro__
    )


_OF_SPANS: Final = (
    "HasMatchingSpan",
    "ToolCorrectness",
    "TrajectoryMatch",
    "ArgumentCorrectness",
    "MaxToolCalls",
    "MaxModelRequests",
)


async def _evaluated(evaluator: Any, context: Any) -> Any:
    """What an evaluator says. A sync one is given a thread, since it may take its time, unless it
    has an `evaluate_async` of its own."""
    found = need("pydantic_evals.evaluators", extra="evals", by="an evaluator")
    evaluate: Callable[[Any], Any] = evaluator.evaluate
    asked: Any = cast(Any, type(evaluator)).evaluate_async
    own = asked is not found.Evaluator.evaluate_async
    if own or iscoroutinefunction(evaluate):
        return await evaluator.evaluate_async(context)
    said = await in_thread(evaluate, context)
    return await said if isawaitable(said) else said


def _value_and_reason(said: Any) -> tuple[Any, str | None]:
    if hasattr(said, "value") and hasattr(said, "reason"):
        return said.value, said.reason
    return said, None
