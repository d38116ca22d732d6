"""The exit codes of `bae`, which scripts rely on, and the errors of a command line that cannot be
carried out."""

from __future__ import annotations

from typing import Final

from bae.exceptions import BaeError

DONE: Final = 0
FAILED: Final = 1
"""It could not be done, what was given does not fit what there is, or that has errors."""
MISUSED: Final = 2
"""The command line makes no sense, whatever there is."""
WAITING: Final = 3
"""The run is parked: it waits for an answer."""
ELSEWHERE: Final = 4
"""Another process has the run, or the optimization: its result is not here."""
HUNG_UP: Final = 129
"""SIGHUP: the terminal was closed."""
INTERRUPTED: Final = 130
"""Ctrl-C."""
TERMINATED: Final = 143
"""SIGTERM, as a supervisor sends it."""

ABOUT: Final = (
    "Exit codes: 0 done, 1 failed or found errors, 2 wrong usage, 3 the run waits for a person, "
    "4 another process has it, 129 hung up, 130 interrupted, 143 terminated."
)


class Misuse(BaeError):
    """The command line makes no sense, whatever there is: the exit code is 2, as where an option is
    unknown."""


def refusal(message: str, fix: str | None = None, cause: BaseException | None = None) -> BaeError:
    """An error to raise: what cannot be done, and what to do instead."""
    return BaeError(message, code="bae-command-refused", fix=fix, cause=cause)
