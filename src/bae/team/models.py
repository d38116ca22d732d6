"""Pydantic models of a team: projects, tasks, attempts, test reports, reviews and questions. The
store saves them, events contain them, and the command line prints them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from bae import BaeError, Problem, Usage
from bae.exceptions import describe as describe

LONGEST_OUTPUT: Final = 20_000
"""Characters of a program's output that are stored. Longer output is cut in the middle."""
LONGEST_REASON: Final = 4000
"""Characters that are stored of the reason for a task's status."""


class TeamError(BaeError):
    """A team refuses a request, or cannot store its state."""

    code: str = "bae-team-store"
    problems: tuple[Problem, ...] = ()
    """All problems of a refused plan."""


class TaskStatus(StrEnum):
    """The status of a task.

    - *Completed*: the work is merged, and tests prove it.
    - *Merged*: the work is merged, and a person approved the task without tests.
    - *Staged*: the work is merged into the branch of the task's feature. This branch is not merged
      into the team's branch yet.
    """

    PENDING = "pending"
    READY = "ready"
    IN_PROGRESS = "in_progress"
    BLOCKED = "blocked"
    STAGED = "staged"
    COMPLETED = "completed"
    MERGED = "merged"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"

    @property
    def label(self) -> str:
        """The status in words, such as `in progress`."""
        return self.replace("_", " ")


_S = TaskStatus
TRANSITIONS: Final[Mapping[TaskStatus, frozenset[TaskStatus]]] = {
    _S.PENDING: frozenset({_S.READY, _S.BLOCKED, _S.CANCELLED, _S.SKIPPED}),
    _S.READY: frozenset({_S.IN_PROGRESS, _S.PENDING, _S.BLOCKED, _S.CANCELLED, _S.SKIPPED}),
    _S.IN_PROGRESS: frozenset(
        {_S.COMPLETED, _S.MERGED, _S.STAGED, _S.FAILED, _S.BLOCKED, _S.CANCELLED, _S.READY}
    ),
    _S.STAGED: frozenset({_S.COMPLETED, _S.MERGED, _S.READY}),
    _S.BLOCKED: frozenset({_S.PENDING, _S.READY, _S.FAILED, _S.CANCELLED, _S.SKIPPED}),
    _S.FAILED: frozenset({_S.READY, _S.PENDING, _S.SKIPPED}),
    _S.CANCELLED: frozenset({_S.READY, _S.PENDING, _S.SKIPPED}),
    _S.COMPLETED: frozenset(),
    _S.MERGED: frozenset(),
    _S.SKIPPED: frozenset({_S.PENDING, _S.READY}),
}
"""The allowed changes of status: for each status, the statuses that may come next."""


def may_move(before: TaskStatus, after: TaskStatus) -> bool:
    """Return whether the status of a task may change from `before` to `after`."""
    return after in TRANSITIONS[before]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Project(_Model):
    """A repository that a team works on, and how its tests are run."""

    id: int
    name: str
    root: str
    branch: str = Field(description="the team's own branch, into which tasks are merged")
    test_command: tuple[str, ...] = Field(
        description="the words of the command. The word `&&` separates several commands"
    )
    setup: tuple[str, ...] = Field(
        default=(),
        description="the setup command. It has the network only for commits of people. Worktrees "
        "get a copy of what it makes",
    )
    report: str = Field(
        default="",
        description="the report of a test program that bae does not support, as junit:PATH",
    )
    folder: str = Field(
        default="", description="the folder below the root in which tests and setup run"
    )
    languages: tuple[str, ...] = ()
    requirements: str = ""
    update_checkout: bool = Field(
        default=False, description="whether the user's checkout follows the team's branch"
    )
    allow: tuple[str, ...] = Field(
        default=(), description="patterns of guarded files that are merged without a question"
    )
    allow_unsandboxed: bool = Field(
        default=False, description="whether commands may run with limits alone"
    )


Proof = Literal["new-tests", "named-tests", "failing-tests", "none"]
"""What proves that a task is done.

- `new-tests`: a new test that fails without the task's work.
- `named-tests`: the tests that the task names.
- `failing-tests`: acceptance tests that fail until their feature is done.
- `none`: nothing. A person must approve the task without tests.
"""
May = Literal["add-tests", "change-tests", "change-test-setup"]
"""What a task may do to tests. Each level also allows the level before it.

- `add-tests`: add tests, and add to existing tests.
- `change-tests`: change and remove existing tests.
- `change-test-setup`: change how tests are run.
"""

Key = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,59}$")]


