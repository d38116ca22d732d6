"""The command `bae db`: create and upgrade the tables of a Postgres journal."""

from __future__ import annotations

import asyncio
from typing import Final

import typer

from bae.cli.exits import refusal
from bae.cli.journals import JournalName, default
from bae.cli.options import AsJSON, JournalFile, examples
from bae.cli.printing import note, print_json

group = typer.Typer(
    help="Create and upgrade the tables of a Postgres journal.", no_args_is_help=True
)

_UPGRADE: Final = examples(
    "bae db upgrade -j postgresql://bae@db.example.com/bae",
    "BAE_JOURNAL=postgresql://db.example.com/bae bae db upgrade --json",
)


@group.command("upgrade", epilog=_UPGRADE)
def upgrade(journal: JournalFile = None, as_json: AsJSON = False) -> None:
    """Create the tables in a database, or upgrade them to the version of this bae.

    The upgrade is one transaction, and changes only the schema `bae`. The command can be repeated.
    Afterwards, the database refuses processes with an older bae. Runs in progress continue if their
    processes have this version of bae. A journal in a file needs no command: the first write
    upgrades it.
    """
    from bae.journal.postgres import PostgresJournal

    name = JournalName.of(journal) if journal else default()
    if not name.address:
        raise refusal(
            f"{name} is a file, and `bae db` needs a database",
            fix="name a database: -j postgresql://USER@HOST/DATABASE, or BAE_JOURNAL",
        )

    async def work() -> tuple[int, int]:
        async with PostgresJournal(name.address) as opened:
            return await opened.upgrade()

    before, after = asyncio.run(work())
    if as_json:
        print_json({"journal": name, "before": before, "version": after})
    elif before == after:
        note(f"{name} has tables of version {after} already")
    elif before:
        note(f"{name}: the tables are upgraded from version {before} to {after}")
    else:
        note(f"{name}: the tables are created, version {after}")
