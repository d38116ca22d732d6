"""Processes that run jobs and can be killed. They are forked from a process that has imported and
prepared everything (`crash.prepared`), so each is ready at once."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from unittest.mock import patch

from crash.child import Job, Report, work

BOUND = 60
"""Seconds until a process that does not end fails the test."""


class Forks:
    """Forks processes, `limit` at a time at most: `await forks.run(job)`."""

    def __init__(self, limit: int = 2) -> None:
        self._limit = asyncio.Semaphore(limit)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["crash.prepared"])
        with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))):
            forkserver.ensure_running()
        self.started = 0
        self.kills = 0
        """How many of the processes that were started were killed."""

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
        return Fork(self, self._context, job)


class Fork:
    """One process."""

    def __init__(
        self, forks: Forks, context: multiprocessing.context.ForkServerContext, job: Job
    ) -> None:
        self._forks = forks
        self._loop = asyncio.get_running_loop()
        self._pipe, other_end = context.Pipe()
        self._process = context.Process(target=work, args=(job, other_end))
        self._process.start()
        other_end.close()
        self.begun: asyncio.Future[None] = self._loop.create_future()
        self.over = asyncio.ensure_future(asyncio.to_thread(self._listen))

    def send(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send it a signal."""
        with suppress(ProcessLookupError):
            os.kill(self._process.pid or 0, number)

    async def stop(self) -> None:
        """Stop it until it is sent SIGCONT."""
        self.send(signal.SIGSTOP)
        state = ["ps", "-o", "state=", "-p", str(self._process.pid)]
        while not (await asyncio.to_thread(subprocess.check_output, state)).startswith(b"T"):
            pass

    def go(self) -> None:
        """Let a process begin whose job says that it waits for that."""
        self._pipe.send("go")

    async def report(self) -> Report | None:
        """The report of the finished process, or None if it was killed."""
        async with asyncio.timeout(BOUND):
            code, report = await self.over
        self._forks.kills += bool(code)
        # 255 is the exit code of a killed process whose status is unknown.
        assert code in (0, -signal.SIGKILL, 255), f"the process ended with {code}"
        return report

    def _listen(self) -> tuple[int | None, Report | None]:
        report: Report | None = None
        with suppress(EOFError, ConnectionError):  # it was killed
            self._pipe.recv()
            self._loop.call_soon_threadsafe(self.begun.set_result, None)
            report = self._pipe.recv()
        self._process.join()
        if not self.begun.done():
            self._loop.call_soon_threadsafe(self._give_up)
        self._pipe.close()
        return self._process.exitcode, report

    def _give_up(self) -> None:
        if not self.begun.done():
            self.begun.set_result(None)
