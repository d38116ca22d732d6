"""How far an optimization is: a `Progress` for every step of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from bae.exceptions import describe

if TYPE_CHECKING:
    from bae.optimizer.calls import CallLog

Phase = Literal[
    "read", "bootstrapping", "proposing", "trying", "comparing", "compared", "done", "skipped"
]
Part = Literal["fill", "choice"]

log = logging.getLogger("bae.optimizer")


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the optimization of one part of a node is.

    `calls` were answered by LMs and `from_log` by the call log, `earlier` of them in another
    process; `scored` answers have a score, and `best` is the mean score of the best candidate so
    far, if candidates are tried at all; once it is `compared`, of what was learned, on the examples
    that were held out. `note` is a remark.
    """

    node: str
    part: str
    phase: Phase
    calls: int = 0
    from_log: int = 0
    earlier: int = 0
    scored: int = 0
    best: float | None = None
    note: str = ""


@dataclass(slots=True)
class ProgressReporter:
    """Reports the progress of one part to a listener. One that raises is not called again."""

    node: str
    part: Part
    calls: CallLog
    listener: Callable[[Progress], None] | None = None
    phase: Phase = "bootstrapping"
    scored: int = 0
    best: float | None = None
    notes: list[str] = field(default_factory=list[str])

    def report(self, note: str = "") -> None:
        """Report the current state."""
        if self.listener is None:
            return
        asked = self.calls.statistics()
        progress = Progress(
            self.node,
            self.part,
            self.phase,
            asked.calls,
            asked.from_log,
            asked.earlier.calls,
            self.scored,
            self.best,
            note,
        )
        try:
            self.listener(progress)
        except Exception as error:
            self.listener = None
            log.warning("progress raised, and is not called again: %s", describe(error))

    def note(self, text: str) -> None:
        """Note something worth knowing, once: in the log, and in the artifact."""
        if text not in self.notes:
            self.notes.append(text)
            log.warning("%s, %s: %s", self.node, self.part, text)
            self.report(text)
