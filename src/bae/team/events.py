"""The typed events of a team. Each event is stored before it is sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import field
from typing import Annotated, Any, Concatenate, Final, Literal, ParamSpec, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from bae.team.models import Action, Review, TaskStatus, TestReport

P = ParamSpec("P")
_log = logging.getLogger(__name__)
LONGEST_SEND: Final = 5.0
"""The most seconds that a broadcast may take."""
_FORBID: Final = ConfigDict(extra="forbid", defer_build=True)
PlanChange = Literal["added", "edited", "approved", "dropped"]


@dataclass(frozen=True, config=_FORBID)
class _Event:
    project_id: int

    def to_message(self) -> dict[str, Any]:
        """Return the event as plain JSON values."""
        return _EVENT_TYPE.dump_python(self, mode="json")  # type: ignore[arg-type]


@dataclass(frozen=True, config=_FORBID)
class TaskStatusChanged(_Event):
    """The status of a task changed."""

    task_id: int
    status: TaskStatus
    before: TaskStatus | None = None
    reason: str = ""
    type: Literal["task_status_changed"] = field(default="task_status_changed", kw_only=True)


@dataclass(frozen=True, config=_FORBID)
class TaskAssigned(_Event):
    """An agent took a task."""

    task_id: int
    agent_id: str
    type: Literal["task_assigned"] = field(default="task_assigned", kw_only=True)


@dataclass(frozen=True, config=_FORBID)
class TaskBlocked(_Event):
    """A task waits for an answer, or one of its prerequisites failed."""

    task_id: int
    reason: str = ""
    type: Literal["task_blocked"] = field(default="task_blocked", kw_only=True)


@dataclass(frozen=True, config=_FORBID)
class TaskUnblocked(_Event):
    """A blocked task continues."""

    task_id: int
    type: Literal["task_unblocked"] = field(default="task_unblocked", kw_only=True)


@dataclass(frozen=True, config=_FORBID)
class AgentCreated(_Event):
    """The pool created an agent."""

    agent_id: str
    kind: str
    type: Literal["agent_created"] = field(default="agent_created", kw_only=True)


@dataclass(frozen=True, config=_FORBID)
class AgentStatusChanged(_Event):
    """An agent became idle, or started to work."""

    agent_id: str
    status: str
    task_id: int | None = None
    type: Literal["agent_status_changed"] = field(default="agent_status_changed", kw_only=True)


@dataclass(frozen=True, config=_FORBID)
class AgentRetired(_Event):
    """An agent was retired."""

    agent_id: str
    type: Literal["agent_retired"] = field(default="agent_retired", kw_only=True)


@dataclass(frozen=True, config=_FORBID)
class TestResult(_Event):
    """The project's tests ran for a task. `counts` has the number of tests for each outcome."""

    __test__ = False  # no test class for pytest

    task_id: int
    passed: bool
    counts: dict[str, int] = field(default_factory=dict[str, int])
    seconds: float = 0.0
    problem: str = ""
    type: Literal["test_result"] = field(default="test_result", kw_only=True)

    @classmethod
    def of(
        cls,
        project_id: int,
        task_id: int,
        report: TestReport,
        problem: str = "",
        failed_before: int = 0,
    ) -> Self:
        """Return the event for a test report. `problem` replaces the report's own problem.
        `failed_before` is the number of failed tests that are not counted, because they failed
        before the task too."""
        counts = {name: len(report.of(name)) for name in ("passed", "failed", "skipped")}
        if failed_before:
            counts["failed before"] = failed_before
        if report.flaky:
            counts["flaky"] = len(report.flaky)
        problem_text = problem or report.problem
        return cls(project_id, task_id, report.passed, counts, report.seconds, problem_text)


@dataclass(frozen=True, config=_FORBID)
class CorrectionAttempt(_Event):
    """A worker begins to correct its work. `failure` is the reason why the work was refused."""

    task_id: int
    attempt: int
    failure: str = ""
    type: Literal["correction_attempt"] = field(default="correction_attempt", kw_only=True)


@dataclass(frozen=True, config=_FORBID)
class CommitCreated(_Event):
    """A commit was created for a task."""

    task_id: int
    commit: str
    files: tuple[str, ...] = ()
    type: Literal["commit_created"] = field(default="commit_created", kw_only=True)


@dataclass(frozen=True, config=_FORBID)
class WorkReviewed(_Event):
    """A reviewer has read the work of a task, or the review failed."""

    task_id: int
    review: Review
    type: Literal["work_reviewed"] = field(default="work_reviewed", kw_only=True)


@dataclass(frozen=True, config=_FORBID)
class BlockerCreated(_Event):
    """A task asks a person a question."""

    task_id: int
    blocker_id: int
    question: str
    type: Literal["blocker_created"] = field(default="blocker_created", kw_only=True)


@dataclass(frozen=True, config=_FORBID)
class BlockerResolved(_Event):
    """The user `by` answered a question."""

    task_id: int
    blocker_id: int
    answer: str
    by: str | None = None
    type: Literal["blocker_resolved"] = field(default="blocker_resolved", kw_only=True)


@dataclass(frozen=True, config=_FORBID)
class PlanChanged(_Event):
    """The user `by` added, edited, approved or dropped tasks. `tasks` has the tasks' keys."""

    change: PlanChange
    tasks: tuple[str, ...]
    by: str | None = None
    type: Literal["plan_changed"] = field(default="plan_changed", kw_only=True)


