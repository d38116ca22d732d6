"""What one does with a journal at a terminal: list runs, read one, ask where a value came from,
answer a gate, check a deployment, export, load, prune, redact, and make a test of a run. Each is a
function that answers with what is to be printed; `__main__.py` reads the command line."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bae.exceptions import JournalError
from bae.journal.files.recorded import RecordedRuns, is_sqlite
from bae.journal.files.run_lines import write_run
from bae.journal.store import Journal, Listed, Status
from bae.journal.telling.printing import story_of, table_of

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.files.lines import Existing, Unfinished
    from bae.testing.written_tests import GraphName


async def runs(
    file: str, *, status: Listed | None = None, graph: str | None = None, limit: int = 50
) -> str:
    """The newest runs of a journal, or of a file that was exported, as a table."""
    async with _to_read(file) as journal:
        found = await journal.runs(status=status, graph=graph, limit=limit)
        more = len(found) == limit and await journal.runs(
            status=status, graph=graph, limit=1, before=found[-1].run_id
        )
    return table_of(found) + (f"\n(the newest {limit}: --limit shows more)" if more else "")


async def show(file: str, run: str, *, full: bool = False) -> str:
    """What happened in a run."""
    async with _to_read(file) as journal:
        return story_of(await journal.read(await _id_of(journal, run)), full=full)


async def why(file: str, run: str, place: str, *, step: int | None = None) -> str:
    """Where the value of a field came from."""
    async with _to_read(file) as journal:
        return str(await journal.why(await _id_of(journal, run), place, step=step))


async def export(
    file: str,
    to: str,
    run_ids: Sequence[str] = (),
    *,
    status: Listed | None = None,
    graph: str | None = None,
    force: bool = False,
) -> str:
    """Write runs to a file of JSON lines, "-" for what is printed."""
    if to != "-":
        _refuse_existing([Path(to)], force)
    async with _to_read(file) as journal:
        chosen = [await _id_of(journal, run) for run in run_ids] or None
        target: str | IO[bytes] = sys.stdout.buffer if to == "-" else to
        count = await journal.export(target, chosen, status=status, graph=graph)
    return "" if to == "-" else f"{to}: {_count(count)}"


async def load(
    file: str, source: str, *, existing: Existing = "refuse", unfinished: Unfinished = "cancel"
) -> str:
    """Read runs from a file of JSON lines into a journal, which is made where there is none."""
    async with _to_write(file, new=True) as journal:
        start: str | IO[bytes] = sys.stdin.buffer if source == "-" else source
        loaded = await journal.load(start, existing=existing, unfinished=unfinished)
    return "\n".join([f"{file}: {_count(len(loaded))} loaded", *(f"  {run}" for run in loaded)])


async def prune(
    file: str,
    *,
    older_than: float,
    statuses: Sequence[Status] = ("ended", "failed", "cancelled"),
) -> str:
    """Delete runs that were last written so many seconds ago."""
    async with _to_write(file) as journal:
        count = await journal.prune(older_than=older_than, statuses=statuses)
    return f"{file}: {_count(count)} deleted"


async def redact(file: str, run: str, places: Sequence[str], *, copies: bool = False) -> str:
    """Take the values of fields out of a run for good."""
    async with _to_write(file) as journal:
        done = await journal.redact(await _id_of(journal, run), *places, copies=copies)
    return str(done).replace("copies=True", "--copies")


async def check(file: str, graph: str, *, was: Sequence[str] = ()) -> tuple[str, bool]:
    """Which unfinished runs the classes of today would break, and whether there are none."""
    from bae.journal.shape.deployment import check

    found = _graph(_named(graph))
    async with _to_read(file) as journal:
        broken = await check(found, journal, was=was)
    if not broken:
        return f"{file}: every unfinished run of {found.name} can go on", True
    said = "\n".join(map(str, broken))
    return f"{said}\n{file}: {_count(len(broken))} of {found.name} cannot go on", False


async def answer(file: str, run: str, gate: str, value: str, graph: str) -> str:
    """Store the answer to a gate, for whoever goes on with the run. The value is JSON, or the text
    that it is where it is none."""
    found = _graph(_named(graph))
    try:
        said: Any = json.loads(value)
    except ValueError:
        said = value
    async with _to_write(file) as journal:
        run_id = await _id_of(journal, run)
        await found.answer(run_id, gate, said, journal=journal, go_on=False)
    return f"{run_id}: {gate} is answered; graph.recover or graph.resume goes on with the run"


async def write_test(file: str, run: str, graph: str, output: str, *, force: bool = False) -> str:
    """Make a test of a run: a pytest file, and the recording that it replays beside it."""
    from bae.testing.written_tests import source_of_test

    target = Path(output)
    cassette = target.with_suffix(".jsonl")
    if target.suffix != ".py":
        raise _refused(f"{output} is no Python file", fix="write -o tests/test_….py")
    _refuse_existing([target, cassette], force)
    name = _named(graph)
    async with _to_read(file) as journal:
        stored = await journal.read(await _id_of(journal, run))
    info = stored.info
    if info.status not in ("ended", "waiting"):
        raise _refused(
            f"the run {info.run_id} is {info.status}, and a test is made of one that has ended",
            fix="go on with it by graph.resume",
        )
    # Replayed before anything is written: a test that fails from the start helps nobody.
    found = _graph(name)
    result = await found.replay(info.run_id, journal=RecordedRuns([stored], file))
    said = f"A run of {info.graph} ({info.run_id}) that must still go the same way"
    source = source_of_test(result, name, info.graph, said)
    target.parent.mkdir(parents=True, exist_ok=True)
    _write(cassette, b"".join(write_run(stored)))
    _write(target, source.encode())
    return "\n".join(
        [
            f"{target}: replays the run and says where it went and ended",
            f"{cassette}: the recording, which belongs beside it",
            f"run it with: python -m pytest {target}",
        ]
    )


def seconds_in(text: str) -> float:
    """How many seconds a text such as 90s, 30m, 12h, 30d or 2w says; a ValueError otherwise."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no length of time: write 90s, 30m, 12h, 30d or 2w")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}[match[2]]


