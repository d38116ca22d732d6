"""What a worker promises: a task becomes merged, tested code, or a question."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bae.team.models import TaskStatus
from bae.team.worker import BackendWorkerAgent
from bae.team.worker_graph import Answer
from bae.testing import ScriptedLM
from git_repositories import git, left_over
from team_parts import SUB, TEST_SUB, a_bench, edits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")


@pytest.fixture(autouse=True)
def no_configuration_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


async def test_a_task_becomes_one_merged_and_tested_commit(tmp_path: Path) -> None:
    lm = ScriptedLM({Answer: [edits({"calc.py": SUB, "tests/test_sub.py": TEST_SUB})]})
    async with a_bench(tmp_path) as (bench, [task]):
        worker = BackendWorkerAgent(project_id=bench.project.id, bench=bench, lm=lm)
        result = await worker.execute_task(task)
        assert (result.status, result.error, result.question) == ("completed", None, None)
        assert result.files == ("calc.py", "tests/test_sub.py")
        assert result.commit == await bench.integration.head()
        assert result.report is not None
        assert len(result.report.of("passed")) == 2
        assert (await bench.store.task(task.id)).status is TaskStatus.PENDING
        kinds = [each.event.type for each in await bench.store.events(bench.project.id)]
    root = Path(bench.project.root)
    assert git(root, "log", "--format=%s", "bae/team") == "Subtract\nfirst"
    assert {"activity_update", "commit_created", "test_result"} == set(kinds)
    assert left_over(root) == []
