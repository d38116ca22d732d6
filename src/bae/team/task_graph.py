"""The rules of a plan: which tasks may stand together. Pure functions that need neither a store nor
an event loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from bae.exceptions import Problem, an_error
from bae.team.models import PlannedTask


def find_problems(tasks: Sequence[PlannedTask]) -> list[Problem]:
    """What is wrong with the tasks of a project, all of it: duplicates, dependencies that do not
    exist, cycles. Each problem names its tasks."""
    keys = [task.key for task in tasks]
    return [
        *_find_duplicates(tasks),
        *(problem for task in tasks for problem in _find_unknown(task, keys)),
        *_find_cycle({task.key: task.depends_on for task in tasks}),
    ]


def _find_duplicates(tasks: Sequence[PlannedTask]) -> Iterable[Problem]:
    by_key: dict[str, PlannedTask] = {}
    by_title: dict[str, PlannedTask] = {}
    for task in tasks:
        title = " ".join(task.title.casefold().split())
        if task.key in by_key:
            what = (
                f"two tasks have the key {task.key!r}: {by_key[task.key].title!r}, {task.title!r}"
            )
            yield an_error("bae-team-duplicate", what, "give one of them another key", task.key)
        elif title in by_title:
            what = f"has the same title as {by_title[title].key!r}: {task.title!r}"
            yield an_error("bae-team-duplicate", what, "drop one, or rename it", task.key)
        by_key.setdefault(task.key, task)
        by_title.setdefault(title, task)


def _find_unknown(task: PlannedTask, keys: Sequence[str]) -> Iterable[Problem]:
    for key in dict.fromkeys(task.depends_on):
        if key not in keys:
            what = f"depends on {key!r}, and there is no such task"
            fix = f"add it, or name one of: {', '.join(sorted(set(keys))[:20])}"
            yield an_error("bae-team-unknown-dependency", what, fix, task.key)


def _find_cycle(needs: Mapping[str, Sequence[str]]) -> Iterable[Problem]:
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        # As graphlib lists it, each task is needed by the next.
        cycle: list[str] = list(reversed(error.args[1]))
        what = f"depends on itself: {' -> '.join(cycle)}"
        yield an_error("bae-team-cycle", what, "remove one of these dependencies", cycle[0])
