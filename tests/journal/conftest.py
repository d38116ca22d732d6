"""What most tests of journals use. Suites of promises run on a journal in memory and on one in
Postgres: `make test` runs those tests on Postgres that are marked so, `make slow` all of them."""

from pathlib import Path
from typing import Any

import pytest

import bae.invoke
from bae.journal import Journal, MemoryJournal
from journal_graphs import WORLD
from postgres_server import PostgresServer, journals_of

SUITES = (
    *(
        "test_asked_calls",
        "test_fork",
        "test_journal",
        "test_parked_runs",
        "test_recomputed_values",
    ),
    *("test_redacted_places", "test_resume", "test_resume_corners", "test_resume_kinds"),
    *("test_resumed_tools", "test_stored_files", "test_stored_look_ups", "test_stored_values"),
    *("test_stored_threads", "test_stored_tools", "test_thread_approvals"),
)
"""The modules whose tests run on Postgres too."""
assert [name for name in SUITES if not Path(__file__).with_name(f"{name}.py").exists()] == []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] not in SUITES:
        return
    marks = [pytest.mark.once]
    if metafunc.definition.get_closest_marker("postgres") is None:
        marks.append(pytest.mark.slow)
    stores = ["memory", pytest.param("postgres", marks=marks)]
    metafunc.parametrize("store", stores, indirect=True)


@pytest.fixture(autouse=True)
def store(request: pytest.FixtureRequest) -> Any:
    """The class of the journals that a test makes, which it knows as `MemoryJournal`."""
    if getattr(request, "param", "memory") == "memory":
        yield MemoryJournal
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with journals_of(server) as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(request.module, "MemoryJournal", made, raising=False)
        yield made


@pytest.fixture
def journal(store: type[Journal]) -> Journal:
    return store()


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has happened yet, and retries follow at once."""
    monkeypatch.setattr(bae.invoke, "FIRST_PAUSE", 0.0)
    WORLD.__init__()