class PlannedTask(_Model):
    """A task as a plan or a person describes it. `depends_on` names other tasks by their keys."""

    key: Key = Field(description="short and unique, as add-login")
    title: str = Field(min_length=1, max_length=120)
    description: str = Field(default="", max_length=20_000)
    kind: str = Field(
        default="backend", description="backend, frontend, test, docs or another worker"
    )
    criteria: tuple[str, ...] = Field(default=(), description="when it is done")
    files: tuple[str, ...] = Field(default=(), description="existing files that it likely changes")
    new_files: tuple[str, ...] = Field(default=(), description="files that it creates")
    depends_on: tuple[Key, ...] = ()
    priority: int = Field(default=0, description="tasks with a higher priority start first")
    tests: tuple[str, ...] = Field(
        default=(),
        description="existing tests that must pass then: their ids, files or groups. Other tests "
        "that fail already may still fail. Without named tests, all tests must pass",
    )
    proof: Proof = Field(
        default="new-tests",
        description="the proof that it is done. new-tests: at least one new test that fails "
        "without the change. named-tests: the tests in `tests`, for a refactoring or to fix tests "
        "that fail. failing-tests: it writes acceptance tests of its feature, which load and fail. "
        "none: nothing can be tested, as in documentation; a person has to approve that",
    )
    may: May = Field(
        default="add-tests",
        description="the allowed changes of existing tests. add-tests: add to them. change-tests: "
        "also change or remove them. change-test-setup: also change how tests are run",
    )

    @model_validator(mode="before")
    @classmethod
    def _read_short_forms(cls, values: Any) -> Any:
        """Read `edits_tests` as `may="change-tests"`. If there are `tests` and no `proof`, set the
        proof to `named-tests`."""
        if not isinstance(values, Mapping):
            return values
        fields = dict(cast(Mapping[str, Any], values))
        if fields.pop("edits_tests", False):
            fields.setdefault("may", "change-tests")
        if fields.get("tests"):
            fields.setdefault("proof", "named-tests")
        return fields

    feature: Annotated[str, Field(pattern=r"^([a-z0-9][a-z0-9-]{0,59})?$")] = Field(
        default="",
        description="the feature of the task, as login: the tasks of a feature reach the team's "
        "branch together",
    )

    @property
    def feature_branch(self) -> str:
        """The branch of the task's feature, or an empty text if the task has no feature."""
        return f"bae/feature-{self.feature}" if self.feature else ""

    @property
    def paths(self) -> tuple[str, ...]:
        """All files that the task names, including new files."""
        return (*self.files, *self.new_files)

    @model_validator(mode="after")
    def _names_its_proof(self) -> Self:
        if self.proof == "named-tests" and not self.tests:
            raise ValueError("proof named-tests needs the names in tests")
        if self.proof == "failing-tests" and not self.feature:
            raise ValueError("proof failing-tests needs a feature, whose tasks make the tests pass")
        return self


class Task(PlannedTask):
    """A task of a project, with its status."""

    id: int
    project_id: int
    approved: bool = Field(default=True, description="whether it may run")
    status: TaskStatus = TaskStatus.PENDING
    reason: str = Field(default="", description="why it is blocked, failed, skipped or cancelled")
    base: str | None = Field(default=None, description="the commit its work started from")
    commit: str | None = Field(default=None, description="the merged commit")
    failures: int = Field(
        default=0, description="failures since the task was planned, or since a person retried it"
    )
    notes: tuple[str, ...] = Field(default=(), description="a person's notes for the next attempt")

    @property
    def branch(self) -> str:
        """The branch of the task's worktree."""
        return f"bae/task-{self.id}-{self.key}"


class TestCase(_Model):
    """The result of one test."""

    __test__ = False  # pytest must not collect this class

    id: str
    outcome: Literal["passed", "failed", "skipped"]
    message: str = ""


