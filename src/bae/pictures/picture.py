"""The content of a picture of a graph, as data: boxes with fields, arrows, and inner graphs. Each
field has its source, and each arrow says who chooses it. `picture_of` reads the content from the
plans that run the graph."""

from __future__ import annotations

import inspect
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin

from bae.assignable import type_name, union_members
from bae.calls import CallPlan, every_call
from bae.graph_plan import plan_of_graph
from bae.sources import Style, find_source_kind

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node
    from bae.plan import FieldPlan, NodePlan
    from bae.sources import Before

Direction = Literal["TD", "LR"]
ArrowKind = Literal["certain", "lm", "code"]
Ending = Literal["never", "may", "always"]

CHOOSERS: Final[dict[ArrowKind, str]] = {
    "certain": "",
    "lm": "the LM chooses",
    "code": "your code chooses",
}
LEGEND: Final[dict[ArrowKind | Literal["inner"], str]] = {
    **CHOOSERS,
    "inner": "a graph runs inside",
}


@dataclass(frozen=True, slots=True)
class BoxField:
    """A field of a box. `source` is "given", "code", "lm", or the kind of its source. `origin` says
    where its value comes from, if the source alone does not."""

    name: str
    type: str
    source: str
    origin: str = ""
    description: str = ""
    required: bool = True
    graphs: tuple[str, ...] = ()
    """The ids of the pictures of graphs that run for this field."""

    @property
    def label(self) -> str:
        """The source, as a picture writes it."""
        return "LM" if self.source == "lm" else self.source

    @property
    def style(self) -> Style:
        """The style in which a picture shows the source."""
        return _NO_SOURCE.get(self.source) or find_source_kind(self.source).style


