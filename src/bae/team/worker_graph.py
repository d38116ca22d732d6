"""The work on a task as a graph: the LLM writes edits, they are applied and committed, tests judge
them, and they are merged; what fails goes back to the LLM with its actual text. Every step is in
the journal, so that a killed run continues where it was and no answer is paid for twice."""

from __future__ import annotations

import json
import logging
import re
from asyncio import CancelledError
from hashlib import sha256
from os import urandom
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from bae import LM, BaeError, Dep, Graph, Node, Text
from bae.journal import Record
from bae.lm import Usage, metered
from bae.observers import observing
from bae.tasks import finish_despite_cancel
from bae.team.base_check import describe_failed_before
from bae.team.edit_format import UNCHANGED, EditError, format_instructions, parse_answer
from bae.team.environment import Cause, find_cause, find_error_cause
from bae.team.events import CorrectionAttempt
from bae.team.git import shown_path
from bae.team.guarded_files import Guarded
from bae.team.integration import Failed, Integrated
from bae.team.models import (
    LONGEST_REASON,
    Task,
    TaskAttempt,
    TaskResult,
    TestReport,
    as_planned,
    bounded,
    headline,
)
from bae.team.task_context import Context
from bae.team.verdict import WorkVerdict
from bae.team.workspaces import ManifestError

if TYPE_CHECKING:
    from bae.team.edit_format import EditFormat
    from bae.team.workbench import Workbench
    from bae.team.worker import WorkerAgent

_log = logging.getLogger(__name__)
ASKED_AGAIN: Final = 2
"""How often an answer that cannot be applied is asked for again: with the lines that are nearest to
those that were not found, then as whole files."""
SYSTEM: Final = (
    "You are a member of a team that works on a project in a git repository. You carry out one "
    "task by writing edits of its files. Your edits are applied as they are, the tests of the "
    "project are run, and what you wrote is merged if they pass."
)


class Try(BaseModel):
    """An attempt at a task, as its steps pass it on."""

    model_config = ConfigDict(frozen=True)

    first: int = Field(description="the number of the first attempt of this run")
    number: int
    failure: str = Field(default="", description="what was wrong with the attempt before")
    asked: int = Field(default=0, description="how often its answer could not be applied")
    answer: str = ""
    refused: str = Field(default="", description="why the answer was not applied")
    missed: tuple[str, ...] = ()
    repeated: str = Field(default="", description="the digest of an answer that led to nothing")
    usage: Usage = Usage()


class Desk:
    """A worker, and the task that it works on in a run."""

    def __init__(self, worker: WorkerAgent, bench: Workbench, task: Task, run: str) -> None:
        self.worker = worker
        self.bench = bench
        self.task = task
        self.run = run

    async def keep(
        self,
        attempt: Try,
        outcome: Literal["passed", "failed", "refused", "conflict", "error"],
        verdict: WorkVerdict | None,
        failure: str = "",
    ) -> None:
        """Store what became of an attempt."""
        workspace = await self.worker.workspace(self.task)
        head = await workspace.head()
        changed = await self.bench.repository.changed_files(workspace.base, head)
        kept = TaskAttempt(
            task_id=self.task.id,
            number=attempt.number,
            outcome=outcome,
            failure=bounded(failure),
            files=tuple(map(shown_path, changed)),
            report=verdict.report if verdict else None,
            usage=attempt.usage,
        )
        await self.bench.store.add_attempt(kept)

    async def is_work_of_before(self, attempt: Try, error: EditError) -> bool:
        """Whether an answer repeats what an earlier run of the task has left. What that one failed
        for may have been corrected outside of the code since: the tests decide."""
        if attempt.number != attempt.first or error.reasons != (UNCHANGED,):
            return False
        workspace = await self.worker.workspace(self.task)
        return bool(await workspace.changed())

    async def is_to_be_merged(self) -> bool:
        """Whether a person has said yes to the content of the work, the last time that one was
        asked: then the LLM has nothing to write."""
        asked = await self.bench.store.blockers(self.task.project_id)
        last = [each for each in asked if each.task_id == self.task.id][-1:]
        if not last or last[0].digest is None or not last[0].is_yes:
            return False
        return bool(await (await self.worker.workspace(self.task)).changed())

    async def describe_failed_before(self) -> str:
        """The tests that failed before the task and still may, as a text."""
        return describe_failed_before(await self._base_report(), self.task.tests)

    async def find_cause(self, report: TestReport) -> Cause | None:
        """What of the environment kept the tests from a verdict."""
        return None if report.passed else find_cause(report, await self._base_report())

    async def _base_report(self) -> TestReport:
        workspace = await self.worker.workspace(self.task)
        return await self.bench.base_report(workspace.base)

    async def block_for(self, attempt: Try, report: TestReport, cause: Cause) -> Blocked:
        """Ask a person, since the environment failed twice: an LLM cannot correct that. The work is
        kept, and judged as it is by the next run."""
        await self.keep(attempt, "error", WorkVerdict(report), str(cause))
        return Blocked(question=ask_about(self.task, cause, report.output.strip()))

    async def try_again(
        self, attempt: Try, failure: str, *, conflict: bool = False
    ) -> Draft | Blocked | Stopped:
        """The next attempt, with what was wrong with this one, unless there were enough of them."""
        done = attempt.number - attempt.first
        again = is_same_failure(failure, attempt.failure)
        if self.bench.should_stop(self.task.id):
            return Stopped(number=attempt.number)
        if again or done >= self.bench.corrections:
            return Blocked(question=_question(self.task, done + 1, failure, again))
        shown = bounded(failure, _SHOWN_FAILURE)
        about = self.task.project_id, self.task.id
        await self.bench.emit(CorrectionAttempt(*about, done + 1, shown))
        # To write the same once more may well resolve a conflict.
        repeated = "" if conflict else digest(attempt.answer)
        return Draft(
            attempt=Try(
                first=attempt.first, number=attempt.number + 1, failure=failure, repeated=repeated
            )
        )


