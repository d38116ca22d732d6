"""The events of a team, and how they are sent."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, get_args

import pytest

import bae.team
from bae.team import events
from bae.team.models import Project, TaskStatus, TestCase, TestReport, summary
from bae.team.store import Store
from bounded import BOUND
from team_parts import Messages

ALL = get_args(get_args(events.Event)[0])
REPORT = TestReport(command=("t",), exit_code=0, cases=(TestCase(id="a", outcome="passed"),))


async def test_every_team_event_is_sent_as_json_values():
    to = Messages()
    await events.broadcast(
        to, events.TaskStatusChanged(1, 2, TaskStatus.READY, before=TaskStatus.PENDING)
    )
    await events.broadcast(to, events.TaskAssigned(1, 2, "a"))
    await events.broadcast(to, events.TaskBlocked(1, 2, "why"))
    await events.broadcast(to, events.TaskUnblocked(1, 2))
    await events.broadcast(to, events.AgentCreated(1, "a", "backend"))
    await events.broadcast(to, events.AgentStatusChanged(1, "a", "working", 2))
    await events.broadcast(to, events.AgentRetired(1, "a"))
    await events.broadcast(to, events.TestResult.of(1, 2, REPORT))
    await events.broadcast(to, events.CorrectionAttempt(1, 2, 2, "boom"))
    await events.broadcast(to, events.CommitCreated(1, 2, "c0ffee", ["a.py"]))
    await events.broadcast(to, events.BlockerCreated(1, 2, 3, "Which?"))
    await events.broadcast(to, events.BlockerResolved(1, 2, 3, "This."))
    await events.broadcast(to, events.PlanChanged(1, "approved", ("api",), "ana"))
    await events.broadcast(to, events.ActionRequested(1, "note", 2, "Mind the sign.", "ana"))
    await events.broadcast(to, events.ProgressUpdate(1, summary([TaskStatus.READY])))
    await events.broadcast(to, events.ActivityUpdate(1, "reads", task_id=2))

    assert [message["type"] for message in to.messages] == [
        *("task_status_changed", "task_assigned", "task_blocked", "task_unblocked"),
        *("agent_created", "agent_status_changed", "agent_retired", "test_result"),
        *("correction_attempt", "commit_created", "blocker_created", "blocker_resolved"),
        *("plan_changed", "action_requested", "progress_update", "activity_update"),
    ]
    assert [events.read_event(message).to_message() for message in to.messages] == to.messages


async def test_each_broadcast_function_sends_the_message_of_its_event():
    by_function, by_event = Messages(), Messages()
    await bae.team.broadcast_task_status(by_function, 1, 2, TaskStatus.READY)
    await bae.team.broadcast_task_assigned(by_function, 1, 2, "a")
    await bae.team.broadcast_test_result(by_function, 1, 2, REPORT)
    await bae.team.broadcast_blocker_resolved(by_function, 1, 2, 3, "This.")
    for event in (
        events.TaskStatusChanged(1, 2, TaskStatus.READY),
        events.TaskAssigned(1, 2, "a"),
        events.TestResult.of(1, 2, REPORT),
        events.BlockerResolved(1, 2, 3, "This."),
    ):
        await events.broadcast(by_event, event)
    assert by_function.messages == by_event.messages


async def test_a_failed_broadcast_is_logged_without_failing_the_run(
    caplog: pytest.LogCaptureFixture,
):
    with caplog.at_level(logging.WARNING):
        await events.broadcast(Messages(OSError("gone")), events.TaskUnblocked(1, 2))
    assert "task_unblocked was not sent" in caplog.text
    await events.broadcast(None, events.TaskUnblocked(1, 2))


async def test_a_hanging_broadcast_times_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    class Hanging:
        async def broadcast(self, message: dict[str, Any], /) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(events, "LONGEST_SEND", 0.01)
    with caplog.at_level(logging.WARNING):
        await asyncio.wait_for(events.broadcast(Hanging(), events.TaskUnblocked(1, 2)), BOUND)
    assert "task_unblocked was not sent" in caplog.text


async def test_a_hanging_ws_manager_delays_a_run_only_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    asked: list[dict[str, Any]] = []

    class Hanging:
        async def broadcast(self, message: dict[str, Any], /) -> None:
            asked.append(message)
            await asyncio.Event().wait()

    monkeypatch.setattr(events, "LONGEST_SEND", 0.01)
    async with await Store.open(tmp_path / "team.db") as store:
        project = Project(id=1, name="p", root="/p", branch="b", test_command=("t",))
        number = (await store.save_project(project)).id
        sending = store.sending_to(Hanging())
        for text in ("one", "two", "three"):
            await sending.add_events([events.ActivityUpdate(number, text)])
        assert len(await store.events(number)) == 3
    assert [message["text"] for message in asked] == ["one"]
    assert caplog.text.count("gets no more events") == 1


async def test_messages_have_the_number_and_time_of_their_event(tmp_path: Path):
    heard = Messages()
    async with await Store.open(tmp_path / "team.db") as store:
        project = Project(id=1, name="p", root="/p", branch="b", test_command=("t",))
        number = (await store.save_project(project)).id
        await store.sending_to(heard).add_events([events.ActivityUpdate(number, "one")])
        [stored] = await store.events(number)
    assert heard.messages == [stored.to_message()]
    assert (heard.messages[0]["number"], heard.messages[0]["time"]) == (stored.number, stored.at)


async def test_a_cancelled_broadcast_is_cancelled():
    with pytest.raises(asyncio.CancelledError):
        await events.broadcast(Messages(asyncio.CancelledError()), events.TaskUnblocked(1, 2))


def test_event_content_cannot_overwrite_the_number_of_a_message():
    event = events.CorrectionAttempt(project_id=1, task_id=2, attempt=3, failure="boom")
    message = events.StoredEvent(number=70, at=1.5, event=event).to_message()
    assert (message["number"], message["time"], message["attempt"]) == (70, 1.5, 3)
    assert all({"number", "time"}.isdisjoint(kind.__pydantic_fields__) for kind in ALL)
