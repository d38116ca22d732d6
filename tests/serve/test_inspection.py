"""Lists, records, timelines and steps of runs: filtered, in pages, in every form."""

import asyncio
import json
import socket
import threading
from typing import Annotated, Any
from urllib.parse import urlsplit

import pytest
from pydantic import BaseModel, Field, field_serializer
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from bae import Dep, Gate, Graph, Node
from bae.journal import MemoryJournal, SQLiteJournal
from bae.serve import ApiCall, Endpoint, Form
from bae.serve.api import FOLDS
from bae.serve.table import TABLE
from serving import TOKEN, Served, held, serving


async def test_runs_can_be_listed_by_every_filter():
    async with serving() as served:
        before = None
        for number in range(7):
            about = {"metadata": {"shop": "north" if number % 2 else "south"}, "thread": "t"}
            run = await served.start(f"lamp-{number}", 1, run_id=f"run-{number}", **about)
            before = run["started"] if number == 3 else before
        await served.start("chair", 20, run_id="asks")
        await served.post("/graphs/slow/runs", {"start": {"name": "busy"}, "run_id": "busy"})

        async def ids(query: str) -> list[str]:
            return [row["run_id"] for row in (await served.get(f"/runs?{query}"))["runs"]]

        assert await ids("status=waiting") == ["asks"]
        assert await ids("status=running") == ["busy"]
        assert await ids("graph=slow") == ["busy"]
        assert await ids("thread=t") == [f"run-{n}" for n in range(6, -1, -1)]
        assert await ids("meta.shop=north") == ["run-5", "run-3", "run-1"]
        assert await ids("meta.shop=north&meta.by=ben") == []
        assert await ids("q=NORTH") == ["run-5", "run-3", "run-1"]
        assert await ids("q=run-4") == ["run-4"]
        assert await ids(f"since={before}&graph=orders&status=ended") == [
            "run-6",
            "run-5",
            "run-4",
            "run-3",
        ]
        found, query = [], "limit=2"
        while True:
            page = await served.get(f"/runs?{query}")
            found += [run["run_id"] for run in page["runs"]]
            if page["next"] is None:
                break
            query = f"limit=2&before={page['next']}"
        assert found == ["busy", "asks", *(f"run-{n}" for n in range(6, -1, -1))]
        for wrong in ("status=new", "limit=0", "limit=900", "price=1", "limit=1&limit=2"):
            refused = await served.client.get(f"/runs?{wrong}")
            assert (refused.status_code, refused.json()["type"]) == (422, "bae-serve-input")
            assert refused.json()["errors"][0]["loc"][0] == "query"
        held["busy"].set()


async def test_records_are_available_as_json_as_lines_and_as_events():
    async with serving() as served:
        await served.start(run_id="one")
        page = await served.get("/runs/one/records")
        numbers = [record["n"] for record in page["records"]]
        assert (numbers, page["last"], page["status"]) == (
            [*range(len(numbers))],
            numbers[-1],
            "ended",
        )
        lines = await served.client.get(
            "/runs/one/records?after=1&limit=2", headers={"accept": "application/x-ndjson"}
        )
        assert lines.headers["content-type"] == "application/x-ndjson"
        assert [json.loads(line) for line in lines.text.splitlines()] == page["records"][2:4]
        events = [event async for event in served.events("one", **{"last-event-id": "2"})]
        assert [data for kind, _, data in events if kind == "record"] == page["records"][3:]
        assert events[-1] == ("end", "", {"reason": "ended", "last": numbers[-1]})
        over = [
            event async for event in served.events("one", **{"last-event-id": str(numbers[-1])})
        ]
        assert [kind for kind, _, _ in over] == ["status", "end"]
        wrong = await served.client.get(
            "/runs/one/records", headers={"accept": "text/event-stream", "last-event-id": "x"}
        )
        assert (wrong.status_code, wrong.json()["type"]) == (422, "bae-serve-input")
        head = await served.client.head("/runs/one/records")
        assert (head.status_code, head.content) == (200, b"")


async def quick() -> int:
    return 1


async def thorough() -> str:
    await asyncio.sleep(0.03)
    return "long"


class Ask(Node):
    text: str = ""

    async def __call__(self) -> "Report":
        return Report()


class Report(Node):
    n: Annotated[int, Dep(quick)] = 0
    about: Annotated[str, Dep(thorough)] = ""

    async def __call__(self) -> None: ...


reports = Graph(start=Ask, end=Report, name="reports")