async def get_desk() -> Desk:
    """The worker whose run this is: every run is given its own."""
    raise LookupError("a run of the worker graph needs its desk in dep_cache")


async def write_brief(desk: Annotated[Desk, Dep(get_desk)], attempt: Try) -> str:
    """What the LLM is asked. It is in the journal before, so that it is asked once."""
    worker, task = desk.worker, desk.task
    if attempt.number == attempt.first and not attempt.asked:
        await worker.say(task, f"works on {task.title}")
    parts = [await worker.brief(task, await worker.build_context(task), attempt.failure)]
    if known := await desk.describe_failed_before():
        parts.append(f"# Tests that failed before\n{known}")
    if attempt.refused:
        parts.append(f"# Your last answer\n{bounded(attempt.answer, _SHOWN_ANSWER)}")
        parts.append(f"# Why it was not applied\n{bounded(attempt.refused, _SHOWN_ANSWER)}")
    if attempt.asked >= ASKED_AGAIN and attempt.missed:
        parts.append(f"Write these files completely this time: {', '.join(attempt.missed)}.")
    return "\n\n".join(parts)


def read_answer(text: str) -> str:
    """An answer as it is, if it has edits or a question."""
    if question_in(text) is None:
        parse_answer(text)
    return text


class WorkerAnswer(Node):
    """What the LLM writes."""

    former_name: ClassVar[str] = "Answer"
    """Its name in scripts of earlier versions."""
    text: Annotated[str, Text(read_answer)] = Field(
        description="edits in the form that is shown above, or a question"
    )

    async def __call__(self) -> None: ...


class WorkRequest(Node):
    """What is asked for, in a few words: which attempt at which task, and how often its answer
    could not be applied."""

    task: str
    attempt: int
    asked_again: int = 0


class Assignment(Node):
    """The start: a task, and where its work is."""

    task_id: int
    key: str
    failure: str = Field(default="", description="what an attempt has left to be corrected")
    desk: Annotated[Desk, Dep(get_desk)] = Field(init=False)

    async def __call__(self) -> Draft | Checks | Delivered | Blocked:
        desk = self.desk
        done = await desk.bench.integration.merged_as(desk.task.branch)
        if done:
            return Delivered(commit=done)
        workspace = await desk.worker.workspace(desk.task)
        conflict = await workspace.update()
        check = await desk.bench.check_base(workspace.base)
        if check.problem:
            return Blocked(question=ask_about(desk.task, check.cause, check.output))
        tried = await desk.bench.store.attempts(self.task_id)
        if tried and tried[-1].outcome == "error" and not (self.failure or conflict):
            number = tried[-1].number  # its work is there, and was never judged
            return Checks(attempt=Try(first=number, number=number, usage=tried[-1].usage))
        number = max((each.number for each in tried), default=0) + 1
        failure = "\n\n".join(filter(None, (self.failure, conflict.text if conflict else "")))
        first = number - 1 if self.failure else number
        attempt = Try(first=first, number=number, failure=failure)
        if not failure and await desk.is_to_be_merged():
            return Checks(attempt=attempt)
        return Draft(attempt=attempt)


