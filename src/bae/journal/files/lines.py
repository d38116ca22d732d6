"""Runs as JSON lines, out of a journal and into one, a run at a time. Such a file can be kept,
sent, put under version control and replayed in tests. `run_lines.py` knows how a run looks in it,
`store.py` has the methods that users call."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace as with_other
from pathlib import Path
from time import time
from typing import IO, Any, Literal, cast

from bae.exceptions import JournalError, describe
from bae.journal.files.run_lines import read_runs, write_run
from bae.journal.refusals import not_replaced
from bae.journal.store import Journal, Listed, StoredRun
from bae.threads import in_thread_to_the_end

PathOrFile = str | os.PathLike[str] | IO[str] | IO[bytes]
Existing = Literal["refuse", "keep", "replace"]
Unfinished = Literal["cancel", "keep"]


async def export(
    journal: Journal,
    to: PathOrFile,
    run_ids: Sequence[str] | None = None,
    *,
    status: Listed | None = None,
    graph: str | None = None,
) -> int:
    """Write runs of a journal to a file as JSON lines, and answer how many; see
    `Journal.export`."""
    if isinstance(run_ids, str):
        raise TypeError(f"export(…, {run_ids!r}): give the ids of runs as a list")
    if hasattr(to, "write"):
        return await _write_runs(journal, cast(IO[Any], to), run_ids, status, graph)
    target = Path(cast("str | os.PathLike[str]", to))
    beside = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}.part")
    opened: list[IO[bytes]] = []
    try:
        with _said(target, "written"):
            await in_thread_to_the_end(beside.open, "xb", then=opened.append)
            count = await _write_runs(journal, opened[0], run_ids, status, graph)
            await in_thread_to_the_end(_finish, opened[0], beside, target)
    finally:
        for file in opened:
            with suppress(OSError):  # a full disk refuses once more what was not written yet
                file.close()
        with suppress(OSError):
            beside.unlink()
    return count


async def load(
    journal: Journal,
    source: PathOrFile,
    *,
    existing: Existing = "refuse",
    unfinished: Unfinished = "cancel",
) -> list[str]:
    """Put the runs of a file of JSON lines into a journal, and answer their ids; see
    `Journal.load`."""
    if existing not in ("refuse", "keep", "replace"):
        raise ValueError(f'load(existing={existing!r}): give "refuse", "keep" or "replace"')
    if unfinished not in ("cancel", "keep"):
        raise ValueError(f'load(unfinished={unfinished!r}): give "cancel" or "keep"')
    loaded: list[str] = []

    def put(run: StoredRun) -> Awaitable[bool]:
        return _load_one(journal, run if unfinished == "keep" else _cancelled(run), existing)

    if hasattr(source, "read"):
        file = cast(IO[Any], source)
        await _load_all(put, read_runs(file, _name_of(file)), loaded)
        return loaded
    path = Path(cast("str | os.PathLike[str]", source))
    opened: list[IO[bytes]] = []
    try:
        with _said(path, "read"):
            await in_thread_to_the_end(path.open, "rb", then=opened.append)
            await _load_all(put, read_runs(opened[0], str(path)), loaded)
    finally:
        for file in opened:
            file.close()
    return loaded


async def put(journal: Journal, run: StoredRun, replace: bool = False) -> None:
    """Store a run that was read elsewhere, with how it came out: all of it or nothing, as far as a
    store can do that which has no `put` of its own."""
    if replace:
        await _replace(journal, run)
        return
    info = run.info
    claim = await journal.create(info.run_id, info.graph, run.shape, info.shape, run.lines)
    try:
        for gate, answer in run.answers.items():
            await journal.answer(info.run_id, gate, answer)
        await journal.release(claim, info.status, (), info.waiting, info.error)
    except BaseException:
        with suppress(JournalError):
            await journal.release(claim, "cancelled", ())
        await journal.delete([info.run_id])
        raise


async def _replace(journal: Journal, run: StoredRun) -> None:
    """Delete a run and put another in its place, or the same again where that fails."""
    run_id = run.info.run_id
    try:
        there = await journal.read(run_id)
    except JournalError as error:
        if error.code != "bae-run-unknown":
            raise
        await journal.put(run)
        return
    if not await journal.delete([run_id]):
        info = (await journal.read(run_id)).info
        busy = info.lease_until is not None and info.lease_until > time()
        raise not_replaced(run_id, info.owner if busy else None)
    try:
        await journal.put(run)
    except BaseException:
        await journal.put(there)  # rather the old one than none
        raise


async def _write_runs(
    journal: Journal,
    file: IO[Any],
    run_ids: Sequence[str] | None,
    status: Listed | None,
    graph: str | None,
) -> int:
    text = hasattr(file, "encoding")  # as files of text have, and files of bytes have not

    def write(run: StoredRun) -> None:
        for line in write_run(run):
            file.write(line.decode() if text else line)

    count = 0
    listed = run_ids is None
    if run_ids is None:  # the oldest first, the order in which they are to be loaded again
        run_ids = [i.run_id async for i in journal.every_run(status=status, graph=graph)][::-1]
    for run_id in dict.fromkeys(run_ids):
        try:
            run = await journal.read(run_id)
        except JournalError as error:
            if listed and error.code == "bae-run-unknown":
                continue  # it was deleted meanwhile
            raise
        # Written to its end, as the file is closed by whoever cancels this.
        await in_thread_to_the_end(write, run)
        count += 1
    return count


async def _load_all(
    put: Callable[[StoredRun], Awaitable[bool]], runs: Iterator[StoredRun], loaded: list[str]
) -> None:
    def following() -> StoredRun | None:
        return next(runs, None)

    try:
        while (run := await in_thread_to_the_end(following)) is not None:
            if await put(run):
                loaded.append(run.info.run_id)
    except JournalError as error:
        if loaded:
            error.add_note(f"loaded before that: {', '.join(loaded)}")
        raise


async def _load_one(journal: Journal, run: StoredRun, existing: Existing) -> bool:
    try:
        await journal.put(run, replace=existing == "replace")
    except JournalError as error:
        if existing == "keep" and error.code == "bae-run-exists":
            return False
        raise
    return True


def _cancelled(run: StoredRun) -> StoredRun:
    """A run that nobody goes on with by accident."""
    info = run.info
    if info.status not in ("running", "waiting"):
        return run
    how = "under way" if info.status == "running" else "waiting"
    said = f"it was {how} where it was exported; graph.resume goes on with it here"
    return with_other(run, info=with_other(info, status="cancelled", waiting=(), error=said))


@contextmanager
def _said(path: Path, what: str) -> Generator[None]:
    """What the file system refuses, said as an error of the journal."""
    try:
        yield
    except OSError as error:
        raise JournalError(
            f"{path} could not be {what}: {error.strerror or describe(error)}",
            code="bae-journal-failed",
            cause=error,
            fix="check the path, who may use it, and the space that is left",
        ) from error


def _finish(file: IO[bytes], written: Path, target: Path) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
    written.replace(target)


def _name_of(file: object) -> str:
    name = getattr(file, "name", None)
    return name if isinstance(name, str) else "the file"
