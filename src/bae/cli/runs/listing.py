"""`bae runs list`: the runs of a journal as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from bae.cli.options import AsJSON, JournalFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from bae.journal.store import RunInfo


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
            newest = await runs.runs(status=status, graph=graph, limit=limit)
            more = len(newest) == limit and await runs.runs(
                status=status, graph=graph, limit=1, before=newest[-1].run_id
            )
            return newest, bool(more)

    infos, more = asyncio.run(found())
    if as_json:
        print_json([_as_data(info) for info in infos])
        return
    if not infos:
        note("no runs")
        return
    console = out()
    for line in _table(infos, console.width if console.is_terminal else None):
        console.print(line, soft_wrap=True)
    if more:
        note(f"the newest {limit}: --limit shows more")


def _as_data(info: RunInfo) -> dict[str, Any]:
    from dataclasses import asdict

    said = {**asdict(info), "seconds": info.updated - info.started}
    if info.is_interrupted():
        said["status"] = "interrupted"
    return said


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
    """The lines of a table that fits a terminal so wide; where there is none, nothing is cut."""
    from time import time

    from rich.text import Text

    from bae.cli.runs.wording import ago, long, plain, when

    now = time()
    wide = width is None or width >= 120
    ids = _ids([info.run_id for info in infos], shorten=not wide)
    rows = [tuple(Text(title, style="bold") for title in _TITLES)]
    for info, run_id in zip(infos, ids, strict=True):
        status = "interrupted" if info.is_interrupted(now) else info.status
        cells = [run_id, info.graph, status, ago(info.started, now)]
        if wide:
            cells[3] = f"{when(info.started)}, {cells[3]}"
        row = [Text(plain(cell)) for cell in (*cells, long(info.updated - info.started))]
        row[2].stylize(STYLES[status])
        rows.append((*row, Text(plain(_about(info)), style="dim")))
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


def _ids(every: Sequence[str], *, shorten: bool) -> Sequence[str]:
    """The ids, or how they begin where that tells one from another: those that bae makes up fill a
    third of a narrow line."""
    short = [each[:8] if len(each) > 16 else each for each in every]
    return short if shorten and len(set(short)) == len(every) else every


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
