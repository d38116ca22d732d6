"""The API from pages in a real browser: the page of the guide, and pages of other sites."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Mount, Route

from bae.journal import MemoryJournal
from bae.serve import API, bearer, router
from bae.serve.server import listening
from browser import open_page
from pages import ROOT, blocks
from serving import TOKEN, USERS, orders

GUIDE = ROOT / "docs" / "serve.md"


def app_with(html: str, api: API) -> Starlette:
    async def show(request: Request) -> HTMLResponse:
        return HTMLResponse(html)

    return Starlette(routes=[Route("/", show), Mount("/bae", app=api)])


async def test_the_page_of_the_guide_can_start_and_follow_a_run():
    pytest.importorskip("fastapi")
    code_blocks = blocks(GUIDE)
    [code] = [element.text for element in code_blocks if element.title == "desk.py"]
    [html] = [message.text for message in code_blocks if message.language == "html"]
    module = sys.modules["served_desk"] = ModuleType("served_desk")
    exec(code.replace('"testserver"', '"127.0.0.1"'), module.__dict__)
    app = app_with(html, module.api)
    async with (
        asyncio.timeout(60),
        listening(module.api, app=app) as url,
        open_page(url) as page,
    ):
        await page.wait_for_function("document.querySelector('#log').textContent.endsWith('ended')")
        assert "RunStarted" in await page.text_content("#log")


ASK = """async ([url, token]) => {
    const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
    const body = JSON.stringify({ start: { sku: "lamp" } });
    const post = fetch(`${url}/graphs/orders/runs?wait=10`, { method: "POST", headers, body });
    const result = await post.then(async r => (await r.json()).status, error => error.name);
    const socket = new WebSocket(`${url.replace("http", "ws")}/feed`);
    const heard = await new Promise(resolve => {
        socket.onopen = () => {
            socket.send(JSON.stringify({ token }));
            socket.send(JSON.stringify({ sub: 1, feed: "runs" }));
        };
        socket.onmessage = ({ data }) => resolve(JSON.parse(data).sub);
        socket.onclose = ({ code }) => resolve(code);
    });
    return [result, heard];
}"""


@asynccontextmanager
async def other_site() -> AsyncGenerator[str]:
    """A page on another port of the same machine: for a browser that is the same site."""
    api = router(orders, journal=MemoryJournal(), auth=bearer(USERS))
    async with listening(api, app=app_with("<p>hello</p>", api)) as url:
        yield url


@pytest.mark.parametrize("named", [False, True], ids=["another origin", "an origin that is named"])
async def test_a_page_of_another_port_may_use_the_api_if_its_origin_is_allowed(named: bool):
    async with asyncio.timeout(60), other_site() as other:
        journal = MemoryJournal()
        origins = [other] if named else []
        api = router(orders, journal=journal, auth=bearer(USERS), origins=origins)
        async with listening(api) as url, open_page(other) as page:
            result: Any = await page.evaluate(ASK, [url, TOKEN])
        assert result == (["ended", 1] if named else ["TypeError", 1008])
        assert len(await journal.runs()) == named
