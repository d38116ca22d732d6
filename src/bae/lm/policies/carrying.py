"""Budgets around a run that is resumed: what the run has spent before is charged to them, once, so
that an interruption does not give it all of the budget again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bae.lm.policies.charging import in_force
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.journal.running.recording import Recording
    from bae.lm.policies.budget import Budget
    from bae.run import Run


def carry_over(run: Run, past: Recording | None = None) -> None:
    """Charge what a run has used and how long it took to the budgets it is under from here on.

    A budget that was around the run when it spent that, in this process, has it already.
    """
    used, seconds = (Usage(), 0.0) if past is None else (past.usage, past.seconds)
    for budget in _around(run):
        budget.carry(run.run_id, used, seconds)


def _around(run: Run) -> Iterator[Budget]:
    yield from in_force()
    lm = run.lm
    if lm is None or isinstance(lm, str):
        return
    from bae.lm.backend import Backend
    from bae.lm.policies.budget import Budgeted
    from bae.lm.policies.policy import Policy

    inside: Backend | object = lm
    while isinstance(inside, Policy):
        if isinstance(inside, Budgeted):
            yield from inside.budget.line()
        inside = inside.inner
