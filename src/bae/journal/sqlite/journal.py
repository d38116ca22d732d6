"""`SQLiteJournal` stores runs in an SQLite file. Many runs and several processes can write the file
at once. `SQLJournal` is the base class of `SQLiteJournal` and `MemoryJournal`."""

from __future__ import annotations

import asyncio
import atexit
import os
import sqlite3
import threading
import weakref
from abc import abstractmethod
from asyncio import AbstractEventLoop, Future, get_running_loop
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

from bae.exceptions import JournalError
from bae.journal.sqlite.lease import Lease, SQLiteClaim, give_up
from bae.journal.sqlite.run_changes import add_run, release_run
from bae.journal.sqlite.runs import RunTables
from bae.journal.sqlite.schema import failure
from bae.journal.sqlite.writer import JournalReader, SQLiteWriter, WriteJob
from bae.journal.stored_runs import Claim, Line, ParkedGate, RunStatus, RunSummary, StoredRun
from bae.threads import in_thread_to_the_end

T = TypeVar("T")

AT_EXIT = 5.0
"""Seconds that an ending program waits for each thread of a journal to store pending lines."""
NOTED = 0.05
"""Seconds that a line from `note` waits at most to share the commit of a line from `append`."""
LOCKED = 0.1
"""Seconds that a reader waits for pending lines while another program locks the file. Then it reads
without them."""


class SQLJournal(RunTables):
    """Adds runs and their lines, and claims and releases runs, in the tables of a journal."""

    @abstractmethod
    def _note(self, work: WriteJob) -> None:
        """Store lines or files soon. No caller waits for them."""

    def create(self, run: StoredRun, *, claim: bool = True) -> Awaitable[Claim | None]:
        run_id = run.info.run_id

        def add(db: sqlite3.Connection) -> SQLiteClaim | None:
            fence = add_run(db, run, owner=self._owner if claim else None)
            return SQLiteClaim(run_id, self._owner, fence, len(run.lines)) if claim else None

        return self._ask(WriteJob(run_id, add))

    async def claim(self, run_id: str) -> Claim:
        return await self._ask(WriteJob(run_id, partial(self._claim_run, run_id=run_id)))

    def append(self, claim: Claim, lines: Sequence[Line]) -> Awaitable[None]:
        if not isinstance(claim, SQLiteClaim) or claim.owner != self._owner:
            return _failed_future(self._not_ours(claim))
        return self._ask(WriteJob(claim.run_id, None, claim, tuple(lines)))

    def note(self, claim: Claim, line: Line) -> None:
        if isinstance(claim, SQLiteClaim) and claim.owner == self._owner:
            self._note(WriteJob(claim.run_id, None, claim, (line,)))

    def put_files(self, claim: Claim, files: Mapping[str, bytes]) -> None:
        if isinstance(claim, SQLiteClaim) and claim.owner == self._owner:
            self._note(WriteJob(claim.run_id, None, claim, files=dict(files)))

    def release(
        self,
        claim: Claim,
        status: RunStatus,
        lines: Sequence[Line],
        waiting: Sequence[ParkedGate] = (),
        error: str = "",
        summary: RunSummary | None = None,
    ) -> Awaitable[None]:
        if not isinstance(claim, SQLiteClaim) or claim.owner != self._owner:
            return _failed_future(self._not_ours(claim))
        outcome = status, tuple(waiting), error, summary
        do = partial(release_run, fence=claim.fence, outcome=outcome)
        return self._ask(WriteJob(claim.run_id, do, claim, tuple(lines), ends=True))


