"""`MCPLoopback`: an MCP server for tests, with the faults that real servers have."""

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
"""A fault of a tool call. The server gets a tool with this name that has the fault."""
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
"""A fault of the server itself, or of its list of tools."""
_PROGRAM: Final = mcp_program.__file__


class MCPLoopback:
    """An MCP server for tests: a process on this machine, over stdio or HTTP.

    ```python
    with MCPLoopback("stall") as server:
        tools = Tools(server.stdio(timeout=0.5))
    ```

    The server has the tools `echo(text)`, `add(a, b)` and `pid()`, and a tool for each fault of a
    call:

    - `stall` never answers. `crash` ends the process. `die` answers, then ends the process.
    - `oversized` returns `size` characters, `hostile` instructions and control characters,
      `garbled` invalid Unicode, `misfit` data that is no valid result, `media` images and
      resources, `both` data and the same JSON as text, `summary` data and another text.
    - `error` returns an error of the tool, `refuse` an error of the protocol.
    - `sample`, `elicit` and `roots` send a request to the client.
    - `progress` reports progress twice. `children` leaves a process behind and returns its id.

    Faults of the server itself: "does-not-start", "bad-schema" (in every tool), "duplicates",
    "endless-pages", "many-tools" (200), "long-names", "hostile-list", "chatter" (prints lines that
    are no messages), "changes" (has other descriptions after a restart), "ends-session" (once, over
    HTTP), "wants-login" (over HTTP). With `delay` the server starts that many seconds late.
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
        """The server as a program. Takes the options of `MCP.stdio`."""
        from bae.mcp.servers import MCP

        command, *args = self.command()
        return MCP.stdio(command, *args, env=env, name="loopback", **options)

    def http(self, **options: Unpack[MCPOptions]) -> MCP:
        """Start the server over HTTP. Takes the options of `MCP.http`."""
        from bae.mcp.servers import MCP

        return MCP.http(self.start(), name="loopback", **options)

    def command(self, *, http: bool = False) -> list[str]:
        """The command line of the server."""
        config = json.dumps({**self._config, "http": http, "log": str(self._log)})
        return [sys.executable, "-I", _PROGRAM, config]

    def start(self) -> str:
        """Start the server over HTTP and return its address."""
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        command = self.command(http=True)
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere)
        self._processes.append(process)
        assert process.stdout is not None
        return process.stdout.readline().decode().strip()

    def stop(self) -> None:
        """End the processes that `start` and `http` have started."""
        for process in self._processes:
            process.kill()
            process.communicate()
        self._processes.clear()

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """The calls that have reached the server, in order, as names and arguments."""
        return [(name, arguments) for name, arguments in self._read_log() if name != "start"]

    @property
    def starts(self) -> int:
        """How often the server was started."""
        return sum(name == "start" for name, _ in self._read_log())

    def _read_log(self) -> list[tuple[str, dict[str, Any]]]:
        if not self._log.exists():
            return []
        return [tuple(json.loads(line)) for line in self._log.read_text().splitlines()]

    @property
    def _log(self) -> Path:
        if self._folder is None:
            raise RuntimeError("the server is not there: use it in a `with` block")
        return Path(self._folder.name, "calls.jsonl")