@dataclass(frozen=True, config=_FORBID)
class ActionRequested(_Event):
    """The user `by` requested an action for a task, or for the run if `task_id` is None. A note has
    a `text`."""

    action: Action | Literal["note"]
    task_id: int | None = None
    text: str = ""
    by: str | None = None
    type: Literal["action_requested"] = field(default="action_requested", kw_only=True)


@dataclass(frozen=True, config=_FORBID)
class ProgressUpdate(_Event):
    """The number of tasks in each status."""

    counts: dict[TaskStatus, int]
    type: Literal["progress_update"] = field(default="progress_update", kw_only=True)


@dataclass(frozen=True, config=_FORBID)
class ActivityUpdate(_Event):
    """What bae or a coding program is doing now, in words. The activity is for a task, or for the
    run if `task_id` is None. What an LLM does is not an event: it is in the journal of its run."""

    text: str
    task_id: int | None = None
    agent_id: str | None = None
    journaled: bool = False
    """Whether the activity is a tool call, whose details are in the journal. Only earlier versions
    of bae stored such events."""
    program: str = ""
    """The name of the coding program. Empty for an activity of bae."""
    type: Literal["activity_update"] = field(default="activity_update", kw_only=True)


Event = Annotated[
    TaskStatusChanged
    | TaskAssigned
    | TaskBlocked
    | TaskUnblocked
    | AgentCreated
    | AgentStatusChanged
    | AgentRetired
    | TestResult
    | CorrectionAttempt
    | CommitCreated
    | WorkReviewed
    | BlockerCreated
    | BlockerResolved
    | PlanChanged
    | ActionRequested
    | ProgressUpdate
    | ActivityUpdate,
    Field(discriminator="type"),
]


class StoredEvent(BaseModel):
    """An event with its number and the time when it was stored. The time is in seconds since 1970.
    Later events have greater numbers."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    number: int
    at: float
    event: Event

    def to_message(self) -> dict[str, Any]:
        """Return the message for a client: the fields of the event, its `number` and its
        `time`."""
        return {"number": self.number, "time": self.at, **self.event.to_message()}


# The first use builds the validators, because most commands read no event.
_EVENT_TYPE: TypeAdapter[Event] = TypeAdapter(Event, config=ConfigDict(defer_build=True))


def read_event(message: Any) -> Event:
    """Return the event in a message of plain JSON values. Raises pydantic's ValidationError if the
    message is not an event."""
    return _EVENT_TYPE.validate_python(message)


class Broadcaster(Protocol):
    """A receiver of events. Any object with the method `broadcast` is a receiver."""

    async def broadcast(self, message: dict[str, Any], /) -> Any: ...


async def broadcast(ws_manager: Broadcaster | None, event: Event) -> None:
    """Send an event without storing the event. A failure or a timeout is logged and has no other
    effect."""
    await Sender(ws_manager).send(event.type, event.to_message())


class Sender:
    """Sends messages to a `ws_manager` until a message times out."""

    def __init__(self, ws_manager: Broadcaster | None) -> None:
        self._ws_manager = ws_manager

    async def send(self, name: str, message: dict[str, Any]) -> None:
        """Send a message. A failure is logged and has no other effect. After a timeout, the
        `ws_manager` gets no more messages, because each message could delay the team."""
        if self._ws_manager is None:
            return
        bound = asyncio.timeout(LONGEST_SEND)
        try:
            async with bound:
                await self._ws_manager.broadcast(message)
        except Exception:  # a socket, or the caller's own manager, may raise any error
            if bound.expired():
                self._ws_manager = None
                _log.warning(
                    "%s was not sent in %g s: ws_manager gets no more events", name, LONGEST_SEND
                )
            else:
                _log.warning("%s was not sent", name, exc_info=True)


def _make_broadcast(
    make: Callable[P, Event],
) -> Callable[Concatenate[Broadcaster | None, P], Coroutine[Any, Any, None]]:
    """Return an async function that makes an event and sends it. The function takes the
    `ws_manager`, and then the arguments of `make`."""

    async def send(ws_manager: Broadcaster | None, *args: P.args, **kwargs: P.kwargs) -> None:
        await broadcast(ws_manager, make(*args, **kwargs))

    send.__doc__ = f"Send a `{getattr(make, '__self__', make).__name__}` event."  # type: ignore[attr-defined]
    return send


broadcast_task_status = _make_broadcast(TaskStatusChanged)
broadcast_task_assigned = _make_broadcast(TaskAssigned)
broadcast_task_blocked = _make_broadcast(TaskBlocked)
broadcast_task_unblocked = _make_broadcast(TaskUnblocked)
broadcast_agent_created = _make_broadcast(AgentCreated)
broadcast_agent_status = _make_broadcast(AgentStatusChanged)
broadcast_agent_retired = _make_broadcast(AgentRetired)
broadcast_test_result = _make_broadcast(TestResult.of)
broadcast_correction_attempt = _make_broadcast(CorrectionAttempt)
broadcast_commit_created = _make_broadcast(CommitCreated)
broadcast_blocker_created = _make_broadcast(BlockerCreated)
broadcast_blocker_resolved = _make_broadcast(BlockerResolved)
broadcast_progress = _make_broadcast(ProgressUpdate)
broadcast_activity = _make_broadcast(ActivityUpdate)
