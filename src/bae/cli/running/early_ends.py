"""Runs that end before their time, though nobody has pressed Ctrl-C: by sys.exit() in their own
code, a KeyboardInterrupt or a CancelledError raised there, or since the seconds of --budget are
over. That is an error of the run, which is told as any other, and not the end of the command.
`carrying.py` has its loop from here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bae.exceptions import BaeError
from bae.tasks import explained

if TYPE_CHECKING:
    from bae.cli.running.signals import Interruption
    from bae.lm.policies.budget import Budget

T = TypeVar("T")

SLACK: Final = 0.1
"""Seconds past a budget, in which an LM call that it cuts off may say so itself."""
LOOKS: Final = 0.5
"""Seconds between two looks at the clock of a budget: what a run has taken before it was resumed is
charged to it somewhere in between."""


def run_loop(main: Coroutine[Any, Any, T], escaped: Callable[[BaseException], object]) -> T:
    """Run `main` to its end, as `asyncio.run` does. SystemExit and KeyboardInterrupt that a task
    raises, which asyncio lets out of the loop, are handed to `escaped`, and the loop goes on: what
    is open is still to be closed."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(main)
        while True:
            try:
                return loop.run_until_complete(task)
            except (SystemExit, KeyboardInterrupt) as error:
                if task.done():
                    raise
                escaped(error)


async def guarded(begin: Callable[[], Awaitable[T]]) -> T:
    """What a run comes to; an error where its code ends it. It is begun here, so that one that is
    cancelled before its first step is never made."""
    try:
        return await begin()
    except (SystemExit, KeyboardInterrupt) as error:
        raise ended_itself(error) from error


class Stops:
    """Stops a run, and knows `because` of what."""

    def __init__(self) -> None:
        self.because: BaeError | None = None
        self._task: asyncio.Task[Any] | None = None

    def watch(
        self, task: asyncio.Task[Any], budget: Budget | None, interruption: Interruption
    ) -> None:
        """Stop this task, where it comes to that. The seconds of the budget are watched. Unless a
        signal has cancelled it, that its run ends is a failure, for the journal as well."""
        self._task = task
        explained(task, lambda error: None if interruption.code else self.reason(error))
        if budget is not None and budget.seconds is not None:
            self._look(budget)

    def escaped(self, error: BaseException) -> None:
        """Stop the run for what some task of it has raised."""
        self._stop(ended_itself(error))

    def reason(self, cancelled: asyncio.CancelledError) -> BaeError:
        """The error of a run that was cancelled and by no signal."""
        self.because = self.because or ended_itself(cancelled)
        return self.because

    def _look(self, budget: Budget) -> None:
        if self._task is None or self._task.done():
            return
        left = (budget.seconds or 0.0) - budget.elapsed + SLACK
        if left <= 0:
            self._stop(budget.spent("seconds"))
        else:
            asyncio.get_running_loop().call_later(min(left, LOOKS), self._look, budget)

    def _stop(self, because: BaeError) -> None:
        self.because = self.because or because
        if self._task is not None:
            self._task.cancel()


def ended_itself(error: BaseException) -> BaeError:
    """The error of a run whose own code raised what ends a program or a task."""
    from bae.cli.loading import place_of

    fix = "raise an exception that says what is wrong, and leave it to bae to end the run"
    if isinstance(error, SystemExit):
        what = "sys.exit() was called"
    elif isinstance(error, KeyboardInterrupt):
        what = "a KeyboardInterrupt was raised"
    else:
        what = "it was cancelled"
        fix = "cancel only tasks that this code has started, and raise no CancelledError"
    return BaeError(
        f"the run was ended by its own code: {what}{place_of(error)}",
        code="bae-run-ended-itself",
        cause=error,
        fix=fix,
    )
