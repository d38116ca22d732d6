"""A process that is stopped for longer than its lease, right after a journal has acknowledged
something to it, begins nothing more once another process has taken over the run."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
from contextlib import closing
from contextvars import ContextVar
from pathlib import Path
from time import time
from typing import Annotated

import pytest

from bae import LM, Dep, Graph, Map, Node
from bae.journal import SQLiteJournal
from bae.journal.sqlite import lease
from bae.testing import ScriptedLM
from bounded import BOUND
from end_node import EndNode
from journal_parts import begin_run, expect_refusal, program

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="stops processes"),
]

EFFECTS: ContextVar[tuple[str, str]] = ContextVar("EFFECTS")
"""Who has effects, and the file they are written to."""


def effect(what: str) -> None:
    who, path = EFFECTS.get()
    with open(path, "a") as file:
        file.write(f"{who} {what}\n")


async def get_town() -> str:
    effect("get_town")
    return "Bern"


async def get_weather(town: Annotated[str, Dep(get_town)]) -> str:
    effect("get_weather")
    return f"rain in {town}"


async def double(item: int) -> int:
    effect(f"double {item}")
    return 2 * item


class Said(EndNode):
    text: str


class Part(Node):
    item: int

    async def __call__(self) -> Said:
        effect(f"part {self.item}")
        return Said(text=str(self.item))


class First(Node):
    weather: Annotated[str, Dep(get_weather)]

    async def __call__(self) -> Second:
        effect("first")
        return Second(items=[1, 2])


class Second(Node):
    items: list[int]
    doubles: Annotated[list[int], Map(double, over="items", limit=1)]
    parts: Annotated[list[Said], Map(Part, over="items", limit=1)]

    async def __call__(self, lm: LM) -> Third:
        effect("second")
        said = await lm.make(self, Said)
        effect(f"second {said.text}")
        return Third(number=3)


class Third(Node):
    number: int

    async def __call__(self) -> Said: ...


graph = Graph(start=First, name="stopped")


async def run_here(path: str, who: str, effects: str, *, resume: bool) -> None:
    EFFECTS.set((who, effects))
    lm = ScriptedLM([{"text": "yes"}, {"text": "no"}])
    async with SQLiteJournal(path, lease=0.3 if who == "stopped" else 60.0) as journal:
        if resume:
            await graph.resume("run", lm, journal=journal)
        else:
            await graph.arun(First(), lm, journal=journal, run_id="run")


STOPPED = """
import asyncio, os, signal, sys, threading
import test_stopped
from bae import JournalError
from bae.sharing import Dataflow
from bae.journal.sqlite import journal as room
from bae.journal.sqlite.lease import SQLiteClaim
from bae.journal.sqlite.writer import SQLiteWriter

path, effects, where, number = *sys.argv[1:4], int(sys.argv[4])
settle, serve, start = room.settle, SQLiteWriter.serve, Dataflow._start
reached, writing = {"acknowledged": 0, "scheduled": 0}, threading.Lock()

def stop_at(what):
    reached[what] += 1
    if (what, reached[what]) == (where, number):
        with writing:  # so that no lock on the file is held meanwhile
            print("stopped", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)

def settle_and_stop(works, put):
    settle(works, put)  # from here on the callers know, and have not continued yet
    for work in works:
        if work.claim is not None or isinstance(work.value, SQLiteClaim):
            stop_at("acknowledged")

def start_and_stop(flow, pending):
    start(flow, pending)  # from here on its task is scheduled, and has not begun yet
    stop_at("scheduled")

def serve_unless_stopping(self, batch):
    with writing:
        serve(self, batch)

room.settle, Dataflow._start = settle_and_stop, start_and_stop
SQLiteWriter.serve = serve_unless_stopping
try:
    asyncio.run(test_stopped.run_here(path, "stopped", effects, resume=False))
    print(*reached.values())
except JournalError as error:
    print(error.code)
