"""Ctrl-C, SIGTERM and SIGHUP. The first signal cancels the work and lets it clean up. A second
signal exits at once. Commands run their long work with `work`."""

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
from bae.tasks import explain_cancellation

if TYPE_CHECKING:
    from bae.cli.loading import place_of
    from bae.lm.policies.budget import Budget
else:
    (place_of,) = call_later("bae.cli.loading", "place_of")

T = TypeVar("T")

CAUGHT: Final = ("SIGINT", "SIGTERM", "SIGHUP")
"""The names of the signals that `Signals` handles. Windows has no SIGHUP."""


class Signals:
    """Handles Ctrl-C, SIGTERM and SIGHUP in its block. `code` is 0 until a signal comes, and then
    the signal's exit code. `resume_hint` returns the text to print if a second signal ends the
    process."""

    def __init__(self, resume_hint: Callable[[], str]) -> None:
        self.code = 0
        self._resume_hint = resume_hint
        self._old_handlers: dict[signal.Signals, Any] = {}
        self._stop: Callable[[], object] | None = None
        self._terminal_settings: Any = None

    def __enter__(self) -> Signals:
        with suppress(Exception):  # not on Unix, or without a terminal
            import termios

            self._terminal_settings = termios.tcgetattr(sys.stdin.fileno())
        if threading.current_thread() is threading.main_thread():
            for name in CAUGHT:
                signal_: signal.Signals | None = getattr(signal, name, None)
                # An ignored signal stays ignored, as under nohup or in the background of a script.
                if signal_ is not None and signal.getsignal(signal_) is not signal.SIG_IGN:
                    self._old_handlers[signal_] = signal.signal(signal_, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for signal_, handler in self._old_handlers.items():
            signal.signal(signal_, handler)

    def cancels(self, task: asyncio.Task[Any], heard: Callable[[], object]) -> None:
        """Make the first signal cancel `task` and call `heard`, both in the running loop."""

        def stop() -> None:
            task.cancel()
            heard()

        self.calls(stop)

    def reset(self) -> None:
        """Set `code` to 0 and remove the callback. The next signal is handled as a first signal."""
        self.code, self._stop = 0, None

    def calls(self, stop: Callable[[], object]) -> None:
        """Make the first signal call `stop` in the running loop. If a signal has come already, call
        `stop` now."""
        loop = asyncio.get_running_loop()

        def stop_once() -> None:
            if self._stop is schedule_stop:  # neither `reset` nor a later call replaced it
                stop()

        def schedule_stop() -> None:
            with suppress(RuntimeError):  # the loop is closed: its work has ended
                loop.call_soon_threadsafe(stop_once)

        self._stop = schedule_stop
        if self.code:
            stop()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # A signal handler of the loop would not run while user code blocks the loop.
        if self.code:
            self._end_at_once()
        self.code = 128 + number
        if self._stop is not None:
            self._stop()

    def _end_at_once(self) -> None:
        with suppress(Exception):  # restore the terminal without waiting for a lock
            if self._terminal_settings is not None:
                import termios

                termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._terminal_settings)
            if os.isatty(2) and os.environ.get("TERM") != "dumb":
                os.write(2, b"\x1b[?25h")
        with suppress(OSError):  # write without the locks of the stream
            message = without_controls(f"\nended at once\n{self._resume_hint()}".rstrip())
            os.write(2, message.encode() + b"\n")
        os._exit(self.code)


def run_until_signal(begun: Coroutine[Any, Any, T]) -> T:
    """Run a short coroutine, such as a question. A signal cancels the coroutine and ends the
    command."""
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
"""Seconds after a signal until `STOPPING` is printed, if the work has not ended by then."""
STOPPING: Final = "stopping: closing open resources; Ctrl-C again exits at once"
_GRACE_SECONDS: Final = 0.1
"""Seconds to wait after the time of a budget is over. In this time, an LM call that the budget
stops can report the error."""
_CHECK_SECONDS: Final = 0.5
"""Maximum seconds between checks of a budget. When a run is resumed, its earlier time is added to
the elapsed time, so one check at the end would come too late."""


class Showing(AbstractContextManager[Any], Protocol):
    """A display that is shown during some work."""

    def say(self, text: str) -> None:
        """Print a line above the display."""
        ...


