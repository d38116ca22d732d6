"""`Problem`: one thing that is wrong with a graph, with its place and its fix."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Problem:
    """What `Graph.validate()` returns, one for each problem.

    `code` never changes and is explained in `docs/errors.md`; `place` is the node, field or edge;
    `fix` says what to write instead. An error keeps a run from starting, a warning does not; a
    note says what a journal makes of a value.
    """

    severity: Severity
    code: str
    place: str
    message: str
    fix: str = ""

    def at(self, place: str) -> Problem:
        """The same problem, seen at another place."""
        return replace(self, place=place)

    def __str__(self) -> str:
        first = f"{self.severity:<7} {self.place:<16} {self.message}"
        return f"{first}\n        fix: {self.fix}" if self.fix else first
