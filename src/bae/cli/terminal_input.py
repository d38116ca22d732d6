"""Lines that somebody types while a run goes on. Nothing of the run waits for the keyboard, and
whoever asks can be cancelled: no thread is left that would take the next line. `gates.py` asks."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, suppress


def can_ask() -> bool:
    """Whether there is somebody to ask: questions go to stderr, answers come from stdin. A program
    in the background of a shell is stopped when it reads, so there is nobody for it."""
    try:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return False
        number = sys.stdin.fileno()
    except (AttributeError, ValueError, OSError):  # closed, or there is none
        return False
    with suppress(AttributeError, OSError):  # no Unix; or not the terminal of this process
        return os.tcgetpgrp(number) == os.getpgrp()
    return True


def forget_typed() -> None:
    """Throw away what was typed until now. Call it before a question is shown: what was typed
    earlier is no answer to it."""
    with suppress(Exception):  # no Unix; or a terminal that went away
        import termios

        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


async def typed_line(prompt: str, *, hidden: bool = False) -> str:
    """The next line that is typed once the prompt stands there, without its end; `hidden` does not
    show it. Raises EOFError at Ctrl-D."""
    number = sys.stdin.fileno()
    with _without_echo(number) if hidden else nullcontext():
        sys.stderr.write(prompt)
        sys.stderr.flush()
        data = await _read(number)
    if not data:
        raise EOFError
    text = data.decode(sys.stdin.encoding or "utf-8", errors="replace")
    return text.removesuffix("\n").removesuffix("\r")


async def _read(number: int) -> bytes:
    loop = asyncio.get_running_loop()
    line: asyncio.Future[bytes] = loop.create_future()

    def ready() -> None:
        if line.done():
            return
        try:
            line.set_result(os.read(number, 65536))
        except BlockingIOError:
            pass
        except OSError:  # the terminal is gone
            line.set_result(b"")

    try:
        # A terminal hands over whole lines, so one read is one answer.
        loop.add_reader(number, ready)
    except NotImplementedError:  # Windows
        return await _read_in_thread()
    try:
        return await line
    finally:
        loop.remove_reader(number)


class _Reading:
    """A thread that reads a line. One that nobody waits for any more cannot be stopped, so the next
    who asks gets its line."""

    def __init__(self) -> None:
        self.line: bytes | None = None
        self.waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        # A daemon, since the program may end while nobody types.
        threading.Thread(target=self._read, name="bae typed line", daemon=True).start()

    def _read(self) -> None:
        try:
            self.line = sys.stdin.readline().encode(sys.stdin.encoding or "utf-8", "replace")
        except (OSError, ValueError):
            self.line = b""
        waiter = self.waiter
        if waiter is not None:
            with suppress(RuntimeError):  # its loop is closed
                waiter[0].call_soon_threadsafe(_wake, waiter[1])


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_reading: _Reading | None = None


async def _read_in_thread() -> bytes:
    global _reading
    if _reading is None:
        _reading = _Reading()
    reading = _reading
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    reading.waiter = loop, waiter
    if reading.line is None:
        await waiter
    _reading = None
    return reading.line or b""


@contextmanager
def _without_echo(number: int) -> Generator[None]:
    try:
        import termios
    except ImportError:
        yield
        return
    before = termios.tcgetattr(number)
    quiet = [*before]
    quiet[3] = before[3] & ~termios.ECHO
    try:
        termios.tcsetattr(number, termios.TCSANOW, quiet)
        yield
    finally:
        termios.tcsetattr(number, termios.TCSANOW, before)
        sys.stderr.write("\n")  # the one that was typed was not shown either
        sys.stderr.flush()
