"""The runs of workers in the journal: which one of a task continues, and what it has led to."""

from __future__ import annotations

import json
import logging
from hashlib import sha256
from os import urandom
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from bae import BaeError, GraphResult
from bae.journal import Record
from bae.lm import Usage
from bae.observers import observing
from bae.tasks import finish_despite_cancel
from bae.team.models import Task, TaskResult, as_planned, bounded
from bae.team.workbench import Workbench
from bae.team.worker_graph import (
    Assignment,
    Blocked,
    Delivered,
    Desk,
    Draft,
    Stopped,
    correction_graph,
    get_desk,
    worker_graph,
)

if TYPE_CHECKING:
    from bae.team.worker import WorkerAgent

_log = logging.getLogger(__name__)
End: TypeAlias = Delivered | Blocked | Stopped


async def run_task(worker: WorkerAgent, bench: Workbench, task: Task) -> TaskResult:
    """Have a worker carry out a task. Where a run of it was killed, cancelled or failed, that one
    continues."""
    start = Assignment(task_id=task.id, key=task.key)
    return await _run(worker, bench, task, await _run_id(bench, task, worker.alone), start)


async def run_correction(
    worker: WorkerAgent, bench: Workbench, task: Task, failure: str
) -> TaskResult:
    """Have a worker correct what an attempt at a task has left."""
    tried = await bench.store.attempts(task.id)
    number = max((each.number for each in tried), default=0) + 1
    start = Draft(first=number - 1, number=number, failure=failure)
    return await _run(worker, bench, task, f"task-{task.id}-corrected-{urandom(4).hex()}", start)


async def _run(
    worker: WorkerAgent, bench: Workbench, task: Task, run: str, start: Assignment | Draft
) -> TaskResult:
    desk = Desk(worker, bench, task, run)

    def progress(_: object, record: Record) -> None:
        bench.on_progress(task.id)

    why = "cancelled"
    try:
        lm = bench.limit_lm(task, await worker.lm())
        graph = worker_graph if isinstance(start, Assignment) else correction_graph
        with observing(progress):
            ended: GraphResult[End] = await cast(Any, graph).arun(
                start,
                lm,
                max_iters=0,
                dep_cache={get_desk: desk},
                journal=bench.journal,
                run_id=run,
                resume=True,
            )
        last, used, why = ended.result, ended.usage, "done"
    except BaeError as error:
        why = "failed"
        if error.code == "bae-run-changed":  # it is of another version of bae: begin again
            await bench.journal.delete([run])
            return await _run(worker, bench, task, run, start)
        _log.info("task %s failed", task.key, exc_info=True)
        last, used = error, error.journal.usage() if error.journal else Usage()
    finally:
        await finish_despite_cancel(worker.leave(task.id, why))
    return await _result(bench, task, last, used)


def name_run(task: Task, number: int) -> str:
    """The id of a run of a task. It tells what the task was: one that was edited, or has a note
    that the run does not know, begins a new one."""
    wanted = as_planned(task, priority=0).model_dump_json() + json.dumps(task.notes)
    return f"task-{task.id}-{number}-{sha256(wanted.encode()).hexdigest()[:8]}"


async def _run_id(bench: Workbench, task: Task, alone: bool) -> str:
    """The newest run of a task, if it is to continue, or a new one."""
    prefix, newest, known, ended = f"task-{task.id}-", 0, "", True
    async for info in bench.journal.every_run(graph=worker_graph.name):
        number = info.run_id.removeprefix(prefix).partition("-")[0]
        if info.run_id.startswith(prefix) and number.isdecimal() and int(number) > newest:
            newest, known, ended = int(number), info.run_id, info.status == "ended"
    if known != name_run(task, newest):
        return name_run(task, newest + 1)
    if not ended or (not alone and await _is_unheard(bench, task, known)):
        return known
    return name_run(task, newest + 1)


async def _is_unheard(bench: Workbench, task: Task, run: str) -> bool:
    """Whether a run has ended with a question that the team was killed before it stored."""
    try:
        last = (await worker_graph.resume(run, journal=bench.journal)).result
    except BaeError:  # it is of another version of bae
        return False
    if not isinstance(last, Blocked):
        return False
    asked = await bench.store.blockers(task.project_id)
    return last.question not in [each.question for each in asked if each.task_id == task.id]


async def _result(
    bench: Workbench, task: Task, last: End | BaseException, used: Usage
) -> TaskResult:
    tried = await bench.store.attempts(task.id)
    about: dict[str, Any] = {
        "task_id": task.id,
        "attempts": len(tried),
        "report": tried[-1].report if tried else None,
        "files": tried[-1].files if tried else (),
        "usage": used,
    }
    if isinstance(last, Delivered):
        told = f"{task.title}: merged as {last.commit[:12]}"
        return TaskResult(status="completed", commit=last.commit, summary=told, **about)
    if isinstance(last, Blocked):
        return TaskResult(status="blocked", question=last.question, **about)
    if isinstance(last, Stopped):
        return TaskResult(status="failed", error=f"stopped after attempt {last.number}", **about)
    return TaskResult(status="failed", error=_described(last), **about)


def _described(error: BaseException) -> str:
    """An error with what caused it, in a few lines."""
    lines = [str(error)]
    cause = error.__cause__
    while cause is not None and len(lines) < 5:
        lines.append(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__
    return bounded("\n".join(dict.fromkeys(lines)), 4000)
