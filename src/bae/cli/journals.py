"""Which journal a command means: the file that is named, or `.bae/runs.db` in the directory it is
called in, which `bae run` makes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bae.cli.refusals import refused

DEFAULT: Final = Path(".bae", "runs.db")


def file_to_read(given: str | None) -> str:
    """The file of a journal, or of exported runs, that must be there."""
    path = Path(given) if given else DEFAULT
    if path.is_file():
        return str(path)
    if given:
        raise refused(
            f"there is no journal {given}",
            fix="give the file that `bae run --journal` or a SQLiteJournal has written",
        )
    raise refused(
        f"there is no journal here: {DEFAULT} is not there",
        fix="run a graph with `bae run`, which makes it, or name one with --journal FILE",
    )


def file_to_write(given: str | None) -> str:
    """The file of a journal that may be made. The default one gets a directory of its own that git
    leaves alone: runs hold what people have typed."""
    if given:
        return given
    DEFAULT.parent.mkdir(exist_ok=True)
    ignore = DEFAULT.parent / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    return str(DEFAULT)
