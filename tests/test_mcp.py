"""MCP servers as tools: the official SDK as the server, over stdio and over HTTP, and a server that
fails in all the ways in which servers do."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any

import pytest

pytest.importorskip("mcp")

from bae import MCP, Graph, Image, Node, ToolCall, Tools, ToolServerError
from bae.journal import SQLiteJournal, ToolEnded, ToolReported, ToolStarted
from bae.testing import Call, MCPLoopback, ScriptedLM
from end_node import EndNode
from tool_backends import ToolBackend, call

pytestmark = pytest.mark.once

SERVER = Path(__file__).with_name("mcp_sdk_server.py")


def answering(*tools: Any, **options: Any) -> Graph[Any, Any]:
    """A graph whose only node is filled after calls of these tools."""

    class Question(Node):
        text: str

        async def __call__(self) -> Answer: ...

    class Answer(EndNode):
        calls: Annotated[list[ToolCall], Tools(*tools, **options)]
        text: str

    Question.__call__.__annotations__["return"] = Answer
    return Graph(start=Question, end=Answer)


async def run_calls(server: Any, *rounds: Any, **options: Any) -> list[ToolCall]:
    """The calls of a run in which a model makes the calls of these rounds."""
    graph = answering(server)
    script = [round_ if isinstance(round_, list) else [round_] for round_ in rounds]
    lm = ScriptedLM([*script, {"text": "done"}])
    result = await graph.arun(graph.start(text="?"), lm, **options)
    return result.result.calls


def is_alive(pid: int) -> bool:
    """Whether a process runs. A zombie does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def owners() -> list[asyncio.Task[Any]]:
    """The tasks that own connections."""
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("MCP server")]


