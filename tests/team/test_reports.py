"""What bae reads from the reports of test programs. The reports are recorded ones of Vitest 4,
Jest 30 and Go 1.27; pytest and Node run in `test_test_runs.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bae.team.models import TestCase, strip_escapes
from bae.team.reports import (
    NOT_LOADED,
    ReportError,
    go_output,
    read_any_junit,
    read_go,
    read_jest,
    read_junit,
    read_node,
)

REPORTS = Path(__file__).with_name("reports")


def outcomes(cases: tuple[TestCase, ...]) -> dict[str, str]:
    return {case.id: case.outcome for case in cases}


def test_a_report_of_vitest_is_parsed() -> None:
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


def test_a_report_of_jest_is_parsed() -> None:
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


def test_a_report_of_go_is_parsed() -> None:
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
def test_an_incomplete_report_is_refused(read: object, text: str) -> None:
    with pytest.raises(ReportError):
        read(text, "/project")  # pyright: ignore


def test_junit_files_of_any_program_are_parsed() -> None:
    mocha = """<testsuites><testsuite name="Root Suite" file="/project/test/a.js">
      <testcase name="group adds" classname="adds"/></testsuite><testsuite name="group">
      <testcase name="group fails" classname="fails"><failure message="1 != 2">at a.js</failure>
      </testcase></testsuite></testsuites>"""
    ctest = """<testsuite name="Linux"><testcase name="one" classname="one" status="run"/>
      <testcase name="two" classname="two" status="fail"><failure message=""/>
      <system-out>two printed</system-out></testcase>
      <testcase name="three" classname="three" status="disabled"><disabled/></testcase>
      </testsuite>"""
    gotestsum = """<testsuites><testsuite name="example.com/a">
      <testcase classname="example.com/a" name="TestA"><skipped message="later"/></testcase>
      </testsuite></testsuites>"""
    phpunit = """<testsuites><testsuite name="ATest" file="/project/tests/ATest.php">
      <testcase name="testA" class="ATest" classname="ATest" file="/project/tests/ATest.php"/>
      <testcase name="testA" class="ATest" classname="ATest" file="/project/tests/ATest.php"/>
      </testsuite></testsuites>"""
    cases = read_any_junit([mocha, ctest, gotestsum, phpunit], "/project")
    assert outcomes(cases) == {
        "test/a.js::group adds": "passed",
        "group fails": "failed",
        "one": "passed",
        "two": "failed",
        "three": "skipped",
        "example.com/a::TestA": "skipped",
        "tests/ATest.php::ATest::testA": "passed",
        "tests/ATest.php::ATest::testA (2)": "passed",
    }
    assert [case.message for case in cases if case.outcome == "failed"] == [
        "at a.js",
        "two printed",
    ]


def test_messages_have_no_escape_codes() -> None:
    text = (
        '<testsuite><testcase classname="a" name="b"><failure>#x1B[31mred#x1B[0m</failure>'
        "</testcase></testsuite>"
    )
    [case] = read_junit(text, "/project")
    assert case.message == "red"
    line = {"Action": "output", "Package": "a", "Test": "T", "Output": "\x1b[1;31mred\x1b[m\r\n"}
    events = [line, {"Action": "fail", "Package": "a", "Test": "T"}]
    [case] = read_go("\n".join(map(json.dumps, events)), "/project")
    assert case.message == "red\n"
    assert strip_escapes("\x1b]0;title\x07a\x1b[2K\x1b(B\tb\x08\n") == "a\tb\n"
