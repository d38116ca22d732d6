"""Unified diffs as an LLM or git writes them.

The lines of a hunk decide where it is applied. The numbers in its header matter only if several
places have the same lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

LONGEST_LINE: Final = 2_000
"""How many characters of a line are shown. All of a generated file may be one line."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """One hunk of a diff."""

    path: str
    search: tuple[str, ...]
    """The lines to find in the file."""
    replace: tuple[str, ...]
    """The lines that replace them."""
    at: int = 0
    """The number of lines above the hunk, after earlier hunks were applied. It may be wrong."""
    ends: bool | None = None
    """Whether the changed file ends with a line break. None if the diff does not show that."""


@dataclass(frozen=True, slots=True)
class FileDiff:
    """The change of one file in a diff."""

    path: str
    after: int
    """The index of the first line below the file's diff."""
    hunks: tuple[Hunk, ...] = ()
    deletes: bool = False
    """Whether the diff deletes the file."""
    problem: str = ""
    """The reason why the diff cannot be applied. Empty if it can."""


@dataclass(slots=True)
class ChangedLines:
    """A hunk to show."""

    old: int
    """The number of the hunk's first line in the old file."""
    new: int
    """The number of the hunk's first line in the new file."""
    heading: str
    """The text that git writes after the numbers, such as the name of a function."""
    lines: list[str]
    """The lines, each with ` `, `-` or `+` before it."""


@dataclass(slots=True)
class ChangedFile:
    """The change of one file, to show. In its paths, `�` replaces each byte that is not UTF-8."""

    path: str
    old_path: str
    change: Literal["changed", "added", "deleted", "renamed"] = "changed"
    mode: str = ""
    """The new git mode, such as 100755 for a program or 120000 for a link. Empty if the mode did
    not change."""
    is_binary: bool = False
    added: int = 0
    """The number of added lines, including lines that are cut from `hunks`."""
    removed: int = 0
    """The number of removed lines, including lines that are cut from `hunks`."""
    is_cut: bool = False
    """Whether lines, or parts of lines, are missing in `hunks`."""
    hunks: list[ChangedLines] = field(default_factory=list[ChangedLines])


def read_changed_files(text: str, most: int, most_of_all: int) -> list[ChangedFile]:
    """Read the changed files of a git diff, to show them.

    At most `most` lines of each file and `most_of_all` lines of all files are returned. 0 means no
    limit. With a limit for each file, long lines are cut too."""
    files: list[ChangedFile] = []
    # `old` and `new` are the remaining lines of a hunk, `lines` and `total` the lines that are
    # returned of the file and of all files.
    old = new = lines = total = 0
    for line in text.split("\n"):
        if line.startswith(_GIT):
            path = _read_git_line(line)
            files.append(ChangedFile(path, path))
            old = new = lines = 0
            continue
        if not files:
            continue
        file = files[-1]
        if old > 0 or new > 0 or (file.hunks and line.startswith(_NO_BREAK)):
            kind = line[:1] or " "
            old, new = old - (kind in " -"), new - (kind in " +")
            file.added, file.removed = file.added + (kind == "+"), file.removed + (kind == "-")
            if (most and lines >= most) or (most_of_all and total >= most_of_all):
                file.is_cut = True
            else:
                is_long = most > 0 and len(line) > LONGEST_LINE
                file.is_cut = file.is_cut or is_long
                file.hunks[-1].lines.append(f"{line[:LONGEST_LINE]}…" if is_long else line)
                lines, total = lines + 1, total + 1
        elif numbers := _NUMBERS.match(line):
            old, new = int(numbers["old"] or 1), int(numbers["new"] or 1)
            if not (most and lines >= most) and not (most_of_all and total >= most_of_all):
                hunk = ChangedLines(
                    int(numbers["from"]), int(numbers["to"]), numbers["heading"].strip(), []
                )
                file.hunks.append(hunk)
        else:
            _read_kind(file, line)
    return files


def _read_kind(file: ChangedFile, line: str) -> None:
    """Read a line between the `diff --git` line of a file and its first hunk."""
    if line.startswith("new mode "):
        file.mode = line.removeprefix("new mode ")
    elif line.startswith("new file mode "):
        file.change, file.mode = "added", line.removeprefix("new file mode ")
    elif line.startswith("deleted file mode"):
        file.change = "deleted"
    elif line.startswith("rename from "):
        file.change, file.old_path = "renamed", _decode_path(line.removeprefix("rename from "))
    elif line.startswith("rename to "):
        file.path = _decode_path(line.removeprefix("rename to "))
    elif line.startswith(("Binary files ", "GIT binary patch")):
        file.is_binary = True
    elif line.startswith("--- ") and (path := _decode_path(line[4:])) != _NONE:
        file.old_path = path.removeprefix("a/")
        file.path = file.path or file.old_path
    elif line.startswith("+++ ") and (path := _decode_path(line[4:])) != _NONE:
        file.path = path.removeprefix("b/")
        file.old_path = file.old_path or file.path


def _decode_path(text: str) -> str:
    try:
        return _read_path(text, "replace")
    except ValueError:
        return text


def begins_diff(lines: Sequence[str], number: int) -> bool:
    """Return whether the diff of a file begins at the line with this index."""
    return lines[number].startswith(_GIT) or _is_header(lines, number)