class Draft(Node):
    """An attempt begins: the LLM is asked."""

    attempt: Try
    desk: Annotated[Desk, Dep(get_desk)] = Field(init=False)
    brief: Annotated[str, Dep(write_brief, timeout=None, attempt="attempt")] = Field(init=False)

    async def __call__(self, lm: LM) -> Edits | Blocked:
        worker, task, attempt = self.desk.worker, self.desk.task, self.attempt
        request = WorkRequest(task=task.key, attempt=attempt.number, asked_again=attempt.asked)
        with metered() as used:
            text = await worker.generate_code(task, self.brief, lm=lm, request=request)
        question = question_in(text)
        if question is not None:
            return Blocked(question=question)
        if attempt.repeated and digest(text) == attempt.repeated:
            failure = attempt.refused or attempt.failure
            await self.desk.keep(attempt, "refused", None, REPEATED)
            return Blocked(question=_ask_about_repetition(task, failure))
        answered = {"answer": text, "usage": Usage.total([attempt.usage, *used])}
        return Edits(attempt=attempt.model_copy(update=answered))


class Edits(Node):
    """The edits are applied and committed, all or none."""

    attempt: Try
    desk: Annotated[Desk, Dep(get_desk)] = Field(init=False)

    async def __call__(self) -> Checks | Draft | Blocked | Stopped:
        desk, attempt = self.desk, self.attempt
        mark = f"{desk.run}/{attempt.number}"
        try:
            await desk.worker.apply_file_changes(desk.task, attempt.answer, mark=mark)
        except EditError as error:
            if await desk.is_work_of_before(attempt, error):
                return Checks(attempt=attempt)
            if attempt.asked < ASKED_AGAIN:
                again = {"refused": error.message, "missed": error.missed}
                asked = {"asked": attempt.asked + 1, "repeated": digest(attempt.answer)}
                return Draft(attempt=attempt.model_copy(update=again | asked))
            await desk.keep(attempt, "refused", None, error.message)
            failure = attempt.failure  # which is still there, as nothing was changed
            if error.message not in failure:
                failure = f"{error.message}\n\n{failure}".rstrip()
            return await desk.try_again(attempt, failure)
        return Checks(attempt=attempt)


class Checks(Node):
    """The tests are run, and the work is judged by them."""

    attempt: Try
    desk: Annotated[Desk, Dep(get_desk)] = Field(init=False)

    async def __call__(self) -> Merge | Draft | Blocked | Stopped:
        desk, attempt = self.desk, self.attempt
        if attempt.number > 1:  # a run may have been killed here
            await (await desk.worker.workspace(desk.task)).put_back()
        try:
            verdict = await desk.worker.run_tests(desk.task)
            if await desk.find_cause(verdict.report) is not None:
                verdict = await desk.worker.run_tests(desk.task)
            cause = None if verdict.accepted else await desk.find_cause(verdict.report)
            if cause is not None:
                return await desk.block_for(attempt, verdict.report, cause)
            if verdict.accepted and attempt.number > 1 and attempt.answer:
                verdict = await desk.worker.leave_out_debris(desk.task, attempt.answer, verdict)
        except ManifestError as error:
            return Blocked(question=error.question, digest=error.digest)
        if verdict.accepted:
            await desk.keep(attempt, "passed", verdict)
            if verdict.concerns and not await desk.bench.has_yes(desk.task, verdict.digest):
                return Blocked(question=_describe_concerns(verdict), digest=verdict.digest)
            return Merge(attempt=attempt)
        outcome = "refused" if verdict.report.passed else "failed"
        known = await desk.describe_failed_before()
        text = "\n\n".join(filter(None, (verdict.text, known)))
        await desk.keep(attempt, outcome, verdict, text)
        return await desk.try_again(attempt, text)


