"""Answers and rates that processes share in Postgres: what one process has asked or sent counts for
all, also when it was killed or the database was away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from bae import BaeLMError, Usage
from bae.journal import PostgresJournal
from bae.lm import Answer, Cached, PostgresStore, RateLimit
from journal_parts import program, run_program
from policy_parts import REPLY, prompt
from postgres_server import PostgresServer, Wire, postgres_server
from toy_backend import ToyBackend

pytest.importorskip("asyncpg")
pytestmark = pytest.mark.once

SENDS = """
import asyncio, sys
from bae import BaeLMError
from bae.lm import PostgresStore, RateLimit
from policy_parts import REPLY, prompt
from toy_backend import ToyBackend

url, count = sys.argv[1], int(sys.argv[2])

async def main():
    store = PostgresStore(url)
    lm = RateLimit(
        ToyBackend(lambda asked: REPLY), requests=10, per=86400, longest_wait=60, store=store
    )
    sent = 0
    for number in range(count):
        try:
            await lm.answer(prompt(str(number)))
            sent += 1
        except BaeLMError as error:
            assert error.code == "bae-lm-rate-wait", error
    await lm.aclose()
    print(sent, flush=True)
    if sys.argv[3:]:
        sys.stdin.read()

asyncio.run(main())
"""
ASKS = """
import asyncio, sys
from bae.lm import Cached
from policy_parts import REPLY, prompt
from toy_backend import ToyBackend

async def main():
    inner = ToyBackend(lambda asked: REPLY)
    lm = Cached(inner, sys.argv[1])
    for number in range(5):
        await lm.answer(prompt(str(number)))
    await lm.aclose()
    print(inner.calls)

