"""Lines written to a stream so that no run waits for whoever reads them: at once where there is
room, and else by a thread of its own. A reader that has stalled misses lines, and is told how many.
`lines.py` writes through it."""

from __future__ import annotations

import os
import select
from collections import deque
from threading import Condition, Thread
from typing import IO, Final

MOST: Final = 5_000
"""Lines that may wait to be written; those that come then are left out."""
PATIENCE: Final = 2.0
"""Seconds that the end of a run waits for lines that are not written yet."""


class LineWriter:
    """Writes lines in their order. The thread begins with the first one that has to wait."""

    def __init__(self, file: IO[str], dots: str = "…") -> None:
        self._file = file
        self._dots = dots
        self._waiting: deque[str] = deque()
        self._changed = Condition()
        self._thread: Thread | None = None
        self._left_out = 0
        self._busy = self._closed = self._gone = False
        self._holds = 0

    def put(self, line: str) -> None:
        """Have a line written; at once, from any thread."""
        with self._changed:
            if self._gone or self._closed:
                return
            if self._is_idle() and not self._holds and _has_room(self._file, line):
                # In step with what others print.
                try:
                    write_line(self._file, line)
                except (OSError, ValueError):
                    self._gone = True
                return
            if len(self._waiting) >= MOST:
                self._left_out += 1
                return
            self._say_left_out()
            self._waiting.append(line)
            if self._thread is None:
                self._thread = Thread(target=self._write, name="bae lines", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def hold(self, patience: float = PATIENCE) -> None:
        """Write nothing until `release`; what is there is written first, if that is quick."""
        with self._changed:
            if not self._holds:
                self._changed.wait_for(self._is_idle, patience)
            self._holds += 1

    def release(self) -> None:
        """Write again."""
        with self._changed:
            self._holds -= 1
            self._changed.notify_all()

    def close(self, patience: float = PATIENCE) -> int:
        """Write what is left, for so many seconds at most, and no more then; answers how many lines
        nobody has read."""
        with self._changed:
            self._say_left_out()
            self._holds = 0
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(self._is_idle, patience)
            unread = len(self._waiting)
            self._waiting.clear()
        if self._thread is not None and not self._busy:
            self._thread.join(patience)
        return unread

    def _is_idle(self) -> bool:
        return self._gone or not (self._busy or self._waiting)

    def _say_left_out(self) -> None:
        if self._left_out:
            self._waiting.append(
                f"{self._dots} {self._left_out:,} lines left out, since nobody read them"
            )
            self._left_out = 0

    def _write(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed or (self._waiting and not self._holds))
                if not self._waiting:
                    return
                line = self._waiting.popleft()
                self._busy = True
            try:
                write_line(self._file, line)
            except (OSError, ValueError):  # nobody reads it any more, which is nothing to the run
                with self._changed:
                    self._gone, self._busy = True, False
                    self._waiting.clear()
                    self._changed.notify_all()
                return


def write_line(file: IO[str], line: str) -> None:
    """Write a line, past the file where that is possible: its lock would be kept for as long as
    nobody reads, and Python cannot end then."""
    line += "\n"
    number = _number(file) if os.name == "posix" else None
    if number is None:
        try:
            file.write(line)
        except UnicodeEncodeError:  # a character that this stream cannot write
            file.write(line.encode("ascii", "backslashreplace").decode())
        file.flush()
        return
    data = _encoded(file, line)
    while data:
        try:
            data = data[os.write(number, data) :]
        except BlockingIOError:
            select.select([], [number], [])


def _has_room(file: IO[str], line: str) -> bool:
    """Whether a line can be written without waiting for anybody."""
    number = _number(file)
    if number is None:
        return True  # it is in memory
    if os.name != "posix":
        return False
    # What has room has it for so many bytes at least.
    if len(_encoded(file, line)) >= select.PIPE_BUF:
        return False
    try:
        return bool(select.select([], [number], [], 0)[1])
    except (OSError, ValueError):
        return False


def _encoded(file: IO[str], line: str) -> bytes:
    return line.encode(getattr(file, "encoding", None) or "utf-8", "backslashreplace")


def _number(file: IO[str]) -> int | None:
    try:
        return file.fileno()
    except (AttributeError, OSError, ValueError):
        return None
