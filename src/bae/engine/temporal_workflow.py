"""The workflow of a run in Temporal. The workflow makes a worker begin or resume the run, and
sleeps while the run waits for a person."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from temporalio import workflow
from temporalio.common import RetryPolicy

_RECHECK: Final = 3600.0
"""Seconds after which a parked run is checked without a signal, since it may have been
cancelled."""
_LONGEST: Final = timedelta(days=3650)


@workflow.defn(name="bae.run")
class RunWorkflow:
    """One run, from its first attempt to its end."""

    def __init__(self) -> None:
        self._signals = 0

    @workflow.signal
    def wake(self) -> None:
        """Check the run now: it was submitted, or one of its gates was answered."""
        self._signals += 1

    @workflow.run
    async def run(self, run_id: str, graph: str, heartbeat: float) -> None:
        """Make workers carry out the run until it has ended."""
        while True:
            signals_before = self._signals
            outcome: dict[str, Any] = await workflow.execute_activity(
                "bae.carry_out",
                args=[run_id, graph],
                heartbeat_timeout=timedelta(seconds=heartbeat),
                start_to_close_timeout=_LONGEST,
                retry_policy=RetryPolicy(
                    initial_interval=timedelta(seconds=1),
                    backoff_coefficient=2.0,
                    maximum_interval=timedelta(seconds=60),
                ),
            )
            if outcome["kind"] == "over":
                return
            after = outcome["after"]
            wait = _RECHECK if after is None else min(max(after, 0.0) + 0.05, _RECHECK)
            with suppress(asyncio.TimeoutError):
                await workflow.wait_condition(
                    lambda signals_before=signals_before: self._signals != signals_before,
                    timeout=timedelta(seconds=wait),
                )
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(args=[run_id, graph, heartbeat])