class TestReport(_Model):
    """The result of one run of the project's tests."""

    __test__ = False

    command: tuple[str, ...]
    exit_code: int | None = Field(description="None if a limit ended it, or if it was killed")
    cases: tuple[TestCase, ...] = ()
    output: str = ""
    seconds: float = 0.0
    protection: str = Field(default="", description="the sandbox that it ran in")
    problem: str = Field(
        default="", description="why the run did not pass, apart from failed tests"
    )
    reported: bool = Field(default=True, description="whether the run wrote a readable report")
    ended_by: str = Field(default="exit", description="exit, or the limit that ended it")
    flaky: tuple[str, ...] = Field(
        default=(), description="tests that failed in an earlier run, and pass in this run"
    )

    @property
    def passed(self) -> bool:
        """Whether the tests passed: at least one test passed, no test failed, and the test program
        exited with 0."""
        has_passed = any(case.outcome == "passed" for case in self.cases)
        has_failed = any(case.outcome == "failed" for case in self.cases)
        return self.exit_code == 0 and has_passed and not has_failed and not self.problem

    def for_task(self, tests: Sequence[str], before: TestReport) -> TestReport:
        """Return a report with the results that a task is responsible for.

        Failures that are also in the report `before` are left out, unless `tests` names them. If
        `before` has a file that could not be loaded, failures of all tests in this file are left
        out. If a test in `tests` did not pass, the returned report has a `problem`.
        """

        def is_of(case: TestCase, names: Iterable[str]) -> bool:
            return any(case.id == name or case.id.startswith(f"{name}::") for name in names)

        known_failures = [case.id for case in before.of("failed") if not is_of(case, tests)]
        cases = tuple(
            c for c in self.cases if c.outcome != "failed" or not is_of(c, known_failures)
        )
        is_excused = len(cases) < len(self.cases) and all(c.outcome != "failed" for c in cases)
        passed = self.of("passed")
        missing = [name for name in tests if not any(is_of(case, [name]) for case in passed)]
        missing += [case.id for case in self.of("skipped") if case.id in tests]
        missing = list(dict.fromkeys(missing))
        problem = f"no test of {', '.join(missing)} has passed, and the task must make them pass"
        return self.model_copy(
            update={
                "cases": cases,
                "exit_code": 0 if is_excused and self.exit_code == 1 else self.exit_code,
                "problem": self.problem or (problem if missing else ""),
            }
        )

    def of(self, outcome: str) -> tuple[TestCase, ...]:
        """Return the tests with this outcome."""
        return tuple(case for case in self.cases if case.outcome == outcome)


ReviewMode = Literal["off", "advise", "require"]
"""How work that passes its tests is reviewed.

- `off`: there is no review.
- `advise`: findings are advice.
- `require`: a blocking finding refuses the work.
"""


class FindingKind(StrEnum):
    """The kind of a defect in work that passes its tests."""

    SCOPE_CREEP = "scope-creep"
    HARD_CODED_ANSWER = "hard-coded-answer"
    WEAKENED_CHECK = "weakened-check"
    MISSING_CASE = "missing-case"
    WRONG_BEHAVIOR = "wrong-behavior"
    OTHER = "other"


class Finding(_Model):
    """A defect that a reviewer found in the change of a task."""

    kind: FindingKind
    file: str = Field(description="the path of the file")
    line: int | None = Field(default=None, description="the line in the new file, if it is known")
    code: str = Field(default="", description="the code in question, quoted from the change")
    text: str = Field(description="what is wrong, and what to do, in one or two sentences")
    blocking: bool = Field(description="whether the work must not be merged like this")

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        description = (
            f"{self.kind} in {place}: {self.text}" if place else f"{self.kind}: {self.text}"
        )
        return f"{description} ({self.code.strip()})" if self.code.strip() else description


class Review(_Model):
    """A reviewer's judgement of work that passes its tests."""

    commit: str = Field(description="the commit of the task's branch that was reviewed")
    digest: str = Field(description="the digest of the content of the work")
    summary: str = ""
    findings: tuple[Finding, ...] = ()
    error: str = Field(default="", description="why the reviewer failed, if there is no review")

    @property
    def blocking(self) -> tuple[Finding, ...]:
        """The findings that block the merge."""
        return tuple(finding for finding in self.findings if finding.blocking)

    @property
    def text(self) -> str:
        """The refusal that the worker reads, with blocking findings first."""
        others = [finding for finding in self.findings if not finding.blocking]
        parts = [f"The tests pass, and a reviewer refuses the work: {self.summary}"]
        parts += [_list_findings("Correct this", self.blocking)] if self.blocking else []
        parts += [_list_findings("Also noted, and not required", others)] if others else []
        return "\n\n".join(parts)

    @property
    def headline(self) -> str:
        """The review in one line."""
        if self.error:
            return f"review failed: {headline(self.error)}"
        counted = f"{len(self.findings)} finding{'' if len(self.findings) == 1 else 's'}"
        counted += f", {len(self.blocking)} blocking" if self.blocking else ""
        return f"{counted if self.findings else 'no findings'}; {self.summary}".rstrip("; ")


def _list_findings(title: str, findings: Iterable[Finding]) -> str:
    return "\n".join((f"{title}:", *(f"- {finding}" for finding in findings)))


class TaskAttempt(_Model):
    """One attempt at a task: the files it changed, the test report and the outcome."""

    task_id: int
    number: int
    outcome: Literal["passed", "failed", "refused", "conflict", "error", "cancelled"]
    failure: str = Field(default="", description="the failure, for the next attempt")
    files: tuple[str, ...] = ()
    report: TestReport | None = None
    usage: Usage = Usage()
    commit: str = Field(default="", description="the commit that was judged")


