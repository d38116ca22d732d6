"""Show the work of a team: at a terminal as a live board, elsewhere as a line for each event.
Control characters in texts of LLMs and tests never reach the terminal."""

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
"""How many stored events a new board reads, to show the last activity of each task."""
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
    """Show a project's work until the caller cancels. Another process may do the work.

    At a terminal, draw a board, and leave its last picture on the screen. Elsewhere, print a line
    for each new event and each step of an agent, and with `after` also for the stored events with a
    greater number. `journal` is the open journal of the agents' runs. By default, `watch` opens it.
    """
    if journal is None:
        async with store.journal() as opened:
            return await watch(store, project_id, console, after=after, journal=opened)
    number = await store.last_event(project_id)
    board = await read_board(store, project_id, signs_for(console))
    last_picture: RenderableType = ""

    def draw() -> RenderableType:  # another thread calls `draw` a few times a second
        nonlocal last_picture
        with suppress(Exception):  # on an error, show the last picture: the thread must not end
            last_picture = board.draw(*console.size, time())
        return last_picture

    screen = Redrawn(console, draw)
    is_live = can_redraw(console)
    if is_live:
        number = max(0, number - PAST)
        screen.start()
    elif after is not None:
        number = after

    async def show(batch: Sequence[StoredEvent]) -> None:
        await board.refresh(store)
        board.add_events(batch)
        for event in () if is_live else batch:
            if line := board.describe_event(event):
                console.print(line, soft_wrap=True)

    async def show_steps(steps: Sequence[AgentStep]) -> None:
        await show(
            [
                StoredEvent(number=0, at=at, event=ActivityUpdate(project_id, text, task_id))
                for at, task_id, text in steps
                if board.has_task(task_id)
            ]
        )
        await asyncio.sleep(_REFRESH_SECONDS)

    try:
        async with (
            asyncio.TaskGroup() as group,
            aclosing(_follow(store, project_id, number)) as new,
        ):
            group.create_task(follow_agents(journal, show_steps, past=is_live))
            async for batch in new:
                await show(batch)
                number = batch[-1].number
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    except asyncio.CancelledError:
        with suppress(TeamError, RuntimeError):  # the store may be closed
            await finish_despite_cancel(_show_rest(store, project_id, number, show))
        raise
    finally:
        if is_live:
            with suppress(OSError):  # the terminal may be closed
                screen.stop()
                console.print(draw())


async def _show_rest(store: Store, project_id: int, number: int, show: _Show) -> None:
    """Show the events after `number`, so that the last picture is up to date."""
    await show(await store.events(project_id, number, most=PAST))


async def _follow(
    store: Store, project_id: int, number: int
) -> AsyncGenerator[Sequence[StoredEvent]]:
    """Yield batches of the events after `number` forever, a few batches a second. If the feed drops
    a slow viewer, subscribe again. Raise TeamError if there is no event `number`."""
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
    """Return a project's current board, without test results and other details of earlier
    events."""
    board = Board(await store.project(project_id), signs)
    await board.refresh(store)
    return board


@dataclass(slots=True)
class _TaskActivity:
    """The last activity of a task, and its last test results."""

    at: float
    text: str = ""
    tests: str = ""


