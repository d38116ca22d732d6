"""Datasets of pydantic-evals as cases of bae: inputs and expected outputs by the fields of the
graph's nodes, and evaluators as the metric of each case."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from inspect import isawaitable, iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import BaseModel

from bae.evals.case_types import CaseTypes
from bae.evals.cases import Case, invalid_cases
from bae.evals.metrics import Score, read_score
from bae.evals.scoring import score_by_expected
from bae.exceptions import BaeError
from bae.lm.extras import need
from bae.node import Node
from bae.plan import plan_of
from bae.threads import in_thread

if TYPE_CHECKING:
    from bae.evals.case_types import Checked
    from bae.graph import Graph
    from bae.result import GraphResult


def cases_of(dataset: Any, graph: Graph[Any, Any], *, own_metric: bool = False) -> list[Case]:
    """The cases of a `pydantic_evals.Dataset`, for a graph.

    Inputs are a mapping of the start node's fields, the start node itself, another model with such
    fields, or the value of its only field. An expected output is the same for the node that the run
    ends at. The evaluators of the dataset and of each case score the case if the evaluation has no
    metric: assertions as 0 or 1, scores as they are, which must be from 0 to 1, and the mean of
    all; labels are left out.

    If an evaluator returns nothing for a case, as `EqualsExpected` for one that expects nothing,
    the others count; if none returns anything, the case is scored as one without evaluators.

    An evaluator gets the node that the run ended at as `ctx.output`, and the expected one as such a
    node too, where the dataset has only some of its fields; but plain values where the dataset
    expects plain values. Evaluators that need spans, or a report, are refused by name. With
    `own_metric=True`, for a metric of your own, evaluators are ignored.
    """
    return _cases(dataset, graph, "the dataset", own_metric)


def load_dataset(
    path: str | Path,
    graph: Graph[Any, Any],
    evaluators: Sequence[type[Any]] = (),
    *,
    own_metric: bool = False,
) -> list[Case]:
    """The cases in a YAML or JSON file that `Dataset.to_file` of pydantic-evals wrote. Give the
    classes of the `evaluators` that the file names and pydantic-evals does not have; or
    `own_metric=True` if you score with a metric of your own, which needs none of them."""
    found = need("pydantic_evals", extra="evals", by=f"reading {Path(path).name}")
    of_any = found.Dataset[Any, Any, Any]
    try:
        if own_metric:
            content = _without_evaluators(Path(path))
            dataset = of_any.from_dict(content, default_name=Path(path).stem)
        else:
            dataset = of_any.from_file(path, custom_evaluator_types=evaluators)
    except OSError as error:
        raise invalid_cases(
            f"the dataset {path} cannot be read", cause=error, fix="check its path"
        ) from error
    except ExceptionGroup as error:
        raise invalid_cases(
            f"{path} names evaluators that cannot be made",
            [str(each) for each in error.exceptions],
            fix="read it with load_dataset(path, graph, evaluators=[…]); or with own_metric=True, "
            "and score the cases with a metric of yours",
        ) from error
    except Exception as error:  # of YAML, of JSON, of its shape
        raise invalid_cases(
            f"{path} is no dataset of pydantic-evals",
            cause=error,
            fix="write it with Dataset.to_file, or write lines of JSON into a .jsonl file",
        ) from error
    return _cases(dataset, graph, str(path), own_metric)


def _cases(dataset: Any, graph: Graph[Any, Any], where: str, own_metric: bool) -> list[Case]:
    if not own_metric and (unusable := [*_unusable_evaluators(dataset)]):
        raise invalid_cases(
            f"{where} has evaluators that cannot score a run of bae",
            unusable,
            fix="take them out of the dataset; or read it with own_metric=True, and score the "
            "cases with a metric of yours",
        )
    types = CaseTypes(graph)
    reader = _Reader(dataset, types)
    # Evaluators get what is expected as a node, so that is checked before they become the metric.
    what = f"{where} has cases that {graph.name} cannot run"
    cases = types.check(reader.cases(dataset), what)
    if not cases:
        raise invalid_cases(f"{where} has no cases", fix="add cases to it")
    if own_metric:
        return cases
    pairs = zip(cases, dataset.cases, strict=True)
    return [reader.with_evaluators(case, each, dataset.evaluators) for case, each in pairs]


class _Reader:
    """The cases of a dataset, as cases for a graph."""

    def __init__(self, dataset: Any, types: CaseTypes) -> None:
        self._types = types
        ends = types.graph.terminal_nodes
        plain = plan_of(ends[0], strict=True).plain if len(ends) == 1 else ()
        self._only = plain[0].name if len(plain) == 1 else None
        """The field that an expected plain value is the value of."""
        # A task returns one shape: where one case expects a plain value, all evaluators get one.
        expected = (case.expected_output for case in dataset.cases)
        self._plain = any(self._is_plain(each) for each in expected if each is not None)

    def cases(self, dataset: Any) -> Iterator[Checked]:
        for number, each in enumerate(dataset.cases, 1):
            expected = each.expected_output
            wrong: list[str] = []
            if self._is_plain(expected) and self._only is None:
                ends = " and ".join(end.__name__ for end in self._types.graph.terminal_nodes)
                wrong.append(
                    f"expected_output: give an object of the fields of {ends}: a value alone does "
                    "not say which field is meant"
                )
            name = each.name or f"case {number}"
            kind = cast("type[Any]", type(expected))
            case = Case(
                self._types.fields_of(_by_name(each.inputs)),
                name,
                self._expected(expected),
                self._types.names.get(kind, kind.__name__) if isinstance(expected, Node) else "",
                metadata=_metadata(each.metadata),
            )
            yield name, case, wrong

    def with_evaluators(self, case: Case, each: Any, of_all: Sequence[Any]) -> Case:
        evaluators = [*each.evaluators, *of_all]
        if not evaluators:
            return case
        plain = self._only if self._plain else None
        return replace(case, metric=_Evaluators(evaluators, each, plain, self._types))

    def _expected(self, expected: Any) -> Mapping[str, Any] | None:
        if isinstance(expected, Node):
            from bae.lm.prompts import asked_fields

            return {name: getattr(expected, name) for name in asked_fields(type(expected))}
        if self._is_plain(expected):
            return None if self._only is None else {self._only: expected}
        return _by_name(expected)

    def _is_plain(self, expected: Any) -> bool:
        """Whether an expected output is the value of a field, and not the fields by name."""
        if expected is None or isinstance(expected, Node):
            return False
        if not isinstance(expected, Mapping | BaseModel):
            return True
        if self._only is None or self._only in _by_name(expected):
            return False
        try:  # an object may be the value of the field, or misspell the name of the field
            self._types.expectation(self._types.graph.terminal_nodes[0], {self._only: expected})
        except Exception:  # validators are the node's own code
            return False
        return True


class _Evaluators:
    """The evaluators of one case, as its metric. `plain` names the field of the end that they get
    as the output, if they expect a plain value."""

    def __init__(
        self, evaluators: Sequence[Any], case: Any, plain: str | None, types: CaseTypes
    ) -> None:
        self._evaluators = evaluators
        self._case = case
        self._plain = plain
        self._types = types

    async def __call__(self, case: Case, result: GraphResult[Any]) -> Score:
        context = self._context(case, result)
        found: list[float] = []
        reasons: list[str] = []
        silent = False
        for evaluator in self._evaluators:
            every = await self._evaluate(evaluator, context, case)
            silent = silent or not every
            for name, value, reason in every:
                if isinstance(value, str):
                    continue
                score = read_score(value, where=f"the case {case.name!r}: the evaluator {name}")
                found.append(score.value)
                if score.value < 1:
                    reasons.append(f"{name}: {reason or format(score.value, '.2g')}")
        if not found and silent:
            return await score_by_expected(self._types, case, result)
        if not found:
            raise BaeError(
                f"the case {case.name!r}: its evaluators gave labels alone, and no score",
                code="bae-metric-score",
                fix="let one of them return a bool or a number from 0 to 1, or give a metric",
            )
        return Score(math.fsum(found) / len(found), "; ".join(reasons))

    async def _evaluate(
        self, evaluator: Any, context: Any, case: Case
    ) -> list[tuple[str, Any, str | None]]:
        """What one evaluator returns: names, values and reasons."""
        name: str = evaluator.get_default_evaluation_name()
        package = need("pydantic_evals.evaluators", extra="evals", by="an evaluator")
        evaluate: Callable[[Any], Any] = evaluator.evaluate
        own = cast(Any, type(evaluator)).evaluate_async is not package.Evaluator.evaluate_async
        try:
            if own or iscoroutinefunction(evaluate):
                returned = await evaluator.evaluate_async(context)
            else:  # a sync one may be slow
                returned = await in_thread(evaluate, context)
                returned = await returned if isawaitable(returned) else returned
        except BaeError:
            raise
        except Exception as error:
            raise BaeError(
                f"the case {case.name!r}: the evaluator {name} raised {type(error).__name__}",
                code="bae-metric-failed",
                cause=error,
                fix="fix the evaluator, or take it out of the dataset",
            ) from error
        every = (
            cast(Mapping[str, Any], returned) if isinstance(returned, Mapping) else {name: returned}
        )
        return [
            (each, value.value, value.reason)
            if hasattr(value, "value") and hasattr(value, "reason")
            else (each, value, None)
            for each, value in every.items()
        ]

    def _context(self, case: Case, result: GraphResult[Any]) -> Any:
        package = need("pydantic_evals.evaluators", extra="evals", by="an evaluator")
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
        plain = self._plain if self._plain is not None and hasattr(end, self._plain) else None
        if plain is None:
            expected, output = self._expected_node(case, end), end
        else:
            expected, output = (case.expected or {}).get(plain), getattr(end, plain)
        return package.EvaluatorContext(
            name=case.name,
            inputs=self._case.inputs,
            metadata=self._case.metadata,
            expected_output=expected,
            output=output,
            duration=result.journal[-1].at - result.journal[0].at,
            _span_tree=otel.SpanTreeRecordingError(
                "bae records no spans for evaluators: look at ctx.attributes['run_id'] instead"
            ),
            attributes={"run_id": result.run_id, "trace": [type(n).__name__ for n in result.trace]},
            metrics=metrics,
        )

    def _expected_node(self, case: Case, end: Node) -> Any:
        """What is expected as a node, equal to the one that the run ended at if that is right."""
        expected = self._case.expected_output
        if expected is None or isinstance(expected, Node) or case.expected is None:
            return expected
        cls = type(end)
        fields = self._types.by_field(cls, case.expected)
        if not fields.keys() <= cls.__pydantic_fields__.keys():
            return expected
        try:
            return end.model_copy(update=self._types.expectation(cls, fields))
        except Exception:  # another end is meant, with fields of the same names
            return expected


_EVALUATORS: Final = ("evaluators", "report_evaluators")
_OF_SPANS: Final = (
    "HasMatchingSpan",
    "ToolCorrectness",
    "TrajectoryMatch",
    "ArgumentCorrectness",
    "MaxToolCalls",
    "MaxModelRequests",
)
"""Evaluators of pydantic-evals that fail every case without spans."""


def _unusable_evaluators(dataset: Any) -> Iterator[str]:
    """The evaluators of a dataset that bae has nothing for, each with the reason."""
    for each in getattr(dataset, "report_evaluators", ()):
        yield f"{type(each).__name__}: it looks at a report of pydantic-evals, and there is none"
    of_cases = [
        (f"{case.name or f'case {number}'}: ", each)
        for number, case in enumerate(dataset.cases, 1)
        for each in case.evaluators
    ]
    for where, each in (*(("", each) for each in dataset.evaluators), *of_cases):
        if any(
            base.__name__ in _OF_SPANS and base.__module__.startswith("pydantic_evals.")
            for base in cast(type[Any], type(each)).__mro__
        ):
            why = "it looks at spans of OpenTelemetry, and bae records none for evaluators"
            yield f"{where}{type(each).__name__}: {why}"


def _without_evaluators(path: Path) -> dict[str, Any]:
    """The file of a dataset, without its evaluators."""
    text = path.read_text(encoding="utf-8")
    if path.suffix.lower() == ".json":
        content: Any = json.loads(text)
    else:
        content = need("yaml", extra="evals", by=f"reading {path.name}").safe_load(text)
    if not isinstance(content, dict):
        raise ValueError("it is no object with cases")
    found = {k: v for k, v in cast(dict[str, Any], content).items() if k not in _EVALUATORS}
    cases: Any = found.get("cases")
    if isinstance(cases, list):
        found["cases"] = [
            {k: v for k, v in cast(dict[str, Any], each).items() if k not in _EVALUATORS}
            if isinstance(each, dict)
            else each
            for each in cast(list[Any], cases)
        ]
    return found


def _by_name(value: Any) -> Any:
    """The fields of a model that is no node, by name; everything else as it is."""
    if isinstance(value, BaseModel) and not isinstance(value, Node):
        return dict(value)
    return value


def _metadata(value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    named = _by_name(value)
    return cast(Mapping[str, Any], named) if isinstance(named, Mapping) else {"metadata": value}
