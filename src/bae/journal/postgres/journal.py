"""`PostgresJournal`: runs in a database, written by processes of many machines."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from asyncio import Future, get_running_loop
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from time import monotonic, time
from typing import Any, Literal, TypeVar

from pydantic_core import to_json

from bae.exceptions import JournalError
from bae.journal.postgres.address import checked_address, without_password
from bae.journal.postgres.desk import Desk, close_at_exit
from bae.journal.postgres.errors import error_of, failed
from bae.journal.postgres.lease import Keys, Lease, PostgresClaim
from bae.journal.postgres.reading import RUNS_OF_FILE, Reader, info_of
from bae.journal.postgres.schema import KEY_BITS, VERSION, read_version, upgrade
from bae.journal.postgres.writer import FIRST_PAUSE, LONGEST_PAUSE, WriteJob, Writer, may_work_again
from bae.journal.run_checks import check_fork, thread_busy
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
    fork_info,
)
from bae.threads import in_thread_to_the_end

T = TypeVar("T")

READERS = 3
"""How many connections answer questions at the same time."""
RUNS_AT_ONCE = 200
"""How many runs are deleted in one transaction."""
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,40}")


class PostgresJournal(Journal):
    """Runs in Postgres, for processes of many machines: `PostgresJournal("postgresql://HOST/DB")`,
    then `await graph.arun(start, journal=journal)`. It needs the extra `postgres`, and the tables
    that `bae db upgrade` makes.

    A step that was acknowledged is committed. With `durability="normal"` a crash of the database
    may lose the last moment. Whatever is stored at the same time in a process is one commit.

    A run is leased to one process for `lease` seconds, by the clock of the database. A process that
    loses the database waits for it `patience` seconds; its runs go on when it is back, and no
    process takes them over within a lease of that.

    `schema` is the schema of the tables. A password is never shown: leave it to the passfile or the
    environment (`PGPASSWORD`), or give it in the address. Other arguments are those of
    `SQLiteJournal`. Close it with `await journal.close()`, or write `async with`.
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
                f"PostgresJournal(lease={lease!r}, patience={patience!r}): the one must be"
                " positive, the other not negative"
            )
        self.schema = schema
        self.durability = durability
        self.secrets = secrets
        self.prompts = prompts
        self.thinking = thinking
        self.lease = lease
        self.patience = patience
        self._reader = Reader(self.name, schema)
        self._keys = Keys(KEY_BITS)
        self._starting = threading.Lock()
        self._desk: Desk | None = None
        self._writer: Writer | None = None
        self._pool: Any = None
        self._clock_offset = 0.0
        self._closed = False

    def __repr__(self) -> str:
        return f"PostgresJournal({self.url!r})"

    async def upgrade(self) -> tuple[int, int]:
        """Make the tables, or bring them to the version of this bae, as `bae db upgrade` does.
        Returns the versions before and after; 0 is none."""
        asyncpg = _driver()
        try:
            connection = await asyncpg.connect(self._url)
            try:
                return await upgrade(connection, self.schema)
            finally:
                await connection.close()
        except Exception as error:
            raise failed(self.name, None, error) from error

    # Writing

    def create(self, run: StoredRun, *, claim: bool = True) -> Awaitable[Claim | None]:
        for n, line in enumerate(run.lines):
            if line.n != n:
                error = ValueError(f"run {run.info.run_id!r}: got line {line.n} where {n} is due")
                return _failed(error)
        if run.files:
            return self._create_with_files(run, claim)
        job = self._creation(run, claim=claim)
        return self._ask(job)

    def _creation(
        self, run: StoredRun, *, claim: bool, parent: int | None = None, shared: int = 0
    ) -> WriteJob:
        info = run.info
        key = self._keys.next(time() + self._clock_offset)

        def then(result: dict[str, Any]) -> PostgresClaim | None:
            if not claim:
                return None
            assert self._writer is not None
            return PostgresClaim(info.run_id, key, shared + len(run.lines), self._writer.lease)

        job = {"do": "create", **_row(run, key, claim=claim, parent=parent, shared=shared)}
        return WriteJob(
            info.run_id,
            lines=run.lines,
            run=key,
            job=job,
            then=then,
            thread=info.thread,
            needs_owner=claim,
        )

    async def _create_with_files(self, run: StoredRun, claim: bool) -> Claim | None:
        """The files are stored first: one that no run uses is removed with the next deletion."""
        made = self._creation(replace(run, files={}), claim=claim)

        async def add(db: Any) -> None:
            await self._add_files(db, made.run, run.files)

        await self._ask(WriteJob(run.info.run_id, special=add))
        try:
            return await self._ask(made)
        except JournalError:

            async def remove(db: Any) -> None:
                await self._remove_files(db, [made.run])

            await self._ask(WriteJob(run.info.run_id, special=remove))
            raise

    async def claim(self, run_id: str) -> Claim:
        await self._read(lambda db: self._reader.find(db, run_id))
        owner = (await self.info(run_id)).owner
        dead = [owner] if owner is not None and has_died(owner) else []

        def then(result: dict[str, Any]) -> PostgresClaim:
            assert self._writer is not None
            return PostgresClaim(run_id, result["run"], result["due"], self._writer.lease)

        job = {"do": "claim", "id": run_id, "dead": dead}
        return await self._ask(WriteJob(run_id, job=job, then=then, needs_owner=True))

    def append(self, claim: Claim, lines: Sequence[Line]) -> Awaitable[None]:
        if not self._is_ours(claim):
            return _failed(self._not_ours(claim))
        assert isinstance(claim, PostgresClaim)
        return self._ask(WriteJob(claim.run_id, claim, tuple(lines)))

    def note(self, claim: Claim, line: Line) -> None:
        if self._is_ours(claim) and isinstance(claim, PostgresClaim):
            with suppress(JournalError):  # the next append raises what went wrong
                self._put(WriteJob(claim.run_id, claim, (line,)))

    def put_files(self, claim: Claim, files: Mapping[str, bytes]) -> None:
        if not self._is_ours(claim) or not isinstance(claim, PostgresClaim):
            return
        given, key = dict(files), claim.run

        async def add(db: Any) -> None:
            await self._add_files(db, key, given)

        with suppress(JournalError):
            self._put(WriteJob(claim.run_id, claim, special=add))

    def release(
        self,
        claim: Claim,
        status: RunStatus,
        lines: Sequence[Line],
        waiting: Sequence[ParkedGate] = (),
        error: str = "",
        summary: RunSummary | None = None,
    ) -> Awaitable[None]:
        if not self._is_ours(claim):
            return _failed(self._not_ours(claim))
        assert isinstance(claim, PostgresClaim)
        job = {
            "do": "release",
            "run": claim.run,
            "status": status,
            "waiting": _dump_gates(waiting),
            "error": _clean(error),
            "summary": _dump_summary(summary),
        }
        return self._ask(WriteJob(claim.run_id, claim, tuple(lines), job, ends=True))

    async def answer(
        self,
        run_id: str,
        gate: str,
        value: str,
        by: str = "",
        files: Mapping[str, bytes] = NO_FILES,
    ) -> bool:
        job = {"do": "answer", "id": run_id, "gate": gate, "value": value, "by": by}
        if not files:
            return await self._ask(WriteJob(run_id, job=job, then=lambda result: result["first"]))

        async def add(db: Any) -> bool:
            call = self._reader.sql("select {s}.answer_gate($1)")
            given = {**job, "again": False}
            result = json.loads(await db.fetchval(call, json.dumps(given)))
            if "code" in result:
                raise error_of(result["code"], self.name, run_id)
            if result["first"]:
                await self._add_files(db, result["run"], files)
            return result["first"]

        return await self._ask(WriteJob(run_id, special=add))

    async def fork(
        self,
        run_id: str,
        new_id: str,
        upto: int,
        lines: Sequence[Line],
        *,
        thread: str | None = None,
    ) -> None:
        """A new run that shares the lines of another: nothing is copied."""
        given = tuple(lines)

        async def add(db: Any) -> WriteJob:
            row = await self._reader.row(db, run_id)
            page = await db.fetchval(
                self._reader.sql(
                    "select coalesce((select max(n) + 1 from {s}.lines l where l.run = r.run),"
                    " r.shared) from {s}.runs r where r.run = $1 for share"
                ),
                row["run"],
            )
            check_fork(run_id, upto, page)
            info = fork_info(info_of(row), new_id, given, thread)
            run = StoredRun(info, "", given, {})
            for n, line in enumerate(given, upto):
                if line.n != n:
                    raise ValueError(f"run {new_id!r}: got line {line.n} where {n} is due")
            job = self._creation(run, claim=False, parent=row["run"], shared=upto)
            await self._add_run(db, job, run)
            return job

        await self._ask(WriteJob(run_id, special=add))

    async def replace(
        self, runs: Sequence[StoredRun], claims: Sequence[Claim] = (), *, erase: bool = False
    ) -> None:
        """Store runs in place of others. A run that others were forked from is replaced together
        with them only. With `erase` the old lines are deleted, and Postgres reuses their room after
        its next vacuum: its log, standbys and backups may still have them."""
        given = tuple(runs)
        held = {claim.run_id: claim for claim in claims}
        for claim in claims:
            if not self._is_ours(claim):
                raise self._not_ours(claim)

        async def swap(db: Any) -> None:
            old: dict[str, int] = {}
            for run in given:
                key = await self._may_replace(db, run.info.run_id, held)
                if key is not None:
                    old[run.info.run_id] = key
            keys = list(old.values())
            shared = await db.fetchval(
                self._reader.sql(
                    "select count(*) from {s}.runs where parent = any ($1) and run <> all ($1)"
                ),
                keys,
            )
            if shared:
                raise _not_replaced(given[0].info.run_id, None)
            await self._remove_runs(db, keys)
            for run in given:
                job = self._creation(run, claim=False)
                if run.info.run_id in old:
                    job.run = old[run.info.run_id]
                    job.job = {**(job.job or {}), "run": job.run}
                await self._add_run(db, job, run)
                await self._add_files(db, job.run, run.files)

        await self._ask(WriteJob(given[0].info.run_id if len(given) == 1 else "", special=swap))
        for claim in held.values():
            if isinstance(claim, PostgresClaim):
                self._to_desk(claim.lease.drop, claim, "it was released")

    async def delete(self, run_ids: Sequence[str]) -> int:
        """Delete runs and return how many. A run that has forks stays, and so does a run that a
        process works on."""
        if isinstance(run_ids, str):  # its letters would be ids
            raise TypeError(f"delete({run_ids!r}): give the ids of runs as a list")
        query = self._reader.sql("select run from {s}.runs where id = any ($1) order by run desc")
        rows = await self._read(lambda db: db.fetch(query, list(set(run_ids))))
        keys = [row["run"] for row in rows]  # a fork is newer than what it was forked from
        count = 0
        for first in range(0, len(keys), RUNS_AT_ONCE):
            some = keys[first : first + RUNS_AT_ONCE]

            async def remove(db: Any, some: Sequence[int] = some) -> int:
                return await self._delete_free(db, some)

            count += await self._ask(WriteJob(special=remove))
        return count

    # Reading

    async def read(self, run_id: str) -> StoredRun:
        return await self._read(lambda db: self._reader.read(db, run_id))

    async def read_texts(self, run_id: str) -> StoredRun:
        """A run without the bytes of its files."""
        return await self._read(lambda db: self._reader.read(db, run_id, with_files=False))

    async def info(self, run_id: str) -> RunInfo:
        """The entry of a run, without its lines."""
        row = await self._read(lambda db: self._reader.row(db, run_id))
        return _seen(info_of(row))

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
        labels = _labels(labels_of(metadata or {}))
        found = await self._read(
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
        return [_seen(info) for info in found]

    async def lines(self, run_id: str, *, after: int = -1, limit: int = 500) -> RunLines:
        """Some lines of a run; no other line is read."""
        return await self._read(lambda db: self._reader.page(db, run_id, after, limit))

    async def forks(self, run_id: str, *, limit: int = 50) -> list[RunInfo]:
        """The runs that were forked from a run, by an index."""
        return await self._read(lambda db: self._reader.forks(db, run_id, limit))

    async def answers(self, run_id: str) -> dict[str, str]:
        """What people have answered at the gates of a run, without its lines."""
        query = self._reader.sql("select gate, value from {s}.answers where run = $1")

        async def ask(db: Any) -> dict[str, str]:
            rows = await db.fetch(query, await self._reader.find(db, run_id))
            return {row["gate"]: row["value"] for row in rows}

        return await self._read(ask)

    async def thread_answers(self, thread: str, graph: str) -> dict[str, dict[str, str]]:
        """The same for a thread, in one query."""
        query = self._reader.sql(
            "select id, gate, value from {s}.runs join {s}.answers using (run)"
            " where thread = $1 and graph = $2 order by run"
        )
        found: dict[str, dict[str, str]] = {}
        for row in await self._read(lambda db: db.fetch(query, thread, graph)):
            found.setdefault(row["id"], {})[row["gate"]] = row["value"]
        return found

    async def find_file(self, hash: str, sees: Callable[[RunInfo], bool]) -> bytes | None:
        """The bytes of an image or a document, if a run has it for which `sees` is true."""
        found = await self._read(lambda db: db.fetch(self._reader.sql(RUNS_OF_FILE), hash))
        for row in found:
            try:
                if not sees(await self.info(row["id"])):
                    continue
                if not row["is_own"]:  # it was forked from a run that has the file
                    texts = await self.read_texts(row["id"])
                    if not any(hash in line.data for line in texts.lines):
                        continue
                text = self._reader.sql("select data from {s}.files where hash = $1")
                return await self._read(lambda db: db.fetchval(text, hash))
            except JournalError as error:
                if error.code != "bae-run-unknown":
                    raise
        return None

    async def last_change(self) -> int:
        """The greatest change of all runs, and of runs that were deleted."""
        query = self._reader.sql("select last from {s}.changes")
        return int(await self._read(lambda db: db.fetchval(query)))

    async def older(self, than: float, statuses: Sequence[RunStatus]) -> list[str]:
        return await self._read(lambda db: self._reader.older(db, than, statuses))

    async def close(self) -> None:
        """Store what is still to be stored, give up the runs in progress, so that they can be
        resumed elsewhere at once, and close the connections."""
        await in_thread_to_the_end(self._close, None)

    # The thread

    def _close(self, seconds: float | None) -> None:
        with self._starting:
            self._closed = True
            desk, writer = self._desk, self._writer
        if desk is None or writer is None:
            return
        writer.is_stopping = True
        try:
            desk.call(writer.wake)
        except JournalError:
            return
        desk.join(seconds)

    def _ask(self, job: WriteJob) -> Future[Any]:
        job.future = get_running_loop().create_future()
        try:
            self._put(job)
        except JournalError as error:
            return _failed(error)
        return job.future

    def _put(self, job: WriteJob) -> None:
        writer, desk = self._started(job.run_id)
        if desk.over:
            raise error_of(desk.over, self.name, job.run_id or None)
        writer.put(job)
        desk.call(writer.wake if job.future is not None else writer.wake_soon)

    def _to_desk(self, function: Callable[..., Any], *args: Any) -> None:
        _, desk = self._started()
        desk.call(function, *args)

    async def _read(self, question: Callable[[Any], Awaitable[T]]) -> T:
        writer, desk = self._started()
        if writer.is_behind():
            await self._ask(WriteJob())  # what was noted before is stored afterwards

        async def ask() -> T:
            since, pause = monotonic(), FIRST_PAUSE
            while True:
                try:
                    async with self._reading() as db:
                        return await question(db)
                except (JournalError, ValueError):
                    raise
                except Exception as error:
                    if not may_work_again(error):
                        raise failed(self.name, None, error) from error
                    if monotonic() - since > self.patience:
                        raise error_of(
                            "bae-journal-away", self.name, cause=error, seconds=self.patience
                        ) from error
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

        return await desk.ask(ask)

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Any]:
        """A connection that answers questions; in the thread of the desk."""
        if self._pool is None:
            pool = _driver().create_pool(
                self._url, min_size=0, max_size=READERS, connect=self._connect, timeout=10
            )
            self._pool = pool
            await pool
        async with self._pool.acquire() as connection:
            yield connection

    def _started(self, run_id: str | None = None) -> tuple[Writer, Desk]:
        with self._starting:
            if self._closed:
                raise error_of("bae-journal-closed", self.name, run_id or None)
            if self._writer is None or self._desk is None:
                _driver()
                lease = Lease(self.lease)
                writer = self._writer = Writer(
                    self.name, lease, self._connect, self.schema, self.patience
                )
                self._desk = Desk(self.name, self._work)
                close_at_exit(self, lambda seconds: self._close(seconds))
                return writer, self._desk
            return self._writer, self._desk

    async def _work(self) -> None:
        assert self._writer is not None
        try:
            await self._writer.serve()
        finally:
            if self._pool is not None:
                await self._pool.close()

    async def _connect(self, *_: Any, **__: Any) -> Any:
        """A new connection, to tables of the version that this bae knows."""
        connection = await _driver().connect(
            self._url, timeout=10, server_settings={"application_name": "bae"}
        )
        try:
            version = await read_version(connection, self.schema)
            if version != VERSION:
                what = "no tables of bae" if not version else f"tables of version {version}"
                if version > VERSION:
                    what += f", and this bae knows versions up to {VERSION}: update bae"
                raise error_of("bae-journal-schema", self.name, what=what)
            if self.durability == "normal":
                await connection.execute("set synchronous_commit = off")
            self._clock_offset = (
                await connection.fetchval("select extract(epoch from clock_timestamp())::float8")
                - time()
            )
        except BaseException:
            connection.terminate()
            raise
        return connection

    # Statements of special jobs

    async def _add_run(self, db: Any, job: WriteJob, run: StoredRun) -> None:
        """Add a run with its lines in the transaction of a special job."""
        given = {**(job.job or {}), "again": False}
        text = await db.fetchval(
            self._reader.sql("select {s}.create_run($1, null)"), json.dumps(given)
        )
        result = json.loads(text)
        if "code" in result:
            if result["code"] == "bae-thread-busy":
                raise thread_busy(run.info.thread or "", result["busy"])
            raise error_of(result["code"], self.name, run.info.run_id)
        insert = self._reader.sql(
            "insert into {s}.lines (run, n, kind, at, path, step, data, version)"
            " values ($1, $2, $3, $4, $5, $6, $7, $8)"
        )
        await db.executemany(insert, [(job.run, *line) for line in run.lines])

    async def _add_files(self, db: Any, key: int, files: Mapping[str, bytes]) -> None:
        for hash, data in files.items():
            await db.execute(
                self._reader.sql(
                    "insert into {s}.files (hash, data) values ($1, $2)"
                    " on conflict (hash) do update set hash = excluded.hash"
                ),
                hash,
                data,
            )
            await db.execute(
                self._reader.sql(
                    "insert into {s}.file_uses (run, hash) values ($1, $2) on conflict do nothing"
                ),
                key,
                hash,
            )

    async def _remove_files(self, db: Any, keys: Sequence[int]) -> None:
        rows = await db.fetch(
            self._reader.sql("delete from {s}.file_uses where run = any ($1) returning hash"), keys
        )
        hashes = sorted({row["hash"] for row in rows})
        if hashes:
            await db.execute(
                self._reader.sql(
                    "delete from {s}.files f where hash = any ($1)"
                    " and not exists (select from {s}.file_uses u where u.hash = f.hash)"
                ),
                hashes,
            )

    async def _remove_runs(self, db: Any, keys: Sequence[int]) -> None:
        for table in ("lines", "answers", "runs"):
            await db.execute(
                self._reader.sql(f"delete from {{s}}.{table} where run = any ($1)"), list(keys)
            )
        await self._remove_files(db, list(keys))

    async def _delete_free(self, db: Any, keys: Sequence[int]) -> int:
        """Delete runs, the newest first, except runs that have forks or a living owner."""
        rows = await db.fetch(
            self._reader.sql(
                "select run, owner from {s}.runs where run = any ($1) order by run desc for update"
            ),
            list(keys),
        )
        count = 0
        for row in rows:
            has_fork = await db.fetchval(
                self._reader.sql("select exists (select from {s}.runs where parent = $1)"),
                row["run"],
            )
            if not has_fork and await self._is_free(db, row["owner"]):
                await self._remove_runs(db, [row["run"]])
                count += 1
        return count

    async def _is_free(self, db: Any, owner: str | None) -> bool:
        if owner is None:
            return True
        dead = [owner] if has_died(owner) else []
        return await db.fetchval(self._reader.sql("select {s}.bury($1, $2)"), owner, dead)

    async def _may_replace(self, db: Any, run_id: str, held: Mapping[str, Claim]) -> int | None:
        row = await db.fetchrow(
            self._reader.sql("select run, owner from {s}.runs where id = $1 for update"), run_id
        )
        claim = held.get(run_id)
        if claim is not None:
            if isinstance(claim, PostgresClaim) and claim.lost is not None:
                raise claim.lost()
            if row is None or row["owner"] != claim.owner:
                raise error_of("bae-run-taken", self.name, run_id, why="another process owns it")
        elif row is not None and not await self._is_free(db, row["owner"]):
            raise _not_replaced(run_id, row["owner"])
        return None if row is None else row["run"]

    def _is_ours(self, claim: Claim) -> bool:
        return (
            isinstance(claim, PostgresClaim)
            and self._writer is not None
            and claim.lease is self._writer.lease
        )

    def _not_ours(self, claim: Claim) -> JournalError:
        return JournalError(
            f"run {claim.run_id!r} was not claimed through the journal {self.name}",
            code="bae-journal-failed",
            run_id=claim.run_id,
            fix="use the journal that made the claim",
        )


