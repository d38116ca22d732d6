"""What the exit codes of `bae` mean: scripts rely on them, so each is here once."""

from __future__ import annotations

from typing import Final

DONE: Final = 0
FAILED: Final = 1
"""It could not be done, what was given does not fit what there is, or that has errors."""
MISUSED: Final = 2
"""The command line makes no sense, whatever there is."""
WAITING: Final = 3
"""The run is parked: it waits for somebody's answer."""
ELSEWHERE: Final = 4
"""The run, or the optimisation, is under way in another process, which goes on with it: its result
is not here."""
HUNG_UP: Final = 129
"""SIGHUP: the terminal was closed."""
INTERRUPTED: Final = 130
"""Ctrl-C."""
TERMINATED: Final = 143
"""SIGTERM, as a supervisor sends it."""

ABOUT: Final = (
    "Exit codes: 0 done, 1 failed or found errors, 2 wrong usage, 3 the run waits for a person, "
    "4 it is under way elsewhere, 129 hung up, 130 interrupted, 143 terminated."
)
