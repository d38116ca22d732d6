"""The effects of a run on the outside world, in a file that no journal knows: one line when an
effect begins, and another when it has happened. `checks.py` compares them with the journal."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Literal

Said = Literal["begin", "end", "kept"]


class Effects:
    """The file of a run's effects, as one of its processes writes it. Each line is one appending
    write, so a kill leaves it complete or missing."""

    def __init__(self, path: Path | str, process: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._process = process

    def say(self, said: Said, what: str) -> None:
        """Write one line."""
        os.write(self._file, f"{self._process}\t{said}\t{what}\n".encode())


HERE: ContextVar[Effects] = ContextVar("HERE")
"""The effects of the run that the code which asks is part of; worker threads see it too."""


@contextmanager
def effect(what: str) -> Generator[None]:
    """An effect that is had in the block."""
    effects = HERE.get()
    effects.say("begin", what)
    yield
    effects.say("end", what)


class Happened:
    """The effects of a run, read back: how often each began and ended, by process."""

    def __init__(self, path: Path) -> None:
        self.begun: dict[int, Counter[str]] = {}
        self.ended: Counter[str] = Counter()
        self.kept = -1
        """The highest number of a line that the run was told is stored."""
        for line in path.read_text().splitlines() if path.exists() else ():
            process, said, what = line.split("\t")
            if said == "begin":
                self.begun.setdefault(int(process), Counter())[what] += 1
            elif said == "end":
                self.ended[what] += 1
            else:
                self.kept = max(self.kept, int(what))

    def by(self, process: int) -> Counter[str]:
        """What one process has begun."""
        return self.begun.get(process, Counter())

    def total(self) -> Counter[str]:
        """What all processes have begun."""
        return sum(self.begun.values(), Counter())
