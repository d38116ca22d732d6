"""Actions of people on a plan and a run, the same from the command line and over HTTP: find, change
and check tasks, send notes, and request actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Literal

from pydantic import ValidationError

from bae import Problem
from bae.team.git import Repository
from bae.team.models import (
    Action,
    PlannedTask,
    Project,
    Request,
    Task,
    TaskStatus,
    TeamError,
    as_planned,
)
from bae.team.planned_files import find_file_problems, list_files
from bae.team.store import Store
from bae.team.team_run import add_request, is_running

LONGEST_NOTE: Final = 20_000
Steering = Action | Literal["note"]
"""The actions that a person may request."""


@dataclass(frozen=True, slots=True)
class Steered:
    """A person's request. With `is_running` the run in progress takes it now; otherwise the next
    run does. A note has no request: the worker reads it before its next question."""

    task: Task | None
    is_running: bool
    request: Request | None = None


async def find_task(store: Store, project_id: int, named: str) -> Task:
    """The task with this key or number."""
    tasks = await store.tasks(project_id)
    for task in tasks:
        if named in (task.key, str(task.id)):
            return task
    nearest = get_close_matches(named[:100], [task.key for task in tasks], 3, 0.5)
    guess = f"did you mean {' or '.join(nearest)}? " if nearest else ""
    raise TeamError(
        f"there is no task {named[:100]!r}",
        code="bae-team-unknown",
        fix=f"{guess}list the tasks of the team: bae team tasks",
    )


async def steer(
    store: Store,
    repository: Repository,
    project_id: int,
    action: Steering,
    named: str | None = None,
    *,
    text: str = "",
    by: str | None = None,
) -> Steered | None:
    """Request an action in the name of the user `by`, for the named task or for the whole run.
    `text` is the text of a note. Returns None if there is nothing to stop, because no run is in
    progress."""
    task = None if named is None else await find_task(store, project_id, named)
    if task is not None and task.status in (TaskStatus.COMPLETED, TaskStatus.MERGED):
        raise TeamError(
            f"{task.key} is {task.status}: its work is in the team's branch",
            code="bae-team-transition",
            fix="add a task for the change: bae team tasks add",
        )
    running = await is_running(repository)
    if action == "note":
        if task is None or not text.strip() or len(text) > LONGEST_NOTE:
            raise TeamError(
                f"a note needs a task and a text of at most {LONGEST_NOTE:,} characters",
                code="bae-team-note",
                fix="name the task, and write a note for its worker",
            )
        await store.add_note(task.id, text, by=by)
        return Steered(task, running)
    if task is None and action in ("stop", "kill") and not running:
        return None
    number = task.id if task else None
    return Steered(task, running, await add_request(store, project_id, action, number, by=by))


def change_task(task: Task, given: Mapping[str, Any]) -> PlannedTask:
    """The planned fields of a task, with changes."""
    values = as_planned(task).model_dump()
    if task.proof != "none" and "tests" in given:
        del values["proof"]  # the proof follows from the named tests
    return make_task({**values, **given})


def make_task(values: Mapping[str, Any]) -> PlannedTask:
    """A task from a person's input. The error lists the `problems` by field."""
    try:
        return PlannedTask.model_validate(values)
    except ValidationError as error:
        problems = [
            Problem("error", "bae-team-task", ".".join(map(str, detail["loc"])), detail["msg"])
            for detail in error.errors(
                include_url=False, include_input=False, include_context=False
            )
        ]
        listed = "; ".join(
            ": ".join(filter(None, (detail.place, detail.message))) for detail in problems
        )
        raise TeamError(
            f"this is no task: {listed}",
            code="bae-team-task",
            fix="correct it",
            problems=tuple(problems),
        ) from error


async def check_files(
    store: Store, repository: Repository, project: Project, planned: Sequence[PlannedTask]
) -> None:
    """Refuse tasks with files that do not exist and are not marked as new."""
    keys = {task.key for task in planned}
    others = [task for task in await store.tasks(project.id) if task.key not in keys]
    files = await list_files(repository, project.branch)
    if problems := find_file_problems(planned, others, files):
        first, *rest = problems
        more = "".join(f"\n{problem.place}: {problem.message}; {problem.fix}" for problem in rest)
        raise TeamError(
            f"{first.place} {first.message}{more}",
            code=first.code,
            fix=first.fix,
            problems=tuple(problems),
        )
