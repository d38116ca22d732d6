"""How a journal in Postgres is written: whatever is asked at the same time is one statement, one
round trip and one commit."""

from __future__ import annotations

import asyncio
import json
import random
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from bae.exceptions import JournalError
from bae.journal.postgres.errors import error_of, failed, refusal
from bae.journal.postgres.lease import Lease, PostgresClaim, steady_time
from bae.journal.stored_runs import Line

NOTED: Final = 0.05
"""Seconds that a noted line waits at most for one that a caller waits for."""
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
"""Seconds between two tries to reach the database."""
_AGAIN: Final = ("40001", "40P01", "55P03", "57P01", "57P02", "57P03", "08", "53300")
"""What Postgres says where the same may work a moment later: deadlocks, restarts, lost
connections."""


@dataclass(eq=False, slots=True)
class WriteJob:
    """Work for the writer. `future` gets what came of it."""

    run_id: str = ""
    claim: PostgresClaim | None = None
    lines: Sequence[Line] = ()
    job: dict[str, Any] | None = None
    """What a function of the database does in the same transaction, after the lines."""
    special: Callable[[Any], Awaitable[Any]] | None = None
    """What is done with the connection, in a transaction of its own."""
    then: Callable[[dict[str, Any]], Any] | None = None
    """Makes the value of the future from the result of the job."""
    thread: str | None = None
    run: int = 0
    """The key of the run that the lines are of, where there is no claim yet."""
    needs_owner: bool = False
    ends: bool = False
    """Whether the claim is given up with it, even if it cannot be stored."""
    future: Future[Any] | None = None
    value: Any = None
    error: BaseException | None = None
    is_taken: bool = False
    is_again: bool = False


