"""What the endpoints of a team take and answer with. Long texts are cut, and say so with `…`."""

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
"""Characters of a text in a list, unless more are asked for."""
CutText = Annotated[int, Field(ge=0, le=1 << 24)]


class CutQuery(Form):
    """Longer texts are cut to `cut` characters; 0 cuts nothing."""

    cut: CutText = CUT


class TasksQuery(Form):
    """Tasks with a `status`, with greater numbers than `after`."""

    status: TaskStatus | None = None
    after: Annotated[int, Field(ge=0, le=1 << 53)] = 0
    limit: Annotated[int, Field(ge=1, le=500)] = 200


class LogQuery(CutQuery):
    """Entries of the log from the place `start` on."""

    start: Annotated[int, Field(ge=0, le=1 << 53)] = 0
    limit: Annotated[int, Field(ge=1, le=500)] = 200


class DiffQuery(Form):
    """One file, by its `path`, or all. A file with more than `lines` lines is cut; 0 cuts none."""

    path: str | None = None
    lines: Annotated[int, Field(ge=0, le=1 << 24)] = 2_000


class BlockersQuery(CutQuery):
    """With `all`, questions that are answered too."""

    all: bool = False


class EventsQuery(Form):
    """Events with greater numbers than `after`."""

    after: Annotated[int, Field(ge=-1, le=1 << 53)] = -1
    limit: Annotated[int, Field(ge=1, le=1000)] = 500


class AddBody(Form):
    """Tasks to add: all or none. They wait for approval, unless the user may `answer` and says
    `approve`."""

    tasks: Annotated[list[PlannedTask], Field(min_length=1, max_length=200)]
    approve: bool = False


class EditBody(Form):
    """The parts of a task to change; a part that is left out stays."""

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
    """Tasks to approve, by keys or numbers; None is all. A task that no test proves is approved
    `without_tests`, and only by its name."""

    tasks: Annotated[list[str], Field(max_length=1000)] | None = None
    without_tests: bool = False

    @model_validator(mode="after")
    def _names_untested_tasks(self) -> Self:
        if self.without_tests and not self.tasks:
            raise ValueError("without_tests is for tasks that are named in tasks")
        return self


class ActionBody(Form):
    """What a person asks of a task, or of the whole run where no `task` is named. A note has a
    `text` and a task."""

    action: Literal[Action, "note"]
    task: str | None = None
    text: Annotated[str, Field(max_length=20_000)] = ""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.action in ("note", "skip") and self.task is None:
            raise ValueError(f"{self.action} needs a task")
        if (self.action == "note") != bool(self.text.strip()):
            raise ValueError("a note needs a text, and no other action has one")
        return self


class BlockerBody(Form):
    """The answer to a question."""

    answer: Annotated[str, Field(min_length=1, max_length=20_000)]

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.answer.strip():
            raise ValueError("the answer is empty")
        return self


class TeamRow(BaseModel):
    """A team: how many tasks are in each status, and what waits for a person. `last` is the number
    of its last event: follow the feed `team/NAME` after it."""

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
    """The teams that the user sees."""

    teams: list[TeamRow]


class RequestView(BaseModel):
    """What a person asked for that no run has taken yet: of a task, or of the whole run."""

    id: int
    action: Action
    task: str | None


class TeamDetails(TeamRow):
    """A team, with its agents. `goal` is the one that was planned last, `requirements` the document
    of its planning, `sandbox` what keeps the commands of agents from the rest of this machine, and
    `requests` what was asked for and not taken yet. `run` is what the last run has spent, of its
    budget. Without a run in progress no agent works,
    whatever its status says."""

    root: str
    goal: str
    sandbox: str
    requirements: str
    requests: list[RequestView]
    run: RunSpending | None
    agents: list[AgentInfo]


