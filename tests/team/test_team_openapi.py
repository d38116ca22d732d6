"""The OpenAPI document of a team is true: requests that it allows never make the server fail, and
every response fits it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("starlette")
pytest.importorskip("httpx")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bae.journal import MemoryJournal
from bae.serve import bearer, router
from bae.team.endpoints import add_teams
from test_endpoints import serve_shop

schemathesis = pytest.importorskip("schemathesis")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
KNOWN = {"team": "shop", "task": "sub", "attempt": "1", "blocker": "1"}


def read_document() -> dict[str, Any]:
    api = router({}, journal=MemoryJournal(), auth=bearer("a-token"))
    api.endpoints = ()
    add_teams(api, {})
    return json.loads(api.document())


DOCUMENT = read_document()
OPERATIONS = [(path, method) for path, each in DOCUMENT["paths"].items() for method in each]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A team on loopback, in a thread of its own."""
    ready, found = threading.Event(), list[Any]()

    async def serve(folder: Path) -> None:
        stop = asyncio.Event()
        async with serve_shop(folder) as shop:
            found.extend((shop.url, asyncio.get_running_loop(), stop))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve(tmp_path_factory.mktemp("team"))))
    thread.start()
    assert ready.wait(20)
    where, loop, stop = found
    yield where
    loop.call_soon_threadsafe(stop.set)
    thread.join(20)


@pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=lambda each: each)
def test_no_request_that_the_document_allows_makes_the_server_fail(
    url: str, path: str, method: str
):
    operation = schemathesis.openapi.from_dict(DOCUMENT)[path][method]

    @settings(
        max_examples=8,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[*HealthCheck],
    )
    @given(case=operation.as_strategy(), is_known=st.booleans())
    def check(case: Any, is_known: bool) -> None:
        if is_known and case.path_parameters and method != "delete":
            case.path_parameters.update({n: KNOWN[n] for n in case.path_parameters})
        response = case.call(base_url=url, headers={"authorization": "Bearer ana"})
        assert response.status_code < 500, response.text
        case.validate_response(response, checks=CHECKS)

    check()
