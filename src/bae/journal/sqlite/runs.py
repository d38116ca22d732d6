"""`RunTables` makes, claims, lists, reads, changes and deletes the runs in the tables of a journal.
Each write is checked within its transaction. A refused write changes nothing."""

from __future__ import annotations

import json
import sqlite3
from abc import abstractmethod
from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from secrets import randbits
from time import time
from typing import Any, TypeVar, cast

from bae.exceptions import JournalError, describe
from bae.journal.run_checks import check_fork, check_version, not_replaced_error
from bae.journal.run_lists import check_page, is_listed, labels_of
from bae.journal.sqlite.lease import SQLiteClaim, is_alive
from bae.journal.sqlite.run_changes import (
    ADD_ANSWER,
    add_files,
    add_run,
    delete_runs,
    refuse_busy,
    remove_run,
)
from bae.journal.sqlite.run_entries import (
    COLUMN_TYPES,
    COUNT,
    HOMES,
    INFO,
    UNREADABLE,
    UPDATED,
    fetch_rows,
    files_of,
    is_possible,
    list_entry,
    marks,
    page_query,
    run_info,
)
from bae.journal.sqlite.schema import (
    CHANGED,
    LINES_OF_A_RUN,
    NEXT_CHANGE,
    as_journal_error,
    failure,
    is_busy,
)
from bae.journal.sqlite.writer import WriteJob
from bae.journal.store import Journal
from bae.journal.stored_runs import (
    NO_FILES,
    Claim,
    Line,
    Listed,
    RunInfo,
    RunLines,
    RunStatus,
    Scalar,
    StoredRun,
    fork_info,
)

T = TypeVar("T")

RUNS_AT_ONCE = 50
"""The number of runs that one transaction deletes. Other writers wait for the whole transaction."""
PAGE = 200
"""The number of runs that one query reads in a search for interrupted runs, which have no index, or
for a file."""

# The runs that have a file, and their forks, which may share a line that refers to the file.
_RUNS_OF_FILE = """with recursive known (run, is_own) as (
    select run, 1 from file_uses where hash = ?
    union select runs.run, 0 from runs join known on runs.parent = known.run
) select run, max(is_own) from known group by run order by max(is_own) desc, run desc"""


