"""Carrying out a run for the command line: the journal opened and closed, the display around it,
gates asked at the terminal, signals and the budget heeded, and the outcome printed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from math import inf
from time import perf_counter
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

import typer

from bae.cli import exits
from bae.cli.journals import open_to_write
from bae.cli.live import display_for
from bae.cli.outcome import CommandLine, Outcome, advise, print_outcome
from bae.cli.printing import err, note
from bae.cli.questions import AtTerminal, can_ask
from bae.cli.signals import work
from bae.exceptions import BaeError, JournalError
from bae.history import History
from bae.observers import observing

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import StoredRun
    from bae.lm.policies.budget import Budget
    from bae.result import GraphResult

Going = Callable[[Any, Any], Awaitable["GraphResult[Any]"]]
"""Begins a run, or continues one: given the journal and what answers gates."""

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
