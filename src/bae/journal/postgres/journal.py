"""`PostgresJournal`: runs in a Postgres database, for processes on many machines."""

from __future__ import annotations

import asyncio
import re
import threading
import weakref
from asyncio import Future, get_running_loop
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from time import monotonic
from typing import Any, Final, Literal, TypeVar

from bae.exceptions import JournalError
from bae.journal.postgres import changes
from bae.journal.postgres.connections import Connections, need_driver
from bae.journal.postgres.errors import error_of, over_error, permanent_error, wrong_schema
from bae.journal.postgres.lease import PostgresClaim, PostgresLease, day_of
from bae.journal.postgres.reading import RUNS_OF_FILE, PostgresReader, info_of
from bae.journal.postgres.tables import VERSION, upgrade
from bae.journal.postgres.writer import PostgresJob, PostgresWriter
from bae.journal.run_lists import check_page, labels_of
from bae.journal.sqlite.lease import has_died
from bae.journal.store import Journal
from bae.journal.stored_runs import (
    NO_FILES,
    Claim,
    Line,
    Listed,
    ParkedGate,
    RunInfo,
    RunLines,
    RunStatus,
    RunSummary,
    Scalar,
    StoredRun,
)
from bae.postgres.address import checked_address, without_password
from bae.postgres.desk import PostgresDesk
from bae.postgres.driver import close
from bae.threads import in_thread_to_the_end

T = TypeVar("T")

RUNS_AT_ONCE: Final = 200
"""The most runs that one transaction deletes."""
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,40}")


