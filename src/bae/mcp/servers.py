"""`MCP`: the description of a server whose tools a model may call. A server is described in
code, or in a file with the format of other MCP clients."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack, cast
from urllib.parse import urlsplit

from bae.exceptions import ToolServerError
from bae.given_files import read_text
from bae.graph_plan import plan_of_graph
from bae.lm.extras import install_line, is_there
from bae.tasks import all_or_first_error
from bae.tools import RESULT_LIMIT, Approve, Tool, ToolServer, WhenUnfinished

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.mcp.connection import ServerConnection

_RUNNERS: Final = frozenset(
    {"bun", "bunx", "docker", "node", "npx", "pipx", "podman", "py", "python", "python3", "run"}
    | {"tool", "uv", "uvx", "x"}
)
"""Words of a command line that start a server but do not name it."""
_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
"""An environment variable in a file: `${NAME}` or `${NAME:-default}`."""


@dataclass(frozen=True, slots=True)
class Stdio:
    """A server that is a program. bae and the server exchange messages over its stdin and
    stdout."""

    name: str
    command: str
    args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str | None = None
    prefix: str = ""

    @property
    def secrets(self) -> tuple[str, ...]:
        """The texts that error messages mask."""
        return tuple(self.env.values())

    def __str__(self) -> str:
        return " ".join((self.command, *self.args))


@dataclass(frozen=True, slots=True)
class Http:
    """A server at a URL."""

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    auth: Any = field(default=None, repr=False)
    prefix: str = ""

    @property
    def secrets(self) -> tuple[str, ...]:
        """The texts that error messages mask."""
        parts = urlsplit(self.url)
        header_values = self.headers.values()
        tokens = (value.partition(" ")[2].strip() for value in header_values)  # without "Bearer"
        return (*header_values, *filter(None, (*tokens, parts.password, parts.query)))

    def __str__(self) -> str:
        parts = urlsplit(self.url)
        return parts._replace(
            netloc=parts.netloc.rpartition("@")[2], query="", fragment=""
        ).geturl()


class MCPOptions(TypedDict, total=False):
    """The options of `MCP.stdio`, `MCP.http` and `MCP.from_file`."""

    only: Sequence[str] | None
    prefix: str | None
    approve: Approve
    timeout: float | None
    open_timeout: float
    result_limit: int
    unfinished: WhenUnfinished
    max_bytes: int
    max_tools: int


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options in `MCPOptions`, with their defaults."""

    only: Sequence[str] | None = None
    prefix: str | None = None
    approve: Approve = False
    timeout: float | None = 60.0
    open_timeout: float = 60.0
    result_limit: int = RESULT_LIMIT
    unfinished: WhenUnfinished = "tell"
    max_bytes: int = 4 * 1024 * 1024
    max_tools: int = 128
    is_only_strict: bool = True
    """Whether each name in `only` must be a tool of the server."""

    def __post_init__(self) -> None:
        if isinstance(self.only, str):
            raise TypeError(f'MCP(only={self.only!r}): give a list, as only=["{self.only}"]')
        bounds = {
            "open_timeout": self.open_timeout,
            "max_bytes": self.max_bytes,
            "max_tools": self.max_tools,
            "timeout": 1 if self.timeout is None else self.timeout,
        }
        for name, value in bounds.items():
            if not value > 0:
                raise ValueError(f"MCP({name}={value!r}): give a number above 0")


