"""Twenty exercises as the goal of a team, with scripted LLMs and real tests."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bae.team.models import Project, Task, TaskStatus, TestReport
from bae.team.test_runs import run_tests
from bounded import BOUND
from exercises import COMMAND, Exercise, all_files, cheats, exercises
from git_repositories import git, left_over, write
from team_parts import a_project
from team_scripts import Script, TeamScript, run_team

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's"),
    pytest.mark.skipif(shutil.which("node") is None, reason="no node"),
]


async def report_of(root: Path, files: dict[str, str]) -> TestReport:
    write(root, files)
    project = Project(id=1, name="x", root=str(root), branch="team", test_command=COMMAND)
    return await run_tests(project, root, timeout=BOUND)


def outcomes(report: TestReport, tests: str) -> set[str]:
    return {case.outcome for case in report.cases if case.id.startswith(f"{tests}::")}


async def test_the_tests_of_an_exercise_tell_a_right_answer_from_others(tmp_path: Path) -> None:
    assert [each.is_python for each in exercises()] == [True] * 12 + [False] * 8
    stubs = await report_of(tmp_path / "stubs", all_files())
    right = await report_of(tmp_path / "right", all_files(answers=True))
    wrong = await report_of(tmp_path / "wrong", all_files(wrong=True))
    assert right.passed, right
    for each in exercises():
        assert outcomes(right, each.test_path) == {"passed"}, each.name
        assert "failed" in outcomes(wrong, each.test_path), each.name
        there = outcomes(stubs, each.test_path)
        assert "failed" in there if each.path in each.files else not there, each.name
    assert len(right.cases) >= 60


async def play(
    tmp_path: Path, chosen: Sequence[Exercise], script: Script, **options: Any
) -> tuple[list[Task], Path, TeamScript]:
    """The exercises as the goal of a team whose LLM answers from a script."""
    files = {name: text for each in chosen for name, text in each.files.items()}
    files |= {"tests/test_here.py": "def test_here():\n    pass\n"}
    planned = [each.planned() for each in chosen]
    async with a_project(tmp_path, *planned, files=files, command=COMMAND) as (store, project, _):
        lm = TeamScript(script)
        await run_team(project, store, lm, **options)
        return await store.tasks(project.id), Path(project.root), lm


def some(count: int) -> tuple[Exercise, ...]:
    """Exercises in both languages, those without a stub among them."""
    python, javascript = exercises()[:12], exercises()[12:]
    ours = [*python[4 : 4 + count // 2], *javascript[2 : 2 + count - count // 2]]
    return tuple(ours)


SIZES = [pytest.param(3), pytest.param(20, marks=pytest.mark.slow)]


@pytest.mark.parametrize("count", SIZES)
async def test_reference_answers_are_all_merged(count: int, tmp_path: Path) -> None:
    chosen = exercises() if count == 20 else some(count)
    tasks, root, lm = await play(
        tmp_path, chosen, {each.key: each.written(each.answer) for each in chosen}
    )
    assert {task.status for task in tasks} == {TaskStatus.COMPLETED}
    assert sorted(lm.asked) == sorted((each.key, 1) for each in chosen)
    log = git(root, "log", "--format=%s", "--reverse").split("\n")
    assert sorted(log[1:]) == sorted(each.planned().title for each in chosen)
    assert left_over(root) == []
    for each in chosen:
        assert (root / each.path).read_text() == each.answer


@pytest.mark.parametrize("count", SIZES)
async def test_wrong_answers_are_all_corrected(count: int, tmp_path: Path) -> None:
    chosen = exercises() if count == 20 else some(count)
    script = {each.key: [each.written(each.wrong), each.written(each.answer)] for each in chosen}
    tasks, root, lm = await play(tmp_path, chosen, script)
    assert {task.status for task in tasks} == {TaskStatus.COMPLETED}
    assert sorted(lm.asked) == sorted((each.key, n) for each in chosen for n in (1, 2))
    for each in chosen:
        assert (root / each.path).read_text() == each.answer


@pytest.mark.parametrize("count", SIZES)
async def test_cheating_answers_are_never_accepted(count: int, tmp_path: Path) -> None:
    chosen = exercises() if count == 20 else some(count)
    corrections = count // 20
    script: dict[str, list[str]] = {}
    for number, each in enumerate(chosen):
        answers = list(cheats(each).values())
        # Each way to cheat is tried by one of them.
        script[each.key] = [answers[(number + n) % len(answers)] for n in (0, 12)]
    tasks, root, _ = await play(tmp_path, chosen, script, corrections=corrections)
    assert {task.status for task in tasks} == {TaskStatus.BLOCKED}
    assert git(root, "log", "--format=%s") == "first"
    assert git(root, "status", "--porcelain") == ""
    assert left_over(root) == []
