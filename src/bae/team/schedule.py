"""The rules of plans and scheduling, as pure functions: the problems of a plan, the changes of
status that are due, and the tasks to start next."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Final

from bae import Problem
from bae.team.models import PlannedTask, Task, TaskStatus, may_move

_S = TaskStatus
DONE: Final = frozenset({_S.COMPLETED, _S.MERGED, _S.SKIPPED})
"""The statuses that satisfy a dependency. A skipped task satisfies a dependency, because a person
decided that other tasks can do without it."""
ENDED: Final = DONE | {_S.FAILED, _S.CANCELLED}
"""The statuses that a task keeps until a person asks for a change."""
_OBSTACLES: Final = {
    _S.FAILED: "failed",
    _S.CANCELLED: "was cancelled",
    _S.BLOCKED: "is blocked",
}
_FOLLOWS: Final = frozenset({_S.PENDING, _S.READY, _S.BLOCKED})


def find_problems(tasks: Sequence[PlannedTask]) -> list[Problem]:
    """Find all problems of a project's tasks: duplicate keys and titles, unknown dependencies and
    cycles. Each problem names its tasks."""
    keys = [task.key for task in tasks]
    return [
        *_find_duplicates(tasks),
        *(problem for task in tasks for problem in _find_unknown(task, keys)),
        *_find_cycle(tasks),
    ]


def _find_duplicates(tasks: Sequence[PlannedTask]) -> Iterable[Problem]:
    by_key: dict[str, PlannedTask] = {}
    by_title: dict[str, PlannedTask] = {}
    for task in tasks:
        title = " ".join(task.title.casefold().split())
        if task.key in by_key:
            message = (
                f"two tasks have the key {task.key!r}: {by_key[task.key].title!r}, {task.title!r}"
            )
            yield Problem("error", "bae-team-duplicate", task.key, message, "give one another key")
        elif title in by_title:
            message = f"has the same title as {by_title[title].key!r}: {task.title!r}"
            yield Problem(
                "error", "bae-team-duplicate", task.key, message, "drop one, or rename it"
            )
        by_key.setdefault(task.key, task)
        by_title.setdefault(title, task)


def _find_unknown(task: PlannedTask, keys: Sequence[str]) -> Iterable[Problem]:
    for key in dict.fromkeys(task.depends_on):
        if key not in keys:
            message = f"depends on {key!r}, and there is no such task"
            fix = f"add it, or name one of: {', '.join(sorted(set(keys))[:20])}"
            yield Problem("error", "bae-team-unknown-dependency", task.key, message, fix)


def _find_cycle(tasks: Sequence[PlannedTask]) -> Iterable[Problem]:
    feature = {task.key: task.feature for task in tasks}
    # A task that depends on a task of another feature waits for all tasks of this feature.
    needs = {
        task.key: {
            prerequisite
            for key in task.depends_on
            for prerequisite in (
                [key]
                if feature.get(key) in ("", None, task.feature)
                else [other_key for other_key in feature if feature[other_key] == feature[key]]
            )
        }
        for task in tasks
    }
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        # In graphlib's order, each task is a prerequisite of the next.
        cycle: list[str] = list(reversed(error.args[1]))
        message = f"depends on itself: {' -> '.join(cycle)}"
        fix = "remove one of these dependencies"
        yield Problem("error", "bae-team-cycle", cycle[0], message, fix)


@dataclass(frozen=True, slots=True)
class StatusChange:
    """A change of a task's status that follows from the statuses of other tasks."""

    task: Task
    before: TaskStatus
    after: TaskStatus
    reason: str = ""


def find_changes(
    tasks: Sequence[Task],
    *,
    held: Mapping[int, str] | None = None,
    retries: int = 0,
    final: Collection[int] = (),
) -> list[StatusChange]:
    """Find all changes of status that are due, in an order in which they can be stored.

    - A task is blocked while a prerequisite is failed, cancelled or blocked.
    - A task is also blocked while it waits for an answer, or while a person has paused it. `held`
      has the ids of such tasks, with the reason.
    - A task is ready if it is approved and all its prerequisites are merged or skipped. Within a
      feature, staged prerequisites are enough.
    - A failed task is tried again `retries` times, unless `final` has its id.
    """
    held = held or {}
    statuses: dict[str, TaskStatus] = {}
    changes: list[StatusChange] = []
    feature = {task.key: task.feature for task in tasks}
    for task in in_order(tasks):
        before = task.status
        obstacle = held.get(task.id) or _find_obstacle(task, statuses)
        is_retry = before is _S.FAILED and task.failures <= retries and task.id not in final
        if before in _FOLLOWS or is_retry:
            merged = all(
                statuses.get(key) in DONE
                or (statuses.get(key) is _S.STAGED and feature[key] == task.feature != "")
                for key in task.depends_on
            )
            after = _S.READY if merged and task.approved else _S.PENDING
            reason = f"try {task.failures + 1} of {retries + 1}" if is_retry else ""
            if obstacle:
                after, reason = _S.BLOCKED, obstacle
            other_reason = after is before is _S.BLOCKED and task.reason != reason
            if other_reason or (is_retry and obstacle):
                changes.append(StatusChange(task, before, _S.PENDING))
                before = _S.PENDING
            if may_move(before, after):
                changes.append(StatusChange(task, before, after, reason))
                before = after
        statuses[task.key] = before
    return changes


