"""The writer of a journal in Postgres. It stores all jobs that wait at the same time with one
statement, one round trip and one commit."""

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
from bae.journal.postgres.errors import error_of, over_error, permanent_error, refusal
from bae.journal.postgres.lease import Keys, PostgresClaim, PostgresLease, steady_time
from bae.journal.postgres.tables import DAYS_AHEAD
from bae.journal.stored_runs import NO_FILES, Line
from bae.postgres.desk import Over, PostgresDesk
from bae.postgres.driver import close

NOTED_SECONDS: Final = 0.05
"""The longest time, in seconds, that a noted line waits in the queue for jobs that a caller
awaits."""
PARTITION_CHECK_SECONDS: Final = 3600.0
"""Seconds between two checks that partitions exist for the next days."""

# Adds one line, in a third of the time that `write` takes. If the lease is lost, the server has
# changed, or the line exists, this adds nothing, and `write` deals with the line.
_ADD_LINE: Final = """with mine as (select from {s}.owners
    where name = $1 and pg_postmaster_start_time() = $2 for key share)
insert into {s}.lines (run, n, kind, at, path, step, data, version)
    select $3, $4, $5, $6, $7, $8, $9, $10 from mine on conflict (run, n) do nothing"""
_WRITE: Final = "select {s}.write($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
_LINE_COUNTS: Final = """select run, shared,
        (select max(n) + 1 from {s}.lines l where l.run = r.run) as due
    from {s}.runs r where run = any ($1) and owner = $2"""


@dataclass(eq=False, slots=True)
class PostgresJob:
    """Work for the writer. `future` gets the result or the error."""

    run_id: str = ""
    claim: PostgresClaim | None = None
    lines: Sequence[Line] = ()
    files: Mapping[str, bytes] = field(default_factory=lambda: NO_FILES)
    """Files of the run, by hash. The writer stores them together with the lines."""
    job: dict[str, Any] | None = None
    """The arguments of a database function. The writer calls the function in the transaction that
    stores the lines, after the lines."""
    special: Callable[[Any], Awaitable[Any]] | None = None
    """A function that the writer calls with the connection, in a transaction of its own."""
    creates: bool = False
    """Whether the job creates a run. The writer then chooses the key of the run."""
    claims: bool = False
    """Whether the job claims a run. The claim is then identified by `number`: if the answer of the
    database is lost, the number shows whether the run was claimed."""
    ends: bool = False
    """Whether the job gives up the claim, even if the job cannot be stored."""
    future: Future[Any] | None = None
    run: int = 0
    """The key of the run that the job creates."""
    number: int = 0
    """The number of the claim that the job makes."""
    value: Any = None
    """The result of the job."""
    refusal: dict[str, Any] = field(default_factory=dict[str, Any])
    """The answer of the database, if the database refused the job."""
    error: BaseException | None = None
    are_lines_accepted: bool = False
    """Whether the claim has counted the lines."""
    is_repeated: bool = False
    """Whether an earlier attempt failed, so that the database may have stored the job already."""
    transaction: tuple[int, str] | None = None
    """For a special job, the last transaction that called `special`: the timeline of the database,
    and the number of the transaction."""