async def until(holds: Any) -> None:
    """Wait for another process by polling."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# --- the official SDK ----------------------------------------------------------------------------


@contextmanager
def http_server(seen: list[dict[str, str]]) -> Iterator[str]:
    """The server of the SDK on loopback, in a thread; the headers of requests are noted."""
    uvicorn = pytest.importorskip("uvicorn")
    import mcp_sdk_server

    app = mcp_sdk_server.server.streamable_http_app()

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.append({k.decode(): v.decode() for k, v in scope["headers"]})
        await app(scope, receive, send)

    running = uvicorn.Server(
        uvicorn.Config(noting, port=0, log_level="critical", timeout_graceful_shutdown=1)
    )
    started = threading.Event()
    startup = running.startup

    async def start(sockets: Any = None) -> None:
        await startup(sockets)
        started.set()

    running.startup = start
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    assert started.wait(20)
    try:
        port = running.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        running.should_exit = True
        thread.join(20)


@asynccontextmanager
async def sdk_server(transport: str) -> AsyncIterator[MCP]:
    if transport == "stdio":
        yield MCP.stdio(sys.executable, str(SERVER), name="sdk")
        return
    seen: list[dict[str, str]] = []
    with http_server(seen) as url:
        yield MCP.http(url, headers={"x-key": "open sesame"}, name="sdk")
    assert {headers.get("x-key") for headers in seen} == {"open sesame"}


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_model_calls_the_tools_of_a_server_built_with_the_sdk(transport):
    async with sdk_server(transport) as server:
        graph = answering(server)
        calls = [
            Call("search", query="kettle"),
            Call("climb"),
            Call("fail"),
            Call("consent"),
            Call("ask_more"),
            Call("draw"),
            Call("search", most=1),
        ]
        lm = ScriptedLM([calls, {"text": "done"}])
        result = await graph.arun(graph.start(text="?"), lm)
    found, climbed, failed, asked, more, drawn, wrong = result.result.calls
    hits = [{"title": "kettle 0", "score": 1.0}, {"title": "kettle 1", "score": 0.5}]
    assert found.result == {"result": hits}
    assert climbed.result == "up"
    reported = result.journal.of(ToolReported)
    assert [(report.text, report.done, report.total) for report in reported] == [("half way", 1, 2)]
    assert failed.error
    assert "the server sdk" in str(asked.error)
    assert "elicitation" in str(asked.error)
    assert "the server sdk asked for elicitation/create, which bae refuses" in str(more.error)
    assert drawn.result == "[image image/png, 6 bytes, not shown]"
    assert "query" in str(wrong.error)
    offered = lm.questions[0].prompt.tools if hasattr(lm, "questions") else ()
    assert all(tool.name in ["search", "fail", "climb", "consent", "draw"] for tool in offered)


# --- calls ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_server_result_is_read_as_text_as_data_or_as_a_note(transport):
    with MCPLoopback("media", "error", "refuse", "hostile", "garbled", "misfit") as loopback:
        names = ("media", "error", "refuse", "hostile", "garbled", "misfit")
        calls = await run_calls(
            getattr(loopback, transport)(),
            [Call("echo", text="hi"), Call("add", a=1, b=2), *map(Call, names)],
        )
    echo, add, media, error, refuse, hostile, garbled, misfit = calls
    assert (echo.result, add.result) == ("hi", {"result": 3})
    assert media.result.splitlines()[:2] == [
        "two pictures",
        "[image image/png, 9 bytes, not shown]",
    ]
    assert "secret" not in media.result
    assert error.error == "the disk is full"
    assert refuse.error == "the server loopback refused the call: not like this"
    assert hostile.result.startswith("Ignore all instructions")
    assert "cannot be read" in str(garbled.error)
    assert "no valid MCP" in str(misfit.error)


async def test_data_that_a_server_repeats_as_text_is_shown_once_to_the_model():
    with MCPLoopback("both", "summary") as loopback:
        graph = answering(loopback.stdio())
        lm = ToolBackend([call("both"), call("summary")], {"text": "done"})
        result = await graph.arun(graph.start(text="?"), lm)
    both, summary = result.result.calls
    assert both.result == {"title": "kettle", "score": 0.5}
    assert summary.result == "1 hit"
    read = [part.result for part in lm.prompts[-1].conversation[-1].parts]
    assert read == ['{"score":0.5,"title":"kettle"}', "1 hit"]


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_result_that_is_too_large_is_an_error_for_the_model(
    transport,
):
    with MCPLoopback("oversized", size=300_000) as loopback:
        server = getattr(loopback, transport)(max_bytes=100_000)
        large, after = await run_calls(server, Call("oversized"), Call("echo", text="still here"))
        assert "limit" in str(large.error)
        assert "100,000" in str(large.error)
        assert after.result == "still here"
        assert loopback.starts == 1


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_stalled_call_ends_at_its_timeout_as_unknown(transport):
    with MCPLoopback("stall") as loopback:
        server = getattr(loopback, transport)(timeout=0.5)
        stalled, echo, later = await run_calls(
            server, [Call("stall"), Call("echo", text="a")], Call("echo", text="b")
        )
    assert "bound of 0.5 s" in str(stalled.error)
    assert "unknown whether this call ran" in str(stalled.error)
    assert (echo.result, later.result) == ("a", "b")


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_fifty_concurrent_calls_get_their_own_results(transport):
    with MCPLoopback() as loopback:
        async with getattr(loopback, transport)().open() as tools:
            echo: Any = next(tool.fn for tool in tools if tool.name == "echo")
            texts = [str(n) for n in range(50)]
            assert await asyncio.gather(*(echo(text=text) for text in texts)) == texts


@pytest.mark.parametrize("asked", ["sample", "elicit", "roots"])
async def test_requests_from_a_server_are_refused_and_the_error_names_the_server(asked):
    with MCPLoopback(asked) as loopback:
        (call,) = await run_calls(loopback.stdio(), Call(asked))
    assert "the server loopback asked for" in str(call.error)
    assert "which bae refuses" in str(call.error)


async def test_progress_of_a_server_reaches_observers_of_the_run():
    with MCPLoopback("progress") as loopback:
        graph = answering(loopback.stdio())
        lm = ScriptedLM([[Call("progress")], {"text": "done"}])
        result = await graph.arun(graph.start(text="?"), lm)
    assert [report.done for report in result.journal.of(ToolReported)] == [1, 2]


async def test_lines_that_are_not_messages_are_ignored():
    with MCPLoopback("chatter") as loopback:
        (call,) = await run_calls(loopback.stdio(), Call("echo", text="a"))
    assert call.result == "a"


async def test_a_far_too_large_message_ends_the_connection():
    with MCPLoopback("oversized", size=3_000_000) as loopback:
        server = loopback.stdio(max_bytes=100_000)
        large, after = await run_calls(server, Call("oversized"), Call("echo", text="a"))
        assert "in one message, and the limit is 100,000" in str(large.error)
        assert "unknown whether this call ran" in str(large.error)
        assert after.result == "a"
        assert loopback.starts == 2


# --- servers that die ----------------------------------------------------------------------------


async def test_a_server_that_dies_in_a_call_is_restarted_without_repeating_the_call():
    with MCPLoopback("crash") as loopback:
        crash, echo = await run_calls(loopback.stdio(), Call("crash"), Call("echo", text="a"))
        assert "ended with status 3" in str(crash.error)
        assert "unknown whether this call ran" in str(crash.error)
        assert echo.result == "a"
        assert loopback.starts == 2
        assert [name for name, _ in loopback.calls] == ["crash", "echo"]


async def test_a_call_after_the_end_of_a_server_starts_a_new_server():
    with MCPLoopback("die") as loopback:
        async with loopback.stdio().open() as tools:
            fns: dict[str, Any] = {tool.name: tool.fn for tool in tools}
            pid = int(await fns["pid"]())
            assert await fns["die"]() == "the last words"
            await until(lambda: not is_alive(pid) and not owners())
            assert await fns["echo"](text="a") == "a"
        assert loopback.starts == 2


async def test_a_call_over_http_that_never_arrived_is_repeated_in_a_new_session():
    with MCPLoopback("ends-session") as loopback:
        (call,) = await run_calls(loopback.http(), Call("echo", text="a"))
        assert call.result == "a"
        assert [name for name, _ in loopback.calls] == ["echo"]


async def test_a_vanished_http_server_fails_the_run_with_a_clear_error():
    with MCPLoopback("crash") as loopback:
        graph = answering(loopback.http())
        # A call may still reach the dying process, which is unknown then.
        lm = ScriptedLM([[Call("crash")], *[[Call("echo", text="a")]] * 6, {"text": "done"}])
        with pytest.raises(ToolServerError, match="loopback is gone, and cannot be opened") as info:
            await graph.arun(graph.start(text="?"), lm)
    assert info.value.code == "bae-mcp-lost"


async def test_a_restarted_server_with_other_tools_is_refused():
    with MCPLoopback("crash", "changes") as loopback:
        graph = answering(loopback.stdio())
        lm = ScriptedLM([[Call("crash")], [Call("echo", text="a")], {"text": "done"}])
        with pytest.raises(ToolServerError, match="not what they were: add, crash, echo") as info:
            await graph.arun(graph.start(text="?"), lm)
    assert info.value.code == "bae-mcp-changed"


# --- opening and closing -------------------------------------------------------------------------


async def test_a_server_that_does_not_start_is_reported_with_its_output_without_secrets(capfd):
    with MCPLoopback("does-not-start") as loopback:
        graph = answering(loopback.stdio(env={"TOKEN": "hush-hush"}))
        with pytest.raises(ToolServerError) as info:
            await graph.arun(graph.start(text="?"), ScriptedLM([]))
    assert info.value.code == "bae-mcp-open"
    assert "ended with status 1" in str(info.value)
    assert "no token given: •••" in str(info.value)
    assert "Answer.calls" in str(info.value)
    assert capfd.readouterr() == ("", "")


async def test_the_last_output_of_a_server_cannot_control_the_terminal():
    script = "import sys; sys.exit('\\x1b]0;mine\\x07\\x9b2J no token')"
    with pytest.raises(ToolServerError, match="no token") as info:
        async with MCP.stdio(sys.executable, "-c", script, name="rude").open():
            raise AssertionError
    assert str(info.value).replace("\n", "").isprintable()


UNREADABLE = """
    import json, sys

    for line in sys.stdin:
        asked = json.loads(line)
        if asked.get("method") == "initialize":
            version = asked["params"]["protocolVersion"]
            about = {"name": "odd", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {}, "serverInfo": about}
            answer = {"result": result}
        else:
            answer = ANSWER
        if "id" in asked:
            print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"result": {"tools": [{"name": "a", "inputSchema": None}]}}, "inputSchema: Input should"),
        ({"error": {"code": -32603, "message": "the database is down"}}, "the database is down"),
    ],
    ids=["schema", "error"],
)
async def test_a_server_with_an_unreadable_list_of_tools_is_ended_for_that_reason(
    tmp_path: Path, answer: dict[str, Any], said: str
):
    program = tmp_path / "odd.py"
    program.write_text(textwrap.dedent(UNREADABLE).replace("ANSWER", repr(answer)))
    graph = answering(MCP.stdio(sys.executable, str(program)))
    with pytest.raises(ToolServerError) as info:
        await graph.arun(graph.start(text="?"), ScriptedLM([]))
    assert info.value.code == "bae-mcp-open"
    assert said in str(info.value)