@dataclass(slots=True)
class EndedWork(Generic[T]):
    """How work ended."""

    value: T | None = None
    """The result. Interrupted work may have a partial result."""
    error: BaseException | None = None
    code: int = 0
    """The exit code of the signal that stopped the work, or 0."""


def work(
    begin: Callable[[], Coroutine[Any, Any, T]],
    display: Showing,
    resume_hint: Callable[[], str],
    budget: Budget | None = None,
) -> EndedWork[T]:
    """Run the coroutine of `begin` in a new event loop, inside `display`. The first signal cancels
    the work and lets it close its resources. A second signal prints `resume_hint` and exits at
    once. If the seconds of `budget` are used up, the work is cancelled too."""
    ended: EndedWork[T] = EndedWork()
    reasons: list[BaeError] = []
    worker: list[asyncio.Task[T]] = []

    def stop(error: BaeError) -> None:
        reasons.append(error)
        worker[0].cancel()

    def reason(cancelled: BaseException) -> BaeError | None:
        if signals.code:
            return None
        if not reasons:
            reasons.append(_make_self_ended_error(cancelled))
        return reasons[0]

    async def guard() -> T:
        try:
            return await begin()
        except (SystemExit, KeyboardInterrupt) as error:
            raise _make_self_ended_error(error) from error

    async def watch(budget: Budget, seconds: float) -> None:
        while (seconds_left := seconds - budget.elapsed + _GRACE_SECONDS) > 0:  # noqa: ASYNC110  it polls a clock
            await asyncio.sleep(min(seconds_left, _CHECK_SECONDS))
        stop(budget.spent("seconds"))

    async def supervise() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(_UnawaitedThreads(thread_name_prefix="asyncio"))
        task = loop.create_task(guard())
        worker.append(task)
        explain_cancellation(task, reason)
        signals.cancels(task, lambda: loop.call_later(SLOW_STOP, display.say, STOPPING))
        limit = None if budget is None else budget.seconds
        clock = None if budget is None or limit is None else loop.create_task(watch(budget, limit))
        try:
            ended.value = await task
            ended.error = reasons[0] if reasons else None
        except asyncio.CancelledError as cancelled:
            ended.error = reason(cancelled)
        except BaseException as error:
            ended.error = error
        finally:
            if clock is not None:
                clock.cancel()
        ended.code = signals.code

    with Signals(resume_hint) as signals, display, _log_to(display), asyncio.Runner() as runner:
        main = runner.get_loop().create_task(supervise())
        while not main.done():
            try:
                runner.get_loop().run_until_complete(main)
            except (SystemExit, KeyboardInterrupt) as error:
                # asyncio raises these out of the loop: run the loop again to close resources.
                if main.done() or not worker:
                    raise
                stop(_make_self_ended_error(error))
    return ended


def _make_self_ended_error(error: BaseException) -> BaeError:
    """Return the error of a run whose user code raised an exception that ends a program or a
    task."""
    cause = "it was cancelled"
    fix = "cancel only tasks that this code has started, and raise no CancelledError"
    if isinstance(error, SystemExit | KeyboardInterrupt):
        exited = isinstance(error, SystemExit)
        cause = "sys.exit() was called" if exited else "a KeyboardInterrupt was raised"
        fix = "raise an exception that names the problem, and let bae end the run"
    return BaeError(
        f"the run was ended by its own code: {cause}{place_of(error)}",
        code="bae-run-ended-itself",
        cause=error,
        fix=fix,
    )


class _UnawaitedThreads(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread`. Closing the loop does not wait for busy threads, so bae
    can print the outcome at once."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Release the threads without waiting."""
        super().shutdown(wait=False, cancel_futures=cancel_futures)


class _ToDisplay(logging.Handler):
    """Prints log messages of bae above the display. Printed directly, they would break the
    display."""

    def __init__(self, display: Showing) -> None:
        super().__init__(logging.WARNING)
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message."""
        try:
            # The user knows the option `--lm`, not the argument of the API.
            message = re.sub(r'\blm="([^"]+)"', r"--lm \1", record.getMessage())
            self._display.say(f"note: {message}")
        except Exception:  # logging handlers ignore their own failures
            self.handleError(record)


@contextmanager
def _log_to(display: Showing) -> Generator[None]:
    """Show log messages of bae, unless the program has configured logging."""
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
