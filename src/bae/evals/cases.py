"""Cases for evaluations: the inputs of a run, and the expected result."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from pydantic import ConfigDict, SkipValidation, ValidationError
from pydantic.dataclasses import dataclass

from bae.exceptions import BaeError, describe, faults
from bae.given_files import open_file, read_lines
from bae.node import Node

if TYPE_CHECKING:
    from bae.evals.case_types import CaseTypes, Checked
    from bae.evals.metrics import Score
    from bae.graph import Graph
    from bae.result import GraphResult


class CaseMetric(Protocol):
    """A function, async or not, that takes a case and its result and returns a score from 0 to 1,
    or a `Score` with a reason."""

    def __call__(
        self, case: Case, result: GraphResult[Any], /
    ) -> float | bool | Score | Awaitable[float | bool | Score]: ...


@dataclass(frozen=True, slots=True, config=ConfigDict(strict=True, arbitrary_types_allowed=True))
class Case:
    """One case of an evaluation.

    - `inputs`: the fields of the start node as JSON or Python values, or the node itself.
    - `name`: a unique name for tables. The default is its position, such as `case 3`.
    - `expected`: fields of the node at which the run should end, by name or alias. Other fields may
      have any value.
    - `expected_type`: the name of the node class at which the run should end. The default is the
      only class that has the `expected` fields.
    - `nodes`: expected fields of nodes on the way, by the name of their class. `{}` expects only
      that the run reaches the class. If the run has several nodes of a class, the last counts.
    - `metadata`: any data for your metric.
    - `metric`: scores this case if the evaluation has no metric.
    - `answers`: the answers to the gates of the run, by class and field:
      `{"Refund.approved": True}`.
    """

    inputs: SkipValidation[Mapping[str, Any] | Node]
    name: str = ""
    expected: Mapping[str, Any] | None = None
    expected_type: str = ""
    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, "Mapping[str, Any]"])
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    metric: SkipValidation[CaseMetric | None] = field(default=None, compare=False, repr=False)
    answers: Mapping[str, Any] = field(default_factory=dict[str, Any])


def load_cases(
    path: str | Path,
    graph: Graph[Any, Any],
    *,
    evaluators: Sequence[type[Any]] = (),
    own_metric: bool = False,
) -> list[Case]:
    """Read the cases for a graph from a file.

    A `.jsonl` file has one JSON object per line: `{"input": {"message": "hi"}, "expected": {"mood":
    "calm"}}`. The keys `name`, `expected_type`, `nodes`, `metadata` and `answers` are optional; see
    `Case`. If the start node needs only one field, `input` may be the value of this field. For an
    image or a document, `@photo.png` names a file in the folder of the cases or below it.

    A `.json` or `.yaml` file is a dataset of pydantic-evals. If it names evaluators of your own,
    pass their classes as `evaluators`. To score the cases with your own metric, pass
    `own_metric=True`: all evaluators of the file are ignored.

    Every case is checked against the graph's types. All problems are raised together as one
    `BaeError` (`bae-cases-invalid`), with line and field.
    """
    from bae.evals.case_types import CaseTypes

    file = Path(path)
    if file.suffix.lower() in DATASETS:
        from bae.evals.datasets import load_dataset

        return load_dataset(file, graph, evaluators, own_metric=own_metric)
    if evaluators:
        raise ValueError(f"evaluators=…: {file} names none; only a dataset of pydantic-evals does")
    types = CaseTypes(graph)
    try:
        cases = types.check(
            _read_labeled_cases(file, types), f"{file} has cases that {graph.name} cannot run"
        )
    except OSError as error:
        raise invalid_cases(
            f"the cases in {file} cannot be read",
            cause=error,
            fix="check the path and its permissions; a .jsonl file has one JSON object in a line",
        ) from error
    if not cases:
        raise invalid_cases(
            f"there is no case in {file}",
            fix='write one JSON object in a line, as {"input": {…}, "expected": {…}}',
        )
    return cases


DATASETS: Final = (".json", ".yaml", ".yml")
"""The suffixes of files that are datasets of pydantic-evals."""
MOST_PROBLEMS: Final = 20
"""The most problems that one error lists."""


def invalid_cases(
    what: str,
    problems: Sequence[str] = (),
    *,
    cause: BaseException | None = None,
    fix: str = "fix them: nothing has run",
) -> BaeError:
    """Return the error for invalid cases, with a line for each problem."""
    listed = [f"\n  {problem}" for problem in problems[:MOST_PROBLEMS]]
    if len(problems) > MOST_PROBLEMS:
        listed.append(f"\n  and more: these are the first {MOST_PROBLEMS}")
    message = f"{what}:{''.join(listed)}" if listed else what
    return BaeError(message, code="bae-cases-invalid", cause=cause, fix=fix)


def suggest(name: str, among: Iterable[str]) -> str:
    """Return a hint for an unknown name: the most similar known name, or otherwise all known
    names."""
    names = [*among]
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names) or 'none'}"


_KEYS: Final = tuple(f.name for f in fields(Case) if f.name not in ("inputs", "metric"))


def _read_labeled_cases(file: Path, types: CaseTypes) -> Iterator[Checked]:
    with open_file(file) as stream:
        for number, line in enumerate(read_lines(stream), 1):
            if line.strip(b" \t\r\n\xef\xbb\xbf"):
                yield (f"line {number}", *_read_case(number, line, types, file.parent))


def _read_case(
    number: int, line: bytes, types: CaseTypes, folder: Path
) -> tuple[Case | None, list[str]]:
    try:
        values: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        return None, [f"is not JSON: {error}"]
    if not isinstance(values, dict):
        return None, ['is no JSON object: write {"input": {…}, "expected": {…}}']
    present = {k: value for k, value in cast(dict[str, Any], values).items() if value is not None}
    keys = ("input", *_KEYS)
    problems = [
        f"{key}: there is no such key, {suggest(key, keys)}" for key in present if key not in keys
    ]
    if "input" not in present:
        return None, [*problems, "input: there is none, and a run needs something to start with"]
    case: dict[str, Any] = {"name": f"case {number}"}
    case |= {key: present[key] for key in _KEYS if key in present}
    try:
        inputs = types.with_files(types.fields_of(present["input"]), folder)
        return Case(inputs, **case), problems
    except ValidationError as error:
        return None, [*problems, *faults(error)]
    except (OSError, ValueError) as error:
        return None, [*problems, f"input: a file cannot be read: {describe(error)}"]
