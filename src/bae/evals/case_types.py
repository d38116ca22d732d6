"""Check that cases fit the types of a graph: the start node, the expected fields and classes, and
the answers to gates. All cases are checked before a run starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from pydantic import ValidationError

from bae.draft import from_answer, validate_values
from bae.evals.cases import MOST_PROBLEMS, Case, invalid_cases, suggest
from bae.evals.metrics import is_json
from bae.exceptions import describe, faults
from bae.file_proof import holds_file
from bae.files import MAX_BYTES, File, file_of, with_paths_read
from bae.given_files import read_file
from bae.node import Node
from bae.plan import plan_of
from bae.run import Waiting

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.markers import OpenGate
    from bae.run import GateAnswerer

Checked: TypeAlias = "tuple[str, Case | None, list[str]]"
"""The label of a case in errors, the case, and its problems so far. The case is None if it cannot
be read."""


def every_node(graph: Graph[Any, Any]) -> tuple[type[Node], ...]:
    """Return the node classes of a graph and of its inner graphs, such as graphs of a `Dep` or a
    `Map`, without duplicates. The start class is first, and inner classes follow outer classes."""
    return tuple(dict.fromkeys(cls for graph_ in graph.graphs for cls in graph_.nodes))


class CaseTypes:
    """The types of a graph that its cases must fit."""

    def __init__(self, graph: Graph[Any, Any]) -> None:
        self.graph = graph
        self.names = _names_for(every_node(graph))
        """The name of each class in cases and tables. A second class of the same name is
        `Reply 2`."""
        self.by_name = {name: cls for cls, name in self.names.items()}
        self._ends = tuple(graph.terminal_nodes)
        self.gates = {
            f"{name}.{field.name}": (cls, field.name)
            for cls, name in self.names.items()
            for field in plan_of(cls, strict=True).fields.values()
            if field.asks_person and field.fills == "source"
        }
        """The gates of the graph and of its inner graphs, as class and field. The keys are the
        names in cases: `Refund.approved`."""

    def check(self, cases: Iterable[Checked], what: str) -> list[Case]:
        """Return the cases if all of them fit. Otherwise raise one error with all problems. The
        message begins with `what`."""
        fitting: list[Case] = []
        problems: list[str] = []
        labels: dict[str, str] = {}
        for label, case, known_problems in cases:
            case_problems = list(known_problems)
            if case is not None:
                case_problems += self.problems(case)
                if case.name in labels:
                    earlier = "another case" if label == case.name else labels[case.name]
                    case_problems.append(f"name: {earlier} is called {case.name!r} too")
                labels.setdefault(case.name, label)
                fitting.append(case)
            problems.extend(f"{label}: {problem}" for problem in case_problems)
            if len(problems) > MOST_PROBLEMS:
                break
        if problems:
            raise invalid_cases(what, problems)
        return fitting

    def fields_of(self, given: Any) -> Any:
        """Return the fields of an `input`. If the start node has only one field to give, the input
        may be the value of this field."""
        only = _only_field(self.graph.start)
        if only is None or isinstance(given, Node):
            return given
        if isinstance(given, Mapping):
            # An object without the names of fields may be the value of the only field.
            field_names = _fields_by_name(self.graph.start)
            if not given or any(name in field_names for name in cast(Mapping[str, Any], given)):
                return cast(Any, given)
            if _faults("", self.graph.start, lambda: self.start({only: given})):
                return cast(Any, given)
        return {only: cast(Any, given)}

    def start(self, inputs: Mapping[str, Any] | Node) -> Node:
        """Make the start node of a run. Each run gets its own node, because bodies may change it.
        Raises the errors of the node's validators."""
        if isinstance(inputs, Node):
            return _copy_value(inputs)
        cls = self.graph.start
        fields = self.by_field(cls, {name: _copy_value(value) for name, value in inputs.items()})
        if cls.__init__ is Node.__init__ and is_json(fields):
            declared = frozenset(name for name in fields if name in cls.__pydantic_fields__)
            return from_answer(cls, fields, declared)
        return cls(**fields)

    def with_files(self, inputs: Any, folder: Path) -> Any:
        """Read the files that inputs name, such as `@photo.png` for an image or document field.
        Raises `OSError` or `ValueError` if a path is outside the folder, or if a file cannot be
        read."""
        if isinstance(inputs, Node) or not isinstance(inputs, Mapping):
            return inputs
        start, root = self.graph.start, folder.resolve()
        names = _fields_by_name(start)

        def read(path: str) -> File:
            full = (root / path).resolve()
            if not full.is_relative_to(root):
                raise ValueError(f"{path} is not in the folder of the cases")
            return file_of(read_file(full, MAX_BYTES), full.name)

        def with_file(name: str, value: Any) -> Any:
            field = names.get(name, "")
            is_file = field in start.__pydantic_fields__ and holds_file(start, field)
            return with_paths_read(value, read) if is_file else value

        given = cast("Mapping[str, Any]", inputs)
        return {name: with_file(name, value) for name, value in given.items()}

    def by_field(self, cls: type[Node], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by field name. The keys of `given` may be aliases."""
        field_names = _fields_by_name(cls)
        return {field_names.get(name, name): value for name, value in given.items()}

    def expectation(self, cls: type[Node], expected: Mapping[str, Any]) -> dict[str, Any]:
        """Validate expected values as fields of a class. Raises the errors of the class's
        validators."""
        fields = self.by_field(cls, expected)
        return validate_values(cls, fields, frozenset(fields) if is_json(fields) else None)

    def expected_end(self, case: Case) -> type[Node] | None:
        """Return the class at which a case expects its run to end.

        This is the class in `expected_type`, or otherwise the only class that fits the `expected`
        fields. None if the case expects no end, or if not exactly one class fits.
        """
        if case.expected_type:
            return self.by_name.get(case.expected_type)
        if case.expected is None or case.metric is not None:
            return None
        if len(self._ends) == 1:
            return self._ends[0]
        fitting_ends = [
            end for end in self._ends if not self._field_problems("", end, case.expected)
        ]
        return fitting_ends[0] if len(fitting_ends) == 1 else None

    def answerer(self, case: Case, otherwise: GateAnswerer | None) -> GateAnswerer | None:
        """Return a function that answers the gates of a run from the case. The function `otherwise`
        answers gates for which the case has no answer."""
        if not case.answers:
            return otherwise
        places = {field: place for place, field in self.gates.items()}

        async def answer(gate: OpenGate) -> Any:
            cls, name = gate.node_type, gate.field_name
            place = places.get((cls, name), "")
            if place in case.answers:
                return self.expectation(cls, {name: case.answers[place]})[name]
            if otherwise is None:
                raise Waiting([gate])
            return await otherwise(gate)

        return answer

    def problems(self, case: Case) -> list[str]:
        """Return the problems of a case, such as `input.age: Input should be …`. Empty if the case
        fits."""
        problems = self._start_problems(case.inputs)
        if case.metric is None:  # a metric may expect anything
            problems += self._end_problems(case)
        for name, fields in case.nodes.items():
            if name in self.by_name:
                problems += self._field_problems(f"nodes.{name}", self.by_name[name], fields)
            else:
                problems.append(f"nodes: {name!r} is no such node, {suggest(name, self.by_name)}")
        for place, value in case.answers.items():
            if place in self.gates:
                cls, name = self.gates[place]
                problems += self._field_problems(f"answers.{cls.__name__}", cls, {name: value})
            else:
                hint = suggest(place, self.gates)
                problems.append(f"answers.{place}: there is no such gate, {hint}")
        return problems

    def _start_problems(self, inputs: object) -> list[str]:
        start = self.graph.start
        if isinstance(inputs, Node):
            if type(inputs) is start:
                return []
            return [f"input: a run starts with a {start.__name__}, not a {type(inputs).__name__}"]
        if not isinstance(inputs, Mapping):
            return [f"input: give an object of the fields of {start.__name__}"]
        given = cast(Mapping[str, Any], inputs)
        field_names = _fields_by_name(start)
        if start.model_config.get("extra") != "allow" and not given.keys() <= field_names.keys():
            return self._field_problems("input", start, given)
        return _faults("input", start, lambda: self.start(given))

    def _end_problems(self, case: Case) -> list[str]:
        ends = {self.names[end]: end for end in self._ends}
        kind = case.expected_type
        if kind and kind not in ends:
            why = f"{kind!r} is no such node, {suggest(kind, ends)}"
            return [f"expected_type: no run of {self.graph.name} ends there: {why}"]
        among = [ends[kind]] if kind else self._ends
        if case.expected is None or not among:
            return []
        field_names = {name: None for end in among for name in _fields_by_name(end)}
        unknown = [
            f"expected.{name}: no end has such a field, {suggest(name, field_names)}"
            for name in case.expected
            if name not in field_names and len(among) > 1
        ]
        # The case must fit one end. If it fits none, report the end with the fewest problems.
        problems_by_end = (self._field_problems("expected", end, case.expected) for end in among)
        return unknown or min(problems_by_end, key=len)

    def _field_problems(self, place: str, cls: type[Node], fields: Mapping[str, Any]) -> list[str]:
        field_names = _fields_by_name(cls)
        unknown = [
            f"{place}.{name}: {cls.__name__} has no such field, "
            f"{suggest(name, cls.__pydantic_fields__)}"
            for name in fields
            if name not in field_names
        ]
        given = {name: value for name, value in fields.items() if name in field_names}
        return unknown + _faults(place, cls, lambda: self.expectation(cls, given))


def _faults(place: str, cls: type[Node], check: Callable[[], object]) -> list[str]:
    """Return the errors of a class's validators."""
    try:
        check()
    except ValidationError as error:
        return [f"{place}.{fault}" for fault in faults(error)]
    except Exception as error:  # validators are the node's own code
        return [f"{place}: {cls.__name__} raised {describe(error)}"]
    return []


def _names_for(nodes: Sequence[type[Node]]) -> dict[type[Node], str]:
    names: dict[type[Node], str] = {}
    for cls in nodes:
        number = 1 + sum(earlier.__name__ == cls.__name__ for earlier in names)
        names[cls] = cls.__name__ if number == 1 else f"{cls.__name__} {number}"
    return names


def _copy_value(value: Any) -> Any:
    """Return a deep copy. A value that cannot be copied, such as a client, is returned unchanged.
    If a node has such a value, only the node itself is copied."""
    try:
        return deepcopy(value)
    except Exception:  # a value that cannot be copied may raise anything
        return value.model_copy() if isinstance(value, Node) else value


def _fields_by_name(cls: type[Node]) -> dict[str, str]:
    """Map the names and the aliases of fields to the names of the fields."""
    by_alias: dict[str, str] = {}
    for name, info in cls.__pydantic_fields__.items():
        for alias in (info.validation_alias, info.alias):
            if isinstance(alias, str):
                by_alias[alias] = name
    return {**by_alias, **{name: name for name in cls.__pydantic_fields__}}


def _only_field(cls: type[Node]) -> str | None:
    """Return the only required field without a source, or otherwise the only field without a
    source. None if there is no such field, or more than one."""
    plain = plan_of(cls, strict=True).plain
    required = [field for field in plain if field.required]
    chosen = required if len(required) == 1 else plain
    return chosen[0].name if len(chosen) == 1 else None