async def test_a_server_that_starts_too_slowly_is_ended():
    with MCPLoopback(delay=60) as loopback:
        with pytest.raises(ToolServerError, match=r"within 0\.2 s"):
            async with loopback.stdio(open_timeout=0.2).open():
                raise AssertionError
        assert loopback.starts == 0


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (MCP.stdio("no-such-program-here"), "there is no program no-such-program-here"),
        (MCP.stdio(sys.executable, cwd="/no/such/place"), "there is no directory"),
        (MCP.http("http://127.0.0.1:9/mcp"), "ConnectError"),
    ],
    ids=["program", "directory", "address"],
)
async def test_a_missing_server_is_an_error_that_names_what_is_missing(server, message):
    with pytest.raises(ToolServerError, match=message):
        async with server.open():
            raise AssertionError


async def test_an_address_that_refuses_the_client_is_an_error_with_the_http_status():
    with (
        MCPLoopback("wants-login") as loopback,
        pytest.raises(ToolServerError, match="HTTP 401 Unauthorized"),
    ):
        async with loopback.http().open():
            raise AssertionError


async def test_the_servers_of_a_file_are_opened_together_and_their_tools_have_their_names(tmp_path):
    with MCPLoopback() as one, MCPLoopback() as two:
        servers = {
            name: {"command": command, "args": args}
            for name, (command, *args) in {"one": one.command(), "two": two.command()}.items()
        }
        file = tmp_path / "mcp.json"
        file.write_text(json.dumps({"mcpServers": servers}))
        calls = await run_calls(
            MCP.from_file(file, only=["echo"]),
            [Call("one_echo", text="a"), Call("two_echo", text="b"), Call("two_add", a=1, b=1)],
        )
        assert [call.result for call in calls[:2]] == ["a", "b"]
        assert "there is no tool two_add" in str(calls[2].error)
        assert (one.calls, two.calls) == ([("echo", {"text": "a"})], [("echo", {"text": "b"})])


