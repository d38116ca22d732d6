"""Flaky tests: a test that fails with the work of a task, although the task does not touch it, has
a second chance in a second run of all tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from bae.team.models import TestCase, TestReport
from bae.team.test_order import is_selected

MOST_FLAKY: Final = 3
"""How many failed tests have a second chance at most: more are hardly an accident."""


async def run_again(
    report: TestReport,
    before: TestReport,
    run: Callable[[], Awaitable[TestReport]],
    *,
    tests: Sequence[str],
    changed: Collection[str],
) -> TestReport:
    """The report of a second run, where all tests pass in it that failed in the first and may be
    `flaky`; the first report otherwise. `before` is the report without the work; `tests` are those
    that the task names, and `changed` the files that it changes."""
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
    """The failed tests that may be flaky: each passed before, the task does not name it and does
    not change its file. There are none where anything else failed, or more than a few."""
    own = report.for_task(tests, before)
    failed = own.of("failed")
    passed = {case.id for case in before.of("passed")}

    def is_untouched(case: TestCase) -> bool:
        is_known = case.id in passed and case.id.partition("::")[0] not in changed
        return is_known and not is_selected(case, tests)

    if own.problem or own.exit_code is None or len(failed) > MOST_FLAKY:
        return ()
    return tuple(case.id for case in failed) if all(map(is_untouched, failed)) else ()
