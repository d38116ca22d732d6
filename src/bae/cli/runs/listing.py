"""`bae runs list`: the runs of a journal as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from bae.cli.options import AsJSON, JournalFile

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from rich.text import Text

    from bae.journal.store import Journal, Listed, RunInfo


OfStatus = Annotated[
    Literal["running", "waiting", "ended", "failed", "cancelled", "interrupted"] | None,
    typer.Option("--status", "-s", show_default=False, help="Only those that are so."),
]
OfGraph = Annotated[
    str | None,
    typer.Option(
        "--graph", "-g", metavar="NAME", show_default=False, help="Only those of this graph."
    ),
]


def list_runs(
    status: OfStatus = None,
    graph: OfGraph = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 50,
    journal: JournalFile = None,
    as_json: AsJSON = False,
) -> None:
    """List runs, the newest first.

    A run is running, waiting (for a person), ended, failed or cancelled; one that is shown as
    interrupted was running when its process went away: `bae runs resume` goes on with it.
    """
    import asyncio

    from bae.cli.printing import note, out, print_json
    from bae.cli.runs.meant import to_read

    async def found() -> tuple[list[RunInfo], bool]:
        async with to_read(journal) as runs:
            newest: list[RunInfo] = []
            async for info in runs_that_are(runs, status, graph):
                newest.append(info)
                if len(newest) > limit:
                    break
            return newest[:limit], len(newest) > limit

    infos, more = asyncio.run(found())
    if as_json:
        from bae.cli.runs.as_data import listed_as_data

        print_json([listed_as_data(info) for info in infos])
        return
    if not infos:
        note("no runs")
        return
    console = out()
    for line in _table(infos, console.width if console.is_terminal else None):
        console.print(line, soft_wrap=True)
    if more:
        note(f"the newest {limit}: --limit shows more")


async def runs_that_are(
    journal: Journal, status: Listed | None, graph: str | None
) -> AsyncIterator[RunInfo]:
    """The runs of a status, the newest first. Here those that are running are under way, and none
    of those that were interrupted is among them, which the journal has under both."""
    async for info in journal.every_run(status=status, graph=graph):
        if status in (None, info.standing()):
            yield info


_TITLES: Final = ("RUN", "GRAPH", "STATUS", "STARTED", "LASTED", "")
STYLES: Final = {
    "ended": "green",
    "failed": "red",
    "waiting": "yellow",
    "interrupted": "magenta",
    "running": "cyan",
    "cancelled": "dim",
}
"""How each status is coloured."""


def _table(infos: Sequence[RunInfo], width: int | None) -> list[Text]:
    """The lines of a table that fits a terminal so wide; where there is none, nothing is cut, ids
    are whole, and times are those of the clock: a script reads it."""
    from time import time

    from rich.text import Text

    from bae.cli.runs.wording import ago, long, when
    from bae.cli.texts import in_one_line

    now = time()
    ids = [info.run_id for info in infos]
    if width is not None:
        ids = shortened(ids)
    rows = [tuple(Text(title, style="bold") for title in _TITLES)]
    for info, run_id in zip(infos, ids, strict=True):
        status = info.standing(now)
        began = when(info.started) if width is None else ago(info.started, now)
        cells = [run_id, info.graph, status, began]
        row = [Text(in_one_line(cell)) for cell in (*cells, long(info.lasted(now)))]
        row[2].stylize(STYLES[status])
        rows.append((*row, Text(in_one_line(_about(info)), style="dim")))
    widths = [max(row[column].cell_len for row in rows) for column in range(5)]
    lines: list[Text] = []
    for row in rows:
        for cell, room in zip(row, widths, strict=False):
            cell.pad_right(room - cell.cell_len)
        line = Text("  ").join(row)
        line.rstrip()
        if width is not None:
            line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return lines


def shortened(every: Sequence[str]) -> list[str]:
    """The ids as they are typed: of long ones, as bae makes them up, as much as tells one from
    another."""
    from itertools import pairwise, takewhile

    ordered = sorted(every)
    # How many characters an id has in common with the one most like it, which stands beside it.
    shared = dict.fromkeys(ordered, 0)
    for one, other in pairwise(ordered):
        both = zip(one, other, strict=False)
        common = sum(1 for _ in takewhile(lambda two: two[0] == two[1], both))
        shared[one] = max(shared[one], common)
        shared[other] = max(shared[other], common)
    return [each[: max(8, shared[each] + 1)] if len(each) > 16 else each for each in every]


def _about(info: RunInfo) -> str:
    """What a run waits for, why it failed, or where it comes from."""
    if info.waiting and info.status == "waiting":
        return "; ".join(
            f"{gate.place}: {gate.question}{' (answered)' if gate.answered else ''}"
            for gate in info.waiting
        )
    if info.error and info.status == "failed":
        return info.error
    if info.parent:
        return f"forked from {info.parent}"
    return f"by {info.owner}" if info.status == "running" and info.owner else ""
