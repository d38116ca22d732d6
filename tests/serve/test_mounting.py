"""The API inside of applications: below a prefix, behind a proxy, twice in one application."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from bae.journal import MemoryJournal
from bae.serve import API, bearer, router
from serving import TOKEN, USERS, orders, orders_with, slow

BODY = {"run_id": "order/1", "start": {"sku": "lamp"}}


def make_api(**graphs: Any) -> API:
    return router(graphs or {"orders": orders}, journal=MemoryJournal(), auth=bearer(USERS))


class Behind:
    """An application that knows its path at the proxy, which the proxy has removed."""

    def __init__(self, app: Starlette) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, "root_path": "/shop"}, receive, send)


@asynccontextmanager
async def client_of(app: Any, *apis: API, root: str = "") -> AsyncGenerator[httpx.AsyncClient]:
    """A client of an application, as uvicorn serves it with a root path."""
    async with AsyncExitStack() as opened:
        for api in apis:
            await opened.enter_async_context(api.open())
        yield await opened.enter_async_context(
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app, root_path=root),
                base_url="http://localhost",
                headers={"authorization": f"Bearer {TOKEN}"},
            )
        )


@pytest.mark.parametrize(
    ("mount", "sent", "root", "behind", "address"),
    [
        ("/bae", "/bae", "", False, "/bae"),
        ("/a/b é", "/a/b%20%C3%A9", "", False, "/a/b%20%C3%A9"),
        ("/bae", "/shop/bae", "/shop", False, "/shop/bae"),
        ("/bae", "/bae", "", True, "/shop/bae"),
    ],
    ids=["a prefix", "an escaped prefix", "a root path of the server", "a proxy removes a part"],
)
async def test_runs_are_found_below_any_prefix(
    mount: str, sent: str, root: str, behind: bool, address: str
):
    api = make_api()
    app: Any = Starlette(routes=[Mount(mount, app=api)])
    async with client_of(Behind(app) if behind else app, api, root=root) as client:
        made = await client.post(f"{sent}/graphs/orders/runs?wait=10", json=BODY)
        assert (made.status_code, made.json()["result"]) == (201, {"euros": 2})
        run = await client.get(f"{sent}/runs/order%2F1")
        assert run.json()["run_id"] == "order/1"
        document = (await client.get(f"{sent}/openapi.json")).json()
        assert document["servers"] == [{"url": address}]


async def test_two_routers_in_one_application_are_independent():
    first, second = make_api(), make_api(slow=slow)
    app = Starlette(routes=[Mount("/one", app=first), Mount("/two", app=second)])
    async with client_of(app, first, second) as client:
        await client.post("/one/graphs/orders/runs?wait=10", json=BODY)
        assert [run["run_id"] for run in (await client.get("/one/runs")).json()["runs"]] == [
            "order/1"
        ]
        assert (await client.get("/two/runs")).json()["runs"] == []
        missing = await client.post("/two/graphs/orders/runs", json=BODY)
        assert (missing.status_code, missing.json()["type"]) == (404, "bae-serve-no-graph")


async def test_starting_a_run_before_the_api_is_open_is_refused():
    app = Starlette(routes=[Mount("/bae", app=make_api())])
    async with client_of(app) as client:
        refused = await client.post("/bae/graphs/orders/runs", json=BODY)
        assert (refused.status_code, refused.json()["type"]) == (500, "bae-serve-closed")
        assert "lifespan=api.open" in refused.json()["fix"]


async def test_runs_of_a_graph_are_found_by_its_served_name():
    api = make_api(shop=orders)
    app = Starlette(routes=[Mount("/bae", app=api)])
    async with client_of(app, api) as client:
        body = {**BODY, "thread": "ana"}
        made = await client.post("/bae/graphs/shop/runs?wait=10", json=body)
        assert made.json()["graph"] == "orders"
        for name in ("shop", "orders"):
            runs = (await client.get(f"/bae/runs?graph={name}")).json()["runs"]
            assert [run["run_id"] for run in runs] == ["order/1"]
            assert (await client.get(f"/bae/run-counts?graph={name}")).json()["total"] == 1
            threads = (await client.get(f"/bae/threads?graph={name}")).json()["threads"]
            assert [thread["thread"] for thread in threads] == ["ana"]
        assert (await client.get("/bae/runs?graph=slow")).json()["runs"] == []


def test_two_graphs_with_the_same_name_are_refused():
    with pytest.raises(ValueError, match="both graphs are named 'orders'"):
        make_api(one=orders, two=orders_with("count * 2", "count * 3"))
    assert len(make_api(one=orders, two=orders).graphs) == 2
