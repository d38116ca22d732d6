"""The requests and responses of a team's endpoints. Long texts are cut, with `…` at the cut."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from bae import Usage
from bae.serve import BoxView, EdgeView, Form
from bae.team.budgets import RunSpending, Spent
from bae.team.models import (
    Action,
    AgentInfo,
    Blocker,
    Key,
    May,
    PlannedTask,
    Proof,
    Review,
    Task,
    TaskAttempt,
    TaskStatus,
    TestReport,
    bounded,
)
from bae.team.standing import Doing
from bae.team.task_log import LogEntry
from bae.team.unified_diffs import ChangedFile

CUT = 2_000
"""The default length of a long text in a response, in characters."""
CutText = Annotated[int, Field(ge=0, le=1 << 24)]


class CutQuery(Form):
    """Texts longer than `cut` characters are cut. With 0, no text is cut."""

    cut: CutText = CUT


class TasksQuery(Form):
    """Selects tasks with this `status` and with numbers above `after`."""

    status: TaskStatus | None = None
    after: Annotated[int, Field(ge=0, le=1 << 53)] = 0
    limit: Annotated[int, Field(ge=1, le=500)] = 200


class LogQuery(CutQuery):
    """Selects the log entries from position `start` on."""

    start: Annotated[int, Field(ge=0, le=1 << 53)] = 0
    limit: Annotated[int, Field(ge=1, le=500)] = 200


class DiffQuery(Form):
    """Selects one file by its `path`, or all files. A file with more than `lines` lines is cut.
    With 0, no file is cut."""

    path: str | None = None
    lines: Annotated[int, Field(ge=0, le=1 << 24)] = 2_000


class BlockersQuery(CutQuery):
    """Selects open questions. With `all`, answered questions are included."""

    all: bool = False


class EventsQuery(Form):
    """Selects events with numbers above `after`."""

    after: Annotated[int, Field(ge=-1, le=1 << 53)] = -1
    limit: Annotated[int, Field(ge=1, le=1000)] = 500


class AddBody(Form):
    """Tasks to add. All or none are added. New tasks wait for approval. A user who may `answer` can
    approve them at once with `approve`."""

    tasks: Annotated[list[PlannedTask], Field(min_length=1, max_length=200)]
    approve: bool = False


class EditBody(Form):
    """The fields of a task to change. Fields that are left out do not change."""

    key: Key | None = None
    title: Annotated[str, Field(min_length=1, max_length=120)] | None = None
    description: Annotated[str, Field(max_length=20_000)] | None = None
    kind: str | None = None
    criteria: tuple[str, ...] | None = None
    files: tuple[str, ...] | None = None
    new_files: tuple[str, ...] | None = None
    tests: tuple[str, ...] | None = None
    depends_on: tuple[Key, ...] | None = None
    priority: Annotated[int, Field(ge=-(1 << 31), le=1 << 31)] | None = None
    proof: Proof | None = None
    may: May | None = None
    feature: str | None = None


class ApproveBody(Form):
    """Tasks to approve, by keys or numbers. Without `tasks`, all tasks that tests prove are
    approved. To approve a task that no test proves, name the task and set `without_tests`."""

    tasks: Annotated[list[str], Field(max_length=1000)] | None = None
    without_tests: bool = False

    @model_validator(mode="after")
    def _names_untested_tasks(self) -> Self:
        if self.without_tests and not self.tasks:
            raise ValueError("without_tests is for tasks that are named in tasks")
        return self


class ActionBody(Form):
    """An action on a task. Without a `task`, the action is on the run. `skip` and `note` need a
    `task`, and `note` also needs a `text`."""

    action: Literal[Action, "note"]
    task: str | None = None
    text: Annotated[str, Field(max_length=20_000)] = ""

    @model_validator(mode="after")
    def _has_required_fields(self) -> Self:
        if self.action in ("note", "skip") and self.task is None:
            raise ValueError(f"{self.action} needs a task")
        if (self.action == "note") != bool(self.text.strip()):
            raise ValueError("a note needs a text, and no other action has one")
        return self


class BlockerBody(Form):
    """The answer to a question."""

    answer: Annotated[str, Field(min_length=1, max_length=20_000)]

    @model_validator(mode="after")
    def _has_text(self) -> Self:
        if not self.answer.strip():
            raise ValueError("the answer is empty")
        return self


class TeamRow(BaseModel):
    """A team. `counts` has the number of tasks in each status. `blockers` is the number of open
    questions, and `unapproved` the number of tasks that wait for approval. `last` is the number of
    the team's last event. To get later events, follow the feed `team/NAME` from this number."""

    team: str
    branch: str
    running: bool
    paused: bool
    counts: dict[TaskStatus, int]
    blockers: int
    unapproved: int
    spent: Spent
    last: int