def _to_read(file: str) -> Journal:
    _must_exist(file)
    if not is_sqlite(file):
        return RecordedRuns.of(file)
    from bae.journal.sqlite import SQLiteJournal

    return SQLiteJournal(file)


def _to_write(file: str, *, new: bool = False) -> Journal:
    if not new:
        _must_exist(file)
    if os.path.exists(file) and os.path.getsize(file) and not is_sqlite(file):
        raise _refused(
            f"{file} is no journal that can be written",
            fix="give the file of a SQLiteJournal; the runs of an exported file are loaded into "
            "one with: load FILE IN.jsonl",
        )
    from bae.journal.sqlite import SQLiteJournal

    return SQLiteJournal(file)


def _must_exist(file: str) -> None:
    if not os.path.isfile(file):
        raise _refused(
            f"there is no file {file}", fix="give the path of a journal: that of a SQLiteJournal"
        )


async def _id_of(journal: Journal, said: str) -> str:
    """The id of a run, which may be said by how it begins."""
    try:
        await journal.read(said)
    except JournalError as error:
        if error.code != "bae-run-unknown":
            raise
    else:
        return said
    found: list[str] = []
    async for info in journal.every_run():
        if said and info.run_id.startswith(said):
            found.append(info.run_id)
        if len(found) == 5:
            break
    if len(found) == 1:
        return found[0]
    what = f"no run is called {said}, nor begins so"
    if found:
        what = f"several runs begin with {said}: {', '.join(found)}"
    raise _refused(what, fix="list them with: runs FILE")


def _named(graph: str) -> GraphName:
    from bae.testing.written_tests import GraphName

    try:
        return GraphName.read(graph)
    except ValueError as error:
        raise _refused(str(error)) from error


def _graph(name: GraphName) -> Graph[Any, Any]:
    from bae.graph import Graph

    try:
        found: Any = import_module(name.module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name.module}.".startswith(f"{error.name}."):
            raise
        raise _refused(
            f"there is no module {name.module}",
            fix="run this where your tests run, with the same PYTHONPATH",
        ) from error
    for part in name.attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Graph):
        raise _refused(
            f"{name.module}:{name.attribute} is {type(found).__name__}, and no Graph",
            fix="name the graph that the run is of, as package.module:graph",
        )
    return found  # pyright: ignore[reportUnknownVariableType]  # isinstance knows no parameters


def _refuse_existing(paths: Sequence[Path], force: bool) -> None:
    there = [str(path) for path in paths if path.exists()]
    if there and not force:
        raise _refused(
            f"{' and '.join(there)} {'is' if len(there) == 1 else 'are'} there already",
            fix="give another name, or --force to write over it",
        )


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        with suppress(OSError):
            path.unlink()
        raise _refused(f"{path} could not be written: {error.strerror}") from error


def _count(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"


def _refused(message: str, fix: str | None = None) -> JournalError:
    return JournalError(message, code="bae-command-refused", fix=fix)
