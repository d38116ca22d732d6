"""A real browser for tests: Chromium, which Debian has as a package, driven by Playwright. Where it
is missing, its tests are skipped and say so; with CI=true it is installed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
)
WAITING = "-o DPkg::Lock::Timeout=240"
"""Another program may install a package at the same moment."""
INSTALL = (
    f"apt-get update {WAITING}",
    f"apt-get install --yes --no-install-recommends {WAITING} chromium",
)
HOW = f"install Chromium: {' && '.join(INSTALL)}; with CI=true the tests do so"


def find_chromium() -> str:
    """The path of Chromium. Skips the test where Chromium is missing; in CI, installs it."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is not None:
        return found
    if os.environ.get("CI") != "true":
        pytest.skip(HOW)
    # Tests run in several processes: one of them installs it, and the others wait.
    with Path(tempfile.gettempdir(), "bae-chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (found := shutil.which(NAMES[0])) is None:
            sudo = [] if os.geteuid() == 0 else ["sudo", "--non-interactive"]
            for command in INSTALL:
                done = subprocess.run(
                    [*sudo, *command.split()],
                    env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                    capture_output=True,
                    text=True,
                    timeout=300,
                    check=False,
                )
                if done.returncode:
                    said = (done.stdout + done.stderr)[-2000:]
                    pytest.fail(f"`{command}` failed, so no browser could be tested:\n{said}")
            found = shutil.which(NAMES[0])
    assert found is not None, "the package chromium has no program of that name"
    return found


@asynccontextmanager
async def open_page(url: str, **options: Any) -> AsyncIterator[Any]:
    """Open an address in a new browser and yield the page. Errors of the page fail the test when it
    is closed. `options` go to the browser's context, such as `viewport`."""
    playwright = pytest.importorskip("playwright.async_api")
    executable = await asyncio.to_thread(find_chromium)
    errors: list[str] = []
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=executable, args=[*FLAGS])
        try:
            context = await browser.new_context(**options)
            page = await context.new_page()
            page.set_default_timeout(20_000)
            page.on("pageerror", lambda error: errors.append(str(error)))
            await page.goto(url)
            yield page
        finally:
            await browser.close()
    assert errors == [], errors
