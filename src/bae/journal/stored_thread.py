"""`StoredThread`: a thread of a journal: read, export, fork or delete it."""

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
from bae.journal.earlier_turns import known_turn, read_turn
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
    """One run of a thread.

    - `user`, `reply`: the texts; the reply is empty unless the run has ended.
    - `status`: as `RunInfo.standing`. `waiting` has the gates that a parked run waits for.
    - `is_shown`: whether later turns see it. A run that failed, was cancelled, or was replaced by a
      fork, is not shown.
    """

    run_id: str
    user: str
    reply: str
    status: Listed
    started: float
    updated: float
    is_shown: bool
    waiting: tuple[ParkedGate, ...] = ()
    error: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


class StoredThread:
    """A thread of a journal: the runs of a graph that carry its id. `graph.thread(…)` makes it.

    It reads the current state of the journal. A journal keeps every run; `messages` are the turns
    that the next turn would see.
    """

    def __init__(self, graph: Graph[Any, Any], id: str, journal: Journal) -> None:
        check_thread(id)
        self.id = id
        self._graph, self._journal = graph, journal

    def __repr__(self) -> str:
        return f"<StoredThread {self.id}>"

    async def runs(self) -> list[RunInfo]:
        """All runs of the thread, the oldest first."""
        return [info async for info in self._journal.every_run(thread=self.id)][::-1]

    async def turns(self) -> list[ThreadTurn]:
        """All runs of the thread with their texts, the oldest first."""
        infos = await self.runs()
        read = {info.run_id: await self._read(info) for info in infos}
        shown: set[str] = set()
        run_id = next((i.run_id for i in reversed(infos) if i.status == "ended"), "")
        while run_id in read and run_id not in shown:
            shown.add(run_id)
            run_id = read[run_id][1]
        return [
            ThreadTurn(
                info.run_id,
                read[info.run_id][0].user,
                read[info.run_id][0].reply,
                info.standing(),
                info.started,
                info.updated,
                info.run_id in shown,
                info.waiting,
                info.error,
                info.metadata,
            )
            for info in infos
        ]

    async def messages(self) -> Messages:
        """All turns that the next run would see, the oldest first."""
        turns = [turn for turn in await self.turns() if turn.is_shown]
        messages = [Turn(turn.user, turn.reply, turn.run_id, turn.started) for turn in turns]
        return Messages(messages, self.id)

    async def approvals(self) -> list[Grant]:
        """The approvals of tools that hold in all turns of the thread, including revoked ones."""
        answers = await self._journal.thread_answers(self.id, self._graph.name)
        approvals = [each for run_id, given in answers.items() for each in grants_in(given, run_id)]
        return [approval for approval in approvals if approval.holds_in_thread]

    async def revoke(self, tool: str) -> list[Grant]:
        """Take back the approvals of a tool that hold in all turns, and return them. `tool` is its
        name, or its place, `Reply.calls(refund)`."""
        given = await self.approvals()
        return await revoke_grants(self._journal, given, tool, f"the thread {self.id!r}")

    async def delete(self) -> int:
        """Delete all runs of the thread, and return their number. A thread with a run in progress
        is refused with `bae-thread-busy`. Runs whose lines a fork shares are kept
        (`bae-thread-kept`), until the fork is deleted."""
        infos = await self.runs()
        busy = next((info for info in infos if info.standing() == "running"), None)
        if busy is not None:
            raise thread_is_busy(busy, TurnOptions(self.id, "refuse"))
        count = await self._journal.delete([info.run_id for info in infos])
        left = [info.run_id for info in await self.runs()]
        if left:
            raise JournalError(
                f"{len(left)} runs of the thread {self.id!r} were not deleted, since forks share "
                f"their lines: {', '.join(left[:5])}",
                code="bae-thread-kept",
                fix="delete the forks first: journal.delete([…])",
            )
        return count

    async def export(self, to: PathOrFile) -> int:
        """Write the runs as JSON lines to a path or an open file, and return their number.
        `journal.load` reads them."""
        return await self._journal.export(to, thread=self.id)

    async def fork(self, new_id: str, *, upto: str | None = None) -> int:
        """Make another thread with copies of the turns that the next run would see, up to the run
        `upto`, or all. Returns their number. Both threads can be continued, and deleted,
        independently."""
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
                f"the thread {self.id!r} has no run {upto} that a next turn would follow",
                run_id=upto,
                code="bae-run-unknown",
                fix=f"give upto= one of {', '.join(turns) or 'none'}",
            )
        chosen = turns if upto is None else turns[: turns.index(upto) + 1]
        ids = {run_id: urandom(12).hex() for run_id in chosen}
        for run_id in chosen:
            await self._journal.put(_copy_run(await self._journal.read(run_id), ids, new_id))
        return len(chosen)

    async def _read(self, info: RunInfo) -> tuple[Turn, str, int]:
        if info.status not in ("queued", *OPEN):
            return await known_turn(self._journal, self._graph, info.run_id, info.change)
        stored = await self._journal.read_texts(info.run_id)
        secrets = self._journal.secrets
        return await off_loop(len(stored.lines), read_turn, stored, self._graph, secrets)


def _copy_run(stored: StoredRun, ids: Mapping[str, str], thread: str) -> StoredRun:
    """A run as part of another thread, with new ids for the runs that its lines name."""
    info = replace(stored.info, run_id=ids[stored.info.run_id], thread=thread)
    info = replace(info, owner=None, lease_until=None)
    lines = tuple(_renamed(line, ids) for line in stored.lines)
    return replace(stored, info=info, lines=lines, answers=for_run_alone(stored.answers))


def _renamed(line: Line, ids: Mapping[str, str]) -> Line:
    roles = records.KINDS[line.kind].stored.items()
    names = [name for name, role in roles if role.name == "run"]
    if not names:
        return line
    data: Json = json.loads(line.data)
    data |= {name: ids[data[name]] for name in names if data.get(name) in ids}
    return line._replace(data=json.dumps(data, ensure_ascii=False, separators=(",", ":")))
