"""Convert datasets of pydantic-evals to cases. Inputs and expected outputs become fields of the
graph's nodes, and evaluators become the metric of each case."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import BaseModel, ValidationError

from bae.evals.case_types import CaseTypes
from bae.evals.cases import Case, invalid_cases
from bae.evals.metrics import Score, call_scorer, read_score
from bae.evals.scoring import Scoring, measure
from bae.exceptions import BaeError, describe, faults
from bae.given_files import read_text
from bae.lm.extras import need
from bae.node import Node
from bae.plan import plan_of
from bae.prompts.values import list_fields_to_fill

if TYPE_CHECKING:
    from bae.evals.case_types import Checked
    from bae.graph import Graph
    from bae.result import GraphResult


def cases_of(dataset: Any, graph: Graph[Any, Any], *, own_metric: bool = False) -> list[Case]:
    """Convert a `pydantic_evals.Dataset` to cases for a graph.

    The inputs of a case may be a mapping of the start node's fields, the start node, another model
    with these fields, or the value of the only field. An expected output has the same forms, for
    the node at which the run ends.

    If the evaluation has no metric, each case is scored by the evaluators of the dataset and by its
    own evaluators. The score is the mean of the evaluators' scores and assertions. Scores must be
    from 0 to 1, assertions count 0 or 1, and labels are ignored. If an evaluator returns nothing,
    it does not count, such as `EqualsExpected` in a case that expects nothing. If there is no score
    because evaluators return nothing, the case is scored by its expected fields.

    An evaluator gets the last node of the run as `ctx.output`. It gets the expected output as a
    node too, even if the dataset has only some of the node's fields. If the dataset expects plain
    values, the evaluator gets both as plain values. Evaluators that need spans or a report are
    refused.

    If the evaluation has a metric, the metric scores the cases. Then pass `own_metric=True`, so
    that evaluators are not read, and unsupported evaluators are not refused.
    """
    return _cases(dataset, graph, "the dataset", own_metric)


def load_dataset(
    path: str | Path,
    graph: Graph[Any, Any],
    evaluators: Sequence[type[Any]] = (),
    *,
    own_metric: bool = False,
) -> list[Case]:
    """Read cases from a YAML or JSON file that `Dataset.to_file` of pydantic-evals wrote. If the
    file names evaluators of your own, pass their classes as `evaluators`. If a metric of
    yours scores the cases, pass `own_metric=True`, so that evaluators are not read."""
    package = need("pydantic_evals", extra="evals", by=f"reading {Path(path).name}")
    of_any = package.Dataset[Any, Any, Any]
    try:
        content = _read_content(Path(path))
        if own_metric:
            _drop_evaluators(content)
        dataset = of_any.from_dict(content, evaluators, default_name=Path(path).stem)
    except OSError as error:
        raise invalid_cases(
            f"the dataset {path} cannot be read", cause=error, fix="check its path"
        ) from error
    except ExceptionGroup as error:
        raise invalid_cases(
            f"{path} names evaluators that cannot be made",
            [str(exception) for exception in error.exceptions],
            fix="read it with load_cases(path, graph, evaluators=[…]); or with own_metric=True, "
            "and score the cases with a metric of yours",
        ) from error
    except Exception as error:  # invalid YAML or JSON, or another shape
        raise invalid_cases(
            f"{path} is no dataset of pydantic-evals",
            cause=error,
            fix="write it with Dataset.to_file, or write lines of JSON into a .jsonl file",
        ) from error
    return _cases(dataset, graph, str(path), own_metric, Path(path).parent)


def _cases(
    dataset: Any,
    graph: Graph[Any, Any],
    where: str,
    own_metric: bool,
    folder: Path | None = None,
) -> list[Case]:
    if not own_metric and (unusable := [*_unusable_evaluators(dataset)]):
        raise invalid_cases(
            f"{where} has evaluators that cannot score a run of bae",
            unusable,
            fix="take them out of the dataset; or read it with own_metric=True, and score the "
            "cases with a metric of yours",
        )
    types = CaseTypes(graph)
    reader = _Reader(dataset, types, folder)
    # Evaluators get the expected output as a node, so check it before they become the metric.
    what = f"{where} has cases that {graph.name} cannot run"
    cases = types.check(reader.cases(dataset), what)
    if not cases:
        raise invalid_cases(f"{where} has no cases", fix="add cases to it")
    if own_metric:
        return cases
    pairs = zip(cases, dataset.cases, strict=True)
    return [reader.with_evaluators(case, written, dataset.evaluators) for case, written in pairs]


class _Reader:
    """Converts the cases of a dataset to cases for a graph."""

    def __init__(self, dataset: Any, types: CaseTypes, folder: Path | None) -> None:
        self._types, self._folder = types, folder
        ends = types.graph.terminal_nodes
        plain = plan_of(ends[0], strict=True).plain if len(ends) == 1 else ()
        self._only = plain[0].name if len(plain) == 1 else None
        """The field of the last node to which a plain expected value belongs. None if several
        fields or ends are possible."""
        # A dataset has one type of output: if a case expects a plain value, all cases do.
        self._plain = any(self._is_plain(case.expected_output) for case in dataset.cases)

    def cases(self, dataset: Any) -> Iterator[Checked]:
        for number, written in enumerate(dataset.cases, 1):
            expected = written.expected_output
            problems: list[str] = []
            fields: Any = _by_name(expected)
            kind = ""
            if isinstance(expected, Node):
                cls = type(expected)
                fields = {name: getattr(expected, name) for name in list_fields_to_fill(cls)}
                kind = self._types.names.get(cls, cls.__name__)
            elif self._is_plain(expected):
                fields = None if self._only is None else {self._only: expected}
                if fields is None:
                    ends = " and ".join(end.__name__ for end in self._types.graph.terminal_nodes)
                    problems.append(
                        f"expected_output: give an object of the fields of {ends}: a value alone "
                        "does not say which field is meant"
                    )
            metadata: Any = {} if written.metadata is None else _by_name(written.metadata)
            if not hasattr(metadata, "keys"):
                metadata = {"metadata": metadata}
            name = written.name or f"case {number}"
            inputs = self._types.fields_of(_by_name(written.inputs))
            try:
                if self._folder is not None:
                    inputs = self._types.with_files(inputs, self._folder)
                case = Case(inputs, name, expected=fields, expected_type=kind, metadata=metadata)
            except ValidationError as error:
                yield name, None, [*problems, *faults(error)]
            except (OSError, ValueError) as error:
                yield name, None, [*problems, f"inputs: a file cannot be read: {describe(error)}"]
            else:
                yield name, case, problems

    def with_evaluators(self, case: Case, written: Any, of_all: Sequence[Any]) -> Case:
        evaluators = [*written.evaluators, *of_all]
        if not evaluators:
            return case
        plain = self._only if self._plain else None
        return replace(case, metric=_Evaluators(evaluators, written, plain, self._types))

    def _is_plain(self, expected: Any) -> bool:
        """Whether an expected output is the value of a field, and not fields by name."""
        if expected is None or isinstance(expected, Node):
            return False
        if not isinstance(expected, Mapping | BaseModel):
            return True
        if self._only is None or self._only in _by_name(expected):
            return False
        try:  # an object may be the value of the field, or may misspell the field's name
            self._types.expectation(self._types.graph.terminal_nodes[0], {self._only: expected})
        except Exception:  # the node's own validators may raise anything
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Evaluators:
    """The evaluators of one case, as its metric."""

    evaluators: Sequence[Any]
    written: Any
    """The case as it is in the dataset."""
    plain: str | None
    """The field of the last node whose value evaluators get. None if evaluators get the node."""
    types: CaseTypes

    async def __call__(self, case: Case, result: GraphResult[Any]) -> Score:
        context = self._context(case, result)
        scores: list[float] = []
        reasons: list[str] = []
        silent = False
        for evaluator in self.evaluators:
            name: str = evaluator.get_default_evaluation_name()
            what = f"the case {case.name!r}: the evaluator"
            fix = "fix the evaluator, or take it out of the dataset"
            results: Any = await call_scorer(
                evaluator.evaluate, context, what=f"{what} {name}", fix=fix
            )
            results = (
                cast(dict[str, Any], results) if isinstance(results, Mapping) else {name: results}
            )
            silent = silent or not results
            for name, evaluated in results.items():
                reason = getattr(evaluated, "reason", None)
                value = evaluated.value if hasattr(evaluated, "reason") else evaluated
                if isinstance(value, str):
                    continue
                score = read_score(value, where=f"{what} {name}")
                scores.append(score.value)
                if score.value < 1:
                    reasons.append(f"{name}: {reason or f'{score.value:.2g}'}")
        if scores:
            return Score(fmean(scores), "; ".join(reasons))
        if silent:
            expects = replace(case, metric=None)
            scored = await Scoring(self.types).score(expects, result, measure(result.journal))
            assert scored.total is not None
            return scored.total
        raise BaeError(
            f"the case {case.name!r}: its evaluators gave labels alone, and no score",
            code="bae-metric-score",
            fix="let one of them return a bool or a number from 0 to 1, or give a metric",
        )

    def _context(self, case: Case, result: GraphResult[Any]) -> Any:
        package = need("pydantic_evals.evaluators", extra="evals", by="an evaluator")
        otel = need("pydantic_evals.otel", extra="evals", by="an evaluator")
        output: Any = result.result
        usage = result.usage
        metrics: dict[str, int | float] = {
            "requests": usage.calls,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
        }
        if usage.cost is not None:
            metrics["cost"] = usage.cost
        if self.plain is not None and hasattr(output, self.plain):
            expected = (case.expected or {}).get(self.plain)
            output = getattr(output, self.plain)
        else:
            expected = self._expected_node(case, output)
        return package.EvaluatorContext(
            name=case.name,
            inputs=self.written.inputs,
            metadata=self.written.metadata,
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
        """Return the expected output as a node. If the last node of the run is right, the two nodes
        are equal."""
        expected = self.written.expected_output
        if expected is None or isinstance(expected, Node) or case.expected is None:
            return expected
        fields = self.types.by_field(type(end), case.expected)
        if not fields.keys() <= type(end).__pydantic_fields__.keys():
            return expected
        try:
            return end.model_copy(update=self.types.expectation(type(end), fields))
        except Exception:  # the case expects another class with the same field names
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
"""Evaluators of pydantic-evals that need spans."""


def _unusable_evaluators(dataset: Any) -> Iterator[str]:
    """Yield the evaluators of a dataset that bae does not support, with the reason."""
    for evaluator in getattr(dataset, "report_evaluators", ()):
        yield (
            f"{type(evaluator).__name__}: it looks at a report of pydantic-evals, and there is none"
        )
    labeled = [("", evaluator) for evaluator in dataset.evaluators]
    for number, case in enumerate(dataset.cases, 1):
        labeled += [
            (f"{case.name or f'case {number}'}: ", evaluator) for evaluator in case.evaluators
        ]
    for where, evaluator in labeled:
        if type(evaluator).__name__ in _OF_SPANS:
            why = "it looks at spans of OpenTelemetry, and bae records none for evaluators"
            yield f"{where}{type(evaluator).__name__}: {why}"


def _read_content(path: Path) -> dict[str, Any]:
    """Read the file of a dataset."""
    text = read_text(path)
    if path.suffix.lower() == ".json":
        return json.loads(text)
    return _read_yaml(text, need("yaml", extra="evals", by=f"reading {path.name}"))


_MOST_REPEATED: Final = 1_000_000
"""The most values and characters that aliases may add to a YAML file."""
_ENDLESS: Final = 1 << 60
_LONGEST_NUMBER: Final = 4300
"""The most characters of a number, as in Python itself. The time to parse a number like 1:59:59
grows with the square of its length."""
_NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def _read_yaml(text: str, yaml: Any) -> Any:
    """Parse a YAML text. A few lines of nested aliases may represent more values than fit into
    memory, so count the values before they are made."""
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is not None and _count_repeated(root) > _MOST_REPEATED:
            raise ValueError(
                f"its aliases (*name) repeat more than {_MOST_REPEATED:,} values and characters: "
                "write fewer of them, or use a .jsonl file"
            )
        return None if root is None else loader.construct_document(root)
    finally:
        loader.dispose()


def _count_repeated(root: Any) -> int:
    """Count the values and characters of a YAML document that come from aliases."""
    sizes: dict[int, int] = {}  # including nested nodes
    written = 0

    def size(node: Any) -> int:
        nonlocal written
        if id(node) not in sizes:
            sizes[id(node)] = _ENDLESS  # while its parts are counted: a node may contain itself
            kind, value = node.id, node.value  # a text, a list, or a list of keys and values
            own_size = 1 + (len(value) if kind == "scalar" else 0)
            if own_size > _LONGEST_NUMBER and node.tag in _NUMBERS:
                raise ValueError(f"it has a number with more than {_LONGEST_NUMBER:,} characters")
            written += own_size
            parts = {"sequence": value, "mapping": chain.from_iterable(value)}.get(kind, ())
            sizes[id(node)] = min(_ENDLESS, own_size + sum(map(size, parts)))
        return sizes[id(node)]

    return size(root) - written


def _drop_evaluators(content: dict[str, Any]) -> None:
    for part in (content, *content["cases"]):
        for key in _EVALUATORS:
            part.pop(key, None)


def _by_name(value: Any) -> Any:
    """Return the fields of a model by name. Nodes and other values are returned unchanged."""
    if isinstance(value, BaseModel) and not isinstance(value, Node):
        return dict(value)
    return value
