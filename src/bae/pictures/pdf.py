"""A scene as PDF, and that as PNG. The fonts are those that every PDF reader has, which know the
letters of western Europe; give a font for others. The packages fpdf2 and pypdfium2 do the work."""

from __future__ import annotations

import io
from pathlib import Path as File
from typing import Any, Final

from bae.exceptions import BaeError
from bae.pictures.extras import need
from bae.pictures.palette import DARK, LIGHT, Palette
from bae.pictures.scene import Group, Label, Path, Scene, outline

FONTS: Final[dict[str, tuple[str, str, float]]] = {
    "title": ("Helvetica", "B", 17),
    "frame-title": ("Helvetica", "B", 14),
    "name": ("Helvetica", "B", 14),
    "field": ("Helvetica", "", 12),
    "type": ("Helvetica", "", 12),
    "origin": ("Helvetica", "", 11),
    "note": ("Helvetica", "", 12),
    "pill": ("Helvetica", "B", 10.5),
}
"""Family, style and size in points for each kind of text."""
SPELLED: Final = {"←": "<-", "→": "->", "…": "..."}
"""For characters that we write ourselves and the fonts of a PDF lack."""


class PdfFonts:
    """The fonts of a PDF: how wide text is in them, and what of it they can show."""

    def __init__(self, font: str | File | None = None) -> None:
        fpdf = need("fpdf", by="a PDF or PNG")
        self.pdf: Any = fpdf.FPDF(unit="pt")
        self.pdf.core_fonts_encoding = "cp1252"  # which is what a PDF reader takes it for
        self.own = font is not None
        if font is not None:
            self._add(File(font))
        self.unknown: set[str] = set()
        """The characters that were asked for and cannot be shown."""

    def _add(self, font: File) -> None:
        try:
            with font.open("rb") as file:
                if file.read(4) not in (b"\0\1\0\0", b"true", b"OTTO"):
                    raise ValueError("it does not begin as a font does")
            for style in ("", "B"):
                self.pdf.add_font("Given", style, str(font))
        except Exception as error:  # each kind of broken file raises a kind of its own
            raise BaeError(
                f"{font} is no font that can be put into a PDF",
                code="bae-picture-font",
                cause=error,
                fix="give a TrueType or OpenType file, as NotoSans-Regular.ttf",
            ) from error

    def width(self, text: str, role: str) -> float:
        """The width of a text, in points."""
        self.use(role)
        return float(self.pdf.get_string_width(self.shown(text)))

    def use(self, role: str) -> None:
        """Write with the font of a role from here on."""
        family, style, size = FONTS[role]
        self.pdf.set_font("Given" if self.own else family, style, size)

    def shown(self, text: str) -> str:
        """The text with what the fonts have: other characters are spelled by their number."""
        if self.own:
            known = self.pdf.fonts["given"].cmap
            missing = {c for c in text if ord(c) not in known}
        else:
            missing = {c for c in text if not _is_latin(c)}
        for c in missing:
            spelled = SPELLED.get(c)
            if spelled is None:
                self.unknown.add(c)
                spelled = f"U+{ord(c):04X}"
            text = text.replace(c, spelled)
        return text


def write_pdf(scene: Scene, fonts: PdfFonts, *, dark: bool = False) -> bytes:
    """The file, of one page that is as large as the drawing. The scene must be composed with the
    same fonts."""
    pdf = fonts.pdf
    pdf.set_auto_page_break(False)
    pdf.set_margin(0)
    pdf.set_title(fonts.shown(scene.title))
    pdf.set_creator("bae")
    pdf.add_page(format=(scene.width, scene.height))
    palette = DARK if dark else LIGHT
    paper = Path(outline(0, 0, scene.width, scene.height, 0.1), "paper")
    _paint(pdf, paper, palette)
    _group(pdf, scene.root, palette, fonts)
    return bytes(pdf.output())


def write_png(pdf: bytes, *, scale: float = 2) -> bytes:
    """The first page of a PDF as PNG, with `scale` pixels for a point."""
    pdfium = need("pypdfium2", by="a PNG")
    document = pdfium.PdfDocument(pdf)
    try:
        page = document[0]
        try:
            bitmap = page.render(scale=scale)
            image = bitmap.to_pil()
            file = io.BytesIO()
            image.save(file, "PNG", optimize=True)
            bitmap.close()
        finally:
            page.close()
    finally:
        document.close()
    return file.getvalue()


def _is_latin(char: str) -> bool:
    try:
        char.encode("cp1252")
    except UnicodeEncodeError:
        return False
    return True


def _group(pdf: Any, group: Group, palette: Palette, fonts: PdfFonts) -> None:
    for item in group.items:
        match item:
            case Path():
                _paint(pdf, item, palette)
            case Label():
                _write(pdf, item, palette, fonts)
            case Group():
                _group(pdf, item, palette, fonts)


def _paint(pdf: Any, path: Path, palette: Palette) -> None:
    paint = palette.paint(path.role)
    with pdf.new_path() as drawn:
        drawn.style.fill_color = paint.fill or None
        drawn.style.stroke_color = paint.stroke or None
        drawn.style.stroke_width = paint.pen
        drawn.style.stroke_dash_pattern = paint.dash or None
        drawn.style.auto_close = False
        for stroke, points in path.steps:
            numbers = [number for point in points for number in point]
            match stroke:
                case "M":
                    drawn.move_to(*numbers)
                case "L":
                    drawn.line_to(*numbers)
                case "C":
                    drawn.curve_to(*numbers)
                case _:
                    drawn.close()


def _write(pdf: Any, label: Label, palette: Palette, fonts: PdfFonts) -> None:
    role = label.role.partition(" ")[0].removesuffix("-text")
    text = fonts.shown(label.text)
    x = label.x
    if label.anchor != "start":
        x -= fonts.width(label.text, role) / (2 if label.anchor == "middle" else 1)
    fonts.use(role)
    colour = palette.paint(label.role).fill.lstrip("#")
    pdf.set_text_color(*(int(colour[at : at + 2], 16) for at in (0, 2, 4)))
    pdf.text(x, label.y, text)
