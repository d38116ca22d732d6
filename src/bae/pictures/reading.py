"""`picture_of` reads a graph, and the graphs inside it, off the plans that run it. `contents.py`
says what it makes of them."""

from __future__ import annotations

import inspect
import linecache
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from bae.calls import CallPlan, Input, every_call, recalls_of, siblings_of
from bae.markers import Gate, Map, Recall
from bae.pictures.contents import SOURCES, Arrow, ArrowKind, Box, FieldSource, Picture, Shown
from bae.pictures.texts import plain
from bae.pictures.types import type_said
from bae.recall import holders_for

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node
    from bae.plan import FieldPlan, NodePlan

LONGEST_CHAIN: Final = 12
"""How many calls are named for one field; beyond, there are dots."""


def picture_of(graph: Graph[Any, Any]) -> Picture:
    """What a picture of a graph shows. A graph with problems is shown as far as it is known."""
    return _Reading(graph).picture()


_RESERVED: Final = (
    *("end", "flowchart", "graph", "subgraph", "style", "linkstyle", "class", "classdef", "click"),
    *("default", "direction", "interpolate", "href", "call"),
)
"""Words of Mermaid's own, in any case of letters: no identifier may be one."""
_LETTERS: Final = (
    *((0xC0, 0x24F), (0x386, 0x3CE), (0x400, 0x481)),
    *((0x3041, 0x30FA), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3)),
)
"""Where the letters are, besides those of ASCII, that Mermaid takes in an identifier."""

_Key = tuple["type[Node]", str]
_Before = dict["type[Node]", "list[NodePlan]"]
"""The nodes that lead to each."""


class _Reading:
    """One graph, and those inside it, being read."""

    def __init__(self, graph: Graph[Any, Any]) -> None:
        self.graphs: dict[_Key, Graph[Any, Any]] = {_key(graph): graph}
        self.users: dict[_Key, dict[str, None]] = {}
        # Graphs inside graphs are found as the list of graphs is gone through.
        found = [graph]
        for each in found:
            for cls, plan in each.plans.items():
                for field in plan.sourced:
                    for inner in _graphs(field.call):
                        key = _key(inner)
                        self.users.setdefault(key, {})[f"{cls.__name__}.{field.name}"] = None
                        if key not in self.graphs:
                            self.graphs[key] = inner
                            found.append(inner)
        self.taken: set[str] = set()
        self.boxes = {
            (key, cls): self._id(cls.__name__)
            for key, each in self.graphs.items()
            for cls in each.nodes
        }
        self.ids = {key: self._id(f"graph_{each.name}") for key, each in self.graphs.items()}

    def picture(self) -> Picture:
        first, *others = self.graphs
        inner = tuple(self._one(key, ()) for key in others)
        return self._one(first, inner)

    def _one(self, key: _Key, inner: tuple[Picture, ...]) -> Picture:
        graph = self.graphs[key]
        arrows = tuple(
            Arrow(self.boxes[key, cls], self.boxes[key, target], _chooser(plan))
            for cls, plan in graph.plans.items()
            for target in plan.successors
        )
        before: dict[type[Node], list[NodePlan]] = {cls: [] for cls in graph.nodes}
        for plan in graph.plans.values():
            for target in plan.successors:
                before[target].append(plan)
        boxes = tuple(self._box(key, cls, before) for cls in graph.nodes)
        used_by = tuple(self.users.get(key, ()))
        return Picture(self.ids[key], plain(graph.name), boxes, arrows, used_by, inner)

    def _box(self, key: _Key, cls: type[Node], before: _Before) -> Box:
        graph = self.graphs[key]
        plan = graph.plans[cls]
        start = cls is graph.start
        fields: list[Shown] = []
        for field in plan.fields.values():
            if isinstance(field.marker, Recall):
                # A graph inside another looks in the trace around it as well.
                inside = key in self.users
                fields.append(self._field(field, "recall", _recalled(field, cls, before, inside)))
            else:
                fields.append(self._field(field, *_source(field, start, before[cls])))
        twins = [other for other in graph.nodes if other.__name__ == cls.__name__]
        return Box(
            id=self.boxes[key, cls],
            name=plain(cls.__name__),
            start=start,
            ending=("always" if not plan.successors else "may") if plan.may_end else "never",
            chooser=_chooser(plan),
            written=plan.written,
            fields=tuple(sorted(fields, key=lambda field: SOURCES.index(field.source))),
            module=plain(cls.__module__),
            place=_place(cls),
            doc=_doc(cls),
            lm=_lm_name(plan.lm),
            apart=_apart(cls, twins),
        )

    def _field(self, field: FieldPlan, source: FieldSource, origin: str) -> Shown:
        return Shown(
            name=plain(field.name),
            type=plain(type_said(field.annotation)),
            source=source,
            origin=plain(origin),
            description=plain(field.info.description or ""),
            required=field.required,
            graphs=tuple(dict.fromkeys(self.ids[_key(each)] for each in _graphs(field.call))),
        )

    def _id(self, name: str) -> str:
        """An identifier of its own: the name, where that is free."""
        name = "".join(c if _is_letter(c) else "_" for c in name)
        unique, count = name, 2
        while unique in self.taken or unique.lower() in _RESERVED:
            unique, count = f"{name}_{count}", count + 1
        self.taken.add(unique)
        return unique


