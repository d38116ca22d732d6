"""`Journal`, the interface of a store of runs. It stores the lines of each run in order, gives a
run to one owner at a time, and accepts one answer for a gate."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from asyncio import Future
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from inspect import iscoroutine
from time import time
from typing import TYPE_CHECKING, Any, Final, Self, get_args

from bae.exceptions import JournalError
from bae.journal.run_checks import check_fork, check_run
from bae.journal.run_lists import check_status
from bae.journal.stored_runs import (
    NO_FILES,
    Claim,
    Line,
    Listed,
    ParkedGate,
    RunInfo,
    RunLines,
    RunStatus,
    RunSummary,
    Scalar,
    StoredRun,
    files_in,
    fork_info,
)

if TYPE_CHECKING:
    from datetime import timedelta

    from bae.approvals import Grant
    from bae.journal.export import Existing, PathOrFile, Unfinished
    from bae.journal.provenance import Provenance
    from bae.journal.redaction import Redaction


_PAGE: Final = 200
"""The number of runs that `every_run` lists at a time."""


class Journal(ABC):
    """A store of runs. Pass it to `graph.arun(…, journal=…)`, and the run survives its process.

    Use `SQLiteJournal` for a file, `PostgresJournal` for a server and `MemoryJournal` for tests. To
    write a store of your own, subclass `Journal` and write the eight abstract methods. Two more are
    optional: redaction and `load(existing="replace")` need `replace`, and runs with images or
    documents need `put_files`. All other methods have defaults that are built on these; override a
    default if your store can do it faster. `bae.testing.check_journal` checks a store.

    Methods raise `JournalError` for expected failures. When an awaited call returns, its data is
    acknowledged: the data must survive every failure that the store promises to survive. The lines
    of a run are stored in order, without gaps, or not at all.
    """

    secrets: bool = False
    """Whether secrets (`SecretStr`, `Field(repr=False)`) are stored in clear text."""
    prompts: bool = True
    """Whether prompts and raw answers are stored. If not, only a hash of each prompt is stored."""
    thinking: bool = False
    """Whether the thinking of models is stored with their answers."""
    _bells: tuple[Callable[[str], None], ...] = ()

    # The methods that a store must have.

    @abstractmethod
    def create(self, run: StoredRun, *, claim: bool = True) -> Awaitable[Claim | None]:
        """Store a new run and claim it. The status of the run is then "running".

        Without `claim` the run keeps its status and has no owner, and the result is None. bae
        queues, forks and loads runs in this way. Refuse an id that exists with `bae-run-exists`.

        At most one run of a thread may be "running" or "waiting". If the thread has such a run,
        refuse a run that is claimed, or has such a status, with `bae-thread-busy`; `thread_busy`
        makes the error. Check this in the transaction that adds the run.
        """

    @abstractmethod
    def append(self, claim: Claim, lines: Sequence[Line]) -> Awaitable[None]:
        """Store lines. They are durable when the returned awaitable has been awaited.

        Take in the lines at the call, in order, whether or not the caller awaits: this is not a
        coroutine function. `note` calls this method in threads without an event loop, so make a
        future only when the caller awaits. Raise ValueError for a line whose number is not the
        next. If another owner has claimed the run, fail with `bae-run-taken`.
        """

    @abstractmethod
    async def claim(self, run_id: str) -> Claim:
        """Claim a run that has no owner, or whose owner has died. The run becomes "running".
        From then on, renew the lease.

        - Refuse an unknown run with `bae-run-unknown`.
        - Refuse a run with a living owner with `bae-run-owned`. The error names the owner and the
          rest of its lease.
        - Refuse a run that has ended with `bae-run-ended`. Another process may have ended the run
          after the caller has read it.
        - Refuse a run of a busy thread with `bae-thread-busy`, as `create` does.
        """

    @abstractmethod
    def release(
        self,
        claim: Claim,
        status: RunStatus,
        lines: Sequence[Line],
        waiting: Sequence[ParkedGate] = (),
        error: str = "",
        summary: RunSummary | None = None,
    ) -> Awaitable[None]:
        """Store the last lines of a run and its outcome, and give up the claim. Without a `summary`
        the run keeps its old summary. If the store cannot be written, give up the claim as soon as
        the store can be written again."""

    @abstractmethod
    async def read(self, run_id: str) -> StoredRun:
        """Return everything that any process has stored of a run. Refuse an unknown run with
        `bae-run-unknown`."""

    @abstractmethod
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
        """Return the newest runs, at most `limit`, the newest first.

        - `status`, `graph` and `thread` select runs. The "running" runs include interrupted runs,
          which can also be listed alone.
        - `metadata` selects the runs whose metadata has all these keys with these values.
        - `before` is the id of a run: only older runs are listed. Pass the last id of a page to get
          the next page.
        - `after` is a change number: only runs whose `change` is greater are listed, in the order
          of their changes. To follow the list, pass the greatest number that you have seen.

        `check_page` refuses invalid combinations.
        """

    @abstractmethod
    async def answer(
        self,
        run_id: str,
        gate: str,
        value: str,
        by: str = "",
        files: Mapping[str, bytes] = NO_FILES,
    ) -> bool:
        """Store the answer to a gate, as JSON. `by` is the person who answered. If the gate has an
        answer already, keep the old answer and return False.

        `files` are the images and documents in the answer, by hash. They become files of the run.
        Only a store with `put_files` gets `files`.
        """

    @abstractmethod
    async def delete(self, run_ids: Sequence[str]) -> int:
        """Delete runs, and return the number of deleted runs. A run that a process works on stays.
        A run whose lines a fork shares may stay too, unless the fork is also deleted."""

    # The methods that a store may have.

    async def replace(
        self, runs: Sequence[StoredRun], claims: Sequence[Claim] = (), *, erase: bool = False
    ) -> None:
        """Store runs in place of the runs with the same ids, in one transaction. A run with a new
        id is added.

        Give up `claims`. Refuse a run that a process works on with `bae-run-owned`, unless `claims`
        has the claim on this run. Redaction passes `erase`: then leave no trace of the old lines,
        as far as the store can.

        Optional: a store without this method refuses redaction and `load(existing="replace")`.
        """
        check_replaces(self, "replace stored runs")

    def put_files(self, claim: Claim, files: Mapping[str, bytes]) -> None:
        """Take in images and documents of a run, by hash, without waiting. Store the files before,
        or together with, the lines of the run that are taken in later. If the files cannot be
        stored, do not store these lines either. A hash may be passed more than once.

        If several runs have the same file, store the file once, and delete it with the last of
        these runs. `create` and `replace` store `run.files`, and `read` returns them. A fork has
        the files of the lines that it shares.

        Optional: a store without this method refuses runs with images or documents.
        """
        raise without_files(self)

    def note(self, claim: Claim, line: Line) -> None:
        """Store a line soon: with the next line that is awaited, or shortly after. This method
        never fails. If the line cannot be stored, the next `append` raises the error. An LM may
        report an answer in a thread of its own, so there may be no event loop here."""
        try:
            stored = self.append(claim, (line,))
        except Exception:
            return
        if iscoroutine(stored):  # the line was taken in at the call, so nothing must be awaited
            stored.close()
        elif isinstance(stored, Future):
            stored.add_done_callback(_forget_error)

    async def fork(
        self,
        run_id: str,
        new_id: str,
        upto: int,
        lines: Sequence[Line],
        *,
        thread: str | None = None,
    ) -> None:
        """Make a run that begins with the lines of `run_id` whose numbers are below `upto`. `lines`
        follow, numbered from `upto`.

        The new run is "running" and has no owner, so that it can be claimed. It has the shape,
        graph and metadata of the run `run_id`, but no answers: people are asked again. It belongs
        to `thread`, if there is one.
        """
        run = await self.read(run_id)
        check_fork(run_id, upto, len(run.lines))
        info = fork_info(run.info, new_id, lines, thread)
        all_lines = (*run.lines[:upto], *lines)
        forked = StoredRun(info, run.shape, all_lines, {}, files_in(all_lines, run.files))
        await self.create(forked, claim=False)

    async def put(self, run: StoredRun, *, replace: bool = False) -> None:
        """Store a complete run, for example from another journal: all of it, or nothing. If the id
        exists, raise `bae-run-exists`. With `replace`, replace the old run instead. If that fails,
        the old run stays."""
        check_run(run)
        if run.files and not keeps_files(self):
            raise without_files(self)
        if replace:
            await self.replace([run])
        else:
            await self.create(run, claim=False)

    async def find_file(self, hash: str, sees: Callable[[RunInfo], bool]) -> bytes | None:
        """Return the bytes of an image or a document by its hash. If `sees` is true for no run that
        has the file, return None. A server passes `sees` to send only files that the user may
        see."""
        async for info in self.every_run():
            if not sees(info):
                continue
            try:
                files = (await self.read(info.run_id)).files
            except JournalError as error:
                if error.code != "bae-run-unknown":
                    raise
                continue  # the run was deleted meanwhile
            if hash in files:
                return files[hash]
        return None

    async def read_texts(self, run_id: str) -> StoredRun:
        """Return a run without the bytes of its files. Later turns of a thread need no more."""
        return dataclasses.replace(await self.read(run_id), files={})

    async def info(self, run_id: str) -> RunInfo:
        """Return the entry of a run, as `runs` lists it."""
        return (await self.read(run_id)).info

    async def forks(self, run_id: str, *, limit: int = 50) -> list[RunInfo]:
        """Return the runs that were forked from a run, the newest first."""
        await self.info(run_id)  # raises if there is no such run
        infos = [info async for info in self.every_run() if info.parent == run_id]
        return infos[:limit]

    async def answers(self, run_id: str) -> dict[str, str]:
        """Return the answers of people at the gates of a run, and their messages to the run, as
        JSON by address. bae calls this often while a run is in progress."""
        return (await self.read(run_id)).answers

    async def thread_answers(self, thread: str, graph: str) -> dict[str, dict[str, str]]:
        """Return the answers for all runs of a graph in a thread, by run id, the oldest run first.
        Runs without answers may be left out. bae calls this before each tool call that needs an
        approval."""
        infos = [info async for info in self.every_run(thread=thread, graph=graph)]
        return {info.run_id: await self.answers(info.run_id) for info in reversed(infos)}

    async def lines(self, run_id: str, *, after: int = -1, limit: int = 500) -> RunLines:
        """Return the entry of a run, and at most `limit` of its lines with numbers greater than
        `after`. A feed calls this to read a run in progress."""
        run = await self.read(run_id)
        lines = run.lines[after + 1 : after + 1 + limit]
        return RunLines(run.info, lines, len(run.lines))

    async def last_change(self) -> int:
        """Return the greatest `change` of all runs, or 0 if there are no runs."""
        return max([info.change async for info in self.every_run()], default=0)

    async def version(self) -> int | None:
        """Return a number that changes whenever any process stores something. Return None if the
        store has no cheap way to find out: feeds then read the store from time to time."""
        return None

    async def older(self, than: float, statuses: Sequence[RunStatus]) -> list[str]:
        """Return the ids of the runs that have one of `statuses` and were last written before the
        time `than`, the oldest run first. If one run of a thread was written later, or has another
        status, all runs of the thread are left out."""
        infos = [info async for info in self.every_run()]
        is_old = {i.run_id: i.updated < than and i.status in statuses for i in infos}
        fresh_threads = {i.thread for i in infos if i.thread is not None and not is_old[i.run_id]}
        old = [i.run_id for i in infos if is_old[i.run_id] and i.thread not in fresh_threads]
        return old[::-1]

    async def close(self) -> None:  # noqa: B027 - a store may hold nothing open
        """Store all pending data, and close files and connections. A run in progress in this
        journal fails with `bae-journal-closed` at its next record."""

    # Methods that are built on the others.

    def listen(self, hear: Callable[[str], None]) -> Callable[[], None]:
        """Call `hear` with the id of a run each time this process writes to the run through this
        object. The call may be in any thread. To stop listening, call the returned function."""
        self._bells = (*self._bells, hear)

        def stop() -> None:
            self._bells = tuple(bell for bell in self._bells if bell is not hear)

        return stop

    def ring(self, run_id: str) -> None:
        """Tell the listeners that this process has written to a run."""
        for hear in self._bells:
            hear(run_id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def every_run(
        self,
        *,
        status: Listed | None = None,
        graph: str | None = None,
        thread: str | None = None,
        metadata: Mapping[str, Scalar] | None = None,
    ) -> AsyncIterator[RunInfo]:
        """Iterate over all runs, the newest first: `async for info in journal.every_run():`.

        The runs are read page by page. Runs that start meanwhile are left out. A run may be listed
        or left out if it is deleted, or its status changes, meanwhile.
        """
        last_ids: list[str | None] = [None]
        while True:
            try:
                page = await self.runs(
                    status=status,
                    graph=graph,
                    thread=thread,
                    metadata=metadata,
                    limit=_PAGE,
                    before=last_ids[-1],
                )
            except JournalError as error:
                last_ids.pop()  # the run was deleted since
                if error.code != "bae-run-unknown" or not last_ids:
                    raise
                continue
            for info in page:
                yield info
            if len(page) < _PAGE:
                return
            last_ids = [info.run_id for info in page]

    async def why(self, run_id: str, place: str, *, step: int | None = None) -> Provenance:
        """Explain where the value of a field came from: `await journal.why(run_id, "Outfit.mood")`.

        If the run has several nodes of the class, `step` selects a node. The default is the newest.
        """
        from bae.journal.decoder import off_loop
        from bae.journal.why import why

        run = await self.read(run_id)
        return await off_loop(len(run.lines), why, run, place, step)

    async def approvals(self, run_id: str) -> list[Grant]:
        """Return the approvals that hold for all calls of a tool in a run, including revoked
        approvals. Approvals for the run's thread may come from other runs of the same graph."""
        from bae.approvals import grants_in

        info = await self.info(run_id)
        grants = grants_in(await self.answers(run_id), run_id)
        if info.thread is not None:
            of_thread = await self.thread_answers(info.thread, info.graph)
            for other, answers in of_thread.items():
                if other != run_id:
                    grants += [
                        grant for grant in grants_in(answers, other) if grant.holds_in_thread
                    ]
        return grants

    async def revoke(self, run_id: str, tool: str) -> list[Grant]:
        """Take back the approvals for a tool, and return them. Approvals for the run's thread are
        taken back too. bae asks a person before the next call of the tool, even if the run is in
        progress. `tool` is the tool's name, or its place, as `Reply.calls(refund)`. If the tool has
        no approval, raise `bae-approval-unknown`."""
        from bae.approvals import revoke_grants

        grants = await self.approvals(run_id)
        return await revoke_grants(self, grants, tool, f"the run {run_id}", run_id)

    async def cancel(self, run_id: str, *, timeout: float = 10.0) -> RunInfo:
        """Cancel a run, in any process, and return its new entry.

        If the run is in progress, this stores a request for its owner. Within about a second, the
        owner stops the run like any cancellation, and `arun` raises `RunCancelled` there. This call
        waits until the run has stopped. After `timeout` seconds it raises `bae-cancel-timeout`, but
        with a timeout of 0 it returns after storing the request.

        A run that is queued, parked or interrupted is cancelled at once. A run that has ended or
        failed stays unchanged.
        """
        from bae.journal.cancellation import cancel_run

        return await cancel_run(self, run_id, timeout)

    async def prune(
        self,
        *,
        older_than: float | timedelta,
        statuses: Sequence[RunStatus] = ("ended", "failed", "cancelled"),
    ) -> int:
        """Delete old runs, and return the number of deleted runs. A run is old if it was last
        written longer ago than `older_than`, in seconds or as a timedelta. Runs that wait or are in
        progress stay unless `statuses` names them. If one run of a thread stays, all its runs
        stay."""
        age = older_than if isinstance(older_than, int | float) else older_than.total_seconds()
        for status in statuses:
            check_status(status, get_args(RunStatus))
        return await self.delete(await self.older(time() - age, statuses))

    async def export(
        self,
        to: PathOrFile,
        run_ids: Sequence[str] | None = None,
        *,
        status: Listed | None = None,
        graph: str | None = None,
        thread: str | None = None,
    ) -> int:
        """Write runs as JSON lines to a path or an open file, and return the number of runs.

        Without `run_ids`, write all runs, or the runs of a `status`, a `graph` or a `thread`. A
        forked run is written in full, with its shared lines. A file at the path is replaced only
        when all runs are written.
        """
        from bae.journal.export import export

        return await export(self, to, run_ids, status=status, graph=graph, thread=thread)

    async def load(
        self,
        source: PathOrFile,
        *,
        existing: Existing = "refuse",
        unfinished: Unfinished = "cancel",
    ) -> list[str]:
        """Store the runs that `export` wrote to a path or an open file, and return their ids.

        The complete file is checked before any run is stored. Errors name the file and the line.
        If a run exists already, this raises an error. With `existing="keep"` the run in the file is
        skipped, and with `existing="replace"` it replaces the stored run.

        A run that was in progress or waiting when it was exported is loaded as "cancelled", so that
        two places cannot continue it by accident: `graph.recover` ignores the run, and
        `graph.resume` continues it. An approval for a thread is loaded as an approval for its own
        run. If this journal replaces the exported journal, pass `unfinished="keep"`: statuses and
        approvals then stay unchanged.
        """
        from bae.journal.export import load

        return await load(self, source, existing=existing, unfinished=unfinished)

    async def redact(self, run_id: str, *places: str) -> Redaction:
        """Remove the values of fields from a run for good:
        `await journal.redact(run_id, "Person.email")`.

        The values are removed from all records of the run. The prompts and answers of all its LM
        calls and the messages of its errors are removed too. Runs that share lines with the run,
        because one is a fork, are redacted too. If a body may have copied a value into another
        field, name this field as well. To resume the run afterwards, pass the values again:
        `graph.resume(…, given={"Person.email": …})`.
        """
        from bae.journal.redaction import redact

        return await redact(self, run_id, places)


