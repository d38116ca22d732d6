"""Access rights: every endpoint and every feed, for a user with the right, a user without it, a
user who may not see the run, and without a user."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from bae import BaeLMError
from bae.journal import MemoryJournal, RunInfo
from bae.serve import User, bearer, public, router
from bae.serve.endpoints import Endpoint, Form
from bae.serve.live import FEEDS
from bae.serve.table import TABLE
from file_parts import DOT
from serving import TOKEN, USERS, VERBS, Order, Served, orders, serving

MARK = "what-only-ana-may-see"
MISSING = f"sha256:{'0' * 64}"
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/graphs/{graph}/runs"): {
        "run_id": "asks",
        "start": {"sku": MARK, "count": 20},
        "thread": "asks-t",
    },
    ("POST", "/runs/{run}/forks"): {"at": 0, "go_on": False},
    ("POST", "/runs/{run}/approvals/revoke"): {"tool": "refund"},
    ("POST", "/runs/{run}/answers"): {"gate": "1:Approval.approved", "value": True},
    ("POST", "/ag-ui/{graph}"): {"threadId": "asks-t", "runId": "shows", "messages": []},
}
"""What is sent to endpoints that need a body."""
QUERIES = {"/runs/{run}/steps/{step}/why": "?field=sku", "/compare": "?a=asks&b=asks"}
SHOWS_VALUES = {"/runs", "/runs/{run}/records", "/runs/{run}/steps", "/runs/{run}/steps/{step}/why"}
ROWS = [pytest.param(endpoint, id=f"{endpoint.method} {endpoint.path}") for endpoint in TABLE]


def path_of(endpoint: Endpoint) -> str:
    """Where an endpoint is about what ana has. A new part of a path needs a value here, and so the
    tests below."""
    path = endpoint.path.format(
        graph="orders", run="asks", step="0", call="0", thread="asks-t", hash=DOT.hash
    )
    return path + QUERIES.get(endpoint.path, "")


async def ask(
    client: httpx.AsyncClient,
    endpoint: Endpoint,
    token: str | None,
    run: str = "asks",
    method: str = "",
    accept: str = "*/*",
) -> httpx.Response:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    headers["accept"] = accept
    client.headers.pop("authorization", None)
    body = BODIES.get((endpoint.method, endpoint.path), {})
    more: dict[str, Any] = {"json": body} if endpoint.method == "POST" else {}
    if endpoint.takes_bytes:
        more = {"content": DOT.data}
        headers["content-type"] = "application/octet-stream"
    path = path_of(endpoint).replace("asks", run)
    if run != "asks":
        path = path.replace(DOT.hash, MISSING)
    return await client.request(method or endpoint.method, path, headers=headers, **more)


class Asked(MemoryJournal):
    """Notes the names of its reading methods that are used."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name in READS:
            self.asked.append(name)
        return super().__getattribute__(name)


READS = {name for name in dir(MemoryJournal) if not name.startswith("_")} - {"secrets", "version"}
WAYS = {"GET": [("GET", "*/*"), ("GET", "text/event-stream"), ("HEAD", "*/*")]}
"""How an endpoint may be asked; any other by its own method."""


async def answers(served: Served, endpoint: Endpoint, run: str) -> list[Any]:
    """The responses to ben, in every way, and the reads of the journal that each takes."""
    journal: Any = served.journal
    found: list[Any] = []
    for method, accept in WAYS.get(endpoint.method, [(endpoint.method, "*/*")]):
        journal.asked.clear()
        told = await ask(served.client, endpoint, "ben", run, method, accept)
        text = told.text.replace(run, "RUN").replace(MISSING, DOT.hash)
        headers = {name: value for name, value in told.headers.items() if name != "date"}
        found.append((told.status_code, text, headers, [*journal.asked]))
    return found


def only_of_ana(user: User, run: RunInfo) -> bool:
    return user.name == "ana"


