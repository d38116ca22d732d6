"""The files of a repository as an LLM reads them: outlines (tree-sitter), search by words (BM25),
and conventions. Each text has a limited size."""

from __future__ import annotations

import asyncio
import math
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

from bae.given_files import read_file
from bae.team.files import is_secret, make_folder
from bae.team.git import Checkout, Repository
from bae.team.models import bounded
from bae.team.syntax import make_parser
from bae.team.test_edits import is_test_file

if TYPE_CHECKING:
    from tree_sitter import Node

MOST_FILES: Final = 20_000
LARGEST_FILE: Final = 200_000
"""Bytes of the largest file whose content is read. Larger files are listed by name only."""
LARGEST_REPOSITORY: Final = 50_000_000
"""Bytes that are read of all files together."""
CONVENTIONS: Final = ("AGENTS.md", "CLAUDE.md", "CONTRIBUTING.md", ".editorconfig")


class Match(NamedTuple):
    """A file in the result of a search."""

    path: str
    score: float


class Definition(NamedTuple):
    """A class or function that a file defines. Lines are counted from 1."""

    name: str
    signature: str
    depth: int
    line: int
    """The first line of the signature."""
    first: int
    """The first line of the definition, decorators included."""
    last: int


class Chunk(NamedTuple):
    """Lines of a file that belong together, such as a function. `score` is their score in a
    search."""

    path: str
    first: int
    last: int
    text: str
    score: float = 0.0


class FileKind(IntEnum):
    """The purpose of a file."""

    CODE = 0
    TEST = 1
    TEXT = 2
    """Documentation and configuration."""
    DATA = 3
    """Changelogs, lock files, generated files and data, which are useless in a prompt."""


async def read_code(
    repository: Repository, at: Checkout | None = None, before: Code | None = None
) -> Code:
    """Read the files that git tracks or would add in the checkout `at`, by default the user's
    checkout. Files that look like secrets, and files behind links, are left out. Unchanged files
    are taken from `before`."""
    names = sorted(await repository.list_checkout(at))
    root = (at or repository.checkout).path
    return await asyncio.to_thread(_read_all, root, names, before)


def find_nearest_paths(path: str, names: Iterable[str], most: int = 5) -> list[str]:
    """Return existing paths that a wrong path probably means: first files with the same name, then
    files in the folder with this path, then similar paths."""
    paths, file_name = sorted(names), PurePosixPath(path).name
    same = [name for name in paths if PurePosixPath(name).name == file_name]
    below = [name for name in paths if name.startswith(f"{path.rstrip('/')}/")]
    close = get_close_matches(path, paths, most, 0.6)
    return list(dict.fromkeys((*same, *below, *close)))[:most]


