"""The check of the commit that work starts from, before an LLM is asked, with real test programs,
sandboxes and repositories."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from bae.team import BackendWorkerAgent, LeadAgent, PlannedTask, Store, TaskStatus, Workbench
from bae.team.base_check import BaseCheck, BaseError, examine_base, read_check, shorten_output
from bae.team.events import TestResult
from bae.team.models import Project, TestCase, TestReport
from bae.team.worker_graph import WorkerAnswer
from bae.testing import ScriptedLM
from git_repositories import commit_files, git, list_leftovers, write
from team_parts import FAILING, PYTEST, PYTHON, SHELL, SUB, TEST_SUB, a_bench, a_project, edits
from team_scripts import TeamScript, run_team

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")
TEST_SHOP = "import shop\n\n\ndef test_price():\n    assert shop.PRICE == 3\n"
SRC_LAYOUT = {"src/shop/__init__.py": "PRICE = 3\n", "tests/test_shop.py": TEST_SHOP}
GENERATED = {
    "shop/__init__.py": "from shop._version import VERSION\nPRICE = 3\n",
    "test_shop.py": TEST_SHOP,
    ".gitignore": "_version.py\n",
}


async def check(tmp_path: Path, files: Mapping[str, str], command: tuple[str, ...]) -> BaseCheck:
    """The result of the check for a repository with these files."""
    async with a_bench(tmp_path, files=files, command=command) as (bench, _):
        check_result = await bench.check_base("HEAD")
        assert read_check(bench.store.path.parent) == check_result
    assert list_leftovers(tmp_path / "project") == []
    return check_result


NOT_INSTALLED = "shop, a package of this project, is not installed"
FAILURES = {
    "src layout": (SRC_LAYOUT, PYTEST, NOT_INSTALLED, "PYTHONPATH=src"),
    "generated file": (GENERATED, PYTEST, "shop/_version.py is missing", ".worktreeinclude"),
    "dependency": (
        {"test_a.py": "import nowhere_at_all\n\n\ndef test_a(): pass\n"},
        PYTEST,
        "nowhere_at_all cannot be imported",
        "--setup",
    ),
    "plugin option": (
        {**PYTHON, "pytest.ini": "[pytest]\naddopts = --nowhere=1\n"},
        PYTEST,
        "a plugin is not installed",
        "pip install",
    ),
    "conftest": (
        {**PYTHON, "conftest.py": "import nowhere_at_all\n"},
        PYTEST,
        "nowhere_at_all cannot be imported",
        "--setup",
    ),
    "no program": (PYTHON, ("python", "-S", "-m", "pytest"), "was not found", "--test"),
    "no executable": (PYTHON, ("nowhere/pytest",), "was not found", "--test"),
    "other folder": (PYTHON, (*PYTEST, "--ignore=tests"), "found no tests, although", "--test"),
    "killed": (
        {"test_a.py": "import os\n\n\ndef test_a():\n    os.kill(os.getpid(), 9)\n"},
        PYTEST,
        "was killed",
        "memory",
    ),
    "coverage": (
        {
            **PYTHON,
            "conftest.py": "def pytest_sessionfinish(session):\n    session.exitstatus = 1\n",
        },
        PYTEST,
        "ends with 1 although no test fails",
        "--test",
    ),
    "mocha": (
        {
            **SHELL,
            "calc.test.sh": "",
            "test/a.js": "describe('a', () => {});\n",
            "package.json": '{"devDependencies": {"mocha": "1"}}',
            "jest.sh": SHELL["jest.sh"].replace("*.test.sh", "*.none"),
        },
        ("sh", "jest.sh"),
        "are for mocha",
        "--test",
    ),
}


@pytest.mark.parametrize(("files", "command", "problem", "fix"), FAILURES.values(), ids=FAILURES)
async def test_unrunnable_tests_are_reported_with_a_likely_cause_and_a_fix(
    tmp_path: Path, files: Mapping[str, str], command: tuple[str, ...], problem: str, fix: str
) -> None:
    check_result = await check(tmp_path, files, command)
    assert problem in check_result.problem
    assert fix in check_result.fix
    assert "\n" not in check_result.problem
    with pytest.raises(BaseError, match="the tests cannot be run at"):
        check_result.raise_problem()


async def test_a_missing_generated_file_is_fixed_by_including_it(
    tmp_path: Path,
) -> None:
    async with a_bench(tmp_path, files=GENERATED, command=PYTEST) as (bench, _):
        root = Path(bench.project.root)
        write(root, {"shop/_version.py": "VERSION = 1\n"})
        check_result = await bench.check_base("HEAD")
        assert check_result.problem == "shop/_version.py is missing: git does not have it"
        command = "echo shop/_version.py >> .worktreeinclude"
        assert check_result.fix == f"list it in .worktreeinclude: `{command}`"
        await asyncio.to_thread(subprocess.run, ["sh", "-c", command], cwd=root, check=True)
        assert (await bench.check_base("HEAD")).text == "1 test"


async def test_a_src_layout_passes_with_the_command_that_is_printed(tmp_path: Path) -> None:
    command = ("env", "PYTHONPATH=src", *PYTEST[1:])
    assert (await check(tmp_path, SRC_LAYOUT, command)).problem == ""


async def test_a_setup_that_fails_twice_is_reported_as_the_problem(tmp_path: Path) -> None:
    async with a_project(tmp_path) as (store, project, _):
        setup = ("sh", "-c", "echo x >> ../times; echo could not resolve host; exit 1")
        project = await store.save_project(project.model_copy(update={"setup": setup}))
        lm = TeamScript({})
        with pytest.raises(BaseError, match="the setup command failed: a program needed the netw"):
            await run_team(project, store, lm)
        assert lm.asked == []


async def test_a_long_setup_output_is_reduced_to_its_errors(tmp_path: Path) -> None:
    script = """
        for n in 1 2 3 4 5 6 7 8 9; do echo "got package $n"; done
        echo 'npm error code EUSAGE'
        echo 'npm error Missing: left-pad@1.3.0 from lock file'
        for n in $(seq 200); do echo "npm error --option-$n"; done
        echo 'npm error A complete log is elsewhere'
        exit 1
    """
    async with a_project(tmp_path) as (store, project, _):
        project = project.model_copy(update={"setup": ("sh", "-c", script)})
        project = await store.save_project(project)
        with pytest.raises(BaseError) as caught:
            await run_team(project, store, TeamScript({}))
        log = store.path.parent / "setup.log"
        text, shown = await asyncio.to_thread(log.read_text), caught.value.message
        assert "--option-1\n" in text
        assert "--option-100\n" in text
        assert "\nnpm error code EUSAGE\nnpm error Missing: left-pad" in shown
        assert "npm error A complete log is elsewhere\n" in shown
        assert f"full output: {log}" in shown
        assert "--option-100\n" not in shown
        assert "got package 2" not in shown
        assert len(shown.splitlines()) < 20


def test_a_short_setup_output_is_shown_unchanged() -> None:
    output = "the setup command make failed with 2\n\nmake: *** no rule to make target\n"
    assert shorten_output(output) == output


@pytest.mark.parametrize("files", [{"readme.txt": "A shop\n"}, {"tests/__init__.py": ""}])
async def test_a_new_project_may_have_no_tests_yet(
    tmp_path: Path, files: Mapping[str, str]
) -> None:
    assert (await check(tmp_path, files, PYTEST)).text == "no tests yet"


async def test_a_team_starts_despite_some_unloadable_test_files(
    tmp_path: Path,
) -> None:
    broken = "import nowhere_at_all\n"
    check_result = await check(tmp_path, {**PYTHON, "tests/test_b.py": broken}, PYTEST)
    assert (check_result.problem, check_result.tests) == ("", 1)
    assert check_result.text == "1 test; could not be loaded before any work: tests/test_b.py"


async def test_tests_of_unwritten_code_need_not_load(tmp_path: Path) -> None:
    files = {"test_shop.py": TEST_SHOP}
    tasks = [PlannedTask(key="shop", title="Write shop", tests=("test_shop.py",))]
    answer = edits({"shop.py": "PRICE = 3\n"})
    async with a_project(tmp_path, *tasks, files=files, command=PYTEST) as (store, project, _):
        summary = await run_team(project, store, TeamScript({"shop": answer}))
    assert [task.status for task in summary.tasks] == [TaskStatus.COMPLETED]


# --- what a team does with it ---------------------------------------------------------------------


async def test_a_team_asks_no_llm_if_tests_cannot_be_run(
    tmp_path: Path,
) -> None:
    answer = edits({"src/shop/__init__.py": "PRICE = 3\nTAX = 1\n", "tests/test_tax.py": TAX})
    options = {"files": SRC_LAYOUT, "command": PYTEST}
    async with a_project(tmp_path, TAX_TASK, **options) as (store, project, [task]):
        lm = TeamScript({"tax": answer})
        with pytest.raises(BaseError) as raised:
            await run_team(project, store, lm)
        assert NOT_INSTALLED in raised.value.message
        assert raised.value.fix is not None
        assert lm.asked == []
        assert (await store.task(task.id)).status is TaskStatus.PENDING
        assert list_leftovers(Path(project.root)) == []
        texts = [
            event.event.to_message().get("text", "") for event in await store.events(project.id)
        ]
        assert any(NOT_INSTALLED in text for text in texts)  # which the page shows
        command = ("env", "PYTHONPATH=src", *PYTEST[1:])
        project = await store.save_project(project.model_copy(update={"test_command": command}))
        summary = await run_team(project, store, lm)
        assert [task.status for task in summary.tasks] == [TaskStatus.COMPLETED]


TAX = "import shop\n\n\ndef test_tax():\n    assert shop.TAX == 1\n"
TAX_TASK = PlannedTask(key="tax", title="Add TAX")


async def test_a_worker_asks_no_llm_if_tests_cannot_be_run(tmp_path: Path) -> None:
    options = {"files": SRC_LAYOUT, "command": PYTEST}
    async with a_project(tmp_path, TAX_TASK, **options) as (store, project, [task]):
        worker = BackendWorkerAgent(project_id=project.id, db=store, lm=ScriptedLM())
        result = await worker.execute_task(task)
        assert (result.status, result.usage.calls) == ("blocked", 0)
        assert result.question is not None
        assert NOT_INSTALLED in result.question


async def test_a_task_does_not_fail_for_tests_that_failed_before(tmp_path: Path) -> None:
    wanted = PlannedTask(key="mul", title="Multiply")
    code = {"mul.sh": "mul() { echo $(($1 * $2)); }\n"}
    right = {**code, "mul.test.sh": '. ./mul.sh\n[ "$(mul 2 3)" = 6 ]\n'}
    breaks = {**right, "calc.sh": "add() { echo 0; }\n"}
    async with a_bench(tmp_path, wanted, files=FAILING) as (bench, [task]):
        lm = ScriptedLM({WorkerAnswer: [edits(breaks), edits({"calc.sh": SHELL["calc.sh"]})]})
        worker = BackendWorkerAgent(project_id=bench.project.id, bench=bench, lm=lm)
        result = await worker.execute_task(task)
        assert (result.status, result.question, result.attempts) == ("completed", None, 2)
        [first, _] = await bench.store.attempts(task.id)
        events = [event.event for event in await bench.store.events(bench.project.id)]
        check = await bench.check_base("HEAD")
    known = "Failed before this task too, and not counted: sub.test.sh::sub"
    assert all(known in prompt.text for prompt in lm.prompts)
    assert known in first.failure
    assert "calc.test.sh::calc" in first.failure
    assert check.text == "2 tests; 1 failed before any work: sub.test.sh::sub"
    told = [(event.passed, event.counts) for event in events if isinstance(event, TestResult)]
    assert told[1] == (True, {"passed": 2, "failed": 0, "skipped": 0, "failed before": 1})


# --- reports that are kept ------------------------------------------------------------------------


async def test_a_base_report_is_reused_for_the_same_commit_command_and_environment(
    tmp_path: Path,
) -> None:
    async with a_project(tmp_path) as (store, project, _):
        root = Path(project.root)

    async def count(command: tuple[str, ...] = project.test_command) -> int:
        """How many reports there are after a check."""
        changed = project.model_copy(update={"test_command": command})
        async with (
            await Store.open(store.path) as again,
            Workbench.open(changed, again) as bench,
        ):
            await bench.integration.catch_up()
            check = await bench.check_base(await bench.integration.head())
            assert not check.problem
        return len(list((store.path.parent / "base-reports").iterdir()))

    assert await count() == 1
    [stored] = (store.path.parent / "base-reports").iterdir()
    before = stored.stat().st_mtime_ns
    assert await count() == 1
    assert stored.stat().st_mtime_ns == before  # it was read, and not made again
    commit_files(root, {"sub.test.sh": TEST_SUB, "calc.sh": SUB})
    assert await count() == 2
    assert await count(("env", *project.test_command)) == 3


async def test_a_report_of_unrunnable_tests_is_not_stored(tmp_path: Path) -> None:
    options = {"files": SRC_LAYOUT, "command": PYTEST}
    async with a_bench(tmp_path, TAX_TASK, **options) as (bench, _):
        await bench.check_base("HEAD")
        assert await bench.reports.find("HEAD") is None
        assert list((bench.store.path.parent / "base-reports").iterdir()) == []


def test_a_plugin_warning_turned_into_an_error_is_named_as_the_cause() -> None:
    printed = "INTERNALERROR> pytest.PytestDeprecationWarning: The hook is old\n"
    report = TestReport(command=PYTEST, exit_code=3, output=printed, problem="no verdict")
    project = Project(id=1, name="a", root="/nowhere", branch="b", test_command=PYTEST)
    check_result = examine_base(report, "c" * 40, project=project, tracked=["test_a.py"])
    assert "a warning, such as one of a plugin, is an error" in check_result.problem


def test_a_limit_that_ends_the_base_tests_is_named_as_the_cause() -> None:
    project = Project(id=1, name="a", root="/nowhere", branch="b", test_command=PYTEST)
    for limit, text in {"timeout": "in time", "memory": "memory", "output": "printed"}.items():
        report = TestReport(command=PYTEST, exit_code=None, ended_by=limit)
        assert text in examine_base(report, "c" * 40, project=project).problem
    skipped = (TestCase(id="a", outcome="skipped"),)
    report = TestReport(command=PYTEST, exit_code=0, cases=skipped, problem="all are skipped")
    assert not examine_base(report, "c" * 40, project=project).problem


async def test_a_team_without_open_tasks_runs_no_tests(tmp_path: Path) -> None:
    async with a_bench(tmp_path, files=SRC_LAYOUT, command=PYTEST) as (bench, [task]):
        await bench.store.move(task.id, TaskStatus.PENDING, TaskStatus.SKIPPED)
        summary = await LeadAgent(bench, TeamScript({})).run()
        assert summary.ended == "done"
    assert git(tmp_path / "project", "worktree", "list").count("\n") == 0
