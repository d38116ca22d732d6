"""Flaky tests: a test that a task does not touch, and that fails once, does not fail the task. A
second run of all tests decides, and a person is told."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from bae.team import BackendWorkerAgent, PlannedTask, Task, Workbench, sandbox
from bae.team.flaky_tests import MOST_FLAKY
from bae.team.integration import Failed, Integrated
from bae.team.models import TaskResult
from bae.team.worker_graph import WorkerAnswer
from bae.testing import ScriptedLM
from team_parts import CALC, SHELL, SUB, TEST_SUB, Messages, a_bench, edits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")
FLAKY = "flaky.test.sh"
ADD_SUB = PlannedTask(key="sub", title="Subtract")
NEW = edits({"calc.sh": SUB, "sub.test.sh": TEST_SUB})


def failing_in(*runs: int) -> str:
    """A test that fails in some of the runs of tests. The first one is of the base."""
    return f'case " {" ".join(map(str, runs))} " in *" $RUN "*) exit 1;; esac\n'


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that tests were run in. A test knows the number of its run: nothing else tells
    one run from another, as each is in a fresh worktree."""
    found: list[str] = []
    run = sandbox.run

    async def numbered(command: Any, folder: Any, **options: Any) -> sandbox.Ran:
        if "env" not in options:  # no run of tests: what the sandbox can do is tried
            return await run(command, folder, **options)
        found.append(str(folder))
        options["env"] = {**options["env"], "RUN": str(len(found))}
        return await run(command, folder, **options)

    monkeypatch.setattr(sandbox, "run", numbered)
    return found


async def work_on(bench: Workbench, task: Task, *answers: str) -> TaskResult:
    await bench.base_report("HEAD")
    lm = ScriptedLM({WorkerAnswer: list(answers)})
    worker = BackendWorkerAgent(project_id=bench.project.id, bench=bench, lm=lm)
    return await worker.execute_task(task)


async def test_a_flaky_test_costs_no_correction_and_is_reported(
    tmp_path: Path, runs: list[str]
) -> None:
    heard, files = Messages(), {**SHELL, FLAKY: failing_in(2)}
    async with a_bench(tmp_path, ADD_SUB, files=files, ws_manager=heard) as (bench, [task]):
        result = await work_on(bench, task, NEW)
        assert (result.status, result.attempts) == ("completed", 1)
        assert [name.partition("::")[0] for name in result.flaky] == [FLAKY]
        assert result.to_dict()["flaky"] == list(result.flaky)
        [attempt] = await bench.store.attempts(task.id)
        assert attempt.report is not None
        assert attempt.report.flaky == result.flaky
        # The base, the work twice, the tests of the base with it, its tests on the base.
        assert len(runs) == len({*runs}) == 5
    counts = [message["counts"] for message in heard.messages if message["type"] == "test_result"]
    assert counts[0]["flaky"] == 1
    told = [
        message.get("text", "")
        for message in heard.messages
        if message["type"] == "activity_update"
    ]
    assert any("flaky" in text and FLAKY in text for text in told)


async def test_a_test_that_fails_twice_rejects_the_work(tmp_path: Path, runs: list[str]) -> None:
    files = {**SHELL, FLAKY: failing_in(2, 3)}
    async with a_bench(tmp_path, ADD_SUB, files=files) as (bench, [task]):
        result = await work_on(bench, task, NEW, NEW)
        assert result.status == "blocked"  # as the LLM repeats its answer
        assert result.flaky == ()
        assert len(runs) == 3


async def test_a_different_failure_in_the_second_run_rejects_the_work(
    tmp_path: Path, runs: list[str]
) -> None:
    files = {**SHELL, FLAKY: failing_in(2), "other.test.sh": failing_in(3)}
    async with a_bench(tmp_path, ADD_SUB, files=files) as (bench, [task]):
        assert (await work_on(bench, task, NEW, NEW)).status == "blocked"


