"""Export runs to files of JSON lines, and load them.

In a file, each run has a header, and then a line for each record. `export` writes runs of a
journal, `load` checks a file and stores its runs in a journal, and `RecordedRuns` reads a file
directly.
"""

from __future__ import annotations

import os
from base64 import b64encode
from binascii import a2b_base64
from codecs import BOM_UTF8
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from dataclasses import replace as with_other
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, Literal, NoReturn, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json, to_json

from bae.approvals import for_run_alone
from bae.exceptions import JournalError, faults
from bae.files import HASH
from bae.given_files import open_file, read_lines
from bae.journal.consistency import RunCheck
from bae.journal.run_checks import check_run
from bae.journal.run_lists import list_runs
from bae.journal.store import Journal, check_replaces
from bae.journal.stored_runs import (
    FORMAT,
    READS,
    Line,
    Listed,
    ParkedGate,
    RunInfo,
    RunStatus,
    RunSummary,
    Scalar,
    StoredRun,
    Time,
)
from bae.private_files import private, put_in_place
from bae.threads import in_thread_to_the_end

StrPath = str | os.PathLike[str]
PathOrFile = StrPath | IO[str] | IO[bytes]
Existing = Literal["refuse", "keep", "replace"]
Unfinished = Literal["cancel", "keep"]
M = TypeVar("M", bound=BaseModel)


async def export(
    journal: Journal,
    to: PathOrFile,
    run_ids: Sequence[str] | None = None,
    *,
    status: Listed | None = None,
    graph: str | None = None,
    thread: str | None = None,
) -> int:
    """Write runs of a journal to a file, and return the number of runs. `Journal.export` has the
    details."""
    if isinstance(run_ids, str):
        raise TypeError(f"export(…, {run_ids!r}): give the ids of runs as a list")
    if hasattr(to, "write"):
        return await _write_runs(journal, cast(IO[Any], to), run_ids, status, graph, thread)
    target = Path(cast(StrPath, to))
    part = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}.part")
    try:
        with open_journal_file(part, "xb", target) as file:
            count = await _write_runs(journal, file, run_ids, status, graph, thread)
            await in_thread_to_the_end(put_in_place, file, target)
    finally:
        with suppress(OSError):
            part.unlink()
    return count


async def load(
    journal: Journal,
    source: PathOrFile,
    *,
    existing: Existing = "refuse",
    unfinished: Unfinished = "cancel",
) -> list[str]:
    """Check a file, store its runs in a journal, and return their ids. `Journal.load` has the
    details."""
    if existing not in ("refuse", "keep", "replace"):
        raise ValueError(f'load(existing={existing!r}): give "refuse", "keep" or "replace"')
    if unfinished not in ("cancel", "keep"):
        raise ValueError(f'load(unfinished={unfinished!r}): give "cancel" or "keep"')
    if existing == "replace":
        check_replaces(journal, "replace runs by those of a file")
    if hasattr(source, "read"):
        file, name = cast(IO[Any], source), getattr(source, "name", None)
        file_name = name if isinstance(name, str) else "the file"
        return await _load_file(journal, file, file_name, existing, unfinished)
    path = Path(cast(StrPath, source))
    with open_journal_file(path) as file:
        return await _load_file(journal, file, str(path), existing, unfinished)


