"""`GraphServer`: a graph as an MCP server for Claude, an editor or another agent. The server has
one tool, which takes the start fields as arguments and returns the last node."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp_types import (
    BlobResourceContents,
    CallToolRequestParams,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    TextResourceContents,
)
from mcp_types import Tool as ServerTool
from pydantic import ValidationError

from bae import __version__
from bae.exceptions import BaeError, ToolServerError, describe, faults
from bae.files import Document, File, Image, collect_files
from bae.graph_plan import plan_of_graph
from bae.hints import NOWHERE
from bae.history import History
from bae.mcp.listing import name_for_model
from bae.prompts.values import show_node
from bae.tasks import wait_until_ended
from bae.tool_plan import plan_tool
from bae.tool_proof import tool_problems
from bae.tools import Tool
from bae.unicode import readable, readable_json
from bae.work import Step, ToolRun, Work

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Journal
    from bae.lm import LM
    from bae.result import GraphResult
    from bae.run_tree import WorkChange

_log = logging.getLogger("bae")

_LONGEST_LINE: Final = 16 * 1024 * 1024
"""The size of the longest message that the client may send, in bytes."""
_AHEAD: Final = 64
"""The number of messages to read ahead."""
_GRACE: Final = 2.0
"""The seconds that a stopped server has to write its last answers."""
_STEPS_STORED: Final = 10
"""The number of steps of a run to store for progress messages."""


class GraphServer:
    """A graph as an MCP server: `await GraphServer(graph, lm).serve_stdio()`.

    The server has one tool, with the name of the graph. The client sees nodes, tool calls and
    `report` as progress. If a run fails or waits for a person, the client gets an error. If the
    client cancels a call, bae cancels the run.

    - `lm`, `max_iters`, `journal`: as for `graph.arun`. In the `_meta` of a result, `bae/run_id` is
      the id of the run.
    - `at_once`: the most runs that may be in progress at the same time. Further calls wait.
    """

    def __init__(
        self,
        graph: Graph[Any, Any],
        lm: LM | str | None = None,
        *,
        journal: Journal | None = None,
        max_iters: int = 10,
        at_once: int = 16,
    ) -> None:
        graph.prove()
        self._graph, self._lm, self._journal = graph, lm, journal
        self._max_iters = max_iters
        self._room = asyncio.Semaphore(at_once)
        self._plan = plan_tool(Tool(graph), NOWHERE)
        for problem in tool_problems(self._plan):
            if problem.code != "bae-tool-name":  # the name is shortened below
                raise ToolServerError(
                    f"{graph.name} cannot be served: {problem.message}",
                    code="bae-mcp-serve",
                    fix=problem.fix,
                )
        spec = self._plan.spec
        self.tool = ServerTool(
            name=name_for_model(spec.name),
            description=spec.description,
            input_schema=dict(spec.schema),
        )
        self.server: Server[Any] = Server(
            spec.name, version=__version__, on_list_tools=self._list, on_call_tool=self._call
        )
        """The SDK's server, for transports other than stdio."""

    async def serve_stdio(self, wire: ProtocolStdio | None = None) -> None:
        """Serve on stdin and stdout until the client closes stdin. Other output of the process goes
        to stderr."""
        if wire is None:
            with take_stdio() as taken:
                return await self.serve_stdio(taken)
        async with self._graph.open(), stdio_server(cast(Any, wire), cast(Any, wire)) as streams:
            options = self.server.create_initialization_options()
            serving = asyncio.create_task(self.server.run(*streams, options))
            try:
                await asyncio.wait([serving])
            finally:
                serving.cancel()
                try:
                    await asyncio.wait([serving], timeout=_GRACE)  # for its last answers
                finally:
                    wire.leave()
                    await wait_until_ended([serving])
            serving.result()
        return None

    async def _list(
        self, context: ServerRequestContext[Any], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=[self.tool])

    async def _call(
        self, context: ServerRequestContext[Any], params: CallToolRequestParams
    ) -> CallToolResult:
        """Run the graph for a call of the tool."""
        if params.name != self.tool.name:
            return _make_error(f"there is no tool {params.name[:200]}; there is: {self.tool.name}")
        try:
            start = self._graph.start(**self._plan.validate(params.arguments or {}))
        except ValidationError as error:
            return _make_error(f"wrong arguments: {'; '.join(faults(error))}")
        run_id = os.urandom(12).hex()
        async with self._room:
            # The SDK cancels a call again and again. The run is a task, which is cancelled once.
            running = asyncio.create_task(self._run(context, start, run_id))
            try:
                await asyncio.wait([running])
            finally:
                running.cancel()
                with anyio.CancelScope(shield=True):
                    await wait_until_ended([running])
        # Code of the graph may raise CancelledError, which must not end the server.
        result = _make_error("the run was cancelled") if running.cancelled() else running.result()
        result.meta = {"bae/run_id": run_id}
        return result

    async def _run(
        self, context: ServerRequestContext[Any], start: Any, run_id: str
    ) -> CallToolResult:
        try:
            options: Any = {"journal": self._journal, "run_id": run_id}
            stream = self._graph.stream(start, self._lm, self._max_iters, **options)
            async with stream as records:
                news: list[str] = []
                history = History(keep=_STEPS_STORED, on_change=partial(_note_progress, news))
                message_count = 0
                async for record in records:
                    history.add(record)
                    for message in news:
                        message_count += 1
                        await context.session.report_progress(message_count, message=message)
                    news.clear()
                return self._convert_result(records.result)
        except BaeError as error:
            return _make_error(str(error))
        except Exception as error:
            return _make_error(describe(error))

    def _convert_result(self, result: GraphResult[Any]) -> CallToolResult:
        if result.waiting:
            questions = "; ".join(f"{gate.place}: {gate.question}" for gate in result.waiting)
            how_to_answer = (
                "the run is not stored, so nobody can answer: serve the graph with a journal"
            )
            if self._journal is not None:
                how_to_answer = f"a person answers with `bae runs answer {result.run_id}`"
            return _make_error(
                f"the run waits for a person, who is asked {questions}; {how_to_answer}"
            )
        # Replace half surrogate pairs: sending one would end the server.
        with collect_files() as attached:
            node_json = readable_json(show_node(result.result, plan_of_graph(self._graph).hidden))
        value = (
            cast("dict[str, Any]", node_json)
            if isinstance(node_json, dict)
            else {"result": node_json}
        )
        text = json.dumps(value, ensure_ascii=False)
        files = [file for file in attached.values() if isinstance(file, File) and file.hash in text]
        content: list[ContentBlock] = [TextContent(text=text), *map(_file_content, files)]
        return CallToolResult(content=content, structured_content=value)