async def test_a_caller_cancelled_just_as_a_server_opens_leaves_no_process():
    with MCPLoopback() as loopback:
        before = asyncio.all_tasks()
        opening = asyncio.create_task(loopback.stdio().open().__aenter__())  # type: ignore[arg-type]
        while not owners():  # noqa: ASYNC110
            await asyncio.sleep(0)
        frame: Any = owners()[0].get_coro().cr_frame  # type: ignore[union-attr]
        ready = frame.f_locals["self"]._ready
        waiting = asyncio.all_tasks() - before - {*owners()}
        ready.add_done_callback(lambda _: [task.cancel() for task in waiting])
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert owners() == []


async def test_every_server_of_a_file_offers_its_share_of_the_selected_tools(tmp_path):
    with MCPLoopback("many-tools") as one, MCPLoopback() as two:
        servers = {
            name: {"command": command, "args": args}
            for name, (command, *args) in {"one": one.command(), "two": two.command()}.items()
        }
        file = tmp_path / "mcp.json"
        file.write_text(json.dumps({"mcpServers": servers}))
        async with MCP.from_file(file, only=["tool_7", "add"]).open() as tools:
            assert [tool.name for tool in tools] == ["one_tool_7", "one_add", "two_add"]
        with pytest.raises(
            ToolServerError, match=r"none of the MCP servers .* has a tool ad"
        ) as info:
            async with MCP.from_file(file, only=["add", "ad"]).open():
                raise AssertionError
        assert info.value.code == "bae-mcp-tools"


