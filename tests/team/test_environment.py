"""Failures of the environment are not the LLM's: they are tried once more, and then a person is
asked; no LLM call is spent on them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from bae.team import BackendWorkerAgent, PlannedTask, Task, Workbench
from bae.team.environment import find_cause, find_setup_cause
from bae.team.models import TaskResult, TestCase, TestReport
from bae.team.sandbox import Ran
from bae.team.verdict import WorkVerdict
from bae.team.worker_graph import WorkerAnswer
from bae.testing import ScriptedLM
from git_repositories import list_leftovers, write
from team_parts import CALC, PYTEST, PYTHON, SHELL, SUB, TEST_SUB, a_bench, a_project, edits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")
SUB_PY = "from calc import add\n\n\ndef sub(a, b):\n    return add(a, -b)\n"
KILLS = "import os\n\n\ndef test_sub():\n    os.kill(os.getpid(), 9)\n"
FILLS = """from pathlib import Path


def test_sub(tmp_path):
    Path("large").write_bytes(bytes(300 * 1024 * 1024))
"""
FILLS_TMP = """import os


def test_sub():
    for number in range(3):
        with open(f"/tmp/large-{number}", "wb") as file:
            file.write(bytes(200 * 1024 * 1024))
"""
MISSING = {"calc.py": "import nothing_here\n", "tests/test_sub.py": "import calc\n"}


async def carry_out(bench: Workbench, task: Task, *answers: str) -> TaskResult:
    """What becomes of a task with these answers, all of which are asked for."""
    lm = ScriptedLM({WorkerAnswer: list(answers)})
    worker = BackendWorkerAgent(project_id=bench.project.id, bench=bench, lm=lm)
    result = await worker.execute_task(task)
    lm.assert_complete()
    assert list_leftovers(Path(bench.project.root)) == []
    return result


@pytest.mark.parametrize(
    ("test", "cause"),
    [(KILLS, "killed"), (FILLS, "no space left"), (FILLS_TMP, "no space left")],
    ids=["killed", "file size", "full disk"],
)
async def test_an_environment_failure_is_a_question_after_one_llm_call(
    tmp_path: Path, test: str, cause: str
) -> None:
    answer = edits({"sub.py": SUB_PY, "tests/test_sub.py": test})
    async with a_bench(tmp_path, files=PYTHON, command=PYTEST) as (bench, [task]):
        result = await carry_out(bench, task, answer)
        assert (result.status, result.usage.calls) == ("blocked", 1)
        assert result.question is not None
        assert cause in result.question.splitlines()[0]
        [attempt] = await bench.store.attempts(task.id)
        assert attempt.outcome == "error"
        events = [event.event.type for event in await bench.store.events(bench.project.id)]
        assert events.count("test_result") == 2  # it was tried once more
        assert "correction_attempt" not in events


FLAKY = """. ./calc.sh
[ "$(sub 5 3)" = 2 ] || exit 1
if [ ! -e there ]; then kill -9 $$; fi
"""


async def test_untested_work_is_tested_by_the_next_run_without_an_llm_call(
    tmp_path: Path,
) -> None:
    included = {**SHELL, ".worktreeinclude": "there\n", ".gitignore": "there\n"}
    answer = edits({"calc.sh": SUB, "sub.test.sh": FLAKY})
    async with a_bench(tmp_path, files=included) as (bench, [task]):
        result = await carry_out(bench, task, answer)
        assert (result.status, result.usage.calls) == ("blocked", 1)
        write(Path(bench.project.root), {"there": ""})
        blocker = await bench.store.add_blocker(task.id, result.question or "")
        await bench.store.answer_blocker(blocker.id, "It is done.")
        result = await carry_out(bench, await bench.store.task(task.id))
        assert (result.status, result.attempts, result.usage.calls) == ("completed", 1, 0), result


class Unlucky(BackendWorkerAgent):
    """Its first run of the tests is killed."""

    verdicts: int = 0

    async def run_tests(self, task: Task) -> WorkVerdict:
        self.verdicts += 1
        if self.verdicts == 1:
            return WorkVerdict(report(137, reported=False), problems=("it was killed",))
        return await super().run_tests(task)


async def test_killed_tests_run_again_before_a_person_is_asked(tmp_path: Path) -> None:
    lm = ScriptedLM({WorkerAnswer: [edits({"calc.sh": SUB, "sub.test.sh": TEST_SUB})]})
    async with a_bench(tmp_path) as (bench, [task]):
        result = await Unlucky(project_id=bench.project.id, bench=bench, lm=lm).execute_task(task)
        assert (result.status, result.attempts, result.usage.calls) == ("completed", 1, 1)


async def test_a_failed_setup_of_a_task_becomes_a_question(tmp_path: Path) -> None:
    async with a_project(tmp_path) as (store, project, [task]):
        setup = ("sh", "-c", "echo broken; exit 3")
        await store.save_project(project.model_copy(update={"setup": setup}))
        worker = BackendWorkerAgent(project_id=project.id, db=store, lm=ScriptedLM())
        result = await worker.execute_task(task)
        assert (result.status, result.usage.calls) == ("blocked", 0)
        assert result.question is not None
        assert "The setup command failed." in result.question
        assert "broken" in result.question
        left = [path for path in list_leftovers(Path(project.root)) if Path(path).name != "setup"]
        assert left == []


async def test_an_ordinary_test_failure_is_corrected_by_the_llm(tmp_path: Path) -> None:
    wanted = PlannedTask(key="sub", title="Subtract")
    wrong = {"calc.sh": CALC, "sub.test.sh": TEST_SUB + "# No space left on device\n"}
    async with a_bench(tmp_path, wanted) as (bench, [task]):
        right = edits({"calc.sh": SUB})
        result = await carry_out(bench, task, edits(wrong), right)
        assert (result.status, result.attempts) == ("completed", 2)


def report(code: int | None, output: str = "", *messages: str, **more: object) -> TestReport:
    cases = [
        TestCase(id=str(number), outcome="failed", message=text)
        for number, text in enumerate(messages)
    ]
    return TestReport.model_validate(
        {"command": ("pytest",), "exit_code": code, "output": output, "cases": cases, **more}
    )


CAUSES: Mapping[str, tuple[TestReport, str | None]] = {
    "killed": (report(137), "killed"),
    "killed from outside": (report(None, ended_by="killed"), "killed"),
    "file too large": (report(153), "space"),
    "no space": (report(1, "OSError: [Errno 28] No space left on device"), "space"),
    "no space in a test": (
        report(1, "", "def test():\nE   OSError: [Errno 28] No space left on device"),
        "space",
    ),
    "no space in node": (report(1, "", "Error: ENOSPC: no space left on device, write"), "space"),
    "not started": (report(127, "cannot start x"), "program"),
    "no pytest": (report(1, "/usr/bin/python3: No module named pytest\n"), "program"),
    "no network": (report(2, "error: dns error: Temporary failure in name resolution"), "network"),
    # A test that wants the network has none in the sandbox: that is for the LLM to correct.
    "network in a test": (report(1, "", "E  OSError: Temporary failure in name resolution"), None),
    "printed by a test": (report(1, "No space left on device", "assert 1 == 2"), None),
    "a message of the code": (report(1, "", "E  assert 'No space left on device' == ''"), None),
    "passed": (report(0, "No space left on device"), None),
    "too slow": (report(None, ended_by="timeout", seconds=300.0), None),
    "too much memory": (report(None, ended_by="memory"), None),
}


@pytest.mark.parametrize(("found", "kind"), CAUSES.values(), ids=CAUSES)
def test_environment_failures_are_recognized_by_exit_code_and_output(
    found: TestReport, kind: str | None
) -> None:
    cause = find_cause(found)
    assert (cause.kind if cause else None) == kind


def test_a_timeout_is_environmental_if_the_base_is_nearly_as_slow() -> None:
    slow = report(None, ended_by="timeout", seconds=300.0)
    cause = find_cause(slow, report(0, seconds=200.0))
    assert cause is not None
    assert cause.kind == "time"
    assert find_cause(slow, report(0, seconds=20.0)) is None


@pytest.mark.parametrize(
    ("code", "output", "kind"),
    [
        (1, "npm ERR! getaddrinfo EAI_AGAIN registry", "network"),
        (1, "no space: No space left on device", "space"),
        (137, "", "killed"),
        (127, "npm: not found", "setup"),
        (1, "error: metadata-generation-failed", "setup"),
    ],
)
def test_a_failed_setup_is_reported_with_a_cause(code: int, output: str, kind: str) -> None:
    cause = find_setup_cause(Ran(code, output, 1.0, "exit", "bubblewrap"))
    assert cause.kind == kind
    assert "the setup command failed" in cause.text
