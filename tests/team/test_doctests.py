"""Doctests in code: the code stays code, which a task may change."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")

from bae.team.models import PlannedTask, TestCase, TestReport
from bae.team.test_edits import is_test_file
from team_parts import PYTEST, a_bench, edits
from team_scripts import TeamScript, run_team

CODE = '''def join(items):
    """Join words.

    >>> join(["a", "b"])
    'a and b'
    """
    return " and ".join(items)
'''
CHANGED = CODE.replace("join(items):", "join(items, word='and'):").replace(
    '" and ".join', 'f" {word} ".join'
)
TEST = "from words import join\n\n\ndef test_join():\n    assert join('ab') == 'a and b'\n"
OTHER = "\n\ndef test_or():\n    assert join('ab', 'or') == 'a or b'\n"
FILES = {
    "pytest.ini": "[pytest]\naddopts = --doctest-modules\n",
    "words.py": CODE,
    "tests/test_join.py": TEST,
    "conftest.py": "",
}


@pytest.mark.parametrize(
    ("id", "is_test"),
    [
        ("src/shop/price.py::shop.price.total", False),
        ("src/shop/price.py::shop.price", False),
        ("price.py::price", False),
        ("checks/price.py::test_total[1.5]", True),
        ("checks/price.py::Total::test_total", True),
        ("checks/price.py", True),
        ("price.js::price.total", True),
    ],
)
def test_a_file_with_doctests_alone_is_no_test_file(id: str, is_test: bool) -> None:
    cases = (TestCase(id=id, outcome="passed"),)
    report = TestReport(command=PYTEST, exit_code=0, cases=cases)
    assert is_test_file(id.partition("::")[0], report) == is_test


@pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")
async def test_a_task_may_change_code_that_has_doctests(tmp_path: Path) -> None:
    answer = edits({"words.py": CHANGED, "tests/test_join.py": TEST + OTHER})
    wanted = PlannedTask(key="word", title="Join with any word")
    async with a_bench(tmp_path, wanted, files=FILES, command=PYTEST) as (bench, [task]):
        lm = TeamScript({task.key: answer})
        summary = await run_team(bench.project, bench.store, lm)
        attempts = await bench.store.attempts(task.id)
    assert [str(each.status) for each in summary.tasks] == ["completed"], attempts
    assert len(lm.asked) == 1