def write_run(run: StoredRun, written: set[str] | None = None) -> Iterator[bytes]:
    """Yield the lines of one run for a file, with line ends. The run's images and documents come
    first, then a header, then the records. `written` has the hashes of images and documents that
    are in the file already, and gets the hashes of new ones."""
    check_run(run)  # readers of the file refuse a run that fails this check
    info = run.info
    written = set() if written is None else written
    for hash, data in run.files.items():
        if hash not in written:
            written.add(hash)
            row = {"bae": "file", "version": FORMAT, "hash": hash, "data": b64encode(data).decode()}
            yield _json(row) + b"\n"
    listed = asdict(info)
    del listed["owner"], listed["lease_until"], listed["change"]  # valid in this journal only
    what = "an answer"
    try:
        header = {
            "bae": "run",
            "version": FORMAT,
            **listed,
            "summary": info.summary and info.summary._asdict(),
            "answers": {gate: from_json(answer) for gate, answer in run.answers.items()},
            "answered_by": dict(run.answered_by),
            "shape_hash": info.shape,
            "shape": _parse_object(run.shape),
            "lines": len(run.lines),
        }
        if run.files:
            header["files"] = [*run.files]
        yield _json(header) + b"\n"
        for line in run.lines:
            what = f"line {line.n}"
            yield _json({**line._asdict(), "data": from_json(line.data)}) + b"\n"
    except ValueError as error:
        raise JournalError(
            f"{what} of the run {info.run_id} is not valid JSON",
            run_id=info.run_id,
            code="bae-journal-damaged",
            cause=error,
            fix="export the other runs by their ids; nothing of this one is written",
        ) from error


def read_runs(lines: Iterable[bytes] | Iterable[str], name: str) -> Iterator[StoredRun]:
    """Yield the runs of a file, one at a time. Each run is checked from its first line to its last,
    so that bae can read it. `name` is the name of the file, for errors."""
    rows = _rows(lines, name)
    run_ids: set[str] = set()
    files: dict[str, bytes] = {}
    for where, row in rows:
        if row.startswith(_FILE):
            files |= _read_file(row, where)
            continue
        header = _parse(_Header, row, where)
        head, run_id = where, header.run_id
        if run_id in run_ids:
            what = f"the run {run_id} is in the file a second time"
            raise _damage_error(where, what, run_id, code="bae-run-exists")
        run_ids.add(run_id)
        stored = header.stored()
        missing = [hash for hash in header.files if hash not in files]
        if missing:
            what = f"the file {missing[0]:.15}… of the run {run_id} does not come before it"
            raise _damage_error(where, what, run_id)
        with _locate_errors(head):
            check_run(stored)
            check = RunCheck(stored)
        run_lines: list[Line] = []
        for n in range(header.lines):
            where, row = next(rows, (where, b""))
            if not row:
                what = f"the file ends after {n} of the {header.lines} lines of the run {run_id}"
                raise _damage_error(where, what, run_id)
            entry = _parse(_Entry, row, where, run_id)
            if entry.n != n:
                what = f"the record has number {entry.n}, and {n} is next in the run {run_id}"
                raise _damage_error(where, what, run_id)
            if entry.version > header.version:
                what = f"the record has version {entry.version}, and its run {header.version}"
                raise _damage_error(where, what, run_id)
            line = entry.line()
            with _locate_errors(where, run_id):
                check.add(line)
            run_lines.append(line)
        if fault := check.finish():
            raise _damage_error(head, f"the run {run_id} is inconsistent: {fault}", run_id)
        run_files = {hash: files[hash] for hash in header.files}
        yield with_other(stored, lines=tuple(run_lines), files=run_files)