class RunTables(Journal):
    """A journal in SQLite tables. A method that writes passes a job to a writer, and a method that
    reads runs a query."""

    name: str
    """The name of the journal in errors."""
    _owner: str = ""

    @abstractmethod
    def _ask(self, work: WriteJob) -> Future[Any]:
        """Pass a job to the writer at once, and return the future of its result."""

    @abstractmethod
    async def _read(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query that sees the jobs passed to the writer before."""

    async def answer(
        self,
        run_id: str,
        gate: str,
        value: str,
        by: str = "",
        files: Mapping[str, bytes] = NO_FILES,
    ) -> bool:
        def add(db: sqlite3.Connection) -> bool:
            run = self._find(db, run_id)
            is_first = db.execute(ADD_ANSWER, (run, gate, value, by)).rowcount > 0
            if is_first:
                add_files(db, run, files)
                db.execute(f"update runs set {CHANGED} where run = ?", (run,))
            return is_first

        return await self._ask(WriteJob(run_id, add))

    async def info(self, run_id: str) -> RunInfo:
        """Return the entry of a run, without its lines."""

        def ask(db: sqlite3.Connection) -> RunInfo:
            try:
                row = db.execute(f"{INFO} where runs.id = ?", (run_id,)).fetchone()
                if row is None:
                    raise failure("bae-run-unknown", self.name, run_id)
                return run_info(db, row)
            except UNREADABLE as error:
                raise self._damage_error(run_id, f"run {run_id!r}", error) from error

        return await self._read(ask)

    async def answers(self, run_id: str) -> dict[str, str]:
        """Return the answers of people at the gates of a run. Its lines are not read."""

        def ask(db: sqlite3.Connection) -> dict[str, str]:
            run = self._find(db, run_id)
            return dict(db.execute("select gate, value from answers where run = ?", (run,)))

        return await self._read(ask)

    async def thread_answers(self, thread: str, graph: str) -> dict[str, dict[str, str]]:
        """Return the answers for all runs of a graph in a thread. One query reads them."""

        def ask(db: sqlite3.Connection) -> dict[str, dict[str, str]]:
            query = """select id, gate, value from runs join answers using (run)
                where thread = ? and graph = ? order by run"""
            answers: dict[str, dict[str, str]] = {}
            for run_id, gate, value in db.execute(query, (thread, graph)):
                answers.setdefault(run_id, {})[gate] = value
            return answers

        return await self._read(ask)

    async def fork(
        self,
        run_id: str,
        new_id: str,
        upto: int,
        lines: Sequence[Line],
        *,
        thread: str | None = None,
    ) -> None:
        """Make a run that shares the lines of another run. No shared line is copied."""
        own_lines = tuple(lines)

        def add(db: sqlite3.Connection) -> None:
            parent = self._find(db, run_id)
            query = f"select {COUNT} from runs where run = ?"
            check_fork(run_id, upto, db.execute(query, (parent,)).fetchone()[0])
            info = run_info(db, db.execute(f"{INFO} where runs.run = ?", (parent,)).fetchone())
            new = StoredRun(fork_info(info, new_id, own_lines, thread), "", own_lines, {})
            add_run(db, new, parent=parent, shared=upto)

        await self._ask(WriteJob(run_id, add))

    async def replace(
        self, runs: Sequence[StoredRun], claims: Sequence[Claim] = (), *, erase: bool = False
    ) -> None:
        """Replace stored runs. A run with forks can only be replaced together with its forks.

        With `erase` the file is vacuumed, so that no old line is left in the file or in its log.
        Vacuuming takes as long as copying the file, and as much space on the disk. Nothing else can
        be written meanwhile.
        """
        new_runs = tuple(runs)
        claims_by_run = {claim.run_id: claim for claim in claims}

        def swap(db: sqlite3.Connection) -> None:
            keys = {
                run.info.run_id: self._key_to_replace(db, run, claims_by_run) for run in new_runs
            }
            old = [key for key in keys.values() if key is not None]
            query = f"select 1 from runs where parent in ({marks(old)}) and run not in"
            if db.execute(f"{query} ({marks(old)})", (*old, *old)).fetchone():
                raise not_replaced_error(new_runs[0].info.run_id, None)
            if erase and any(self._differs(db, run) for run in new_runs if keys[run.info.run_id]):
                db.execute("insert into unclean (since) values (?)", (time(),))
            for key in old:
                remove_run(db, key)
            for run in new_runs:
                add_run(db, run, key=keys[run.info.run_id])

        def then(db: sqlite3.Connection) -> None:
            for claim in claims_by_run.values():
                if isinstance(claim, SQLiteClaim) and claim.lease is not None:
                    claim.lease.drop(claim, "it was released")
            if erase:
                self._vacuum(db, [run.info.run_id for run in new_runs])

        run_id = new_runs[0].info.run_id if len(new_runs) == 1 else None
        await self._ask(WriteJob(run_id, swap, then=then))

    async def delete(self, run_ids: Sequence[str]) -> int:
        """Delete runs, and return the number of deleted runs. A run that has forks, or that a
        process works on, stays. The file does not shrink, but its space is used again."""
        if isinstance(run_ids, str):  # each letter would be an id
            raise TypeError(f"delete({run_ids!r}): give the ids of runs as a list")
        unique_ids = set(run_ids)

        def find(db: sqlite3.Connection) -> list[tuple[int, str]]:
            query = "select run, id from runs where id = ?"
            rows = [row for run_id in unique_ids for row in db.execute(query, (run_id,))]
            return sorted(rows, reverse=True)  # a fork is newer than its parent

        stored_ids = [run_id for _, run_id in await self._read(find)]
        count = 0
        for first in range(0, len(stored_ids), RUNS_AT_ONCE):
            batch = stored_ids[first : first + RUNS_AT_ONCE]
            count += await self._ask(WriteJob(do=partial(delete_runs, run_ids=batch)))
        return count

    async def read(self, run_id: str) -> StoredRun:
        return await self._read_run(run_id)

    async def find_file(self, hash: str, sees: Callable[[RunInfo], bool]) -> bytes | None:
        """Return the bytes of an image or a document. If `sees` is true for no run that has the
        file, return None."""

        def entries(db: sqlite3.Connection, keys: Sequence[int]) -> list[tuple[int, RunInfo]]:
            rows = fetch_rows(db, f"{INFO} where runs.run in ({marks(keys)})", keys)
            return [(row[0], list_entry(db, row)) for row in rows]

        def read(db: sqlite3.Connection, visible: Sequence[tuple[int, RunInfo]]) -> bytes | None:
            for run, info in visible:
                lines = () if is_own[run] else self._read_lines(db, run, info.run_id)
                if is_own[run] or any(hash in line.data for line in lines):
                    stored = db.execute("select data from files where hash = ?", (hash,)).fetchone()
                    return stored and stored[0]
            return None

        is_own = dict(await self._read(lambda db: db.execute(_RUNS_OF_FILE, (hash,)).fetchall()))
        runs = [*is_own]
        for first in range(0, len(runs), PAGE):
            listed = await self._read(partial(entries, keys=runs[first : first + PAGE]))
            visible = [(run, info) for run, info in listed if sees(info)]
            data = await self._read(partial(read, visible=visible)) if visible else None
            if data is not None:
                return data
        return None

    async def read_texts(self, run_id: str) -> StoredRun:
        """Return a run without the bytes of its files."""
        return await self._read_run(run_id, with_files=False)

    async def _read_run(self, run_id: str, *, with_files: bool = True) -> StoredRun:
        def ask(db: sqlite3.Connection) -> StoredRun:
            db.execute("begin")  # a snapshot: other processes may write the run meanwhile
            try:
                return self._load_run(db, run_id, with_files=with_files)
            finally:
                if db.in_transaction:
                    db.execute("rollback")

        return await self._read(ask)

    def _load_run(
        self, db: sqlite3.Connection, run_id: str, *, with_files: bool = True
    ) -> StoredRun:
        try:
            row = db.execute(f"{INFO} where runs.id = ?", (run_id,)).fetchone()
            if row is None:
                raise failure("bae-run-unknown", self.name, run_id)
            info = run_info(db, row)
            query = "select text from shapes where hash = ?"
            shape: object = db.execute(query, (info.shape,)).fetchone()[0]
            query = "select gate, value, person from answers where run = ?"
            answer_rows = db.execute(query, row[:1]).fetchall()
            answers = {gate: value for gate, value, _ in answer_rows}
            people = {gate: person for gate, _, person in answer_rows if person}
            texts = (shape, *answers, *answers.values(), *people.values())
            if not all(isinstance(text, str) for text in texts):
                raise TypeError("a column has a value of another type")
            for answer in answers.values():
                json.loads(answer)
            lines = self._read_lines(db, row[0], run_id)
            files = files_of(db, row[0], lines) if with_files else {}
            return StoredRun(info, cast(str, shape), lines, answers, files, people)
        except UNREADABLE as error:
            raise self._damage_error(run_id, f"run {run_id!r}", error) from error

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
        labels = labels_of(metadata or {})
        interrupted = status == "interrupted"
        stored = "running" if interrupted else status
        text, values = page_query(stored, graph, thread, labels, by_change=after is not None)
        size = PAGE if interrupted else limit

        def ask(db: sqlite3.Connection) -> list[RunInfo]:
            place = LINES_OF_A_RUN if before is None else self._find(db, before)
            if after is not None:
                place = after
            infos: list[RunInfo] = []
            while True:
                rows = fetch_rows(db, text, (*values, place, size))
                infos += [info for row in rows if is_listed(info := list_entry(db, row), status)]
                if len(rows) < size or len(infos) >= limit:
                    return infos[:limit]
                place = rows[-1][0 if after is None else -1]

        return await self._read(ask)

    async def lines(self, run_id: str, *, after: int = -1, limit: int = 500) -> RunLines:
        """Return some lines of a run. Other lines are not read."""

        def ask(db: sqlite3.Connection) -> RunLines:
            db.execute("begin")  # a snapshot: other processes may write the run meanwhile
            try:
                row = db.execute(f"{INFO} where runs.id = ?", (run_id,)).fetchone()
                if row is None:
                    raise failure("bae-run-unknown", self.name, run_id)
                query = f"select {COUNT} from runs where run = ?"
                count: int = db.execute(query, row[:1]).fetchone()[0]
                upto = min(count, after + 1 + limit)
                lines = self._read_lines(db, row[0], run_id, after + 1, upto) if limit else ()
                return RunLines(run_info(db, row), lines, count)
            except UNREADABLE as error:
                raise self._damage_error(run_id, f"run {run_id!r}", error) from error
            finally:
                if db.in_transaction:
                    db.execute("rollback")

        return await self._read(ask)

    async def forks(self, run_id: str, *, limit: int = 50) -> list[RunInfo]:
        """Return the runs that were forked from a run, the newest first. An index finds them."""
        query = f"""{INFO} where runs.parent = ? or (runs.parent is null and runs.came_from = ?)
            order by runs.run desc limit ?"""

        def ask(db: sqlite3.Connection) -> list[RunInfo]:
            values = (self._find(db, run_id), run_id, limit)
            return [list_entry(db, row) for row in fetch_rows(db, query, values)]

        return await self._read(ask)

    async def last_change(self) -> int:
        """Return the greatest change number of all runs, including deleted runs."""
        query = f"select {NEXT_CHANGE} - 1"
        return await self._read(lambda db: int(db.execute(query).fetchone()[0]))

    async def older(self, than: float, statuses: Sequence[RunStatus]) -> list[str]:
        wanted = f"status in ({marks(statuses)}) and {UPDATED} < ?"
        # A thread is deleted only if all its runs are old.
        threads_to_keep = f"select thread from runs where thread is not null and not ({wanted})"
        query = f"""select id from runs where {wanted}
            and (thread is null or thread not in ({threads_to_keep})) order by run"""

        def ask(db: sqlite3.Connection) -> list[str]:
            rows = fetch_rows(db, query, (*statuses, than, *statuses, than))
            return [run_id for (run_id,) in rows if isinstance(run_id, str)]

        return await self._read(ask)

    def _claim_run(self, db: sqlite3.Connection, run_id: str) -> SQLiteClaim:
        """Make this process the owner of a run."""
        row = db.execute(
            f"select run, runs.owner, until, status, {COUNT}, thread from runs"
            " left join owners on name = runs.owner where id = ?",
            (run_id,),
        ).fetchone()
        if row is None:
            raise failure("bae-run-unknown", self.name, run_id)
        run, owner, until, status, count, thread = row
        if owner == self._owner or is_alive(owner, until):
            remaining = max((until or 0.0) - time(), 0)
            raise failure("bae-run-owned", self.name, run_id, owner=owner, left=remaining)
        if status == "ended":
            raise failure("bae-run-ended", self.name, run_id)
        refuse_busy(db, thread, run)
        fence = run, randbits(48)
        db.execute(
            "update runs set owner = ?, epoch = ?, status = 'running', waiting = '[]', error = '',"
            f" {CHANGED} where run = ?",
            (self._owner, fence[1], run),
        )
        return SQLiteClaim(run_id, self._owner, fence, count)

    def _find(self, db: sqlite3.Connection, run_id: str) -> int:
        row = db.execute("select run from runs where id = ?", (run_id,)).fetchone()
        if row is None:
            raise failure("bae-run-unknown", self.name, run_id)
        return row[0]

    def _read_lines(
        self,
        db: sqlite3.Connection,
        run: int,
        run_id: str,
        start: int = 0,
        stop: int = LINES_OF_A_RUN,
    ) -> tuple[Line, ...]:
        """Return the lines of a run with numbers from `start` to below `stop`."""
        lines: list[Line] = []
        query = """select id & 4294967295, kind, at, path, step, data, version from lines
            where id >= ? and id < ? order by id"""

        def missing() -> Exception:
            what = f"line {start + len(lines)} of run {run_id!r} is missing"
            return failure("bae-journal-damaged", self.name, run_id, what=what)

        try:
            for home, first, end in db.execute(HOMES, (run,)).fetchall():
                base = home * LINES_OF_A_RUN
                begin, until = max(first, start), min(end, stop)
                if begin >= until:
                    continue
                # Closed even after an error: an open cursor would keep the log from being cleared.
                with closing(db.execute(query, (base + begin, base + until))) as rows:
                    for row in rows:
                        line = Line(*row)
                        if line.n != start + len(lines):
                            raise missing()
                        if tuple(map(type, line)) != COLUMN_TYPES or not is_possible(line):
                            raise TypeError("a column has a value of another type")
                        check_version(line, run_id)
                        if not isinstance(json.loads(line.data), dict):
                            raise ValueError("no JSON object")
                        lines.append(line)
                if until < LINES_OF_A_RUN and until != start + len(lines):
                    raise missing()
        except UNREADABLE as error:
            what = f"line {start + len(lines)} of run {run_id!r}"
            raise self._damage_error(run_id, what, error) from error
        return tuple(lines)

    def _damage_error(self, run_id: str, what: str, error: Exception) -> Exception:
        """Return the error for a part of a run that cannot be read. Errors of SQLite itself are
        returned unchanged."""
        if getattr(error, "sqlite_errorcode", None) is not None:
            return error
        what = f"{what} cannot be read ({describe(error)})"
        return failure("bae-journal-damaged", self.name, run_id, cause=error, what=what)

    def _key_to_replace(
        self, db: sqlite3.Connection, run: StoredRun, claims: Mapping[str, Claim]
    ) -> int | None:
        """Return the key of the stored run that `run` replaces, or None if no run has its id. Raise
        an error if another process works on the stored run."""
        run_id = run.info.run_id
        query = "select run, owner, until from runs left join owners on name = owner where id = ?"
        key, owner, until = db.execute(query, (run_id,)).fetchone() or (None, None, None)
        claim = claims.get(run_id)
        if claim is None and is_alive(owner, until):
            raise not_replaced_error(run_id, owner)
        if claim is not None:
            if not isinstance(claim, SQLiteClaim) or claim.lease is None:
                raise self._not_ours(claim)
            claim.lease.confirm(db, claim)
        return key

    def _differs(self, db: sqlite3.Connection, run: StoredRun) -> bool:
        """Whether a run differs from the run that it replaces."""
        old = self._load_run(db, run.info.run_id)
        return (old.lines, old.answers, old.info.error) != (run.lines, run.answers, run.info.error)

    def _not_ours(self, claim: Claim) -> JournalError:
        return JournalError(
            f"run {claim.run_id!r} was not claimed through the journal {self.name}",
            code="bae-journal-failed",
            run_id=claim.run_id,
            fix="use the journal that made the claim",
        )

    def _vacuum(self, db: sqlite3.Connection, run_ids: Sequence[str]) -> None:
        """Erase all data that is no longer in the tables: the pages of the file have copies of
        moved lines, and the log has copies of pages. The table `unclean` stores that the file must
        be vacuumed: if this call fails, the next call tries again. Call this outside a
        transaction."""
        if not db.execute("select 1 from unclean limit 1").fetchone():
            return
        try:
            db.execute("vacuum")
            if db.execute("pragma wal_checkpoint(truncate)").fetchone()[0]:
                busy = sqlite3.OperationalError("the log is in use")
                busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
                raise busy
            db.execute("delete from unclean")
        except sqlite3.Error as error:
            journal_error = as_journal_error(error, self.name, run_ids[0])
            runs = ", ".join(map(repr, run_ids))
            journal_error.message += f"; run {runs} is changed, but the file still has old lines"
            if is_busy(error):
                journal_error.fix = "do it again when no other process uses the file"
            raise journal_error from error
