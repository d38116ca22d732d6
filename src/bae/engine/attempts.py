"""Counts the attempts at the current step of a run, and the processes that died at this step."""

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
    """The attempts at a run since its last progress, as stored in the journal."""

    tries: int = 0
    """The number of attempts."""
    deaths: int = 0
    """The number of these attempts whose process died, including the last attempt."""
    died: bool = False
    """Whether the process of the last attempt died."""
    resumed: int = 0
    """How often the run was resumed in total."""
    step: int = 0
    """The number of the current step."""


async def attempts_of(journal: Journal, run_id: str) -> Attempts:
    """Count the attempts at an interrupted run."""
    stored = await journal.read(run_id)
    resumes = resumes_since_progress = 0
    has_progress = False
    for line in stored.lines:
        if line.kind == RunResumed.__name__:
            resumes, resumes_since_progress = resumes + 1, resumes_since_progress + 1
        elif line.kind in _PROGRESS:
            resumes_since_progress, has_progress = 0, True
    # A process that hands over a run gives up its claim. A dead process is still the owner.
    died = stored.info.is_interrupted() and stored.info.owner is not None
    # The attempt that made progress is the first attempt at the next step.
    numbers = range(resumes - resumes_since_progress, resumes + 1)
    noted_deaths = {number for number in numbers if f"{DEATH}{number}" in stored.answers}
    deaths = len(noted_deaths | {resumes}) if died else len(noted_deaths)
    step = stored.lines[-1].step if stored.lines else 0
    return Attempts(resumes_since_progress + has_progress, deaths, died, resumes, step)


async def note_death(journal: Journal, run_id: str, attempts: Attempts) -> None:
    """Store that the process of the last attempt died. If several workers store it, it counts
    once."""
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
    except JournalError as refusal:
        if refusal.code not in ("bae-run-owned", "bae-run-taken", "bae-run-ended"):
            raise