class RecordedRuns(Journal):
    """A journal of recorded runs, for reading and replaying. `RecordedRuns.of(path)` reads the runs
    of a file. Every write raises `bae-journal-readonly`."""

    def __init__(self, runs: Iterable[StoredRun], name: str = "the recorded runs") -> None:
        self._runs = {run.info.run_id: run for run in runs}
        self._name = name
        for run in self._runs.values():
            check_run(run)

    @classmethod
    def of(cls, path: StrPath) -> RecordedRuns:
        """Read all runs of a file that `Journal.export` wrote."""
        with open_journal_file(Path(path)) as file:
            return cls(_runs_of(file, str(path)), str(path))

    @property
    def infos(self) -> list[RunInfo]:
        """The entries of the runs, newest first."""
        return sorted((run.info for run in self._runs.values()), key=lambda i: -i.started)

    async def read(self, run_id: str) -> StoredRun:
        """Return a run with all of its lines. Raises `bae-run-unknown` if there is no run with this
        id."""
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
        thread: str | None = None,
        metadata: Mapping[str, Scalar] | None = None,
        limit: int = 50,
        before: str | None = None,
        after: int | None = None,
    ) -> list[RunInfo]:
        """Return the entries of the newest runs, newest first. For the next page, set `before` to
        the id of the last run."""
        return list_runs(
            self.infos,
            status=status,
            graph=graph,
            thread=thread,
            metadata=metadata,
            limit=limit,
            before=before,
            after=after,
        )

    async def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise JournalError(
            f"{self._name} can be read and replayed, but not written",
            code="bae-journal-readonly",
            fix="load it into a journal: await SQLiteJournal(…).load(path)",
        )

    create = append = release = claim = answer = delete = replace = _refuse


def is_sqlite(path: StrPath) -> bool:
    """Return whether a file is an SQLite database, by its first bytes."""
    with open_journal_file(Path(path)) as file:
        return file.read(16) == b"SQLite format 3\x00"


@contextmanager
def open_journal_file(path: Path, mode: str = "rb", name: Path | None = None) -> Generator[Any]:
    """Open a file. Errors of the file system are raised as a `JournalError`. The error names the
    file `name`, by default `path`."""
    try:
        if mode == "rb":
            with open_file(path) as file:
                yield file
            return
        file = open(path, mode, opener=private)  # noqa: SIM115
        try:
            yield file
        finally:
            with suppress(OSError):  # a full disk refuses the rest of the buffer again
                file.close()
    except OSError as error:
        raise _file_error(name or path, "read" if mode == "rb" else "written", error) from error


def _file_error(name: object, done: str, error: OSError) -> JournalError:
    return JournalError(
        f"{name} could not be {done}: {error.strerror or error}",
        code="bae-journal-failed",
        cause=error,
        fix="check the path, its permissions and the free space",
    )


class _Header(BaseModel):
    """The header of a run."""

    model_config = ConfigDict(strict=True)

    bae: Literal["run"]
    version: int = Field(ge=1, le=FORMAT)
    run_id: str
    graph: str
    status: RunStatus
    started: Time
    updated: Time
    parent: str | None = None
    error: str = ""
    waiting: tuple[ParkedGate, ...] = ()
    thread: str | None = None
    metadata: dict[str, Any] = {}
    summary: RunSummary | None = None
    answers: dict[str, Any] = {}
    answered_by: dict[str, str] = {}
    shape_hash: str
    shape: dict[str, Any] | str
    lines: int = Field(ge=1)
    files: tuple[str, ...] = ()

    def stored(self) -> StoredRun:
        """Return the run, without its lines."""
        answers = {gate: _json(answer).decode() for gate, answer in self.answers.items()}
        info = RunInfo(
            self.run_id,
            self.graph,
            self.status,
            self.started,
            self.updated,
            self.shape_hash,
            waiting=tuple(with_other(g, answered=g.address in answers) for g in self.waiting),
            error=self.error,
            parent=self.parent,
            thread=self.thread,
            metadata=self.metadata,
            summary=self.summary,
        )
        shape = self.shape if isinstance(self.shape, str) else _json(self.shape).decode()
        return StoredRun(info, shape, (), answers, answered_by=self.answered_by)


class _File(BaseModel):
    """The line of an image or a document, which comes before the runs that use it."""

    model_config = ConfigDict(strict=True)

    bae: Literal["file"]
    version: int = Field(ge=1, le=FORMAT)
    hash: str = Field(pattern=f"^{HASH.pattern}$")
    data: str


_FILE: Final = b'{"bae":"file"'
"""The beginning of the line of an image or a document."""


