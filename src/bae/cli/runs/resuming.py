"""`bae runs resume`, `fork` and `answer`: runs of a journal that go on.
`going_on.py` goes on with them, as `bae run` begins them."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from bae.cli.completing import open_gates, run_ids
from bae.cli.options import (
    AsJSON,
    JournalFile,
    LMName,
    NoAsk,
    OfModule,
    Optimized,
    Quiet,
    Secrets,
    Sets,
    examples,
    id_of_new,
)
from bae.cli.running.budgets import BudgetLimits

RESUME_EPILOG: Final = examples(
    "bae runs resume -m app.py",
    "bae runs resume 3f2a -m app.py --budget calls=40",
)
FORK_EPILOG: Final = examples(
    "bae runs fork 3f2a --at 1 --set mood=eager -m app.py",
    "bae runs fork last --at 0 --run-id second-try --no-run -m app.py",
)
ANSWER_EPILOG: Final = examples(
    "bae runs answer 3f2a Refund.approved yes -m app.py",
    "bae runs answer last yes -m app.py  # one gate is open",
    "bae runs answer -m app.py  # asks you",
)

OfRun = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        show_default=False,
        autocompletion=run_ids,
        help="The run: its id, or how that begins; `last`, or left out, is the newest.",
    ),
]
TheRun = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        show_default=False,
        autocompletion=run_ids,
        help="The run: its id, or how that begins; `last` is the newest.",
    ),
]
MoreIters = Annotated[
    int | None,
    typer.Option(
        "--max-iters",
        metavar="N",
        min=0,
        show_default=False,
        help="How many nodes may run, from the start of the run; 0: any. Left out: as it was.",
    ),
]
NoRun = Annotated[bool, typer.Option("--no-run", help="Do not go on with the run.")]


def resume(
    run: OfRun = None,
    module: OfModule = None,
    journal: JournalFile = None,
    sets: Secrets = None,
    lm: LMName = None,
    optimized: Optimized = None,
    max_iters: MoreIters = None,
    budget: BudgetLimits = None,
    as_json: AsJSON = False,
    quiet: Quiet = False,
    no_ask: NoAsk = False,
) -> None:
    """Go on with a run where it was: after Ctrl-C, a crash or a failure, or at a gate.

    What is recorded is not done again. What the run has spent counts for `--budget`.
    """
    import asyncio

    from bae.cli.running.budgets import budget_of

    limits = budget_of(budget)
    from bae.cli.improving.taught import check_optimized
    from bae.cli.loading import load
    from bae.cli.running.carrying import RunOptions
    from bae.cli.running.which_lm import check_lm
    from bae.cli.runs.going_on import go_on, said_as
    from bae.cli.runs.parked import read_meant

    options = RunOptions(limits, as_json, quiet, not no_ask, resumes=True)
    graph = load(module, "-m").graph
    check_lm(graph, lm)
    check_optimized(graph, optimized)
    stored = asyncio.run(read_meant(journal, run))
    said = said_as(module, journal, lm, optimized)
    go_on(graph, stored, said, sets or (), max_iters, options)


def fork(
    run: TheRun,
    at: Annotated[
        int,
        typer.Option("--at", metavar="STEP", min=0, help="The node to go on from; the start is 0."),
    ],
    module: OfModule = None,
    journal: JournalFile = None,
    sets: Sets = None,
    new_id: Annotated[
        str | None,
        typer.Option(
            "--run-id",
            metavar="ID",
            show_default=False,
            callback=id_of_new,
            help="What to call the new run.",
        ),
    ] = None,
    no_run: NoRun = False,
    lm: LMName = None,
    optimized: Optimized = None,
    max_iters: MoreIters = None,
    budget: BudgetLimits = None,
    as_json: AsJSON = False,
    quiet: Quiet = False,
    no_ask: NoAsk = False,
) -> None:
    """Make a new run that is the same as another up to one of its nodes, and go on with it.

    `--set` gives fields of that node other values. The other run stays as it is, and nothing before
    that node is done again. With `--no-run` the id of the new run is printed, and that is all.
    """
    import asyncio

    from bae.cli.running.budgets import budget_of

    limits = budget_of(budget)
    from bae.cli.improving.taught import check_optimized
    from bae.cli.loading import load
    from bae.cli.printing import note, out, print_json
    from bae.cli.running.carrying import RunOptions
    from bae.cli.running.which_lm import check_lm
    from bae.cli.runs.forks import make_fork
    from bae.cli.runs.going_on import go_on, said_as

    options = RunOptions(limits, as_json, quiet, not no_ask, resumes=True)
    graph = load(module, "-m").graph
    check_lm(graph, lm)
    check_optimized(graph, optimized)
    said = said_as(module, journal, lm, optimized)
    stored = asyncio.run(make_fork(graph, journal, run, at, new_id, sets or ()))
    info = stored.info
    if not no_run:
        if not quiet:
            note(f"{info.run_id} is {info.parent} up to step {at}")
        go_on(graph, stored, said, (), max_iters, options)
    elif as_json:
        print_json({"run_id": info.run_id, "parent": info.parent, "at": at})
    else:
        from rich.text import Text

        out().print(Text(info.run_id))
        if not quiet:
            note(f"go on with: {said.resume(info.run_id)}")


def answer(
    run: OfRun = None,
    gate: Annotated[
        str | None,
        typer.Argument(
            metavar="GATE",
            show_default=False,
            autocompletion=open_gates,
            help="The gate: its field, as `Refund.approved` or `approved`, or its address where "
            "several are called so. Where one is open it may be left out, also before VALUE: "
            "`bae runs answer last yes`.",
        ),
    ] = None,
    value: Annotated[
        str | None,
        typer.Argument(
            metavar="VALUE",
            show_default=False,
            help="The answer: JSON where the field takes that, and else text. Left out, it is "
            "asked for at a terminal.",
        ),
    ] = None,
    module: OfModule = None,
    journal: JournalFile = None,
    no_run: NoRun = False,
    lm: LMName = None,
    optimized: Optimized = None,
    max_iters: MoreIters = None,
    budget: BudgetLimits = None,
    as_json: AsJSON = False,
    quiet: Quiet = False,
    no_ask: NoAsk = False,
) -> None:
    """Answer a gate that a run waits for, and go on with the run.

    The answer is checked against the field before it is stored, and the first one stands. With
    `--no-run` it is only stored, for whoever goes on with the run.
    """
    import asyncio

    from bae.cli.running.budgets import budget_of

    limits = budget_of(budget)
    from bae.cli.improving.taught import check_optimized
    from bae.cli.loading import load
    from bae.cli.printing import note, print_json
    from bae.cli.running.carrying import RunOptions, carry_out
    from bae.cli.running.which_lm import check_lm
    from bae.cli.runs.going_on import kept_in, model_for, said_as
    from bae.cli.runs.parked import meant_by, read_meant, reply_to, store_answer
    from bae.exceptions import BaeError

    said = said_as(module, journal, lm, optimized)
    graph = load(module, "-m").graph
    try:
        check_lm(graph, lm)
        check_optimized(graph, optimized)
    except BaeError as error:
        error.add_note("no answer is stored: the run still waits for it")
        raise
    stored = asyncio.run(read_meant(journal, run))
    info = stored.info
    asked, value = meant_by(graph, stored, gate, value, said)
    reply = reply_to(graph, info.run_id, asked, value, said, ask=not no_ask)
    if no_run:
        asyncio.run(store_answer(graph, info.run_id, asked, reply, journal))
    if not no_run:
        model = model_for(graph, stored, said, quiet=quiet)
        carry_out(
            graph,
            info.run_id,
            lambda kept, answerer: graph.answer(
                info.run_id,
                asked.address,
                reply,
                model,
                max_iters,
                journal=kept_in(kept),
                answer=answerer,
            ),
            said,
            RunOptions(limits, as_json, quiet, not no_ask, resumes=True, gate=asked.address),
        )
    elif as_json:
        print_json({"run_id": info.run_id, "gate": asked.address, "answered": True})
    elif not quiet:
        note(f"{asked.place} is answered; go on with: {said.resume(info.run_id)}")
