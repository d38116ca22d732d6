"""The state of a team in one SQLite file beside the repository. A kill at any moment loses no write
that has returned. The status of a task changes only from the status that the caller expects, and
only as `TRANSITIONS` allows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from weakref import WeakValueDictionary

from bae.tasks import finish_despite_cancel
from bae.team import tables
from bae.team.events import (
    ActionRequested,
    AgentCreated,
    AgentRetired,
    AgentStatusChanged,
    BlockerCreated,
    BlockerResolved,
    Broadcaster,
    Event,
    PlanChange,
    PlanChanged,
    Sender,
    StoredEvent,
    TaskAssigned,
    TaskBlocked,
    TaskStatusChanged,
    TaskUnblocked,
    WorkReviewed,
    read_event,
)
from bae.team.feed import TeamFeed
from bae.team.models import (
    AgentInfo,
    Blocker,
    PlannedTask,
    Project,
    Review,
    Task,
    TaskAttempt,
    TaskStatus,
    TeamError,
    TestReport,
    may_move,
)
from bae.team.schedule import find_problems
from bae.team.tables import SQLAlchemyError, sa
from bae.team.tables import insert as _insert
from bae.team.tables import one as _one
from bae.team.tables import rows as _rows
from bae.team.tables import unknown as _unknown

if TYPE_CHECKING:
    from bae.journal import SQLiteJournal

T = TypeVar("T")
_STORED: Final = "events that were stored in this transaction"
_MERGED: Final = frozenset({TaskStatus.COMPLETED, TaskStatus.MERGED, TaskStatus.STAGED})
_UNSTARTED: Final = frozenset(TaskStatus) - _MERGED - {TaskStatus.IN_PROGRESS}


def store_path(root: Path) -> Path:
    """Return the path of a repository's team state. The file is in the folder `.NAME.team` beside
    the repository."""
    return root.parent / f".{root.name}.team" / "team.db"


class Store:
    """The state of the teams in one file: `async with await Store.open(path) as store:`.

    Every call is one transaction in the store's thread. A change and its event are stored in the
    same transaction. If a write is cancelled, CancelledError is raised after the transaction has
    ended. Several processes may open the file at the same time.
    """

    def __init__(self, engine: sa.Engine, thread: ThreadPoolExecutor, path: Path) -> None:
        self.path = path
        self._engine = engine
        self._thread = thread
        self._listeners: list[Callable[[], None]] = []
        self._sender = Sender(None)
        self._feeds: WeakValueDictionary[int, TeamFeed] = WeakValueDictionary()

    @classmethod
    async def open(cls, path: Path | str) -> Self:
        """Open the store in the file `path`. If the file is missing, create it."""
        path = Path(path)
        thread = ThreadPoolExecutor(1, "bae-team-store")
        try:
            loop = asyncio.get_running_loop()
            engine = await loop.run_in_executor(thread, tables.open_engine, path)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(engine, thread, path)

    async def close(self) -> None:
        """Close the file after all pending calls."""
        loop = asyncio.get_running_loop()

        async def end() -> None:
            await loop.run_in_executor(self._thread, self._engine.dispose)

        try:
            await finish_despite_cancel(end())
        finally:
            self._thread.shutdown(wait=False)

    def journal(self) -> SQLiteJournal:
        """Return the journal of the agents' runs, in the file `runs.db` beside the store's file.
        Open the journal with `async with`. It is as durable as the store."""
        from bae.journal import SQLiteJournal

        return SQLiteJournal(self.path.with_name("runs.db"), durability="normal")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def sending_to(self, ws_manager: Broadcaster | None) -> Self:
        """Return a copy of this store that sends events to `ws_manager`. Each event is sent with
        its `number` and `time` after it is stored."""
        store = copy(self)
        store._sender = Sender(ws_manager)
        return store

    def on_event(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` on the event loop after each write of this store. Return a function that
        removes the listener."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # Projects

    async def save_project(self, project: Project) -> Project:
        """Store a project and return it with its id. It replaces a project with the same id or
        root, so a project whose repository was moved keeps its tasks."""
        root = _make_storable(project.root)
        values = {"root": root, "data": project.model_dump(mode="json", exclude={"id", "root"})}

        def save(db: sa.Connection) -> int:
            is_same = (tables.projects.c.id == project.id) | (tables.projects.c.root == root)
            stored_id = db.scalar(sa.select(tables.projects.c.id).where(is_same))
            if stored_id is None:
                return _insert(db, tables.projects, **values)
            db.execute(sa.update(tables.projects).filter_by(id=stored_id).values(values))
            return stored_id

        return project.model_copy(update={"id": await self.write(save)})

    async def projects(self) -> list[Project]:
        """Return all projects in the file."""
        rows = await self.read(lambda db: _rows(db, sa.select(tables.projects)))
        return [_read_project(row) for row in rows]

    async def project(self, project_id: int) -> Project:
        """Return the project with this id."""
        query = sa.select(tables.projects).filter_by(id=project_id)
        return _read_project(await self.read(lambda db: _one(db, query, "project", project_id)))

    # Tasks

    async def add_tasks(
        self,
        project_id: int,
        planned: Sequence[PlannedTask],
        *,
        approved: bool = True,
        by: str | None = None,
    ) -> list[Task]:
        """Add tasks to a project, all or none, and return them.

        Duplicate keys and titles, unknown dependencies and cycles are refused. `problems` of the
        error lists all of them. Tasks with the proof `none` wait for a person's approval. Without
        `approved`, all the tasks wait for it.
        """

        def add(db: sa.Connection) -> list[Task]:
            _one(db, sa.select(tables.projects).filter_by(id=project_id), "project", project_id)
            before = _read_project_tasks(db, project_id)
            _refuse_problems([*before, *planned])
            for task in planned:
                values: dict[str, Any] = {"key": task.key, "reason": ""}
                values |= {"status": TaskStatus.PENDING}
                may_run = approved and task.proof != "none"
                values |= {"project_id": project_id, "approved": may_run, "added": time()}
                _insert(db, tables.tasks, planned=_dump_plan(task), **values)
            for task in planned:
                _set_dependencies(db, project_id, task)
            _note_change(db, project_id, "added", [task.key for task in planned], by)
            return _read_project_tasks(db, project_id)[len(before) :]

        return await self.write(add)

    async def approve_tasks(
        self, task_ids: Sequence[int], *, without_tests: bool = False, by: str | None = None
    ) -> int:
        """Approve tasks, and return the number of newly approved tasks. With `without_tests`, only
        tasks with the proof `none` are approved. Otherwise these tasks are left out."""

        def approve(db: sa.Connection) -> int:
            waiting = sa.select(tables.tasks).filter_by(approved=False)
            rows = [
                row
                for row in _rows(db, waiting.where(tables.tasks.c.id.in_(task_ids)))
                if (row["planned"].get("proof") == "none") == without_tests
            ]
            numbers = [row["id"] for row in rows]
            change = sa.update(tables.tasks).where(tables.tasks.c.id.in_(numbers))
            db.execute(change.values(approved=True))
            for project_id in dict.fromkeys(row["project_id"] for row in rows):
                keys = [row["key"] for row in rows if row["project_id"] == project_id]
                _note_change(db, project_id, "approved", keys, by)
            return len(rows)

        return await self.write(approve)

    async def edit_task(
        self,
        task_id: int,
        planned: PlannedTask,
        *,
        approved: bool = True,
        by: str | None = None,
    ) -> Task:
        """Replace the planned fields of a task that is neither in progress nor merged.

        If the key changes, tasks that depend on the task depend on the new key. If the new proof is
        `none`, or `approved` is False, the task needs approval again.
        """

        def edit(db: sa.Connection) -> Task:
            task = _read_changeable(db, task_id, "edited")
            others = [
                other.model_copy(
                    update={
                        "depends_on": tuple(
                            planned.key if key == task.key else key for key in other.depends_on
                        )
                    }
                )
                for other in _read_project_tasks(db, task.project_id)
                if other.id != task_id
            ]
            _refuse_problems([*others, planned])
            values: dict[str, Any] = {"key": planned.key, "planned": _dump_plan(planned)}
            values |= {"approved": False} if planned.proof == "none" or not approved else {}
            db.execute(sa.update(tables.tasks).filter_by(id=task_id).values(values))
            _set_dependencies(db, task.project_id, planned)
            _note_change(db, task.project_id, "edited", [planned.key], by)
            return _read_task(db, task_id)

        return await self.write(edit)

    async def drop_task(self, task_id: int, *, by: str | None = None) -> None:
        """Remove a task. It must be neither in progress nor merged, and no other task may depend on
        it. Its branch stays."""

        def drop(db: sa.Connection) -> None:
            task = _read_changeable(db, task_id, "dropped")
            needed_by = [
                t.key for t in _read_project_tasks(db, task.project_id) if task.key in t.depends_on
            ]
            if needed_by:
                raise TeamError(
                    f"task {task.key!r} cannot be dropped: {', '.join(needed_by)} depends on it",
                    code="bae-team-transition",
                    fix="drop these tasks too, or edit their dependencies first",
                )
            db.execute(sa.delete(tables.tasks).filter_by(id=task_id))
            _note_change(db, task.project_id, "dropped", [task.key], by)

        await self.write(drop)

    async def tasks(self, project_id: int) -> list[Task]:
        """Return the tasks of a project, in the order in which they were added."""
        return await self.read(lambda db: _read_project_tasks(db, project_id))

    async def unapproved_since(self, project_id: int) -> float:
        """Return when the oldest task that waits for approval was added, in seconds since 1970. If
        no task waits, return 0."""
        query = sa.select(sa.func.min(tables.tasks.c.added))
        query = query.filter_by(project_id=project_id, approved=False)
        return await self.read(lambda db: db.scalar(query)) or 0.0

    async def task(self, task_id: int) -> Task:
        """Return the task with this id."""
        return await self.read(lambda db: _read_task(db, task_id))

    async def move(
        self,
        task_id: int,
        before: TaskStatus,
        after: TaskStatus,
        *,
        reason: str = "",
        base: str | None = None,
        commit: str | None = None,
        forgive: bool = False,
    ) -> Task | None:
        """Change the status of a task from `before` to `after`, and return the updated task. If the
        status is no longer `before`, change nothing and return None.

        - `base`: the commit that the task's work starts from.
        - `commit`: the commit of a merged task.
        - `forgive`: whether to reset the task's count of failures.
        """
        if not may_move(before, after):
            raise TeamError(
                f"task {task_id} cannot go from {before} to {after}", code="bae-team-transition"
            )
        if (after in _MERGED) != (commit is not None):
            raise TeamError(
                f"task {task_id} cannot become {after} with commit {commit}",
                code="bae-team-transition",
                fix="completed means merged: a task is completed with its merged commit",
            )
        values: dict[str, Any] = {"status": after, "reason": _make_storable(reason)}
        values |= {} if base is None else {"base": base}
        values |= {} if commit is None else {"commit": commit}
        values |= {"failures": tables.tasks.c.failures + 1} if after is TaskStatus.FAILED else {}
        values |= {"failures": 0} if forgive else {}

        def move(db: sa.Connection) -> Task | None:
            task = _read_task(db, task_id)
            change = sa.update(tables.tasks).filter_by(id=task_id, status=before).values(values)
            if not db.execute(change).rowcount:
                return None
            ids = task.project_id, task_id
            add_event(db, TaskStatusChanged(*ids, after, before, values["reason"]))
            if before is TaskStatus.BLOCKED:
                add_event(db, TaskUnblocked(*ids))
            if after is TaskStatus.BLOCKED:
                add_event(db, TaskBlocked(*ids, values["reason"]))
            return _read_task(db, task_id)

        return await self.write(move)

    async def add_note(self, task_id: int, text: str, *, by: str | None = None) -> None:
        """Store a person's note for the worker of a task."""
        text = _make_storable(text)

        def add(db: sa.Connection) -> None:
            task = _read_task(db, task_id)  # raises if the task is unknown
            _insert(db, tables.notes, task_id=task_id, text=text)
            add_event(db, ActionRequested(task.project_id, "note", task_id, text, by))

        await self.write(add)

    # Attempts and test reports

    async def add_attempt(self, attempt: TaskAttempt) -> None:
        """Store an attempt with its report. It replaces an attempt with the same number."""
        data = attempt.model_dump(mode="json", exclude={"task_id", "number", "report"})
        key = {"task_id": attempt.task_id, "number": attempt.number}

        def add(db: sa.Connection) -> None:
            _read_task(db, attempt.task_id)
            db.execute(sa.delete(tables.attempts).filter_by(**key))
            report_key: dict[str, Any] = {"task_id": attempt.task_id, "attempt": attempt.number}
            db.execute(sa.delete(tables.reports).filter_by(**report_key))
            db.execute(sa.insert(tables.attempts).values(**key, data=data))
            if attempt.report is not None:
                _add_report(db, attempt.report, **report_key)

        await self.write(add)

    async def attempts(self, task_id: int) -> list[TaskAttempt]:
        """Return the attempts at a task, in order."""

        def read(db: sa.Connection) -> list[TaskAttempt]:
            by_number = sa.select(tables.attempts).order_by(tables.attempts.c.number)
            rows = _rows(db, by_number.filter_by(task_id=task_id))
            reports = {
                row["attempt"]: row["data"]
                for row in _rows(db, sa.select(tables.reports).filter_by(task_id=task_id))
            }
            return [
                TaskAttempt(
                    task_id=task_id,
                    number=row["number"],
                    report=reports.get(row["number"]),
                    **row["data"],
                )
                for row in rows
            ]

        return await self.read(read)

    async def add_report(self, task_id: int, report: TestReport) -> None:
        """Store the report of the tests that ran on a merged tree, for a task."""
        await self.write(lambda db: _add_report(db, report, task_id=task_id, attempt=None))

    async def merge_reports(self, task_id: int) -> list[TestReport]:
        """Return a task's reports of tests that ran on a merged tree, oldest first."""
        query = sa.select(tables.reports).order_by(tables.reports.c.id)
        query = query.filter_by(task_id=task_id, attempt=None)
        rows = await self.read(lambda db: _rows(db, query))
        return [TestReport.model_validate(row["data"]) for row in rows]

    async def flaky_tests(self, project_id: int) -> dict[int, tuple[str, ...]]:
        """Return the tests that failed and then passed with the same work, by task id."""
        names = tables.reports.c.data["flaky"]
        query = sa.select(tables.reports.c.task_id, names.label("names")).join(tables.tasks)
        query = query.where(tables.tasks.c.project_id == project_id).order_by(tables.reports.c.id)
        flaky: dict[int, dict[str, None]] = {}
        for row in await self.read(lambda db: _rows(db, query)):
            if row["names"]:  # reports of earlier versions of bae have no such list
                flaky.setdefault(row["task_id"], {}).update(dict.fromkeys(row["names"]))
        return {task_id: tuple(names) for task_id, names in flaky.items()}

    # Blockers

    async def add_blocker(
        self, task_id: int, question: str, *, digest: str | None = None
    ) -> Blocker:
        """Store a question that a task waits for. `digest` is the digest of the content that the
        answer `yes` accepts."""
        question = _make_storable(question)

        def add(db: sa.Connection) -> Blocker:
            task = _read_task(db, task_id)
            values: dict[str, Any] = {"task_id": task_id, "question": question, "digest": digest}
            number = _insert(db, tables.blockers, **values)
            add_event(db, BlockerCreated(task.project_id, task_id, number, question))
            return Blocker(id=number, **values)

        return await self.write(add)

    async def answer_blocker(
        self, blocker_id: int, answer: str, *, by: str | None = None
    ) -> Blocker:
        """Store a person's answer, and the person's name `by`. A question can be answered once."""
        answer = _make_storable(answer)

        def resolve(db: sa.Connection) -> Blocker:
            query = sa.select(tables.blockers).filter_by(id=blocker_id)
            blocker = Blocker.model_validate(_one(db, query, "blocker", blocker_id))
            if blocker.answer is not None:
                raise TeamError(
                    f"blocker {blocker_id} was answered before: {blocker.answer}",
                    code="bae-team-transition",
                    fix="add a note to the task instead",
                )
            task = _read_task(db, blocker.task_id)
            values = {"answer": answer, "answered_by": by}
            db.execute(sa.update(tables.blockers).filter_by(id=blocker_id).values(values))
            add_event(db, BlockerResolved(task.project_id, task.id, blocker_id, answer, by))
            return blocker.model_copy(update=values)

        return await self.write(resolve)

    async def blockers(self, project_id: int, *, open_only: bool = False) -> list[Blocker]:
        """Return the questions of a project's tasks, in the order in which they were asked."""
        query = sa.select(tables.blockers).join(tables.tasks)
        query = query.where(tables.tasks.c.project_id == project_id).order_by(tables.blockers.c.id)
        if open_only:
            query = query.where(tables.blockers.c.answer.is_(None))
        rows = await self.read(lambda db: _rows(db, query))
        return [Blocker.model_validate(row) for row in rows]

    # Agents

    async def save_agent(self, project_id: int, agent: AgentInfo) -> None:
        """Store the current state of an agent."""
        key = {"project_id": project_id, "id": agent.id}

        def save(db: sa.Connection) -> None:
            rows = _rows(db, sa.select(tables.agents).filter_by(**key))
            before = AgentInfo.model_validate(rows[0]["data"]) if rows else None
            db.execute(sa.delete(tables.agents).filter_by(**key))
            data = agent.model_dump(mode="json")
            db.execute(sa.insert(tables.agents).values(**key, data=data))
            for event in _find_agent_events(project_id, before, agent):
                add_event(db, event)

        await self.write(save)

    async def agents(self, project_id: int) -> list[AgentInfo]:
        """Return the agents of a project, including retired agents."""
        query = sa.select(tables.agents).filter_by(project_id=project_id)
        rows = await self.read(lambda db: _rows(db, query))
        return [AgentInfo.model_validate(row["data"]) for row in rows]

    # Events

    async def add_events(self, events: Sequence[Event]) -> list[StoredEvent]:
        """Store events in this order, and return them with their numbers."""
        return await self.write(lambda db: [add_event(db, event) for event in events])

    async def events(
        self, project_id: int, after: int = 0, *, most: int = 1000, task_id: int | None = None
    ) -> list[StoredEvent]:
        """Return at most `most` events of a project with numbers above `after`, oldest first. With
        `task_id`, return only events of this task."""
        number = tables.events.c.id
        query = sa.select(tables.events).filter_by(project_id=project_id).where(number > after)
        if task_id is not None:
            query = query.where(tables.events.c.data["task_id"].as_integer() == task_id)
        rows = await self.read(lambda db: _rows(db, query.order_by(number).limit(most)))
        return [_read_event(row) for row in rows]

    def feed(self, project_id: int) -> TeamFeed:
        """Return the events of a project as a feed for `bae.journal.subscribe`. All subscribers
        share one feed, so the file is read once for all of them."""
        feed = self._feeds.get(project_id)
        if feed is None:
            feed = self._feeds[project_id] = TeamFeed(self, project_id)
        return feed

    async def events_of(self, project_id: int, *kinds: type[Event]) -> list[StoredEvent]:
        """Return all events of a project whose class is in `kinds`, oldest first."""
        types = [kind.type for kind in kinds]
        condition = tables.events.c.data["type"].as_string().in_(types)
        query = sa.select(tables.events).filter_by(project_id=project_id).where(condition)
        rows = await self.read(lambda db: _rows(db, query.order_by(tables.events.c.id)))
        return [_read_event(row) for row in rows]

    async def reviews(self, project_id: int) -> dict[int, tuple[Review, ...]]:
        """Return the reviews of each task's work by task id, oldest first."""
        reviews: dict[int, tuple[Review, ...]] = {}
        for stored in await self.events_of(project_id, WorkReviewed):
            event = stored.event
            if isinstance(event, WorkReviewed):
                reviews[event.task_id] = (*reviews.get(event.task_id, ()), event.review)
        return reviews

    async def last_event(self, project_id: int) -> int:
        """Return the number of a project's last event. If there is none, return 0."""
        last = sa.select(sa.func.max(tables.events.c.id)).filter_by(project_id=project_id)
        return await self.read(lambda db: db.scalar(last)) or 0

    async def data_version(self) -> int:
        """Return a number that changes when another process or another store writes to the file."""
        return await self.read(lambda db: db.exec_driver_sql("pragma data_version").scalar_one())

    # Transactions

    async def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Run a function in a read transaction, in the store's thread."""
        return await self._run_transaction(work, write=False)

    async def write(self, work: Callable[[sa.Connection], T]) -> T:
        """Run a function in a write transaction, in the store's thread. If the function raises,
        nothing is stored. Events are sent after the transaction."""
        stored: list[StoredEvent] = []

        def write(db: sa.Connection) -> T:
            db.info[_STORED] = stored
            return work(db)

        try:
            result = await finish_despite_cancel(self._run_transaction(write, write=True))
        finally:
            for listener in tuple(self._listeners):
                listener()
        for event in stored:
            await self._sender.send(event.event.type, event.to_message())
        return result

    async def _run_transaction(self, work: Callable[[sa.Connection], T], *, write: bool) -> T:
        def transact() -> T:
            connection = self._engine.connect().execution_options(write=write)
            try:
                with connection, connection.begin():
                    return work(connection)
            except SQLAlchemyError as error:
                cause = getattr(error, "orig", None) or error
                verb = "written" if write else "read"
                raise TeamError(
                    f"the state of the team in {self.path} cannot be {verb}",
                    cause,
                    fix="the disk may be full, or another process may have locked the file",
                ) from cause

        return await asyncio.get_running_loop().run_in_executor(self._thread, transact)