class TeamPage(BaseModel):
    """The teams that the user may see."""

    teams: list[TeamRow]


class RequestView(BaseModel):
    """A person's request that no run has taken yet. The request is for a `task`, or for the run if
    `task` is null."""

    id: int
    action: Action
    task: str | None


class TeamDetails(TeamRow):
    """A team with its agents. `goal` is the last goal that was planned. `requirements` is the
    requirements document. `sandbox` names what protects this machine from the agents' commands.
    `requests` are requests that no run has taken yet. `run` has what the last run spent, and its
    limits. If `running` is false, no agent works, whatever status an agent has."""

    root: str
    goal: str
    sandbox: str
    requirements: str
    requests: list[RequestView]
    run: RunSpending | None
    agents: list[AgentInfo]


class TaskRow(BaseModel):
    """A task in a list. `since` is the time when the task got its status, in seconds since 1970.
    `attempts` is the number of finished attempts. `outcome` is the outcome of the last attempt.
    `outcomes` has the number of tests for each outcome in the last test run. `question` is the
    task's open question. A `paused` task does not start before a person resumes it. `doing` is the
    current step of the task's agent, or null if no agent works on the task."""

    id: int
    key: str
    title: str
    kind: str
    status: TaskStatus
    reason: str
    approved: bool
    depends_on: tuple[str, ...]
    priority: int
    proof: Proof
    feature: str
    commit: str | None
    failures: int
    spent: Spent
    since: float
    attempts: int
    outcome: str
    outcomes: dict[str, int] | None
    question: str
    paused: bool
    doing: Doing | None


class TaskPage(BaseModel):
    """Tasks, the oldest first. To get the next page, pass `next` as `after`."""

    tasks: list[TaskRow]
    next: int | None = None


class AttemptRow(BaseModel):
    """An attempt at a task. `tests` has the number of tests for each outcome. A `cost` of null is
    unknown."""

    number: int
    outcome: str
    failure: str
    files: tuple[str, ...]
    commit: str
    tests: dict[str, int] | None
    calls: int
    tokens: int
    cost: float | None

    @classmethod
    def of(cls, attempt: TaskAttempt, cut: int) -> Self:
        """Return the row of an attempt. A failure longer than `cut` characters is cut."""
        report, used = attempt.report, attempt.usage
        return cls(
            **attempt.model_dump(include={"number", "outcome", "files", "commit"}),
            failure=cut_text(attempt.failure, cut),
            tests=None if report is None else count_tests(report),
            calls=used.calls,
            tokens=used.tokens,
            cost=used.cost,
        )


class AttemptPage(BaseModel):
    """The attempts at a task, in order."""

    attempts: list[AttemptRow]


class AttemptView(AttemptRow):
    """An attempt with its test report."""

    report: TestReport | None


class TestsView(BaseModel):
    """The test reports of a task. `attempt` is the number of the last attempt with a test report,
    and `report` is this report. `merged` are the reports of merged trees, the oldest first. `flaky`
    names tests that failed and then passed with the same work."""

    attempt: int | None
    report: TestReport | None
    merged: list[TestReport]
    flaky: tuple[str, ...]