class Merge(Node):
    """The work is merged into the team's branch, where the tests run once more."""

    attempt: Try
    desk: Annotated[Desk, Dep(get_desk)] = Field(init=False)

    async def __call__(self) -> Delivered | Draft | Blocked | Stopped:
        desk = self.desk
        try:
            outcome = await desk.worker.merge(desk.task)
            if isinstance(outcome, Failed) and await desk.find_cause(outcome.report):
                outcome = await desk.worker.merge(desk.task)
        except ManifestError as error:
            return Blocked(question=error.question, digest=error.digest)
        if isinstance(outcome, Integrated):
            return Delivered(commit=outcome.commit)
        if isinstance(outcome, Guarded):
            return Blocked(question=outcome.question, digest=outcome.digest)
        if isinstance(outcome, Failed) and (cause := await desk.find_cause(outcome.report)):
            return await desk.block_for(self.attempt, outcome.report, cause)
        known = await desk.describe_failed_before()
        text = "\n\n".join(filter(None, (outcome.text, known)))
        # Only now: where a run was killed after the merge, there is nothing left to work on.
        workspace = await desk.worker.workspace(desk.task)
        conflict = await workspace.update()
        if conflict:
            text = f"{conflict.text}\n\nThe files have these conflict markers now: resolve them."
        await desk.keep(self.attempt, "conflict" if conflict else "failed", None, text)
        return await desk.try_again(self.attempt, text, conflict=conflict is not None)


class Delivered(Node):
    """The end: the work is merged."""

    commit: str

    async def __call__(self) -> None: ...


class Blocked(Node):
    """The end: a person is asked; `digest` stands for the content that a yes lets in."""

    question: str
    digest: str | None = None

    async def __call__(self) -> None: ...


class Stopped(Node):
    """The end: it was to stop after this attempt."""

    number: int

    async def __call__(self) -> None: ...


worker_graph = Graph(start=Assignment, end=(Delivered, Blocked, Stopped), system=SYSTEM)


async def run_task(
    worker: WorkerAgent, bench: Workbench, task: Task, failure: str = ""
) -> TaskResult:
    """Have a worker carry out a task, or correct the `failure` of an attempt at it. Where a run of
    the task was killed, cancelled or failed, that one continues. A task without tests that a person
    has not approved is not begun."""
    if task.proof == "none":
        stored = await bench.store.task(task.id)
        if not (stored.proof == "none" and stored.approved):
            return await _result(bench, task, Blocked(question=_describe_untested(task)), Usage())
    correction = f"task-{task.id}-corrected-{urandom(4).hex()}"
    run = correction if failure else await _run_id(bench, task, worker.alone)
    start = Assignment(task_id=task.id, key=task.key, failure=failure)

    def note_progress(_: object, record: Record) -> None:
        bench.on_progress(task.id)

    why = "cancelled"
    try:
        lm = bench.limit_lm(task, await worker.lm())
        with observing(note_progress):
            ended = await worker_graph.arun(
                start,
                lm,
                max_iters=0,
                dep_cache={get_desk: Desk(worker, bench, task, run)},
                journal=bench.journal,
                run_id=run,
                resume=True,
            )
        last, used, why = ended.result, ended.usage, "done"
    except BaeError as error:
        why = "failed"
        if error.code == "bae-run-changed":  # it is of another version of bae: begin again
            await bench.journal.delete([run])
            return await run_task(worker, bench, task, failure)
        _log.error("task %s failed: %s", task.key, error.message.partition("\n")[0])
        _log.debug("task %s failed", task.key, exc_info=True)
        used = error.journal.usage() if error.journal else Usage()
        cause = find_error_cause(error)
        last = Blocked(question=ask_about(task, cause, str(error))) if cause else error
    except CancelledError:
        _log.info("the work on task %s was cancelled", task.key)
        raise
    except Exception:  # a worker of the user's may raise anything
        _log.error("task %s failed", task.key, exc_info=True)
        raise
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
    bench: Workbench, task: Task, last: Delivered | Blocked | Stopped | BaeError, used: Usage
) -> TaskResult:
    tried = await bench.store.attempts(task.id)
    flaky = await bench.store.flaky_tests(task.project_id)
    about: dict[str, Any] = {
        "task_id": task.id,
        "attempts": len(tried),
        "report": tried[-1].report if tried else None,
        "flaky": flaky.get(task.id, ()),
        "files": tried[-1].files if tried else (),
        "usage": used,
    }
    match last:
        case Delivered(commit=commit):
            text = f"{task.title}: merged as {commit[:12]}"
            done = "merged" if task.proof == "none" else "completed"
            return TaskResult(status=done, commit=commit, summary=text, **about)
        case Blocked(question=question, digest=digest):
            return TaskResult(status="blocked", question=question, digest=digest, **about)
        case Stopped(number=number):
            return TaskResult(status="failed", error=f"stopped after attempt {number}", **about)
        case BaeError():
            return TaskResult(status="failed", error=bounded(str(last), LONGEST_REASON), **about)


