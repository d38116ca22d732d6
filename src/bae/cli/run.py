"""`bae run`: a graph from its start to its end, shown while it runs and kept in a journal."""

from __future__ import annotations

import os
import shlex
from typing import Annotated, Any, Final

import typer

from bae.cli.execute import RunOptions, carry_out
from bae.cli.journals import journal_for
from bae.cli.learned import lm_with_learned
from bae.cli.lm import check_lm, prove
from bae.cli.loading import load
from bae.cli.options import (
    AsJSON,
    BudgetLimits,
    Input,
    JournalFile,
    LMName,
    MaxIters,
    Module,
    NoAsk,
    Optimized,
    Quiet,
    Sets,
    budget_of,
    examples,
    id_of_new,
    refuse_both_journals,
)
from bae.cli.outcome import CommandLine
from bae.cli.start import start_node

EPILOG: Final = examples(
    "bae run app.py --lm local",
    "bae run app.py --set 'message=just got up' --set urgent=true",
    'bae run app.py -i \'{"message": "just got up"}\' --json',
    "bae run shop.refunds:graph -i @complaint.json --budget calls=20,cost=0.10",
    "bae run app.py --lm local --optimized learned",
)


def run(
    context: typer.Context,
    module: Module = None,
    given: Input = None,
    sets: Sets = None,
    lm: LMName = None,
    optimized: Optimized = None,
    max_iters: MaxIters = 10,
    journal: JournalFile = None,
    no_journal: Annotated[
        bool, typer.Option("--no-journal", help="Do not store this run.")
    ] = False,
    run_id: Annotated[
        str | None,
        typer.Option(
            "--run-id",
            metavar="ID",
            show_default=False,
            callback=id_of_new,
            help="The id of the run in the journal.",
        ),
    ] = None,
    budget: BudgetLimits = None,
    as_json: AsJSON = False,
    quiet: Quiet = False,
    no_ask: NoAsk = False,
) -> None:
    """Run a graph, and print its last node.

    The fields of the start node come from `-i` and `--set`; missing ones are asked for at a
    terminal. Nodes, dependencies and LLM calls are shown on stderr while it runs, and gates are
    asked. The result goes to stdout.
    """
    limits = budget_of(budget)
    refuse_both_journals(context, no_journal=no_journal)
    graph = load(module).graph
    prove(graph, module)
    check_lm(graph, lm, begins=True)
    model = lm_with_learned(graph, lm, optimized, quiet=quiet)
    example = shlex.join(["bae", "run", *([module] if module else [])])
    start: Any = start_node(graph.start, given, sets or (), ask=not no_ask, said=example)
    file = None if no_journal else journal_for(graph, journal, "this run cannot be resumed")
    name = run_id if run_id is not None else os.urandom(12).hex()

    def go(kept: Any, answer: Any) -> Any:
        return graph.arun(start, model, max_iters, journal=kept, run_id=name, answer=answer)

    options = RunOptions(limits, as_json, quiet, not no_ask)
    carry_out(graph, name, go, CommandLine(module, file, lm, optimized), options)
