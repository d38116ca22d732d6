"""The threads of a journal: how a run takes its turn in one, which earlier turns it sees, and
`StoredThread`, which reads, exports, forks and deletes a thread."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from os import urandom
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from bae import records
from bae.exceptions import JournalError
from bae.files import placeholders_in, with_placeholders
from bae.journal.decoder import off_loop, read_history
from bae.journal.shape import Json
from bae.journal.store import (
    OPEN,
    Journal,
    Line,
    Listed,
    ParkedGate,
    RunInfo,
    StoredRun,
    check_thread,
)
from bae.journal.why import Search
from bae.plan import plan_of
from bae.secrets import MASK, secret_fields
from bae.tools import ToolCall
from bae.turns import Messages, Turn, TurnOptions

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.export import PathOrFile
    from bae.run import RunOptions
    from bae.work import Step

WITHHELD: Final = "[withheld]"
"""Stands for a text that the journal does not have."""
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.2


# Taking a turn


def queue_of(journal: Journal, thread: str) -> asyncio.Lock:
    """What the runs of this event loop hold while they wait for a turn: the first one looks whether
    the thread is free, and the others follow in order."""
    waiting = _queues.setdefault(journal, WeakValueDictionary())
    key = thread, id(asyncio.get_running_loop())
    lock = waiting.get(key)
    if lock is None:
        lock = waiting[key] = asyncio.Lock()
    return lock


_Queues = WeakValueDictionary[tuple[str, int], asyncio.Lock]
_queues: WeakKeyDictionary[Journal, _Queues] = WeakKeyDictionary()


async def wait_for_turn(
    graph: Graph[Any, Any],
    journal: Journal,
    turn: TurnOptions,
    options: RunOptions,
    create: Callable[[float], Awaitable[None]],
) -> None:
    """Create a run of a thread as soon as no other run of the thread is in progress. `create`,
    which gets the time, is refused with `bae-thread-busy` as long as there is one."""
    until = monotonic() + turn.busy_timeout
    queue = queue_of(journal, turn.thread) if turn.busy == "wait" else None
    if queue is not None:
        try:
            async with asyncio.timeout(turn.busy_timeout):
                await queue.acquire()
        except TimeoutError:
            raise late_in_queue(turn) from None
    try:
        while True:
            try:
                await create(time())
                return
            except JournalError as error:
                if error.code != "bae-thread-busy":
                    raise
            await _make_way(graph, journal, turn, options, until)
    finally:
        if queue is not None:
            queue.release()


async def _make_way(
    graph: Graph[Any, Any], journal: Journal, turn: TurnOptions, options: RunOptions, until: float
) -> None:
    """Wait until no other run of the thread is in progress, or cancel or resume that run, as the
    caller has said. Raises `bae-thread-busy` where the run stays."""
    pause = _FIRST_PAUSE
    while (busy := await _open_run(journal, turn.thread)) is not None:
        standing = busy.standing()
        gives_way = turn.busy == "cancel"
        if standing == "interrupted":
            if turn.interrupted == "cancel" or (turn.interrupted is None and gives_way):
                await journal.cancel(busy.run_id)
            else:
                await _resume(graph, journal, busy, options)
            continue
        if gives_way:
            await journal.cancel(busy.run_id, timeout=max(0.1, until - monotonic()))
            continue
        if standing == "waiting" or turn.busy == "refuse" or monotonic() >= until:
            raise _busy(busy, turn)
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)


async def _open_run(journal: Journal, thread: str) -> RunInfo | None:
    """The run of the thread that has not ended."""
    for status in OPEN:
        found = await journal.runs(thread=thread, status=status, limit=1)
        if found:
            return found[0]
    return None


async def _resume(
    graph: Graph[Any, Any], journal: Journal, busy: RunInfo, options: RunOptions
) -> None:
    """Resume an interrupted turn before the next one begins."""
    from bae.journal.resume import resume

    again = options._replace(max_iters=None, turn=None, metadata={})
    try:
        await resume(graph, busy.run_id, again, journal, None)
    except JournalError as error:
        if error.code in ("bae-run-owned", "bae-run-taken", "bae-run-ended", "bae-run-unknown"):
            return  # another process was first
        raise
    except Exception as error:
        # It has failed, and so it is over: the next turn does not see it.
        if (await journal.info(busy.run_id)).status in OPEN:
            raise
        error.add_note(f"the interrupted turn {busy.run_id} has failed")


def late_in_queue(turn: TurnOptions) -> JournalError:
    """The error of a run that others of this process have kept from its turn."""
    return JournalError(
        f"the thread {turn.thread!r} is busy: other runs wait for a turn in it, and this one has "
        f"not had its turn within {turn.busy_timeout:g} s",
        code="bae-thread-busy",
        fix="wait longer, with a busy_timeout; or refuse messages while a turn is in progress, "
        'with busy="refuse"',
    )


def _busy(busy: RunInfo, turn: TurnOptions) -> JournalError:
    name, run_id = f"the thread {turn.thread!r}", busy.run_id
    cancel = f'cancel it: await journal.cancel({run_id!r}), or busy="cancel"'
    if busy.status == "waiting":
        asked = "; ".join(f"{gate.place}: {gate.question}" for gate in busy.waiting)
        said = f"{name} waits for a person: its run {run_id} asks {asked}"
        fix = f"answer it: graph.answer({run_id!r}, …); or {cancel}"
    else:
        said = f"{name} is busy: its run {run_id} is in progress"
        if turn.busy == "wait":
            said += f", and has not ended within {turn.busy_timeout:g} s"
        fix = f'wait for it, with busy="wait" and a busy_timeout; or {cancel}'
    return JournalError(said, run_id=run_id, busy_run=run_id, code="bae-thread-busy", fix=fix)


async def begin_turn(
    journal: Journal, graph: Graph[Any, Any], thread: str, run_id: str
) -> tuple[str, int, Messages | None]:
    """The run of the turn before this one, how many turns there are before, and what the nodes of
    the graph may show of them."""
    ended = await journal.runs(thread=thread, status="ended", limit=2)
    before = next((info.run_id for info in ended if info.run_id != run_id), "")
    number = 0
    if before:
        number = _number_in(await journal.read(before)) + 1
    return before, number, await earlier_turns(journal, graph, thread, before, number)


def _number_in(stored: StoredRun) -> int:
    turn = read_history(stored).turn
    return 0 if turn is None else turn.number


async def turns_of(
    journal: Journal, graph: Graph[Any, Any], stored: StoredRun, *, strict: bool = True
) -> Messages | None:
    """The earlier turns of a stored run, as far back as its nodes have shown them, or may. None
    where the run belongs to no thread, or no node shows any."""
    if not graph.turns_read:
        return None
    history = await off_loop(len(stored.lines), read_history, stored)
    turn = history.turn
    if turn is None:
        return None
    shown = [source.turns for step in history.steps() for source in step.sources.values()]
    needed = max((each.count for each in shown if each is not None), default=0)
    thread = stored.info.thread or ""
    return await earlier_turns(
        journal, graph, thread, turn.previous, turn.number, needed=needed if strict else 0
    )


async def earlier_turns(
    journal: Journal,
    graph: Graph[Any, Any],
    thread: str,
    previous: str,
    number: int,
    *,
    needed: int = 0,
) -> Messages | None:
    """The turns up to the run `previous`, as many as the nodes of a graph may show. Raises
    `bae-thread-turn` where one of those that are `needed` is missing."""
    if not graph.turns_read:
        return None
    wanted = max(min(graph.turns_read, number), needed)
    turns: list[Turn] = []
    run_id = previous
    while run_id and len(turns) < wanted:
        try:
            stored = await journal.read(run_id)
        except JournalError as error:
            if error.code != "bae-run-unknown":
                raise
            if len(turns) < needed:
                raise JournalError(
                    f"an earlier turn of the thread {thread!r} is missing: the journal has no run "
                    f"{run_id}, and this run has shown it to a model",
                    run_id=run_id,
                    code="bae-thread-turn",
                    cause=error,
                    fix="load the run from a backup; or cancel this turn, and start another",
                ) from error
            break
        turn, run_id = await off_loop(len(stored.lines), read_turn, stored, graph, journal.secrets)
        turns.append(turn)
    return Messages(turns[::-1], thread, max(0, number - len(turns)))


async def runs_shown(journal: Journal, stored: StoredRun) -> list[StoredRun]:
    """The runs of the earlier turns that a run has shown, the oldest first: what it takes to replay
    it elsewhere."""
    history = read_history(stored)
    shown = [source.turns for step in history.steps() for source in step.sources.values()]
    needed = max((each.count for each in shown if each is not None), default=0)
    found: list[StoredRun] = []
    run_id = "" if history.turn is None else history.turn.previous
    while run_id and len(found) < needed:
        found.append(await journal.read(run_id))
        turn = read_history(found[-1]).turn
        run_id = "" if turn is None else turn.previous
    return found[::-1]


# Reading a turn


def read_turn(stored: StoredRun, graph: Graph[Any, Any], has_secrets: bool) -> tuple[Turn, str]:
    """A stored run as a turn, and the run before it."""
    history = read_history(stored)
    search, trace = Search(stored, history), [each for each in history.run.trace if each.name]
    classes = {cls.__name__: cls for cls in reversed(graph.plans)}
    reader = _TextReader(search, classes, has_secrets)
    user = reader.text(trace[0]) if trace else ""
    is_over = stored.info.status == "ended"
    reply = reader.text(trace[-1]) if is_over else ""
    calls = reader.calls(trace) if graph.turn_calls_read else ()
    turn = Turn(user, reply, stored.info.run_id, stored.info.started, calls)
    return turn, "" if history.turn is None else history.turn.previous


class _TextReader:
    """Reads the texts of nodes, without their code. What the classes of today hide from a model is
    masked; what the journal does not have is `WITHHELD`."""

    def __init__(self, search: Search, classes: Mapping[str, Any], has_secrets: bool) -> None:
        self._search, self._classes, self._has_secrets = search, classes, has_secrets

    def text(self, step: Step) -> str:
        """The text of a node: of its text field, or else its JSON."""
        cls = self._classes.get(step.name)
        if cls is None and self._has_secrets:
            return f"[{step.name}]"  # what is secret in it is not known
        names, only = self._search.text_fields(step)
        if cls is not None:
            only = plan_of(cls).text
        if only and only in names:
            value = self._value(step, only)
            text = value if isinstance(value, str) else _json(value)
            others = [self._value(step, name) for name in names if name != only]
            return "\n".join([*placeholders_in(others), text])
        found = {name: self._value(step, name) for name in names}
        return _json({name: value for name, value in found.items() if value is not _MISSING})

    def _value(self, step: Step, name: str) -> Any:
        cls = self._classes.get(step.name)
        if cls is not None and name in cls.__pydantic_fields__ and name in secret_fields(cls):
            return MASK if self._has_secrets else WITHHELD
        found = self._search.at(step.place._replace(field=name))
        if found.kept == "value" and found.state == "there":
            return found.value
        return WITHHELD if found.kept == "withheld" else _MISSING

    def calls(self, trace: list[Step]) -> tuple[ToolCall, ...]:
        """The tool calls of a run, in order."""
        found: list[ToolCall] = []
        for step in trace:
            for loop in step.loops.values():
                for call in loop.calls.values():
                    if call.state == "done":
                        given = {} if self._has_secrets else call.arguments
                        made = ToolCall(id=call.id, name=call.name, arguments=given)
                        outcome: Json = {"result": call.result, "error": call.told}
                        found.append(made.model_copy(update=outcome))
        return tuple(found)


_MISSING: Final = object()


def _json(value: Any) -> str:
    """A value as JSON. Images and documents of earlier turns are placeholders."""
    if value is _MISSING:
        return ""
    return json.dumps(with_placeholders(value), ensure_ascii=False, default=str)


@dataclass(frozen=True, slots=True)
class ThreadTurn:
    """One run of a thread.

    - `user`, `reply`: the texts; the reply is empty unless the run has ended.
    - `status`: as `RunInfo.standing`; `waiting` are the gates that a parked run waits for.
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

    What it reads is what the journal has now. A journal keeps every run; `messages` are those that
    the next turn would see.
    """

    def __init__(self, graph: Graph[Any, Any], id: str, journal: Journal) -> None:
        check_thread(id)
        self.id = id
        self._graph, self._journal = graph, journal

    def __repr__(self) -> str:
        return f"<StoredThread {self.id}>"

    async def runs(self) -> list[RunInfo]:
        """All its runs, the oldest first."""
        return [info async for info in self._journal.every_run(thread=self.id)][::-1]

    async def turns(self) -> list[ThreadTurn]:
        """All its runs with their texts, the oldest first."""
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
        """The turns that the next run would follow, all of them, the oldest first."""
        turns = [each for each in await self.turns() if each.is_shown]
        found = [Turn(each.user, each.reply, each.run_id, each.started) for each in turns]
        return Messages(found, self.id)

    async def delete(self) -> int:
        """Delete all its runs, and return how many. A thread with a run in progress is refused with
        `bae-thread-busy`. Runs whose lines a fork shares are kept (`bae-thread-kept`), until the
        fork is deleted."""
        infos = await self.runs()
        busy = next((info for info in infos if info.standing() == "running"), None)
        if busy is not None:
            raise _busy(busy, TurnOptions(self.id, "refuse"))
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
        """Write its runs as JSON lines to a path or an open file, and return how many.
        `journal.load` reads them."""
        return await self._journal.export(to, thread=self.id)

    async def fork(self, new_id: str, *, upto: str | None = None) -> int:
        """Make another thread with copies of the turns that the next run would follow, up to the
        run `upto`, or all. Returns how many. Both threads can be continued, and deleted, by
        themselves."""
        check_thread(new_id)
        if await self._journal.runs(thread=new_id, limit=1):
            raise JournalError(
                f"there is a thread {new_id!r} already",
                code="bae-thread-exists",
                fix="give the new thread another id",
            )
        turns = [each.run_id for each in await self.turns() if each.is_shown]
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
            await self._journal.put(_copied(await self._journal.read(run_id), ids, new_id))
        return len(chosen)

    async def _read(self, info: RunInfo) -> tuple[Turn, str]:
        stored = await self._journal.read(info.run_id)
        secrets = self._journal.secrets
        return await off_loop(len(stored.lines), read_turn, stored, self._graph, secrets)


def _copied(stored: StoredRun, ids: Mapping[str, str], thread: str) -> StoredRun:
    """A run as one of another thread, with new ids for the runs that its lines name."""
    info = replace(stored.info, run_id=ids[stored.info.run_id], thread=thread, parent=None)
    lines = tuple(_renamed(line, ids) for line in stored.lines)
    return replace(stored, info=replace(info, owner=None, lease_until=None), lines=lines)


def _renamed(line: Line, ids: Mapping[str, str]) -> Line:
    roles = records.KINDS[line.kind].stored.items()
    names = [name for name, role in roles if role.name == "run"]
    if not names:
        return line
    data: Json = json.loads(line.data)
    data |= {name: ids[data[name]] for name in names if data.get(name) in ids}
    return line._replace(data=json.dumps(data, ensure_ascii=False, separators=(",", ":")))
