"""The runs in the tables of a journal: they are made, claimed, listed, read, changed and deleted
here. A write checks first, inside a transaction, so that a refusal has changed nothing."""

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
from bae.journal.run_checks import check_fork, check_version, not_replaced
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
"""How many runs are deleted in one transaction, so that others need not wait long for theirs."""
PAGE = 200
"""How many runs are read at once to find interrupted runs, for which there is no index."""

# The runs that have a file, and their forks, which may share a line with it.
_RUNS_OF_FILE = """with recursive known (run, is_own) as (
    select run, 1 from file_uses where hash = ?
    union select runs.run, 0 from runs join known on runs.parent = known.run
) select run, max(is_own) from known group by run order by max(is_own) desc, run desc"""


class RunTables(Journal):
    """A journal in the tables of SQLite: a method becomes work for a writer, or a query that a
    connection answers."""

    name: str
    """The name of the journal in errors."""
    _owner: str = ""

    @abstractmethod
    def _ask(self, work: WriteJob) -> Future[Any]:
        """Do work; it is taken in at the call."""

    @abstractmethod
    async def _read(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Query a connection that sees everything that was taken in before."""

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
        """The entry of a run, without its lines."""

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
        """The answers of people at the gates of a run, without its lines."""

        def ask(db: sqlite3.Connection) -> dict[str, str]:
            run = self._find(db, run_id)
            return dict(db.execute("select gate, value from answers where run = ?", (run,)))

        return await self._read(ask)

    async def thread_answers(self, thread: str, graph: str) -> dict[str, dict[str, str]]:
        """The answers for all runs of a thread, in one query."""

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
        """A new run that shares the lines of another run: nothing is copied."""
        given = tuple(lines)

        def add(db: sqlite3.Connection) -> None:
            parent = self._find(db, run_id)
            query = f"select {COUNT} from runs where run = ?"
            check_fork(run_id, upto, db.execute(query, (parent,)).fetchone()[0])
            info = run_info(db, db.execute(f"{INFO} where runs.run = ?", (parent,)).fetchone())
            new = StoredRun(fork_info(info, new_id, given, thread), "", given, {})
            add_run(db, new, parent=parent, shared=upto)

        await self._ask(WriteJob(run_id, add))

    async def replace(
        self, runs: Sequence[StoredRun], claims: Sequence[Claim] = (), *, erase: bool = False
    ) -> None:
        """Store runs in place of others. A run with forks can only be replaced together with them.
        With `erase` the file is vacuumed, so that nothing of the old lines is left in the file or
        in its log. This takes as long as copying the file, and as much space, and nothing else can
        be written meanwhile."""
        given = tuple(runs)
        held = {claim.run_id: claim for claim in claims}

        def swap(db: sqlite3.Connection) -> None:
            keys = {run.info.run_id: self._may_replace(db, run, held) for run in given}
            old = [key for key in keys.values() if key is not None]
            query = f"select 1 from runs where parent in ({marks(old)}) and run not in"
            if db.execute(f"{query} ({marks(old)})", (*old, *old)).fetchone():
                raise not_replaced(given[0].info.run_id, None)
            if erase and any(self._differs(db, run) for run in given if keys[run.info.run_id]):
                db.execute("insert into unclean (since) values (?)", (time(),))
            for key in old:
                remove_run(db, key)
            for run in given:
                add_run(db, run, key=keys[run.info.run_id])

        def then(db: sqlite3.Connection) -> None:
            for claim in held.values():
                if isinstance(claim, SQLiteClaim) and claim.lease is not None:
                    claim.lease.drop(claim, "it was released")
            if erase:
                self._vacuum(db, [run.info.run_id for run in given])

        only = given[0].info.run_id if len(given) == 1 else None
        await self._ask(WriteJob(only, swap, then=then))

    async def delete(self, run_ids: Sequence[str]) -> int:
        """Delete runs and return their number. A run with forks stays, and so does a run that a
        process works on. The file keeps its size; its space is used again."""
        if isinstance(run_ids, str):  # its letters would be ids
            raise TypeError(f"delete({run_ids!r}): give the ids of runs as a list")
        given = set(run_ids)

        def find(db: sqlite3.Connection) -> list[tuple[int, str]]:
            query = "select run, id from runs where id = ?"
            found = [row for run_id in given for row in db.execute(query, (run_id,))]
            return sorted(found, reverse=True)  # a fork is newer than its parent

        found = [run_id for _, run_id in await self._read(find)]
        count = 0
        for first in range(0, len(found), RUNS_AT_ONCE):
            some = found[first : first + RUNS_AT_ONCE]
            count += await self._ask(WriteJob(do=partial(delete_runs, run_ids=some)))
        return count

    async def read(self, run_id: str) -> StoredRun:
        return await self._read_run(run_id)

    async def find_file(self, hash: str, sees: Callable[[RunInfo], bool]) -> bytes | None:
        """The bytes of an image or a document, if a run has it for which `sees` is true."""

        def entries(db: sqlite3.Connection, some: Sequence[int]) -> list[tuple[int, RunInfo]]:
            rows = fetch_rows(db, f"{INFO} where runs.run in ({marks(some)})", some)
            return [(row[0], list_entry(db, row)) for row in rows]

        def read(db: sqlite3.Connection, seen: Sequence[tuple[int, RunInfo]]) -> bytes | None:
            for run, info in seen:
                lines = () if is_own[run] else self._read_lines(db, run, info.run_id)
                if is_own[run] or any(hash in line.data for line in lines):
                    stored = db.execute("select data from files where hash = ?", (hash,)).fetchone()
                    return stored and stored[0]
            return None

        is_own = dict(await self._read(lambda db: db.execute(_RUNS_OF_FILE, (hash,)).fetchall()))
        runs = [*is_own]
        for first in range(0, len(runs), PAGE):
            listed = await self._read(partial(entries, some=runs[first : first + PAGE]))
            seen = [(run, info) for run, info in listed if sees(info)]
            data = await self._read(partial(read, seen=seen)) if seen else None
            if data is not None:
                return data
        return None

    async def read_texts(self, run_id: str) -> StoredRun:
        """A run without the bytes of its files."""
        return await self._read_run(run_id, with_files=False)

    async def _read_run(self, run_id: str, *, with_files: bool = True) -> StoredRun:
        def ask(db: sqlite3.Connection) -> StoredRun:
            db.execute("begin")  # other processes may write it: this is the run at one instant
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
            given = db.execute(query, row[:1]).fetchall()
            answers = {gate: value for gate, value, _ in given}
            people = {gate: person for gate, _, person in given if person}
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
        """Some lines of a run; no other line is read."""

        def ask(db: sqlite3.Connection) -> RunLines:
            db.execute("begin")  # other processes may write it: this is the run at one instant
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
        """The runs that were forked from a run, by an index."""
        query = f"""{INFO} where runs.parent = ? or (runs.parent is null and runs.came_from = ?)
            order by runs.run desc limit ?"""

        def ask(db: sqlite3.Connection) -> list[RunInfo]:
            values = (self._find(db, run_id), run_id, limit)
            return [list_entry(db, row) for row in fetch_rows(db, query, values)]

        return await self._read(ask)

    async def last_change(self) -> int:
        """The greatest change of all runs, including deleted runs."""
        query = f"select {NEXT_CHANGE} - 1"
        return await self._read(lambda db: int(db.execute(query).fetchone()[0]))

    async def older(self, than: float, statuses: Sequence[RunStatus]) -> list[str]:
        wanted = f"status in ({marks(statuses)}) and {UPDATED} < ?"
        # A thread is kept or deleted in full: delete threads in which all runs are old.
        kept = f"select thread from runs where thread is not null and not ({wanted})"
        query = f"""select id from runs where {wanted}
            and (thread is null or thread not in ({kept})) order by run"""

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
            left = max((until or 0.0) - time(), 0)
            raise failure("bae-run-owned", self.name, run_id, owner=owner, left=left)
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
        """The lines of a run from the number `start` on and below `stop`."""
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
        """The error for a part that cannot be read; errors of SQLite itself stay unchanged."""
        if getattr(error, "sqlite_errorcode", None) is not None:
            return error
        what = f"{what} cannot be read ({describe(error)})"
        return failure("bae-journal-damaged", self.name, run_id, cause=error, what=what)

    def _may_replace(
        self, db: sqlite3.Connection, run: StoredRun, claims: Mapping[str, Claim]
    ) -> int | None:
        """The key of the run that is to be replaced; None if there is none."""
        run_id = run.info.run_id
        query = "select run, owner, until from runs left join owners on name = owner where id = ?"
        key, owner, until = db.execute(query, (run_id,)).fetchone() or (None, None, None)
        claim = claims.get(run_id)
        if claim is None and is_alive(owner, until):
            raise not_replaced(run_id, owner)
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
        """Leave only data in the file and its log that can be read from the tables: pages have
        copies of lines that were moved, and so has the log. The file notes that this is due, for
        the next call if it fails. Call it outside a transaction."""
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
            failed = as_journal_error(error, self.name, run_ids[0])
            runs = ", ".join(map(repr, run_ids))
            failed.message += f"; run {runs} is changed, but the file still has old lines"
            if is_busy(error):
                failed.fix = "do it again when no other process uses the file"
            raise failed from error
