"""The cases that a graph is evaluated on: what a run starts with, and what is expected of it."""

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
    """How good a run is, from 0 to 1: a function, async or not, of the case and the result. Return
    a `Score` to say why, too."""

    def __call__(
        self, case: Case, result: GraphResult[Any], /
    ) -> float | bool | Score | Awaitable[float | bool | Score]: ...


@dataclass(frozen=True, slots=True, config=ConfigDict(strict=True, arbitrary_types_allowed=True))
class Case:
    """One case: a run that starts with `inputs`, and what is expected of it.

    - `inputs`: the fields of the start node, as JSON or Python values, or the node itself.
    - `name`: its name in tables, different from that of every other case; by default `case 3`, by
      its position.
    - `expected`: fields of the node that the run should end at, by name or alias. Fields that you
      leave out may have any value.
    - `expected_type`: the name of the node class that the run should end at. By default the class
      that has the `expected` fields, if only one has.
    - `nodes`: expected fields of nodes on the way, by the name of their class, `{}` if it is enough
      that the run reaches it. Of several nodes of a class the last one counts.
    - `metadata`: anything else for your metric.
    - `metric`: how this case is scored, if the evaluation has no metric.
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


def load_cases(path: str | Path, graph: Graph[Any, Any], *, own_metric: bool = False) -> list[Case]:
    """Read the cases for a graph from a file.

    A `.jsonl` file has one JSON object per line: `{"input": {"message": "hi"}, "expected": {"mood":
    "calm"}}`, with `name`, `expected_type`, `nodes`, `metadata` and `answers` if you like; see
    `Case`. For an image or a document, `@photo.png` names a file in the folder of the cases, or in
    one below. If the start node has one field to give, `input` may be its value alone. A `.json` or
    `.yaml` file is a dataset of pydantic-evals; with `own_metric=True` its evaluators are left out,
    for cases that you score with a metric of your own.

    Every case is checked against the graph's types before anything runs. All problems are raised
    together, with line and field, as a `BaeError` (`bae-cases-invalid`).
    """
    from bae.evals.case_types import CaseTypes

    file = Path(path)
    if file.suffix.lower() in DATASETS:
        from bae.evals.datasets import load_dataset

        return load_dataset(file, graph, own_metric=own_metric)
    types = CaseTypes(graph)
    try:
        found = types.check(_lines(file, types), f"{file} has cases that {graph.name} cannot run")
    except OSError as error:
        raise invalid_cases(
            f"the cases in {file} cannot be read",
            cause=error,
            fix="check the path and its permissions; a .jsonl file has one JSON object in a line",
        ) from error
    if not found:
        raise invalid_cases(
            f"there is no case in {file}",
            fix='write one JSON object in a line, as {"input": {…}, "expected": {…}}',
        )
    return found


DATASETS: Final = (".json", ".yaml", ".yml")
"""The suffixes of files that are datasets of pydantic-evals."""
MOST_PROBLEMS: Final = 20
"""How many problems one error lists."""


def invalid_cases(
    what: str,
    problems: Sequence[str] = (),
    *,
    cause: BaseException | None = None,
    fix: str = "fix them: nothing has run",
) -> BaeError:
    """The error for cases that do not fit, with a line for each problem."""
    listed = [f"\n  {problem}" for problem in problems[:MOST_PROBLEMS]]
    if len(problems) > MOST_PROBLEMS:
        listed.append(f"\n  and more: these are the first {MOST_PROBLEMS}")
    message = f"{what}:{''.join(listed)}" if listed else what
    return BaeError(message, code="bae-cases-invalid", cause=cause, fix=fix)


def suggest(name: str, among: Iterable[str]) -> str:
    """A hint for a name that is not among these: the nearest one, or else all."""
    names = [*among]
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names) or 'none'}"


_KEYS: Final = tuple(f.name for f in fields(Case) if f.name not in ("inputs", "metric"))


def _lines(file: Path, types: CaseTypes) -> Iterator[Checked]:
    with open_file(file) as opened:
        for number, line in enumerate(read_lines(opened), 1):
            if line.strip(b" \t\r\n\xef\xbb\xbf"):
                yield (f"line {number}", *_read(number, line, types, file.parent))


def _read(
    number: int, line: bytes, types: CaseTypes, folder: Path
) -> tuple[Case | None, list[str]]:
    try:
        values: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        return None, [f"is not JSON: {error}"]
    if not isinstance(values, dict):
        return None, ['is no JSON object: write {"input": {…}, "expected": {…}}']
    given = {k: v for k, v in cast(dict[str, Any], values).items() if v is not None}
    keys = ("input", *_KEYS)
    wrong = [
        f"{key}: there is no such key, {suggest(key, keys)}" for key in given if key not in keys
    ]
    if "input" not in given:
        return None, [*wrong, "input: there is none, and a run needs something to start with"]
    case: dict[str, Any] = {"name": f"case {number}"}
    case |= {key: given[key] for key in _KEYS if key in given}
    try:
        inputs = types.with_files(types.fields_of(given["input"]), folder)
        return Case(inputs, **case), wrong
    except ValidationError as error:
        return None, [*wrong, *faults(error)]
    except (OSError, ValueError) as error:
        return None, [*wrong, f"input: a file cannot be read: {describe(error)}"]
