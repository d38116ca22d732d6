"""How often a run was tried at its current step, and how many processes died there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bae.exceptions import BaeError, JournalError
from bae.journal.cancellation import end_unowned
from bae.journal.stored_runs import DEATH
from bae.records import KINDS, RunResumed

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Journal

_PROGRESS: Final = {name for name, kind in KINDS.items() if kind.is_progress}


@dataclass(frozen=True, slots=True)
class Attempts:
    """The attempts at a run since it last made progress, as the journal has them."""

    tries: int = 0
    """The number of attempts."""
    deaths: int = 0
    """How many of these attempts ended because their process died, the last attempt included."""
    died: bool = False
    """Whether the process of the last attempt died."""
    resumed: int = 0
    """How often the run was resumed in total."""
    step: int = 0


async def attempts_of(journal: Journal, run_id: str) -> Attempts:
    """The attempts at an interrupted run."""
    stored = await journal.read(run_id)
    resumed = since = 0
    has_progress = False
    for line in stored.lines:
        if line.kind == RunResumed.__name__:
            resumed, since = resumed + 1, since + 1
        elif line.kind in _PROGRESS:
            since, has_progress = 0, True
    # A process that hands a run over gives up its claim; one that died is still its owner.
    died = stored.info.is_interrupted() and stored.info.owner is not None
    # The attempt that made progress is the first attempt at the next step.
    numbers = range(resumed - since, resumed + 1)
    noted = {number for number in numbers if f"{DEATH}{number}" in stored.answers}
    deaths = len(noted | {resumed}) if died else len(noted)
    step = stored.lines[-1].step if stored.lines else 0
    return Attempts(since + has_progress, deaths, died, resumed, step)


async def note_death(journal: Journal, run_id: str, attempts: Attempts) -> None:
    """Store that the process of the last attempt died. Of several workers, one stores it."""
    await journal.answer(run_id, f"{DEATH}{attempts.resumed}", "true")


async def end_poison(
    journal: Journal, run_id: str, graph: Graph[Any, Any], attempts: Attempts
) -> None:
    """End a run as failed because too many of its processes died."""
    error = BaeError(
        f"{attempts.deaths} processes died while they worked on step {attempts.step} of the run",
        run_id=run_id,
        code="bae-run-poisoned",
        fix="see what ends the process there: memory, a crash of native code, os._exit; then "
        f"graph.resume({run_id!r}, …) continues the run",
    )
    try:
        await end_unowned(journal, await journal.info(run_id), "failed", error)
    except JournalError as late:
        if late.code not in ("bae-run-owned", "bae-run-taken", "bae-run-ended"):
            raise
