"""`PostgresStore`: processes on several machines share LLM answers and rate limits."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Final, TypeVar

from bae.exceptions import BaeLMError, describe
from bae.lm.extras import install_line
from bae.lm.policies.cache_stores import PRUNE_EVERY
from bae.lm.policies.limits import RatePlace
from bae.postgres.address import checked_address, without_password
from bae.postgres.desk import Over, PostgresDesk
from bae.postgres.driver import NO_TABLES, driver, may_work_again

T = TypeVar("T")

CONNECTIONS: Final = 4
"""The most connections of a process."""
CONNECTING: Final = 10.0
"""Seconds to wait for a connection, and for the answer to a query. After that, bae tries again."""
LONGEST_PAUSE: Final = 1.0
"""The most seconds between two tries to reach the database."""

_log = logging.getLogger("bae.lm")


class PostgresStore:
    """Stores cached answers and rate limits in Postgres, so that processes share them.

    Make it with `store = PostgresStore("postgresql://HOST/DB")`, and pass it to `Cached(lm, store)`
    or `RateLimit(lm, requests=100, store=store)`. It needs the extra `postgres` and the tables that
    `bae db upgrade` makes.

    - `schema`: the schema of the tables.
    - `size`: the most answers in the database. bae deletes the oldest answers beyond `size` from
      time to time. None means no bound.
    - `age`: the age in seconds from which an answer is ignored and then deleted. None means no
      bound.
    - `patience`: seconds that a request waits for an unreachable database. After that, `Cached`
      asks its LM, and `RateLimit` raises an error with the code `bae-lm-store`, which `Retry`
      retries.

    Several event loops and threads may use one store. Errors and logs never show the password.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = "bae",
        size: int | None = 100_000,
        age: float | None = None,
        patience: float = 10.0,
    ) -> None:
        self._url = checked_address(url)
        self.url = without_password(url)
        if not schema.isidentifier() or not schema.isascii() or schema != schema.lower():
            raise ValueError(f"PostgresStore(schema={schema!r}): give a plain name, as bae_test")
        if size is not None and (type(size) is not int or size < 1):
            raise ValueError(f"PostgresStore(size={size!r}): give 1 or more, or None for no bound")
        if age is not None and not age > 0:
            raise ValueError(f"PostgresStore(age={age!r}): give more than 0, or None for no bound")
        if not patience >= 0:
            raise ValueError(f"PostgresStore(patience={patience!r}): give 0 or more seconds")
        self.schema = schema
        self.size = size
        self.age = age
        self.patience = patience
        self._starting = threading.Lock()
        self._client: _Client | None = None
        self._puts = 0

    def __repr__(self) -> str:
        return f"PostgresStore({self.url!r})"

    async def get(self, key: str) -> str | None:
        """Return the text stored under `key`. None if there is none or it is older than `age`."""
        query = """select text from {s}.cached_answers where key = $1
            and ($2::float8 is null or at > clock_timestamp() - make_interval(secs => $2))"""
        return await self._do(lambda db: db.fetchval(self._sql(query), key, self.age))

    async def put(self, key: str, text: str) -> None:
        """Store a text under `key`. After every 100 texts, prune the table."""
        insert = """insert into {s}.cached_answers (key, text) values ($1, $2)
            on conflict (key) do update set text = excluded.text, at = excluded.at"""
        await self._do(lambda db: db.execute(self._sql(insert), key, text))
        self._puts += 1
        if self._puts % PRUNE_EVERY == 0:
            await self.prune()

    async def drop(self, key: str) -> None:
        """Delete the text stored under `key`. Do nothing if there is none."""
        delete = self._sql("delete from {s}.cached_answers where key = $1")
        await self._do(lambda db: db.execute(delete, key))

    async def prune(self) -> int:
        """Delete the answers older than `age` and the oldest answers beyond `size`. Return how many
        were deleted."""
        delete = """with gone as (delete from {s}.cached_answers
                where at <= clock_timestamp() - make_interval(secs => $1)
                or at < (select at from {s}.cached_answers order by at desc limit 1 offset $2 - 1)
            returning key) select count(*) from gone"""
        return await self._do(lambda db: db.fetchval(self._sql(delete), self.age, self.size))

    async def reserve(
        self, name: str, per: float, requests: int | None, tokens: int | None, asked: int
    ) -> RatePlace:
        """Count a request with `asked` tokens, if the shared limits allow the request. If they do
        not, count nothing and return how long to wait."""
        query = self._sql("select * from {s}.reserve_rate($1, $2, $3, $4, $5)")
        row = await self._do(lambda db: db.fetchrow(query, name, per, requests, tokens, asked))
        return RatePlace(row["bucket_now"], row["wait"])

    def settle(self, name: str, per: float, bucket: int, requests: int, tokens: int) -> None:
        """Add `requests` and `tokens`, which may be negative, to the counts of a bucket. Return
        before the counts are stored."""
        if not requests and not tokens:
            return
        update = self._sql("select {s}.settle_rate($1, $2, $3, $4, $5)")
        client = self._get_client()
        client.do_later(lambda db: db.fetchval(update, name, per, bucket, requests, tokens))

    async def aclose(self) -> None:
        """Store the last corrections of rate limits' counts, and close the connections. The next
        use opens the store again."""
        with self._starting:
            client, self._client = self._client, None
        if client is not None and client.desk.over is None:
            await asyncio.to_thread(client.desk.end)

    def _sql(self, text: str) -> str:
        return text.replace("{s}", self.schema)

    async def _do(self, work: Callable[[Any], Awaitable[T]]) -> T:
        client = self._get_client()
        return await client.desk.ask(lambda: client.do(work))

    def _get_client(self) -> _Client:
        """Return the client. Start it first if there is none or it has stopped."""
        with self._starting:
            if self._client is None or self._client.desk.over is not None:
                self._client = _Client(self._url, self.url, self.patience)
            return self._client