class PostgresJournal(Journal):
    """Stores runs in Postgres, for processes on many machines. Make a journal with
    `PostgresJournal("postgresql://HOST/DB")`, and pass it to `graph.arun(start, journal=journal)`.
    It needs the extra `postgres`, and the tables that `bae db upgrade` makes.

    An acknowledged step is committed. With `durability="normal"`, a crash of the database may lose
    the steps acknowledged just before it. A process stores all concurrent steps in one commit.

    A run is leased to one process for `lease` seconds, by the clock of the database. If a process
    loses the database, it waits up to `patience` seconds until the database is back. Then the
    process continues its runs. No other process takes these runs over before another lease has
    passed.

    `schema` is the database schema of the tables. Keep the password in the passfile or the
    environment (`PGPASSWORD`), or give it in the address: bae never shows it. `SQLiteJournal`
    explains the other arguments. Close the journal with `await journal.close()`, or write
    `async with`.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = "bae",
        durability: Literal["full", "normal"] = "full",
        secrets: bool = False,
        prompts: bool = True,
        thinking: bool = False,
        lease: float = 30.0,
        patience: float = 60.0,
    ) -> None:
        self._url = checked_address(url)
        self.name = self.url = without_password(url)
        if not _SCHEMA.fullmatch(schema):
            raise ValueError(f"PostgresJournal(schema={schema!r}): give a plain name, as bae_test")
        if durability not in ("full", "normal"):
            raise ValueError(f'PostgresJournal(durability={durability!r}): give "full" or "normal"')
        if not lease > 0 or not patience >= 0:
            raise ValueError(
                f"PostgresJournal(lease={lease!r}, patience={patience!r}): the lease must be"
                " positive, and the patience not negative"
            )
        self.schema = schema
        self.durability = durability
        self.secrets = secrets
        self.prompts = prompts
        self.thinking = thinking
        self.lease = lease
        self.patience = patience
        self._reader = PostgresReader(self.name, schema)
        self._starting = threading.Lock()
        self._workers: tuple[PostgresWriter, PostgresDesk] | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"PostgresJournal({self.url!r})"

    async def upgrade(self) -> tuple[int, int]:
        """Make the tables, or upgrade them to the version of this bae, as `bae db upgrade` does.
        Return the version before and the version after; version 0 means no tables. Raises
        JournalError `bae-journal-schema` for tables of a newer bae."""
        try:
            connection = await need_driver().connect(self._url, timeout=10)
            try:
                before, after = await upgrade(connection, self.schema)
            finally:
                await close(connection)
        except Exception as error:
            fix = (
                f"see the cause; the database user must be able to create the schema {self.schema}"
            )
            raise permanent_error(self.name, None, error, fix) from error
        if after > VERSION:
            raise wrong_schema(self.name, after, VERSION)
        return before, after

    # Writing

    def create(self, run: StoredRun, *, claim: bool = True) -> Awaitable[Claim | None]:
        for n, line in enumerate(run.lines):
            if line.n != n:
                error = ValueError(f"run {run.info.run_id!r}: got line {line.n} where {n} is due")
                return _failed_future(error)
        job = PostgresJob(
            run.info.run_id,
            lines=run.lines,
            files=run.files,
            job=changes.describe_run(run),
            creates=True,
            claims=claim,
        )
        return self._ask(job)

    async def claim(self, run_id: str) -> Claim:
        dead: list[str] = []
        until = 0.0
        while True:
            work = PostgresJob(run_id, job={"do": "claim", "id": run_id, "dead": dead}, claims=True)
            try:
                return await self._ask(work)
            except JournalError as error:
                refusal = work.refusal
                if error.code != "bae-run-owned" or not refusal:
                    raise
                owner: str = refusal["owner"]
                if has_died(owner) and owner not in dead:
                    dead.append(owner)
                    continue
                # If the lease of the owner is over, but no process has renewed a lease for a while,
                # the database may have been away: give the owner time to renew its lease.
                grace = refusal["grace"] or 0.0
                now = monotonic()
                if (refusal["left"] or 0.0) > 0 or grace <= 0 or (until and now > until):
                    raise
                until = until or now + 2 * grace
                await asyncio.sleep(min(grace, refusal["pace"]))

    def append(self, claim: Claim, lines: Sequence[Line]) -> Awaitable[None]:
        own_claim = self._as_own_claim(claim)
        if own_claim is None:
            return _failed_future(self._foreign_claim_error(claim))
        return self._ask(PostgresJob(claim.run_id, own_claim, tuple(lines)))

    def note(self, claim: Claim, line: Line) -> None:
        own_claim = self._as_own_claim(claim)
        if own_claim is not None and self._workers is not None:
            self._workers[0].put(PostgresJob(claim.run_id, own_claim, (line,)))

    def put_files(self, claim: Claim, files: Mapping[str, bytes]) -> None:
        own_claim = self._as_own_claim(claim)
        if own_claim is not None and self._workers is not None:
            self._workers[0].put(PostgresJob(claim.run_id, own_claim, files=dict(files)))

    def release(
        self,
        claim: Claim,
        status: RunStatus,
        lines: Sequence[Line],
        waiting: Sequence[ParkedGate] = (),
        error: str = "",
        summary: RunSummary | None = None,
    ) -> Awaitable[None]:
        own_claim = self._as_own_claim(claim)
        if own_claim is None:
            return _failed_future(self._foreign_claim_error(claim))
        job = {
            "do": "release",
            "id": claim.run_id,
            "status": status,
            "waiting": changes.dump_gates(waiting),
            "error": changes.clean(error),
            "summary": changes.dump_summary(summary),
        }
        return self._ask(PostgresJob(claim.run_id, own_claim, tuple(lines), job=job, ends=True))

    async def answer(
        self,
        run_id: str,
        gate: str,
        value: str,
        by: str = "",
        files: Mapping[str, bytes] = NO_FILES,
    ) -> bool:
        job = {"do": "answer", "id": run_id, "gate": gate, "value": value, "by": changes.clean(by)}
        if not files:
            return await self._ask(PostgresJob(run_id, job=job))
        return await self._transact(
            run_id, lambda db: changes.add_answer(db, self._reader, job, files)
        )

    async def fork(
        self,
        run_id: str,
        new_id: str,
        upto: int,
        lines: Sequence[Line],
        *,
        thread: str | None = None,
    ) -> None:
        """Make the run `new_id`, which shares the first `upto` lines of the run `run_id` and
        continues with `lines`. No line is copied."""
        new_lines = tuple(lines)
        writer, _ = self._get_workers(run_id)
        await self._transact(
            run_id,
            lambda db: changes.add_fork(
                db, self._reader, writer.new_key(), run_id, new_id, upto, new_lines, thread
            ),
        )

    async def replace(
        self, runs: Sequence[StoredRun], claims: Sequence[Claim] = (), *, erase: bool = False
    ) -> None:
        """Replace stored runs. A run that has forks can only be replaced together with its forks.

        The old lines are always deleted, also without `erase`. Postgres reuses their space after
        its next vacuum. The log, the standbys and the backups of Postgres may still have the lines.
        """
        new_runs = tuple(runs)
        claim_of_run: dict[str, Claim] = {}
        for claim in claims:
            if self._as_own_claim(claim) is None:
                raise self._foreign_claim_error(claim)
            claim_of_run[claim.run_id] = claim
        writer, desk = self._get_workers()

        async def swap(db: Any) -> None:
            keys = [writer.new_key() for _ in new_runs]
            await changes.swap_runs(db, self._reader, keys, new_runs, claim_of_run)

        await self._transact(new_runs[0].info.run_id if len(new_runs) == 1 else "", swap)
        for own_claim in map(self._as_own_claim, claim_of_run.values()):
            if own_claim is not None:
                desk.call(own_claim.lease.drop, own_claim, "it was released")

    async def delete(self, run_ids: Sequence[str]) -> int:
        """Delete runs, and return how many were deleted. A run stays if a process works on it, or
        if a fork of it stays. If most runs of a past day are deleted, bae drops the partition of
        that day."""
        if isinstance(run_ids, str):  # each character would count as an id
            raise TypeError(f"delete({run_ids!r}): give the ids of runs as a list")
        query = self._reader.sql("select run from {s}.runs where id = any ($1) order by run desc")
        rows = await self._read(lambda db: db.fetch(query, list(set(run_ids))))
        count = 0
        # Newest day first: a fork is newer than its parent, and must be deleted before it.
        for day, keys_of_day in groupby((row["run"] for row in rows), day_of):
            keys = [*keys_of_day]
            work = partial(changes.drop_day, reader=self._reader, day=day, keys=keys)
            dropped = await self._transact("", work)
            if dropped == len(keys):
                count += dropped
                continue
            for first in range(0, len(keys), RUNS_AT_ONCE):
                batch = keys[first : first + RUNS_AT_ONCE]
                work = partial(changes.delete_free, reader=self._reader, keys=batch)
                count += await self._transact("", work)
            count += dropped or 0
        return count

    # Reading

    async def read(self, run_id: str) -> StoredRun:
        return await self._read(lambda db: self._reader.read(db, run_id))

    async def read_texts(self, run_id: str) -> StoredRun:
        """Read a run without the bytes of its files."""
        return await self._read(lambda db: self._reader.read(db, run_id, with_files=False))

    async def info(self, run_id: str) -> RunInfo:
        """Read the entry of a run without its lines."""
        row = await self._read(lambda db: self._reader.row(db, run_id))
        return info_of(row)

    async def runs(
        self,
        *,
        status: Listed | None = None,
        graph: str | None = None,
        thread: str | None = None,
        metadata: Mapping[str, Scalar] | None = None,
        limit: int = 50,
        before: str | None = None,
        after: int | None = None,
    ) -> list[RunInfo]:
        check_page(status, limit, before, after)
        labels = changes.searchable(labels_of(metadata or {}))
        return await self._read(
            lambda db: self._reader.runs(
                db,
                status=status,
                graph=graph,
                thread=thread,
                labels=labels,
                limit=limit,
                before=before,
                after=after,
            )
        )

    async def lines(self, run_id: str, *, after: int = -1, limit: int = 500) -> RunLines:
        """Read a page of the lines of a run, and no other lines."""
        return await self._read(lambda db: self._reader.page(db, run_id, after, limit))

    async def forks(self, run_id: str, *, limit: int = 50) -> list[RunInfo]:
        """Return the forks of a run, found by an index."""
        return await self._read(lambda db: self._reader.forks(db, run_id, limit))

    async def answers(self, run_id: str) -> dict[str, str]:
        """Read the answers of people to the gates of a run, without its lines."""
        query = self._reader.sql("select gate, value from {s}.answers where run = $1")

        async def ask(db: Any) -> dict[str, str]:
            rows = await db.fetch(query, await self._reader.find(db, run_id))
            return {row["gate"]: row["value"] for row in rows}

        return await self._read(ask)

    async def thread_answers(self, thread: str, graph: str) -> dict[str, dict[str, str]]:
        """Read the answers to the gates of all runs of a graph in a thread, with one query."""
        query = self._reader.sql(
            "select id, gate, value from {s}.runs join {s}.answers using (run)"
            " where thread = $1 and graph = $2 order by run"
        )
        answers: dict[str, dict[str, str]] = {}
        for row in await self._read(lambda db: db.fetch(query, thread, graph)):
            answers.setdefault(row["id"], {})[row["gate"]] = row["value"]
        return answers

    async def find_file(self, hash: str, sees: Callable[[RunInfo], bool]) -> bytes | None:
        """Return the bytes of an image or a document if `sees` returns True for a run that has it;
        otherwise return None."""
        rows = await self._read(lambda db: db.fetch(self._reader.sql(RUNS_OF_FILE), hash))
        for row in rows:
            try:
                if not sees(await self.info(row["id"])):
                    continue
                if not row["is_own"]:  # an ancestor has the file: find a shared line with it
                    texts = await self.read_texts(row["id"])
                    if not any(hash in line.data for line in texts.lines):
                        continue
                return await self._read(lambda db: self._reader.file(db, hash))
            except JournalError as error:
                if error.code != "bae-run-unknown":
                    raise
        return None

    async def last_change(self) -> int:
        """Return the greatest change number of all runs, including deleted runs."""
        query = self._reader.sql("select last from {s}.changes")
        return int(await self._read(lambda db: db.fetchval(query)))

    async def older(self, than: float, statuses: Sequence[RunStatus]) -> list[str]:
        return await self._read(lambda db: self._reader.older(db, than, statuses))

    async def close(self) -> None:
        """Store all pending lines, give up the runs in progress, and close the connections. Other
        processes can then resume the runs at once."""
        with self._starting:
            self._closed = True
        if self._workers is not None:
            await in_thread_to_the_end(self._workers[1].end)

    # The thread of the writer

    def _ask(self, job: PostgresJob) -> Future[Any]:
        future = job.future = get_running_loop().create_future()
        try:
            writer, _ = self._workers or self._start(job.run_id)
        except JournalError as error:
            return _failed_future(error)
        writer.put(job)
        return future

    async def _transact(self, run_id: str, do: Callable[[Any], Awaitable[Any]]) -> Any:
        """Call `do` with a connection, in a transaction of its own, and return its result."""
        return await self._ask(PostgresJob(run_id, special=do))

    async def _read(self, question: Callable[[Any], Awaitable[T]]) -> T:
        writer, desk = self._get_workers()
        if writer.has_unstored_lines():
            with suppress(JournalError):  # reading works even if the writer fails
                await self._ask(PostgresJob())  # afterwards all noted lines are stored
        return await desk.ask(lambda: writer.connections.read(question))

    def _get_workers(self, run_id: str = "") -> tuple[PostgresWriter, PostgresDesk]:
        return self._workers or self._start(run_id)

    def _start(self, run_id: str = "") -> tuple[PostgresWriter, PostgresDesk]:
        with self._starting:
            if self._closed:
                raise error_of("bae-journal-closed", self.name, run_id or None)
            if self._workers is None:
                need_driver()
                connections = Connections(
                    self._url, self.name, self.schema, self.durability, self.lease, self.patience
                )
                writer = PostgresWriter(connections, PostgresLease(self.lease))
                desk = PostgresDesk(
                    self.name,
                    writer.serve,
                    writer.stop,
                    writer.refuse_rest,
                    lambda why: over_error(why, writer.name),
                )
                writer.desk = desk
                self._workers = writer, desk
                weakref.finalize(self, writer.stop).atexit = False
            return self._workers

    def _as_own_claim(self, claim: Claim) -> PostgresClaim | None:
        """Return the claim if this journal made it; otherwise return None."""
        if isinstance(claim, PostgresClaim) and self._workers is not None:
            return claim if claim.lease is self._workers[0].lease else None
        return None

    def _foreign_claim_error(self, claim: Claim) -> JournalError:
        return JournalError(
            f"run {claim.run_id!r} was not claimed through the journal {self.name}",
            code="bae-journal-failed",
            run_id=claim.run_id,
            fix="use the journal that made the claim",
        )


def _failed_future(error: BaseException) -> Future[Any]:
    future: Future[Any] = get_running_loop().create_future()
    future.set_exception(error)
    future.exception()  # a caller that does not wait gets the error with its next line
    return future
