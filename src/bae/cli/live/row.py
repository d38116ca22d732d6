"""One row of the tree: what `rows.py` lays out and `tree.py` draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bae.cli.live.values import Shown
from bae.work import Question

State = Literal["coming", "going", "done", "failed", "cancelled", "waiting"]
"""How far something is. What is `waiting` waits for a person."""

Values = tuple[tuple[str, Shown], ...]
"""Values with their names, in one line."""
Guides = tuple[bool, ...]
"""For each level around a row, whether something follows there."""


@dataclass(slots=True)
class Row:
    """A row: where it stands, what it is of, and up to three things to say. Values are written out
    when it is drawn."""

    guides: Guides
    kind: Literal["node", "field", "lm", "choice", "item", "text", "error", "more"]
    state: State = "done"
    name: str = ""
    value: str | Shown | Values = ""
    note: str = ""
    dim: bool = False
    asking: Question | None = None
    """What the LM is doing for the field of this row."""
    block: int = 0
    """Rows of one block have their columns under each other."""

    @property
    def matters(self) -> bool:
        """Whether it is under way, or went wrong."""
        return self.state in ("going", "failed", "waiting") or self.kind == "text"
