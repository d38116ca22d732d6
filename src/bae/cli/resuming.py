"""`bae runs resume`, `fork` and `answer`: runs of a journal that go on. `running.py` carries them
out, as it does for `bae run`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bae.cli.budgets import BudgetLimits
from bae.cli.completing import run_ids
from bae.cli.help import examples
from bae.cli.options import AsJSON, JournalFile, LMName, OfModule, Sets
from bae.cli.run import NoAsk, Quiet

if TYPE_CHECKING:
    from bae.cli.commands_to_copy import Said
    from bae.cli.running import Manner
    from bae.graph import Graph
    from bae.journal.store import RunInfo

RESUME_EPILOG: Final = examples(
    "bae runs resume -m app.py",
    "bae runs resume 3f2a -m app.py --budget calls=40",
)
FORK_EPILOG: Final = examples(
    "bae runs fork 3f2a --at 1 --set mood=eager -m app.py",
    "bae runs fork last --at 0 --id second-try --no-run -m app.py",
)
ANSWER_EPILOG: Final = examples(
    "bae runs answer 3f2a Refund.approved yes -m app.py",
    "bae runs answer last -m app.py",
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
Given = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NODE.FIELD=VALUE",
        show_default=False,
        help="A secret that the journal does not keep, as `Login.token=…`; may be given several "
        "times. Left out, it is asked for at a terminal.",
    ),
]


def resume(
    run: OfRun = None,
    module: OfModule = None,
    journal: JournalFile = None,
    sets: Given = None,
    lm: LMName = None,
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

    from bae.cli.budgets import budget_of

    limits = budget_of(budget)
    from bae.cli.json_errors import errors_as_json
    from bae.cli.loading import load
    from bae.cli.running import Manner

    manner = Manner(limits, as_json, quiet, not no_ask, resumes=True)
    with errors_as_json(as_json):
        graph = load(module).graph
        info = asyncio.run(_info(journal, run))
    _go_on(graph, info, module, journal, sets or (), lm, max_iters, manner)


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
        typer.Option("--id", metavar="ID", show_default=False, help="What to call the new run."),
    ] = None,
    no_run: NoRun = False,
    lm: LMName = None,
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

    from bae.cli.budgets import budget_of

    limits = budget_of(budget)
    from bae.cli.forks import make_fork
    from bae.cli.json_errors import errors_as_json
    from bae.cli.loading import load
    from bae.cli.printing import note, out, print_json
    from bae.cli.running import Manner

    manner = Manner(limits, as_json, quiet, not no_ask, resumes=True)
    with errors_as_json(as_json):
        graph = load(module).graph
        info = asyncio.run(make_fork(graph, journal, run, at, new_id, sets or ()))
    if not no_run:
        if not quiet:
            note(f"{info.run_id} is {info.parent} up to step {at}")
        _go_on(graph, info, module, journal, (), lm, max_iters, manner)
    elif as_json:
        print_json({"run_id": info.run_id, "parent": info.parent, "at": at})
    else:
        from rich.text import Text

        out().print(Text(info.run_id))
        if not quiet:
            note(f"go on with: {_said(module, journal, lm).resume(info.run_id)}")


def answer(
    run: OfRun = None,
    gate: Annotated[
        str | None,
        typer.Argument(
            metavar="GATE",
            show_default=False,
            help="The gate: its field, as `Refund.approved` or `approved`, or its address where "
            "several are called so. Left out: the one that is open.",
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

    from bae.cli.budgets import budget_of

    limits = budget_of(budget)
    from bae.cli.json_errors import errors_as_json
    from bae.cli.loading import load
    from bae.cli.parked import open_gate, reply_to, store_answer
    from bae.cli.printing import note, print_json
    from bae.cli.running import Manner, carry_out

    said = _said(module, journal, lm)
    with errors_as_json(as_json):
        graph = load(module).graph
        info, asked = asyncio.run(open_gate(journal, run, gate))
        reply = reply_to(graph, info.run_id, asked, value, said, ask=not no_ask)
        if no_run:
            asyncio.run(store_answer(graph, info.run_id, asked, reply, journal))
    if not no_run:
        carry_out(
            graph,
            info.run_id,
            lambda kept, answerer: graph.answer(
                info.run_id,
                asked.address,
                reply,
                lm,
                max_iters,
                journal=_kept(kept),
                answer=answerer,
            ),
            said,
            Manner(limits, as_json, quiet, not no_ask, resumes=True),
        )
    elif as_json:
        print_json({"run_id": info.run_id, "gate": asked.address, "answered": True})
    elif not quiet:
        note(f"{asked.place} is answered; go on with: {said.resume(info.run_id)}")


def _go_on(
    graph: Graph[Any, Any],
    info: RunInfo,
    module: str | None,
    journal: str | None,
    sets: Sequence[str],
    lm: str | None,
    max_iters: int | None,
    manner: Manner,
) -> None:
    from bae.cli.json_errors import errors_as_json
    from bae.cli.printing import note
    from bae.cli.running import carry_out
    from bae.cli.withheld import withheld

    with errors_as_json(manner.as_json):
        given = withheld(graph, info.run_id, journal, sets, ask=manner.ask)
    if info.status == "ended" and not manner.quiet:
        note(f"the run {info.run_id} has ended before, and nothing is done again")
    carry_out(
        graph,
        info.run_id,
        lambda kept, answerer: graph.resume(
            info.run_id, lm, max_iters, journal=_kept(kept), answer=answerer, given=given
        ),
        _said(module, journal, lm),
        manner,
    )


def _said(module: str | None, journal: str | None, lm: str | None) -> Said:
    from bae.cli.commands_to_copy import Said
    from bae.cli.journals import file_to_read

    return Said(module, file_to_read(journal), lm)


def _kept(journal: Any) -> Any:
    assert journal is not None, "a run that goes on has a journal"
    return journal


async def _info(file: str | None, run: str | None) -> RunInfo:
    """The run that is meant."""
    from bae.cli.parked import read_meant

    return (await read_meant(file, run)).info
