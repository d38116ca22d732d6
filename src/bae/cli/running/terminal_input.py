"""Lines that somebody types while a run goes on. Nothing of the run waits for the keyboard, and
whoever asks can be cancelled: no thread is left that would take the next line. `gates.py` and
`start/questions.py` ask."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, TextIO

from bae.cli import exits
from bae.cli.running.terminal_settings import is_in_front

if TYPE_CHECKING:
    from bae.cli.running.signals import Interruption


def can_ask() -> bool:
    """Whether there is somebody to ask: questions go to stderr, answers come from stdin. A program
    in the background of a shell is stopped when it reads, so there is nobody for it."""
    try:
        return sys.stderr.isatty() and is_in_front()
    except (AttributeError, ValueError, OSError):  # closed, or there is none
        return False


def _screen() -> TextIO:
    """The terminal, past what holds back the output of others while a question is open."""
    return getattr(sys.stderr, "rich_proxied_file", sys.stderr)


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
        _screen().write(prompt)
        _screen().flush()
        _prompts.append(prompt)
        try:
            data = await _whole_line(number)
        finally:
            _prompts.remove(prompt)
    text = data.decode(sys.stdin.encoding or "utf-8", errors="replace")
    return text.removesuffix("\n").removesuffix("\r")


def line_typed(prompt: str, *, hidden: bool = False) -> str:
    """The next line that is typed, while nothing else goes on. Raises EOFError at Ctrl-D; a signal,
    as of Ctrl-C, ends the command with its exit code and leaves the terminal as it was."""
    import typer

    from bae.cli.running.signals import Interruption

    with Interruption() as interruption:
        try:
            return asyncio.run(_until_interrupted(prompt, hidden, interruption))
        except asyncio.CancelledError:
            _screen().write("\n")
            if interruption.code == exits.INTERRUPTED:
                raise KeyboardInterrupt from None
            raise typer.Exit(interruption.code) from None


def show_prompt_again() -> None:
    """Write the prompt of the question that is open, if one is, once more."""
    for prompt in _prompts:
        _screen().write(prompt)
        _screen().flush()


_prompts: list[str] = []
"""Of questions that are open: one at most, as they are asked one at a time."""


async def _until_interrupted(prompt: str, hidden: bool, interruption: Interruption) -> str:
    from bae.cli.running.suspending import Suspension

    with Suspension():
        task = asyncio.ensure_future(typed_line(prompt, hidden=hidden))
        interruption.cancels(task)
        return await task


async def _whole_line(number: int) -> bytes:
    """What is typed up to its end. Ctrl-D in the middle of a line hands over what is there, which
    is no answer yet; another one, or one at the beginning, is an EOFError."""
    line = b""
    while not line.endswith(b"\n"):
        more = await _read(number)
        if not more:
            raise EOFError
        line += more
    return line


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
        # A terminal hands over no more than a line at a time.
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
        _screen().write("\n")  # the one that was typed was not shown either
        _screen().flush()
