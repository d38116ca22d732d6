"""The work on a task as a graph: the LLM writes edits, they are applied and committed, tests judge
them, and they are merged; what fails goes back to the LLM with its actual text. Every step is in
the journal, so that a killed run continues where it was and no answer is paid for twice."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from bae import LM, Dep, Graph, Node, Text
from bae.lm import Usage, metered
from bae.team.edit_format import EditError, format_instructions, parse_answer
from bae.team.events import CorrectionAttempt
from bae.team.integration import Integrated
from bae.team.models import Attempt, Task, bounded
from bae.team.task_context import Context
from bae.team.verdict import Verdict

if TYPE_CHECKING:
    from bae.team.edit_format import EditFormat
    from bae.team.workbench import Workbench
    from bae.team.worker import WorkerAgent

ASKED_AGAIN: Final = 2
"""How often an answer that cannot be applied is asked for again: with the lines that are nearest to
those that were not found, then as whole files."""
SYSTEM: Final = (
    "You are a member of a team that works on a project in a git repository. You carry out one "
    "task by writing edits of its files. Your edits are applied as they are, the tests of the "
    "project are run, and what you wrote is merged if they pass."
)


class Desk:
    """A worker, and the task that it works on."""

    def __init__(self, worker: WorkerAgent, bench: Workbench, task: Task, run: str) -> None:
        self.worker = worker
        self.bench = bench
        self.task = task
        self.run = run

    async def write_brief(self, step: Draft) -> str:
        """What the LLM is asked."""
        task = self.task
        if step.number == step.first and not step.asked:
            await self.worker.say(task, f"works on {task.title}")
        parts = [await self.worker.brief(task, await self.worker.build_context(task), step.failure)]
        if step.refused:
            parts.append(f"# Your last answer\n{bounded(step.answer, _SHOWN_ANSWER)}")
            parts.append(f"# Why it was not applied\n{bounded(step.refused, _SHOWN_ANSWER)}")
        if step.asked >= ASKED_AGAIN and step.missed:
            parts.append(f"Write these files completely this time: {', '.join(step.missed)}.")
        return "\n\n".join(parts)

    async def keep(self, step: Tried, outcome: Any, verdict: Verdict | None, failure: str) -> None:
        """Store what became of an attempt."""
        workspace = await self.worker.workspace(self.task)
        head = await workspace.head()
        attempt = Attempt(
            task_id=self.task.id,
            number=step.number,
            outcome=outcome,
            failure=bounded(failure),
            files=await self.bench.repository.changed_files(workspace.base, head),
            report=verdict.report if verdict else None,
            usage=step.usage,
        )
        await self.bench.store.add_attempt(attempt)

    async def try_again(self, step: Tried, failure: str) -> Draft | Blocked | Stopped:
        """The next attempt, with what was wrong with this one, unless there were enough of them."""
        done = step.number - step.first
        again = is_same_failure(failure, step.failure)
        if self.bench.should_stop(self.task.id):
            return Stopped(number=step.number)
        if again or done >= self.bench.corrections:
            return Blocked(question=_question(self.task, done + 1, failure, again))
        number = step.number + 1
        await self.bench.emit(
            CorrectionAttempt(
                project_id=self.task.project_id,
                task_id=self.task.id,
                attempt=done + 1,
                failure=bounded(failure, _SHOWN_FAILURE),
            )
        )
        return Draft(first=step.first, number=number, failure=failure)


async def get_desk() -> Desk:
    """The worker whose run this is: every run is given its own."""
    raise LookupError("a run of the worker graph needs its desk in dep_cache")


async def write_brief(
    desk: Annotated[Desk, Dep(get_desk)],
    first: int,
    number: int,
    failure: str,
    asked: int,
    answer: str,
    refused: str,
    missed: tuple[str, ...],
) -> str:
    """What the LLM is asked. It is in the journal before, so that it is asked once."""
    step = Draft(
        first=first,
        number=number,
        failure=failure,
        asked=asked,
        answer=answer,
        refused=refused,
        missed=missed,
    )
    return await desk.write_brief(step)


def read_answer(text: str) -> str:
    """An answer as it is, if it has edits or a question."""
    if question_in(text) is None:
        parse_answer(text)
    return text


class Answer(Node):
    """What the LLM writes."""

    text: Annotated[str, Text(read_answer)] = Field(
        description="edits in the form that is shown above, or a question"
    )

    async def __call__(self) -> None: ...


class Turn(Node):
    """What is asked for, in a few words: which attempt at which task, and how often its answer
    could not be applied."""

    task: str
    attempt: int
    asked_again: int = 0


class Assignment(Node):
    """The start: a task, and where its work is."""

    task_id: int
    key: str
    desk: Annotated[Desk, Dep(get_desk)] = Field(init=False)

    async def __call__(self) -> Draft | Delivered:
        desk = self.desk
        done = await desk.bench.integration.merged_as(desk.task.branch)
        if done:
            return Delivered(commit=done)
        workspace = await desk.worker.workspace(desk.task)
        conflict = await workspace.update()
        attempts = await desk.bench.store.attempts(self.task_id)
        number = max((each.number for each in attempts), default=0) + 1
        return Draft(first=number, number=number, failure=conflict.text if conflict else "")


class Draft(Node):
    """An attempt begins: the LLM is asked."""

    first: int
    number: int
    failure: str = ""
    """What was wrong with the attempt before."""
    asked: int = 0
    answer: str = ""
    refused: str = ""
    missed: tuple[str, ...] = ()
    desk: Annotated[Desk, Dep(get_desk)] = Field(init=False)
    brief: Annotated[
        str,
        Dep(
            write_brief,
            timeout=None,
            first="first",
            number="number",
            failure="failure",
            asked="asked",
            answer="answer",
            refused="refused",
            missed="missed",
        ),
    ] = Field(init=False)

    async def __call__(self, lm: LM) -> Edits | Blocked:
        turn = Turn(task=self.desk.task.key, attempt=self.number, asked_again=self.asked)
        worker, task = self.desk.worker, self.desk.task
        with metered() as used:
            text = await worker.generate_code(task, self.brief, lm=lm, turn=turn)
        question = question_in(text)
        if question is not None:
            return Blocked(question=question)
        return Edits(
            first=self.first,
            number=self.number,
            failure=self.failure,
            usage=Usage.total(used),
            asked=self.asked,
            answer=text,
        )


class Tried(Node):
    """What the steps of an attempt have in common."""

    first: int
    number: int
    failure: str = ""
    usage: Usage = Usage()
    desk: Annotated[Desk, Dep(get_desk)] = Field(init=False)


class Edits(Tried):
    """The edits are applied and committed, all or none."""

    asked: int
    answer: str

    async def __call__(self) -> Checks | Draft | Blocked | Stopped:
        desk = self.desk
        mark = f"{desk.run}/{self.number}"
        try:
            await desk.worker.apply_file_changes(desk.task, self.answer, mark=mark)
        except EditError as error:
            if self.asked < ASKED_AGAIN:
                return Draft(
                    first=self.first,
                    number=self.number,
                    failure=self.failure,
                    asked=self.asked + 1,
                    answer=self.answer,
                    refused=error.message,
                    missed=error.missed,
                )
            await desk.keep(self, "refused", None, error.message)
            return await desk.try_again(self, error.message)
        return Checks(first=self.first, number=self.number, failure=self.failure, usage=self.usage)


class Checks(Tried):
    """The tests are run, and the work is judged by them."""

    async def __call__(self) -> Merge | Draft | Blocked | Stopped:
        desk = self.desk
        verdict = await desk.worker.run_tests(desk.task)
        if verdict.accepted:
            await desk.keep(self, "passed", verdict, "")
            return Merge(
                first=self.first, number=self.number, failure=self.failure, usage=self.usage
            )
        outcome = "refused" if verdict.report.passed else "failed"
        await desk.keep(self, outcome, verdict, verdict.text)
        return await desk.try_again(self, verdict.text)


class Merge(Tried):
    """The work is merged into the team's branch, where the tests run once more."""

    async def __call__(self) -> Delivered | Draft | Blocked | Stopped:
        desk = self.desk
        outcome = await desk.worker.merge(desk.task)
        if isinstance(outcome, Integrated):
            return Delivered(commit=outcome.commit)
        text = outcome.text
        # Only now: where a run was killed after the merge, there is nothing left to work on.
        workspace = await desk.worker.workspace(desk.task)
        conflict = await workspace.update()
        if conflict:
            text = f"{conflict.text}\n\nThe files have these conflict markers now: resolve them."
        await desk.keep(self, "conflict" if conflict else "failed", None, text)
        return await desk.try_again(self, text)