class Blocker(_Model):
    """A question that a task waits for."""

    id: int
    task_id: int
    question: str
    answer: str | None = None
    digest: str | None = Field(
        default=None, description="the digest of the content that the answer `yes` accepts"
    )
    answered_by: str | None = Field(
        default=None, description="the user who answered; None if a run closed the question"
    )

    @property
    def is_yes(self) -> bool:
        """Whether the answer is a plain yes."""
        return (self.answer or "").strip().rstrip(".!").casefold() in ("yes", "y")

    @property
    def summary(self) -> str:
        """The question without the output below it."""
        return headline(self.question, 1000)

    @property
    def is_folded(self) -> bool:
        """Whether `summary` is shorter than the question."""
        return self.summary != " ".join(self.question.split())


Action = Literal["stop", "kill", "pause", "resume", "retry", "skip"]
"""An action that a person may request from the lead with `add_request`."""


class Request(_Model):
    """A person's request to the lead. Without `task_id`, it is for the run."""

    id: int
    project_id: int
    action: Action
    task_id: int | None = None
    outcome: str | None = Field(
        default=None, description="what a run did about it; None until a run has taken the request"
    )


class AgentInfo(_Model):
    """A worker of the pool."""

    id: str
    kind: str
    status: Literal["idle", "working", "retired"] = "idle"
    task_id: int | None = None
    completed: int = Field(default=0, description="the number of tasks that it has completed")
    failed: int = Field(default=0, description="the number of tasks that it has failed at")


class TaskResult(_Model):
    """The outcome of a task that a worker carried out."""

    status: Literal["completed", "merged", "staged", "failed", "blocked"]
    task_id: int
    tested: bool = Field(default=False, description="whether tests prove the work")
    summary: str = ""
    files: tuple[str, ...] = ()
    attempts: int = 0
    report: TestReport | None = None
    flaky: tuple[str, ...] = Field(
        default=(), description="tests that failed and then passed, with the same work"
    )
    commit: str | None = Field(default=None, description="the merged commit, if it is merged")
    question: str | None = Field(
        default=None, description="the question to a person, if it is blocked"
    )
    digest: str | None = Field(
        default=None, description="the digest of the content that `yes` accepts"
    )
    error: str | None = None
    usage: Usage = Usage()

    @model_validator(mode="before")
    @classmethod
    def _is_tested(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        fields = cast(Mapping[str, Any], values)
        return {**fields, "tested": fields.get("status") == "completed"}

    @model_validator(mode="after")
    def _has_its_reason(self) -> Self:
        if self.status == "blocked" and not self.question:
            raise ValueError("a blocked task needs its question")
        if self.status == "failed" and not self.error:
            raise ValueError("a failed task needs its error")
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        return self.model_dump(mode="json")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the result that `to_dict` has converted to plain JSON values."""
        return cls.model_validate(dict(values))


def as_planned(task: PlannedTask, **changes: Any) -> PlannedTask:
    """Return a planned task with the values of `task` and with `changes`, all validated. The status
    and other fields of a `Task` are left out."""
    values = task.model_dump(include=set(PlannedTask.model_fields))
    return PlannedTask.model_validate({**values, **changes})


def bounded(output: str, longest: int = LONGEST_OUTPUT) -> str:
    """Return the text. If it is longer than `longest`, cut it in the middle."""
    if len(output) <= longest:
        return output
    half = longest // 2
    return f"{output[:half]}\n… {len(output) - 2 * half} characters left out …\n{output[-half:]}"


def headline(text: str, longest: int = 300) -> str:
    """Return the first paragraph of a text in one line. An indented line ends the paragraph."""
    lines: list[str] = []
    for line in text.strip().splitlines():
        if not line.strip() or line[0].isspace():
            break
        lines.append(line.strip())
    line_text = " ".join(lines)
    return line_text if len(line_text) <= longest else f"{line_text[: longest - 1]}…"


def strip_escapes(text: str) -> str:
    """Remove terminal escapes and control characters from a program's output."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n"))


_ESCAPES: Final = re.compile(
    # Where XML does not allow the escape character, pytest writes `#x1B`.
    r"(?:\x1b|#x1[Bb])\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)|\x1b[ -/]*[0-~]"
)
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f]")


def summary(statuses: Iterable[TaskStatus]) -> dict[TaskStatus, int]:
    """Count the tasks in each status. A status without tasks has the count 0."""
    counts = dict.fromkeys(TaskStatus, 0)
    for status in statuses:
        counts[status] += 1
    return counts