asyncio.run(main())
"""


@pytest.fixture
async def url(postgres: PostgresServer) -> str:
    """The address of a new database with tables."""
    made = postgres.new_database()
    async with PostgresJournal(made) as journal:
        await journal.upgrade()
    return made


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    made = PostgresStore(url)
    yield made
    await made.aclose()


async def execute(url: str, statement: str) -> list[list[object]]:
    import asyncpg

    connection = await asyncpg.connect(url)
    rows = await connection.fetch(statement)
    await connection.close()
    return [list(row) for row in rows]


def limit_rate(store: PostgresStore | str, inner: ToyBackend | None = None, **options: object):
    inner = inner or ToyBackend(lambda asked: REPLY)
    return RateLimit(inner, per=86_400, longest_wait=60, store=store, **options)


async def count_sent(lm: RateLimit, count: int) -> int:
    """How many of so many requests are sent; the others would wait for a day."""
    done = 0
    for number in range(count):
        try:
            await lm.answer(prompt(str(number)))
            done += 1
        except BaeLMError as error:
            if error.code != "bae-lm-rate-wait":
                raise
    return done


# --- rates ---------------------------------------------------------------------------------------


def test_processes_share_a_rate_limit_even_if_a_process_is_killed(url: str):
    killed = program(SENDS, url, 3, "stay")
    assert killed.stdout is not None
    assert killed.stdout.readline() == "3\n"
    killed.kill()
    killed.communicate()
    others = [program(SENDS, url, 5) for _ in range(3)]
    out = [other.communicate(timeout=60) for other in others]
    assert [complaints for _, complaints in out] == [""] * 3
    assert sum(int(text) for text, _ in out) == 7


async def test_the_rate_limit_frees_up_as_old_requests_expire(url: str, store: PostgresStore):
    first = limit_rate(store, requests=4)
    assert await count_sent(first, 6) == 4
    assert (first.statistics().sent, first.statistics().waiting) == (4, 0)
    # A bucket is a sixtieth of the span; it counts until all of it is old enough.
    await execute(url, "update bae.rates set bucket = bucket - 60")
    assert await count_sent(limit_rate(store, requests=4), 2) == 0
    await execute(url, "update bae.rates set bucket = bucket - 1")
    assert await count_sent(limit_rate(store, requests=4), 6) == 4


async def test_rate_limits_with_different_names_or_spans_are_independent(store: PostgresStore):
    assert await count_sent(limit_rate(store, requests=2), 3) == 2
    assert await count_sent(limit_rate(store, requests=2, name="other"), 3) == 2
    assert await count_sent(RateLimit(ToyBackend(REPLY), requests=1, per=3600, store=store), 1) == 1
    assert await count_sent(limit_rate(store, requests=3, name="toy"), 3) == 1


async def test_estimated_tokens_are_corrected_by_the_reported_usage(url: str, store: PostgresStore):
    inner = ToyBackend(lambda asked: Answer(REPLY, Usage(calls=1, output_tokens=400)))
    lm = limit_rate(store, inner, tokens=1000)
    assert await count_sent(lm, 3) == 3
    await store.aclose()  # what was to be corrected soon is corrected
    assert await execute(url, "select requests::int, tokens::int from bae.rates") == [[3, 1200]]
    assert await count_sent(lm, 1) == 0


async def test_a_cached_or_unsent_request_does_not_use_up_the_rate(url: str, store: PostgresStore):
    def refuse(asked: object) -> BaeLMError:
        return BaeLMError("no key", sent=False)

    lm = limit_rate(store, ToyBackend(refuse), requests=1)
    for _ in range(3):
        with pytest.raises(BaeLMError, match="no key"):
            await lm.answer(prompt())
        await store.aclose()
    assert await execute(url, "select requests::int, tokens::int from bae.rates") == [[0, 0]]


async def test_requests_that_wait_for_a_shared_rate_limit_are_all_sent(url: str):
    async def send(lm: RateLimit) -> None:
        for number in range(6):
            await lm.answer(prompt(str(number)))

    stores = [PostgresStore(url) for _ in range(3)]
    lms = [RateLimit(ToyBackend(lambda a: REPLY), requests=6, per=0.2, store=s) for s in stores]
    async with asyncio.timeout(60):
        await asyncio.gather(*map(send, lms))
    assert sum(lm.statistics().sent for lm in lms) == 18
    for store in stores:
        await store.aclose()


def test_a_shared_limit_needs_a_name():
    class Nameless(ToyBackend):
        model = ""

    with pytest.raises(ValueError, match="name="):
        RateLimit(Nameless(), requests=1, store="postgresql://127.0.0.1:1/d")
    with pytest.raises(TypeError, match="PostgresStore"):
        RateLimit(ToyBackend(), requests=1, store=7)  # type: ignore[arg-type]


# --- answers -------------------------------------------------------------------------------------


def test_processes_that_share_a_cache_ask_for_an_answer_once(url: str):
    assert run_program(ASKS, url) == "5"
    assert run_program(ASKS, url) == "0"


async def test_cached_answers_can_be_dropped_and_pruned(url: str):
    store = PostgresStore(url, size=2, age=3600)
    text = '{"a": "\\u0000 ü \\ud800"}'
    for key in ("a", "b", "c"):
        await store.put(key, key)
    await store.put("a", text)
    assert [await store.get(key) for key in ("a", "b", "c", "d")] == [text, "b", "c", None]
    assert await store.prune() == 1
    assert [await store.get(key) for key in ("a", "b", "c")] == [text, None, "c"]
    await store.drop("c")
    await execute(url, "update bae.cached_answers set at = now() - interval '2 h'")
    assert await store.get("a") is None
    assert await store.prune() == 1
    await store.aclose()
    await store.aclose()
    assert await store.get("a") is None  # it opens again
    await store.aclose()


# --- databases that are away ---------------------------------------------------------------------


@pytest.mark.parametrize("place", ["bae:s3cret@127.0.0.1:1/d", "127.0.0.1:1/d?password=s3cret"])
async def test_a_rate_limit_error_of_an_unreachable_database_has_no_password(place: str):
    store = PostgresStore(f"postgresql://{place}", patience=0)
    with pytest.raises(BaeLMError) as error:
        await count_sent(limit_rate(store, requests=1), 1)
    assert (error.value.code, error.value.retryable, error.value.sent) == (
        "bae-lm-store",
        True,
        False,
    )
    assert "s3cret" not in f"{store!r} {error.value} {error.value!r} {error.value.__cause__!r}"
    await store.aclose()


async def test_a_cache_with_an_unreachable_database_asks_the_lm(
    caplog: pytest.LogCaptureFixture,
):
    inner = ToyBackend(lambda asked: REPLY)
    store = PostgresStore("postgresql://bae:s3cret@127.0.0.1:1/d", patience=0)
    with caplog.at_level(logging.WARNING, "bae.lm"):
        await Cached(inner, store).answer(prompt())
    assert inner.calls == 1
    assert "could not look up an answer" in caplog.text
    assert "s3cret" not in caplog.text
    await store.aclose()


async def test_a_database_without_tables_is_refused_with_the_command_to_create_them(
    postgres: PostgresServer,
):
    async def use(url: str) -> None:
        store = PostgresStore(url)
        with pytest.raises(BaeLMError, match="bae db upgrade"):
            await store.get("a")
        await store.aclose()

    await use(postgres.new_database())


async def test_a_broken_database_connection_is_reopened(postgres: PostgresServer, url: str):
    database = url.rpartition("/")[2]
    async with Wire(postgres) as wire:
        store = PostgresStore(wire.url.replace("/postgres", f"/{database}"))
        await store.put("a", "1")
        wire.losing = b""
        await store.put("b", "2")
        wire.losing = b""
        assert await store.get("b") == "2"
        assert wire.lost == 2
        await store.aclose()


async def test_a_store_waits_for_a_restarted_database_server():
    with postgres_server() as server:
        async with PostgresJournal(server.url) as journal:
            await journal.upgrade()
        store = PostgresStore(server.url, patience=60)
        await store.put("a", "1")
        await asyncio.to_thread(server.kill)
        waiting = asyncio.ensure_future(store.put("b", "2"))
        await asyncio.to_thread(server.start)
        await waiting
        assert await store.get("b") == "2"
        await store.aclose()


def test_threads_and_loops_share_a_store(url: str):
    store = PostgresStore(url)

    async def work() -> int:
        lm = limit_rate(store, requests=9)
        return sum(await asyncio.gather(*(count_sent(lm, 3) for _ in range(3))))

    async def all_of() -> list[int]:
        return await asyncio.gather(*(asyncio.to_thread(asyncio.run, work()) for _ in range(3)))

    assert sum(asyncio.run(all_of())) == 9
    asyncio.run(store.aclose())
