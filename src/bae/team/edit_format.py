"""The plain text in which an LLM writes edits: whole files, blocks to search and replace, and
deletions. Markers may be longer than shown, so that any text can be between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from bae.team.models import TeamError

LARGEST_ANSWER: Final = 4_000_000
MOST_EDITS: Final = 500
SHORT_FILE: Final = 200
"""Files with up to so many lines are best written whole."""


@dataclass(frozen=True, slots=True)
class WholeFile:
    """A file as it is to be, new or not. Its last line ends with a line break."""

    path: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Replacement:
    """Lines that are in a file once, and what is to be there instead."""

    path: str
    search: tuple[str, ...]
    replace: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Deletion:
    """A file that is to be removed."""

    path: str


Edit: TypeAlias = WholeFile | Replacement | Deletion
EditFormat: TypeAlias = Literal["auto", "whole", "blocks"]
"""What an LLM is asked for: `auto` is whole files where they are new or short, blocks elsewhere."""


class EditError(TeamError):
    """An answer cannot be applied, and no file was changed. `.reasons` are in words for the
    LLM; `.missed` are the files whose lines were not found: ask for them whole."""

    code: str = "bae-team-edit"
    reasons: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()


UNCHANGED: Final = "the edits change nothing: every file is already as they write it"


def format_instructions(form: EditFormat = "auto") -> str:
    """What an LLM is told about how to write edits."""
    parts = {"auto": (_WHOLE, _BLOCKS), "whole": (_WHOLE,), "blocks": (_BLOCKS, _NEW)}[form]
    return "\n\n".join((*parts, _REST))


def parse_answer(answer: str) -> tuple[Edit, ...]:
    """The edits of an answer, in order; all text around them is left out. Raises EditError where an
    edit is cut off or can be read in two ways, or there is none."""
    if len(answer) > LARGEST_ANSWER:
        raise refusal(
            [f"the answer has {len(answer)} characters; at most {LARGEST_ANSWER} are read"]
        )
    lines = answer.replace("\r\n", "\n").split("\n")
    edits: list[Edit] = []
    problems: list[str] = []
    number = 0
    while number < len(lines):
        opened = _OPEN.fullmatch(lines[number])
        if opened is None:
            number += 1
            continue
        path = (opened["path"] or "").strip("`*\"' ")
        if not path and opened["kind"] != "DELETE":
            path = _path_above(lines, number, edits if opened["kind"] == "SEARCH" else ())
        if opened["kind"] == "DELETE":
            edits.append(Deletion(path))
            number += 1
            continue
        start, number = number + 1, _end(lines, number, opened)
        where = f"the {opened['kind']} block of {path[:200]} in line {start}"
        if number == len(lines) or _CLOSE.fullmatch(lines[number]) is None:
            problems.append(
                f"{where} has no end: write each block completely, with its last line, and with "
                "longer markers if the file has such lines itself"
            )
            continue
        body = lines[start:number]
        number += 1
        if opened["kind"] == "FILE":
            edits.append(WholeFile(path, tuple(_without_fence(path, body))))
            continue
        dividers = [i for i, line in enumerate(body) if line.rstrip() == "=" * len(opened["mark"])]
        if len(dividers) != 1:
            problems.append(
                f"{where} has {len(dividers)} lines of {len(opened['mark'])} equal signs between "
                "its first and last line; it needs one. Use longer markers if the file has such "
                "lines itself"
            )
            continue
        edits.append(Replacement(path, tuple(body[: dividers[0]]), tuple(body[dividers[0] + 1 :])))
    if not edits and not problems:
        problems.append("the answer has no edit. " + format_instructions())
    if len(edits) > MOST_EDITS:
        problems.append(f"the answer has {len(edits)} edits; at most {MOST_EDITS} are applied")
    if problems:
        raise refusal(problems)
    return tuple(edits)


def refusal(problems: Sequence[str], missed: Sequence[str] = ()) -> EditError:
    """The error for an answer that was not applied."""
    message = "the answer was not applied, no file was changed:\n- " + "\n- ".join(problems)
    return EditError(message, reasons=tuple(problems), missed=tuple(dict.fromkeys(missed)))


_WHOLE: Final = f"""\
Write a file that is new, or that has up to {SHORT_FILE} lines, completely, nothing left out:

<<<<<<< FILE path/to/file.py
all lines of the file
>>>>>>> FILE"""
_BLOCKS: Final = """\
Change a longer file with blocks. SEARCH has lines that are in the file exactly once, copied
exactly, enough of them to be unmistakable; below the equal signs is what takes their place:

<<<<<<< SEARCH path/to/file.py
lines as they are in the file
=======
lines that replace them
>>>>>>> REPLACE"""
_NEW: Final = "Write a new file as a block whose SEARCH is empty."
_REST: Final = """\
Remove a file with the line `<<<<<<< DELETE path/to/file.py`. Paths are relative to the root of
the repository. Write code as it is, without escapes and without fences around it. If lines of a
file look like these markers, write all markers of the block one character longer. Several blocks,
also for one file, are applied in order; if one of them does not fit, none is applied."""

_OPEN: Final = re.compile(
    r"(?P<mark><{7,}) (?P<kind>FILE|SEARCH|DELETE)(?: +(?P<path>\S.*?))?\s*", re.ASCII
)
_CLOSE: Final = re.compile(r"(?P<mark>>{7,}) (?P<kind>FILE|REPLACE)(?: .*)?\s*", re.ASCII)
_CLOSED_BY: Final = {"FILE": "FILE", "SEARCH": "REPLACE"}
_CODE: Final = {".py", ".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx", ".go", ".json", ".css"}


def _path_above(lines: Sequence[str], number: int, edits: Sequence[Edit]) -> str:
    """The path in a line of its own above a block, as some LLMs write it; else the last one."""
    above = [text for line in lines[max(0, number - 3) : number] if (text := line.strip())]
    while above and above[-1].startswith("```"):
        above.pop()
    named = above[-1].strip("`*#:\"' ") if above else ""
    if named and " " not in named and ("." in named or "/" in named) and named[0] not in "<>=":
        return named
    return edits[-1].path if edits else ""


def _end(lines: Sequence[str], start: int, opened: re.Match[str]) -> int:
    """The line that closes a block; where another block begins before, that one's line."""
    for number in range(start + 1, len(lines)):
        for pattern, kind in ((_CLOSE, _CLOSED_BY[opened["kind"]]), (_OPEN, None)):
            found = pattern.fullmatch(lines[number])
            if found is None or len(found["mark"]) != len(opened["mark"]):
                continue
            if kind in (None, found["kind"]):
                return number
    return len(lines)


def _without_fence(path: str, body: list[str]) -> list[str]:
    fenced = len(body) > 1 and body[0].startswith("```") and body[-1].rstrip() == "```"
    return body[1:-1] if fenced and Path(path).suffix in _CODE else body