def _file_content(file: File) -> ImageContent | EmbeddedResource:
    """Return a file as content for clients. The JSON in the same result has the hash and the name
    of the file."""
    if isinstance(file, Image):
        return ImageContent(data=file.base64, mime_type=file.media_type)
    uri, kind = f"urn:{file.hash}", file.media_type
    if isinstance(file, Document) and kind == "text/plain":
        text = readable(file.text, 0)
        return EmbeddedResource(resource=TextResourceContents(uri=uri, text=text, mime_type=kind))
    return EmbeddedResource(
        resource=BlobResourceContents(uri=uri, blob=file.base64, mime_type=kind)
    )


def _note_progress(news: list[str], change: WorkChange, work: Work) -> None:
    """Add a progress message to `news` if the client should read about the change."""
    match work:
        case Step() if change == "complete":
            news.append(f"{work.name}{_path_suffix(work.place.path)}")
        case ToolRun() if change == "started":
            news.append(f"calls {work.name}{_path_suffix(work.place.path)}")
        case ToolRun() if change == "reported" and work.report is not None:
            report = work.report
            total = "" if report.total is None else f"/{report.total:g}"
            progress = "" if report.done is None else f" ({report.done:g}{total})"
            news.append(readable(f"{report.text}{progress}", 0))
        case _:
            pass


def _path_suffix(path: str) -> str:
    return f" in {path}" if path else ""


def _make_error(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=readable(text, 0))], is_error=True)


# --- stdin and stdout ----------------------------------------------------------------------------


class ProtocolStdio:
    """The stdin and stdout of this process, reserved for the protocol. One thread reads, and
    another thread writes. No thread can be interrupted while it reads or writes, so the process
    ends without waiting for them."""

    def __init__(self, stdin: int, stdout: int) -> None:
        self._in, self._out = stdin, stdout
        self._unwritten: SimpleQueue[tuple[bytes, Callable[[bool], object]]] = SimpleQueue()
        self._writer: threading.Thread | None = None
        self._left = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        lines: asyncio.Queue[bytes] = asyncio.Queue()
        room = threading.Semaphore(_AHEAD)

        def read() -> None:
            with open(self._in, "rb", closefd=False) as file:
                while True:
                    room.acquire()
                    line = file.readline(_LONGEST_LINE)
                    if not line.endswith(b"\n"):  # the end of stdin, or a line that is too long
                        if len(line) >= _LONGEST_LINE:
                            _log.error("the client sent more than %d bytes in a line", len(line))
                        line = b""
                    try:
                        loop.call_soon_threadsafe(lines.put_nowait, line)
                    except RuntimeError:  # the event loop is closed
                        return
                    if not line:
                        return

        threading.Thread(target=read, name="MCP stdin", daemon=True).start()
        while line := await lines.get():
            room.release()
            yield line.decode(errors="replace")

    async def write(self, text: str) -> None:
        """Write a message. If the client has gone, or does not read until `leave` is called, raise
        an error."""
        loop = asyncio.get_running_loop()
        written: asyncio.Future[bool] = loop.create_future()

        def end(is_written: bool) -> None:
            if not written.done():
                written.set_result(is_written)

        if self._writer is None:
            self._writer = threading.Thread(target=self._write, name="MCP stdout", daemon=True)
            self._writer.start()
        self._unwritten.put((text.encode(), partial(loop.call_soon_threadsafe, end)))
        leaving = asyncio.ensure_future(self._left.wait())
        try:
            await asyncio.wait([written, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
        if not (written.done() and written.result()):  # the client is gone, or does not read
            raise anyio.ClosedResourceError

    def leave(self) -> None:
        """Stop waiting for a client that does not read."""
        self._left.set()

    def _write(self) -> None:
        while True:
            data, end = self._unwritten.get()
            try:
                while data:
                    data = data[os.write(self._out, data) :]
            except OSError:
                pass
            try:
                end(not data)
            except RuntimeError:  # the event loop is closed
                return

    async def flush(self) -> None:
        """Do nothing, because writes are not buffered."""


@contextmanager
def take_stdio() -> Generator[ProtocolStdio]:
    """Reserve stdin and stdout for the protocol. Inside the block, stdin is empty for other code,
    and other output goes to stderr."""
    sys.stdout.flush()
    saved_fds = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    try:
        yield ProtocolStdio(*saved_fds)
    finally:
        sys.stdout.flush()
        for number, fd in enumerate(saved_fds):
            os.dup2(fd, number)