@dataclass(slots=True)
class Board:
    """The current work of a team, from its store and its events."""

    project: Project
    signs: Signs = UNICODE
    tasks: Sequence[Task] = ()
    agents: Sequence[AgentInfo] = ()
    blockers: Sequence[Blocker] = ()
    spent: Spent = field(default_factory=Spent)
    activities: dict[int, _TaskActivity] = field(default_factory=dict[int, _TaskActivity])
    recent: deque[StoredEvent] = field(default_factory=lambda: deque[StoredEvent](maxlen=RECENT))

    async def refresh(self, store: Store) -> None:
        """Read the current state from the store."""
        project_id = self.project.id
        self.tasks = await store.tasks(project_id)
        self.agents = [
            agent for agent in await store.agents(project_id) if agent.status != "retired"
        ]
        self.blockers = await store.blockers(project_id, open_only=True)
        self.spent = await read_spent(store, project_id=project_id)

    def has_task(self, task_id: int) -> bool:
        """Return whether a task belongs to the project."""
        return any(task.id == task_id for task in self.tasks)

    def add_events(self, events: Sequence[StoredEvent]) -> None:
        """Add events to the recent events and to the activities of tasks."""
        for event in events:
            if text := self._describe(event.event):
                in_order = sorted([*self.recent, event], key=lambda event: event.at)
                self.recent = deque(in_order, maxlen=RECENT)
                self._note_activity(event, text)

    def describe_event(self, stored: StoredEvent) -> Text | None:
        """Return an event as a line, or None if another event has the same information."""
        description = self._describe(stored.event)
        if not description:
            return None
        event = stored.event
        task_id = getattr(event, "task_id", None)
        return self._make_line(
            (strftime("%H:%M:%S  ", localtime(stored.at)), "dim"),
            ("" if task_id is None else f"{self._find_key(task_id)}  ", "bold"),
            (description, _STYLES[event.status] if isinstance(event, TaskStatusChanged) else ""),
        )

    def _describe(self, event: Event) -> str:
        if isinstance(event, TaskStatusChanged) and event.status is _S.BLOCKED:
            open_questions = [
                blocker.summary for blocker in self.blockers if blocker.task_id == event.task_id
            ]
            if headline(event.reason, 1000) in open_questions:
                return event.status.label  # the question has its own event
        return _describe(event)

    def draw(self, width: int, height: int, now: float) -> RenderableType:
        """Return the picture of the board for a terminal of this size."""
        below = [*self._draw_agents(), *self._draw_questions(width)]
        task_rows = height - len(below) - 3
        event_rows = task_rows - len(self.tasks) - 1  # tasks get their rows before events
        if self.recent and event_rows > 0:
            below += [Text(), *filter(None, map(self.describe_event, [*self.recent][-event_rows:]))]
        return Group(
            self._draw_head(), Text(), *self._draw_tasks(width, max(3, task_rows), now), *below
        )

    def _draw_head(self) -> Text:
        counts = counts_text(Counter(task.status for task in self.tasks))
        return self._make_line((f"{self.project.name}: {counts}", "bold"))

    def _draw_tasks(self, width: int, most_rows: int, now: float) -> Iterable[RenderableType]:
        tasks = sorted(self.tasks, key=lambda task: ORDER.index(task.status))
        hidden_tasks = tasks[most_rows - 1 :] if len(tasks) > most_rows else []
        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        table.add_column(no_wrap=True, min_width=len("? in progress"))  # keeps columns in place
        table.add_column(no_wrap=True, max_width=width // 4)
        if shows_titles := width >= 120:
            table.add_column(no_wrap=True, width=width // 4)
        table.add_column(no_wrap=True, ratio=1)
        workers = {agent.task_id: agent.id for agent in self.agents if agent.task_id is not None}
        for task in tasks[: len(tasks) - len(hidden_tasks)]:
            style = _STYLES[task.status]
            cells = [
                self._make_line(
                    (f"{self._choose_mark(task.status, now)} {task.status.label}", style)
                ),
                self._make_line((task.key, "bold")),
                *([self._make_line((task.title, ""))] if shows_titles else []),
                self._make_line(*self._describe_work(task, workers.get(task.id, ""), now, style)),
            ]
            table.add_row(*cells)
        yield table
        if hidden_tasks:
            counts = Counter(task.status.label for task in hidden_tasks)
            summary = ", ".join(f"{n} {name}" for name, n in counts.items())
            yield self._make_line((f"… {len(hidden_tasks)} more: {summary}", "dim"))

    def _describe_work(self, task: Task, worker: str, now: float, style: str) -> Iterable[_Part]:
        activity = self.activities.get(task.id)
        tests = f"{activity.tests}  " if activity and activity.tests else ""
        if task.status is _S.IN_PROGRESS:
            if worker:
                yield f"{worker}  ", "dim"
            yield tests, ""
            if activity:
                age = describe_duration(max(0.0, now - activity.at))
                yield f"{f'{age} ago: ' if age else ''}{activity.text}", "dim"
        elif task.status is _S.STAGED:
            yield f"in {task.feature_branch}  ", ""
            yield (task.commit or "")[:10], "dim"
        elif task.status in (_S.COMPLETED, _S.MERGED):
            yield tests if task.status is _S.COMPLETED else "without tests of its own  ", ""
            yield (task.commit or "")[:10], "dim"
        else:
            done_keys = {task.key for task in self.tasks if task.status in DONE}
            if task.feature:
                staged = (task for task in self.tasks if task.status is _S.STAGED)
                done_keys |= {
                    staged_task.key for staged_task in staged if staged_task.feature == task.feature
                }
            open_keys = [key for key in task.depends_on if key not in done_keys]
            yield (
                headline(task.reason) or (f"after {', '.join(open_keys)}" if open_keys else ""),
                style,
            )

    def _draw_agents(self) -> Iterable[Text]:
        if self.agents or self.spent.calls:
            yield Text()
        if self.agents:
            workers = [
                f"{agent.id} {agent.status}"
                if agent.task_id is None
                else f"{agent.id} on {self._find_key(agent.task_id)}"
                for agent in self.agents
            ]
            yield self._make_line(("agents  ", "bold"), (", ".join(workers), ""))
        if self.spent.calls:
            yield self._make_line(("spent   ", "bold"), (spent_text(self.spent), ""))

    def _draw_questions(self, width: int) -> Iterable[Text]:
        if self.blockers:
            yield Text()
            yield self._make_line(("questions", "bold yellow"))
        for blocker in self.blockers[:MOST_QUESTIONS]:
            key = f"  {self._find_key(blocker.task_id)}  "
            first, *more = wrap(key + in_one_line(blocker.summary), width - 5) or [key]
            yield self._make_line((key, "bold"), (first[len(key) :], ""))
            yield from (self._make_line((f"    {line}", "")) for line in more[: MOST_LINES - 1])
            if blocker.is_folded:
                command = f"    bae team tasks show {self._find_key(blocker.task_id)}"
                yield self._make_line((command, "cyan"), (" shows the output", "dim"))
            yield self._make_line((f'    bae team answer {blocker.id} "..."', "cyan"))
        if len(self.blockers) > MOST_QUESTIONS:
            more = len(self.blockers) - MOST_QUESTIONS
            yield self._make_line((f"  {more} more: bae team blockers", "dim"))

    def _make_line(self, *parts: _Part) -> Text:
        """Return one line without control characters. The terminal cuts the line at its edge."""
        text = Text(no_wrap=True, overflow="ellipsis" if self.signs is UNICODE else "crop")
        for part, style in parts:
            text.append(self.signs.writable(in_one_line(part)), style or None)
        return text

    def _choose_mark(self, status: TaskStatus, now: float) -> str:
        if status is _S.IN_PROGRESS:
            return self.signs.spin(now)
        marks = {_S.COMPLETED: "✓", _S.FAILED: "✗", _S.BLOCKED: "?"}
        marks |= {_S.CANCELLED: "-", _S.SKIPPED: "-", _S.MERGED: "+"}
        return marks.get(status, "·")

    def _find_key(self, task_id: int) -> str:
        return next((task.key for task in self.tasks if task.id == task_id), f"task {task_id}")

    def _note_activity(self, stored: StoredEvent, text: str) -> None:
        task_id = getattr(stored.event, "task_id", None)
        if task_id is None:
            return
        activity = self.activities.setdefault(task_id, _TaskActivity(stored.at))
        if stored.at >= activity.at:
            activity.at, activity.text = stored.at, text
        if isinstance(stored.event, TestResult):
            activity.tests = _describe_tests(stored.event)


def _describe(event: Event) -> str:
    """Describe an event in one line. Empty if another event has the same information."""
    match event:
        case TaskStatusChanged(status=status, reason=reason):
            description = f"{status.label}: {headline(reason)}" if reason else status.label
        case TestResult():
            description = (
                f"tests {'passed' if event.passed else 'failed'}: {_describe_tests(event)}"
            )
        case CorrectionAttempt(attempt=attempt, failure=failure):
            description = f"correction {attempt}: {headline(failure)}"
        case CommitCreated(commit=commit, files=files):
            description = f"commit {commit[:10]} {', '.join(files)}"
        case WorkReviewed(review=review):
            description = f"reviewed: {review.headline}"
        case BlockerCreated(question=question, blocker_id=number):
            description = f'asks: {headline(question)} (bae team answer {number} "...")'
        case BlockerResolved(answer=answer, by=by):
            description = f"was answered{f' by {by}' if by else ''}: {answer}"
        case PlanChanged(change=change, tasks=keys, by=by):
            description = f"{change}{f' by {by}' if by else ''}: {', '.join(keys)}"
        case ActionRequested(action=action, text=note, by=by):
            description = (
                f"{action}{f' by {by}' if by else ''}{f': {headline(note)}' if note else ''}"
            )
        case ActivityUpdate(text=text):
            description = text
        case _:
            return ""
    return in_one_line(description[:_LONGEST]).strip()


def _describe_tests(event: TestResult) -> str:
    """Return the number of tests by outcome. Without tests, return the headline of the problem that
    prevented them. The complete problem is in the next correction or question."""
    counts = ", ".join(f"{n} {in_one_line(name)}" for name, n in event.counts.items() if n)
    if counts and event.passed and event.problem:
        return f"{counts}; not accepted"
    return counts or in_one_line(headline(event.problem)) or "none found"
