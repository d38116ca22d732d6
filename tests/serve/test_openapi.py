"""The OpenAPI document is true: what it describes is accepted, and nothing that a client sends
makes the server fail."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from bae import Graph, Node
from bae.journal import MemoryJournal
from bae.serve import API, public, router
from bae.serve.server import listening
from bae.serve.table import TABLE
from bae.testing import ScriptedLM
from serving import Price, orders, talk

schemathesis = pytest.importorskip("schemathesis")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
EXAMPLES = 15


class Background:
    """An API on loopback in a thread of its own, with a run that has ended and one that waits."""

    def __init__(self) -> None:
        self.url = ""
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        api = api_of(MemoryJournal())
        async with listening(api) as self.url:
            self._ready.set()
            await self._stop.wait()

    def __enter__(self) -> Background:
        self._thread.start()
        assert self._ready.wait(20)
        for run_id, count in (("ended", 1), ("asks", 20)):
            body = {"run_id": run_id, "start": {"sku": "lamp", "count": count}}
            made = requests.post(f"{self.url}/graphs/orders/runs?wait=10", json=body, timeout=20)
            assert made.status_code == 201
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)


def api_of(journal: MemoryJournal) -> API:
    graphs = {"orders": orders, "talk/it": talk}
    return router(graphs, journal=journal, auth=public(), lm=ScriptedLM([]))


@pytest.fixture(scope="module")
def background() -> Iterator[Background]:
    with Background() as served:
        yield served


DOCUMENT: dict[str, Any] = json.loads(api_of(MemoryJournal()).document())
OPERATIONS = [(path, method) for path, each in DOCUMENT["paths"].items() for method in each]


def test_the_document_has_every_endpoint_and_the_classes_of_each_graph():
    described = {(method.upper(), path) for path, method in OPERATIONS}
    for endpoint in TABLE:
        paths = [endpoint.path]
        if endpoint.path.startswith("/graphs/{graph}/runs"):
            paths = [endpoint.path.replace("{graph}", name) for name in ("orders", "talk%2Fit")]
        assert described >= {(endpoint.method, path) for path in paths}
    schemas = DOCUMENT["components"]["schemas"]
    assert schemas["orders_start"]["properties"]["count"]["maximum"] == 100
    assert schemas["orders_Price"]["properties"]["euros"]["type"] == "integer"
    assert Price.__name__ in schemas["orders_result"]["properties"]["end"]["enum"]


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


class Walk(Node):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]

    async def __call__(self) -> None: ...


def test_a_program_that_writes_clients_finds_every_schema_under_a_name_of_its_own():
    walk = Graph(start=Walk, end=Walk, name="walk")
    graphs = {"a b": walk, "a-b": walk, "東京": walk, "京都": orders}
    api = router(graphs, journal=MemoryJournal(), auth=public())
    document = json.loads(api.document())
    schemas = document["components"]["schemas"]
    assert all(re.fullmatch(r"[\w.-]+", name, re.ASCII) for name in schemas)
    titles = [each.get("title", name) for name, each in schemas.items()]
    assert len(titles) == len({*titles})
    operations = [
        each["operationId"] for path in document["paths"].values() for each in path.values()
    ]
    assert len(operations) == len({*operations})
    known = {f"#/components/schemas/{name}" for name in schemas}
    assert {*re.findall(r'"(#/[^"]+)"', json.dumps(document))} <= known
    assert "#/$defs" not in json.dumps(document)


KNOWN = {"graph": "orders", "step": "0", "call": "0", "field": "sku"}


def known(case: Any, run_id: str | None) -> Any:
    """The case for a run that is there, with the parts of its path that are, so that not all of
    them are unknown."""
    if run_id is not None:
        for given_to, values in (
            (case.path_parameters, KNOWN | {"run": run_id}),
            (case.query, KNOWN),
        ):
            for name in (given_to or {}).keys() & values.keys():
                given_to[name] = values[name]
    return case


@pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=lambda each: each)
def test_nothing_that_the_document_allows_makes_the_server_fail(
    background: Background, path: str, method: str
):
    operation = schemathesis.openapi.from_dict(DOCUMENT)[path][method]
    runs = st.sampled_from([None, "ended", "asks"]) if method != "delete" else st.none()
    streams = st.booleans() if path.endswith("/records") else st.just(False)

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[*HealthCheck],
    )
    @given(case=operation.as_strategy(), run_id=runs, stream=streams)
    def check(case: Any, run_id: str | None, stream: bool) -> None:
        headers = {"accept": "text/event-stream"} if stream and run_id else None
        response = known(case, run_id).call(base_url=background.url, headers=headers)
        assert response.status_code < 500, response.text
        case.validate_response(response, checks=CHECKS)

    check()
