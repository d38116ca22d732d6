"""Runs of the worker graph. A task continues its unfinished run, or starts a new run. The run's
outcome becomes the result of the task."""

from __future__ import annotations

import json
import logging
from asyncio import CancelledError
from functools import partial
from hashlib import sha256
from os import urandom
from typing import TYPE_CHECKING, Any

from bae import BaeError, BudgetError, JournalError
from bae.journal import Record
from bae.lm import Usage
from bae.observers import observing
from bae.tasks import finish_despite_cancel
from bae.team.desk import Desk, ask_about, get_desk
from bae.team.environment import find_error_cause
from bae.team.git import Checkout
from bae.team.models import LONGEST_REASON, Task, TaskResult, as_planned, bounded
from bae.team.program_turns import forget_program
from bae.team.programs import ProgramError
from bae.team.reading import CodeTree, get_tree
from bae.team.worker_graph import Assignment, Blocked, Delivered, Stopped, worker_graph

if TYPE_CHECKING:
    from bae.team.workbench import Workbench
    from bae.team.worker import WorkerAgent

_log = logging.getLogger(__name__)


async def run_task(
    worker: WorkerAgent, bench: Workbench, task: Task, failure: str = ""
) -> TaskResult:
    """Have a worker carry out a task. An unfinished run of the task is continued.

    With `failure`, start a new run that corrects the last attempt. If the task needs no tests and
    no person has approved that, the result is a question to a person."""
    if task.proof == "none":
        stored = await bench.store.task(task.id)
        if not (stored.proof == "none" and stored.approved):
            return await _make_result(
                bench, task, Blocked(question=_describe_untested(task)), Usage()
            )
    correction = f"task-{task.id}-corrected-{urandom(4).hex()}"
    run = correction if failure else await _choose_run(worker, bench, task)
    start = Assignment(task_id=task.id, key=task.key, failure=failure)

    def note_progress(_: object, record: Record) -> None:
        bench.on_progress(task.id)

    reason = "cancelled"
    try:
        lm = bench.limit_lm(task, await worker.lm())
        await _pass_on_answers(bench, task, run)

        async def find_checkout() -> Checkout:
            return (await worker.workspace(task)).checkout

        dependencies: dict[Any, Any] = {
            get_desk: Desk(worker, bench, task, run),
            get_tree: CodeTree(bench.code, find_checkout),
        }
        with observing(note_progress):
            result = await worker_graph.arun(
                start,
                lm,
                max_iters=0,
                dep_cache=dependencies,
                journal=bench.journal,
                run_id=run,
                resume=True,
            )
        usage, reason = result.usage, "done"
        outcome = Blocked(question=result.waiting[0].question) if result.waiting else result.result
    except BaeError as error:
        reason = "failed"
        if error.code == "bae-run-changed":  # another version of bae stored the run: begin again
            await bench.journal.delete([run])
            return await run_task(worker, bench, task, failure)
        _log.error("task %s failed: %s", task.key, error.message.partition("\n")[0])
        _log.debug("task %s failed", task.key, exc_info=True)
        usage = error.journal.usage() if error.journal else Usage()
        if isinstance(error.cause, ProgramError | BudgetError):
            error = error.cause  # the message of the cause says more than the failed step's message
        cause = find_error_cause(error)
        outcome = Blocked(question=ask_about(task, cause, str(error))) if cause else error
    except CancelledError:
        _log.info("the work on task %s was cancelled", task.key)
        raise
    except Exception:  # a worker class of the user may raise any exception
        _log.error("task %s failed", task.key, exc_info=True)
        raise
    finally:
        await finish_despite_cancel(worker.leave(task.id, reason))
    if isinstance(outcome, Delivered):
        await forget_program(bench, task)
    return await _make_result(bench, task, outcome, usage)


