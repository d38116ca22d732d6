"""The test's side of `forking.py`: processes that carry out jobs, killed when wanted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

from crash.child import Job, Report

BOUND = 60
"""Seconds until a process that does not end fails the test."""


class Forks:
    """Forks processes, `limit` at a time at most: `await forks.run(job)`."""

    def __init__(self, limit: int = 2) -> None:
        self._limit = asyncio.Semaphore(limit)
        self._running: dict[int, Fork] = {}
        self.started = 0
        self.kills = 0
        """How many of the processes that were started were killed."""

    async def __aenter__(self) -> Self:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._template = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "crash.forking",
            stdin=PIPE,
            stdout=PIPE,
            limit=1 << 22,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert await _next(self._template), "the process to fork from did not come up"
        self._listening = asyncio.create_task(self._listen())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._template.stdin is not None
        self._template.stdin.close()
        await self._listening
        await self._template.wait()

    async def run(self, job: Job, kill_after: float | None = None) -> Report | None:
        """Have a process do a job; its report, or None where it was killed."""
        async with self._limit:
            fork = self.start(job)
            if kill_after is not None:
                await fork.begun
                await asyncio.wait([fork.over], timeout=kill_after)
                fork.send()
            return await fork.report()

    @contextmanager
    def at_most(self, limit: int) -> Generator[None]:
        """Fork that many at a time in the block."""
        before, self._limit = self._limit, asyncio.Semaphore(limit)
        yield
        self._limit = before

    def start(self, job: Job) -> Fork:
        """Have a process begin a job."""
        self.started += 1
        fork = self._running[self.started] = Fork(self.started, self)
        self.tell({"number": fork.number, "job": asdict(job)})
        return fork

    def tell(self, order: dict[str, Any]) -> None:
        assert self._template.stdin is not None
        self._template.stdin.write(json.dumps(order).encode() + b"\n")

    async def _listen(self) -> None:
        while said := await _next(self._template):
            fork = self._running[said["number"]]
            if "exit" not in said:
                (fork.begun if "begun" in said else fork.stopped).set_result(None)
                continue
            del self._running[fork.number]
            self.kills += said["exit"] == -9
            if not fork.begun.done():
                fork.begun.set_result(None)
            fork.over.set_result((said["exit"], said["report"]))


class Fork:
    """One process."""

    def __init__(self, number: int, forks: Forks) -> None:
        self.number = number
        self._forks = forks
        loop = asyncio.get_running_loop()
        self.begun: asyncio.Future[None] = loop.create_future()
        self.stopped: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[tuple[int, Any]] = loop.create_future()

    def send(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send it a signal."""
        self._forks.tell({"number": self.number, "signal": number})

    async def stop(self) -> None:
        """Stop it until it is sent SIGCONT."""
        self.send(signal.SIGSTOP)
        async with asyncio.timeout(BOUND):
            await self.stopped

    def go(self) -> None:
        """Let a process begin whose job says that it waits for that."""
        self._forks.tell({"number": self.number, "go": True})

    async def report(self) -> Report | None:
        """What it reports when it is through, None where it was killed."""
        async with asyncio.timeout(BOUND):
            code, said = await self.over
        assert code in (0, -9), f"the process ended with {code}"
        return None if code else Report.of(said)


async def _next(template: Process) -> dict[str, Any]:
    assert template.stdout is not None
    line = await template.stdout.readline()
    return json.loads(line) if line else {}