class MCP(ToolServer):
    """An MCP server, whose tools a model may call: `Tools(MCP.stdio("uvx", "mcp-server-git"))`.

    Make it with `MCP.stdio`, `MCP.http` or `MCP.from_file`. bae opens a server once for each run,
    or once for all runs inside `async with graph.open():`. Afterwards bae closes the server. If the
    server is a program, bae ends every process of its process group. If a server dies, the next
    call opens the server again. A call in progress is not repeated: the model reads that it is
    unknown whether the call ran.

    Options:

    - `only`: the server's names of the tools that the model may call. The default is all tools.
    - `prefix`: a prefix for the names of the tools, for two servers with tools of the same name.
    - `approve`: True or a question, to have a person approve each call. It may also be a function
      that gets the arguments of a call and returns whether to ask a person. The server's own hints
      about the safety of a tool are ignored.
    - `timeout`: seconds for one call, by default 60; None for no limit. After a timeout, the model
      reads that it is unknown whether the call ran.
    - `open_timeout`: seconds until the server has listed its tools.
    - `result_limit`: the most characters of a result that the model reads.
    - `unfinished`: what happens to a call without a result when the run is resumed, as for `Tool`.
    - `max_bytes`: the size of the largest message that the server may send.
    - `max_tools`: the most tools that the model may get from the server.
    - `name`: the name of the server in errors. `MCP.from_file` uses the names in the file.
    """

    open_timeout = None

    def __init__(self, *endpoints: Stdio | Http, **options: Unpack[MCPOptions]) -> None:
        if not is_there("mcp"):
            raise ToolServerError(
                "MCP needs the package mcp, which is not installed",
                code="bae-mcp-missing",
                fix=install_line("mcp"),
            )
        self.endpoints = endpoints
        self.options = ServerOptions(**options)
        self.approve = self.options.approve
        self.name = "+".join(endpoint.name for endpoint in endpoints)

    @classmethod
    def stdio(
        cls,
        command: str,
        *args: str,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        name: str = "",
        **options: Unpack[MCPOptions],
    ) -> MCP:
        """Use a program as a server: `MCP.stdio("uvx", "mcp-server-git", env={"TOKEN": …})`.

        The environment of the program is `env`, and HOME, LOGNAME, PATH, SHELL, TERM and USER of
        this process. Only errors show its stderr.
        """
        words = (command, *args)
        if not all(isinstance(cast(object, word), str) for word in words) or not command:
            raise TypeError(
                "MCP.stdio: give the command and its arguments as texts, one for each: "
                'MCP.stdio("uvx", "mcp-server-git")'
            )
        where = None if cwd is None else os.fspath(cwd)
        name = name or _derive_name(words)
        return cls(Stdio(name, command, args, dict(env or {}), where), **options)

    @classmethod
    def http(
        cls,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        auth: Any = None,
        name: str = "",
        **options: Unpack[MCPOptions],
    ) -> MCP:
        """Use a server over streamable HTTP: `MCP.http(url, headers={"Authorization": …})`.

        `auth` is an authentication object for httpx2, such as an OAuth object of the MCP SDK.
        """
        if not _is_address(url):
            raise ValueError(f"MCP.http({url!r}): give an address, as https://example.com/mcp")
        name = name or cast(str, urlsplit(url).hostname)
        return cls(Http(name, url, dict(headers or {}), auth), **options)

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        *,
        servers: Sequence[str] | None = None,
        **options: Unpack[MCPOptions],
    ) -> MCP:
        """Use the servers in a file with the common format, `{"mcpServers": {"git": {"command":
        "uvx", "args": ["mcp-server-git"]}}}`.

        `servers` selects some of the servers by name. In the file, `${NAME}` and `${NAME:-default}`
        stand for environment variables. Unless you pass `prefix`, the name of a tool begins with
        the name of its server and `_`.
        """
        return cls(*read_endpoints(os.fspath(path), servers), **options)

    def open(self) -> AbstractAsyncContextManager[Sequence[Tool]]:
        """Start the servers or connect to them, and list their tools."""
        return self._open_all()

    @asynccontextmanager
    async def _open_all(self) -> AsyncGenerator[Sequence[Tool]]:
        from bae.mcp.connection import ServerConnection

        # A name in `only` may be a tool of just one of several servers.
        options = replace(self.options, is_only_strict=len(self.endpoints) == 1)
        connections = [ServerConnection(endpoint, options) for endpoint in self.endpoints]
        try:
            await all_or_first_error(connection.open for connection in connections)
            self._check_wanted(connections)
            yield [tool for connection in connections for tool in connection.tools]
        finally:
            await all_or_first_error(connection.close for connection in connections)

    def _check_wanted(self, connections: Sequence[ServerConnection]) -> None:
        """Raise an error if a name in `only` is not a tool of any server."""
        offered = {own for connection in connections for own in connection.own_names}
        missing_names = [name for name in self.options.only or () if name not in offered]
        if missing_names:
            raise ToolServerError(
                f"none of the MCP servers {self.name} has a tool {', '.join(missing_names)}",
                code="bae-mcp-tools",
                server=self.name,
                fix="`bae mcp list` shows the tools of each server; in only=[…], write the "
                "name that the server gives to a tool, without a prefix",
            )

    def within(self, seconds: float) -> MCP:
        """Return a copy with `open_timeout=seconds`."""
        server = MCP(*self.endpoints)
        server.options = replace(self.options, open_timeout=seconds)
        server.name = self.name
        return server

    @property
    def address(self) -> str:
        """The command or the URL of each server, without secrets."""
        return ", ".join(map(str, self.endpoints))

    def __repr__(self) -> str:
        return f"MCP({self.address})"


def servers_of(graph: Graph[Any, Any]) -> dict[MCP, list[str]]:
    """Return the MCP servers of a graph and of the graphs inside it, each with the fields that use
    the server."""
    fields: dict[MCP, list[str]] = {}
    for subgraph in graph.graphs:
        for plan in plan_of_graph(subgraph).plans.values():
            servers: Sequence[tuple[ToolServer, Any]] = getattr(plan.tools, "servers", ())
            for server, _ in servers:
                place = f"{plan.name}.{cast(Any, plan.tools).name}"
                if isinstance(server, MCP) and place not in fields.setdefault(server, []):
                    fields[server].append(place)
    return fields


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:  # such as half an IPv6 address
        return False


