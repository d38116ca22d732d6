"""What every store says in the same words where it refuses something about a run."""

from __future__ import annotations

from bae.exceptions import JournalError


def has_ended(run_id: str) -> JournalError:
    """The error for a claim on a run that is over for good."""
    return JournalError(
        f"run {run_id!r} has ended, and is written no more",
        code="bae-run-ended",
        run_id=run_id,
        fix="read what it came to: graph.resume(run_id, …) hands it back as it stands; to do some "
        "of it again, fork it",
    )


def not_replaced(run_id: str, owner: str | None) -> JournalError:
    """The error for a run that another one cannot take the place of: `owner` is at work on it, or
    there are runs that share its lines."""
    if owner is not None:
        return JournalError(
            f"the run {run_id} is under way, owned by {owner}, and was not replaced",
            code="bae-run-owned",
            run_id=run_id,
            fix="wait for its end, or load the file into another journal",
        )
    return JournalError(
        f"the run {run_id} was not replaced: other runs share its lines",
        code="bae-run-exists",
        run_id=run_id,
        fix="delete the runs that were forked from it first, or load into another journal",
    )
