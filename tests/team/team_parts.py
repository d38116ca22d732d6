"""Small projects for tests of workers, with their state, and answers of an LLM for them."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bae.team.models import PlannedTask, Project, Task, as_planned
from bae.team.store import Store
from bae.team.workbench import Workbench
from bounded import BOUND
from git_repositories import TEAM, make_repository
from written_edits import render_answer, whole_file

# Without the plugins of this environment, which take seconds to load.
PYTEST = ("env", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", "python", "-m", "pytest", "-q")
TEST_CALC = "from calc import add\n\n\ndef test_add():\n    assert add(1, 1) == 2\n"
PYTHON = {
    "calc.py": "def add(a, b):\n    return a + b\n",
    "tests/test_calc.py": TEST_CALC,
    "conftest.py": "",
}
NODE = (shutil.which("node") or "node", "--test")
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="no node")
SUM = "exports.add = (a, b) => a + b;\n"
SUM_TEST = """const test = require("node:test");
const { equal } = require("node:assert");
test("adds", () => equal(require("./sum.js").add(1, 1), 2));
"""
JAVASCRIPT = {"sum.js": SUM, "sum.test.js": SUM_TEST}
# A project in shell, whose test program starts in a tenth of the time of the others: for tests that
# are not about how tests are run.
RUN_SHELL = ("sh", "jest.sh")
CALC = "add() { echo $(($1 + $2)); }\n"
SUB = CALC + "sub() { echo $(($1 - $2)); }\n"
WRONG = CALC + "sub() { echo $(($1 + $2)); }\n"
WORSE = CALC + "sub() { echo $(($1 * $2)); }\n"
JEST = {"jest.sh": Path(__file__).with_name("jest.sh").read_text()}
SHELL = {**JEST, "calc.sh": CALC, "calc.test.sh": '. ./calc.sh\n[ "$(add 1 1)" = 2 ]\n'}
TEST_SUB = '. ./calc.sh\n[ "$(sub 5 3)" = 2 ] || { echo "sub is $(sub 5 3)"; exit 1; }\n'
# A test that exists and fails, so that wrong work is found.
FAILING = {**SHELL, "sub.test.sh": TEST_SUB}
HOOKS = ("limit_lm", "on_progress", "should_stop")
SUB_TASK = PlannedTask(
    key="sub",
    title="Subtract",
    description="Write a function sub in calc.sh.",
    criteria=("sub(5, 3) is 2",),
    files=("calc.sh",),
    tests=("calc.test.sh",),  # which pass: the work needs no test of its own
)
FIX_TASK = as_planned(SUB_TASK, tests=("sub.test.sh",))
"""The same where there is a test that fails."""


def edits(files: Mapping[str, str]) -> str:
    """The answer of an LLM that writes files."""
    return render_answer(whole_file(name, text) for name, text in files.items())


class Messages:
    """A `ws_manager` that keeps its broadcasts, and then raises on request."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.messages: list[dict[str, Any]] = []
        self.error = error

    async def broadcast(self, message: dict[str, Any], /) -> None:
        self.messages.append(message)
        if self.error:
            raise self.error


@asynccontextmanager
async def a_project(
    tmp_path: Path,
    *tasks: PlannedTask,
    files: Mapping[str, str] = SHELL,
    command: tuple[str, ...] = RUN_SHELL,
    **settings: Any,
) -> AsyncGenerator[tuple[Store, Project, list[Task]]]:
    """A repository, and the state of its team with tasks and settings of the project."""
    root = make_repository(tmp_path / "project", files)
    async with await Store.open(tmp_path / "state" / "team.db") as store:
        about: dict[str, Any] = {"name": "calc", "root": str(root), "branch": TEAM}
        project = Project(id=0, **about, test_command=command, **settings)
        project = await store.save_project(project)
        usual = FIX_TASK if "sub.test.sh" in files else SUB_TASK
        yield store, project, await store.add_tasks(project.id, tasks or (usual,))


@asynccontextmanager
async def a_bench(
    tmp_path: Path, *tasks: PlannedTask, **options: Any
) -> AsyncGenerator[tuple[Workbench, list[Task]]]:
    """The bench of a team for such a project; `options` are its own, and what watches it."""
    own = {"files", "command", *Project.model_fields}
    made = {name: options.pop(name) for name in own if name in options}
    options.setdefault("review", "off")  # for tests that are not about reviews
    hooks = {name: options.pop(name) for name in HOOKS if name in options}
    async with (
        a_project(tmp_path, *tasks, **made) as (store, project, added),
        Workbench.open(project, store, limits={"timeout": BOUND}, **options) as bench,
    ):
        for name, hook in hooks.items():
            setattr(bench, name, hook)
        yield bench, added
