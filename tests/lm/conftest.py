"""What tests of backends that speak HTTP share."""

from collections.abc import AsyncIterator

import pytest

from bae.testing import Provider


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    """A provider on loopback."""
    pytest.importorskip("h11")
    async with Provider() as made:
        yield made
