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
    """A store of runs. Pass it to `graph.arun(…, journal=…)`, and the run survives its process.

    Use `SQLiteJournal` for a file, `PostgresJournal` for a server and `MemoryJournal` for tests. To
    write a store of your own, subclass `Journal` and write the eight abstract methods. Two more are
    optional: redaction and `load(existing="replace")` need `replace`, and runs with images or
    documents need `put_files`. All other methods have defaults that are built on these; override a
    default if your store can do it faster. `bae.testing.check_journal` checks a store.

    Methods raise `JournalError` for expected failures. A call that was awaited and returned is
    acknowledged: its data must survive whatever the store promises to survive. The lines of a run
    are stored in order, without gaps, or not at all.
    """

    secrets: bool = False
    """Whether secrets (`SecretStr`, `Field(repr=False)`) are stored in clear."""
    prompts: bool = True
    """Whether the text of prompts and raw answers is stored, or only a hash of each prompt."""
    thinking: bool = False
    """Whether the thinking of models is stored with their answers."""
    _bells: tuple[Callable[[str], None], ...] = ()

    # The methods that a store must have.

    @abstractmethod
    def create(self, run: StoredRun, *, claim: bool = True) -> Awaitable[Claim | None]:
        """Store a new run and claim it: its status is then "running". Without `claim` the run keeps
        its status, has no owner, and the result is None; this is how a run is queued, forked and
        loaded. Refuse an id that exists with `bae-run-exists`. At most one run of a thread is
        "running" or "waiting": refuse another run with such a status, or with a claim, with
        `bae-thread-busy`; `thread_busy` makes the error. Check this in the transaction that adds
        the run."""

    @abstractmethod
    def append(self, claim: Claim, lines: Sequence[Line]) -> Awaitable[None]:
        """Store lines. They are durable when the returned awaitable has been awaited.

        Take in the lines at the call, in order, whether or not the caller awaits: this is not a
        coroutine function. `note` calls it where no event loop may run, so make a future when the
        caller awaits, not before. Raise ValueError for a line whose number is not the next. Fail
        with `bae-run-taken` if another owner has claimed the run.
        """

    @abstractmethod
    async def claim(self, run_id: str) -> Claim:
        """Claim a run that has no owner, or whose owner has died, and renew the lease from here on.
        Its status becomes "running". Refuse an unknown run with `bae-run-unknown`, and a run with
        an owner with `bae-run-owned`, which names the owner and the rest of its lease. Refuse a run
        that has ended with `bae-run-ended`: another process may have ended it since it was read.
        Refuse a run of a busy thread with `bae-thread-busy`, as `create` does."""

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
        the run keeps its summary. If the store cannot be written, give up the claim as soon as it
        can be written again."""

    @abstractmethod
    async def read(self, run_id: str) -> StoredRun:
        """Everything that any process has stored of a run. Refuse an unknown run with
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
        """The newest runs, the newest first. `before` continues after the run with that id. With
        `metadata`, the runs whose metadata has all these keys with these values.

        The "running" runs include interrupted runs, which can also be listed alone. With `after`,
        the runs whose `change` is greater than this number, in the order of their changes: pass the
        greatest number that you have seen to follow the list. `check_page` refuses invalid
        combinations.
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
        """Store the answer to a gate, as JSON, with the person who gave it. Returns False if there
        is an answer already. `files` are the images and documents in the answer, by hash; they
        become files of the run. Only a store with `put_files` gets them."""

    @abstractmethod
    async def delete(self, run_ids: Sequence[str]) -> int:
        """Delete runs and return their number. A run that a process works on stays. A run whose
        lines a fork shares may stay too, unless the fork is also deleted."""

    # The methods that a store may have.

    async def replace(
        self, runs: Sequence[StoredRun], claims: Sequence[Claim] = (), *, erase: bool = False
    ) -> None:
        """Store runs in place of the runs with the same ids, all of them or none, in one
        transaction. A run with a new id is added. `claims` are given up. Refuse a run that a
        process works on with `bae-run-owned`, unless `claims` has the claim on it. With `erase`,
        which redaction uses, leave nothing of the old lines, as far as the store can.

        Optional: a store without this method refuses redaction and `load(existing="replace")`.
        """
        check_replaces(self, "replace stored runs")

    def put_files(self, claim: Claim, files: Mapping[str, bytes]) -> None:
        """Take in images and documents of a run, by hash. Store them before the lines of the run
        that are taken in later, or together with them. Do not wait. If the files cannot be stored,
        do not store those lines either. A hash that is there already may come again.

        A file is stored once, however many runs have it, and is deleted with the last of these
        runs. `create` and `replace` store `run.files`, and `read` returns them. A fork has the
        files of the lines that it shares.

        Optional: a store without this method refuses runs with images or documents.
        """
        raise without_files(self)

    def note(self, claim: Claim, line: Line) -> None:
        """Store a line soon: with the next line that is awaited, or shortly after. Never fails: the
        next `append` raises the error. An LM may report an answer from its own thread, so there may
        be no event loop here."""
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
        """Make a new run with the lines of `run_id` whose number is below `upto`, followed by
        `lines`, numbered from `upto`. The new run is "running" and has no owner, so that it can be
        claimed. It has the shape, graph and metadata of the other run, and none of its answers:
        people are asked again. It belongs to `thread`, or to no thread."""
        run = await self.read(run_id)
        check_fork(run_id, upto, len(run.lines))
        info = fork_info(run.info, new_id, lines, thread)
        kept = (*run.lines[:upto], *lines)
        forked = StoredRun(info, run.shape, kept, {}, files_in(kept, run.files))
        await self.create(forked, claim=False)

    async def put(self, run: StoredRun, *, replace: bool = False) -> None:
        """Store a run that was read elsewhere, with its outcome: all of it, or nothing. If a run
        has its id, raise `bae-run-exists`. With `replace`, replace that run instead; if this fails,
        the old run stays."""
        check_run(run)
        if run.files and not keeps_files(self):
            raise without_files(self)
        if replace:
            await self.replace([run])
        else:
            await self.create(run, claim=False)

    async def find_file(self, hash: str, sees: Callable[[RunInfo], bool]) -> bytes | None:
        """The bytes of an image or a document by its hash, if `sees` is true for a run that has it;
        otherwise None. A server uses it to send only files that its user may see."""
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
        """Everything stored of a run except the bytes of its files. Later turns of a thread use
        it."""
        return dataclasses.replace(await self.read(run_id), files={})

    async def info(self, run_id: str) -> RunInfo:
        """The entry of a run, as `runs` lists it."""
        return (await self.read(run_id)).info

    async def forks(self, run_id: str, *, limit: int = 50) -> list[RunInfo]:
        """The runs that were forked from a run, the newest first."""
        await self.info(run_id)  # raises if there is no such run
        infos = [info async for info in self.every_run() if info.parent == run_id]
        return infos[:limit]

    async def answers(self, run_id: str) -> dict[str, str]:
        """The answers of people at the gates of a run, and their messages to it, as JSON by
        address. This is read often while a run is in progress."""
        return (await self.read(run_id)).answers

    async def thread_answers(self, thread: str, graph: str) -> dict[str, dict[str, str]]:
        """The answers for all runs of a graph in a thread, by run, the oldest first. Runs without
        answers may be left out. This is read before each tool call that needs an approval."""
        infos = [info async for info in self.every_run(thread=thread, graph=graph)]
        return {info.run_id: await self.answers(info.run_id) for info in reversed(infos)}

    async def lines(self, run_id: str, *, after: int = -1, limit: int = 500) -> RunLines:
        """At most `limit` lines of a run, with numbers greater than `after`, and its entry. A feed
        uses it to read a run in progress."""
        run = await self.read(run_id)
        lines = run.lines[after + 1 : after + 1 + limit]
        return RunLines(run.info, lines, len(run.lines))

    async def last_change(self) -> int:
        """The greatest `change` of all runs; 0 if there are none."""
        return max([info.change async for info in self.every_run()], default=0)

    async def version(self) -> int | None:
        """A number that changes whenever any process stores something. None if the store has no
        cheap way to tell; feeds then read it from time to time."""
        return None

    async def older(self, than: float, statuses: Sequence[RunStatus]) -> list[str]:
        """The ids of the runs that were last written before the time `than`, by status, the oldest
        run first. The runs of a thread are left out if any of them was written since, or has
        another status."""
        infos = [info async for info in self.every_run()]
        is_old = {i.run_id: i.updated < than and i.status in statuses for i in infos}
        kept = {i.thread for i in infos if i.thread is not None and not is_old[i.run_id]}
        old = [i.run_id for i in infos if is_old[i.run_id] and i.thread not in kept]
        return old[::-1]

    async def close(self) -> None:  # noqa: B027 - a store may hold nothing open
        """Store everything that is pending and close everything. Runs of this journal that are in
        progress fail with `bae-journal-closed` at their next record."""

    # Methods that are built on the others.

    def listen(self, hear: Callable[[str], None]) -> Callable[[], None]:
        """Call `hear` with the id of a run each time this process writes to the run through this
        object, from any thread. Call the returned function to stop."""
        self._bells = (*self._bells, hear)

        def stop() -> None:
            self._bells = tuple(bell for bell in self._bells if bell is not hear)

        return stop

    def ring(self, run_id: str) -> None:
        """Tell the listeners that a run was written."""
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

        Runs that start meanwhile are left out. A run that is deleted meanwhile, or whose status
        changes, may be listed or not.
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
                known.pop()  # the run was deleted since
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

        If the run has several nodes of the class, the newest is meant, or the node at `step`.
        """
        from bae.journal.decoder import off_loop
        from bae.journal.why import why

        run = await self.read(run_id)
        return await off_loop(len(run.lines), why, run, place, step)

    async def approvals(self, run_id: str) -> list[Grant]:
        """The approvals that hold for all calls of a tool in a run, including revoked approvals:
        those of the run, and those for its thread, of other runs of the same graph."""
        from bae.approvals import grants_in

        info = await self.info(run_id)
        grants = grants_in(await self.answers(run_id), run_id)
        if info.thread is not None:
            of_thread = await self.thread_answers(info.thread, info.graph)
            for other, answers in of_thread.items():
                if other != run_id:
                    grants += [each for each in grants_in(answers, other) if each.holds_in_thread]
        return grants

    async def revoke(self, run_id: str, tool: str) -> list[Grant]:
        """Take back the approvals for a tool, including those for the thread, and return them. A
        person is asked before the next call of the tool, also in a run in progress. `tool` is its
        name, or its place, `Reply.calls(refund)`."""
        from bae.approvals import revoke_grants

        given = await self.approvals(run_id)
        return await revoke_grants(self, given, tool, f"the run {run_id}", run_id)

    async def cancel(self, run_id: str, *, timeout: float = 10.0) -> RunInfo:
        """Cancel a run, in any process, and return its entry as it is then.

        A run in progress gets a request, which its owner follows within about a second: it stops
        the run like any cancellation, and `arun` raises `RunCancelled` there. This call waits until
        the run has stopped, at most `timeout` seconds (`bae-cancel-timeout`); with 0, it only
        stores the request. A run that is queued, parked or interrupted is cancelled at once. A run
        that has ended or failed stays unchanged.
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
        timedelta, and return their number. Runs that wait or are in progress stay unless `statuses`
        names them. The runs of a thread stay as long as one of them stays."""
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
        """Write runs as JSON lines to a path or an open file, and return their number.

        Without `run_ids`, write all runs, or the runs of a `status`, a `graph` or a `thread`. A
        forked run is written in full, with the lines that it shares. A file at the path is replaced
        only when everything is written.
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
        are later read from a journal. Errors name the file and the line. A run that exists already
        is an error, unless `existing` is "keep", to skip it, or "replace".

        A run that was in progress or waiting when it was exported is loaded as "cancelled", so that
        two places cannot continue it by accident: `graph.recover` ignores it, and `graph.resume`
        continues it. In the same way, an approval for a thread holds here only for its own run.
        With `unfinished="keep"` both stay unchanged, for a journal that replaces the other.
        """
        from bae.journal.export import load

        return await load(self, source, existing=existing, unfinished=unfinished)

    async def redact(self, run_id: str, *places: str) -> Redaction:
        """Remove the values of fields from a run for good:
        `await journal.redact(run_id, "Person.email")`.

        The values are removed from wherever the run stores them. So are the prompts and answers of
        all its LM calls, and the messages of errors. Runs that share its lines, by a fork, are
        redacted too. A body may have copied a value into another field: name that field too. A run
        that is resumed afterwards asks for the values:
        `graph.resume(…, given={"Person.email": …})`.
        """
        from bae.journal.redaction import redact

        return await redact(self, run_id, places)


def check_replaces(journal: Journal, what: str) -> None:
    """Raise `bae-journal-replace` for a store without `replace`, which `what` needs."""
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
    """Store the answer to a gate; False if there is an answer already. A user's store may take
    neither `by` nor `files`."""
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
