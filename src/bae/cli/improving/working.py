"""Long work of a command, with its progress shown, what bae logs above it, and signals heeded: the
first cancels the work, which closes what it has opened, and a second one ends the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bae.cli.running.carrying import SLOW_STOP, logged_to
from bae.cli.running.early_ends import Stops, guarded, run_loop
from bae.cli.running.signals import Interruption
from bae.cli.running.suspending import Suspension

if TYPE_CHECKING:
    from bae.cli.improving.status import Status

T = TypeVar("T")


@dataclass(slots=True)
class Ended(Generic[T]):
    """How work ended: with a value, with an error, or by a signal, whose exit code it has then.
    Work that was stopped may have a value as well: what was done until then."""

    value: T | None = None
    error: BaseException | None = None
    code: int = 0


def work(
    begin: Callable[[], Coroutine[Any, Any, T]], status: Status, last_words: Callable[[], str]
) -> Ended[T]:
    """Do some work in a loop of its own. `last_words` are said where a second signal ends it."""
    ended: Ended[T] = Ended()
    stops = Stops()
    with Interruption(last_words) as interruption:
        run_loop(_worked(begin, status, ended, stops, interruption), stops.escaped)
    return ended


async def _worked(
    begin: Callable[[], Coroutine[Any, Any, T]],
    status: Status,
    ended: Ended[T],
    stops: Stops,
    interruption: Interruption,
) -> None:
    loop = asyncio.get_running_loop()

    def stopping() -> None:
        loop.call_later(SLOW_STOP, status.say, _STOPPING)

    with ExitStack() as around:
        around.enter_context(status)
        around.enter_context(logged_to(status))
        around.enter_context(Suspension(status))
        task = asyncio.ensure_future(guarded(begin))
        stops.watch(task, None, interruption)
        interruption.cancels(task, stopping)
        try:
            ended.value = await task
            ended.error = stops.because
        except asyncio.CancelledError as cancelled:
            if not interruption.code:
                ended.error = stops.reason(cancelled)
        except BaseException as error:
            ended.error = error
        ended.code = interruption.code


_STOPPING = "stopping: what is open is being closed; Ctrl-C again ends it at once"
