"""Reading the reports of test programs: JUnit, TAP, Jest's JSON and what `go test -json` prints."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal
from xml.etree import ElementTree

from bae.team.models import TestCase, bounded

NOT_LOADED: Final = "not loaded: "
"""How the message of a case begins that stands for a whole file, because none of its tests ran."""

LONGEST_MESSAGE: Final = 4_000

Outcome = Literal["passed", "failed", "skipped"]


class ReportError(ValueError):
    """A report that cannot be read."""


def read_junit(text: str, root: str) -> tuple[TestCase, ...]:
    """The tests of a JUnit file, as pytest and Vitest write it."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ReportError("it has a document type, which no test program writes")
    try:
        tree = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError, RecursionError) as error:
        raise ReportError(f"it is no JUnit XML: {error}") from error
    return _merged(_junit_case(each) for each in tree.iter("testcase"))


def _junit_case(case: ElementTree.Element) -> TestCase:
    owner, name = case.get("classname", ""), case.get("name", "")
    outcome: Outcome = "passed"
    message = ""
    for child in case:
        if child.tag in ("failure", "error"):
            text = (child.text or "").strip()
            outcome, message = "failed", text or child.get("message", "")
            break
        if child.tag == "skipped":
            outcome, message = "skipped", child.get("message", "")
    file = case.get("file")  # pytest's
    # The whole file: pytest leaves the class out, Vitest repeats the name.
    if not owner or (owner == name and file is None):
        path = owner or file or name.replace(".", "/") + ".py"
        if outcome == "failed":
            message = NOT_LOADED + message
        return _case(path, outcome, message)
    parts = [owner, name]
    if file:
        module = os.path.splitext(file)[0].replace(os.sep, ".")
        inside = owner.removeprefix(module).strip(".") if owner.startswith(module) else owner
        parts = [file, *filter(None, inside.split(".")), name]
    return _case("::".join(parts), outcome, message)


