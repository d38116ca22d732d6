"""The runs in the tables of a journal: how they are made, claimed, listed, read, changed and
deleted. What writes runs inside a transaction and checks first, so that a refusal has changed
nothing."""

from __future__ import annotations

import json
import sqlite3
from abc import abstractmethod
from asyncio import Future
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import fields, replace
from functools import cache, partial
from itertools import chain
from secrets import randbits
from time import time
from types import MappingProxyType
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter
from pydantic_core import to_json

from bae.exceptions import JournalError, describe
from bae.journal.sqlite.lease import Fence, SQLiteClaim, has_died, is_alive
from bae.journal.sqlite.schema import (
    CHANGED,
    LINES_OF_A_RUN,
    NEXT_CHANGE,
    as_journal_error,
    failure,
    is_busy,
)
from bae.journal.sqlite.writer import WriteJob, add_lines
from bae.journal.store import (
    LATEST,
    NO_FILES,
    OPEN,
    Claim,
    Journal,
    Line,
    Listed,
    ParkedGate,
    RunInfo,
    RunLines,
    RunStatus,
    RunSummary,
    Scalar,
    StoredRun,
    Time,
    check_fork,
    check_page,
    check_version,
    fork_info,
    is_listed,
    labels_of,
    thread_busy,
)

T = TypeVar("T")

RUNS_AT_ONCE = 50
"""How many runs are deleted in one transaction: others need not wait long for theirs."""
PAGE = 200
"""How many runs are read at once to find interrupted ones, which no index has."""

_LAST = """(select {} from lines where lines.id between runs.run << 32
    and (runs.run << 32) + 4294967295 order by lines.id desc limit 1)"""
_COUNT = f"coalesce({_LAST.format('(lines.id & 4294967295) + 1')}, runs.shared)"
"""How many lines a run has, including those it shares with the run it was forked from."""
_UPDATED = f"coalesce({_LAST.format('at')}, runs.started)"
_INFO = f"""select runs.run, runs.id, runs.graph, runs.status, runs.started, {_UPDATED}, hash,
    runs.owner, until, runs.waiting, runs.error, coalesce(parents.id, runs.came_from), runs.thread,
    runs.metadata, runs.summary, runs.change
from runs left join shapes using (shape)
    left join owners on owners.name = runs.owner
    left join runs parents on parents.run = runs.parent"""
# The runs that have a file, and those that were forked from them, which may share a line with it.
_RUNS_OF_FILE = """with recursive known (run, is_own) as (
    select run, 1 from file_uses where hash = ?
    union select runs.run, 0 from runs join known on runs.parent = known.run
) select run, max(is_own) from known group by run order by max(is_own) desc, run desc"""
# Where the lines of a run are: in itself, and below where it was forked in its parents.
_HOMES = """with recursive homes (run, first, end, parent) as (
    select run, shared, 4294967296, parent from runs where run = ?
    union -- and not all of them: a damaged run may be its own parent
    select runs.run, min(runs.shared, homes.first), homes.first, runs.parent
        from homes join runs on runs.run = homes.parent where homes.first > 0
) select run, first, end from homes order by first, end"""


_ADD_RUN = f"""insert into runs (run, id, graph, status, started, shape, owner, epoch, waiting,
    error, parent, shared, came_from, thread, metadata, summary, change)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {NEXT_CHANGE})
on conflict (id) do nothing"""
_ADD_ANSWER = "insert or ignore into answers (run, gate, value, person) values (?, ?, ?, ?)"
_RELEASE_RUN = f"""update runs set owner = null, status = ?, waiting = ?, error = ?,
    summary = coalesce(?, summary), {CHANGED} where run = ? and epoch = ?"""


_LABELED = "runs.run in (select run from labels where key = ? and value = ?) and "
_BUSY = """select id from runs where thread = ? and status in ('running', 'waiting') and run <> ?
    limit 1"""
NO_LABELS: Mapping[str, str] = MappingProxyType({})