class _Client:
    """The connections of a store, in a thread with its own event loop."""

    def __init__(self, url: str, name: str, patience: float) -> None:
        self.name = name
        self._url = url
        self._patience = patience
        self._asyncpg = driver(self._package_error)
        self._pool: Any = None
        self._stopping = asyncio.Event()
        self._later: set[asyncio.Task[None]] = set()
        self.desk = PostgresDesk(
            name, self._serve, self._stop, lambda why: None, self._stopped_error
        )

    async def do(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Call `work` with a connection. If the database is unreachable, try again for `patience`
        seconds."""
        since, pause = monotonic(), 0.05
        while True:
            try:
                async with self._pool.acquire(timeout=CONNECTING) as connection:
                    return await asyncio.wait_for(work(connection), CONNECTING)
            except Exception as error:
                if not self._may_work_again(error) or monotonic() - since >= self._patience:
                    raise self._database_error(error) from error
            await asyncio.sleep(pause * random.uniform(0.75, 1.25))
            pause = min(2 * pause, LONGEST_PAUSE)

    def do_later(self, work: Callable[[Any], Awaitable[object]]) -> None:
        """Schedule `work` from any thread, and return at once. A failure is only logged."""

        async def correct_rate() -> None:
            try:
                await self.do(work)
            except BaeLMError as error:
                _log.warning(
                    "%s could not correct the counts of a rate limit: %s",
                    self.name,
                    describe(error),
                )

        def start() -> None:
            task = self.desk.loop.create_task(correct_rate())
            self._later.add(task)
            task.add_done_callback(self._later.discard)

        self.desk.call(start)

    async def _serve(self) -> None:
        # A crash of the database may lose the last counts and answers, which costs little.
        settings = {"application_name": "bae", "synchronous_commit": "off"}
        self._pool = self._asyncpg.create_pool(
            self._url,
            min_size=0,
            max_size=CONNECTIONS,
            timeout=CONNECTING,
            server_settings=settings,
        )
        async with self._pool:
            await self._stopping.wait()
            if self._later:
                await asyncio.wait([*self._later], timeout=CONNECTING)

    def _stop(self) -> None:
        self.desk.call(self._stopping.set)

    def _may_work_again(self, error: Exception) -> bool:
        return may_work_again(error) or isinstance(error, self._asyncpg.InternalClientError)

    def _database_error(self, error: Exception) -> BaeLMError:
        fix = "see the cause"
        if getattr(error, "sqlstate", "") in NO_TABLES:
            fix = f"run `bae db upgrade -j {self.name}`, which makes the tables"
        return BaeLMError(
            f"the shared store {self.name} could not be used",
            code="bae-lm-store",
            retryable=self._may_work_again(error),
            sent=False,
            cause=error,
            fix=fix,
        )

    def _package_error(self, error: BaseException) -> BaeLMError:
        return BaeLMError(
            "PostgresStore needs the package asyncpg, which is not installed",
            code="bae-lm-extra-missing",
            sent=False,
            cause=error,
            fix=install_line("postgres"),
        )

    def _stopped_error(self, why: Over) -> BaeLMError:
        return BaeLMError(
            f"{self.name} was {why} while it was used",
            code="bae-lm-store",
            retryable=True,
            sent=False,
            fix="close the store after the runs that use it",
        )
