"""Lets the runs of a thread wait for each other, in all processes that share a journal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from bae.exceptions import BaeError, JournalError, add_note
from bae.journal.store import Journal
from bae.journal.stored_runs import OPEN, RunInfo
from bae.turns import TurnOptions

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.run import RunOptions

_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.2


def queue_of(journal: Journal, thread: str) -> asyncio.Lock:
    """Return the lock for the runs of this event loop that wait for a turn in a thread. Only the
    run that has the lock checks whether the thread is free. The other runs follow in order."""
    locks = _queues.setdefault(journal, WeakValueDictionary())
    key = thread, id(asyncio.get_running_loop())
    lock = locks.get(key)
    if lock is None:
        lock = locks[key] = asyncio.Lock()
    return lock


_Queues = WeakValueDictionary[tuple[str, int], asyncio.Lock]
_queues: WeakKeyDictionary[Journal, _Queues] = WeakKeyDictionary()


async def wait_for_turn(
    graph: Graph[Any, Any],
    journal: Journal,
    turn: TurnOptions,
    options: RunOptions,
    create: Callable[[float], Awaitable[None]],
) -> None:
    """Create a run of a thread as soon as no other run of the thread is running or waiting.
    `create` gets the current time. While the thread has such a run, `create` must raise
    `bae-thread-busy`."""
    until = monotonic() + turn.busy_timeout
    queue = queue_of(journal, turn.thread) if turn.busy == "wait" else None
    if queue is not None:
        try:
            async with asyncio.timeout(turn.busy_timeout):
                await queue.acquire()
        except TimeoutError:
            raise late_in_queue(turn) from None
    try:
        while True:
            try:
                await create(time())
                return
            except JournalError as error:
                if error.code != "bae-thread-busy":
                    raise
            await _free_thread(graph, journal, turn, options, until)
    finally:
        if queue is not None:
            queue.release()


async def _free_thread(
    graph: Graph[Any, Any], journal: Journal, turn: TurnOptions, options: RunOptions, until: float
) -> None:
    """Wait until no other run of the thread is running or waiting. Resume an interrupted run, or
    cancel it if the options of the turn say so. With `busy="cancel"`, cancel a run in progress or a
    parked run. Otherwise raise `bae-thread-busy` if the other run is parked, or has not ended in
    time."""
    pause = _FIRST_PAUSE
    while (busy := await _open_run(journal, turn.thread)) is not None:
        standing = busy.standing()
        cancels_busy = turn.busy == "cancel"
        if standing == "interrupted":
            if turn.interrupted == "cancel" or (turn.interrupted is None and cancels_busy):
                await journal.cancel(busy.run_id)
            else:
                await _resume(graph, journal, busy, options)
            continue
        if cancels_busy:
            try:
                await journal.cancel(busy.run_id, timeout=max(0.1, until - monotonic()))
            except JournalError as error:
                if error.code == "bae-cancel-timeout":
                    error.fix = "wait longer, with a busy_timeout: code that does not await cannot "
                    error.fix += "be stopped"
                raise
            continue
        if standing == "waiting" or turn.busy == "refuse" or monotonic() >= until:
            raise thread_is_busy(busy, turn)
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)


async def _open_run(journal: Journal, thread: str) -> RunInfo | None:
    """Return the run of the thread that is running or waiting, or None."""
    for status in OPEN:
        infos = await journal.runs(thread=thread, status=status, limit=1)
        if infos:
            return infos[0]
    return None


async def _resume(
    graph: Graph[Any, Any], journal: Journal, busy: RunInfo, options: RunOptions
) -> None:
    """Resume an interrupted turn before the next turn begins."""
    from bae.journal.resume import resume

    resume_options = options._replace(max_iters=None, turn=None, metadata={})
    try:
        await resume(graph, busy.run_id, resume_options, journal, None)
    except Exception as error:
        other_was_first = ("bae-run-owned", "bae-run-taken", "bae-run-ended", "bae-run-unknown")
        if not isinstance(error, JournalError) or error.code not in other_was_first:
            await _raise_if_open(journal, busy, error)


async def _raise_if_open(journal: Journal, busy: RunInfo, error: Exception) -> None:
    """Raise the error of a turn that could not be resumed and is still open. If the turn has
    failed, return: the next turn can begin, and does not see the failed turn."""
    if (await journal.info(busy.run_id)).status not in OPEN:
        return
    add_note(error, f"the turn {busy.run_id} was interrupted, and has to be resumed first")
    if isinstance(error, BaeError):
        fix = f'cancel that turn: interrupted="cancel", or journal.cancel({busy.run_id!r})'
        error.fix = f"{error.fix}; or {fix}" if error.fix else fix
    raise error


def late_in_queue(turn: TurnOptions) -> JournalError:
    """Return the error for a run that waited too long behind other runs of this process."""
    return JournalError(
        f"the thread {turn.thread!r} is busy: other runs wait for a turn in it, and this one has "
        f"not had its turn within {turn.busy_timeout:g} s",
        code="bae-thread-busy",
        fix="wait longer, with a busy_timeout; or refuse messages while a turn is in progress, "
        'with busy="refuse"',
    )


def thread_is_busy(busy: RunInfo, turn: TurnOptions) -> JournalError:
    """Return the error for a new turn of a thread that the run `busy` occupies."""
    name, run_id = f"the thread {turn.thread!r}", busy.run_id
    cancel = f'cancel it: await journal.cancel({run_id!r}), or busy="cancel"'
    if busy.status == "waiting":
        questions = "; ".join(f"{gate.place}: {gate.question}" for gate in busy.waiting)
        message = f"{name} waits for a person: its run {run_id} asks {questions}"
        fix = f"answer it: graph.answer({run_id!r}, …); or {cancel}"
    else:
        message = f"{name} is busy: its run {run_id} is in progress"
        if turn.busy == "wait":
            message += f", and has not ended within {turn.busy_timeout:g} s"
        fix = f'wait for it, with busy="wait" and a busy_timeout; or {cancel}'
    return JournalError(message, run_id=run_id, busy_run=run_id, code="bae-thread-busy", fix=fix)
