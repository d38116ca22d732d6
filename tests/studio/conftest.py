"""One browser for at most 25 tests of the page, in one event loop. Each test has a page of its own:
an error of the page fails the test, and so does a refusal by its content security policy."""

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
TESTS_OF_A_BROWSER = 25


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and iscoroutinefunction(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


class Browsers:
    """One open browser at a time. A browser that has served its tests is closed, since its memory
    grows with each of them."""

    def __init__(self, driver: Any, executable: str) -> None:
        self._driver, self._executable = driver, executable
        self._browser: Any = None
        self._tests = 0

    async def next(self) -> Any:
        """The browser for one more test."""
        if self._tests % TESTS_OF_A_BROWSER == 0:
            await self.close()
            self._browser = await self._driver.chromium.launch(
                executable_path=self._executable, args=[*FLAGS]
            )
        self._tests += 1
        return self._browser

    async def close(self) -> None:
        if self._browser is not None:
            await self._browser.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browsers() -> AsyncIterator[Browsers]:
    playwright = pytest.importorskip("playwright.async_api")
    executable = await asyncio.to_thread(find_chromium)
    playwright.expect.set_options(timeout=30_000)  # a machine may be busy with much else
    async with playwright.async_playwright() as driver:
        opened = Browsers(driver, executable)
        yield opened
        await opened.close()


@pytest_asyncio.fixture(loop_scope="session")
async def browser(browsers: Browsers) -> Any:
    return await browsers.next()


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Any) -> AsyncIterator[Any]:
    """A page of a new user, 1280 pixels wide."""
    context = await browser.new_context(viewport=WIDE, reduced_motion="reduce")
    opened = await watched_page(context)
    yield opened
    await context.close()
    assert opened.errors == []


@pytest_asyncio.fixture(loop_scope="session")
async def phone(browser: Any) -> AsyncIterator[Any]:
    """A page of a new user on a phone."""
    context = await browser.new_context(viewport=PHONE, has_touch=True, reduced_motion="reduce")
    opened = await watched_page(context)
    yield opened
    await context.close()
    assert opened.errors == []


async def watched_page(context: Any) -> Any:
    """A page whose `errors` has its exceptions and the violations of its policy."""
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
