"""Whether a worker finds the files of a task: the last commits of this repository, by their
messages alone."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bae.team.files import is_secret
from bae.team.reading import CodeTree
from bae.team.repository import LARGEST_FILE, Code, count_words

ROOT: Final = Path(__file__).parent.parent
NEWEST: Final = "ec302285"
"""The newest commit that may be a case."""
CASES: Final = 60
MOST_CHANGED: Final = 6


@dataclass(frozen=True)
class Case:
    """A commit: its message is the task, the files of its parent are what a worker sees."""

    commit: str
    parent: str
    message: str
    changed: tuple[str, ...]
    """Source files that it changed and that were there before."""


def git(*args: str, given: bytes = b"") -> bytes:
    """What git prints in this repository."""
    return subprocess.run(("git", *args), cwd=ROOT, input=given, check=True, capture_output=True).stdout


def read_cases(most: int = CASES) -> list[Case]:
    """The newest commits that change one to six source files, and that are no merges."""
    form = "--format=%x01%H%x00%P%x00%B%x00"
    log = git("log", "--no-merges", "--name-status", "--no-renames", form, NEWEST).decode()
    cases: list[Case] = []
    for entry in log.split("\x01")[1:]:
        commit, parent, message, files = entry.split("\0")
        rows = [row.split("\t") for row in files.strip().splitlines()]
        source = [(kind, name) for kind, name in rows if is_source(name)]
        changed = tuple(name for kind, name in source if kind != "A")
        if 1 <= len(source) <= MOST_CHANGED and changed:
            cases.append(Case(commit, parent, message.strip(), changed))
        if len(cases) == most:
            break
    return cases


def is_source(name: str) -> bool:
    """Whether a file is source code of bae."""
    return name.startswith("src/bae/") and name.endswith(".py")


@dataclass
class Trees:
    """The files of commits, read from git without a checkout. Texts that did not change are read
    and counted once."""

    texts: dict[str, str | None] = field(default_factory=dict)
    last: Code | None = None

    def read(self, commit: str) -> Code:
        """The files of a commit, ready to be searched."""
        rows = git("ls-tree", "-r", "-z", commit).decode().split("\0")[:-1]
        blobs = {row.partition("\t")[2]: row.split()[2] for row in rows if row.startswith("100")}
        names = sorted(name for name in blobs)
        missing = list(dict.fromkeys(blobs[name] for name in names if blobs[name] not in self.texts))
        rest = git("cat-file", "--batch", given="\n".join(missing).encode())
        for blob in missing:
            head, _, rest = rest.partition(b"\n")
            size = int(head.split()[2])
            content, rest = rest[:size], rest[size + 1 :]
            try:
                is_text = size <= LARGEST_FILE and b"\0" not in content
                self.texts[blob] = content.decode() if is_text else None
            except UnicodeDecodeError:
                self.texts[blob] = None
        texts = {name: text for name in names if (text := self.texts[blobs[name]]) is not None}
        self.last = count_words(Code(tuple(names), texts), self.last)
        return self.last


class CommitTree(CodeTree):
    """The files of a commit, for the tools."""

    def __init__(self, code: Code) -> None:
        self.code = code

    async def read(self) -> Code:
        """The files, which never change."""
        return self.code
