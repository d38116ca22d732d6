"""`compose` turns a picture into a scene: boxes with their fields, arrows between them, the graphs
inside in frames of their own, and a legend of what is there."""

from __future__ import annotations

from math import ceil, fsum
from typing import Final

from bae.pictures import scene
from bae.pictures.contents import Arrow, Box, Picture, Shown
from bae.pictures.layout import Arranged, Size, Spacing, arrange
from bae.pictures.scene import Group, Label, Metrics, Path, Scene
from bae.pictures.shapes import (
    CHOOSES,
    Items,
    arrow_shape,
    box_shape,
    meanings,
    ring_of,
    sample_of,
)
from bae.pictures.terminal import Direction
from bae.pictures.texts import cut
from bae.pictures.types import cut_field

MARGIN: Final = 24
GAP: Final = 28
"""Between frames."""
FRAME: Final = 20
"""Between a frame and what is in it."""
HEADER: Final = 36
ROW: Final = 22
PAD: Final = 14
PILL: Final = 7
"""Beside the text in a pill."""
NAME: Final = 42
ALONE: Final = 60
ORIGIN: Final = 38
"""The most characters of a field's name with its type, of the same where nothing is beside it, and
of where it comes from."""
ROWS_WIDE: Final = 900
"""How wide a row of frames may be, where the picture itself is not wider."""

SPACING: Final = Spacing(
    apart=36, beside=22, joins=18, inset=22, tail=18, track=14, head=24, loop=30, loop_at=(11, 27)
)


def compose(
    picture: Picture, metrics: Metrics, *, fields: bool = True, direction: Direction = "TD"
) -> Scene:
    """Lay a picture out."""
    composing = _Composing(metrics, fields, direction == "LR")
    root = Group("picture")
    main, width, height = composing.graph(picture)
    frames = [composing.frame(each) for each in picture.inner]
    heading = composing.heading(picture)
    root.items.append(_moved(heading, MARGIN, MARGIN))
    top = MARGIN + 34.0
    wide = max(width, metrics.width(picture.name, "title") + 160)
    shelf = max(wide, ROWS_WIDE)
    placed: list[tuple[Group, float, float]] = []
    x, y, low = 0.0, top + height + GAP, 0.0
    for frame, frame_width, frame_height in frames:
        if x and x + frame_width > shelf:
            x, y, low = 0.0, y + low + GAP, 0.0
        placed.append((frame, x, y))
        wide = max(wide, x + frame_width)
        x, low = x + frame_width + GAP, max(low, frame_height)
    bottom = y + low if frames else top + height
    legend, legend_width, legend_height = composing.legend(picture, wide)
    wide = max(wide, legend_width)
    root.items.append(_moved(main, MARGIN + (wide - width) / 2, top))
    root.items += [_moved(frame, MARGIN + x, y) for frame, x, y in placed]
    if legend_height:
        bottom += GAP
        root.items.append(_moved(legend, MARGIN, bottom))
        bottom += legend_height
    return Scene(
        f"The graph {picture.name}",
        _description(picture),
        ceil(wide + 2 * MARGIN),
        ceil(bottom + MARGIN),
        root,
    )