class ReviewPage(BaseModel):
    """The reviews of a task's work, the oldest first."""

    reviews: list[Review]


class TaskDetails(BaseModel):
    """A task with its attempts, questions and spending. `reviews` is the number of reviews of its
    work."""

    task: Task
    spent: Spent
    attempts: list[AttemptRow]
    blockers: list[Blocker]
    reviews: int


class LogPage(BaseModel):
    """The log of a task's worker, the oldest entry first. To get the next page, pass `next` as
    `start`."""

    entries: list[LogView]
    total: int
    next: int | None = None


class LogView(BaseModel):
    """An entry in the log of a task. `run` is the id of the run in the journal that has all
    details."""

    at: float
    kind: str
    text: str
    ok: bool
    seconds: float
    usage: Usage | None
    run: str
    detail: str

    @classmethod
    def of(cls, entry: LogEntry, cut: int) -> Self:
        """Return the view of an entry. A detail longer than `cut` characters is cut."""
        return cls.model_validate(
            entry.model_dump() | {"detail": cut_text(entry.detail, cut), "usage": entry.usage}
        )


class DiffView(BaseModel):
    """The files of a change. Each line of a hunk begins with a space, `-` or `+`."""

    files: list[ChangedFile]


class BlockerView(Blocker):
    """A question of a task. `since` is the time when the task asked, in seconds since 1970."""

    team: str
    task: str
    since: float


class BlockerPage(BaseModel):
    """Questions, the oldest first."""

    blockers: list[BlockerView]


class LeftTask(BaseModel):
    """A task that would not start, with the reason."""

    task: str
    reason: str


class PlanView(BaseModel):
    """The plan. `unapproved` are the tasks that wait for approval, and `without_tests` are the
    tasks among them that no test proves. Each of the `rounds` has tasks that could run at the same
    time. `critical_path` is the longest chain of dependent tasks. `left` are the tasks that would
    not start. `boxes` and `edges` draw all tasks, each task after its prerequisites. `task_schema`
    is the JSON schema of a task to add."""

    unapproved: list[str]
    without_tests: list[str]
    rounds: list[list[str]]
    critical_path: list[str]
    left: list[LeftTask]
    boxes: list[BoxView]
    edges: list[EdgeView]
    task_schema: dict[str, Any]


class ApprovedView(BaseModel):
    """The number of tasks that were approved, and the plan after that."""

    approved: int
    plan: PlanView


class ActionView(BaseModel):
    """The accepted request. If `running` is true, the current run takes the request now. Otherwise
    the next run takes the request."""

    action: str
    task: str | None
    running: bool
    request: int | None = None


class EventPage(BaseModel):
    """Events, the oldest first. To get the next page, pass `last` as `after`."""

    events: list[dict[str, Any]]
    last: int


def cut_text(text: str, cut: int) -> str:
    """Return a text. If it is longer than `cut` characters, only its beginning and its end are
    returned. With 0, nothing is cut."""
    return bounded(text, cut) if cut else text


def cut_report(report: TestReport | None, cut: int) -> TestReport | None:
    """Return a test report with its output and messages cut to `cut` characters. Failed tests come
    first, and only the first 1,000 tests stay. With 0, nothing is cut."""
    if report is None:
        return None
    order = {"failed": 0, "passed": 1, "skipped": 2}
    cases = sorted(report.cases, key=lambda case: order[case.outcome])
    most = 1_000 if cut else len(cases)
    cut_cases = [c.model_copy(update={"message": cut_text(c.message, cut)}) for c in cases[:most]]
    output = cut_text(report.output, cut)
    return report.model_copy(update={"cases": tuple(cut_cases), "output": output})


def count_tests(report: TestReport) -> dict[str, int]:
    """Return the number of tests for each outcome."""
    return {name: len(report.of(name)) for name in ("passed", "failed", "skipped")}


LogPage.model_rebuild()
