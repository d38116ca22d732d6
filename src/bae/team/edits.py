"""Applies the edits in an LLM's answer to files, all or none. Edits are refused for files outside
of the root, git's own files, files behind links, and binary or huge files. If a file does not have
the lines to replace, the error shows the nearest lines."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate
from pathlib import Path
from typing import Final

from bae.given_files import open_file
from bae.tasks import finish_despite_cancel
from bae.team.edit_format import (
    UNCHANGED,
    Deletion,
    Edit,
    Replacement,
    WholeFile,
    parse_answer,
    refusal,
)
from bae.team.files import INCLUDE
from bae.team.git import GitError, find_folders, fold_name, named_path
from bae.team.syntax import find_syntax_error
from bae.team.unified_diffs import Hunk

LARGEST_FILE: Final = 1_000_000
"""The most bytes that a file may have, before and after an edit."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """The change of one file."""

    path: str
    before: bytes | None
    """The old content. None for a new file."""
    after: bytes | None
    """The new content. None for a deleted file."""


async def apply_answer(
    root: Path, answer: str, submodules: Sequence[str] = ()
) -> tuple[FileChange, ...]:
    """Apply the edits in an LLM's answer to the files below `root`, all or none. If an edit is
    refused, EditError is raised with the reasons. Edits of files in `submodules`, and edits that
    break the syntax of a file, are refused. If the caller is cancelled, the cancellation is raised
    only after all files are written, or after all files are restored."""

    def apply() -> tuple[FileChange, ...]:
        changes = plan_changes(root, parse_answer(answer), submodules)
        checked = (
            find_syntax_error(change.path, change.before, change.after) for change in changes
        )
        if errors := [error for error in checked if error]:
            raise refusal(errors)
        write_changes(root, changes)
        return changes

    return await finish_despite_cancel(asyncio.to_thread(apply))


def plan_changes(
    root: Path, edits: Sequence[Edit], submodules: Sequence[str] = ()
) -> tuple[FileChange, ...]:
    """Return the changes that edits would make to the files below `root`, without writing files.
    Raises EditError if an edit is refused."""
    files: dict[str, _File] = {}
    problems: list[str] = []
    missed: list[str] = []
    refused: set[str] = set()
    for edit in edits:
        if edit.path in refused:
            continue
        try:
            path = _check_path(root, edit.path, submodules)
            if path not in files:
                files[path] = _File(path, _read_content(root / path, path))
            files[path].apply(edit)
        except _Miss as miss:
            problems.append(str(miss))
            missed.append(edit.path)
        except _Refused as reason:
            problems.append(str(reason))
            refused.add(edit.path)
    remaining = {path for path, file in files.items() if file.lines is not None}
    for path in sorted(remaining):
        if inside := sorted(remaining & {str(parent) for parent in Path(path).parents}):
            problems.append(f"{path} cannot be written: {inside[0]} is a file")
    changes = [change for file in files.values() if (change := file.change(problems)) is not None]
    if not changes and not problems:
        problems.append(UNCHANGED)
    if problems:
        raise refusal(problems, missed)
    return tuple(changes)


def find_refused(root: Path, names: Sequence[str], submodules: Sequence[str] = ()) -> list[str]:
    """Return why files that another program has changed are refused. The rules are the same as for
    edits. The list is empty if no file is refused."""
    problems: list[str] = []
    if len(names) > _MOST_FILES:
        return [f"{len(names)} files are changed, and at most {_MOST_FILES} are taken at once"]
    folders = find_folders(names)
    for name in names:
        if name in folders and not (root / name).is_symlink():
            continue  # a folder has replaced the file
        try:
            path = _check_path(root, name, submodules)
            _File(path, _read_content(root / path, path))
        except _Refused as reason:
            problems.append(str(reason))
    return problems


def write_changes(root: Path, changes: Sequence[FileChange]) -> None:
    """Write all changes. If a file cannot be written, restore all files and raise EditError."""
    folders: list[Path] = []
    written_changes: list[tuple[FileChange, int | None]] = []
    at = ""
    try:
        for change in changes:
            path, at = root / change.path, change.path
            _check_path(root, at)
            _make_folders(path.parent, folders)
            mode = stat.S_IMODE(path.stat().st_mode) if change.before is not None else None
            written_changes.append((change, mode))
            _write_content(path, change.after, mode)
    except (OSError, _Refused) as error:
        for change, mode in reversed(written_changes):
            with suppress(OSError):
                _write_content(root / change.path, change.before, mode)
        for folder in reversed(folders):
            with suppress(OSError):
                folder.rmdir()
        raise refusal([f"{at} cannot be written: {error}"]) from error
    for change in changes:
        if change.after is None:
            _remove_empty_folders(root, root / change.path)


_ELIDED: Final = re.compile(
    r"\s*(#|//|/\*|<!--|\{/\*)\s*(\.\.\.|…).*\b(rest|unchanged|existing|remains?|remaining|same)\b.*",
    re.IGNORECASE,
)
_ODD_PATH: Final = re.compile(
    # Control characters, and marks that reorder the characters on a terminal.
    r"[\x00-\x1f\x7f-\x9f\\\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]|^~|^[A-Za-z]:"
)
_SEARCHED_LINES: Final = 40
_SEARCHED_FILE: Final = 20_000
_SHOWN_LINES: Final = 60
_SHOWN_WIDTH: Final = 300
_LONGEST_NAME: Final = 255
_MOST_FILES: Final = 1000
_LONGEST_PATH: Final = 1000


class _Refused(Exception):
    """An edit cannot be applied. The message is the reason."""


class _Miss(_Refused):
    """The lines of an edit do not fit the file's content."""