def _read_file(row: bytes, where: str) -> dict[str, bytes]:
    """Return the bytes of an image or a document, by their hash. Raises an error if the bytes have
    another hash."""
    file = _parse(_File, row, where)
    try:
        data = a2b_base64(file.data, strict_mode=True)
    except ValueError as error:
        raise _damage_error(where, "the file has no valid base64", None, error) from error
    if file.hash != f"sha256:{sha256(data).hexdigest()}":
        raise _damage_error(
            where, f"the bytes of the file {file.hash:.15}… have another hash", None
        )
    return {file.hash: data}


class _Entry(BaseModel):
    """The line of a record."""

    model_config = ConfigDict(strict=True)

    n: int
    kind: str = Field(pattern=r"^[A-Za-z]+$")
    at: Time
    path: str
    step: int = Field(ge=0, lt=1 << 62)
    data: dict[str, Any]
    version: int = Field(ge=1, le=FORMAT)

    def line(self) -> Line:
        data = _json(self.data).decode()
        return Line(self.n, self.kind, self.at, self.path, self.step, data, self.version)


def _rows(lines: Iterable[bytes] | Iterable[str], name: str) -> Iterator[tuple[str, bytes]]:
    """Yield the lines of a file that are not empty, each with its position in the file."""
    number = 0
    try:
        for number, text in enumerate(lines, 1):
            row = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
            if number == 1:
                row = row.removeprefix(BOM_UTF8)
            if row.strip():
                yield f"{name}, line {number}", row
    except OSError as error:
        raise _file_error(f"{name}, line {number + 1}", "read", error) from error


_LONGEST_LINE: Final = 1 << 30
"""How many bytes a line may have. SQLite cannot store a text of more than a thousand million
bytes."""


def _parse(model: type[M], row: bytes, where: str, run_id: str | None = None) -> M:
    try:
        return model.model_validate_json(row)
    except ValidationError as error:
        problems = {details["loc"]: details for details in error.errors()}
        version = problems.get(("version",))
        if version is not None and ("bae",) not in problems and ("kind",) not in problems:
            has = "no version" if version["type"] == "missing" else f"version {version['input']!r}"
            what = f"it has {has}, and {READS}"
            raise _damage_error(where, what, run_id, error, "bae-journal-version") from error
        kind = _KINDS.get(model, "a record")
        what = f"this is not {kind}: {'; '.join(faults(error)[:3])}"
        raise _damage_error(where, what, run_id, error) from error


_KINDS: Final[dict[type[BaseModel], str]] = {_Header: "the header of a run", _File: "a file"}
_FIXES: Final = {
    "bae-journal-damaged": f"get the complete file, or export the run again; {READS} of exports",
    "bae-journal-version": "read it with the version of bae that wrote it, or a newer one",
    "bae-run-exists": "remove one of the two",
}


def _damage_error(
    where: str,
    what: str,
    run_id: str | None,
    cause: BaseException | None = None,
    code: str = "bae-journal-damaged",
) -> JournalError:
    """Make an error that names the file and the line."""
    message, fix = f"{where}: {what}", _FIXES[code]
    return JournalError(message, run_id=run_id, code=code, cause=cause, fix=fix)


@contextmanager
def _locate_errors(where: str, run_id: str | None = None) -> Generator[None]:
    """Add the file and the line to errors that are raised inside the block."""
    try:
        yield
    except JournalError as error:
        error.message = f"{where}: {error.message}"
        error.run_id = error.run_id or run_id
        error.fix = _FIXES.get(error.code, error.fix)
        raise


