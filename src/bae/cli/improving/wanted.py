"""What `bae optimize` is to learn, and what came of it. `material.py` finds the examples for it,
`learning.py` does the work, `learnt_table.py` prints the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bae.cli.improving.deciding import PartOutcome, is_written
from bae.lm.policies.budget import Budget

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.lm import LM
    from bae.node import Node
    from bae.optimizer import Judge


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be learnt, from what and how."""

    graph: Graph[Any, Any]
    journal: str
    directory: Path
    lm: LM
    teacher: LM | None
    metric: Any
    optimizer: str
    classes: tuple[type[Node], ...]
    """The nodes that are to be learnt for."""
    without: tuple[str, ...] = ()
    """Runs that are left out, by their ids or how they begin."""
    with_evals: bool = False
    held_out: float = 0.3
    minimum: int = 10
    seed: int = 0
    concurrency: int = 4
    budget: Budget = field(default_factory=lambda: Budget(scope="--budget"))
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Those of the optimiser that were given."""
    force: bool = False
    certain: bool = False

    @property
    def judges(self) -> list[Judge]:
        """Language models that score answers."""
        from bae.optimizer import Judge

        given = self.metric
        metrics: Iterable[Any] = [given]
        if isinstance(given, Mapping):
            metrics = cast("Mapping[Any, Any]", given).values()
        return [each for each in metrics if isinstance(each, Judge)]

    @property
    def asked(self) -> list[LM | str]:
        """Who is asked: the models that learn, their teacher and the judges."""
        from bae.optimizer.calls import student_for

        learning = [student_for(cls, self.lm) for cls in self.classes]
        teacher = [] if self.teacher is None else [self.teacher]
        return [*learning, *teacher, *(judge.lm for judge in self.judges)]


@dataclass(slots=True)
class Misfit:
    """An artefact in the directory that does not fit its node, and why."""

    file: Path
    why: str
    stays: bool = True
    """Whether it is there still: nothing was written in its place."""


@dataclass(slots=True)
class Learnt:
    """What came of it, as far as it went."""

    examples: int = 0
    train: int = 0
    held_out: int = 0
    repeated: int = 0
    """Examples that were to be held out, and ask what was asked before."""
    from_evals: int = 0
    """Examples from runs of `bae eval`, which are left out."""
    without: int = 0
    """Examples from runs that were named to be left out."""
    parts: list[PartOutcome] = field(default_factory=list[PartOutcome])
    files: list[Path] = field(default_factory=list[Path])
    misfits: list[Misfit] = field(default_factory=list[Misfit])
    done: bool = False
    """Whether every node was come to."""
    out_of_budget: str = ""

    @property
    def unwritten(self) -> list[PartOutcome]:
        """What was learnt and not written, though the same command can be told to."""
        return [
            part
            for part in self.parts
            if not part.written and is_written(part.verdict, force=True, certain=False)
        ]
