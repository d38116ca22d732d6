"""How the work that bae does grows with its input: lines of its code that run, counted, which no
clock and no busy machine changes."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import bae

ROOT = str(Path(bae.__file__).parent)


class Lines:
    """Counts the lines of bae that run inside of `with`, by function."""

    def __init__(self) -> None:
        self.by: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return sum(self.by.values())

    def __enter__(self) -> Lines:
        # What earlier tests left behind is closed now, not while lines are counted; and what they
        # keep is not looked through each time.
        gc.collect()
        gc.freeze()
        gc.disable()
        self._before = sys.gettrace(), threading.gettrace()
        sys.settrace(self._trace)
        threading.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before[0])
        threading.settrace(self._before[1])
        gc.enable()

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(ROOT):
            return None
        name, by = f"{file[len(ROOT) :]}:{frame.f_code.co_name}", self.by

        def count(_: FrameType, event: str, __: Any) -> Any:
            if event == "line":
                by[name] += 1
            return count

        return count


def assert_linear(counts: Sequence[Lines], what: object = "", allowed: float = 0.002) -> None:
    """Counts for the sizes n, 2n and 3n: what is added from 2n to 3n is what was added before, but
    for a part of all that is `allowed`: dictionaries grow, and event loops schedule, in jumps."""
    one, two, three = counts
    bent = three.total - 2 * two.total + one.total
    if bent <= three.total * allowed:
        return
    worst = {
        name: (one.by[name], two.by[name], three.by[name])
        for name in three.by
        if three.by[name] - 2 * two.by[name] + one.by[name] > bent / 25
    }
    totals = one.total, two.total, three.total
    raise AssertionError(f"{what}: {totals} lines are run, and more and more in {worst}")


class Scans:
    """Counts, inside of `with` and on the running loop, how many others are looked at to find a
    future among those that wait, or a callback among those of a task."""

    def __init__(self) -> None:
        self.looks = 0

    def __enter__(self) -> Scans:
        scans, loop = self, asyncio.get_running_loop()

        class Future(asyncio.Future[Any]):
            def __eq__(self, other: object) -> bool:
                scans.looks += 1
                return self is other

            def __hash__(self) -> int:
                return id(self)

        class Task(asyncio.Task[Any]):
            def remove_done_callback(self, fn: Any, /) -> int:
                scans.looks += len(getattr(self, "_callbacks", None) or ())
                return super().remove_done_callback(fn)

        self._loop: Any = loop
        self._loop.create_future = lambda: Future(loop=loop)
        loop.set_task_factory(lambda loop, coro, **named: Task(coro, loop=loop, **named))  # pyright: ignore
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.set_task_factory(None)
        del self._loop.create_future