@pytest.mark.parametrize("name", ["sub.test.sh", "calc.test.sh"])
async def test_a_new_or_changed_test_is_not_repeated(
    tmp_path: Path, runs: list[str], name: str
) -> None:
    test = {"sub.test.sh": TEST_SUB} | {name: SHELL.get(name, TEST_SUB) + failing_in(2)}
    files = {**SHELL, FLAKY: failing_in(2)}
    planned = ADD_SUB.model_copy(update={"may": "change-tests"})
    async with a_bench(tmp_path, planned, files=files) as (bench, [task]):
        work = edits({"calc.sh": SUB, **test})
        assert (await work_on(bench, task, work, work)).status == "blocked"
        assert len(runs) == 2


async def test_a_named_test_is_not_repeated(tmp_path: Path, runs: list[str]) -> None:
    planned = PlannedTask(key="sub", title="Subtract", tests=(FLAKY,))
    files = {**SHELL, FLAKY: failing_in(2)}
    async with a_bench(tmp_path, planned, files=files) as (bench, [task]):
        work = edits({"calc.sh": SUB})
        assert (await work_on(bench, task, work, work)).status == "blocked"
        assert len(runs) == 2


async def test_many_failed_tests_are_not_repeated(tmp_path: Path, runs: list[str]) -> None:
    names = [f"flaky{n}.test.sh" for n in range(MOST_FLAKY + 1)]
    files = {**SHELL, **dict.fromkeys(names, failing_in(2))}
    async with a_bench(tmp_path, ADD_SUB, files=files) as (bench, [task]):
        assert (await work_on(bench, task, NEW, NEW)).status == "blocked"
        assert len(runs) == 2


async def test_work_that_breaks_a_test_fails_in_both_runs(tmp_path: Path, runs: list[str]) -> None:
    async with a_bench(tmp_path, ADD_SUB) as (bench, [task]):
        wrong = edits({"calc.sh": SUB.replace("$1 + $2", "$1 * $2"), "sub.test.sh": TEST_SUB})
        result = await work_on(bench, task, wrong, wrong)
        assert result.status == "blocked"
        assert "calc.test.sh" in (result.question or "")
        assert len(runs) == 3


async def test_a_test_that_fails_once_with_the_work_is_reported_as_flaky(
    tmp_path: Path, runs: list[str]
) -> None:
    async with a_bench(tmp_path, ADD_SUB, files={**SHELL, FLAKY: failing_in(3)}) as (bench, [task]):
        result = await work_on(bench, task, NEW)
        assert result.status == "completed"
        assert [name.partition("::")[0] for name in result.flaky] == [FLAKY]
        assert len(runs) == 5


@pytest.mark.parametrize("again", [False, True])
async def test_a_flaky_test_does_not_fail_a_merge(
    tmp_path: Path, runs: list[str], again: bool
) -> None:
    files = {**SHELL, FLAKY: failing_in(*((8, 9) if again else (8,)))}
    other = PlannedTask(key="other", title="Other")
    async with a_bench(tmp_path, ADD_SUB, other, files=files) as (bench, [sub, two]):
        await bench.base_report("HEAD")
        async with BackendWorkerAgent(project_id=bench.project.id, bench=bench) as worker:
            await worker.apply_file_changes(sub, NEW)
            assert (await bench.verify(sub, await worker.workspace(sub))).accepted
            answer = edits({"other.sh": CALC, "other.test.sh": ". ./other.sh\n"})
            assert (await work_on(bench, two, answer)).status == "completed"
            assert len(runs) == 7
            outcome = await worker.merge(sub)
        assert len(runs) == 9
        if again:
            assert isinstance(outcome, Failed)
            assert FLAKY in outcome.text
        else:
            assert isinstance(outcome, Integrated)
            assert outcome.report is not None
            assert outcome.report.passed
            assert [name.partition("::")[0] for name in outcome.report.flaky] == [FLAKY]