def _is_letter(char: str) -> bool:
    if char.isascii():
        return char.isalnum() or char == "_"
    return char.isalpha() and any(first <= ord(char) <= last for first, last in _LETTERS)


def _key(graph: Graph[Any, Any]) -> _Key:
    # A node class that is a dependency becomes a graph for every field that asks for it.
    return (graph.start, graph.name)


def _graphs(call: CallPlan | None) -> Iterable[Graph[Any, Any]]:
    return (each.graph for each in every_call(call) if each.graph is not None)


def _chooser(plan: NodePlan) -> ArrowKind:
    if len(plan.offered) < 2:
        return "certain"
    return "code" if plan.written else "lm"


def _source(field: FieldPlan, start: bool, before: list[NodePlan]) -> tuple[FieldSource, str]:
    match field.marker:
        case None:
            writers = [plan.name for plan in before if plan.written]
            filled = len(writers) < len(before)
            if start:
                return "given", _or_set_by(["the LM"] * filled, writers)
            if writers and not filled:
                return "code", ""
            form = "" if field.text is None else "in plain text"
            return "lm", " ".join(filter(None, [form, _or_set_by([], writers)]))
        case Gate(question=question):
            return "gate", f"“{question}”"
        case Map(over=over):
            return "map", f"{_chain(field)} for each of {over}"
        case _:
            return "dep", _chain(field)


def _or_set_by(others: list[str], writers: list[str]) -> str:
    writers = list(dict.fromkeys(writers))
    said = [*others, *(writers if len(writers) < 3 else ["your code"])]
    return f"or set by {' or '.join(said)}" if said else ""


def _recalled(field: FieldPlan, cls: type[Node], before: _Before, inside: bool) -> str:
    """The fields that a Recall may find its value in, where they are few; otherwise what is known,
    which may be nothing."""
    marker = cast(Recall, field.marker)
    fallback = f"from {marker.node_type.__name__}" if marker.node_type else ""
    if inside:
        return fallback
    found: list[str] = []
    seen: set[type[Node]] = set()
    waiting = [plan.node for plan in before[cls]]
    while waiting:
        node = waiting.pop(0)
        if node in seen:
            continue
        seen.add(node)
        held = holders_for(field, node)
        if held:
            name, sure = held[0]
            told = name and (sure or len(held) == 1)
            found.append(f"{node.__name__}.{name}" if told else node.__name__)
        # The newest value is taken: behind a node that is sure to have one, nobody looks.
        if not any(sure for _, sure in held):
            waiting += [plan.node for plan in before[node]]
    found = list(dict.fromkeys(found))
    if found == [type_said(field.annotation)]:
        return ""  # the type says it
    return f"from {' or '.join(found)}" if 0 < len(found) < 3 else fallback


def _chain(field: FieldPlan) -> str:
    """A call with what it waits for, calls, fields and what is recalled: `get_weather ←
    get_location`."""
    left = LONGEST_CHAIN

    def said(asked: FieldPlan | Input) -> str:
        nonlocal left
        left -= 1
        call = cast(CallPlan, asked.call)
        name = f"graph {call.name}" if call.graph is not None else call.name
        below = [name for _, name in siblings_of(asked)]
        below += [str(found.marker) for _, found in recalls_of(asked)]
        below += [said(each) if left > 0 else "…" for _, each in call.inputs]
        below = list(dict.fromkeys(below))
        if not below:
            return name
        return f"{name} ← {below[0]}" if len(below) == 1 else f"{name} ← ({', '.join(below)})"

    return said(field) if field.call is not None else ""


def _apart(cls: type[Node], twins: list[type[Node]]) -> str:
    if len(twins) == 1:
        return ""
    if len({other.__module__ for other in twins}) == len(twins):
        return plain(cls.__module__)
    if len({(other.__module__, other.__qualname__) for other in twins}) == len(twins):
        return plain(f"{cls.__module__}.{cls.__qualname__}")
    return plain(f"{cls.__module__}, {twins.index(cls) + 1} of {len(twins)}")


def _place(cls: type[Node]) -> str:
    """The file and the line. `inspect` would read the whole file anew for every class."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    line = cast(int, cls.__dict__.get("__firstlineno__", 0))  # on Python 3.13 and later
    if not file:
        return ""
    if not line:
        code = getattr(cls.__dict__.get("__call__"), "__code__", None)
        last = code.co_firstlineno if code is not None and code.co_filename == file else 10**9
        opening = re.compile(rf"\s*class {re.escape(cls.__name__)}\b")
        lines = enumerate(linecache.getlines(file)[:last], 1)
        line = max((number for number, text in lines if opening.match(text)), default=0)
    if not line:
        return ""
    path = Path(file)
    try:  # where it is on this machine is nobody's business
        said = path.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        said = path.name
    return plain(f"{said}:{line}")


def _doc(cls: type[Node]) -> str:
    own = cls.__dict__.get("__doc__")
    text = inspect.cleandoc(own) if isinstance(own, str) else ""
    return "\n".join(plain(line) for line in text.splitlines())


def _lm_name(lm: object) -> str:
    if lm is None:
        return ""
    return plain(lm) if isinstance(lm, str) else type(lm).__name__
