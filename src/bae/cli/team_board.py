"""The work of a team in the terminal: a board that changes as events come and as agents work; where
there is no terminal, a line for each. Nothing that an LLM or a test wrote can control the
terminal."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from textwrap import wrap
from time import localtime, strftime, time
from typing import TYPE_CHECKING, Final, TypeAlias

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bae.cli.live.drawing import UNICODE, Signs, signs_for
from bae.cli.live.screen import Redrawn, can_redraw
from bae.cli.team_output import ORDER, counts_text, spent_text
from bae.cli.wording import describe_duration, in_one_line
from bae.journal import subscribe
from bae.tasks import finish_despite_cancel
from bae.team.budgets import Spent, read_spent
from bae.team.events import (
    ActionRequested,
    ActivityUpdate,
    BlockerCreated,
    BlockerResolved,
    CommitCreated,
    CorrectionAttempt,
    Event,
    PlanChanged,
    StoredEvent,
    TaskStatusChanged,
    TestResult,
    WorkReviewed,
)
from bae.team.feed import unknown_event
from bae.team.models import (
    AgentInfo,
    Blocker,
    Project,
    Task,
    TaskStatus,
    TeamError,
    headline,
)
from bae.team.schedule import DONE
from bae.team.task_log import AgentStep, follow_agents

if TYPE_CHECKING:
    from rich.console import Console

    from bae.journal import Journal
    from bae.team.store import Store

PAST: Final = 2_000
"""How many stored events a board begins with: what was last heard of each task."""
RECENT: Final = 5
"""How many events the board lists."""
MOST_LINES: Final = 4
"""How many lines of a question the board shows."""
MOST_QUESTIONS: Final = 5
"""How many open questions the board lists."""
_LONGEST: Final = 500
_REFRESH_SECONDS: Final = 0.1
_Part: TypeAlias = tuple[str, str]
"""A text and its style."""
_Show: TypeAlias = Callable[[Sequence[StoredEvent]], Awaitable[None]]
_S = TaskStatus
_STYLES: Final[Mapping[TaskStatus, str]] = {
    _S.IN_PROGRESS: "bold cyan",
    _S.BLOCKED: "bold yellow",
    _S.FAILED: "bold red",
    _S.READY: "cyan",
    _S.PENDING: "dim",
    _S.CANCELLED: "magenta",
    _S.SKIPPED: "dim",
    _S.STAGED: "green",
    _S.MERGED: "green",
    _S.COMPLETED: "green",
}


async def watch(
    store: Store,
    project_id: int,
    console: Console,
    *,
    after: int | None = None,
    journal: Journal | None = None,
) -> None:
    """Show a project's work until this is cancelled: the board at a terminal, which stays there as
    it was last, and elsewhere a line for each event after the number `after` (None: each new one),
    and for each step of an agent. `journal` is the open journal of the agents' runs. The work may
    be done by this process or by another."""
    if journal is None:
        async with store.journal() as opened:
            return await watch(store, project_id, console, after=after, journal=opened)
    number = await store.last_event(project_id)
    board = await read_board(store, project_id, signs_for(console))
    last: RenderableType = ""

    def draw() -> RenderableType:  # a few times a second, and in another thread
        nonlocal last
        with suppress(Exception):  # rather the picture before than a thread that dies in one
            last = board.draw(*console.size, time())
        return last

    screen = Redrawn(console, draw)
    moves = can_redraw(console)
    if moves:
        number = max(0, number - PAST)
        screen.start()
    elif after is not None:
        number = after

    async def show(batch: Sequence[StoredEvent]) -> None:
        await board.refresh(store)
        board.take(batch)
        for event in () if moves else batch:
            if line := board.line(event):
                console.print(line, soft_wrap=True)

    async def show_steps(steps: Sequence[AgentStep]) -> None:
        await show(
            [
                StoredEvent(number=0, at=at, event=ActivityUpdate(project_id, text, task_id))
                for at, task_id, text in steps
                if board.has(task_id)
            ]
        )
        await asyncio.sleep(_REFRESH_SECONDS)

    try:
        async with (
            asyncio.TaskGroup() as group,
            aclosing(_follow(store, project_id, number)) as new,
        ):
            group.create_task(follow_agents(journal, show_steps, past=moves))
            async for batch in new:
                await show(batch)
                number = batch[-1].number
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    except asyncio.CancelledError:
        with suppress(TeamError, RuntimeError):  # of a store that is closed
            await finish_despite_cancel(_show_rest(store, project_id, number, show))
        raise
    finally:
        if moves:
            with suppress(OSError):  # of a terminal that is gone
                screen.stop()
                console.print(draw())


async def _show_rest(store: Store, project_id: int, number: int, show: _Show) -> None:
    """Show what happened since, so that what stays on the screen is true."""
    await show(await store.events(project_id, number, most=PAST))


async def _follow(
    store: Store, project_id: int, number: int
) -> AsyncGenerator[Sequence[StoredEvent]]:
    """Batches of events, a few in a second: who watches may be slow, and is never done."""
    feed = store.feed(project_id)
    while True:
        async with subscribe(feed, number) as events:
            async for batch in events:
                yield [item.value for item in batch.items]
                await asyncio.sleep(_REFRESH_SECONDS)
            number = events.number
        if events.end == "reset":
            raise unknown_event(number, await store.last_event(project_id))


async def read_board(store: Store, project_id: int, signs: Signs = UNICODE) -> Board:
    """A project's board as it is now, without what events alone tell."""
    board = Board(await store.project(project_id), signs)
    await board.refresh(store)
    return board