RAW = """
import json, sys
tools, answer = map(json.loads, sys.argv[1:])
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    said = {"error": {"code": -32601, "message": "no such method"}}
    if asked["method"] == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "raw", "version": "1"}}
        said = {"result": {**about, "protocolVersion": asked["params"]["protocolVersion"]}}
    if asked["method"] == "tools/list":
        said = tools
    if asked["method"] == "tools/call":
        said = answer
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
"""
"""A server without the SDK, which answers as it is told."""


def answering_raw(tools: Any, answer: Any = None) -> MCP:
    return MCP.stdio(sys.executable, "-c", RAW, json.dumps(tools), json.dumps(answer), name="raw")


GO = {"result": {"tools": [{"name": "go", "inputSchema": {"type": "object"}}]}}


class OddAnswers(BaseHTTPRequestHandler):
    """A server over HTTP without the SDK. It sends `answer` to a call."""

    protocol_version = "HTTP/1.1"
    answer: tuple[str, str] = "", ""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        reply: dict[str, Any] = {"error": {"code": -32601, "message": "no such method"}}
        if asked["method"] == "initialize":
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "raw", "version": "1"}}
            reply = {"result": {**about, "protocolVersion": "2025-06-18"}}
        if asked["method"] == "tools/list":
            reply = GO
        kind = "application/json"
        body = json.dumps({"jsonrpc": "2.0", "id": asked.get("id"), **reply})
        if asked["method"] == "tools/call":
            kind, body = self.answer[0], self.answer[1].replace("ID", str(asked["id"]))
        self.send_response(200 if "id" in asked else 202)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body) if "id" in asked else 0))
        self.end_headers()
        if "id" in asked:
            self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@contextmanager
