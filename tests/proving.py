"""What the tests of the proof share: types to prove with, and the problems of a graph at hand."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Generic, NewType, TypeVar

from pydantic import BaseModel, create_model

from bae import Dep, Graph, Node, Problem
from end_node import EndNode

T = TypeVar("T")


class Mood(BaseModel):
    name: str = "calm"


class Weather(BaseModel):
    degrees: int = 20


class Storm(Weather):
    wind: int = 90


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Opaque:
    """A class that JSON knows nothing of."""


def get_weather() -> Weather:
    return Weather()


def problems(start: type[Node], **options: Any) -> list[Problem]:
    return Graph(start=start, **options).validate()


def codes(start: type[Node], **options: Any) -> list[tuple[str, str]]:
    """Code and place of every problem, in the reported order."""
    return [(problem.code, problem.place) for problem in problems(start, **options)]


def the_problem(start: type[Node], **options: Any) -> Problem:
    """The one problem of a graph."""
    (problem,) = problems(start, **options)
    return problem


def the_error(code: str, place: str, start: type[Node]) -> Problem:
    """The one problem of a graph, which is an error of this code at this place."""
    problem = the_problem(start)
    assert (problem.severity, problem.code, problem.place) == ("error", code, place)
    return problem


def field_of(annotation: Any, fn: Any) -> type[Node]:
    """A node with one Dep field."""
    return create_model("Wears", __base__=EndNode, x=(Annotated[annotation, Dep(fn)], ...))


class Box(BaseModel, Generic[T]):
    inside: T


Celsius = NewType("Celsius", float)


def ring(length: int) -> list[Any]:
    """Functions that each wait for the next, the last for the first."""

    def make(index: int) -> Any:
        def fn(below): ...

        fn.__name__ = fn.__qualname__ = f"f{index}"
        return fn

    functions = [make(i) for i in range(length)]
    for fn, below in zip(functions, [*functions[1:], functions[0]], strict=True):
        fn.__annotations__ = {"below": Annotated[int, Dep(below)], "return": int}
    return functions


def len_of(line: str) -> int:
    return len(line)