@pytest.mark.parametrize("visible", [only_of_ana, "own"], ids=["by a function", "own"])
@pytest.mark.parametrize("endpoint", ROWS)
async def test_every_endpoint_checks_the_rights_and_visible_runs_of_a_user(
    endpoint: Endpoint, visible: Any
):
    others = VERBS - {endpoint.verb, *endpoint.or_verbs}
    users = {**USERS, "other": User("other", frozenset(others))}  # type: ignore[arg-type]
    async with serving(Asked(), auth=bearer(users), visible=visible, recover=False) as served:
        await served.start(MARK, 20, run_id="asks", thread="asks-t", metadata={"about": MARK})
        (upload,) = (row for row in TABLE if row.takes_bytes)
        await ask(served.client, upload, TOKEN)
        if endpoint.verb is None:
            assert endpoint.path == "/health"
            assert (await ask(served.client, endpoint, None)).status_code == 200
            return
        nobody = await ask(served.client, endpoint, None)
        assert (nobody.status_code, nobody.json()["type"]) == (401, "bae-serve-auth")
        wrong = await ask(served.client, endpoint, "wrong")
        assert wrong.status_code == 401
        may_not = await ask(served.client, endpoint, "other")
        assert (may_not.status_code, may_not.json()["type"]) == (403, "bae-serve-verb")
        stranger = await ask(served.client, endpoint, "ben")
        assert MARK not in stranger.text
        body = BODIES.get((endpoint.method, endpoint.path), {})
        names_thread = "threadId" in body or "thread" in body
        is_named = "asks" in path_of(endpoint) or DOT.hash in path_of(endpoint)
        if is_named or names_thread:
            hidden = stranger.json()
            assert stranger.status_code == 404
            assert hidden["type"] in ("bae-run-unknown", "bae-serve-path", "bae-serve-file")
            if not names_thread:  # nobody can tell which, also by the time that it takes
                hidden = await answers(served, endpoint, "asks")
                assert hidden == await answers(served, endpoint, "none")
                assert {status for status, *_ in hidden} == {404}
        elif endpoint.takes_bytes:  # each user has files of their own
            assert stranger.status_code == 201
        else:  # lists, and graphs
            assert (endpoint.method, stranger.status_code) == ("GET", 200)
            assert '"asks"' not in stranger.text
        assert (await served.journal.read("asks")).info.status == "waiting"
        allowed = await ask(served.client, endpoint, TOKEN)
        assert allowed.status_code in (200, 201, 202, 204, 404)
        if allowed.status_code == 404:  # it has no LM calls, and no yes
            assert endpoint.path.endswith(("/calls/{call}", "/approvals/revoke"))
        elif endpoint.path in SHOWS_VALUES:
            assert MARK in allowed.text  # so that this test would see it


FEED_NAMES = {"run": "run/asks", "runs": "runs"}


@pytest.mark.parametrize("kind", FEEDS)
async def test_a_feed_has_only_runs_visible_to_the_user(kind: str):
    async with serving(visible=only_of_ana) as served, asyncio.timeout(20):
        await served.start(MARK, count=20, run_id="asks")
        seen: dict[str, list[Any]] = {}
        absent: dict[str, Any] = {}
        for token in (TOKEN, "ben"):
            seen[token] = []
            async with connect(served.ws()) as socket:
                await socket.send(json.dumps({"token": token}))
                await socket.send(json.dumps({"sub": 1, "feed": FEED_NAMES[kind]}))
                await socket.send(json.dumps({"sub": 2, "feed": "run/none"}))
                while (message := json.loads(await socket.recv()))["sub"] != 2:
                    seen[token].append(message)
                absent[token] = message
                if token == TOKEN:
                    while not any(
                        message["items"] for message in seen[token] if "items" in message
                    ):
                        seen[token].append(json.loads(await socket.recv()))
        assert not any(message.get("items") for message in seen["ben"])
        assert MARK not in json.dumps(seen["ben"])
        if kind == "run":
            assert seen["ben"][0]["type"] == "bae-run-unknown"
            assert {**absent["ben"], "sub": 1} == json.loads(
                json.dumps(seen["ben"][0]).replace("asks", "none")
            )


async def test_a_web_socket_without_a_token_is_closed():
    async with serving() as served, asyncio.timeout(20):
        for message in ({"token": "wrong"}, {"sub": 1, "feed": "runs"}):
            async with connect(served.ws()) as socket:
                await socket.send(json.dumps(message))
                await socket.wait_closed()
                assert socket.close_code == 4401
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with connect(served.ws(), additional_headers=headers) as socket:
            await socket.send(json.dumps({"sub": 1, "feed": "runs"}))
            assert json.loads(await socket.recv())["sub"] == 1


