"""The tools with which an LLM reads a repository: `look`, `find` and `outline`. A run passes the
files to the tools with `dep_cache={get_tree: CodeTree(reader, checkout)}`."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import warnings
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from typing import Annotated, Final, NamedTuple

from bae import Dep, ToolError
from bae.subprocesses import run_program
from bae.team import line_search
from bae.team.git import Checkout
from bae.team.guarded_files import matches
from bae.team.repository import Code, CodeReader, find_nearest_paths, outline_file

MOST_LINES: Final = 200
MOST_HITS: Final = 40
LONGEST_RESULT: Final = 18_000
"""Characters of a result. An LLM gets at most 20,000 characters of a tool's result."""
LONGEST_OUTLINE: Final = 8_000
LONGEST_PATTERN: Final = 300
SEARCH_SECONDS: Final = 5.0
"""Seconds that the search for a pattern may take."""


class CodeTree:
    """The files that a run reads. `checkout` is a checkout, or a function that returns it on the
    first use. Without `checkout`, the run reads the user's checkout. Changed files are read
    again."""

    def __init__(
        self,
        reader: CodeReader,
        checkout: Checkout | Callable[[], Awaitable[Checkout]] | None = None,
    ) -> None:
        self._reader = reader
        self._checkout = checkout
        self._code: Code | None = None
        self._turn = asyncio.Lock()

    async def read(self) -> Code:
        """Return the current files."""
        async with self._turn:
            if self._checkout is not None and not isinstance(self._checkout, Checkout):
                self._checkout = await self._checkout()
            self._code = await self._reader.read(self._checkout, self._code)
            return self._code


async def get_tree() -> CodeTree:
    """Raise LookupError. A run must pass its own files in `dep_cache`."""
    raise LookupError("a run with reading tools needs its files in dep_cache: get_tree")


async def look(path: str, lines: str = "", *, tree: Annotated[CodeTree, Dep(get_tree)]) -> str:
    """Show lines of a file, with their numbers: at most 200. The number and the `|` before each
    line are not part of the file.

    Args:
        path: the file, from the root of the repository, as "src/shop/cart.py"
        lines: the first and the last line, as "120-260", or the first alone, as "120". Without it,
            the file from its start
    """
    code = await tree.read()
    return await asyncio.to_thread(_show_lines, code, path, lines)


