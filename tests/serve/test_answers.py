"""People over HTTP: approvals of tool calls, the inbox, and who may see what waits."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import pytest
from websockets.asyncio.client import connect

from bae import Graph, Node, Tool, ToolCall, Tools
from bae.journal import MemoryJournal
from bae.serve import API
from bae.testing import Call, ScriptedLM
from serving import TOKEN, serving

SENT: list[int] = []


async def refund(euros: int) -> str:
    """Send money back."""
    SENT.append(euros)
    return f"sent {euros}"


class Complaint(Node):
    text: str

    async def __call__(self) -> Reply: ...


class Reply(Node):
    calls: Annotated[list[ToolCall], Tools(Tool(refund, approve="Send this refund?"))]
    text: str

    async def __call__(self) -> None: ...


refunds = Graph(start=Complaint, end=Reply, name="refunds")
START = {"start": {"text": "It is wet."}, "run_id": "refund"}


def asks(*calls: Call) -> dict[str, Any]:
    lm = ScriptedLM([[call] for call in calls] + [{"text": "Done."}])
    return {"graphs": {"refunds": refunds}, "lm": lm}


@pytest.mark.parametrize(
    ("decision", "sent"),
    [
        ({"decision": "approve"}, [20]),
        ({"decision": "edit", "arguments": {"euros": 5}}, [5]),
        ({"decision": "refuse", "reason": "Too much."}, []),
    ],
    ids=["approve", "edit", "refuse"],
)
async def test_a_tool_call_is_approved_edited_or_refused(decision: dict[str, Any], sent: list[int]):
    SENT.clear()
    async with serving(**asks(Call("refund", euros=20))) as served:
        await served.post("/graphs/refunds/runs?wait=10", START)
        [gate] = (await served.get("/inbox"))["gates"]
        assert (gate["kind"], gate["tool"], gate["question"]) == (
            "approval",
            "refund",
            "Send this refund? refund(euros=20)",
        )
        assert gate["context"]["euros"]["value"] == 20
        assert gate["answer_schema"]["properties"]["approve"]
        await served.post("/runs/refund/answers", {"gate": gate["gate"], **decision})
        [end] = [data async for kind, _, data in served.events("refund") if kind == "end"]
        assert (end["reason"], SENT) == ("ended", sent)
        late = {"gate": gate["gate"], "decision": "approve", "scope": "run"}
        refused = (await served.client.post("/runs/refund/answers", json=late)).json()
        assert refused["answered_by"] == "ana"
        assert refused["answer"]["value"]["approve"] is (decision["decision"] != "refuse")
        await served.post("/runs/refund/answers", {"gate": gate["gate"], **decision})  # is equal
    if decision["decision"] == "refuse":
        [call] = (await call_of(served.journal)).calls
        assert "Too much." in str(call.error)


async def call_of(journal: Any) -> Reply:
    return (await refunds.resume("refund", journal=journal)).result


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"decision": "edit"}, ["body", "arguments"]),
        ({"decision": "edit", "arguments": {"euros": "lots"}}, ["body", "arguments", "euros"]),
        ({"decision": "perhaps"}, ["body", "decision"]),
        ({"arguments": {"euros": 1}}, ["body", "decision"]),
        ({"decision": "refuse", "scope": "run"}, ["body"]),
    ],
    ids=range(5),
)
async def test_an_invalid_decision_is_refused_without_a_tool_call(
    body: dict[str, Any], loc: list[str]
):
    SENT.clear()
    async with serving(**asks(Call("refund", euros=20))) as served:
        run = await served.post("/graphs/refunds/runs?wait=10", START)
        gate = run["waiting"][0]["gate"]
        refused = await served.client.post("/runs/refund/answers", json={"gate": gate, **body})
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["loc"][: len(loc)] == loc
        assert SENT == []
        assert len((await served.get("/inbox"))["gates"]) == 1


async def test_an_approval_for_the_run_applies_to_its_later_calls():
    SENT.clear()
    async with serving(**asks(Call("refund", euros=1), Call("refund", euros=2))) as served:
        run = await served.post("/graphs/refunds/runs?wait=10", START)
        answer = {"gate": run["waiting"][0]["gate"], "decision": "approve", "scope": "run"}
        await served.post("/runs/refund/answers", answer)
        [end] = [data async for kind, _, data in served.events("refund") if kind == "end"]
        assert (end["reason"], SENT) == ("ended", [1, 2])


async def test_an_unknown_gate_or_run_is_not_found():
    async with serving() as served:
        await served.start(count=20, run_id="asks")
        for run, gate, code in (
            ("asks", "1:Approval.other", "bae-gate-unknown"),
            ("none", "1:Approval.approved", "bae-run-unknown"),
        ):
            refused = await served.client.post(f"/runs/{run}/answers", json={"gate": gate})
            assert (refused.status_code, refused.json()["type"]) == (404, code)


async def test_the_inbox_has_pages_with_the_oldest_question_first():
    async with serving() as served:
        for number in range(5):
            await served.start(count=20, run_id=f"asks-{number}")
        found, after = [], ""
        while True:
            page = await served.get(f"/inbox?limit=2{after}")
            found += [gate["run_id"] for gate in page["gates"]]
            if page["next"] is None:
                break
            after = f"&after={page['next']!r}"
        assert found == [f"asks-{number}" for number in range(5)]


class Counting(MemoryJournal):
    """Counts the entries that it lists."""

    listed = 0

    async def runs(self, **query: Any) -> Any:
        runs = await super().runs(**query)
        self.listed += len(runs)
        return runs


@pytest.mark.parametrize("path", ["/runs", "/inbox", "/threads"])
async def test_invisible_runs_are_filtered_by_the_store(path: str):
    journal = Counting()
    async with serving(journal, visible="own", recover=False) as served:
        for number in range(5):
            await served.start(count=20, run_id=f"asks-{number}", thread=f"t-{number}")
        ben = {"authorization": "Bearer ben"}
        body = {"start": {"sku": "x", "count": 20}, "run_id": "ben", "thread": "ben"}
        await served.client.post("/graphs/orders/runs?wait=10", json=body, headers=ben)
        journal.listed = 0
        page = (await served.client.get(path, headers=ben)).json()
        assert [len(items) for items in page.values() if isinstance(items, list)] == [1]
        assert journal.listed <= 2


async def test_waiting_requests_are_answered_when_the_server_stops():
    async with serving() as served, asyncio.timeout(20):
        async with connect(served.ws()) as socket:
            await socket.send(json.dumps({"token": TOKEN}))
            await socket.send(json.dumps({"sub": 1, "feed": "runs", "after": "now"}))
            await socket.recv()
            body = {"run_id": "held", "thread": "t", "start": {"name": "held-at-stop"}}
            post = served.client.post
            first = asyncio.create_task(post("/graphs/slow/runs?wait=300", json=body))
            while not json.loads(await socket.recv()).get("items"):
                pass  # until the run is in the list
        after = {"run_id": "next", "thread": "t", "busy": "wait", "start": {"name": "next"}}
        second = asyncio.create_task(post("/graphs/slow/runs", json=after))
        while "next" not in served.api.owner.run_ids:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        served.api.close()
        assert [(await response).status_code for response in (first, second)] == [202, 503]
        assert (await second).json()["type"] == "bae-serve-closing"
    assert [run.run_id for run in await served.journal.runs()] == ["held"]
    assert (await served.journal.read("held")).info.standing() == "interrupted"


async def test_a_stopping_server_accepts_no_run_and_keeps_answers():
    async with serving() as served:
        await served.start(count=20, run_id="asks")
        api: API = served.api
        api.close()
        refused = await served.client.post("/graphs/orders/runs", json={"start": {"sku": "x"}})
        assert (refused.status_code, refused.json()["type"]) == (503, "bae-serve-closing")
        assert refused.headers["retry-after"]
        answer = {"gate": "1:Approval.approved", "value": True}
        await served.post("/runs/asks/answers", answer)
        await asyncio.sleep(0)
    stored = await served.journal.read("asks")
    assert (stored.info.status, stored.info.can_continue()) == ("waiting", True)
