"""A lock in a file, for one process at a time: it ends with the process, however that ends.
`kept_calls.py` has one, so that two optimisations do not write to the same directory."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from bae.exceptions import BaeError


class Lock:
    """Holds a file, which is made if need be, until `release`. `held` is what it stands for. Raises
    `bae-optimizing-elsewhere` where another process has it, and `OSError` where it cannot be made.
    """

    def __init__(self, file: Path, held: Path) -> None:
        self._file = file
        while True:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
            before = _number(file)
            self._database: sqlite3.Connection | None = None
            try:
                # A lock of SQLite, since that is one on every system.
                self._database = sqlite3.connect(file, timeout=0, isolation_level=None)
                self._database.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError as error:
                self.release()
                raise _elsewhere(held, error) from error
            except sqlite3.DatabaseError as error:  # somebody has put something else there
                self.release()
                raise OSError(0, f"{file} is no lock") from error
            # Whoever had it may have taken the file away, and the next one begun with another.
            if before is not None and before == _number(file):
                return
            self.release()

    def release(self, *, remove: bool = False) -> None:
        """Let go of it; once is enough. The file may go too."""
        database, self._database = self._database, None
        if database is None:
            return
        if remove and os.name == "posix":  # while it is held, so that nobody else's is taken
            self._file.unlink(missing_ok=True)
        database.close()
        if remove and os.name != "posix":  # where a file that is open cannot be removed
            with suppress(OSError):
                self._file.unlink(missing_ok=True)


def _number(file: Path) -> int | None:
    try:
        return file.stat().st_ino
    except FileNotFoundError:
        return None


def _elsewhere(held: Path, error: sqlite3.OperationalError) -> BaeError:
    if "locked" not in str(error):
        raise OSError(0, str(error)) from error
    return BaeError(
        f"another `bae optimize` is at work in {held}",
        code="bae-optimizing-elsewhere",
        fix="wait for it to end, or name another directory with -o DIR",
    )
