"""The colours of a drawing by role, for light and for dark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Theme = Literal["auto", "light", "dark"]


@dataclass(frozen=True, slots=True)
class Paint:
    """How a role is painted: colours as #rrggbb, a pen's width, and dashes."""

    fill: str = ""
    stroke: str = ""
    pen: float = 0
    dash: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Palette:
    """All colours of a theme."""

    paper: str
    box: str
    ink: str
    soft: str
    faint: str
    line: str
    accent: dict[str, tuple[str, str]]
    """For each accent a colour to fill with, and one to write with on it."""

    def paint(self, role: str) -> Paint:
        """How the things of a role look."""
        name, _, more = role.partition(" ")
        match name:
            case "paper":
                return Paint(fill=self.paper)
            case "box":
                start = more == "box-start"
                stroke = self.accent["start"][1] if start else self.line
                return Paint(self.box, stroke, 1.8 if start else 1.2)
            case "ring" | "bar":
                return Paint(stroke=self.line, pen=1.2)
            case "rule":
                return Paint(stroke=self.faint, pen=1)
            case "frame":
                return Paint(stroke=self.line, pen=1.2, dash=(2, 3))
            case "pill":
                return Paint(fill=self.accent[_accent(more)][0])
            case "pill-text":
                return Paint(fill=self.accent[_accent(more)][1])
            case "line":
                dash = (6.0, 4.0) if more == "line-lm" else ()
                return Paint(stroke=self._edge(more), pen=1.5, dash=dash)
            case "head":
                return Paint(fill=self._edge(more))
            case "tail":
                fill = self._edge(more) if more == "tail-lm" else self.paper
                return Paint(fill, self._edge(more), 1.3)
            case "type" | "origin" | "note":
                return Paint(fill=self.soft)
            case _:
                return Paint(fill=self.ink)

    def _edge(self, role: str) -> str:
        kind = role.rpartition("-")[2]
        return self.soft if kind == "certain" else self.accent[kind][1]


LIGHT: Final = Palette(
    paper="#fbfbfd",
    box="#ffffff",
    ink="#1b1f29",
    soft="#596075",
    faint="#e3e5ec",
    line="#9aa1b4",
    accent={
        "given": ("#e8eaf0", "#454c5f"),
        "code": ("#dcf0f5", "#0b5c72"),
        "recall": ("#d8f2ec", "#0d5f52"),
        "dep": ("#dfeafd", "#1d4fa3"),
        "gate": ("#fde4ea", "#a3204c"),
        "map": ("#fdeccf", "#7f4a05"),
        "lm": ("#ece4fd", "#6231b8"),
        "start": ("#dcf3df", "#1f6b2d"),
        "end": ("#1b1f29", "#ffffff"),
    },
)
DARK: Final = Palette(
    paper="#14161d",
    box="#1d212b",
    ink="#eceef4",
    soft="#a6adc0",
    faint="#333949",
    line="#6c7489",
    accent={
        "given": ("#343a49", "#d3d7e2"),
        "code": ("#113c49", "#86d7ec"),
        "recall": ("#103f38", "#83dfcb"),
        "dep": ("#1b3563", "#a8c8ff"),
        "gate": ("#56172f", "#ffb0c5"),
        "map": ("#4d3206", "#f8cd84"),
        "lm": ("#3a2466", "#cdb4ff"),
        "start": ("#173f20", "#92dfa0"),
        "end": ("#eceef4", "#14161d"),
    },
)


def _accent(role: str) -> str:
    return role.rpartition("-")[2]