class Delivered(Node):
    """The end: the work is merged."""

    commit: str

    async def __call__(self) -> None: ...


class Blocked(Node):
    """The end: a person is asked."""

    question: str

    async def __call__(self) -> None: ...


class Stopped(Node):
    """The end: it was to stop after this attempt."""

    number: int

    async def __call__(self) -> None: ...


ENDS: Final = (Delivered, Blocked, Stopped)
worker_graph = Graph(start=Assignment, end=ENDS, system=SYSTEM)
"""A task from its beginning."""
correction_graph = Graph(start=Draft, end=ENDS, system=SYSTEM)
"""A task from an attempt on that corrects what went wrong."""


def compose_brief(role: str, context: Context, failure: str, diff: str, form: EditFormat) -> str:
    """All that the LLM is told for an attempt, in plain text."""
    parts = [role, str(context)]
    if diff:
        parts.append(f"# What was changed for this task so far\n{diff}")
    if failure:
        parts.append(f"# What is wrong with it, to be corrected now\n{failure}")
    parts.append(f"# How to answer\n{format_instructions(form)}\n\n{_ASK}")
    return "\n\n".join(parts)


def question_in(answer: str) -> str | None:
    """The question that an answer asks instead of writing edits."""
    found = _QUESTION.match(answer)
    return bounded(found[1].strip(), _SHOWN_FAILURE) if found else None


def is_same_failure(one: str, other: str) -> bool:
    """Whether two texts tell of the same failure, whatever its times, addresses and line numbers
    are."""
    return bool(one) and _VARYING.sub("", one) == _VARYING.sub("", other)


def _question(task: Task, attempts: int, failure: str, again: bool) -> str:
    times = "One attempt" if attempts == 1 else f"{attempts} attempts"
    same = ", the last two in the same way" if again else ""
    return (
        f"{times} at {task.title!r} failed{same}. What should be done differently? The last "
        f"failure:\n{bounded(failure, _SHOWN_FAILURE)}"
    )


_SHOWN_ANSWER: Final = 40_000
_SHOWN_FAILURE: Final = 4_000
_ASK: Final = (
    "If, and only if, the task cannot be done before a person has decided something, write no "
    "edits but one question, as `QUESTION: …`."
)
_QUESTION: Final = re.compile(r"\s*QUESTION:\s*(\S.*)", re.DOTALL)
_VARYING: Final = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?\s?m?s\b|:\d+(:\d+)?|/tmp/\S+|\s+")
