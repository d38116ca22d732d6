"""`bae runs prune` and `bae runs redact`: runs, and values in them, that are to be gone. Neither
can be undone, so somebody at a terminal is asked first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal, cast, get_args

import typer

from bae.cli.options import AsJSON, JournalFile, OneRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bae.journal.redaction import Redaction
    from bae.journal.store import Journal, RunInfo
    from bae.journal.store import Status as Stored

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


Status = Literal["running", "waiting", "ended", "failed", "cancelled", "interrupted"]
_GONE: Final = "interrupted"


def seconds_in(text: str) -> float:
    """How many seconds a text such as 90s, 30m, 12h, 30d or 2w says; else it is a wrong usage."""
    import re

    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([smhdw])", text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no length of time: write 90s, 30m, 12h, 30d or 2w")
    return float(match[1]) * _UNITS[match[2]]


def status_in(text: str) -> str:
    """How a run stands, if a text says so; else it is a wrong usage."""
    if text not in get_args(Status):
        raise typer.BadParameter(f"{text!r} is none of {', '.join(get_args(Status))}")
    return text


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")]


def prune(
    older_than: Annotated[
        float,
        typer.Option(
            "--older-than",
            metavar="30d",
            parser=seconds_in,
            show_default=False,
            help="Those that were last written so long ago: 90s, 30m, 12h, 30d, 2w.",
        ),
    ],
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            "-s",
            metavar="STATUS",
            parser=status_in,
            show_default=False,
            help=f"Those that are so, of {', '.join(get_args(Status))}; may be given several "
            "times. Left out: ended, failed, cancelled.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say which they are, and delete nothing.")
    ] = False,
    yes: Yes = False,
    journal: JournalFile = None,
    as_json: AsJSON = False,
) -> None:
    """Delete old runs.

    Runs that wait or are under way stay, unless --status names them; so does one whose lines
    another run shares, because it was forked from it. At a terminal it is asked first.
    """
    import asyncio
    from time import time

    from bae.cli.printing import note, print_json
    from bae.cli.runs.meant import to_write
    from bae.cli.runs.wording import runs as counted

    chosen = set(cast("Sequence[Status]", status or ("ended", "failed", "cancelled")))
    if "running" in chosen:
        note("runs that are under way stay; --status interrupted has those that nobody is at")

    async def old(runs: Journal) -> list[str]:
        than = time() - older_than
        found = await runs.older(than, cast("list[Stored]", sorted(chosen - {"running", _GONE})))
        if _GONE in chosen:
            gone = {info.run_id async for info in runs.every_run(status=_GONE)}
            found += [each for each in await runs.older(than, ["running"]) if each in gone]
        return found

    async def listed() -> list[str]:
        async with to_write(journal) as runs:
            return await old(runs)

    async def deleted() -> list[str]:
        async with to_write(journal) as runs:
            found = await old(runs)
            await runs.delete(found)
            left = set(await old(runs))
            return [each for each in found if each not in left]

    asks = not yes and not as_json and _is_terminal()
    if dry_run or asks:
        found = asyncio.run(listed())
        if dry_run:
            if as_json:
                print_json({"runs": found, "deleted": 0, "dry_run": True})
                return
            _tell(found)
            note(f"{counted(len(found))} would be deleted")
            return
        if not found:
            note("0 runs deleted")
            return
        _agreed(f"Delete {counted(len(found))}? It cannot be undone.")
    gone = asyncio.run(deleted())
    if as_json:
        print_json({"runs": gone, "deleted": len(gone), "dry_run": False})
        return
    note(f"{counted(len(gone))} deleted")


def redact(
    run: OneRun,
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="PLACE...",
            show_default=False,
            help="A field, as `Person.email`, or a class for all of its fields.",
        ),
    ],
    yes: Yes = False,
    journal: JournalFile = None,
    as_json: AsJSON = False,
) -> None:
    """Take the values of fields out of a run for good.

    They are gone from the run and from runs that share its lines, and so are the prompts and
    answers that had them. It cannot be undone; at a terminal it is asked first. Whoever resumes
    the run is asked for them.
    """
    import asyncio

    from rich.text import Text

    from bae.cli.printing import out, print_json
    from bae.cli.runs.meant import run_meant, to_write
    from bae.cli.texts import in_one_line

    async def meant() -> RunInfo:
        async with to_write(journal) as runs:
            return (await runs.read(await run_meant(runs, run))).info

    async def redacted(run_id: str) -> Redaction:
        async with to_write(journal) as runs:
            return await runs.redact(run_id, *places)

    info = asyncio.run(meant())
    if not yes and not as_json and _is_terminal():
        values = ", ".join(map(in_one_line, places))
        _agreed(f"Take {values} out of the run {in_one_line(info.run_id)}? It cannot be undone.")
    done = asyncio.run(redacted(info.run_id))
    if as_json:
        print_json(done)
        return
    out().print(Text(in_one_line(str(done))), soft_wrap=True)


def _is_terminal() -> bool:
    import sys

    return sys.stdin.isatty() and sys.stderr.isatty()


def _agreed(question: str) -> None:
    """Ask, and end the command where it is not agreed to."""
    typer.confirm(question, abort=True, err=True)


def _tell(run_ids: list[str]) -> None:
    from bae.cli.printing import out
    from bae.cli.texts import in_one_line

    for run_id in run_ids:
        out().print(in_one_line(run_id), markup=False, soft_wrap=True)
