"""Cancel a run from any process.

A request to cancel is stored beside the run's answers to gates. The process that works on the run
looks there for requests.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from time import monotonic, time
from typing import Any, Final, Literal

from bae.exceptions import BaeError, JournalError, RunCancelled
from bae.journal.decoder import off_loop, read_history
from bae.journal.store import Journal
from bae.journal.stored_runs import CANCEL, Claim, Line, RunInfo, StoredRun
from bae.tasks import finish_despite_cancel, wait_until_ended

LOOK_INTERVAL: Final = 0.5
"""Seconds until a run first looks for a request to cancel it. This is also the shortest pause
between two looks."""
_LOOKS_A_SECOND: Final = 1000
"""The greatest number of looks in one second, for all runs of this process together."""
_REPEAT_AFTER: Final = 1.0
"""Seconds after which a request is repeated, because a process that resumes the run ignores the
earlier requests."""
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.2
_TAKEN_CODES: Final = ("bae-run-owned", "bae-run-taken", "bae-run-ended")
"""The errors for a run that another process has claimed or ended in the meantime."""


async def cancel_run(journal: Journal, run_id: str, timeout: float) -> RunInfo:
    """Cancel a run and return its entry. `Journal.cancel` has the details."""
    info = await journal.info(run_id)
    until, requested_at, pause = monotonic() + timeout, -_REPEAT_AFTER, _FIRST_PAUSE
    while info.status not in ("ended", "failed", "cancelled"):
        if info.standing() != "running":
            try:
                await end_unowned(journal, info)
            except JournalError as error:
                if error.code not in _TAKEN_CODES:
                    raise
        else:
            if monotonic() - requested_at >= _REPEAT_AFTER:
                await _request(journal, run_id)
                requested_at = monotonic()
            if timeout <= 0:
                return info
            if monotonic() >= until:
                raise JournalError(
                    f"the run {run_id} has not stopped within {timeout:.3g} s: {info.owner} works "
                    "on it, and has the request to cancel it",
                    run_id=run_id,
                    code="bae-cancel-timeout",
                    fix="wait longer, with timeout=60: code that does not await cannot be stopped, "
                    "and an owner on another machine may be gone until its lease is over",
                )
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        info = await journal.info(run_id)
    return info


def count_requests(answers: Mapping[str, str]) -> int:
    """Count the requests to cancel a run among the run's `answers`."""
    return sum(address.startswith(CANCEL) for address in answers)


async def _request(journal: Journal, run_id: str) -> None:
    number = count_requests(await journal.answers(run_id))
    while not await journal.answer(run_id, f"{CANCEL}{number}", "true"):
        number += 1
    for watch, watched_run_id in [*_watches.items()]:
        if watched_run_id == run_id:
            watch.look_now()


async def end_unowned(
    journal: Journal,
    info: RunInfo,
    status: Literal["cancelled", "failed"] = "cancelled",
    failure: BaeError | None = None,
) -> None:
    """End a run that no process works on. `status` is its new status, and `failure` the error that
    is stored."""
    from bae.journal.resume import give_up_claim

    run_id, claims = info.run_id, list[Claim]()
    try:
        claim = await finish_despite_cancel(journal.claim(run_id), claims.append)
        stored = await journal.read(run_id)
        lines = await off_loop(len(stored.lines), _make_last_lines, stored, claim, status, failure)
    except JournalError as error:
        if error.code == "bae-thread-busy":  # a queued run whose thread another run occupies
            await journal.replace([_mark_cancelled(await journal.read(run_id))])
            return
        if not claims or error.code != "bae-journal-damaged":
            if claims:
                await give_up_claim(journal, claims[0], info, error)
            raise
        claim, lines = claims[0], []  # write no line after lines that cannot be read
    except BaseException as error:
        if claims:
            await give_up_claim(journal, claims[0], info, error)
        raise
    why = "" if failure is None else f"[{failure.code}] {failure.message}"
    await finish_despite_cancel(journal.release(claim, status, lines, error=why))


def _mark_cancelled(stored: StoredRun) -> StoredRun:
    return replace(stored, info=replace(stored.info, status="cancelled", waiting=()))


def _make_last_lines(
    stored: StoredRun, claim: Claim, outcome: str, error: BaeError | None
) -> list[Line]:
    """Make the lines for a run that is resumed and ended at once. A run without lines gets none."""
    n, now = len(stored.lines), time()
    if not n:
        return []
    step = len([visited for visited in read_history(stored).run.trace if visited.is_complete])
    resumed = json.dumps({"owner": claim.owner, "changes": []})
    end: dict[str, Any] = {"outcome": outcome, "gates": []}
    if error is not None:
        name = type(error).__name__
        end["error"] = {"type": name, "code": error.code, "message": error.message}
    ended = json.dumps(end)
    return [
        Line(n, "RunResumed", now, "", step, resumed),
        Line(n + 1, "RunEnded", now, "", step, ended),
    ]


class CancelWatch:
    """Looks for requests to cancel a run, and cancels the run's task.

    Create the watch in the task of the run. The watch ignores the first `known` requests, which
    were stored before this process claimed the run. A run that ends before the first look costs
    only a timer.
    """

    __slots__ = (
        "_before",
        "_has_cancelled",
        "_journal",
        "_known",
        "_looking",
        "_loop",
        "_run_id",
        "_run_task",
        "_timer",
        "_wake",
    )

    def __init__(self, journal: Journal, run_id: str, known: int) -> None:
        self._journal, self._run_id, self._known = journal, run_id, known
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._run_task, self._before = task, task.cancelling()
        self._wake: asyncio.Event | None = None
        self._looking: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(LOOK_INTERVAL, self._begin)
        self._has_cancelled = False
        _watches[self] = run_id

    def look_now(self) -> None:
        """Look for a request at once. Any thread may call this."""
        with suppress(RuntimeError):  # a closed loop has no runs
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if self._wake is not None:
            self._wake.set()
        elif self in _watches:
            self._timer.cancel()
            self._wake = asyncio.Event()
            self._looking = self._loop.create_task(self._look(self._wake))

    async def _look(self, wake: asyncio.Event) -> None:
        while True:
            wake.clear()
            try:
                answers = await self._journal.answers(self._run_id)
            except JournalError:  # the run itself reports this error
                answers = {}
            if count_requests(answers) > self._known:
                self._has_cancelled = True
                self._run_task.cancel()
                return
            pause = max(LOOK_INTERVAL, len(_watches) / _LOOKS_A_SECOND)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await wake.wait()

    async def stop(self) -> None:
        """Stop looking for requests."""
        _watches.pop(self, None)
        self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
            await wait_until_ended([self._looking])

    def explain(self, failure: BaseException | None) -> BaseException | None:
        """Return the error to raise for a run that failed with `failure`. It is `RunCancelled` if a
        request is the only reason for the cancellation, otherwise `failure`. Call this after
        `stop`."""
        if not self._has_cancelled:
            return failure
        self._has_cancelled = False
        is_only_cause = self._run_task.uncancel() <= self._before
        if not is_only_cause or not isinstance(failure, asyncio.CancelledError):
            return failure
        return cancelled_by_request(self._run_id)


def cancelled_by_request(run_id: str) -> BaeError:
    """Return the error of a run that a request has cancelled."""
    return RunCancelled(
        f"the run {run_id} was cancelled by a request",
        run_id=run_id,
        fix=f"graph.resume({run_id!r}, …) continues it",
    )


_watches: dict[CancelWatch, str] = {}
"""The run id of each watch in this process."""
