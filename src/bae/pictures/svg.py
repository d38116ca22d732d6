"""`to_svg`, which draws a graph as SVG. The SVG refers to no other file. Readers can select the
text, and screen readers can read the text aloud."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, fsum
from typing import TYPE_CHECKING, Any, Final, Literal
from xml.sax.saxutils import escape

from bae.pictures.layout import Size, Spacing, arrange
from bae.pictures.picture import (
    CHOOSERS,
    ArrowKind,
    Box,
    Direction,
    Picture,
    cells,
    cut_columns,
    legend_of,
    picture_of,
)
from bae.pictures.terminal import StyledText, box_rows, to_text

if TYPE_CHECKING:
    from bae.graph import Graph

Theme = Literal["auto", "light", "dark"]
_XY = tuple[float, float]
_Drawn = tuple[list[str], float, float]
"""The lines of an SVG part, and the width and the height of the part."""


def to_svg(
    graph: Graph[Any, Any],
    *,
    fields: bool = True,
    direction: Direction = "TD",
    theme: Theme = "auto",
) -> str:
    """Return the graph as SVG. With the theme "auto", the colors follow the reader's light or dark
    mode."""
    picture = picture_of(graph)
    main, main_width, main_height = _graph(picture, fields, direction)
    frames = [_frame(inner, fields, direction) for inner in picture.inner]
    parts = [*frames, _legend(picture)]
    nodes = f"{len(picture.boxes)} node{'s' * (len(picture.boxes) != 1)}"
    name_width = _width(picture.name, "title")
    wide = max(main_width, name_width + 160, *(width for _, width, _ in parts))
    y = MARGIN + 34
    lines = [_translate(MARGIN + (wide - main_width) / 2, y), *main, "</g>"]
    y += main_height
    for part, _, height in parts:  # one below the other
        if part:
            lines += [_translate(MARGIN, y + GAP), *part, "</g>"]
            y += GAP + height
    across, down = ceil(wide) + 2 * MARGIN, ceil(y) + MARGIN
    description = to_text(graph, width=10_000, fields=False, compact=True)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="bae" role="img" '
        f'viewBox="0 0 {across} {down}" width="{across}" height="{down}">',
        f"<title>The graph {escape(picture.name)}</title>",
        f"<desc>{escape(str(description))}</desc>",  # for screen readers
        f"<style>{_styles(theme)}</style>",
        _rect("paper", 0, 0, across, down, 12),
        _text("title", MARGIN, MARGIN + 14, picture.name),
        _text("note", MARGIN + name_width + 12, MARGIN + 14, nodes),
        *lines,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


FONT: Final = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
SIZES: Final = {"title": 17, "name": 14}
"""The font sizes of the roles with large, bold text."""
SIZE: Final = 12
"""The font size of all other text."""
COLORS: Final = {
    "paper": ("#fbfbfd", "#14161d"),
    "box": ("#ffffff", "#1d212b"),
    "ink": ("#1b1f29", "#eceef4"),
    "soft": ("#596075", "#a6adc0"),
    "faint": ("#e3e5ec", "#333949"),
    "edge": ("#9aa1b4", "#6c7489"),
}
"""The colors of the shapes, in the light mode and in the dark mode."""
PILLS: Final = {
    "source-given": ("#454c5f", "#d3d7e2"),
    "source-code": ("#0b5c72", "#86d7ec"),
    "source-trace": ("#0d5f52", "#83dfcb"),
    "source-call": ("#1d4fa3", "#a8c8ff"),
    "source-person": ("#a3204c", "#ffb0c5"),
    "source-items": ("#7f4a05", "#f8cd84"),
    "source-llm": ("#6231b8", "#cdb4ff"),
    "start": ("#1f6b2d", "#92dfa0"),
    "end": COLORS["ink"],
}
"""The text colors of the roles that have a pill around the text, in the light mode and in the dark
mode. The pill is a tint of the text color."""
MARGIN, GAP, FRAME = 24, 28, 20
"""`MARGIN` is around the whole drawing. `GAP` is between two frames. `FRAME` is between a frame and
its content."""
HEADER, ROW, PAD, PILL, RING = 36, 22, 16, 5, 4
"""In a box: `HEADER` is the height of the name, `ROW` is the height of a field, `PAD` is the
padding beside the rows, and `PILL` is the padding in a pill. `RING` is the distance between the two
outlines of a box at which a run may end."""
WIDEST: Final = 72
"""The maximum number of characters in a row of a box."""
SPACING: Final = Spacing(
    apart=36, beside=22, joins=18, inset=22, tail=18, track=14, head=24, loop=30, loop_at=(11, 27)
)


def _graph(picture: Picture, fields: bool, direction: Direction) -> _Drawn:
    """Draw the boxes and arrows of a graph. The upper left corner is at (0, 0)."""
    texts = [box_rows(box, WIDEST, fields=fields) for box in picture.boxes]
    sizes: list[Size] = []
    for box, rows in zip(picture.boxes, texts, strict=True):
        width = max(fsum(_width(*piece) for piece in row) for row in rows)
        height = HEADER + (ROW * len(rows) - ROW + 8) * (len(rows) > 1) + 2 * _ring(box)
        sizes.append(Size(ceil(width + 2 * _pad(box)), height))
    layout = arrange(sizes, picture.edges, SPACING, across=direction == "LR")
    lines = ['<g class="g-graph">']
    # Boxes come first, for screen readers.
    for box, rows, corner, size in zip(
        picture.boxes, texts, layout.corners, layout.sizes, strict=True
    ):
        lines += _box(box, rows, *corner, size)
    names = {box.id: box.name for box in picture.boxes}
    for arrow, points in zip(picture.arrows, layout.lines, strict=True):
        who = CHOOSERS[arrow.kind]
        title = f"{names[arrow.tail]} → {names[arrow.head]}{who and f', if {who} it'}"
        lines += _arrow(points, arrow.kind, title)
    return [*lines, "</g>"], layout.width, layout.height


def _ring(box: Box) -> int:
    return RING if box.ending != "never" else 0


def _pad(box: Box) -> int:
    return PAD + 7 * box.inner + _ring(box)


def _box(box: Box, rows: list[list[StyledText]], x: int, y: int, size: Size) -> list[str]:
    about = ", ".join([box.name, *box.tags]) + f" ({box.module})"
    ring = _ring(box)
    lines = [
        _group("node", f"{about}\n{box.doc}".rstrip(), box.id),
        *_outline(box, x, y, size),
        *_row(rows[0], x + _pad(box), y + ring + 23),
    ]
    y += ring + HEADER
    if len(rows) > 1:
        lines.append(_path("rule", [(x + ring + 1, y), (x + size.width - ring - 1, y)]))
    for place, (field, row) in enumerate(zip(box.fields, rows[1:], strict=False)):
        about = f"{field.name}: {field.type}\n{field.label} {field.origin}".rstrip()
        lines.append(_group("field", f"{about}\n{field.description}".rstrip()))
        lines += [*_row(row, x + _pad(box), y + 19 + ROW * place), "</g>"]
    return [*lines, "</g>"]


def _outline(box: Box, x: int, y: int, size: Size) -> list[str]:
    """Draw the outline of a box. If there is a choice, the corners are cut off. If a run may end at
    the box, there is a second outline. If subgraphs run inside, there are bars at the sides."""
    choice, ring = box.chooser != "certain", _ring(box)
    corner = 10 if choice else 16 if box.ending == "always" else 6
    role = "box box-start" if box.start else "box"
    lines: list[str] = []
    for css, inset in (("ring", 0), (role, ring)) if ring else ((role, 0),):
        left, top = x + inset, y + inset
        right, bottom = x + size.width - inset, y + size.height - inset
        if choice:
            a, b, c, d = left + corner, right - corner, top + corner, bottom - corner
            sides = [(a, top), (b, top), (right, c), (right, d)]
            sides += [(b, bottom), (a, bottom), (left, d), (left, c)]
            lines.append(_polygon(css, sides))
        else:
            lines.append(_rect(css, left, top, right - left, bottom - top, corner))
        corner -= 2
    if box.inner:
        for bar in (x + ring + 7, x + size.width - ring - 7):
            ends = (bar, y + ring + corner), (bar, y + size.height - ring - corner)
            lines.append(_path("bar", ends))
    return lines


def _row(row: list[StyledText], x: float, y: float) -> list[str]:
    lines: list[str] = []
    for text, role in row:
        width = _width(text, role)
        if role in PILLS:
            indent = width - _width(text.lstrip(), role)
            at = x + indent - PILL
            lines.append(_rect(f"pill {role}", at, y - 12, width - indent + 2 * PILL, 16, 8))
            lines.append(_text(role, x + indent, y, text.lstrip()))
        elif text.strip():
            lines.append(_text(role, x, y, text))
        x += width
    return lines


def _frame(picture: Picture, fields: bool, direction: Direction) -> _Drawn:
    """Draw a subgraph in a frame with its name."""
    graph, width, height = _graph(picture, fields, direction)
    used_by = f"inside {', '.join(picture.used_by)}"
    after = _width(picture.name, "name") + 10
    wide = max(width, after + _width(cut_columns(used_by, 80))) + 2 * FRAME
    high = height + 2 * FRAME + 28
    lines = [
        _group("frame", f"The graph {picture.name}, {used_by}", picture.id),
        _rect("frame", 0, 0, wide, high, 10),
        _text("name", FRAME, FRAME + 10, picture.name),
        _text("note", FRAME + after, FRAME + 10, cut_columns(used_by, 80)),
        _translate((wide - width) / 2, FRAME + 28),
        *graph,
        "</g></g>",
    ]
    return lines, wide, high


def _legend(picture: Picture) -> _Drawn:
    """Draw the legend of a picture. If the picture needs no legend, return no lines."""
    lines: list[str] = []
    y = wide = 0.0
    for sign, meaning in legend_of(picture.all):
        if sign == "inner":
            lines += [_path("bar", [(x, y), (x, y + 20)]) for x in (7, 31)]
        else:
            lines += _arrow([(0, y + 10), (38, y + 10)], sign, meaning)
        lines.append(_text("note", 46, y + 14, meaning))
        y, wide = y + 26, max(wide, 46 + _width(meaning))
    return [_group("legend", "Legend"), *lines, "</g>"] if lines else [], wide, y - 6


def _arrow(points: Sequence[_XY], kind: ArrowKind, title: str) -> list[str]:
    """Draw an arrow. If there is a choice, the arrow has a diamond at its tail. If the LLM chooses,
    the line is dashed."""
    line = list(points)
    if kind != "certain":
        line[0] = _along(points[0], points[1], 10)
    line[-1] = _along(points[-1], points[-2], 7)
    head = [_along(points[-1], points[-2], along, off) for along, off in ((0, 0), (9, 4), (9, -4))]
    parts = [_group(f"edge arrow-{kind}", title), _path("line", line), _polygon("head", head)]
    if kind != "certain":
        corners = ((0, 0), (5.5, 4), (11, 0), (5.5, -4))
        tail = [_along(points[0], points[1], along, off) for along, off in corners]
        parts.append(_polygon("tail", tail))
    return [*parts, "</g>"]


def _along(start: _XY, end: _XY, along: float, off: float = 0) -> _XY:
    """Return the point that is `along` away from `start` in the direction of `end`, and `off` to
    the side. The line between both points must be horizontal or vertical."""
    (x, y), (to_x, to_y) = start, end
    dx, dy = (to_x > x) - (to_x < x), (to_y > y) - (to_y < y)
    return x + dx * along - dy * off, y + dy * along + dx * off


def _path(role: str, points: Sequence[_XY]) -> str:
    """Draw a line through points, with rounded corners."""
    strokes = [f"M{_point(points[0])}"]
    for before, here, after in zip(points, points[1:], points[2:], strict=False):
        near = min(9.0, *(max(abs(here[0] - x), abs(here[1] - y)) / 2 for x, y in (before, after)))
        first, last = _along(here, before, near), _along(here, after, near)
        strokes.append(f"L{_point(first)} Q{_point(here)} {_point(last)}")
    strokes.append(f"L{_point(points[-1])}")
    return f'<path class="{role}" d="{" ".join(strokes)}"/>'


def _polygon(role: str, points: Sequence[_XY]) -> str:
    return f'<polygon class="{role}" points="{" ".join(map(_point, points))}"/>'


def _rect(role: str, x: float, y: float, width: float, height: float, corner: float) -> str:
    return (
        f'<rect class="{role}" x="{x:.8g}" y="{y:.8g}" width="{width:.8g}" '
        f'height="{height:.8g}" rx="{corner}"/>'
    )


def _text(role: str, x: float, y: float, text: str) -> str:
    at = f'x="{x:.8g}" y="{y:.8g}"'
    return f'<text class="{role}" {at} xml:space="preserve">{escape(text)}</text>'


def _width(text: str, role: str = "") -> float:
    """Estimate the width of a text in the usual monospace fonts."""
    return cells(text) * SIZES.get(role, SIZE) * 0.605


def _group(kind: str, title: str, anchor: str = "") -> str:
    id_attribute = f' id="bae-{anchor}"' if anchor else ""
    return f'<g class="g-{kind}"{id_attribute}><title>{escape(title)}</title>'


def _translate(x: float, y: float) -> str:
    return f'<g transform="translate({x:.8g},{y:.8g})">'


def _point(point: _XY) -> str:
    return f"{point[0]:.8g},{point[1]:.8g}"


def _styles(theme: Theme) -> str:
    rules = f".bae{{max-width:100%;height:auto}}.bae text{{font:{SIZE}px {FONT}}}"
    for role, size in SIZES.items():
        rules += f".bae .{role}{{font:700 {size}px {FONT}}}"
    rules += _colors(theme == "dark")
    if theme == "auto":
        rules += f"@media (prefers-color-scheme:dark){{{_colors(True)}}}"
    return rules


def _colors(dark: bool) -> str:
    paper, box, ink, soft, faint, edge = (pair[dark] for pair in COLORS.values())
    rules = {
        "paper": f"fill:{paper}",
        "box": f"fill:{box};stroke:{edge};stroke-width:1.2",
        "box-start": f"stroke:{PILLS['start'][dark]};stroke-width:1.8",
        "ring": f"fill:none;stroke:{edge};stroke-width:1.2",
        "bar": f"stroke:{edge};stroke-width:1.2",
        "rule": f"stroke:{faint};stroke-width:1",
        "frame": f"fill:none;stroke:{edge};stroke-width:1.2;stroke-dasharray:2 3",
        "arrow-certain": f"color:{soft}",
        "arrow-lm": f"color:{PILLS['source-llm'][dark]}",
        "arrow-code": f"color:{PILLS['source-code'][dark]}",
        "line": "fill:none;stroke:currentColor;stroke-width:1.5",
        "arrow-lm .line": "stroke-dasharray:6 4",
        "head": "fill:currentColor",
        "tail": "fill:currentColor",
        "arrow-code .tail": f"fill:{paper};stroke:currentColor;stroke-width:1.3",
        **dict.fromkeys(("title", "name", "field"), f"fill:{ink}"),
        **dict.fromkeys(("type", "origin", "note"), f"fill:{soft}"),
        **{role: f"fill:{color[dark]}" for role, color in PILLS.items()},
        "pill": "fill-opacity:0.14",
    }
    return "".join(f".bae .{role}{{{rule}}}" for role, rule in rules.items())