@dataclass(frozen=True, slots=True)
class Box:
    """A node class. `ending` says whether a run may end at it, or always does. `chooser` says who
    chooses the next node."""

    id: str
    name: str
    start: bool
    ending: Ending
    chooser: ArrowKind
    written: bool
    fields: tuple[BoxField, ...]
    module: str
    doc: str
    lm: str
    """The LM that is pinned to the class."""

    @property
    def inner(self) -> bool:
        """Whether graphs run inside the node."""
        return any(field.graphs for field in self.fields)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the node, among "start", "may end" and "end"; "start" is first."""
        end = {"never": (), "may": ("may end",), "always": ("end",)}[self.ending]
        return (*(("start",) if self.start else ()), *end)


@dataclass(frozen=True, slots=True)
class Arrow:
    """An edge, between the ids of two boxes."""

    tail: str
    head: str
    kind: ArrowKind


@dataclass(frozen=True, slots=True)
class Picture:
    """A graph. `inner` has the pictures of all graphs inside it, at any depth, each once. `used_by`
    names the fields that an inner graph runs for."""

    id: str
    name: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    used_by: tuple[str, ...] = ()
    inner: tuple[Picture, ...] = ()

    @property
    def edges(self) -> list[tuple[int, int]]:
        """The arrows, as pairs of positions in `boxes`: the tail and the head."""
        at = {box.id: place for place, box in enumerate(self.boxes)}
        return [(at[arrow.tail], at[arrow.head]) for arrow in self.arrows]

    @property
    def all(self) -> tuple[Picture, ...]:
        """This picture and the inner ones."""
        return (self, *self.inner)


def picture_of(graph: Graph[Any, Any]) -> Picture:
    """The content of a picture of a graph. A graph with problems is shown as far as it is known."""
    reader = _Reader(graph)
    first, *others = reader.graphs
    return reader.picture(first, tuple(reader.picture(key) for key in others))


def legend_of(pictures: Iterable[Picture]) -> list[tuple[ArrowKind | Literal["inner"], str]]:
    """The entries of a legend for some pictures: each kind of arrow or box, with its meaning."""
    drawn = list(pictures)
    there = {arrow.kind for each in drawn for arrow in each.arrows}
    inner = {"inner" for each in drawn for box in each.boxes if box.inner}
    return [(sign, text) for sign, text in LEGEND.items() if text and sign in there | inner]


def cells(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum(map(cell_width, text))


def cell_width(char: str) -> int:
    """How many columns one character takes."""
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut_columns(text: str, most: int) -> str:
    """A text cut to at most `most` columns of a terminal; an ellipsis replaces the rest."""
    if cells(text) <= most:
        return text
    kept, width = "", 1
    for char in text:
        width += cell_width(char)
        if width > most:
            break
        kept += char
    return f"{kept.rstrip()}…"


_NO_SOURCE: Final[dict[str, Style]] = {"given": "given", "code": "code", "lm": "llm"}
STYLES: Final = get_args(Style)
"""In the order in which boxes show them: the fields of the LM come last, as in a run."""
_MERMAID: Final = (
    *("end", "flowchart", "graph", "subgraph", "style", "linkstyle", "class", "classdef", "click"),
    *("default", "direction", "interpolate", "href", "call"),
)
"""Reserved words of Mermaid, in any case of letters: no identifier may be one of them."""

_Key = tuple["type[Node]", str]


class _Reader:
    """Reads a graph and the graphs inside it."""

    def __init__(self, graph: Graph[Any, Any]) -> None:
        self.graphs: dict[_Key, Graph[Any, Any]] = {_key(graph): graph}
        self.users: dict[_Key, dict[str, None]] = {}
        listed = [graph]
        for each in listed:  # grows by the graphs inside
            for cls, plan in plan_of_graph(each).plans.items():
                for field in plan.called:
                    for inner in _graphs(field.call):
                        key = _key(inner)
                        self.users.setdefault(key, {})[f"{cls.__name__}.{field.name}"] = None
                        if key not in self.graphs:
                            self.graphs[key] = inner
                            listed.append(inner)
        self.taken: set[str] = set()
        self.boxes = {
            (key, cls): self._id(cls.__name__)
            for key, each in self.graphs.items()
            for cls in each.nodes
        }
        self.ids = {key: self._id(f"graph_{each.name}") for key, each in self.graphs.items()}

    def picture(self, key: _Key, inner: tuple[Picture, ...] = ()) -> Picture:
        graph = self.graphs[key]
        before: Before = {cls: [] for cls in graph.nodes}
        arrows: list[Arrow] = []
        for cls, plan in plan_of_graph(graph).plans.items():
            for target in plan.successors:
                before[target].append(plan)
                ends = self.boxes[key, cls], self.boxes[key, target]
                arrows.append(Arrow(*ends, _chooser(plan)))
        boxes = tuple(self._box(key, cls, before) for cls in graph.nodes)
        used_by = tuple(self.users.get(key, ()))
        return Picture(self.ids[key], _plain(graph.name), boxes, tuple(arrows), used_by, inner)

    def _box(self, key: _Key, cls: type[Node], before: Before) -> Box:
        graph = self.graphs[key]
        plan, start = plan_of_graph(graph).plans[cls], cls is graph.start
        is_given = start and not plan_of_graph(graph).is_filled
        # A graph inside another graph looks in the trace around it as well.
        trace = None if key in self.users else before
        fields = [
            self._field(field, *_source(field, cls, is_given, before[cls], trace))
            for field in plan.fields.values()
        ]
        own = cls.__dict__.get("__doc__")
        doc = inspect.cleandoc(own) if isinstance(own, str) else ""
        lm = plan.lm or ""
        return Box(
            id=self.boxes[key, cls],
            name=_plain(_name(cls, graph.nodes)),
            start=start,
            ending=("always" if not plan.successors else "may") if plan.may_end else "never",
            chooser=_chooser(plan),
            written=plan.written,
            fields=tuple(sorted(fields, key=lambda field: STYLES.index(field.style))),
            module=_plain(cls.__module__),
            doc="\n".join(map(_plain, doc.splitlines())),
            lm=_plain(lm if isinstance(lm, str) else type(lm).__name__),
        )

    def _field(self, field: FieldPlan, source: str, origin: str) -> BoxField:
        return BoxField(
            name=_plain(field.name),
            type=_plain(_type_text(field.annotation)),
            source=source,
            origin=_plain(origin),
            description=_plain(field.info.description or ""),
            required=field.required,
            graphs=tuple(dict.fromkeys(self.ids[_key(graph)] for graph in _graphs(field.call))),
        )

    def _id(self, name: str) -> str:
        """A unique identifier: the name, if it is free."""
        name = re.sub(r"\W", "_", name, flags=re.ASCII)
        unique, count = name, 2
        while unique in self.taken or unique.lower() in _MERMAID:
            unique, count = f"{name}_{count}", count + 1
        self.taken.add(unique)
        return unique


def _key(graph: Graph[Any, Any]) -> _Key:
    # Not the graph itself: a node class used as a dependency is a new graph for each field.
    return (graph.start, graph.name)


def _graphs(call: CallPlan | None) -> Iterable[Graph[Any, Any]]:
    return (each.graph for each in every_call(call) if each.graph is not None)


def _chooser(plan: NodePlan) -> ArrowKind:
    if len(plan.offered) < 2:
        return "certain"
    return "code" if plan.written else "lm"


def _source(
    field: FieldPlan, cls: type[Node], start: bool, before: list[NodePlan], trace: Before | None
) -> tuple[str, str]:
    if field.fills == "source":
        return field.kind, field.origin(cls, trace)
    writers = list(dict.fromkeys(plan.name for plan in before if plan.written))
    filled = any(not plan.written for plan in before)
    if writers and not filled and not start:
        return "code", ""
    others = ["the LM"] if start and filled else []
    others += writers if len(writers) < 3 else ["your code"]
    if field.fills == "calls" and not start:
        return field.kind, field.origin(cls, trace)
    text = ["in plain text"] if field.fills == "text" and not start else []
    text += [f"or set by {' or '.join(others)}"] if others else []
    return "given" if start else "lm", " ".join(text)


def _type_text(tp: Any) -> str:
    """A type as its author would write it; a Literal by its values: `'red' | 'blue'`."""
    texts: list[str] = []
    for member in union_members(tp):
        if get_origin(member) is Literal:
            texts += [str(v) if isinstance(v, Enum) else repr(v) for v in get_args(member)]
        else:
            texts.append(type_name(member))
    return " | ".join(texts)


def _name(cls: type[Node], nodes: Iterable[type[Node]]) -> str:
    """The name of a class; with its module if another class of the graph has the same name."""
    twins = [other for other in nodes if other.__name__ == cls.__name__]
    return cls.__name__ if len(twins) == 1 else f"{cls.__module__}.{cls.__qualname__}"


def _plain(text: str) -> str:
    """A text on one line, without characters that no file or terminal should get."""
    return "".join(
        c if c.isprintable() or c == "\u200d" else "\ufffd" for c in " ".join(text.split())
    )
