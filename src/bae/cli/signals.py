"""Ctrl-C, SIGTERM and SIGHUP: the first cancels what is done, so that everything it opened is
closed and the journal says so; a second one ends the process at once. `work` does long work so."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import typer

from bae.cli import exits
from bae.cli.later import call_later
from bae.cli.wording import without_controls
from bae.exceptions import BaeError
from bae.tasks import explained

if TYPE_CHECKING:
    from bae.cli.loading import place_of
    from bae.lm.policies.budget import Budget
else:
    (place_of,) = call_later("bae.cli.loading", "place_of")

T = TypeVar("T")

CAUGHT: Final = ("SIGINT", "SIGTERM", "SIGHUP")
"""Not every system has all of them."""


class Signals:
    """Catches Ctrl-C, SIGTERM and SIGHUP in its block. `code` is the exit code that one of them
    asks for, and 0 while there was none."""

    def __init__(self, last_words: Callable[[], str]) -> None:
        self.code = 0
        self._last_words = last_words
        self._before: dict[signal.Signals, Any] = {}
        self._stop: Callable[[], object] | None = None
        self._settings: Any = None

    def __enter__(self) -> Signals:
        with suppress(Exception):  # no Unix, or no terminal
            import termios

            self._settings = termios.tcgetattr(sys.stdin.fileno())
        if threading.current_thread() is threading.main_thread():
            for name in CAUGHT:
                each: signal.Signals | None = getattr(signal, name, None)
                # One that is ignored, as by nohup or in the background of a script, stays so.
                if each is not None and signal.getsignal(each) is not signal.SIG_IGN:
                    self._before[each] = signal.signal(each, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def cancels(self, task: asyncio.Task[Any], heard: Callable[[], object]) -> None:
        """Have the first signal cancel `task`, and call `heard`; in the loop of the task."""

        def stop() -> None:
            task.cancel()
            heard()

        self.calls(stop)

    def reset(self) -> None:
        """Forget a signal that was heeded: the next one is the first again."""
        self.code, self._stop = 0, None

    def calls(self, stop: Callable[[], object]) -> None:
        """Have the first signal call `stop` in the running loop."""
        loop = asyncio.get_running_loop()

        def stop_once() -> None:
            if self._stop is soon:  # else it was forgotten, or is for another one
                stop()

        def soon() -> None:
            with suppress(RuntimeError):  # the loop is closed: everything is
                loop.call_soon_threadsafe(stop_once)

        self._stop = soon
        if self.code:
            stop()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # A plain handler and not one of the loop's: it works while the user's code blocks the loop.
        if self.code:
            self._end_at_once()
        self.code = 128 + number
        if self._stop is not None:
            self._stop()

    def _end_at_once(self) -> None:
        with suppress(Exception):  # as it was, with its cursor; nothing here waits for a lock
            if self._settings is not None:
                import termios

                termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._settings)
            if os.isatty(2) and os.environ.get("TERM") != "dumb":
                os.write(2, b"\x1b[?25h")
        with suppress(OSError):  # past the locks of the stream
            message = without_controls(f"\nended at once\n{self._last_words()}".rstrip())
            os.write(2, message.encode() + b"\n")
        os._exit(self.code)


def run_until_signal(begun: Coroutine[Any, Any, T]) -> T:
    """What something short returns, as a question. A signal cancels it and ends the command."""
    with Signals(str) as signals:

        async def run() -> T:
            task = asyncio.ensure_future(begun)
            signals.cancels(task, str)
            return await task

        try:
            return asyncio.run(run())
        except asyncio.CancelledError:
            if signals.code == exits.INTERRUPTED:
                raise KeyboardInterrupt from None
            raise typer.Exit(signals.code) from None


# --- work ----------------------------------------------------------------------------------------

SLOW_STOP: Final = 1.0
"""Seconds after a signal until it is said that things are still being closed."""
STOPPING: Final = "stopping: what is open is being closed; Ctrl-C again ends it at once"
_SLACK: Final = 0.1
"""Seconds past a budget, in which an LM call that it cuts off may say so itself."""
_LOOKS: Final = 0.5
"""Seconds between two looks at the clock of a budget: what a run has taken before it was resumed is
charged to it somewhere in between."""


class Showing(AbstractContextManager[Any], Protocol):
    """A display, entered while the work is done, that lines can be printed beside."""

    def say(self, text: str) -> None:
        """Print a line."""
        ...


@dataclass(slots=True)
class EndedWork(Generic[T]):
    """How work ended: with a value, with an error, or by a signal, whose exit code it has then.
    Work that was stopped may have a value as well: what was done until then."""

    value: T | None = None
    error: BaseException | None = None
    code: int = 0


def work(
    begin: Callable[[], Coroutine[Any, Any, T]],
    display: Showing,
    last_words: Callable[[], str],
    budget: Budget | None = None,
) -> EndedWork[T]:
    """Do some work in a loop of its own, inside `display`. The first signal cancels it, so that it
    closes what it has opened; a second one ends the process at once, with `last_words`. The
    `budget` stops it when its seconds are over."""
    ended: EndedWork[T] = EndedWork()
    because: list[BaeError] = []
    worker: list[asyncio.Task[T]] = []

    def stop(error: BaeError) -> None:
        because.append(error)
        worker[0].cancel()

    def reason(cancelled: BaseException) -> BaeError | None:
        if signals.code:
            return None
        if not because:
            because.append(_ended_itself(cancelled))
        return because[0]

    async def guard() -> T:
        try:
            return await begin()
        except (SystemExit, KeyboardInterrupt) as error:
            raise _ended_itself(error) from error

    async def watch(budget: Budget, seconds: float) -> None:
        while (left := seconds - budget.elapsed + _SLACK) > 0:  # noqa: ASYNC110  the clock is watched
            await asyncio.sleep(min(left, _LOOKS))
        stop(budget.spent("seconds"))

    async def supervise() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(_UnawaitedThreads(thread_name_prefix="asyncio"))
        task = loop.create_task(guard())
        worker.append(task)
        explained(task, reason)
        signals.cancels(task, lambda: loop.call_later(SLOW_STOP, display.say, STOPPING))
        limit = None if budget is None else budget.seconds
        clock = None if budget is None or limit is None else loop.create_task(watch(budget, limit))
        try:
            ended.value = await task
            ended.error = because[0] if because else None
        except asyncio.CancelledError as cancelled:
            ended.error = reason(cancelled)
        except BaseException as error:
            ended.error = error
        finally:
            if clock is not None:
                clock.cancel()
        ended.code = signals.code

    with Signals(last_words) as signals, display, _log_to(display), asyncio.Runner() as runner:
        main = runner.get_loop().create_task(supervise())
        while not main.done():
            try:
                runner.get_loop().run_until_complete(main)
            except (SystemExit, KeyboardInterrupt) as error:
                # asyncio lets these out of a task: the loop goes on, to close what is open.
                if main.done() or not worker:
                    raise
                stop(_ended_itself(error))
    return ended


def _ended_itself(error: BaseException) -> BaeError:
    """The error of a run whose own code raised what ends a program or a task."""
    what = "it was cancelled"
    fix = "cancel only tasks that this code has started, and raise no CancelledError"
    if isinstance(error, SystemExit | KeyboardInterrupt):
        exited = isinstance(error, SystemExit)
        what = "sys.exit() was called" if exited else "a KeyboardInterrupt was raised"
        fix = "raise an exception that says what is wrong, and leave it to bae to end the run"
    return BaeError(
        f"the run was ended by its own code: {what}{place_of(error)}",
        code="bae-run-ended-itself",
        cause=error,
        fix=fix,
    )


class _UnawaitedThreads(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread`. Those that are at work when the loop is closed are not
    waited for there: how the run came out is printed before."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let go of the threads."""
        super().shutdown(wait=False, cancel_futures=cancel_futures)


class _ToDisplay(logging.Handler):
    """Shows what bae logs above the display, which would be torn by anything else."""

    def __init__(self, display: Showing) -> None:
        super().__init__(logging.WARNING)
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message."""
        try:
            # What a program is told to write, as it is typed at a terminal.
            message = re.sub(r'\blm="([^"]+)"', r"--lm \1", record.getMessage())
            self._display.say(f"note: {message}")
        except Exception:  # what every handler of `logging` does with its own failures
            self.handleError(record)


@contextmanager
def _log_to(display: Showing) -> Generator[None]:
    """Have what bae logs shown, unless the program has set up logging itself."""
    log = logging.getLogger("bae")
    if log.hasHandlers():
        yield
        return
    handler = _ToDisplay(display)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
