"""What people ask of a team, from any process: stop, kill, pause, resume, retry and skip. The lead
takes these requests from the store; where none is running, the next one does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bae.team import tables
from bae.team.files import FileLock
from bae.team.models import (
    LONGEST_REASON,
    Action,
    Request,
    Task,
    TaskStatus,
    TeamError,
    bounded,
    may_move,
)
from bae.team.tables import sa

if TYPE_CHECKING:
    from bae.team.git import Repository
    from bae.team.store import Store
    from bae.team.team_run import TeamRun

_STAYS: Final[tuple[Action, ...]] = ("pause", "resume")
_PAST: Final[dict[Action, str]] = {
    "stop": "stopped",
    "kill": "killed",
    "pause": "paused",
    "resume": "resumed",
    "retry": "retried",
    "skip": "skipped",
}
_S = TaskStatus


async def add_request(
    store: Store, project_id: int, action: Action, task_id: int | None = None
) -> Request:
    """Ask for something: for one task, or for the whole run where none is named.

    - `stop`: end a task, or the run, after the attempts that are in progress.
    - `kill`: end it now. Work that is not merged stays on its branch.
    - `pause`: start nothing new until `resume`; a task that is named stops after its attempt.
      `resume` without a task is for all that is paused.
    - `retry`: do a task again that failed, was cancelled, skipped or is blocked; all that failed or
      were cancelled where none is named.
    - `skip`: do without a task; those that depend on it continue.

    For a note to a task use `Store.add_note`, and for an answer `Store.answer_blocker`.
    """
    if action == "skip" and task_id is None:
        raise TeamError("skip needs a task", code="bae-team-unknown", fix="name one")

    def add(db: sa.Connection) -> Request:
        project = sa.select(tables.projects).filter_by(id=project_id)
        tables.one(db, project, "project", project_id)
        if task_id is not None:
            task = sa.select(tables.tasks).filter_by(id=task_id, project_id=project_id)
            tables.one(db, task, "task", task_id)
        about: dict[str, Any] = {"project_id": project_id, "task_id": task_id, "action": action}
        return Request(id=tables.insert(db, tables.requests, **about), **about)

    return await store.write(add)


async def open_requests(store: Store, project_id: int) -> list[Request]:
    """What was asked for and not taken yet, oldest first."""
    found = sa.select(tables.requests).filter_by(project_id=project_id, outcome=None)
    found = found.order_by(tables.requests.c.id)
    return [
        Request.model_validate(row) for row in await store.read(lambda db: tables.rows(db, found))
    ]


async def close_request(store: Store, request: Request, outcome: str) -> None:
    """Store what became of a request, so that it is not taken again."""
    change = sa.update(tables.requests).filter_by(id=request.id).values(outcome=outcome)
    await store.write(lambda db: db.execute(change).rowcount)


def lead_lock(repository: Repository) -> FileLock:
    """The lock that the lead of a repository holds as long as it works."""
    return FileLock(repository.common / "bae-lead.lock")


async def is_running(repository: Repository) -> bool:
    """Whether a lead is at work in a repository, in this process or another."""
    try:
        async with lead_lock(repository).held(exclusive=False, timeout=0):
            return False
    except TimeoutError:
        return True


async def read_held(store: Store, project_id: int) -> dict[int, str]:
    """Why tasks wait for a person, by their ids: for an answer, or since they are paused."""
    paused = await read_paused(store, project_id)
    held = {task_id: "paused by a person" for task_id in paused if task_id is not None}
    open_ones = await store.blockers(project_id, open_only=True)
    asked = {each.task_id: each.question for each in reversed(open_ones)}
    return {key: bounded(text, LONGEST_REASON) for key, text in asked.items()} | held


async def read_paused(store: Store, project_id: int) -> frozenset[int | None]:
    """The tasks that are paused, by their ids; None stands for the whole run."""
    found = sa.select(tables.requests).filter_by(project_id=project_id)
    found = found.where(tables.requests.c.action.in_(_STAYS)).order_by(tables.requests.c.id)
    last: dict[int | None, str] = {}
    for row in await store.read(lambda db: tables.rows(db, found)):
        if row["task_id"] is None and row["action"] == "resume":
            last.clear()
        last[row["task_id"]] = row["action"]
    return frozenset(task_id for task_id, action in last.items() if action == "pause")


async def take_request(run: TeamRun, request: Request) -> str:
    """Have a run do what a person asks for: what became of it."""
    if request.task_id is None:
        return await _take_for_all(run, request.action)
    task = await run.bench.store.task(request.task_id)
    work = run.works.get(task.id)
    match request.action:
        case "retry":
            return await _retry(run, task)
        case "resume":
            if work and work.asked == "pause":
                work.asked = None
            return "resumed"
        case "pause":
            if work:
                work.asked = work.asked or "pause"
            return "pauses after its attempt" if work else "paused"
        case "stop" if work:
            work.asked = work.asked or "stop"
            return "stops after its attempt"
        case "kill" | "skip" if work:
            work.asked = request.action
            work.cut_off()
            return "its work is cut off"
        case _:
            after = _S.SKIPPED if request.action == "skip" else _S.CANCELLED
            return await _put(run, task, after, f"{_PAST[request.action]} by a person")


async def _take_for_all(run: TeamRun, action: Action) -> str:
    if action == "retry":
        tasks = await run.bench.store.tasks(run.bench.project.id)
        again = [task for task in tasks if task.status in (_S.FAILED, _S.CANCELLED)]
        for task in again:
            await _retry(run, task)
        return f"retried: {', '.join(task.key for task in again) or 'none'}"
    for work in run.works.values():
        if action == "kill":
            work.cut_off()
        elif action == "resume" and work.asked == "pause":
            work.asked = None
    if action in ("stop", "kill"):
        run.ending = "stopped" if action == "stop" else "killed"
    return _PAST[action]


async def _retry(run: TeamRun, task: Task) -> str:
    run.budgets.refused.pop(task.id, None)
    return await _put(run, task, _S.PENDING, "", forgive=True)


async def _put(
    run: TeamRun, task: Task, after: TaskStatus, reason: str, *, forgive: bool = False
) -> str:
    """Have a task that nobody works on where a person wants it."""
    if not may_move(task.status, after):
        return f"it is {task.status}"
    await run.withdraw(task, reason or "it is tried again")
    moved = await run.move(task.id, task.status, after, reason=reason, forgive=forgive)
    return f"it is {moved.status}" if moved else "another process was faster"