def _find_agent_events(
    project_id: int, before: AgentInfo | None, agent: AgentInfo
) -> Iterable[Event]:
    if before is None:
        yield AgentCreated(project_id, agent.id, agent.kind)
    if agent.status == "retired":
        if before is None or before.status != "retired":
            yield AgentRetired(project_id, agent.id)
        return
    state_before = (before.status, before.task_id) if before else ("idle", None)
    if state_before != (agent.status, agent.task_id):
        yield AgentStatusChanged(project_id, agent.id, agent.status, agent.task_id)
        if agent.task_id is not None and agent.task_id != state_before[1]:
            yield TaskAssigned(project_id, agent.task_id, agent.id)


def _refuse_problems(tasks: Sequence[PlannedTask]) -> None:
    problems = find_problems(tasks)
    if problems:
        first, *others = problems
        rest = "".join(f"; {problem.place}: {problem.message}" for problem in others)
        raise TeamError(
            f"{first.place}: {first.message}{rest}",
            code=first.code,
            fix=first.fix,
            problems=tuple(problems),
        )


def _read_changeable(db: sa.Connection, task_id: int, verb: str) -> Task:
    task = _read_task(db, task_id)
    if task.status not in _UNSTARTED:
        raise TeamError(
            f"task {task.key!r} cannot be {verb}: it is {task.status}", code="bae-team-transition"
        )
    return task


