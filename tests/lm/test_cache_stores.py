"""What the stores of the cache promise: bounds that hold, a file that several processes write at
once and that outlives a process which is killed, and an error that says what to do where the file
is no cache."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bae import BaeLMError
from bae.lm import MemoryCache, SQLiteCache
from bounded import BOUND
from policy_parts import run

SOURCE = Path(__file__).resolve().parents[2] / "src"

WRITER = """
import asyncio, sys
from bae.lm import SQLiteCache

async def main(path, name, many):
    cache = SQLiteCache(path)
    for number in range(many):
        await cache.put(f"{name}-{number}", "x" * 1000)
        print(number, flush=True)
    await cache.aclose()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def writer(path: Path, name: str, many: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(many)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


# --- in memory ----------------------------------------------------------------------------------


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from(["put", "get", "drop"]), st.integers(0, 7)), max_size=50),
)
def test_the_memory_cache_keeps_the_most_recently_used_answers(
    size: int, moves: list[tuple[str, int]]
):
    async def play() -> None:
        cache = MemoryCache(size)
        wanted: list[int] = []  # the last used one last
        for move, number in moves:
            key = str(number)
            if move == "put":
                await cache.put(key, f"text {number}")
                wanted = [*(n for n in wanted if n != number), number][-size:]
            elif move == "get":
                cached = await cache.get(key)
                assert cached == (f"text {number}" if number in wanted else None)
                if number in wanted:
                    wanted = [*(n for n in wanted if n != number), number]
            else:
                await cache.drop(key)
                wanted = [n for n in wanted if n != number]
            assert len(cache) == len(wanted)

    run(play)


# --- in a file ----------------------------------------------------------------------------------


async def test_the_file_cache_returns_stored_and_forgets_dropped_answers(tmp_path: Path):
    path = tmp_path / "deeper" / "answers.sqlite"
    cache = SQLiteCache(path)
    assert not path.parent.exists()  # it is opened when it is first used
    assert await cache.get("a") is None
    text = "ä 😀 \x00 \n" + "x" * 100_000
    await cache.put("a", text)
    await cache.put("a", text + "!")
    assert await cache.get("a") == text + "!"
    await cache.aclose()
    assert await cache.get("a") == text + "!"  # it opens again
    await cache.drop("a")
    assert await cache.get("a") is None
    await cache.aclose()


async def test_expired_answers_are_not_returned_and_can_be_pruned(tmp_path: Path):
    now = 0.0
    cache = SQLiteCache(tmp_path / "answers.sqlite", age=60, clock=lambda: now)
    await cache.put("a", "1")
    now = 30.0
    await cache.put("b", "2")
    now = 61.0
    assert await cache.get("a") is None
    assert await cache.get("b") == "2"
    assert await cache.prune() == 1
    await cache.aclose()


async def test_a_full_file_cache_drops_the_oldest_answers(tmp_path: Path):
    now = 0.0
    cache = SQLiteCache(tmp_path / "answers.sqlite", size=150, clock=lambda: now)
    for number in range(201):
        now += 1
        await cache.put(str(number), "x")
    found = [number for number in range(201) if await cache.get(str(number)) is not None]
    assert found == list(range(50, 201))  # at 200 it looked
    assert await cache.prune() == 1
    assert await cache.get("50") is None
    await cache.aclose()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no kill -9 here")
async def test_a_cache_file_survives_concurrent_and_killed_writers(
    tmp_path: Path,
):
    path = tmp_path / "answers.sqlite"
    killed, *writers = writer(path, "a", 1_000_000), writer(path, "b", 40), writer(path, "c", 40)
    assert killed.stdout is not None
    done = [int(killed.stdout.readline()) for _ in range(50)]
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=BOUND)
    assert killed.returncode == -signal.SIGKILL
    for process in writers:
        _, said = process.communicate(timeout=BOUND)
        assert process.returncode == 0, said

    cache = SQLiteCache(path)
    written = [f"a-{number}" for number in done]  # all that it said it had written
    for key in (*written, *(f"{name}-{number}" for name in "bc" for number in range(40))):
        assert await cache.get(key) == "x" * 1000
    await cache.put("d", "after")
    assert await cache.get("d") == "after"
    await cache.aclose()
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()


def fill_cache(path: Path) -> None:
    async def fill() -> None:
        cache = SQLiteCache(path)
        await cache.put("a", "1")
        await cache.aclose()

    asyncio.run(fill())


def damage_file(path: Path) -> None:
    fill_cache(path)
    whole = bytearray(path.read_bytes())
    whole[100:] = bytes(len(whole) - 100)
    path.write_bytes(whole)


def change_rows(path: Path, statement: str) -> None:
    database = sqlite3.connect(path)
    database.execute(statement)
    database.commit()
    database.close()


def of_another_version(path: Path) -> None:
    fill_cache(path)
    change_rows(path, "PRAGMA user_version = 99")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text("this is no database, but it is long enough to look at " * 20),
        lambda path: path.mkdir(),
        damage_file,
        lambda path: change_rows(path, "CREATE TABLE mine (x)"),
        of_another_version,
    ],
    ids=["text", "folder", "damaged", "something else", "another version"],
)
def test_a_file_that_is_not_a_cache_is_an_error_with_a_fix(tmp_path: Path, spoil):
    path = tmp_path / "answers.sqlite"
    spoil(path)
    before = path.read_bytes() if path.is_file() else None

    async def use() -> None:
        cache = SQLiteCache(path)
        try:
            with pytest.raises(BaeLMError, match="cannot be used") as caught:
                await cache.get("a")
        finally:
            await cache.aclose()
        assert caught.value.code == "bae-lm-cache-unreadable"
        assert str(path) in str(caught.value)
        assert "move the file away" in str(caught.value)

    run(use)
    assert before is None or path.read_bytes() == before


async def test_a_cancelled_caller_leaves_the_cache_file_usable(tmp_path: Path):
    cache = SQLiteCache(tmp_path / "answers.sqlite")
    writing = [asyncio.create_task(cache.put(str(n), "x")) for n in range(20)]
    await asyncio.sleep(0)
    for task in writing[::2]:
        task.cancel()
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*writing, return_exceptions=True)
        for number in range(1, 20, 2):
            assert await cache.get(str(number)) == "x"
    await cache.aclose()


def test_invalid_cache_bounds_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="MemoryCache"):
        MemoryCache(0)
    with pytest.raises(ValueError, match="size"):
        SQLiteCache(tmp_path / "x", size=0)
    with pytest.raises(ValueError, match="age"):
        SQLiteCache(tmp_path / "x", age=0)
