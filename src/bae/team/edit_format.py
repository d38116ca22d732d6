"""Reads the plain-text format in which an LLM writes edits: complete files, SEARCH/REPLACE blocks,
and deletions. A marker, such as `<<<<<<< FILE`, may be longer than seven characters, for files that
have such lines themselves. Unified diffs are read too, and so are complete files in fenced blocks
below a line with the path."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from bae.team.models import TeamError
from bae.team.unified_diffs import Hunk, begins_diff, read_diff

LARGEST_ANSWER: Final = 4_000_000
MOST_EDITS: Final = 500
SHORT_FILE: Final = 200
"""LLMs are asked to write files of up to this number of lines completely."""


@dataclass(frozen=True, slots=True)
class WholeFile:
    """The full content of a new or existing file."""

    path: str
    lines: tuple[str, ...]
    """The lines without line breaks. The written file ends with a line break."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """Lines that occur once in a file, and their replacement."""

    path: str
    search: tuple[str, ...]
    replace: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Deletion:
    """The removal of a file."""

    path: str


Edit: TypeAlias = WholeFile | Replacement | Deletion | Hunk
EditFormat: TypeAlias = Literal["auto", "whole", "blocks"]
"""The form in which an LLM is asked to write edits. `auto` asks for complete files if the files are
new or short, and for blocks otherwise."""


class EditError(TeamError):
    """An LLM's edits cannot be applied. No file was changed."""

    code: str = "bae-team-edit"
    reasons: tuple[str, ...] = ()
    """The reasons, as sentences for the LLM."""
    missed: tuple[str, ...] = ()
    """The files that do not have the lines to replace. Ask the LLM for these files completely."""


UNCHANGED: Final = "the edits change nothing: every file is already as they write it"


def format_instructions(form: EditFormat = "auto") -> str:
    """Return the instructions that tell an LLM how to write edits."""
    parts = {"auto": (_WHOLE, _BLOCKS), "whole": (_WHOLE,), "blocks": (_BLOCKS, _NEW)}[form]
    return "\n\n".join((*parts, _REST))


def parse_answer(answer: str) -> tuple[Edit, ...]:
    """Read the edits in an LLM's answer, in order. Text between the edits is ignored. Raises
    EditError if an edit is cut off or ambiguous, or if the answer has no edit."""
    if len(answer) > LARGEST_ANSWER:
        raise refusal(
            [f"the answer has {len(answer)} characters; at most {LARGEST_ANSWER} are read"]
        )
    lines = answer.replace("\r\n", "\n").split("\n")
    edits: list[Edit] = []
    problems: list[str] = []
    number = 0
    fence = ""  # the mark that opened the current fenced block, unless the block is a file
    while number < len(lines):
        opening = _OPEN.fullmatch(lines[number].rstrip())
        if opening is None and begins_diff(lines, number):
            diff = read_diff(lines, number)
            number = diff.after
            if diff.problem:
                problems.append(diff.problem)
            elif diff.deletes:
                # The hunks are applied first, so a diff with wrong lines deletes nothing.
                edits += (*diff.hunks, Deletion(diff.path))
            else:
                edits += diff.hunks or [Hunk(diff.path, (), ())]
            continue
        if opening is None and (mark := _FENCE.fullmatch(lines[number])):
            if fence:
                fence = "" if _closes_fence(lines[number], fence) else fence
            elif path := _find_fence_path(lines, number):
                number = _read_fenced_file(lines, number, path, edits, problems)
                continue
            else:
                fence = mark["mark"]
        if opening is None:
            number += 1
            continue
        path = (opening["path"] or "").strip("`*\"' ")
        if not path and opening["kind"] != "DELETE":
            path = _find_path_above(lines, number, edits if opening["kind"] == "SEARCH" else ())
        if opening["kind"] == "DELETE":
            edits.append(Deletion(path))
            number += 1
            continue
        start, number = number + 1, _find_end(lines, number, opening)
        where = f"the {opening['kind']} block of {path[:200]} in line {start}"
        if number == len(lines) or _CLOSE.fullmatch(lines[number]) is None:
            problems.append(
                f"{where} has no end: write each block completely, with its last line, and with "
                "longer markers if the file has such lines itself"
            )
            continue
        body = lines[start:number]
        number += 1
        if opening["kind"] == "FILE":
            edits.append(WholeFile(path, tuple(_strip_fence(path, body))))
            continue
        dividers = [i for i, line in enumerate(body) if line.rstrip() == "=" * len(opening["mark"])]
        if len(dividers) != 1:
            problems.append(
                f"{where} has {len(dividers)} lines of {len(opening['mark'])} equal signs between "
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
    """Return the error for edits that were not applied."""
    message = "the edits were not applied, and no file was changed:\n- " + "\n- ".join(problems)
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
    r"(?P<mark><{7,}) (?P<kind>FILE|SEARCH|DELETE)(?: +(?P<path>\S.*))?", re.ASCII
)
_CLOSE: Final = re.compile(r"(?P<mark>>{7,}) (?P<kind>FILE|REPLACE)(?: .*)?\s*", re.ASCII)
_CLOSED_BY: Final = {"FILE": "FILE", "SEARCH": "REPLACE"}
_CODE: Final = {".py", ".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx", ".go", ".json", ".css"}


