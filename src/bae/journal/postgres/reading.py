"""What a journal in Postgres is asked: lists of runs, entries, and whole runs, each in one statement."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import time
from typing import Any, Final

from bae.journal.postgres.errors import error_of
from bae.journal.run_checks import check_version
from bae.journal.run_lists import is_listed
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

PAGE: Final = 200
_GREATEST: Final = (1 << 63) - 1

_INFO: Final = """select r.run, r.id, r.graph, r.status, r.started,
    case when r.status = 'running' then greatest(r.updated, coalesce(
        (select at from {s}.lines l where l.run = r.run order by n desc limit 1), r.updated
    )) else r.updated end as updated,
    hash, r.owner, extract(epoch from o.until - clock_timestamp())::float8 as remaining,
    r.waiting, r.error, coalesce(p.id, r.came_from) as parent, r.thread, r.metadata, r.summary,
    r.change, case when r.waiting <> '[]' then array(
        select gate from {s}.answers a where a.run = r.run) end as answered
from {s}.runs r left join {s}.shapes using (shape) left join {s}.owners o on o.name = r.owner
    left join {s}.runs p on p.run = r.parent"""

# Where the lines of a run are: in itself, and below where it was forked in its parents.
_HOMES: Final = """with recursive homes (run, first, until, parent) as (
    select run, shared, 2147483647, parent from {s}.runs where run = $1
    union
    select r.run, least(r.shared, h.first), h.first, r.parent
        from homes h join {s}.runs r on r.run = h.parent where h.first > 0
)"""
_LINES: Final = (
    _HOMES
    + """ select n, kind, at, path, step, data, version from homes h
    join lateral (select * from {s}.lines l where l.run = h.run and l.n >= greatest(h.first, $2)
        and l.n < least(h.until, $3)) l on true order by n"""
)
RUNS_OF_FILE: Final = """with recursive known (run, is_own) as (
    select run, true from {s}.file_uses where hash = $1
    union select r.run, false from {s}.runs r join known on r.parent = known.run
) select id, bool_or(is_own) as is_own from known join {s}.runs using (run)
    group by run, id order by bool_or(is_own) desc, run desc"""
"""The runs that have a file, and runs that were forked from these, which may share a line."""
_COUNT: Final = """select coalesce((select max(n) + 1 from {s}.lines l where l.run = r.run), r.shared)
    from {s}.runs r where r.run = $1"""


@dataclass(frozen=True)
class Reader:
    """Questions to a connection, of the journal in a schema."""

    name: str
    schema: str

    def sql(self, text: str) -> str:
        """A statement about the tables of the schema."""
        return text.replace("{s}", self.schema)

    async def find(self, db: Any, run_id: str, *, lock: bool = False) -> int:
        """The key of a run."""
        more = " for update" if lock else ""
        found = await db.fetchval(
            self.sql(f"select run from {{s}}.runs where id = $1{more}"), run_id
        )
        if found is None:
            raise error_of("bae-run-unknown", self.name, run_id)
        return int(found)

    async def row(self, db: Any, run_id: str) -> Any:
        """The row of the entry of a run."""
        row = await db.fetchrow(self.sql(f"{_INFO} where r.id = $1"), run_id)
        if row is None:
            raise error_of("bae-run-unknown", self.name, run_id)
        return row

    async def read(self, db: Any, run_id: str, *, with_files: bool = True) -> StoredRun:
        """All there is of a run, at one instant."""
        async with db.transaction(isolation="repeatable_read", readonly=True):
            row = await self.row(db, run_id)
            info, key = info_of(row), row["run"]
            shape = await db.fetchval(
                self.sql("select text from {s}.shapes where hash = $1"), info.shape
            )
            answers = await db.fetch(
                self.sql("select gate, value, person from {s}.answers where run = $1"), key
            )
            lines = await self.lines(db, key, run_id)
            files = await self.files(db, key, lines) if with_files else {}
        people = {each["gate"]: each["person"] for each in answers if each["person"]}
        values = {each["gate"]: each["value"] for each in answers}
        return StoredRun(info, shape or "", lines, values, files, people)

    async def lines(
        self, db: Any, key: int, run_id: str, start: int = 0, stop: int = 2_147_483_647
    ) -> tuple[Line, ...]:
        """The lines of a run, from the number `start` on and below `stop`."""
        rows = await db.fetch(self.sql(_LINES), key, start, stop)
        lines = tuple(Line(*row) for row in rows)
        for number, line in enumerate(lines, start):
            if line.n != number:
                what = f"line {number} of run {run_id!r} is missing"
                raise error_of("bae-journal-damaged", self.name, run_id, what=what)
            check_version(line, run_id)
        return lines

    async def page(self, db: Any, run_id: str, after: int, limit: int) -> RunLines:
        """Some lines of a run, with its entry."""
        async with db.transaction(isolation="repeatable_read", readonly=True):
            row = await self.row(db, run_id)
            count = await db.fetchval(self.sql(_COUNT), row["run"])
            upto = min(count, after + 1 + limit)
            found: tuple[Line, ...] = ()
            if upto > after + 1:
                found = await self.lines(db, row["run"], run_id, after + 1, upto)
        return RunLines(info_of(row), found, count)

    async def files(self, db: Any, key: int, lines: Sequence[Line]) -> dict[str, bytes]:
        """The files of a run by hash: its own, and those in the lines that it shares."""
        rows = await db.fetch(
            self.sql(
                _HOMES
                + """ select f.hash, data, bool_or(u.run = $1) as is_own from {s}.file_uses u
                join {s}.files f using (hash) where u.run in (select run from homes)
                group by f.hash, data"""
            ),
            key,
        )
        return {
            row["hash"]: row["data"]
            for row in rows
            if row["is_own"] or any(row["hash"] in line.data for line in lines)
        }

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
        """A page of the list of runs."""
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
        place = _GREATEST if before is None else await self.find(db, before)
        order = "r.run < {} order by r.run desc"
        if after is not None:
            place, order = after, "r.change > {} order by r.change"
        size = PAGE if status == "interrupted" else limit
        ends = f"{order.format(f'${len(values) + 1}')} limit ${len(values) + 2}"
        query = self.sql(f"{_INFO} where {' and '.join([*where, ends])}")
        found: list[RunInfo] = []
        while True:
            rows = await db.fetch(query, *values, place, size)
            infos = map(info_of, rows)
            found += [info for info in infos if is_listed(info, status)]
            if len(rows) < size or len(found) >= limit:
                return found[:limit]
            place = rows[-1]["run" if after is None else "change"]

    async def forks(self, db: Any, run_id: str, limit: int) -> list[RunInfo]:
        """The runs that were forked from a run, the newest first."""
        query = f"""{_INFO} where r.parent = $1 or (r.parent is null and r.came_from = $2)
            order by r.run desc limit $3"""
        key = await self.find(db, run_id)
        return [info_of(row) for row in await db.fetch(self.sql(query), key, run_id, limit)]

    async def older(self, db: Any, than: float, statuses: Sequence[RunStatus]) -> list[str]:
        """The ids of old runs; a thread is kept whole."""
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
    """The entry of a run, from a row."""
    remaining = row["remaining"]
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
        owner=row["owner"],
        lease_until=None if remaining is None else time() + remaining,
        waiting=waiting,
        error=row["error"],
        parent=row["parent"],
        thread=row["thread"],
        metadata=json.loads(row["metadata"]),
        summary=None if summary is None else RunSummary(*json.loads(summary)),
        change=row["change"],
    )