async def test_a_timeline_shows_the_critical_path():
    async with serving(graphs={"reports": reports}) as served:
        await served.post("/graphs/reports/runs?wait=10", {"start": {}, "run_id": "one"})
        timeline = await served.get("/runs/one/timeline")
        bars = {bar["place"]: bar for bar in timeline["bars"] if bar["kind"] == "dep"}
        slow, fast = bars["1:Report.about"], bars["1:Report.n"]
        assert (slow["slack"], len(slow["critical"]), fast["critical"]) == (0, 1, [])
        assert fast["slack"] > 0.02
        assert timeline["is_exact"]
        assert timeline["longest"][0] == "1:Report.about"
        assert 0.02 < timeline["critical_seconds"] <= timeline["seconds"]
        pages: list[Any] = []
        while len(pages) < timeline["total"]:
            page = await served.get(f"/runs/one/timeline?start={len(pages)}&limit=2")
            pages += page["bars"]
        assert [page["place"] for page in pages] == [bar["place"] for bar in timeline["bars"]]
        asked = await served.get("/runs/one/timeline?place=1&limit=1")
        assert pages[asked["index"]]["place"] == "1:Report"
        assert (await served.get("/runs/one/timeline?place=9"))["index"] is None


async def test_steps_are_listed_in_pages_around_a_number():
    async with serving() as served:
        await served.start("x" * 40, run_id="one")
        page = await served.get("/runs/one/steps?around=1&limit=1")
        assert [step["step"] for step in page["steps"]] == [1]
        refused = await served.client.get("/runs/one/steps?cut=0")
        assert refused.status_code == 422  # no page has a whole long run
        for missing in (
            "steps?path=2:None.x",
            "steps/7",
            "steps/x",
            "calls/0",
            "steps/0/why?field=q",
        ):
            unknown = await served.client.get(f"/runs/one/{missing}")
            assert unknown.status_code == 404, missing


async def test_steps_can_be_found_by_class_and_by_text():
    async with serving() as served:
        await served.start("blue kettle", 12, run_id="one")

        async def found(query: str) -> list[str]:
            page = await served.get(f"/runs/one/steps?{query}")
            assert page["total"] == len(page["steps"])
            return [f"{step['step']}:{step['node']}" for step in page["steps"]]

        assert await found("") == ["0:Order", "1:Approval"]
        assert await found("node=Approval") == ["1:Approval"]
        assert await found("q=KETTLE") == ["0:Order"]
        assert await found("q=stock") == ["1:Approval"]
        assert await found("node=Approval&q=kettle") == []


class Trip(Node):
    city: str

    async def __call__(self) -> "Forecast":
        return Forecast(city=self.city)


async def find_weather(city: str) -> str:
    raise TimeoutError(f"nothing about {city} in 10 s")


class Forecast(Node):
    city: str
    weather: Annotated[str, Dep(find_weather, city="city")]

    async def __call__(self) -> None: ...


trips = Graph(start=Trip, end=Forecast, name="trips")


async def test_a_failed_run_shows_the_place_cause_and_fix_of_its_error(tmp_path):
    async with SQLiteJournal(tmp_path / "runs.db") as journal:
        async with serving(journal, graphs={"trips": trips}) as served:
            start = {"start": {"city": "Ghent"}, "run_id": "one"}
            run = await served.post("/graphs/trips/runs?wait=10", start)
            failure = run["failure"]
            assert (failure["type"], failure["code"]) == ("DepError", "bae-dep-failed")
            assert failure["place"] == "1:Forecast.weather"
            assert failure["error"] == "TimeoutError: nothing about Ghent in 10 s"
            assert failure["path"] == "Forecast.weather <- find_weather()"
            assert "find_weather" in failure["fix"]
        async with serving(journal, graphs={"trips": trips}) as served:
            stored_failure = (await served.get("/runs/one"))["failure"]  # by another server
            assert stored_failure == {**failure, "path": None, "fix": None}


async def test_a_run_with_forks_cannot_be_deleted(tmp_path):
    async with SQLiteJournal(tmp_path / "runs.db") as journal, serving(journal) as served:
        await served.start(run_id="old")
        await served.post("/runs/old/forks", {"at": 0, "run_id": "new", "go_on": False})
        refused = await served.client.delete("/runs/old")
        assert (refused.status_code, refused.json()["type"]) == (409, "bae-run-owned")
        for run in ("new", "old"):
            assert (await served.client.delete(f"/runs/{run}")).status_code == 204
        assert (await served.get("/runs"))["runs"] == []