"""


def run_stopped(folder: Path, where: str = "", number: int = 0) -> subprocess.Popen[str]:
    files = folder / f"runs-{where}-{number}.db", folder / f"effects-{where}-{number}"
    return program(STOPPED, *files, where, number, cwd=Path(__file__).parent)


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
async def test_a_process_suspended_before_a_resume_repeats_no_work(
    every: int, tmp_path: Path
) -> None:
    with run_stopped(tmp_path) as whole:
        said, failed = whole.communicate(timeout=BOUND)
    assert not failed
    acknowledged, scheduled = map(int, said.split())
    assert acknowledged > 12
    assert scheduled == 4
    # The last acknowledgement is that of the end.
    moments = [("acknowledged", number) for number in range(1, acknowledged)]
    moments += [("scheduled", number) for number in range(1, scheduled + 1)]
    at_once = asyncio.Semaphore(4)  # they wait for leases to end, most of the time

    async def stop_and_take_over(where: str, number: int) -> None:
        path, effects = (tmp_path / f"{what}-{where}-{number}" for what in ("runs", "effects"))
        path = path.with_suffix(".db")
        async with at_once:
            with run_stopped(tmp_path, where, number) as stopped:
                try:
                    assert stopped.stdout is not None
                    assert await asyncio.to_thread(stopped.stdout.readline) == "stopped\n"
                    await lease_over(path)
                    await run_here(str(path), "other", str(effects), resume=True)
                    effect("is over")
                finally:
                    stopped.send_signal(signal.SIGCONT)
                output = await asyncio.to_thread(stopped.communicate, timeout=BOUND)
        assert output == ("bae-run-taken\n", ""), (where, number)
        begun = effects.read_text().splitlines()
        assert begun[-1] == "other is over", (where, number, begun)
        assert len({line.partition(" ")[2] for line in begun}) == 10, (where, number, begun)

    async with asyncio.TaskGroup() as group:
        for moment in moments[::every]:
            group.create_task(stop_and_take_over(*moment))


async def test_a_claim_with_an_expired_lease_is_in_doubt_until_it_is_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SQLiteJournal(tmp_path / "runs.db", lease=1000) as journal:
        claim = await begin_run(journal)
        assert not claim.is_in_doubt()
        monkeypatch.setattr(lease, "time", lambda: time() + 5000)
        assert claim.is_in_doubt()
        await journal.append(claim, [])
        assert not claim.is_in_doubt()


async def lease_over(path: Path) -> None:
    async with SQLiteJournal(path) as journal, asyncio.timeout(BOUND):
        while not (info := (await journal.runs())[0]).is_interrupted(time()):
            assert info.lease_until is not None
            await asyncio.sleep(max(0.0, info.lease_until - time()) + 0.001)


async def test_a_call_is_not_retried_after_a_takeover_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, calls = tmp_path / "runs.db", list[str]()

    def fail_while_suspended(name: str) -> None:
        calls.append(name)
        with closing(sqlite3.connect(path)) as db:
            db.execute("update runs set epoch = epoch + 1, owner = 'another'")
            db.commit()
        now = time() + 5000 * len(calls)
        monkeypatch.setattr(lease, "time", lambda: now)
        raise OSError("no answer")

    async def get_alone() -> str:
        fail_while_suspended("dep")
        return ""

    async def get_each(word: str) -> str:
        fail_while_suspended("item")
        return word

    class Inner(Node):
        async def __call__(self) -> None:
            fail_while_suspended("graph")

    class Alone(EndNode):
        got: Annotated[str, Dep(get_alone, retries=2)]

    class Items(EndNode):
        words: list[str] = ["a"]
        got: Annotated[list[str], Map(get_each, over="words", retries=2)]

    class Below(EndNode):
        got: Annotated[Inner, Dep(Inner, retries=2)]

    async with SQLiteJournal(path, lease=1000) as journal:
        for start in (Alone, Items, Below):
            with expect_refusal("bae-run-taken"):
                await Graph(start=start).arun(start(), journal=journal)
    assert calls == ["dep", "item", "graph"]
