"""Text as a picture can have it: on one line, and of a width that is known."""

from __future__ import annotations

import unicodedata
from typing import Final

_SPELLED: Final = str.maketrans({"…": "...", "←": "<-", "→": "->", "“": '"', "”": '"'})


def cells(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(cell_width(c) for c in text)


def cell_width(char: str) -> int:
    """How many columns one character takes."""
    if char.isascii():
        return 1
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, most: int, dots: str = "…") -> str:
    """A text of at most so many columns; dots show that some was left out."""
    if cells(text) <= most:
        return text
    dots = dots[: max(most, 1)]
    kept, width = "", len(dots)
    for c in text:
        width += cell_width(c)
        if width > most:
            break
        kept += c
    return f"{kept.rstrip()}{dots}"


def in_ascii(text: str) -> str:
    """A text spelled with ASCII alone. It may come out longer, so spell before you measure."""
    if text.isascii():
        return text
    return text.translate(_SPELLED).encode("ascii", "backslashreplace").decode()


def plain(text: str) -> str:
    """A text on one line, without characters that no file or terminal should get to see."""
    return "".join(
        c if c.isprintable() or c == "\u200d" else "\ufffd" for c in " ".join(text.split())
    )
