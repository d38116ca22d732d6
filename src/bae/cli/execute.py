"""Carrying out a run for the command line: the journal opened and closed, the display around it,
gates asked at the terminal, signals and the budget heeded, and the outcome printed. Other long work
is done with the same care by `work`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from math import inf
from time import perf_counter
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import typer

from bae.cli import exits
from bae.cli.journals import open_to_write
from bae.cli.live import display_for
from bae.cli.loading import place_of
from bae.cli.models import in_words_of_options
from bae.cli.outcome import CommandLine, Outcome, advise, print_outcome
from bae.cli.printing import err, note
from bae.cli.questions import AtTerminal, can_ask
from bae.cli.signals import Signals
from bae.exceptions import BaeError, JournalError
from bae.history import History
from bae.observers import observing
from bae.tasks import explained

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import StoredRun
    from bae.lm.policies.budget import Budget
    from bae.result import GraphResult

T = TypeVar("T")
Going = Callable[[Any, Any], Awaitable["GraphResult[Any]"]]
"""Begins a run, or continues one: given the journal and what answers gates."""

_SLOW_STOP: Final = 1.0
"""Seconds after a signal until it is said that things are still being closed."""
_STOPPING: Final = "stopping: what is open is being closed; Ctrl-C again ends it at once"
_SLACK: Final = 0.1
"""Seconds past a budget, in which an LM call that it cuts off may say so itself."""
_LOOKS: Final = 0.5
"""Seconds between two looks at the clock of a budget: what a run has taken before it was resumed is
charged to it somewhere in between."""
_LOOK: Final = 2.0
"""Seconds for a look at what the journal has of a run that did not come to its end."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a run is to be carried out and shown."""

    budget: Budget | None = None
    as_json: bool = False
    quiet: bool = False
    ask: bool = True
    resumes: bool = False
    """Whether the journal has the run already."""
    gate: str = ""
    """The address of the gate that is answered with it."""
    ended_before: bool = False
    """Whether the run had ended, so that nothing is done."""


def carry_out(
    graph: Graph[Any, Any], run_id: str, going: Going, said: CommandLine, options: RunOptions
) -> None:
    """Carry out a run and print how it came out. Raises what it failed with, or `typer.Exit` where
    the exit code is not 0."""
    display = display_for(err(), quiet=options.quiet)

    def last_words() -> str:
        # Nothing happens in a run before the journal has that it begins.
        history = display.history_of(run_id)
        stored = history is not None and any(s.whole or s.sources for s in history.steps())
        kept = said.journal is not None and (options.resumes or stored)
        return f"resume with: {said.resume(run_id)}" if kept else ""

    found: list[GraphResult[Any]] = []

    async def begin() -> None:
        async with open_to_write(said.journal) if said.journal else nullcontext() as journal:
            with ExitStack() as around:
                # It is never dropped, however long a terminal is held: the outcome is read from it.
                around.enter_context(observing(display.observe, patience=inf))
                if options.budget is not None:
                    around.enter_context(options.budget)
                asks = options.ask and can_ask()
                found.append(await going(journal, AtTerminal(display) if asks else None))

    began = perf_counter()
    ended = work(begin, display, last_words, options.budget)
    outcome = Outcome(graph, run_id, seconds=perf_counter() - began)
    outcome.error, outcome.code = ended.error, ended.code
    history = display.history_of(run_id)
    if history is not None:
        outcome.begun, outcome.usage = True, history.usage
        outcome.at = _place_reached(history)
        steps = [step for step in history.run.trace if step.whole]
        outcome.trace = [step.node for step in steps if step.node is not None]
    # A signal that came while the journal was closed changes nothing about the result.
    outcome.settle(found[0] if found else None)
    if not found and said.journal is not None:
        stored = asyncio.run(_stored(said.journal, run_id))
        outcome.kept = options.resumes or stored is not None
        outcome.answered = stored is not None and options.gate in stored.answers
    if isinstance(outcome.error, BaeError):
        advise(outcome.error, run_id, said, kept=outcome.kept, answered=outcome.answered)
    if options.ended_before and outcome.error is None and not options.quiet:
        note(f"the run {run_id} has ended before, and nothing is done again")
    summary = display.summary(outcome.usage, outcome.seconds)
    print_outcome(outcome, said, summary, as_json=options.as_json, quiet=options.quiet)
    if outcome.error is not None:
        raise outcome.error
    if outcome.code != exits.DONE:
        raise typer.Exit(outcome.code)


async def _stored(file: str, run_id: str) -> StoredRun | None:
    """What a journal has of a run. One that does not say so soon, since another process has locked
    it, has most likely let nothing be written either."""
    try:
        async with asyncio.timeout(_LOOK), open_to_write(file) as journal:
            return await journal.read(run_id)
    except (JournalError, TimeoutError):
        return None


def _place_reached(history: History) -> str:
    """The class of the node that was being made or run at last."""
    newest = history.run.newest
    if newest is None:
        return ""
    before = newest.before
    early = not newest.whole and newest.given is None and newest.fill is None
    if early and before is not None and before.is_open:
        return before.name  # dependencies of the next node have been started early
    chosen = None if newest.choice is None else newest.choice.chosen
    return newest.name if chosen in (None, NoneType) else chosen.__name__


# --- work and signals ---------------------------------------------------------------------------


class Saying(Protocol):
    """A display that lines can be printed beside."""

    def say(self, text: str) -> None:
        """Print a line."""
        ...


class Showing(Saying, AbstractContextManager[Any], Protocol):
    """The same, entered while the work is done."""


@dataclass(slots=True)
class Ended(Generic[T]):
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
) -> Ended[T]:
    """Do some work in a loop of its own, inside `display`. The first signal cancels it, so that it
    closes what it has opened; a second one ends the process at once, with `last_words`. The
    `budget` stops it when its seconds are over."""
    ended: Ended[T] = Ended()
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

    async def watch(budget: Budget, seconds: float) -> None:
        while (left := seconds - budget.elapsed + _SLACK) > 0:  # noqa: ASYNC110  the clock is watched
            await asyncio.sleep(min(left, _LOOKS))
        stop(budget.spent("seconds"))

    async def supervise() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(_UnawaitedThreads())
        task = loop.create_task(_guard(begin))
        worker.append(task)
        explained(task, reason)
        signals.cancels(task, lambda: loop.call_later(_SLOW_STOP, display.say, _STOPPING))
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


async def _guard(begin: Callable[[], Awaitable[T]]) -> T:
    """What work comes to; an error where its own code ends the program."""
    try:
        return await begin()
    except (SystemExit, KeyboardInterrupt) as error:
        raise _ended_itself(error) from error


def _ended_itself(error: BaseException) -> BaeError:
    """The error of a run whose own code raised what ends a program or a task."""
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


class _UnawaitedThreads(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread`. Those that are at work when the loop is closed are not
    waited for there: how the run came out is printed before."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="asyncio")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let go of the threads."""
        super().shutdown(wait=False, cancel_futures=cancel_futures)


class _ToDisplay(logging.Handler):
    """Shows what bae logs above the display, which would be torn by anything else."""

    def __init__(self, display: Saying) -> None:
        super().__init__(logging.WARNING)
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message."""
        try:
            self._display.say(f"note: {in_words_of_options(record.getMessage())}")
        except Exception:  # what every handler of `logging` does with its own failures
            self.handleError(record)


@contextmanager
def _log_to(display: Saying) -> Generator[None]:
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
