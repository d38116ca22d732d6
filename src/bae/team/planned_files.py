"""Checks of the files that planned tasks name. A file must exist, or the task or a prerequisite
must create it. Of two tasks that share a file, one must depend on the other."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from pathlib import PurePosixPath

from bae import Problem
from bae.team.git import BRANCHES, Repository
from bae.team.models import PlannedTask
from bae.team.repository import find_nearest_paths


async def list_files(repository: Repository, branch: str) -> frozenset[str]:
    """Return the files that tasks can name: the files in the user's checkout that git does not
    ignore, and the files in the team's branch."""
    names = {*await repository.list_checkout()}
    if head := await repository.resolve(BRANCHES + branch):
        names |= {*await repository.list_files(head)}
    return frozenset(names)


def find_file_problems(
    tasks: Sequence[PlannedTask], others: Sequence[PlannedTask], known: Collection[str]
) -> list[Problem]:
    """Find wrong files in `tasks`. Files must exist, and new files must not exist. Files that a
    task's prerequisite creates exist for the task.

    - `others`: the tasks that were planned before.
    - `known`: the repository's files.
    """
    tasks_by_key = {task.key: task for task in (*others, *tasks)}
    needs = find_prerequisites(tasks_by_key)
    problems: list[Problem] = []
    for task in tasks:
        created = {path for key in needs[task.key] for path in tasks_by_key[key].new_files}
        for path in task.files:
            if path in known or path in created:
                continue
            message = f"names {path}, and there is no such file"
            nearest = find_nearest_paths(path, {*known, *created})
            fix = f"name one of {', '.join(nearest)}, or mark" if nearest else "mark"
            fix = f"{fix} it as new: new_files, or --new-file"
            problems.append(Problem("error", "bae-team-unknown-file", task.key, message, fix))
        for path in task.new_files:
            normalized = PurePosixPath(posixpath.normpath(path))
            if (
                normalized.is_absolute()
                or normalized.parts[:1] in ((), ("..",))
                or str(normalized) != path
            ):
                message = f"creates {path!r}, which is no path inside the repository"
                fix = "write it from the root of the repository, as src/shop/cart.py"
                problems.append(Problem("error", "bae-team-unknown-file", task.key, message, fix))
            elif path in known or path in created:
                message = f"creates {path}, which exists" + ("" if path in known else " by then")
                fix = "name it in files, or --file, if the task changes it"
                problems.append(Problem("error", "bae-team-unknown-file", task.key, message, fix))
    return problems


def find_shared_files(
    tasks: Sequence[PlannedTask], others: Sequence[PlannedTask] = ()
) -> list[Problem]:
    """Find pairs of tasks that name the same file although neither task depends on the other.

    `others` are the tasks that were planned before. A pair of two `others` is not reported.
    """
    tasks_by_key = {task.key: task for task in (*others, *tasks)}
    needs = find_prerequisites(tasks_by_key)
    planned_keys = {task.key for task in tasks}
    problems: list[Problem] = []
    for first, second in combinations(tasks_by_key.values(), 2):
        shared = sorted({*first.paths} & {*second.paths})
        is_ordered = first.key in needs[second.key] or second.key in needs[first.key]
        if not shared or is_ordered or not planned_keys & {first.key, second.key}:
            continue
        message = f"shares {', '.join(shared)} with {first.key!r}, and neither waits for the other"
        fix = f"let {second.key!r} depend on {first.key!r}, or give each its own file"
        problems.append(Problem("error", "bae-team-shared-file", second.key, message, fix))
    return problems


def find_prerequisites(tasks: Mapping[str, PlannedTask]) -> dict[str, set[str]]:
    """Return the keys of all direct and indirect prerequisites, by the key of the task."""
    prerequisites: dict[str, set[str]] = {}
    for key in tasks:
        needs, queue = set[str](), [key]
        while queue:
            new = {needed for needed in tasks[queue.pop()].depends_on if needed in tasks} - needs
            needs |= new
            queue += new
        prerequisites[key] = needs
    return prerequisites
