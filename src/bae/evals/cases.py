"""The cases that a graph is evaluated on: what a run begins with, and what should come of it. They
are read from a file here, or made in code; `fitting.py` says whether they fit the graph, and
`evaluating.py` runs them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from bae.evals.refusing import MOST, refused

if TYPE_CHECKING:
    from bae.evals.fitting import Fitting
    from bae.graph import Graph
    from bae.node import Node
    from bae.optimizer.metrics import Score
    from bae.result import GraphResult


class CaseMetric(Protocol):
    """How good a run came out, from 0 to 1: a function, async or not, of the case and the result.
    Return a `Score` to say why, too."""

    def __call__(
        self, case: Case, result: GraphResult[Any], /
    ) -> float | bool | Score | Awaitable[float | bool | Score]: ...


DATASETS: Final = (".json", ".yaml", ".yml")
"""How the names of files end that are datasets of pydantic-evals."""

_KEYS: Final = ("input", "name", "expected", "expected_type", "nodes", "metadata", "answers")


@dataclass(frozen=True, slots=True)
class Case:
    """One case: a run that begins with `inputs`, and what is expected of it.

    - `inputs`: the fields of the start node, as JSON or Python values, or the node itself.
    - `name`: what tables call it; without one it is `case 3`, by its place among the cases. No two
      cases of an evaluation may have the same.
    - `expected`: fields of the node that the run should end at, by name or alias. Those that you
      leave out may be anything.
    - `expected_type`: the name of the node class that the run should end at. Without one it is the
      class that has the `expected` fields, where only one has.
    - `nodes`: expected fields of nodes on the way, by the name of their class, `{}` where it is
      enough that the run comes by. Of several nodes of a class in a run the last one counts.
    - `metadata`: anything else that your metric wants to know.
    - `metric`: how this case is scored, where the evaluation is given no metric.
    - `answers`: what is answered where the run meets a gate, by class and field:
      `{"Refund.approved": True}`, each time that it does.
    """

    inputs: Mapping[str, Any] | Node
    name: str = ""
    expected: Mapping[str, Any] | None = None
    expected_type: str = ""
    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, "Mapping[str, Any]"])
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    metric: CaseMetric | None = field(default=None, compare=False, repr=False)
    answers: Mapping[str, Any] = field(default_factory=dict[str, Any])


def load_cases(path: str | Path, graph: Graph[Any, Any], *, own_metric: bool = False) -> list[Case]:
    """Read the cases for a graph from a file.

    A file whose name ends in `.jsonl` has one JSON object in a line: `{"input": {"message": "hi"},
    "expected": {"mood": "calm"}}`, with `name`, `expected_type`, `nodes`, `metadata` and `answers`
    if you like; see `Case`. Where the start node has one field to give, `input` may be its value
    alone. One that ends in `.json` or `.yaml` is a dataset of pydantic-evals; say `own_metric=True`
    where you score its cases with a metric of yours, and its evaluators are left out.

    Every case is checked against the graph's types before anything runs. What does not fit is
    raised together, with line and field, as a `BaeError` (`bae-cases-invalid`).
    """
    file = Path(path)
    if file.suffix.lower() in DATASETS:
        from bae.evals.datasets import load_dataset

        return load_dataset(file, graph, own_metric=own_metric)
    from bae.evals.fitting import Fitting

    reading = _Reading(Fitting(graph))
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                reading.take(number, line)
                if len(reading.problems) > MOST:
                    break
    except OSError as error:
        raise refused(
            f"the cases in {file} cannot be read",
            cause=error,
            fix="check the path and its permissions; a .jsonl file has one JSON object in a line",
        ) from error
    if reading.problems:
        raise refused(f"{file} has cases that {graph.name} cannot run", reading.problems)
    if not reading.cases:
        raise refused(
            f"there is no case in {file}",
            fix='write one JSON object in a line, as {"input": {…}, "expected": {…}}',
        )
    return reading.cases


class _Reading:
    """The cases read so far, and what was wrong."""

    def __init__(self, fitting: Fitting) -> None:
        self.cases: list[Case] = []
        self.problems: list[str] = []
        self._fitting = fitting
        self._lines: dict[str, int] = {}

    def take(self, number: int, line: bytes) -> None:
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError as error:
            self._add(number, [f"is not UTF-8: {error.reason} at byte {error.start + 1}"])
            return
        if not text:
            return
        try:
            said: Any = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            self._add(number, [f"is not JSON: {error}"])
            return
        if not isinstance(said, dict):
            self._add(number, ['is no JSON object: write {"input": {…}, "expected": {…}}'])
            return
        given = cast(dict[str, Any], said)
        wrong = list(_misshapen(given))
        # What is of a wrong shape is as if left out, so that it hides no other problem.
        nodes = cast(dict[str, Any], _of(dict, given, "nodes") or {})
        case = Case(
            self._fitting.fields_of(given.get("input")),
            _of(str, given, "name") or f"case {number}",
            _of(dict, given, "expected"),
            _of(str, given, "expected_type") or "",
            {name: nodes[name] for name in nodes if isinstance(nodes[name], dict)},
            _of(dict, given, "metadata") or {},
            answers=_of(dict, given, "answers") or {},
        )
        if "input" in given:
            wrong += self._fitting.start_problems(case.inputs)
        wrong += self._fitting.expectation_problems(case)
        if case.name in self._lines:
            wrong.append(f"name: line {self._lines[case.name]} is called {case.name!r} too")
        self._lines.setdefault(case.name, number)
        self._add(number, wrong)
        if not wrong:
            self.cases.append(case)

    def _add(self, number: int, wrong: list[str]) -> None:
        self.problems.extend(f"line {number}: {each}" for each in wrong)


def _of(kind: type[Any], given: Mapping[str, Any], key: str) -> Any:
    """What stands under a key, where it is of that kind; else None."""
    value = given.get(key)
    return value if isinstance(value, kind) else None


def _misshapen(given: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the object of a line, before anybody looks at the graph."""
    for key in given:
        if key not in _KEYS:
            near = get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_KEYS)}"
            yield f"{key}: there is no such key, {hint}"
    if "input" not in given:
        yield "input: there is none, and a run needs something to begin with"
    for key in ("name", "expected_type"):
        if not isinstance(given.get(key), str | None):
            yield f"{key}: give a text"
    for key in ("expected", "nodes", "metadata", "answers"):
        if not isinstance(given.get(key), dict | None):
            yield f"{key}: give an object"
    nodes: Any = given.get("nodes")
    if isinstance(nodes, dict):
        for name, fields in cast(dict[str, Any], nodes).items():
            if not isinstance(fields, dict):
                yield f"nodes.{name}: give an object of its fields"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; with one name twice nobody knows which value was meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is there twice")
    return found


def _no_number(said: str) -> Any:
    raise ValueError(f"{said} is no number in JSON")
