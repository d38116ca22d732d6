"""Functions with which people steer a team, on the command line and over HTTP. They find, change
and check tasks, store notes, and request actions."""

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
    """The outcome of `steer`."""

    task: Task | None
    """The task that the action is for. None if the action is for the run."""
    is_running: bool
    """Whether a run is in progress and takes the request now. Otherwise the next run takes it."""
    request: Request | None = None
    """The stored request. None for a note, which the worker reads before its next LLM call."""


async def find_task(store: Store, project_id: int, named: str) -> Task:
    """Return the task with the key or number `named`."""
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
    """Request an action for the task `named`. Without `named`, request the action for the run.

    `text` is the text of a note, and `by` the user who requests the action. If the action would
    stop or kill a run and no run is in progress, return None.
    """
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
    """Return the planned fields of a task with the changes `given`, validated."""
    values = as_planned(task).model_dump()
    if task.proof != "none" and "tests" in given:
        del values["proof"]  # the proof follows from the named tests
    return make_task({**values, **given})


def make_task(values: Mapping[str, Any]) -> PlannedTask:
    """Make a task from a person's input. If the input is invalid, raise TeamError, whose `problems`
    name the fields."""
    try:
        return PlannedTask.model_validate(values)
    except ValidationError as error:
        problems = [
            Problem("error", "bae-team-task", ".".join(map(str, detail["loc"])), detail["msg"])
            for detail in error.errors(
                include_url=False, include_input=False, include_context=False
            )
        ]
        details = "; ".join(
            ": ".join(filter(None, (problem.place, problem.message))) for problem in problems
        )
        raise TeamError(
            f"this is no task: {details}",
            code="bae-team-task",
            fix="correct it",
            problems=tuple(problems),
        ) from error


async def check_files(
    store: Store, repository: Repository, project: Project, planned: Sequence[PlannedTask]
) -> None:
    """Refuse tasks with wrong files. `files` must exist, and `new_files` must not exist."""
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
