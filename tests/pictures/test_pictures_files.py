"""Pictures as PDF and PNG: what their fonts can show and what they cannot, and what is said where
the packages for them are missing."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from test_pictures import graph, named

from bae import BaeError, Graph, Node
from bae.pictures import FORMATS, to_pdf, to_png, written

pytest.importorskip("fpdf")
pytest.importorskip("pypdfium2")
pytestmark = pytest.mark.once


def text_of(pdf: bytes) -> str:
    """The text of a PDF as its reader selects it."""
    import pypdfium2

    document = pypdfium2.PdfDocument(pdf)
    page = document[0]
    text = page.get_textpage()
    try:
        return text.get_text_range()
    finally:
        text.close()
        page.close()
        document.close()


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(png[16:20]), int.from_bytes(png[20:24])


def test_a_pdf_has_the_text_of_the_picture_to_be_selected():
    text = text_of(to_pdf(graph))

    for said in ("Library", "Research", "list[Summary]", "search <- get_client", "Is <that> all?"):
        assert said in text
    assert "a run may end here" in text


def test_a_pdf_is_one_page_as_large_as_the_picture():
    import pypdfium2

    document = pypdfium2.PdfDocument(to_pdf(graph))
    try:
        assert len(document) == 1
        width, height = document.get_page_size(0)
    finally:
        document.close()
    assert abs(size_of(to_png(graph, scale=1))[0] - width) <= 1
    assert abs(size_of(to_png(graph, scale=2))[1] - 2 * height) <= 2


def test_a_png_is_not_blank_and_a_dark_one_is_dark():
    from io import BytesIO

    from PIL import Image

    def shades(png: bytes) -> tuple[float, int]:
        with Image.open(BytesIO(png)) as image:
            colours = image.convert("L").histogram()
        return sum(place * many for place, many in enumerate(colours)) / sum(colours), sum(
            many > 0 for many in colours
        )

    light, shades_of_light = shades(to_png(graph, scale=1))
    dark, _ = shades(to_png(graph, scale=1, theme="dark"))
    assert light > 200
    assert dark < 80
    assert shades_of_light > 50


def test_no_font_is_put_into_a_pdf_or_needed_on_the_machine():
    pdf = to_pdf(graph)
    fonts = set(re.findall(rb"/BaseFont /([\w-]+)", pdf))

    assert fonts <= {b"Helvetica", b"Helvetica-Bold"}
    assert b"/FontFile" not in pdf


def test_letters_that_the_fonts_lack_are_spelled_and_told_of():
    found = written(named("Ärger“", "Κόμβος"), "pdf")

    assert found.unknown == "".join(sorted("Κόμβος"))
    text = text_of(found.content)
    assert "Ärger“" in text
    assert "U+039A" in text
    assert written(graph, "png").unknown == ""
    assert written(named("Κόμβος", "B"), "svg").unknown == ""


def a_font(tmp_path: Any) -> str:
    """A font with one odd letter, made on the spot."""
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    pen.lineTo((500, 0))
    pen.lineTo((250, 700))
    pen.closePath()
    names = [".notdef", "omega", *(f"ascii{code}" for code in range(32, 127))]
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap({0x3A9: "omega", **{c: f"ascii{c}" for c in range(32, 127)}})
    builder.setupGlyf({name: pen.glyph() for name in names})
    builder.setupHorizontalMetrics(dict.fromkeys(names, (600, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Odd", "styleName": "Regular"})
    builder.setupOS2(sTypoAscender=800, usWinAscent=800, usWinDescent=200)
    builder.setupPost()
    path = tmp_path / "odd.ttf"
    builder.save(path)
    return str(path)


def test_a_font_of_ones_own_brings_its_letters(tmp_path):
    found = written(named("aΩ", "Κ"), "pdf", font=a_font(tmp_path))

    assert found.unknown == "Κ"
    assert "aΩ" in text_of(found.content)


def test_what_is_no_font_is_refused(tmp_path):
    file = tmp_path / "letter.ttf"
    file.write_text("dear")
    for path in (file, tmp_path / "none.ttf"):
        with pytest.raises(BaeError) as raised:
            to_pdf(graph, font=path)
        assert raised.value.code == "bae-picture-font"


@pytest.mark.parametrize(("package", "draw"), [("fpdf", to_pdf), ("pypdfium2", to_png)])
def test_a_package_that_is_missing_is_named_with_how_to_get_it(monkeypatch, package, draw):
    class Blocked:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            if name.partition(".")[0] == package:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    for name in list(sys.modules):
        if name.partition(".")[0] == package:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Blocked(), *sys.meta_path])
    with pytest.raises(BaeError) as raised:
        draw(graph)
    assert raised.value.code == "bae-picture-extra-missing"
    assert package in raised.value.message
    assert "pip install 'bae-graphs[pictures]'" in (raised.value.fix or "")


def test_every_format_can_be_written():
    class Alone(Node):
        async def __call__(self) -> None: ...

    found = {name: written(Graph(start=Alone), name).content for name in FORMATS}
    assert found["svg"].startswith(b"<svg ")
    assert found["html"].startswith(b"<!DOCTYPE html>")
    assert found["mmd"].startswith(b"flowchart TD")
    assert found["png"].startswith(b"\x89PNG")
    assert found["pdf"].startswith(b"%PDF-")
    with pytest.raises(ValueError, match="'gif' is no format"):
        written(Graph(start=Alone), "gif")
