"""For tests of backends that run a program: the real `claude`, replacements that fail on purpose,
and checks for leftover processes."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bounded import BOUND

ROOT = Path(__file__).resolve().parents[1]


def real_claude() -> str:
    """The Claude program. Without one the test is skipped, or fails where all must be there."""
    beside = ROOT / ".claude-cli" / "node_modules" / ".bin" / "claude"
    named = os.environ.get("BAE_TEST_CLAUDE") or (str(beside) if beside.exists() else "claude")
    found = shutil.which(named)
    if found is not None:
        return found
    complaint = f"there is no Claude program {named!r}: run tools/claude_cli.sh"
    if os.environ.get("BAE_REQUIRE_EXTRAS") == "1":
        pytest.fail(complaint)
    pytest.skip(complaint)


def result(**changed: Any) -> dict[str, Any]:
    """What the program prints last when all went well."""
    return {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "api_error_status": None,
        "result": '{"top": "a shirt"}',
        "stop_reason": "tool_use",
        "total_cost_usd": 0.25,
        "usage": {
            "input_tokens": 1,
            "cache_creation_input_tokens": 20,
            "cache_read_input_tokens": 300,
            "output_tokens": 4000,
        },
        "modelUsage": {"claude-sonnet-9": {}},
        "structured_output": {"top": "a shirt"},
        **changed,
    }


def script(folder: Path, body: str, **known: Any) -> str:
    """A program in Python, in a file; `known` are names it knows."""
    path = folder / f"program_{len(list(folder.iterdir()))}"
    given = "".join(f"{name} = {value!r}\n" for name, value in known.items())
    path.write_text(
        f"#!{sys.executable} -IS\nimport json, os, signal, socket, sys, time\n"
        f"{given}{textwrap.dedent(body)}",
        "utf-8",
    )
    path.chmod(0o755)
    return str(path)


def printing(folder: Path, printed: Any) -> str:
    """A program that prints this, as JSON where it is no text."""
    text = printed if isinstance(printed, str) else json.dumps(printed)
    return script(folder, "sys.stdin.read(); print(text)", text=text)


class Caller:
    """One of a stand-in's processes, which has said that it runs."""

    def __init__(
        self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.pid = pid
        self._reader = reader
        self._writer = writer

    def go(self) -> None:
        """Let it go on."""
        self._writer.write(b"go\n")

    async def gone(self) -> None:
        """Wait until every process is dead that has this call's line open."""
        async with asyncio.timeout(BOUND):
            assert await self._reader.read() == b""


CALL = """
line = socket.create_connection(("127.0.0.1", port))
os.set_inheritable(line.fileno(), True)
def call():
    line.sendall(b"%d\\n" % os.getpid())
def wait():
    line.recv(10)
"""
"""For scripts: `call` says to the test that it runs, `wait` waits for it to let go."""


class Calls:
    """Where scripts call when they run; give them `port`."""

    def __init__(self) -> None:
        self.port = 0
        self._callers: asyncio.Queue[Caller] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []

    async def next(self) -> Caller:
        async with asyncio.timeout(BOUND):
            return await self._callers.get()

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self._callers.put_nowait(Caller(int(await reader.readline() or 0), reader, writer))


@asynccontextmanager
async def calls() -> AsyncIterator[Calls]:
    """A line that scripts call in on."""
    found = Calls()
    server = await asyncio.start_server(found._hear, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
        for writer in found._writers:
            writer.transport.abort()
        await server.wait_closed()


def living(*, group: int) -> list[int]:
    """The processes of a group that are not dead."""
    return [pid for pid, state, _, of in _processes() if of == group and state not in "ZX"]


def dead(*, group: int) -> bool:
    """Wait until the processes of a group are dead: killed processes without a parent that waits
    for them take a moment."""
    for pid in living(group=group):
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([process], [], [], BOUND)[0]:
                return False
        finally:
            os.close(process)
    return living(group=group) == []


def children() -> list[int]:
    """The processes that this one started and has not yet reaped, dead or alive."""
    return [pid for pid, _, parent, _ in _processes() if parent == os.getpid()]


def open_files() -> int:
    """How many files and sockets this process has open."""
    return len(os.listdir("/proc/self/fd"))


def _processes() -> list[tuple[int, str, int, int]]:
    found: list[tuple[int, str, int, int]] = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                stat = (each / "stat").read_text("utf-8")
            except OSError:
                continue  # it ended meanwhile
            state, parent, group = stat.rpartition(")")[2].split()[:3]
            found.append((int(each.name), state, int(parent), int(group)))
    return found
