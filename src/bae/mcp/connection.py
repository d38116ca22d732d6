"""The connection to an MCP server. One task owns the connection, and any task may call the tools.
If the server has died, the next call opens the connection again."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from mcp import Client, MCPError
from mcp.client.session import ClientSession
from mcp_types import (
    CONNECTION_CLOSED,
    PARSE_ERROR,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    InputRequiredResult,
)
from pydantic import TypeAdapter, ValidationError

from bae import __version__
from bae.exceptions import ToolServerError, describe, faults, text_of
from bae.mcp.listing import OfferedTool, list_tools, read_result
from bae.mcp.server_process import open_stdio
from bae.mcp.servers import Http, ServerOptions, Stdio
from bae.mcp.transports import FAILURE, Watcher, open_http
from bae.tasks import wait_until_ended
from bae.tools import Tool, ToolError, ToolInterrupted, reporter
from bae.unicode import readable

_CLOSE: Final = 10.0
"""The number of seconds that a connection may take to close. Then bae cancels its task."""
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters, which a terminal would obey if a traceback printed them."""
_RESULT: Final[TypeAdapter[CallToolResult | InputRequiredResult]] = TypeAdapter(
    CallToolResult | InputRequiredResult
)


# The SDK logs faults of servers with tracebacks. This handler keeps Python from printing them.
logging.getLogger("mcp").addHandler(logging.NullHandler())


class _NeverSentError(Exception):
    """The error of a call that did not reach the server."""


