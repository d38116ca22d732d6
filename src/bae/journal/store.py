"""`Journal`, the interface of a store of runs: it keeps the lines of each run in order, gives a run
to one owner at a time, and takes one answer for a gate."""

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
from bae.journal.run_lists import check_listed
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
"""How many runs `every_run` lists at a time."""


class Journal(ABC):
    """A store of runs: pass one to `graph.arun(…, journal=…)` and the run survives.

    bae has two: `SQLiteJournal` for a file and `MemoryJournal` for tests. For your own, subclass
    this and write the eight abstract methods. Two more are optional: redaction and
    `load(existing="replace")` need `replace`, and runs with images or documents need `put_files`.
    Everything else has a default that is built on these; a
    store may replace a default by something faster. `bae.testing.check_journal` checks a store.

    What the methods raise on purpose is a `JournalError`. What was acknowledged, by an awaited call
    that returned, must survive whatever the store promises to survive. The lines of a run are
    stored in order, without gaps, or not at all.
    """

    secrets: bool = False
    """Whether secrets (`SecretStr`, `Field(repr=False)`) are stored in clear."""
    prompts: bool = True
    """Whether the text of prompts and raw answers is stored, or only a hash of each prompt."""
    thinking: bool = False
    """Whether what models think before an answer is stored with the answer."""
    _bells: tuple[Callable[[str], None], ...] = ()

    # What a store must have.

    @abstractmethod
    def create(self, run: StoredRun, *, claim: bool = True) -> Awaitable[Claim | None]:
        """Store a new run as it is given, and claim it: then its status is "running". Without
        `claim` the run keeps the status that it has, has no owner, and the result is None. This is
        how a run is queued, forked and loaded. An id that exists is refused with `bae-run-exists`.
        Of a thread at most one run is "running" or "waiting": another one with such a status, or
        with a claim, is refused with `bae-thread-busy`, as `thread_busy` makes it. Check this in
        the transaction that adds the run."""

    @abstractmethod
    def append(self, claim: Claim, lines: Sequence[Line]) -> Awaitable[None]:
        """Store lines; they are durable when what is returned has been awaited.

        The lines are taken in at the call, in order, whether or not the caller awaits: this is not
        a coroutine function. `note` calls it where no event loop may run: make a future when the
        caller awaits, not before. A line whose number is not the next is a ValueError. Fails with
        `bae-run-taken` if another owner has claimed the run.
        """

    @abstractmethod
    async def claim(self, run_id: str) -> Claim:
        """Claim a run that has no owner, or whose owner is gone, and renew the lease from here on;
        its status becomes "running". Refused with `bae-run-unknown`, with `bae-run-owned`, which
        names the owner and the rest of its lease, or with `bae-run-ended`: another process may have
        ended the run since it was read. A run of a thread is refused with `bae-thread-busy`, as by
        `create`."""

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
        """Store the last lines of a run and how it ended, and give up the claim. Without a
        `summary` the run keeps the one that it has. If the store cannot be written, the claim is
        given up as soon as it can be written again."""

    @abstractmethod
    async def read(self, run_id: str) -> StoredRun:
        """All there is of a run, by whichever process; `bae-run-unknown` if there is none."""

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
        """The newest runs, the newest first; `before` continues after the run of that id. With
        `metadata`, the runs whose metadata has all these keys with these values.

        The "running" ones include those that were interrupted, which can also be listed alone. With
        `after`, the runs whose `change` is greater than this number, in the order of their
        changes: give the greatest number that you have seen to follow the list. `check_page`
        refuses what makes no sense.
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
        """Store the answer to a gate, as JSON, with who gave it; False if there is one already.
        `files` are the images and documents in it, by hash, which become files of the run: only a
        store with `put_files` gets them."""

    @abstractmethod
    async def delete(self, run_ids: Sequence[str]) -> int:
        """Delete runs and return how many. A run that a process works on stays, and so may a run
        whose lines a fork shares, unless the fork is deleted too."""

    # What a store may have.

    async def replace(
        self, runs: Sequence[StoredRun], claims: Sequence[Claim] = (), *, erase: bool = False
    ) -> None:
        """Store runs in place of those that have their ids, all of them or none, in one
        transaction. An id that is new is added. `claims` are given up. A run that a process works
        on is refused with `bae-run-owned`, unless `claims` has the claim on it. With `erase`, as
        redaction asks, leave nothing of the old lines behind, as far as the store can.

        Optional: a store without this method refuses redaction and `load(existing="replace")`.
        """
        check_replaces(self, "replace stored runs")

    def put_files(self, claim: Claim, files: Mapping[str, bytes]) -> None:
        """Take in images and documents of a run, by hash: `files` are stored before the lines of
        the run that are taken in later, or together with them. This waits for nothing; if the files
        cannot be stored, neither can those lines. A hash that is there already may come again.

        A file is stored once, however many runs have it, and is deleted with the last run that has
        it. `create` and `replace` store `run.files`, and `read` returns them; a fork has the files
        of the lines that it shares.

        Optional: a store without this method refuses runs with images or documents.
        """
        raise without_files(self)

    def note(self, claim: Claim, line: Line) -> None:
        """Store a line soon: with the next one that is awaited, or shortly after. Never fails: the
        next `append` raises what went wrong. An LM may report an answer in a thread of its own, so
        no event loop may run where this is called."""
        try:
            stored = self.append(claim, (line,))
        except Exception:
            return
        if iscoroutine(stored):  # the line was taken in: nothing is left to wait for
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
        """A new run with the lines of `run_id` whose number is below `upto`, and `lines` (numbered
        from `upto`) after them. It is "running" and has no owner, so that it can be claimed. It has
        the shape, graph and metadata of the other, and none of its answers: people are asked
        again. It belongs to the `thread`, or to none."""
        run = await self.read(run_id)
        check_fork(run_id, upto, len(run.lines))
        info = fork_info(run.info, new_id, lines, thread)
        kept = (*run.lines[:upto], *lines)
        forked = StoredRun(info, run.shape, kept, {}, files_in(kept, run.files))
        await self.create(forked, claim=False)

    async def put(self, run: StoredRun, *, replace: bool = False) -> None:
        """Store a run that was read elsewhere, with how it ended: all of it, or nothing. If there
        is a run of its id, this is refused with `bae-run-exists`, unless it is to be replaced: then
        the old run is kept if this fails."""
        check_run(run)
        if run.files and not keeps_files(self):
            raise without_files(self)
        if replace:
            await self.replace([run])
        else:
            await self.create(run, claim=False)

    async def find_file(self, hash: str, sees: Callable[[RunInfo], bool]) -> bytes | None:
        """The bytes of an image or a document by its hash, if a run has it for which `sees` is
        true; else None. A server answers with it what its user may see."""
        async for info in self.every_run():
            if not sees(info):
                continue
            try:
                files = (await self.read(info.run_id)).files
            except JournalError as error:
                if error.code != "bae-run-unknown":
                    raise
                continue  # it was deleted meanwhile
            if hash in files:
                return files[hash]
        return None

    async def read_texts(self, run_id: str) -> StoredRun:
        """All there is of a run but the bytes of its files: later turns of a thread read it."""
        return dataclasses.replace(await self.read(run_id), files={})

    async def info(self, run_id: str) -> RunInfo:
        """The entry of a run, as `runs` lists it."""
        return (await self.read(run_id)).info

    async def forks(self, run_id: str, *, limit: int = 50) -> list[RunInfo]:
        """The runs that were forked from a run, the newest first."""
        await self.info(run_id)  # which refuses one that is not there
        infos = [info async for info in self.every_run() if info.parent == run_id]
        return infos[:limit]

    async def answers(self, run_id: str) -> dict[str, str]:
        """What people have answered at the gates of a run, and told it, as JSON by address: read
        often while a run is in progress."""
        return (await self.read(run_id)).answers

    async def thread_answers(self, thread: str, graph: str) -> dict[str, dict[str, str]]:
        """The same for the runs of a graph in a thread, by run, the oldest first; runs without
        answers may be left out. It is read before each tool call that needs an approval."""
        infos = [info async for info in self.every_run(thread=thread, graph=graph)]
        return {info.run_id: await self.answers(info.run_id) for info in reversed(infos)}

    async def lines(self, run_id: str, *, after: int = -1, limit: int = 500) -> RunLines:
        """At most `limit` lines of a run whose number is greater than `after`, with its entry. A
        feed reads a run in progress with it."""
        run = await self.read(run_id)
        found = run.lines[after + 1 : after + 1 + limit]
        return RunLines(run.info, found, len(run.lines))

    async def last_change(self) -> int:
        """The greatest `change` of all runs; 0 where there are none."""
        return max([info.change async for info in self.every_run()], default=0)

    async def version(self) -> int | None:
        """A number that is another one after anything was stored, by any process. None where the
        store has no cheap way to tell: then feeds read it now and then."""
        return None

    async def older(self, than: float, statuses: Sequence[RunStatus]) -> list[str]:
        """The ids of the runs that were last written before the time `than`, by status, the oldest
        run first; without those of a thread in which a run was written since, or has another
        status."""
        infos = [info async for info in self.every_run()]
        is_old = {i.run_id: i.updated < than and i.status in statuses for i in infos}
        kept = {i.thread for i in infos if i.thread is not None and not is_old[i.run_id]}
        old = [i.run_id for i in infos if is_old[i.run_id] and i.thread not in kept]
        return old[::-1]

    async def close(self) -> None:  # noqa: B027 - a store may hold nothing open
        """Store what is still to be stored and close everything. Runs of this journal that are in
        progress fail with `bae-journal-closed` at their next record."""

    # What follows from these.

    def listen(self, hear: Callable[[str], None]) -> Callable[[], None]:
        """Have `hear` called with the id of a run when this process has written to it through this
        object, from any thread. Call what is returned to stop."""
        self._bells = (*self._bells, hear)

        def stop() -> None:
            self._bells = tuple(each for each in self._bells if each is not hear)

        return stop

    def ring(self, run_id: str) -> None:
        """Tell those who listen that a run was written."""
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
        """All runs, the newest first, a page at a time: `async for info in journal.every_run():`.

        Runs that start meanwhile are left out; one that is deleted, or whose status changes,
        meanwhile may be listed or not.
        """
        known: list[str | None] = [None]
        while True:
            try:
                page = await self.runs(
                    status=status,
                    graph=graph,
                    thread=thread,
                    metadata=metadata,
                    limit=_PAGE,
                    before=known[-1],
                )
            except JournalError as error:
                known.pop()  # it was deleted since
                if error.code != "bae-run-unknown" or not known:
                    raise
                continue
            for info in page:
                yield info
            if len(page) < _PAGE:
                return
            known = [info.run_id for info in page]

    async def why(self, run_id: str, place: str, *, step: int | None = None) -> Provenance:
        """Where the value of a field came from: `await journal.why(run_id, "Outfit.mood")`.

        With several nodes of the class in the run this is about the newest, or the one at `step`.
        """
        from bae.journal.decoder import off_loop
        from bae.journal.why import why

        run = await self.read(run_id)
        return await off_loop(len(run.lines), why, run, place, step)

    async def approvals(self, run_id: str) -> list[Grant]:
        """The yeses that hold for all calls of a tool in a run, including revoked yeses: those of
        the run, and those for its thread, of other runs of the same graph."""
        from bae.approvals import grants_in

        info = await self.info(run_id)
        found = grants_in(await self.answers(run_id), run_id)
        if info.thread is not None:
            of_thread = await self.thread_answers(info.thread, info.graph)
            for other, answers in of_thread.items():
                if other != run_id:
                    found += [each for each in grants_in(answers, other) if each.holds_in_thread]
        return found

    async def revoke(self, run_id: str, tool: str) -> list[Grant]:
        """Take back the yeses for a tool, those for the thread too, and return them: a person is
        asked before its next call, in a run that is in progress too. `tool` is its name, or its
        place, `Reply.calls(refund)`."""
        from bae.approvals import revoke_grants

        given = await self.approvals(run_id)
        return await revoke_grants(self, given, tool, f"the run {run_id}", run_id)

    async def cancel(self, run_id: str, *, timeout: float = 10.0) -> RunInfo:
        """Cancel a run, in whichever process it is, and return its entry as it is then.

        A run in progress gets a request, which its owner follows within about a second: it stops
        the run as any cancellation does, and `arun` raises `RunCancelled` there. This waits until
        the run has stopped, `timeout` seconds at most (`bae-cancel-timeout`); with 0, it only
        stores the request. A run that is queued, parked or interrupted is cancelled at once. One
        that has ended or failed stays as it is.
        """
        from bae.journal.cancellation import cancel_run

        return await cancel_run(self, run_id, timeout)

    async def prune(
        self,
        *,
        older_than: float | timedelta,
        statuses: Sequence[RunStatus] = ("ended", "failed", "cancelled"),
    ) -> int:
        """Delete the runs that were last written longer ago than `older_than`, in seconds or as a
        timedelta, and return how many. Runs that wait or are in progress stay unless `statuses`
        names them. The runs of a thread stay as long as one of them does."""
        age = older_than if isinstance(older_than, int | float) else older_than.total_seconds()
        for status in statuses:
            check_listed(status, get_args(RunStatus))
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
        """Write runs as JSON lines to a path or an open file, and return how many.

        Without `run_ids` these are all of them, or those of a `status`, a `graph` or a `thread`. A
        run that was forked is written whole, with the lines that it shares. A file at the path is
        replaced when everything is written, and not before.
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
        """Read runs that `export` wrote, from a path or an open file, and return their ids.

        The whole file is checked before anything is stored: its lines are read in order, as they
        are read from a journal later. Errors name the file and the line. A run that exists already
        is an error, unless `existing` is "keep", to skip it, or "replace".

        A run that was in progress or waiting where it was exported is "cancelled" here, so that it
        is not continued by accident in two places: `graph.recover` leaves it alone, `graph.resume`
        continues it. In the same way, a yes for a thread holds here for its own run only. With
        `unfinished="keep"` both stay, for a journal that replaces the other.
        """
        from bae.journal.export import load

        return await load(self, source, existing=existing, unfinished=unfinished)

    async def redact(self, run_id: str, *places: str) -> Redaction:
        """Remove the values of fields from a run for good:
        `await journal.redact(run_id, "Person.email")`.

        They are gone from wherever the run stores them, and so are the prompts and answers of all
        its LM calls, and the messages of errors; runs that share its lines, by a fork, are redacted
        with it. What a body copied into another field is not followed: name
        that field too. A run that is resumed afterwards asks for the values:
        `graph.resume(…, given={"Person.email": …})`.
        """
        from bae.journal.redaction import redact

        return await redact(self, run_id, places)


