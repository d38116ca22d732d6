"""Summaries of a team's tasks for the status and the board: the last status change, attempts, test
results, the open question, and the current step of the agent."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel

from bae.journal import Journal, RunInfo
from bae.team import tables
from bae.team.models import headline
from bae.team.tables import sa
from bae.team.task_log import describe_line

if TYPE_CHECKING:
    from bae.team.store import Store

_RUN: Final = re.compile(r"task-(\d+)-(review-)?")
_LAST_LINES: Final = 60


class Standing(BaseModel):
    """The summary of a task.

    - `since`: when the task got its status, in seconds since 1970.
    - `attempts`: the number of finished attempts.
    - `outcome`: the outcome of the last attempt.
    - `outcomes`: the number of tests by outcome, in the last test run.
    - `question`: the open question.
    - `activity`: the last reported activity.
    """

    since: float = 0.0
    attempts: int = 0
    outcome: str = ""
    outcomes: dict[str, int] | None = None
    question: str = ""
    activity: Doing | None = None


class Doing(BaseModel):
    """A step of the agent that works on a task.

    - `at`: when the step began, in seconds since 1970.
    - `run`: the id of the agent's run in the journal.
    """

    text: str
    at: float
    run: str = ""


async def read_standings(store: Store, project_id: int) -> dict[int, Standing]:
    """Read the summaries of a project's tasks in one transaction, by task id. A task without events
    is left out."""
    event, attempt = tables.events.c, tables.attempts.c
    task_id = event.data["task_id"].as_integer()
    newest = sa.select(attempt.task_id, sa.func.max(attempt.number)).group_by(attempt.task_id)
    attempts_query = sa.select(tables.attempts).join(tables.tasks)
    attempts_query = attempts_query.where(
        tables.tasks.c.project_id == project_id,
        sa.tuple_(attempt.task_id, attempt.number).in_(newest),
    )
    questions = sa.select(tables.blockers.c.task_id, tables.blockers.c.question).join(tables.tasks)
    questions = questions.where(
        tables.tasks.c.project_id == project_id, tables.blockers.c.answer.is_(None)
    )

    def read(db: sa.Connection) -> dict[int, Standing]:
        standings: dict[int, Standing] = {}

        def get_standing(number: int) -> Standing:
            return standings.setdefault(number, Standing())

        def find_newest(kind: str) -> list[tuple[int, float, dict[str, Any]]]:
            newest = sa.select(sa.func.max(event.id)).filter_by(project_id=project_id)
            newest = newest.where(event.data["type"].as_string() == kind).group_by(task_id)
            rows = tables.rows(db, sa.select(tables.events).where(event.id.in_(newest)))
            task_rows = [row for row in rows if row["data"].get("task_id") is not None]
            return [(row["data"]["task_id"], row["at"], row["data"]) for row in task_rows]

        for number, at, _ in find_newest("task_status_changed"):
            get_standing(number).since = at
        for number, _, data in find_newest("test_result"):
            get_standing(number).outcomes = data["counts"]
        for number, at, data in find_newest("activity_update"):
            get_standing(number).activity = Doing(text=headline(data["text"]), at=at)
        for row in tables.rows(db, attempts_query):
            get_standing(row["task_id"]).attempts = row["number"]
            get_standing(row["task_id"]).outcome = row["data"]["outcome"]
        for number, question in db.execute(questions.order_by(tables.blockers.c.id.desc())):
            get_standing(number).question = question
        return standings

    return await store.read(read)


async def read_doing(journal: Journal, tasks: Collection[int]) -> dict[int, Doing]:
    """Read the current steps of agents, by task id. Only runs that a live process works on are
    read, so tasks without an agent are left out."""
    newest: dict[int, tuple[RunInfo, bool]] = {}
    async for info in journal.every_run(status="running"):
        match = _RUN.match(info.run_id)
        is_alive = info.standing() == "running"  # the run's lease decides
        if match and is_alive and int(match[1]) in tasks and int(match[1]) not in newest:
            newest[int(match[1])] = info, bool(match[2])
    steps: dict[int, Doing] = {}
    for task, (info, is_review) in newest.items():
        total = (await journal.lines(info.run_id, limit=0)).total
        after = max(-1, total - 1 - _LAST_LINES)
        lines = (await journal.lines(info.run_id, after=after, limit=_LAST_LINES)).lines
        text, at = "reviews the work" if is_review else "thinks", info.started
        for line in lines:
            if step := describe_line(line, is_review=is_review):
                text, at = step, line.at
        steps[task] = Doing(text=text, at=at, run=info.run_id)
    return steps
