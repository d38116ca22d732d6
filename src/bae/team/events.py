"""What happens in a team, as typed events. Each is stored before it is sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from bae.team.models import TaskStatus, TestReport

_log = logging.getLogger(__name__)
LONGEST_SEND: Final = 5.0
"""Seconds that a broadcast may take."""


class _Event(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    project_id: int

    def to_message(self) -> dict[str, Any]:
        """The event as plain JSON values."""
        return self.model_dump(mode="json")


class TaskStatusChanged(_Event):
    """A task went from one status to another."""

    type: Literal["task_status_changed"] = "task_status_changed"
    task_id: int
    status: TaskStatus
    before: TaskStatus | None = None
    reason: str = ""


class TaskAssigned(_Event):
    """An agent took a task."""

    type: Literal["task_assigned"] = "task_assigned"
    task_id: int
    agent_id: str


class TaskBlocked(_Event):
    """A task waits for an answer, or its prerequisite failed."""

    type: Literal["task_blocked"] = "task_blocked"
    task_id: int
    reason: str = ""


class TaskUnblocked(_Event):
    """A blocked task continues."""

    type: Literal["task_unblocked"] = "task_unblocked"
    task_id: int


class AgentCreated(_Event):
    """The pool has a new agent."""

    type: Literal["agent_created"] = "agent_created"
    agent_id: str
    kind: str


class AgentStatusChanged(_Event):
    """An agent is idle, or works."""

    type: Literal["agent_status_changed"] = "agent_status_changed"
    agent_id: str
    status: str
    task_id: int | None = None


class AgentRetired(_Event):
    """An agent is gone."""

    type: Literal["agent_retired"] = "agent_retired"
    agent_id: str


class TestResult(_Event):
    """The project's tests ran for a task."""

    __test__ = False  # no test class for pytest

    type: Literal["test_result"] = "test_result"
    task_id: int
    passed: bool
    counts: dict[str, int] = Field(default={}, description="how many tests by outcome")
    seconds: float = 0.0
    problem: str = ""


class CorrectionAttempt(_Event):
    """A worker tries again with the failure it was shown."""

    type: Literal["correction_attempt"] = "correction_attempt"
    task_id: int
    attempt: int
    failure: str = ""


class CommitCreated(_Event):
    """There is a new commit for a task."""

    type: Literal["commit_created"] = "commit_created"
    task_id: int
    commit: str
    files: tuple[str, ...] = ()


class BlockerCreated(_Event):
    """A task asks a person."""

    type: Literal["blocker_created"] = "blocker_created"
    task_id: int
    blocker_id: int
    question: str


class BlockerResolved(_Event):
    """A person answered."""

    type: Literal["blocker_resolved"] = "blocker_resolved"
    task_id: int
    blocker_id: int
    answer: str


class ProgressUpdate(_Event):
    """How many tasks are in each status."""

    type: Literal["progress_update"] = "progress_update"
    counts: dict[str, int]


class ActivityUpdate(_Event):
    """What an agent is doing, in words."""

    type: Literal["activity_update"] = "activity_update"
    text: str
    task_id: int | None = None
    agent_id: str | None = None


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
    | BlockerCreated
    | BlockerResolved
    | ProgressUpdate
    | ActivityUpdate,
    Field(discriminator="type"),
]


class StoredEvent(BaseModel):
    """An event with its number, which only grows, and its time, in seconds since 1970."""

    model_config = ConfigDict(frozen=True)

    number: int
    at: float
    event: Event

    def to_message(self) -> dict[str, Any]:
        """What a client gets: the event's own fields with the number and the time."""
        return {"number": self.number, "at": self.at, **self.event.to_message()}


_ANY: TypeAdapter[Event] = TypeAdapter(Event)


def read_event(message: Any) -> Event:
    """An event from its plain form; pydantic's ValidationError where it is none."""
    return _ANY.validate_python(message)


class Broadcaster(Protocol):
    """What events are sent to: anything with this method."""

    async def broadcast(self, message: dict[str, Any], /) -> Any: ...


async def broadcast(ws_manager: Broadcaster | None, event: Event) -> None:
    """Send an event. One that cannot be sent, or not in time, is logged and fails nothing."""
    if ws_manager is None:
        return
    try:
        # A socket that hangs would hold up the team, and keep a cancelled one from ending.
        async with asyncio.timeout(LONGEST_SEND):
            await ws_manager.broadcast(event.to_message())
    except Exception:  # whatever a socket or the caller's own manager raises
        _log.warning("%s was not sent", event.type, exc_info=True)