def _driver() -> Any:
    """The package asyncpg."""
    from bae.lm.extras import need

    return need("asyncpg", extra="postgres", by="PostgresJournal")


def _row(
    run: StoredRun, key: int, *, claim: bool, parent: int | None, shared: int
) -> dict[str, Any]:
    """What the database is told of a new run."""
    info = run.info
    return {
        "run": key,
        "id": info.run_id,
        "graph": info.graph,
        "status": info.status,
        "started": info.started,
        "updated": run.lines[-1].at if run.lines else info.updated,
        "shape": run.shape,
        "shape_hash": info.shape,
        "claim": claim,
        "waiting": _dump_gates(info.waiting),
        "error": _clean(info.error),
        "parent": parent,
        "shared": shared,
        "came_from": info.parent if parent is None else None,
        "thread": info.thread,
        "metadata": json.dumps(info.metadata) if info.metadata else "{}",
        "labels": _labels(labels_of(info.metadata, strict=False)) or None,
        "summary": _dump_summary(info.summary),
        "answers": [
            [gate, value, run.answered_by.get(gate, "")] for gate, value in run.answers.items()
        ],
    }


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels as the database can search them: it takes no NUL in a text."""
    return {json.dumps(key): value for key, value in labels.items()}


def _seen(info: RunInfo) -> RunInfo:
    """The entry of a run whose owner ran on this host and is gone: nobody holds its lease."""
    if info.owner is not None and has_died(info.owner):
        return replace(info, lease_until=None)
    return info


def _clean(text: str) -> str:
    return text.replace("\x00", "\ufffd")


def _dump_gates(waiting: Sequence[ParkedGate]) -> str:
    if not waiting:
        return "[]"
    gates = [(gate.address, gate.place, gate.question, gate.deadline) for gate in waiting]
    return json.dumps(gates)


def _dump_summary(summary: RunSummary | None) -> str | None:
    return None if summary is None else to_json(summary).decode()


def _not_replaced(run_id: str, owner: str | None) -> JournalError:
    if owner is not None:
        what, code = f"it is in progress, owned by {owner}", "bae-run-owned"
        fix = "wait for its end, or load the file into another journal"
    else:
        what, code = "other runs share its lines", "bae-run-exists"
        fix = "delete the runs that were forked from it first, or load into another journal"
    text = f"run {run_id!r} was not replaced: {what}"
    return JournalError(text, code=code, run_id=run_id, fix=fix)


def _failed(error: BaseException) -> Future[Any]:
    future: Future[Any] = get_running_loop().create_future()
    future.set_exception(error)
    future.exception()  # a caller that does not wait is told at the next line
    return future
