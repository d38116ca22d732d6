"""Types as a picture spells them: a Literal by its values alone, and a long choice cut after a
whole alternative. `reading.py` spells them, `terminal.py` and `composing.py` cut them."""

from __future__ import annotations

import re
from typing import Any, Final

from bae.assignable import type_name
from bae.pictures.texts import cells, cut

_TOKENS: Final = re.compile(
    r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\bLiteral\[|[\[\]]|[ ]\|[ ]|,[ ]|.""", re.DOTALL
)
"""Strings are tokens of their own: what is in them means nothing."""


def type_said(tp: Any) -> str:
    """A type as its author would spell it, but a Literal by its values: `'red' | 'blue'`."""
    said: list[str] = []
    open_brackets: list[bool] = []
    for token in _TOKENS.findall(type_name(tp)):
        literal = bool(open_brackets) and open_brackets[-1]
        if token.endswith("[") and len(token) in (1, len("Literal[")):
            open_brackets.append(token != "[")
            said.append("" if token != "[" else token)
        elif token == "]" and open_brackets:
            said.append("" if open_brackets.pop() else token)
        else:
            said.append(" | " if token == ", " and literal else token)
    return "".join(said)


def cut_field(name: str, said: str, most: int, dots: str = "…") -> str:
    """A field with its type, in at most so many columns: of a choice, whole alternatives and how
    many more there are, if one at least fits."""
    whole = f"{name}: {said}"
    if cells(whole) <= most:
        return whole
    shorter = _cut_choice(said, most - cells(f"{name}: "))
    return cut(whole, most, dots) if shorter is None else f"{name}: {shorter}"


def _cut_choice(said: str, most: int) -> str | None:
    parts = _parts(said, " | ")
    for kept in range(len(parts) - 1, 0, -1):
        shorter = " | ".join([*parts[:kept], f"{len(parts) - kept} more"])
        if cells(shorter) <= most:
            return shorter
    around = re.fullmatch(r"(\w+\[)(.+)\]", said, re.DOTALL) if len(parts) == 1 else None
    if around is None or len(_parts(around[2], ", ")) > 1:
        return None
    inside = _cut_choice(around[2], most - cells(around[1]) - 1)
    return inside and f"{around[1]}{inside}]"


def _parts(said: str, between: str) -> list[str]:
    """What stands between the separators that are in no brackets."""
    parts, depth = [""], 0
    for token in _TOKENS.findall(said):
        depth += token.endswith("[") - (token == "]")
        if token == between and not depth:
            parts.append("")
        else:
            parts[-1] += token
    return parts