async def broadcast_task_status(
    ws_manager: Broadcaster | None,
    project_id: int,
    task_id: int,
    status: TaskStatus,
    *,
    before: TaskStatus | None = None,
    reason: str = "",
) -> None:
    """Send a `TaskStatusChanged`."""
    await broadcast(
        ws_manager,
        TaskStatusChanged(
            project_id=project_id, task_id=task_id, status=status, before=before, reason=reason
        ),
    )


async def broadcast_task_assigned(
    ws_manager: Broadcaster | None, project_id: int, task_id: int, agent_id: str
) -> None:
    """Send a `TaskAssigned`."""
    await broadcast(
        ws_manager, TaskAssigned(project_id=project_id, task_id=task_id, agent_id=agent_id)
    )


async def broadcast_task_blocked(
    ws_manager: Broadcaster | None, project_id: int, task_id: int, reason: str = ""
) -> None:
    """Send a `TaskBlocked`."""
    await broadcast(ws_manager, TaskBlocked(project_id=project_id, task_id=task_id, reason=reason))


async def broadcast_task_unblocked(
    ws_manager: Broadcaster | None, project_id: int, task_id: int
) -> None:
    """Send a `TaskUnblocked`."""
    await broadcast(ws_manager, TaskUnblocked(project_id=project_id, task_id=task_id))


async def broadcast_agent_created(
    ws_manager: Broadcaster | None, project_id: int, agent_id: str, kind: str
) -> None:
    """Send a `AgentCreated`."""
    await broadcast(ws_manager, AgentCreated(project_id=project_id, agent_id=agent_id, kind=kind))


async def broadcast_agent_status(
    ws_manager: Broadcaster | None,
    project_id: int,
    agent_id: str,
    status: str,
    task_id: int | None = None,
) -> None:
    """Send a `AgentStatusChanged`."""
    await broadcast(
        ws_manager,
        AgentStatusChanged(
            project_id=project_id, agent_id=agent_id, status=status, task_id=task_id
        ),
    )


async def broadcast_agent_retired(
    ws_manager: Broadcaster | None, project_id: int, agent_id: str
) -> None:
    """Send a `AgentRetired`."""
    await broadcast(ws_manager, AgentRetired(project_id=project_id, agent_id=agent_id))


async def broadcast_correction_attempt(
    ws_manager: Broadcaster | None, project_id: int, task_id: int, attempt: int, failure: str = ""
) -> None:
    """Send a `CorrectionAttempt`."""
    await broadcast(
        ws_manager,
        CorrectionAttempt(project_id=project_id, task_id=task_id, attempt=attempt, failure=failure),
    )


async def broadcast_commit_created(
    ws_manager: Broadcaster | None,
    project_id: int,
    task_id: int,
    commit: str,
    files: Sequence[str] = (),
) -> None:
    """Send a `CommitCreated`."""
    await broadcast(
        ws_manager,
        CommitCreated(project_id=project_id, task_id=task_id, commit=commit, files=tuple(files)),
    )


async def broadcast_blocker_created(
    ws_manager: Broadcaster | None, project_id: int, task_id: int, blocker_id: int, question: str
) -> None:
    """Send a `BlockerCreated`."""
    await broadcast(
        ws_manager,
        BlockerCreated(
            project_id=project_id, task_id=task_id, blocker_id=blocker_id, question=question
        ),
    )


async def broadcast_blocker_resolved(
    ws_manager: Broadcaster | None, project_id: int, task_id: int, blocker_id: int, answer: str
) -> None:
    """Send a `BlockerResolved`."""
    await broadcast(
        ws_manager,
        BlockerResolved(
            project_id=project_id, task_id=task_id, blocker_id=blocker_id, answer=answer
        ),
    )


async def broadcast_progress(
    ws_manager: Broadcaster | None, project_id: int, counts: Mapping[TaskStatus, int]
) -> None:
    """Send a `ProgressUpdate`."""
    await broadcast(
        ws_manager,
        ProgressUpdate(
            project_id=project_id, counts={str(status): count for status, count in counts.items()}
        ),
    )


async def broadcast_activity(
    ws_manager: Broadcaster | None,
    project_id: int,
    text: str,
    *,
    task_id: int | None = None,
    agent_id: str | None = None,
) -> None:
    """Send a `ActivityUpdate`."""
    await broadcast(
        ws_manager,
        ActivityUpdate(project_id=project_id, text=text, task_id=task_id, agent_id=agent_id),
    )


async def broadcast_test_result(
    ws_manager: Broadcaster | None, project_id: int, task_id: int, report: TestReport
) -> None:
    """Send a `TestResult`."""
    counts = {name: len(report.of(name)) for name in ("passed", "failed", "skipped")}
    event = TestResult(
        project_id=project_id,
        task_id=task_id,
        passed=report.passed,
        counts=counts,
        seconds=report.seconds,
        problem=report.problem,
    )
    await broadcast(ws_manager, event)
