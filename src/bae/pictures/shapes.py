"""The shapes of boxes and arrows, and the legend that says what they mean. `composing.py` puts them
into their places."""

from __future__ import annotations

from typing import Final

from bae.pictures import scene
from bae.pictures.contents import ArrowKind, Box, Picture, Shown
from bae.pictures.layout import Size
from bae.pictures.scene import Group, Label, Path

Items = list[Path | Label | Group]

RING: Final = 4
"""Between the two outlines of a box at which a run may end."""
CHOOSES: Final[dict[ArrowKind, str]] = {
    "certain": "",
    "lm": "the LM chooses",
    "code": "your code chooses",
}


def box_shape(box: Box, x: float, y: float, size: Size) -> Items:
    """The outline: rounded where the run goes on, cut off where there is a choice, a second one
    where a run may end, and bars at the sides where graphs run inside."""
    corner: scene.Corner = "cut" if box.chooser != "certain" else "round"
    big = 10 if corner == "cut" else 16 if box.ending == "always" else 6
    big = min(big, size.height // 3)
    found: Items = []
    width, height, ring = size.width, size.height, ring_of(box)
    if ring:
        found.append(Path(scene.outline(x, y, width, height, big, corner), "ring"))
        x, y, width, height, big = x + ring, y + ring, width - 8, height - 8, max(1, big - 2)
    role = "box box-start" if box.start else "box"
    found.append(Path(scene.outline(x, y, width, height, big, corner), role))
    if box.inner:
        for at in (x + 7, x + width - 7):
            steps = (("M", ((at, y + big),)), ("L", ((at, y + height - big),)))
            found.append(Path(steps, "bar"))
    return found


def ring_of(box: Box) -> int:
    """How much room the second outline of a box takes."""
    return RING if box.ending != "never" else 0


def arrow_shape(points: list[scene.Point], kind: ArrowKind) -> Items:
    """A line with its head, dashed where the LM chooses, and a diamond where anybody does."""
    chosen = kind != "certain"
    line = scene.shortened(points, 10 if chosen else 0, 7)
    found: Items = [
        Path(scene.through(line, 9), f"line line-{kind}"),
        Path(scene.arrow_head(points[-1], points[-2], 9, 8), f"head head-{kind}"),
    ]
    if chosen:
        found.append(Path(scene.diamond(points[0], points[1], 11, 8), f"tail tail-{kind}"))
    return found


def meanings(picture: Picture) -> list[tuple[str, str]]:
    """The lines and shapes that are there, and what they mean."""
    boxes = [box for each in picture.all for box in each.boxes]
    kinds = {arrow.kind for each in picture.all for arrow in each.arrows}
    found: list[tuple[str, str]] = []
    if "certain" in kinds:
        found.append(("certain", "always goes on there"))
    found += [(kind, CHOOSES[kind]) for kind in ("lm", "code") if kind in kinds]
    if any(box.chooser != "certain" for box in boxes):
        found.append(("choice", "several ways on"))
    if any(box.ending != "never" for box in boxes):
        found.append(("end", "a run may end here"))
    if any(box.inner for box in boxes):
        found.append(("inner", "a graph runs inside"))
    return found


def sample_of(sample: str, x: float, y: float) -> Items:
    """One of them, for the legend."""
    if sample in ("certain", "lm", "code"):
        return arrow_shape([(x, y + 10), (x + 38, y + 10)], sample)
    box = Box(
        id="",
        name="",
        start=False,
        ending="always" if sample == "end" else "never",
        chooser="lm" if sample == "choice" else "certain",
        written=False,
        fields=(Shown("", "", "dep", graphs=("",)),) if sample == "inner" else (),
        module="",
        place="",
        doc="",
        lm="",
        apart="",
    )
    return box_shape(box, x + 4, y, Size(32, 20))
