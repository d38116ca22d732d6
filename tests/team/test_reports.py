"""What bae reads from the reports of test programs. The reports are recorded ones of Vitest 4,
Jest 30 and Go 1.27; pytest and Node run in `test_test_runs.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from bae.team.models import TestCase
from bae.team.reports import (
    NOT_LOADED,
    ReportError,
    go_output,
    read_go,
    read_jest,
    read_junit,
    read_node,
)

REPORTS = Path(__file__).with_name("reports")


def outcomes(cases: tuple[TestCase, ...]) -> dict[str, str]:
    return {case.id: case.outcome for case in cases}


def test_vitest() -> None:
    cases = read_junit((REPORTS / "vitest.xml").read_text(), "/project")
    assert outcomes(cases) == {
        "a.test.js::adds": "passed",
        "a.test.js::group > fails": "failed",
        "a.test.js::group > skips": "skipped",
        "a.test.js::group > todo": "skipped",
        "a.test.js::group > inner > deep": "passed",
        "b.test.js": "failed",
        "c.test.js": "failed",
    }
    assert "expected 1 to be 2" in cases[1].message
    assert cases[5].message.startswith(f"{NOT_LOADED}Error: load")


def test_jest() -> None:
    cases = read_jest((REPORTS / "jest.json").read_text(), "/project")
    assert outcomes(cases) == {
        "a.test.js::adds": "passed",
        "a.test.js::group::fails": "failed",
        "a.test.js::group::skips": "skipped",
        "a.test.js::group::todo": "skipped",
        "a.test.js::group::inner::deep": "passed",
        "b.test.js": "failed",
        "c.test.js": "failed",
    }
    assert "Expected: 2" in cases[1].message
    assert cases[-1].message.startswith(NOT_LOADED)


def test_go() -> None:
    text = (REPORTS / "go.jsonl").read_text()
    cases = read_go(text, "/project")
    assert outcomes(cases) == {
        "example.com/m/broken": "failed",
        "example.com/m::TestAdd": "passed",
        "example.com/m::TestBad/one": "passed",
        "example.com/m::TestBad/two": "failed",
        "example.com/m::TestBad": "failed",
        "example.com/m::TestSkip": "skipped",
    }
    assert "undefined: undefined" in cases[0].message
    assert "--- FAIL: TestBad/two" in go_output(text)
    assert "{" not in go_output(text)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (read_junit, ""),
        (read_junit, "<testsuites><testcase"),
        (read_junit, '<!DOCTYPE x [<!ENTITY a "aaaa">]><x>&a;</x>'),
        (read_jest, "[]"),
        (read_jest, '{"testResults": [{}]}'),
        (read_node, ""),
        (read_node, '{"file": "/project/a.test.js"}\n{}\n'),
        (read_node, "{}\n{"),
    ],
)
def test_half_a_report_is_none(read: object, text: str) -> None:
    with pytest.raises(ReportError):
        read(text, "/project")  # pyright: ignore
