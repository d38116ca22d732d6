"""The content of a graph's picture as data: boxes with fields, arrows and subgraphs. `picture_of`
reads the content from the plans that bae runs."""

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
    """A field of a box."""

    name: str
    type: str
    """The type as its author would write it."""
    source: str
    """Who sets the value: "given" for the caller, "code" for the previous node's code, "lm" for the
    LLM, or the kind of the field's source, such as "dep"."""
    origin: str = ""
    """More about the source, such as the name of a function. Empty if `source` says enough."""
    description: str = ""
    required: bool = True
    graphs: tuple[str, ...] = ()
    """The ids of the pictures of the subgraphs that run for this field."""

    @property
    def label(self) -> str:
        """The text for the source in a picture."""
        return "LM" if self.source == "lm" else self.source

    @property
    def style(self) -> Style:
        """The style of the source in a picture."""
        return _NO_SOURCE.get(self.source) or find_source_kind(self.source).style


@dataclass(frozen=True, slots=True)
class Box:
    """A node class in a picture."""

    id: str
    name: str
    start: bool
    """Whether the run starts at this node."""
    ending: Ending
    """Whether the run ends at this node: never, sometimes ("may") or always."""
    chooser: ArrowKind
    """Who chooses the next node: the LLM, your code, or nobody ("certain")."""
    written: bool
    """Whether the node has a written body."""
    fields: tuple[BoxField, ...]
    """The fields, in the order in which a run gets their values."""
    module: str
    doc: str
    """The docstring of the class."""
    lm: str
    """The LM that is pinned to the class. Empty if no LM is pinned."""

    @property
    def inner(self) -> bool:
        """Whether subgraphs run inside the node."""
        return any(field.graphs for field in self.fields)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags beside the node's name: first "start", then "may end" or "end"."""
        end = {"never": (), "may": ("may end",), "always": ("end",)}[self.ending]
        return (*(("start",) if self.start else ()), *end)


@dataclass(frozen=True, slots=True)
class Arrow:
    """An edge of the graph, from one box to another."""

    tail: str
    """The id of the box where the arrow begins."""
    head: str
    """The id of the box where the arrow ends."""
    kind: ArrowKind
    """Who chooses this edge: the LLM, your code, or nobody ("certain")."""


@dataclass(frozen=True, slots=True)
class Picture:
    """The content of a graph's picture."""

    id: str
    name: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    used_by: tuple[str, ...] = ()
    """The fields that this graph runs for, such as "Assess.findings". Empty if the graph is not a
    subgraph."""
    inner: tuple[Picture, ...] = ()
    """The pictures of all subgraphs, at any depth. Each subgraph has one picture."""

    @property
    def edges(self) -> list[tuple[int, int]]:
        """The arrows as pairs of indexes into `boxes`, first the tail, then the head."""
        at = {box.id: place for place, box in enumerate(self.boxes)}
        return [(at[arrow.tail], at[arrow.head]) for arrow in self.arrows]

    @property
    def all(self) -> tuple[Picture, ...]:
        """This picture and the pictures of all subgraphs."""
        return (self, *self.inner)


def picture_of(graph: Graph[Any, Any]) -> Picture:
    """Return the content of a graph's picture. If the graph has problems, the picture has the parts
    that bae can read."""
    reader = _Reader(graph)
    first, *others = reader.graphs
    return reader.picture(first, tuple(reader.picture(key) for key in others))


def legend_of(pictures: Iterable[Picture]) -> list[tuple[ArrowKind | Literal["inner"], str]]:
    """Return the legend of some pictures: each special kind of arrow or box in them, with its
    meaning."""
    picture_list = list(pictures)
    arrow_kinds = {arrow.kind for picture in picture_list for arrow in picture.arrows}
    inner = {"inner" for picture in picture_list for box in picture.boxes if box.inner}
    return [(sign, text) for sign, text in LEGEND.items() if text and sign in arrow_kinds | inner]


def cells(text: str) -> int:
    """Return the width of a text, in columns of a terminal."""
    return len(text) if text.isascii() else sum(map(cell_width, text))


def cell_width(char: str) -> int:
    """Return the width of a character, in columns of a terminal."""
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut_columns(text: str, most: int) -> str:
    """Cut a text to at most `most` columns of a terminal. An ellipsis replaces the rest."""
    if cells(text) <= most:
        return text
    start, width = "", 1
    for char in text:
        width += cell_width(char)
        if width > most:
            break
        start += char
    return f"{start.rstrip()}…"


_NO_SOURCE: Final[dict[str, Style]] = {"given": "given", "code": "code", "lm": "llm"}
STYLES: Final = get_args(Style)
"""The styles, in the order in which a box shows its fields. The LLM's fields come last, because a
run fills them last."""
_MERMAID: Final = (
    *("end", "flowchart", "graph", "subgraph", "style", "linkstyle", "class", "classdef", "click"),
    *("default", "direction", "interpolate", "href", "call"),
)
"""The reserved words of Mermaid, in lower case. Mermaid reserves them in upper case too."""

_Key = tuple["type[Node]", str]


class _Reader:
    """Reads the pictures of a graph and its subgraphs."""

    def __init__(self, graph: Graph[Any, Any]) -> None:
        self.graphs: dict[_Key, Graph[Any, Any]] = {_key(graph): graph}
        self.users: dict[_Key, dict[str, None]] = {}
        queue = [graph]
        for outer in queue:  # the loop appends the subgraphs
            for cls, plan in plan_of_graph(outer).plans.items():
                for field in plan.called:
                    for inner in _graphs(field.call):
                        key = _key(inner)
                        self.users.setdefault(key, {})[f"{cls.__name__}.{field.name}"] = None
                        if key not in self.graphs:
                            self.graphs[key] = inner
                            queue.append(inner)
        self.used_ids: set[str] = set()
        self.boxes = {
            (key, cls): self._id(cls.__name__)
            for key, member in self.graphs.items()
            for cls in member.nodes
        }
        self.ids = {key: self._id(f"graph_{member.name}") for key, member in self.graphs.items()}

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
        # A subgraph also recalls from the trace of the graph around it, which is unknown here.
        trace = None if key in self.users else before
        fields = [
            self._field(field, *_source(field, cls, is_given, before[cls], trace))
            for field in plan.fields.values()
        ]
        own_doc = cls.__dict__.get("__doc__")
        doc = inspect.cleandoc(own_doc) if isinstance(own_doc, str) else ""
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
        """Return a unique identifier: the name, with a number if the name is used or reserved."""
        name = re.sub(r"\W", "_", name, flags=re.ASCII)
        unique, count = name, 2
        while unique in self.used_ids or unique.lower() in _MERMAID:
            unique, count = f"{name}_{count}", count + 1
        self.used_ids.add(unique)
        return unique


def _key(graph: Graph[Any, Any]) -> _Key:
    # The graph object is no key: if a node class is a dependency, each field has a new graph of it.
    return (graph.start, graph.name)


def _graphs(call: CallPlan | None) -> Iterable[Graph[Any, Any]]:
    return (call_plan.graph for call_plan in every_call(call) if call_plan.graph is not None)


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
    """Return a type as its author would write it. A Literal is written as its values,
    `'red' | 'blue'`."""
    texts: list[str] = []
    for member in union_members(tp):
        if get_origin(member) is Literal:
            texts += [str(v) if isinstance(v, Enum) else repr(v) for v in get_args(member)]
        else:
            texts.append(type_name(member))
    return " | ".join(texts)


def _name(cls: type[Node], nodes: Iterable[type[Node]]) -> str:
    """Return the name of a class. If another class of the graph has the same name, add the
    module."""
    twins = [other for other in nodes if other.__name__ == cls.__name__]
    return cls.__name__ if len(twins) == 1 else f"{cls.__module__}.{cls.__qualname__}"


def _plain(text: str) -> str:
    """Put a text on one line and replace control characters, which could harm a terminal."""
    return "".join(
        c if c.isprintable() or c == "\u200d" else "\ufffd" for c in " ".join(text.split())
    )
