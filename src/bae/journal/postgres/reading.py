"""The queries of a journal in Postgres: lists of runs, entries, and complete runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import time
from typing import Any, Final

from bae.journal.postgres.errors import error_of
from bae.journal.run_checks import check_version
from bae.journal.run_lists import is_listed
from bae.journal.sqlite.lease import has_died
from bae.journal.stored_runs import (
    Line,
    Listed,
    ParkedGate,
    RunInfo,
    RunLines,
    RunStatus,
    RunSummary,
    StoredRun,
)

_GREATEST: Final = (1 << 63) - 1

_ENTRY: Final = """r.run, r.id, r.graph, r.status, r.started,
    case when r.status = 'running' then greatest(r.updated, coalesce(
        (select at from {s}.lines l where l.run = r.run order by n desc limit 1), r.updated
    )) else r.updated end as updated,
    hash, r.owner, extract(epoch from o.until - clock_timestamp())::float8 as remaining,
    r.waiting, r.error, coalesce(p.id, r.came_from) as parent, r.thread, r.metadata, r.summary,
    r.change, case when r.waiting <> '[]' then array(
        select gate from {s}.answers a where a.run = r.run) end as answered"""
_FROM: Final = """from {s}.runs r left join {s}.shapes using (shape)
    left join {s}.owners o on o.name = r.owner left join {s}.runs p on p.run = r.parent"""
_INFO: Final = f"select {_ENTRY} {_FROM}"

_NOT_OWNED: Final = """(r.owner is null or o.name is null or o.name = any ({})
    or o.until < clock_timestamp())"""

# `homes` has the runs that own lines of a run: the run itself, and its ancestors if it is a fork.
# A run owns the lines with numbers from `first` on and below `until`.
_HOMES: Final = """with recursive homes (run, first, until, parent) as (
    select run, shared, 2147483647, parent from {s}.runs where WHICH = $1
    union
    select r.run, least(r.shared, h.first), h.first, r.parent
        from homes h join {s}.runs r on r.run = h.parent where h.first > 0
)"""
_LINES: Final = (
    _HOMES.replace("WHICH", "run")
    + """ select n, kind, at, path, step, data, version from homes h
    join lateral (select * from {s}.lines l where l.run = h.run and l.n >= greatest(h.first, $2)
        and l.n < least(h.until, $3)) l on true order by n"""
)


def _select_arrays(*columns: str) -> str:
    """Return SQL that collects each column in an array, such as `all_n`. Without rows, the arrays
    are empty."""
    return ", ".join(f"coalesce(array_agg({column}), '{{}}') as all_{column}" for column in columns)


_LINE_ARRAYS: Final = tuple(f"all_{name}" for name in Line._fields)
_READ_TEXTS: Final = (
    _HOMES.replace("WHICH", "id")
    + f"""select {_ENTRY}, text, l.*, a.* {_FROM} cross join lateral (
    select {_select_arrays(*Line._fields)}
    from (select l.* from homes h join lateral (select * from {{s}}.lines l where l.run = h.run
        and l.n >= h.first and l.n < h.until) l on true order by n) l
) l cross join lateral (
    select {_select_arrays("gate", "value", "person")} from {{s}}.answers a where a.run = r.run
) a where r.id = $1"""
)
_READ_FILES: Final = _READ_TEXTS.replace("a.*", "a.*, f.*").replace(
    "where r.id = $1",
    f"""cross join lateral (select {_select_arrays("file", "bytes", "own")}
    from (select f.hash as file, data as bytes, bool_or(u.run = r.run) as own
        from {{s}}.file_uses u join {{s}}.files f using (hash)
        where u.run in (select run from homes) group by f.hash, data) f
) f where r.id = $1""",
)
RUNS_OF_FILE: Final = """with recursive known (run, is_own) as (
    select run, true from {s}.file_uses where hash = $1
    union select r.run, false from {s}.runs r join known on r.parent = known.run
) select id, bool_or(is_own) as is_own from known join {s}.runs using (run)
    group by run, id order by bool_or(is_own) desc, run desc"""
"""Selects the runs that have a file, and the forks of these runs: a fork may share a line that
refers to the file."""
_COUNT: Final = """select
    coalesce((select max(n) + 1 from {s}.lines l where l.run = r.run), r.shared)
    from {s}.runs r where r.run = $1"""


@dataclass(frozen=True)
class PostgresReader:
    """Reads the journal in `schema`, through the connection `db` that the caller passes."""

    name: str
    schema: str

    def sql(self, text: str) -> str:
        """Return a statement with the name of the schema in place of `{s}`."""
        return text.replace("{s}", self.schema)

    async def find(self, db: Any, run_id: str) -> int:
        """Return the key of a run."""
        key = await db.fetchval(self.sql("select run from {s}.runs where id = $1"), run_id)
        if key is None:
            raise error_of("bae-run-unknown", self.name, run_id)
        return int(key)

    async def row(self, db: Any, run_id: str) -> Any:
        """Read a run's entry, as a row."""
        row = await db.fetchrow(self.sql(f"{_INFO} where r.id = $1"), run_id)
        if row is None:
            raise error_of("bae-run-unknown", self.name, run_id)
        return row

    async def read(self, db: Any, run_id: str, *, with_files: bool = True) -> StoredRun:
        """Read a complete run. One statement reads all parts, so they show the same moment."""
        row = await db.fetchrow(self.sql(_READ_FILES if with_files else _READ_TEXTS), run_id)
        if row is None:
            raise error_of("bae-run-unknown", self.name, run_id)
        columns = [row[name] for name in _LINE_ARRAYS]
        lines = self._check_lines(map(Line._make, zip(*columns, strict=True)), run_id)
        answers = [*zip(row["all_gate"], row["all_value"], row["all_person"], strict=True)]
        files: dict[str, bytes] = {}
        if with_files:
            columns = row["all_file"], row["all_bytes"], row["all_own"]
            for hash, data, is_own in sorted(zip(*columns, strict=True)):
                if is_own or any(hash in line.data for line in lines):
                    files[hash] = data
        values = {gate: value for gate, value, _ in answers}
        people = {gate: person for gate, _, person in answers if person}
        return StoredRun(info_of(row), row["text"] or "", lines, values, files, people)

    async def lines(
        self, db: Any, key: int, run_id: str, start: int = 0, stop: int = 2_147_483_647
    ) -> tuple[Line, ...]:
        """Read the lines of a run with numbers from `start` on and below `stop`."""
        rows = await db.fetch(self.sql(_LINES), key, start, stop)
        return self._check_lines((Line(*row) for row in rows), run_id, start)

    def _check_lines(self, lines: Iterable[Line], run_id: str, start: int = 0) -> tuple[Line, ...]:
        """Return the lines as a tuple. Raises JournalError if a line is missing, or if this bae
        cannot read its version."""
        checked_lines = tuple(lines)
        for number, line in enumerate(checked_lines, start):
            if line.n != number:
                what = f"line {number} of run {run_id!r} is missing"
                raise error_of("bae-journal-damaged", self.name, run_id, what=what)
            check_version(line, run_id)
        return checked_lines

    async def page(self, db: Any, run_id: str, after: int, limit: int) -> RunLines:
        """Read at most `limit` lines of a run after the line `after`, and the entry of the run."""
        async with db.transaction(isolation="repeatable_read", readonly=True):
            row = await self.row(db, run_id)
            count = await self.count(db, row["run"])
            upto = min(count, after + 1 + limit)
            lines: tuple[Line, ...] = ()
            if upto > after + 1:
                lines = await self.lines(db, row["run"], run_id, after + 1, upto)
        return RunLines(info_of(row), lines, count)

    async def count(self, db: Any, key: int) -> int:
        """Return the number of lines of a run, including lines that it shares with its parent."""
        return int(await db.fetchval(self.sql(_COUNT), key))

    async def runs(
        self,
        db: Any,
        *,
        status: Listed | None,
        graph: str | None,
        thread: str | None,
        labels: Mapping[str, str],
        limit: int,
        before: str | None,
        after: int | None,
    ) -> list[RunInfo]:
        """Read a page of the list of runs. `Journal.runs` explains the arguments."""
        stored = "running" if status == "interrupted" else status
        where: list[str] = []
        values: list[Any] = []
        for column, value in (("thread", thread), ("graph", graph), ("status", stored)):
            if value is not None:
                values.append(value)
                where.append(f"r.{column} = ${len(values)}")
        if labels:
            values.append(json.dumps(labels))
            where.append(f"r.labels @> ${len(values)}::jsonb")
        if status == "interrupted":
            names = await db.fetch(self.sql("select name from {s}.owners"))
            values.append([row["name"] for row in names if has_died(row["name"])])
            where.append(_NOT_OWNED.format(f"${len(values)}"))
        place = _GREATEST if before is None else await self.find(db, before)
        order = "r.run < {} order by r.run desc"
        if after is not None:
            place, order = after, "r.change > {} order by r.change"
        ends = f"{order.format(f'${len(values) + 1}')} limit ${len(values) + 2}"
        query = self.sql(f"{_INFO} where {' and '.join([*where, ends])}")
        infos: list[RunInfo] = []
        while True:
            rows = await db.fetch(query, *values, place, limit)
            infos += [info for info in map(info_of, rows) if is_listed(info, status)]
            if len(rows) < limit or len(infos) >= limit:
                return infos[:limit]
            place = rows[-1]["run" if after is None else "change"]

    async def file(self, db: Any, hash: str) -> bytes | None:
        """Read the bytes of a file."""
        return await db.fetchval(self.sql("select data from {s}.files where hash = $1"), hash)

    async def forks(self, db: Any, run_id: str, limit: int) -> list[RunInfo]:
        """Return the forks of a run, the newest first."""
        query = f"""{_INFO} where r.parent = $1 or (r.parent is null and r.came_from = $2)
            order by r.run desc limit $3"""
        key = await self.find(db, run_id)
        return [info_of(row) for row in await db.fetch(self.sql(query), key, run_id, limit)]

    async def older(self, db: Any, than: float, statuses: Sequence[RunStatus]) -> list[str]:
        """Return the ids of old runs: their status is in `statuses`, and they were last written
        before the time `than`. A run of a thread is old only if all runs of the thread are old."""
        old = "status = any ($1) and updated < $2"
        rows = await db.fetch(
            self.sql(
                f"""select id from {{s}}.runs r where {old} and (thread is null or not exists (
                select from {{s}}.runs other where other.thread = r.thread
                and not (other.{old.replace("and updated", "and other.updated")})
                )) order by run"""
            ),
            list(statuses),
            than,
        )
        return [row["id"] for row in rows]


def info_of(row: Any) -> RunInfo:
    """Return the entry of a run from its row. If the owner is a process of this host that has died,
    the entry has no lease."""
    owner, remaining = row["owner"], row["remaining"]
    if owner is not None and has_died(owner):
        remaining = None
    waiting: tuple[ParkedGate, ...] = ()
    if row["waiting"] != "[]":
        answered = set(row["answered"] or ())
        waiting = tuple(
            ParkedGate(*gate, answered=gate[0] in answered) for gate in json.loads(row["waiting"])
        )
    summary = row["summary"]
    return RunInfo(
        run_id=row["id"],
        graph=row["graph"],
        status=row["status"],
        started=row["started"],
        updated=row["updated"],
        shape=row["hash"] or "",
        owner=owner,
        lease_until=None if remaining is None else time() + remaining,
        waiting=waiting,
        error=row["error"],
        parent=row["parent"],
        thread=row["thread"],
        metadata=json.loads(row["metadata"]),
        summary=None if summary is None else RunSummary(*json.loads(summary)),
        change=row["change"],
    )
