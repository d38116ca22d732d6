"""Command lines that are printed to be copied: how to go on with a run, and how to answer it. They
name the module and the journal as the command at hand did."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bae.markers import OpenGate


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What the command line named: the module, None where pyproject.toml says it, the journal, None
    where none is kept, the language model, None where it is left to the machine, and the directory
    of what it is taught by, None where it is not."""

    module: str | None
    journal: str | None
    lm: str | None = None
    optimized: str | None = None

    def resume(self, run_id: str, *more: str) -> str:
        """The command that goes on with a run."""
        return self._line("resume", [short(run_id)], *more)

    def answer(self, run_id: str, gate: OpenGate, *, among: int = 1) -> str:
        """The command that answers a gate; `among` is how many of the same name are open."""
        from bae.cli.start.errors import example_of

        name = gate.place if among == 1 else gate.address
        return self.answer_with(run_id, name, example_of(gate.node_type, gate.field_name))

    def answer_with(self, run_id: str, gate: str | None, value: str | None) -> str:
        """The command that answers a gate with a value; without one, it asks for it. Without a gate
        it is the one that is open."""
        given = [each for each in (gate, value) if each is not None]
        return self._line("answer", [short(run_id), *given])

    def show(self, run_id: str) -> str:
        """The command that tells what happened in a run, for which no module is needed."""
        return replace(self, module=None, lm=None, optimized=None)._line("show", [short(run_id)])

    def _line(self, command: str, given: list[str], *more: str) -> str:
        from bae.cli.journals import default

        # What begins like an option is none after a --, where nothing else is one either.
        last = ["--", *given] if any(each.startswith("-") for each in given) else []
        line = ["bae", "runs", command, *([] if last else given), *more]
        if self.lm is not None:
            line += ["--lm", self.lm]
        if self.optimized is not None:
            line += ["--optimized", self.optimized]
        if self.module is not None:
            line += ["-m", self.module]
        if self.journal is not None and Path(self.journal) != default():
            line += ["-j", self.journal]
        return shlex.join([*line, *last])


def short(run_id: str) -> str:
    """An id as it is typed: of one that was made up, how it begins will do."""
    return run_id[:8] if re.fullmatch("[0-9a-f]{24}", run_id) else run_id
