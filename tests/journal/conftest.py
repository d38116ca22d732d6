"""What most tests of journals use."""

import pytest

import bae.invoke
from bae.journal import Journal, MemoryJournal
from kept_runs import WORLD


@pytest.fixture
def journal() -> Journal:
    return MemoryJournal()


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has happened yet, and retries follow at once."""
    monkeypatch.setattr(bae.invoke, "FIRST_PAUSE", 0.0)
    WORLD.__init__()
