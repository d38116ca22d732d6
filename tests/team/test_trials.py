"""Trials of a worker: commands and tests on a copy of its work, with results in plain text."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bae import ToolError
from bae.team.models import Task
from bae.team.test_order import select_tests
from bae.team.trials import LONGEST_RESULT, check_tests, run_command
from bae.team.workbench import Workbench
from bae.team.workspaces import Workspace
from bounded import BOUND
from git_repositories import list_leftovers, write
from team_parts import FAILING, NODE, PYTEST, PYTHON, a_bench, needs_node

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")


@asynccontextmanager
async def at_work(
    tmp_path: Path, written: Mapping[str, str] | None = None, **options: Any
) -> AsyncGenerator[tuple[Workbench, Task, Workspace]]:
    """A task with a worktree, in which files are written and committed."""
    async with a_bench(tmp_path, **options) as (bench, [task]):
        workspace = await bench.workspaces.start(task.branch)
        if written:
            write(workspace.path, written)
            await workspace.commit(list(written), "work")
        yield bench, task, workspace
        await bench.workspaces.remove(workspace)
    rest = [path for path in list_leftovers(tmp_path / "project") if not path.endswith("/setup")]
    assert rest == []


async def test_a_command_runs_on_the_committed_work_and_its_exit_code_is_reported(tmp_path: Path):
    async with at_work(tmp_path, {"new.txt": "hello\n"}) as trial:
        (trial[2].path / "new.txt").write_text("not committed\n")

        text = await run_command(*trial, "cat new.txt; echo oops >&2; exit 3", timeout=BOUND)

    assert text.startswith("exit code 3 (after ")
    assert text.endswith("\nhello\noops")


async def test_files_that_a_command_writes_are_named_and_removed(tmp_path: Path):
    async with at_work(tmp_path) as (bench, task, workspace):
        text = await run_command(
            bench, task, workspace, "echo x > made.txt; echo x >> calc.sh", timeout=BOUND
        )
        again = await run_command(bench, task, workspace, "ls", timeout=BOUND)
        assert await workspace.uncommitted() == ()

    assert "changed or created files in the copy: calc.sh, made.txt. These changes are not" in text
    assert "`edit` is the only way" in text
    assert "made.txt" not in again


async def test_a_command_has_no_network_and_does_not_see_the_users_checkout(tmp_path: Path):
    async with at_work(tmp_path) as trial:
        root = trial[0].project.root
        text = await run_command(*trial, f"ls {root}; cat /proc/net/dev", timeout=BOUND)

    assert "No such file" in text or "Permission denied" in text or "cannot open" in text
    assert "calc.sh" not in text
    assert "eth" not in text


async def test_a_command_is_bounded_in_time_and_output(tmp_path: Path):
    async with at_work(tmp_path) as trial:
        late = await run_command(*trial, "echo begun; sleep 100", timeout=1)
        long = await run_command(
            *trial, "echo first; yes | head -c 100000; echo last", timeout=BOUND
        )

    assert late.startswith("it did not end in time")
    assert late.endswith("begun")
    assert len(long) <= LONGEST_RESULT
    assert "first" in long
    assert "characters left out" in long
    assert long.endswith("last")


async def test_a_cancelled_command_ends_with_its_processes_and_its_copy(tmp_path: Path):
    began = asyncio.Event()
    beats: list[int] = []
    folder = tmp_path / ".project.team"

    def look(task_id: int) -> None:  # called once a second while the command runs
        beats.append(task_id)
        if any(folder.glob("bae.check-*/begun")):
            began.set()

    async with at_work(tmp_path, on_progress=look) as trial:
        running = asyncio.create_task(run_command(*trial, "echo > begun; sleep 100", timeout=BOUND))
        async with asyncio.timeout(BOUND):
            await began.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not any(folder.glob("bae.check-*"))
        assert set(beats) == {trial[1].id}


@pytest.mark.parametrize("command", ["", "  ", "a\0b", "x" * 30_000])
async def test_a_command_that_cannot_be_run_is_refused(tmp_path: Path, command: str):
    async with at_work(tmp_path) as trial:
        with pytest.raises(ToolError, match="a command is a text of"):
            await run_command(*trial, command)


async def test_a_command_finds_the_python_and_the_variables_of_the_test_command(tmp_path: Path):
    files = {"src/pkg/__init__.py": "VALUE = 7\n", ".gitignore": ".venv/\n", "test_a.py": ""}
    test = ("env", "PYTHONPATH=src", ".venv/bin/python", "-m", "pytest")
    made = f"{sys.executable} -m venv --without-pip --symlinks .venv"
    async with at_work(tmp_path, files=files, command=test, setup=tuple(made.split())) as trial:
        text = await run_command(
            *trial, 'python -c "import pkg, sys; print(sys.prefix, pkg.VALUE)"', timeout=BOUND
        )

    assert text.endswith("./.venv 7")


TESTS = {
    **PYTHON,
    "tests/test_calc.py": PYTHON["tests/test_calc.py"]
    + "\n\ndef test_old():\n    assert add(1, 1) == 3\n",
}
MORE = """import pytest

