"""The page with a hostile model, page, user or network: it runs no foreign code, loses no typed
text, and shows the rest of the page where a part cannot be shown."""

from __future__ import annotations

import re
from typing import Annotated, Any

from playwright.async_api import expect
from pydantic import Field

from bae import Gate, Graph, Node
from bae.journal import MemoryJournal
from bae.serve.studio_login import Logins
from opened_studio import open_studio


class Wish(Node):
    text: str

    async def __call__(self) -> Decision:
        return Decision(text=self.text)


class Decision(Node):
    text: str
    verdict: Annotated[str, Gate("What do you say?")] = Field(init=False)

    async def __call__(self) -> None: ...


wishes = Graph(start=Wish, end=Decision, name="wishes")


class Box(Node):
    value: Any

    async def __call__(self) -> None: ...


boxes = Graph(start=Box, end=Box, name="boxes")


async def test_an_expired_login_does_not_lose_typed_text(page: Any):
    journal, logins = MemoryJournal(), Logins(None)
    await wishes.arun(Wish(text="A lamp."), journal=journal, run_id="wish-1")
    async with open_studio(wishes, journal=journal, logins=logins) as opened:
        await opened.show(page, "/inbox")
        # Any site can open a link that is void: it logs nobody out.
        await page.goto("about:blank")
        await page.goto(f"{opened.url}/inbox#token=void")
        answer = page.get_by_role("textbox", name="verdict")
        await answer.fill("Yes, a green lamp.")
        logins.forget(None)
        await page.get_by_role("button", name="Send answer").click()
        await expect(page.get_by_role("heading", name="Open the link")).to_be_visible()
        await expect(answer).to_be_hidden()
        assert await page.evaluate("localStorage.getItem('bae.token')") is None

        other = await page.context.new_page()
        await opened.show(other, "/runs")  # a login in one tab is one in all
        await expect(answer).to_have_value("Yes, a green lamp.")
        await page.get_by_role("button", name="Send answer").click()
        await expect(page.get_by_text("ana said Yes, a green lamp.").first).to_be_visible()
        await expect(other).to_have_title("bae studio")


async def test_values_of_any_size_are_shown_unchanged(page: Any):
    journal = MemoryJournal()
    value = {
        "__proto__": {"polluted": "a name like others"},
        "id": 9007199254740993,
        "lines": "\n".join(f"line {number}" for number in range(100_000)),
        "list": [f"item {number}" for number in range(50_000)],
    }
    await boxes.arun(Box(value=value), journal=journal, run_id="box-1")
    async with open_studio(boxes, journal=journal) as opened:
        await opened.show(page, "/runs/box-1?step=0")
        step = page.get_by_role("article", name="Step 0, Box")
        await step.get_by_role("button", name="Show all 1,").click()
        await expect(step).to_contain_text("9007199254740993")
        await expect(step).to_contain_text("a name like others")
        await step.get_by_role("button", name="Show 1,000 more of 50,000 items").click()
        await expect(step).to_contain_text("item 1029")
        await step.get_by_role("button", name="Show all").first.click()
        await expect(step).to_contain_text("line 99999")
        # All lines are in the document, in parts of which the browser lays out those in view.
        parts = step.locator(".text-part")
        assert await parts.count() > 100
        await expect(parts.last).to_have_css("content-visibility", "auto")
        assert await page.evaluate("({}).polluted") is None


async def test_a_silent_connection_is_reopened(page: Any):
    journal, sockets, silent = MemoryJournal(), [], []

    async def carry(socket: Any) -> None:
        """Carry messages, but none to the page over a socket that is silent."""
        server = socket.connect_to_server()
        server.on_message(lambda text: None if socket in silent else socket.send(text))
        sockets.append(socket)

    await page.clock.install()
    await page.route_web_socket(re.compile("/api/feed$"), carry)
    async with open_studio(boxes, journal=journal) as opened:
        await opened.show(page, "/runs")
        await page.get_by_text("live", exact=True).wait_for()
        silent += sockets  # as after a sleep of the machine: nobody closes the connection
        await boxes.arun(Box(value=1), journal=journal, run_id="box-2")
        await page.clock.run_for(45_000)
        news = page.get_by_text(re.compile("1 new run|Show the new run"))
        await expect(page.get_by_text("box-2").or_(news).first).to_be_visible()
        assert len(sockets) > 1
