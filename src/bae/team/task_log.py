"""The log of a task: questions, steps and results of its worker, in time order.

`read_task_log` combines the journal of the agents' runs with the team's events. It does not load
the code of the runs. `follow_agents` reports the current steps of workers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import time
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from bae import JournalError, Usage
from bae.journal import (
    AskedQuestion,
    Feeds,
    Journal,
    Line,
    MadeCall,
    RunInfo,
    StoredRun,
    list_questions,
    subscribe,
)
from bae.team.budgets import Spent, read_spent
from bae.team.events import (
    ActionRequested,
    ActivityUpdate,
    BlockerCreated,
    BlockerResolved,
    CommitCreated,
    CorrectionAttempt,
    Event,
    TaskStatusChanged,
    TestResult,
    WorkReviewed,
)
from bae.team.models import Task, TaskAttempt, TaskStatus, headline

if TYPE_CHECKING:
    from bae.team.store import Store

LogKind = Literal[
    "status",
    "correction",
    "lm",
    "tool",
    "program",
    "submission",
    "edits",
    "tests",
    "review",
    "question",
    "answer",
    "steered",
    "merge",
    "activity",
]
"""The kind of a log entry.

- `status`: the task has a new status.
- `correction`: the worker corrects refused work.
- `lm`: a question to an LLM, with its answers.
- `tool`: a tool call.
- `program`: an activity of a coding program, such as Claude Code.
- `submission`: the LLM submitted the work.
- `edits`: edits were committed.
- `tests`: a test run.
- `review`: a review of the work.
- `question`: a question to a person.
- `answer`: a person's answer.
- `steered`: a person's request or note.
- `merge`: the work was merged.
- `activity`: anything else."""
_PAGE: Final = 1000
_RUN: Final = re.compile(r"task-(\d+)-(review-)?")


class LogEntry(BaseModel):
    """One entry of a task's log."""

    model_config = ConfigDict(frozen=True)

    at: float = Field(description="seconds since 1970")
    kind: LogKind
    text: str = Field(default="", description="the entry in one line")
    ok: bool = Field(
        default=True, description="false if the step failed, was refused or cancelled, or is open"
    )
    seconds: float = 0.0
    usage: Usage | None = Field(default=None, description="the usage of an LLM question")
    run: str = Field(default="", description="the run in the journal, if the entry is from a run")
    detail: str = Field(default="", description="the full text of the entry")


class TaskLog(BaseModel):
    """The log of a task, with the attempts and the spending of the task. The oldest entry comes
    first."""

    model_config = ConfigDict(frozen=True)

    task: Task
    spent: Spent
    attempts: tuple[TaskAttempt, ...]
    entries: tuple[LogEntry, ...]


async def read_task_log(
    store: Store, journal: Journal, task: Task, *, shows: Callable[[RunInfo], bool] = lambda _: True
) -> TaskLog:
    """Read the log of a task. Only runs for which `shows` returns true are read.

    A run in progress is read up to its newest record."""
    entries = [entry async for entry in _read_events(store, task)]
    async for info in journal.every_run():
        run = _RUN.match(info.run_id)
        if run and int(run[1]) == task.id and shows(info):
            stored = await journal.read(info.run_id)
            entries += await asyncio.to_thread(_read_run, stored, bool(run[2]))
    return TaskLog(
        task=task,
        spent=await read_spent(store, task_id=task.id),
        attempts=tuple(await store.attempts(task.id)),
        entries=tuple(sorted(entries, key=lambda entry: entry.at)),
    )


async def _read_events(store: Store, task: Task) -> AsyncGenerator[LogEntry]:
    number = 0
    while batch := await store.events(task.project_id, number, most=_PAGE, task_id=task.id):
        number = batch[-1].number
        for stored in batch:
            if fields := _describe_event(stored.event, task):
                yield LogEntry(at=stored.at, **fields)