class SQLiteJournal(SQLJournal):
    """Runs in an SQLite file: `journal = SQLiteJournal("runs.db")`, then
    `await graph.arun(start, journal=journal)`.

    An acknowledged record survives a power cut. Runs in progress at the same time share commits.
    Several journals may use one file, in this process and in others on the same machine. Keep the
    file on a local disk.

    - `durability="normal"` takes a fraction of the time. An acknowledged record then survives a
      crash of the process, but perhaps not a crash of the machine.
    - `lease` is the number of seconds for which a run is leased to one process. The process renews
      the lease three times per period. If the process dies, another process can take over the run
      when the lease is over, or at once if it can see the death.
    - `busy_timeout` is the number of seconds to wait for other programs that lock the file.
    - `secrets=True` stores secrets in clear text.
    - `prompts=False` leaves out prompts and raw answers.
    - `thinking=True` stores the thinking of models before an answer.

    The first use opens the file and starts two threads. Close the journal with
    `await journal.close()`, or write `async with SQLiteJournal(…) as journal:`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Literal["full", "normal"] = "full",
        secrets: bool = False,
        prompts: bool = True,
        thinking: bool = False,
        lease: float = 30.0,
        busy_timeout: float = 10.0,
    ) -> None:
        self.path = self.name = _check_path(path)
        if durability not in ("full", "normal"):
            raise ValueError(f'SQLiteJournal(durability={durability!r}): give "full" or "normal"')
        if not lease > 0 or not busy_timeout >= 0:
            raise ValueError(
                f"SQLiteJournal(lease={lease!r}, busy_timeout={busy_timeout!r}): lease must be"
                " positive, and busy_timeout not negative"
            )
        self.durability = durability
        self.secrets = secrets
        self.prompts = prompts
        self.thinking = thinking
        self.lease = lease
        self.busy_timeout = busy_timeout
        self._starting = threading.Lock()
        self._workers: tuple[StoreThread, StoreThread] | None = None
        """The thread that writes and the thread that reads. None before the first use."""
        self._closed = False

    def __repr__(self) -> str:
        return f"SQLiteJournal({self.path!r})"

    async def version(self) -> int | None:
        """Return a number that changes whenever any process writes the file."""
        _, reader = self._workers or self._start()
        future: Future[int] = get_running_loop().create_future()
        reader.put(WriteJob(do=_data_version, future=future))
        return await future

    async def close(self) -> None:
        """Store pending lines, give up the runs in progress, and close the file. Other processes
        can then resume these runs at once."""
        with self._starting:
            self._closed = True
        await in_thread_to_the_end(_stop, reversed(self._workers or ()))

    def _ask(self, work: WriteJob) -> Future[Any]:
        future = work.future = get_running_loop().create_future()
        try:
            writer, _ = self._workers or self._start(work.run_id)
        except JournalError as error:
            return _failed_future(error)
        writer.put(work)
        return future

    def _note(self, work: WriteJob) -> None:
        if self._workers:
            self._workers[0].note(work)

    async def _read(self, question: Callable[[sqlite3.Connection], T]) -> T:
        writer, reader = self._workers or self._start()
        if writer.has_unstored_lines():
            stored = self._ask(WriteJob())  # ends when all earlier lines are stored
            # A file that another program has locked can still be read.
            await asyncio.wait([stored], timeout=LOCKED if writer.is_locked else None)
        future: Future[T] = get_running_loop().create_future()
        reader.put(WriteJob(do=question, future=future))
        return await future

    def _start(self, run_id: str | None = None) -> tuple[StoreThread, StoreThread]:
        with self._starting:
            if self._closed:
                raise failure("bae-journal-closed", self.path, run_id)
            if not self._workers:
                lease = Lease(self.lease)
                writer = SQLiteWriter(self.path, lease, self.durability, self.busy_timeout)
                reader = JournalReader(self.path, self.busy_timeout)
                self._workers = StoreThread(self.path, writer), StoreThread(self.path, reader)
                self._owner = lease.owner
                for worker in self._workers:
                    weakref.finalize(self, worker.stop).atexit = False
        return self._workers


class StoreThread:
    """A thread that passes all queued jobs at once to a writer or a reader. The thread runs until
    `stop` is called or the program ends. Forked children cannot use it."""

    def __init__(self, path: str, desk: SQLiteWriter | JournalReader) -> None:
        if path in _inherited:
            raise failure("bae-journal-forked", path)
        self.path = path
        self.desk = desk
        self.queue: deque[WriteJob] = deque()
        self.over = ""
        """The error code with which further jobs are refused. Empty while jobs are served."""
        self._busy = self._asleep = self._urgent = self._gathering = self._stopping = False
        self.is_locked = False
        """Whether the last jobs were not stored because another program has locked the file."""
        self._crowded = False
        """Whether several callers waited for the last jobs. If so, the next callers share a
        transaction too: when 100 runs take a step, this makes one commit instead of five."""
        # The thread wakes when this lock is released, which is by far the cheapest signal.
        self._wake = threading.Lock()
        self._wake.acquire()
        name = f"bae {type(desk).__name__} {path}"
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        _alive.add(self)
        self.thread.start()

    def put(self, work: WriteJob) -> None:
        """Queue a job that a caller waits for."""
        self.note(work)
        if not self._crowded or work.future is None:
            self._hurry()
        elif not self._gathering:  # callers in one turn of the event loop share a commit
            self._gathering = True
            work.future.get_loop().call_soon(self._hurry)

    def note(self, work: WriteJob) -> None:
        """Queue a job that no caller waits for. The job may wait for the next job of `put`. If the
        thread has ended, refuse the job."""
        self.queue.append(work)
        if self._asleep:
            self._awaken()
        if self.over:
            self._refuse_rest()

    def has_unstored_lines(self) -> bool:
        """Whether some lines may not be stored yet, because jobs are queued or in progress."""
        return bool(self.queue or self._busy) and not self.over

    def stop(self) -> None:
        """Let the thread finish the queue, close its connection and end."""
        self._stopping = True
        self._awaken()

    def _hurry(self) -> None:
        self._urgent = True
        self._awaken()

    def _awaken(self) -> None:
        if self._wake.locked():
            try:  # noqa: SIM105 - the plain form is faster
                self._wake.release()
            except RuntimeError:  # another thread has just released it
                pass

    def _run(self) -> None:
        try:
            while self.queue or not self._stopping:
                self._wait()
                self._busy = True
                self._serve_queued()
                self._busy = False
        finally:
            self.desk.close()
            self.over = "bae-journal-closed"
            self._refuse_rest()

    def _wait(self) -> None:
        """Wait for a job, or until the lease must be renewed. Jobs of `note` wait up to NOTED
        seconds for other jobs. For NOTED seconds after the last job, a job of `note` does not wake
        the thread. This saves a tenth of the time of 100 runs at once."""
        renewal = self.desk.wait()
        if self._urgent or self._stopping or not renewal:
            return
        if self._wake.acquire(timeout=NOTED if renewal < 0 else min(NOTED, renewal)) or self.queue:
            return
        self._asleep = True
        if not self.queue and not self._stopping:
            self._wake.acquire(timeout=self.desk.wait())
        self._asleep = False
        if self.queue and not (self._urgent or self._stopping):
            self._wake.acquire(timeout=NOTED)

    def _serve_queued(self) -> None:
        self._urgent = self._gathering = False
        batch: list[WriteJob] = []
        while self.queue:
            batch.append(self.queue.popleft())
        if batch or not self.desk.wait():
            self.desk.serve(batch)
            if batch:
                codes = [getattr(work.error, "code", "") for work in batch]
                self.is_locked = "bae-journal-locked" in codes
            self._report(batch)

    def _report(self, batch: Sequence[WriteJob]) -> None:
        """Pass the results of jobs to the event loops of the callers."""
        by_loop: dict[AbstractEventLoop, list[WriteJob]] = {}
        for work in batch:
            if work.future is not None:
                by_loop.setdefault(work.future.get_loop(), []).append(work)
        self._crowded = any(len(works) > 1 for works in by_loop.values())
        for loop, works in by_loop.items():
            try:  # noqa: SIM105 - the plain form is faster
                loop.call_soon_threadsafe(settle, works, self.put)
            except RuntimeError:  # a closed loop has no callers
                pass

    def _refuse_rest(self) -> None:
        while self.queue:
            try:
                work = self.queue.popleft()
            except IndexError:
                return
            work.error = failure(self.over, self.path, work.run_id)
            self._report([work])


def settle(works: Sequence[WriteJob], put: Callable[[WriteJob], None]) -> None:
    """Pass the results of jobs to the callers. Call this in the event loop of the callers."""
    for work in works:
        future, value, error = work.future, work.value, work.error
        assert future is not None
        claimed = isinstance(value, SQLiteClaim)
        claim: SQLiteClaim | None = value if claimed else work.claim
        if work.ends:
            claim = None
        if error is None and claim is not None and claim.lost is not None:
            error = claim.lost()
        if future.done():  # the caller was cancelled
            if claimed and error is None:
                release = partial(give_up, fences=[value.fence])
                put(WriteJob(value.run_id, release, value, ends=True))
        elif error is not None:
            future.set_exception(error)
            future.exception()  # prevents a warning about an error that no caller reads
        else:
            future.set_result(value)


def _data_version(db: sqlite3.Connection) -> int:
    # SQLite counts the changes for each connection, so a new connection must change the result.
    return id(db) ^ int(db.execute("pragma data_version").fetchone()[0])


def _failed_future(error: BaseException) -> Future[Any]:
    future: Future[Any] = get_running_loop().create_future()
    future.set_exception(error)
    future.exception()  # prevents a warning about an error that no caller reads
    return future


def _stop(workers: Iterable[StoreThread], seconds: float | None = None) -> None:
    # The last connection that closes moves the log into the file. Close one after the other: two
    # connections that close at the same moment would each leave the log to the other.
    for worker in workers:
        worker.stop()
        worker.thread.join(seconds)


def _check_path(path: str | os.PathLike[str]) -> str:
    path = os.fspath(path)
    if path in ("", ":memory:"):
        raise ValueError(f"SQLiteJournal({path!r}) has no file: use MemoryJournal() instead")
    real_path = os.path.realpath(path)
    folder = os.path.dirname(real_path)
    if os.path.isdir(folder) and not os.path.isdir(real_path):
        return real_path
    why = "it is a folder" if os.path.isdir(real_path) else f"there is no folder {folder}"
    raise JournalError(
        f"a journal cannot be kept in {real_path}: {why}",
        code="bae-journal-failed",
        fix="give the path of a file in a folder that exists",
    )


def _mark_forked_threads() -> None:
    # SQLite assumes that a forked process has the locks of its parent. A new connection to the same
    # file is not safe here. Closing the old connection, which the frames of the lost thread hold,
    # is not safe either.
    for worker in list(_alive):
        if not worker.over:
            worker.over = "bae-journal-forked"
            _inherited.add(worker.path)
        _alive.discard(worker)


_alive: weakref.WeakSet[StoreThread] = weakref.WeakSet()
_inherited: set[str] = set()
atexit.register(lambda: _stop(list(_alive), AT_EXIT))
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked_threads)
