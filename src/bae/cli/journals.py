"""Which journal and which run a command means, and opening it: the file that is named, or else
`.bae/runs.db`, which `bae run` makes beside the pyproject.toml with a `[tool.bae]`; where there is
none, in this directory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bae.cli.exits import refused
from bae.cli.loading import project_file
from bae.cli.options import NEWEST
from bae.exceptions import BaeError, JournalError
from bae.private_files import private

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Journal
    from bae.journal.stored_runs import StoredRun

T = TypeVar("T")
_FILE: Final = Path(".bae", "runs.db")


def default() -> Path:
    """The journal where none is named, as it is called from this directory: that of the project, so
    that its runs are found wherever in it a command is typed."""
    # What is wrong with a pyproject.toml is reported where a graph is asked of it, not here.
    with suppress(BaeError, OSError):
        project = project_file()
        if project is not None and project.table is not None:
            return Path(os.path.relpath(project.file.parent / _FILE))
    return _FILE


def file_to_read(given: str | None) -> str:
    """The file of a journal, or of exported runs, that must be there."""
    path = Path(given) if given else default()
    if path.is_file():
        return str(path)
    what = f"there is no journal here: {path} is not there"
    fix = "run a graph with `bae run`, which makes it, or name one with --journal FILE"
    if given:
        what = f"there is no journal {given}"
        fix = "give the file that `bae run --journal` or a SQLiteJournal has written"
    raise refused(what, fix)


def file_to_write(given: str | None) -> str:
    """The file of a journal that may be made. The default one gets a directory of its own that git
    leaves alone: runs hold what people have typed."""
    if given:
        return given
    path = default()
    path.parent.mkdir(exist_ok=True)
    ignore = path.parent / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    return str(path)


def journal_for(graph: Graph[Any, Any], given: str | None, so: str) -> str | None:
    """The file of the journal of a new run. The default one is done without where it cannot be had,
    with a note that says what follows from that."""
    if given is not None:
        return file_to_write(given)
    errors = [p for p in graph.validate(journal=True) if p.severity == "error"]
    without = set(graph.validate())
    why = [f"{p.place}: {p.message}" for p in errors if p not in without]
    file = ""
    if not why:
        try:
            file = file_to_write(None)
            # SQLite takes an empty file for a new one.
            os.close(private(file, os.O_CREAT | os.O_WRONLY))
        except OSError as error:
            why = [f"{error.filename or file} cannot be written: {error.strerror}"]
    if not why:
        return file
    from bae.cli.printing import note

    note(f"no journal is kept, so {so}: {why[0]}")
    return None


def open_to_read(file: str) -> Journal:
    """The journal in a file that exists: that of a `SQLiteJournal`, or one that `Journal.export`
    wrote, which can be read and replayed but not written."""
    from bae.journal.export import RecordedRuns, is_sqlite

    return _sqlite(file) if is_sqlite(file) else RecordedRuns.of(file)


def open_to_write(file: str) -> Journal:
    """The `SQLiteJournal` in a file, which is created if there is none. Any other file is refused
    with `bae-journal-readonly` and not changed."""
    from bae.journal.export import is_sqlite

    if os.path.isdir(file) or (
        os.path.exists(file) and os.path.getsize(file) and not is_sqlite(file)
    ):
        raise JournalError(
            f"{file} is no journal that can be written",
            code="bae-journal-readonly",
            fix="give the file of a SQLiteJournal; runs of an exported file are loaded into one "
            "with `bae runs load`, or journal.load(path)",
        )
    return _sqlite(file)


def _sqlite(file: str) -> Journal:
    from bae.journal.sqlite import SQLiteJournal

    return SQLiteJournal(file)


def use(
    file: str | None,
    work: Callable[[Journal], Awaitable[T]],
    *,
    write: bool = False,
    new: bool = False,
) -> T:
    """What `work` does with the journal of a command, opened for it. The journal must be there,
    unless it may be `new`."""

    async def used() -> T:
        path = file_to_write(file) if new else file_to_read(file)
        async with open_to_write(path) if write or new else open_to_read(path) as journal:
            return await work(journal)

    return asyncio.run(used())


def stored_run(file: str | None, run: str | None, *, write: bool = False) -> StoredRun:
    """All that a journal has of the run that is meant."""

    async def read(journal: Journal) -> StoredRun:
        return await journal.read(await run_meant(journal, run))

    return use(file, read, write=write)


async def run_meant(journal: Journal, said: str | None) -> str:
    """The id of the run that is meant: by its id, by how that begins, or "last" or nothing for the
    newest one."""
    word = said or NEWEST
    try:
        return (await journal.read(word)).info.run_id
    except JournalError as error:
        if error.code != "bae-run-unknown":
            raise
    if word == NEWEST:
        newest = await journal.runs(limit=1)
        if not newest:
            raise refused("the journal has no runs", fix="run a graph with `bae run`")
        return newest[0].run_id
    found = [info.run_id async for info in journal.every_run() if info.run_id.startswith(word)]
    if len(found) > 1:
        raise refused(
            f"several runs begin with {word}: {', '.join(found[:5])}",
            fix="give more of the id; `bae runs list` shows them",
        )
    if not found:
        raise refused(f"no run id is {word} or begins so", fix="list them with `bae runs list`")
    return found[0]
