"""`bae mcp`: the servers of a graph with their tools, and a graph as a server, which the client of
the official SDK and bae's own call."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Annotated, Any

import pytest

pytest.importorskip("mcp")
pytest.importorskip("typer")

from mcp import Client, StdioServerParameters
from pydantic import Field

from bae import (
    MCP,
    Dep,
    Document,
    Gate,
    Graph,
    Image,
    Node,
    Recall,
    ToolCall,
    Tools,
    ToolServerError,
)
from bae.journal import SQLiteJournal
from bae.mcp import GraphServer
from bae.mcp.listing import read_result
from bae.testing import Call, MCPLoopback, ScriptedLM
from bae.tools import report
from end_node import EndNode
from file_parts import DOT, NOTE, PAPER, png

pytestmark = pytest.mark.once

APP = """
from __future__ import annotations
import os
from bae import Graph, Node

print("printed while the module is imported")


class Ask(Node):
    question: str
    times: int = 1

    async def __call__(self) -> Reply:
        print("printed by a node")
        os.system("echo printed by a child")
        if self.question == "fail":
            raise ValueError("nothing works")
        return Reply(text=f"{self.question}!" * self.times)


class Reply(Node):
    text: str

    async def __call__(self) -> None: ...


graph = Graph(start=Ask, end=Reply)
"""

SERVE = ["-m", "bae", "mcp", "serve", "app.py", "--journal", "runs.db"]


async def test_an_mcp_sdk_client_calls_a_served_graph(folder: Path):
    strays: list[Any] = []
    progress: list[str | None] = []

    async def heard(message: Any) -> None:
        if isinstance(message, Exception):  # a line that is no message
            strays.append(message)

    async def note(done: float, total: float | None, message: str | None) -> None:
        progress.append(message)

    served = StdioServerParameters(command=sys.executable, args=SERVE, cwd=folder)
    async with Client(served, message_handler=heard) as client:
        (tool,) = (await client.list_tools()).tools
        assert (tool.name, tool.input_schema["required"]) == ("Ask", ["question"])
        made = await client.call_tool("Ask", {"question": "hi", "times": 2}, progress_callback=note)
        assert made.structured_content == {"text": "hi!hi!"}
        assert json.loads(made.content[0].text) == {"text": "hi!hi!"}
        failed = await client.call_tool("Ask", {"question": "fail"})
        wrong = await client.call_tool("Ask", {"times": "x"})
    assert failed.is_error
    assert "ValueError: nothing works" in failed.content[0].text
    assert "Traceback" not in failed.content[0].text
    assert wrong.is_error
    assert "question: Field required" in wrong.content[0].text
    assert strays == []
    assert progress == ["Ask", "Reply"]
    async with SQLiteJournal(folder / "runs.db") as journal:
        assert made.meta is not None
        stored = await journal.read(made.meta["bae/run_id"])
        assert stored.info.status == "ended"


async def test_a_graph_calls_a_served_graph(folder: Path):
    class Question(Node):
        text: str

        async def __call__(self) -> Answer: ...

    class Answer(EndNode):
        calls: Annotated[
            list[ToolCall], Tools(MCP.stdio(sys.executable, *SERVE, cwd=folder, name="inner"))
        ]
        text: str

    Question.__call__.__annotations__["return"] = Answer
    graph = Graph(start=Question, end=Answer)
    lm = ScriptedLM([[Call("Ask", question="a"), Call("Ask", question="fail")], {"text": "b"}])
    result = await graph.arun(Question(text="?"), lm)
    good, bad = result.result.calls
    assert good.result == {"text": "a!"}
    assert "nothing works" in str(bad.error)


# --- a graph as a server, in one process ---------------------------------------------------------


class Order(Node):
    item: str

    async def __call__(self) -> Receipt: ...


async def look_up(item: Annotated[str, Recall(Order)]) -> str:
    """Look the item up."""
    if item == "half":
        report("\ud800")
    report("looking", 1, 3)
    return f"{item} costs 3"


class Receipt(EndNode):
    calls: Annotated[list[ToolCall], Tools(look_up)]
    text: str


async def test_progress_of_nodes_and_tools_reaches_the_client():
    heard: list[tuple[float, str | None]] = []

    async def note(done: float, total: float | None, message: str | None) -> None:
        heard.append((done, message))

    lm = ScriptedLM([[Call("look_up")], {"text": "paid"}])
    async with Client(GraphServer(Graph(start=Order, end=Receipt), lm).server) as client:
        made = await client.call_tool("Order", {"item": "tea"}, progress_callback=note)
    assert made.structured_content is not None
    assert made.structured_content["text"] == "paid"
    assert heard == [(1, "Order"), (2, "calls look_up"), (3, "looking (1/3)"), (4, "Receipt")]


class Scan(Node):
    page: int

    async def __call__(self) -> Scanned:
        hidden = Image.from_bytes(png(3, 3))
        return Scanned(photos=[DOT], papers=[NOTE, PAPER], hidden=hidden)


class Scanned(EndNode):
    photos: list[Image]
    papers: list[Document]
    hidden: Image = Field(repr=False)


async def test_a_client_gets_the_files_of_a_result_as_content():
    async with Client(GraphServer(Graph(start=Scan, end=Scanned)).server) as client:
        made = await client.call_tool("Scan", {"page": 1})
    assert made.structured_content["photos"] == [DOT.as_json()]
    text, image, note, paper = made.content
    assert json.loads(text.text) == made.structured_content
    assert (image.data, image.mime_type) == (DOT.base64, "image/png")
    assert (note.resource.text, note.resource.mime_type) == (NOTE.text, "text/plain")
    assert (paper.resource.blob, paper.resource.mime_type) == (PAPER.base64, "application/pdf")
    assert read_result(made, "Scan")[-1].data == DOT.data  # as bae reads it


class Strange(EndNode):
    item: str

    async def __call__(self) -> None:
        if self.item == "cancel":
            raise asyncio.CancelledError
        self.item = "\ud800"


HALF = "\N{REPLACEMENT CHARACTER}"


async def test_unsendable_results_and_cancelled_runs_do_not_end_the_server():
    heard: list[str | None] = []

    async def note(done: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    async with Client(GraphServer(Graph(start=Strange)).server) as client:
        cancelled = await client.call_tool("Strange", {"item": "cancel"})
        half = await client.call_tool("Strange", {"item": "x"})
        wrong = await client.call_tool("Strange", {"\ud800": "x"})
    assert (cancelled.is_error, wrong.is_error) == (True, True)
    assert cancelled.content[0].text == "the run was cancelled"
    assert half.structured_content == {"item": HALF}
    lm = ScriptedLM([[Call("look_up")], {"text": "paid"}])
    async with Client(GraphServer(Graph(start=Order, end=Receipt), lm).server) as client:
        made = await client.call_tool("Order", {"item": "half"}, progress_callback=note)
    assert not made.is_error
    assert HALF in heard


def test_a_signal_ends_a_server_whose_client_stopped_reading(folder: Path):
    about = {"protocolVersion": "2025-06-18", "capabilities": {}}
    about["clientInfo"] = {"name": "a", "version": "1"}
    call = {"name": "Ask", "arguments": {"question": "long " * 100, "times": 2_000}}
    asked = [("initialize", 1, about), ("notifications/initialized", None, {})]
    command = [sys.executable, *SERVE[:5], "--no-journal"]
    with Popen(command, cwd=folder, stdin=PIPE, stdout=PIPE, stderr=DEVNULL) as served:
        assert served.stdin is not None
        assert served.stdout is not None
        for method, id, params in [*asked, ("tools/call", 2, call)]:
            said = {"jsonrpc": "2.0", "method": method, "params": params}
            sent = said if id is None else {**said, "id": id}
            served.stdin.write(json.dumps(sent).encode() + b"\n")
            served.stdin.flush()
        served.stdout.readline()
        served.stdout.read(1024)  # the answer is being written: no more of it is read
        served.terminate()
        try:
            assert served.wait(20) == 143
        finally:
            served.kill()


async def test_a_cancelled_mcp_call_cancels_the_run_and_closes_its_resources():
    begun, closed = asyncio.Event(), asyncio.Event()

    async def stall() -> AsyncGenerator[int]:
        begun.set()
        try:
            await asyncio.Event().wait()
            yield 1
        finally:
            await asyncio.sleep(0)
            closed.set()

    class Slow(EndNode):
        item: str
        value: Annotated[int, Dep(stall)]

    async with Client(GraphServer(Graph(start=Slow)).server) as client:
        call = asyncio.create_task(client.call_tool("Slow", {"item": "tea"}))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await closed.wait()


async def test_a_run_that_waits_for_a_person_is_an_error_that_shows_how_to_answer(tmp_path):
    class Refund(EndNode):
        amount: int
        ok: Annotated[bool, Gate("Pay it?")]

    graph = Graph(start=Refund)
    async with Client(GraphServer(graph).server) as client:
        made = await client.call_tool("Refund", {"amount": 3})
    assert made.is_error
    assert "Refund.ok: Pay it?" in made.content[0].text
    assert "with a journal" in made.content[0].text
    async with (
        SQLiteJournal(tmp_path / "runs.db") as journal,
        Client(GraphServer(graph, journal=journal).server) as client,
    ):
        made = await client.call_tool("Refund", {"amount": 3})
    assert made.meta is not None
    assert f"bae runs answer {made.meta['bae/run_id']}" in made.content[0].text


async def test_an_unknown_tool_of_an_mcp_server_is_an_error():
    async with Client(
        GraphServer(Graph(start=Order, end=Receipt), ScriptedLM([])).server
    ) as client:
        made = await client.call_tool("Other", {})
    assert made.is_error
    assert "there is: Order" in made.content[0].text


def test_a_graph_whose_start_node_has_no_json_form_is_refused():
    class Handle:
        pass

    class Start(EndNode):
        model_config = {"arbitrary_types_allowed": True}
        handle: Handle

    with pytest.raises(ToolServerError, match="cannot be served") as info:
        GraphServer(Graph(start=Start))
    assert info.value.code == "bae-mcp-serve"


# --- list ----------------------------------------------------------------------------------------

USES = """
from __future__ import annotations
from typing import Annotated
from bae import MCP, Graph, Node, ToolCall, Tools


