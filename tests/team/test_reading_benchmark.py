"""A worker finds the files of real tasks: commits of this repository, by their messages."""

from __future__ import annotations

import subprocess

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("tree_sitter_python")

from benchmarks.team_reading import CASES, MOST_CALLS, MOST_TOKENS, measure, read_cases, report

try:
    KNOWN = read_cases(CASES)
except (OSError, subprocess.CalledProcessError):  # a copy without its history
    KNOWN = []
needs_history = pytest.mark.skipif(len(KNOWN) < CASES, reason="needs the history of the repository")


@needs_history
async def test_a_worker_finds_the_files_of_commits_by_their_messages():
    outcomes = await measure([case for case in KNOWN if len(case.changed) == 1][:2])

    for outcome in outcomes:
        assert outcome.missed == []
        assert len(outcome.tokens) <= MOST_CALLS
        assert sum(outcome.tokens) <= MOST_TOKENS


@pytest.mark.slow
@needs_history
async def test_the_reading_tools_find_nine_of_ten_commits_with_half_the_earlier_tokens():
    verdicts = report(await measure(KNOWN)).verdicts

    assert [verdict.line() for verdict in verdicts if not verdict.met] == []