def _check_path(root: Path, path: str, submodules: Sequence[str] = ()) -> str:
    """Return the path of a file as git names it. Raises _Refused if edits may not change the
    file."""
    if not path:
        raise _Refused("a block has no path: name the file in its first line")
    if len(path) > _LONGEST_PATH:
        raise _Refused(f"{path[:60]!r}… is too long for a path")
    try:
        name = named_path(path)
    except GitError as error:
        raise _Refused(error.message) from error
    parts = name.split("/")
    if fold_name(name) == INCLUDE:
        raise _Refused(f"{name} controls which files a worktree gets: only the user may change it")
    if fold_name(parts[-1]) in (".gitattributes", ".gitmodules"):
        raise _Refused(f"{name} controls how git treats files: only the user may change it")
    if _ODD_PATH.search(name):
        raise _Refused(f"{path!r} is not a plain path inside the repository")
    if any(len(os.fsencode(part)) > _LONGEST_NAME for part in parts):
        raise _Refused(f"{path[:60]!r}… is too long for a path")
    at = root
    for number, part in enumerate(parts, 1):
        at /= part
        try:
            mode = at.lstat().st_mode
        except FileNotFoundError:
            break
        except OSError as error:
            raise _Refused(f"{name} cannot be used: {error.strerror}") from error
        if stat.S_ISLNK(mode):
            raise _Refused(f"{name} is behind a symbolic link: name the file itself")
        if number < len(parts) and not stat.S_ISDIR(mode):
            raise _Refused(f"{name} cannot be written: {'/'.join(parts[:number])} is a file")
        if number == len(parts) and not stat.S_ISREG(mode):
            raise _Refused(f"{name} is not a file that can be edited")
    for submodule in submodules:
        if f"{name}/".startswith(f"{submodule}/"):
            raise _Refused(f"{name} is in the submodule {submodule}, another repository")
    return name


def _read_content(path: Path, name: str) -> bytes | None:
    try:
        with open_file(path, follow=False) as file:
            content = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _Refused(f"{name} cannot be read: {error.strerror or error}") from error
    if len(content) > LARGEST_FILE:
        raise _Refused(f"{name} has more than {LARGEST_FILE} bytes and cannot be edited")
    return content


def _make_folders(folder: Path, created: list[Path]) -> None:
    if not folder.is_dir():
        _make_folders(folder.parent, created)
        folder.mkdir()
        created.append(folder)


def _remove_empty_folders(root: Path, path: Path) -> None:
    """Remove the folders that a deleted file leaves empty, as git does. Otherwise a new file could
    not have the name of such a folder."""
    with suppress(OSError):
        for folder in path.parents:
            if folder == root:
                break
            folder.rmdir()


def _write_content(path: Path, content: bytes | None, mode: int | None) -> None:
    """Replace a file atomically, or delete it if `content` is None. Another hard link to the old
    file keeps the old content."""
    if content is None:
        path.unlink(missing_ok=True)
        return
    new = path.with_name(f".bae-edit-{os.getpid()}-{threading.get_ident()}")
    try:
        with open(new, "xb") as file:
            file.write(content)
        if mode is not None:
            new.chmod(mode)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


