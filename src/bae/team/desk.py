"""The desk of a worker. A desk belongs to one task in one run of the worker graph. It has the steps
that bae takes and the LLM cannot: judge the work in fresh worktrees, have it reviewed, merge it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from bae.lm import Usage
from bae.team.base_check import describe_failed_before
from bae.team.environment import Cause, find_cause
from bae.team.git import shown_path
from bae.team.guarded_files import Guarded
from bae.team.integration import Failed, Integrated
from bae.team.models import Task, TaskAttempt, TestReport, bounded, headline
from bae.team.review import ask_about_review, decide, review_work
from bae.team.verdict import WorkVerdict
from bae.team.workspaces import ManifestError

if TYPE_CHECKING:
    from bae.team.workbench import Workbench
    from bae.team.worker import WorkerAgent

SHOWN_FAILURE: Final = 4_000
_SHOWN_OUTPUT: Final = 2_000

AttemptOutcome = Literal["passed", "failed", "refused", "conflict", "error"]


class Try(BaseModel):
    """An attempt at a task. The nodes of the worker graph pass it on."""

    model_config = ConfigDict(frozen=True)

    first: int = Field(description="the number of the first attempt of this run")
    number: int
    failure: str = Field(default="", description="what was wrong with the attempt before")
    asked: int = Field(
        default=0, description="how many answers of the attempt could not be applied"
    )
    answer: str = ""
    refused: str = Field(default="", description="why the answer was not applied")
    missed: tuple[str, ...] = ()
    repeated: str = Field(default="", description="the digest of the last answer that failed")
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class WorkRefusal:
    """The work was refused, or could not be merged."""

    text: str
    """The reason, for the worker."""
    is_conflict: bool = False
    """Whether the reason is a merge conflict."""


@dataclass(frozen=True, slots=True)
class PersonNeeded:
    """A person must answer a question before the task continues."""

    question: str
    digest: str | None = None
    """Identifies the content that the answer yes accepts. None if a yes accepts no content."""


class Desk:
    """A worker and its task in one run of the worker graph."""

    def __init__(self, worker: WorkerAgent, bench: Workbench, task: Task, run: str) -> None:
        self.worker = worker
        self.bench = bench
        self.task = task
        self.run = run
        self.brief = ""
        """The first prompt of the conversation in progress."""
        self.attempt = Try(first=1, number=1)
        """The first attempt of the conversation in progress."""
        self.used: list[Usage] = []
        """The LLM usage since the last submission."""
        self.summary = ""
        """The LLM's own summary of the last submission."""
        self.outcome: str | PersonNeeded | None = None
        """The merged commit, or the question to a person. None until the conversation ends."""

    async def submit(self, attempt: Try) -> str | WorkRefusal | PersonNeeded:
        """Judge the work and merge it. Returns the merged commit, or why the work is not merged."""
        outcome = await self.judge(attempt)
        return await self.merge(attempt) if isinstance(outcome, WorkVerdict) else outcome

    async def judge(self, attempt: Try) -> WorkVerdict | WorkRefusal | PersonNeeded:
        """Run the tests in fresh worktrees, and judge the work by the test reports. If the
        environment fails, run the tests once more before a person is asked."""
        try:
            verdict = await self.worker.run_tests(self.task)
            if await self.find_cause(verdict.report) is not None:
                verdict = await self.worker.run_tests(self.task)
            cause = None if verdict.accepted else await self.find_cause(verdict.report)
            if cause is not None:
                return await self._ask_about_environment(attempt, verdict.report, cause)
        except ManifestError as error:
            return PersonNeeded(error.question, error.digest)
        if verdict.accepted:
            await self.keep(attempt, "passed", verdict)
            if verdict.concerns and not await self.bench.has_yes(self.task, verdict.digest):
                return PersonNeeded(_describe_concerns(verdict), verdict.digest)
            return await self._review(attempt, verdict) or verdict
        text = await self._add_failed_before(verdict.text)
        await self.keep(attempt, "refused" if verdict.report.passed else "failed", verdict, text)
        return WorkRefusal(text)

    async def _review(
        self, attempt: Try, verdict: WorkVerdict
    ) -> WorkRefusal | PersonNeeded | None:
        """Have accepted work reviewed. Returns why the work must not be merged, or None."""
        workspace, worker_lm = await self.worker.workspace(self.task), await self.worker.lm()
        review = await review_work(self.bench, self.task, workspace, worker_lm, verdict)
        decision = await decide(self.bench, self.task, review)
        if review is None or decision == "merge":
            return None
        if decision == "refuse":
            await self.keep(attempt, "refused", verdict, review.text)
            return WorkRefusal(review.text)
        if review.error:  # the next run judges the same work again
            await self.keep(attempt, "error", verdict, review.error)
        return PersonNeeded(ask_about_review(self.task, review), review.digest)

    async def merge(self, attempt: Try) -> str | WorkRefusal | PersonNeeded:
        """Merge the work into the team's branch, if the tests pass on the merged tree. Returns the
        merged commit, or why the work is not merged. After a conflict, the files in the worktree
        have conflict markers."""
        try:
            outcome = await self.worker.merge(self.task)
            if isinstance(outcome, Failed) and await self.find_cause(outcome.report):
                outcome = await self.worker.merge(self.task)
        except ManifestError as error:
            return PersonNeeded(error.question, error.digest)
        if isinstance(outcome, Integrated):
            return outcome.commit
        if isinstance(outcome, Guarded):
            return PersonNeeded(outcome.question, outcome.digest)
        if isinstance(outcome, Failed) and (cause := await self.find_cause(outcome.report)):
            return await self._ask_about_environment(attempt, outcome.report, cause)
        # A test that fails in the delivery of a feature is a reason for the refusal, even if the
        # test failed before the task. So the text must not list this test as not counted.
        failed = outcome.report.of("failed") if isinstance(outcome, Failed) else ()
        text = await self._add_failed_before(outcome.text, [case.id for case in failed])
        head = await (await self.worker.workspace(self.task)).head()
        # The update comes only after a failed merge, because an update moves the task's branch. If
        # a killed run has merged the work, bae could not recognize the moved branch as merged.
        conflict = await (await self.worker.workspace(self.task)).update()
        if conflict:
            text = f"{conflict.text}\n\nThe files have these conflict markers now: resolve them."
        await self.keep(attempt, "conflict" if conflict else "failed", None, text, head)
        return WorkRefusal(text, is_conflict=conflict is not None)

    async def finish_merged(self, attempt: Try) -> str | WorkRefusal | PersonNeeded | None:
        """Return the outcome of work that an earlier run has merged, or None if the work is not
        merged. If the earlier run was killed before it delivered a complete feature, deliver the
        feature now."""
        if (merged := await self.bench.features.find_merged(self.task)) is not None:
            return merged.commit
        if await self.bench.features.is_undelivered(self.task):
            return await self.merge(attempt)
        return None

    async def finish_unchanged(self, attempt: Try) -> str | WorkRefusal | PersonNeeded | None:
        """Merge work that is already in its feature's branch, if the worker changed nothing more,
        and return the outcome. Otherwise return None. A worker gets such work again if the delivery
        of the feature has failed."""
        workspace = await self.worker.workspace(self.task)
        if not await self.bench.features.was_staged(self.task) or await workspace.changed():
            return None
        return await self.merge(attempt)

    # --- attempts and reports ---

    async def keep(
        self,
        attempt: Try,
        outcome: AttemptOutcome,
        verdict: WorkVerdict | None,
        failure: str = "",
        commit: str = "",
    ) -> None:
        """Store an attempt with its outcome."""
        workspace = await self.worker.workspace(self.task)
        head = await workspace.head()
        changed = await self.bench.repository.changed_files(workspace.base, head)
        stored_attempt = TaskAttempt(
            task_id=self.task.id,
            number=attempt.number,
            outcome=outcome,
            failure=bounded(failure),
            files=tuple(map(shown_path, changed)),
            report=verdict.report if verdict else None,
            usage=attempt.usage,
            commit=commit or head,
        )
        await self.bench.store.add_attempt(stored_attempt)

    async def is_to_be_merged(self) -> bool:
        """Whether the last answer to the task's questions is a yes to the content of the work. The
        LLM has nothing left to write then."""
        blockers = await self.bench.store.blockers(self.task.project_id)
        last_question = [blocker for blocker in blockers if blocker.task_id == self.task.id][-1:]
        if not last_question or last_question[0].digest is None or not last_question[0].is_yes:
            return False
        return bool(await (await self.worker.workspace(self.task)).changed())

    async def describe_failed_before(self) -> str:
        """Return a text that lists the tests that failed before the task and may still fail."""
        return describe_failed_before(await self._get_base_report(), self.task.tests)

    async def find_cause(self, report: TestReport) -> Cause | None:
        """Return the failure of the environment that keeps bae from judging the work, or None."""
        return None if report.passed else find_cause(report, await self._get_base_report())

    async def _add_failed_before(self, text: str, counted: Sequence[str] = ()) -> str:
        counted_tests = (*self.task.tests, *counted)
        known_failures = describe_failed_before(await self._get_base_report(), counted_tests)
        return "\n\n".join(filter(None, (text, known_failures)))

    async def _get_base_report(self) -> TestReport:
        workspace = await self.worker.workspace(self.task)
        return await self.bench.base_report(workspace.base)

    async def _ask_about_environment(
        self, attempt: Try, report: TestReport, cause: Cause
    ) -> PersonNeeded:
        """Store the attempt and return a question to a person, after the environment failed twice.
        The next run judges the same work again without the LLM."""
        await self.keep(attempt, "error", WorkVerdict(report), str(cause))
        return PersonNeeded(ask_about(self.task, cause, report.output.strip()))


