"""The rules of scheduling, without a store or an event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bae.team.models import Task, TaskStatus, may_move
from bae.team.schedule import (
    DONE,
    StatusChange,
    apply_changes,
    choose_next,
    find_changes,
    find_critical_path,
    in_order,
    plan_dry_run,
)

PENDING, READY, IN_PROGRESS = TaskStatus.PENDING, TaskStatus.READY, TaskStatus.IN_PROGRESS
BLOCKED, FAILED, COMPLETED = TaskStatus.BLOCKED, TaskStatus.FAILED, TaskStatus.COMPLETED
CANCELLED, SKIPPED = TaskStatus.CANCELLED, TaskStatus.SKIPPED


def a_task(number: int, *needs: int, status: TaskStatus = PENDING, **more: Any) -> Task:
    return Task(
        id=number,
        project_id=1,
        key=f"t{number}",
        title=f"Task {number}",
        depends_on=tuple(f"t{need}" for need in needs),
        status=status,
        **more,
    )


def moves(changes: Sequence[StatusChange]) -> list[tuple[int, str, str]]:
    return [(change.task.id, change.after, change.reason) for change in changes]


def after(tasks: Sequence[Task], **options: Any) -> dict[int, TaskStatus]:
    changed = apply_changes(tasks, find_changes(tasks, **options))
    return {task.id: task.status for task in changed}


def test_a_task_is_ready_when_its_own_prerequisites_are_merged():
    tasks = [a_task(1, status=COMPLETED), a_task(2, status=IN_PROGRESS), a_task(3, 1), a_task(4, 2)]
    assert moves(find_changes(tasks)) == [(3, READY, "")]


def test_a_failed_prerequisite_blocks_its_dependents_and_is_their_reason():
    tasks = [a_task(1, status=FAILED, failures=1), a_task(2, 1), a_task(3, 2), a_task(4)]
    assert sorted(moves(find_changes(tasks))) == [
        (2, BLOCKED, "its prerequisite 't1' failed"),
        (3, BLOCKED, "its prerequisite 't2' is blocked"),
        (4, READY, ""),
    ]


def test_a_retried_prerequisite_unblocks_all_its_dependents():
    blocked = {"status": BLOCKED, "reason": "its prerequisite 't1' failed"}
    tasks = [a_task(1, status=IN_PROGRESS), a_task(2, 1, **blocked), a_task(3, 2, **blocked)]
    assert after(tasks) == {1: IN_PROGRESS, 2: PENDING, 3: PENDING}


def test_a_blocked_task_names_its_current_blockers():
    tasks = [
        a_task(1, status=COMPLETED),
        a_task(2, status=CANCELLED),
        a_task(3, 1, 2, status=BLOCKED, reason="its prerequisite 't1' failed"),
    ]
    now = "its prerequisite 't2' was cancelled"
    assert moves(find_changes(tasks)) == [(3, PENDING, ""), (3, BLOCKED, now)]


def test_every_failed_task_is_retried_including_the_last():
    tasks = [a_task(1, status=COMPLETED), a_task(2, status=FAILED, failures=1), a_task(3, 2)]
    assert moves(find_changes(tasks, retries=1)) == [(2, READY, "try 2 of 2")]
    assert after(tasks, retries=1, final={2}) == {1: COMPLETED, 2: FAILED, 3: BLOCKED}
    twice = [tasks[0], a_task(2, status=FAILED, failures=2), tasks[2]]
    assert after(twice, retries=1)[2] is FAILED


def test_a_task_with_an_open_question_waits_for_the_answer():
    tasks = [a_task(1, status=BLOCKED, reason="Which port?"), a_task(2, 1)]
    assert after(tasks, held={1: "Which port?"}) == {1: BLOCKED, 2: BLOCKED}
    assert after(tasks) == {1: READY, 2: PENDING}


def test_an_unapproved_task_waits_and_so_do_its_dependents():
    tasks = [a_task(1, approved=False), a_task(2, 1)]
    assert find_changes(tasks) == []
    assert [task.id for task in plan_dry_run(tasks).left] == [1, 2]


def test_a_skipped_task_unblocks_its_dependents():
    assert after([a_task(1, status=SKIPPED), a_task(2, 1)]) == {1: SKIPPED, 2: READY}


def test_tasks_start_by_priority_and_then_by_the_number_of_their_dependents():
    tasks = [
        a_task(1, status=READY),
        a_task(2, status=READY),
        a_task(3, 2),
        a_task(4, status=READY, priority=5),
        a_task(5, status=IN_PROGRESS),
    ]
    assert [task.id for task in choose_next(tasks, 4)] == [4, 2, 1]
    assert [task.id for task in choose_next(tasks, 2)] == [4]
    assert choose_next(tasks, 1) == []


def test_a_dry_run_shows_the_order_the_critical_path_and_blocked_tasks():
    tasks = [a_task(1), a_task(2, 1), a_task(3, 1), a_task(4, 2, 3), a_task(5, status=CANCELLED)]
    tasks.append(a_task(6, 5))
    plan = plan_dry_run(tasks, max_agents=2)
    assert [[task.id for task in round_] for round_ in plan.rounds] == [[1], [2, 3], [4]]
    assert [task.id for task in plan.critical_path] == [1, 2, 4]
    assert [(task.id, task.reason) for task in plan.left] == [
        (5, ""),
        (6, "its prerequisite 't5' was cancelled"),
    ]
    assert plan_dry_run([], max_agents=2).critical_path == ()


@st.composite
def projects(draw: st.DrawFn) -> list[Task]:
    """Tasks in any statuses. Tasks in progress or completed may have had other statuses before."""
    count = draw(st.integers(1, 8))
    tasks: list[Task] = []
    for number in range(1, count + 1):
        needs = draw(st.sets(st.integers(1, number - 1), max_size=3)) if number > 1 else set[int]()
        status = draw(st.sampled_from([member for member in TaskStatus if member != "staged"]))
        reason = draw(st.sampled_from(["", "another reason"])) if status is BLOCKED else ""
        failures = draw(st.integers(1, 3)) if status is FAILED else 0
        more = {"reason": reason, "failures": failures, "priority": draw(st.integers(0, 2))}
        tasks.append(a_task(number, *needs, status=status, **more))
    return draw(st.permutations(tasks))


HELD = st.dictionaries(st.integers(1, 8), st.just("a question"), max_size=2)


def test_a_staged_task_unblocks_only_dependents_in_its_feature():
    staged = a_task(1, status=TaskStatus.STAGED, feature="login")
    within, outside = a_task(2, 1, feature="login"), a_task(3, 1)
    other = a_task(4, 1, feature="search")
    changed = apply_changes(tasks := [staged, within, outside, other], find_changes(tasks))
    assert [task.status for task in changed[1:]] == [READY, PENDING, PENDING]


def test_tasks_that_name_the_same_file_are_not_in_progress_at_the_same_time():
    first = a_task(1, status=READY, files=("a.py",))
    second = a_task(2, status=READY, new_files=("a.py", "b.py"), priority=1)
    third = a_task(3, status=READY, files=("c.py",))
    assert choose_next([first, second, third], 3) == [second, third]
    working = second.model_copy(update={"status": IN_PROGRESS})
    assert choose_next([first, working, third], 3) == [third]


@given(projects(), HELD, st.integers(0, 2))
def test_scheduling_makes_every_due_change_of_status_and_only_allowed_changes(
    tasks: list[Task], held: dict[int, str], retries: int
):
    changes = find_changes(tasks, held=held, retries=retries)
    now = {task.id: task.status for task in tasks}
    for change in changes:
        assert now[change.task.id] is change.before
        assert may_move(change.before, change.after)
        now[change.task.id] = change.after
    assert find_changes(apply_changes(tasks, changes), held=held, retries=retries) == []


@given(projects(), HELD, st.integers(0, 2))
def test_a_ready_task_has_merged_prerequisites_and_a_blocked_task_has_a_reason(
    tasks: list[Task], held: dict[int, str], retries: int
):
    changed = apply_changes(tasks, find_changes(tasks, held=held, retries=retries))
    status = {task.key: task.status for task in changed}
    for task in changed:
        needs = [status[key] for key in task.depends_on]
        bad = [need for need in needs if need in (FAILED, CANCELLED, BLOCKED)]
        if task.status is READY:
            assert all(need in DONE for need in needs)
            assert task.id not in held
        if task.status is BLOCKED:
            assert task.reason == held.get(task.id) or (bad and "prerequisite" in task.reason)
        if task.status is PENDING:
            assert not bad
            assert any(need not in DONE for need in needs)


@given(projects(), st.integers(1, 4), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_a_run_ends_without_stranded_tasks_in_whatever_order_its_tasks_end(
    tasks: list[Task], most: int, random: Any
):
    tasks = [
        task.model_copy(update={"status": READY}) if task.status is IN_PROGRESS else task
        for task in tasks
    ]
    for _ in range(200):
        tasks = apply_changes(tasks, find_changes(tasks, retries=1))
        chosen = {task.id for task in choose_next(tasks, most)}
        tasks = [
            t.model_copy(update={"status": IN_PROGRESS}) if t.id in chosen else t for t in tasks
        ]
        running = [task for task in tasks if task.status is IN_PROGRESS]
        assert len(running) <= most
        if not running:
            break
        ended = random.choice(running)
        to = random.choice([COMPLETED, FAILED])
        failures = ended.failures + (to is FAILED)
        done = ended.model_copy(update={"status": to, "failures": failures})
        tasks = [done if task.id == ended.id else task for task in tasks]
    assert not [task for task in tasks if task.status in (PENDING, READY, IN_PROGRESS)]
    for task in tasks:
        assert task.status is not FAILED or task.failures > 1


@given(projects())
def test_a_dry_run_starts_every_task_once_after_its_prerequisites(tasks: list[Task]):
    plan = plan_dry_run(tasks, max_agents=3)
    seen = {task.key for task in tasks if task.status in DONE}
    for round_ in plan.rounds:
        assert 1 <= len(round_) <= 3
        assert all(seen >= set(task.depends_on) for task in round_)
        assert not seen & {task.key for task in round_}
        seen |= {task.key for task in round_}
    assert seen | {task.key for task in plan.left} == {task.key for task in tasks}
    assert len(plan.critical_path) <= len(plan.rounds)
    assert [task.id for task in in_order(tasks)] != []
    assert len(find_critical_path(tasks)) <= len(tasks)
