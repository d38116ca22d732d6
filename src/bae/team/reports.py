"""Functions that read the reports of test programs: JUnit XML of pytest, Vitest and others, and
JSON of Node, Jest and Go."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal
from xml.etree import ElementTree

from bae.team.models import TestCase, bounded, strip_escapes

NOT_LOADED: Final = "not loaded: "
"""The start of a message. If a file's tests could not run, the report has one case for the file,
and the message of this case starts with this text."""

LONGEST_MESSAGE: Final = 4_000

TestOutcome = Literal["passed", "failed", "skipped"]


def list_names(names: Sequence[str]) -> str:
    """Return up to twenty names in one line, and the number of the other names."""
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(names[:20]) + more


class ReportError(ValueError):
    """A report cannot be read."""


def read_junit(text: str, root: str) -> tuple[TestCase, ...]:
    """Read the tests in a JUnit file of pytest or Vitest."""
    return _merge_cases(
        _read_junit_case(element) for element in _parse_junit(text).iter("testcase")
    )


def _parse_junit(text: str) -> ElementTree.Element:
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ReportError("it has a document type, which no test program writes")
    try:
        return ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError, RecursionError) as error:
        raise ReportError(f"it is no JUnit XML: {error}") from error


def read_any_junit(texts: Iterable[str], root: str) -> tuple[TestCase, ...]:
    """Read the tests in the JUnit files of any program, such as Mocha, CTest, gotestsum or PHPUnit.
    The id of a test has its file, class and name, as far as the program writes them."""
    cases: list[TestCase] = []
    for text in texts:
        stack: list[tuple[ElementTree.Element, str]] = [(_parse_junit(text), "")]
        while stack:
            element, file = stack.pop()
            file = element.get("file") or element.get("filepath") or file
            if element.tag == "testcase":
                cases.append(_read_any_junit_case(element, file, root))
            else:
                stack += ((child, file) for child in reversed(element))
    return number_cases(cases)


def _read_any_junit_case(case: ElementTree.Element, file: str, root: str) -> TestCase:
    if os.path.isabs(file):
        file = os.path.relpath(file, root)
    owner, name = case.get("classname", ""), case.get("name", "")
    module = os.path.splitext(file)[0].replace(os.sep, ".")
    if module and (owner == module or owner.startswith(f"{module}.")):
        owner = owner[len(module) :].strip(".")
    if owner == file or name.endswith(owner):  # Mocha: the class repeats the end of the name
        owner = ""
    outcome, message = _read_outcome(case)
    id = "::".join(filter(None, (file, owner, name))) or "a test without a name"
    return _make_case(id, outcome, message)


_JUNIT_STATUS: Final[Mapping[str, TestOutcome]] = {
    **dict.fromkeys(("fail", "failed", "error"), "failed"),
    **dict.fromkeys(("notrun", "disabled", "skipped", "pending"), "skipped"),
}


def _read_outcome(case: ElementTree.Element) -> tuple[TestOutcome, str]:
    outcome, message = _JUNIT_STATUS.get(case.get("status", "").lower(), "passed"), ""
    printed: list[str] = []
    for child in case:
        if child.tag in ("failure", "error"):
            outcome = "failed"
            message = (child.text or "").strip() or child.get("message", "")
        elif child.tag in ("skipped", "disabled") and outcome != "failed":
            outcome, message = "skipped", child.get("message", "")
        elif child.tag in ("system-out", "system-err"):
            printed.append((child.text or "").strip())
    if outcome == "failed" and not message:
        message = "\n".join(filter(None, printed))
    return outcome, message


def _read_junit_case(case: ElementTree.Element) -> TestCase:
    owner, name = case.get("classname", ""), case.get("name", "")
    outcome, message = _read_outcome(case)
    file = case.get("file")  # pytest writes it
    # A case without a class (pytest), or with the class as its name (Vitest), is for a file.
    if not owner or (owner == name and file is None):
        path = owner or file or name.replace(".", "/") + ".py"
        if outcome == "failed":
            message = NOT_LOADED + message
        return _make_case(path, outcome, message)
    parts = [owner, name]
    if file:
        module = os.path.splitext(file)[0].replace(os.sep, ".")
        inside = owner.removeprefix(module).strip(".") if owner.startswith(module) else owner
        parts = [file, *filter(None, inside.split(".")), name]
    return _make_case("::".join(parts), outcome, message)


def read_node(text: str, root: str) -> tuple[TestCase, ...]:
    """Read the tests in the output of `guards/reporter.mjs`. In this output, a group comes after
    its tests. A group is a case only if it failed for another reason than a failed test in it."""
    tests: list[tuple[int, list[str], TestCase]] = []
    """Each test with its depth, and the names of its groups so far."""
    is_complete = False
    try:
        for line in text.splitlines():
            test: dict[str, Any] = json.loads(line)
            is_complete = not test
            if not is_complete:
                _add_node_test(tests, test, root)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ReportError(f"it is not a report of Node's tests: {error!r}") from error
    if not is_complete:
        raise ReportError("it is incomplete: the program did not end by itself")
    renamed = (case.model_copy(update={"id": "::".join([case.id, *n])}) for _, n, case in tests)
    return number_cases(list(renamed))


def _add_node_test(
    tests: list[tuple[int, list[str], TestCase]], test: dict[str, Any], root: str
) -> None:
    file, name, outcome = test["file"], test["name"], test["outcome"]
    is_group = test["is_group"]
    for at in range(len(tests) - 1, -1, -1):
        depth, names, case = tests[at]
        if depth <= test["depth"]:
            break
        is_group = True
        tests[at] = test["depth"], [name, *names], case
    is_file = os.path.join(root, name) == file  # a file without tests, or a file that failed to run
    fails = outcome == "failed" and not test["repeats"]
    if fails or not (is_group or is_file):
        message = test["message"]
        if is_file:
            message = f"{NOT_LOADED}{message}\n{test['printed']}"
        case = _make_case(os.path.relpath(file, root), outcome, message)
        tests.append((test["depth"], [] if is_file else [name], case))


def read_jest(text: str, root: str) -> tuple[TestCase, ...]:
    """Read the tests in Jest's JSON."""
    try:
        files: list[dict[str, Any]] = json.loads(text)["testResults"]
        cases: list[TestCase] = []
        for file in files:
            path = os.path.relpath(file["name"], root)
            tests: list[dict[str, Any]] = file["assertionResults"]
            for test in tests:
                outcome = _JEST.get(test["status"], "skipped")
                message = "\n".join(test.get("failureMessages") or ())
                parts = [path, *test["ancestorTitles"], test["title"]]
                cases.append(_make_case("::".join(parts), outcome, message))
            if not tests and file["status"] == "failed":
                cases.append(_make_case(path, "failed", NOT_LOADED + file.get("message", "")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ReportError(f"it is not the JSON of Jest: {error!r}") from error
    return number_cases(cases)


_JEST: Final[Mapping[str, TestOutcome]] = {"passed": "passed", "failed": "failed"}


def read_go(text: str, root: str) -> tuple[TestCase, ...]:
    """Read the tests in the output of `go test -json`."""
    outcomes: dict[tuple[str, str], TestOutcome] = {}
    output: dict[tuple[str, str], list[str]] = {}
    for event in _read_go_events(text):
        package = str(event.get("Package") or event.get("ImportPath", "")).split(" ")[0]
        key = package, str(event.get("Test", ""))
        if "Output" in event:
            output.setdefault(key, []).append(str(event["Output"]))
        outcome = _GO.get(str(event.get("Action")))
        if outcome is not None:
            outcomes[key] = outcome
    cases: list[TestCase] = []
    failed = {package for (package, test), out in outcomes.items() if test and out == "failed"}
    for (package, test), outcome in outcomes.items():
        message = "".join(output.get((package, test), ())) if outcome == "failed" else ""
        if test:
            cases.append(_make_case(f"{package}::{test}", outcome, message))
        elif outcome == "failed" and package not in failed:  # it was not built, or it exited early
            cases.append(_make_case(package, "failed", NOT_LOADED + message))
    return tuple(cases)


_GO: Final[Mapping[str, TestOutcome]] = {"pass": "passed", "fail": "failed", "skip": "skipped"}


def go_output(text: str) -> str:
    """Return the plain output of `go test`, from the output of `go test -json`."""
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        events = list(_read_go_events(line))
        lines.append(str(events[0].get("Output", "")) if events else line)
    return "".join(lines)


def _read_go_events(text: str) -> Iterable[dict[str, Any]]:
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                event: Any = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if "Action" in event:
                yield event


def _make_case(id: str, outcome: TestOutcome, message: str) -> TestCase:
    message = bounded(strip_escapes(message), LONGEST_MESSAGE)
    return TestCase(id=strip_escapes(id), outcome=outcome, message=message)


_ORDER: Final = ("failed", "passed", "skipped")


def _merge_cases(cases: Iterable[TestCase]) -> tuple[TestCase, ...]:
    """Keep the worst case of each test. pytest writes a second case if a test and then its fixture
    fail."""
    by_id: dict[str, TestCase] = {}
    for case in cases:
        before = by_id.get(case.id)
        if before is None or _ORDER.index(case.outcome) < _ORDER.index(before.outcome):
            by_id[case.id] = case
    return tuple(by_id.values())


def number_cases(cases: Sequence[TestCase]) -> tuple[TestCase, ...]:
    """Return the cases with unique ids. A number is added to the id of a second test with the same
    name."""
    counts: dict[str, int] = {}
    numbered: list[TestCase] = []
    for case in cases:
        counts[case.id] = number = counts.get(case.id, 0) + 1
        id = case.id if number == 1 else f"{case.id} ({number})"
        numbered.append(case.model_copy(update={"id": id}))
    return tuple(numbered)


Reader = Callable[[str, str], tuple[TestCase, ...]]
"""A function that reads a report. Its arguments are the report and the directory that the tests ran
in."""
