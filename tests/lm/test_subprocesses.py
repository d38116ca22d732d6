"""What bae promises about programs it runs: their complete output, and no leftover processes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bae.subprocesses import EndedProgram, run_program
from bounded import BOUND, some_turns
from claude_programs import CALL, Calls, calls, children, dead, living, open_files, script

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


@pytest.fixture
async def line() -> AsyncIterator[Calls]:
    async with calls() as made:
        yield made


@pytest.fixture(autouse=True)
def _nothing_left() -> Any:
    before = children(), open_files()
    yield
    assert (children(), open_files()) == before


async def finish(program: str, given: bytes = b"", **options: Any) -> EndedProgram:
    settings: dict[str, Any] = {"timeout": BOUND, "limit": 1_000_000, "cwd": "/", **options}
    return await run_program([program], given=given, env={"WORD": "known"}, **settings)


async def test_megabytes_of_input_and_output_do_not_deadlock(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
        while piece := sys.stdin.buffer.read1(100_000):
            sys.stdout.buffer.write(piece)
        """,
    )
    data = os.urandom(5_000_000)
    ended = await finish(program, data, limit=len(data))
    assert ended.out == data


# --- ends -------------------------------------------------------------------------------------

WAITING = CALL + "call()\nwait()\n"

STUBBORN = (
    CALL
    + """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
call()
while True: time.sleep(60)
"""
)

WITH_A_CHILD = (
    CALL
    + """
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    call()
    while True: time.sleep(60)
"""
)


async def test_output_written_after_a_termination_signal_is_captured(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
        def end(*_):
            os.write(2, b" the end")
            os._exit(0)
        signal.signal(signal.SIGTERM, end)
        os.write(2, b"begun")
        time.sleep(1000)
        """,
    )
    ended = await finish(program, timeout=2, grace=30)
    assert (ended.bound, ended.err) == ("timeout", b"begun the end")


async def test_a_program_that_ignores_termination_is_killed(tmp_path: Path, line: Calls) -> None:
    program = script(tmp_path, STUBBORN, port=line.port)
    running = asyncio.create_task(finish(program, grace=0.05))
    caller = await line.next()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert dead(group=caller.pid)


async def test_a_program_gets_a_termination_signal_before_it_is_killed(
    tmp_path: Path, line: Calls
) -> None:
    program = script(
        tmp_path,
        CALL
        + """
        def tidy(*_):
            open(mark, "w").close()
            sys.exit()
        signal.signal(signal.SIGTERM, tidy)
        call()
        wait()
        """.replace("\n        ", "\n"),
        port=line.port,
        mark=str(tmp_path / "tidied"),
    )
    running = asyncio.create_task(finish(program, grace=BOUND))
    await line.next()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (tmp_path / "tidied").exists()


async def test_a_second_cancellation_skips_the_grace_period(tmp_path: Path, line: Calls) -> None:
    program = script(tmp_path, STUBBORN, port=line.port)
    running = asyncio.create_task(finish(program, grace=BOUND * 10))
    caller = await line.next()
    running.cancel()
    await some_turns()
    assert not running.done()
    for _ in range(3):
        running.cancel()
        await some_turns()
    async with asyncio.timeout(BOUND):
        with pytest.raises(asyncio.CancelledError):
            await running
    assert dead(group=caller.pid)
    await caller.gone()


async def test_a_call_cancelled_while_the_program_starts_leaves_no_process(
    tmp_path: Path, line: Calls
) -> None:
    for turns in range(4):
        running = asyncio.create_task(finish(script(tmp_path, WAITING, port=line.port)))
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_processes_left_by_a_program_end_with_it(tmp_path: Path, line: Calls) -> None:
    # The child holds stdout: were it waited for, the answer would never come.
    program = script(tmp_path, WITH_A_CHILD + "wait()\nprint('done')", port=line.port)
    running = asyncio.create_task(finish(program))
    child = await line.next()
    assert len(living(group=os.getpgid(child.pid))) == 2
    child.go()
    assert (await running).out == b"done\n"
    await child.gone()


async def test_a_cancelled_call_ends_grandchildren_too(tmp_path: Path, line: Calls) -> None:
    program = script(tmp_path, WITH_A_CHILD + "time.sleep(1000)", port=line.port)
    running = asyncio.create_task(finish(program))
    child = await line.next()
    assert child.pid != os.getpgid(child.pid)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await child.gone()


async def test_a_daemon_that_holds_the_pipes_is_not_waited_for(tmp_path: Path, line: Calls) -> None:
    program = script(
        tmp_path,
        CALL
        + """
if os.fork() == 0:
    os.setsid()
    call()
    wait()
else:
    sys.stdin.read(10)
    print("done")
""",
        port=line.port,
    )
    running = asyncio.create_task(finish(program, b"x" * 3_000_000, grace=0.1))
    daemon = await line.next()
    try:
        async with asyncio.timeout(BOUND):
            assert (await running).out == b"done\n"
    finally:
        daemon.go()
        await daemon.gone()


async def test_a_program_inherits_the_environment_and_directory_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORD", "inherited")
    monkeypatch.chdir(tmp_path)
    ended = await run_program(["sh", "-c", 'cat; echo "$WORD"; pwd -P'])
    assert ended == EndedProgram(0, f"inherited\n{os.getcwd()}\n".encode(), b"")
