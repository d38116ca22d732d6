"""The states of a task, its results and their plain form."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import bae.team
from bae.team import EditError, GitError, SandboxError, TeamError, WorkspaceError
from bae.team.models import (
    TRANSITIONS,
    TaskResult,
    TaskStatus,
    TestCase,
    TestReport,
    bounded,
    may_move,
    summary,
)


def test_all_errors_of_the_team_have_one_base_class():
    for error in (EditError, GitError, SandboxError, WorkspaceError):
        assert issubclass(error, TeamError)


def test_a_missing_package_is_reported_with_how_to_install_it():
    source = "import sys; sys.modules['sqlalchemy'] = None; import bae.team; bae.team.Store"
    ran = subprocess.run([sys.executable, "-c", source], stderr=subprocess.PIPE, check=False)
    error_output = ran.stderr.decode()
    assert "needs the package sqlalchemy, which is not installed" in error_output
    assert "pip install '.[team]' in a clone of bae" in error_output


def test_every_public_name_can_be_imported():
    pytest.importorskip("sqlalchemy")
    for name in bae.team.__all__:
        assert getattr(bae.team, name) is not None


def test_completed_is_a_final_status():
    assert set(TRANSITIONS) == set(TaskStatus)
    assert TRANSITIONS[TaskStatus.COMPLETED] == frozenset()
    assert not any(may_move(status, status) for status in TaskStatus)


def test_only_a_task_in_progress_or_staged_can_be_completed():
    before = [s for s in TaskStatus if may_move(s, TaskStatus.COMPLETED)]
    assert before == [TaskStatus.IN_PROGRESS, TaskStatus.STAGED]


@given(st.lists(st.sampled_from(list(TaskStatus))))
def test_every_task_is_in_exactly_one_count_of_the_summary(statuses: list[TaskStatus]):
    assert sum(summary(statuses).values()) == len(statuses)


def test_a_result_survives_a_round_trip_through_a_dict():
    result = TaskResult(status="blocked", task_id=3, question="Which port?")
    assert TaskResult.from_dict(result.to_dict()) == result
    assert TaskResult.from_dict({"status": "completed", "task_id": 3}).status == "completed"


@pytest.mark.parametrize("status", ["blocked", "failed"])
def test_an_unsuccessful_result_without_a_reason_is_refused(status: str):
    with pytest.raises(ValidationError):
        TaskResult.from_dict({"status": status, "task_id": 1})


@pytest.mark.parametrize(
    ("outcomes", "exit_code", "passed"),
    [
        (["passed"], 0, True),
        (["passed", "skipped"], 0, True),
        ([], 0, False),
        (["skipped"], 0, False),
        (["passed", "failed"], 0, False),
        (["passed"], 1, False),
        (["passed"], None, False),
    ],
)
def test_a_report_passes_if_tests_ran_and_none_failed(
    outcomes: list[str], exit_code: int | None, passed: bool
):
    cases = tuple(
        TestCase.model_validate({"id": f"t{n}", "outcome": o}) for n, o in enumerate(outcomes)
    )
    assert TestReport(command=("pytest",), exit_code=exit_code, cases=cases).passed is passed


def report(exit_code: int, **outcomes: str) -> TestReport:
    cases = tuple(
        TestCase.model_validate({"id": name.replace("__", "::"), "outcome": outcome})
        for name, outcome in outcomes.items()
    )
    return TestReport(command=("pytest",), exit_code=exit_code, cases=cases)


@pytest.mark.parametrize(
    ("after", "accepted"),
    [
        (report(1, a__1="passed", b__1="failed", c="passed"), True),
        (report(0, a__1="passed", b__1="passed", c="passed"), True),
        (report(1, a__1="passed", b__1="failed", c="failed"), False),  # c passed before
        (report(1, a__1="failed", b__1="passed", c="passed"), False),
        (report(1, a__1="passed", a__2="failed", c="passed"), False),
        (report(1, b__1="failed", c="passed"), False),  # a is gone
        (report(0, a__1="skipped", b__1="failed", c="passed"), False),
        (report(1, a__1="passed", b__1="failed", c="passed", ab__1="failed"), False),  # new
        (report(2, a__1="passed", b__1="failed", c="passed"), False),
    ],
)
def test_named_tests_and_earlier_passed_tests_must_pass(after: TestReport, accepted: bool):
    before = report(1, a__1="failed", b__1="failed", c="passed")
    assert after.for_task(["a"], before).passed is accepted


def test_a_task_that_names_no_tests_is_not_blamed_for_earlier_failures():
    before = report(1, a__1="failed", b="failed", c="passed")
    assert report(1, a__1="failed", b="failed", c="passed").for_task([], before).passed
    assert report(1, b="failed", c="passed", d="passed").for_task([], before).passed
    # A file that could not be loaded counts as all of its tests.
    assert report(1, b__1="failed", c="passed").for_task([], before).passed
    assert not report(1, a__1="failed", c="failed").for_task([], before).passed
    assert not report(1, a__1="failed", c="passed", d="failed").for_task([], before).passed
    assert not report(1, a="failed", c="passed").for_task([], before).passed


def test_long_output_keeps_its_beginning_and_its_end():
    kept = bounded("a" * 50 + "b" * 50, 20)
    assert kept.startswith("a" * 10)
    assert kept.endswith("b" * 10)
    assert "80 characters" in kept
