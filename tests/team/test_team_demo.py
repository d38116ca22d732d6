"""`make team-demo`: a scripted LLM, and everything else real."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("typer")

from git_repositories import git

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_demo_builds_a_program_that_works(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "team" / "demo.py", tmp_path],
        env={**os.environ, "DEMO_SECONDS": "0", "HOME": str(tmp_path), "BAE_LM": "none"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "longest  largest\n\nthe  #################### 5\n" in done.stdout
    output = done.stdout + done.stderr
    assert "chart  checks tests/test_chart.py" in output
    assert "-> 1 failed, 1 passed" in output  # the chart is wrong at first, and corrected
    assert "correction 1: Nothing tests this work" in output  # a submission is refused
    assert "submitted   longest uses split, and has tests now." in output
    assert "How many of the most frequent words" in output
    assert "- missing-case in textfacts/report.py:14: No test has a text without words" in output
    titles = git(tmp_path / "textfacts", "log", "--format=%s").splitlines()
    assert titles[0] == "Print the report"
    assert {*titles} == {
        *("Start", "Split a text into words", "Draw a bar chart", "Count words"),
        *("Find the longest word", "Print the report"),
    }
    assert len(titles) == 6  # one commit a task
    assert git(tmp_path / "textfacts", "status", "--porcelain", "--untracked-files=no") == ""