class _File:
    """A file while the edits of an answer are applied to it."""

    def __init__(self, path: str, before: bytes | None) -> None:
        self.path = path
        self.before = before
        self.lines: list[str] | None = None
        try:
            text = (before or b"").decode()
        except UnicodeDecodeError as error:
            raise _Refused(f"{path} is not a text in UTF-8 and cannot be edited") from error
        if "\0" in text:
            raise _Refused(f"{path} is a binary file and cannot be edited")
        self.mark = "\ufeff" if text.startswith("\ufeff") else ""
        breaks = text.count("\n")
        self.line_break = "\r\n" if breaks and text.count("\r\n") == breaks else "\n"
        self.ends = not text or text.endswith("\n")
        if before is not None:
            text = text.removeprefix(self.mark).replace(self.line_break, "\n")
            self.lines = text.removesuffix("\n").split("\n") if text else []

    def apply(self, edit: Edit) -> None:
        if isinstance(edit, Deletion):
            if self.lines is None:
                raise _Refused(f"{self.path} cannot be removed: there is no such file")
            self.lines = None
        elif isinstance(edit, WholeFile):
            self._refuse_elision(edit.lines)
            self.lines, self.ends = list(edit.lines), True
        elif not edit.search:
            if self.lines:
                raise _Miss(
                    f"{self.path} exists, and {_name_lines(edit)} are empty: copy lines of the "
                    "file, or write it whole"
                )
            self.lines = list(edit.replace)
            self.ends = not isinstance(edit, Hunk) or edit.ends is not False
        elif self.lines is None:
            raise _Refused(f"there is no file {self.path}: check its path, or write it whole")
        else:
            self._refuse_elision(edit.replace)
            self.lines = self._replace_lines(self.lines, edit)

    def change(self, problems: list[str]) -> FileChange | None:
        after = None
        if self.lines is not None:
            end = self.line_break if self.ends and self.lines else ""
            text = self.mark + self.line_break.join(self.lines) + end
            try:
                after = text.encode()
            except UnicodeEncodeError:
                problems.append(f"{self.path} would have characters that are not valid Unicode")
                return None
            if len(after) > LARGEST_FILE or "\0" in text:
                problem = "be binary" if "\0" in text else f"have over {LARGEST_FILE} bytes"
                problems.append(f"{self.path} would {problem}, and is not written")
                return None
        return FileChange(self.path, self.before, after) if after != self.before else None

    def _refuse_elision(self, lines: Sequence[str]) -> None:
        old_lines = set(self.lines or ())
        for line in lines if self.lines else ():
            if _ELIDED.fullmatch(line) and line not in old_lines:
                raise _Miss(
                    f"an edit of {self.path} has the line {line.strip()!r} in place of code: "
                    "write all lines, or blocks that replace only what changes"
                )

    def _replace_lines(self, lines: list[str], edit: Replacement | Hunk) -> list[str]:
        search, replace = list(edit.search), list(edit.replace)
        if isinstance(edit, Hunk) and lines[edit.at : edit.at + len(search)] == search:
            starts = [edit.at]
        else:
            starts = _find_places(lines, search)
        if not starts:
            search, replace = _trim_empty_lines(search, replace)
            starts = (
                _find_places(_strip_whitespace(lines), _strip_whitespace(search)) if search else []
            )
            if len(starts) == 1:
                fitted = _fit_indents(search, lines[starts[0] : starts[0] + len(search)], replace)
                starts = [] if fitted is None else starts
                replace = fitted or []
        if len(starts) == 1:
            below = lines[starts[0] + len(search) :]
            if isinstance(edit, Hunk) and edit.ends is not None and not below:
                self.ends = edit.ends
            return [*lines[: starts[0]], *replace, *below]
        if starts:
            places = ", ".join(str(at + 1) for at in starts)
            raise _Miss(
                f"{_name_lines(edit)} are in {self.path} more than once (from lines {places}): add "
                "lines above or below, so that only one place fits"
            )
        raise _Miss(_describe_nearest(f"{_name_lines(edit)} are not in {self.path}", lines, search))


def _name_lines(edit: Replacement | Hunk) -> str:
    is_hunk = isinstance(edit, Hunk)
    return "the context and `-` lines of a hunk" if is_hunk else "the SEARCH lines of a block"