class _Composing:
    def __init__(self, metrics: Metrics, fields: bool, across: bool) -> None:
        self.metrics, self.fields, self.across = metrics, fields, across

    def heading(self, picture: Picture) -> Group:
        nodes = f"{len(picture.boxes)} node{'s' * (len(picture.boxes) != 1)}"
        at = self.metrics.width(picture.name, "title") + 12
        return Group(
            "heading",
            [Label(0, 14, picture.name, "title"), Label(at, 14, nodes, "note")],
        )

    def graph(self, picture: Picture) -> tuple[Group, float, float]:
        """The boxes and arrows of one graph, from the corner at 0, and how much room they take."""
        sizes = [self.size(box) for box in picture.boxes]
        laid = arrange(sizes, picture.edges, SPACING, across=self.across)
        group = Group("graph", facts={"graph": picture.id, "name": picture.name})
        # Boxes come first, for who reads the file aloud.
        for box, (x, y), size in zip(picture.boxes, laid.corners, laid.sizes, strict=True):
            group.items.append(self.box(box, x, y, size))
        names = {box.id: box.name for box in picture.boxes}
        group.items += self.arrows(picture.arrows, laid, names)
        return group, laid.width, laid.height

    def frame(self, picture: Picture) -> tuple[Group, float, float]:
        """The same in a frame with its name, for a graph inside another."""
        inner, width, height = self.graph(picture)
        used = cut(f"inside {', '.join(picture.used_by)}", 80)
        after = self.metrics.width(picture.name, "frame-title") + 10
        wide = max(width, after + self.metrics.width(used, "note")) + 2 * FRAME
        high = height + 2 * FRAME + 28
        group = Group(
            "frame",
            [
                Path(scene.outline(0, 0, wide, high, 10), "frame"),
                Label(FRAME, FRAME + 10, picture.name, "frame-title"),
                Label(FRAME + after, FRAME + 10, used, "note"),
                _moved(inner, FRAME + (wide - 2 * FRAME - width) / 2, FRAME + 28),
            ],
            title=f"The graph {picture.name}, inside {', '.join(picture.used_by)}",
            facts={"id": picture.id},
        )
        return group, wide, high

    def size(self, box: Box) -> Size:
        names, origins, pills = self.columns(box)
        title = self.metrics.width(box.name, "name") + self.tags_width(box)
        if box.apart:
            title += self.metrics.width(cut(box.apart, ORIGIN), "note") + 10
        inner = max(title, pills + names + origins)
        height = HEADER + 2 * ring_of(box)
        if self.fields and box.fields:
            height += ROW * len(box.fields) + 8
        return Size(ceil(inner + 2 * self.pad(box)), height)

    def pad(self, box: Box) -> int:
        return PAD + (7 if box.inner else 0) + ring_of(box)

    def columns(self, box: Box) -> tuple[float, float, float]:
        """How wide the names, the origins and the pills of a box are."""
        if not (self.fields and box.fields):
            return 0, 0, 0
        pills = max(self.pill_width(_pill(field)) for field in box.fields) + 10
        names = max(self.metrics.width(_name(field), "field") for field in box.fields)
        told = [field for field in box.fields if field.origin]
        if not told:
            return names, 0, pills
        before = max(self.metrics.width(_name(field), "field") for field in told)
        after = max(self.metrics.width(cut(field.origin, ORIGIN), "origin") for field in told)
        return before, max(after + 16, names - before), pills

    def pill_width(self, text: str) -> float:
        return self.metrics.width(text, "pill") + 2 * PILL

    def tags_width(self, box: Box) -> float:
        return fsum(self.pill_width(tag) + 8 for tag, _ in _tags(box))

    def box(self, box: Box, x: float, y: float, size: Size) -> Group:
        group = Group(
            "node",
            title=_node_title(box),
            facts={
                "id": box.id,
                "node": box.name,
                "ending": box.ending,
                "chooser": box.chooser,
                "start": "yes" if box.start else "no",
            },
        )
        group.items += box_shape(box, x, y, size)
        left, right = x + self.pad(box), x + size.width - self.pad(box)
        ring = ring_of(box)
        y += ring
        group.items.append(Label(left, y + 23, box.name, "name"))
        if box.apart:
            at = left + self.metrics.width(box.name, "name") + 10
            group.items.append(Label(at, y + 23, cut(box.apart, ORIGIN), "note"))
        for tag, role in reversed(_tags(box)):
            wide = self.pill_width(tag)
            group.items += self.pill(right - wide, y + 10, tag, role)
            right -= wide + 8
        if self.fields and box.fields:
            begin, end = x + ring + 1, x + size.width - ring - 1
            rule = (("M", ((begin, y + HEADER),)), ("L", ((end, y + HEADER),)))
            group.items.append(Path(rule, "rule"))
            names, _, pills = self.columns(box)
            for place, field in enumerate(box.fields):
                at = y + HEADER + 4 + ROW * place
                group.items.append(self.field(field, left, at, pills, names))
        return group

    def field(self, field: Shown, x: float, y: float, pills: float, names: float) -> Group:
        group = Group(
            "field",
            title=_field_title(field),
            facts={"field": field.name, "source": field.source},
            link=field.graphs[0] if field.graphs else "",
        )
        group.items += self.pill(x, y + 3, _pill(field), f"source-{field.source}")
        name = _name(field)
        after = self.metrics.width(name[: len(field.name)], "field")
        group.items.append(Label(x + pills, y + 15, name[: len(field.name)], "field"))
        if name[len(field.name) :]:
            group.items.append(Label(x + pills + after, y + 15, name[len(field.name) :], "type"))
        if field.origin:
            at = x + pills + names + 16
            group.items.append(Label(at, y + 15, cut(field.origin, ORIGIN), "origin"))
        return group

    def pill(self, x: float, y: float, text: str, role: str) -> Items:
        wide = self.pill_width(text)
        return [
            Path(scene.outline(x, y, wide, 16, 8), f"pill {role}"),
            Label(x + wide / 2, y + 11.5, text, f"pill-text {role}", "middle"),
        ]

    def arrows(self, arrows: tuple[Arrow, ...], laid: Arranged, names: dict[str, str]) -> Items:
        found: Items = []
        for arrow, line in zip(arrows, laid.lines, strict=True):
            said = CHOOSES[arrow.kind]
            title = f"{names[arrow.tail]} → {names[arrow.head]}{said and f', if {said}'}"
            facts = {"from": arrow.tail, "to": arrow.head, "kind": arrow.kind}
            group = Group("edge", title=title, facts=facts)
            group.items += arrow_shape([(float(x), float(y)) for x, y in line], arrow.kind)
            found.append(group)
        return found

    def legend(self, picture: Picture, width: float) -> tuple[Group, float, float]:
        """What the lines and shapes that are there mean."""
        group = Group("legend", title="Legend")
        x = y = wide = 0.0
        for sample, meaning in meanings(picture):
            taken = 50 + self.metrics.width(meaning, "note")
            if x and x + taken > width:
                x, y = 0.0, y + 26
            group.items.append(
                Group("entry", [*sample_of(sample, x, y), Label(x + 46, y + 14, meaning, "note")])
            )
            x += taken + 22
            wide = max(wide, x - 22)
        return (group, wide, y + 20) if group.items else (group, 0, 0)


