"""For tests of journals: lines, runs, expected refusals, and programs that write a journal from
another process."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bae import JournalError
from bae.journal import Journal, Line, RunInfo, StoredRun

SHAPE = '{"nodes": []}'


def line(n, data='{"x": 1}', *, kind="StepStarted", at=1000.0, path="", step=0):
    return Line(n, kind, at + n, path, step, data)


def lines(first, end, **fields):
    return [line(n, **fields) for n in range(first, end)]


def new_run(run_id, lines, *, graph="Trip", shape=SHAPE, **info):
    """A run that is to be created, with these lines."""
    first, last = (lines[0].at, lines[-1].at) if lines else (1000.0, 1000.0)
    entry = RunInfo(run_id, graph, info.pop("status", "running"), first, last, "hash", **info)
    return StoredRun(entry, shape, tuple(lines), {})


async def begin_run(journal: Journal, run_id="run", count=1, *, graph="Trip", **fields):
    """A new run with so many lines, and the claim on it."""
    claim = await journal.create(new_run(run_id, lines(0, count, **fields), graph=graph))
    assert claim is not None
    return claim


async def end_run(journal: Journal, run_id="run", count=1, *, status="ended", **fields):
    """A run with so many lines that is over."""
    claim = await begin_run(journal, run_id, count, **fields)
    await journal.release(claim, status, [])


async def with_line(journal: Journal, run_id: str, *changed: Line, erase: bool = False) -> None:
    """Replace lines of a run by others with the same numbers."""
    run = await journal.read(run_id)
    others = {each.n: each for each in changed}
    new = tuple(others.get(each.n, each) for each in run.lines)
    await journal.replace([replace(run, lines=new)], erase=erase)


def execute(path: Path, *statements: str) -> list[Any]:
    """Do something with a file behind the back of its journal; the rows of the last statement."""
    rows: list[Any] = []
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            rows = connection.execute(statement).fetchall()
    return rows


@contextmanager
def expect_refusal(code: str) -> Iterator[pytest.ExceptionInfo[JournalError]]:
    """Expect that the block is refused with this code and a fix."""
    with pytest.raises(JournalError) as info:
        yield info
    assert info.value.code == code, info.value
    assert info.value.fix


async def numbers(journal: Journal, run_id="run"):
    return [each.n for each in (await journal.read(run_id)).lines]


async def ids(journal: Journal, **wanted):
    return [run.run_id for run in await journal.runs(**wanted)]


def program(text: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """A Python program of its own, which finds bae and the modules of the tests."""
    tests = Path(__file__).parent
    path = os.pathsep.join(
        [str(tests.parent / "src"), str(tests), os.environ.get("PYTHONPATH", "")]
    )
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", text, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def run_program(text: str, *arguments: object) -> str:
    """Run a program that must succeed with an empty stderr, and return its stdout."""
    with program(text, *arguments) as started:
        out, complaints = started.communicate(timeout=60)
    assert (started.returncode, complaints) == (0, "")
    return out.strip()
