"""The write-ahead log of a `SQLiteJournal`, the file that ends in -wal, which SQLite writes and
this keeps longer than what is in it: a disk has a page safe in about two thirds of the time where
the file need not grow for it. The writer looks at it after each commit."""

from __future__ import annotations

import contextlib
import os
import sqlite3

from bae.journal.sqlite.file import LOG_BYTES

FIRST = 1 << 18
"""How long the log is made at first, in bytes; it is doubled from there whenever it is full."""
AT_ONCE = 1 << 22
"""By how much it is made longer at once, at most: others must wait for that."""


class Log:
    """The log that belongs to an open connection. Closing this does no harm to SQLite: it locks
    other files, never this one."""

    def __init__(self, path: str) -> None:
        self._file: int | None = None
        self._length = 0
        self._path = path + "-wal"
        with contextlib.suppress(OSError):  # everything works without, only slower
            self._file = os.open(self._path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))

    def look(self) -> tuple[bool, bool]:
        """Whether it was taken away, and whether SQLite has come to its end."""
        if self._file is None:
            return False, False
        # Not by `fstat`: on newer kernels a file whose times were asked for gets new ones with the
        # next write, its inode is written too, and each commit takes 40 µs longer.
        size = os.lseek(self._file, 0, os.SEEK_END)
        full = size != self._length and size < LOG_BYTES
        return not os.access(self._path, os.F_OK), full

    def lengthen(self, connection: sqlite3.Connection) -> None:
        """Put zeros at the end, which are nothing to SQLite: what it reads after the last commit
        must bear the mark of the log, and it writes over them. Nobody else can be writing there
        while this has the lock that every writer needs."""
        assert self._file is not None
        try:
            connection.execute("begin immediate")
            try:
                length = os.lseek(self._file, 0, os.SEEK_END)
                wanted = min(max(2 * length, FIRST), length + AT_ONCE, LOG_BYTES)
                if length < wanted:
                    os.write(self._file, bytes(wanted - length))
                    getattr(os, "fdatasync", os.fsync)(self._file)
            finally:
                connection.execute("rollback")
            self._length = os.lseek(self._file, 0, os.SEEK_END)
        except (OSError, sqlite3.Error):  # the disk is full, say: whoever writes next is told
            self._length = os.lseek(self._file, 0, os.SEEK_END)

    def close(self) -> None:
        """Let go of the file."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
