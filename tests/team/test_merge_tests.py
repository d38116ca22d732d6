"""Tests at a merge: every tree that the team's branch moves to is tested exactly once; tests that a
task changed come first."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from bae.team import BackendWorkerAgent, PlannedTask, Task, Workbench, sandbox
from bae.team.integration import Failed
from bae.team.models import TaskResult
from bae.team.test_order import split_command
from bae.team.worker_graph import WorkerAnswer
from bae.testing import ScriptedLM
from git_repositories import git
from team_parts import PYTEST, PYTHON, a_bench, edits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")
TASKS = [PlannedTask(key=key, title=f"Write {key}") for key in ("one", "two")]


def module(name: str, value: int = 1) -> str:
    test = f"from {name} import VALUE\n\n\ndef test_{name}():\n    assert VALUE == {value}\n"
    return edits({f"{name}.py": f"VALUE = {value}\n", f"tests/test_{name}.py": test})


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were run."""
    found: list[list[str]] = []
    run = sandbox.run

    async def noted(command: Any, *args: Any, **options: Any) -> sandbox.Ran:
        found.append(list(command))
        return await run(command, *args, **options)

    monkeypatch.setattr(sandbox, "run", noted)
    return found


async def work_on(bench: Workbench, task: Task, *answers: str) -> TaskResult:
    lm = ScriptedLM({WorkerAnswer: list(answers)})
    worker = BackendWorkerAgent(project_id=bench.project.id, bench=bench, lm=lm)
    return await worker.execute_task(task)


async def test_a_tested_tree_is_not_tested_again_at_the_merge(
    tmp_path: Path, runs: list[list[str]]
) -> None:
    async with a_bench(tmp_path, *TASKS, files=PYTHON, command=PYTEST) as (bench, [one, two]):
        await bench.base_report("HEAD")
        runs.clear()
        result = await work_on(bench, one, module("one"))
        assert result.status == "completed"
        assert len(runs) == 3  # the work, the tests of the base with it, its tests on the base
        root, branch = Path(bench.project.root), bench.integration.branch
        judged = git(root, "rev-parse", f"{one.branch}^{{tree}}")
        assert git(root, "rev-parse", f"{branch}^{{tree}}") == judged
        [report] = await bench.store.merge_reports(one.id)
        assert len(report.of("passed")) == 2
        runs.clear()
        assert (await work_on(bench, two, module("two"))).status == "completed"
        assert len(runs) == 3  # the merged tree is the base of the next


async def test_changed_tests_run_first_if_the_branch_has_moved(
    tmp_path: Path, runs: list[list[str]]
) -> None:
    async with a_bench(tmp_path, *TASKS, files=PYTHON, command=PYTEST) as (bench, [one, two]):
        bench.integration.split_after = 0.0
        await judge(bench, two, module("two"))
        assert (await work_on(bench, one, module("one"))).status == "completed"
        runs.clear()
        outcome = await bench.integrate(two)
        assert not hasattr(outcome, "text")
        [first, rest] = runs
        assert "tests/test_two.py" in first
        assert "--ignore=tests/test_two.py" in rest
        found = await bench.reports.find(await bench.integration.head())
        assert found is not None
        names = {case.id.rpartition("::")[2] for case in found.of("passed")}
        assert names == {"test_add", "test_one", "test_two"}


async def test_a_failed_changed_test_skips_the_other_tests_of_a_merge(
    tmp_path: Path, runs: list[list[str]]
) -> None:
    async with a_bench(tmp_path, *TASKS, files=PYTHON, command=PYTEST) as (bench, [one, two]):
        test = "from calc import add\n\n\ndef test_two():\n    assert add(2, 2) == 4\n"
        bench.integration.split_after = 0.0
        await judge(bench, two, edits({"two.py": "import calc\n", "tests/test_two.py": test}))
        other = "def add(a, b):\n    return 2\n"
        assert (await work_on(bench, one, calc(other))).status == "completed"
        head = await bench.integration.head()
        runs.clear()
        outcome = await bench.integrate(two)
        assert isinstance(outcome, Failed)
        assert "tests/test_two.py::test_two" in outcome.text
        assert len(runs) == 1
        assert await bench.integration.head() == head


