"""The work of a forked process: begin runs, resume them, or answer at their gate, all at once, and
report their outcomes if the process lives."""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any, Literal

from bae import LM, BaeError, GraphResult
from bae.journal import Journal
from bae.lm import Budget
from crash import newsroom, waiting_run, workshop
from crash.effects import HERE, Effects
from crash.killing import Kill, killing_journal
from crash.oracle import Oracle

Action = Literal["begin", "resume", "answer"]


@dataclass
class Task:
    """One run and its next job. `effects` is the file of effects, `process` the number of this
    process among the processes of the run."""

    run_id: str
    action: Action
    effects: str
    process: int = 0
    pipe: str = ""
    """The pipe that a run of the graph `waiting_run` waits at; empty for another graph."""
    has_tools: bool = False
    """Whether it is a run of the graph `workshop`, and not of `newsroom`."""


@dataclass
class Job:
    """The jobs of one process. With `at_once` it waits for a signal to begin."""

    journal: str
    tasks: list[Task]
    lease: float
    kill: Kill | None = None
    at_once: bool = False


@dataclass
class Outcome:
    """The outcome of a run: its trace or its exception."""

    trace: list[Any] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    calls: int = field(default=0, compare=False)
    """How many calls of the LM a budget around the run was charged, those of processes before this
    one too."""
    code: str = ""
    raised: str = ""


@dataclass
class Report:
    """The report of a finished process: the outcomes of its runs, its journal writes, and its
    duration."""

    outcomes: dict[str, Outcome]
    writes: list[str]
    seconds: float


def work(job: Job, pipe: Connection) -> None:
    """Do a job, in a process of its own."""
    pipe.send("begun")
    if job.at_once:
        pipe.recv()
    pipe.send(asyncio.run(_do(job)))


async def _do(job: Job) -> Report:
    started = perf_counter()
    async with killing_journal(job.journal, job.kill, job.lease) as journal:
        outcomes = await asyncio.gather(*(_carry_out(task, journal) for task in job.tasks))
        ids = [task.run_id for task in job.tasks]
        return Report(
            dict(zip(ids, outcomes, strict=True)), journal.writes, perf_counter() - started
        )


async def _carry_out(task: Task, journal: Journal) -> Outcome:
    HERE.set(Effects(task.effects, task.process))
    try:
        with Budget(calls=1000) as budget:
            result = await asyncio.create_task(_action(task, journal))
    except Exception as error:
        code = error.code if isinstance(error, BaeError) else ""
        return Outcome(code=code, raised="".join(traceback.format_exception(error)))
    trace = [
        [type(node).__name__, node.model_dump(mode="json", exclude={"wire"})]
        for node in result.trace
    ]
    waiting = [gate.address for gate in result.waiting]
    return Outcome(trace, waiting, budget.usage.calls)


async def _action(task: Task, journal: Journal) -> GraphResult[Any]:
    graph, start, lm = newsroom.graph, newsroom.START, Oracle()
    options: dict[str, Any] = {"max_iters": newsroom.MAX_ITERS, "journal": journal}
    if task.pipe:
        waiting_run.PIPE.set(task.pipe)
        graph, start, lm = waiting_run.graph, waiting_run.Waiting(), None
    if task.has_tools:
        graph, start, lm = workshop.graph, workshop.START, workshop.Foreman()
    if task.action == "begin":
        return await graph.arun(start, lm, run_id=task.run_id, **options)
    if task.action == "resume":
        return await graph.resume(task.run_id, lm, **options)
    return await answer_all(task.run_id, lm, options)


async def answer_all(run_id: str, lm: LM, options: dict[str, Any]) -> GraphResult[Any]:
    """Answer every gate that a run waits for; the last answer resumes the run."""
    stored = await options["journal"].read(run_id)
    *gates, last = (each.address for each in stored.info.waiting if not each.answered)
    for gate in gates:
        await newsroom.graph.answer(run_id, gate, True, lm, go_on=False, **options)
    return await newsroom.graph.answer(run_id, last, True, lm, **options)