def read_diff(lines: Sequence[str], number: int) -> FileDiff:
    """Read the diff of a file that begins at the line with this index."""
    start, kinds = number, set[str]()
    old = new = ""
    if lines[number].startswith(_GIT):
        old = new = _read_git_line(lines[number])
        number += 1
        while number < len(lines) and (match := _EXTENDED.match(lines[number])):
            kinds.add("a link" if lines[number].split()[-1] in _LINKS else match[1])
            number += 1
    try:
        if number < len(lines) and _is_header(lines, number):
            number += 2
            old, new = (_read_path(line[4:]) for line in lines[number - 2 : number])
            kinds |= {"deleted file mode"} if new == _NONE else set()
        old, new = _strip_prefixes(old, new)
    except ValueError:
        return FileDiff("", number, problem=f"the path in line {start + 1} cannot be read")
    path = old if new == _NONE else new
    hunks: list[Hunk] = []
    while number < len(lines) and (header := _HUNK.match(lines[number])):
        hunk, number = _read_hunk(lines, number, path, header)
        hunks.append(hunk)
    if not path:
        problem = f"the diff in line {start + 1} names no file: write `--- a/x` and `+++ b/x`"
    elif unread := sorted(kinds - {"index", "new file mode", "deleted file mode"}):
        problem = (
            f"the diff of {path} has {unread[0]!r}, which is not read: delete the old file, and "
            "write the new one whole"
        )
    elif _NONE not in (old, new) and old != new:
        problem = f"a diff renames {old} to {new}: delete the old file, and write the new one whole"
    elif not hunks and not kinds & {"new file mode", "deleted file mode"}:
        problem = f"the diff of {path} has no hunk: each begins with a line such as @@ -1,4 +1,5 @@"
    else:
        problem = ""
    return FileDiff(path, number, tuple(hunks), "deleted file mode" in kinds, problem)


_GIT: Final = "diff --git "
_NONE: Final = "/dev/null"
_LINKS: Final = ("120000", "160000")
"""The git modes of links and submodules."""
_EXTENDED: Final = re.compile(
    r"(index|new file mode|deleted file mode|old mode|new mode|(?:dis)?similarity index"
    r"|rename from|rename to|copy from|copy to|Binary files|GIT binary patch)\b"
)
_HUNK: Final = re.compile(
    r"@@(?: -\d+(?:,(?P<old>\d{1,9}))? \+(?P<at>\d{1,9})(?:,(?P<new>\d{1,9}))? @@|\s|$)"
)
_NUMBERS: Final = re.compile(
    r"@@ -(?P<from>\d+)(?:,(?P<old>\d+))? \+(?P<to>\d+)(?:,(?P<new>\d+))? @@(?P<heading>.*)"
)
_NO_BREAK: Final = "\\"


def _is_header(lines: Sequence[str], number: int) -> bool:
    return (
        number + 1 < len(lines)
        and lines[number].startswith("--- ")
        and lines[number + 1].startswith("+++ ")
    )


def _read_git_line(line: str) -> str:
    """Read the path of a line `diff --git a/x b/x`. Return an empty text if the line has two
    different paths. Other lines of the diff may have paths that replace this path."""
    words = line.removeprefix(_GIT).rstrip()
    half = len(words) // 2
    first, second = _decode_path(words[:half]), _decode_path(words[half + 1 :])
    return first.removeprefix("a/") if first[2:] == second[2:] else ""


def _read_path(text: str, errors: Literal["strict", "replace"] = "strict") -> str:
    """Read a path as git writes it: in quotes with escapes, or up to a tab. Raise ValueError if the
    quoted text is invalid."""
    text = text.partition("\t")[0].rstrip() if not text.startswith('"') else text.rstrip()
    if not text.startswith('"'):
        return text
    try:
        quoted = ast.literal_eval(f"b{text}")
    except (SyntaxError, ValueError, MemoryError) as error:
        raise ValueError(text) from error
    if not isinstance(quoted, bytes):
        raise ValueError(text)
    return quoted.decode(errors=errors)


def _strip_prefixes(old: str, new: str) -> tuple[str, str]:
    first = old == _NONE or old.startswith("a/")
    second = new == _NONE or new.startswith("b/")
    if first and second:
        return old.removeprefix("a/"), new.removeprefix("b/")
    return old, new


def _read_hunk(
    lines: Sequence[str], number: int, path: str, header: re.Match[str]
) -> tuple[Hunk, int]:
    """Read a hunk. Return the hunk and the index of the line below it.

    The hunk ends where its header says. If the header is wrong, the hunk ends before the first line
    that cannot be part of a hunk."""
    start = number + 1
    end = start
    if header["at"] is not None:
        end = _find_counted_end(lines, start, int(header["old"] or 1), int(header["new"] or 1))
    if end == start:
        while end < len(lines) and (not lines[end] or lines[end][0] in " +-\\"):
            if _is_header(lines, end) and lines[end + 2 : end + 3] and _HUNK.match(lines[end + 2]):
                break
            end += 1
        while end > start and not lines[end - 1]:
            end -= 1
    search: list[str] = []
    replace: list[str] = []
    marked = ""
    before = " "
    for line in lines[start:end]:
        kind, text = line[:1] or " ", line[1:]
        if kind == _NO_BREAK:
            marked += before
            continue
        before = kind
        search += [text] if kind in " -" else []
        replace += [text] if kind in " +" else []
    ends = None if not marked else marked == "-"
    at = int(header["at"] or 1)
    return Hunk(path, tuple(search), tuple(replace), at - 1 if replace and at else at, ends), end


def _find_counted_end(lines: Sequence[str], start: int, old: int, new: int) -> int:
    """Return the end of a hunk by the counts in its header. If the counts are wrong, return
    `start`."""
    end = start
    while (old or new) and end < len(lines):
        kind = lines[end][:1] or " "
        if kind not in " +-\\":
            return start
        old -= kind in " -"
        new -= kind in " +"
        end += 1
    if old or new:
        return start
    while lines[end : end + 1] and lines[end].startswith(_NO_BREAK):
        end += 1
    is_over = end == len(lines) or lines[end][:1] not in (" ", "+", "-") or begins_diff(lines, end)
    return end if is_over else start
