"""Files of exported runs: JSON lines, a header for each run and then a line for each record.
`RecordedRuns` is the journal of such a file, read-only."""

from __future__ import annotations

import os
from codecs import BOM_UTF8
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NoReturn, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json, to_json

from bae.exceptions import JournalError, describe, faults
from bae.journal.store import (
    Claim,
    Journal,
    Line,
    Listed,
    ParkedGate,
    RunInfo,
    Status,
    StoredRun,
    check_listed,
    check_version,
    is_listed,
)

StrPath = str | os.PathLike[str]

VERSION: Final = 1
"""The version of the format that this bae writes, and the newest one that it reads."""
_LISTED: Final = ("run_id", "graph", "status", "started", "updated", "parent", "error")
"""What a header has of `RunInfo` under the same name."""
_GET_AGAIN: Final = "get the whole file, or export the run again"
_NOT_EXPORTED: Final = "give a file that `export` wrote"


def write_run(run: StoredRun) -> Iterator[bytes]:
    """The lines of one run in a file, each with its line end."""
    info = run.info
    header = {
        "bae": "run",
        "version": VERSION,
        **{name: getattr(info, name) for name in _LISTED},
        "waiting": [
            {"address": g.address, "place": g.place, "question": g.question, "deadline": g.deadline}
            for g in info.waiting
        ],
        "answers": {gate: from_json(answer) for gate, answer in run.answers.items()},
        "shape_hash": info.shape,
        "shape": _object_or_text(run.shape),
        "lines": len(run.lines),
    }
    yield _json(header) + b"\n"
    for line in run.lines:
        try:
            data = from_json(line.data)
        except ValueError as error:
            raise JournalError(
                f"line {line.n} of the run {info.run_id} is not valid JSON",
                run_id=info.run_id,
                code="bae-journal-damaged",
                cause=error,
                fix="export the other runs by their ids; nothing of this one is written",
            ) from error
        yield _json({**line._asdict(), "data": data}) + b"\n"


def read_runs(lines: Iterable[bytes] | Iterable[str], name: str) -> Iterator[StoredRun]:
    """The runs of a file, one at a time, each checked from its first line to its last. `name` is
    that of the file, for errors."""
    file = _Lines(lines, name)
    seen: set[str] = set()
    while (first := file.read()) is not None:
        header = _header(file, first)
        run_id = header.run_id
        if run_id in seen:
            what = f"the run {run_id} is in the file a second time"
            raise file.error(what, "remove one of the two", run_id, code="bae-run-exists")
        seen.add(run_id)
        read: list[Line] = []
        for n in range(header.lines):
            entry = file.read(run_id)
            if entry is None or "bae" in entry:
                where = "the file ends" if entry is None else "the next run begins"
                what = f"{where} after {n} of the {header.lines} lines of the run {run_id}"
                raise file.error(what, _GET_AGAIN, run_id)
            read.append(_line(file, entry, n, run_id))
        yield _stored(header, read)


class RecordedRuns(Journal):
    """Recorded runs, to be read and replayed; every write is refused with `bae-journal-readonly`.
    `RecordedRuns.of(path)` reads them from a file."""

    def __init__(self, runs: Iterable[StoredRun], name: str = "the recorded runs") -> None:
        self._runs = {run.info.run_id: run for run in runs}
        self._name = name

    @classmethod
    def of(cls, path: StrPath) -> RecordedRuns:
        """Read all runs of a file that `Journal.export` wrote."""
        with opened(Path(path)) as file:
            return cls(read_runs(file, str(path)), str(path))

    @property
    def infos(self) -> list[RunInfo]:
        """The runs, newest first."""
        return sorted((run.info for run in self._runs.values()), key=lambda i: -i.started)

    async def read(self, run_id: str) -> StoredRun:
        """A whole run; `bae-run-unknown` where there is none of that id."""
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
        """The newest runs, newest first; with `before`, those that follow the run of that id."""
        check_listed(status)
        infos = self.infos
        if before is not None:
            infos = infos[infos.index((await self.read(before)).info) + 1 :]
        found = [i for i in infos if is_listed(i, status) and graph in (None, i.graph)]
        return found[:limit]

    async def older(self, than: float, statuses: Sequence[Status]) -> list[str]:
        """The ids of the runs of these statuses last written before the time `than`."""
        return [i.run_id for i in self.infos if i.updated < than and i.status in statuses]

    async def close(self) -> None:
        """Nothing is open."""

    async def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise JournalError(
            f"{self._name} can be read and replayed, but not written",
            code="bae-journal-readonly",
            fix="load it into a journal: await SQLiteJournal(…).load(path)",
        )

    create = append = release = claim = answer = fork = rewrite = delete = _refuse

    def note(self, claim: Claim, line: Line) -> None:
        """Nothing: no run can be claimed here."""


def is_sqlite(path: StrPath) -> bool:
    """Whether a file is an SQLite database, by its first bytes."""
    with opened(Path(path)) as file:
        return file.read(16) == b"SQLite format 3\x00"


