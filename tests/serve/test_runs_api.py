"""Runs over HTTP: started, followed, answered, forked and looked into."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from datetime import datetime
from typing import Any

import pytest
from pydantic import BaseModel, Field
from websockets.asyncio.client import connect

from bae import Graph, Image, Node, Usage
from bae.journal import MemoryJournal, SQLiteJournal
from bae.lm import Answer, Backend, Budget, Budgeted, Fallback, Prompt
from bae.testing import Call, ScriptedLM, Streamed
from file_parts import DOT
from serving import TOKEN, Credit, credits, held, orders_with, quantities, serving, shop, talk


async def test_a_run_is_started_once_for_repeated_requests():
    async with serving() as served:
        body = {"run_id": "order/1", "start": {"sku": "lamp", "count": 3}}
        first = await served.client.post("/graphs/orders/runs?wait=10", json=body)
        again = await served.client.post("/graphs/orders/runs", json=body)
        assert (first.status_code, again.status_code) == (201, 200)
        run = first.json()
        assert (run["status"], run["end"], run["result"]) == ("ended", "Price", {"euros": 6})
        assert again.json()["result"] == run["result"]
        other = await served.client.post(
            "/graphs/orders/runs", json={**body, "start": {"sku": "lamp", "count": 4}}
        )
        assert (other.status_code, other.json()["type"]) == (409, "bae-run-exists")
        assert other.headers["content-type"] == "application/problem+json"
        turn = await served.client.post("/graphs/orders/runs", json={**body, "thread": "t"})
        assert (turn.status_code, turn.json()["type"]) == (409, "bae-run-exists")
        assert (await served.get("/runs/order%2F1"))["run_id"] == "order/1"


async def test_an_invalid_start_is_refused_with_the_name_of_the_field():
    async with serving() as served:
        for start in ({"sku": "lamp", "count": 0}, {"count": 1}, {"sku": "x", "price": 1}, 7):
            response = await served.client.post("/graphs/orders/runs", json={"start": start})
            assert response.status_code == 422
            assert response.json()["errors"][0]["loc"][:2] == ["body", "start"]
        assert (await served.get("/runs"))["runs"] == []


async def test_a_stream_of_server_sent_events_ends_with_its_run():
    async with serving() as served:
        run = await served.post("/graphs/slow/runs", {"start": {"name": "sse"}})
        kinds: list[str] = []
        async for kind, _, data in served.events(run["run_id"]):
            kinds.append(kind)
            if kind == "record" and data["kind"] == "StepStarted":
                held["sse"].set()
            last = data
        assert kinds[-1] == "end"
        assert last["reason"] == "ended"
        total = kinds.count("record")
        later = [e async for e in served.events(run["run_id"], **{"last-event-id": "0"})]
        assert [number for kind, number, _ in later if kind == "record"] == [
            str(n) for n in range(1, total)
        ]


async def test_the_web_socket_follows_a_run_and_the_list_of_runs():
    async with serving() as served, connect(served.ws()) as socket, asyncio.timeout(20):
        await socket.send(json.dumps({"token": TOKEN}))
        await socket.send(json.dumps({"sub": 1, "feed": "runs", "after": "now"}))
        assert json.loads(await socket.recv()) == {"sub": 1, "last": 0, "items": []}
        await served.start(run_id="one")
        await socket.send(json.dumps({"sub": 2, "feed": "run/one"}))
        found = {1: [], 2: []}
        ended = False
        while not ended or not found[1] or found[1][-1]["status"] != "ended":
            message = json.loads(await socket.recv())
            if "end" in message:
                assert message == {"sub": 2, "end": "ended", "last": found[2][-1]["n"]}
                ended = True
            else:
                found[message["sub"]] += message["items"]
        assert [item["n"] for item in found[2]] == [*range(len(found[2]))]
        assert {item["run_id"] for item in found[1]} == {"one"}


async def test_a_question_can_be_answered_only_once():
    async with serving() as served:
        run = await served.start(count=20, run_id="asks")
        assert run["status"] == "waiting"
        (gate,) = (await served.get("/inbox"))["gates"]
        assert (gate["question"], gate["kind"]) == ("Sell so many?", "gate")
        assert {n: v["value"] for n, v in gate["context"].items()} == {"count": 20, "stock": 12}
        assert gate["answer_schema"] == {"type": "boolean"}
        wrong = await served.client.post(
            "/runs/asks/answers", json={"gate": gate["gate"], "value": "perhaps"}
        )
        assert (wrong.status_code, wrong.json()["type"]) == (422, "bae-gate-invalid")
        for _ in range(2):
            await served.post("/runs/asks/answers", {"gate": gate["gate"], "value": True})
        other = await served.client.post(
            "/runs/asks/answers", json={"gate": gate["gate"], "value": False}
        )
        assert (other.status_code, other.json()["type"]) == (409, "bae-gate-answered")
        assert "has an answer already by ana" in other.json()["detail"]
        ends = [data async for kind, _, data in served.events("asks") if kind == "end"]
        assert ends[0]["reason"] == "ended"
        assert (await served.get("/runs/asks"))["result"] == {"euros": 20}
        assert (await served.get("/inbox"))["gates"] == []
        assert (await served.journal.read("asks")).answered_by == {gate["gate"]: "ana"}
        why = await served.get("/runs/asks/steps/1/why?field=approved")
        assert why["provenance"]["note"] == "answered by ana"


async def test_steps_and_calls_are_listed_in_pages():
    async with serving() as served:
        await served.start(sku="x" * 40, run_id="one")
        page = await served.get("/runs/one/steps?cut=10")
        assert (page["total"], [step["node"] for step in page["steps"]]) == (2, ["Order", "Price"])
        sku = page["steps"][0]["fields"][0]
        assert (sku["kept"], sku["text"], sku["size"]) == ("cut", '"xxxxxxxxx', 42)
        whole = await served.get("/runs/one/steps/0?cut=0")
        assert whole["fields"][0]["value"] == "x" * 40
        why = await served.get("/runs/one/steps/1/why?field=euros")
        assert why["provenance"]["by"] == "Order.__call__"
        assert (await served.get("/runs/one/calls")) == {"calls": [], "total": 0}
        assert (await served.client.get("/runs/one/steps/7")).status_code == 404


async def test_forking_a_run_with_another_value_keeps_the_old_run():
    async with serving() as served:
        await served.start(count=2, run_id="old")
        made = await served.post(
            "/runs/old/forks", {"at": 0, "changed": {"count": 5}, "run_id": "new"}
        )
        assert made["parent"] == "old"
        ends = [data async for kind, _, data in served.events("new") if kind == "end"]
        assert ends[0]["reason"] == "ended"
        assert (await served.get("/runs/new"))["result"] == {"euros": 10}
        old = await served.get("/runs/old")
        assert (old["result"], old["forks"]) == ({"euros": 4}, ["new"])
        body = {"at": 0, "changed": {"count": 5}, "run_id": "new"}
        again = await served.client.post("/runs/old/forks", json=body)
        assert (again.status_code, again.json()["result"]) == (200, {"euros": 10})
        body["changed"] = {"count": 6}
        other = await served.client.post("/runs/old/forks", json=body)
        assert (other.status_code, other.json()["type"]) == (409, "bae-run-exists")


class Street(BaseModel):
    name: str
    number: int = 1


class Parcel(Node):
    to: Street
    when: datetime
    photo: Image | None = None

    async def __call__(self) -> None: ...


async def test_a_repeated_fork_request_creates_a_single_fork():
    parcels = Graph(start=Parcel, end=Parcel, name="parcels")
    async with serving(graphs={"parcels": parcels}) as served:
        start = {"to": {"name": "Mill"}, "when": "2026-01-01T10:00:00Z"}
        await served.post("/graphs/parcels/runs?wait=10", {"run_id": "old", "start": start})
        photo = f"data:image/png;base64,{b64encode(DOT.data).decode()}"
        changed = {"to": {"name": "Lane"}, "when": "2026-01-02T10:00:00+00:00", "photo": photo}
        body = {"at": 0, "run_id": "new", "changed": changed}
        for status in (201, 200, 200):
            made = await served.client.post("/runs/old/forks", json=body)
            assert made.status_code == status, made.text
        changed["to"] = {"name": "Lane", "number": 2}
        other = await served.client.post("/runs/old/forks", json=body)
        assert (other.status_code, other.json()["type"]) == (409, "bae-run-exists")


async def test_a_start_that_is_not_an_object_is_refused_with_its_place():
    async with serving() as served:
        for start in ([], "lamp", 5, None):
            refused = await served.client.post("/graphs/orders/runs", json={"start": start})
            assert refused.json()["errors"] == [
                {"loc": ["body", "start"], "msg": "it is no object with the fields of Order"}
            ]


async def test_closing_the_connection_does_not_cancel_a_run():
    async with serving() as served:
        run = await served.post("/graphs/slow/runs", {"start": {"name": "held"}})
        async for _ in served.events(run["run_id"]):
            break  # the connection is closed
        assert (await served.get(f"/runs/{run['run_id']}"))["status"] == "running"
        done = await served.post(f"/runs/{run['run_id']}/cancel")
        assert done["status"] == "cancelled"


@pytest.mark.parametrize("times", [1, 2])
async def test_the_next_server_continues_runs_of_a_stopped_server(tmp_path, times):
    held.clear()
    async with SQLiteJournal(tmp_path / "runs.db") as journal:
        for _ in range(times):
            async with serving(journal) as served:
                body = {"run_id": "kept", "start": {"name": "kept"}}
                await served.client.post("/graphs/slow/runs", json=body)
            info = (await journal.read("kept")).info
            assert info.standing() == "interrupted"
        async with serving(journal) as served:
            held.setdefault("kept", asyncio.Event()).set()
            ends = [data async for kind, _, data in served.events("kept") if kind == "end"]
            assert ends[0]["reason"] == "ended"


async def test_text_is_streamed_while_it_is_written():
    lm = ScriptedLM([Streamed({"text": "It is wet and cold."}, size=4, pause=0.06, restarts=1)])
    async with serving(graphs={"talk": talk}, lm=lm) as served, asyncio.timeout(20):
        run = await served.post("/graphs/talk/runs", {"start": {"question": "Weather?"}})
        text, longest, kinds, live = "", "", [], []
        async for kind, number, data in served.events(run["run_id"]):
            kinds.append(kind)
            if kind == "text":
                assert (number, data["place"]) == ("", "1:Reply.text")
                text = text[: data["start"]] + data["delta"]
                longest = max(longest, text, key=len)
            elif kind == "status":
                live.append(data["live"])
        assert kinds.count("text") > 2
        assert "It is wet and cold.".startswith(longest)
        assert len(longest) > 4
        assert live[0] is True


async def test_an_approval_for_a_thread_can_be_listed_and_revoked():
    call = [Call("pay_back", euros=20)]
    lm = ScriptedLM({Credit: [call, {"text": "Paid."}, call, {"text": "Paid."}, call]})
    async with serving(graphs={"credits": credits}, lm=lm) as served:

        async def turn(run_id: str) -> str:
            body = {"run_id": run_id, "thread": "t/1", "start": {"text": "It is wet."}}
            return (await served.post("/graphs/credits/runs?wait=10", body))["status"]

        assert await turn("one") == "waiting"
        (gate,) = (await served.get("/runs/one/gates"))["gates"]
        answer = {"gate": gate["gate"], "decision": "approve", "scope": "thread"}
        await served.post("/runs/one/answers", answer)
        assert [end async for kind, _, end in served.events("one") if kind == "end"]
        assert await turn("two") == "ended"
        (grant,) = (await served.get("/runs/two/approvals"))["approvals"]
        assert (grant["tool"], grant["scope"], grant["run_id"]) == ("pay_back", "thread", "one")
        taken = await served.post("/runs/two/approvals/revoke", {"tool": "pay_back"})
        assert [approval["revoked"] for approval in taken["approvals"]] == [True]
        again = await served.client.post("/runs/two/approvals/revoke", json={"tool": "pay_back"})
        assert (again.status_code, again.json()["type"]) == (404, "bae-approval-unknown")
        assert await turn("three") == "waiting"


async def test_another_user_cannot_add_a_turn_to_a_thread():
    lm = ScriptedLM([{"text": "Hello."}, {"text": "Fine."}])
    async with serving(graphs={"talk": talk}, lm=lm, visible="own") as served:
        for question in ("Hi", "How are you?"):
            body = {"start": {"question": question}, "thread": "t/1", "metadata": {"page": "home"}}
            await served.post("/graphs/talk/runs?wait=10", body)
        found = await served.get("/threads/t%2F1")
        assert [(turn["user"], turn["status"]) for turn in found["turns"]] == [
            ("Hi", "ended"),
            ("How are you?", "ended"),
        ]
        newest = await served.get("/threads/t%2F1?limit=1")
        [last] = newest["turns"]
        assert (last["user"], newest["total"]) == ("How are you?", 2)
        older = f"/threads/t%2F1?limit=1&cut=1&before={last['run_id']}"
        assert [turn["user"] for turn in (await served.get(older))["turns"]] == [
            "H… (1 more characters)"
        ]
        unknown = await served.client.get("/threads/t%2F1?before=none")
        assert (unknown.status_code, unknown.json()["type"]) == (404, "bae-run-unknown")
        assert [thread["thread"] for thread in (await served.get("/threads"))["threads"]] == ["t/1"]
        rows = (await served.get("/runs?meta.page=home&limit=1"))["runs"]
        assert [row["metadata"] for row in rows] == [{"page": "home", "by": "ana"}]
        stranger = {"authorization": "Bearer ben"}
        body = {"start": {"question": "What was said?"}, "thread": "t/1"}
        refused = await served.client.post("/graphs/talk/runs", json=body, headers=stranger)
        assert (refused.status_code, refused.json()["type"]) == (404, "bae-serve-path")
        spoof = {"start": {"question": "x"}, "metadata": {"by": "ana"}, "run_id": "spoof"}
        made = await served.client.post("/graphs/talk/runs", json=spoof, headers=stranger)
        assert made.json()["metadata"]["by"] == "ben"
        response = await served.client.delete("/threads/t%2F1")
        assert response.status_code == 204
        assert (await served.get("/threads"))["threads"] == []


async def test_listing_threads_reads_each_thread_once():
    looks: list[str] = []

    class Counting(MemoryJournal):
        async def runs(self, **asked: Any) -> Any:
            looks.extend(filter(None, [asked.get("thread")]))
            return await super().runs(**asked)

    journal = Counting()
    start = talk.start.model_validate({"question": "Hi"})
    for thread in ("a", "b", "a", "c", "a", "b"):
        lm = ScriptedLM([{"text": "Hello."}])
        await talk.arun(start, lm, journal=journal, thread=thread)
    async with serving(journal, graphs={"talk": talk}) as served:
        looks.clear()
        first = await served.get("/threads?limit=2")
        assert [thread["thread"] for thread in first["threads"]] == ["b", "a"]
        rest = await served.get(f"/threads?limit=2&before={first['next']}")
        assert [thread["thread"] for thread in rest["threads"]] == ["c"]
        assert sorted(looks) == ["a", "a", "b", "b", "c"]


async def test_two_equal_concurrent_requests_start_one_run():
    async with serving() as served:
        body = {"run_id": "once", "start": {"name": "once"}}
        posts = [served.client.post("/graphs/slow/runs", json=body) for _ in range(5)]
        assert sorted(response.status_code for response in await asyncio.gather(*posts)) == [
            *[200] * 4,
            201,
        ]
        assert served.api.owner.run_ids == ["once"]
        resumes = [served.client.post("/runs/once/resume", json={}) for _ in range(3)]
        assert {response.status_code for response in await asyncio.gather(*resumes)} == {202}
        assert served.api.owner.run_ids == ["once"]
    assert (await served.journal.read("once")).info.standing() == "interrupted"


async def test_a_refused_answer_names_the_invalid_field_or_the_earlier_answerer():
    async with serving(graphs={"quantities": quantities}) as served:
        run = await served.post("/graphs/quantities/runs?wait=10", {"start": {}, "run_id": "q"})
        gate = run["waiting"][0]["gate"]
        wrong = await served.client.post("/runs/q/answers", json={"gate": gate, "value": "many"})
        assert wrong.status_code == 422
        assert wrong.json()["errors"][0]["loc"] == ["body", "value"]
        await served.post("/runs/q/answers", {"gate": gate, "value": "5"})
        await served.post("/runs/q/answers", {"gate": gate, "value": 5})  # it is equal
        ben = {"authorization": "Bearer ben"}
        late = await served.client.post(
            "/runs/q/answers", json={"gate": gate, "value": 6}, headers=ben
        )
        problem = late.json()
        assert (late.status_code, problem["type"]) == (409, "bae-gate-answered")
        assert (problem["answered_by"], problem["answer"]["value"]) == ("ana", "5")
        assert problem["fix"] == "GET /runs/R/gates?past=true shows the answer"
        [end] = [data async for kind, _, data in served.events("q") if kind == "end"]
        assert end["reason"] == "ended"


async def test_an_answer_is_stored_while_the_run_limit_is_reached():
    async with serving(at_once=1) as served:
        await served.start(count=20, run_id="asks")
        await served.post("/graphs/slow/runs", {"start": {"name": "full"}, "run_id": "full"})
        answer = {"gate": "1:Approval.approved", "value": True}
        assert (await served.post("/runs/asks/answers", answer))["waiting"][0]["answered"]
        refused = await served.client.post("/graphs/orders/runs", json={"start": {"sku": "x"}})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
        held["full"].set()


async def test_an_invalid_fork_names_the_field():
    async with serving() as served:
        await served.start(run_id="old")
        wrong = await served.client.post(
            "/runs/old/forks", json={"at": 0, "changed": {"count": "lots"}}
        )
        assert (wrong.status_code, wrong.json()["type"]) == (422, "bae-fork-field")
        assert wrong.json()["errors"][0]["loc"] == ["body", "changed", "count"]


async def test_a_run_with_changed_classes_is_shown_without_its_result():
    async with serving() as served:
        await served.start(run_id="old")
        journal = served.journal
    async with serving(
        journal, graphs={"orders": orders_with("euros: int", "dollars: int")}
    ) as served:
        run = await served.get("/runs/old")
        assert (run["status"], run["end"], run["result"]) == ("ended", "Price", None)
        assert run["no_result"]
        assert (await served.get("/runs/old/steps"))["total"] == 2


async def test_a_page_of_long_records_ends_early(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("bae.serve.views.PAGE_SIZE", 400)
    async with serving() as served:
        long = {f"note{n}": "x" * 5_000 for n in range(50)}
        await served.start(run_id="one", metadata=long)
        [row] = (await served.get("/runs?q=xxxx"))["runs"]
        assert len(json.dumps(row)) < 5_000
        assert (await served.get("/runs/one"))["metadata"] == {**long, "by": "ana"}
        found, after = [], -1
        while True:
            page = await served.get(f"/runs/one/records?after={after}")
            found += [record["n"] for record in page["records"]]
            assert page["records"]
            after = found[-1]
            if after == page["last"]:
                break
        assert found == [*range(len(found))]


async def test_runs_can_be_searched_by_their_first_words():
    async with serving() as served:
        long = {"name": "a  lamp\n" + "x" * 500}
        held.setdefault(long["name"], asyncio.Event()).set()
        body = {"start": long, "run_id": "one"}
        await served.post("/graphs/slow/runs?wait=10", body)
        await served.start("kettle", 20, run_id="two")
        page = await served.get("/runs")
        assert [row["run_id"] for row in page["runs"]] == ["two", "one"]
        assert page["runs"][0]["preview"] == "kettle"
        assert page["runs"][1]["preview"].startswith("a lamp xxx")
        assert len(page["runs"][1]["preview"]) == 120
        assert page["change"] >= max(row["change"] for row in page["runs"])
        fork = {"at": 0, "changed": {"count": 30}, "run_id": "three", "go_on": False}
        await served.post("/runs/two/forks", fork)
        assert (await served.get("/runs/three"))["preview"] == "fork at 0: count=30"
        assert (await served.get("/runs?limit=1"))["runs"][0]["preview"] == "fork at 0: count=30"
        await served.client.delete("/runs/three")
        assert [row["run_id"] for row in (await served.get("/runs?q=KETTLE"))["runs"]] == ["two"]
        assert (await served.get("/runs?limit=1"))["next"] == "two"
        assert (await served.get("/runs?limit=1&before=two"))["next"] is None
        counts = await served.get("/run-counts")
        assert counts == {
            "total": 2,
            "statuses": {"waiting": 1, "ended": 1},
            "graphs": {"orders": 1, "slow": 1},
            "is_all": True,
        }
        assert (await served.get("/run-counts?q=lamp"))["statuses"] == {"ended": 1}


async def test_two_runs_are_compared_by_place():
    async with serving() as served:
        await served.start(count=2, run_id="a")
        await served.start(count=5, run_id="b")
        await served.start(count=20, run_id="c")
        comparison = await served.get("/compare?a=a&b=b")
        assert (comparison["first"], comparison["total"]) == ("0:Order", 2)
        [order, price] = comparison["nodes"]
        assert (order["state"], [field["name"] for field in order["fields"]]) == (
            "differs",
            ["count"],
        )
        assert [price["fields"][0][side]["value"] for side in ("a", "b")] == [4, 10]
        other = await served.get("/compare?a=a&b=c")
        assert [(node["node"], node["state"]) for node in other["nodes"]] == [
            ("Order", "differs"),
            ("Price", "a"),
            ("Approval", "b"),
        ]
        same = await served.get("/compare?a=a&b=a")
        assert (same["first"], same["nodes"]) == (None, [])
        assert (await served.get("/compare?a=a&b=a&same=true"))["total"] == 2


async def test_a_replay_shows_whether_the_code_takes_the_same_path():
    async with serving() as served:
        await served.start(count=2, run_id="one")
        replay = await served.post("/runs/one/replay")
        assert (replay["outcome"], replay["trace"]) == ("same", ["Order", "Price"])
        journal = served.journal
    async with serving(journal, graphs={"orders": orders_with("count * 2", "count * 3")}) as served:
        replay = await served.post("/runs/one/replay")
        assert (replay["outcome"], replay["code"]) == ("differs", "bae-replay-diverged")
        assert "euros" in replay["diff"]


async def test_a_graph_is_shown_with_a_layout_and_its_tools():
    async with serving(graphs={"shop": shop}) as served:
        graph_info = await served.get("/graphs/shop")
        assert [box["node"] for box in graph_info["boxes"]] == graph_info["nodes"]
        assert all(box["width"] > 0 and box["height"] > 0 for box in graph_info["boxes"])
        [edge] = graph_info["edges"]
        assert (edge["source"], edge["target"], edge["chosen_by"]) == (
            "Wish",
            "Advice",
            "certain",
        )
        assert len(edge["line"]) >= 2
        [tool] = graph_info["tools"]
        assert (tool["node"], tool["name"]) == ("Advice", "get_price")
        assert [*tool["arguments"]["properties"]] == ["sku"]
        wish, advice = graph_info["classes"]
        assert (wish["node"], wish["ending"], wish["fields"][0]["source"]) == (
            "Wish",
            "never",
            "given",
        )
        assert {field["source"] for field in advice["fields"]} >= {"tools"}
        [prompt] = (await served.get("/graphs/shop/prompts"))["prompts"]
        assert (prompt["source"], prompt["target"], prompt["tools"]) == (
            "Wish",
            "Advice",
            ["get_price"],
        )
        assert prompt["system"]
        assert "sample Wish" in prompt["messages"][0]["text"]


class Card(BaseModel):
    """A card of a customer."""

    number: str = Field(description="16 digits")


class Cash(BaseModel):
    euros: int


class Payment(Node):
    by: Card | Cash

    async def __call__(self) -> None: ...


async def test_a_start_form_has_the_class_names_of_a_union():
    async with serving(graphs={"pay": Graph(start=Payment, end=Payment)}) as served:
        schema = (await served.get("/graphs/pay"))["start_schema"]
        card, cash = schema["properties"]["by"]["anyOf"]
        assert (schema["title"], card["title"], cash["title"]) == ("Payment", "Card", "Cash")
        assert card["properties"]["number"] == {"type": "string", "description": "16 digits"}
        assert "description" not in card  # docstrings are for people who read the code


class HouseModel(Backend):
    """A model without a known price. Its first answer is wrong."""

    model = "house-1"

    async def answer(self, prompt: Prompt) -> Answer:
        text = '{"text": "Dry."}' if prompt.corrections else '{"text": 7}'
        return Answer(text, Usage(1, 100, 20, cost=None))


async def test_a_call_shows_its_prompts_and_attempts():
    async with serving(graphs={"talk": talk}, lm=HouseModel()) as served:
        body = {"start": {"question": "Weather?"}, "run_id": "one"}
        await served.post("/graphs/talk/runs?wait=10", body)
        page = await served.get("/runs/one/calls")
        assert (page["total"], page["calls"][0]["answers"]) == (1, None)
        call = await served.get("/runs/one/calls/0")
        assert [answer["verdict"] for answer in call["answers"]] == ["invalid", "valid"]
        assert all("Weather?" in answer["asked"] for answer in call["answers"])
        short = await served.get("/runs/one/calls/0?cut=5")
        assert "more characters" in short["answers"][0]["asked"]
        run = await served.get("/runs/one")
        assert (run["usage"]["attempts"], run["usage"]["input_tokens"]) == (2, 200)
        [row] = (await served.get("/runs"))["runs"]
        assert [entry["cost"] for entry in (row, run["usage"], call["usage"])] == [None] * 3


async def test_a_run_has_its_node_limit_and_the_budgets_of_the_server():
    outer = Budget(calls=500, scope="day")
    lm = Budgeted(HouseModel(), Budget(calls=50, tokens=10_000, within=outer))
    async with serving(graphs={"talk": talk}, lm=lm, max_iters=7) as served:
        body = {"start": {"question": "Weather?"}, "run_id": "one"}
        await served.post("/graphs/talk/runs?wait=10", body)
        run = await served.get("/runs/one")
        assert run["max_iters"] == 7
        spent = [{"name": "calls", "spent": 2.0, "limit": 50.0}]
        spent += [{"name": "tokens", "spent": 240.0, "limit": 10_000.0}]
        assert run["budgets"] == [
            {"scope": "day", "limits": [{"name": "calls", "spent": 2.0, "limit": 500.0}]},
            {"scope": "budget", "limits": spent},
        ]


async def test_a_run_with_fallback_lms_lists_only_their_shared_budgets():
    day = Budget(calls=500, scope="day")
    first = Budgeted(HouseModel(), Budget(calls=50, scope="first", within=day))
    second = Budgeted(HouseModel(), Budget(calls=70, scope="second", within=day))
    async with serving(graphs={"talk": talk}, lm=Fallback(first, second)) as served:
        body = {"start": {"question": "Weather?"}, "run_id": "one"}
        await served.post("/graphs/talk/runs?wait=10", body)
        assert [budget["scope"] for budget in (await served.get("/runs/one"))["budgets"]] == ["day"]
