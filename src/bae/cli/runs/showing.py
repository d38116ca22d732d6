"""`bae runs show` and `bae runs why`: what happened in a run, what ran when, and where one of its
values came from. `story.py` and `bars.py` draw it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bae.cli.options import AsJSON, JournalFile, NewestRun, OneRun

if TYPE_CHECKING:
    from bae.journal.provenance import Provenance
    from bae.journal.store import StoredRun


def show(
    run: NewestRun = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="Cut nothing off; show prompts, answers and every item."),
    ] = False,
    timeline: Annotated[
        bool, typer.Option("--timeline/--no-timeline", help="Show what ran when.")
    ] = True,
    journal: JournalFile = None,
    as_json: AsJSON = False,
) -> None:
    """Tell what happened in a run.

    Its nodes in order, where the value of each field came from, what graphs inside it did, what
    the LM calls cost, how it came out, and a timeline of what ran when: bars above one another
    stand for work that was done at the same time.
    """
    import asyncio

    from bae.cli.journals import file_to_read
    from bae.cli.printing import out, print_hanging, print_json
    from bae.cli.runs.meant import run_meant, to_read
    from bae.journal.export import is_sqlite
    from bae.journal.report import report_run

    async def stored() -> StoredRun:
        async with to_read(journal) as runs:
            return await runs.read(await run_meant(runs, run))

    told = report_run(asyncio.run(stored()))
    if as_json:
        from bae.cli.runs.as_data import run_as_data

        print_json(run_as_data(told))
        return
    from bae.cli.runs.bars import bars_of
    from bae.cli.runs.story import heading_of, outcome_of, story_of

    console = out()
    for line in heading_of(told):
        print_hanging(console, line, 4)
    if timeline:
        console.print()
        for line in bars_of(told.timeline, console, full=full):
            console.print(line, soft_wrap=True)
    for line in story_of(told, full=full, width=console.width if console.is_terminal else None):
        print_hanging(console, line, 9)
    console.print()
    file = file_to_read(journal)
    for line in outcome_of(told, file if is_sqlite(file) else None):
        print_hanging(console, line, 2)


def why(
    run: OneRun,
    place: Annotated[
        str,
        typer.Argument(
            metavar="PLACE",
            show_default=False,
            help="A field, as `Outfit.mood`; with the place of a graph inside the run before it, "
            "as `2:Report.summaries[3]/1:Summary.text`.",
        ),
    ],
    step: Annotated[
        int | None,
        typer.Option("--step", show_default=False, help="Of which node, where there are several."),
    ] = None,
    journal: JournalFile = None,
    as_json: AsJSON = False,
) -> None:
    """Tell where a value came from."""
    import asyncio

    from rich.text import Text

    from bae.cli.printing import out, print_hanging, print_json
    from bae.cli.runs.meant import run_meant, to_read
    from bae.cli.texts import in_one_line

    async def found() -> Provenance:
        async with to_read(journal) as runs:
            return await runs.why(await run_meant(runs, run), place, step=step)

    origin = asyncio.run(found())
    if as_json:
        from dataclasses import asdict

        from bae.cli.runs.as_data import with_times

        print_json(with_times(asdict(origin)))
        return
    for line in str(origin).splitlines():
        depth = len(line) - len(line.lstrip())
        print_hanging(out(), Text(in_one_line(line)), depth + 4)
