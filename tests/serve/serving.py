"""A real server on loopback for the tests of the API, and clients of it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import httpx
from pydantic import Field

from bae import Dep, Gate, Graph, Node, Tool, ToolCall, Tools
from bae.journal import Journal, MemoryJournal
from bae.serve import API, User, bearer, router
from bae.serve.server import listening

TOKEN = "a-token-of-a-test"
VERBS = frozenset(("read", "run", "answer", "edit", "admin"))
USERS = {TOKEN: User("ana"), "ben": User("ben"), "eve": User("eve", frozenset({"read"}))}


async def get_stock() -> int:
    return 12


class Order(Node):
    sku: str = Field(description="what is ordered", max_length=40)
    count: Annotated[int, Field(ge=1, le=100)] = 1

    async def __call__(self) -> Price | Approval:
        if self.count > 10:
            return Approval(count=self.count)
        return Price(euros=self.count * 2)


class Approval(Node):
    count: int
    stock: Annotated[int, Dep(get_stock)]
    approved: Annotated[bool, Gate("Sell so many?")] = Field(init=False)

    async def __call__(self) -> Price | Refusal:
        return Price(euros=self.count) if self.approved else Refusal(why="too many")


class Price(Node):
    euros: int

    async def __call__(self) -> None: ...


class Refusal(Node):
    why: str

    async def __call__(self) -> None: ...


orders = Graph(start=Order, end=(Price, Refusal), name="orders")

held: dict[str, asyncio.Event] = {}
"""What runs of `Slow` wait for, by name."""


class Slow(Node):
    name: str

    async def __call__(self) -> Price:
        await held.setdefault(self.name, asyncio.Event()).wait()
        return Price(euros=1)


slow = Graph(start=Slow, end=Price, name="slow")


class Question(Node):
    question: str

    async def __call__(self) -> Reply: ...


class Reply(Node):
    text: str

    async def __call__(self) -> None: ...


talk = Graph(start=Question, end=Reply, name="talk")


def orders_with(old: str, new: str) -> Graph[Any, Any]:
    """The graph of orders as it is after a change of its code."""
    module = sys.modules["changed_serving"] = ModuleType("changed_serving")
    exec(Path(__file__).read_text().replace(old, new), module.__dict__)
    return module.orders


class Ask(Node):
    async def __call__(self) -> Quantity: ...


class Quantity(Node):
    count: Annotated[int, Gate("How many?")] = Field(init=False)

    async def __call__(self) -> None: ...


quantities = Graph(start=Ask, end=Quantity, name="quantities")


def get_price(sku: str) -> int:
    """The price of a thing."""
    return len(sku)


class Advice(Node):
    calls: Annotated[list[ToolCall], Tools(get_price)]
    text: str

    async def __call__(self) -> None: ...


class Wish(Node):
    question: str

    async def __call__(self) -> Advice: ...


shop = Graph(start=Wish, end=Advice, name="shop")


def pay_back(euros: int) -> str:
    """Send money back."""
    return f"sent {euros}"


class Credit(Node):
    calls: Annotated[list[ToolCall], Tools(Tool(pay_back, approve=True))]
    text: str

    async def __call__(self) -> None: ...


class Complaint(Node):
    text: str

    async def __call__(self) -> Credit: ...


credits = Graph(start=Complaint, end=Credit, name="credits")


@dataclass
class Served:
    """A server that runs, and a client of it."""

    url: str
    api: API
    client: httpx.AsyncClient
    journal: Journal

    def ws(self) -> str:
        return self.url.replace("http", "ws", 1) + "/feed"

    async def get(self, path: str, **more: Any) -> Any:
        response = await self.client.get(path, **more)
        assert response.status_code == 200, response.text
        return response.json()

    async def post(self, path: str, body: Any = None, **more: Any) -> Any:
        response = await self.client.post(path, json={} if body is None else body, **more)
        assert response.status_code < 300, response.text
        return response.json()

    async def start(
        self, sku: str = "lamp", count: int = 1, *, wait: float = 10, **more: Any
    ) -> Any:
        body = {"start": {"sku": sku, "count": count}, **more}
        return await self.post(f"/graphs/orders/runs?wait={wait}", body)

    async def events(self, run_id: str, **more: Any) -> AsyncIterator[tuple[str, str, Any]]:
        """The server-sent events of a run: kind, id and data."""
        headers = {"accept": "text/event-stream", **more}
        path = f"/runs/{run_id}/records"
        async with self.client.stream("GET", path, headers=headers) as response:
            assert response.status_code == 200
            async for event in events_in(response):
                yield event


async def events_in(response: httpx.Response) -> AsyncIterator[tuple[str, str, Any]]:
    found: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            found[name] = value
        elif found:
            yield found.get("event", ""), found.get("id", ""), json.loads(found["data"])
            found = {}


@asynccontextmanager
async def serving(journal: Journal | None = None, **more: Any) -> AsyncGenerator[Served]:
    """An API over the graphs above, for the users above."""
    journal = MemoryJournal() if journal is None else journal
    more = {"auth": bearer(USERS), **more}
    graphs = more.pop("graphs", {"orders": orders, "slow": slow})
    api = router(graphs, journal=journal, **more)
    async with listening(api) as url:
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=20) as client:
            yield Served(url, api, client, journal)
