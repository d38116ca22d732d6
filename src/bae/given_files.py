"""Reads files that a user, an LLM or another program names. Reading a device or a named pipe may
never end, so only regular files are read, and only up to a maximum size."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from io import BytesIO, TextIOWrapper
from typing import IO, Any, Final

__all__ = ["open_file", "read_file", "read_text"]

LARGEST: Final = 64 * 1024 * 1024
"""The maximum size in bytes of a file that is read at once."""
_INHERITED: Final = re.compile(r"/dev/stdin|(?:/dev|/proc/self)/fd/[0-9]+")
"""The paths of files that the parent process has opened for this process, as a shell does for
`<(command)`."""


@contextmanager
def open_file(path: str | os.PathLike[str], *, follow: bool = True) -> Generator[IO[bytes]]:
    """Open a regular file to read its bytes.

    Raises `OSError` for a device or a named pipe, and with `follow=False` for a symbolic link. The
    message of the error does not have the file's name. A pipe that this process inherited can be
    opened, such as `/dev/stdin`, or `/dev/fd/63` for a shell's `<(command)`.
    """

    def opener(name: str, flags: int) -> int:
        flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
        return os.open(name, flags if follow else flags | getattr(os, "O_NOFOLLOW", 0))

    if not follow and os.path.islink(path):  # the error of O_NOFOLLOW does not mention links
        raise OSError("it is a symbolic link")
    with open(path, "rb", opener=opener) as file:
        kind = os.fstat(file.fileno()).st_mode
        if stat.S_ISFIFO(kind) and _INHERITED.fullmatch(os.fspath(path)):
            os.set_blocking(file.fileno(), True)
        elif not stat.S_ISREG(kind):
            what = "a named pipe" if stat.S_ISFIFO(kind) else "a device"
            raise OSError(f"it is {what}, and only regular files are read")
        yield file


def read_file(path: str | os.PathLike[str], most: int = LARGEST, *, follow: bool = True) -> bytes:
    """Read the bytes of a file. Raises `OSError` if the file has more than `most` bytes (64 MiB),
    or if `open_file` refuses it."""
    with open_file(path, follow=follow) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise _too_large("it", most)
    return content


def read_text(path: str | os.PathLike[str], encoding: str = "utf-8") -> str:
    """Read the text of a file. Raises `OSError` if `read_file` does, and `UnicodeDecodeError` if
    the bytes do not fit `encoding`."""
    return TextIOWrapper(BytesIO(read_file(path)), encoding=encoding).read()


def read_stdin(most: int = LARGEST) -> str:
    """Read the text on stdin. Raises `OSError` if stdin is closed, or if the text has more than
    `most` characters."""
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]  with <&-
        raise OSError("stdin is closed")
    text = sys.stdin.read(most + 1)
    if len(text) > most:
        raise _too_large("stdin", most)
    return text


def read_lines(file: IO[Any], most: int = LARGEST) -> Iterator[Any]:
    """Yield the lines of an open file, as bytes or text. Raises `OSError` if a line is longer than
    `most`."""
    while line := file.readline(most + 1):
        if len(line) > most:
            raise _too_large("a line", most)
        yield line


def _too_large(name: str, most: int) -> OSError:
    return OSError(f"{name} has more than {most:,} bytes, the most that are read")