def _dump_plan(task: PlannedTask) -> dict[str, Any]:
    fields = set(PlannedTask.model_fields) - {"key", "depends_on"}
    return task.model_dump(mode="json", include=fields)


def _set_dependencies(db: sa.Connection, project_id: int, task: PlannedTask) -> None:
    query = sa.select(tables.tasks.c.key, tables.tasks.c.id).filter_by(project_id=project_id)
    ids = {row["key"]: row["id"] for row in _rows(db, query)}
    db.execute(sa.delete(tables.dependencies).filter_by(task_id=ids[task.key]))
    for position, key in enumerate(dict.fromkeys(task.depends_on)):
        values = {"task_id": ids[task.key], "position": position, "needs_id": ids[key]}
        db.execute(sa.insert(tables.dependencies).values(values))


def _read_project_tasks(db: sa.Connection, project_id: int) -> list[Task]:
    return _read_tasks(db, tables.tasks.c.project_id == project_id)


def _read_task(db: sa.Connection, task_id: int) -> Task:
    tasks = _read_tasks(db, tables.tasks.c.id == task_id)
    if not tasks:
        raise _unknown("task", task_id)
    return tasks[0]


def _read_tasks(db: sa.Connection, condition: sa.ColumnElement[bool]) -> list[Task]:
    task, link, needed = tables.tasks, tables.dependencies, tables.tasks.alias()
    links = sa.select(link.c.task_id, needed.c.key).join(task, link.c.task_id == task.c.id)
    links = links.join(needed, link.c.needs_id == needed.c.id).where(condition)
    needs = _group_by_task(_rows(db, links.order_by(link.c.task_id, link.c.position)), "key")
    note_query = sa.select(tables.notes).join(task).where(condition).order_by(tables.notes.c.id)
    notes = _group_by_task(_rows(db, note_query), "text")
    return [
        Task(
            **{name: value for name, value in row.items() if name in Task.model_fields},
            **row["planned"],
            depends_on=tuple(needs.get(row["id"], ())),
            notes=tuple(notes.get(row["id"], ())),
        )
        for row in _rows(db, sa.select(task).where(condition).order_by(task.c.id))
    ]