async def _write_runs(
    journal: Journal,
    file: IO[Any],
    run_ids: Sequence[str] | None,
    status: Listed | None,
    graph: str | None,
    thread: str | None,
) -> int:
    is_text = hasattr(file, "encoding")  # binary files do not have an encoding
    written: set[str] = set()

    def write(run: StoredRun) -> None:
        for line in write_run(run, written):
            file.write(line.decode() if is_text else line)

    async def every_id() -> list[str]:
        wanted = journal.every_run(status=status, graph=graph, thread=thread)
        return [info.run_id async for info in wanted]

    count = 0
    listed = run_ids is None
    unknown: list[str] = []
    if run_ids is not None and len(run_ids) > 1:  # oldest first, so that turns are loaded in order
        wanted = set(run_ids)
        existing_ids = [info.run_id async for info in journal.every_run() if info.run_id in wanted]
        run_ids = [*reversed(existing_ids), *run_ids]
    if run_ids is None:  # oldest first, the order in which the runs are loaded
        run_ids = (await every_id())[::-1]
    for run_id in dict.fromkeys(run_ids):
        try:
            run = await journal.read(run_id)
        except JournalError as error:
            if not listed or error.code != "bae-run-unknown":
                raise
            unknown.append(run_id)
            continue
        # Wait for the thread even after a cancellation, because the caller then closes the file.
        await in_thread_to_the_end(write, run)
        count += 1
    # A run that is still listed was not deleted in the meantime: its id is damaged.
    if unknown and not set(unknown).isdisjoint(await every_id()):
        raise JournalError(
            f"the ids of {len(unknown)} runs are damaged: {', '.join(unknown[:3])}",
            code="bae-journal-damaged",
            fix="export the other runs by their ids",
        )
    return count


async def _load_file(
    journal: Journal, file: IO[Any], name: str, existing: Existing, unfinished: Unfinished
) -> list[str]:
    if file.seekable():
        return await _load_runs(journal, file, name, existing, unfinished)
    with TemporaryFile() as copy:  # the file is read twice
        await in_thread_to_the_end(_copy_lines, file, copy)
        return await _load_runs(journal, copy, name, existing, unfinished)


async def _load_runs(
    journal: Journal, file: IO[Any], name: str, existing: Existing, unfinished: Unfinished
) -> list[str]:
    start = file.tell()
    # Check the complete file before any run is stored.
    await in_thread_to_the_end(lambda: deque(_runs_of(file, name), maxlen=0))
    file.seek(start)
    runs = _runs_of(file, name)
    loaded: list[str] = []
    try:
        while (run := await in_thread_to_the_end(lambda: next(runs, None))) is not None:
            if unfinished == "cancel":
                run = _isolate_run(run)
            try:
                await journal.put(run, replace=existing == "replace")
            except JournalError as error:
                if existing == "keep" and error.code == "bae-run-exists":
                    continue
                raise
            loaded.append(run.info.run_id)
    except JournalError as error:
        if loaded:
            error.add_note(f"loaded before that: {', '.join(loaded)}")
        raise
    return loaded


def _runs_of(file: IO[Any], name: str) -> Iterator[StoredRun]:
    return read_runs(read_lines(file, _LONGEST_LINE), name)


def _copy_lines(source: IO[Any], target: IO[bytes]) -> None:
    for text in read_lines(source, _LONGEST_LINE):
        target.write(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    target.seek(0)


def _isolate_run(run: StoredRun) -> StoredRun:
    """Return a copy of a run for another journal: `graph.recover` ignores it, and its approvals
    hold for no other run."""
    info = run.info
    if run.answers:
        run = with_other(run, answers=for_run_alone(run.answers))
    if info.status not in ("queued", "running", "waiting"):
        return run
    state = "in progress" if info.status == "running" else info.status
    error = f"it was {state} where it was exported; graph.resume continues it here"
    return with_other(run, info=with_other(info, status="cancelled", waiting=(), error=error))


def _parse_object(text: str) -> dict[str, Any] | str:
    """Return the JSON object in a text, so that people can read it in the file. Any other text is
    returned as it is."""
    try:
        value = from_json(text)
    except ValueError:
        return text
    return cast("dict[str, Any]", value) if isinstance(value, dict) else text


def _json(value: Any) -> bytes:
    return to_json(value, inf_nan_mode="constants")
