"""Prints how large bae is: lines and files of each room, and how many files one run goes through.

Lines are all lines, with docstrings, comments and blanks. The run has one dependency, one fill and
a SQLite journal. A profile hook counts the files of bae in which a function is entered, in any
thread, and how often the main thread enters a function in another file than the one before. Code
run by an import is not counted. The first run of a process also plans and proves the graph. When
the journal's thread answers can move a change of file by one or two.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Annotated

import bae
from bae import Dep, Graph, Node
from bae.journal import SQLiteJournal
from bae.lm import Answer, Backend, Prompt

SOURCE = Path(bae.__file__).parent


# --- lines and files ----------------------------------------------------------------------------


@dataclass
class Size:
    lines: int = 0
    files: int = 0


def sizes() -> dict[str, Size]:
    """Return the size of each room. The core is the modules at the top level, and each package is a
    room."""
    rooms: dict[str, Size] = {"core (top level)": Size()}
    for path in sorted(SOURCE.rglob("*.py")):
        *packages, _ = path.relative_to(SOURCE).parts
        room = rooms.setdefault(packages[0] if packages else "core (top level)", Size())
        room.lines += len(path.read_text(encoding="utf-8").splitlines())
        room.files += 1
    rooms["all"] = Size(
        sum(room.lines for room in rooms.values()), sum(room.files for room in rooms.values())
    )
    return rooms


# --- one run ------------------------------------------------------------------------------------


async def get_weather() -> str:
    return "rain"


class Ask(Node):
    message: str

    async def __call__(self) -> Outfit: ...


class Outfit(Node):
    weather: Annotated[str, Dep(get_weather)]
    top: str

    async def __call__(self) -> None: ...


class Scripted(Backend):
    """Answers at once."""

    model = "scripted"

    async def answer(self, prompt: Prompt) -> Answer:
        return Answer('{"top": "a raincoat"}')


@dataclass
class Walk:
    """The number of steps of a run."""

    files: set[str] = field(default_factory=set[str])
    changes: int = 0


class Hook:
    """The profile hook: counts for the active `walk`."""

    def __init__(self) -> None:
        self.walk: Walk | None = None
        self._importing: Counter[int] = Counter()  # by thread: modules being executed
        self._last = ""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code, thread = frame.f_code, threading.get_ident()
        if code.co_name == "<module>":
            self._importing[thread] += {"call": 1, "return": -1}.get(event, 0)
        file = code.co_filename
        if event != "call" or self.walk is None or self._importing[thread]:
            return
        if not file.startswith(str(SOURCE)):
            return
        self.walk.files.add(file)
        if threading.current_thread() is threading.main_thread():
            self.walk.changes += self._last not in ("", file)
            self._last = file


async def walks() -> dict[str, Walk]:
    """Profile the first run of this process, and a later run."""
    graph, hook = Graph(start=Ask, end=Outfit), Hook()
    profiles = {"first run": Walk(), "later run": Walk()}
    threading.setprofile(hook)  # before the journal starts its thread
    sys.setprofile(hook)
    try:
        with tempfile.TemporaryDirectory() as folder:
            async with SQLiteJournal(Path(folder) / "runs.db") as journal:
                for walk in profiles.values():
                    hook.walk = walk
                    await graph.arun(Ask(message="up"), lm=Scripted(), journal=journal)
                    hook.walk = None
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return profiles


# --- printing -----------------------------------------------------------------------------------


def main() -> None:
    print("| room | lines | files |\n| --- | ---: | ---: |")
    for name, size in sizes().items():
        print(f"| {name} | {size.lines:,} | {size.files} |")
    print("\n| run | files entered | changes of file |\n| --- | ---: | ---: |")
    for name, run in asyncio.run(walks()).items():
        print(f"| {name} | {len(run.files)} | {run.changes} |")


if __name__ == "__main__":
    main()