class CodeReader:
    """Reads checkouts of one repository. It counts words in changed files only, because counting
    the words of all files takes seconds in a large repository."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self._last = Code((), {})
        self._turn = asyncio.Lock()

    async def read(self, at: Checkout | None = None, before: Code | None = None) -> Code:
        """Return the files of a checkout, with counted words. If no file has changed since
        `before`, return `before` itself."""
        code = await read_code(self.repository, at, before)
        if before and code.is_same_as(before):
            return before
        async with self._turn:  # one caller counts the words, and all others wait for the counts
            self._last = await asyncio.to_thread(count_words, code, before or self._last)
            return self._last


class CommitReader(CodeReader):
    """Reads the files of a commit, without a checkout."""

    def __init__(self, repository: Repository, commit: str) -> None:
        super().__init__(repository)
        self.commit = commit

    async def read(self, at: Checkout | None = None, before: Code | None = None) -> Code:
        """Return the files of the commit, with counted words."""
        names = await self.repository.list_files(self.commit)
        contents = await self.repository.read_files(self.commit, names)
        files = dict(zip(names, contents, strict=True))
        code = await asyncio.to_thread(_read_contents, files)
        return await asyncio.to_thread(count_words, code, before)


@dataclass(frozen=True)
class Code:
    """The files of a repository at one moment. Methods may compute for long, so call them in a
    thread."""

    names: tuple[str, ...]
    texts: Mapping[str, str]
    """The contents of files, by name."""
    left_out: int = 0
    """The number of files that are not in `names`, because there are more than `MOST_FILES`."""
    words: Mapping[str, Counter[str]] = field(
        default_factory=dict[str, Counter[str]], compare=False
    )
    """The words of each file, with the number of their occurrences. If empty, a search counts the
    words itself."""
    stamps: Mapping[str, Stamp] = field(default_factory=dict[str, "Stamp"], compare=False)
    """The times, size and inode of each file, which show whether the file has changed. A file that
    has just changed has no stamp, because its next change could have the same times."""

    def kind(self, name: str) -> FileKind:
        """Return the purpose of a file. A module such as `test_runs.py` is code if it has no
        tests."""
        pure, text = PurePosixPath(name), self.texts.get(name, "")
        if _DATA.fullmatch(pure.name.lower()) or _GENERATED.search(text[:500]):
            return FileKind.DATA
        if not _CODE.fullmatch(pure.suffix.lower()):
            return FileKind.TEXT if name in self.texts else FileKind.DATA
        if is_test_file(name) and (is_test_file(f"{pure.parent}/x.py") or _TEST.search(text)):
            return FileKind.TEST
        return FileKind.CODE

    def is_same_as(self, other: Code) -> bool:
        """Return whether `other` has the same files with the same stamps. If a file has no stamp,
        return False."""
        has_all_stamps = len(self.stamps) == len(self.names)
        return has_all_stamps and self.names == other.names and self.stamps == other.stamps

    def search(self, query: str, most: int = 10) -> tuple[Match, ...]:
        """Return the files that fit the words of `query` best, by BM25. The best file is first.

        Code ranks above tests and texts. A file ranks a little higher if other files in its folder
        fit too.
        """
        words = self.words or count_words(self).words
        rarity = self._weigh_words(query)
        mean = max(1.0, sum(map(len, self.texts.values())) / max(1, len(words)))
        scores: dict[str, float] = {}
        for name, counts in words.items():
            score = _score_bm25(rarity, counts, len(self.texts.get(name, "")) / mean)
            if score:
                scores[name] = score * _WEIGHTS[self.kind(name)]
        folders: dict[str, list[float]] = {}
        for name, score in scores.items():
            folders.setdefault(name.rpartition("/")[0], []).append(score)
        folder_bonus = {
            name: sum(sorted(folder_scores)[-_NEAR:]) / _NEAR
            for name, folder_scores in folders.items()
        }
        matches = (
            Match(name, score + 0.5 * folder_bonus[name.rpartition("/")[0]])
            for name, score in scores.items()
        )
        return tuple(sorted(matches, key=lambda match: (-match.score, match.path))[:most])

    def search_chunks(self, query: str, names: Iterable[str]) -> list[Chunk]:
        """Return the parts of files, such as functions, ordered by how well they fit `query`. The
        best part is first."""
        rarity = self._weigh_words(query)
        chunks: list[Chunk] = []
        for name in names:
            weight = _WEIGHTS[self.kind(name)]
            for chunk in split_file(name, self.texts[name]):
                fit = _score_bm25(
                    rarity, Counter(_split_words(chunk.text)), len(chunk.text) / _USUAL
                )
                chunks.append(chunk._replace(score=weight * fit))
        return sorted(chunks, key=lambda chunk: -chunk.score)

    def _weigh_words(self, query: str) -> dict[str, float]:
        """Return the weight of each word in `query`. A word in few files has a high weight."""
        words = self.words or count_words(self).words
        query_words = dict.fromkeys(_split_words(query))
        counts = {
            word: sum(word in file_words for file_words in words.values()) for word in query_words
        }
        return {
            word: math.log(1 + (len(words) - count + 0.5) / (count + 0.5))
            for word, count in counts.items()
            if count
        }

    def best_lines(
        self, query: str, names: Iterable[str], *, most: int = 2
    ) -> dict[str, list[tuple[int, str]]]:
        """Return the lines of files that fit `query` best, with their numbers. The first line of a
        definition has a higher score."""
        rarity = self._weigh_words(query)
        lines: dict[str, list[tuple[int, str]]] = {}
        for name in names:
            text = self.texts[name]
            definition_lines = {
                definition.line for definition in outline_file(name, text, most=1000)
            }
            scores: list[tuple[float, int, str]] = []
            for number, line in enumerate(text.split("\n"), 1):
                words = set(_split_words(line[:_SEARCHED]))
                if score := sum(rarity.get(word, 0.0) for word in words):
                    scores.append(
                        (score * (1.5 if number in definition_lines else 1), -number, line)
                    )
            best = sorted(scores, reverse=True)[:most] or [(0, -1, text.partition("\n")[0])]
            lines[name] = sorted((-number, line) for _, number, line in best)
        return lines

    def outline(self, first: Iterable[str] = (), *, longest: int = 12_000) -> str:
        """List the repository's files in at most `longest` characters. The files `first` come
        first. After the names are listed, files get their definitions while there is room."""
        order = dict.fromkeys((*(name for name in first if name in self.texts), *self.names))
        lines: dict[str, str] = {}
        room = longest - 60  # for the line that counts missing files
        for name in order:
            if room - len(name) < longest * 0.4:  # 40 % of the room is for definitions
                break
            lines[name] = name
            room -= len(name) + 1
        for name in lines:
            definitions = outline_file(name, self.texts.get(name, ""))
            indented = ("  " * symbol.depth + symbol.signature for symbol in definitions)
            text = "\n".join((name, *indented))
            if len(text) - len(name) <= room:
                lines[name] = text
                room -= len(text) - len(name)
            elif room < 200:
                break
        missing = self.left_out + len(self.names) - len(lines)
        rest = [f"… and {missing} more files"] if missing else []
        return "\n".join((*lines.values(), *rest))

    def list_folder(self, folder: str = "", *, longest: int = 8_000) -> str:
        """List the files and folders in a folder. If there is room, show the contents of these
        folders, level by level, and then the names that files define."""
        start = f"{folder}/" if folder else ""
        inside = [name for name in self.names if name.startswith(start)]

        def read_level(below: str) -> list[str]:
            rests = (name[len(below) :].partition("/") for name in inside if name.startswith(below))
            return list(dict.fromkeys(f"{below}{first}{slash}" for first, slash, _ in rests))

        entries = read_level(start)
        room = longest - sum(len(entry) + 14 for entry in entries)
        for entry in entries:  # the list grows in this loop
            within = read_level(entry) if entry.endswith("/") else []
            needed = sum(len(name) + 14 for name in within)
            if within and needed <= room:
                entries += within
                room -= needed
        expanded = {f"{PurePosixPath(entry).parent}/" for entry in entries}
        lines: list[str] = []
        for entry in sorted(entry for entry in entries if entry not in expanded):
            if entry.endswith("/"):
                count = sum(name.startswith(entry) for name in inside)
                lines.append(f"{entry} ({count} files)")
                continue
            text = self.texts.get(entry, "")
            names = [symbol.name for symbol in outline_file(entry, text) if symbol.depth == 1]
            symbols = _join_names(names, min(300, room))
            room -= len(symbols)
            lines.append(f"{entry}: {symbols}" if symbols else entry)
        return bounded("\n".join(lines), longest)

    def versions(self) -> list[str]:
        """Return the language versions that the repository requires, as list items."""
        return [
            f"- {name}: {' '.join(match[0].split())}"
            for name, pattern in _VERSIONS.items()
            if (match := pattern.search(self.texts.get(name, "")))
        ]

    def conventions(self, *, longest: int = 6_000) -> str:
        """Return the contents of the files in `CONVENTIONS`, such as AGENTS.md. Long files are
        cut in the middle."""
        names = [name for name in CONVENTIONS if self.texts.get(name, "").strip()]
        share = longest // max(1, len(names)) - 60
        return "\n\n".join(f"{name}:\n{bounded(self.texts[name].strip(), share)}" for name in names)


@lru_cache(1000)
def outline_file(name: str, text: str, *, most: int = 200) -> tuple[Definition, ...]:
    """Return the classes and functions that a file defines. Return nothing for an unsupported
    language. Code with errors is read as far as possible."""
    parser = make_parser(PurePosixPath(name).suffix.lower())
    if parser is None or not text.strip():
        return ()
    source = text.encode("utf-8", "replace")
    definitions: list[Definition] = []
    for depth, node, body in _walk_definitions(parser.parse(source).root_node, 1, 0):
        end = body
        while end is not None and end.prev_sibling and end.prev_sibling.type == "comment":
            end = end.prev_sibling
        head = source[node.start_byte : end.start_byte if end else node.end_byte]
        line = " ".join(head.decode("utf-8", "replace").split()).rstrip(" {:=>")
        line = line if len(line) <= _WIDEST else f"{line[:_WIDEST]}…"
        outer = node.parent if node.parent and node.parent.type in _DECORATED else node
        start, outer_start = (syntax_node.start_point[0] + 1 for syntax_node in (node, outer))
        name_node = node.child_by_field_name("name")
        name_bytes = (name_node.text if name_node else None) or b""
        name = name_bytes.decode("utf-8", "replace")
        definitions.append(Definition(name, line, depth, start, outer_start, node.end_point[0] + 1))
        if len(definitions) == most:
            break
    return tuple(definitions)


def split_file(name: str, text: str) -> list[Chunk]:
    """Split a file into parts. The first part has the lines before the first definition. Each
    function is a part, and each class up to its first method. A file in an unsupported language is
    split into parts of equal length."""
    lines = text.splitlines()
    definitions = outline_file(name, text, most=1000)
    starts = sorted({definition.first for definition in definitions if definition.depth < 3})
    starts = starts or list(range(1 + _LINES, len(lines) + 1, _LINES))
    edges = sorted({1, *starts, len(lines) + 1})
    chunks: list[Chunk] = []
    for first, end in pairwise(edges):
        chunk_text = "\n".join(lines[first - 1 : end - 1]).rstrip()
        if chunk_text.strip():
            chunks.append(Chunk(name, first, first + chunk_text.count("\n"), chunk_text))
    return chunks


def _score_bm25(rarity: Mapping[str, float], counts: Mapping[str, int], length: float) -> float:
    """Return the BM25 score of words. `length` is the length of the text, divided by the average
    length."""
    norm = 1.2 * (0.25 + 0.75 * length)
    weighted = ((weight, counts[word]) for word, weight in rarity.items() if word in counts)
    return sum(weight * count * 2.2 / (count + norm) for weight, count in weighted)


_VERSIONS: Final = {
    "pyproject.toml": re.compile(r"^requires-python *=.*", re.MULTILINE),
    ".python-version": re.compile(r"^\S+", re.MULTILINE),
    "package.json": re.compile(r'"engines": *\{[^}]*\}'),
    ".nvmrc": re.compile(r"^\S+", re.MULTILINE),
    "go.mod": re.compile(r"^go .*", re.MULTILINE),
}
_USUAL: Final = 1500
"""The average number of characters of a function."""
_LINES: Final = 40
Stamp = tuple[int, int, int, int]
_SETTLES: Final = 100_000_000
"""Nanoseconds in which a file may change twice without a new time stamp."""
_CODE: Final = re.compile(
    r"\.(pyi?|[cm]?[jt]s|[jt]sx|vue|svelte|css|html|go|rs|java|kt|rb|php|c|h|cc|cpp|hpp|cs|swift"
    r"|scala|exs?|lua|sh|sql)"
)
_DATA: Final = re.compile(
    r"(change(s|log)|history|news|release.?notes)(\.\w+)?|.*[.-]lock(\.\w+)?|go\.sum|.*\.min\.\w+"
    r"|.*\.(svg|csv|tsv|snap|map|jsonl|ipynb|po|log|diff|patch|cast)"
)
_GENERATED: Final = re.compile(r"@generated|(?i:generated by|do not edit|automatically generated)")
_TEST: Final = re.compile(r"\bdef test|\bclass Test|\b(test|it|describe)\(")
_SEARCHED: Final = 400
_WIDEST: Final = 140
_DEEPEST: Final = 16
_CHUNK: Final = 2**15
_CLASSES: Final = {"class_definition", "class_declaration", "abstract_class_declaration"}
_FUNCTIONS: Final = {
    *("function_definition", "function_declaration", "generator_function_declaration"),
    *("method_definition", "interface_declaration", "type_alias_declaration", "enum_declaration"),
}
_DECORATED: Final = {"decorated_definition", "export_statement"}
_FUNCTION_VALUES: Final = {"arrow_function", "function_expression", "generator_function", "class"}
_AROUND: Final = {
    *("decorated_definition", "export_statement", "lexical_declaration", "variable_declaration"),
    *("block", "class_body", "statement_block", "if_statement", "try_statement", "else_clause"),
    *("except_clause", "ERROR", "ambient_declaration", "internal_module", "expression_statement"),
}
_WORD: Final = re.compile(r"[^\W_]+(?:_+[^\W_]+)*")
_PARTS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
_STOP: Final = frozenset(
    re.findall(
        r"\w+",
        "the and for not with this that are from import def self return none true false class if "
        "in is of to as or be it an at by on we do else const let var function new export default "
        "has have had its which where when what who how than then too also only no nor so such any "
        "all each every other another same own out into over after before again without more most "
        "less few some many one two first last can may might must should would could will does "
        "did done was were been being they them their there here you your us our but because "
        "since until while about between through both very just now never still yet says",
    )
)
_HEAD: Final = 300
_NEAR: Final = 5
_WEIGHTS: Final = {
    FileKind.CODE: 1.0,
    FileKind.TEST: 0.8,
    FileKind.TEXT: 0.8,
    FileKind.DATA: 0.4,
}


def _join_names(names: Iterable[str], longest: int) -> str:
    """Join as many names as fit into `longest` characters."""
    joined = ""
    for name in names:
        if len(joined) + len(name) + 5 > longest:
            return f"{joined}, …" if joined else ""
        joined += f", {name}" if joined else name
    return joined


def _read_all(root: Path, names: Sequence[str], before: Code | None) -> Code:
    root = root.resolve()
    readable_names: list[str] = []
    texts: dict[str, str] = {}
    stamps: dict[str, Stamp] = {}
    before = before or Code((), {})
    room = LARGEST_REPOSITORY
    settled = time.time_ns() - _SETTLES
    for name in names[:MOST_FILES]:
        path = root / name
        try:
            name.encode()  # an LLM cannot name a file whose name is not UTF-8
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or os.path.realpath(path) != str(path):
                continue
            stamp = status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
            if status.st_ctime_ns < settled:  # a later change gets a new time stamp
                stamps[name] = stamp
            if before.stamps.get(name) == stamp and status.st_size <= room:
                readable_names.append(name)
                if name in before.texts:
                    texts[name] = before.texts[name]
                    room -= status.st_size
                continue
            if is_secret(path, name) and not _is_code(path, name):
                stamps.pop(name, None)
                continue
            readable_names.append(name)
            if status.st_size <= min(LARGEST_FILE, room):
                content = read_file(path, LARGEST_FILE, follow=False)
                if b"\0" not in content:
                    texts[name] = content.decode().removeprefix("\ufeff").replace("\r\n", "\n")
                    room -= len(content)
        except (OSError, UnicodeError):
            continue
    return Code(tuple(readable_names), texts, max(0, len(names) - MOST_FILES), stamps=stamps)


def _read_contents(files: Mapping[str, bytes | None]) -> Code:
    with make_folder() as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content or b"")
        return _read_all(Path(folder), sorted(files), None)


def _is_code(path: Path, name: str) -> bool:
    """Return whether a file with a name such as secrets.py is code and no secret. Code has
    definitions, and neither its text nor its folder suggests a secret."""
    text = read_file(path, LARGEST_FILE, follow=False).decode("utf-8", "replace")
    return bool(outline_file(name, text)) and not is_secret(path, f"{name.rpartition('/')[0]}/x")


def count_words(code: Code, before: Code | None = None) -> Code:
    """Return the same files with counted words. The counts of unchanged files come from
    `before`."""
    words: dict[str, Counter[str]] = {}
    for name in code.names:
        text = code.texts.get(name, "")
        if before is not None and name in before.words and before.texts.get(name, "") == text:
            words[name] = before.words[name]
            continue
        # A word in the name of a file, or in its first lines, counts three times.
        head = f"{name} {text[:_HEAD]}"
        words[name] = Counter(word for word in _split_words(head) for _ in range(3))
        words[name].update(_split_words(text[_HEAD:]))
    return replace(code, words=words)


def _split_words(text: str) -> Iterator[str]:
    """Yield the words of a text or of code: identifiers, and the parts of compound identifiers."""
    # In chunks, because a running regular expression blocks all other threads.
    for start in range(0, len(text), _CHUNK):
        for word in _WORD.findall(text[start : start + _CHUNK]):
            parts: list[str] = _PARTS.findall(word)
            forms = (word, *parts) if len(parts) > 1 else (word,)
            for form in forms:
                lower = form.lower()
                if 1 < len(lower) < 60 and lower not in _STOP:
                    yield _find_stem(lower)


@lru_cache(100_000)
def _find_stem(word: str) -> str:
    """Return the common stem of a word's forms, such as plan, plans, planned and planning."""
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    for end in _ENDS:
        if word.endswith(end) and len(word) - len(end) >= 3 and not word.endswith("ss"):
            word = word.removesuffix(end)
            break
    doubled = len(word) > 4 and word[-1] == word[-2] and word[-1] not in "aeiouls"
    return word[:-1] if doubled else word


_ENDS: Final = ("ions", "ings", "ers", "ing", "ion", "ed", "er", "es", "ly", "s", "e")


def _walk_definitions(
    node: Node, depth: int, inside: int
) -> Iterator[tuple[int, Node, Node | None]]:
    """Yield the definitions below a syntax node: depth, node and body of each definition."""
    for child in node.named_children if inside < _DEEPEST else ():
        body = child.child_by_field_name("body")
        if child.type in _CLASSES:
            yield depth, child, body
            if body is not None:
                yield from _walk_definitions(body, depth + 1, inside + 1)
        elif child.type in _FUNCTIONS:
            yield depth, child, body
        elif child.type in ("variable_declarator", "public_field_definition", "field_definition"):
            value = child.child_by_field_name("value")
            if value is not None and value.type in _FUNCTION_VALUES:
                yield depth, child, value.child_by_field_name("body")
        elif child.type in _AROUND:
            yield from _walk_definitions(child, depth, inside + 1)
