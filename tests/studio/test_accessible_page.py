"""What axe finds on every page, in both themes, on a screen and on a phone."""

from __future__ import annotations

from itertools import product
from typing import Annotated, Any

import pytest
from pydantic import Field

from bae import Dep, Gate, Graph, Messages, Node, Thread
from bae.journal import MemoryJournal
from bae.testing import ScriptedLM
from opened_studio import PHONE, WIDE, open_studio


async def get_stock() -> int:
    return 12


class Order(Node):
    sku: str = Field(description="what is ordered", max_length=40)
    count: int = 1

    async def __call__(self) -> Approval | Price:
        if self.count > 10:
            return Approval(count=self.count)
        return Price(euros=self.count * 2)


class Approval(Node):
    count: int
    stock: Annotated[int, Dep(get_stock)]
    approved: Annotated[bool, Gate("Sell so many?")] = Field(init=False)

    async def __call__(self) -> Price:
        return Price(euros=self.count)


class Price(Node):
    euros: int

    async def __call__(self) -> None: ...


class Say(Node):
    text: str

    async def __call__(self) -> Answer: ...


class Answer(Node):
    history: Annotated[Messages, Thread()]
    text: str

    async def __call__(self) -> None: ...


orders = Graph(start=Order, end=Price, name="orders")
talk = Graph(start=Say, end=Answer, name="talk")


async def test_axe_finds_no_serious_fault(browser: Any):
    axe = pytest.importorskip("axe_playwright_python.async_playwright").Axe()
    journal = MemoryJournal()
    lm = ScriptedLM([{"text": "Good *morning*, with a [link](https://example.com)."}])
    await orders.arun(Order(sku="lamp"), journal=journal, run_id="order-1")
    await orders.arun(Order(sku="lamp", count=20), journal=journal, run_id="order-2")
    await talk.arun(Say(text="Hello"), lm, journal=journal, run_id="talk-1", thread="ana")
    paths = (
        *("/inbox", "/runs", "/runs/order-1", "/runs/order-2?step=1", "/runs/talk-1?tab=calls"),
        *("/runs/order-1/vs/order-2", "/graphs/orders", "/chat/talk/ana"),
    )
    found: list[str] = []
    async with open_studio(orders, talk, journal=journal) as opened:
        context = await browser.new_context(viewport=WIDE, reduced_motion="reduce", bypass_csp=True)
        page = await context.new_page()
        await opened.show(page, "/runs")
        for path in paths:
            await page.goto(opened.url + path)
            await page.get_by_role("heading").first.wait_for()
            await page.wait_for_load_state("networkidle")
            for viewport, theme in product((WIDE, PHONE), ("light", "dark")):
                await page.set_viewport_size(viewport)
                await page.emulate_media(color_scheme=theme)
                results = await axe.run(page)
                found += [
                    f"{path} {viewport['width']} {theme}: {each['id']} {node['target']}"
                    for each in results.response["violations"]
                    if each["impact"] in ("serious", "critical")
                    for node in each["nodes"]
                ]
            await page.set_viewport_size(WIDE)
        await context.close()
    assert not found, "\n".join(found)