def _find_places(lines: Sequence[str], search: Sequence[str]) -> list[int]:
    """Return the indexes in `lines` of the first five places that match `search`."""
    text, searched = "\n".join(("", *lines, "")), "\n".join(("", *search, ""))
    numbers: list[int] = []
    at, counted, number = text.find(searched), 0, 0
    while at >= 0 and len(numbers) < 5:
        number += text.count("\n", counted, at)
        counted = at
        numbers.append(number)
        at = text.find(searched, at + 1)
    return numbers


def _strip_whitespace(lines: Iterable[str]) -> list[str]:
    return ["".join(line.split()) for line in lines]


def _trim_empty_lines(search: list[str], replace: list[str]) -> tuple[list[str], list[str]]:
    """Remove the empty lines at the start and the end of `search`, and at most as many empty lines
    from `replace`."""
    above = next((n for n, line in enumerate(search) if line.strip()), len(search))
    below = next((n for n, line in enumerate(reversed(search)) if line.strip()), 0)
    start, end = 0, len(replace)
    while start < min(above, end) and not replace[start].strip():
        start += 1
    while end > start and len(replace) - end < below and not replace[end - 1].strip():
        end -= 1
    return search[above : len(search) - below], replace[start:end]


def _fit_indents(search: list[str], matched: list[str], replace: list[str]) -> list[str] | None:
    """Return `replace` with the file's indentation. `matched` are the file's lines, which equal
    `search` except for whitespace. Lines that `search` and `replace` share become the file's own
    lines. New lines get the file's indentation. Return None if the indentation is not clear."""
    pairs = [(_indent(s), _indent(f)) for s, f in zip(search, matched, strict=True) if s.strip()]
    added = {f.removesuffix(s) if f.endswith(s) else None for s, f in pairs}
    removed = {s.removesuffix(f) if s.endswith(f) else None for s, f in pairs}
    indents = dict(pairs)
    is_consistent = all(indents[s] == f for s, f in pairs)

    def indent_line(line: str) -> str | None:
        indent = _indent(line)
        if not line.strip():
            return line
        if len(added) == 1 and None not in added:
            return f"{next(iter(added))}{line}"
        if len(removed) == 1 and None not in removed:
            extra = next(iter(removed)) or ""
            return line.removeprefix(extra) if line.startswith(extra) else None
        return (
            indents[indent] + line[len(indent) :] if is_consistent and indent in indents else None
        )

    fitted: list[str | None] = []
    steps = [("replace", 0, len(search), 0, len(replace))]
    if len(search) * len(replace) <= 1_000_000:
        steps = SequenceMatcher(None, search, replace, autojunk=False).get_opcodes()
    for kind, first, last, start, end in steps:
        fitted += matched[first:last] if kind == "equal" else map(indent_line, replace[start:end])
    return None if None in fitted else [line for line in fitted if line is not None]


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _describe_nearest(problem: str, lines: Sequence[str], search: Sequence[str]) -> str:
    """Return a message for lines that are not in a file. The message shows the nearest lines of the
    file."""
    longest_lines = sorted({line.strip() for line in search}, key=len)[-_SEARCHED_LINES:]
    searched_words = [frozenset(re.findall(r"\w+", line[:_SHOWN_WIDTH])) for line in longest_lines]
    known_scores: dict[str, float] = {}
    scores: list[float] = []
    for line in lines[:_SEARCHED_FILE]:
        if line not in known_scores:
            line_words = frozenset(re.findall(r"\w+", line[:_SHOWN_WIDTH]))
            known_scores[line] = max(
                len(line_words & words) / max(1, len(line_words | words))
                for words in searched_words
            )
        scores.append(known_scores[line])
    size = min(max(len(search), 1), _SHOWN_LINES, max(len(scores), 1))
    sums = [0.0, *accumulate(scores)]
    best = max(range(len(sums) - size), key=lambda at: sums[at + size] - sums[at], default=0)
    start, end = max(0, best - 3), min(len(lines), best + size + 3)
    if not lines or sums[min(best + size, len(sums) - 1)] - sums[best] == 0:
        return f"{problem}, nor any like them: write it whole"
    nearest = "\n".join(line[:_SHOWN_WIDTH] for line in lines[start:end])
    return (
        f"{problem}. The nearest lines that it has, from line {start + 1} to {end}, are:\n{nearest}"
    )