def _pill(field: Shown) -> str:
    return "LM" if field.source == "lm" else field.source


def _name(field: Shown) -> str:
    return cut_field(field.name, field.type, NAME if field.origin else ALONE)


def _tags(box: Box) -> list[tuple[str, str]]:
    tags: list[tuple[str, str]] = []
    if box.start:
        tags.append(("start", "tag-start"))
    if box.ending != "never":
        tags.append(("end" if box.ending == "always" else "may end", "tag-end"))
    return tags


def _node_title(box: Box) -> str:
    tags = "".join(f", {tag}" for tag, _ in _tags(box))
    where = f" ({box.place or box.module})"
    doc = f"\n{box.doc}" if box.doc else ""
    return f"{box.name}{tags}{where}{doc}"


def _field_title(field: Shown) -> str:
    description = f"\n{field.description}" if field.description else ""
    return f"{field.name}: {field.type}\n{field.said}{description}"


def _description(picture: Picture) -> str:
    """The picture in words, for who cannot see it."""
    said: list[str] = []
    for each in picture.all:
        names = {box.id: box.name for box in each.boxes}
        inside = f"Inside {', '.join(each.used_by)}, the graph {each.name}: " if said else ""
        for place, box in enumerate(each.boxes):
            onward = [names[arrow.head] for arrow in each.arrows if arrow.tail == box.id]
            ways = [*onward, *(["the end"] if box.ending != "never" else [])]
            who = {"certain": "", "lm": ", as the LM chooses", "code": ", as the code chooses"}
            leads = f"{box.name} leads to {' or '.join(ways)}" if ways else f"{box.name} is open"
            said.append(f"{inside if not place else ''}{leads}{who[box.chooser]}.")
    return " ".join(said)


def _moved(group: Group, x: float, y: float) -> Group:
    """A group with everything in it at another place."""
    items: Items = []
    for item in group.items:
        match item:
            case Path(steps=steps, role=role):
                moved = tuple(
                    (stroke, tuple((px + x, py + y) for px, py in points))
                    for stroke, points in steps
                )
                items.append(Path(moved, role))
            case Label():
                items.append(Label(item.x + x, item.y + y, item.text, item.role, item.anchor))
            case Group():
                items.append(_moved(item, x, y))
    return Group(group.kind, items, group.title, group.facts, group.link)
