"""What bae promises about the work of a task: tests decide, and they cannot be talked round."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import team_parts
from bae.team.edits import FileChange
from bae.team.models import Project, TestCase, TestReport
from bae.team.reports import NOT_LOADED
from bae.team.test_runs import run_tests
from bae.team.verdict import Verdict, is_test_file, judge, verify
from bounded import BOUND
from git_repositories import left_over, make_repository, open_team, write
from team_parts import JAVASCRIPT, NODE, PYTEST, SUM, SUM_TEST, needs_node

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")

CALC = team_parts.PYTHON["calc.py"]
TESTS = """import pytest
from calc import add

NUMBERS = [1, 2]


def test_add():
    assert add(1, 1) == 2


@pytest.mark.parametrize("n", NUMBERS)
def test_more(n):
    assert add(n, 0) == n
"""
PYTHON = {**team_parts.PYTHON, "tests/test_calc.py": TESTS}
SUB = CALC + "\n\ndef sub(a, b):\n    return a - b\n"
TEST_SUB = "\n\ndef test_sub():\n    from calc import sub\n    assert sub(2, 1) == 1\n"


_before: dict[tuple[str, ...], TestReport] = {}
"""The report of each project before any work: the same in every test."""


async def work(
    tmp_path: Path,
    files: Mapping[str, str],
    edits: Mapping[str, str | None],
    command: tuple[str, ...] = PYTEST,
    **options: Any,
) -> Verdict:
    """The verdict on a task that writes files, or removes them."""
    root = make_repository(tmp_path / "project", files)
    workspaces, _ = await open_team(root)
    project = Project(id=1, name="x", root=str(root), branch="team", test_command=command)
    workspace = await workspaces.start("bae/task-1-x")
    write(workspace.path, {name: text for name, text in edits.items() if text is not None})
    for name in (name for name, text in edits.items() if text is None):
        (workspace.path / name).unlink()
    if command not in _before and "before" not in options:
        _before[command] = await run_tests(project, root, timeout=BOUND)
    options = {"before": _before.get(command), **options}
    verdict = await verify(project, workspaces, workspace, timeout=BOUND, **options)
    await workspaces.remove(workspace)
    assert left_over(root) == []
    return verdict


# --- with real tests ------------------------------------------------------------------------------


async def test_work_with_new_tests_of_its_own_is_accepted(tmp_path: Path) -> None:
    edits = {"calc.py": SUB, "tests/test_calc.py": TESTS + TEST_SUB, "tests/test_new.py": TEST_SUB}
    verdict = await work(tmp_path, PYTHON, edits)
    assert verdict.accepted, verdict.text
    assert len(verdict.report.of("passed")) == 5
    assert {change.path for change in verdict.changes} == set(edits)


async def test_failing_work_is_refused_with_the_text_of_the_failure(tmp_path: Path) -> None:
    verdict = await work(tmp_path, PYTHON, {"calc.py": CALC.replace("+", "-")})
    assert not verdict.accepted
    assert "tests/test_calc.py::test_add" in verdict.text
    assert "assert 0 == 2" in verdict.text


async def test_new_tests_that_pass_without_the_work_are_refused(tmp_path: Path) -> None:
    useless = "def test_nothing():\n    assert True\n"
    edits = {"calc.py": SUB, "tests/test_new.py": useless + TEST_SUB}
    verdict = await work(tmp_path, PYTHON, edits)
    assert "pass without the change too" in verdict.text
    assert "test_nothing" in verdict.text
    assert "test_sub" not in verdict.text


@pytest.mark.parametrize("passes", [False, True])
async def test_work_whose_new_tests_are_all_skipped_is_refused(
    tmp_path: Path, passes: bool
) -> None:
    skipped = "import pytest\n\n@pytest.mark.xfail\ndef test_mul():\n    from calc import mul\n"
    new = skipped + (TEST_SUB if passes else "")
    verdict = await work(tmp_path, PYTHON, {"calc.py": SUB, "tests/test_new.py": new})
    assert verdict.accepted == passes, verdict.text
    assert ("all new tests are skipped" in verdict.text) != passes


async def test_tests_alone_need_not_fail_on_the_base_where_they_were_asked_for(
    tmp_path: Path,
) -> None:
    new = "from calc import add\n\ndef test_negative():\n    assert add(-1, 1) == 0\n"
    verdict = await work(tmp_path, PYTHON, {"tests/test_new.py": new}, writes_tests=True)
    assert verdict.accepted, verdict.text


async def test_a_task_that_was_told_to_may_change_tests(tmp_path: Path) -> None:
    edits = {"tests/test_calc.py": TESTS.replace("[1, 2]", "[3]")}
    verdict = await work(tmp_path, PYTHON, edits, edits_tests=True)
    assert verdict.accepted, verdict.text


async def test_a_task_may_leave_other_tests_failing_that_failed_before(tmp_path: Path) -> None:
    files = {**PYTHON, "test_more.py": "def test_x(): from calc import x\n"}
    files["test_other.py"] = "def test_y(): from calc import y\n"
    edits = {"calc.py": CALC + "x = 1\n"}
    verdict = await work(tmp_path, files, edits, before=None, tests=["test_more.py"])
    assert verdict.accepted, verdict.text
    assert len(verdict.report.of("failed")) == 1


WRONG = CALC.replace("+", "-")
REWRITES = """
import os
open("tests/test_calc.py", "w").write("def test_add(): pass")
os.unlink("tests/test_a.py")
os.mkfifo("tests/test_a.py")
"""
CHEATS: dict[str, tuple[dict[str, str], list[str]]] = {
    "skipped by the code": (
        {"calc.py": "import pytest\n\ndef add(a, b):\n    pytest.skip()\n"},
        ["skipped now: tests/test_calc.py::test_add"],
    ),
    "replaced by conftest": (
        {"conftest.py": "collect_ignore = ['tests']\n", "test_a.py": "def test_a(): pass\n"},
        ["not run any more: tests/test_calc.py::test_add", "conftest.py decides how tests are run"],
    ),
    "exit 0 in a new test": ({"test_a.py": "import os\nos._exit(0)\n"}, ["wrote no report"]),
    "tests rewritten, or replaced by a pipe, while they run": (
        {"calc.py": WRONG + REWRITES, "tests/test_a.py": "def test_a(): pass\n"},
        [f"tests/test_{name}.py was written while the tests ran" for name in ("calc", "a")],
    ),
}


@pytest.mark.parametrize("name", CHEATS)
async def test_cheating_is_not_accepted(name: str, tmp_path: Path) -> None:
    edits, reasons = CHEATS[name]
    verdict = await work(tmp_path, PYTHON, {"calc.py": WRONG, **edits})
    assert not verdict.accepted
    for reason in reasons:
        assert reason in verdict.text


@needs_node
async def test_work_on_a_node_project_is_judged_in_the_same_way(tmp_path: Path) -> None:
    more = SUM + "exports.sub = (a, b) => a - b;\n"
    test = 'test("subtracts", () => equal(require("./sum.js").sub(2, 1), 1));\n'
    edits = {"sum.js": more, "sum.test.js": SUM_TEST + test}
    verdict = await work(tmp_path, JAVASCRIPT, edits, NODE)
    assert verdict.accepted, verdict.text
    names = [case.id for case in verdict.report.of("passed")]
    assert names == ["sum.test.js::adds", "sum.test.js::subtracts"]


@needs_node
@pytest.mark.parametrize(
    ("edits", "reason"),
    [
        ({"sum.test.js": SUM_TEST.replace("1), 2", "1), 0")}, "was edited"),
        ({"sum.test.js": SUM_TEST.replace('s", (', 's", { skip: true }, (')}, "skipped now"),
        ({"sum.test.js": None, "a.test.js": 'require("node:test")("a", () => {});\n'}, "deleted"),
        ({"sum.js": "process.exit(0);\n"}, "no tests were found"),
        ({"sum.test.js": SUM_TEST + "process.exit(0);\n"}, "no tests were found"),
        (
            {"sum.js": "process.argv[1].endsWith('m.test.js') && process.exit(0);\n" + SUM}
            | {"a.test.js": 'require("node:test")("adds", () => {});\n'},
            "not run any more: sum.test.js::adds;",
        ),
    ],
)
async def test_cheating_with_node_is_not_accepted(
    edits: dict[str, str | None], reason: str, tmp_path: Path
) -> None:
    edits = {"sum.js": SUM.replace("+", "-"), **edits}
    verdict = await work(tmp_path, JAVASCRIPT, edits, NODE)
    assert not verdict.accepted
    assert reason in verdict.text


# --- rules ----------------------------------------------------------------------------------------


def report(**outcomes: Any) -> TestReport:
    cases = tuple(TestCase(id=name, outcome=outcome) for name, outcome in outcomes.items())
    return TestReport(command=("x",), exit_code=0, cases=cases)


def problems_of(path: str, before: str | None, after: str | None) -> str:
    change = FileChange(
        path, None if before is None else before.encode(), None if after is None else after.encode()
    )
    return " ".join(judge(report(a="passed"), report(a="passed"), [change]))


@pytest.mark.parametrize(
    "after",
    [
        TESTS + TEST_SUB,
        TESTS.replace("import add\n", "import add, sub\n") + TEST_SUB,
        TESTS.replace("import pytest\n", "import os\nimport pytest\n"),
        TESTS.replace("def test_add", "def helper():\n    return 1\n\n\ndef test_add"),
        "# A comment.\n" + TESTS,
    ],
)
def test_tests_may_be_added_to_a_file_of_tests(after: str) -> None:
    assert problems_of("tests/test_calc.py", TESTS, after) == ""


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (TESTS.replace("    assert add(1", "    return\n    assert add(1"), "test_add was changed"),
        (TESTS.replace("NUMBERS = [1, 2]", "NUMBERS = [1]"), "line 4 was changed"),
        (TESTS.replace("    assert add(1, 1) == 2", "    pass"), "test_add was changed"),
        (TESTS[: TESTS.index("@pytest")], "test_more was removed"),
        (TESTS + "\n\ndef test_add():\n    pass\n", "test_add is defined once more"),
        (TESTS + "\nadd = max\n", "code that runs before"),
        (TESTS.replace("from calc", "from fake"), "an import was removed"),
        (TESTS + "\nfrom fake import add\n", "add is imported from fake instead"),
        (TESTS + "\nfrom fake import *\n", "import of everything"),
        (TESTS + "\n\ndef setup_module():\n    pass\n", "would run around"),
        (TESTS + "\n\n@pytest.fixture(autouse=True)\ndef f():\n    pass\n", "would run around"),
        (TESTS + "\n\ndef (", "cannot be read as Python"),
    ],
)
def test_tests_that_existed_may_not_be_changed(after: str, reason: str) -> None:
    assert reason in problems_of("tests/test_calc.py", TESTS, after)


@pytest.mark.parametrize(
    ("added", "reason"),
    [
        ("def len(x):\n    return 1\n", "len is defined once more"),
        ("from fake import len\n", "len is imported from fake instead"),
        ("def add(a):\n    return [a]\n", "add is defined once more"),
        ("@pytest.fixture\ndef tmp_path():\n    pass\n", "tmp_path is defined once more"),
    ],
)
def test_what_tests_use_may_not_be_replaced_below_them(added: str, reason: str) -> None:
    before = "from calc import *\n\ndef test_a(tmp_path):\n    assert len(add(1)) == 1\n\n"
    assert reason in problems_of("tests/test_calc.py", before, before + added)


def test_tests_of_any_file_that_the_report_names_may_not_be_changed() -> None:
    change = FileChange("checks/calc.py", b"def test_a(): assert 0", b"def test_a(): assert 1")
    passed = report(**{"checks/calc.py::test_a": "passed"})
    assert "was edited (test_a was changed)" in " ".join(judge(passed, passed, [change]))


@pytest.mark.parametrize(
    ("path", "before", "after", "refused"),
    [
        ("pyproject.toml", '[project]\nname = "x"\n', '[project]\nname = "y"\n', False),
        ("pyproject.toml", "", '[tool.pytest.ini_options]\naddopts = "-k a"\n', True),
        ("pyproject.toml", "", "[tool.pytest", True),
        ("package.json", '{"dependencies": {}}', '{"dependencies": {"a": "1"}}', False),
        ("package.json", "{}", '{"scripts": {"test": "true"}}', True),
        ("setup.cfg", "[x]\n", "[tool:pytest]\naddopts = -k a\n", True),
        ("tox.ini", None, "[testenv]\na = b\n", False),
        ("app/conftest.py", None, "", True),
        ("vitest.config.ts", "a", "b", True),
        ("sitecustomize.py", None, "", True),
        ("node_modules/jest/index.js", None, "", True),
        ("src/pytest/__init__.py", None, "", True),
        ("a.test.js", "test(1);\n", "test(1);\ntest(2);\n", False),
        ("a.test.js", "test(1);\n", "test(0);\ntest(1);\n", True),
        ("tests/__snapshots__/a.snap", "1", "2", True),
        ("tests/test_a.py", "def test_a(): pass\n", None, True),
        ("src/app.py", "1", "2", False),
        ("pytest.ini", None, "[pytest]\ntestpaths = other\n", True),
        ("argparse.py", None, "", True),
        ("tests/test_new.py", None, "pytest_plugins = ['evil']\n", True),
        ("src/evil.py", None, "class A:\n    def pytest_runtest_call(self): pass\n", True),
        ("src/hooks.py", "def pytest_x(): 1\n", "def pytest_x(): 2\n", False),
        ("tests/test_new.py", None, "def test_a(): pass", False),
    ],
)
def test_how_tests_are_run_may_not_be_changed(
    path: str, before: str | None, after: str | None, refused: bool
) -> None:
    assert bool(problems_of(path, before, after)) == refused


def test_no_task_may_replace_the_test_program() -> None:
    change = FileChange("pytest.py", None, b"")
    passed = report(a="passed")
    assert "take the place" in judge(passed, passed, [change], edits_tests=True)[0]


def test_a_file_that_could_not_be_loaded_before_is_no_test_that_vanished() -> None:
    case = TestCase(id="tests/test_a.py", outcome="failed", message=f"{NOT_LOADED}no module")
    before = TestReport(command=("x",), exit_code=1, cases=(case,))
    assert judge(before, report(a="passed"), []) == ()


def test_a_failing_test_may_not_vanish_either() -> None:
    before = TestReport(command=("x",), exit_code=1, cases=report(a="failed", b="passed").cases)
    assert "not run any more: a;" in " ".join(judge(before, report(b="passed"), []))


def test_files_of_tests_are_recognized() -> None:
    tests = "tests/a.py test_a.py a/b_test.py a_test.go a.test.tsx b.spec.mjs __tests__/a.js"
    assert all(map(is_test_file, [*tests.split(), "test.js", "test-a.mjs"]))
    assert not any(map(is_test_file, ["a.py", "testing.py", "contest.js", "latest/a.go"]))
