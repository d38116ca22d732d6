"""Command lines that are printed to be copied: how to go on with a run, and how to answer it. They
name the module and the journal as the command at hand did."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bae.markers import OpenGate


@dataclass(frozen=True, slots=True)
class Said:
    """What the command line named: the module, None where pyproject.toml says it, the journal, None
    where none is kept, and the language model, None where it is left to the machine."""

    module: str | None
    journal: str | None
    lm: str | None = None

    def resume(self, run_id: str, *more: str) -> str:
        """The command that goes on with a run."""
        return self._line("bae", "runs", "resume", short(run_id), *more)

    def answer(self, run_id: str, gate: OpenGate, *, among: int = 1) -> str:
        """The command that answers a gate; `among` is how many of the same name are open."""
        from bae.cli.start_errors import example_of

        name = gate.place if among == 1 else gate.address
        return self.answer_with(run_id, name, example_of(gate.node_type, gate.field_name))

    def answer_with(self, run_id: str, gate: str, value: str) -> str:
        """The command that answers a gate with a value."""
        return self._line("bae", "runs", "answer", short(run_id), gate, value)

    def _line(self, *words: str) -> str:
        from bae.cli.journals import DEFAULT

        line = [*words]
        if self.lm is not None:
            line += ["--lm", self.lm]
        if self.module is not None:
            line += ["-m", self.module]
        if self.journal is not None and Path(self.journal) != DEFAULT:
            line += ["-j", self.journal]
        return shlex.join(line)


def short(run_id: str) -> str:
    """An id as it is typed: of one that was made up, how it begins will do."""
    return run_id[:8] if re.fullmatch("[0-9a-f]{24}", run_id) else run_id