FOREIGN = [
    ({"host": "evil.example"}, "bae-serve-host"),
    ({"origin": "http://evil.example"}, "bae-serve-origin"),
    ({"origin": "http://127.0.0.1:1"}, "bae-serve-origin"),
    ({"origin": "null"}, "bae-serve-origin"),
    ({"sec-fetch-site": "cross-site"}, "bae-serve-origin"),
    ({"sec-fetch-site": "same-site"}, "bae-serve-origin"),
]


@pytest.mark.parametrize(("headers", "code"), FOREIGN, ids=lambda value: str(value)[:40])
async def test_a_page_of_another_site_is_refused_by_http_and_web_socket(headers, code):
    async with serving(auth=public()) as served, asyncio.timeout(20):
        refused = await served.client.get("/runs", headers=headers)
        assert (refused.status_code, refused.json()["type"]) == (403, code)
        address = served.ws()
        if "host" in headers:  # the name is in the address, and leads to this server
            address = address.replace("127.0.0.1", headers["host"])
        port = int(served.url.rpartition(":")[2])
        more = {"additional_headers": {k: v for k, v in headers.items() if k != "host"}}
        async with connect(address, host="127.0.0.1", port=port, **more) as socket:
            await socket.wait_closed()
            assert socket.close_code == 1008
        own = {"origin": served.url, "sec-fetch-site": "same-origin"}
        assert (await served.client.get("/runs", headers=own)).status_code == 200


async def test_a_configured_origin_may_use_the_api():
    async with serving(auth=public(), origins=["https://shop.example"]) as served:
        headers = {"origin": "https://shop.example", "sec-fetch-site": "cross-site"}
        response = await served.client.get("/runs", headers=headers)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == "https://shop.example"
        assert "origin" in response.headers["vary"]
        asks = {**headers, "access-control-request-method": "POST"}
        before = await served.client.options("/graphs/orders/runs", headers=asks)
        assert before.status_code == 204
        assert "content-type" in before.headers["access-control-allow-headers"]
        other = {"origin": "https://evil.example", "access-control-request-method": "POST"}
        refused = await served.client.options("/graphs/orders/runs", headers=other)
        assert refused.status_code == 403
        assert "access-control-allow-origin" not in refused.headers


async def test_write_requests_must_be_json_of_limited_size():
    async with serving() as served:
        text = await served.client.post(
            "/graphs/orders/runs", content="{}", headers={"content-type": "text/plain"}
        )
        assert (text.status_code, text.json()["type"]) == (415, "bae-serve-media")
        large = await served.client.post("/graphs/orders/runs", json={"start": "x" * (1 << 21)})
        assert (large.status_code, large.json()["type"]) == (413, "bae-serve-large")
        broken = await served.client.post(
            "/graphs/orders/runs", content="{", headers={"content-type": "application/json"}
        )
        assert (broken.status_code, broken.json()["type"]) == (400, "bae-serve-json")
        put = await served.client.put("/runs", json={})
        assert (put.status_code, put.headers["allow"]) == (405, "GET")
        vast = await served.client.post(
            "/graphs/orders/runs",
            content='{"start": {"sku": "x"}, "metadata": {"a": 1e999}}',
            headers={"content-type": "application/json"},
        )
        assert (vast.status_code, vast.json()["type"]) == (400, "bae-serve-json")
        assert "finite" in vast.json()["fix"]


WRONG: list[tuple[str, str, dict[str, Any], list[str]]] = [
    ("POST", "/graphs/orders/runs", {"json": {"run_id": "last", "start": {}}}, ["body", "run_id"]),
    ("POST", "/graphs/orders/runs", {"json": {"run_id": "a\n", "start": {}}}, ["body", "run_id"]),
    ("POST", "/graphs/orders/runs", {"json": {"thread": " ", "start": {}}}, ["body", "thread"]),
    ("POST", "/runs/asks/forks", {"json": {"at": 7}}, ["body", "at"]),
    ("POST", "/runs/asks/forks", {"json": {"at": 0, "run_id": "\t"}}, ["body", "run_id"]),
    ("POST", "/runs/asks/forks", {"json": {"at": 0, "changed": {"x": 1}}}, ["body", "changed"]),
    ("POST", "/runs/asks/answers", {"json": {"gate": ""}}, ["body", "gate"]),
    ("POST", "/runs/held/resume", {"json": {"given": {"Slow.other": "x"}}}, ["body", "given"]),
    ("GET", "/runs?limit=1&limit=2", {}, ["query", "limit"]),
    ("GET", "/runs/asks/steps/0/why", {}, ["query", "field"]),
    (
        "GET",
        "/runs/asks/records",
        {"headers": {"accept": "text/event-stream", "last-event-id": "x"}},
        ["header", "last-event-id"],
    ),
]