class RunTables(Journal):
    """A journal in the tables of SQLite: what is asked becomes work for a writer, or a question
    that a connection answers."""

    name: str
    """What errors call the journal."""
    _owner: str = ""

    @abstractmethod
    def _ask(self, work: WriteJob) -> Future[Any]:
        """Have work done; it is taken in at the call."""

    @abstractmethod
    async def _read(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Ask a connection that sees all that was taken in before."""

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
            is_first = db.execute(_ADD_ANSWER, (run, gate, value, by)).rowcount > 0
            if is_first:
                _add_files(db, run, files)
                db.execute(f"update runs set {CHANGED} where run = ?", (run,))
            return is_first

        return await self._ask(WriteJob(run_id, add))

    async def info(self, run_id: str) -> RunInfo:
        """The entry of a run, without its lines."""

        def ask(db: sqlite3.Connection) -> RunInfo:
            try:
                row = db.execute(f"{_INFO} where runs.id = ?", (run_id,)).fetchone()
                if row is None:
                    raise failure("bae-run-unknown", self.name, run_id)
                return _info(db, row)
            except _UNREADABLE as error:
                raise self._damaged(run_id, f"run {run_id!r}", error) from error

        return await self._read(ask)

    async def answers(self, run_id: str) -> dict[str, str]:
        """What people have answered at the gates of a run, without its lines."""

        def ask(db: sqlite3.Connection) -> dict[str, str]:
            run = self._find(db, run_id)
            return dict(db.execute("select gate, value from answers where run = ?", (run,)))

        return await self._read(ask)

    async def thread_answers(self, thread: str, graph: str) -> dict[str, dict[str, str]]:
        """The same for a thread, in one query."""

        def ask(db: sqlite3.Connection) -> dict[str, dict[str, str]]:
            query = """select id, gate, value from runs join answers using (run)
                where thread = ? and graph = ? order by run"""
            found: dict[str, dict[str, str]] = {}
            for run_id, gate, value in db.execute(query, (thread, graph)):
                found.setdefault(run_id, {})[gate] = value
            return found

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
        """A new run that shares the lines of another: nothing is copied."""
        given = tuple(lines)

        def add(db: sqlite3.Connection) -> None:
            parent = self._find(db, run_id)
            query = f"select {_COUNT} from runs where run = ?"
            check_fork(run_id, upto, db.execute(query, (parent,)).fetchone()[0])
            info = _info(db, db.execute(f"{_INFO} where runs.run = ?", (parent,)).fetchone())
            new = StoredRun(fork_info(info, new_id, given, thread), "", given, {})
            add_run(db, new, parent=parent, shared=upto)

        await self._ask(WriteJob(run_id, add))

    async def replace(
        self, runs: Sequence[StoredRun], claims: Sequence[Claim] = (), *, erase: bool = False
    ) -> None:
        """Store runs in place of others. A run that others were forked from is replaced together
        with them only. With `erase` the file is vacuumed, so that nothing of the old lines is left
        in it or in its log: this takes as long as copying the file and as much room, and nothing
        else can be written meanwhile."""
        given = tuple(runs)
        held = {claim.run_id: claim for claim in claims}

        def swap(db: sqlite3.Connection) -> None:
            keys = {run.info.run_id: self._may_replace(db, run, held) for run in given}
            old = [key for key in keys.values() if key is not None]
            query = f"select 1 from runs where parent in ({_marks(old)}) and run not in"
            if db.execute(f"{query} ({_marks(old)})", (*old, *old)).fetchone():
                raise _not_replaced(given[0].info.run_id, None)
            if erase and any(self._differs(db, run) for run in given if keys[run.info.run_id]):
                db.execute("insert into unclean (since) values (?)", (time(),))
            for key in old:
                _remove(db, key)
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
        """Delete runs and return how many. A run that has forks stays, and so does one that a
        process works on. The file keeps its size, and its room is used again."""
        if isinstance(run_ids, str):  # its letters would be ids
            raise TypeError(f"delete({run_ids!r}): give the ids of runs as a list")
        given = set(run_ids)

        def find(db: sqlite3.Connection) -> list[tuple[int, str]]:
            query = "select run, id from runs where id = ?"
            found = [row for run_id in given for row in db.execute(query, (run_id,))]
            return sorted(found, reverse=True)  # a fork is newer than what it was forked from

        found = [run_id for _, run_id in await self._read(find)]
        count = 0
        for first in range(0, len(found), RUNS_AT_ONCE):
            some = found[first : first + RUNS_AT_ONCE]
            count += await self._ask(WriteJob(do=partial(_delete, run_ids=some)))
        return count

    async def read(self, run_id: str) -> StoredRun:
        return await self._read_run(run_id)

    async def find_file(self, hash: str, sees: Callable[[RunInfo], bool]) -> bytes | None:
        """The bytes of an image or a document, if a run has it for which `sees` is true."""

        def entries(db: sqlite3.Connection, some: Sequence[int]) -> list[tuple[int, RunInfo]]:
            rows = _fetch(db, f"{_INFO} where runs.run in ({_marks(some)})", some)
            return [(row[0], _entry(db, row)) for row in rows]

        def read(db: sqlite3.Connection, seen: Sequence[tuple[int, RunInfo]]) -> bytes | None:
            for run, info in seen:
                lines = () if is_own[run] else self._read_lines(db, run, info.run_id)
                if is_own[run] or any(hash in line.data for line in lines):
                    found = db.execute("select data from files where hash = ?", (hash,)).fetchone()
                    return found and found[0]
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
            db.execute("begin")  # others may write it: this is the run at one instant
            try:
                return self._stored(db, run_id, with_files=with_files)
            finally:
                if db.in_transaction:
                    db.execute("rollback")

        return await self._read(ask)

    def _stored(self, db: sqlite3.Connection, run_id: str, *, with_files: bool = True) -> StoredRun:
        try:
            row = db.execute(f"{_INFO} where runs.id = ?", (run_id,)).fetchone()
            if row is None:
                raise failure("bae-run-unknown", self.name, run_id)
            info = _info(db, row)
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
            files = _files_of(db, row[0], lines) if with_files else {}
            return StoredRun(info, cast(str, shape), lines, answers, files, people)
        except _UNREADABLE as error:
            raise self._damaged(run_id, f"run {run_id!r}", error) from error

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
            found: list[RunInfo] = []
            while True:
                rows = _fetch(db, text, (*values, place, size))
                found += [info for row in rows if is_listed(info := _entry(db, row), status)]
                if len(rows) < size or len(found) >= limit:
                    return found[:limit]
                place = rows[-1][0 if after is None else -1]

        return await self._read(ask)

    async def lines(self, run_id: str, *, after: int = -1, limit: int = 500) -> RunLines:
        """Some lines of a run; no other line is read."""

        def ask(db: sqlite3.Connection) -> RunLines:
            db.execute("begin")  # others may write it: this is the run at one instant
            try:
                row = db.execute(f"{_INFO} where runs.id = ?", (run_id,)).fetchone()
                if row is None:
                    raise failure("bae-run-unknown", self.name, run_id)
                query = f"select {_COUNT} from runs where run = ?"
                count: int = db.execute(query, row[:1]).fetchone()[0]
                upto = min(count, after + 1 + limit)
                found = self._read_lines(db, row[0], run_id, after + 1, upto) if limit else ()
                return RunLines(_info(db, row), found, count)
            except _UNREADABLE as error:
                raise self._damaged(run_id, f"run {run_id!r}", error) from error
            finally:
                if db.in_transaction:
                    db.execute("rollback")

        return await self._read(ask)

    async def forks(self, run_id: str, *, limit: int = 50) -> list[RunInfo]:
        """The runs that were forked from a run, by an index."""
        query = f"""{_INFO} where runs.parent = ? or (runs.parent is null and runs.came_from = ?)
            order by runs.run desc limit ?"""

        def ask(db: sqlite3.Connection) -> list[RunInfo]:
            values = (self._find(db, run_id), run_id, limit)
            return [_entry(db, row) for row in _fetch(db, query, values)]

        return await self._read(ask)

    async def last_change(self) -> int:
        """The greatest change of all runs, and of those that were deleted."""
        query = f"select {NEXT_CHANGE} - 1"
        return await self._read(lambda db: int(db.execute(query).fetchone()[0]))

    async def older(self, than: float, statuses: Sequence[RunStatus]) -> list[str]:
        wanted = f"status in ({_marks(statuses)}) and {_UPDATED} < ?"
        # A thread is kept whole: of those with an old run, the ones in which no run is another.
        kept = f"select thread from runs where thread is not null and not ({wanted})"
        query = f"""select id from runs where {wanted}
            and (thread is null or thread not in ({kept})) order by run"""

        def ask(db: sqlite3.Connection) -> list[str]:
            found = _fetch(db, query, (*statuses, than, *statuses, than))
            return [run_id for (run_id,) in found if isinstance(run_id, str)]

        return await self._read(ask)

    def _claim_run(self, db: sqlite3.Connection, run_id: str) -> SQLiteClaim:
        """Make this process the owner of a run."""
        found = db.execute(
            f"select run, runs.owner, until, status, {_COUNT}, thread from runs"
            " left join owners on name = runs.owner where id = ?",
            (run_id,),
        ).fetchone()
        if found is None:
            raise failure("bae-run-unknown", self.name, run_id)
        run, owner, until, status, count, thread = found
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
        found = db.execute("select run from runs where id = ?", (run_id,)).fetchone()
        if found is None:
            raise failure("bae-run-unknown", self.name, run_id)
        return found[0]

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
            for home, first, end in db.execute(_HOMES, (run,)).fetchall():
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
                        if tuple(map(type, line)) != _TYPES or not _is_possible(line):
                            raise TypeError("a column has a value of another type")
                        check_version(line, run_id)
                        if not isinstance(json.loads(line.data), dict):
                            raise ValueError("no JSON object")
                        lines.append(line)
                if until < LINES_OF_A_RUN and until != start + len(lines):
                    raise missing()
        except _UNREADABLE as error:
            what = f"line {start + len(lines)} of run {run_id!r}"
            raise self._damaged(run_id, what, error) from error
        return tuple(lines)

    def _damaged(self, run_id: str, what: str, error: Exception) -> Exception:
        """The error of something that cannot be read; errors of SQLite itself stay as they are."""
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
            raise _not_replaced(run_id, owner)
        if claim is not None:
            if not isinstance(claim, SQLiteClaim) or claim.lease is None:
                raise self._not_ours(claim)
            claim.lease.confirm(db, claim)
        return key

    def _differs(self, db: sqlite3.Connection, run: StoredRun) -> bool:
        """Whether a run holds something else than the one that it replaces."""
        old = self._stored(db, run.info.run_id)
        return (old.lines, old.answers, old.info.error) != (run.lines, run.answers, run.info.error)

    def _not_ours(self, claim: Claim) -> JournalError:
        return JournalError(
            f"run {claim.run_id!r} was not claimed through the journal {self.name}",
            code="bae-journal-failed",
            run_id=claim.run_id,
            fix="use the journal that made the claim",
        )

    def _vacuum(self, db: sqlite3.Connection, run_ids: Sequence[str]) -> None:
        """Leave nothing in the file and its log but what can be read from the tables: pages have
        copies of lines that were moved, and so has the log. The file notes that this is due, for
        the next call where it fails. Outside of a transaction."""
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


def add_run(
    db: sqlite3.Connection,
    run: StoredRun,
    *,
    owner: str | None = None,
    parent: int | None = None,
    shared: int = 0,
    key: int | None = None,
) -> Fence:
    """Add a run with its first lines of its own, after those that it shares with its `parent`. An
    owner makes it a running one; `key` is that of the run it replaces."""
    info = run.info
    for n, line in enumerate(run.lines, shared):
        if line.n != n:
            raise ValueError(f"run {info.run_id!r}: got line {line.n} where {n} is due")
    epoch = randbits(48)
    values = (
        key,
        info.run_id,
        info.graph,
        info.status if owner is None else "running",
        info.started,
        _shape_key(db, run.shape, info.shape),
        owner,
        epoch,
        _dump(info.waiting),
        info.error,
        parent,
        shared,
        info.parent if parent is None else None,
        info.thread,
        json.dumps(info.metadata) if info.metadata else "{}",
        _dump_summary(info.summary),
    )
    added = db.execute(_ADD_RUN, values)
    if not added.rowcount:
        raise failure("bae-run-exists", "", info.run_id)
    assert added.lastrowid is not None
    fence = added.lastrowid, epoch
    if owner is not None or info.status in OPEN:
        refuse_busy(db, info.thread, fence[0])
    _add_files(db, fence[0], run.files)
    add_lines(db, [line + fence for line in run.lines])
    if info.metadata:
        labels = [(*label, fence[0]) for label in labels_of(info.metadata, strict=False).items()]
        db.executemany("insert into labels (key, value, run) values (?, ?, ?)", labels)
    if run.answers:
        people = run.answered_by
        answers = [(fence[0], g, value, people.get(g, "")) for g, value in run.answers.items()]
        db.executemany(_ADD_ANSWER, answers)
    return fence


def _add_files(db: sqlite3.Connection, run: int, files: Mapping[str, bytes]) -> None:
    """Add the files of a run. Each is stored once, whichever runs have it."""
    for hash, data in files.items():
        db.execute("insert or ignore into files (hash, data) values (?, ?)", (hash, data))
        db.execute("insert or ignore into file_uses (run, hash) values (?, ?)", (run, hash))


def refuse_busy(db: sqlite3.Connection, thread: str | None, run: int) -> None:
    """Raise `bae-thread-busy` where another run of the thread is in progress, or was, or waits."""
    if thread is not None and (busy := db.execute(_BUSY, (thread, run)).fetchone()):
        raise thread_busy(thread, busy[0])


def _shape_key(db: sqlite3.Connection, text: str, shape_hash: str) -> int:
    """The key of a shape, which is added if it is new."""
    query = "select shape from shapes where hash = ?"
    found = db.execute(query, (shape_hash,)).fetchone()
    if found is None:
        db.execute("insert into shapes (hash, text) values (?, ?)", (shape_hash, text))
        found = db.execute(query, (shape_hash,)).fetchone()
    return found[0]


def release_run(
    db: sqlite3.Connection,
    fence: Fence,
    how: tuple[RunStatus, Sequence[ParkedGate], str, RunSummary | None],
) -> None:
    """Store how a run ended, and that it has no owner."""
    status, waiting, error, summary = how
    values = status, _dump(waiting), error, _dump_summary(summary), *fence
    db.execute(_RELEASE_RUN, values)


def page_query(
    status: RunStatus | None,
    graph: str | None,
    thread: str | None = None,
    labels: Mapping[str, str] = NO_LABELS,
    *,
    by_change: bool = False,
) -> tuple[str, list[str]]:
    """The statement behind `runs`, always found through an index, and its first parameters; those
    after them are the key below which a page begins, or the change above which, and its size."""
    wanted = {"runs.thread": thread, "runs.graph": graph, "runs.status": status}
    given = {column: value for column, value in wanted.items() if value is not None}
    where = "".join(f"{column} = ? and " for column in given)
    where += _LABELED * len(labels)
    order = "runs.run < ? order by runs.run desc"
    if by_change:
        order = "runs.change > ? order by runs.change"
    return f"{_INFO} where {where}{order} limit ?", [
        *given.values(),
        *chain.from_iterable(labels.items()),
    ]


def _delete(db: sqlite3.Connection, run_ids: Sequence[str]) -> int:
    """Delete runs, the newest first, except those that have forks or a living owner; returns how
    many."""
    deleted = 0
    for run_id in run_ids:
        found = db.execute(
            "select run, owner, until from runs left join owners on name = owner where id = ?"
            " and not exists (select 1 from runs forks where forks.parent = runs.run)",
            (run_id,),
        ).fetchone()
        if found is not None and not is_alive(*found[1:]):
            deleted += 1
            _remove(db, found[0])
    return deleted


def _files_of(db: sqlite3.Connection, run: int, lines: Sequence[Line]) -> dict[str, bytes]:
    """The files of a run by hash: its own, and those in the lines that it shares with the runs that
    it was forked from."""
    if not db.execute("select 1 from file_uses limit 1").fetchone():
        return {}
    homes = [home for home, *_ in db.execute(_HOMES, (run,)).fetchall()]
    query = f"select hash, max(run = ?) from file_uses where run in ({_marks(homes)}) group by hash"
    found: dict[str, bytes] = {}
    for hash, is_own in db.execute(query, (run, *homes)).fetchall():
        if not is_own and not any(hash in line.data for line in lines):
            continue  # another run got it after the fork
        data = db.execute("select data from files where hash = ?", (hash,)).fetchone()
        if data is None or not isinstance(data[0], bytes):
            raise ValueError(f"the file {hash!r:.20} is missing")
        found[hash] = data[0]
    return found


def _remove(db: sqlite3.Connection, run: int) -> None:
    """Delete a run with its lines, answers, and the files that no other run has. The number of its
    last change is not used again."""
    of_run = run * LINES_OF_A_RUN, (run + 1) * LINES_OF_A_RUN
    db.execute(f"insert into changes (last) values ({NEXT_CHANGE})")
    db.execute("delete from changes where last < (select max(last) from changes)")
    db.execute("delete from lines where id >= ? and id < ?", of_run)
    db.execute("delete from runs where run = ?", (run,))
    db.execute("delete from answers where run = ?", (run,))
    db.execute("delete from labels where run = ?", (run,))
    hashes = db.execute("select hash from file_uses where run = ?", (run,)).fetchall()
    if hashes:
        db.execute("delete from file_uses where run = ?", (run,))
        unused = "not exists (select 1 from file_uses where file_uses.hash = files.hash)"
        db.executemany(f"delete from files where hash = ? and {unused}", hashes)


def _not_replaced(run_id: str, owner: str | None) -> JournalError:
    """The error for a run that cannot be replaced: a living `owner` works on it, or it has forks
    that share its lines."""
    if owner is not None:
        what, code = f"it is in progress, owned by {owner}", "bae-run-owned"
        fix = "wait for its end, or load the file into another journal"
    else:
        what, code = "other runs share its lines", "bae-run-exists"
        fix = "delete the runs that were forked from it first, or load into another journal"
    what = f"run {run_id!r} was not replaced: {what}"
    return JournalError(what, code=code, run_id=run_id, fix=fix)


def _info(db: sqlite3.Connection, row: Sequence[Any]) -> RunInfo:
    """The entry of a run; one of `_UNREADABLE` is raised where it is none."""
    run, run_id, graph, status, started, updated, shape, owner, until, waiting, *rest = row
    error, parent, thread, metadata, summary, change = rest
    infos, gates = _forms()
    parked: tuple[ParkedGate, ...] = ()
    if waiting != "[]":
        found = db.execute("select gate from answers where run = ?", (run,)).fetchall()
        listed = gates.validate_json(waiting)
        parked = tuple(ParkedGate(*gate, answered=(gate[0],) in found) for gate in listed)
    values = run_id, graph, status, started, updated, shape, owner, until, parked, error, parent
    values += thread, json.loads(metadata), summary and json.loads(summary), change
    info = infos.validate_python(dict(zip(_COLUMNS, values, strict=True)))
    return replace(info, lease_until=None) if owner is not None and has_died(owner) else info


def _entry(db: sqlite3.Connection, row: Sequence[Any]) -> RunInfo:
    """The entry of a run in a list. One that is damaged is listed as a failed run which says so, to
    be deleted or read from a backup: it must not hide the others."""
    try:
        return _info(db, row)
    except _UNREADABLE as error:
        if getattr(error, "sqlite_errorcode", None) is not None:
            raise
        run_id, graph = (each if isinstance(each, str) else repr(each) for each in row[1:3])
        what = f"its entry in the journal is damaged: {describe(error)}"
        return RunInfo(run_id, graph, "failed", 0.0, 0.0, "", error=what)


def _fetch(db: sqlite3.Connection, query: str, values: Sequence[Any]) -> list[Any]:
    """All rows, with bytes where a text is not UTF-8: one of them must not hide the others. Never
    a cursor that is still open: the frames of an error would hold it, and with it what the tables
    were then."""
    db.text_factory = _text
    try:
        return db.execute(query, values).fetchall()
    finally:
        db.text_factory = str


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


@cache
def _forms() -> tuple[TypeAdapter[RunInfo], TypeAdapter[list[tuple[str, str, str, Time | None]]]]:
    """What the entry of a run must be, and what the gates in it must be."""
    return TypeAdapter(RunInfo), TypeAdapter(list[tuple[str, str, str, Time | None]])


def _is_possible(line: Line) -> bool:
    return 0 <= line.at < LATEST and line.step >= 0


_COLUMNS = [field.name for field in fields(RunInfo)]
_TYPES = int, str, float, str, int, str, int
"""Of the columns of a line; SQLite stores whatever another program gives it."""
_UNREADABLE = ValueError, TypeError, OverflowError, RecursionError, sqlite3.OperationalError
"""What is raised where something in the tables is not what bae writes."""


def _dump(waiting: Sequence[ParkedGate]) -> str:
    if not waiting:
        return "[]"
    return json.dumps(
        [(gate.address, gate.place, gate.question, gate.deadline) for gate in waiting]
    )


def _dump_summary(summary: RunSummary | None) -> str | None:
    return None if summary is None else to_json(summary).decode()


def _marks(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))
