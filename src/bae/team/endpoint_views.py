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
"""How many characters of a text a list has, unless more are requested."""
CutText = Annotated[int, Field(ge=0, le=1 << 24)]


class CutQuery(Form):
    """Longer texts are cut to `cut` characters; 0 cuts nothing."""

    cut: CutText = CUT


class TasksQuery(Form):
    """Only tasks with this `status`, and with numbers above `after`."""

    status: TaskStatus | None = None
    after: Annotated[int, Field(ge=0, le=1 << 53)] = 0
    limit: Annotated[int, Field(ge=1, le=500)] = 200


class LogQuery(CutQuery):
    """Entries of the log from position `start`."""

    start: Annotated[int, Field(ge=0, le=1 << 53)] = 0
    limit: Annotated[int, Field(ge=1, le=500)] = 200


class DiffQuery(Form):
    """One file, by its `path`, or all. A file with more than `lines` lines is cut; 0 cuts none."""

    path: str | None = None
    lines: Annotated[int, Field(ge=0, le=1 << 24)] = 2_000


class BlockersQuery(CutQuery):
    """With `all`, answered questions are included."""

    all: bool = False


class EventsQuery(Form):
    """Events with numbers above `after`."""

    after: Annotated[int, Field(ge=-1, le=1 << 53)] = -1
    limit: Annotated[int, Field(ge=1, le=1000)] = 500


class AddBody(Form):
    """Tasks to add: all or none. They wait for approval, unless the user may `answer` and says
    `approve`."""

    tasks: Annotated[list[PlannedTask], Field(min_length=1, max_length=200)]
    approve: bool = False


class EditBody(Form):
    """The fields of a task to change. Fields that are left out stay."""

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
    """Tasks to approve, by keys or numbers; None approves all. A task that no test proves must be
    named, and approved `without_tests`."""

    tasks: Annotated[list[str], Field(max_length=1000)] | None = None
    without_tests: bool = False

    @model_validator(mode="after")
    def _names_untested_tasks(self) -> Self:
        if self.without_tests and not self.tasks:
            raise ValueError("without_tests is for tasks that are named in tasks")
        return self


class ActionBody(Form):
    """An action on a task, or on the whole run without a `task`. A note has a `text` and a task."""

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
    """A team: the number of tasks in each status, and the number of questions and plans that wait
    for a person. `last` is the number of its last event: follow the feed `team/NAME` from there."""

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
    """A person's request that no run has taken yet, for a task or for the whole run."""

    id: int
    action: Action
    task: str | None


class TeamDetails(TeamRow):
    """A team with its agents. `goal` is the last planned goal, `requirements` the requirements
    document, and `sandbox` the protection of this machine from the commands of agents. `requests`
    are not taken yet. `run` is the last run's spending of its budget. Without a run in progress no
    agent works, whatever its status."""

    root: str
    goal: str
    sandbox: str
    requirements: str
    requests: list[RequestView]
    run: RunSpending | None
    agents: list[AgentInfo]


class TaskRow(BaseModel):
    """A task in a list. `since` is when it got its status, in seconds since 1970. `attempts` is the
    number of finished attempts, and `outcome` the outcome of the last. `outcomes` is the number of
    tests by outcome in the last test run, and `question` the open question. A `paused` task starts
    when a person resumes it. `doing` is the current step of its agent; null if no agent works on
    it."""

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
    """Tasks in the order they were added. Pass `next` as `after` for the next page."""

    tasks: list[TaskRow]
    next: int | None = None


class AttemptRow(BaseModel):
    """An attempt at a task: its outcome, and the number of tests by outcome. A `cost` of null is
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
        """The row of an attempt, with its failure cut."""
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
    """The test reports of a task: of its last attempt, and of the merged tree, oldest first.
    `flaky` tests failed and then passed with the same work."""

    attempt: int | None
    report: TestReport | None
    merged: list[TestReport]
    flaky: tuple[str, ...]


class ReviewPage(BaseModel):
    """The reviews of the work of a task, oldest first."""

    reviews: list[Review]


class TaskDetails(BaseModel):
    """A task with its attempts, questions and spending."""

    task: Task
    spent: Spent
    attempts: list[AttemptRow]
    blockers: list[Blocker]
    reviews: int


class LogPage(BaseModel):
    """The log of a task's worker, oldest entry first. Pass `next` as `start` for the next page.
    `run` of an entry is the run in the journal with all details."""

    entries: list[LogView]
    total: int
    next: int | None = None


class LogView(BaseModel):
    """An entry of the log of a task."""

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
        """The entry, with its detail cut."""
        return cls.model_validate(
            entry.model_dump() | {"detail": cut_text(entry.detail, cut), "usage": entry.usage}
        )


class DiffView(BaseModel):
    """The files of a change. Each line of a hunk begins with a space, `-` or `+`."""

    files: list[ChangedFile]


class BlockerView(Blocker):
    """A question of a task, with the time when it was asked."""

    team: str
    task: str
    since: float


class BlockerPage(BaseModel):
    """Questions, in the order they were asked."""

    blockers: list[BlockerView]


class LeftTask(BaseModel):
    """A task that would not start, with the reason."""

    task: str
    reason: str


class PlanView(BaseModel):
    """The plan: the tasks that wait for approval, the tasks without proving tests, the tasks that
    would run together, and the longest chain of dependent tasks. `boxes` and `edges` are a picture
    of all tasks, each after its prerequisites. `task_schema` is the JSON schema of a task to
    add."""

    unapproved: list[str]
    without_tests: list[str]
    rounds: list[list[str]]
    critical_path: list[str]
    left: list[LeftTask]
    boxes: list[BoxView]
    edges: list[EdgeView]
    task_schema: dict[str, Any]


class ApprovedView(BaseModel):
    """The number of approved tasks, and the tasks that still wait."""

    approved: int
    plan: PlanView


class ActionView(BaseModel):
    """The accepted request. With `running`, the run takes it now; otherwise the next run does."""

    action: str
    task: str | None
    running: bool
    request: int | None = None


class EventPage(BaseModel):
    """Events in order. Pass `last` as `after` for the next page."""

    events: list[dict[str, Any]]
    last: int


def cut_text(text: str, cut: int) -> str:
    """The beginning and the end of a text longer than `cut`; 0 cuts nothing."""
    return bounded(text, cut) if cut else text


def cut_report(report: TestReport | None, cut: int) -> TestReport | None:
    """A report with its output and messages cut, failed tests first."""
    if report is None:
        return None
    order = {"failed": 0, "passed": 1, "skipped": 2}
    cases = sorted(report.cases, key=lambda case: order[case.outcome])
    most = 1_000 if cut else len(cases)
    cut_cases = [c.model_copy(update={"message": cut_text(c.message, cut)}) for c in cases[:most]]
    output = cut_text(report.output, cut)
    return report.model_copy(update={"cases": tuple(cut_cases), "output": output})


def count_tests(report: TestReport) -> dict[str, int]:
    """The number of tests by outcome."""
    return {name: len(report.of(name)) for name in ("passed", "failed", "skipped")}


LogPage.model_rebuild()