def _find_path_above(lines: Sequence[str], number: int, edits: Sequence[Edit]) -> str:
    """Return the path for a block whose marker has no path. Some LLMs write the path on a line
    above the block. Otherwise return the path of the last of `edits`, or an empty path."""
    above = [text for line in lines[max(0, number - 3) : number] if (text := line.strip())]
    while above and above[-1].startswith("```"):
        above.pop()
    candidate = above[-1].strip("`*#:\"' ") if above else ""
    if (
        candidate
        and " " not in candidate
        and ("." in candidate or "/" in candidate)
        and candidate[0] not in "<>="
    ):
        return candidate
    return edits[-1].path if edits else ""


def _find_fence_path(lines: Sequence[str], number: int) -> str:
    """Return the path of the file in a fenced block. The path is on the line above the block, or
    above an empty line. Return an empty path if there is no path, or if the block contains edits in
    another form."""
    at = number - 1 if number and lines[number - 1].strip() else number - 2
    match = _PATH_LINE.fullmatch(lines[at].strip()) if at >= 0 else None
    if match is None:
        return ""
    path, first = match["path"], number + 1
    while first < len(lines) and not lines[first].strip():
        first += 1
    if not match["label"] and not re.search(r"/|\.[A-Za-z]\w*$", path):
        return ""
    if first == len(lines) or _OPEN.fullmatch(lines[first].rstrip()):
        return ""
    is_diff = begins_diff(lines, first) or _read_language(lines[number]) in ("diff", "patch")
    return "" if is_diff and Path(path).suffix not in (".diff", ".patch") else path


def _read_fenced_file(
    lines: Sequence[str], number: int, path: str, edits: list[Edit], problems: list[str]
) -> int:
    """Add the file in a fenced block to `edits`. If the end or the meaning of the block is not
    clear, add the reason to `problems` instead. Returns the number of the line below the block."""
    start = number + 1
    where = f"the fenced block of {path[:200]} in line {start}"
    advice = "write the file between `<<<<<<< FILE path` and `>>>>>>> FILE`"
    mark = lines[number][: len(lines[number]) - len(lines[number].lstrip(lines[number][0]))]
    end = start
    while end < len(lines) and not _closes_fence(lines[end], mark):
        end += 1
    body, language = lines[start:end], _read_language(lines[number])
    inner_fences = [line for line in body if line.startswith(mark)]
    if Path(path).suffix.lower() in _TEXTS:  # a fence in the text looks like the block's end
        inner_fences += [line for line in _read_until_next(lines, end + 1) if line.startswith(mark)]
    if end == len(lines):
        problems.append(f"{where} has no end: {advice}")
    elif inner_fences or any(_OPEN.fullmatch(line.rstrip()) for line in body):
        problems.append(
            f"{where} has fences or edits in it, so its end is not clear: {advice}, or with a "
            "longer fence around it"
        )
    elif language in _PRINTED and Path(path).suffix.lower() in _CODE:
        problems.append(
            f"{where} is marked as {language!r}, so it is not clear if it is the file: {advice}"
        )
    else:
        edits.append(WholeFile(path, tuple(body)))
    return end + 1


def _read_until_next(lines: Sequence[str], start: int) -> Sequence[str]:
    """Return the lines from `start` up to the next edit."""
    for number in range(start, len(lines)):
        is_fence = _FENCE.fullmatch(lines[number]) is not None
        if _OPEN.fullmatch(lines[number].rstrip()) or begins_diff(lines, number):
            return lines[start:number]
        if is_fence and _find_fence_path(lines, number):
            return lines[start:number]
    return lines[start:]


def _closes_fence(line: str, mark: str) -> bool:
    """Whether a line ends the fenced block that `mark` opened."""
    return line.startswith(mark) and not line.rstrip().strip(mark[0])


def _read_language(line: str) -> str:
    """Return the language that the first line of a fenced block names, in lower case."""
    return (line.strip("`~ ").split() or [""])[0].lower()


_FENCE: Final = re.compile(r"(?P<mark>`{3,}|~{3,})[^`]*")
_PATH_LINE: Final = re.compile(
    r"(?:\#{1,6} +)?[*`]*+(?P<label>(?:file|path|filename): *)?[*`]*+"
    r"(?P<path>[\w.@+/\[\]-]*[\w\]])[*`]*+(?: \([\w ]+\))?[*`]*+:?[*`]*+",
    re.IGNORECASE,
)
_TEXTS: Final = {".md", ".mdx", ".markdown", ".rst", ".txt"}
_PRINTED: Final = {"console", "output", "text", "txt", "bash", "sh", "shell", "log", "traceback"}


def _find_end(lines: Sequence[str], start: int, opening: re.Match[str]) -> int:
    """Return the number of the line that closes a block. If another block begins first, return its
    line number. If neither is there, return the number of lines."""
    for number in range(start + 1, len(lines)):
        for pattern, kind in ((_CLOSE, _CLOSED_BY[opening["kind"]]), (_OPEN, None)):
            match = pattern.fullmatch(lines[number])
            if match is None or len(match["mark"]) != len(opening["mark"]):
                continue
            if kind in (None, match["kind"]):
                return number
    return len(lines)


def _strip_fence(path: str, body: list[str]) -> list[str]:
    is_fenced = len(body) > 1 and body[0].startswith("```") and body[-1].rstrip() == "```"
    return body[1:-1] if is_fenced and Path(path).suffix in _CODE else body
