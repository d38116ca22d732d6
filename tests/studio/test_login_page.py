"""Logins of the page, its protection from pages of other sites, and its reconnect after the server
was away."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from bae import Graph, Node
from bae.journal import SQLiteJournal
from bae.serve.studio_login import Logins
from opened_studio import open_studio


class Hello(Node):
    text: str

    async def __call__(self) -> None: ...


hello = Graph(start=Hello, end=Hello, name="hello")

ATTACK = """async (victim) => {
    const outcomes = {};
    const attempt = async (name, work) => {
        try { outcomes[name] = await work(); } catch (error) { outcomes[name] = "refused"; }
    };
    const headers = { "content-type": "text/plain" };
    const body = JSON.stringify({ start: { text: "from another site" } });
    const json = { "content-type": "application/json" };
    const send = (mode, init) => fetch(`${victim}/api/graphs/hello/runs`,
        { method: "POST", mode, credentials: "include", body, ...init });
    const status = async (response) => (await response).type + (await response).status;
    await attempt("read", () => status(fetch(`${victim}/api/runs`, { credentials: "include" })));
    await attempt("read opaque", () => status(fetch(`${victim}/api/runs`, { mode: "no-cors" })));
    await attempt("start", () => status(send("cors", { headers: json })));
    await attempt("start opaque", () => status(send("no-cors", { headers })));
    await attempt("log in", () => status(fetch(`${victim}/api/login`,
        { method: "POST", mode: "no-cors", body: "{}", headers })));
    await attempt("socket", () => new Promise((resolve) => {
        const socket = new WebSocket(`${victim.replace("http", "ws")}/api/feed`);
        const got = [];
        socket.onmessage = (event) => got.push(event.data);
        socket.onclose = (event) => resolve(`${event.code} ${got.length}`);
        socket.onopen = () => socket.send(JSON.stringify({ sub: 1, feed: "runs" }));
    }));
    await attempt("frame", () => new Promise((resolve) => {
        const frame = document.createElement("iframe");
        frame.src = victim;
        frame.onload = () => {
            try { resolve(frame.contentDocument?.body.textContent ? "seen" : "empty"); }
            catch { resolve("empty"); }
        };
        document.body.append(frame);
    }));
    return outcomes;
}"""


@asynccontextmanager
async def another_site() -> AsyncGenerator[str]:
    """A page of another port of this host: for cookies, the same site."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 13\r\n"
        writer.write(head + b"connection: close\r\n\r\n<body></body>")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


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


async def test_a_page_of_another_site_can_neither_read_nor_act(page: Any):
    async with open_studio(hello) as opened, another_site() as site:
        await opened.show(page, "/runs")  # the browser is logged in
        tab = await page.context.new_page()
        await tab.goto(site)
        outcomes = await tab.evaluate(ATTACK, opened.url)
        # Of an opaque answer the other page is told nothing, not even whether it was refused.
        for name in ("read opaque", "start opaque", "log in"):
            assert outcomes.pop(name) in ("refused", "opaque0")
        assert outcomes == {
            "read": "refused",
            "start": "refused",
            "socket": "1008 0",
            "frame": "empty",
        }
        assert await opened.journal.runs() == []


async def test_a_page_reconnects_when_the_server_is_back_and_shows_missed_events(
    page: Any, tmp_path: Any
):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path, logins = tmp_path / "runs.db", Logins(tmp_path / "logins.db")
    async with (
        SQLiteJournal(path) as journal,
        open_studio(hello, journal=journal, port=port, logins=logins) as opened,
    ):
        await hello.arun(Hello(text="before"), journal=journal, run_id="first-1")
        await opened.show(page, "/runs")
        await page.get_by_role("link", name="first-1").wait_for()
        await page.get_by_text("live", exact=True).wait_for()
    await page.get_by_text("Reconnecting").wait_for()
    async with SQLiteJournal(path) as journal:
        await hello.arun(Hello(text="meanwhile"), journal=journal, run_id="missed-1")
        async with open_studio(hello, journal=journal, port=port, logins=logins):
            await page.get_by_text("Reconnecting").wait_for(state="detached")
            await page.get_by_role("button", name="1 new run").click()
            await page.get_by_role("link", name="missed-1").wait_for()
    logins.__exit__()