def read_tap(text: str, root: str) -> tuple[TestCase, ...]:
    """The tests of TAP with nested tests, as Node writes it. A group counts as its tests do."""
    cases: list[TestCase] = []
    names: list[str] = []
    """Of the groups around a line, by its depth."""
    ended: list[tuple[int, str, Outcome, list[str]]] = []
    """Where the last test ended: depth, name, outcome, and the lines that say more."""
    inner: set[int] = set()
    """Depths at which tests ended since the group above them began."""

    def close() -> None:
        while ended:
            depth, name, outcome, lines = ended.pop()
            is_group = depth + 1 in inner
            inner.difference_update({each for each in inner if each > depth})
            inner.add(depth)
            # A group only repeats its tests; where it fails by itself, as in a hook, it is one.
            own = outcome == "failed" and "subtestsFailed" not in "\n".join(lines)
            if is_group and not own:
                continue
            message = _yaml_text(lines) if outcome == "failed" else ""
            if os.path.isabs(name) and depth == 0:
                # Node reports a file that has no tests as one test with the name of the file.
                if outcome == "failed":
                    path = os.path.relpath(name, root)
                    cases.append(_case(path, "failed", NOT_LOADED + message))
                continue
            if any("type: 'suite'" in line for line in lines) and not own:
                continue  # a group without tests
            cases.append(_case("::".join([*names[:depth], name]), outcome, message))

    details = False
    for line in text.splitlines():
        if details:
            if line.strip() == "...":
                details = False
            else:
                ended[-1][3].append(line)
            continue
        if line.strip() == "---" and ended:
            details = True
        elif found := _SUBTEST.fullmatch(line):
            close()
            depth = len(found[1]) // 4
            del names[depth:]
            names += [""] * (depth - len(names)) + [_unescaped(found[2])]
        elif found := _RESULT.fullmatch(line):
            close()
            name, directive = _directive(found[3])
            outcome: Outcome = "passed" if found[2] == "ok" else "failed"
            if directive in ("SKIP", "TODO"):
                outcome = "skipped"
            ended.append((len(found[1]) // 4, name, outcome, []))
    close()
    if _BAIL.search(text):
        raise ReportError("the run was given up: Bail out!")
    if not _PLAN.search(text):
        raise ReportError("it ends before its plan: the program did not end by itself")
    return numbered(cases)


_SUBTEST: Final = re.compile(r"( *)# Subtest: (.*)")
_RESULT: Final = re.compile(r"( *)(ok|not ok) \d+ - (.*)")
_PLAN: Final = re.compile(r"^1\.\.\d+", re.MULTILINE)
_BAIL: Final = re.compile(r"^Bail out!", re.MULTILINE)
_DIRECTIVE: Final = re.compile(r"(?<!\\) # (SKIP|TODO)\b.*$", re.IGNORECASE)


def _directive(name: str) -> tuple[str, str]:
    found = _DIRECTIVE.search(name)
    if found is None:
        return _unescaped(name), ""
    return _unescaped(name[: found.start()]), found[1].upper()


def _unescaped(name: str) -> str:
    return re.sub(r"\\([#\\])", r"\1", name)


def _yaml_text(lines: list[str]) -> str:
    """The error, where it is and its stack: what helps to correct it."""
    dropped = re.compile(r"\s*(duration_ms|type|failureType|code|name|signal|exitCode):")
    return "\n".join(line.strip() for line in lines if not dropped.match(line))


def read_jest(text: str, root: str) -> tuple[TestCase, ...]:
    """The tests of Jest's JSON."""
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
                cases.append(_case("::".join(parts), outcome, message))
            if not tests and file["status"] == "failed":
                cases.append(_case(path, "failed", NOT_LOADED + file.get("message", "")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ReportError(f"it is not the JSON of Jest: {error!r}") from error
    return numbered(cases)


_JEST: Final[Mapping[str, Outcome]] = {"passed": "passed", "failed": "failed"}


def read_go(text: str, root: str) -> tuple[TestCase, ...]:
    """The tests in the output of `go test -json`."""
    outcomes: dict[tuple[str, str], Outcome] = {}
    said: dict[tuple[str, str], list[str]] = {}
    for event in _go_events(text):
        package = str(event.get("Package") or event.get("ImportPath", "")).split(" ")[0]
        key = package, str(event.get("Test", ""))
        if "Output" in event:
            said.setdefault(key, []).append(str(event["Output"]))
        outcome = _GO.get(str(event.get("Action")))
        if outcome is not None:
            outcomes[key] = outcome
    cases: list[TestCase] = []
    failed = {package for (package, test), out in outcomes.items() if test and out == "failed"}
    for (package, test), outcome in outcomes.items():
        message = "".join(said.get((package, test), ())) if outcome == "failed" else ""
        if test:
            cases.append(_case(f"{package}::{test}", outcome, message))
        elif outcome == "failed" and package not in failed:  # it was not built, or exited
            cases.append(_case(package, "failed", NOT_LOADED + message))
    return tuple(cases)


_GO: Final[Mapping[str, Outcome]] = {"pass": "passed", "fail": "failed", "skip": "skipped"}


def go_output(text: str) -> str:
    """The output of `go test -json` as `go test` would have printed it."""
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        events = list(_go_events(line))
        lines.append(str(events[0].get("Output", "")) if events else line)
    return "".join(lines)


def _go_events(text: str) -> Iterable[dict[str, Any]]:
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                event: Any = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if "Action" in event:
                yield event


def _case(id: str, outcome: Outcome, message: str) -> TestCase:
    return TestCase(id=id, outcome=outcome, message=bounded(message, LONGEST_MESSAGE))


_ORDER: Final = ("failed", "passed", "skipped")


def _merged(cases: Iterable[TestCase]) -> tuple[TestCase, ...]:
    """One case a test: pytest writes one more where a test fails and then its fixture too."""
    found: dict[str, TestCase] = {}
    for case in cases:
        before = found.get(case.id)
        if before is None or _ORDER.index(case.outcome) < _ORDER.index(before.outcome):
            found[case.id] = case
    return tuple(found.values())


def numbered(cases: Sequence[TestCase]) -> tuple[TestCase, ...]:
    """Cases with ids of their own, where several tests have one name."""
    seen: dict[str, int] = {}
    named: list[TestCase] = []
    for case in cases:
        seen[case.id] = number = seen.get(case.id, 0) + 1
        id = case.id if number == 1 else f"{case.id} ({number})"
        named.append(case.model_copy(update={"id": id}))
    return tuple(named)


Reader = Callable[[str, str], tuple[TestCase, ...]]
"""Reads a report, given the directory that the tests ran in."""
