"""What a drawing in pixels or points is made of: paths and texts with a role each, in groups. A
role says what a thing is, and `svg.py` and `pdf.py` what that looks like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

Point = tuple[float, float]
Step = tuple[str, tuple[Point, ...]]
"""One stroke of a path: M and L with a point, C with three, Z with none."""
Corner = Literal["round", "cut"]


@dataclass(frozen=True, slots=True)
class Path:
    """Strokes of one pen."""

    steps: tuple[Step, ...]
    role: str


@dataclass(frozen=True, slots=True)
class Label:
    """A text on one line; `x` is where it begins, or its middle, or its end."""

    x: float
    y: float
    text: str
    role: str
    anchor: Literal["start", "middle", "end"] = "start"


@dataclass(slots=True)
class Group:
    """Things that belong together: a node, an edge, a field. `title` is what they are called, in
    full, and `facts` what a program can read off the file."""

    kind: str
    items: list[Path | Label | Group] = field(default_factory=list["Path | Label | Group"])
    title: str = ""
    facts: dict[str, str] = field(default_factory=dict[str, str])
    link: str = ""


@dataclass(frozen=True, slots=True)
class Scene:
    """A whole drawing."""

    title: str
    description: str
    width: float
    height: float
    root: Group


class Metrics(Protocol):
    """How wide text of a role is."""

    def width(self, text: str, role: str) -> float:
        """The width of a text."""
        ...


def outline(
    x: float, y: float, width: float, height: float, size: float, corner: Corner = "round"
) -> tuple[Step, ...]:
    """A rectangle with its corners rounded or cut off."""
    right, bottom = x + width, y + height
    bend = size * 0.448  # a curve with its ends this far from the corner is as good as a circle
    corners = [
        ((right - size, y), (right - bend, y), (right, y + bend), (right, y + size)),
        ((right, bottom - size), (right, bottom - bend), (right - bend, bottom),
         (right - size, bottom)),
        ((x + size, bottom), (x + bend, bottom), (x, bottom - bend), (x, bottom - size)),
        ((x, y + size), (x, y + bend), (x + bend, y), (x + size, y)),
    ]  # fmt: skip
    steps: list[Step] = [("M", ((x + size, y),))]
    for first, one, two, last in corners:
        steps.append(("L", (first,)))
        steps.append(("C", (one, two, last)) if corner == "round" else ("L", (last,)))
    steps.append(("Z", ()))
    return tuple(steps)


def through(points: Sequence[Point], radius: float) -> tuple[Step, ...]:
    """A line through points, with its corners rounded."""
    steps: list[Step] = [("M", (points[0],))]
    for before, here, after in zip(points, points[1:], points[2:], strict=False):
        near = min(radius, _distance(before, here) / 2, _distance(here, after) / 2)
        first, last = _towards(here, before, near), _towards(here, after, near)
        steps.append(("L", (first,)))
        bend = near * 0.448
        steps.append(("C", (_towards(here, before, bend), _towards(here, after, bend), last)))
    steps.append(("L", (points[-1],)))
    return tuple(steps)


def shortened(points: Sequence[Point], start: float, end: float) -> list[Point]:
    """A line with some taken off its first and its last stretch: for what stands there."""
    found = list(points)
    found[0] = _towards(points[0], points[1], start)
    found[-1] = _towards(points[-1], points[-2], end)
    return found


def polygon(points: Sequence[Point]) -> tuple[Step, ...]:
    """A closed shape with straight sides."""
    first, *others = points
    return (("M", (first,)), *(("L", (point,)) for point in others), ("Z", ()))


def arrow_head(tip: Point, before: Point, length: float, width: float) -> tuple[Step, ...]:
    """A triangle that points from `before` to `tip`."""
    x, y = _towards(tip, before, length)
    dx, dy = (tip[0] - x) / length, (tip[1] - y) / length
    half = width / 2
    return polygon([tip, (x - dy * half, y + dx * half), (x + dy * half, y - dx * half)])


def diamond(at: Point, after: Point, length: float, width: float) -> tuple[Step, ...]:
    """A diamond that begins at a point and lies on the way to the next."""
    middle, far = _towards(at, after, length / 2), _towards(at, after, length)
    dx, dy = (far[0] - at[0]) / length, (far[1] - at[1]) / length
    half = width / 2
    return polygon(
        [
            at,
            (middle[0] - dy * half, middle[1] + dx * half),
            far,
            (middle[0] + dy * half, middle[1] - dx * half),
        ]
    )


def _distance(a: Point, b: Point) -> float:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])  # all lines are level or upright


def _towards(start: Point, end: Point, by: float) -> Point:
    whole = _distance(start, end)
    if not whole:
        return start
    return (
        start[0] + (end[0] - start[0]) * by / whole,
        start[1] + (end[1] - start[1]) * by / whole,
    )