async def get_desk() -> Desk:
    """Return the desk of this run. Every run passes its desk in `dep_cache`, so this function is
    called only by mistake."""
    raise LookupError("a run of the worker graph needs its desk in dep_cache")


def ask_about(task: Task, cause: Cause, output: str = "") -> str:
    """Return the question to a person after a failure of the environment: the cause, what to do,
    and the end of the output."""
    shown_output = f"\n\n{bounded(output, _SHOWN_OUTPUT)}" if output else ""
    return f"{task.title!r} cannot be tested. {cause} Is it done?{shown_output}"


def ask_after_failures(task: Task, attempts: int, failure: str, *, again: bool = False) -> str:
    """Return the question to a person after the last attempt at a task has failed. With `again`,
    the last two attempts failed in the same way."""
    times = "One attempt" if attempts == 1 else f"{attempts} attempts"
    detail = ", the last two in the same way" if again else ""
    reason = headline(failure, 200).rstrip(".:")
    return (
        f"{times} at {task.title!r} failed{detail}: {reason}. What should be done differently?\n\n"
        f"The last failure:\n{bounded(failure, SHOWN_FAILURE)}"
    )


def _describe_concerns(verdict: WorkVerdict) -> str:
    lines = [f"- {file} {concern}" for file, concern in verdict.concerns]
    listing = bounded("\n".join(lines), SHOWN_FAILURE)
    return (
        "The tests pass, and this code could decide about its own tests, or hides what it does:\n"
        f"{listing}\nRead it. Answer yes to merge it, or say what to change."
    )
