"""How a journal in Postgres is written: whatever is asked at the same time is one statement, one
round trip and one commit."""

from __future__ import annotations

import asyncio
import json
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from secrets import randbits
from time import monotonic, time
from typing import Any, Final

from bae.exceptions import JournalError, describe
from bae.journal.postgres.connections import ConnectionLost, Connections, Patience, need_driver
from bae.journal.postgres.errors import error_of, failed, over_error, refusal
from bae.journal.postgres.lease import Keys, PostgresClaim, PostgresLease, steady_time
from bae.journal.postgres.tables import DAYS_AHEAD
from bae.journal.stored_runs import NO_FILES, Line
from bae.postgres.desk import Over, PostgresDesk
from bae.postgres.driver import close

NOTED: Final = 0.05
"""Seconds that a noted line waits at most for one that a caller waits for."""
DAYS_MADE: Final = 3600.0
"""Seconds between two looks whether there are partitions for the days to come."""

# A chain adds one line: a third of the time of `write`. Nothing is added where `write` must look.
_ADD_LINE: Final = """with mine as (select from {s}.owners
    where name = $1 and pg_postmaster_start_time() = $2 for key share)
insert into {s}.lines (run, n, kind, at, path, step, data, version)
    select $3, $4, $5, $6, $7, $8, $9, $10 from mine on conflict (run, n) do nothing"""
_WRITE: Final = "select {s}.write($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
_ENDS: Final = """select run, shared,
        (select max(n) + 1 from {s}.lines l where l.run = r.run) as due
    from {s}.runs r where run = any ($1) and owner = $2"""