def compose_brief(role: str, context: Context, failure: str, diff: str, form: EditFormat) -> str:
    """All that the LLM is told for an attempt, in plain text."""
    parts = [role, str(context)]
    if diff:
        stays = _STAYS if failure else ""
        parts.append(f"# What was changed for this task so far\n{diff}{stays}")
    if failure:
        parts.append(f"# What is wrong with it, to be corrected now\n{failure}")
    parts.append(f"# How to answer\n{format_instructions(form)}\n\n{_ASK}")
    return "\n\n".join(parts)


def question_in(answer: str) -> str | None:
    """The question that an answer asks instead of writing edits."""
    found = _QUESTION.match(answer)
    return bounded(found[1].strip(), _SHOWN_FAILURE) if found else None


def ask_about(task: Task, cause: Cause, output: str = "") -> str:
    """What a person is asked where the environment failed: one sentence and what to do, then what
    was printed."""
    shown = f"\n\n{bounded(output, _SHOWN_OUTPUT)}" if output else ""
    return f"{task.title!r} cannot be tested. {cause} Is it done?{shown}"


def digest(answer: str) -> str:
    """Something short that is the same for answers with the same words; empty for none."""
    words = " ".join(answer.split())
    return sha256(words.encode()).hexdigest()[:16] if words else ""


def is_same_failure(one: str, other: str) -> bool:
    """Whether two texts tell of the same failure, whatever its times, addresses and line numbers
    are."""
    return bool(one) and _VARYING.sub("", one) == _VARYING.sub("", other)


def _describe_concerns(verdict: WorkVerdict) -> str:
    lines = [f"- {file} {what}" for file, what in verdict.concerns]
    shown = bounded("\n".join(lines), _SHOWN_FAILURE)
    return (
        "The tests pass, and this code could decide about its own tests:\n"
        f"{shown}\nRead it. Answer yes to merge it, or say what is to be changed."
    )


def _describe_untested(task: Task) -> str:
    return (
        f"{task.title!r} is to be merged without tests, and a person has not approved that: "
        f"bae team tasks approve {task.key} --without-tests"
    )


def _question(task: Task, attempts: int, failure: str, again: bool) -> str:
    times = "One attempt" if attempts == 1 else f"{attempts} attempts"
    same = ", the last two in the same way" if again else ""
    why = headline(failure, 200).rstrip(".:")
    return (
        f"{times} at {task.title!r} failed{same}: {why}. What should be done differently?\n\n"
        f"The last failure:\n{bounded(failure, _SHOWN_FAILURE)}"
    )


def _ask_about_repetition(task: Task, failure: str) -> str:
    why = headline(failure, 200).rstrip(".:")
    return (
        f"The LLM repeated its answer for {task.title!r} word for word. It had failed: {why}. What "
        f"should be done differently?\n\nThe failure:\n{bounded(failure, _SHOWN_FAILURE)}"
    )


REPEATED: Final = "the LLM repeated its last answer word for word"
_SHOWN_ANSWER: Final = 40_000
_SHOWN_OUTPUT: Final = 2_000
_SHOWN_FAILURE: Final = 4_000
_STAYS: Final = (
    "\n\nYour answer continues from there. Files that were created for this task are removed if "
    "your answer does not name them and nothing uses them: name each that is to stay."
)
_ASK: Final = (
    "If, and only if, the task cannot be done before a person has decided something, write no "
    "edits but one question, as `QUESTION: …`."
)
_QUESTION: Final = re.compile(r"\s*QUESTION:\s*(\S.*)", re.DOTALL)
_VARYING: Final = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?\s?m?s\b|:\d+(:\d+)?|/tmp/\S+|\s+")
