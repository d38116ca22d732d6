"""Axe finds no serious fault on the pages of runs, graphs and chats."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
import pytest_asyncio
from pydantic import Field

from axe_faults import axe_page, find_faults
from bae import Dep, Gate, Graph, Messages, Node, Thread
from bae.journal import MemoryJournal
from bae.testing import ScriptedLM
from opened_studio import OpenedStudio, open_studio


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


@pytest_asyncio.fixture(loop_scope="session")
async def opened() -> AsyncIterator[OpenedStudio]:
    """A studio with a run that ended, a run that waits, and a conversation."""
    journal = MemoryJournal()
    lm = ScriptedLM([{"text": "Good *morning*, with a [link](https://example.com)."}])
    await orders.arun(Order(sku="lamp"), journal=journal, run_id="order-1")
    await orders.arun(Order(sku="lamp", count=20), journal=journal, run_id="order-2")
    await talk.arun(Say(text="Hello"), lm, journal=journal, run_id="talk-1", thread="ana")
    async with open_studio(orders, talk, journal=journal) as studio:
        yield studio


async def test_axe_finds_no_serious_fault(browser: Any, opened: OpenedStudio):
    paths = (
        *("/inbox", "/runs", "/runs/order-1", "/runs/order-2?step=1", "/runs/talk-1?tab=calls"),
        *("/runs/order-1/vs/order-2", "/graphs/orders", "/chat/talk/ana"),
    )
    faults: list[str] = []
    async with axe_page(browser) as page:
        await opened.show(page, "/runs")
        for path in paths:
            await page.goto(opened.url + path)
            faults += await find_faults(page, path)
    assert not faults, "\n".join(faults)


@pytest.mark.slow
async def test_axe_finds_no_serious_fault_in_dialogs_details_and_empty_states(
    browser: Any, opened: OpenedStudio
):
    faults: list[str] = []
    async with axe_page(browser) as page:
        await page.goto(opened.url)
        faults += await find_faults(page, "without a login")
        await opened.show(page, "/runs")
        for path in (
            *("/runs?q=nothing", "/runs?start=orders", "/runs/order-2?step=1&field=stock"),
            *("/runs/order-1?tab=raw", "/runs/nothing", "/graphs/orders?tab=problems"),
            *("/graphs/talk?tab=prompts", "/chat", "/chat/orders", "/team", "/nowhere"),
        ):
            await page.goto(opened.url + path)
            faults += await find_faults(page, path)
        for name in ("Fork…", "Compare…", "Replay"):
            await page.goto(f"{opened.url}/runs/order-1")
            await page.get_by_role("button", name=name).click()
            await page.get_by_role("dialog").wait_for()
            faults += await find_faults(page, name)
        await page.goto(f"{opened.url}/runs")
        await page.get_by_role("button", name="Keys").click()
        faults += await find_faults(page, "keys")
    assert not faults, "\n".join(faults)