@pytest.mark.parametrize("may", ["add-tests", "change-tests"])
async def test_a_merge_that_loses_merged_tests_is_refused(tmp_path: Path, may: str) -> None:
    tasks = [TASKS[0], PlannedTask.model_validate({"key": "two", "title": "Two", "may": may})]
    files = {**PYTHON, "fast.py": ""}
    skips = "import pytest\npytest.importorskip('fast')\n\ndef test_one():\n    import one\n"
    async with a_bench(tmp_path, *tasks, files=files, command=PYTEST) as (bench, [one, two]):
        await judge(bench, two, module("two") + "\n<<<<<<< DELETE fast.py\n>>>>>>> DELETE\n")
        work = edits({"one.py": "", "tests/test_one.py": skips})
        assert (await work_on(bench, one, work)).status == "completed"
        head = await bench.integration.head()
        outcome = await bench.integrate(two)
        if may == "add-tests":
            assert isinstance(outcome, Failed)
            assert "skipped or missing: tests/test_one.py::test_one" in outcome.text
            assert await bench.integration.head() == head
        else:
            assert await bench.integration.head() != head


async def test_tests_of_the_work_must_run_after_the_merge(tmp_path: Path) -> None:
    skips = "import pytest\npytest.importorskip('fast')\n\ndef test_two():\n    import two\n"
    files = {**PYTHON, "fast.py": ""}
    async with a_bench(tmp_path, *TASKS, files=files, command=PYTEST) as (bench, [one, two]):
        await bench.base_report("HEAD")
        await judge(bench, two, edits({"two.py": "", "tests/test_two.py": skips}))
        other = module("one") + "\n<<<<<<< DELETE fast.py\n>>>>>>> DELETE\n"
        assert (await work_on(bench, one, other)).status == "completed"
        outcome = await bench.integrate(two)
        assert isinstance(outcome, Failed)
        assert "skipped or missing: tests/test_two.py::test_two" in outcome.text


async def test_files_are_read_only_in_every_test_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed: list[list[str]] = []
    run = sandbox.run

    async def noted(*args: Any, **options: Any) -> sandbox.Ran:
        fixed.append(sorted(Path(option).name for option in options["fixed"]))
        return await run(*args, **options)

    monkeypatch.setattr(sandbox, "run", noted)
    files = {**PYTHON, "pytest.ini": "[pytest]\npython_files = test_*.py check.py\n"}
    files["check.py"] = "def test_check(): pass\n"
    async with a_bench(tmp_path, *TASKS, files=files, command=PYTEST) as (bench, [one, two]):
        bench.integration.split_after = 0.0
        await judge(bench, two, module("two"))
        assert (await work_on(bench, one, module("one"))).status == "completed"
        await bench.integrate(two)
    base, *others = fixed
    assert {"test_calc.py", "pytest.ini"} <= {*base}
    assert all({"test_calc.py", "pytest.ini", "check.py"} <= {*other} for other in others)


def calc(text: str) -> str:
    test = "import calc\n\n\ndef test_one():\n    assert calc.add(5, 5) == 2\n"
    return edits({"calc.py": text, "tests/test_one.py": test})


async def judge(bench: Workbench, task: Task, answer: str) -> None:
    """Have work that was judged and is not merged yet."""
    async with BackendWorkerAgent(project_id=bench.project.id, bench=bench) as worker:
        await worker.apply_file_changes(task, answer)
        verdict = await bench.verify(task, await worker.workspace(task))
        await bench.reports.remember(await (await worker.workspace(task)).head(), verdict.report)


def test_a_test_command_that_names_files_is_not_split() -> None:
    assert split_command(("pytest", "-q", "-m", "not slow"), ["a.py"]) == (
        ("pytest", "-q", "-m", "not slow", "a.py"),
        ("pytest", "-q", "-m", "not slow", "--ignore=a.py"),
    )
    assert split_command(("python", "-m", "pytest"), ["a.py"]) is not None
    assert split_command(("pytest", "tests"), ["a.py"]) is None
    assert split_command(("pytest",), []) is None
    assert split_command(("node", "--test"), ["a.js"]) is None
    assert split_command(("pytest", "&&", "node", "--test"), ["a.py"]) is None