def name_run(task: Task, number: int, mode: str = "oneshot") -> str:
    """Return the id of a task's run. The id has a digest of the task's content and the worker's
    mode, so that an edited task or another mode starts a new run. In all modes but "loop", a new
    note also starts a new run."""
    notes = () if mode == "loop" else task.notes  # a conversation gets notes as messages
    content = as_planned(task, priority=0).model_dump_json() + json.dumps(notes)
    content += mode if mode != "oneshot" else ""
    return f"task-{task.id}-{number}-{sha256(content.encode()).hexdigest()[:8]}"


async def _pass_on_answers(bench: Workbench, task: Task, run: str) -> None:
    """Store people's answers to the questions that a run waits for, in the journal of the run."""
    try:
        waiting_gates = (await bench.journal.read(run)).info.waiting
    except JournalError as error:
        if error.code != "bae-run-unknown":
            raise
        return
    blockers = await bench.store.blockers(task.project_id)
    answers = {
        blocker.question: blocker.answer for blocker in blockers if blocker.task_id == task.id
    }
    for gate in waiting_gates:
        answer = answers.get(gate.question)
        if answer is not None and not gate.answered:
            await worker_graph.answer(run, gate.address, answer, journal=bench.journal, go_on=False)


async def _choose_run(worker: WorkerAgent, bench: Workbench, task: Task) -> str:
    """Return the id of the task's newest run if that run can continue, otherwise a new id."""
    mode = bench.program.name if bench.program else await worker.find_mode()
    name = partial(name_run, task, mode=mode)
    prefix, newest, newest_run, has_ended = f"task-{task.id}-", 0, "", True
    async for info in bench.journal.every_run(graph=worker_graph.name):
        number = info.run_id.removeprefix(prefix).partition("-")[0]
        if info.run_id.startswith(prefix) and number.isdecimal() and int(number) > newest:
            newest, newest_run, has_ended = int(number), info.run_id, info.status == "ended"
    if newest_run != name(newest):
        return name(newest + 1)
    if not has_ended or (
        not worker.alone and await _has_unstored_question(bench, task, newest_run)
    ):
        return newest_run
    return name(newest + 1)


async def _has_unstored_question(bench: Workbench, task: Task, run: str) -> bool:
    """Return whether a run ended with a question that the store does not have, because the team was
    killed before it stored the question."""
    try:
        last = (await worker_graph.resume(run, journal=bench.journal)).result
    except BaeError:  # another version of bae stored the run
        return False
    if not isinstance(last, Blocked):
        return False
    blockers = await bench.store.blockers(task.project_id)
    return last.question not in [
        blocker.question for blocker in blockers if blocker.task_id == task.id
    ]


async def _make_result(
    bench: Workbench, task: Task, outcome: Delivered | Blocked | Stopped | BaeError, usage: Usage
) -> TaskResult:
    attempts = await bench.store.attempts(task.id)
    flaky = await bench.store.flaky_tests(task.project_id)
    fields: dict[str, Any] = {
        "task_id": task.id,
        "attempts": len(attempts),
        "report": attempts[-1].report if attempts else None,
        "flaky": flaky.get(task.id, ()),
        "files": attempts[-1].files if attempts else (),
        "usage": usage,
    }
    match outcome:
        case Delivered(commit=commit):
            text = f"{task.title}: merged as {commit[:12]}"
            status = "merged" if task.proof == "none" else "completed"
            if task.feature and not await bench.integration.merged_as(task.branch):
                status = "staged"
            return TaskResult(status=status, commit=commit, summary=text, **fields)
        case Blocked(question=question, digest=digest):
            return TaskResult(status="blocked", question=question, digest=digest, **fields)
        case Stopped(number=number):
            return TaskResult(status="failed", error=f"stopped after attempt {number}", **fields)
        case BaeError():
            return TaskResult(
                status="failed", error=bounded(str(outcome), LONGEST_REASON), **fields
            )


def _describe_untested(task: Task) -> str:
    return (
        f"{task.title!r} is to be merged without tests, and no person has approved that: "
        f"bae team tasks approve {task.key} --without-tests"
    )
