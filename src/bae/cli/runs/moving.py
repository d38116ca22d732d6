"""`bae runs export` and `bae runs load`: runs out of a journal into a file of JSON lines, and from
there into another journal."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from bae.cli.completing import run_ids
from bae.cli.options import AsJSON, JournalFile
from bae.cli.runs.listing import OfGraph, OfStatus, runs_that_are

Force = Annotated[bool, typer.Option("--force", "-f", help="Write over what is there.")]


def export(
    to: Annotated[
        str,
        typer.Argument(metavar="OUT.jsonl", show_default=False, help="Where to; - prints it."),
    ],
    run: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            show_default=False,
            autocompletion=run_ids,
            help="Which runs, by their ids or how these begin. Left out: all of them.",
        ),
    ] = None,
    status: OfStatus = None,
    graph: OfGraph = None,
    force: Force = False,
    journal: JournalFile = None,
    as_json: AsJSON = False,
) -> None:
    """Write runs to a file of JSON lines.

    Such a file can be kept, sent, loaded, shown and replayed.
    """
    import asyncio

    from bae.cli.printing import note, print_json
    from bae.cli.runs.meant import run_meant, to_read
    from bae.cli.runs.wording import runs as counted
    from bae.cli.runs.writing import refuse_existing

    if to == "-" and as_json:
        raise typer.BadParameter("with - the runs themselves are printed", param_hint="--json")
    if to != "-":
        refuse_existing(to, force=force)

    async def written() -> int:
        async with to_read(journal) as runs:
            chosen = [await run_meant(runs, each) for each in run or ()] or None
            if chosen is None and status == "running":
                chosen = [info.run_id async for info in runs_that_are(runs, status, graph)][::-1]
            target = sys.stdout.buffer if to == "-" else to
            return await runs.export(target, chosen, status=status, graph=graph)

    count = asyncio.run(written())
    if as_json:
        print_json({"path": to, "count": count})
    elif to != "-":
        note(f"{to}: {counted(count)}")


def load(
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN.jsonl", show_default=False, help="What `export` has written; - reads it."
        ),
    ],
    existing: Annotated[
        Literal["refuse", "keep", "replace"],
        typer.Option("--existing", help="What to do with a run that is there already."),
    ] = "refuse",
    unfinished: Annotated[
        Literal["cancel", "keep"],
        typer.Option("--unfinished", help="What to do with one that has not ended."),
    ] = "cancel",
    journal: JournalFile = None,
    as_json: AsJSON = False,
) -> None:
    """Read runs from a file of JSON lines into a journal.

    The journal is made where there is none. A run is loaded whole or not at all. One that is
    under way or waits is cancelled here, so that nobody goes on with it by accident; `bae runs
    resume` does, if you mean to.
    """
    import asyncio
    from pathlib import Path

    from bae.cli.journals import file_to_write, open_to_write
    from bae.cli.printing import note, out, print_json
    from bae.cli.refusals import refused
    from bae.cli.runs.wording import runs as counted
    from bae.cli.texts import in_one_line

    if source != "-" and not Path(source).is_file():
        raise refused(f"there is no file {source}", fix="give what `bae runs export` has written")
    file = file_to_write(journal)

    async def loaded() -> list[str]:
        async with open_to_write(file) as runs:
            start = sys.stdin.buffer if source == "-" else source
            return await runs.load(start, existing=existing, unfinished=unfinished)

    ids = asyncio.run(loaded())
    if as_json:
        print_json(ids)
        return
    note(f"{file}: {counted(len(ids))} loaded")
    for run_id in ids:
        out().print(in_one_line(run_id), markup=False, soft_wrap=True)
