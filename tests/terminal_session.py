"""For tests of the command line at a terminal: a program on a pseudo-terminal, with its visible
screen. Wait for a text on the screen, then type."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Self

import pyte

from default_signals import restore_signals

BOUND = 30.0  # seconds until a test that would wait for ever fails instead
CTRL_C = "\x03"
CTRL_D = "\x04"
CTRL_Z = "\x1a"

# The child makes the terminal its own, so that Ctrl-C there is a signal to it.
_TAKE = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


class Session:
    """`bae` on a terminal of its own, in a directory."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        columns: int = 100,
        lines: int = 40,
        piped: bool = False,
        env: dict[str, str] | None = None,
        program: Sequence[str] = ("-m", "bae"),
    ) -> None:
        self._master: int | None
        self._master, self._slave = pty.openpty()
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, size)
        self._screen = pyte.HistoryScreen(columns, lines, history=5000, ratio=0.5)
        self._stream = pyte.ByteStream(self._screen)
        self._before = termios.tcgetattr(self._slave)
        self.stdout = folder / "stdout"
        surroundings = {**os.environ, "TERM": "xterm-256color", **(env or {})}
        for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI"):
            surroundings.pop(name, None)
        source = Path(__file__).parents[1] / "src"
        surroundings["PYTHONPATH"] = str(source)
        with open(self.stdout, "wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _TAKE, *program, *arguments],
                cwd=folder,
                stdin=self._slave,
                stdout=file if piped else self._slave,
                stderr=self._slave,
                start_new_session=True,
                preexec_fn=restore_signals,
                env=surroundings,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self._master is not None:
            os.close(self._master)
        os.close(self._slave)

    def shows(self, *wanted: str) -> str:
        """Wait until all of these texts are or were on the screen; returns the screen."""
        self.waits(lambda: all(each in self.screen for each in wanted), f"never showed {wanted}")
        return self.screen

    def waits(self, is_so: Callable[[], bool], otherwise: str) -> None:
        """Wait until a condition is true, and keep reading the screen."""
        end = monotonic() + BOUND
        over = False
        while not is_so():
            if over or monotonic() > end:
                raise AssertionError(f"{otherwise}:\n{self.screen}")
            # What it has written last may still be to be read.
            over = not self._read(monotonic() + 0.05) and self.process.poll() is not None

    def types(self, text: str) -> None:
        """Type; end a line with \\r."""
        assert self._master is not None
        os.write(self._master, text.encode())

    def hangs_up(self) -> None:
        """Close the terminal, as with its window."""
        if self._master is not None:
            os.close(self._master)
        self._master = None

    def ends(self) -> int:
        """Wait until the program is over; answers its exit code."""
        self.waits(lambda: self.process.poll() is not None, "did not end")
        while self._read(monotonic()):
            pass
        return self.process.returncode

    @property
    def screen(self) -> str:
        """The text on the screen and the lines that scrolled off its top."""
        gone: Any = self._screen.history.top
        width = self._screen.columns
        above = ["".join(line[x].data for x in range(width)).rstrip() for line in gone]
        return "\n".join([*above, *(line.rstrip() for line in self._screen.display)])

    @property
    def is_as_it_was(self) -> bool:
        """Whether the terminal is left as it was found: echo on, cursor shown."""
        same = termios.tcgetattr(self._slave) == self._before
        return same and not self._screen.cursor.hidden

    @property
    def left_processes(self) -> bool:
        """Whether anything of the program is still there."""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _read(self, end: float) -> bool:
        watched = [] if self._master is None else [self._master]
        ready, _, _ = select.select(watched, [], [], max(0.0, end - monotonic()))
        if not ready or self._master is None:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self._stream.feed(data)
        return bool(data)