@dataclass(eq=False)
class Writer:
    """Stores work, in the thread of the desk."""

    name: str
    lease: Lease
    connect: Callable[[], Awaitable[Any]]
    schema: str
    patience: float
    queue: deque[WriteJob] = field(default_factory=deque[WriteJob])
    is_stopping: bool = False
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _connection: Any = None
    _heart: Any = None
    _is_busy: bool = False
    _is_urgent: bool = False

    def put(self, job: WriteJob) -> None:
        """Queue work that a caller waits for, from any thread."""
        self.queue.append(job)

    def wake(self) -> None:
        """Look at the queue now; in the thread of the desk."""
        self._is_urgent = True
        self._wake.set()

    def wake_soon(self) -> None:
        """Look at the queue within a moment; in the thread of the desk."""
        if not self._wake.is_set():
            asyncio.get_running_loop().call_later(NOTED, self._wake.set)

    def is_behind(self) -> bool:
        """Whether there may be lines that were taken in and are not stored yet."""
        return bool(self.queue) or self._is_busy

    async def serve(self) -> None:
        """Store what is queued until the journal is closed."""
        heart = asyncio.create_task(self._keep_alive())
        try:
            while self.queue or not self.is_stopping:
                if not self.queue:
                    await self._wake.wait()
                self._wake.clear()
                self._is_busy = True
                batch = [self.queue.popleft() for _ in range(len(self.queue))]
                await self._store_all(batch)
                self._is_busy = False
        finally:
            heart.cancel()
            await asyncio.wait([heart])
            await self._give_up_all()
            for connection in (self._connection, self._heart):
                await _close(connection)

    # Batches

    async def _store_all(self, batch: Sequence[WriteJob]) -> None:
        """Store work in order. Each special job is a transaction of its own."""
        ordinary: list[WriteJob] = []
        for job in batch:
            if job.claim is not None and not job.is_taken:
                try:
                    job.claim.take(job.lines)
                    job.is_taken = True
                except (JournalError, ValueError) as error:
                    job.error = error
            if job.error is not None:
                self._finish([job])
            elif job.special is not None:
                await self._store(ordinary)
                ordinary = []
                await self._store([job])
            else:
                if job.job is not None and job.job["do"] == "claim" and ordinary:
                    await self._store(ordinary)  # its next line comes after these
                    ordinary = []
                ordinary.append(job)
        await self._store(ordinary)

    async def _store(self, batch: Sequence[WriteJob]) -> None:
        if not batch:
            return
        since = monotonic()
        pause = FIRST_PAUSE
        left = list(batch)
        while left:
            for job in left:
                if job.claim is not None and job.claim.lost is not None:
                    job.error = job.claim.lost()
            left = [job for job in left if job.error is None]
            try:
                if left:
                    await self._commit(left)
                break
            except _RollBack:
                break
            except Exception as error:
                if may_work_again(error):
                    await _close(self._connection)
                    self._connection = None
                    for job in left:
                        job.is_again = True
                    if monotonic() - since < self.patience and not (
                        self.is_stopping and monotonic() - since > self.lease.seconds / 3
                    ):
                        await asyncio.sleep(pause * random.uniform(0.75, 1.25))
                        pause = min(pause * 2, LONGEST_PAUSE)
                        continue
                    cause = error_of(
                        "bae-journal-away", self.name, cause=error, seconds=self.patience
                    )
                    for job in left:
                        job.error = cause
                elif len(left) > 1:  # one of them is at fault: it shall not hurt the others
                    for job in left:
                        await self._store([job])
                    self._finish([job for job in batch if job not in left])
                    return
                else:
                    left[0].error = failed(self.name, left[0].run_id, error)
                break
        self._finish(batch)

    async def _commit(self, batch: Sequence[WriteJob]) -> None:
        """Store a batch. Raises where nothing of it was stored."""
        connection = await self._connected()
        needs_owner = any(job.needs_owner or job.claim is not None for job in batch)
        if needs_owner and not self.lease.is_registered:
            await self._register(connection)
        if len(batch) == 1 and batch[0].special is not None:
            async with connection.transaction():
                try:
                    batch[0].value = await batch[0].special(connection)
                except (JournalError, ValueError) as refused:
                    batch[0].error = refused
                    raise _RollBack from refused
            return
        rows = [
            (job.run if job.claim is None else job.claim.run, *line)
            for job in batch
            for line in job.lines
        ]
        columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(8)]
        jobs = [{**job.job, "again": job.is_again} for job in batch if job.job is not None]
        owner = self.lease.owner if needs_owner else None
        found = await self._write(connection, owner, columns, jobs)
        if found.get("lost"):
            self.lease.lose()
            for job in batch:
                if job.claim is not None and job.claim.lost is not None:
                    job.error = job.claim.lost()
            left = [job for job in batch if job.error is None]
            if left:
                await self._commit(left)
            return
        if needs_owner and self.lease.is_over():  # stopped for longer than the lease: ask first
            await self._beat(connection)
        results = iter(found["results"])
        for job in batch:
            if job.job is not None:
                self._judge(job, next(results))

    async def _write(
        self,
        connection: Any,
        owner: str | None,
        columns: Sequence[Sequence[Any]],
        jobs: Sequence[dict[str, Any]],
    ) -> dict[str, Any]:
        statement = f"select {self.schema}.write($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
        return json.loads(await connection.fetchval(statement, owner, *columns, json.dumps(jobs)))

    def _judge(self, job: WriteJob, result: dict[str, Any]) -> None:
        if "code" in result:
            job.error = refusal(result, self.name, job.run_id, job.thread)
        elif job.then is not None:
            job.value = job.then(result)
            if isinstance(job.value, PostgresClaim):
                self.lease.claims.add(job.value)

    def _finish(self, batch: Sequence[WriteJob]) -> None:
        """Tell the callers what came of their work."""
        by_loop: dict[AbstractEventLoop, list[WriteJob]] = {}
        for job in batch:
            if job.error is not None and job.claim is not None and job.is_taken and not job.ends:
                # Its lines are lost, so no later ones can follow.
                self.lease.drop(job.claim, "lines of the run could not be stored")
            if job.ends and job.claim is not None:
                self.lease.drop(job.claim, "it was released")
            if job.future is not None:
                by_loop.setdefault(job.future.get_loop(), []).append(job)
        for loop, jobs in by_loop.items():
            with suppress(RuntimeError):  # a closed loop has no callers
                loop.call_soon_threadsafe(self._settle, jobs)

    def _settle(self, jobs: Sequence[WriteJob]) -> None:
        """In the thread of the callers."""
        for job in jobs:
            future = job.future
            assert future is not None
            error = job.error
            claim = job.value if isinstance(job.value, PostgresClaim) else job.claim
            if error is None and not job.ends and claim is not None and claim.lost is not None:
                error = claim.lost()
            if future.done():  # it was cancelled
                if isinstance(job.value, PostgresClaim) and error is None:
                    release = {"do": "release", "run": job.value.run}
                    given = WriteJob(job.run_id, job.value, job=release, ends=True)
                    self.put(given)
            elif error is not None:
                future.set_exception(error)
                future.exception()  # a caller that does not wait is told at the next line
            else:
                future.set_result(job.value)

    # The lease

    async def _register(self, connection: Any) -> None:
        asked_at = steady_time()
        owner, seconds = self.lease.owner, self.lease.seconds
        await connection.fetchval(f"select {self.schema}.register($1, $2)", owner, seconds)
        self.lease.renewed(asked_at)

    async def _beat(self, connection: Any) -> None:
        asked_at = steady_time()
        owner, seconds = self.lease.owner, self.lease.seconds
        if await connection.fetchval(f"select {self.schema}.beat($1, $2)", owner, seconds):
            self.lease.renewed(asked_at)
        elif owner == self.lease.owner:
            self.lease.lose()

    async def _keep_alive(self) -> None:
        """Renew the lease three times per period, on a connection of its own: a batch that waits
        does not hold it up."""
        while True:
            await asyncio.sleep(self.lease.seconds / 3)
            while self.lease.is_registered:
                try:
                    if self._heart is None or self._heart.is_closed():
                        self._heart = await self.connect()
                    async with asyncio.timeout(self.lease.seconds / 3):
                        await self._beat(self._heart)
                    break
                except asyncio.CancelledError:
                    raise
                except Exception:
                    await _close(self._heart)
                    self._heart = None
                    await asyncio.sleep(self.lease.seconds / 15)

    async def _give_up_all(self) -> None:
        """Give up the runs in progress, so that other processes need not wait for the lease."""
        if not self.lease.is_registered:
            return
        keys = [claim.run for claim in self.lease.claims]
        with suppress(Exception):  # other processes must wait for the end of the lease then
            async with asyncio.timeout(self.lease.seconds / 3 + 1):
                connection = await self._connected()
                jobs = [{"do": "release", "run": key} for key in keys]
                await self._write(connection, self.lease.owner, [[] for _ in range(8)], jobs)
                forget = f"delete from {self.schema}.owners where name = $1"
                await connection.execute(forget, self.lease.owner)
        self.lease.end("bae-journal-closed", self.name)

    async def _connected(self) -> Any:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self.connect()
        return self._connection


class _RollBack(Exception):
    """A special job was refused: its transaction is rolled back."""


def may_work_again(error: Exception) -> bool:
    """Whether the same may work a moment later: the connection was lost, say."""
    if isinstance(error, OSError | TimeoutError | asyncio.TimeoutError):
        return True
    state: str = getattr(error, "sqlstate", None) or ""
    if state:
        return state.startswith(_AGAIN)
    return "connection" in type(error).__name__.lower() or type(error).__name__ == "InterfaceError"


async def _close(connection: Any) -> None:
    if connection is None:
        return
    with suppress(Exception):
        async with asyncio.timeout(1):
            await connection.close()
    with suppress(Exception):
        connection.terminate()