@dataclass(eq=False)
class PostgresWriter:
    """Stores queued jobs, in the thread of `desk`."""

    connections: Connections
    lease: PostgresLease
    queue: deque[PostgresJob] = field(default_factory=deque[PostgresJob])
    is_stopping: bool = False
    desk: PostgresDesk | None = None
    """The thread in which the writer runs; None before it starts."""
    _keys: Keys = field(default_factory=Keys)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _connection: Any = None
    _server_started_at: Any = None
    """The start time of the server that is known to have all lines of this process."""
    _heart: Any = None
    """The connection that renews the lease."""
    _partitions_checked_at: float = float("-inf")
    _is_storing: bool = False

    def __post_init__(self) -> None:
        self.name = self.connections.name
        schema = self.connections.schema
        self._add_line, self._write, self._line_counts = (
            text.replace("{s}", schema) for text in (_ADD_LINE, _WRITE, _LINE_COUNTS)
        )
        self._schema = schema
        # If a batch takes longer, its answer is taken for lost, and the batch is stored again.
        self._timeout = max(self.lease.seconds, 10.0)

    def put(self, job: PostgresJob) -> None:
        """Queue a job, from any thread. A job without a `future` may wait for `NOTED_SECONDS`. If
        the journal is closed, refuse the job."""
        self.queue.append(job)
        desk = self.desk
        assert desk is not None
        with suppress(RuntimeError):  # the thread ended a moment ago
            if job.future is not None or self.is_stopping:
                desk.loop.call_soon_threadsafe(self._wake.set)
            elif len(self.queue) == 1:
                desk.loop.call_soon_threadsafe(desk.loop.call_later, NOTED_SECONDS, self._wake.set)
        if desk.over:
            self.refuse_rest(desk.over)

    def stop(self) -> None:
        """Make `serve` store the queued jobs, give up the runs, and return."""
        self.is_stopping = True
        if self.desk is not None:
            with suppress(RuntimeError):
                self.desk.loop.call_soon_threadsafe(self._wake.set)

    def has_unstored_lines(self) -> bool:
        """Whether some accepted lines may not be stored yet."""
        return bool(self.queue) or self._is_storing

    async def serve(self) -> None:
        """Store queued jobs until the journal is closed."""
        heart = asyncio.create_task(self._keep_alive())
        try:
            while self.queue or not self.is_stopping:
                if not self.queue:
                    await self._wake.wait()
                self._wake.clear()
                self._is_storing = True
                await self._store_all([self.queue.popleft() for _ in range(len(self.queue))])
                self._is_storing = False
        finally:
            heart.cancel()
            await asyncio.wait([heart])
            await self._release_all_runs()
            for connection in (self._connection, self._heart):
                await close(connection)
            await self.connections.close()

    def new_key(self) -> int:
        """Return a key for a new run, by the clock of the database. Call it after the first
        connection was opened: before that, the clock is not known."""
        return self._keys.next(time() + self.connections.clock_offset)

    def refuse_rest(self, why: Over) -> None:
        """Refuse all queued jobs, because the thread has stopped."""
        while self.queue:
            try:
                job = self.queue.popleft()
            except IndexError:
                return
            job.error = over_error(why, self.name, job.run_id or None)
            self._finish([job])

    # Batches

    async def _store_all(self, jobs: Sequence[PostgresJob]) -> None:
        """Store jobs in order. Each special job is a transaction of its own. A job that claims a
        stored run begins a new batch, because its result has the number of stored lines."""
        batch: list[PostgresJob] = []
        try:
            for job in jobs:
                self._accept_lines(job)
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
        except BaseException as error:  # otherwise callers would wait forever
            open_jobs = [job for job in jobs if job.error is None and not _is_answered(job)]
            for job in open_jobs:
                job.error = permanent_error(self.name, job.run_id or None, error)
            self._finish(open_jobs)
            raise

    def _accept_lines(self, job: PostgresJob) -> None:
        """Count the lines of a job as written by its claim, or set the error of the job."""
        if job.claims:
            job.number = randbits(62) + 1
        if job.claim is not None:
            try:
                job.claim.take(job.lines)
                job.are_lines_accepted = True
            except (JournalError, ValueError) as error:
                job.error = error

    async def _store(self, batch: Sequence[PostgresJob]) -> None:
        """Store a batch. While the database does not answer, try again."""
        if not batch:
            return
        patience = Patience(self.connections)
        while open_jobs := self._jobs_without_error(batch):
            try:
                await self._commit_batch(open_jobs)
                break
            except _Refused as refused:
                open_jobs[0].error = refused.error
            except Exception as error:
                if self._is_lost(error):
                    error = ConnectionLost(describe(error))
                await close(self._connection)
                self._connection = None
                for job in open_jobs:
                    job.is_repeated = True
                try:
                    if self.is_stopping:
                        patience.seconds = min(patience.seconds, self.lease.seconds / 3)
                    await patience.wait(error)
                except JournalError as final:
                    if len(open_jobs) > 1 and final.code == "bae-journal-failed":
                        for job in open_jobs:  # one job is at fault, and the others can be stored
                            await self._store([job])
                        batch = [job for job in batch if job not in open_jobs]
                    else:
                        for job in open_jobs:
                            job.error = final
        self._finish(batch)

    def _is_lost(self, error: Exception) -> bool:
        """Whether the connection was lost while it was used. The driver may report a lost
        connection as its own InternalClientError."""
        broken = self._connection is not None and self._connection.is_closed()
        return broken or isinstance(error, need_driver().InternalClientError)

    def _jobs_without_error(self, batch: Sequence[PostgresJob]) -> list[PostgresJob]:
        for job in batch:
            if job.error is None and job.claim is not None and job.claim.lost is not None:
                job.error = job.claim.lost()
        return [job for job in batch if job.error is None]

    async def _commit_batch(self, batch: Sequence[PostgresJob]) -> None:
        """Store a batch in one transaction. Raises an error if the batch may not have been
        stored."""
        connection = await self._get_connection()
        needs_owner = bool(self.lease.unreleased) or any(
            job.claims or job.claim is not None for job in batch
        )
        if not needs_owner and not any(job.job or job.special for job in batch):
            return
        if needs_owner and not self.lease.is_registered:
            await self._register_owner(connection)
        if batch[0].special is not None:
            await self._run_special(connection, batch[0])
            return
        # Release these runs before the jobs: a job may claim one of the runs again.
        released = [*self.lease.unreleased]
        if len(batch) == 1 and not released and await self._add_one(connection, batch[0]):
            await self._confirm_lease(connection)
            _note_stored(batch)
            return
        jobs = [
            {"do": "release", "id": self.lease.unreleased[number], "claim": number}
            for number in released
        ]
        jobs += [self._describe_job(job) for job in batch if job.job is not None]
        answer = await self._call_write(connection, batch, jobs, needs_owner)
        if "results" not in answer:  # nothing was stored
            if answer.get("lost"):
                self.lease.lose()
            else:
                await self._adopt_server(connection)
            if open_jobs := self._jobs_without_error(batch):
                await self._commit_batch(open_jobs)
            return
        for number in released:
            self.lease.unreleased.pop(number, None)
        if needs_owner:
            await self._confirm_lease(connection)
        _note_stored(batch)
        results = iter(answer["results"][len(released) :])
        jobs_to_repeat = [
            job for job in batch if job.job is not None and self._read_result(job, next(results))
        ]
        if jobs_to_repeat:
            await self._commit_batch(jobs_to_repeat)

    async def _add_one(self, connection: Any, job: PostgresJob) -> bool:
        """Store a job if it adds one line and nothing else. Return False if the database function
        `write` must store the job."""
        claim = job.claim
        if claim is None or job.job is not None or job.files or len(job.lines) != 1:
            return False
        row = self.lease.owner, self._server_started_at, claim.run, *job.lines[0]
        tag: str = await connection.execute(self._add_line, *row, timeout=self._timeout)
        return tag == "INSERT 0 1"

    def _describe_job(self, job: PostgresJob) -> dict[str, Any]:
        """Return the arguments of a job for the database function `write`."""
        assert job.job is not None
        description = {**job.job, "again": job.is_repeated, "claim": job.number}
        if job.creates:
            job.run = job.run or self.new_key()
            description["run"] = job.run
        if job.claim is not None:
            description |= {"claim": job.claim.number, "at": job.claim.at}
        return description

    async def _call_write(
        self,
        connection: Any,
        batch: Sequence[PostgresJob],
        jobs: Sequence[dict[str, Any]],
        needs_owner: bool,
    ) -> dict[str, Any]:
        """Call `write`, the function of the database that stores a batch."""
        lines: list[tuple[Any, ...]] = []
        files: list[tuple[Any, ...]] = []
        for job in batch:
            run = job.run if job.claim is None else job.claim.run
            lines += [(run, *line) for line in job.lines]
            files += [(run, *file) for file in job.files.items()]
        owner = self.lease.owner if needs_owner else None
        columns = *_to_columns(lines, 8), *_to_columns(files, 3)
        text = await connection.fetchval(
            self._write,
            owner,
            self._server_started_at,
            *columns,
            json.dumps(jobs),
            timeout=self._timeout,
        )
        return json.loads(text)

    async def _run_special(self, connection: Any, job: PostgresJob) -> None:
        """Run a special job, unless an earlier attempt was committed and its answer was lost."""
        assert job.special is not None
        if job.transaction is not None and job.transaction[0] == self.connections.timeline:
            query = "select pg_xact_status($1::text::xid8)"
            status = await connection.fetchval(query, job.transaction[1])
            if status == "committed":
                return
            if status not in ("aborted", None):  # the transaction is still in progress
                raise TimeoutError
        async with asyncio.timeout(max(self._timeout, 60)), connection.transaction():
            await connection.execute(f"select from {self._schema}.changes for update")
            number = await connection.fetchval("select pg_current_xact_id()::text")
            try:
                job.value = await job.special(connection)
            except (JournalError, ValueError) as refused:
                raise _Refused(refused) from refused
            job.transaction = self.connections.timeline, number

    def _read_result(self, job: PostgresJob, result: dict[str, Any]) -> bool:
        """Read the result of a job. Return True if the job must be repeated with another key."""
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
        """Give the callers the results of their jobs."""
        by_loop: dict[AbstractEventLoop, list[PostgresJob]] = {}
        for job in batch:
            has_failed = job.error is not None
            if job.claim is not None and job.ends:
                self.lease.drop(job.claim, "it was released", unreleased=has_failed)
            elif job.claim is not None and has_failed and job.are_lines_accepted:
                # The lines of the job are lost, so no later line of the run can be stored.
                self.lease.drop(job.claim, "some of its lines could not be stored", unreleased=True)
            if job.claims and job.is_repeated and has_failed and self.lease.is_registered:
                self.lease.unreleased[job.number] = job.run_id
            if job.future is not None:
                by_loop.setdefault(job.future.get_loop(), []).append(job)
        for loop, jobs in by_loop.items():
            with suppress(RuntimeError):  # a closed loop has no callers
                loop.call_soon_threadsafe(self._set_outcomes, jobs)

    def _set_outcomes(self, jobs: Sequence[PostgresJob]) -> None:
        """Set the futures of jobs, in the thread of their callers."""
        for job in jobs:
            future, error = job.future, job.error
            assert future is not None
            new_claim = job.value if isinstance(job.value, PostgresClaim) else None
            claim = None if job.ends else new_claim or job.claim
            if error is None and claim is not None and claim.lost is not None:
                error = claim.lost()
            if future.done():  # the caller was cancelled
                if new_claim is not None and error is None:
                    release = {"do": "release", "id": job.run_id}
                    self.put(PostgresJob(job.run_id, new_claim, job=release, ends=True))
            elif error is not None:
                future.set_exception(error)
                future.exception()  # a caller that does not wait gets the error with its next line
            else:
                future.set_result(job.value)

    # The lease

    async def _register_owner(self, connection: Any) -> None:
        asked_at = steady_time()
        owner, seconds = self.lease.owner, self.lease.seconds
        await connection.fetchval(f"select {self._schema}.register($1, $2)", owner, seconds)
        self.lease.note_renewal(asked_at)

    async def _confirm_lease(self, connection: Any) -> None:
        """If the lease is over, renew it before lines are acknowledged. This process may have been
        suspended, and other processes may have taken over its runs."""
        if self.lease.is_over():
            await self._renew_lease(connection)

    async def _renew_lease(self, connection: Any) -> None:
        asked_at = steady_time()
        owner, seconds = self.lease.owner, self.lease.seconds
        beat = f"select {self._schema}.beat($1, $2)"
        if await connection.fetchval(beat, owner, seconds, timeout=self._timeout):
            self.lease.note_renewal(asked_at)
        elif owner == self.lease.owner:
            self.lease.lose()

    async def _keep_alive(self) -> None:
        """Renew the lease three times per period. This task has its own connection, so a slow batch
        does not delay the renewal."""
        while True:
            await asyncio.sleep(self.lease.seconds / 3)
            while self.lease.is_registered:
                try:
                    if self._heart is None or self._heart.is_closed():
                        self._heart = await self.connections.connect()
                    async with asyncio.timeout(self.lease.seconds / 3):
                        await self._renew_lease(self._heart)
                    break
                except Exception:
                    await close(self._heart)
                    self._heart = None
                    await asyncio.sleep(self.lease.seconds / 15)
            if self.lease.unreleased:
                self.queue.append(PostgresJob())  # any commit releases these claims
                self._wake.set()
            if (
                self._heart is not None
                and monotonic() - self._partitions_checked_at > PARTITION_CHECK_SECONDS
            ):
                self._partitions_checked_at = monotonic()
                with suppress(Exception):  # the next check is long before a partition is needed
                    await self._heart.execute(f"select {self._schema}.make_days({DAYS_AHEAD})")

    async def _release_all_runs(self) -> None:
        """Release the runs in progress, so that other processes can resume them at once."""
        if self.lease.is_registered:
            run_by_claim = {claim.number: claim.run_id for claim in self.lease.claims}
            run_by_claim |= self.lease.unreleased
            jobs = [
                {"do": "release", "id": i, "claim": number} for number, i in run_by_claim.items()
            ]
            with suppress(Exception):  # then other processes wait for the end of the lease
                async with asyncio.timeout(self.lease.seconds / 3 + 1):
                    connection = await self._get_connection()
                    await self._call_write(connection, [], jobs, needs_owner=True)
                    forget = f"delete from {self._schema}.owners where name = $1"
                    await connection.execute(forget, self.lease.owner)
        self.lease.end("bae-journal-closed", self.name)

    async def _get_connection(self) -> Any:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self.connections.connect()
            if self._server_started_at is None:
                self._server_started_at = self.connections.started
        return self._connection

    async def _adopt_server(self, connection: Any) -> None:
        """Continue with a server that was restarted, or that replaced another server. The new
        server may be a copy without the newest lines: give up each run with acknowledged lines that
        the server does not have."""
        server = await connection.fetchval("select pg_postmaster_start_time()")
        claims = {claim.run: claim for claim in self.lease.claims}
        rows = await connection.fetch(self._line_counts, [*claims], self.lease.owner)
        stored_counts = {row["run"]: max(row["due"] or 0, row["shared"]) for row in rows}
        for run, claim in claims.items():
            if stored_counts.get(run, -1) < claim.stored:
                claim.lost = partial(error_of, "bae-journal-lost-lines", self.name, claim.run_id)
                self.lease.drop(claim, "", unreleased=True)
        self._server_started_at = server


class _Refused(Exception):
    """Rolls back the transaction of a special job that refuses its arguments."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _to_columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]


def _note_stored(batch: Sequence[PostgresJob]) -> None:
    """Note how many lines the database has certainly stored."""
    for job in batch:
        if job.claim is not None and job.lines:
            job.claim.stored = job.lines[-1].n + 1


def _is_answered(job: PostgresJob) -> bool:
    return job.future is not None and job.future.done()
