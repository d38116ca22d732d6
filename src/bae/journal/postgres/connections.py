"""Connections to the database of a journal: opening and checking them, the pool for reading, and
the waits while the database does not answer."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import monotonic, time
from typing import Any, Final, TypeVar

from bae.exceptions import JournalError, describe
from bae.journal.postgres.errors import error_of, permanent_error, wrong_schema
from bae.journal.postgres.tables import VERSION
from bae.postgres.driver import NO_TABLES, close, driver, may_work_again

T = TypeVar("T")

READERS: Final = 3
"""The most connections that read at the same time."""
CONNECTING: Final = 10.0
"""The timeout of one attempt to connect, in seconds."""
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
"""The longest pause between two attempts to reach the database, in seconds."""
_CHECK: Final = """select version, extract(epoch from clock_timestamp())::float8 as now,
    pg_postmaster_start_time() as started, (pg_control_checkpoint()).timeline_id as timeline
from {s}.versions"""


_log = logging.getLogger("bae")


def need_driver() -> Any:
    """Return the module asyncpg. Raises JournalError if it is not installed."""
    return driver(lambda e: error_of("bae-journal-extra-missing", "PostgresJournal", cause=e))


class Connections:
    """Opens connections, and pools the connections for reading. Only the thread of the journal's
    `PostgresDesk` uses it."""

    def __init__(
        self, url: str, name: str, schema: str, durability: str, lease: float, patience: float
    ) -> None:
        self.name = name
        self.schema = schema
        self.patience = patience
        self.clock_offset = 0.0
        """The clock of the database minus the clock of this machine, in seconds."""
        self.started: Any = None
        """The start time of the server to which the newest connection was opened."""
        self.timeline = 0
        """The timeline of that server. A standby that becomes the server begins a new timeline."""
        self._is_away = False
        self._url = url
        self._idle: list[Any] = []
        self._readers = asyncio.Semaphore(READERS)
        self._settings = {
            "application_name": "bae",
            # A process that stops in the middle of a transaction must not block other processes.
            "idle_in_transaction_session_timeout": str(max(int(lease * 1000), 1)),
            **({"synchronous_commit": "off"} if durability == "normal" else {}),
        }

    async def connect(self) -> Any:
        """Open a connection. Raises JournalError if the tables do not have the version of this
        bae."""
        connection = await need_driver().connect(
            self._url, timeout=CONNECTING, server_settings=self._settings
        )
        try:
            await self._check(connection)
        except BaseException:
            connection.terminate()
            raise
        if self._is_away:
            self._is_away = False
            _log.warning("%s answers again", self.name)
        return connection

    def report_away(self, error: Exception, seconds: float) -> None:
        """Log that the database does not answer. Further calls log nothing until the database
        answers again. `seconds` is how long bae tries to reach the database."""
        if not self._is_away and not isinstance(error, ConnectionLost):
            self._is_away = True
            why = describe(error)
            _log.warning("%s does not answer; trying again for %g s: %s", self.name, seconds, why)

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[Any]:
        """Lend a connection for reading, from the pool or newly opened."""
        async with self._readers:
            while self._idle and self._idle[-1].is_closed():
                self._idle.pop()
            connection = self._idle.pop() if self._idle else await self.connect()
            try:
                yield connection
            except BaseException as error:  # the connection may be in the middle of an answer
                if connection.is_closed():
                    raise ConnectionLost from error
                await close(connection)
                raise
            self._idle.append(connection)

    async def read(self, question: Callable[[Any], Awaitable[T]]) -> T:
        """Call `question` with a connection, and return its answer. While the database does not
        answer, call `question` again, for up to `patience` seconds."""
        tries = Patience(self)
        while True:
            try:
                async with self.reading() as connection:
                    try:
                        answer, refusal = await question(connection), None
                    except (JournalError, ValueError) as error:
                        answer, refusal = None, error
            except JournalError:
                raise
            except Exception as error:
                await tries.wait(error)
                continue
            if refusal is not None:
                raise refusal
            return answer  # pyright: ignore[reportReturnType] - without a refusal there is an answer

    async def close(self) -> None:
        """Close the connections for reading."""
        while self._idle:
            await close(self._idle.pop())

    async def _check(self, connection: Any) -> None:
        try:
            row: dict[str, Any] = await connection.fetchrow(_CHECK.replace("{s}", self.schema))
        except Exception as error:
            if getattr(error, "sqlstate", "") not in NO_TABLES:
                raise
            row = {"version": 0}
        version: int = row["version"]
        if version != VERSION:
            raise wrong_schema(self.name, version, VERSION)
        self.clock_offset = row["now"] - time()
        self.started, self.timeline = row["started"], row["timeline"]


class Patience:
    """Waits between attempts to reach the database. The waits grow up to `LONGEST_PAUSE`, and stop
    after `seconds` in total."""

    def __init__(self, connections: Connections) -> None:
        self.name = connections.name
        self._connections = connections
        self.seconds = connections.patience
        self._was_there = connections.started is not None
        self._since = monotonic()
        self._pause = FIRST_PAUSE

    async def wait(self, error: Exception, run_id: str | None = None) -> None:
        """Wait after a failed attempt. Raises JournalError if `error` is permanent, or if the time
        limit is reached."""
        if not may_work_again(error) or (not self._was_there and _is_unknown_host(error)):
            raise permanent_error(self.name, run_id, error) from error
        if monotonic() - self._since >= self.seconds:
            raise error_of(
                "bae-journal-away", self.name, run_id, cause=error, seconds=self.seconds
            ) from error
        self._connections.report_away(error, self.seconds)
        await asyncio.sleep(self._pause * random.uniform(0.75, 1.25))
        self._pause = min(self._pause * 2, LONGEST_PAUSE)


class ConnectionLost(OSError):
    """Raised when a connection is lost while it is used."""


def _is_unknown_host(error: Exception) -> bool:
    return isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME
