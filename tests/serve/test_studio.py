"""The studio: its page, its logins, and its data for the page."""

from __future__ import annotations

import asyncio
import gzip
import json
import sqlite3
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from bae import BaeError
from bae.journal import SQLiteJournal
from bae.serve.studio_login import LOGIN_SECONDS, Logins
from bae.serve.studio_page import StudioPage
from studio_pages import SCRIPT, SCRIPT_TOKEN, OpenStudio, open_studio

# The page


@pytest.mark.parametrize("path", ["/", "/inbox", "/runs/r1?tab=graph", "/chat/a%2Fb", "/team/x.y"])
async def test_every_path_without_a_file_serves_the_page(path: str, tmp_path: Path):
    async with open_studio(tmp_path) as studio:
        response = await studio.client.get(path)
    assert (response.status_code, response.headers["content-type"]) == (
        200,
        "text/html; charset=utf-8",
    )
    assert "<title>bae studio" in response.text
    assert response.headers["cache-control"] == "no-cache"


async def test_the_page_may_load_and_connect_to_nothing_but_its_own_origin(tmp_path: Path):
    async with open_studio(tmp_path) as studio:
        found = (await studio.client.get("/")).headers
    policy = dict(
        directive.strip().split(" ", 1) for directive in found["content-security-policy"].split(";")
    )
    host = studio.url.removeprefix("http://")
    assert policy.pop("connect-src") == f"'self' ws://{host} wss://{host}"
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data: blob:",
        "font-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
    }
    assert found["x-content-type-options"] == "nosniff"
    assert found["referrer-policy"] == "no-referrer"
    assert found["cross-origin-opener-policy"] == "same-origin"
    assert "set-cookie" not in found


async def test_assets_of_the_page_are_compressed_and_cached_forever(
    tmp_path: Path,
):
    async with open_studio(tmp_path) as studio:
        path, get = "/assets/index-1a.js", studio.client.get
        packed = await get(path, headers={"accept-encoding": "br, gzip"})
        plain = await get(path, headers={"accept-encoding": "gzip;q=0, identity"})
        again = await get(path, headers={"if-none-match": f'"x", W/{packed.headers["etag"]}'})
        async with studio.client.stream("GET", path) as response:
            raw = b"".join([chunk async for chunk in response.aiter_raw()])
        icon = await get("/icon.svg")
        gone = await get("/assets/index-0.js")
    assert packed.text == plain.text == SCRIPT
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(raw).decode() == SCRIPT
    assert "content-encoding" not in plain.headers
    assert packed.headers["etag"] != plain.headers["etag"]
    assert packed.headers["vary"] == "accept-encoding"
    assert packed.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "immutable" in packed.headers["cache-control"]
    assert (again.status_code, again.content) == (304, b"")
    assert icon.headers["content-type"] == "image/svg+xml"
    assert icon.headers["cache-control"] == "no-cache"
    assert (gone.status_code, "immutable" in gone.headers.get("cache-control", "")) == (404, False)


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/assets/../../secret.txt",
        "/assets/%2e%2e/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "//secret.txt",
        "/assets//etc/passwd",
        "/linked.txt",
        "/notes.md",
        "/index.html%00.svg",
        "/.\\secret.txt",
    ],
)
async def test_no_path_escapes_the_folder_of_the_page(path: str, tmp_path: Path):
    async with open_studio(tmp_path) as studio:
        host, port = studio.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
        answer = (await reader.read()).decode()
        writer.close()
    assert "beside the page" not in answer
    assert "root:" not in answer
    assert "no file of a page" not in answer
    assert answer.startswith(("HTTP/1.1 404", "HTTP/1.1 200", "HTTP/1.1 400"))
    if " 200 " in answer.partition("\r\n")[0]:
        assert "<title>bae studio" in answer


