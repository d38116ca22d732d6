"""Why tests cannot be run, with commands that can be copied."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bae.team.base_causes import find_problem
from bae.team.environment import Cause
from bae.team.models import Project, TestCase, TestReport
from bae.team.reports import NOT_LOADED
from git_repositories import write

PYTEST = ("python", "-m", "pytest")
BUILD = '[build-system]\nrequires = ["hatchling"]\n[project]\nname = "shop"\n'
SRC = {"src/shop/__init__.py": "", "tests/test_shop.py": "", "pyproject.toml": BUILD}
VENV = "python -m venv .venv && .venv/bin/pip install -e . "


def explain(
    root: Path,
    *not_loaded: str,
    files: Mapping[str, str] = SRC,
    command: Sequence[str] = PYTEST,
    output: str = "",
    more: Sequence[TestCase] = (),
    **settings: Any,
) -> Cause | None:
    """The cause where files of tests could not be loaded, each with a message."""
    write(root, files)
    cases = [
        TestCase(id=f"tests/test_{number}.py", outcome="failed", message=NOT_LOADED + text)
        for number, text in enumerate(not_loaded)
    ]
    report = TestReport(
        command=tuple(command), exit_code=1, cases=(*cases, *more), output=output, problem="no"
    )
    about: dict[str, Any] = {"id": 1, "name": "shop", "root": str(root), "branch": "b"}
    project = Project(**about, test_command=tuple(command), **settings)
    return find_problem(report, project, tuple(files), ())


def read_command(cause: Cause | None) -> list[str]:
    """The words of the one command that a cause prints to be copied."""
    assert cause is not None
    [command] = re.findall(r"`([^`]+)`", cause.fix)
    return shlex.split(command)


OWN = "ModuleNotFoundError: No module named 'shop'"
OTHER = "ModuleNotFoundError: No module named 'yaml'"
INIT = ["bae", "team", "init"]
IN_VENV = ["--test", ".venv/bin/python -m pytest"]


def test_a_missing_installation_of_the_project_is_fixed_by_setup(tmp_path: Path) -> None:
    assert read_command(explain(tmp_path, OWN)) == [*INIT, "--setup", VENV + "pytest", *IN_VENV]


def test_a_missing_dependency_is_fixed_by_setup_or_environment(
    tmp_path: Path,
) -> None:
    problem = explain(tmp_path, OTHER)
    assert read_command(problem) == [*INIT, "--setup", VENV + "PyYAML pytest", *IN_VENV]
    setup = ("uv", "sync")
    problem = explain(tmp_path, OTHER, command=(".venv/bin/python", "-m", "pytest"), setup=setup)
    assert read_command(problem) == [*INIT, "--setup", "uv sync && uv pip install PyYAML"]
    write(tmp_path, {".venv/pyvenv.cfg": "", ".venv/bin/python": "", ".venv/bin/pip": ""})
    command = (f"{tmp_path}/.venv/bin/python", "-m", "pytest")
    problem = explain(tmp_path, OTHER, command=command)
    assert read_command(problem) == [f"{tmp_path}/.venv/bin/pip", "install", "PyYAML"]
    (tmp_path / ".venv/bin/pip").unlink()  # as uv makes it
    problem = explain(tmp_path, OWN, command=command)
    assert read_command(problem) == ["uv", "pip", "install", "--python", command[0], "-e", "."]


def test_a_missing_test_program_is_fixed_by_setup(tmp_path: Path) -> None:
    for text in ("/usr/bin/python: No module named pytest", "error: Failed to spawn: `pytest`"):
        problem = explain(tmp_path, output=text)
        assert read_command(problem) == [*INIT, "--setup", VENV + "pytest", *IN_VENV]


def test_an_unknown_pytest_option_names_the_missing_plugin(tmp_path: Path) -> None:
    problem = explain(tmp_path, output="pytest: error: unrecognized arguments: --cov=shop -n auto")
    assert "pytest-cov pytest-xdist" in read_command(problem)[4]


def test_missing_javascript_packages_are_fixed_by_setup(tmp_path: Path) -> None:
    package = json.dumps({"dependencies": {"left": "1"}})
    files = {"package.json": package, "a.test.js": ""}
    text = "Error: Cannot find module '@own/left/sub'"
    problem = explain(tmp_path, text, files=files, command=("node", "--test"))
    assert read_command(problem) == [*INIT, "--setup", "npm install"]
    setup = ("npm", "install")
    problem = explain(tmp_path, text, files=files, command=("node", "--test"), setup=setup)
    added = "npm install && npm install --no-save @own/left"
    assert read_command(problem) == [*INIT, "--setup", added]


def test_mocha_tests_get_a_command_with_a_report(tmp_path: Path) -> None:
    package = json.dumps({"scripts": {"test": "mocha test.js"}})
    files = {"package.json": package, "test.js": ""}
    write(tmp_path, files)
    report = TestReport(command=("node", "--test"), exit_code=0, reported=True)
    about: dict[str, Any] = {"id": 1, "name": "a", "root": str(tmp_path), "branch": "b"}
    project = Project(**about, test_command=("node", "--test"))
    problem = find_problem(report, project, tuple(files), ())
    assert problem is not None
    assert "mocha --reporter xunit --reporter-option output=report.xml" in problem.fix
    assert "--report junit:report.xml" in problem.fix


def test_an_unwritten_junit_file_is_named_by_its_path(tmp_path: Path) -> None:
    missing = "no verdict (exit code 0): it wrote no JUnit file at out/a.xml"
    command = ("make", "test")
    report = TestReport(command=command, exit_code=0, reported=False, problem=missing)
    about: dict[str, Any] = {"id": 1, "name": "a", "root": str(tmp_path), "branch": "b"}
    project = Project(**about, test_command=command, report="junit:out/a.xml")
    problem = find_problem(report, project, ("test_a.py",), ())
    assert problem is not None
    assert "it wrote no JUnit file at out/a.xml, in the folder" in problem.text
    assert "--report junit:PATH" in problem.fix


@pytest.mark.parametrize(("outcome", "is_problem"), [("failed", True), ("passed", False)])
def test_unloadable_files_without_any_passed_test_are_a_problem(
    outcome: Any, is_problem: bool, tmp_path: Path
) -> None:
    """As doctests that fail, since the package cannot be imported."""
    doctest = TestCase(id="src/shop/price.py::shop.price", outcome=outcome, message="Error")
    assert (explain(tmp_path, OWN, more=[doctest]) is not None) == is_problem


def test_failed_tests_beside_an_unloadable_file_are_no_problem(tmp_path: Path) -> None:
    failed = TestCase(id="tests/test_a.py::test_a", outcome="failed", message="assert 1 == 2")
    assert explain(tmp_path, "SyntaxError: invalid syntax", more=[failed]) is None
