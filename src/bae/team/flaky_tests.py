"""Flaky tests: if a test fails that a task does not touch, all tests run a second time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from bae.team.models import TestCase, TestReport
from bae.team.test_order import is_selected

MOST_FLAKY: Final = 3
"""How many failed tests may be flaky. More are hardly an accident."""


async def run_again(
    report: TestReport,
    before: TestReport,
    run: Callable[[], Awaitable[TestReport]],
    *,
    tests: Sequence[str],
    changed: Collection[str],
) -> TestReport:
    """Run the tests a second time if the failed tests may be flaky. If these pass then, returns the
    second report, which names them as `flaky`; otherwise the first report. `before` is the report
    without the work, `tests` are the tests that the task names, and `changed` the files that it
    changes."""
    doubtful = find_doubtful(report, before, tests=tests, changed=changed)
    if not doubtful:
        return report
    second = await run()
    passed = {case.id for case in second.of("passed")}
    if not second.for_task(tests, before).passed or not passed.issuperset(doubtful):
        return report
    return second.model_copy(update={"flaky": doubtful})


def find_doubtful(
    report: TestReport, before: TestReport, *, tests: Sequence[str], changed: Collection[str]
) -> tuple[str, ...]:
    """The failed tests that may be flaky: each passed before, and the task neither names it nor
    changes its file. Empty if there are other failures, or too many."""
    task_report = report.for_task(tests, before)
    failed = task_report.of("failed")
    passed = {case.id for case in before.of("passed")}

    def is_untouched(case: TestCase) -> bool:
        is_known = case.id in passed and case.id.partition("::")[0] not in changed
        return is_known and not is_selected(case, tests)

    if task_report.problem or task_report.exit_code is None or len(failed) > MOST_FLAKY:
        return ()
    return tuple(case.id for case in failed) if all(map(is_untouched, failed)) else ()
