"""The model that is wrong by design, and backends that ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from wrong_by_design import asks, wrong_provider


@pytest.fixture
async def provider() -> AsyncIterator[Any]:
    pytest.importorskip("h11")
    async with wrong_provider() as made:
        yield made


@pytest.fixture
async def student(provider: Any) -> AsyncIterator[Any]:
    pytest.importorskip("anthropic")
    async with asks(provider) as made:
        yield made


@pytest.fixture
async def teacher(provider: Any) -> AsyncIterator[Any]:
    pytest.importorskip("anthropic")
    async with asks(provider, "teacher") as made:
        yield made