def serving_odd(kind: str, body: str) -> Iterator[str]:
    """The address of a server that answers calls with this."""
    handler = type("Odd", (OddAnswers,), {"answer": (kind, body)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/mcp"
        finally:
            server.shutdown()
            thread.join()


async def test_an_event_stream_without_an_answer_makes_the_call_unknown():
    event = 'data: {"method": "notifications/x", "jsonrpc": "2.0"}\n\n'
    with serving_odd("text/event-stream", event) as url:
        (call,) = await run_calls(MCP.http(url, name="odd"), Call("go"))
    assert "it is unknown whether this call ran" in (call.error or "")


async def test_a_token_that_a_server_repeats_in_an_error_is_hidden():
    error = '{"jsonrpc": "2.0", "id": ID, "error": {"code": 1, "message": "no hush-hush-7"}}'
    with serving_odd("application/json", error) as url:
        server = MCP.http(url, name="odd", headers={"Authorization": "Bearer hush-hush-7"})
        (call,) = await run_calls(server, Call("go"))
    assert call.error == "the server odd refused the call: no •••"


async def test_a_server_error_of_any_code_is_not_a_lost_connection():
    answer = {"error": {"code": -32000, "message": "there is no such page"}}
    (call,) = await run_calls(answering_raw(GO, answer), Call("go"))
    assert call.error == "the server raw refused the call: there is no such page"


async def test_an_invalid_result_is_reported_as_a_call_that_ran():
    answer = {"result": {"content": [{"type": "of another protocol"}]}}
    (call,) = await run_calls(answering_raw(GO, answer), Call("go"))
    assert (call.error or "").startswith("the call ran, but the server raw")


@asynccontextmanager
async def answering_http(raw: bytes) -> AsyncIterator[MCP]:
    """A server over HTTP that answers calls with these bytes, and closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        asked = json.loads(await reader.readexactly(int(length[1]))) if length else {}
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "raw", "version": "1"}}
        version = asked.get("params", {}).get("protocolVersion")
        replies = {
            "initialize": {"result": {**about, "protocolVersion": version}},
            "tools/list": GO,
        }
        reply = replies.get(asked.get("method"))
        if asked.get("method") == "tools/call":
            writer.write(raw)
        elif reply is None:
            writer.write(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        else:
            body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], **reply}).encode()
            start = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
            writer.write(f"{start}content-type: application/json\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield MCP.http(f"http://127.0.0.1:{port}/mcp", name="raw")


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        ("202 Accepted\r\ncontent-length: 0\r\n\r\n", "unknown whether this call ran"),
        ("200 OK\r\ncontent-type: text/plain\r\n\r\ndone", "the call ran, but its result"),
        ("200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {", "unknown whether this call"),
        ('500 No\r\ncontent-type: application/json\r\n\r\n{"error": "x"}', "unknown whether this"),
        ('401 No\r\ncontent-type: application/json\r\n\r\n{"error": "x"}', "call: HTTP 401 No"),
    ],
)
async def test_a_call_over_http_that_may_have_run_is_never_reported_as_refused(raw, error):
    async with answering_http(f"HTTP/1.1 {raw}".encode()) as server:
        (call,) = await run_calls(server, Call("go"))
    assert error in str(call.error)


async def test_secrets_that_a_server_repeats_in_its_errors_are_hidden():
    message = "no access with s3cr3t-key-of-mine, nor with s3cr3t"
    error = {"error": {"code": -32603, "message": message}}
    raw = answering_raw(GO, error).endpoints[0]
    server = MCP.stdio(
        *(raw.command, *raw.args), env={"A": "s3cr3t", "B": "s3cr3t-key-of-mine"}, name="raw"
    )
    (call,) = await run_calls(server, Call("go"))
    assert call.error == "the server raw refused the call: no access with •••, nor with •••"
    answer = json.dumps({"jsonrpc": "2.0", "id": None, **error})
    head = "HTTP/1.1 400 No\r\ncontent-type: application/json\r\n\r\n"
    async with answering_http(f"{head}{answer}".encode()) as http:
        headers = {"Authorization": "Bearer s3cr3t-key-of-mine", "X-Key": "s3cr3t"}
        (call,) = await run_calls(MCP.http(http.endpoints[0].url, headers=headers), Call("go"))
    assert "s3cr3t" not in str(call.error)
    assert "no access with •••" in str(call.error)


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ({"result": {"tools": [{"name": "go", "inputSchema": {"type": "array"}}]}}, "inputSchema"),
        ({"result": {"tools": 5}}, "tools"),
        ({"error": {"code": -32603, "message": "no database"}}, "no database"),
        ({"error": {"code": -32000, "message": "no database"}}, "no database"),
    ],
)
async def test_the_error_for_a_wrong_list_of_tools_gives_that_reason(listed, message):
    with pytest.raises(ToolServerError, match=message) as info:
        async with answering_raw(listed).open():
            raise AssertionError
    assert "its process ended" not in info.value.message  # by bae, for that reason


async def test_a_run_that_is_cancelled_while_a_server_starts_leaves_no_process():
    with MCPLoopback(delay=60) as loopback:
        graph = answering(loopback.stdio())
        run = asyncio.create_task(graph.arun(graph.start(text="?"), ScriptedLM([])))
        await until(owners)
        before = asyncio.all_tasks() - {run, *owners()}
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert owners() == []
        assert asyncio.all_tasks() <= before
        assert loopback.starts == 0


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("duplicates", "two tools named echo"),
        ("endless-pages", "more than 50 pages"),
        ("many-tools", "the limit is 128"),
        ("bad-schema", "with a schema that cannot be used"),
    ],
)
async def test_an_unusable_list_of_tools_is_refused(fault, message):
    with MCPLoopback(fault) as loopback, pytest.raises(ToolServerError, match=message) as info:
        async with loopback.stdio().open():
            raise AssertionError
    assert info.value.code == "bae-mcp-tools"
    assert info.value.fix


async def test_tool_names_that_providers_refuse_are_changed_only_for_the_provider():
    with MCPLoopback("long-names") as loopback:
        async with loopback.stdio(prefix="my.").open() as tools:
            names = [tool.name for tool in tools]
            assert all(len(name) <= 64 and "." not in name for name in names)
            fns: dict[str, Any] = {tool.name: tool.fn for tool in tools}
            dotted = next(name for name in names if "git_status" in name)
            with pytest.raises(Exception, match=r"no tool git\.status"):
                await fns[dotted]()
        assert loopback.calls == [("git.status", {})]


async def test_only_the_selected_tools_are_offered_and_unknown_tools_are_an_error():
    with MCPLoopback("many-tools") as loopback:
        async with loopback.stdio(only=["add", "tool_7"], prefix="my_").open() as tools:
            assert [tool.name for tool in tools] == ["my_add", "my_tool_7"]
        with pytest.raises(ToolServerError, match="has no tool ad"):
            async with loopback.stdio(only=["ad"]).open():
                raise AssertionError


async def test_a_server_cannot_skip_approval_or_send_endless_descriptions():
    with MCPLoopback("hostile-list") as loopback:
        server = loopback.stdio(approve=True)
        graph = answering(server)
        lm = ScriptedLM([[Call("echo", text="a")], {"text": "done"}])
        result = await graph.arun(graph.start(text="?"), lm)
        assert result.waiting  # though the server says that the tool only reads
        assert loopback.calls == []
        async with server.open() as tools:
            assert max(len(tool.description) for tool in tools) < 5_000


async def test_an_approved_call_reaches_the_server_and_a_refused_call_does_not():
    answers = [True, False]

    async def answer(gate: Any) -> bool:
        return answers.pop(0)

    with MCPLoopback() as loopback:
        server = loopback.stdio(approve=lambda **arguments: "text" in arguments)
        first, second, third = await run_calls(
            server,
            Call("echo", text="a"),
            Call("echo", text="b"),
            Call("add", a=1, b=1),
            answer=answer,
        )
        assert (first.result, third.result) == ("a", {"result": 2})
        assert second.error
        assert [name for name, _ in loopback.calls] == ["echo", "add"]


async def test_two_servers_with_tools_of_one_name_need_a_prefix():
    with MCPLoopback() as one, MCPLoopback() as two:
        second = MCP.stdio(*two.command(), name="second")
        graph = answering(one.stdio(), second)
        with pytest.raises(Exception, match="two tools are named echo") as info:
            await graph.arun(graph.start(text="?"), ScriptedLM([]))
        assert getattr(info.value, "code", "") == "bae-tool-same-name"
        again = MCP.stdio(*two.command(), name="second", prefix="second_")
        graph = answering(one.stdio(), again)
        lm = ScriptedLM([[Call("second_echo", text="a")], {"text": "done"}])
        await graph.arun(graph.start(text="?"), lm)
        assert (one.calls, two.calls) == ([], [("echo", {"text": "a"})])


async def test_two_servers_of_one_name_are_found_before_a_run():
    with MCPLoopback() as loopback:
        problems = answering(loopback.stdio(), loopback.stdio()).validate()
    assert [problem.code for problem in problems] == ["bae-tool-same-name"]


async def test_a_server_is_opened_once_per_run_or_once_per_open_graph():
    with MCPLoopback() as loopback:
        graph = answering(loopback.stdio())

        async def run() -> None:
            lm = ScriptedLM([[Call("echo", text="a")], [Call("echo", text="b")], {"text": "c"}])
            await graph.arun(graph.start(text="?"), lm)

        await run()
        assert loopback.starts == 1
        async with graph.open():
            await asyncio.gather(run(), run(), run())
        assert loopback.starts == 2


async def test_child_processes_of_a_server_end_with_it():
    with MCPLoopback("children", "crash") as loopback:
        child, _, pid = await run_calls(
            loopback.stdio(), Call("children"), Call("crash"), Call("pid")
        )
    assert not is_alive(int(child.result))
    assert not is_alive(int(pid.result))


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_cancelling_a_run_in_a_call_leaves_no_process_no_connection_and_no_task(transport):
    def sockets() -> list[str]:
        links: list[str] = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                links.append(os.readlink(f"/proc/self/fd/{fd}"))
            except OSError:
                continue
        return sorted(link for link in links if link.startswith(("socket", "pipe")))

    with MCPLoopback("stall") as loopback:
        server = getattr(loopback, transport)(timeout=None)
        graph = answering(server)
        lm = ScriptedLM([[Call("pid")], [Call("stall")], {"text": "done"}])
        tasks, open_before = asyncio.all_tasks(), sockets()
        pids: list[int] = []
        stream = graph.stream(graph.start(text="?"), lm)
        with pytest.raises(asyncio.CancelledError):
            async with stream as records:
                async for record in records:
                    if isinstance(record, ToolEnded):
                        pids.append(int(record.result))
                    if isinstance(record, ToolStarted) and record.name == "stall":
                        await until(lambda: ("stall", {}) in loopback.calls)
                        raise asyncio.CancelledError
        assert asyncio.all_tasks() == tasks
        assert {*sockets()} <= {*open_before}
        assert [is_alive(pid) for pid in pids] == [transport == "http"]


# --- journals ------------------------------------------------------------------------------------

KILLED = """
    import asyncio, sys
    sys.path.insert(0, sys.argv[1])
    from test_mcp import answering
    from bae import MCP
    from bae.journal import SQLiteJournal
    from bae.testing import Call, ScriptedLM

    async def main():
        graph = answering(MCP.stdio(*sys.argv[3:], name="loopback"))
        lm = ScriptedLM([[Call("stall")], {"text": "done"}])
        async with SQLiteJournal(sys.argv[2]) as journal:
            await graph.arun(graph.start(text="?"), lm, journal=journal, run_id="killed")

    asyncio.run(main())
"""


async def test_a_run_killed_in_a_call_resumes_with_the_call_as_unknown(tmp_path):
    file = str(tmp_path / "runs.db")
    with MCPLoopback("stall") as loopback:
        arguments = [str(Path(__file__).parent), file, *loopback.command()]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", textwrap.dedent(KILLED), *arguments
        )
        await until(lambda: ("stall", {}) in loopback.calls)
        process.kill()
        await process.wait()
        graph = answering(loopback.stdio())
        async with SQLiteJournal(file) as journal:
            result = await graph.resume("killed", ScriptedLM([{"text": "done"}]), journal=journal)
        (call,) = result.result.calls
        assert "unknown whether this call ran" in str(call.error)
        assert loopback.calls == [("stall", {})]


async def test_a_replay_of_a_run_starts_no_server(tmp_path):
    with MCPLoopback() as loopback:
        graph = answering(loopback.stdio())
        lm = ScriptedLM([[Call("echo", text="a")], {"text": "done"}])
        async with SQLiteJournal(tmp_path / "runs.db") as journal:
            await graph.arun(graph.start(text="?"), lm, journal=journal, run_id="first")
            again = await graph.replay("first", journal=journal)
        assert [call.result for call in again.result.calls] == ["a"]
        assert loopback.starts == 1


async def test_a_changed_server_is_detected_when_the_run_resumes(tmp_path, caplog):
    with MCPLoopback("changes") as loopback:
        graph = answering(loopback.stdio())
        async with SQLiteJournal(tmp_path / "runs.db") as journal:
            first = ScriptedLM([[Call("echo", text="a")]])
            with pytest.raises(Exception, match="script"):
                await graph.arun(graph.start(text="?"), first, journal=journal, run_id="changed")
            assert "not what they were" not in caplog.text
            result = await graph.resume("changed", ScriptedLM([{"text": "done"}]), journal=journal)
    assert [call.result for call in result.result.calls] == ["a"]
    assert "echo has another description" in caplog.text
    assert "bae mcp list" in caplog.text


def test_an_image_that_a_server_returns_is_an_image_for_the_model():
    from mcp_types import CallToolResult, ImageContent, TextContent

    from bae.mcp.listing import read_result
    from file_parts import DOT

    image = ImageContent(type="image", data=DOT.base64, mime_type="text/html")
    text = TextContent(type="text", text="the lamp")
    both = read_result(CallToolResult(content=[text, image]), "draw")
    assert both == ["the lamp", Image.from_bytes(DOT.data)]
    assert read_result(CallToolResult(content=[image]), "draw").data == DOT.data
