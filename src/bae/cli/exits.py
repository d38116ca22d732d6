"""What the exit codes of `bae` mean: scripts rely on them, so each is here once."""

from __future__ import annotations

from typing import Final

DONE: Final = 0
FAILED: Final = 1
"""It could not be done, or what was asked about has errors."""
MISUSED: Final = 2
"""The command line makes no sense."""
WAITING: Final = 3
"""The run is parked: it waits for somebody's answer."""
INTERRUPTED: Final = 130
"""Ctrl-C."""
TERMINATED: Final = 143
"""SIGTERM, as a supervisor sends it."""

ABOUT: Final = (
    "Exit codes: 0 done, 1 failed or found errors, 2 wrong usage, 3 the run waits for a person, "
    "130 interrupted."
)
