"""The file and line at which a node class, or a field of one, is written."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from bae.calls import every_call

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def line_of(graph: Graph[Any, Any], place: str) -> SourceLine | None:
    """The line that the place of a problem is at: of `Outfit.mood` that of the field, of
    `Walk -> Rest` that of `Walk`. None where it cannot be told, as of a class made by a program."""
    first = place.partition(" ")[0]
    name, _, member = first.partition(".")
    named = [cls for cls in _classes(graph) if cls.__name__ == name]
    for cls in named:
        if not member or member in cls.__pydantic_fields__ or hasattr(cls, member):
            return _line(cls, member)
    return _line(named[0], "") if named else None


def _classes(graph: Graph[Any, Any]) -> Iterator[type[Node]]:
    """The node classes of a graph, of the graphs inside it, and those that its end names."""
    graphs = [graph]
    for each in graphs:
        yield from each.plans
        yield from each.end
        for plan in each.plans.values():
            for field in plan.sourced:
                for call in every_call(field.call):
                    if call.graph is not None and all(
                        call.graph.start is not other.start for other in graphs
                    ):
                        graphs.append(call.graph)


def _line(cls: type, member: str) -> SourceLine | None:
    for owner in cls.__mro__ if member else (cls,):
        found = _written(owner)
        if found is None:
            if owner is cls:
                return None
            continue
        file, first, members = found
        if not member:
            return SourceLine(file, first)
        if member in members:
            return SourceLine(file, members[member])
    return _line(cls, "") if member else None


@cache
def _written(cls: type) -> tuple[str, int, dict[str, int]] | None:
    """The file of a class, the line of its `class`, and those of what its body defines."""
    if cls.__module__ in ("builtins", "pydantic.main", "bae.node"):
        return None
    try:
        file = inspect.getsourcefile(cls)
        text, begin = inspect.getsourcelines(cls)
        tree = ast.parse(inspect.cleandoc("\n" + "".join(text)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    body = tree.body[0] if tree.body else None
    if file is None or not isinstance(body, ast.ClassDef) or body.name != cls.__name__:
        return None
    members: dict[str, int] = {}
    for statement in body.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)):
                pass
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                pass
            case _:
                continue
        members[name] = begin + statement.lineno - 1
    return file, begin + body.lineno - 1, members
