"""The exit codes of `bae`, which scripts rely on, and errors about a command line."""

from __future__ import annotations

from typing import Final

from bae.exceptions import BaeError

DONE: Final = 0
FAILED: Final = 1
"""The command failed, or found errors."""
MISUSED: Final = 2
"""Wrong usage, such as an unknown option."""
WAITING: Final = 3
"""The run is parked: it waits for an answer."""
ELSEWHERE: Final = 4
"""Another process owns the run, the optimization or the team."""
HUNG_UP: Final = 129
"""SIGHUP: the terminal was closed."""
INTERRUPTED: Final = 130
"""Ctrl-C."""
TERMINATED: Final = 143
"""SIGTERM, for example from a supervisor."""

ABOUT: Final = (
    "Exit codes: 0 done, 1 failed or found errors, 2 wrong usage, 3 the run waits for a person, "
    "4 another process has it, 129 hung up, 130 interrupted, 143 terminated."
)


class Misuse(BaeError):
    """Wrong usage of a command. The exit code is 2."""


def refusal(message: str, fix: str | None = None, cause: BaseException | None = None) -> BaeError:
    """Make the error for a command that cannot be carried out. The caller raises the error."""
    return BaeError(message, code="bae-command-refused", fix=fix, cause=cause)
