"""Runs of an evaluation that wait for a person: nobody is to be asked for them, so they do not stay
in the queue of those who answer. `case_runs.py` hands them over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bae.exceptions import GateError, JournalError, describe
from bae.tasks import finish_despite_cancel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bae.journal.store import Claim, Journal
    from bae.markers import OpenGate


def gate_met(gates: Sequence[OpenGate]) -> GateError:
    """The error of a case that waits for a person."""
    said = "; ".join(f"{gate.place}: {gate.question}" for gate in gates)
    return GateError(
        f"the run waits for a person: {said} (give the case its answers, as "
        f'"answers": {{"{gates[0].place}": …}})',
        gates=gates,
        fix="give the case answers, or evaluate an async answer=…",
    )


async def fail_parked(journal: Journal, run_id: str, error: GateError) -> None:
    """Have a run that waits stand as failed in its journal."""

    async def failed() -> None:
        claim: Claim = await journal.claim(run_id)
        await journal.release(claim, "failed", (), (), describe(error))

    try:
        # A claim that is never released would keep the run from other processes.
        await finish_despite_cancel(failed())
    except JournalError as raised:
        if raised.code not in ("bae-run-owned", "bae-run-ended"):  # somebody has answered it
            raise
