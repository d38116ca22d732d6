"""One browser for the tests of the page, in one event loop; each test has a page of its own. What a
page reports as an error, and what its content security policy refuses, fails the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from browser import FLAGS, find_chromium
from opened_studio import PHONE, WIDE

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and iscoroutinefunction(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Any]:
    playwright = pytest.importorskip("playwright.async_api")
    executable = await asyncio.to_thread(find_chromium)
    playwright.expect.set_options(timeout=30_000)  # a machine may be busy with much else
    async with playwright.async_playwright() as driver:
        opened = await driver.chromium.launch(executable_path=executable, args=[*FLAGS])
        yield opened
        await opened.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Any) -> AsyncIterator[Any]:
    """A page of a new user, 1280 pixels wide."""
    context = await browser.new_context(viewport=WIDE, reduced_motion="reduce")
    found = await watched_page(context)
    yield found
    await context.close()
    assert found.errors == []


@pytest_asyncio.fixture(loop_scope="session")
async def phone(browser: Any) -> AsyncIterator[Any]:
    """A page of a new user on a phone."""
    context = await browser.new_context(viewport=PHONE, has_touch=True, reduced_motion="reduce")
    found = await watched_page(context)
    yield found
    await context.close()
    assert found.errors == []


async def watched_page(context: Any) -> Any:
    """A page whose `errors` has what it throws, and what its policy refuses."""
    page = await context.new_page()
    page.set_default_timeout(30_000)
    page.errors = errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))

    def listen(message: Any) -> None:
        text = message.text
        if "Content Security Policy" in text or "TrustedHTML" in text or "TrustedScript" in text:
            errors.append(text)

    page.on("console", listen)
    return page
