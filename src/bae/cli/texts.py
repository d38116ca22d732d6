"""Texts that are safe to print, whoever wrote them: nothing in them that a terminal would obey, and
nothing that a stream cannot write. All that the commands show of values, questions, messages and
names goes through this."""

from __future__ import annotations

import json
import re
from typing import Any, Final

WITHHELD: Final = "(withheld)"
"""What stands for a secret."""
_JOINERS: Final = "\u200c\u200d"
"""They hold emoji of several parts and letters of some scripts together; terminals obey no such."""
_NOT_PLAIN: Final = re.compile(r"[^\x20-\x7e\n]")


def in_one_line(text: str) -> str:
    """A text in one line. Control characters, marks that turn the direction of writing and halves
    of characters are spelled out, as `\\x1b`; the ends of lines and other gaps are spaces."""
    if text.isprintable():
        return text
    return "".join(each if _is_safe(each) else _spelled(each) for each in text)


def in_lines(text: str, below: int = 0) -> str:
    """The same, with lines that stay lines: those after the first are indented by `below`."""
    if text.isprintable():
        return text
    lines = text.replace("\r\n", "\n").replace("\t", "    ").split("\n")
    return f"\n{' ' * below}".join(map(in_one_line, lines))


def in_json(value: Any, *, ascii_only: bool = False) -> str:
    """JSON with the characters as they are, but for those that a terminal would obey or that are
    halves: JSON has a way to spell these."""
    said = json.dumps(value, indent=2, ensure_ascii=ascii_only)
    return _NOT_PLAIN.sub(lambda found: _in_json(found[0]), said)


def cut(text: str, longest: int) -> str:
    """A text of at most so many characters."""
    return text if len(text) <= longest else f"{text[: max(0, longest - 1)]}…"


def _is_safe(char: str) -> bool:
    return char.isprintable() or char in _JOINERS


def _spelled(char: str) -> str:
    return " " if char.isspace() else repr(char)[1:-1]


def _in_json(char: str) -> str:
    return char if _is_safe(char) else json.dumps(char)[1:-1]
