"""Detects flaky tests. If the only failed tests have nothing to do with a task, all tests run a
second time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from bae.team.models import TestCase, TestReport
from bae.team.test_order import is_selected

MOST_FLAKY: Final = 3
"""If more tests than this fail, none is taken for flaky."""


async def run_again(
    report: TestReport,
    before: TestReport,
    run: Callable[[], Awaitable[TestReport]],
    *,
    tests: Sequence[str],
    changed: Collection[str],
) -> TestReport:
    """Run the tests a second time if the failed tests may be flaky. If the failed tests then pass,
    return the second report, which lists these tests as `flaky`. Otherwise return the first report.
    `before` is the test report without the task's work. `tests` are the tests that the task must
    make pass. `changed` are the files that the task changes."""
    doubtful = find_doubtful(report, before, tests=tests, changed=changed)
    if not doubtful:
        return report
    second_report = await run()
    passed = {case.id for case in second_report.of("passed")}
    if not second_report.for_task(tests, before).passed or not passed.issuperset(doubtful):
        return report
    return second_report.model_copy(update={"flaky": doubtful})


def find_doubtful(
    report: TestReport, before: TestReport, *, tests: Sequence[str], changed: Collection[str]
) -> tuple[str, ...]:
    """Return the failed tests if all of them may be flaky, otherwise an empty tuple. A failed test
    may be flaky if it passed before, the task does not name the test, and the task does not change
    the test's file. The arguments are as in `run_again`."""
    task_report = report.for_task(tests, before)
    failed = task_report.of("failed")
    passed = {case.id for case in before.of("passed")}

    def is_untouched(case: TestCase) -> bool:
        is_known = case.id in passed and case.id.partition("::")[0] not in changed
        return is_known and not is_selected(case, tests)

    if task_report.problem or task_report.exit_code is None or len(failed) > MOST_FLAKY:
        return ()
    return tuple(case.id for case in failed) if all(map(is_untouched, failed)) else ()
