"""The OpenAPI document is true: requests that it describes are accepted, and no request makes the
server fail."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from copy import deepcopy
from itertools import count
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
from bae.testing import Asked, Call, ScriptedLM
from file_parts import DOT
from serving import Credit, Price, Reply, credits, orders, serving, talk

schemathesis = pytest.importorskip("schemathesis")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
EXAMPLES = 5


class Background:
    """An API on loopback in a thread of its own, with a finished run, a waiting run, a run that has
    asked an LLM, and a file."""

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
        self.start("orders", "ended", "thread", sku="lamp", count=1)
        self.start("orders", "asks", sku="lamp", count=20)
        self.start("talk%2Fit", "told", question="Weather?")
        octets = {"content-type": "application/octet-stream"}
        self.post("/files", data=DOT.data, headers=octets)
        return self

    def post(self, path: str, **more: Any) -> Any:
        made = requests.post(f"{self.url}{path}", timeout=20, **more)
        assert made.status_code in (200, 201), made.text
        return made.json()

    def start(self, graph: str, run_id: str, thread: str | None = None, **start: Any) -> Any:
        body = {"run_id": run_id, "thread": thread, "start": start}
        return self.post(f"/graphs/{graph}/runs?wait=10", json=body)

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)


def api_of(journal: MemoryJournal) -> API:
    graphs = {"orders": orders, "talk/it": talk, "credits": credits}
    lm = ScriptedLM({Reply: lambda asked: {"text": "Dry."}, Credit: pay})
    return router(graphs, journal=journal, auth=public(), lm=lm)


def pay(asked: Asked) -> Any:
    return {"text": "Paid."} if asked.calls else [Call("pay_back", euros=20)]


@pytest.fixture(scope="module")
def background() -> Iterator[Background]:
    with Background() as served:
        yield served


DOCUMENT: dict[str, Any] = json.loads(api_of(MemoryJournal()).document())
OPERATIONS = [
    (path, method) for path, operations in DOCUMENT["paths"].items() for method in operations
]


def test_the_openapi_document_has_every_endpoint_and_node_class():
    described = {(method.upper(), path) for path, method in OPERATIONS}
    for endpoint in TABLE:
        paths = [endpoint.path]
        if endpoint.path.startswith("/graphs/{graph}/runs"):
            paths = [
                endpoint.path.replace("{graph}", name)
                for name in ("orders", "talk%2Fit", "credits")
            ]
        assert described >= {(endpoint.method, path) for path in paths}
    schemas = DOCUMENT["components"]["schemas"]
    assert schemas["orders_start"]["properties"]["count"]["maximum"] == 100
    assert schemas["orders_start"]["properties"]["count"]["default"] == 1
    assert schemas["orders_Price"]["properties"]["euros"]["type"] == "integer"
    assert Price.__name__ in schemas["orders_result"]["properties"]["end"]["enum"]


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


class Walk(Node):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]

    async def __call__(self) -> None: ...


def test_every_openapi_schema_has_a_unique_name():
    walk = Graph(start=Walk, end=Walk, name="walk")
    graphs = {"a b": walk, "a-b": walk, "東京": walk, "京都": orders}
    api = router(graphs, journal=MemoryJournal(), auth=public())
    document = json.loads(api.document())
    schemas = document["components"]["schemas"]
    assert all(re.fullmatch(r"[\w.-]+", name, re.ASCII) for name in schemas)
    titles = [schema.get("title", name) for name, schema in schemas.items()]
    assert len(titles) == len({*titles})
    operations = [
        operation["operationId"]
        for path in document["paths"].values()
        for operation in path.values()
    ]
    assert len(operations) == len({*operations})
    known = {f"#/components/schemas/{name}" for name in schemas}
    assert {*re.findall(r'"(#/[^"]+)"', json.dumps(document))} <= known
    assert "#/$defs" not in json.dumps(document)


async def test_an_unknown_tag_of_a_union_is_reported_as_a_single_error():
    walk = Graph(start=Walk, end=Walk, name="walk")
    async with serving(graphs={"walk": walk}) as served:
        refused = await served.client.post(
            "/graphs/walk/runs", json={"start": {"pet": {"kind": "cow"}}}
        )
        assert [error["loc"] for error in refused.json()["errors"]] == [["body", "start", "pet"]]


KNOWN = {
    "graph": "credits",
    "step": "0",
    "call": "0",
    "field": "sku",
    "thread": "thread",
    "hash": DOT.hash,
    "a": "ended",
    "b": "asks",
}
"""Parts of paths and queries that there are."""
MESSAGE = {"id": "one", "role": "user", "content": "It is wet."}
BODIES: dict[str, dict[str, Any]] = {
    "/graphs/orders/runs": {"start": {"sku": "lamp"}},
    "/graphs/talk%2Fit/runs": {"start": {"question": "Weather?"}},
    "/graphs/credits/runs": {"start": {"text": "It is wet."}},
    "/runs/{run}/forks": {"at": 0},
    "/runs/{run}/answers": {"gate": "1:Approval.approved", "value": True},
    "/runs/{run}/approvals/revoke": {"tool": "pay_back"},
    "/ag-ui/{graph}": {"threadId": "talk", "runId": "turn", "messages": [MESSAGE]},
}
"""Bodies that are accepted."""
NUMBERS = count()


def make_unused(background: Background, method: str, path: str) -> dict[str, str]:
    """Something new where a request that is accepted can be so only once."""
    name = f"new-{next(NUMBERS)}"
    match method, path:
        case _, "/threads/{thread}/turns/{run}":
            background.start("orders", name, name, sku="lamp")
        case "delete", "/runs/{run}" | "/threads/{thread}":
            background.start("orders", name, name, sku="lamp")
        case "post", "/runs/{run}/answers":
            background.start("orders", name, sku="lamp", count=20)
        case "post", "/runs/{run}/approvals/revoke":
            gate = background.start("credits", name, text="Wet.")["waiting"][0]["gate"]
            answer = {"gate": gate, "decision": "approve", "scope": "run"}
            background.post(f"/runs/{name}/answers", json=answer)
        case _:
            return {}
    return {"run": name, "thread": name}


def known(case: Any, run_id: str, new: dict[str, str], *, accepted: bool) -> Any:
    """The case for things that are there, so that not all of it is unknown, or with all that it
    takes to be accepted."""
    names = KNOWN | {"run": run_id} | new
    if accepted:
        needed = {"field", "a", "b"} & {*(case.query or {})}
        case.query = {name: case.query[name] for name in needed}
        if case.path in BODIES and case.method.upper() == "POST":
            case.body = deepcopy(BODIES[case.path])
    for given_to in (case.path_parameters, case.query):
        for name in (given_to or {}).keys() & names.keys():
            given_to[name] = names[name]
    return case


@pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=lambda value: value)
def test_no_request_allowed_by_the_document_makes_the_server_fail(
    background: Background, path: str, method: str
):
    operation = schemathesis.openapi.from_dict(DOCUMENT)[path][method]
    runs = st.sampled_from(["ended", "asks", "told"] if "{call}" not in path else ["told"])
    streams = st.booleans() if path.endswith("/records") else st.just(False)
    seen: set[int] = set()

    def check(how: str | None) -> None:
        @settings(
            max_examples=EXAMPLES,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=[*HealthCheck],
        )
        @given(case=operation.as_strategy(), run_id=runs, stream=streams)
        def ask(case: Any, run_id: str, stream: bool) -> None:
            if how is not None:
                new = make_unused(background, method, path)
                case = known(case, run_id, new, accepted=how == "accepted")
            headers = {"accept": "text/event-stream"} if stream and how else None
            response = case.call(base_url=background.url, headers=headers)
            assert response.status_code < 500, response.text
            case.validate_response(response, checks=CHECKS)
            seen.add(response.status_code)

        ask()

    for how in (None, "known", "accepted"):
        check(how)
    assert any(status < 300 for status in seen), seen