from calc import add


class TestMore:
    @pytest.mark.parametrize("n", [1, 2])
    def test_n(self, n):
        assert add(n, 0) == 1, "n is wrong"


@pytest.mark.skip(reason="later")
def test_later(): ...
"""


async def test_named_tests_are_checked_and_earlier_failures_are_marked(tmp_path: Path):
    async with at_work(
        tmp_path, {"tests/test_more.py": MORE}, files=TESTS, command=(*PYTEST, "tests")
    ) as trial:
        one = await check_tests(*trial, ["tests/test_more.py::TestMore::test_n"])
        both = await check_tests(*trial, ["tests/test_more.py", "./tests/test_calc.py::test_old"])
        everything = await check_tests(*trial)

    assert one.startswith("1 failed, 1 passed\nFAILED tests/test_more.py::TestMore::test_n[2]\n")
    assert "n is wrong" in one
    assert "before your work" not in one
    assert both.startswith("2 failed, 1 passed, 1 skipped\n")
    assert "FAILED tests/test_calc.py::test_old (failed before your work too)\n" in both
    assert everything.startswith("2 failed, 2 passed, 1 skipped\n")


async def test_an_unknown_test_name_is_answered_with_the_nearest_names(tmp_path: Path):
    async with at_work(
        tmp_path, {"tests/test_more.py": MORE}, files=TESTS, command=PYTEST
    ) as trial:
        text = await check_tests(
            *trial, ["tests/test_calc.py::test_ad", "tests/test_mor.py", "-x", "tests/test_more.py"]
        )

    assert text.startswith("1 failed, 1 passed, 1 skipped\n")
    first, second, third = [line for line in text.splitlines() if line.startswith("no test is")]
    assert "no test is named tests/test_calc.py::test_ad. The nearest names: " in first
    assert "tests/test_calc.py::test_add" in first
    assert "tests/test_more.py" in second
    assert third == "no test is named -x."


async def test_a_test_named_without_its_file_is_answered_with_its_full_name(tmp_path: Path):
    async with at_work(tmp_path, {}, files=TESTS, command=PYTEST) as trial:
        text = await check_tests(*trial, ["test_add"])

    assert "no test is named test_add. The nearest names: tests/test_calc.py::test_add" in text


async def test_a_misspelled_test_file_is_answered_with_the_new_file_of_the_task(tmp_path: Path):
    new = {"tests/test_more.py": MORE}
    async with at_work(tmp_path, new, files=TESTS, command=PYTEST) as trial:
        text = await check_tests(*trial, ["tests/test_mor.py"])

    assert "tests/test_mor.py. The nearest names: tests/test_more.py" in text


async def test_a_test_file_that_cannot_be_loaded_is_a_failure_of_its_tests(tmp_path: Path):
    broken = {"tests/test_more.py": "import nothing_of_this_name\n"}
    async with at_work(tmp_path, broken, files=PYTHON, command=PYTEST) as trial:
        text = await check_tests(*trial, ["tests/test_more.py::test_a"])

    assert text.startswith("1 failed\nFAILED tests/test_more.py\n")
    assert "nothing_of_this_name" in text


@needs_node
async def test_tests_of_node_are_checked_by_file_and_by_name(tmp_path: Path):
    code = """
    const { test, describe, it } = require("node:test");
    const { equal } = require("node:assert");
    test("adds (all)", () => equal(1 + 1, 2));
    describe("group", () => { it("fails", () => equal(1, 2)); it("works", () => {}); });
    test("outer", async (t) => { await t.test("nested", () => equal(3, 4)); });
    """
    files = {"api/a.test.js": code, "api/b.test.js": code, "web/x.txt": "x\n"}
    async with at_work(tmp_path, files=files, command=NODE, folder="api") as trial:
        file = await check_tests(*trial, ["api/a.test.js"])
        name = await check_tests(*trial, ["api/a.test.js::adds (all)"])
        group = await check_tests(*trial, ["api/a.test.js::group"])
        nested = await check_tests(*trial, ["api/a.test.js::outer::nested"])

    assert file.startswith("2 failed, 2 passed\n")
    assert "FAILED api/a.test.js::group::fails (failed before your work too)\n" in file
    assert name == "1 passed"
    assert group.startswith("1 failed, 1 passed\n")
    assert nested.startswith("1 failed\nFAILED api/a.test.js::outer::nested (")


async def test_a_check_shows_only_the_named_tests_of_a_program_that_runs_all(
    tmp_path: Path,
):
    async with at_work(tmp_path, {"more.test.sh": "true\n"}, files=FAILING) as trial:
        text = await check_tests(*trial, ["more.test.sh"])
        failed = await check_tests(*trial, ["sub.test.sh"])

    assert text == "1 passed"
    assert failed.startswith("1 failed\nFAILED sub.test.sh::sub (failed before your work too)\n")


@pytest.mark.parametrize(
    ("command", "names", "selected"),
    [
        (
            "pytest -q tests",
            ["tests/test_a.py::test_x[a b]"],
            "pytest -q tests/test_a.py::test_x[a b]",
        ),
        ("python -m pytest -m slow", ["tests"], "python -m pytest -m slow tests"),
        ("uv run pytest --odd x", ["a.py"], None),
        ("pytest --odd=x", ["a.py"], "pytest --odd=x a.py"),
        ("pytest", ["--co"], None),
        ("pytest", ["a.js"], None),
        ("node --test src/", ["a.test.js"], "node --test a.test.js"),
        (
            "node --test",
            ["a.test.js::g::x.y"],
            r"node --test --test-name-pattern=(?:x\.y) a.test.js",
        ),
        ("node --test", ["src"], None),
        ("npx vitest run unit", ["a.ts::g > x"], "npx vitest run --testNamePattern=(?:x) a.ts"),
        ("npx jest -i", ["a.ts", "b.ts::x"], r"npx jest -i a\.ts b\.ts"),
        ("go test -v ./...", ["x.org/m/p::TestA/b"], "go test -v -run=^(TestA)$ x.org/m/p"),
        ("go test ./...", ["x.org/m"], "go test x.org/m"),
        ("pytest && node --test", ["a.test.js"], "node --test a.test.js"),
        ("pytest && node --test", ["a.py", "b.js"], "pytest a.py && node --test b.js"),
        ("pytest && node --test", ["tests"], None),
        ("make test", ["a.py"], None),
        ("pytest", [], None),
    ],
)
def test_every_test_program_gets_the_named_tests_in_its_own_form(
    command: str, names: list[str], selected: str | None
):
    command_line = select_tests(command.split(), names)

    assert (" ".join(command_line) if command_line else None) == selected
