"""The tables and functions for data that processes share besides runs: cached answers of LLMs, and
rates of requests. The upgrade of a journal creates them in the schema of that journal."""

from __future__ import annotations

from typing import Final

BUCKETS: Final = 60
"""A period is divided into this many buckets, which count its requests. All requests of a bucket
expire together, so a request may wait too long by up to the length of one bucket."""

SHARED_TABLES: Final = """
create table {s}.cached_answers (
    key text primary key, text text not null, at timestamptz not null default clock_timestamp()
);
create index cached_answers_by_age on {s}.cached_answers (at);
create table {s}.rates (
    name text not null, per float8 not null, bucket bigint not null, requests bigint not null,
    tokens bigint not null, primary key (name, per, bucket)
);
"""

SHARED_FUNCTIONS: Final = """
create or replace function {s}.reserve_rate(
    of_name text, of_per float8, most_requests bigint, most_tokens bigint, asked bigint,
    out bucket_now bigint, out wait float8
) language plpgsql as $body$
declare
    now float8;
    width float8 := of_per / {buckets};
    requests_now bigint;
    tokens_now bigint;
    -- A request that exceeds the limit is sent when no other request counts.
    size bigint := least(asked, coalesce(most_tokens, asked));
begin
    perform pg_advisory_xact_lock(hashtextextended('{s} rate ' || of_name || of_per, 0));
    now := extract(epoch from clock_timestamp());
    delete from {s}.rates
        where name = of_name and per = of_per and (bucket + 1) * width + of_per <= now;
    select coalesce(sum(requests), 0), coalesce(sum(tokens), 0) into requests_now, tokens_now
        from {s}.rates where name = of_name and per = of_per;
    bucket_now := floor(now / width);
    if requests_now + 1 <= coalesce(most_requests, requests_now + 1)
        and tokens_now + size <= coalesce(most_tokens, tokens_now + size)
    then
        insert into {s}.rates as r (name, per, bucket, requests, tokens)
            values (of_name, of_per, bucket_now, 1, asked)
            on conflict (name, per, bucket)
            do update set requests = r.requests + 1, tokens = r.tokens + asked;
        wait := 0;
        return;
    end if;
    select (min(bucket) + 1) * width + of_per - now into wait from (
        select bucket, sum(requests) over earlier as requests, sum(tokens) over earlier as tokens
        from {s}.rates where name = of_name and per = of_per
        window earlier as (order by bucket)
    ) expiring
    where (most_requests is null or requests_now - requests + 1 <= most_requests)
        and (most_tokens is null or tokens_now - tokens + size <= most_tokens);
end $body$;

create or replace function {s}.settle_rate(
    of_name text, of_per float8, of_bucket bigint, more_requests bigint, more_tokens bigint
) returns void language sql as $body$
    update {s}.rates set requests = requests + more_requests, tokens = tokens + more_tokens
    where name = of_name and per = of_per and bucket = of_bucket
$body$;
"""
