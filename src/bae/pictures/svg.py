"""A scene as SVG: one file that refers to no other, with text that can be selected and read aloud,
and colours that follow the reader's choice of light or dark."""

from __future__ import annotations

from math import fsum
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from bae.pictures.palette import DARK, LIGHT, Paint, Palette, Theme
from bae.pictures.scene import Group, Label, Path, Scene, Step, outline
from bae.pictures.texts import cells

MONO: Final = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
SANS: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
FONTS: Final[dict[str, tuple[str, float, int]]] = {
    "title": (SANS, 17, 650),
    "frame-title": (SANS, 14, 650),
    "name": (MONO, 14, 700),
    "field": (MONO, 12, 400),
    "type": (MONO, 12, 400),
    "origin": (MONO, 11, 400),
    "note": (SANS, 12, 400),
    "pill": (SANS, 10.5, 600),
}
"""Family, size and weight for each kind of text."""


class SystemFonts:
    """How wide text is at most in the fonts that a reader's system is likely to have."""

    def width(self, text: str, role: str) -> float:
        """The width of a text, in pixels."""
        family, size, weight = FONTS[role]
        if family is MONO:
            return cells(text) * size * 0.605
        each = 0.7 if weight > 500 else 0.6
        # Added up exactly, so that every Python draws the same picture.
        return fsum(0.36 if c in " .,ijlt'|:;" else each * cells(c) for c in text) * size


def write_svg(scene: Scene, *, theme: Theme = "auto", standalone: bool = True) -> str:
    """The file. One that is not `standalone` goes into a page, with the styles of `styles`."""
    width, height = _number(scene.width), _number(scene.height)
    role = "img" if standalone else "group"  # what is in an image is not read aloud
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="bae" role="{role}" '
        f'aria-labelledby="picture-title picture-desc" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">',
        f'<title id="picture-title">{escape(scene.title)}</title>',
        f'<desc id="picture-desc">{escape(scene.description)}</desc>',
    ]
    if standalone:
        lines.append(f"<style>{styles(theme)}</style>")
        paper = Path(outline(0, 0, scene.width, scene.height, 12), "paper")
        lines.append(_path(paper))
    _group(scene.root, lines)
    lines.append("</svg>")
    return "\n".join(lines) + "\n"


def styles(theme: Theme = "auto") -> str:
    """The styles of every role."""
    rules = [".bae{max-width:100%;height:auto}"]
    for name, (family, size, weight) in FONTS.items():
        rules.append(f".bae .t-{name}{{font:{weight} {size}px {family}}}")
    rules += _colours(DARK if theme == "dark" else LIGHT)
    if theme == "auto":
        dark = "".join(_colours(DARK))
        rules.append(f"@media (prefers-color-scheme:dark){{{dark}}}")
    return "".join(rules)


ROLES: Final = (
    *("paper", "box", "box box-start", "ring", "bar", "rule", "frame"),
    *("line line-certain", "line line-lm", "line line-code"),
    *("head head-certain", "head head-lm", "head head-code", "tail tail-lm", "tail tail-code"),
    *("title", "frame-title", "name", "field", "type", "origin", "note"),
    *(f"{what} source-{source}" for what in ("pill", "pill-text")
      for source in ("given", "code", "recall", "dep", "gate", "map", "lm")),
    *(f"{what} tag-{tag}" for what in ("pill", "pill-text") for tag in ("start", "end")),
)  # fmt: skip


def _colours(palette: Palette) -> list[str]:
    return [f".bae .{role.replace(' ', '.')}{{{_style(palette.paint(role))}}}" for role in ROLES]


def _style(paint: Paint) -> str:
    parts = [f"fill:{paint.fill or 'none'}"]
    if paint.stroke:
        parts.append(f"stroke:{paint.stroke};stroke-width:{_number(paint.pen)}")
    if paint.dash:
        parts.append(f"stroke-dasharray:{' '.join(_number(each) for each in paint.dash)}")
    return ";".join(parts)


def _group(group: Group, lines: list[str]) -> None:
    facts = dict(group.facts)
    own = f" id={quoteattr('bae-' + facts.pop('id'))}" if "id" in facts else ""
    data = "".join(f" data-{name}={quoteattr(value)}" for name, value in facts.items())
    if group.link:
        lines.append(f"<a href={quoteattr('#bae-' + group.link)}>")
    lines.append(f'<g class="g-{group.kind}"{own}{data}>')
    if group.title:
        lines.append(f"<title>{escape(group.title)}</title>")
    for item in group.items:
        match item:
            case Path():
                lines.append(_path(item))
            case Label():
                lines.append(_label(item))
            case Group():
                _group(item, lines)
    lines.append("</g>")
    if group.link:
        lines.append("</a>")


def _path(path: Path) -> str:
    return f'<path class="{path.role}" d="{_strokes(path.steps)}"/>'


def _strokes(steps: tuple[Step, ...]) -> str:
    return " ".join(
        stroke + " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        for stroke, points in steps
    )


def _label(label: Label) -> str:
    font = label.role.partition(" ")[0].removesuffix("-text")
    anchor = "" if label.anchor == "start" else f' text-anchor="{label.anchor}"'
    return (
        f'<text class="t-{font} {label.role}" x="{_number(label.x)}" y="{_number(label.y)}"'
        f'{anchor} xml:space="preserve">{escape(label.text)}</text>'
    )


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
