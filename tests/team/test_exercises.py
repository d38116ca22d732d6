"""Twenty exercises as the goal of a team, with scripted LLMs and real tests."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from bae.team.models import Project, TestReport
from bae.team.test_runs import run_tests
from bounded import BOUND
from exercises import COMMAND, all_files, exercises
from git_repositories import write

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
        assert outcomes(right, each.tests) == {"passed"}, each.name
        assert "failed" in outcomes(wrong, each.tests), each.name
        there = outcomes(stubs, each.tests)
        assert "failed" in there if each.path in each.files else not there, each.name
    assert len(right.cases) >= 60
