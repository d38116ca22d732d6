"""The work of `bae optimize`: each node optimised, compared on the examples that were held out, and
written at once where it is better. `material.py` has the examples, `optimize.py` begins it, and
`learnt_table.py` prints what came of it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bae.cli.improving.deciding import (
    PARTS,
    Part,
    PartOutcome,
    counts_of,
    is_written,
    scores_of,
    verdict_on,
)
from bae.cli.improving.material import Material, material_for
from bae.cli.improving.wanted import Learnt, Misfit, Wanted
from bae.cli.live.wording import count

if TYPE_CHECKING:
    from bae.cli.improving.status import Status
    from bae.node import Node
    from bae.optimizer.artifacts import Artefact
    from bae.optimizer.calls import CallLog
    from bae.optimizer.comparing import Comparison
    from bae.optimizer.progress import Progress


class Learning:
    """Learns, node by node; `learnt` has what is done so far. A `quiet` one says nothing that is
    worth knowing by the way."""

    def __init__(
        self, wanted: Wanted, calls: CallLog, status: Status, *, quiet: bool = False
    ) -> None:
        self.wanted = wanted
        self.learnt = Learnt()
        self._calls = calls
        self._status = status
        self._quiet = quiet
        self._phases: set[tuple[str, str]] = set()

    async def learn(self) -> Learnt:
        """Do all of it. Raises where there is nothing to learn from."""
        with _notes_once(self._quiet):
            return await self._learnt()

    async def _learnt(self) -> Learnt:
        wanted, learnt = self.wanted, self.learnt
        self._status.update(f"reading {wanted.journal}", milestone=True)
        material = await material_for(wanted)
        learnt.train, learnt.held_out = len(material.train), len(material.held_out)
        learnt.examples = learnt.train + learnt.held_out
        learnt.repeated, learnt.from_evals = material.repeated, material.from_evals
        learnt.without = material.without
        learnt.parts = [part for parts in material.parts.values() for part in parts]
        for part in learnt.parts:
            self._status.inform(counts_of(part))
        learnable = {
            cls: parts
            for cls, parts in material.parts.items()
            if any(part.verdict != "too few examples" for part in parts)
        }
        there = self._there(learnable)
        for cls, parts in learnable.items():
            await self._learn(cls, parts, there.get(cls), material)
            if learnt.out_of_budget:
                return learnt
        learnt.done = True
        return learnt

    def _there(self, learnable: Collection[type[Node]]) -> dict[type[Node], Artefact]:
        """The artefacts that the directory has. One that does not fit is as good as none."""
        from bae.exceptions import ArtefactError
        from bae.optimizer.artifacts import artefacts_there

        misfits: dict[type[Node], ArtefactError] = {}
        there = artefacts_there(self.wanted.graph, self.wanted.directory, misfits)
        for cls, error in misfits.items():
            self.learnt.misfits.append(Misfit(Path(error.file), error.message))
            becomes = (
                "it is replaced where something better than the plain prompt is learnt"
                if cls in learnable
                else "it stays as it is, since nothing is learnt for it"
            )
            self._note(f"{error.message}; {becomes}")
        return there

    async def _learn(
        self,
        cls: type[Node],
        parts: list[PartOutcome],
        there: Artefact | None,
        material: Material,
    ) -> None:
        from bae.exceptions import BudgetError
        from bae.optimizer import aoptimize_node, artefact_of

        wanted, held = self.wanted, material.held_out
        try:
            predictor = await aoptimize_node(
                cls,
                material.train,
                wanted.metric,
                lm=wanted.lm,
                teacher=wanted.teacher,
                optimizer=wanted.optimizer,
                budget=wanted.budget,
                seed=wanted.seed,
                calls=self._calls,
                concurrency=wanted.concurrency,
                progress=self._progress,
                minimum=wanted.minimum,
                **wanted.options,
            )
            found = artefact_of(predictor)
            compared = await self._compared(cls, predictor, held)
            before = await self._scores_of(cls, found, there, held)
        except BudgetError as error:
            self.learnt.out_of_budget = error.message
            return
        for part in parts:
            if part.verdict != "too few examples":
                notes = found.made.notes if found.made is not None else []
                part.notes += [each for each in notes if each.startswith(f"{part.part}: ")]
                self._decide(part, found, there, compared.get(part.part), before.get(part.part))
        self._write(cls, found, there, [part for part in parts if part.written])

    async def _compared(
        self, cls: type[Node], predictor: Any, held: Sequence[Any], which: str = ""
    ) -> dict[str, Comparison]:
        from bae.optimizer import compare

        wanted = self.wanted
        found = await compare(
            cls,
            predictor,
            held,
            wanted.metric,
            lm=wanted.lm,
            calls=self._calls,
            concurrency=wanted.concurrency,
            budget=wanted.budget,
            progress=partial(self._progress, which=which),
            graph=wanted.graph,
        )
        return {each.part: each for each in found}

    async def _scores_of(
        self, cls: type[Node], found: Artefact, there: Artefact | None, held: Sequence[Any]
    ) -> dict[str, Any]:
        """What the artefact that is there scores, where it is another than what was found."""
        from bae.optimizer import predictor_of

        if there is None:
            return {}
        others = {part: None for part in PARTS if getattr(there, part) == getattr(found, part)}
        other = there.model_copy(update=others)
        if other.fill is None and other.choice is None:
            return {}
        compared = await self._compared(cls, predictor_of(cls, other), held, ", what is there")
        return {part: each.after for part, each in compared.items()}

    def _decide(
        self,
        part: PartOutcome,
        found: Artefact,
        there: Artefact | None,
        comparison: Comparison | None,
        before: Any,
    ) -> None:
        learned = getattr(found, part.part)
        part.comparison, part.there = comparison, before
        if learned is None:
            part.verdict = "nothing learnt"
        elif there is not None and getattr(there, part.part) == learned:
            part.verdict = "there already"
        else:
            part.verdict = verdict_on(comparison, before, held_out=part.held_out)
        part.written = is_written(
            part.verdict, force=self.wanted.force, certain=self.wanted.certain
        )

    def _write(
        self,
        cls: type[Node],
        found: Artefact,
        there: Artefact | None,
        parts: Sequence[PartOutcome],
    ) -> None:
        """Write what was found better. A part that was there and is not replaced stays."""
        from bae.optimizer import save_artefacts

        if not parts:
            return
        kept: dict[Part, Any] = {part: getattr(there, part, None) for part in PARTS}
        kept |= {each.part: getattr(found, each.part) for each in parts}
        made = found.made
        if made is not None:
            scores: dict[Part, Any] = {part.part: scores_of(part) for part in parts}
            made = made.model_copy(update={"held_out": scores})
            for part in PARTS:
                if part not in scores:
                    stays = None if kept[part] is None else there
                    made = made.keeping(part, stays and stays.made)
        artefact = found.model_copy(update={**kept, "made": made})
        files = save_artefacts({cls: artefact}, self.wanted.directory, among=self.wanted.graph)
        self.learnt.files += files
        for each in self.learnt.misfits:
            each.stays = each.stays and each.file not in files

    def _note(self, text: str) -> None:
        if not self._quiet:
            self._status.say(f"note: {text}")

    def _progress(self, progress: Progress, which: str = "") -> None:
        place = f"{progress.node} {progress.part}{which}"
        if progress.phase == "skipped":  # which the outcome says
            return
        if progress.note:
            self._note(f"{place}: {progress.note}")
            return
        said = [f"{place}: {progress.phase}", count(progress.calls, "call")]
        best = progress.best
        if progress.phase == "compared" and best is not None:
            # Another score than that of the candidates, which were chosen by theirs.
            said[0] += f": {best:.2f} on what was held out"
            best = None
        if earlier := self._calls.statistics().earlier.calls:
            said.append(f"{earlier:,} kept from before")
        if best is not None:
            said.append(f"best {best:.2f}")
        # Some optimisers go to and fro between phases, hundreds of times.
        phase = place, progress.phase
        new = phase not in self._phases or progress.phase in ("done", "compared")
        self._phases.add(phase)
        self._status.update(" · ".join(said), milestone=new)


@contextmanager
def _notes_once(quiet: bool) -> Generator[None]:
    """Leave out of the log what progress says as well, notes about a part of a node; and where it
    is to be quiet all notes."""
    log = logging.getLogger("bae.optimizer")

    def is_new(record: logging.LogRecord) -> bool:
        said = record.args
        about_part = isinstance(said, tuple) and len(said) == 3 and said[1] in PARTS
        return not about_part and not (quiet and record.levelno <= logging.WARNING)

    log.addFilter(is_new)
    try:
        yield
    finally:
        log.removeFilter(is_new)