async def test_a_run_of_another_process_can_be_cancelled_but_not_resumed(tmp_path):
    file = tmp_path / "runs.db"
    async with (
        SQLiteJournal(file) as theirs,
        SQLiteJournal(file) as ours,
        serving(theirs, recover=False) as other,
        serving(ours, recover=False) as served,
    ):
        await other.post("/graphs/slow/runs", {"start": {"name": "theirs"}, "run_id": "theirs"})
        assert not (await served.get("/runs/theirs"))["in_progress"]
        refused = await served.client.post("/runs/theirs/resume", json={})
        assert (refused.status_code, refused.json()["type"]) == (409, "bae-run-owned")
        live, end = None, {}
        async for kind, _, data in served.events("theirs"):
            if kind == "status" and live is None:
                live = data["live"]
                done = await served.client.post("/runs/theirs/cancel", json={})
                assert (done.status_code, done.json()["status"]) == (202, "cancelled")
            end = data
        assert (live, end["reason"]) == (False, "cancelled")
        again = await served.client.post("/runs/theirs/cancel", json={})
        assert again.status_code == 202


def ask(question: str) -> Any:
    return Annotated[str, Gate(question)]


class Page(Node):
    n: int = 0
    text: str = ""

    async def __call__(self) -> "Page | Review":
        text = f"{self.n:05}" * 1_000
        return Page(n=self.n + 1, text=text) if self.n < 40 else Review(text=text)


class Review(Node):
    text: str
    a: ask("a?") = Field(init=False)  # type: ignore[valid-type]
    b: ask("b?") = Field(init=False)  # type: ignore[valid-type]
    c: ask("c?") = Field(init=False)  # type: ignore[valid-type]
    d: ask("d?") = Field(init=False)  # type: ignore[valid-type]
    e: ask("e?") = Field(init=False)  # type: ignore[valid-type]
    f: ask("f?") = Field(init=False)  # type: ignore[valid-type]
    g: ask("g?") = Field(init=False)  # type: ignore[valid-type]

    async def __call__(self) -> None: ...


pages = Graph(start=Page, end=Review, name="pages")


def most_of(query: type[Form]) -> str:
    """The query for as much as there may be in one response."""
    found: list[str] = []
    for name in ("limit", "cut"):
        about = query.model_json_schema().get("properties", {}).get(name)
        if about is not None:
            found.append(f"{name}={about['maximum']}")
    return "&".join(found)


async def test_every_response_about_a_long_run_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("bae.serve.views.PAGE_SIZE", 20_000)
    async with serving(graphs={"pages": pages}, max_iters=0) as served:
        about = {"metadata": {"x" * 50_000: "y"}}
        for run in ("one", "two"):
            body = {"start": {}, "run_id": run, "thread": f"thread-{run}", **about}
            started = await served.post("/graphs/pages/runs?wait=10", body)
        assert (len(started["waiting"]), started["waiting_count"]) == (5, 7)
        named = {"graph": "pages", "run": "one", "step": "3", "call": "0", "thread": "thread-one"}
        queries = {"why": "&field=text", "compare": "&a=one&b=two&same=true"}
        for endpoint in TABLE:
            if endpoint.method != "GET" or endpoint.path in ("/runs/{run}", "/openapi.json"):
                continue  # a run has all of its metadata
            path = endpoint.path.format(hash="sha256:", **named)
            query = most_of(endpoint.query) + queries.get(endpoint.path.rpartition("/")[2], "")
            response = await served.client.get(f"{path}?{query}")
            assert response.status_code == (404 if "calls/" in path or "files" in path else 200), (
                path
            )
            assert len(response.content) < 45_000, path

        async def all_of(path: str, key: str) -> list[Any]:
            found: list[Any] = []
            while True:
                page = await served.get(f"{path}start={len(found)}")
                found += page[key]
                if len(found) == page["total"]:
                    return found

        steps = await all_of("/runs/one/steps?limit=500&cut=65536&", "steps")
        assert [step["step"] for step in steps] == [*range(42)]
        gates = await all_of("/runs/one/gates?cut=65536&", "gates")
        assert [gate["question"] for gate in gates] == ["a?", "b?", "c?", "d?", "e?", "f?", "g?"]
        path = "/compare?a=one&b=two&same=true&cut=65536&"
        assert len(await all_of(path, "nodes")) == 42