@dataclass(eq=False, slots=True)
class PostgresJob:
    """Work for the writer. `future` gets what came of it."""

    run_id: str = ""
    claim: PostgresClaim | None = None
    lines: Sequence[Line] = ()
    files: Mapping[str, bytes] = field(default_factory=lambda: NO_FILES)
    """Files of the run, by hash, which are stored with the lines."""
    job: dict[str, Any] | None = None
    """What a function of the database does in the same transaction, after the lines."""
    special: Callable[[Any], Awaitable[Any]] | None = None
    """What is done with the connection, in a transaction of its own."""
    creates: bool = False
    """Whether the job creates a run: then the writer chooses its key."""
    claims: bool = False
    """Whether the job claims a run: then it has a number, which tells whether it was done when its
    answer was lost."""
    ends: bool = False
    """Whether the claim is given up with it, even if it cannot be stored."""
    future: Future[Any] | None = None
    run: int = 0
    number: int = 0
    value: Any = None
    refusal: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the database said where it refused the job."""
    error: BaseException | None = None
    is_taken: bool = False
    is_again: bool = False
    transaction: tuple[int, str] | None = None
    """The timeline of the database and the number of the transaction that did a special job."""


@dataclass(eq=False)
class PostgresWriter:
    """Stores work, in the thread of the desk."""

    connections: Connections
    lease: PostgresLease
    queue: deque[PostgresJob] = field(default_factory=deque[PostgresJob])
    is_stopping: bool = False
    desk: PostgresDesk | None = None
    """The thread that this serves in, once there is one."""
    _keys: Keys = field(default_factory=Keys)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _connection: Any = None
    _server: Any = None
    """When the server was started that has all lines of this process."""
    _heart: Any = None
    _days_made: float = float("-inf")
    _is_busy: bool = False

    def __post_init__(self) -> None:
        self.name = self.connections.name
        schema = self.connections.schema
        self._add_line, self._write, self._ends = (
            text.replace("{s}", schema) for text in (_ADD_LINE, _WRITE, _ENDS)
        )
        self._schema = schema
        # A batch that takes longer was lost on the way: it is tried again.
        self._timeout = max(self.lease.seconds, 10.0)

    def put(self, job: PostgresJob) -> None:
        """Queue work, from any thread; that which no caller waits for may wait a moment. Once the
        journal is closed it is refused."""
        self.queue.append(job)
        desk = self.desk
        assert desk is not None
        with suppress(RuntimeError):  # it ended a moment ago
            if job.future is not None or self.is_stopping:
                desk.loop.call_soon_threadsafe(self._wake.set)
            elif len(self.queue) == 1:
                desk.loop.call_soon_threadsafe(desk.loop.call_later, NOTED, self._wake.set)
        if desk.over:
            self.refuse_rest(desk.over)

    def stop(self) -> None:
        """Store what is queued, give up the runs, and end."""
        self.is_stopping = True
        if self.desk is not None:
            with suppress(RuntimeError):
                self.desk.loop.call_soon_threadsafe(self._wake.set)

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
                await self._store_all([self.queue.popleft() for _ in range(len(self.queue))])
                self._is_busy = False
        finally:
            heart.cancel()
            await asyncio.wait([heart])
            await self._give_up_all()
            for connection in (self._connection, self._heart):
                await close(connection)
            await self.connections.close()

    def new_key(self) -> int:
        """A key for a new run, by the clock of the database; once there is a connection."""
        return self._keys.next(time() + self.connections.clock_offset)

    def refuse_rest(self, why: Over) -> None:
        """Refuse what is queued: nobody serves it any more."""
        while self.queue:
            try:
                job = self.queue.popleft()
            except IndexError:
                return
            job.error = over_error(why, self.name, job.run_id or None)
            self._finish([job])

    # Batches

    async def _store_all(self, jobs: Sequence[PostgresJob]) -> None:
        """Store work in order. Each special job is a transaction of its own, and what claims comes
        after the lines before it, which it counts."""
        batch: list[PostgresJob] = []
        try:
            for job in jobs:
                self._take(job)
                if job.error is not None:
                    self._finish([job])
                    continue
                if batch and (job.special is not None or (job.claims and not job.creates)):
                    await self._store(batch)
                    batch = []
                batch.append(job)
                if job.special is not None:
                    await self._store(batch)
                    batch = []
            await self._store(batch)
        except BaseException as error:  # nobody waits for ever
            left = [job for job in jobs if job.error is None and not _is_told(job)]
            for job in left:
                job.error = failed(self.name, job.run_id or None, error)
            self._finish(left)
            raise

    def _take(self, job: PostgresJob) -> None:
        if job.claims:
            job.number = randbits(62) + 1
        if job.claim is not None:
            try:
                job.claim.take(job.lines)
                job.is_taken = True
            except (JournalError, ValueError) as error:
                job.error = error

    async def _store(self, batch: Sequence[PostgresJob]) -> None:
        """Store a batch, and again while the database is away."""
        if not batch:
            return
        tries = Patience(self.connections)
        while left := self._still_good(batch):
            try:
                await self._commit(left)
                break
            except _Refused as refused:
                left[0].error = refused.error
            except Exception as error:
                if self._is_lost(error):
                    error = ConnectionLost(describe(error))
                await close(self._connection)
                self._connection = None
                for job in left:
                    job.is_again = True
                try:
                    if self.is_stopping:
                        tries.seconds = min(tries.seconds, self.lease.seconds / 3)
                    await tries.wait(error)
                except JournalError as final:
                    if len(left) > 1 and final.code == "bae-journal-failed":
                        for job in left:  # one of them is at fault: it shall not hurt the others
                            await self._store([job])
                        batch = [job for job in batch if job not in left]
                    else:
                        for job in left:
                            job.error = final
        self._finish(batch)

    def _is_lost(self, error: Exception) -> bool:
        """Whether the connection broke while it was used. The driver may say that by an error of
        its own."""
        broken = self._connection is not None and self._connection.is_closed()
        return broken or isinstance(error, need_driver().InternalClientError)

    def _still_good(self, batch: Sequence[PostgresJob]) -> list[PostgresJob]:
        for job in batch:
            if job.error is None and job.claim is not None and job.claim.lost is not None:
                job.error = job.claim.lost()
        return [job for job in batch if job.error is None]

    async def _commit(self, batch: Sequence[PostgresJob]) -> None:
        """Store a batch. Raises where it is not known that it was stored."""
        connection = await self._connected()
        needs_owner = bool(self.lease.unreleased) or any(
            job.claims or job.claim is not None for job in batch
        )
        if not needs_owner and not any(job.job or job.special for job in batch):
            return
        if needs_owner and not self.lease.is_registered:
            await self._register(connection)
        if batch[0].special is not None:
            await self._transact(connection, batch[0])
            return
        # Runs are given up before any is claimed: the claim may be on one of them.
        released = [*self.lease.unreleased]
        if len(batch) == 1 and not released and await self._add_one(connection, batch[0]):
            await self._confirm(connection)
            _keep(batch)
            return
        jobs = [
            {"do": "release", "id": self.lease.unreleased[number], "claim": number}
            for number in released
        ]
        jobs += [self._described(job) for job in batch if job.job is not None]
        found = await self._call(connection, batch, jobs, needs_owner)
        if "results" not in found:  # the batch is tried again, as far as it is still good
            if found.get("lost"):
                self.lease.lose()
            else:
                await self._moved(connection)
            if left := self._still_good(batch):
                await self._commit(left)
            return
        for number in released:
            self.lease.unreleased.pop(number, None)
        if needs_owner:
            await self._confirm(connection)
        _keep(batch)
        results = iter(found["results"][len(released) :])
        taken = [job for job in batch if job.job is not None and self._judge(job, next(results))]
        if taken:
            await self._commit(taken)

    async def _add_one(self, connection: Any, job: PostgresJob) -> bool:
        """Add the only line that there is to add. False where this must be looked at."""
        claim = job.claim
        if claim is None or job.job is not None or job.files or len(job.lines) != 1:
            return False
        row = self.lease.owner, self._server, claim.run, *job.lines[0]
        tag: str = await connection.execute(self._add_line, *row, timeout=self._timeout)
        return tag == "INSERT 0 1"

    def _described(self, job: PostgresJob) -> dict[str, Any]:
        """What the database is told of a job."""
        assert job.job is not None
        told = {**job.job, "again": job.is_again, "claim": job.number}
        if job.creates:
            job.run = job.run or self.new_key()
            told["run"] = job.run
        if job.claim is not None:
            told |= {"claim": job.claim.number, "at": job.claim.at}
        return told

    async def _call(
        self,
        connection: Any,
        batch: Sequence[PostgresJob],
        jobs: Sequence[dict[str, Any]],
        needs_owner: bool,
    ) -> dict[str, Any]:
        """One call of the function of the database that does everything."""
        lines: list[tuple[Any, ...]] = []
        files: list[tuple[Any, ...]] = []
        for job in batch:
            run = job.run if job.claim is None else job.claim.run
            lines += [(run, *line) for line in job.lines]
            files += [(run, *file) for file in job.files.items()]
        owner = self.lease.owner if needs_owner else None
        columns = *_columns(lines, 8), *_columns(files, 3)
        text = await connection.fetchval(
            self._write, owner, self._server, *columns, json.dumps(jobs), timeout=self._timeout
        )
        return json.loads(text)

    async def _transact(self, connection: Any, job: PostgresJob) -> None:
        """Do a special job, unless it was done when its answer was lost."""
        assert job.special is not None
        if job.transaction is not None and job.transaction[0] == self.connections.timeline:
            query = "select pg_xact_status($1::text::xid8)"
            status = await connection.fetchval(query, job.transaction[1])
            if status == "committed":
                return
            if status not in ("aborted", None):  # it goes on
                raise TimeoutError
        async with asyncio.timeout(max(self._timeout, 60)), connection.transaction():
            await connection.execute(f"select from {self._schema}.changes for update")
            number = await connection.fetchval("select pg_current_xact_id()::text")
            try:
                job.value = await job.special(connection)
            except (JournalError, ValueError) as refused:
                raise _Refused(refused) from refused
            job.transaction = self.connections.timeline, number

    def _judge(self, job: PostgresJob, result: dict[str, Any]) -> bool:
        """Take what the database says of a job. True where it must be tried with another key."""
        if result.get("code") == "key":
            job.run = 0
            return True
        if "code" in result:
            job.error = refusal(result, self.name, job.run_id)
            job.refusal = result
        elif job.claims:
            due = result.get("due", len(job.lines))
            run, token = result["run"], result.get("epoch", 1)
            job.value = PostgresClaim(job.run_id, self.lease, run, due, job.number, token)
            self.lease.claims.add(job.value)
        elif job.job is not None and job.job["do"] == "answer":
            job.value = result["first"]
        return False

    def _finish(self, batch: Sequence[PostgresJob]) -> None:
        """Tell the callers what came of their work."""
        by_loop: dict[AbstractEventLoop, list[PostgresJob]] = {}
        for job in batch:
            failed = job.error is not None
            if job.claim is not None and job.ends:
                self.lease.drop(job.claim, "it was released", unreleased=failed)
            elif job.claim is not None and failed and job.is_taken:
                # Its lines are lost, so no later ones can follow.
                self.lease.drop(job.claim, "lines of it could not be stored", unreleased=True)
            if job.claims and job.is_again and failed and self.lease.is_registered:
                self.lease.unreleased[job.number] = job.run_id
            if job.future is not None:
                by_loop.setdefault(job.future.get_loop(), []).append(job)
        for loop, jobs in by_loop.items():
            with suppress(RuntimeError):  # a closed loop has no callers
                loop.call_soon_threadsafe(self._settle, jobs)

    def _settle(self, jobs: Sequence[PostgresJob]) -> None:
        """In the thread of the callers."""
        for job in jobs:
            future, error = job.future, job.error
            assert future is not None
            made = job.value if isinstance(job.value, PostgresClaim) else None
            claim = None if job.ends else made or job.claim
            if error is None and claim is not None and claim.lost is not None:
                error = claim.lost()
            if future.done():  # it was cancelled
                if made is not None and error is None:
                    release = {"do": "release", "id": job.run_id}
                    self.put(PostgresJob(job.run_id, made, job=release, ends=True))
            elif error is not None:
                future.set_exception(error)
                future.exception()  # a caller that does not wait is told at the next line
            else:
                future.set_result(job.value)

    # The lease

    async def _register(self, connection: Any) -> None:
        asked_at = steady_time()
        owner, seconds = self.lease.owner, self.lease.seconds
        await connection.fetchval(f"select {self._schema}.register($1, $2)", owner, seconds)
        self.lease.renewed(asked_at)

    async def _confirm(self, connection: Any) -> None:
        """Ask for the lease before lines are acknowledged, if this process stood still for longer:
        others may have taken over since."""
        if self.lease.is_over():
            await self._beat(connection)

    async def _beat(self, connection: Any) -> None:
        asked_at = steady_time()
        owner, seconds = self.lease.owner, self.lease.seconds
        beat = f"select {self._schema}.beat($1, $2)"
        if await connection.fetchval(beat, owner, seconds, timeout=self._timeout):
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
                        self._heart = await self.connections.connect()
                    async with asyncio.timeout(self.lease.seconds / 3):
                        await self._beat(self._heart)
                    break
                except Exception:
                    await close(self._heart)
                    self._heart = None
                    await asyncio.sleep(self.lease.seconds / 15)
            if self.lease.unreleased:
                self.queue.append(PostgresJob())  # they are given up with any commit
                self._wake.set()
            if self._heart is not None and monotonic() - self._days_made > DAYS_MADE:
                self._days_made = monotonic()
                with suppress(Exception):  # there are days left, and it is tried again
                    await self._heart.execute(f"select {self._schema}.make_days({DAYS_AHEAD})")

    async def _give_up_all(self) -> None:
        """Give up the runs in progress, so that other processes need not wait for the lease."""
        if self.lease.is_registered:
            left = {claim.number: claim.run_id for claim in self.lease.claims}
            left |= self.lease.unreleased
            jobs = [{"do": "release", "id": i, "claim": number} for number, i in left.items()]
            with suppress(Exception):  # other processes must wait for the end of the lease then
                async with asyncio.timeout(self.lease.seconds / 3 + 1):
                    connection = await self._connected()
                    await self._call(connection, [], jobs, needs_owner=True)
                    forget = f"delete from {self._schema}.owners where name = $1"
                    await connection.execute(forget, self.lease.owner)
        self.lease.end("bae-journal-closed", self.name)

    async def _connected(self) -> Any:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self.connections.connect()
            if self._server is None:
                self._server = self.connections.started
        return self._connection

    async def _moved(self, connection: Any) -> None:
        """The server was started since, or another has taken its place, which may be a copy that
        has not all lines: runs that miss some are given up before anything is written."""
        server = await connection.fetchval("select pg_postmaster_start_time()")
        claims = {claim.run: claim for claim in self.lease.claims}
        rows = await connection.fetch(self._ends, [*claims], self.lease.owner)
        there = {row["run"]: max(row["due"] or 0, row["shared"]) for row in rows}
        for run, claim in claims.items():
            if there.get(run, -1) < claim.kept:
                claim.lost = partial(error_of, "bae-journal-lost-lines", self.name, claim.run_id)
                self.lease.drop(claim, "", unreleased=True)
        self._server = server


class _Refused(Exception):
    """A special job was refused: its transaction is rolled back."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]


def _keep(batch: Sequence[PostgresJob]) -> None:
    """Note which lines the database has for certain."""
    for job in batch:
        if job.claim is not None and job.lines:
            job.claim.kept = job.lines[-1].n + 1


def _is_told(job: PostgresJob) -> bool:
    return job.future is not None and job.future.done()