def apply_changes(tasks: Sequence[Task], changes: Sequence[StatusChange]) -> list[Task]:
    """Return the tasks with the changes applied."""
    by_id = {task.id: task for task in tasks}
    for change in changes:
        update = {"status": change.after, "reason": change.reason}
        by_id[change.task.id] = by_id[change.task.id].model_copy(update=update)
    return list(by_id.values())


def choose_next(tasks: Sequence[Task], most: int) -> list[Task]:
    """Choose the tasks to start now, so that at most `most` tasks are in progress.

    Tasks with a higher priority come first, and then tasks with a longer chain of waiting tasks.
    Two tasks that name the same file are never in progress at the same time.
    """
    working = [task for task in tasks if task.status is _S.IN_PROGRESS]
    length = _measure_chains(tasks)
    ready = [task for task in tasks if task.status is _S.READY]
    ready.sort(key=lambda task: (-task.priority, -length[task.key], task.id))
    claimed_paths = {path for task in working for path in task.paths}
    chosen: list[Task] = []
    for task in ready:
        if len(working) + len(chosen) < most and claimed_paths.isdisjoint(task.paths):
            chosen.append(task)
            claimed_paths.update(task.paths)
    return chosen


def in_order(tasks: Sequence[Task]) -> list[Task]:
    """Sort tasks so that each task comes after its prerequisites. Prerequisites that are not in
    `tasks` are ignored."""
    by_key = {task.key: task for task in tasks}
    sorter = TopologicalSorter({task.key: task.depends_on for task in tasks})
    return [by_key[key] for key in sorter.static_order() if key in by_key]


def find_critical_path(tasks: Sequence[Task]) -> list[Task]:
    """Return the longest chain of dependent tasks that are not done."""
    unfinished = [task for task in tasks if task.status not in DONE]
    length = _measure_chains(unfinished)
    path: list[Task] = []
    while True:
        after = [task for task in unfinished if not path or path[-1].key in task.depends_on]
        if not after:
            return path
        path.append(max(after, key=lambda task: (length[task.key], -task.id)))


@dataclass(frozen=True, slots=True)
class DryRun:
    """The course of a run in which every task takes equally long and succeeds."""

    rounds: tuple[tuple[Task, ...], ...]
    """The tasks that run together, round by round."""
    critical_path: tuple[Task, ...]
    """The longest chain of dependent tasks. More agents cannot make the run shorter than it."""
    left: tuple[Task, ...]
    """The tasks that would not start. `reason` of a blocked or failed task says why. The other
    tasks wait for their own approval, or for the approval of a prerequisite."""


def plan_dry_run(
    tasks: Sequence[Task],
    *,
    max_agents: int = 5,
    held: Mapping[int, str] | None = None,
    retries: int = 0,
) -> DryRun:
    """Plan which tasks would run, and in which order. Nothing is started or stored."""
    # A run resumes tasks that an earlier run left in progress.
    current = [
        task.model_copy(update={"status": _S.READY}) if task.status is _S.IN_PROGRESS else task
        for task in tasks
    ]
    rounds: list[tuple[Task, ...]] = []
    while True:
        changes = find_changes(current, held=held, retries=retries)
        current = apply_changes(current, changes)
        chosen = choose_next(current, max_agents)
        if not chosen:
            break
        rounds.append(tuple(chosen))
        ids = {task.id for task in chosen}
        current = [
            task.model_copy(update={"status": _S.COMPLETED}) if task.id in ids else task
            for task in current
        ]
    started_ids = {task.id for round_tasks in rounds for task in round_tasks}
    planned = [task for round_tasks in rounds for task in round_tasks]
    unstarted = tuple(
        task for task in current if task.status not in DONE and task.id not in started_ids
    )
    return DryRun(tuple(rounds), tuple(find_critical_path(planned)), unstarted)


def _find_obstacle(task: Task, statuses: Mapping[str, TaskStatus]) -> str:
    for key in task.depends_on:
        status = statuses.get(key)
        if status is not None and status in _OBSTACLES:
            return f"its prerequisite {key!r} {_OBSTACLES[status]}"
    return ""


def _measure_chains(tasks: Sequence[Task]) -> dict[str, int]:
    """Measure the longest chain of unfinished tasks that begins with a task, by the task's key."""
    after = dict.fromkeys((task.key for task in tasks), 0)
    length: dict[str, int] = {}
    for task in reversed(in_order(tasks)):
        length[task.key] = after[task.key] + (task.status not in DONE)
        for key in task.depends_on:
            if key in after:
                after[key] = max(after[key], length[task.key])
    return length
