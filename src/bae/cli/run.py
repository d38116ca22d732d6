"""`bae run`: a graph from its start to its end, shown while it runs and kept in a journal."""

from __future__ import annotations

import shlex
from typing import Annotated, Any, Final

import typer

from bae.cli.options import (
    AsJSON,
    Input,
    JournalFile,
    LMName,
    Module,
    NoAsk,
    Optimized,
    Quiet,
    Sets,
    examples,
    id_of_new,
)
from bae.cli.running.budgets import BudgetLimits
from bae.cli.sane_values import refuse_both_journals

EPILOG: Final = examples(
    "bae run app.py --lm local",
    "bae run app.py --set 'message=just got up' --set urgent=true",
    'bae run app.py -i \'{"message": "just got up"}\' --json',
    "bae run shop.refunds:graph -i @complaint.json --budget calls=20,cost=0.10",
    "bae run app.py --lm local --optimized learnt",
)

MaxIters = Annotated[
    int, typer.Option("--max-iters", metavar="N", min=0, help="How many nodes may run; 0: any.")
]
NoJournal = Annotated[bool, typer.Option("--no-journal", help="Keep no journal of this run.")]
RunId = Annotated[
    str | None,
    typer.Option(
        "--run-id",
        metavar="ID",
        show_default=False,
        callback=id_of_new,
        help="What to call the run in the journal.",
    ),
]


def run(
    context: typer.Context,
    module: Module = None,
    given: Input = None,
    sets: Sets = None,
    lm: LMName = None,
    optimized: Optimized = None,
    max_iters: MaxIters = 10,
    journal: JournalFile = None,
    no_journal: NoJournal = False,
    run_id: RunId = None,
    budget: BudgetLimits = None,
    as_json: AsJSON = False,
    quiet: Quiet = False,
    no_ask: NoAsk = False,
) -> None:
    """Run a graph, and print the node that it ends at.

    The fields of the start node come from `-i` and `--set`; those that are missing are asked for at
    a terminal. While it runs, each node, dependency and call of the language model is shown on
    stderr, and gates are asked. The result goes to stdout.
    """
    from bae.cli.running.budgets import budget_of

    limits = budget_of(budget)
    refuse_both_journals(context, no_journal=no_journal)
    from bae.cli.improving.taught import lm_taught_by
    from bae.cli.loading import load
    from bae.cli.running.advice import prove
    from bae.cli.running.carrying import RunOptions, carry_out
    from bae.cli.running.commands_to_copy import CommandLine
    from bae.cli.running.which_journal import journal_for
    from bae.cli.running.which_lm import check_lm
    from bae.cli.start.node import start_node

    graph = load(module).graph
    prove(graph, module)
    check_lm(graph, lm, begins=True)
    model = lm_taught_by(graph, lm, optimized, quiet=quiet)
    example = shlex.join(["bae", "run", *([module] if module else [])])
    start: Any = start_node(graph.start, given, sets or (), ask=not no_ask, said=example)
    file = None if no_journal else journal_for(graph, journal, "this run cannot be resumed")
    name = run_id if run_id is not None else _new_id()
    carry_out(
        graph,
        name,
        lambda kept, answer: graph.arun(
            start, model, max_iters, journal=kept, run_id=name, answer=answer
        ),
        CommandLine(module, file, lm, optimized),
        RunOptions(limits, as_json, quiet, not no_ask),
    )


def _new_id() -> str:
    from os import urandom

    return urandom(12).hex()
