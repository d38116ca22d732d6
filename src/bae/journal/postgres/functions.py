"""The SQL functions that write a journal. `write` stores all queued jobs of a process with one
statement, one round trip and one commit.

Each transaction takes its locks in this order: `changes`, the owner, the runs. So there are no
deadlocks.
"""

from __future__ import annotations

from typing import Final

FUNCTIONS: Final = """
create or replace function {s}.first_key(day date) returns bigint language sql immutable as $body$
    select (extract(epoch from day)::bigint * 1000) << {bits}
$body$;

create or replace function {s}.make_day(day date) returns void language plpgsql as $body$
declare
    part text := 'lines_' || to_char(day, 'YYYYMMDD');
begin
    if to_regclass('{s}.' || part) is not null then return; end if;
    perform pg_advisory_xact_lock(hashtextextended('{s} days', 0));
    if to_regclass('{s}.' || part) is not null then return; end if;
    -- Attaching a table does not block the writers of other days.
    execute format('create table {s}.%I (like {s}.lines including all)', part);
    execute format(
        'alter table {s}.lines attach partition {s}.%I for values from (%s) to (%s)', part,
        {s}.first_key(day), {s}.first_key(day + 1)
    );
exception when check_violation then
    null; -- the default partition has lines of the day, and keeps them
end $body$;

create or replace function {s}.make_days(days int) returns void language plpgsql as $body$
declare
    day date := (clock_timestamp() at time zone 'utc')::date - 1;
begin
    for i in 0 .. days + 1 loop
        perform {s}.make_day(day + i);
    end loop;
end $body$;

create or replace function {s}.next_change() returns bigint language sql as $body$
    update {s}.changes set last = last + 1 returning last
$body$;

create or replace function {s}.hear() returns timestamptz language plpgsql as $body$
declare
    now timestamptz := clock_timestamp();
    silence interval := coalesce((select min(lease) from {s}.owners), interval '0') / 2;
begin
    -- If all processes were silent, the database may have been away. Then set `since` to now, so
    -- that no run is taken over before another lease has passed.
    update {s}.heart set last = now, since = case when now - last > silence then now else since end
        where last < now;
    return now;
end $body$;

create or replace function {s}.beat(me text, seconds float8) returns boolean
language plpgsql as $body$
declare
    now timestamptz := {s}.hear();
begin
    update {s}.owners set until = now + make_interval(secs => seconds) where name = me;
    return found;
end $body$;

create or replace function {s}.register(me text, seconds float8) returns void
language plpgsql as $body$
begin
    insert into {s}.owners (name, until, lease) values (
        me, clock_timestamp() + make_interval(secs => seconds), make_interval(secs => seconds)
    ) on conflict (name) do nothing;
    perform {s}.beat(me, seconds);
end $body$;

create or replace function {s}.bury(owner text, dead text[]) returns boolean
language plpgsql as $body$
begin
    if not exists (select from {s}.owners o where o.name = bury.owner) then return true; end if;
    perform {s}.hear();
    -- Waits for the current transaction of the owner. Later writes of the owner are refused.
    delete from {s}.owners o using {s}.heart h where o.name = bury.owner and (
        o.name = any (dead)
        or (o.until < clock_timestamp() and h.since + o.lease < clock_timestamp())
    );
    return found;
end $body$;

create or replace function {s}.busy_run(of_thread text, but bigint) returns text
language sql as $body$
    select id from {s}.runs
    where thread = of_thread and status in ('running', 'waiting') and run <> but limit 1
$body$;

create or replace function {s}.create_run(job jsonb, me text) returns jsonb
language plpgsql as $body$
declare
    key bigint := (job ->> 'run')::bigint;
    is_claimed boolean := (job ->> 'claim')::bigint <> 0;
    kept record;
    busy text;
    shape_key int;
begin
    if is_claimed or job ->> 'status' in ('running', 'waiting') then
        busy := {s}.busy_run(job ->> 'thread', key);
    end if;
    select shape into shape_key from {s}.shapes where hash = job ->> 'shape_hash';
    if shape_key is null then
        insert into {s}.shapes (hash, text) values (job ->> 'shape_hash', job ->> 'shape')
            on conflict (hash) do nothing;
        select shape into shape_key from {s}.shapes where hash = job ->> 'shape_hash';
    end if;
    insert into {s}.runs (run, id, graph, status, started, updated, shape, owner, claim, epoch,
        waiting, error, parent, shared, came_from, thread, metadata, labels, summary, change)
    select
        key, job ->> 'id', job ->> 'graph',
        case when is_claimed then 'running' else job ->> 'status' end,
        (job ->> 'started')::float8, (job ->> 'updated')::float8, shape_key,
        case when is_claimed then me end, (job ->> 'claim')::bigint, is_claimed::int,
        job ->> 'waiting', job ->> 'error',
        (job ->> 'parent')::bigint, coalesce((job ->> 'shared')::int, 0), job ->> 'came_from',
        job ->> 'thread', job ->> 'metadata', job -> 'labels', job ->> 'summary',
        {s}.next_change()
    where busy is null on conflict do nothing;
    if not found then
        -- After a lost connection, the stored run may be this run.
        select run, id into kept from {s}.runs
            where id = job ->> 'id' or run = key order by id = job ->> 'id' desc limit 1;
        if kept.run = key and kept.id = job ->> 'id' then
            return jsonb_build_object('run', key);
        end if;
        return jsonb_build_object('busy', busy, 'thread', job ->> 'thread', 'code', case
            when kept.id = job ->> 'id' then 'bae-run-exists'
            when busy is not null then 'bae-thread-busy'
            else 'key'
        end);
    end if;
    insert into {s}.answers (run, gate, value, person)
        select key, each ->> 0, each ->> 1, each ->> 2
        from jsonb_array_elements(coalesce(job -> 'answers', '[]')) each;
    return jsonb_build_object('run', key);
end $body$;

create or replace function {s}.claim_run(job jsonb, me text) returns jsonb
language plpgsql as $body$
declare
    found_run {s}.runs;
    busy text;
    remaining record;
    dead text[] := array(select jsonb_array_elements_text(job -> 'dead'));
    is_mine boolean;
begin
    select * into found_run from {s}.runs where id = job ->> 'id' for update;
    if not found then return jsonb_build_object('code', 'bae-run-unknown'); end if;
    -- After a lost connection, this claim may be stored already.
    is_mine := found_run.owner = me and found_run.claim = (job ->> 'claim')::bigint;
    if found_run.owner is not null and not is_mine
        and (found_run.owner = me or not {s}.bury(found_run.owner, dead))
    then
        -- `grace`: how long the owner keeps its runs at least, even if its lease is over.
        select extract(epoch from o.until - clock_timestamp()) as left,
            extract(epoch from h.since + o.lease - clock_timestamp()) as grace,
            extract(epoch from o.lease) / 4 as pace
            into remaining from {s}.owners o, {s}.heart h where name = found_run.owner;
        return jsonb_build_object(
            'code', 'bae-run-owned', 'owner', found_run.owner, 'left', remaining.left,
            'grace', remaining.grace, 'pace', remaining.pace
        );
    end if;
    if found_run.status = 'ended' then return jsonb_build_object('code', 'bae-run-ended'); end if;
    if found_run.thread is not null then
        busy := {s}.busy_run(found_run.thread, found_run.run);
    end if;
    if busy is not null then
        return jsonb_build_object(
            'code', 'bae-thread-busy', 'busy', busy, 'thread', found_run.thread
        );
    end if;
    if not coalesce(is_mine, false) then
        found_run.epoch := found_run.epoch + 1;
        update {s}.runs set owner = me, claim = (job ->> 'claim')::bigint, epoch = found_run.epoch,
            status = 'running', waiting = '[]', error = '', change = {s}.next_change()
            where run = found_run.run;
    end if;
    return jsonb_build_object(
        'run', found_run.run, 'epoch', found_run.epoch, 'due', coalesce(
            (select max(n) + 1 from {s}.lines where run = found_run.run), found_run.shared
        )
    );
end $body$;

create or replace function {s}.release_run(job jsonb, me text) returns jsonb
language plpgsql as $body$
begin
    -- Find the run by the number of the claim: the process may not have got the key of the run.
    update {s}.runs set owner = null, change = {s}.next_change(),
        status = coalesce(job ->> 'status', status), waiting = coalesce(job ->> 'waiting', waiting),
        error = coalesce(job ->> 'error', error), summary = coalesce(job ->> 'summary', summary),
        updated = greatest(updated, (job ->> 'at')::float8)
    where id = job ->> 'id' and owner = me and claim = (job ->> 'claim')::bigint;
    return '{{}}';
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
        return jsonb_build_object('first', true, 'run', key);
    end if;
    -- After a lost connection, the stored answer may be this answer.
    select * into kept from {s}.answers where run = key and gate = job ->> 'gate';
    return jsonb_build_object('run', key, 'first', coalesce((job ->> 'again')::boolean, false)
        and kept.value = job ->> 'value' and kept.person = job ->> 'by');
end $body$;

create or replace function {s}.write(
    me text, server timestamptz, runs bigint[], numbers int[], kinds text[], times float8[],
    paths text[], steps bigint[], datas text[], versions int[], file_runs bigint[],
    hashes text[], contents bytea[], jobs jsonb
) returns jsonb language plpgsql as $body$
declare
    job jsonb;
    result jsonb;
    results jsonb := '[]';
    created bigint[] := '{{}}';
    refused bigint[] := '{{}}';
begin
    -- Another server may be a copy without the newest lines.
    if server <> pg_postmaster_start_time() then
        return jsonb_build_object('moved', true);
    end if;
    if jobs <> '[]' or cardinality(hashes) > 0 then
        perform from {s}.changes for update;
        created := array(
            select (each ->> 'run')::bigint from jsonb_array_elements(jobs) each
            where each ->> 'do' = 'create'
        );
    end if;
    -- Locked until the commit: a process that takes over these runs first deletes this row.
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
        if job ->> 'do' = 'create' and result ? 'code' then
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
    if cardinality(hashes) > 0 then
        perform {s}.add_files(file_runs, hashes, contents, refused);
    end if;
    return jsonb_build_object('results', results);
end $body$;

create or replace function {s}.add_files(
    runs bigint[], hashes text[], contents bytea[], refused bigint[]
) returns void language plpgsql as $body$
begin
    insert into {s}.files (hash, data)
        select distinct on (hash) hash, data from unnest(runs, hashes, contents) f (run, hash, data)
        where run <> all (refused) on conflict (hash) do nothing;
    insert into {s}.file_uses (run, hash)
        select run, hash from unnest(runs, hashes) f (run, hash)
        where run <> all (refused) on conflict do nothing;
end $body$;

create or replace function {s}.remove_runs(keys bigint[]) returns void language plpgsql as $body$
declare
    gone text[];
begin
    delete from {s}.lines where run = any (keys);
    delete from {s}.answers where run = any (keys);
    delete from {s}.runs where run = any (keys);
    with removed as (delete from {s}.file_uses where run = any (keys) returning hash)
        select array_agg(distinct hash) into gone from removed;
    delete from {s}.files f where hash = any (gone)
        and not exists (select from {s}.file_uses u where u.hash = f.hash);
end $body$;

create or replace function {s}.drop_day(day date, keys bigint[]) returns int
language plpgsql as $body$
declare
    first bigint := {s}.first_key(day);
    next bigint := {s}.first_key(day + 1);
    part text := 'lines_' || to_char(day, 'YYYYMMDD');
    gone int;
begin
    -- Delete row by row if most runs stay, or if the day can still get runs.
    if to_regclass('{s}.' || part) is null
        or day >= (clock_timestamp() at time zone 'utc')::date - 1
        or 2 * cardinality(keys) < (select count(*) from {s}.runs where run >= first and run < next)
    then return null; end if;
    create temporary table bae_gone on commit drop as
        select run from {s}.runs join unnest(keys) k (run) using (run)
        where run >= first and run < next and owner is null
        for update of runs;
    create unique index on bae_gone (run);
    analyze bae_gone;
    loop  -- keep each run that shares lines with a remaining fork
        delete from bae_gone g where exists (
            select from {s}.runs f where f.parent = g.run
            and not exists (select from bae_gone o where o.run = f.run)
        );
        exit when not found;
    end loop;
    delete from {s}.answers a using bae_gone g where a.run = g.run;
    delete from {s}.runs r using bae_gone g where r.run = g.run;
    get diagnostics gone = row_count;
    with removed as (
        delete from {s}.file_uses u using bae_gone g where u.run = g.run returning u.hash
    ) delete from {s}.files f using (select distinct hash from removed) h
        where f.hash = h.hash and not exists (
            select from {s}.file_uses u where u.hash = f.hash
            and not exists (select from bae_gone g where g.run = u.run)
        );
    -- From here to the commit, writers wait. If readers hold the lines for longer than this, the
    -- transaction fails, and bae tries again.
    set local lock_timeout = '2s';
    execute format('alter table {s}.lines detach partition {s}.%I', part);
    execute format(
        'insert into {s}.lines select l.* from {s}.%I l '
        'where exists (select from {s}.runs r where r.run = l.run)', part
    );
    execute format('drop table {s}.%I', part);
    return gone;
end $body$;
"""
