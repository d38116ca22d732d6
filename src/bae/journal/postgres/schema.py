"""The tables of a journal in Postgres, the functions that write them, and their versions."""

from __future__ import annotations

from typing import Any, Final

from bae.journal.stored_runs import FORMAT

VERSION: Final = 1
"""The version of the tables. `UPGRADES` has what changes in them."""
DAYS_AHEAD: Final = 7
"""For how many days there are partitions before they are needed."""
KEY_BITS: Final = 22
"""A key of a run is the milliseconds since 1970, then as many bits that tell runs apart."""

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

FUNCTIONS: Final = """
create or replace function {s}.make_days(days int) returns void language plpgsql as $body$
declare
    day date := (clock_timestamp() at time zone 'utc')::date - 1;
    part text;
begin
    for i in 0 .. days + 1 loop
        part := 'lines_' || to_char(day + i, 'YYYYMMDD');
        continue when to_regclass('{s}.' || part) is not null;
        perform pg_advisory_xact_lock(hashtextextended('{s} days', 0));
        continue when to_regclass('{s}.' || part) is not null;
        execute format(
            'create table {s}.%I partition of {s}.lines for values from (%s) to (%s)', part,
            {s}.first_key(day + i), {s}.first_key(day + i + 1)
        );
    end loop;
end $body$;

create or replace function {s}.first_key(day date) returns bigint language sql immutable as $body$
    select (extract(epoch from day)::bigint * 1000) << {bits}
$body$;

create or replace function {s}.next_change() returns bigint language sql as $body$
    update {s}.changes set last = last + 1 returning last
$body$;

create or replace function {s}.register(me text, seconds float8) returns void
language plpgsql as $body$
begin
    insert into {s}.owners (name, until, lease) values (
        me, clock_timestamp() + make_interval(secs => seconds), make_interval(secs => seconds)
    ) on conflict (name) do nothing;
    perform {s}.beat(me, seconds);
    perform {s}.make_days({days});
end $body$;

create or replace function {s}.beat(me text, seconds float8) returns boolean
language plpgsql as $body$
declare
    now timestamptz := clock_timestamp();
begin
    -- A silence of all processes, as while the database was away, moves `since`: nobody is taken
    -- over within a lease of it.
    update {s}.heart set last = now,
        since = case when now - last > make_interval(secs => seconds / 2) then now else since end
        where last < now;
    update {s}.owners set until = now + make_interval(secs => seconds) where name = me;
    return found;
end $body$;

create or replace function {s}.bury(owner text, dead text[]) returns boolean
language plpgsql as $body$
begin
    -- Waits for what the owner writes at this moment; all that it writes later is refused.
    delete from {s}.owners o using {s}.heart h where o.name = bury.owner and (
        o.name = any (dead)
        or (o.until < clock_timestamp() and h.since + o.lease < clock_timestamp())
    );
    return not exists (select from {s}.owners o where o.name = bury.owner);
end $body$;

create or replace function {s}.busy_run(of_thread text, but bigint) returns text
language plpgsql as $body$
begin
    if of_thread is null then return null; end if;
    perform pg_advisory_xact_lock(hashtextextended(of_thread, 1));
    return (
        select id from {s}.runs
        where thread = of_thread and status in ('running', 'waiting') and run <> but limit 1
    );
end $body$;

create or replace function {s}.create_run(job jsonb, me text) returns jsonb
language plpgsql as $body$
declare
    key bigint := (job ->> 'run')::bigint;
    kept bigint;
    busy text;
    shape_key int;
begin
    select run into kept from {s}.runs where id = job ->> 'id';
    if kept = key then return jsonb_build_object('ok', true); end if;
    if kept is not null then return jsonb_build_object('code', 'bae-run-exists'); end if;
    if (job ->> 'claim')::boolean or job ->> 'status' in ('running', 'waiting') then
        busy := {s}.busy_run(job ->> 'thread', key);
        if busy is not null then
            return jsonb_build_object('code', 'bae-thread-busy', 'busy', busy);
        end if;
    end if;
    select shape into shape_key from {s}.shapes where hash = job ->> 'shape_hash';
    if shape_key is null then
        insert into {s}.shapes (hash, text) values (job ->> 'shape_hash', job ->> 'shape')
            on conflict (hash) do nothing;
        select shape into shape_key from {s}.shapes where hash = job ->> 'shape_hash';
    end if;
    insert into {s}.runs (run, id, graph, status, started, updated, shape, owner, waiting, error,
        parent, shared, came_from, thread, metadata, labels, summary, change)
    values (
        key, job ->> 'id', job ->> 'graph',
        case when (job ->> 'claim')::boolean then 'running' else job ->> 'status' end,
        (job ->> 'started')::float8, (job ->> 'updated')::float8, shape_key,
        case when (job ->> 'claim')::boolean then me end, job ->> 'waiting', job ->> 'error',
        (job ->> 'parent')::bigint, coalesce((job ->> 'shared')::int, 0), job ->> 'came_from',
        job ->> 'thread', job ->> 'metadata', job -> 'labels', job ->> 'summary',
        {s}.next_change()
    ) on conflict (id) do nothing;
    if not found then return jsonb_build_object('code', 'bae-run-exists'); end if;
    insert into {s}.answers (run, gate, value, person)
        select key, each ->> 0, each ->> 1, each ->> 2
        from jsonb_array_elements(coalesce(job -> 'answers', '[]')) each;
    return jsonb_build_object('ok', true);
end $body$;

create or replace function {s}.claim_run(job jsonb, me text) returns jsonb
language plpgsql as $body$
declare
    found_run {s}.runs;
    busy text;
    remaining float8;
    dead text[] := array(select jsonb_array_elements_text(job -> 'dead'));
begin
    select * into found_run from {s}.runs where id = job ->> 'id' for update;
    if not found then return jsonb_build_object('code', 'bae-run-unknown'); end if;
    if found_run.owner = me and not (job ->> 'again')::boolean
        or found_run.owner <> me and not {s}.bury(found_run.owner, dead)
    then
        select extract(epoch from until - clock_timestamp()) into remaining
            from {s}.owners where name = found_run.owner;
        return jsonb_build_object(
            'code', 'bae-run-owned', 'owner', found_run.owner, 'left', coalesce(remaining, 0)
        );
    end if;
    if found_run.status = 'ended' then return jsonb_build_object('code', 'bae-run-ended'); end if;
    busy := {s}.busy_run(found_run.thread, found_run.run);
    if busy is not null then
        return jsonb_build_object(
            'code', 'bae-thread-busy', 'busy', busy, 'thread', found_run.thread
        );
    end if;
    update {s}.runs set owner = me, status = 'running', waiting = '[]', error = '',
        change = {s}.next_change() where run = found_run.run;
    return jsonb_build_object(
        'ok', true, 'run', found_run.run,
        'due', coalesce(
            (select max(n) + 1 from {s}.lines where run = found_run.run), found_run.shared
        )
    );
end $body$;

create or replace function {s}.release_run(job jsonb, me text) returns jsonb
language plpgsql as $body$
begin
    update {s}.runs set owner = null, change = {s}.next_change(),
        status = coalesce(job ->> 'status', status), waiting = coalesce(job ->> 'waiting', waiting),
        error = coalesce(job ->> 'error', error), summary = coalesce(job ->> 'summary', summary),
        updated = greatest(updated, coalesce(
            (select l.at from {s}.lines l where l.run = runs.run order by n desc limit 1), updated
        ))
    where run = (job ->> 'run')::bigint and owner = me;
    return jsonb_build_object('ok', true);
end $body$;

create or replace function {s}.answer_gate(job jsonb) returns jsonb
language plpgsql as $body$
declare
    key bigint;
    kept {s}.answers;
begin
    select run into key from {s}.runs where id = job ->> 'id';
    if key is null then return jsonb_build_object('code', 'bae-run-unknown'); end if;
    insert into {s}.answers (run, gate, value, person)
        values (key, job ->> 'gate', job ->> 'value', job ->> 'by')
        on conflict (run, gate) do nothing;
    if found then
        update {s}.runs set change = {s}.next_change() where run = key;
        return jsonb_build_object('ok', true, 'first', true, 'run', key);
    end if;
    -- After a lost connection the answer that is there may be this one.
    select * into kept from {s}.answers where run = key and gate = job ->> 'gate';
    return jsonb_build_object(
        'ok', true, 'run', key, 'first', (job ->> 'again')::boolean
        and kept.value = job ->> 'value' and kept.person = job ->> 'by'
    );
end $body$;

create or replace function {s}.write(
    me text, runs bigint[], numbers int[], kinds text[], times float8[], paths text[],
    steps bigint[], datas text[], versions int[], jobs jsonb
) returns jsonb language plpgsql as $body$
declare
    job jsonb;
    result jsonb;
    results jsonb := '[]';
    created bigint[] := array(
        select (each ->> 'run')::bigint from jsonb_array_elements(jobs) each
        where each ->> 'do' = 'create'
    );
    refused bigint[] := '{{}}';
begin
    -- Held until the commit: to take over the runs of this process is to delete this row first.
    if me is not null then
        perform from {s}.owners where name = me for key share;
        if not found then return jsonb_build_object('lost', true); end if;
    end if;
    insert into {s}.lines (run, n, kind, at, path, step, data, version)
        select * from unnest(runs, numbers, kinds, times, paths, steps, datas, versions) l (run)
        where l.run <> all (created)
        on conflict (run, n) do nothing;
    for job in select * from jsonb_array_elements(jobs) loop
        result := case job ->> 'do'
            when 'create' then {s}.create_run(job, me)
            when 'claim' then {s}.claim_run(job, me)
            when 'release' then {s}.release_run(job, me)
            when 'answer' then {s}.answer_gate(job)
        end;
        if job ->> 'do' = 'create' and result ->> 'code' is not null then
            refused := refused || (job ->> 'run')::bigint;
        end if;
        results := results || result;
    end loop;
    if cardinality(created) > 0 then
        insert into {s}.lines (run, n, kind, at, path, step, data, version)
            select * from unnest(runs, numbers, kinds, times, paths, steps, datas, versions) l (run)
            where l.run = any (created) and l.run <> all (refused)
            on conflict (run, n) do nothing;
    end if;
    return jsonb_build_object('results', results);
end $body$;
"""