def _describe_event(event: Event, task: Task) -> dict[str, Any] | None:
    """Return the fields of an event's log entry, or None if another entry covers the event."""
    match event:
        case TaskStatusChanged(status=status, reason=reason):
            if status is TaskStatus.BLOCKED:
                return None  # the question and an earlier failure have events of their own
            good = status not in (TaskStatus.FAILED, TaskStatus.CANCELLED)
            summary = f"{status.label}: {headline(reason)}" if reason else status.label
            waits = status in (TaskStatus.PENDING, TaskStatus.READY)
            kind = "activity" if waits else "status"
            return {"kind": kind, "text": summary, "ok": good, "detail": reason}
        case TestResult():
            counts = ", ".join(f"{n} {name}" for name, n in event.counts.items() if n)
            good = event.passed and not event.problem
            text = "; ".join(filter(None, (counts or "none found", headline(event.problem))))
            texts = {"seconds": event.seconds, "detail": event.problem}
            return {"kind": "tests", "text": text, "ok": good, **texts}
        case CorrectionAttempt(attempt=number, failure=failure):
            return {"kind": "correction", "text": f"number {number}", "detail": failure}
        case CommitCreated(commit=commit, files=files):
            if commit == task.commit or not files:
                return {"kind": "merge", "text": f"as {commit[:12]}"}
            texts = {"text": ", ".join(files), "detail": commit}
            return {"kind": "edits", **texts}
        case WorkReviewed(review=review):
            good = not (review.error or review.blocking)
            findings = (
                "\n".join(("", *map(str, review.findings))) if review.findings else review.error
            )
            detail = f"{review.headline}\n{findings}".rstrip()
            return {"kind": "review", "text": review.headline, "ok": good, "detail": detail}
        case BlockerCreated(question=question):
            return {"kind": "question", "text": headline(question), "detail": question}
        case BlockerResolved(answer=answer, by=by):
            summary = f"{f'by {by}: ' if by else ''}{headline(answer)}"
            return {"kind": "answer", "text": summary, "detail": answer}
        case ActionRequested(action=action, text=note, by=by):
            summary = f"{action}{f' by {by}' if by else ''}{f': {headline(note)}' if note else ''}"
            return {"kind": "steered", "text": summary, "detail": note}
        case ActivityUpdate(journaled=True):
            return None  # an earlier version of bae stored tool calls as events too
        case ActivityUpdate(text=text, program=program):
            kind = "program" if program else "activity"
            return {"kind": kind, "text": headline(text), "detail": text}
        case _:
            return None


def _read_run(stored: StoredRun, is_review: bool) -> list[LogEntry]:
    questions = list_questions(stored)
    # While a run is running, its last question may still be open.
    at_work = questions[-1:] if stored.info.standing() == "running" else []
    return [
        entry
        for question in questions
        for entry in _read_question(
            question, stored.info.run_id, is_review=is_review, is_open=question in at_work
        )
    ]


def _read_question(
    question: AskedQuestion, run: str, *, is_review: bool, is_open: bool
) -> Iterator[LogEntry]:
    answers = question.answers
    errors = [error for answer in answers if answer.verdict == "invalid" for error in answer.errors]
    problems = [f"answer refused: {headline(error)}" for error in errors]
    problems += [headline(question.error)] if question.error else []
    is_cut_off = question.outcome in ("interrupted", "cancelled") and not is_open
    problems += ["not answered"] if is_cut_off else []
    count = len(question.rounds)
    rounds = [f"{count} rounds" if count > 1 else "1 round"] if count else []
    # If a limit or a kill ended a conversation, no answer repeats the question's text.
    questions = [answer.asked for answer in answers if answer.asked] or [question.asked]
    texts = [f"asked:\n{text}" for text in questions if text]
    texts += [
        f"answered ({answer.verdict}):\n{answer.answer}" for answer in answers if answer.answer
    ]
    yield LogEntry(
        at=question.at,
        kind="lm",
        text="; ".join((*rounds, *problems)),
        ok=not problems,
        seconds=question.seconds,
        usage=question.usage,
        run=run,
        detail="\n\n".join(dict.fromkeys(texts)),  # a policy repeats the texts of its LM
    )
    for tool_round in question.rounds:
        for number, call in enumerate(tool_round.calls):
            yield _read_call(call, tool_round.at + number * 1e-6, run)  # in the order of the calls
        if tool_round.text.strip() and not tool_round.calls and not is_review:
            summary = headline(tool_round.text)
            yield LogEntry(
                at=tool_round.at, kind="submission", text=summary, detail=tool_round.text, run=run
            )
        for note in tool_round.told:
            after = tool_round.at + len(tool_round.calls) * 1e-6
            summary = headline(note)
            yield LogEntry(at=after, kind="activity", text=summary, detail=note, run=run)


