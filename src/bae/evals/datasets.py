"""Datasets of pydantic-evals as cases of bae: their inputs and expected outputs by the fields of
the graph's nodes, and their evaluators as the metric of each case. `evaluators.py` runs those,
`evaluating.py` the cases."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel

from bae.evals.cases import Case
from bae.evals.evaluators import Evaluators, unusable_evaluators
from bae.evals.fitting import Fitting
from bae.evals.refusing import refused
from bae.exceptions import BaeError
from bae.lm.extras import need
from bae.node import Node

if TYPE_CHECKING:
    from bae.evals.cases import CaseMetric
    from bae.graph import Graph
    from bae.optimizer.scores import Score
    from bae.result import GraphResult


def cases_of(dataset: Any, graph: Graph[Any, Any], *, own_metric: bool = False) -> list[Case]:
    """The cases of a `pydantic_evals.Dataset`, for a graph.

    Inputs are a mapping of the start node's fields, the start node itself, another model with such
    fields, or the value of its only field. An expected output is the same of the node that the run
    ends at. Evaluators, those of the dataset and of each case, score the case where the evaluation
    is given no metric: assertions as 0 or 1, scores as they are, which must be from 0 to 1, and
    the mean of all; labels are left out.

    Where an evaluator has nothing to say of a case, as `EqualsExpected` of one that expects
    nothing, the others count; where none has, the case is scored as one without evaluators.

    An evaluator is given the node that the run ended at as `ctx.output`, and the expected one as
    such a node too, where the dataset has only some of its fields; but plain values where the
    dataset expects plain values. There are no spans, and no report in the end: evaluators that
    look at these are refused by name. Say `own_metric=True` where you score with a metric of yours:
    then no evaluator is looked at.
    """
    return _cases(dataset, graph, "the dataset", own_metric)


def load_dataset(
    path: str | Path,
    graph: Graph[Any, Any],
    evaluators: Sequence[type[Any]] = (),
    *,
    own_metric: bool = False,
) -> list[Case]:
    """The cases in a file that `Dataset.to_file` of pydantic-evals writes, YAML or JSON. Give the
    classes of the `evaluators` that the file names, where they are not those of pydantic-evals; or
    say `own_metric=True` where you score with a metric of yours: then none of them is made."""
    found = need("pydantic_evals", extra="evals", by=f"reading {Path(path).name}")
    of_any = found.Dataset[Any, Any, Any]
    try:
        if own_metric:
            dataset = of_any.from_dict(
                _without_evaluators(Path(path)), default_name=Path(path).stem
            )
        else:
            dataset = of_any.from_file(path, custom_evaluator_types=evaluators)
    except OSError as error:
        raise refused(
            f"the dataset {path} cannot be read", cause=error, fix="check its path"
        ) from error
    except ExceptionGroup as error:
        problems = [str(each) for each in error.exceptions]
        raise refused(
            f"{path} names evaluators that cannot be made",
            problems,
            fix="read it with load_dataset(path, graph, evaluators=[…]); or with own_metric=True, "
            "and score the cases with a metric of yours",
        ) from error
    except Exception as error:  # of YAML, of JSON, of its shape
        raise refused(
            f"{path} is no dataset of pydantic-evals",
            cause=error,
            fix="write it with Dataset.to_file, or write lines of JSON into a .jsonl file",
        ) from error
    return _cases(dataset, graph, str(path), own_metric)


def metric_of(dataset: Any, graph: Graph[Any, Any]) -> CaseMetric | None:
    """The evaluators of a `pydantic_evals.Dataset` as one metric, for cases that are called as its
    own are; None where it has none. The cases of `cases_of` have it already."""
    metrics = {case.name: case.metric for case in cases_of(dataset, graph)}
    if not any(metrics.values()):
        return None

    async def evaluators(case: Case, result: GraphResult[Any]) -> Score:
        metric = metrics.get(case.name)
        if metric is None:
            raise BaeError(
                f"the dataset has no evaluator for the case {case.name!r}",
                code="bae-metric-failed",
                fix="give the dataset evaluators for all its cases, or score the others by a "
                "metric of yours",
            )
        return await cast(Any, metric)(case, result)

    return evaluators


def _cases(dataset: Any, graph: Graph[Any, Any], where: str, own_metric: bool) -> list[Case]:
    if not own_metric and (unusable := unusable_evaluators(dataset)):
        raise refused(
            f"{where} has evaluators that cannot score a run of bae",
            unusable,
            fix="take them out of the dataset; or read it with own_metric=True, and score the "
            "cases with a metric of yours",
        )
    reading = _Reading(dataset, Fitting(graph), own_metric)
    problems: list[str] = []
    cases: list[Case] = []
    for number, each in enumerate(dataset.cases, 1):
        case = reading.case(each, each.name or f"case {number}")
        problems.extend(f"{case.name}: {wrong}" for wrong in reading.problems(each, case))
        cases.append(case)
    names = [case.name for case in cases]
    problems.extend(f"{name}: two cases are called so" for name in _twice(names))
    if problems:
        raise refused(f"{where} has cases that {graph.name} cannot run", problems)
    if not cases:
        raise refused(f"{where} has no cases", fix="add cases to it")
    return cases


class _Reading:
    """What the cases of a dataset are to a graph."""

    def __init__(self, dataset: Any, fitting: Fitting, own_metric: bool) -> None:
        self._fitting = fitting
        self._own_metric = own_metric
        self._evaluators: list[Any] = list(dataset.evaluators)
        self._only = _only_filled(fitting.graph)
        # What a task returns has one shape: where a case expects a plain value, all are given one.
        self._bare = any(
            self._is_bare(case.expected_output)
            for case in dataset.cases
            if case.expected_output is not None
        )

    def case(self, each: Any, name: str) -> Case:
        evaluators = [] if self._own_metric else [*each.evaluators, *self._evaluators]
        bare = self._only if self._bare else None
        return Case(
            self._fitting.fields_of(_by_name(each.inputs)),
            name,
            self._expected(each.expected_output),
            self._expected_type(each.expected_output),
            metadata=_metadata(each.metadata),
            metric=Evaluators(evaluators, each, bare, self._fitting) if evaluators else None,
        )

    def problems(self, each: Any, case: Case) -> Iterator[str]:
        if self._is_bare(each.expected_output) and self._only is None:
            ends = " and ".join(end.__name__ for end in self._fitting.graph.terminal_nodes)
            yield (
                f"expected_output: give an object of the fields of {ends}: a value alone says not "
                "which field is meant"
            )
        # Evaluators are given what is expected as the node that a run ends at.
        yield from self._fitting.problems(replace(case, metric=None))

    def _expected(self, said: Any) -> Mapping[str, Any] | None:
        if isinstance(said, Node):
            from bae.lm.prompts import asked_fields

            return {name: getattr(said, name) for name in asked_fields(type(said))}
        if self._is_bare(said):
            return None if self._only is None else {self._only: said}
        return _by_name(said)

    def _expected_type(self, said: Any) -> str:
        if not isinstance(said, Node):
            return ""
        return self._fitting.names.get(type(said), type(said).__name__)

    def _is_bare(self, said: Any) -> bool:
        """Whether an expected output is the value of a field, and not the fields by name."""
        if said is None or isinstance(said, Node):
            return False
        if not isinstance(said, Mapping | BaseModel):
            return True
        if self._only is None or self._only in _by_name(said):
            return False
        try:  # an object may be the value of the field, or have the name of the field misspelt
            self._fitting.expectation(self._fitting.graph.terminal_nodes[0], {self._only: said})
        except Exception:  # validators are code of the node's own
            return False
        return True


def _without_evaluators(path: Path) -> dict[str, Any]:
    """What the file of a dataset says, but for its evaluators."""
    text = path.read_text(encoding="utf-8")
    if path.suffix.lower() == ".json":
        said: Any = json.loads(text)
    else:
        said = need("yaml", extra="evals", by=f"reading {path.name}").safe_load(text)
    if not isinstance(said, dict):
        raise ValueError("it is no object with cases")
    found = {k: v for k, v in cast(dict[str, Any], said).items() if k not in _EVALUATORS}
    cases: Any = found.get("cases")
    if isinstance(cases, list):
        found["cases"] = [
            {k: v for k, v in cast(dict[str, Any], each).items() if k not in _EVALUATORS}
            if isinstance(each, dict)
            else each
            for each in cast(list[Any], cases)
        ]
    return found


_EVALUATORS = ("evaluators", "report_evaluators")


def _by_name(said: Any) -> Any:
    """The fields of a model that is no node, by name; everything else as it is."""
    if isinstance(said, BaseModel) and not isinstance(said, Node):
        return {name: getattr(said, name) for name in type(said).__pydantic_fields__}
    return said


def _metadata(said: Any) -> Mapping[str, Any]:
    if said is None:
        return {}
    named = _by_name(said)
    return cast(Mapping[str, Any], named) if isinstance(named, Mapping) else {"metadata": said}


def _only_filled(graph: Graph[Any, Any]) -> str | None:
    """The one plain field of the node that runs end at, where there is one such node and field."""
    from bae.plan import plan_of

    ends = graph.terminal_nodes
    plain = plan_of(ends[0], strict=True).plain if len(ends) == 1 else ()
    return plain[0].name if len(plain) == 1 else None


def _twice(names: Sequence[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if names.count(name) > 1]
