"""`RecordedRuns`, a journal that is only read: the runs of a file of JSON lines. Tests replay them
and commands show them; whoever wants to write them loads them into a journal of their own."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from bae.exceptions import JournalError
from bae.journal.files.run_lines import read_runs
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


class RecordedRuns(Journal):
    """Runs that were recorded, to be read and replayed; everything else is refused with
    `bae-journal-readonly`. `RecordedRuns.of(path)` reads them from a file."""

    def __init__(self, runs: Iterable[StoredRun], name: str = "the recorded runs") -> None:
        self._runs = {run.info.run_id: run for run in runs}
        self._name = name

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> RecordedRuns:
        """Read all runs of a file that `Journal.export` has written."""
        try:
            with Path(path).open("rb") as file:
                return cls(read_runs(file, str(path)), str(path))
        except OSError as error:
            raise JournalError(
                f"{os.fspath(path)} could not be read: {error.strerror}",
                code="bae-journal-failed",
                cause=error,
                fix="check the path and who may read it",
            ) from error

    @property
    def infos(self) -> list[RunInfo]:
        """The runs, the newest first."""
        return sorted((run.info for run in self._runs.values()), key=lambda i: -i.started)

    async def read(self, run_id: str) -> StoredRun:
        """All there is of a run; `bae-run-unknown` where there is none of that id."""
        if run_id not in self._runs:
            raise JournalError(
                f"{self._name} has no run {run_id}",
                run_id=run_id,
                code="bae-run-unknown",
                fix=f"it has {', '.join(list(self._runs)[:20]) or 'none'}",
            )
        return self._runs[run_id]

    async def runs(
        self,
        *,
        status: Listed | None = None,
        graph: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> list[RunInfo]:
        """The newest runs, the newest first; `before` goes on after the run of that id."""
        check_listed(status)
        infos = self.infos
        if before is not None:
            infos = infos[infos.index((await self.read(before)).info) + 1 :]
        return [info for info in infos if is_listed(info, status) and graph in (None, info.graph)][
            :limit
        ]

    async def older(self, than: float, statuses: Sequence[Status]) -> list[str]:
        """The ids of the runs that were last written before the time `than`, by status."""
        infos = self.infos
        return [i.run_id for i in infos if i.updated < than and i.status in statuses]

    async def close(self) -> None:
        """Nothing is open."""

    async def create(
        self, run_id: str, graph: str, shape: str, shape_hash: str, lines: Sequence[Line]
    ) -> Claim:
        """Refused, as is everything below."""
        self._refuse()

    def append(self, claim: Claim, lines: Sequence[Line]) -> Awaitable[None]:
        """Refused."""
        self._refuse()

    def note(self, claim: Claim, line: Line) -> None:
        """Refused."""
        self._refuse()

    async def release(
        self,
        claim: Claim,
        status: Status,
        lines: Sequence[Line],
        waiting: Sequence[ParkedGate] = (),
        error: str = "",
    ) -> None:
        """Refused."""
        self._refuse()

    async def claim(self, run_id: str) -> Claim:
        """Refused."""
        self._refuse()

    async def answer(self, run_id: str, gate: str, value: str) -> bool:
        """Refused."""
        self._refuse()

    async def fork(self, run_id: str, new_id: str, upto: int, lines: Sequence[Line]) -> None:
        """Refused."""
        self._refuse()

    async def rewrite(self, changes: Sequence[Rewrite]) -> None:
        """Refused."""
        self._refuse()

    async def delete(self, run_ids: Sequence[str]) -> int:
        """Refused."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise JournalError(
            f"{self._name} can be read and replayed, and not written",
            code="bae-journal-readonly",
            fix="load it into a journal: await SQLiteJournal(…).load(path)",
        )


def is_sqlite(path: str | os.PathLike[str]) -> bool:
    """Whether a file is one of SQLite's, going by how it begins."""
    try:
        with Path(path).open("rb") as file:
            return file.read(16) == b"SQLite format 3\x00"
    except OSError as error:
        raise JournalError(
            f"{os.fspath(path)} could not be read: {error.strerror}",
            code="bae-journal-failed",
            cause=error,
            fix="check the path and who may read it",
        ) from error
