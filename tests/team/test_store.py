"""The state of a team: refusals, races, and crashes."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from hypothesis import given
from hypothesis import strategies as st

from bae.exceptions import BaeError
from bae.team.budgets import Spent, read_spent
from bae.team.events import ActionRequested, PlanChanged
from bae.team.models import (
    AgentInfo,
    PlannedTask,
    Project,
    TaskAttempt,
    TaskStatus,
    TeamError,
    TestCase,
    TestReport,
    as_planned,
    may_move,
)
from bae.team.schedule import find_problems
from bae.team.store import Store, store_path
from bae.team.team_run import add_request
from bae.usage import Usage

PROCESS = Path(__file__).with_name("team_store_process.py")
PENDING, READY, IN_PROGRESS = TaskStatus.PENDING, TaskStatus.READY, TaskStatus.IN_PROGRESS
BLOCKED, FAILED, COMPLETED = TaskStatus.BLOCKED, TaskStatus.FAILED, TaskStatus.COMPLETED


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    async with await Store.open(tmp_path / "team.db") as opened:
        yield opened


async def a_project(store: Store, *tasks: PlannedTask) -> Project:
    project = Project(id=0, name="shop", root="/shop", branch="bae/team", test_command=("pytest",))
    project = await store.save_project(project)
    await store.add_tasks(project.id, tasks)
    return project


def a_task(key: str, *depends_on: str, **more: Any) -> PlannedTask:
    return PlannedTask(key=key, title=f"The {key}", depends_on=depends_on, **more)


async def types_of_events(store: Store, project: Project) -> list[str]:
    """The types of what happened to the tasks, once they are planned."""
    types = [event.event.type for event in await store.events(project.id)]
    return [type_ for type_ in types if type_ != "plan_changed"]


# Projects and tasks


async def test_stored_values_are_read_back_unchanged(store: Store):
    planned = a_task("api", "db", criteria=("works",), files=("a.py",), priority=3, kind="frontend")
    project = await a_project(store, planned, a_task("db"))

    api, db = await store.tasks(project.id)

    assert PlannedTask(**api.model_dump(include=set(PlannedTask.model_fields))) == planned
    assert (api.status, db.key) == (PENDING, "db")
    assert await store.task(api.id) == api
    assert await store.project(project.id) == project
    assert await store.projects() == [project]


async def test_a_project_saved_again_keeps_its_id(store: Store):
    project = await a_project(store)
    changed = await store.save_project(project.model_copy(update={"requirements": "a shop"}))
    assert changed.id == project.id
    assert (await store.project(project.id)).requirements == "a shop"


@pytest.mark.parametrize(
    ("tasks", "code", "names"),
    [
        ([a_task("a", "b"), a_task("b", "c"), a_task("c", "a")], "cycle", "a b c"),
        ([a_task("a", "a")], "cycle", "a -> a"),
        ([a_task("a", "nowhere")], "unknown-dependency", "'nowhere'"),
        ([a_task("a"), a_task("a")], "duplicate", "'a'"),
        ([a_task("a"), PlannedTask(key="b", title="the  A")], "duplicate", "'a'"),
        ([PlannedTask(key="other", title="The old")], "duplicate", "'old'"),
    ],
)
async def test_a_bad_plan_is_refused_completely_with_the_name_of_its_task(
    store: Store, tasks: list[PlannedTask], code: str, names: str
):
    project = await a_project(store, a_task("old"))

    with pytest.raises(BaeError) as caught:
        await store.add_tasks(project.id, [a_task("fine"), *tasks])

    assert caught.value.code == f"bae-team-{code}"
    assert caught.value.fix
    assert all(name in caught.value.message for name in names.split())
    assert [task.key for task in await store.tasks(project.id)] == ["old"]


def test_all_problems_of_a_plan_are_reported_at_once():
    tasks = [a_task("a", "b", "x"), a_task("b", "a"), a_task("a", "y")]
    codes = [problem.code.removeprefix("bae-team-") for problem in find_problems(tasks)]
    assert codes == ["duplicate", "unknown-dependency", "unknown-dependency"]
    tasks[2] = a_task("c", "y")
    codes = [problem.code.removeprefix("bae-team-") for problem in find_problems(tasks)]
    assert codes == ["unknown-dependency", "unknown-dependency", "cycle"]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20))
def test_a_plan_has_a_cycle_exactly_if_its_tasks_have_no_order(
    pairs: list[tuple[int, int]],
):
    needs = {n: {b for a, b in pairs if a == n} for n in range(8)}
    tasks = [a_task(f"t{n}", *(f"t{m}" for m in sorted(needs[n]))) for n in needs]
    done: set[int] = set()
    while ready := {n for n in needs if n not in done and needs[n] <= done}:
        done |= ready
    assert bool(find_problems(tasks)) == (len(done) < 8)


async def test_an_edited_task_keeps_its_dependents(store: Store):
    project = await a_project(store, a_task("db"), a_task("api", "db"))
    db, api = await store.tasks(project.id)

    await store.edit_task(db.id, a_task("database"))

    assert (await store.task(api.id)).depends_on == ("database",)
    with pytest.raises(TeamError, match="bae-team-cycle"):
        await store.edit_task(db.id, a_task("database", "api"))
    with pytest.raises(TeamError, match="api depends on it"):
        await store.drop_task(db.id)
    await store.drop_task(api.id)
    assert [task.key for task in await store.tasks(project.id)] == ["database"]
    (new,) = await store.add_tasks(project.id, [a_task("api")])
    assert new.id > api.id  # the branch of the dropped task is not taken over


async def test_an_error_names_the_missing_object(store: Store):
    for call in (store.task(7), store.project(7), store.answer_blocker(7, "x"), store.drop_task(7)):
        with pytest.raises(TeamError, match=r"no .* 7") as caught:
            await call
        assert caught.value.code == "bae-team-unknown"


# Status


async def test_status_changes_only_from_the_current_status_and_only_along_the_table(store: Store):
    await a_project(store, a_task("a"))
    assert await store.move(1, READY, IN_PROGRESS) is None
    for before in TaskStatus:
        for after in TaskStatus:
            if not may_move(before, after):
                with pytest.raises(TeamError, match=f"from {before} to {after}"):
                    await store.move(1, before, after)
    assert (await store.task(1)).status is PENDING


async def test_a_task_is_completed_by_a_merged_commit_and_stays_completed(store: Store):
    await a_project(store, a_task("a"))
    await store.move(1, PENDING, READY)
    await store.move(1, READY, IN_PROGRESS, base="b" * 40)
    with pytest.raises(TeamError, match="completed means merged"):
        await store.move(1, IN_PROGRESS, COMPLETED)

    done = await store.move(1, IN_PROGRESS, COMPLETED, commit="c" * 40)

    assert done is not None
    assert (done.base, done.commit) == ("b" * 40, "c" * 40)
    for change in (store.edit_task(1, a_task("b")), store.drop_task(1)):
        with pytest.raises(TeamError, match="it is completed"):
            await change


async def test_a_change_of_status_is_stored_with_its_events(store: Store):
    project = await a_project(store, a_task("a"))
    await store.move(1, PENDING, BLOCKED, reason="x failed")
    await store.move(1, BLOCKED, PENDING)
    await store.move(1, BLOCKED, PENDING)  # too late: no event

    assert await types_of_events(store, project) == [
        *("task_status_changed", "task_blocked"),
        *("task_status_changed", "task_unblocked"),
    ]


async def test_only_one_of_two_processes_gets_each_task(store: Store):
    tasks = 60
    await a_project(store, *(a_task(f"t{n}") for n in range(tasks)))
    for number in range(1, tasks + 1):
        await store.move(number, PENDING, READY)
    arguments = [sys.executable, str(PROCESS), "race", str(store.path), str(tasks)]
    racers = [
        await asyncio.create_subprocess_exec(*arguments, stdin=PIPE, stdout=PIPE) for _ in range(2)
    ]
    for racer in racers:
        assert racer.stdout
        assert await racer.stdout.readline() == b"open\n"

    outputs = await asyncio.gather(*(racer.communicate(b"go\n") for racer in racers))

    won = [[int(line) for line in output.split()] for output, _ in outputs]
    assert sorted(won[0] + won[1]) == list(range(1, tasks + 1))
    project = (await store.projects())[0]
    assert all(task.status is IN_PROGRESS for task in await store.tasks(project.id))


# What survives


async def test_acknowledged_writes_survive_a_kill_at_any_moment(tmp_path: Path):
    path = tmp_path / "team.db"
    async with await Store.open(path) as store:
        await a_project(store, a_task("a"))
    random = Random(16)
    acknowledged: list[list[int]] = []
    for _ in range(3):
        first = acknowledged[-1][0] + 1 if acknowledged else 1
        arguments = [sys.executable, str(PROCESS), "write", str(path), str(first)]
        process = await asyncio.create_subprocess_exec(*arguments, stdout=PIPE)
        assert process.stdout
        lines = [await process.stdout.readline() for _ in range(random.randint(1, 40))]
        process.kill()
        lines += (await process.stdout.read()).splitlines()
        await process.wait()
        acknowledged += [[int(word) for word in line.split()] for line in lines]

    async with await Store.open(path) as store:
        attempts = {attempt.number for attempt in await store.attempts(1)}
        asked = {blocker.id: blocker.question for blocker in await store.blockers(1)}
        events = (await store.events(1, most=100_000))[1:]  # the first adds the task

    assert all(number in attempts for number, _ in acknowledged)
    assert all(asked[blocker] == f"question {number}" for number, blocker in acknowledged)
    # Each change is there together with its event.
    assert [event.event.to_message()["blocker_id"] for event in events] == sorted(asked)
    with sqlite3.connect(path) as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
    connection.close()


async def test_every_change_of_the_plan_is_an_event_with_its_author(store: Store):
    project = await a_project(store)
    [api, page] = await store.add_tasks(
        project.id, [a_task("api"), a_task("page", "api")], approved=False, by="ana"
    )
    assert await store.approve_tasks([api.id, page.id], by="ben") == 2
    assert await store.approve_tasks([api.id, page.id], by="ben") == 0  # they are approved
    await store.edit_task(page.id, a_task("pages", "api"), by="ana")
    with pytest.raises(TeamError, match="pages depends on it"):
        await store.drop_task(api.id, by="ana")
    await store.drop_task(page.id, by="ana")
    await store.add_note(api.id, "Mind the sign.", by="ana")
    await add_request(store, project.id, "pause", by="ben")
    changes = [
        (e.event.change, e.event.tasks, e.event.by)
        for e in await store.events_of(project.id, PlanChanged)
        if isinstance(e.event, PlanChanged)
    ]
    assert changes == [
        ("added", ("api", "page"), "ana"),
        ("approved", ("api", "page"), "ben"),
        ("edited", ("pages",), "ana"),
        ("dropped", ("pages",), "ana"),
    ]
    asked = [e.event for e in await store.events_of(project.id, ActionRequested)]
    assert asked == [
        ActionRequested(project.id, "note", api.id, "Mind the sign.", "ana"),
        ActionRequested(project.id, "pause", by="ben"),
    ]


async def test_a_cancelled_call_has_ended_when_the_cancellation_is_raised(store: Store):
    await a_project(store, a_task("a"))
    moving = asyncio.create_task(store.move(1, PENDING, READY))
    await asyncio.sleep(0)
    moving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await moving
    assert (await store.task(1)).status is READY


async def test_many_calls_at_once_are_all_stored(store: Store):
    project = await a_project(store, *(a_task(f"t{n}") for n in range(50)))
    async with asyncio.TaskGroup() as group:
        for number in range(1, 51):
            group.create_task(store.move(number, PENDING, READY))
    assert len(await types_of_events(store, project)) == 50


async def test_a_file_of_another_program_or_format_is_refused_and_not_changed(tmp_path: Path):
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("create table mine (x)")
    connection.close()
    (tmp_path / "text.db").write_text("no database at all, but long enough to look like one" * 40)
    newer = tmp_path / "newer.db"
    async with await Store.open(newer):
        pass
    with sqlite3.connect(newer) as connection:
        connection.execute("pragma user_version = 99")
    connection.close()
    for path in (foreign, tmp_path / "text.db", newer):
        before = path.read_bytes()
        with pytest.raises(TeamError) as caught:
            await Store.open(path)
        assert caught.value.code == "bae-team-store"
        assert str(path) in caught.value.message
        assert path.read_bytes() == before


async def test_a_file_of_the_first_format_is_read_and_upgraded(tmp_path: Path):
    path = tmp_path / "old.db"
    async with await Store.open(path) as store:
        project = await a_project(store, a_task("a"))
        await store.add_blocker(1, "Which tax?")
    with sqlite3.connect(path) as connection:  # as it was
        connection.execute("alter table blockers drop column digest")
        connection.execute("alter table blockers drop column answered_by")
        connection.execute("alter table tasks drop column added")
        connection.execute("alter table spending drop column unpriced")
        connection.execute("alter table runs drop column budget")
        data = {"name": "x", "branch": "b", "test_command": ["pytest"]}
        connection.execute("update projects set data = ?", [json.dumps(data)])
        connection.execute("pragma user_version = 1")
    connection.close()
    for _ in range(2):
        async with await Store.open(path) as store:
            assert (await store.project(project.id)).update_checkout is False
            assert [blocker.digest for blocker in await store.blockers(project.id)] == [None]
    async with await Store.open(path) as store:
        assert (await store.add_blocker(1, "May it?", digest="d")).digest == "d"
        [_, asked] = await store.blockers(project.id)
        assert (asked.digest, asked.is_yes) == ("d", False)
        assert (await store.answer_blocker(asked.id, " Yes. ", by="ana")).is_yes
        assert (await store.blockers(project.id))[1].answered_by == "ana"


def test_the_state_of_a_team_is_in_a_folder_beside_the_repository():
    assert store_path(Path("/work/shop")) == Path("/work/.shop.team/team.db")


# Attempts, blockers, agents


async def test_attempts_have_their_reports_separate_from_the_reports_of_the_merged_tree(
    store: Store,
):
    await a_project(store, a_task("a"))
    case = TestCase(id="t::a", outcome="failed", message="half a character: \ud800")
    report = TestReport(command=("pytest",), exit_code=1, cases=(case,))
    first = TaskAttempt(task_id=1, number=1, outcome="failed", failure="boom", report=report)
    second = TaskAttempt(task_id=1, number=2, outcome="passed", usage=Usage(calls=2, cost=0.5))
    for attempt in (first, first, second):
        await store.add_attempt(attempt)
    await store.add_report(1, report.model_copy(update={"exit_code": 2}))

    assert await store.attempts(1) == [first, second]
    assert [report.exit_code for report in await store.merge_reports(1)] == [2]


async def test_a_question_is_answered_once_and_notes_are_stored_for_the_task(store: Store):
    project = await a_project(store, a_task("a"))
    asked = await store.add_blocker(1, "Which port? \ud800")
    assert await store.blockers(project.id, open_only=True) == [asked]

    answered = await store.answer_blocker(asked.id, "8080")

    assert await store.blockers(project.id) == [answered]
    assert await store.blockers(project.id, open_only=True) == []
    with pytest.raises(TeamError, match="answered before: 8080"):
        await store.answer_blocker(asked.id, "9090")
    await store.add_note(1, "be brief")
    await store.add_note(1, "use asyncio")
    assert (await store.task(1)).notes == ("be brief", "use asyncio")
    types = await types_of_events(store, project)
    assert types == ["blocker_created", "blocker_resolved", *["action_requested"] * 2]


async def test_every_change_of_an_agent_is_one_event(store: Store):
    project = await a_project(store, a_task("a"))
    idle = AgentInfo(id="backend-1", kind="backend")
    working = idle.model_copy(update={"status": "working", "task_id": 1})
    retired = idle.model_copy(update={"status": "retired"})
    for agent in (idle, working, working, idle, retired, retired):
        await store.save_agent(project.id, agent)

    assert await store.agents(project.id) == [retired]
    assert await types_of_events(store, project) == [
        *("agent_created", "agent_status_changed", "task_assigned"),
        *("agent_status_changed", "agent_retired"),
    ]


async def test_a_file_of_the_previous_format_is_read_and_upgraded(tmp_path: Path):
    path = tmp_path / "team.db"
    async with await Store.open(path) as store:
        project = await a_project(store, a_task("a"))
        await store.add_blocker(1, "Why?")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("alter table blockers drop column digest")
        db.execute("alter table blockers drop column answered_by")
        db.execute("alter table tasks drop column added")
        db.execute("alter table spending drop column unpriced")
        db.execute("alter table runs drop column budget")
        for tokens, cost in ((500, 0.0), (500, 0.25), (0, 0.0)):
            values = (project.id, 1, 1, tokens, cost)
            db.execute(
                "insert into spending (project_id, task_id, run_id, tokens, cost)"
                " values (?, ?, ?, ?, ?)",
                values,
            )
        planned = '{"title": "A", "edits_tests": true, "tests": ["test_a.py"]}'
        db.execute("update tasks set planned = ?", [planned])
        db.execute("pragma user_version = 1")
    async with await Store.open(path) as store:
        [task] = await store.tasks(project.id)
        assert (task.may, task.proof) == ("change-tests", "named-tests")
        [blocker] = await store.blockers(project.id)
        assert (blocker.question, blocker.digest) == ("Why?", None)
        assert await read_spent(store) == Spent(3, 1000, 0.25, 1)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("pragma user_version").fetchone() == (5,)


async def test_tasks_without_tests_need_explicit_approval_and_again_after_an_edit(store: Store):
    await a_project(store, a_task("a"), a_task("b", proof="none"))
    one, other = await store.tasks(1)
    assert (one.approved, other.approved) == (True, False)
    assert await store.approve_tasks([one.id, other.id]) == 0  # the first is approved already
    assert await store.approve_tasks([one.id, other.id], without_tests=True) == 1
    assert (await store.task(other.id)).approved
    assert not (await store.edit_task(other.id, as_planned(other, title="C"))).approved
