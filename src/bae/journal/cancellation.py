"""Cancelling a run, in any process. A request is stored with the answers to gates, and the process
that works on the run looks for it."""

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

LOOKED_EVERY: Final = 0.5
"""Seconds between two looks for a request, for a run that takes longer than this."""
_LOOKS_A_SECOND: Final = 1000
"""How often a process looks in one second, for all of its runs together."""
_ASKED_AGAIN: Final = 1.0
"""After how many seconds a request is repeated: another process may have resumed the run since."""
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.2
_TAKEN: Final = ("bae-run-owned", "bae-run-taken", "bae-run-ended")


async def cancel_run(journal: Journal, run_id: str, timeout: float) -> RunInfo:
    """Cancel a run and return its entry; see `Journal.cancel`."""
    info = await journal.info(run_id)
    until, asked_at, pause = monotonic() + timeout, -_ASKED_AGAIN, _FIRST_PAUSE
    while info.status not in ("ended", "failed", "cancelled"):
        if info.standing() != "running":
            try:
                await end_unowned(journal, info)
            except JournalError as error:
                if error.code not in _TAKEN:
                    raise
        else:
            if monotonic() - asked_at >= _ASKED_AGAIN:
                await _request(journal, run_id)
                asked_at = monotonic()
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
    """The number of requests to cancel a run among its answers."""
    return sum(address.startswith(CANCEL) for address in answers)


async def _request(journal: Journal, run_id: str) -> None:
    number = count_requests(await journal.answers(run_id))
    while not await journal.answer(run_id, f"{CANCEL}{number}", "true"):
        number += 1
    for watch, watched in [*_watches.items()]:
        if watched == run_id:
            watch.look_now()


async def end_unowned(
    journal: Journal,
    info: RunInfo,
    status: Literal["cancelled", "failed"] = "cancelled",
    failure: BaeError | None = None,
) -> None:
    """End a run that no process works on, as cancelled or as failed with an error."""
    from bae.journal.resume import give_up_claim

    run_id, claims = info.run_id, list[Claim]()
    try:
        claim = await finish_despite_cancel(journal.claim(run_id), claims.append)
        stored = await journal.read(run_id)
        lines = await off_loop(len(stored.lines), _last_lines, stored, claim, status, failure)
    except JournalError as error:
        if error.code == "bae-thread-busy":  # it is queued, and another run has the thread
            await journal.replace([_cancelled(await journal.read(run_id))])
            return
        if not claims or error.code != "bae-journal-damaged":
            if claims:
                await give_up_claim(journal, claims[0], info, error)
            raise
        claim, lines = claims[0], []  # no line can be written after lines that cannot be read
    except BaseException as error:
        if claims:
            await give_up_claim(journal, claims[0], info, error)
        raise
    why = "" if failure is None else f"[{failure.code}] {failure.message}"
    await finish_despite_cancel(journal.release(claim, status, lines, error=why))


def _cancelled(stored: StoredRun) -> StoredRun:
    return replace(stored, info=replace(stored.info, status="cancelled", waiting=()))


def _last_lines(
    stored: StoredRun, claim: Claim, outcome: str, error: BaeError | None
) -> list[Line]:
    """The lines of a run that is resumed and ended at once."""
    n, now = len(stored.lines), time()
    if not n:
        return []
    step = len([each for each in read_history(stored).run.trace if each.whole])
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
    """Looks for a request to cancel a run while this process works on the run, and cancels its
    task. A run that ends before the first look costs only a timer."""

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
        self._timer = self._loop.call_later(LOOKED_EVERY, self._begin)
        self._has_cancelled = False
        _watches[self] = run_id

    def look_now(self) -> None:
        """Look at once. May be called in any thread."""
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
            except JournalError:  # the run itself reports the problem of its journal
                answers = {}
            if count_requests(answers) > self._known:
                self._has_cancelled = True
                self._run_task.cancel()
                return
            pause = max(LOOKED_EVERY, len(_watches) / _LOOKS_A_SECOND)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await wake.wait()

    async def stop(self) -> None:
        """Stop looking."""
        _watches.pop(self, None)
        self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
            await wait_until_ended([self._looking])

    def explain(self, failure: BaseException | None) -> BaseException | None:
        """The error that the run failed with, once this has stopped."""
        if not self._has_cancelled:
            return failure
        self._has_cancelled = False
        is_only_cause = self._run_task.uncancel() <= self._before
        if not is_only_cause or not isinstance(failure, asyncio.CancelledError):
            return failure
        return cancelled_by_request(self._run_id)


def cancelled_by_request(run_id: str) -> BaeError:
    """The error of a run that was cancelled by a request."""
    return RunCancelled(
        f"the run {run_id} was cancelled by a request",
        run_id=run_id,
        fix=f"graph.resume({run_id!r}, …) continues it",
    )


_watches: dict[CancelWatch, str] = {}
"""The watches of this process, with the id of the run."""