async def find(pattern: str, glob: str = "", *, tree: Annotated[CodeTree, Dep(get_tree)]) -> str:
    """Search all files for a regular expression, line by line. Shows at most 40 lines, as
    `path:line: text`: code before tests and texts, definitions and files whose names match before
    other lines; and how many lines more there are in which files. For several words that no line
    has in this order, it shows the files that have most to do with these words.

    Args:
        pattern: a regular expression of Python, as "def total|class Cart", or some words, as
            "discount of a cart". Upper and lower case are the same unless it has capitals
        glob: search only these paths, as "*.py", "src/shop/" or "tests/**/test_cart*.py"
    """
    code = await tree.read()
    flags = 0 if re.search(r"[A-Z]", re.sub(r"\\.", "", pattern)) else re.IGNORECASE
    try:
        if not pattern.strip() or len(pattern) > LONGEST_PATTERN:
            raise ToolError(f"give a pattern of 1 to {LONGEST_PATTERN} characters")
        with warnings.catch_warnings(action="ignore"):  # deprecated syntax in the pattern
            compiled = re.compile(pattern, flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise ToolError(
            f"{pattern!r} is not a regular expression: {error}. To search for it as it is, use "
            f"{re.escape(pattern)!r}"
        ) from None
    texts = {name: text for name, text in code.texts.items() if _is_in(name, glob)}
    if not texts:
        raise ToolError(f"no file fits {glob!r}: use a pattern as '*.py', or a folder as 'src/'")
    hits = await _search(pattern, flags, {**texts, _NAMES: _list_names(code)})
    names = {code.names[number - 1] for number in hits.pop(_NAMES, ())}
    return await asyncio.to_thread(_show_hits, code, compiled, texts, hits, names)


async def outline(path: str = "", *, tree: Annotated[CodeTree, Dep(get_tree)]) -> str:
    """Show what a file defines: its classes and functions with the numbers of their lines. For a
    folder, show its files with the names that they define.

    Args:
        path: a file or a folder, from the root of the repository; empty for all of it
    """
    code = await tree.read()
    return await asyncio.to_thread(_outline_path, code, path)


class _Hit(NamedTuple):
    line: int
    text: str


_NAMES: Final = ""
"""The key of an additional text that is searched: the list of all file names."""
_PASSES: Final = 5
"""The most hits that are shown of one file, if other files have hits too."""
_WIDEST: Final = 120
_LONGEST_LINE: Final = 500
_WORDS: Final = re.compile(r"[\w\s.,:;'\"`/-]+")
_MAY_TAKE_LONG: Final = re.compile(r"[*+?{]|\\[1-9]|\(.*\|", re.DOTALL)


async def _search(pattern: str, flags: int, texts: Mapping[str, str]) -> dict[str, list[int]]:
    """Return the numbers of the matching lines, by file.

    A search for a pattern with repetitions, or with alternatives in groups, may never end. Such a
    search runs in a process, because a thread cannot be stopped.
    """
    if not _MAY_TAKE_LONG.search(pattern):
        return await asyncio.to_thread(line_search.search_lines, pattern, flags, texts)
    args = {"pattern": pattern, "flags": flags, "texts": texts}
    request = await asyncio.to_thread(lambda: json.dumps(args).encode())
    command = (sys.executable, "-I", "-S", line_search.__file__)
    process = await run_program(command, given=request, timeout=SEARCH_SECONDS)
    if process.bound is not None or process.status:
        raise ToolError(
            f"{pattern!r} took over {SEARCH_SECONDS:g} s: use a pattern with fewer repetitions, or "
            "limit the files with glob"
        )
    return json.loads(process.out)


def _list_names(code: Code) -> str:
    return "\n".join(name.replace("\n", " ") for name in code.names)


def _show_hits(
    code: Code,
    pattern: re.Pattern[str],
    texts: Mapping[str, str],
    hits: Mapping[str, list[int]],
    matching_names: Container[str],
) -> str:
    """Return the hits as a text. `matching_names` are the files whose names match the pattern."""
    ranked: list[tuple[tuple[object, ...], str, list[_Hit]]] = []
    for name, numbers in hits.items():
        lines = texts[name].split("\n")
        definition_lines = {
            definition.line for definition in outline_file(name, texts[name], most=1000)
        }
        order = sorted(numbers, key=lambda number: (number not in definition_lines, number))
        is_use = not (definition_lines.intersection(numbers) or name in matching_names)
        key = code.kind(name), is_use, -len(numbers), name
        ranked.append((key, name, [_Hit(number, lines[number - 1]) for number in order]))
    ranked.sort(key=lambda entry: entry[0])
    hits_by_file = {name: file_hits for _, name, file_hits in ranked}
    chosen = _choose_hits(hits_by_file)
    parts = [_write_hits(name, file_hits, pattern) for name, file_hits in chosen.items()]
    hidden_counts = {
        name: len(file_hits) - len(chosen.get(name, ())) for name, file_hits in hits_by_file.items()
    }
    parts.append(_describe_more({name: count for name, count in hidden_counts.items() if count}))
    room = MOST_HITS - sum(map(len, chosen.values()))
    words = pattern.pattern
    is_text = len(words.split()) > (2 if hits_by_file else 1) and _WORDS.fullmatch(words)
    if is_text and room >= MOST_HITS // 2:
        parts.append(_show_words(code, words, texts, room, without=hits_by_file))
    names = [name for name in code.names if name not in hits_by_file and name in matching_names]
    if names and not (hits_by_file or any(parts)):
        parts.append("\n".join(["No line matches. Files with such a name:", *names[:MOST_HITS]]))
    if not any(parts):
        raise ToolError(
            f"no line matches {words!r}: try fewer words, a part of a name, or no glob. For names "
            "of files and what they define, use outline"
        )
    return "\n".join(filter(None, parts))


def _show_words(
    code: Code, words: str, texts: Mapping[str, str], most: int, without: Mapping[str, object]
) -> str:
    """Return the files that fit the words best, with the best lines of each file."""
    names = [match.path for match in code.search(words, most=len(texts)) if match.path in texts]
    names = [name for name in names if name not in without and name in code.texts]
    few = most // 5  # how many files show two lines; the others show one line
    best = code.best_lines(words, names[:few], most=2)
    best |= code.best_lines(words, names[few : most - few], most=1)
    parts = [
        _write_hits(name, [_Hit(*line) for line in lines], None) for name, lines in best.items()
    ]
    note = "No line has these words in this order." if not without else ""
    head = f"{note} Files that have most to do with them, best first:".strip()
    return "\n".join((head, *parts)) if best else ""


def _choose_hits(hits: Mapping[str, Sequence[_Hit]]) -> dict[str, list[_Hit]]:
    """Choose the hits to show. A file shows a second hit after all files show a first hit."""
    chosen: dict[str, list[_Hit]] = {}
    room = MOST_HITS
    for turn in range(_PASSES if len(hits) > 1 else MOST_HITS):
        for name, file_hits in hits.items():
            if room and turn < len(file_hits):
                chosen.setdefault(name, []).append(file_hits[turn])
                room -= 1
    return chosen


def _write_hits(name: str, hits: Sequence[_Hit], pattern: re.Pattern[str] | None) -> str:
    lines: list[str] = []
    for number, line in sorted(hits):
        match = pattern.search(line, 0, line_search.LONGEST_LINE) if pattern else None
        start = max(0, match.start() - _WIDEST // 2) if match and len(line) > _WIDEST else 0
        text = line[start : start + _WIDEST].strip()
        lines.append(f"{name}:{number}: {'…' if start else ''}{text}")
    return "\n".join(lines)


def _describe_more(counts: Mapping[str, int]) -> str:
    if not counts:
        return ""
    first = [f"{count} in {name}" for name, count in list(counts.items())[:8]]
    rest = list(counts.values())[8:]
    others = [f"{sum(rest)} in {len(rest)} other files"] if rest else []
    return f"… and more: {', '.join((*first, *others))}. Use glob to see them."


def _is_in(name: str, glob: str) -> bool:
    """Return whether a path matches a glob. The glob is a pattern for names or paths, a file, or a
    folder."""
    glob = glob.strip().removeprefix("./")
    if not glob or name == glob or name.startswith(f"{glob.rstrip('/')}/"):
        return True
    return matches(name, glob) or ("**/" in glob and matches(name, glob.replace("**/", "")))


def _show_lines(code: Code, path: str, lines: str) -> str:
    name = _find_path(code, path)
    if name not in code.texts:
        if name in code.names:
            raise ToolError(f"{name} cannot be shown: it is not a text, or too large")
        return _outline_path(code, path)
    content = code.texts[name].split("\n")
    if content[-1] == "":
        content.pop()
    first, last = _read_range(lines, len(content))
    room = LONGEST_RESULT
    numbered_lines: list[str] = []
    for number in range(first, last + 1):
        line = content[number - 1]
        cut = "…" if len(line) > _LONGEST_LINE else ""
        line = f"{number:>4}|{line[:_LONGEST_LINE]}{cut}"
        room -= len(line) + 1
        if room < 0:
            last = number - 1
            break
        numbered_lines.append(line)
    head = f"{name}: lines {first} to {last} of {len(content)}"
    if last < len(content):
        until = min(last + MOST_LINES, len(content))
        head += f'; look("{name}", "{last + 1}-{until}") shows what follows'
    return "\n".join((head, *numbered_lines))


def _read_range(lines: str, count: int) -> tuple[int, int]:
    if not lines.strip():
        return 1, min(count, MOST_LINES)
    match = re.fullmatch(r"\s*(\d{1,9})\s*(?:[-–:,]\s*(\d{1,9})\s*)?", lines)
    if match is None:
        raise ToolError(f'{lines!r} is not a range of lines: use "120-260", or "120"')
    first = max(1, int(match[1]))
    last = max(first, int(match[2])) if match[2] else first + MOST_LINES - 1
    if first > count:
        raise ToolError(f"the file has {count} lines, and {lines!r} is after its end")
    return first, min(last, first + MOST_LINES - 1, count)


def _find_path(code: Code, path: str) -> str:
    """Return the normalized path of a file or folder. If there is no such path, raise ToolError
    with the nearest paths."""
    name = path.strip().strip("`'\"").removeprefix("./").strip("/")
    name = "" if name == "." else name
    if name in code.names or not name or any(file.startswith(f"{name}/") for file in code.names):
        return name
    nearest = find_nearest_paths(name, code.names)
    advice = f"The nearest are: {', '.join(nearest)}" if nearest else "See the names with outline"
    raise ToolError(f"there is no file {name}. {advice}")


def _outline_path(code: Code, path: str) -> str:
    name = _find_path(code, path)
    if name in code.names:
        definitions = outline_file(name, code.texts.get(name, ""))
        count = code.texts.get(name, "").count("\n") + 1
        lines = [
            f"{'  ' * definition.depth}{definition.line}-{definition.last} {definition.signature}"
            for definition in definitions
        ]
        none = f'; nothing is known of what it defines: look("{name}") shows it'
        return "\n".join((f"{name}: {count} lines{'' if definitions else none}", *lines))
    return code.list_folder(name, longest=LONGEST_OUTLINE) or "there are no files yet"