class ServerConnection:
    """An open server. Its `tools` stay the same until the server is closed, even if the connection
    is opened again."""

    def __init__(self, endpoint: Stdio | Http, options: ServerOptions) -> None:
        self._endpoint, self._options = endpoint, options
        self._link: _Link | None = None
        self._lock = asyncio.Lock()
        self.tools: Sequence[Tool] = ()
        self._offered: dict[str, OfferedTool] = {}

    async def open(self) -> None:
        """Connect to the server, and list its tools."""
        self._link = await _Link.open(self._endpoint, self._options)
        self._offered = self._link.tools
        options = self._options
        self.tools = [
            Tool(
                _ServerCall(self, tool.own),
                name=tool.name,
                description=tool.description or f"a tool of {self._endpoint.name}",
                approve=options.approve,
                timeout=options.timeout,
                result_limit=options.result_limit,
                unfinished=options.unfinished,
                schema=tool.schema,
            )
            for tool in self._offered.values()
        ]

    @property
    def own_names(self) -> Sequence[str]:
        """The server's own names of the tools that models may call."""
        return [tool.own for tool in self._offered.values()]

    async def close(self) -> None:
        """Close the connection. If the server is a program, end it."""
        if self._link is not None:
            await self._link.close()

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool. If the call did not reach the server, repeat the call once on a new
        connection."""
        link, is_new = await self._ensure_open()
        try:
            return await link.call(tool, arguments)
        except _NeverSentError as unsent:
            link.watcher.end(text_of(unsent))
            if is_new:
                raise self._lost_error(link) from unsent
        link, _ = await self._ensure_open()
        try:
            return await link.call(tool, arguments)
        except _NeverSentError as unsent:
            link.watcher.end(text_of(unsent))
            raise self._lost_error(link) from unsent

    async def _ensure_open(self) -> tuple[_Link, bool]:
        """Return an open connection, and whether this call opened it. If the connection has ended,
        open a new one, whose tools must be the same."""
        async with self._lock:
            link = self._link
            assert link is not None, "a server is open before it is called"
            if not link.watcher.is_over:
                return link, False
            await link.close()
            try:
                self._link = opened = await _Link.open(self._endpoint, self._options)
            except ToolServerError as error:
                raise self._lost_error(link, error) from error
            changed = sorted(
                name
                for name in {*self._offered, *opened.tools}
                if self._offered.get(name) != opened.tools.get(name)
            )
            if changed:
                opened.watcher.end("its tools have changed")
                raise ToolServerError(
                    f"the MCP server {self._endpoint.name} was opened again, and its tools are not "
                    f"what they were: {', '.join(changed)[:500]}",
                    code="bae-mcp-changed",
                    server=self._endpoint.name,
                    fix="look at what the server offers now with `bae mcp list`, then resume the "
                    "run",
                )
            return opened, True

    def _lost_error(self, link: _Link, cause: BaseException | None = None) -> ToolServerError:
        again = "does not stay" if cause is None else "cannot be opened again"
        return ToolServerError(
            f"the MCP server {self._endpoint.name} is gone, and {again}: {link.ending()}",
            code="bae-mcp-lost",
            server=self._endpoint.name,
            cause=cause,
            fix="fix the server, then resume the run; `bae mcp list` shows whether it can be "
            "opened",
        )


class _ServerCall:
    """A function that calls a tool of a server. Its keyword arguments are those of the server's
    schema."""

    def __init__(self, connection: ServerConnection, tool: str) -> None:
        self._connection, self._tool = connection, tool
        self.__name__ = tool

    async def __call__(self, /, **arguments: Any) -> Any:
        return await self._connection.call(self._tool, arguments)


class _Link:
    """One connection to a server. A task of its own opens and closes the connection, because the
    SDK requires the same task for both."""

    def __init__(self, endpoint: Stdio | Http, options: ServerOptions) -> None:
        self._endpoint, self._options = endpoint, options
        self.watcher = Watcher()
        self.watcher.on_end = self._end
        self.tools: dict[str, OfferedTool] = {}
        self._session: ClientSession | None = None
        self._ended = asyncio.Event()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(
            self._run_connection(), name=f"MCP server {endpoint.name}"
        )

    @classmethod
    async def open(cls, endpoint: Stdio | Http, options: ServerOptions) -> _Link:
        """Connect and list the tools within `open_timeout`."""
        link = cls(endpoint, options)
        try:
            await asyncio.wait(
                [link._ready, link._owner],
                timeout=options.open_timeout,
                return_when=asyncio.FIRST_COMPLETED,
            )
        except BaseException:  # the caller gets no link that it could close
            await link._cancel()
            raise
        if not link._ready.done():
            await link._cancel()
            raise link._open_error(
                f"it did not list its tools within {options.open_timeout:g} s",
                "raise the bound with MCP(…, open_timeout=…), or start the server by hand to see "
                "what it waits for",
            )
        try:
            link._ready.result()
        except BaseException:
            await link.close()
            raise
        return link

    async def close(self) -> None:
        """End the connection, and wait until it is closed."""
        self._end()
        try:
            await asyncio.wait([self._owner], timeout=_CLOSE)
        finally:
            await self._cancel()

    async def _cancel(self) -> None:
        self._owner.cancel()
        await wait_until_ended([self._owner])

    def ending(self) -> str:
        """Return how the connection ended, with the last lines of the server's stderr."""
        return self._with_stderr(self.watcher.fault or "the connection was closed")

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool of the server, and return the result for the model."""
        session, name = self._session, self._endpoint.name
        assert session is not None, "a connection is open before it is called"
        asked_before, cut_before = self.watcher.asks, self.watcher.cut_off
        request = CallToolRequest(
            params=CallToolRequestParams(name=tool, arguments=dict(arguments))
        )
        report = reporter.get()

        async def pass_on(progress: float, total: float | None, message: str | None) -> None:
            if report is not None:
                report(readable(message or "", 500), progress, total)

        try:
            # `session.call_tool` would validate the result by the server's patterns, which could
            # take forever.
            result = await session.send_request(request, _RESULT, progress_callback=pass_on)
        except MCPError as error:
            if self.watcher.cut_off > cut_before:  # the SDK reports this as an error of the server
                raise ToolInterrupted(f"the answer of the server {name} broke off") from error
            raise self._convert_error(error, self.watcher.asks > asked_before) from error
        except ValidationError as error:
            raise ToolError(
                f"the call ran, but the server {name} sent a result that is no valid MCP"
            ) from error
        if isinstance(result, InputRequiredResult):
            methods = ", ".join(
                input_request.method for input_request in (result.input_requests or {}).values()
            )
            raise ToolError(_describe_refusal(name, methods or "more input"))
        try:
            return read_result(result, tool)
        except ToolError as error:
            if self.watcher.asks > asked_before:
                raise ToolError(
                    f"{error}\n{_describe_refusal(name, self.watcher.asked)}"
                ) from error
            raise

    def _convert_error(self, error: MCPError, has_asked: bool) -> Exception:
        """Return the error for the run or for the model in place of an error of the protocol."""
        name, data = self._endpoint.name, cast("dict[str, Any] | None", error.data)
        kind = data.get(FAILURE) if isinstance(data, dict) else None
        message = self._mask(readable(error.message, 2_000))
        if kind == "never-sent":
            return _NeverSentError(message)
        if error.code == PARSE_ERROR:
            kind, message = "unreadable", "it is no valid message"
        if kind == "unreadable":
            return ToolError(f"the call ran, but its result cannot be read: {message}")
        if kind == "broken":
            return ToolInterrupted(f"the connection to the server {name} broke ({message})")
        if kind is None and (self.watcher.is_over or error.code == CONNECTION_CLOSED):
            return ToolInterrupted(f"the server {name} is gone ({self.watcher.fault or message})")
        if has_asked:
            return ToolError(f"{message}\n{_describe_refusal(name, self.watcher.asked)}")
        return ToolError(f"the server {name} refused the call: {message}")

    # The task that owns the connection.

    async def _run_connection(self) -> None:
        """Open the connection, list the tools, wait for the end, and close the connection."""
        endpoint, limit = self._endpoint, self._options.max_bytes
        opening = open_stdio if isinstance(endpoint, Stdio) else open_http
        transport: Any = opening(endpoint, limit, self.watcher)  # type: ignore[arg-type]
        client_info = Implementation(name="bae", version=__version__)
        try:
            async with Client(transport, client_info=client_info, cache=None) as client:
                try:
                    self.tools = await list_tools(client.session, endpoint, self._options)
                except (ValidationError, MCPError) as error:
                    if self.watcher.is_over:
                        raise
                    # The server ends because of this error, so report the error, not the end.
                    raise self._list_error(error) from None
                self._session = client.session
                self.watcher.is_ready = True
                self._ready.set_result(None)
                await self._ended.wait()
        except Exception as error:
            self._store_error(error)
        finally:
            self._end()

    def _store_error(self, raised: Exception) -> None:
        """Store why the connection ended, or why it could not be opened."""
        error: BaseException = raised
        while isinstance(error, BaseExceptionGroup):
            error = cast("BaseExceptionGroup[Exception]", error).exceptions[0]
        if self._ready.done():
            self.watcher.fault = self.watcher.fault or describe(error)
            return
        if not isinstance(error, ToolServerError):
            error = self._explain_open_error(error)
        self._ready.set_exception(error)

    def _end(self) -> None:
        """Record that the connection has ended, and let the owner task close it."""
        self.watcher.is_over = True
        self._ended.set()

    # Error messages.

    def _explain_open_error(self, error: BaseException) -> ToolServerError:
        """Return the error for a connection that could not be opened, with a fix."""
        endpoint = self._endpoint
        if isinstance(error, FileNotFoundError) and isinstance(endpoint, Stdio):
            if endpoint.cwd is not None and error.filename == endpoint.cwd:
                return self._open_error(f"there is no directory {endpoint.cwd}", "correct cwd=")
            return self._open_error(
                f"there is no program {endpoint.command}",
                f"install {endpoint.command}, or give its full path",
            )
        why = self._find_reason(error)
        fix = "start the server by hand to see what is wrong"
        if isinstance(endpoint, Http):
            fix = f"check that the server is up, and speaks MCP at {endpoint}"
        return self._open_error(why, fix)

    def _find_reason(self, error: BaseException) -> str:
        """Return why the connection could not be opened. If the server sent an invalid answer or an
        error, return that reason, not the end of the process: bae itself then ends the process."""
        if isinstance(error, ValidationError):
            return f"it sent an invalid MCP message: {'; '.join(faults(error)[:3])}"
        if isinstance(error, MCPError) and error.code != CONNECTION_CLOSED:
            return f"it answered with an error: {readable(error.message, 2_000)}"
        return self.watcher.fault or describe(error)

    def _list_error(self, error: ValidationError | MCPError) -> ToolServerError:
        """Return the error for a list of tools that bae cannot read."""
        if isinstance(error, ValidationError):
            why = f"is not valid MCP: {'; '.join(faults(error))[:500]}"
        elif error.code == PARSE_ERROR:
            why = "is no valid message"
        else:
            why = f"cannot be read: {readable(error.message, 500)}"
        return self._open_error(
            f"its list of tools {why}", "report this to the makers of the server"
        )

    def _open_error(self, why: str, fix: str) -> ToolServerError:
        # There is no `cause`, because its text may contain secrets that `why` masks.
        return ToolServerError(
            f"the MCP server {self._endpoint.name} ({self._mask(str(self._endpoint))}) cannot be "
            f"opened: {self._with_stderr(self._mask(why))}",
            code="bae-mcp-open",
            server=self._endpoint.name,
            fix=fix,
        )

    def _with_stderr(self, text: str) -> str:
        """Add the end of the server's stderr to a text, without secrets and control characters."""
        tail = self._mask(self.watcher.stderr.decode(errors="replace")).strip()
        tail = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", tail)
        return f"{text}; the end of its stderr:\n{tail[-2_000:]}" if tail else text

    def _mask(self, text: str) -> str:
        # Mask the longest secret first, because one secret may be the beginning of another.
        for secret in sorted(self._endpoint.secrets, key=len, reverse=True):
            if len(secret) > 3:
                text = text.replace(secret, "•••")
        return text


def _describe_refusal(server: str, asked: str) -> str:
    return f"the server {server} asked for {asked}, which bae refuses"
