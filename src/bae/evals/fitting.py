"""Whether cases fit a graph: the start node that a case begins with, and the fields and classes
that it expects, checked against the types before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from bae.draft import from_answer, validated
from bae.evals.answering import answer_problems
from bae.evals.cases import Case
from bae.evals.refusing import MOST, refused
from bae.exceptions import describe, faults
from bae.node import Node
from bae.plan import plan_of

if TYPE_CHECKING:
    from bae.graph import Graph


class Fitting:
    """What the types of a graph say about cases for it."""

    def __init__(self, graph: Graph[Any, Any]) -> None:
        from bae.optimizer.nodes import every_node

        self.graph = graph
        self.nodes = every_node(graph)
        self.names = names_for(self.nodes)
        """What each class is called in cases and tables."""
        self._by_name = {name: cls for cls, name in self.names.items()}
        self._ends = tuple(graph.terminal_nodes)

    def named(self, name: str) -> type[Node] | None:
        """The class that a case calls so."""
        return self._by_name.get(name)

    def fields_of(self, given: Any) -> Any:
        """What an `input` gives by field, where it may be the value of the only one."""
        only = _only_field(self.graph.start)
        if only is None or isinstance(given, Node):
            return given
        if isinstance(given, Mapping):
            # An object that names no field may be the value of the one that there is.
            known = _fields_by_name(self.graph.start)
            if not given or any(name in known for name in cast(Mapping[str, Any], given)):
                return cast(Any, given)
            try:
                self.start({only: given})
            except Exception:  # validators are code of the node's own
                return cast(Any, given)
        return {only: cast(Any, given)}

    def start(self, inputs: Mapping[str, Any] | Node) -> Node:
        """The node that a run of these inputs begins with, one of its own for each run, since
        bodies may change what they are given. Raises what its validators do."""
        if isinstance(inputs, Node):
            return _apart(inputs)
        cls = self.graph.start
        fields = self.by_field(cls, {name: _apart(value) for name, value in inputs.items()})
        if cls.__init__ is Node.__init__ and _is_json(fields):
            said = frozenset(name for name in fields if name in cls.__pydantic_fields__)
            return from_answer(cls, fields, said)
        return cls(**fields)

    def by_field(self, cls: type[Node], given: Mapping[str, Any]) -> dict[str, Any]:
        """Values by the names of fields, where some are given by an alias."""
        known = _fields_by_name(cls)
        return {known.get(name, name): value for name, value in given.items()}

    def expectation(self, cls: type[Node], expected: Mapping[str, Any]) -> dict[str, Any]:
        """Expected values as the fields of a class take them. Raises what its validators do."""
        fields = self.by_field(cls, expected)
        if not _is_json(fields):
            return validated(cls, fields)
        return validated(cls, fields, frozenset(fields))

    def expected_end(self, case: Case) -> type[Node] | None:
        """The class that a case expects its run to end at: the one it names, or the only one that
        has the fields it expects; None where that could be several, or any."""
        if case.expected_type:
            return self.named(case.expected_type)
        if case.expected is None or case.metric is not None:
            return None
        if len(self._ends) == 1:
            return self._ends[0]
        fits = [end for end in self._ends if not self._field_problems("", end, case.expected)]
        return fits[0] if len(fits) == 1 else None

    def problems(self, case: Case) -> list[str]:
        """What does not fit, as `input.age: Input should be …`; empty where all does."""
        if misshapen := list(_misshapen(case)):
            return misshapen
        return [*self.start_problems(case.inputs), *self.expectation_problems(case)]

    def expectation_problems(self, case: Case) -> list[str]:
        """What does not fit of all but what the case begins with."""
        found: list[str] = []
        if case.metric is None:  # else what is expected is for that to say
            found += self._end_problems(case)
        for name, fields in case.nodes.items():
            cls = self.named(name)
            if cls is None:
                found.append(f"nodes: {self._no_node(name, self.names.values())}")
            else:
                found += self._field_problems(f"nodes.{name}", cls, fields)
        return [*found, *answer_problems(self, case)]

    def start_problems(self, inputs: object) -> list[str]:
        """What does not fit of what a case begins with."""
        start = self.graph.start
        if isinstance(inputs, Node):
            if type(inputs) is start:
                return []
            return [f"input: a run begins with a {start.__name__}, not a {type(inputs).__name__}"]
        if not isinstance(inputs, Mapping):
            return [f"input: give an object of the fields of {start.__name__}"]
        given = cast(Mapping[str, Any], inputs)
        if start.model_config.get("extra") != "allow":
            known = _fields_by_name(start)
            if any(name not in known for name in given):
                return self._field_problems("input", start, given)
        try:
            self.start(given)
        except ValidationError as error:
            return [f"input.{each}" for each in faults(error)]
        except Exception as error:
            return [f"input: {start.__name__} raised {describe(error)}"]
        return []

    def _end_problems(self, case: Case) -> list[str]:
        ends: Sequence[type[Node]] = self._ends
        if case.expected_type:
            cls = self.named(case.expected_type)
            if cls is None or cls not in ends:
                said = self._no_node(case.expected_type, (self.names[end] for end in ends))
                return [f"expected_type: no run of {self.graph.name} ends there: {said}"]
            ends = (cls,)
        if case.expected is None or not ends:
            return []
        found = [self._field_problems("expected", end, case.expected) for end in ends]
        nowhere = [] if len(ends) == 1 else _in_none(ends, case.expected)
        # With several ends it is enough that it fits one of them; else the nearest is told of.
        return nowhere or min(found, key=len)

    def _field_problems(self, place: str, cls: type[Node], fields: Mapping[str, Any]) -> list[str]:
        known = _fields_by_name(cls)
        found = [f"{place}.{_no_field(cls, name)}" for name in fields if name not in known]
        try:
            self.expectation(cls, {n: value for n, value in fields.items() if n in known})
        except ValidationError as error:
            found += [f"{place}.{each}" for each in faults(error)]
        except Exception as error:
            found.append(f"{place}: {cls.__name__} raised {describe(error)}")
        return found

    def _no_node(self, name: str, among: Iterable[str]) -> str:
        names = sorted(among)
        near = get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
        return f"{name!r} is no such node, {hint}"


def fitted(graph: Graph[Any, Any], cases: Iterable[Case]) -> tuple[Fitting, list[Case]]:
    """The cases, each with a name and found to fit the graph; else all that is wrong is raised."""
    fitting = Fitting(graph)
    found: list[Case] = []
    problems: list[str] = []
    names: set[str] = set()
    for number, given in enumerate(cases, 1):
        if not isinstance(cast(object, given), Case):
            problems.append(f"case {number}: give a Case, and not {_said(given)}")
            continue
        case = given if given.name else replace(given, name=f"case {number}")
        wrong = fitting.problems(case)
        if case.name in names:
            wrong.append("name: another case is called so too")
        names.add(case.name)
        problems.extend(f"{case.name}: {each}" for each in wrong)
        found.append(case)
        if len(problems) > MOST:
            break
    if problems:
        raise refused(f"there are cases that {graph.name} cannot run", problems)
    if not found:
        raise refused("there are no cases", fix="give one or more: Case({…}, expected={…})")
    return fitting, found


def names_for(nodes: Iterable[type[Node]]) -> dict[type[Node], str]:
    """What classes are called where they stand side by side: those of one name with their module,
    and numbered where that is the same too."""
    listed = tuple(dict.fromkeys(nodes))
    short = [cls.__name__ for cls in listed]
    names = {
        cls: cls.__name__ if short.count(cls.__name__) == 1 else f"{cls.__module__}.{cls.__name__}"
        for cls in listed
    }
    found: dict[type[Node], str] = {}
    for cls, name in names.items():
        same = [other for other, said in names.items() if said == name]
        found[cls] = name if len(same) == 1 else f"{name} {same.index(cls) + 1}"
    return found


def _misshapen(case: Case) -> Iterator[str]:
    """What is wrong with a case, before anybody looks at the graph."""
    for place in ("name", "expected_type"):
        text: object = getattr(case, place)
        if not isinstance(text, str):
            yield f"{place}: give a text, and not {_said(text)}"
    for place in ("expected", "nodes", "metadata", "answers"):
        given: object = getattr(case, place)
        if given is None and place == "expected":
            continue
        if not isinstance(given, Mapping):
            yield f"{place}: give an object of fields, and not {_said(given)}"
        elif place == "nodes":
            for name, fields in cast(Mapping[str, object], given).items():
                if not isinstance(fields, Mapping):
                    yield f"nodes.{name}: give an object of its fields, and not {_said(fields)}"
    if case.metric is not None and not callable(case.metric):
        yield f"metric: give a function of the case and the result, and not {_said(case.metric)}"


def _said(value: object) -> str:
    said = repr(value)
    return said if len(said) <= 80 else f"{said[:80]}…"


def _apart(value: Any) -> Any:
    """A copy that shares nothing; the same where there is none, as of clients."""
    try:
        return deepcopy(value)
    except Exception:
        return value.model_copy() if isinstance(value, Node) else value


def _fields_by_name(cls: type[Node]) -> dict[str, str]:
    """The fields, by their names and by their aliases."""
    found: dict[str, str] = {}
    for name, info in cls.__pydantic_fields__.items():
        for alias in (info.validation_alias, info.alias):
            if isinstance(alias, str):
                found[alias] = name
    return {**found, **{name: name for name in cls.__pydantic_fields__}}


def _only_field(cls: type[Node]) -> str | None:
    """The one field that there is to give, where there is only one."""
    plain = plan_of(cls, strict=True).plain
    required = [field for field in plain if field.required]
    chosen = required if len(required) == 1 else plain
    return chosen[0].name if len(chosen) == 1 else None


def _no_field(cls: type[Node], name: str) -> str:
    near = get_close_matches(name, cls.__pydantic_fields__, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(cls.__pydantic_fields__)}"
    return f"{name}: {cls.__name__} has no such field, {hint}"


def _in_none(ends: Sequence[type[Node]], expected: Mapping[str, Any]) -> list[str]:
    """What is said of expected fields that no end has."""
    known = {name for end in ends for name in _fields_by_name(end)}
    fields = "; ".join(f"{end.__name__} has {', '.join(end.__pydantic_fields__)}" for end in ends)
    found: list[str] = []
    for name in expected:
        if name not in known:
            near = get_close_matches(name, sorted(known), n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            found.append(f"expected.{name}: no end has such a field, {hint}{fields}")
    return found


def _is_json(value: object) -> bool:
    """Whether a value is what JSON can say, and not a Python object that stands for itself."""
    if value is None or type(value) in (str, int, float, bool):
        return True
    if type(value) is dict:
        given = cast(dict[Any, Any], value)
        return all(type(k) is str and _is_json(v) for k, v in given.items())
    return type(value) is list and all(_is_json(v) for v in cast(list[Any], value))
