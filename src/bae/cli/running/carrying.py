"""Carrying out a run for the command line: the journal opened and closed, the display around it,
gates asked at the terminal, Ctrl-C and the budget heeded, and the outcome told. `run.py` begins
runs with it, `resuming.py` goes on with them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol

import typer

from bae.cli import exits
from bae.cli.printing import err, note
from bae.cli.running.commands_to_copy import CommandLine
from bae.cli.running.early_ends import Stops, guarded, run_loop
from bae.cli.running.outcomes import Outcome, tell
from bae.cli.running.seen import Seen
from bae.cli.running.signals import Interruption

if TYPE_CHECKING:
    from rich.console import Console

    from bae.graph import Graph
    from bae.journal.store import Journal, StoredRun
    from bae.lm.policies.budget import Budget
    from bae.result import GraphResult
    from bae.run import Answer

Going = Callable[["Journal | None", "Answer | None"], Awaitable["GraphResult[Any]"]]
"""Begins a run, or goes on with one: given the journal and what answers gates."""
PATIENCE = 60.0
"""Seconds that the display may take for a record before it is dropped."""
SLOW_STOP = 1.0
"""Seconds after Ctrl-C until it is said that things are still being closed."""

LOOK: Final = 2.0
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
    """Carry out a run and tell how it came out. Raises what it failed with, or `typer.Exit` where
    the exit code is not 0."""

    seen = Seen(run_id)
    outcome = Outcome(graph, run_id, "failed", seen)
    stops = Stops()

    def last_words() -> str:
        kept = said.journal is not None and (options.resumes or seen.stored)
        return f"resume with: {said.resume(run_id)}" if kept else ""

    with Interruption(last_words) as interruption:
        run_loop(_carried_out(outcome, going, said, options, interruption, stops), stops.escaped)
    _advise(outcome, said)
    if options.ended_before and outcome.error is None and not options.quiet:
        note(f"the run {run_id} has ended before, and nothing is done again")
    tell(outcome, said, as_json=options.as_json, quiet=options.quiet)
    if outcome.error is not None:
        raise outcome.error
    if outcome.code != exits.DONE:
        raise typer.Exit(outcome.code)


async def _carried_out(
    outcome: Outcome,
    going: Going,
    said: CommandLine,
    options: RunOptions,
    interruption: Interruption,
    stops: Stops,
) -> None:
    from bae.cli.live import display_for
    from bae.cli.running.suspending import Suspension
    from bae.cli.running.terminal_input import can_ask
    from bae.observers import observing

    console = err()
    display = display_for(console, quiet=options.quiet)
    loop = asyncio.get_running_loop()

    def stopping() -> None:
        loop.call_later(SLOW_STOP, _say_stopping, console)

    began = perf_counter()
    async with AsyncExitStack() as opened:
        journal = await _opened(opened, said.journal)
        with ExitStack() as around:
            around.enter_context(logged_to(display))
            around.enter_context(display)
            around.enter_context(Suspension(display))
            around.enter_context(observing(outcome.seen.observe, patience=PATIENCE))
            around.enter_context(observing(display.observe, patience=PATIENCE))
            if options.budget is not None:
                around.enter_context(options.budget)
            answer = None
            if options.ask and can_ask():
                from bae.cli.running.gates import AtTerminal

                answer = AtTerminal(display)
            # A task of its own, so that a signal cancels the run and not what closes things here.
            task = asyncio.ensure_future(guarded(lambda: going(journal, answer)))
            stops.watch(task, options.budget, interruption)
            interruption.cancels(task, stopping)
            try:
                outcome.result = await task
            except asyncio.CancelledError as cancelled:
                if interruption.code:
                    outcome.kind, outcome.code = "cancelled", interruption.code
                else:
                    outcome.error = stops.reason(cancelled)
            except BaseException as error:
                outcome.error = error
                if getattr(error, "code", None) == "bae-run-owned":
                    outcome.kind = "running"
            outcome.seconds = perf_counter() - began
        if outcome.result is None:
            stored = await _stored(journal, outcome.run_id)
            outcome.kept = options.resumes or stored is not None
            outcome.answered = stored is not None and options.gate in stored.answers
    if outcome.result is not None:
        _settle(outcome, outcome.result)
    outcome.summary = display.summary(outcome.usage, outcome.seconds)


def _settle(outcome: Outcome, result: GraphResult[Any]) -> None:
    if result.waiting:
        outcome.kind, outcome.code = "waiting", exits.WAITING
    elif result.unfinished:  # somebody else has it, and goes on with it
        outcome.kind, outcome.code = "running", exits.ELSEWHERE
    else:
        outcome.kind = "ended"


def _advise(outcome: Outcome, said: CommandLine) -> None:
    from bae.cli.running.advice import advise
    from bae.exceptions import BaeError

    if isinstance(outcome.error, BaeError):
        advise(outcome.error, outcome.run_id, said, kept=outcome.kept, answered=outcome.answered)


async def _opened(stack: AsyncExitStack, file: str | None) -> Journal | None:
    if file is None:
        return None
    from bae.cli.journals import open_to_write

    return await stack.enter_async_context(open_to_write(file))


async def _stored(journal: Journal | None, run_id: str) -> StoredRun | None:
    """What a journal has of a run. One that does not say so soon, since somebody else has locked
    it, has most likely let nothing be written either."""
    from bae.exceptions import JournalError

    if journal is None:
        return None
    try:
        async with asyncio.timeout(LOOK):
            return await journal.read(run_id)
    except (JournalError, TimeoutError):
        return None


def _say_stopping(console: Console) -> None:
    from rich.text import Text

    console.print(Text("stopping: what is open is being closed; Ctrl-C again ends it at once"))


class Saying(Protocol):
    """A display that lines can be printed beside."""

    def say(self, text: str) -> None:
        """Print a line."""
        ...


class _ToDisplay(logging.Handler):
    """Shows what bae logs above the display, which would be torn by anything else."""

    def __init__(self, display: Saying) -> None:
        super().__init__(logging.WARNING)
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message."""
        from bae.cli.running.advice import in_words_of_options

        try:
            self._display.say(f"note: {in_words_of_options(record.getMessage())}")
        except Exception:  # what every handler of `logging` does with its own failures
            self.handleError(record)


@contextmanager
def logged_to(display: Saying) -> Generator[None]:
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
