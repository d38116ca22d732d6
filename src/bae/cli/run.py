"""`bae run`: a graph from its start to its end, shown while it runs and kept in a journal."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bae.cli.help import examples
from bae.cli.options import (
    AsJSON,
    JournalFile,
    LMName,
    Module,
    NoAsk,
    Quiet,
    Sets,
    id_of_new,
)
from bae.cli.running.budgets import BudgetLimits

if TYPE_CHECKING:
    from bae.graph import Graph

EPILOG: Final = examples(
    "bae run app.py --lm local",
    "bae run app.py --set 'message=just got up' --set urgent=true",
    'bae run app.py -i \'{"message": "just got up"}\' --json',
    "bae run shop.refunds:graph -i @complaint.json --budget calls=20,cost=0.10",
)

Input = Annotated[
    str | None,
    typer.Option(
        "--input",
        "-i",
        metavar="JSON",
        show_default=False,
        help="The fields of the start node as a JSON object, `@FILE` for a file of it, `-` for "
        "stdin. Where there is one field to give, its value alone will do.",
    ),
]
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
    module: Module = None,
    given: Input = None,
    sets: Sets = None,
    lm: LMName = None,
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
    from bae.cli.loading import load
    from bae.cli.running.advice import prove
    from bae.cli.running.carrying import RunOptions, carry_out
    from bae.cli.running.commands_to_copy import CommandLine
    from bae.cli.running.which_lm import check_lm
    from bae.cli.start.node import start_node

    graph = load(module).graph
    prove(graph, module)
    check_lm(graph, lm, begins=True)
    example = shlex.join(["bae", "run", *([module] if module else [])])
    start: Any = start_node(graph.start, given, sets or (), ask=not no_ask, said=example)
    file = None if no_journal else _journal_for(graph, journal)
    name = run_id if run_id is not None else _new_id()
    carry_out(
        graph,
        name,
        lambda kept, answer: graph.arun(
            start, lm, max_iters, journal=kept, run_id=name, answer=answer
        ),
        CommandLine(module, file, lm),
        RunOptions(limits, as_json, quiet, not no_ask),
    )


def _new_id() -> str:
    from os import urandom

    return urandom(12).hex()


def _journal_for(graph: Graph[Any, Any], given: str | None) -> str | None:
    """The file of the journal to keep. The one that nobody asked for is done without, with a note,
    where it cannot be had."""
    from bae.cli.journals import file_to_write
    from bae.cli.printing import note

    if given is not None:
        return file_to_write(given)
    errors = [p for p in graph.validate(journal=True) if p.severity == "error"]
    without = set(graph.validate())
    why = [f"{p.place}: {p.message}" for p in errors if p not in without]
    file = ""
    if not why:
        try:
            file = file_to_write(None)
            with open(file, "ab"):  # SQLite takes an empty file for a new one
                pass
        except OSError as error:
            why = [f"{error.filename or file} cannot be written: {error.strerror}"]
    if not why:
        return file
    note(f"no journal is kept, so this run cannot be resumed: {why[0]}")
    return None
