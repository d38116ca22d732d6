"""Files that hold prompts, answers or runs: whatever bae creates of that kind, only its user can
read, from its first byte. A file that exists keeps its permissions."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from shutil import copymode
from typing import IO


def private(path: str | Path, flags: int) -> int:
    """The `opener` of such a file: `open(path, "wb", opener=private)`."""
    return os.open(path, flags, 0o600)


def make_private(path: str | Path) -> None:
    """Create an empty file for SQLite, which gives the files beside it the same permissions. It is
    linked to its place: to open and close it there would drop the locks of a connection that is
    made at the same moment."""
    beside = f"{path}.{os.urandom(4).hex()}.new"
    with suppress(OSError):  # then SQLite creates it, or reports why it cannot
        os.close(private(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        try:
            os.link(beside, path)
        finally:
            os.unlink(beside)


def write_private(path: Path, data: bytes) -> None:
    """Write such a file: all of it, or it is as it was before."""
    beside = path.with_name(f".{path.name[:100]}.{os.urandom(6).hex()}.part")
    try:
        with open(beside, "xb", opener=private) as file:
            file.write(data)
            put_in_place(file, path)
    finally:
        with suppress(OSError):
            beside.unlink()


def put_in_place(file: IO[bytes], path: Path) -> None:
    """Close a file that was written beside another and put it in the place of that, with the
    permissions that are there."""
    file.flush()
    os.fsync(file.fileno())
    file.close()
    with suppress(FileNotFoundError):
        copymode(path, file.name)
    os.replace(file.name, path)