def check_replaces(journal: Journal, what: str) -> None:
    """Raise `bae-journal-replace` for a store that has no `replace`, which `what` needs."""
    if type(journal).replace is Journal.replace:
        raise JournalError(
            f"{type(journal).__name__} cannot {what}: it has no method `replace`",
            code="bae-journal-replace",
            fix="export the runs and load them into another journal, or write the method: see "
            "Journal.replace",
        )


def keeps_files(journal: Journal) -> bool:
    """Whether a store takes images and documents."""
    return type(journal).put_files is not Journal.put_files


async def store_answer(
    journal: Journal,
    run_id: str,
    gate: str,
    value: str,
    by: str = "",
    files: Mapping[str, bytes] = NO_FILES,
) -> bool:
    """Store the answer to a gate; False if there is one already. A store of others may know nothing
    of who answers, nor of files."""
    if not files:
        answer = run_id, gate, value
        return await (journal.answer(*answer, by) if by else journal.answer(*answer))
    if not keeps_files(journal):
        raise without_files(journal)
    return await journal.answer(run_id, gate, value, by, files)


def without_files(journal: Journal) -> JournalError:
    """The error of a store without `put_files`."""
    return JournalError(
        f"{type(journal).__name__} stores no images and documents: it has no method `put_files`",
        code="bae-journal-files",
        fix="use a SQLiteJournal, or write the method: see Journal.put_files",
    )


def _forget_error(stored: Future[Any]) -> None:
    if not stored.cancelled():
        stored.exception()  # the next append has it
