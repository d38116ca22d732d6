"""Runs out of a journal into a file of JSON lines, and from such a file into a journal, one run at
a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace as with_other
from pathlib import Path
from time import time
from typing import IO, Any, Literal, cast

from bae.exceptions import JournalError
from bae.journal.run_file import StrPath, opened, read_runs, write_run
from bae.journal.store import Journal, Listed, StoredRun, not_replaced
from bae.threads import in_thread_to_the_end

PathOrFile = StrPath | IO[str] | IO[bytes]
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
    """Write runs of a journal to a file and return how many; see `Journal.export`."""
    if isinstance(run_ids, str):
        raise TypeError(f"export(…, {run_ids!r}): give the ids of runs as a list")
    if hasattr(to, "write"):
        return await _write_runs(journal, cast(IO[Any], to), run_ids, status, graph)
    target = Path(cast(StrPath, to))
    part = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}.part")
    try:
        with opened(part, "xb", target) as file:
            count = await _write_runs(journal, file, run_ids, status, graph)
            await in_thread_to_the_end(_finish, file, part, target)
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
    """Put the runs of a file into a journal and return their ids; see `Journal.load`."""
    if existing not in ("refuse", "keep", "replace"):
        raise ValueError(f'load(existing={existing!r}): give "refuse", "keep" or "replace"')
    if unfinished not in ("cancel", "keep"):
        raise ValueError(f'load(unfinished={unfinished!r}): give "cancel" or "keep"')
    if hasattr(source, "read"):
        name = getattr(source, "name", None)
        runs = read_runs(cast(IO[Any], source), name if isinstance(name, str) else "the file")
        return await _load_runs(journal, runs, existing, unfinished)
    path = Path(cast(StrPath, source))
    with opened(path) as file:
        return await _load_runs(journal, read_runs(file, str(path)), existing, unfinished)


async def put(journal: Journal, run: StoredRun, replace: bool = False) -> None:
    """`Journal.put` for a store without one of its own: all of a run or nothing, as far as the
    other methods of a store allow."""
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
    """Delete a run and put another in its place, or the old one again where that fails."""
    run_id = run.info.run_id
    try:
        old = await journal.read(run_id)
    except JournalError as error:
        if error.code != "bae-run-unknown":
            raise
        await journal.put(run)
        return
    if not await journal.delete([run_id]):
        info = (await journal.read(run_id)).info
        owned = info.lease_until is not None and info.lease_until > time()
        raise not_replaced(run_id, info.owner if owned else None)
    try:
        await journal.put(run)
    except BaseException:
        await journal.put(old)
        raise


async def _write_runs(
    journal: Journal,
    file: IO[Any],
    run_ids: Sequence[str] | None,
    status: Listed | None,
    graph: str | None,
) -> int:
    is_text = hasattr(file, "encoding")  # which files of bytes do not have

    def write(run: StoredRun) -> None:
        for line in write_run(run):
            file.write(line.decode() if is_text else line)

    count = 0
    listed = run_ids is None
    if run_ids is None:  # oldest first, the order in which they are to be loaded
        run_ids = [i.run_id async for i in journal.every_run(status=status, graph=graph)][::-1]
    for run_id in dict.fromkeys(run_ids):
        try:
            run = await journal.read(run_id)
        except JournalError as error:
            if listed and error.code == "bae-run-unknown":
                continue  # it was deleted since it was listed
            raise
        # Not left behind in its thread: the caller closes the file after a cancellation.
        await in_thread_to_the_end(write, run)
        count += 1
    return count


async def _load_runs(
    journal: Journal, runs: Iterator[StoredRun], existing: Existing, unfinished: Unfinished
) -> list[str]:
    loaded: list[str] = []

    def read() -> StoredRun | None:
        return next(runs, None)

    try:
        while (run := await in_thread_to_the_end(read)) is not None:
            if unfinished == "cancel":
                run = _cancelled(run)
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


def _cancelled(run: StoredRun) -> StoredRun:
    """A run that `graph.recover` leaves alone."""
    info = run.info
    if info.status not in ("running", "waiting"):
        return run
    how = "in progress" if info.status == "running" else "waiting"
    error = f"it was {how} where it was exported; graph.resume continues it here"
    return with_other(run, info=with_other(info, status="cancelled", waiting=(), error=error))


def _finish(file: IO[bytes], written: Path, target: Path) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
    written.replace(target)
