"""Processes with `bae team plan` and `bae team run` that a server starts for a team. They end with
the server. If a user starts the same command again, it continues where it stopped."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import time
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast

from bae.serve import Refused
from bae.subprocesses import run_program
from bae.tasks import finish_despite_cancel
from bae.team.models import describe
from bae.team.team_run import is_running

if TYPE_CHECKING:
    from bae.team.endpoints import ServedTeam

_log = logging.getLogger("bae.team")
JobKind = Literal["plan", "run"]
JobStatus = Literal["running", "done", "waiting", "failed", "stopped"]
GRACE: Final = 30.0
"""Seconds that a process has to end after SIGTERM."""
KEPT: Final = 16_384
"""Bytes that a job stores from the end of stderr."""
_TOKENS: Final = ("BAE_STUDIO_TOKEN", "BAE_TEAM_TOKEN", "BAE_SERVE_TOKEN")
"""Environment variables that a job's process does not get, because they give access to a server."""
_WAITING_CODE: Final = 3
_SIGNAL_CODES: Final = (130, 143)
_STOP_REASONS: Final = ("stopped", "killed", "paused")


@dataclass(eq=False)
class TeamJob:
    """A `bae team` command that a user started through the server."""

    team: str
    kind: JobKind
    command: tuple[str, ...]
    by: str
    """The name of the user who started the job."""
    change: int
    """The number of the job's last change."""
    started: float = field(default_factory=time)
    ended: float | None = None
    status: JobStatus = "running"
    exit_code: int | None = None
    reason: str = ""
    """Why a run ended, from the JSON on the command's stdout."""
    output: str = ""
    """The end of the command's stderr."""
    stopping: bool = False
    task: asyncio.Task[None] | None = None

    @property
    def line(self) -> str:
        """The job's command line, to type in a shell in the repository."""
        return shlex.join(("bae", "team", *self.command))


class TeamJobs:
    """Starts `bae team plan` and `bae team run` as processes. A team has at most one process of
    each kind. All processes end with the `async with` block.

    `lm` is the name of the LLM that the processes use. Default: the LLM that this machine offers.
    """

    def __init__(self, lm: str | None = None) -> None:
        self.lm = lm
        self.change = 0
        """The number of the newest change of a job."""
        self._jobs: dict[tuple[str, JobKind], TeamJob] = {}
        self._changed = asyncio.Event()
        self._is_closing = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        for name, kind in [*self._jobs]:
            self.stop(name, kind)
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        if tasks:
            await finish_despite_cancel(asyncio.wait(tasks))

    def jobs_of(self, team: str) -> list[TeamJob]:
        """Return the team's newest job of each kind, newest first."""
        jobs = [job for job in self._jobs.values() if job.team == team]
        return sorted(jobs, key=lambda job: -job.started)

    async def wait(self, after: int) -> None:
        """Wait until `change` is higher than `after`."""
        while self.change <= after:
            await self._changed.wait()

    async def start(
        self,
        name: str,
        team: ServedTeam,
        kind: JobKind,
        options: Sequence[str],
        *,
        by: str,
        given: str = "",
    ) -> TeamJob:
        """Start `bae team plan` or `bae team run` with `options`. The process reads `given` from
        its stdin.

        Raise `Refused` if a job of this kind is in progress, or if the server is closing. A run is
        also refused if another process runs the team.
        """
        is_busy = kind == "run" and await is_running(team.repository)
        # No await from here on: otherwise two requests could each start a job.
        before = self._jobs.get((name, kind))
        if is_busy or (before is not None and before.status == "running"):
            raise Refused(
                409,
                "bae-team-busy",
                "the team is being planned" if kind == "plan" else "a run is in progress",
                "wait for its end, or stop it",
            )
        if self._is_closing:
            raise Refused(
                503,
                "bae-serve-closing",
                "the server is closing, so it starts no job",
                "try again: another process answers soon",
                headers={"retry-after": "2"},
            )
        self.change += 1
        job = TeamJob(name, kind, (kind, *options), by, self.change)
        self._jobs[name, kind] = job
        job.task = asyncio.create_task(self._run_command(job, team.project.root, given))
        job.task.add_done_callback(lambda task: self._record_end(job, task))
        self._notify(job)
        return job

    def stop(self, name: str, kind: JobKind) -> TeamJob | None:
        """Stop the team's newest job of this kind, and return the job. Return None if the team has
        no such job."""
        job = self._jobs.get((name, kind))
        if job is not None and job.task is not None and not job.stopping:
            # A second cancellation would interrupt the job while it saves its progress.
            job.stopping = True
            job.task.cancel()
        return job

    async def _run_command(self, job: TeamJob, root: str, given: str) -> None:
        """Run the job's command until it ends, and store its outcome in the job."""
        environment = {name: text for name, text in os.environ.items() if name not in _TOKENS}
        try:
            result = await run_program(
                [sys.executable, "-m", "bae", "team", *job.command],
                given=given.encode("utf-8", "replace"),
                cwd=root,
                env=environment,
                timeout=None,
                grace=GRACE,
                kept=KEPT,
            )
            job.output = result.err.decode(errors="replace").strip()
            job.reason = _read_reason(result.out)
            job.exit_code = result.status
            job.status = _find_status(result.status, job.reason)
        except OSError as error:
            job.status, job.output = "failed", f"the command cannot be started: {error}"

    def _record_end(self, job: TeamJob, task: asyncio.Task[None]) -> None:
        job.ended = time()
        if task.cancelled():
            job.status, job.output = "stopped", "it was stopped; its progress is saved"
        elif error := task.exception():
            job.status, job.output = "failed", describe(error)
            _log.error("%s failed", job.line, exc_info=error)
        self._notify(job)

    def _notify(self, job: TeamJob) -> None:
        self.change += 1
        job.change = self.change
        self._changed.set()
        self._changed = asyncio.Event()


def _read_reason(out: bytes) -> str:
    """Return why a run ended, from the JSON that the command printed. If there is no JSON, return
    an empty text."""
    try:
        printed: object = json.loads(out)
    except ValueError:
        return ""
    summary = cast("dict[str, Any]", printed if isinstance(printed, dict) else {})
    return str(summary.get("ended", ""))


def _find_status(code: int, reason: str) -> JobStatus:
    if code == 0:
        return "done"
    if code == _WAITING_CODE:
        return "waiting"
    is_stopped = code < 0 or code in _SIGNAL_CODES or reason in _STOP_REASONS
    return "stopped" if is_stopped else "failed"
