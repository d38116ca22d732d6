"""The tables of a journal in Postgres, and their versions."""

from __future__ import annotations

from typing import Any, Final

from bae.journal.postgres.functions import FUNCTIONS
from bae.journal.postgres.lease import KEY_BITS
from bae.journal.stored_runs import FORMAT
from bae.postgres.shared import BUCKETS, SHARED_FUNCTIONS, SHARED_TABLES

VERSION: Final = 2
"""The version of the tables. `UPGRADES` has the changes between versions."""
DAYS_AHEAD: Final = 7
"""How many days in advance bae makes the partitions of `lines`."""

TABLES: Final = """
create table {s}.versions (version int not null, stored_format int not null);
create table {s}.shapes (
    shape int generated always as identity primary key, hash text not null unique,
    text text not null
);
create table {s}.owners (
    name text primary key, until timestamptz not null, lease interval not null
) with (fillfactor = 50);
create table {s}.heart (last timestamptz not null, since timestamptz not null)
    with (fillfactor = 50);
insert into {s}.heart values (clock_timestamp(), clock_timestamp());
create table {s}.changes (last bigint not null) with (fillfactor = 50);
insert into {s}.changes values (0);
create table {s}.runs (
    run bigint primary key, id text not null unique, graph text not null, status text not null,
    started float8 not null, updated float8 not null, shape int not null, owner text,
    claim bigint not null default 0, epoch int not null default 0,
    waiting text not null default '[]', error text not null default '', parent bigint,
    shared int not null default 0, came_from text, thread text,
    metadata text not null default '{{}}', labels jsonb, summary text, change bigint not null
) with (fillfactor = 85);
create index runs_by_status on {s}.runs (status, run desc);
create index runs_by_graph on {s}.runs (graph, status, run desc);
create index runs_by_owner on {s}.runs (owner) where owner is not null;
create index runs_by_parent on {s}.runs (parent) where parent is not null;
create index runs_by_origin on {s}.runs (came_from) where came_from is not null;
create index runs_by_thread on {s}.runs (thread, run desc) where thread is not null;
create index runs_by_change on {s}.runs (change);
create index runs_by_labels on {s}.runs using gin (labels jsonb_path_ops)
    where labels is not null;
create table {s}.lines (
    run bigint not null, n int not null, kind text not null, at float8 not null,
    path text not null, step bigint not null, data text not null, version smallint not null,
    primary key (run, n)
) partition by range (run);
create table {s}.lines_kept partition of {s}.lines default;
create table {s}.answers (
    run bigint not null, gate text not null, value text not null,
    person text not null default '', primary key (run, gate)
);
create table {s}.files (hash text primary key, data bytea not null);
create table {s}.file_uses (run bigint not null, hash text not null, primary key (run, hash));
create index file_uses_by_hash on {s}.file_uses (hash);
"""

_INDEXES: Final = """
create index runs_by_state on {s}.runs (status, graph, change);
create index runs_of_graph on {s}.runs (graph, run desc);
create index runs_of_busy_threads on {s}.runs (thread)
    where thread is not null and status in ('running', 'waiting');
"""
UPGRADES: Final[dict[int, str]] = {1: SHARED_TABLES + _INDEXES}
"""The statements that upgrade the tables to the next version, by the version before."""


async def upgrade(connection: Any, schema: str) -> tuple[int, int]:
    """Make the tables of a journal, or upgrade them to `VERSION`, in one transaction. Return the
    version before and the version after; version 0 means no tables."""
    placeholders = {"s": schema, "bits": KEY_BITS, "buckets": BUCKETS}
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock(hashtextextended($1, 7))", schema)
        before = await _read_version(connection, schema)
        if before > VERSION:
            return before, before
        if not before:
            await connection.execute(f"create schema if not exists {schema}")
            await connection.execute((TABLES + UPGRADES[1]).format(**placeholders))
            insert = f"insert into {schema}.versions (version, stored_format) values ($1, $2)"
            await connection.execute(insert, VERSION, FORMAT)
        for version in range(before or VERSION, VERSION):
            await connection.execute(UPGRADES[version].format(**placeholders))
        await connection.execute((FUNCTIONS + SHARED_FUNCTIONS).format(**placeholders))
        update = f"update {schema}.versions set version = $1, stored_format = $2"
        await connection.execute(update, VERSION, FORMAT)
        await connection.execute(f"select {schema}.make_days($1)", DAYS_AHEAD)
    return before, VERSION


async def _read_version(connection: Any, schema: str) -> int:
    """Return the version of the tables, or 0 if there are no tables."""
    table = f"{schema}.versions"
    name = await connection.fetchval("select to_regclass($1)", table)
    if name is None:
        return 0
    return int(await connection.fetchval(f"select version from {table}"))
