"""Finds and opens the journal of a command, and finds runs in the journal.

The journal is the first of: the file or database on the command line, `journal` of `[tool.bae]`,
`.bae/runs.db` beside the pyproject.toml with `[tool.bae]`, and `.bae/runs.db` in this directory.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bae.cli.exits import refusal
from bae.cli.loading import ProjectFile, project_file
from bae.cli.options import NEWEST
from bae.exceptions import BaeError, JournalError
from bae.postgres.address import checked_address, has_password, is_address, without_password
from bae.private_files import private

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Journal
    from bae.journal.stored_runs import StoredRun

T = TypeVar("T")
_FILE: Final = Path(".bae", "runs.db")


PATIENCE: Final = 60.0
"""Seconds that a command waits for an unreachable database, if it runs a graph."""
READING: Final = 5.0
"""Seconds that other commands wait for an unreachable database."""


class JournalName(str):
    """The name of a journal for messages: a file, or a database address without its password."""

    address: str = ""
    """The address of a database with its password, or an empty text for a file. Never print it."""

    @classmethod
    def of(cls, text: str) -> JournalName:
        """Parse the name of a journal from the command line or the environment. Raises if a
        database address is invalid."""
        if isinstance(text, JournalName) or not is_address(text):
            return text if isinstance(text, JournalName) else cls(text)
        try:
            name = cls(without_password(checked_address(text)))
        except ValueError as error:
            raise refusal(str(error), fix="see --journal in `bae runs list --help`") from None
        name.address = text
        return name

    @property
    def absolute(self) -> str:
        """The name of the journal for a process in another directory."""
        return self if self.address else os.path.abspath(self)


def default() -> JournalName:
    """Return the default journal for this directory. In all directories of a project, it is the
    journal of the project."""
    project = _find_project()
    if project is None or project.table is None:
        return JournalName(_FILE)
    if "journal" in project.table:
        return _read_configured_name(project.table["journal"], project.file)
    return JournalName(os.path.relpath(project.file.parent / _FILE))


def state_folder() -> Path:
    """Return the folder `.bae`: beside the pyproject.toml with `[tool.bae]`, or in this
    directory."""
    project = _find_project()
    if project is None or project.table is None:
        return _FILE.parent
    return Path(os.path.relpath(project.file.parent / _FILE.parent))


def _find_project() -> ProjectFile | None:
    # A command that needs the graph reports the errors in the pyproject.toml.
    with suppress(BaeError, OSError):
        return project_file()
    return None


def make_state_folder() -> Path:
    """Create the folder `.bae`, and return it. Git ignores the folder, because runs have the input
    of users."""
    folder = state_folder()
    folder.mkdir(exist_ok=True)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    return folder


def _read_configured_name(named: object, file: Path) -> JournalName:
    """Parse the `journal` of `[tool.bae]` in a file. Raises if it is not a name, or has a
    password."""
    path = os.path.relpath(file)
    if not isinstance(named, str) or not named:
        raise BaeError(
            f"[tool.bae] journal in {path} names nothing",
            code="bae-journal-configured",
            fix='write journal = "runs.db", or journal = "postgresql://HOST/DATABASE"',
        )
    if not is_address(named):
        return JournalName(os.path.relpath(file.parent / os.path.expanduser(named)))
    if has_password(named):
        raise BaeError(
            f"[tool.bae] journal in {path} has a password, which everyone who reads the project "
            "can see",
            code="bae-journal-configured",
            fix="remove it there, and leave it to PGPASSWORD or to a passfile (~/.pgpass, or "
            "PGPASSFILE); or set BAE_JOURNAL to the whole address",
        )
    return JournalName.of(named)


def file_to_read(given: str | None) -> JournalName:
    """Return the journal or the export file that a command reads. Raises if the file does not
    exist."""
    name = JournalName.of(given) if given else default()
    if name.address or os.path.isfile(name):
        return name
    problem = f"there is no journal here: {name} is not there"
    fix = "run a graph with `bae run`, which makes it, or name one with --journal FILE"
    if given:
        problem = f"there is no journal {given}"
        fix = "give the file that `bae run --journal` or a SQLiteJournal has written"
    raise refusal(problem, fix)


def file_to_write(given: str | None) -> JournalName:
    """Return the journal that a command writes. The journal may not exist yet. If it is the default
    file, create its folder."""
    if given:
        return JournalName.of(given)
    name = default()
    if name == os.path.join(state_folder(), _FILE.name):
        make_state_folder()
    return name


def journal_for(graph: Graph[Any, Any], given: str | None, so: str) -> JournalName | None:
    """Return the journal for a new run.

    If the default file cannot be written, or a journal cannot store the values of the graph, print
    a note and return None. `so` is the consequence that the note names. A journal that the user
    named, or a default database, is returned unchecked.
    """
    if given is not None or default().address:
        return file_to_write(given)
    errors = [p for p in graph.validate(journal=True) if p.severity == "error"]
    without = set(graph.validate())
    why = [f"{p.place}: {p.message}" for p in errors if p not in without]
    file = default()
    if not why:
        try:
            file = file_to_write(None)
            # SQLite accepts an empty file as a new database.
            os.close(private(file, os.O_CREAT | os.O_WRONLY))
        except OSError as error:
            why = [f"{error.filename or file} cannot be written: {error.strerror}"]
    if not why:
        return file
    from bae.cli.printing import note

    note(f"no journal is kept, so {so}: {why[0]}")
    return None


def open_to_read(file: str, patience: float | None = None) -> Journal:
    """Open a journal in a database or an existing file. The file may be a `SQLiteJournal`, or an
    export of `Journal.export`. An export cannot be written."""
    from bae.journal.export import RecordedRuns, is_sqlite

    if name := JournalName.of(file).address:
        return _open_postgres(name, READING if patience is None else patience)
    return _open_sqlite(file) if is_sqlite(file) else RecordedRuns.of(file)


def open_to_write(file: str, patience: float | None = None) -> Journal:
    """Open a journal in a database, or a `SQLiteJournal` in a file. A missing file is created. For
    any other file, raise `bae-journal-readonly`."""
    from bae.journal.export import is_sqlite

    if name := JournalName.of(file).address:
        return _open_postgres(name, PATIENCE if patience is None else patience)
    if os.path.isdir(file) or (
        os.path.exists(file) and os.path.getsize(file) and not is_sqlite(file)
    ):
        raise JournalError(
            f"{file} is no journal that can be written",
            code="bae-journal-readonly",
            fix="give the file of a SQLiteJournal; runs of an exported file are loaded into one "
            "with `bae runs load`, or journal.load(path)",
        )
    return _open_sqlite(file)


def can_be_written(file: str) -> bool:
    """Return whether an existing journal can be written, unlike an export file."""
    from bae.journal.export import is_sqlite

    return bool(JournalName.of(file).address) or is_sqlite(file)


def _open_sqlite(file: str) -> Journal:
    from bae.journal.sqlite import SQLiteJournal

    return SQLiteJournal(file)


def _open_postgres(address: str, patience: float) -> Journal:
    from bae.journal.postgres import PostgresJournal

    return PostgresJournal(address, patience=patience)


def use(
    file: str | None,
    work: Callable[[Journal], Awaitable[T]],
    *,
    write: bool = False,
    new: bool = False,
) -> T:
    """Open a journal, call `work` with the journal, and return the result of `work`.

    `file` names the journal. With None, it is the default journal. To write to the journal, pass
    `write`. To create a missing journal too, pass `new`.
    """

    async def use_journal() -> T:
        path = file_to_write(file) if new else file_to_read(file)
        opened = open_to_write if write or new else open_to_read
        async with opened(path, READING) as journal:
            return await work(journal)

    return asyncio.run(use_journal())


def stored_run(file: str | None, run: str | None, *, write: bool = False) -> StoredRun:
    """Read the run that a command names."""

    async def read(journal: Journal) -> StoredRun:
        return await journal.read(await find_run_id(journal, run))

    return use(file, read, write=write)


async def find_run_id(journal: Journal, reference: str | None) -> str:
    """Find a run by its id, the beginning of its id, or "last", and return the id. None means the
    newest run."""
    word = reference or NEWEST
    try:
        return (await journal.read(word)).info.run_id
    except JournalError as error:
        if error.code != "bae-run-unknown":
            raise
    if word == NEWEST:
        newest = await journal.runs(limit=1)
        if not newest:
            raise refusal("the journal has no runs", fix="run a graph with `bae run`")
        return newest[0].run_id
    run_ids = [info.run_id async for info in journal.every_run() if info.run_id.startswith(word)]
    if len(run_ids) > 1:
        raise refusal(
            f"several runs begin with {word}: {', '.join(run_ids[:5])}",
            fix="give more of the id; `bae runs list` shows them",
        )
    if not run_ids:
        raise refusal(f"no run id begins with {word}", fix="list them with `bae runs list`")
    return run_ids[0]
