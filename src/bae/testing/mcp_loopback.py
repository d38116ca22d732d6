"""`MCPLoopback`: an MCP server for tests, with the faults of real servers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Literal, Self, Unpack

from bae.testing import mcp_program

if TYPE_CHECKING:
    from bae.mcp.servers import MCP, MCPOptions

ToolFault = Literal[
    "both",
    "children",
    "crash",
    "die",
    "elicit",
    "error",
    "garbled",
    "hostile",
    "media",
    "misfit",
    "oversized",
    "progress",
    "refuse",
    "roots",
    "sample",
    "stall",
    "summary",
]
"""A fault of a tool call. The server has a tool with the name of the fault."""
ServerFault = Literal[
    "bad-schema",
    "changes",
    "chatter",
    "does-not-start",
    "duplicates",
    "endless-pages",
    "ends-session",
    "hostile-list",
    "long-names",
    "many-tools",
    "wants-login",
]
"""A fault of the server, or of its tool list."""
_PROGRAM: Final = mcp_program.__file__


class MCPLoopback:
    """An MCP server for tests: a process on this machine, on stdio or HTTP.

    ```python
    with MCPLoopback("stall") as server:
        tools = Tools(server.stdio(timeout=0.5))
    ```

    The server has the tools `echo(text)`, `add(a, b)` and `pid()`. Each fault of a tool call adds a
    tool with the name of the fault:

    - `stall`: never answers.
    - `crash`: ends the process without an answer.
    - `die`: answers, then ends the process.
    - `oversized`: returns a text of `size` characters.
    - `hostile`: returns a text with instructions to the LLM and control characters.
    - `garbled`: returns invalid Unicode.
    - `misfit`: returns structured data that is not a JSON object.
    - `media`: returns a text, images, audio and resources.
    - `both`: returns structured data, and the same data as JSON text.
    - `summary`: returns structured data and a different text.
    - `error`: returns an error of the tool.
    - `refuse`: returns an error of the protocol.
    - `sample`, `elicit`, `roots`: send a request to the client.
    - `progress`: reports progress twice.
    - `children`: starts a process that outlives the call, and returns the id of that process.

    The faults of the server and its tool list:

    - "does-not-start": the program exits at once. With `delay`, every other server starts that many
      seconds late.
    - "bad-schema": every tool has a schema with a remote reference.
    - "duplicates": the tool `echo` is listed twice.
    - "endless-pages": each page of the tool list names a next page.
    - "many-tools": the list has 200 further tools.
    - "long-names": the list has a tool with a name of 128 characters, and one with a dot.
    - "hostile-list": every description has instructions to the LLM and 100,000 characters.
    - "chatter": on stdio, the server prints lines that are not messages.
    - "changes": after a restart, the tools have different descriptions.
    - "ends-session": on HTTP, the server ends the session once.
    - "wants-login": on HTTP, the server answers with status 401.
    """

    def __init__(
        self, *faults: ToolFault | ServerFault, delay: float = 0.0, size: int = 6_000_000
    ) -> None:
        self._config = {"faults": [*faults], "delay": delay, "size": size}
        self._folder: TemporaryDirectory[str] | None = None
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._folder = TemporaryDirectory(prefix="bae_mcp_")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def stdio(self, *, env: dict[str, str] | None = None, **options: Unpack[MCPOptions]) -> MCP:
        """Return the server as an `MCP` that bae starts on stdio. Takes the options of
        `MCP.stdio`."""
        from bae.mcp.servers import MCP

        command, *args = self.command()
        return MCP.stdio(command, *args, env=env, name="loopback", **options)

    def http(self, **options: Unpack[MCPOptions]) -> MCP:
        """Start the server on HTTP and return it as an `MCP`. Takes the options of `MCP.http`."""
        from bae.mcp.servers import MCP

        return MCP.http(self.start(), name="loopback", **options)

    def command(self, *, http: bool = False) -> list[str]:
        """Return the command line of the server. With `http`, the server listens on HTTP."""
        config = json.dumps({**self._config, "http": http, "log": str(self._log)})
        return [sys.executable, "-I", _PROGRAM, config]

    def start(self) -> str:
        """Start the server on HTTP and return its URL."""
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        command = self.command(http=True)
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere)
        self._processes.append(process)
        assert process.stdout is not None
        return process.stdout.readline().decode().strip()

    def stop(self) -> None:
        """Kill the processes that `start` and `http` have started."""
        for process in self._processes:
            process.kill()
            process.communicate()
        self._processes.clear()

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """The tool calls that have reached the server, in order. Each call is the name of the tool
        and the arguments."""
        return [(name, arguments) for name, arguments in self._read_log() if name != "start"]

    @property
    def starts(self) -> int:
        """The number of times the server was started."""
        return sum(name == "start" for name, _ in self._read_log())

    def _read_log(self) -> list[tuple[str, dict[str, Any]]]:
        if not self._log.exists():
            return []
        return [tuple(json.loads(line)) for line in self._log.read_text().splitlines()]

    @property
    def _log(self) -> Path:
        if self._folder is None:
            raise RuntimeError("the server is not open: use it in a `with` block")
        return Path(self._folder.name, "calls.jsonl")