def _read_call(call: MadeCall, at: float, run: str) -> LogEntry:
    is_text = call.error is None and isinstance(call.result, str)
    result = call.result if is_text else json.dumps(call.result, ensure_ascii=False, default=str)
    states = {"waiting": "waits for a person", "begun": "not finished", "asked": "not begun"}
    outcome = states.get(call.state) or (call.error if call.error is not None else str(result))
    is_edit = call.name == "edit" and call.state == "done"  # its commit has its own entry
    return LogEntry(
        at=at,
        kind="activity" if is_edit else "tool",
        text=f"{_shorten_call(call)} -> {headline(outcome) or '(nothing)'}",
        ok=call.state == "done",
        seconds=call.seconds,
        run=run,
        detail=f"{call.text}\n{outcome}",
    )


def _shorten_call(call: MadeCall) -> str:
    """Write a call with only the first line of each text argument."""
    short = {
        name: _first_line(value) if isinstance(value, str) else value
        for name, value in call.arguments.items()
    }
    return replace(call, arguments=short).text


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return f"{lines[0]} …" if len(lines) > 1 else text


# --- the current steps of workers -----------------------------------------------------------------


class AgentStep(NamedTuple):
    """A step that an agent has begun, in words."""

    at: float
    task_id: int
    text: str


async def follow_agents(
    journal: Journal, show: Callable[[Sequence[AgentStep]], Awaitable[None]], *, past: bool = False
) -> None:
    """Call `show` with each new step of the agents of all processes, until the caller cancels.

    With `past`, `show` also gets the earlier steps of runs in progress."""
    feeds, began = Feeds(journal), time()
    positions: dict[str, int] = {}
    changed: set[str] = set()
    followed: set[str] = set()

    async def read(run: re.Match[str]) -> None:
        run_id, is_review = run.string, bool(run[2])
        async with subscribe(feeds.run(run_id), positions.get(run_id, -1)) as lines:
            async for batch in lines:
                new = [item.value for item in batch.items if past or item.value.at >= began]
                steps_seen = [(line.at, describe_line(line, is_review=is_review)) for line in new]
                if steps := [AgentStep(at, int(run[1]), text) for at, text in steps_seen if text]:
                    await show(steps)
        positions[run_id] = lines.number
        if lines.end == "reset":  # the run was deleted, and a new run has its id
            del positions[run_id]
            changed.add(run_id)

    async def follow(run: re.Match[str]) -> None:
        while run.string in changed:
            changed.discard(run.string)
            try:
                await read(run)
            except JournalError as error:
                if error.code != "bae-run-unknown":  # a deleted run is no error
                    raise
        followed.discard(run.string)

    try:
        async with asyncio.TaskGroup() as group, subscribe(feeds.runs) as runs:
            async for batch in runs:
                for info in (item.value for item in batch.items):
                    run = _RUN.match(info.run_id)
                    if run and (info.standing() == "running" or info.updated >= began):
                        changed.add(info.run_id)
                        if info.run_id not in followed:
                            followed.add(info.run_id)
                            group.create_task(follow(run))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def describe_line(line: Line, *, is_review: bool) -> str:
    """Describe the step that begins with this line of a run. Return an empty text if no step begins
    here, as for most lines."""
    if line.kind == "ToolStarted":
        data = json.loads(line.data)
        return _describe_step(data["name"], data.get("arguments") or {})
    if line.kind == "RoundMade" and not is_review:
        data = json.loads(line.data)
        text = headline(data.get("text", ""), 80)
        return f"submits: {text}" if text and not data.get("calls") else ""
    return ""


def _describe_step(name: str, arguments: Mapping[str, Any]) -> str:
    match name:
        case "look":
            return f"looks at {arguments.get('path')} {arguments.get('lines') or ''}".rstrip()
        case "find":
            where = arguments.get("glob")
            return headline(
                f"searches for {arguments.get('pattern')}{f' in {where}' if where else ''}"
            )
        case "outline":
            return f"outlines {arguments.get('path') or 'the repository'}"
        case "edit":
            return "edits files"
        case "run":
            return f"runs {headline(str(arguments.get('command')), 80)}"
        case "check":
            return f"checks {headline(', '.join(arguments.get('tests') or ['all tests']), 80)}"
        case "ask":
            return ""  # the question is an event
        case _:
            return f"uses {name}"
