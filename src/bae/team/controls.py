"""What people ask of a team, from any process: stop, kill, pause, resume, retry and skip. The lead
takes these requests from the store; where none is running, the next one does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bae.team import tables
from bae.team.models import Action, Request, TeamError
from bae.team.tables import sa

if TYPE_CHECKING:
    from bae.team.store import Store

_STAYS: Final[tuple[Action, ...]] = ("pause", "resume")


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
