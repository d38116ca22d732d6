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
from bae.team.worker_graph import WorkerLoop, WorkRequest
from bae.testing import Call, ScriptedLM
from bae.testing.scripted import Asked
from bounded import BOUND
from exercises import COMMAND, Exercise, all_files, cheats, exercises
from git_repositories import git, list_leftovers, write
from team_parts import PYTEST, a_project
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


@pytest.mark.slow
async def test_exercise_tests_distinguish_right_from_wrong_answers(
    tmp_path: Path,
) -> None:
    assert [exercise.is_python for exercise in exercises()] == [True] * 12 + [False] * 8
    stubs = await report_of(tmp_path / "stubs", all_files())
    right = await report_of(tmp_path / "right", all_files(answers=True))
    wrong = await report_of(tmp_path / "wrong", all_files(wrong=True))
    assert right.passed, right
    for exercise in exercises():
        assert outcomes(right, exercise.test_path) == {"passed"}, exercise.name
        assert "failed" in outcomes(wrong, exercise.test_path), exercise.name
        there = outcomes(stubs, exercise.test_path)
        assert "failed" in there if exercise.path in exercise.files else not there, exercise.name
    assert len(right.cases) >= 60


async def play(
    tmp_path: Path,
    chosen: Sequence[Exercise],
    script: Script,
    *,
    command: tuple[str, ...] = COMMAND,
    **options: Any,
) -> tuple[list[Task], Path, TeamScript]:
    """The exercises as the goal of a team whose LLM answers from a script."""
    files = {name: text for exercise in chosen for name, text in exercise.files.items()}
    files |= {"tests/test_here.py": "def test_here():\n    pass\n"}
    planned = [exercise.planned() for exercise in chosen]
    about: dict[str, Any] = {"files": files, "command": command, "update_checkout": True}
    async with a_project(tmp_path, *planned, **about) as (store, project, _):
        lm = TeamScript(script)
        await run_team(project, store, lm, **options)
        return await store.tasks(project.id), Path(project.root), lm


def cheating(chosen: Sequence[Exercise]) -> dict[str, list[str]]:
    """Two answers that cheat for each: each way to cheat is tried by one of twenty."""
    answers = [list(cheats(exercise).values()) for exercise in chosen]
    return {
        exercise.key: [answers[number][(number + n) % len(answers[number])] for n in (0, 12)]
        for number, exercise in enumerate(chosen)
    }


async def test_exercise_answers_are_merged_corrected_or_refused(
    tmp_path: Path,
) -> None:
    """With three exercises in Python, with and without a stub; all twenty are slow tests."""
    right, wrong, cheat = exercises()[4], exercises()[3], exercises()[5]
    script: dict[str, str | list[str]] = {
        right.key: right.written(right.answer),
        wrong.key: [wrong.written(wrong.wrong), wrong.written(wrong.answer)],
        **cheating([cheat]),
    }
    tasks, root, lm = await play(
        tmp_path, [right, wrong, cheat], script, command=PYTEST, corrections=1
    )
    statuses = {task.key: task.status for task in tasks}
    assert statuses.pop(cheat.key) is TaskStatus.BLOCKED
    assert set(statuses.values()) == {TaskStatus.COMPLETED}
    asked = [(right.key, 1), *((exercise.key, n) for exercise in (wrong, cheat) for n in (1, 2))]
    assert sorted(lm.asked) == sorted(asked)
    for exercise in (right, wrong):
        assert (root / exercise.path).read_text() == exercise.answer
    assert git(root, "status", "--porcelain") == ""
    assert list_leftovers(root) == []


async def play_with_tools(
    tmp_path: Path, chosen: Sequence[Exercise], *, command: tuple[str, ...] = COMMAND
) -> None:
    """The exercises, done in conversations: look, write something wrong, check, correct, submit."""
    by_key = {exercise.key: exercise for exercise in chosen}

    def answer(asked: Asked) -> Any:
        assert isinstance(asked.previous, WorkRequest)
        current = by_key[asked.previous.task]
        check = Call("check", tests=[current.test_path])
        rounds = (
            [Call("look", path=current.test_path), Call("find", pattern=current.path)],
            Call("edit", text=current.written(current.wrong)),
            check,
            Call("edit", text=current.written(current.answer)),
            check,
            f"I wrote {current.path}.",
        )
        return rounds[len(asked.prompt.conversation) // 2]

    files = {name: text for exercise in chosen for name, text in exercise.files.items()}
    files |= {"tests/test_here.py": "def test_here():\n    pass\n"}
    about: dict[str, Any] = {"files": files, "command": command, "update_checkout": True}
    async with a_project(tmp_path, *(exercise.planned() for exercise in chosen), **about) as made:
        store, project, _ = made
        lm = ScriptedLM({WorkerLoop: answer})
        await run_team(project, store, lm)
        tasks = await store.tasks(project.id)
        attempts = [await store.attempts(task.id) for task in tasks]
    assert {task.status for task in tasks} == {TaskStatus.COMPLETED}
    assert [[attempt.outcome for attempt in tried] for tried in attempts] == [["passed"]] * len(
        tasks
    )
    failed = [str(call.result) for call in lm.asked[-1].calls if call.name == "check"]
    assert "failed" in failed[0]
    for exercise in chosen:
        assert (Path(project.root) / exercise.path).read_text() == exercise.answer
    assert list_leftovers(Path(project.root)) == []


async def test_tool_workers_solve_exercises_with_a_single_submission(tmp_path: Path) -> None:
    await play_with_tools(tmp_path, [exercises()[4], exercises()[5]], command=PYTEST)


@pytest.mark.slow
async def test_tool_workers_solve_all_exercises_with_a_single_submission(tmp_path: Path) -> None:
    await play_with_tools(tmp_path, exercises())


@pytest.mark.slow
async def test_reference_answers_are_all_merged(tmp_path: Path) -> None:
    script = {exercise.key: exercise.written(exercise.answer) for exercise in exercises()}
    tasks, root, lm = await play(tmp_path, exercises(), script)
    assert {task.status for task in tasks} == {TaskStatus.COMPLETED}
    assert sorted(lm.asked) == sorted((exercise.key, 1) for exercise in exercises())
    log = git(root, "log", "--format=%s", "--reverse").split("\n")
    assert sorted(log[1:]) == sorted(exercise.planned().title for exercise in exercises())
    assert list_leftovers(root) == []
    for exercise in exercises():
        assert (root / exercise.path).read_text() == exercise.answer


@pytest.mark.slow
async def test_wrong_answers_are_all_corrected(tmp_path: Path) -> None:
    script = {
        exercise.key: [exercise.written(exercise.wrong), exercise.written(exercise.answer)]
        for exercise in exercises()
    }
    tasks, root, lm = await play(tmp_path, exercises(), script)
    assert {task.status for task in tasks} == {TaskStatus.COMPLETED}
    assert sorted(lm.asked) == sorted((exercise.key, n) for exercise in exercises() for n in (1, 2))
    for exercise in exercises():
        assert (root / exercise.path).read_text() == exercise.answer


@pytest.mark.slow
async def test_cheating_answers_are_never_accepted(tmp_path: Path) -> None:
    tasks, root, _ = await play(tmp_path, exercises(), cheating(exercises()), corrections=1)
    assert {task.status for task in tasks} == {TaskStatus.BLOCKED}
    assert git(root, "log", "--format=%s") == "first"
    assert git(root, "status", "--porcelain") == ""
    assert list_leftovers(root) == []