@dataclass(slots=True)
class _Heard:
    """What was last heard of a task."""

    at: float
    text: str = ""
    tests: str = ""


@dataclass(slots=True)
class Board:
    """What a team is doing: from the store, and from its events."""

    project: Project
    signs: Signs = UNICODE
    tasks: Sequence[Task] = ()
    agents: Sequence[AgentInfo] = ()
    blockers: Sequence[Blocker] = ()
    spent: Spent = field(default_factory=Spent)
    heard: dict[int, _Heard] = field(default_factory=dict[int, _Heard])
    recent: deque[StoredEvent] = field(default_factory=lambda: deque[StoredEvent](maxlen=RECENT))

    async def refresh(self, store: Store) -> None:
        """Read what the store has."""
        which = self.project.id
        self.tasks = await store.tasks(which)
        self.agents = [each for each in await store.agents(which) if each.status != "retired"]
        self.blockers = await store.blockers(which, open_only=True)
        self.spent = await read_spent(store, project_id=which)

    def has(self, task_id: int) -> bool:
        """Whether a task is one of the project."""
        return any(task.id == task_id for task in self.tasks)

    def take(self, events: Sequence[StoredEvent]) -> None:
        """Take in what events tell."""
        for each in events:
            if text := self._describe(each.event):
                in_order = sorted([*self.recent, each], key=lambda event: event.at)
                self.recent = deque(in_order, maxlen=RECENT)
                self._hear(each, text)

    def line(self, stored: StoredEvent) -> Text | None:
        """An event in a line. None where it tells nothing that another one does not."""
        words = self._describe(stored.event)
        if not words:
            return None
        event = stored.event
        task_id = getattr(event, "task_id", None)
        return self._text(
            (strftime("%H:%M:%S  ", localtime(stored.at)), "dim"),
            ("" if task_id is None else f"{self._key(task_id)}  ", "bold"),
            (words, _STYLES[event.status] if isinstance(event, TaskStatusChanged) else ""),
        )

    def _describe(self, event: Event) -> str:
        if isinstance(event, TaskStatusChanged) and event.status is _S.BLOCKED:
            asked = [each.summary for each in self.blockers if each.task_id == event.task_id]
            if headline(event.reason, 1000) in asked:
                return event.status.label  # the question itself is an event of its own
        return _describe(event)

    def draw(self, width: int, height: int, now: float) -> RenderableType:
        """The board for a terminal of this size."""
        below = [*self._agents(), *self._questions(width)]
        room = height - len(below) - 3
        more = room - len(self.tasks) - 1  # tasks are worth more
        if self.recent and more > 0:
            below += [Text(), *filter(None, map(self.line, [*self.recent][-more:]))]
        return Group(self._head(), Text(), *self._tasks(width, max(3, room), now), *below)

    def _head(self) -> Text:
        counts = counts_text(Counter(task.status for task in self.tasks))
        return self._text((f"{self.project.name}: {counts}", "bold"))

    def _tasks(self, width: int, room: int, now: float) -> Iterable[RenderableType]:
        tasks = sorted(self.tasks, key=lambda task: ORDER.index(task.status))
        left = tasks[room - 1 :] if len(tasks) > room else []
        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        table.add_column(no_wrap=True, min_width=len("? in progress"))  # so that nothing jumps
        table.add_column(no_wrap=True, max_width=width // 4)
        if wide := width >= 120:
            table.add_column(no_wrap=True, width=width // 4)
        table.add_column(no_wrap=True, ratio=1)
        workers = {agent.task_id: agent.id for agent in self.agents if agent.task_id is not None}
        for task in tasks[: len(tasks) - len(left)]:
            style = _STYLES[task.status]
            cells = [
                self._text((f"{self._mark(task.status, now)} {task.status.label}", style)),
                self._text((task.key, "bold")),
                *([self._text((task.title, ""))] if wide else []),
                self._text(*self._facts(task, workers.get(task.id, ""), now, style)),
            ]
            table.add_row(*cells)
        yield table
        if left:
            counts = Counter(task.status.label for task in left)
            more = ", ".join(f"{n} {name}" for name, n in counts.items())
            yield self._text((f"… {len(left)} more: {more}", "dim"))

    def _facts(self, task: Task, worker: str, now: float, style: str) -> Iterable[_Part]:
        heard = self.heard.get(task.id)
        tests = f"{heard.tests}  " if heard and heard.tests else ""
        if task.status is _S.IN_PROGRESS:
            if worker:
                yield f"{worker}  ", "dim"
            yield tests, ""
            if heard:
                age = describe_duration(max(0.0, now - heard.at))
                yield f"{f'{age} ago: ' if age else ''}{heard.text}", "dim"
        elif task.status is _S.STAGED:
            yield f"in {task.feature_branch}  ", ""
            yield (task.commit or "")[:10], "dim"
        elif task.status in (_S.COMPLETED, _S.MERGED):
            yield tests if task.status is _S.COMPLETED else "without tests of its own  ", ""
            yield (task.commit or "")[:10], "dim"
        else:
            done = {each.key for each in self.tasks if each.status in DONE}
            if task.feature:
                staged = (each for each in self.tasks if each.status is _S.STAGED)
                done |= {each.key for each in staged if each.feature == task.feature}
            waits = [key for key in task.depends_on if key not in done]
            yield headline(task.reason) or (f"after {', '.join(waits)}" if waits else ""), style

    def _agents(self) -> Iterable[Text]:
        if self.agents or self.spent.calls:
            yield Text()
        if self.agents:
            shown = [
                f"{each.id} {each.status}"
                if each.task_id is None
                else f"{each.id} on {self._key(each.task_id)}"
                for each in self.agents
            ]
            yield self._text(("agents  ", "bold"), (", ".join(shown), ""))
        if self.spent.calls:
            yield self._text(("spent   ", "bold"), (spent_text(self.spent), ""))

    def _questions(self, width: int) -> Iterable[Text]:
        if self.blockers:
            yield Text()
            yield self._text(("questions", "bold yellow"))
        for each in self.blockers[:MOST_QUESTIONS]:
            key = f"  {self._key(each.task_id)}  "
            first, *more = wrap(key + in_one_line(each.summary), width - 5) or [key]
            yield self._text((key, "bold"), (first[len(key) :], ""))
            yield from (self._text((f"    {line}", "")) for line in more[: MOST_LINES - 1])
            if each.is_folded:
                shown = f"    bae team tasks show {self._key(each.task_id)}"
                yield self._text((shown, "cyan"), (" shows the output", "dim"))
            yield self._text((f'    bae team answer {each.id} "..."', "cyan"))
        if len(self.blockers) > MOST_QUESTIONS:
            more = len(self.blockers) - MOST_QUESTIONS
            yield self._text((f"  {more} more: bae team blockers", "dim"))

    def _text(self, *parts: _Part) -> Text:
        """A line that nothing in it can leave, cut where the terminal ends."""
        text = Text(no_wrap=True, overflow="ellipsis" if self.signs is UNICODE else "crop")
        for part, style in parts:
            text.append(self.signs.writable(in_one_line(part)), style or None)
        return text

    def _mark(self, status: TaskStatus, now: float) -> str:
        if status is _S.IN_PROGRESS:
            return self.signs.spin(now)
        marks = {_S.COMPLETED: "✓", _S.FAILED: "✗", _S.BLOCKED: "?"}
        marks |= {_S.CANCELLED: "-", _S.SKIPPED: "-", _S.MERGED: "+"}
        return marks.get(status, "·")

    def _key(self, task_id: int) -> str:
        return next((task.key for task in self.tasks if task.id == task_id), f"task {task_id}")

    def _hear(self, stored: StoredEvent, text: str) -> None:
        task_id = getattr(stored.event, "task_id", None)
        if task_id is None:
            return
        heard = self.heard.setdefault(task_id, _Heard(stored.at))
        if stored.at >= heard.at:
            heard.at, heard.text = stored.at, text
        if isinstance(stored.event, TestResult):
            heard.tests = _describe_tests(stored.event)


def _describe(event: Event) -> str:
    """What an event tells a person, in one line; nothing where others tell the same."""
    match event:
        case TaskStatusChanged(status=status, reason=reason):
            shown = f"{status.label}: {headline(reason)}" if reason else status.label
        case TestResult():
            shown = f"tests {'passed' if event.passed else 'failed'}: {_describe_tests(event)}"
        case CorrectionAttempt(attempt=attempt, failure=failure):
            shown = f"correction {attempt}: {headline(failure)}"
        case CommitCreated(commit=commit, files=files):
            shown = f"commit {commit[:10]} {', '.join(files)}"
        case WorkReviewed(review=review):
            shown = f"reviewed: {review.headline}"
        case BlockerCreated(question=question, blocker_id=number):
            shown = f'asks: {headline(question)} (bae team answer {number} "...")'
        case BlockerResolved(answer=answer, by=by):
            shown = f"was answered{f' by {by}' if by else ''}: {answer}"
        case PlanChanged(change=change, tasks=keys, by=by):
            shown = f"{change}{f' by {by}' if by else ''}: {', '.join(keys)}"
        case ActionRequested(action=action, text=note, by=by):
            shown = f"{action}{f' by {by}' if by else ''}{f': {headline(note)}' if note else ''}"
        case ActivityUpdate(text=text):
            shown = text
        case _:
            return ""
    return in_one_line(shown[:_LONGEST]).strip()


def _describe_tests(event: TestResult) -> str:
    """How many tests have each outcome. What is wrong is shown with the correction or question that
    follows."""
    counts = ", ".join(f"{n} {in_one_line(name)}" for name, n in event.counts.items() if n)
    if counts and event.passed and event.problem:
        return f"{counts}; not accepted"
    return counts or in_one_line(headline(event.problem)) or "none found"