async def test_the_inbox_limits_the_questions_of_one_run(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("bae.serve.inbox._MOST_OF_RUN", 2)
    async with serving(graphs={"pages": pages}, max_iters=0) as served:
        await served.post("/graphs/pages/runs?wait=10", {"start": {"n": 40}, "run_id": "one"})
        inbox = await served.get("/inbox")
        asked = [gate["question"] for gate in inbox["gates"]]
        assert (asked, inbox["more"]) == (["a?", "b?"], {"one": 5})
        for gate in inbox["gates"]:
            await served.post("/runs/one/answers", {"gate": gate["gate"], "value": "yes"})
        inbox = await served.get("/inbox")
        asked = [gate["question"] for gate in inbox["gates"]]
        assert (asked, inbox["more"]) == (["c?", "d?"], {"one": 3})


class Write(Node):
    n: int = 0
    text: str = ""

    async def __call__(self) -> "Write | Written":
        return Write(n=self.n + 1, text="x" * 40_000) if self.n < 150 else Written()


class Written(Node):
    async def __call__(self) -> None: ...


writes = Graph(start=Write, end=Written, name="writes")


async def wait_until_dropped(served: Served) -> None:
    """Return when nobody follows the run any more."""
    while served.api.feeds.run("big").tail.is_followed:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", ["events", "socket"])
async def test_a_hanging_client_is_dropped(kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bae.serve.records.SEND_SECONDS", 0.2)
    monkeypatch.setattr("bae.serve.live.SEND_SECONDS", 0.2)
    async with serving(graphs={"writes": writes}, max_iters=0) as served, asyncio.timeout(30):
        await served.post("/graphs/writes/runs?wait=20", {"start": {}, "run_id": "big"})
        address = urlsplit(served.url)
        with socket.socket() as plain:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
            plain.connect((address.hostname, address.port))
            plain.setblocking(False)
            if kind == "events":
                reader, writer = await asyncio.open_connection(sock=plain, limit=1_024)
                writer.write(
                    f"GET /runs/big/records HTTP/1.1\r\nhost: {address.netloc}\r\n"
                    f"authorization: Bearer {TOKEN}\r\naccept: text/event-stream\r\n\r\n".encode()
                )
                await reader.readuntil(b"event: record")  # it follows the run
                others = [event async for event in served.events("big")]
                assert others[-1][2]["reason"] == "ended"
                await wait_until_dropped(served)
                text = await reader.read()
                assert b"event: end" not in text
                writer.close()
            else:
                options: Any = {"compression": None, "ping_interval": None, "max_queue": 1}
                async with connect(served.ws(), sock=plain, **options) as hanging:
                    await hanging.send(json.dumps({"token": TOKEN}))
                    await hanging.send(json.dumps({"sub": 1, "feed": "run/big"}))
                    assert json.loads(await hanging.recv())["items"] == []  # it follows the run
                    others = [event async for event in served.events("big")]
                    assert others[-1][2]["reason"] == "ended"
                    await wait_until_dropped(served)
                    with pytest.raises(ConnectionClosed):
                        while True:
                            await hanging.recv()
                    assert hanging.close_code in (1006, 1013)


async def test_responses_are_encoded_off_the_event_loop():
    written: list[threading.Thread] = []

    class Page(BaseModel):
        text: str = ""

        @field_serializer("text")
        def write(self, text: str) -> str:
            written.append(threading.current_thread())
            return text

    async def show(call: ApiCall) -> Page:
        return Page()

    async with serving() as served:
        served.api.endpoints += (Endpoint("GET", "/page", "read", "A page.", show, {200: Page}),)
        assert await served.get("/page") == {"text": ""}
    assert threading.current_thread() not in written
    assert len(written) == 1


@pytest.mark.parametrize("path", ["", "/steps", "/steps/0", "/timeline", "/calls", "/gates"])
async def test_only_a_few_long_runs_are_in_memory_at_once(path: str):
    class Held(MemoryJournal):
        asked = begun = 0
        go_on = asyncio.Event()

        async def lines(self, run_id: str, **more: Any) -> Any:
            self.asked += 1
            return await super().lines(run_id, **more)

        async def read_texts(self, run_id: str) -> Any:
            self.begun += 1
            await self.go_on.wait()
            return await super().read_texts(run_id)

    journal = Held()
    async with serving(journal, recover=False) as served, asyncio.timeout(20):
        journal.go_on.set()
        await served.start(run_id="one")
        journal.go_on.clear()
        journal.asked = journal.begun = 0
        async with asyncio.TaskGroup() as tasks:
            for _ in range(10):
                tasks.create_task(served.get(f"/runs/one{path}"))
            while journal.asked < 10:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await served.get("/health")
            assert journal.begun == FOLDS
            journal.go_on.set()