class Reply(Node):
    calls: Annotated[list[ToolCall], Tools({servers})]
    text: str

    async def __call__(self) -> None: ...


class Question(Node):
    text: str

    async def __call__(self) -> Reply: ...


graph = Graph(start=Question, end=Reply)
"""


def test_the_servers_of_a_graph_are_listed_with_their_tools(bae: Callable[..., Any], folder: Path):
    with MCPLoopback("hostile-list") as loopback:
        words = ", ".join(map(repr, loopback.command()))
        servers = f"MCP.stdio({words}, name='good', only=['echo']), MCP.stdio('no-such-thing')"
        (folder / "uses.py").write_text(USES.format(servers=servers))
        done = bae("mcp", "list", "uses.py")
        assert done.code == 1
        assert "good" in done.out
        assert "echo" in done.out
        assert "\x1b[2J" not in done.out
        assert "Reply.calls" in done.out
        assert "there is no program no-such-thing" in done.err
        data = bae("mcp", "list", "uses.py", "--json").data
    good, bad = data["servers"]
    assert (good["name"], good["fields"], good["error"]) == ("good", ["Reply.calls"], None)
    assert [tool["name"] for tool in good["tools"]] == ["echo"]
    assert good["tools"][0]["schema"]["required"] == ["text"]
    assert bad["error"]["code"] == "bae-mcp-open"


def test_a_graph_without_servers_lists_no_servers_and_a_mistyped_option_is_wrong_usage(
    bae: Callable[..., Any], folder: Path
):
    done = bae("mcp", "list", "app.py", "--json")
    assert (done.code, done.data) == (0, {"servers": []})
    assert bae("mcp", "list", "app.py", "--timout", "3").code == 2
    assert bae("mcp", "list", "app.py", "--timeout", "0").code == 2
    assert bae("mcp", "serve", "nothing.py").code == 1
