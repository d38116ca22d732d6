"""Tells failures of the machine and its settings from failures of the code under test. The evidence
is in exit codes, signals, limits and printed output. One table lists the known signs."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from bae.team.models import TestReport
from bae.team.sandbox import Ran

Kind = Literal["killed", "space", "network", "program", "time", "setup", "base"]
"""The kind of a failure. `base` means that the tests cannot run at the commit that work starts
from."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A reason, outside of the code under test, why a command failed."""

    kind: Kind
    text: str
    """The reason, as a sentence without a capital letter and a period."""
    fix: str
    """What a person can do, in the same form."""

    def __str__(self) -> str:
        return f"{self.text[0].upper()}{self.text[1:]}. {self.fix[0].upper()}{self.fix[1:]}."


@dataclass(frozen=True, slots=True)
class _Sign:
    """The evidence for a cause."""

    cause: Cause
    codes: tuple[int, ...] = ()
    """Exit codes that show the cause. They are compared only if no test was reported."""
    printed: re.Pattern[str] | None = None
    """A pattern for the output. Tests may print anything, so the output is searched only if no
    test was reported."""
    in_tests: re.Pattern[str] | None = None
    """A pattern for the messages of failed tests."""


KILLED: Final = Cause(
    "killed",
    "the test process was killed from outside, as by the system when memory runs out",
    "free memory, run fewer agents at a time, or find what kills it, and try again",
)
SPACE: Final = Cause(
    "space",
    "there is no space left on the disk, or a file grew beyond the limit of the sandbox",
    "free some space, or have the tests write less, and try again",
)
PROGRAM: Final = Cause(
    "program",
    "the test program was not found where the tests run",
    "install it into the environment that the test command names, or name another command: bae "
    "team init --test COMMAND",
)
NETWORK: Final = Cause(
    "network",
    "a program needed the network, which it could not reach",
    "check the network for setup commands. Tests have no network, so have setup install what tests "
    "need: bae team init --setup COMMAND",
)
TIME: Final = Cause(
    "time",
    "the tests did not end in time, and take nearly as long without any change",
    "have the test command run fewer or faster tests, as pytest -m 'not slow', or run fewer agents",
)
SETUP: Final = Cause(
    "setup",
    "the setup command failed",
    "run it in a fresh clone, correct it with bae team init --setup COMMAND, and try again",
)
_SIGNS: Final = (
    _Sign(KILLED, codes=(137,)),
    _Sign(
        SPACE,
        codes=(153,),  # SIGXFSZ
        printed=re.compile(r"No space left on device|ENOSPC|Disk quota exceeded|File too large"),
        in_tests=re.compile(
            r"^(?:E\s+)?(?:[\w.]+\.)?OSError: \[Errno (?:27|28|122)\]|ENOSPC: no space",
            re.MULTILINE,
        ),
    ),
    _Sign(
        PROGRAM,
        codes=(126, 127),
        printed=re.compile(
            r"No module named '?(?:pytest|vitest|jest)'?$|could not determine executable to run"
            r"|error: Failed to spawn: `",
            re.MULTILINE,
        ),
    ),
    _Sign(
        NETWORK,
        printed=re.compile(
            r"Temporary failure in name resolution|Name or service not known|[Nn]etwork is "
            r"unreachable|[Cc]ould not resolve host|EAI_AGAIN|ENOTFOUND|ENETUNREACH|dns error|"
            r"No route to host|nodename nor servname"
        ),
    ),
)
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def find_cause(report: TestReport, before: TestReport | None = None) -> Cause | None:
    """Return the failure of the environment that a test report shows. None if the tests passed, or
    if the code under test is responsible. `before` is the test report of the commit that the work
    starts from, if there is one."""
    if report.ended_by == "killed":
        return KILLED
    if report.ended_by == "timeout":
        slow = before is not None and before.seconds * 2 >= report.seconds
        return TIME if slow else None
    if report.exit_code in (0, None):
        return None
    if not report.cases:
        return _match_signs(report.exit_code, report.output)
    failed = [case.message for case in report.of("failed")]
    for sign in _SIGNS:
        if sign.in_tests and any(map(sign.in_tests.search, failed)):
            return sign.cause
    return None


def find_setup_cause(ran: Ran) -> Cause:
    """Return the reason why a setup command failed."""
    if ran.ended_by == "killed":
        return KILLED
    cause = _match_signs(ran.exit_code, ran.output)
    if cause is None or cause is PROGRAM:
        return SETUP
    return Cause(cause.kind, f"{SETUP.text}: {cause.text}", cause.fix)


def find_error_cause(error: BaseException) -> Cause | None:
    """Return the failure of the environment that caused an error, or None if there is no such
    failure."""
    from bae.team.workspaces import SetupError

    for cause in _list_causes(error):
        if isinstance(cause, SetupError):
            return cause.reason
        if isinstance(cause, OSError) and cause.errno in _NO_SPACE:
            return SPACE
    return None


def _match_signs(exit_code: int | None, output: str) -> Cause | None:
    for sign in _SIGNS:
        if exit_code in sign.codes or (sign.printed and sign.printed.search(output)):
            return sign.cause
    return None


def _list_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
