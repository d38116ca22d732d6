"""A graph as a Mermaid flowchart: nodes and arrows alone, as `graph.to_mermaid()` has it, or with
fields by source and the graphs inside."""

from __future__ import annotations

from typing import Final

from bae.pictures.contents import Arrow, Box, Picture
from bae.pictures.terminal import Direction

ENTITIES: Final = {
    "#": "#35;",
    "%": "#37;",
    '"': "#quot;",
    "&": "#amp;",
    "<": "#lt;",
    ">": "#gt;",
    "`": "#96;",
    "\\": "#92;",
}
"""What has a meaning of its own in a quoted label."""


def draw_mermaid(picture: Picture, *, fields: bool = False, direction: Direction = "TD") -> str:
    """One box a node class, one arrow an edge; rounded where the run may end, and dotted arrows
    where the LM chooses among several.

    With `fields` there are the fields by source, boxes with corners at the sides where there is a
    choice and double sides where graphs run inside; these are drawn as well. Arrows say who
    chooses."""
    lines = [f"flowchart {direction}"]
    if not fields:
        for box in picture.boxes:
            opening, closing = ("([", "])") if box.ending != "never" else ("[", "]")
            lines.append(f'    {box.id}{opening}"{_label(box.name)}"{closing}')
        for arrow in picture.arrows:
            line = "-.->" if arrow.kind == "lm" else "-->"
            lines.append(f"    {arrow.tail} {line} {arrow.head}")
        return "\n".join(lines) + "\n"
    for each in picture.all:
        indent = "    "
        if each is not picture:
            title = f"{each.name}, inside {', '.join(each.used_by)}"
            lines.append(f'    subgraph {each.id}["{_label(title)}"]')
            lines.append(f"        direction {direction}")
            indent *= 2
        lines += [f"{indent}{_box(box)}" for box in each.boxes]
        lines += [f"{indent}{_arrow(arrow)}" for arrow in each.arrows]
        if each is not picture:
            lines.append("    end")
    drawn = {each.id for each in picture.inner}
    for each in picture.all:
        for box in each.boxes:
            for field in box.fields:
                for graph in field.graphs:
                    if graph in drawn:
                        lines.append(f'    {box.id} -.-|"{_label(field.name)}"| {graph}')
    return "\n".join(lines) + "\n"


def _box(box: Box) -> str:
    opening, closing = "[", "]"
    if box.ending == "always":
        opening, closing = "([", "])"
    elif box.chooser != "certain":
        opening, closing = "{{", "}}"
    elif box.inner:
        opening, closing = "[[", "]]"
    tags = ["start"] if box.start else []
    if box.ending != "never":
        tags.append("end" if box.ending == "always" else "may end")
    rows = [f"{box.name} ({', '.join(tags)})" if tags else box.name]
    if box.apart:
        rows.append(box.apart)
    for field in box.fields:
        source = "LM" if field.source == "lm" else field.source
        origin = f" {field.origin}" if field.origin else ""
        rows.append(f"{field.name}: {field.type} · {source}{origin}")
    return f'{box.id}{opening}"{"<br/>".join(_label(row) for row in rows)}"{closing}'


def _arrow(arrow: Arrow) -> str:
    line = {"certain": "-->", "lm": "-.->|LM|", "code": "-->|code|"}[arrow.kind]
    return f"{arrow.tail} {line} {arrow.head}"


def _label(text: str) -> str:
    return "".join(ENTITIES.get(c, c) for c in text)
