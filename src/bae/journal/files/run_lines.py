"""How a run looks in a file of JSON lines: an object that says which run follows, with its version
and the number of its lines, then one object for each record. `lines.py` takes runs out of a journal
and puts them into one."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json, to_json

from bae.exceptions import JournalError, faults
from bae.journal.store import Line, ParkedGate, RunInfo, Status, StoredRun

VERSION: Final = 1
"""The newest form of such files that this version of bae reads, and the one that it writes."""


def write_run(run: StoredRun) -> Iterator[bytes]:
    """The lines of one run, each with its end."""
    info = run.info
    header: dict[str, Any] = {
        "bae": "run",
        "version": VERSION,
        "run_id": info.run_id,
        "graph": info.graph,
        "status": info.status,
        "started": info.started,
        "updated": info.updated,
        "parent": info.parent,
        "error": info.error,
        "waiting": [
            {
                "address": gate.address,
                "place": gate.place,
                "question": gate.question,
                "deadline": gate.deadline,
            }
            for gate in info.waiting
        ],
        "answers": {gate: from_json(answer) for gate, answer in run.answers.items()},
        "shape_hash": info.shape,
        "shape": _object_or_text(run.shape),
        "lines": len(run.lines),
    }
    yield to_json(header, inf_nan_mode="constants") + b"\n"
    for line in run.lines:
        try:
            data = from_json(line.data)
        except ValueError as error:
            raise JournalError(
                f"line {line.n} of the run {info.run_id} is no JSON",
                run_id=info.run_id,
                code="bae-journal-damaged",
                cause=error,
                fix="export the other runs by their ids; nothing of this one is written",
            ) from error
        yield to_json({**line._asdict(), "data": data}, inf_nan_mode="constants") + b"\n"


def read_runs(lines: Iterable[bytes] | Iterable[str], name: str) -> Iterator[StoredRun]:
    """The runs that a file holds, one at a time, each checked from its first line to its last.
    `name` is the file's, for what is raised."""
    at = _Numbered(lines, name)
    seen: set[str] = set()
    while True:
        first = at.next()
        if first is None:
            return
        header = _header(at, first)
        if header.run_id in seen:
            raise at.wrong(
                f"the run {header.run_id} is in the file a second time",
                "bae-run-exists",
                "take one of the two out",
                header.run_id,
            )
        seen.add(header.run_id)
        read: list[Line] = []
        for n in range(header.lines):
            entry = at.next(header.run_id)
            if entry is None or "bae" in entry:
                where = "the file ends" if entry is None else "the next run begins"
                raise at.wrong(
                    f"{where} after {n} of the {header.lines} lines of the run {header.run_id}",
                    "bae-journal-damaged",
                    "get the whole file, or export the run again",
                    header.run_id,
                )
            read.append(_line(at, entry, n, header.run_id))
        yield _stored(header, read)


class _Numbered:
    """The lines of a file as JSON objects, with the number of the one that was read last."""

    def __init__(self, lines: Iterable[bytes] | Iterable[str], name: str) -> None:
        self._lines = iter(lines)
        self.name = name
        self.number = 0

    def next(self, run_id: str | None = None) -> dict[str, Any] | None:
        """The next line that is not empty, or None at the end of the file."""
        for text in self._lines:
            self.number += 1
            raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
            if self.number == 1:
                raw = raw.removeprefix(BOM_UTF8)
            if not raw.strip():
                continue
            try:
                entry = from_json(raw)
            except ValueError as error:
                cut = not raw.endswith(b"\n")
                raise self.wrong(
                    "the line is cut off" if cut else "the line is no JSON",
                    "bae-journal-damaged",
                    "get the whole file, or export the run again",
                    run_id,
                    error,
                ) from error
            if not isinstance(entry, dict):
                raise self.wrong(
                    "the line is no JSON object",
                    "bae-journal-damaged",
                    "give a file that `export` has written",
                    run_id,
                )
            return cast("dict[str, Any]", entry)
        return None

    def wrong(
        self,
        what: str,
        code: str,
        fix: str,
        run_id: str | None = None,
        cause: BaseException | None = None,
    ) -> JournalError:
        """An error that says where in which file it is."""
        where = f"{self.name}, line {self.number}"
        return JournalError(f"{where}: {what}", run_id=run_id, code=code, cause=cause, fix=fix)


class _Gate(BaseModel):
    model_config = ConfigDict(strict=True)

    # Files have it by either name.
    address: str = Field(validation_alias=AliasChoices("address", "gate"))
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


def _header(at: _Numbered, entry: dict[str, Any]) -> _Header:
    version = entry.get("version")
    if entry.get("bae") != "run" or type(version) is not int:
        raise at.wrong(
            'a run begins with {"bae": "run", "version": …}, and this is something else',
            "bae-journal-damaged",
            "give a file that `export` has written",
        )
    if version > VERSION:
        raise at.wrong(
            f"the run is written in form {version}, and this bae reads up to {VERSION}",
            "bae-journal-version",
            "upgrade bae",
        )
    try:
        return _Header.model_validate(entry)
    except ValidationError as error:
        raise at.wrong(
            f"what is said of the run is not valid: {'; '.join(faults(error))}",
            "bae-journal-damaged",
            "export the run again",
        ) from error


def _line(at: _Numbered, entry: dict[str, Any], n: int, run_id: str) -> Line:
    fix = "get the whole file, or export the run again"
    try:
        read = _Entry.model_validate(entry)
    except ValidationError as error:
        what = f"the record is not valid: {'; '.join(faults(error))}"
        raise at.wrong(what, "bae-journal-damaged", fix, run_id) from error
    if read.n != n:
        what = f"the record has number {read.n}, and {n} is next in the run {run_id}"
        raise at.wrong(what, "bae-journal-damaged", fix, run_id)
    return Line(n, read.kind, read.at, read.path, read.step, _json(entry["data"]))


def _stored(header: _Header, lines: list[Line]) -> StoredRun:
    gates = (
        ParkedGate(g.address, g.place, g.question, g.deadline, g.address in header.answers)
        for g in header.waiting
    )
    info = RunInfo(
        header.run_id,
        header.graph,
        header.status,
        header.started,
        header.updated,
        header.shape_hash,
        waiting=tuple(gates),
        error=header.error,
        parent=header.parent,
    )
    shape = header.shape if isinstance(header.shape, str) else _json(header.shape)
    answers = {gate: _json(answer) for gate, answer in header.answers.items()}
    return StoredRun(info, shape, tuple(lines), answers)


def _object_or_text(text: str) -> dict[str, Any] | str:
    """A JSON object to be read by people, where the text is one."""
    try:
        found = from_json(text)
    except ValueError:
        return text
    return cast("dict[str, Any]", found) if isinstance(found, dict) else text


def _json(value: Any) -> str:
    return to_json(value, inf_nan_mode="constants").decode()
