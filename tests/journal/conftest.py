"""What most tests of journals use."""

import pytest

from bae.journal import Journal, MemoryJournal


@pytest.fixture
def journal() -> Journal:
    return MemoryJournal()
