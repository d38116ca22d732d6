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
from typing import TYPE_CHECKING, Any

import typer

from bae.cli import exits
from bae.cli.commands_to_copy import Said
from bae.cli.outcomes import Outcome, Seen, tell
from bae.cli.printing import err
from bae.cli.signals import Interruption

if TYPE_CHECKING:
    from rich.console import Console

    from bae.graph import Graph
    from bae.journal.store import Journal
    from bae.lm.policies.budget import Budget
    from bae.result import GraphResult
    from bae.run import Answer

Going = Callable[["Journal | None", "Answer | None"], Awaitable["GraphResult[Any]"]]
"""Begins a run, or goes on with one: given the journal and what answers gates."""
PATIENCE = 60.0
"""Seconds that the display may take for a record before it is dropped."""
SLOW_STOP = 1.0
"""Seconds after Ctrl-C until it is said that things are still being closed."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How a run is to be carried out and shown."""

    budget: Budget | None = None
    as_json: bool = False
    quiet: bool = False
    ask: bool = True
    resumes: bool = False
    """Whether the journal has the run already."""


def carry_out(
    graph: Graph[Any, Any], run_id: str, going: Going, said: Said, manner: Manner
) -> None:
    """Carry out a run and tell how it came out. Raises what it failed with, or `typer.Exit` where
    the exit code is not 0."""

    def last_words() -> str:
        return f"resume with: {said.resume(run_id)}" if said.journal is not None else ""

    with Interruption(last_words) as interruption:
        outcome = asyncio.run(_carried_out(graph, run_id, going, said, manner, interruption))
    _advise(outcome, said, manner.resumes)
    tell(outcome, said, as_json=manner.as_json, quiet=manner.quiet)
    if outcome.error is not None:
        raise outcome.error
    if outcome.code != exits.DONE:
        raise typer.Exit(outcome.code)


async def _carried_out(
    graph: Graph[Any, Any],
    run_id: str,
    going: Going,
    said: Said,
    manner: Manner,
    interruption: Interruption,
) -> Outcome:
    from bae.cli.live import display_for
    from bae.cli.terminal_input import can_ask
    from bae.observers import observing

    console = err()
    display = display_for(console, quiet=manner.quiet)
    seen = Seen(run_id)
    outcome = Outcome(graph, run_id, "failed", seen)
    loop = asyncio.get_running_loop()

    def stopping() -> None:
        loop.call_later(SLOW_STOP, _say_stopping, console)

    began = perf_counter()
    async with AsyncExitStack() as opened:
        journal = await _opened(opened, said.journal)
        with ExitStack() as around:
            around.enter_context(_logged_to(console))
            around.enter_context(display)
            around.enter_context(observing(seen.observe, patience=PATIENCE))
            around.enter_context(observing(display.observe, patience=PATIENCE))
            if manner.budget is not None:
                around.enter_context(manner.budget)
            answer = None
            if manner.ask and can_ask():
                from bae.cli.gates import AtTerminal

                answer = AtTerminal(display)
            # A task of its own, so that a signal cancels the run and not what closes things here.
            task = asyncio.ensure_future(going(journal, answer))
            interruption.cancels(task, stopping)
            try:
                outcome.result = await task
            except asyncio.CancelledError:
                if not interruption.code:
                    raise
                outcome.kind, outcome.code = "cancelled", interruption.code
            except Exception as error:
                outcome.error = error
            outcome.seconds = perf_counter() - began
    if outcome.result is not None:
        _settle(outcome, outcome.result)
    outcome.summary = display.summary(outcome.usage, outcome.seconds)
    return outcome


def _settle(outcome: Outcome, result: GraphResult[Any]) -> None:
    if result.waiting:
        outcome.kind, outcome.code = "waiting", exits.WAITING
    elif result.unfinished:  # somebody else has it, and goes on with it
        outcome.kind = "running"
    else:
        outcome.kind = "ended"


def _advise(outcome: Outcome, said: Said, resumes: bool) -> None:
    from bae.cli.advice import advise
    from bae.exceptions import BaeError

    if isinstance(outcome.error, BaeError):
        kept = said.journal is not None and (resumes or outcome.seen.begun)
        advise(outcome.error, outcome.run_id, said, kept=kept)


async def _opened(stack: AsyncExitStack, file: str | None) -> Journal | None:
    if file is None:
        return None
    from bae.journal.opening import open_to_write

    return await stack.enter_async_context(open_to_write(file))


def _say_stopping(console: Console) -> None:
    from rich.text import Text

    console.print(Text("stopping: what is open is being closed; Ctrl-C again ends it at once"))


class _ToConsole(logging.Handler):
    """Shows what bae logs above the display, which would be torn by anything else."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message."""
        from rich.text import Text

        try:
            self._console.print(Text(f"note: {record.getMessage()}", style="dim"), soft_wrap=True)
        except Exception:
            self.handleError(record)


@contextmanager
def _logged_to(console: Console) -> Generator[None]:
    """Have what bae logs shown, unless the program has set up logging itself."""
    log = logging.getLogger("bae")
    if log.hasHandlers():
        yield
        return
    handler = _ToConsole(console)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