@contextmanager
def opened(path: Path, mode: str = "rb", name: Path | None = None) -> Generator[Any]:
    """An open file. What the file system refuses is raised as a `JournalError`, about the file
    `name` where it is another."""
    try:
        file = path.open(mode)
        try:
            yield file
        finally:
            with suppress(OSError):  # a full disk refuses again what is still in the buffer
                file.close()
    except OSError as error:
        done = "read" if mode == "rb" else "written"
        raise JournalError(
            f"{name or path} could not be {done}: {error.strerror or describe(error)}",
            code="bae-journal-failed",
            cause=error,
            fix="check the path, its permissions and the free space",
        ) from error


class _Lines:
    """The lines of a file as JSON objects, with the number of the one read last."""

    def __init__(self, lines: Iterable[bytes] | Iterable[str], name: str) -> None:
        self._lines = iter(lines)
        self._name = name
        self._number = 0

    def read(self, run_id: str | None = None) -> dict[str, Any] | None:
        """The next line that is not empty, or None at the end of the file."""
        for text in self._lines:
            self._number += 1
            raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
            if self._number == 1:
                raw = raw.removeprefix(BOM_UTF8)
            if not raw.strip():
                continue
            try:
                entry = from_json(raw)
            except ValueError as error:
                how = "not valid JSON" if raw.endswith(b"\n") else "cut off"
                raise self.error(f"the line is {how}", _GET_AGAIN, run_id, error) from error
            if not isinstance(entry, dict):
                raise self.error("the line is not a JSON object", _NOT_EXPORTED, run_id)
            return cast("dict[str, Any]", entry)
        return None

    def error(
        self,
        what: str,
        fix: str,
        run_id: str | None = None,
        cause: BaseException | None = None,
        code: str = "bae-journal-damaged",
    ) -> JournalError:
        """An error that names the file and the line."""
        where = f"{self._name}, line {self._number}"
        return JournalError(f"{where}: {what}", run_id=run_id, code=code, cause=cause, fix=fix)


class _Gate(BaseModel):
    model_config = ConfigDict(strict=True)

    address: str
    place: str
    question: str
    deadline: float | None = None


class _Header(BaseModel):
    model_config = ConfigDict(strict=True)

    run_id: str = Field(min_length=1)
    graph: str
    status: Status
    started: float
    updated: float
    parent: str | None = None
    error: str = ""
    waiting: list[_Gate] = []
    answers: dict[str, Any] = {}
    shape_hash: str
    shape: dict[str, Any] | str
    lines: int = Field(ge=1)


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True)

    n: int
    kind: str = Field(pattern=r"^[A-Za-z]+$")
    at: float
    path: str
    step: int = Field(ge=0)
    data: dict[str, Any]
    version: int = Field(default=1, ge=1)


def _header(file: _Lines, entry: dict[str, Any]) -> _Header:
    version = entry.get("version")
    if entry.get("bae") != "run" or type(version) is not int:
        what = 'a run begins with {"bae": "run", "version": …}, and this line does not'
        raise file.error(what, _NOT_EXPORTED)
    if version > VERSION:
        what = f"the run has format version {version}, and this bae reads versions up to {VERSION}"
        raise file.error(what, "upgrade bae", code="bae-journal-version")
    try:
        return _Header.model_validate(entry)
    except ValidationError as error:
        what = f"the header of the run is not valid: {'; '.join(faults(error))}"
        raise file.error(what, "export the run again", cause=error) from error


def _line(file: _Lines, entry: dict[str, Any], n: int, run_id: str) -> Line:
    try:
        read = _Entry.model_validate(entry)
    except ValidationError as error:
        what = f"the record is not valid: {'; '.join(faults(error))}"
        raise file.error(what, _GET_AGAIN, run_id, error) from error
    if read.n != n:
        what = f"the record has number {read.n}, and {n} is next in the run {run_id}"
        raise file.error(what, _GET_AGAIN, run_id)
    data = _json(entry["data"]).decode()
    line = Line(n, read.kind, read.at, read.path, read.step, data, read.version)
    try:
        check_version(line, run_id)
    except JournalError as error:
        raise file.error(error.message, error.fix or "", run_id, code=error.code) from error
    return line


def _stored(header: _Header, lines: list[Line]) -> StoredRun:
    gates = (
        ParkedGate(g.address, g.place, g.question, g.deadline, g.address in header.answers)
        for g in header.waiting
    )
    listed: dict[str, Any] = {name: getattr(header, name) for name in _LISTED}
    info = RunInfo(**listed, shape=header.shape_hash, waiting=tuple(gates))
    shape = header.shape if isinstance(header.shape, str) else _json(header.shape).decode()
    answers = {gate: _json(answer).decode() for gate, answer in header.answers.items()}
    return StoredRun(info, shape, tuple(lines), answers)


def _object_or_text(text: str) -> dict[str, Any] | str:
    """A JSON object, so that people can read it, where the text is one."""
    try:
        found = from_json(text)
    except ValueError:
        return text
    return cast("dict[str, Any]", found) if isinstance(found, dict) else text


def _json(value: Any) -> bytes:
    return to_json(value, inf_nan_mode="constants")
