"""Which journal a command means, and opening it: the file that is named, or else `.bae/runs.db`,
which `bae run` makes beside the pyproject.toml with a `[tool.bae]`; where there is none, in the
directory at hand."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bae.cli.refusals import refused
from bae.exceptions import BaeError, JournalError

if TYPE_CHECKING:
    from bae.journal.store import Journal

_FILE: Final = Path(".bae", "runs.db")


def default() -> Path:
    """The journal where none is named, as it is called from this directory: that of the project, so
    that its runs are found wherever in it a command is typed."""
    from bae.cli.loading import project_file

    # What a pyproject.toml is to say is told where a graph is asked of it, not here.
    with suppress(BaeError, OSError):
        project = project_file()
        if project is not None and project.table is not None:
            return Path(os.path.relpath(project.folder / _FILE))
    return _FILE


def file_to_read(given: str | None) -> str:
    """The file of a journal, or of exported runs, that must be there."""
    path = Path(given) if given else default()
    if path.is_file():
        return str(path)
    if given:
        raise refused(
            f"there is no journal {given}",
            fix="give the file that `bae run --journal` or a SQLiteJournal has written",
        )
    raise refused(
        f"there is no journal here: {path} is not there",
        fix="run a graph with `bae run`, which makes it, or name one with --journal FILE",
    )


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
