"""`to_mermaid`, which draws a graph as a Mermaid flowchart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bae.pictures.picture import Arrow, Box, Direction, picture_of

if TYPE_CHECKING:
    from bae.graph import Graph


def to_mermaid(graph: Graph[Any, Any], *, fields: bool = True, direction: Direction = "TD") -> str:
    """Return the graph as a Mermaid flowchart, with a box for each node class and an arrow for each
    edge. If the LLM chooses between edges, their arrows are dotted.

    With `fields`, boxes list their fields with their sources, arrows say who chooses, and the
    subgraphs are drawn too. The shape of a box shows how the run continues: rounded if the run
    always ends there, a hexagon if there is a choice, double sides if subgraphs run inside.

    Without `fields`, every box at which the run may end is rounded.
    """
    picture = picture_of(graph)
    lines = [f"flowchart {direction}"]
    if not fields:
        for box in picture.boxes:
            opening, closing = ("([", "])") if box.ending != "never" else ("[", "]")
            lines.append(f'    {box.id}{opening}"{_label(box.name)}"{closing}')
        for arrow in picture.arrows:
            lines.append(f"    {arrow.tail} {'-.->' if arrow.kind == 'lm' else '-->'} {arrow.head}")
        return "\n".join(lines) + "\n"
    for part in picture.all:
        shapes = [*map(_box, part.boxes), *map(_arrow, part.arrows)]
        if part is picture:
            lines += [f"    {line}" for line in shapes]
        else:
            title = _label(f"{part.name}, inside {', '.join(part.used_by)}")
            lines.append(f'    subgraph {part.id}["{title}"]')
            lines += [f"        {line}" for line in (f"direction {direction}", *shapes)]
            lines.append("    end")
    inner = {inner_picture.id for inner_picture in picture.inner}
    lines += [
        f'    {box.id} -.-|"{_label(field.name)}"| {graph_id}'
        for outer in picture.all
        for box in outer.boxes
        for field in box.fields
        for graph_id in field.graphs
        if graph_id in inner
    ]
    return "\n".join(lines) + "\n"


ENTITIES: Final = str.maketrans({char: f"#{ord(char)};" for char in '#%`\\"&<>'})
"""The escape codes of the characters that have a meaning in a quoted label of Mermaid."""


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
