"""Checks that every store makes before it stores a run: names, versions, hashes, forks."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from bae.exceptions import JournalError
from bae.journal.stored_runs import FORMAT, READS, Line, StoredRun

LONGEST_THREAD: Final = 500
"""The most characters that the id of a thread may have."""


def thread_busy(thread: str, run_id: str) -> JournalError:
    """Return the error for a new run of a busy thread. `run_id` is the run of the thread that is
    "running" or "waiting"."""
    return JournalError(
        f"the thread {thread!r} is busy: its run {run_id} has not ended",
        run_id=run_id,
        busy_run=run_id,
        code="bae-thread-busy",
        fix=f"wait for the run, resume it, or cancel it: await journal.cancel({run_id!r})",
    )


def not_replaced_error(run_id: str, owner: str | None) -> JournalError:
    """Return the error for a run that cannot be replaced. Either a living `owner` works on the run,
    or forks share its lines."""
    if owner is not None:
        what, code = f"it is in progress, owned by {owner}", "bae-run-owned"
        fix = "wait for its end, or load the file into another journal"
    else:
        what, code = "other runs share its lines", "bae-run-exists"
        fix = "delete the runs that were forked from it first, or load into another journal"
    what = f"run {run_id!r} was not replaced: {what}"
    return JournalError(what, code=code, run_id=run_id, fix=fix)


def check_fork(run_id: str, upto: int, there: int) -> None:
    """Raise a ValueError if a run with `there` lines cannot be forked at the line `upto`."""
    if not 0 <= upto <= there:
        raise ValueError(f"run {run_id!r} has {there} lines, it cannot be forked at {upto}")


def check_thread(thread: object) -> None:
    """Raise `bae-thread-name` if a thread cannot have this id. People must be able to type the
    id."""
    why = "it is not a string that can be typed"
    if isinstance(thread, str) and thread.strip() and thread.isprintable():
        if len(thread) <= LONGEST_THREAD:
            return
        why = f"it has {len(thread):,} characters, and {LONGEST_THREAD} is the most"
    raise JournalError(
        f"a thread cannot be called {thread!r:.100}: {why}",
        code="bae-thread-name",
        fix="give an id in plain characters, as thread='ana-42'",
    )


def check_names(run_id: object, graph: str) -> None:
    """Raise `bae-run-name` if a run cannot have this id, or its graph this name. People must be
    able to type both texts, and commands, files and lines of output contain them."""
    why = None
    if not isinstance(run_id, str):
        why = "it is not a string"
    elif run_id == "last":
        why = "`last` means the newest run"
    elif not (run_id.strip() and run_id.isprintable()):
        why = "it is empty, or has characters that cannot be typed"
    subject = f"a run cannot be called {run_id!r}"
    if why is None and not (graph.strip() and graph.isprintable()):
        subject, why = f"the graph of a run cannot be called {graph!r}", "it cannot be typed"
    if why is not None:
        raise JournalError(
            f"{subject}: {why}",
            code="bae-run-name",
            fix="choose another name, in plain characters; without run_id=, a run gets a random id",
        )


def check_run(run: StoredRun) -> None:
    """Raise JournalError if a run from another journal, or from an export, has a name that no run
    can have, or a file or a shape that does not match its hash. Runs with the same hash share one
    shape, so a wrong shape would damage other runs."""
    from bae.journal.shape import is_forged

    check_names(run.info.run_id, run.info.graph)
    if run.info.thread is not None:
        check_thread(run.info.thread)
    if run.info.parent is not None:
        check_names(run.info.parent, run.info.graph)
    for hash, data in run.files.items():
        if hash != f"sha256:{sha256(data).hexdigest()}":
            raise JournalError(
                f"the file {hash[:15]}… of the run {run.info.run_id} has bytes with another hash",
                code="bae-journal-damaged",
                run_id=run.info.run_id,
                fix="export the run again: something has changed it since",
            )
    if is_forged(run.shape, run.info.shape):
        raise JournalError(
            f"the shape of the run {run.info.run_id} does not match its hash",
            code="bae-journal-damaged",
            run_id=run.info.run_id,
            fix="export the run again: something has changed it since",
        )


def check_version(line: Line, run_id: str) -> None:
    """Raise `bae-journal-version` for a line that a newer bae has written."""
    if not 1 <= line.version <= FORMAT:
        raise JournalError(
            f"line {line.n} of run {run_id!r} has version {line.version}, and {READS}",
            code="bae-journal-version",
            run_id=run_id,
            fix="update bae (the package bae-graphs)",
        )