async def test_the_page_accepts_only_get_and_head_requests(tmp_path: Path):
    async with open_studio(tmp_path) as studio:
        sent = await studio.client.post("/inbox", json={})
        head = await studio.client.head("/")
        below = await studio.client.get("/api/none", headers=await studio.headers())
    assert (sent.status_code, sent.headers["allow"]) == (405, "GET, HEAD")
    assert (head.status_code, head.content) == (200, b"")
    assert (below.status_code, below.json()["type"]) == (404, "bae-serve-path")


def test_an_installation_without_the_page_explains_how_to_get_it(tmp_path: Path):
    with pytest.raises(BaeError) as caught:
        StudioPage(tmp_path)
    assert caught.value.code == "bae-studio-page"
    assert "npm run build" in (caught.value.fix or "")


# Other sites

FOREIGN = [
    {"origin": "http://127.0.0.1:1"},
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
    {"host": "evil.example"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=lambda headers_: str(headers_)[:60])
async def test_requests_of_another_site_are_refused_everywhere(
    headers: dict[str, str], tmp_path: Path
):
    async with open_studio(tmp_path) as studio, asyncio.timeout(20):
        known = await studio.headers()
        link = studio.studio.logins.make_link_token()
        for path in ("/", "/runs/r1", "/assets/index-1a.js"):
            page = await studio.client.get(path, headers=headers)
            assert page.status_code == 403, path
            assert "console" not in page.text
            assert page.headers["x-content-type-options"] == "nosniff"
        api = await studio.client.get("/api/studio", headers={**known, **headers})
        assert api.status_code == 403
        login = await studio.log_in(link, **headers)
        assert login.status_code == 403
        address, more = studio.ws, {k: v for k, v in headers.items() if k != "host"}
        if "host" in headers:
            address = address.replace("127.0.0.1", headers["host"])
        port = int(studio.url.rpartition(":")[2])
        async with connect(
            address, host="127.0.0.1", port=port, additional_headers={**known, **more}
        ) as socket:
            await socket.wait_closed()
            assert socket.close_code == 1008
        own = {"origin": studio.url, "sec-fetch-site": "same-origin"}
        assert (await studio.log_in(link, **own)).status_code == 200  # it was not used up


async def test_a_link_on_another_site_opens_the_page_without_data(tmp_path: Path):
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    headers["sec-fetch-dest"] = "document"
    async with open_studio(tmp_path) as studio:
        page = await studio.client.get("/runs/r1", headers=headers)
        known = {**headers, **await studio.headers()}
        api = await studio.client.get("/api/runs", headers=known)
    assert (page.status_code, api.status_code) == (200, 403)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_form_of_another_page_cannot_log_in(kind: str, tmp_path: Path):
    async with open_studio(tmp_path) as studio:
        body = json.dumps({"token": studio.studio.logins.make_link_token()})
        sent = await studio.client.post("/api/login", content=body, headers={"content-type": kind})
    assert (sent.status_code, sent.json()["type"]) == (415, "bae-serve-media")


# Login


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


async def can_read(studio: OpenStudio, headers: dict[str, str]) -> bool:
    response = await studio.client.get("/api/runs", headers=headers)
    assert response.status_code in (200, 401)
    return response.status_code == 200


async def test_a_link_token_can_be_exchanged_only_once(tmp_path: Path):
    async with open_studio(tmp_path) as studio:
        link = studio.studio.logins.make_link_token()
        assert not await can_read(studio, {"authorization": f"Bearer {link}"})
        both = await asyncio.gather(studio.log_in(link), studio.log_in(link))
        first, second = sorted(both, key=lambda response: response.status_code)
        assert (first.status_code, second.status_code) == (200, 401)
        assert second.json()["type"] == "bae-studio-login"
        assert "bae studio" in second.json()["fix"]
        token = first.json()["token"]
        assert token != link
        assert await can_read(studio, {"authorization": f"Bearer {token}"})
        assert await can_read(studio, {"authorization": f"Bearer {SCRIPT_TOKEN}"})
        assert not await can_read(studio, {"authorization": f"Bearer {token}x"})
        assert not await can_read(studio, {})


async def test_links_and_logins_expire(tmp_path: Path):
    clock = Clock()
    async with open_studio(tmp_path, clock=clock) as studio:
        link = studio.studio.logins.make_link_token()
        clock.now += 3601
        assert (await studio.log_in(link)).status_code == 401
        done = (await studio.log_in()).json()
        assert done["expires"] == clock.now + LOGIN_SECONDS
        headers = {"authorization": f"Bearer {done['token']}"}
        clock.now = done["expires"] - 1
        assert await can_read(studio, headers)
        clock.now = done["expires"]
        assert not await can_read(studio, headers)


async def test_ten_wrong_tokens_block_logins_for_a_minute(tmp_path: Path):
    clock = Clock()
    async with open_studio(tmp_path, clock=clock) as studio:
        link = studio.studio.logins.make_link_token()
        assert [(await studio.log_in("wrong")).status_code for _ in range(11)] == [*[401] * 10, 429]
        response = await studio.log_in(link)
        assert (response.status_code, response.headers["retry-after"]) == (429, "61")
        clock.now += 61
        assert (await studio.log_in(link)).status_code == 200


async def test_a_login_survives_a_restart(tmp_path: Path):
    file = tmp_path / "state" / "bae" / "studio.db"
    async with open_studio(tmp_path, file=file) as studio:
        headers, unused = await studio.headers(), studio.studio.logins.make_link_token()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    written = file.read_bytes()
    for token in (headers["authorization"].removeprefix("Bearer "), unused):
        assert token.encode() not in written
    async with open_studio(tmp_path, file=file) as studio:
        assert await can_read(studio, headers)
        assert (await studio.log_in(unused)).status_code == 200
    other = tmp_path / "other.db"
    async with open_studio(tmp_path, file=other) as studio:
        assert not await can_read(studio, headers)


async def test_a_browser_can_log_out_all_browsers(tmp_path: Path):
    async with open_studio(tmp_path) as studio:
        one, two, three = [await studio.headers() for _ in range(3)]
        link = studio.studio.logins.make_link_token()
        await studio.client.post("/api/logout", json={}, headers=one)
        assert [await can_read(studio, headers) for headers in (one, two, three)] == [
            False,
            True,
            True,
        ]
        await studio.client.post("/api/logout", json={"everywhere": True}, headers=two)
        assert [await can_read(studio, login) for login in (two, three)] == [False, False]
        assert (await studio.log_in(link)).status_code == 401


async def test_a_web_socket_accepts_only_the_token_of_a_login(tmp_path: Path):
    async with open_studio(tmp_path) as studio, asyncio.timeout(20):
        token = (await studio.headers())["authorization"].removeprefix("Bearer ")
        link = studio.studio.logins.make_link_token()
        for given, is_known in ((token, True), (link, False), ("wrong", False)):
            async with connect(studio.ws, origin=studio.url) as socket:  # type: ignore[arg-type]
                await socket.send(json.dumps({"token": given}))
                if is_known:
                    await socket.send(json.dumps({"sub": 1, "feed": "runs"}))
                    assert json.loads(await socket.recv())["sub"] == 1
                else:
                    await socket.wait_closed()
                    assert socket.close_code == 4401


async def test_logging_out_closes_the_web_socket_of_the_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("bae.serve.live.HEARTBEAT", 0.01)
    async with open_studio(tmp_path) as studio, asyncio.timeout(20):
        one, other = [await studio.headers() for _ in range(2)]
        tokens = [headers["authorization"].removeprefix("Bearer ") for headers in (one, other)]
        async with connect(studio.ws) as gone, connect(studio.ws) as stays:
            for socket, token in zip((gone, stays), tokens, strict=True):
                await socket.send(json.dumps({"token": token}))
                assert json.loads(await socket.recv())["ping"] == 1
            await studio.client.post("/api/logout", json={}, headers=one)
            await gone.wait_closed()
            assert gone.close_code == 4401
            last = 0
            for _ in range(3):
                last = json.loads(await stays.recv())["ping"]
            assert last > 2


def test_a_damaged_file_of_logins_is_an_error_with_a_fix(tmp_path: Path):
    file = tmp_path / "studio.db"
    file.write_text("no database\n" * 100)
    with pytest.raises(BaeError) as caught, Logins(file):
        pass
    assert (caught.value.code, str(file) in caught.value.message) == ("bae-studio-logins", True)
    assert isinstance(caught.value.cause, sqlite3.Error)


# What the page is told


async def test_the_page_gets_its_rights_and_graphs(tmp_path: Path):
    async with open_studio(tmp_path, lm="local") as studio:
        info = await studio.get("/api/studio")
    assert (info["user"], info["can"]) == ("ana", ["admin", "answer", "edit", "read", "run"])
    assert (info["journal"], info["lm"], info["teams"]) == ("runs.db", "local", [])
    assert info["read_only"] is None
    chats = {graph["name"]: graph["message"] for graph in info["graphs"]}
    assert chats == {"orders": "sku", "slow": "name", "talk": "question"}


@asynccontextmanager
async def studio_of_runs(tmp_path: Path) -> AsyncIterator[OpenStudio]:
    """A studio that has the journal of another, and none of its graphs."""
    journal = tmp_path / "runs.db"
    async with SQLiteJournal(str(journal)) as kept, open_studio(tmp_path, journal=kept) as before:
        headers = await before.headers()
        for run_id, count in (("small", 1), ("large", 20)):
            body: dict[str, Any] = {"run_id": run_id, "start": {"sku": "lamp", "count": count}}
            await before.client.post("/api/graphs/orders/runs?wait=10", json=body, headers=headers)
    only_read = frozenset({"read"})
    async with (
        SQLiteJournal(str(journal)) as kept,
        open_studio(tmp_path, journal=kept, graphs={}, can=only_read) as studio,
    ):
        yield studio


async def test_a_studio_without_graphs_is_read_only(tmp_path: Path):
    async with studio_of_runs(tmp_path) as studio:
        info = await studio.get("/api/studio")
        assert (info["graphs"], info["can"]) == ([], ["read"])
        assert info["read_only"]["command"] == "bae studio MODULE --journal runs.db"
        rows = (await studio.get("/api/runs"))["runs"]
        assert {row["run_id"]: row["status"] for row in rows} == {
            "small": "ended",
            "large": "waiting",
        }
        for path in ("", "/steps", "/steps/0", "/timeline", "/calls", "/records", "/gates"):
            assert await studio.get(f"/api/runs/large{path}")
        [gate] = (await studio.get("/api/inbox"))["gates"]
        assert gate["question"] == "Sell so many?"
        headers = await studio.headers()
        for path, body in (
            ("answers", {"gate": gate["gate"], "value": True}),
            ("cancel", {}),
            ("resume", {}),
            ("forks", {"at": 0}),
        ):
            url = f"/api/runs/large/{path}"
            refused = await studio.client.post(url, json=body, headers=headers)
            assert (refused.status_code, refused.json()["type"]) == (403, "bae-serve-verb"), path
        response = await studio.client.delete("/api/runs/small", headers=headers)
        assert response.status_code == 403


async def test_the_openapi_document_has_the_endpoints_of_the_studio(tmp_path: Path):
    async with open_studio(tmp_path) as studio:
        document = await studio.get("/api/openapi.json")
    assert document["servers"] == [{"url": "/api"}]
    login = document["paths"]["/login"]["post"]
    assert login["security"] == []
    assert {"200", "401", "429"} <= login["responses"].keys()
    assert document["paths"]["/studio"]["get"]["x-bae-verb"] == "read"
    assert "/logout" in document["paths"]