def check_replaces(journal: Journal, what: str) -> None:
    """Raise `bae-journal-replace` if a store has no method `replace`. The message says that such a
    store cannot `what`, for example "replace stored runs"."""
    if type(journal).replace is Journal.replace:
        raise JournalError(
            f"{type(journal).__name__} cannot {what}: it has no method `replace`",
            code="bae-journal-replace",
            fix="export the runs and load them into another journal, or write the method: see "
            "Journal.replace",
        )


def keeps_files(journal: Journal) -> bool:
    """Whether a store can store images and documents."""
    return type(journal).put_files is not Journal.put_files


async def store_answer(
    journal: Journal,
    run_id: str,
    gate: str,
    value: str,
    by: str = "",
    files: Mapping[str, bytes] = NO_FILES,
) -> bool:
    """Store the answer to a gate. Return False if the gate has an answer already. `by` and `files`
    are passed on only if they are not empty, since a user's store may lack these parameters."""
    if not files:
        answer = run_id, gate, value
        return await (journal.answer(*answer, by) if by else journal.answer(*answer))
    if not keeps_files(journal):
        raise without_files(journal)
    return await journal.answer(run_id, gate, value, by, files)


def without_files(journal: Journal) -> JournalError:
    """Return the error for images or documents in a store without `put_files`."""
    return JournalError(
        f"{type(journal).__name__} stores no images and documents: it has no method `put_files`",
        code="bae-journal-files",
        fix="use a SQLiteJournal, or write the method: see Journal.put_files",
    )


def _forget_error(stored: Future[Any]) -> None:
    if not stored.cancelled():
        stored.exception()  # prevents a warning; the next `append` raises the error
