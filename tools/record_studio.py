"""Makes the pictures of the studio in docs/assets, from the studio that `make studio-demo` shows.

    python tools/record_studio.py [FOLDER]

It needs Chromium, which Debian has as a package, and Playwright.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import httpx
from playwright.async_api import async_playwright

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from browser import FLAGS, find_chromium  # noqa: E402

TOKEN: Final = "token-of-the-pictures"
WIDE: Final = {"width": 1280, "height": 800}
PHONE: Final = {"width": 400, "height": 800}
SHOTS: Final = (
    ("studio-run", "/runs/outfit-1?step=1", WIDE, "light"),
    ("studio-run-dark", "/runs/tools-1", WIDE, "dark"),
    ("studio-inbox-phone", "/inbox", PHONE, "light"),
    ("studio-chat", "/chat/Message/ana-42", WIDE, "light"),
    ("studio-team", "/team/textfacts", WIDE, "light"),
)
"""The name of a picture, the page, its size and its theme."""


def main(folder: Path) -> None:
    """Take the pictures of a studio that is started for it."""
    with tempfile.TemporaryDirectory(prefix="bae-pictures-") as place:
        process = subprocess.Popen(
            [sys.executable, ROOT / "examples" / "studio" / "demo.py", place, "--json"],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "BAE_STUDIO_TOKEN": TOKEN, "DEMO_SECONDS": "1"},
        )
        try:
            assert process.stdout is not None
            printed = ""
            for line in process.stdout:
                printed += line if printed or line.startswith("{") else ""
                if line.startswith("}"):
                    break
            url = json.loads(printed)["url"]
            asyncio.run(wait_for_team(url))
            asyncio.run(take_pictures(url, folder))
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.communicate(timeout=60)


async def wait_for_team(url: str) -> None:
    """Wait until the team needs an answer, and only one task is left."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=f"{url}/api", headers=headers) as client:
        async with asyncio.timeout(180):
            while True:
                [team] = (await client.get("/teams")).json()["teams"]
                if team["blockers"] and team["counts"].get("completed", 0) >= 3:
                    return
                await asyncio.sleep(0.5)


async def take_pictures(url: str, folder: Path) -> None:
    """Open each page and save a picture of it."""
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=find_chromium(), args=[*FLAGS])
        for name, path, size, theme in SHOTS:
            options: Any = {"viewport": size, "color_scheme": theme, "reduced_motion": "reduce"}
            context = await browser.new_context(**options)
            page = await context.new_page()
            await page.goto(url)
            await page.evaluate("(token) => localStorage.setItem('bae.token', token)", TOKEN)
            await page.goto(url + path)
            await page.get_by_role("heading").first.wait_for()
            await page.wait_for_timeout(1_500)
            await page.screenshot(path=folder / f"{name}.png")
            await context.close()
        await browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "docs" / "assets"))
