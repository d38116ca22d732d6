"""`MemoryJournal`: many runs kept in memory, for tests and for runs that need survive nothing. It
is the same `Journal` as one in a file: what can be done with a run there can be done here, as long
as the object lives."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Generator, Sequence
from dataclasses import dataclass, field, replace
from secrets import token_hex
from time import time

from bae.exceptions import JournalError
from bae.journal.refusals import has_ended, not_replaced
from bae.journal.store import (
    Claim,
    Journal,
    Line,
    Listed,
    ParkedGate,
    Rewrite,
    RunInfo,
    Status,
    StoredRun,
    check_listed,
    is_listed,
)


class MemoryJournal(Journal):
    """Runs in memory: `journal = MemoryJournal()`, then `await graph.arun(start, journal=journal)`.

    Several event loops and threads may use it at once. A run that is under way has an owner as long
    as this object lives; `close` gives them all up.
    """

    def __init__(self, *, secrets: bool = False, prompts: bool = True) -> None:
        self.secrets = secrets
        self.prompts = prompts
        self._owner = f"memory:{os.getpid()}:{token_hex(4)}"
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<MemoryJournal of {len(self._runs)} runs>"

    async def create(
        self, run_id: str, graph: str, shape: str, shape_hash: str, lines: Sequence[Line]
    ) -> Claim:
        """Store a new run with its first lines, and claim it."""
        _check_numbers(lines, 0)
        with self._lock:
            self._refuse_closed(run_id)
            self._refuse_existing(run_id)
            started = lines[0].at if lines else time()
            run = _Run(run_id, graph, started, shape, shape_hash, list(lines))
            self._runs[run_id] = run
            return self._claimed(run)

    def append(self, claim: Claim, lines: Sequence[Line]) -> Awaitable[None]:
        """Store lines, at once."""
        try:
            with self._lock:
                self._held(claim).add(lines)
        except (JournalError, ValueError) as error:
            return _Failed(error)
        return _DONE

    def note(self, claim: Claim, line: Line) -> None:
        """Store a line, at once."""
        try:
            with self._lock:
                self._held(claim).add((line,))
        except (JournalError, ValueError):
            pass  # the next line that is waited for fails in the same way

    async def release(
        self,
        claim: Claim,
        status: Status,
        lines: Sequence[Line],
        waiting: Sequence[ParkedGate] = (),
        error: str = "",
    ) -> None:
        """Store the last lines of a run and how it came out, and give up the claim."""
        with self._lock:
            run = self._held(claim)
            run.claim = None
            run.add(lines)
            run.status = status
            run.waiting = tuple(waiting)
            run.error = error

    async def claim(self, run_id: str) -> Claim:
        """Claim a run that nobody has, and that has not ended."""
        with self._lock:
            self._refuse_closed(run_id)
            run = self._found(run_id)
            if run.claim is not None:
                raise JournalError(
                    f"run {run_id!r} has an owner, {run.claim.owner}, which is at work on it",
                    code="bae-run-owned",
                    run_id=run_id,
                    fix="leave the run to its owner, or wait until it has ended",
                )
            if run.status == "ended":
                raise has_ended(run_id)
            run.status, run.waiting, run.error = "running", (), ""
            return self._claimed(run)

    async def read(self, run_id: str) -> StoredRun:
        """All there is of a run."""
        with self._lock:
            self._refuse_closed(run_id)
            run = self._found(run_id)
            return StoredRun(run.info(), run.shape, tuple(run.lines), dict(run.answers))

    async def runs(
        self,
        *,
        status: Listed | None = None,
        graph: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> list[RunInfo]:
        """The newest runs, the newest first; `before` goes on after the run of that id."""
        if limit < 0:
            raise ValueError(f"runs(limit={limit}): give 0 or more")
        check_listed(status)
        with self._lock:
            self._refuse_closed()
            newest = list(reversed(self._runs.values()))
            if before is not None:
                newest = newest[newest.index(self._found(before)) + 1 :]
            infos = [run.info() for run in newest if graph in (None, run.graph)]
            return [info for info in infos if is_listed(info, status)][:limit]

    async def answer(self, run_id: str, gate: str, value: str) -> bool:
        """Store the answer to a gate, as JSON; False where there is one already."""
        with self._lock:
            self._refuse_closed(run_id)
            run = self._found(run_id)
            if gate in run.answers:
                return False
            run.answers[gate] = value
            return True

    async def fork(self, run_id: str, new_id: str, upto: int, lines: Sequence[Line]) -> None:
        """A new run that shares the lines of `run_id` below `upto`."""
        with self._lock:
            self._refuse_closed(run_id)
            parent = self._found(run_id)
            self._refuse_existing(new_id)
            if not 0 <= upto <= len(parent.lines):
                there = len(parent.lines)
                raise ValueError(f"run {run_id!r} has {there} lines, it cannot be forked at {upto}")
            _check_numbers(lines, upto)
            self._runs[new_id] = _Run(
                new_id,
                parent.graph,
                lines[0].at if lines else time(),
                parent.shape,
                parent.shape_hash,
                [*parent.lines[:upto], *lines],
                parent=run_id,
                shared=upto,
            )

    async def rewrite(self, changes: Sequence[Rewrite]) -> None:
        """Put other lines in the place of those with the same numbers, and forget answers."""
        with self._lock:
            self._refuse_closed()
            for run_id, lines, _ in changes:
                there = len(self._found(run_id).lines)
                for line in lines:
                    if not 0 <= line.n < there:
                        raise ValueError(f"run {run_id!r} has no line {line.n} to replace")
            for run_id, lines, forget in changes:
                run = self._found(run_id)
                for line in lines:
                    for one in self._sharing(run, line.n):
                        one.lines[line.n] = line
                for gate in forget:
                    run.answers.pop(gate, None)

    async def put(self, run: StoredRun, *, replace: bool = False) -> None:
        """Store a run that was read elsewhere."""
        info = run.info
        run_id = info.run_id
        _check_numbers(run.lines, 0)
        with self._lock:
            self._refuse_closed(run_id)
            there = self._runs.get(run_id)
            if not replace or there is None:
                self._refuse_existing(run_id)
            elif there.claim is not None:
                raise not_replaced(run_id, there.claim.owner)
            elif self._has_forks(there):
                raise not_replaced(run_id, None)
            else:
                del self._runs[run_id]
            self._runs[run_id] = _Run(
                run_id,
                info.graph,
                info.started,
                run.shape,
                info.shape,
                list(run.lines),
                dict(run.answers),
                came_from=info.parent,
                status=info.status,
                waiting=info.waiting,
                error=info.error,
            )

    async def delete(self, run_ids: Sequence[str]) -> int:
        """Delete runs and answer how many. One whose lines another run shares stays, and so does
        one that somebody is at work on."""
        with self._lock:
            self._refuse_closed()
            count = 0
            wanted = set(run_ids)
            for run in reversed(list(self._runs.values())):  # forks before what they share with
                if run.run_id in wanted and run.claim is None and not self._has_forks(run):
                    del self._runs[run.run_id]
                    count += 1
            return count

    async def older(self, than: float, statuses: Sequence[Status]) -> list[str]:
        """The ids of the runs that were last written before the time `than`, by status."""
        with self._lock:
            self._refuse_closed()
            found = [run.info() for run in self._runs.values() if run.status in statuses]
            return [info.run_id for info in found if info.updated < than]

    async def close(self) -> None:
        """Give up the runs that are under way. Nothing can be done with the journal afterwards."""
        with self._lock:
            self._closed = True
            for run in self._runs.values():
                run.claim = None

    def _claimed(self, run: _Run) -> Claim:
        run.claim = Claim(run.run_id, self._owner)
        return run.claim

    def _held(self, claim: Claim) -> _Run:
        """The run of a claim that is good."""
        self._refuse_closed(claim.run_id)
        run = self._runs.get(claim.run_id)
        if run is None or run.claim is not claim:
            raise JournalError(
                f"run {claim.run_id!r} is written no more under that claim: it was given up",
                code="bae-run-taken",
                run_id=claim.run_id,
                fix="claim it again to go on with it: graph.resume(run_id, …)",
            )
        return run

    def _found(self, run_id: str) -> _Run:
        run = self._runs.get(run_id)
        if run is None:
            raise JournalError(
                f"this journal has no run {run_id!r}",
                code="bae-run-unknown",
                run_id=run_id,
                fix="look at `await journal.runs()`: it may be in another journal, or was deleted",
            )
        return run

    def _sharing(self, run: _Run, n: int) -> list[_Run]:
        """The runs that have the same line `n` as a run, itself included."""
        home = run
        while home.parent is not None and n < home.shared:
            home = self._runs[home.parent]
        found = [home]
        for one in self._runs.values():  # a fork comes after what it was forked from
            parent = None if one.parent is None else self._runs[one.parent]
            if parent in found and n < one.shared:
                found.append(one)
        return found

    def _has_forks(self, run: _Run) -> bool:
        return any(one.parent == run.run_id for one in self._runs.values())

    def _refuse_existing(self, run_id: str) -> None:
        if run_id in self._runs:
            raise JournalError(
                f"there is a run {run_id!r} already",
                code="bae-run-exists",
                run_id=run_id,
                fix="give the new run another id, or go on with that one: graph.resume(run_id, …)",
            )

    def _refuse_closed(self, run_id: str | None = None) -> None:
        if self._closed:
            raise JournalError(
                "the journal in memory is closed",
                code="bae-journal-closed",
                run_id=run_id,
                fix="close it when its last run has ended",
            )


@dataclass(slots=True, eq=False)
class _Run:
    run_id: str
    graph: str
    started: float
    shape: str
    shape_hash: str
    lines: list[Line]
    """All of them, those included that it shares with its parent."""
    answers: dict[str, str] = field(default_factory=dict[str, str])
    parent: str | None = None
    shared: int = 0
    came_from: str | None = None
    """What it was forked from in another journal: nothing is shared with that."""
    claim: Claim | None = None
    status: Status = "running"
    waiting: tuple[ParkedGate, ...] = ()
    error: str = ""

    def add(self, lines: Sequence[Line]) -> None:
        _check_numbers(lines, len(self.lines))
        self.lines.extend(lines)

    def info(self) -> RunInfo:
        return RunInfo(
            run_id=self.run_id,
            graph=self.graph,
            status=self.status,
            started=self.started,
            updated=self.lines[-1].at if len(self.lines) > self.shared else self.started,
            shape=self.shape_hash,
            owner=None if self.claim is None else self.claim.owner,
            lease_until=None if self.claim is None else time() + _LEASE,
            waiting=tuple(
                replace(gate, answered=gate.address in self.answers) for gate in self.waiting
            ),
            error=self.error,
            parent=self.parent or self.came_from,
        )


class _Done(Awaitable[None]):
    """What is stored already."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


class _Failed(Awaitable[None]):
    """What could not be stored."""

    __slots__ = ("_error",)

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __await__(self) -> Generator[None, None, None]:
        raise self._error
        yield


_DONE = _Done()
_LEASE = 30.0


def _check_numbers(lines: Sequence[Line], first: int) -> None:
    for n, line in enumerate(lines, first):
        if line.n != n:
            raise ValueError(f"there is a line {line.n} where {n} is due")
