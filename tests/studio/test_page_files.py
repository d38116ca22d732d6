"""The files that the page is made of, and how much of them a browser fetches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bae import Graph, Node
from opened_studio import open_studio

ROOT = Path(__file__).parent.parent.parent
FIRST_VIEW = 220 * 1024
SIZES = """() => [
    ...performance.getEntriesByType("resource"),
    ...performance.getEntriesByType("navigation"),
].filter((each) => !each.name.includes("/api/")).map((each) => [each.name, each.encodedBodySize])"""


class Hello(Node):
    text: str

    async def __call__(self) -> None: ...


hello = Graph(start=Hello, end=Hello, name="hello")


def test_the_lock_file_of_the_page_contains_no_url():
    text = (ROOT / "studio" / "package-lock.json").read_text("utf-8")
    assert "://" not in text
    packages = json.loads(text)["packages"]
    assert all(package.get("integrity") for name, package in packages.items() if name)


async def test_the_first_view_is_small_and_loads_from_no_other_host(page: Any):
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    async with open_studio(hello) as opened:
        await opened.show(page, "/runs")
        await page.get_by_role("heading", name="Runs", exact=True).wait_for()
        sizes = dict(await page.evaluate(SIZES))
        assert sum(sizes.values()) <= FIRST_VIEW, sizes
        assert all(url.startswith((opened.url, "blob:", "data:")) for url in asked)