UPGRADES: Final[dict[int, str]] = {}
"""By version of the tables: the statements that make them those of the next version."""


async def upgrade(connection: Any, schema: str) -> tuple[int, int]:
    """Make the tables of a journal, or bring them to the version of today: all at once. Returns the
    versions before and after; 0 is none."""
    named = {"s": schema, "bits": KEY_BITS, "days": DAYS_AHEAD}
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock(hashtextextended($1, 7))", schema)
        before = await read_version(connection, schema)
        if before > VERSION:
            return before, before
        if not before:
            await connection.execute(f"create schema if not exists {schema}")
            await connection.execute(TABLES.format(**named))
            insert = f"insert into {schema}.versions (version, stored_format) values ($1, $2)"
            await connection.execute(insert, VERSION, FORMAT)
        for version in range(before or VERSION, VERSION):
            await connection.execute(UPGRADES[version].format(**named))
        await connection.execute(FUNCTIONS.format(**named))
        update = f"update {schema}.versions set version = $1, stored_format = $2"
        await connection.execute(update, VERSION, FORMAT)
        await connection.execute(f"select {schema}.make_days($1)", DAYS_AHEAD)
    return before, VERSION


async def read_version(connection: Any, schema: str) -> int:
    """The version of the tables; 0 where there are none."""
    table = f"{schema}.versions"
    if await connection.fetchval("select to_regclass($1)", table) is None:
        return 0
    return int(await connection.fetchval(f"select version from {table}"))