class TaskRow(BaseModel):
    """A task in a list. `since` is when it got its status, in seconds since 1970. `attempts` is how
    many attempts have ended, and `outcome` how the last did. `outcomes` is how many tests had each
    outcome when they last ran, `question` what the task asks a person. A task that is `paused`
    starts when a person resumes it. `doing` is what its agent does now; null where nobody works on
    the task."""

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
    """Tasks in the order in which they were added. Give `next` as `after` for those behind them."""

    tasks: list[TaskRow]
    next: int | None = None


class AttemptRow(BaseModel):
    """An attempt at a task: what became of it, and how many tests had each outcome. A `cost` of
    null is unknown."""

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
        """With a failure that is cut."""
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
    """An attempt with what its tests have shown."""

    report: TestReport | None


class TestsView(BaseModel):
    """What tests have shown for a task: in its last attempt, and in the merged tree, oldest first.
    `flaky` tests failed and then passed with the same work."""

    attempt: int | None
    report: TestReport | None
    merged: list[TestReport]
    flaky: tuple[str, ...]


class ReviewPage(BaseModel):
    """The reviews of the work of a task, oldest first."""

    reviews: list[Review]


class TaskDetails(BaseModel):
    """A task, with its attempts, questions and what it has spent."""

    task: Task
    spent: Spent
    attempts: list[AttemptRow]
    blockers: list[Blocker]
    reviews: int


class LogPage(BaseModel):
    """What the worker of a task asked, did and saw, oldest first. Give `next` as `start` for the
    entries behind them; `run` of an entry is the run in the journal that has all of it."""

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
        """With a detail that is cut."""
        return cls.model_validate(
            entry.model_dump() | {"detail": cut_text(entry.detail, cut), "usage": entry.usage}
        )


class DiffView(BaseModel):
    """The files of a change. `lines` of a hunk have a space, `-` or `+` before them."""

    files: list[ChangedFile]


class BlockerView(Blocker):
    """A question of a task, and when it was asked."""

    team: str
    task: str
    since: float


class BlockerPage(BaseModel):
    """Questions, in the order in which they were asked."""

    blockers: list[BlockerView]


class LeftTask(BaseModel):
    """A task that would not be started, and why."""

    task: str
    reason: str


class PlanView(BaseModel):
    """The plan: the tasks that wait for approval, those among them that no test proves, which tasks
    would be worked on at the same time, and the longest chain of tasks. `boxes` and `edges` are a
    picture of all tasks, each after those that it depends on; `task_schema` is the JSON schema of
    a task to add."""

    unapproved: list[str]
    without_tests: list[str]
    rounds: list[list[str]]
    critical_path: list[str]
    left: list[LeftTask]
    boxes: list[BoxView]
    edges: list[EdgeView]
    task_schema: dict[str, Any]


class ApprovedView(BaseModel):
    """How many tasks were approved, and those that still wait."""

    approved: int
    plan: PlanView


class ActionView(BaseModel):
    """What was asked for. With `running`, the run takes it now; otherwise the next one does."""

    action: str
    task: str | None
    running: bool
    request: int | None = None


class EventPage(BaseModel):
    """Events in order. Give `last` as `after` for those behind them."""

    events: list[dict[str, Any]]
    last: int


def cut_text(text: str, cut: int) -> str:
    """The beginning and the end of a text that is longer than `cut`; 0 cuts nothing."""
    return bounded(text, cut) if cut else text


def cut_report(report: TestReport | None, cut: int) -> TestReport | None:
    """A report with output and messages that are cut, failed tests first."""
    if report is None:
        return None
    order = {"failed": 0, "passed": 1, "skipped": 2}
    cases = sorted(report.cases, key=lambda case: order[case.outcome])
    most = 1_000 if cut else len(cases)
    shown = [c.model_copy(update={"message": cut_text(c.message, cut)}) for c in cases[:most]]
    output = cut_text(report.output, cut)
    return report.model_copy(update={"cases": tuple(shown), "output": output})


def count_tests(report: TestReport) -> dict[str, int]:
    """How many tests have each outcome."""
    return {name: len(report.of(name)) for name in ("passed", "failed", "skipped")}


LogPage.model_rebuild()