def _group_by_task(rows: Iterable[Mapping[str, Any]], column: str) -> dict[int, list[str]]:
    groups: dict[int, list[str]] = {}
    for row in rows:
        groups.setdefault(row["task_id"], []).append(row[column])
    return groups


def _read_project(row: Mapping[str, Any]) -> Project:
    return Project(id=row["id"], root=row["root"], **row["data"])


def _add_report(
    db: sa.Connection, report: TestReport, *, task_id: int, attempt: int | None
) -> None:
    _read_task(db, task_id)
    columns: dict[str, Any] = {"task_id": task_id, "attempt": attempt, "passed": report.passed}
    _insert(db, tables.reports, **columns, data=report.model_dump(mode="json"))


def add_event(db: sa.Connection, event: Event) -> StoredEvent:
    """Store an event. Call this in the transaction of the change that the event reports."""
    at = time()
    number = _insert(db, tables.events, project_id=event.project_id, at=at, data=event.to_message())
    stored = StoredEvent(number=number, at=at, event=event)
    db.info[_STORED].append(stored)
    return stored


def _read_event(row: Mapping[str, Any]) -> StoredEvent:
    return StoredEvent(number=row["id"], at=row["at"], event=read_event(row["data"]))


def _note_change(
    db: sa.Connection, project_id: int, change: PlanChange, keys: Sequence[str], by: str | None
) -> None:
    if keys:
        add_event(db, PlanChanged(project_id, change, tuple(keys), by))


def _make_storable(text: str) -> str:
    """Replace lone surrogates in a text. An LLM may write them, and SQLite cannot store them."""
    return text.encode("utf-8", "replace").decode()
