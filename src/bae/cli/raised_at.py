"""Where in the user's own code an error came up: the innermost line that is neither bae's, nor
Python's, nor of an installed package. `printing.py` and the JSON of an error name it, and
`importing.py` does for a module that cannot be loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from types import TracebackType


class Line(NamedTuple):
    """A line of somebody's code, and the function it is in."""

    file: str
    number: int
    function: str


def raised_at(error: BaseException) -> str | None:
    """Where the user's own code raised what an error is about, as `desk.py:9 in __call__`; None
    where it was not that code, or the error says it itself."""
    from bae.exceptions import BaeError

    if isinstance(error, BaeError) and error.code in _SAY_IT:
        return None
    line = last_line(_origin(error).__traceback__)
    return f"{shown(Path(line.file))}:{line.number} in {line.function}" if line else None


def place_of(error: BaseException) -> str:
    """The same for the end of a message, as `, desk.py:9`; empty where it is not known. What
    Python cannot read has a place too."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno is not None:
        return f", {shown(Path(error.filename))}:{error.lineno}"
    line = last_line(error.__traceback__)
    return f", {shown(Path(line.file))}:{line.number}" if line is not None else ""


def last_line(traceback: TracebackType | None) -> Line | None:
    """The innermost line that is the user's own."""
    found: Line | None = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith("<") and _is_users(Path(code.co_filename)):
            found = Line(code.co_filename, traceback.tb_lineno, code.co_name)
        traceback = traceback.tb_next
    return found


def shown(path: Path) -> str:
    """A path as it is said from this directory, where it is in it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _origin(error: BaseException) -> BaseException:
    """What an error of bae came of: the errors of graphs inside others have causes in turn."""
    from bae.exceptions import BaeError

    while isinstance(error, BaeError) and error.cause is not None:
        error = error.cause
    return error


def _is_users(file: Path) -> bool:
    """Whether a file is neither bae's, nor Python's, nor of an installed package."""
    if file.is_relative_to(_OURS) or file.is_relative_to(_LIBRARY):
        return False
    return not _INSTALLED & set(file.parts)


_OURS: Final = Path(__file__).parents[1]
_LIBRARY: Final = Path(os.__file__).parent
_INSTALLED: Final = {"site-packages", "dist-packages"}
_SAY_IT: Final = {"bae-module-failed", "bae-run-ended-itself"}
"""The codes of errors whose message has the place."""
