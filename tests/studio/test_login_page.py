"""Who may open the page, and what another site can do with it."""

from __future__ import annotations

from typing import Any

from bae import Graph, Node
from opened_studio import open_studio


class Hello(Node):
    text: str

    async def __call__(self) -> None: ...


hello = Graph(start=Hello, end=Hello, name="hello")


async def test_a_link_opens_the_page_once_and_the_browser_stays_logged_in(page: Any, browser: Any):
    async with open_studio(hello) as opened:
        link = f"{opened.url}/#token={opened.studio.logins.make_link_token()}"
        await page.goto(link)
        await page.get_by_role("heading", name="Runs", exact=True).wait_for()
        assert "token" not in page.url
        await page.reload()
        await page.get_by_role("heading", name="Runs", exact=True).wait_for()

        other = await browser.new_context()
        stranger = await other.new_page()
        await stranger.goto(link)
        await stranger.get_by_role("alert").get_by_text("used already").wait_for()
        assert await stranger.get_by_role("navigation").count() == 0
        assert await other.cookies() == []
        await other.close()
