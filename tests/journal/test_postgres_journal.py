"""`PostgresJournal` on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bae.journal.postgres.journal import PostgresJournal
from bae.testing import check_journal
from postgres_server import PostgresServer, new_schema, postgres_server

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as started:
        yield started


async def opened(server: PostgresServer, **options: object) -> PostgresJournal:
    journal = PostgresJournal(server.url, schema=new_schema(), **options)
    await journal.upgrade()
    return journal


async def test_a_journal_in_postgres_keeps_every_promise(server: PostgresServer):
    journals = [await opened(server) for _ in range(50)]
    await check_journal(
        lambda: journals.pop(),
        reopen=lambda journal: PostgresJournal(server.url, schema=journal.schema),
    )
