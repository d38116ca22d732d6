"""A graph as a Mermaid flowchart: only nodes and arrows, or with fields by source and the graphs
inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bae.pictures.picture import Arrow, Box, Direction, picture_of

if TYPE_CHECKING:
    from bae.graph import Graph


def to_mermaid(graph: Graph[Any, Any], *, fields: bool = True, direction: Direction = "TD") -> str:
    """The graph as a Mermaid flowchart: a box for each node class, an arrow for each edge. Boxes
    are rounded if the run may end there, and arrows are dotted if the LM chooses among several.

    With `fields`, it also shows the fields by source and the graphs inside. Boxes are then hexagons
    if there is a choice, and have double sides if graphs run inside; arrows say who chooses."""
    picture = picture_of(graph)
    lines = [f"flowchart {direction}"]
    if not fields:
        for box in picture.boxes:
            opening, closing = ("([", "])") if box.ending != "never" else ("[", "]")
            lines.append(f'    {box.id}{opening}"{_label(box.name)}"{closing}')
        for arrow in picture.arrows:
            lines.append(f"    {arrow.tail} {'-.->' if arrow.kind == 'lm' else '-->'} {arrow.head}")
        return "\n".join(lines) + "\n"
    for each in picture.all:
        drawn = [*map(_box, each.boxes), *map(_arrow, each.arrows)]
        if each is picture:
            lines += [f"    {line}" for line in drawn]
        else:
            title = _label(f"{each.name}, inside {', '.join(each.used_by)}")
            lines.append(f'    subgraph {each.id}["{title}"]')
            lines += [f"        {line}" for line in (f"direction {direction}", *drawn)]
            lines.append("    end")
    inner = {each.id for each in picture.inner}
    lines += [
        f'    {box.id} -.-|"{_label(field.name)}"| {graph_id}'
        for each in picture.all
        for box in each.boxes
        for field in box.fields
        for graph_id in field.graphs
        if graph_id in inner
    ]
    return "\n".join(lines) + "\n"


ENTITIES: Final = str.maketrans({char: f"#{ord(char)};" for char in '#%`\\"&<>'})
"""Characters with a meaning of their own in a quoted label."""


def _box(box: Box) -> str:
    opening, closing = "[", "]"
    if box.ending == "always":
        opening, closing = "([", "])"
    elif box.chooser != "certain":
        opening, closing = "{{", "}}"
    elif box.inner:
        opening, closing = "[[", "]]"
    rows = [f"{box.name} ({', '.join(box.tags)})" if box.tags else box.name]
    for field in box.fields:
        origin = f" {field.origin}" if field.origin else ""
        rows.append(f"{field.name}: {field.type} · {field.label}{origin}")
    return f'{box.id}{opening}"{"<br/>".join(map(_label, rows))}"{closing}'


def _arrow(arrow: Arrow) -> str:
    line = {"certain": "-->", "lm": "-.->|LM|", "code": "-->|code|"}[arrow.kind]
    return f"{arrow.tail} {line} {arrow.head}"


def _label(text: str) -> str:
    return text.translate(ENTITIES)
