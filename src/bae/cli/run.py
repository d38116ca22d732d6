"""`bae run`: run a graph with a display and a journal. The commands that continue a run use
`carry_out` too."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bae.cli import exits
from bae.cli.journals import journal_for, open_to_write
from bae.cli.learned import lm_with_learned
from bae.cli.live import display_for
from bae.cli.lm import check_lm
from bae.cli.loading import load_proved
from bae.cli.options import (
    AsJSON,
    BudgetLimits,
    InputOption,
    JournalFile,
    LMName,
    MaxIters,
    Metadata,
    Module,
    NewId,
    NoAsk,
    Optimized,
    Quiet,
    Sets,
    budget_of,
    examples,
    flag,
    metadata_of,
    option,
    refuse_both_journals,
)
from bae.cli.outcome import CommandLine, RunOutcome, advise, print_outcome
from bae.cli.printing import err, note
from bae.cli.questions import AtTerminal, can_ask
from bae.cli.signals import work
from bae.cli.start import start_node
from bae.exceptions import BaeError, JournalError
from bae.graph_plan import plan_of_graph
from bae.observers import observing

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.stored_runs import StoredRun
    from bae.lm.policies.budget import Budget
    from bae.result import GraphResult

EPILOG: Final = examples(
    "bae run app.py --lm local",
    "bae run app.py --set 'message=just got up' --set urgent=true",
    'bae run app.py -i \'{"message": "just got up"}\' --json',
    "bae run shop.refunds:graph -i @complaint.json --budget calls=20,cost=0.10",
    "bae run app.py --lm local --optimized learned",
    "bae run chat.py --set 'text=Who am I?' --thread ana-42",
)


def run(
    context: typer.Context,
    module: Module = None,
    given: InputOption = None,
    sets: Sets = None,
    lm: LMName = None,
    optimized: Optimized = None,
    max_iters: MaxIters = 10,
    journal: JournalFile = None,
    no_journal: Annotated[bool, flag("--no-journal", "Do not store this run.")] = False,
    run_id: NewId = None,
    thread: Annotated[
        str | None,
        option("--thread ID", "The conversation in the journal that this run continues."),
    ] = None,
    metadata: Metadata = None,
    budget: BudgetLimits = None,
    as_json: AsJSON = False,
    quiet: Quiet = False,
    no_ask: NoAsk = False,
) -> None:
    """Run a graph, and print its last node.

    The fields of the start node come from `-i` and `--set`. At a terminal, the command asks for
    missing fields, and for answers to gates. While the graph runs, stderr shows nodes, dependencies
    and LLM calls. The result goes to stdout."""
    limits, about = budget_of(budget), metadata_of(metadata)
    refuse_both_journals(context, no_journal=no_journal)
    if no_journal and thread is not None:
        raise typer.BadParameter("a conversation needs a journal", param_hint="--no-journal")
    graph = load_proved(module)
    check_lm(graph, lm, begins=True)
    model = lm_with_learned(graph, lm, optimized, quiet=quiet)
    example = shlex.join(["bae", "run", *([module] if module else [])])
    start: Any = start_node(graph.start, given, sets or (), ask=not no_ask, command=example)
    file = None if no_journal else journal_for(graph, journal, "this run cannot be resumed")
    name = run_id if run_id is not None else os.urandom(12).hex()

    def start_run(run_journal: Any, answer: Any) -> Any:
        return graph.arun(
            start,
            model,
            max_iters,
            journal=run_journal,
            run_id=name,
            answer=answer,
            thread=thread,
            metadata=about or None,
        )

    options = RunCommandOptions(limits, as_json, quiet, not no_ask)
    carry_out(graph, name, start_run, CommandLine(module, file, lm, optimized), options)


# --- all runs -------------------------------------------------------------------------------------

RunStarter = Callable[[Any, Any], Awaitable["GraphResult[Any]"]]
"""A function that starts or continues a run. Its arguments are the journal, or None, and the
`answer=` function, or None."""

_READ_SECONDS: Final = 2.0
"""Maximum seconds for reading an unfinished run from the journal."""


@dataclass(frozen=True, slots=True)
class RunCommandOptions:
    """Options of a command that starts or continues a run."""

    budget: Budget | None = None
    as_json: bool = False
    quiet: bool = False
    ask: bool = True
    resumes: bool = False
    """Whether the command continues a run that is in the journal."""
    gate: str = ""
    """The address of the gate that the command answers."""
    ended_before: bool = False
    """Whether the run had ended before the command. Then nothing runs."""


def carry_out(
    graph: Graph[Any, Any],
    run_id: str,
    start_run: RunStarter,
    command_line: CommandLine,
    options: RunCommandOptions,
) -> None:
    """Start or continue a run with `start_run`: open the journal, show the display, ask for answers
    to gates at the terminal, and print the outcome. Raise the run's error, or `typer.Exit` with a
    nonzero exit code."""
    display = display_for(err(), quiet=options.quiet)
    results: list[GraphResult[Any]] = []

    def resume_hint() -> str:
        # The journal stores a run before its first value: a run with a value can be resumed.
        history = display.history_of(run_id)
        stored = history is not None and any(s.is_complete or s.sources for s in history.steps())
        can_resume = command_line.journal is not None and (options.resumes or stored)
        return f"resume with: {command_line.resume(run_id)}" if can_resume else ""

    async def begin() -> None:
        async with (
            open_to_write(command_line.journal)
            if command_line.journal
            else nullcontext() as journal
        ):
            with ExitStack() as stack:
                # The outcome is read from the display, so bae must not drop a display that blocks.
                stack.enter_context(observing(display.observe, patience=inf))
                if options.budget is not None:
                    stack.enter_context(options.budget)
                asks = options.ask and can_ask()
                results.append(await start_run(journal, AtTerminal(display) if asks else None))

    began = perf_counter()
    ended_work = work(begin, display, resume_hint, options.budget)
    outcome = RunOutcome(graph.name, run_id, code=ended_work.code, seconds=perf_counter() - began)
    outcome.copies = plan_of_graph(graph).hidden
    error = outcome.error = ended_work.error
    history = display.history_of(run_id)
    if history is not None:
        outcome.take_history(history)
    answered = False
    if results:  # a signal during closing does not change the result
        outcome.take_result(results[0])
    else:
        if ended_work.code and error is None:
            outcome.kind = "cancelled"
        elif getattr(error, "code", None) == "bae-run-owned":
            outcome.kind = "running"
        if command_line.journal is not None:
            stored = asyncio.run(_read_stored(command_line.journal, run_id))
            outcome.kept = options.resumes or stored is not None
            answered = stored is not None and options.gate in stored.answers
    if isinstance(error, BaeError):
        advise(error, run_id, command_line, kept=outcome.kept, answered=answered)
    if options.ended_before and error is None and not options.quiet:
        note(f"the run {run_id} has ended before, and nothing is done again")
    summary = display.summary(outcome.usage, outcome.seconds)
    print_outcome(outcome, command_line, summary, as_json=options.as_json, quiet=options.quiet)
    if error is not None:
        raise error
    if outcome.code != exits.DONE:
        raise typer.Exit(outcome.code)


async def _read_stored(file: str, run_id: str) -> StoredRun | None:
    """Return a run from a journal, or None if the journal does not have the run. If the file stays
    locked, return None too: assume that nothing was written."""
    try:
        async with asyncio.timeout(_READ_SECONDS), open_to_write(file) as journal:
            return await journal.read(run_id)
    except (JournalError, TimeoutError):
        return None