async def test_invalid_input_is_refused_with_its_place_and_a_fix():
    async with serving() as served:
        await served.start(MARK, 20, run_id="asks", thread="asks-t")
        await served.post("/graphs/slow/runs", {"run_id": "held", "start": {"name": "bad"}})
        await served.post("/runs/held/cancel")
        asked: list[tuple[str, str, dict[str, Any], list[str]]] = [*WRONG]
        for endpoint in TABLE:  # all of them take nothing that they do not name
            path, _, _ = path_of(endpoint).partition("?")
            body = {"json": {}} if endpoint.method == "POST" and not endpoint.takes_bytes else {}
            if endpoint.takes_bytes:
                body = {"headers": {"content-type": "application/octet-stream"}}
            asked.append((endpoint.method, f"{path}?price=1", body, ["query"]))
            if endpoint.body is not None and issubclass(endpoint.body, Form):
                asked.append((endpoint.method, path, {"json": {"price": 1}}, ["body"]))
        for method, path, more, loc in asked:
            refused = await served.client.request(method, path, **more)
            problem = refused.json()
            assert (refused.status_code, problem["status"]) == (422, 422), (method, path)
            assert refused.headers["content-type"] == "application/problem+json"
            assert problem["errors"][0]["loc"][: len(loc)] == loc, (method, path, problem)
            assert problem["fix"], (method, path, problem)
        assert len((await served.get("/runs"))["runs"]) == 2


async def test_a_name_with_a_nul_character_is_refused():
    async with serving() as served, asyncio.timeout(20):
        for query in ("graph", "thread", "before", "q", "meta.page", "meta.%00"):
            refused = await served.client.get(f"/runs?{query}=a%00")
            assert (refused.status_code, refused.json()["type"]) == (422, "bae-serve-input"), query
        for path in ("/runs/%00", "/threads/a%00", "/runs/%00/records", "/graphs/%00"):
            assert (await served.client.get(path)).status_code == 404
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with connect(served.ws(), additional_headers=headers) as socket:
            await socket.send(json.dumps({"sub": 1, "feed": "run/%00"}))
            refused = json.loads(await socket.recv())
            assert (refused["end"], refused["status"]) == ("refused", 404)


async def test_hosts_and_origins_are_compared_as_browsers_send_them():
    async with serving(auth=public(), hosts=["Shop.Example"], origins=["http://Mine"]) as served:
        for host, status in (("shop.example:8800", 200), ("SHOP.example", 200), ("other", 403)):
            headers = {"host": host, "origin": "http://mine", "sec-fetch-site": "cross-site"}
            assert (await served.client.get("/runs", headers=headers)).status_code == status
    for wrong in ("shop.example", "https://shop.example/", "https://shop.example/page", "*", ""):
        with pytest.raises(ValueError, match="port"):
            router(orders, journal=MemoryJournal(), auth=public(), origins=[wrong])


def test_serving_without_auth_is_refused():
    journal = MemoryJournal()
    with pytest.raises(TypeError, match="auth"):
        router(orders, journal=journal)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"bearer\(token\)"):
        router(orders, journal=journal, auth=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="secrets"):
        router(orders, journal=MemoryJournal(secrets=True), auth=public())
    for token in ("", "  ", "schön"):
        with pytest.raises(ValueError, match="token"):
            bearer(token)


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ({"visible": "all"}, '"own"'),
        ({"at_once": 0}, "at least one run"),
        ({"max_iters": -1}, "no limit"),
        ({"hosts": "shop.example"}, r"hosts=\['shop.example'\]"),
        ({"origins": "https://shop.example"}, "give a list"),
        ({"lm": "nope"}, "no LM named 'nope'"),
        ({"lm": 5}, "no LM"),
        ({"graphs": [orders]}, "by their names"),
        ({"graphs": {"orders": Order}}, "give a Graph"),
        ({"graphs": {" ": orders}}, "can be typed"),
    ],
    ids=str,
)
def test_an_impossible_option_is_refused_before_the_first_request(option: Any, why: str):
    options = {"journal": MemoryJournal(), "auth": public(), "graphs": orders, **option}
    with pytest.raises((TypeError, ValueError, BaeLMError), match=why):
        router(**options)
