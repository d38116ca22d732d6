"""`StoredThread` reads, exports, forks and deletes a thread of a journal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import urandom
from typing import TYPE_CHECKING, Any

from bae import records
from bae.approvals import Grant, for_run_alone, grants_in, revoke_grants
from bae.exceptions import JournalError
from bae.journal.decoder import off_loop
from bae.journal.earlier_turns import get_turn, read_turn
from bae.journal.run_checks import check_thread
from bae.journal.shape import Json
from bae.journal.store import Journal
from bae.journal.stored_runs import OPEN, Line, Listed, ParkedGate, RunInfo, StoredRun
from bae.journal.thread_queue import thread_is_busy
from bae.turns import Messages, Turn, TurnOptions

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.export import PathOrFile


@dataclass(frozen=True, slots=True)
class ThreadTurn:
    """One run of a thread."""

    run_id: str
    user: str
    """The text of the user."""
    reply: str
    """The text of the reply. Empty unless the run has ended."""
    status: Listed
    """The status of the run, or "interrupted"."""
    started: float
    updated: float
    """When the run was last written."""
    is_shown: bool
    """Whether later turns see this turn. They see only runs that have ended, and no run that was
    replaced by a fork."""
    waiting: tuple[ParkedGate, ...] = ()
    """The gates that a parked run waits for."""
    error: str = ""
    """The reason why the run failed, in one line."""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


class StoredThread:
    """A thread of a journal, which is a conversation of several runs. `graph.thread(…)` makes it.

    Every method reads the current state of the journal. The journal has all runs of the thread.
    `messages` returns only the turns that the next turn would see.
    """

    def __init__(self, graph: Graph[Any, Any], id: str, journal: Journal) -> None:
        check_thread(id)
        self.id = id
        self._graph, self._journal = graph, journal

    def __repr__(self) -> str:
        return f"<StoredThread {self.id}>"

    async def runs(self) -> list[RunInfo]:
        """Return all runs of the thread, the oldest first."""
        return [info async for info in self._journal.every_run(thread=self.id)][::-1]

    async def turns(self) -> list[ThreadTurn]:
        """Return all runs of the thread with their texts, the oldest first."""
        infos = await self.runs()
        turns = {info.run_id: await self._read_turn(info) for info in infos}
        shown_ids: set[str] = set()
        run_id = next((i.run_id for i in reversed(infos) if i.status == "ended"), "")
        while run_id in turns and run_id not in shown_ids:
            shown_ids.add(run_id)
            run_id = turns[run_id][1]
        return [
            ThreadTurn(
                info.run_id,
                turns[info.run_id][0].user,
                turns[info.run_id][0].reply,
                info.standing(),
                info.started,
                info.updated,
                info.run_id in shown_ids,
                info.waiting,
                info.error,
                info.metadata,
            )
            for info in infos
        ]

    async def messages(self) -> Messages:
        """Return the turns that the next run would see, the oldest first."""
        turns = [turn for turn in await self.turns() if turn.is_shown]
        messages = [Turn(turn.user, turn.reply, turn.run_id, turn.started) for turn in turns]
        return Messages(messages, self.id)

    async def approvals(self) -> list[Grant]:
        """Return the approvals of tools that hold in all turns of the thread, including revoked
        approvals."""
        answers = await self._journal.thread_answers(self.id, self._graph.name)
        approvals = [
            grant
            for run_id, run_answers in answers.items()
            for grant in grants_in(run_answers, run_id)
        ]
        return [approval for approval in approvals if approval.holds_in_thread]

    async def revoke(self, tool: str) -> list[Grant]:
        """Take back the approvals of a tool that hold in all turns, and return them. `tool` is the
        tool's name, or its place, as `Reply.calls(refund)`. If the tool has no such approval, raise
        `bae-approval-unknown`."""
        approvals = await self.approvals()
        return await revoke_grants(self._journal, approvals, tool, f"the thread {self.id!r}")

    async def delete(self) -> int:
        """Delete all runs of the thread, and return the number of deleted runs. If a run is in
        progress, raise `bae-thread-busy` and delete nothing. If a fork shares lines of a run, this
        run stays, and `bae-thread-kept` is raised: delete the fork first."""
        infos = await self.runs()
        busy = next((info for info in infos if info.standing() == "running"), None)
        if busy is not None:
            raise thread_is_busy(busy, TurnOptions(self.id, "refuse"))
        count = await self._journal.delete([info.run_id for info in infos])
        remaining = [info.run_id for info in await self.runs()]
        if remaining:
            raise JournalError(
                f"{len(remaining)} runs of the thread {self.id!r} were not deleted, since forks "
                f"share their lines: {', '.join(remaining[:5])}",
                code="bae-thread-kept",
                fix="delete the forks first: journal.delete([…])",
            )
        return count

    async def export(self, to: PathOrFile) -> int:
        """Write the runs as JSON lines to a path or an open file, and return the number of runs.
        `journal.load` reads the file."""
        return await self._journal.export(to, thread=self.id)

    async def fork(self, new_id: str, *, upto: str | None = None) -> int:
        """Make the thread `new_id` with copies of the turns that the next run of this thread would
        see. With `upto`, the run `upto` is the last copied turn. Return the number of copied turns.
        Both threads can be continued and deleted independently."""
        check_thread(new_id)
        if await self._journal.runs(thread=new_id, limit=1):
            raise JournalError(
                f"there is a thread {new_id!r} already",
                code="bae-thread-exists",
                fix="give the new thread another id",
            )
        turns = [turn.run_id for turn in await self.turns() if turn.is_shown]
        if upto is not None and upto not in turns:
            raise JournalError(
                f"the thread {self.id!r} has no run {upto} that its next turn would see",
                run_id=upto,
                code="bae-run-unknown",
                fix=f"give upto= one of {', '.join(turns) or 'none'}",
            )
        chosen = turns if upto is None else turns[: turns.index(upto) + 1]
        ids = {run_id: urandom(12).hex() for run_id in chosen}
        for run_id in chosen:
            await self._journal.put(_copy_run(await self._journal.read(run_id), ids, new_id))
        return len(chosen)

    async def _read_turn(self, info: RunInfo) -> tuple[Turn, str, int]:
        if info.status not in ("queued", *OPEN):
            return await get_turn(self._journal, self._graph, info.run_id, info.change)
        stored = await self._journal.read_texts(info.run_id)
        secrets = self._journal.secrets
        return await off_loop(len(stored.lines), read_turn, stored, self._graph, secrets)


def _copy_run(stored: StoredRun, ids: Mapping[str, str], thread: str) -> StoredRun:
    """Return a copy of a run for another thread. `ids` has the new id of each copied run."""
    info = replace(stored.info, run_id=ids[stored.info.run_id], thread=thread)
    info = replace(info, owner=None, lease_until=None)
    lines = tuple(_replace_run_ids(line, ids) for line in stored.lines)
    return replace(stored, info=info, lines=lines, answers=for_run_alone(stored.answers))


def _replace_run_ids(line: Line, ids: Mapping[str, str]) -> Line:
    roles = records.KINDS[line.kind].stored.items()
    names = [name for name, role in roles if role.name == "run"]
    if not names:
        return line
    data: Json = json.loads(line.data)
    data |= {name: ids[data[name]] for name in names if data.get(name) in ids}
    return line._replace(data=json.dumps(data, ensure_ascii=False, separators=(",", ":")))