def _derive_name(words: Sequence[str]) -> str:
    """Return a name for a server from its command line: `uvx mcp-server-git` gives
    `mcp-server-git`."""
    names = [PurePath(word).name for word in words if not word.startswith("-")]
    server_names = [name for name in names if re.sub(r"[.\d]+$", "", name.lower()) not in _RUNNERS]
    return re.sub(r"\.(py|js|mjs|ts|exe)$", "", (server_names or names)[0]) or "server"


# --- files ---------------------------------------------------------------------------------------


def read_endpoints(path: str, wanted: Sequence[str] | None) -> list[Stdio | Http]:
    """Return the servers that a file lists. Servers that are switched off are left out. If there
    are `wanted` names, all other servers are left out too."""
    refuse = partial(_file_error, path)
    try:
        data: Any = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise refuse("it cannot be read as JSON", "fix it", error) from error
    listed: Any = cast("dict[str, Any]", data).get("mcpServers") if isinstance(data, dict) else None
    if not isinstance(listed, dict):
        raise refuse(
            "it has no mcpServers",
            'write {"mcpServers": {"name": {"command": "…", "args": ["…"]}}}',
        )
    entries = cast("dict[str, Any]", listed)
    missing_names = [name for name in wanted or () if name not in entries]
    if missing_names:
        raise refuse(
            f"it has no server {', '.join(missing_names)}",
            f"it has: {', '.join(entries) or 'none'}",
        )
    endpoints = [
        _read_endpoint(name, entry, refuse)
        for name, entry in entries.items()
        if name in (wanted or entries) and not (isinstance(entry, dict) and _is_switched_off(entry))
    ]
    if not endpoints:
        raise refuse("it lists no server that is switched on", "add a server to mcpServers")
    return endpoints


def _is_switched_off(entry: Any) -> bool:
    return entry.get("disabled") is True or entry.get("enabled") is False


def _file_error(
    path: str, why: str, fix: str, cause: BaseException | None = None
) -> ToolServerError:
    return ToolServerError(f"{path}: {why}", code="bae-mcp-file", fix=fix, cause=cause)


def _read_endpoint(name: str, entry: Any, refuse: Callable[..., ToolServerError]) -> Stdio | Http:
    if not isinstance(entry, dict):
        raise refuse(f"{name} is no object", 'write {"command": "…"} or {"url": "…"}')
    data = cast("dict[str, Any]", entry)

    def expand(text: str) -> str:
        def variable(match: re.Match[str]) -> str:
            value = cast("str | None", os.environ.get(match[1], match[2]))
            if value is None:
                raise refuse(
                    f"{name} needs the variable {match[1]}, which is not set",
                    f"set {match[1]}, or write ${{{match[1]}:-default}}",
                )
            return value

        return _VARIABLE.sub(variable, text)

    def text(key: str, default: str | None = None) -> Any:
        value = data.get(key, default)
        if value is not None and not isinstance(value, str):
            raise refuse(f"{key} of {name} is no text", f'write "{key}": "…"')
        return value if value is None else expand(value)

    def texts(key: str) -> dict[str, str]:
        value: Any = data.get(key) or {}
        if not isinstance(value, dict):
            raise refuse(f"{key} of {name} is no object", f'write "{key}": {{"NAME": "value"}}')
        return {k: word(key, v) for k, v in cast("dict[str, Any]", value).items()}

    def word(key: str, value: Any) -> str:
        if not isinstance(value, str | int | float):
            raise refuse(f"{key} of {name} has {json.dumps(value)[:100]}", "give texts there")
        return expand(value if isinstance(value, str) else json.dumps(value))

    kind = text("type") or text("transport")
    if data.get("command") and kind in (None, "stdio"):
        args: Any = data.get("args") or []
        if not isinstance(args, list):
            raise refuse(f"args of {name} is no list", 'write "args": ["…"]')
        words = tuple(word("args", arg) for arg in cast("list[Any]", args))
        return Stdio(name, text("command"), words, texts("env"), text("cwd"), f"{name}_")
    if data.get("url") and kind in (None, "http", "streamable-http", "streamable_http"):
        url = text("url")
        if not _is_address(url):
            raise refuse(f"url of {name} is no address", 'write "url": "https://example.com/mcp"')
        return Http(name, url, texts("headers"), None, f"{name}_")
    if kind == "sse":
        raise refuse(
            f"{name} speaks the old SSE transport, which bae does not",
            'give the address of its streamable HTTP with "type": "http", or leave it out with '
            "MCP.from_file(…, servers=[…])",
        )
    raise refuse(
        f"{name} has neither a command nor a url", 'write {"command": "…"} or {"url": "…"}'
    )
