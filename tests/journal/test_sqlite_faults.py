"""Faults of a journal in an SQLite file: full disks, files that are locked, torn, foreign, or
removed, and killed processes. No acknowledged line is lost, and the same journal works again when
the cause is removed."""

import asyncio
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from bae import JournalError
from bae.journal import SQLiteJournal
from bae.journal.stored_runs import FORMAT
from journal_parts import (
    begin_run,
    end_run,
    execute,
    expect_refusal,
    ids,
    line,
    lines,
    numbers,
    program,
)

pytestmark = pytest.mark.once

BOUND = 30
PAGE = 8192
LONG = json.dumps({"text": "x" * 3000})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


async def fill_file(path, runs=6, count=40):
    """A file with some runs, closed."""
    async with SQLiteJournal(path, durability="normal") as journal:
        for number in range(runs):
            await end_run(journal, f"r{number}", count, data=LONG)


async def append_until_refused(journal, claim, first=1):
    """Append line after line; the answer is how many were acknowledged, and what the next met."""
    n = first
    while True:
        try:
            await journal.append(claim, [line(n, LONG)])
        except JournalError as error:
            return n, error
        n += 1


# A full disk


@pytest.fixture
def small_disk(tmp_path):
    """A file system of two megabytes, where this user may make one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    try:
        made = subprocess.run(mount, capture_output=True).returncode == 0
    except OSError:
        made = False
    if not made:
        pytest.skip("only root can make a file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


async def test_a_full_disk_loses_no_acknowledged_line(small_disk):
    room = small_disk / "room"
    room.write_bytes(b"x" * 600_000)
    async with SQLiteJournal(small_disk / "runs.db") as journal:
        other = await begin_run(journal, "other")
        claim = await begin_run(journal)
        count, error = await append_until_refused(journal, claim)
        assert error.code == "bae-journal-full"
        assert error.run_id == "run"
        assert count > 20
        assert await numbers(journal) == list(range(count))
        with expect_refusal("bae-journal-full"):
            await journal.append(claim, [line(count + 1, LONG)])
        with expect_refusal("bae-journal-full"):
            await begin_run(journal, "new", data=LONG)
        assert await numbers(journal) == list(range(count))
        room.unlink()
        await journal.append(claim, [line(count + 2)])  # takes along what could not be stored
        assert await numbers(journal) == list(range(count + 3))
        await journal.append(other, [line(1)])
        await journal.release(claim, "ended", [])
        assert sorted(await ids(journal)) == ["other", "run"]
    async with SQLiteJournal(small_disk / "runs.db") as journal:
        assert await numbers(journal) == list(range(count + 3))


# A locked file


async def test_a_file_that_stays_locked_is_reported_as_locked(path):
    async with SQLiteJournal(path, busy_timeout=0.05) as journal:
        claim = await begin_run(journal)
        holding = sqlite3.connect(path, isolation_level=None)
        holding.execute("begin immediate")
        journal.note(claim, line(1))
        with expect_refusal("bae-journal-locked") as error:
            await journal.append(claim, [line(2)])
        assert str(path) in str(error.value)
        with expect_refusal("bae-journal-locked"):
            await begin_run(journal, "new")
        assert await numbers(journal) == [0]  # what is there can be read meanwhile
        holding.execute("rollback")
        holding.close()
        await journal.append(claim, [line(3)])
        assert await numbers(journal) == [0, 1, 2, 3]


async def test_an_unreleased_run_is_released_with_the_next_write(path):
    async with (
        SQLiteJournal(path, lease=1000, busy_timeout=0.05) as journal,
        SQLiteJournal(path) as other,
    ):
        claim, busy = await begin_run(journal), await begin_run(journal, "busy")
        holding = sqlite3.connect(path, isolation_level=None)
        holding.execute("begin immediate")
        with expect_refusal("bae-journal-locked"):
            await journal.release(claim, "failed", [])
        holding.close()
        await journal.append(busy, [line(1)])
        owners = {run.run_id: run.owner for run in await other.runs()}
        assert owners == {"run": None, "busy": busy.owner}


async def test_a_locked_file_is_read_while_its_writer_waits(path):
    async with SQLiteJournal(path, busy_timeout=2) as journal:
        await end_run(journal, "old")
        with closing(sqlite3.connect(path, isolation_level=None)) as holding:
            holding.execute("begin immediate")
            with expect_refusal("bae-journal-locked"):
                await begin_run(journal, "new")
            writing = asyncio.create_task(begin_run(journal, "newer"))
            await asyncio.sleep(0)  # it has begun to wait
            for _ in range(5):
                assert [info.run_id for info in await journal.runs()] == ["old"]
            assert not writing.done()
            holding.execute("rollback")
        await writing
        assert sorted(await ids(journal)) == ["newer", "old"]


async def test_a_write_waits_for_a_temporarily_locked_file(path):
    async with SQLiteJournal(path) as journal:
        claim = await begin_run(journal)
        holding = sqlite3.connect(path, isolation_level=None)
        holding.execute("begin immediate")
        waiting = [journal.append(claim, [line(n)]) for n in (1, 2, 3)]
        await asyncio.wait(waiting, timeout=0.05)
        holding.close()
        await asyncio.gather(*waiting)
        assert await numbers(journal) == [0, 1, 2, 3]


async def test_a_file_locked_by_another_program_can_be_used_afterwards(path):
    await fill_file(path, 1, 3)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("pragma locking_mode = exclusive")
        other.execute("update runs set error = error")
        async with SQLiteJournal(path, busy_timeout=0.05) as journal:
            with expect_refusal("bae-journal-locked"):
                await begin_run(journal)
            with expect_refusal("bae-journal-locked"):
                await journal.read("r0")
            other.close()
            await end_run(journal)
            assert await numbers(journal, "r0") == [0, 1, 2]


# What cannot be written


READ_ONLY = """
import asyncio, ctypes, os, sys
from bae import JournalError
from bae.journal import SQLiteJournal
from journal_parts import begin_run, end_run, execute, ids, line

path = sys.argv[1]
if not os.geteuid():
    # Root may write everything. Another user could not read what is imported later.
    CAP_DAC_OVERRIDE = 1 << 1
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capget(header, sets) == 0, os.strerror(ctypes.get_errno())
    sets[0] &= ~CAP_DAC_OVERRIDE  # effective
    sets[1] &= ~CAP_DAC_OVERRIDE  # permitted, which access(2) goes by
    assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())

async def code(asked):
    try:
        await asked
    except JournalError as error:
        return error.code

async def main():
    async with SQLiteJournal(path) as journal:
        print(await code(begin_run(journal, "new")), flush=True)
        print(await ids(journal), flush=True)
        sys.stdin.readline()
        print(await code(begin_run(journal, "new")), flush=True)

asyncio.run(main())
"""


@pytest.fixture
def open_folder():
    """A folder that every user can reach."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o777)
    yield made
    made.chmod(0o777)
    shutil.rmtree(made)


@pytest.mark.parametrize("what", ["file", "both", "new"])
async def test_a_read_only_journal_is_readable_and_writable_after_a_permission_change(
    open_folder, what
):
    path = open_folder / "runs.db"
    if what != "new":
        await fill_file(path, 2, 2)
        path.chmod(0o444)
    open_folder.chmod(0o777 if what == "file" else 0o555)
    with program(READ_ONLY, path) as reading:
        assert reading.stdout.readline() == "bae-journal-readonly\n"
        assert reading.stdout.readline() == ("[]\n" if what == "new" else "['r1', 'r0']\n")
        assert what != "new" or list(open_folder.iterdir()) == []
        open_folder.chmod(0o777)
        for file in open_folder.iterdir():
            file.chmod(0o666)
        assert reading.communicate("go\n", timeout=BOUND) == ("None\n", "")


# Files that are no journal, or no longer


async def of_a_newer_format(path):
    await fill_file(path, 1, 1)
    execute(path, "pragma user_version = 99")
    execute(path, "pragma journal_mode = delete")


async def of_another_program(path):
    execute(path, "create table theirs (x)")


async def no_database(path):
    path.write_bytes(b"not a database" * 900)


async def one_letter(path):
    path.write_bytes(b"x")


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (no_database, "bae-journal-damaged"),
        (one_letter, "bae-journal-damaged"),
        (of_another_program, "bae-journal-foreign"),
        (of_a_newer_format, "bae-journal-version"),
    ],
)
async def test_a_file_of_another_format_is_refused_and_not_changed(path, make, code):
    await make(path)
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    async with SQLiteJournal(path) as journal:
        with expect_refusal(code) as error:
            await begin_run(journal, "new")
        assert str(path) in str(error.value)
        for asked in (journal.runs(), journal.read("r0"), journal.claim("r0")):
            with expect_refusal(code):
                await asked
    after = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    assert {name: data for name, data in after.items() if not name.endswith("-shm")} == before


async def test_a_line_of_a_newer_bae_is_refused(path):
    await fill_file(path, 2, 3)
    assert execute(path, "select distinct version from lines") == [(FORMAT,)]
    execute(path, "update lines set version = 99 where id = (1 << 32) + 2")
    async with SQLiteJournal(path) as journal:
        with expect_refusal("bae-journal-version") as error:
            await journal.read("r0")
        assert "line 2 of run 'r0' has version 99" in str(error.value)
        assert await numbers(journal, "r1") == [0, 1, 2]


@pytest.mark.parametrize("left", [100, 3 * PAGE + 77])
async def test_a_truncated_file_is_refused_and_not_changed(path, left):
    await fill_file(path)
    os.truncate(path, left)
    before = path.read_bytes()
    async with SQLiteJournal(path) as journal:
        for asked in (begin_run(journal, "new"), journal.read("r5")):
            with expect_refusal("bae-journal-damaged"):
                await asked
    assert path.read_bytes() == before


async def test_garbage_in_a_page_damages_only_the_runs_in_it(path):
    await fill_file(path)
    content = path.read_bytes()
    pages = [at for at in range(0, len(content), PAGE) if LONG.encode() in content[at : at + PAGE]]
    with path.open("r+b") as file:
        file.seek(pages[len(pages) // 2])
        file.write(random.Random(2).randbytes(PAGE))
    async with SQLiteJournal(path) as journal:
        asked = [numbers(journal, f"r{number}") for number in range(6)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        errors = [one for one in results if isinstance(one, JournalError)]
        assert 0 < len(errors) <= 2
        assert {error.code for error in errors} == {"bae-journal-damaged"}
        assert [one for one in results if one not in errors] == [list(range(40))] * (
            6 - len(errors)
        )
        await end_run(journal, "new")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("update lines set data = '[1]' where id = (2 << 32) + 7", "line 7 of run 'r1'"),
        ("update lines set data = x'ff7b' where id = (2 << 32) + 7", "line 7 of run 'r1'"),
        ("update lines set at = 'then' where id = (2 << 32) + 7", "line 7 of run 'r1'"),
        ("delete from lines where id = (2 << 32) + 7", "line 7 of run 'r1' is missing"),
        ("update runs set waiting = '[7]' where id = 'r1'", "run 'r1'"),
        ("insert into answers (run, gate, value) values (2, '1:Day.fine', 'yes')", "run 'r1'"),
    ],
)
async def test_damaged_lines_and_runs_are_reported_by_name(path, change, says):
    await fill_file(path, 3, 12)
    execute(path, change)
    async with SQLiteJournal(path) as journal:
        with expect_refusal("bae-journal-damaged") as error:
            await journal.read("r1")
        assert says in str(error.value)
        assert error.value.run_id == "r1"
        assert await numbers(journal, "r0") == list(range(12))


async def test_a_missing_line_that_a_fork_shares_is_reported(path):
    async with SQLiteJournal(path) as journal:
        await end_run(journal, count=5)
        await journal.fork("run", "fork", 4, lines(4, 6))
    execute(path, "delete from lines where id & 4294967295 = 3")
    async with SQLiteJournal(path) as journal:
        with expect_refusal("bae-journal-damaged") as error:
            await journal.read("fork")
        assert "line 3 of run 'fork' is missing" in str(error.value)


# Files that are taken away


async def test_a_write_to_a_deleted_file_is_refused(path):
    async with SQLiteJournal(path) as journal:
        claim, other = await begin_run(journal), await begin_run(journal, "other")
        path.unlink()
        with expect_refusal("bae-journal-gone"):
            await journal.append(claim, [line(1)])
        for late in (journal.append(claim, [line(1)]), journal.append(other, [line(1)])):
            with expect_refusal("bae-journal-gone"):
                await late
        with expect_refusal("bae-journal-damaged"):  # the log has lines that are nowhere else
            await journal.runs()
    assert not path.exists()


async def test_a_journal_whose_file_was_deleted_begins_a_new_one(path):
    async with SQLiteJournal(path) as journal:
        claim = await begin_run(journal, count=5)
        for file in path.parent.iterdir():
            file.unlink()
        with expect_refusal("bae-journal-gone"):
            await journal.release(claim, "ended", [])
        new = await begin_run(journal, "new")
        await journal.append(new, [line(1)])
        with expect_refusal("bae-journal-gone"):
            await journal.append(claim, [line(5)])
        assert await ids(journal) == ["new"]
    async with SQLiteJournal(path) as journal:
        assert await numbers(journal, "new") == [0, 1]


async def test_a_file_that_replaces_an_open_journal_is_not_damaged(path):
    theirs = path.with_name("theirs.db")
    await fill_file(theirs, 2, 5)
    async with SQLiteJournal(path) as journal:
        claim = await begin_run(journal)
        await journal.runs()
        os.replace(theirs, path)
        with expect_refusal("bae-journal-gone"):
            await journal.append(claim, [line(1)])
        path.with_name("runs.db-wal").unlink(missing_ok=True)
        path.with_name("runs.db-shm").unlink(missing_ok=True)
        assert await ids(journal) == ["r1", "r0"]
        await end_run(journal)
        assert await numbers(journal, "r0") == list(range(5))


# Processes that are killed


WRITING = """
import asyncio, sys
from bae.journal import SQLiteJournal
from journal_parts import begin_run, line

async def one(journal, name):
    claim = await begin_run(journal, name, 0)
    n = 0
    while True:
        journal.note(claim, line(n))
        await journal.append(claim, [line(n + 1, '{"text": "%s"}' % ("x" * (n * 97 % 5000)))])
        n += 2
        print(name, n, flush=True)

async def main():
    journal = SQLiteJournal(sys.argv[1], lease=0.5)
    await asyncio.gather(*(one(journal, sys.argv[2] + str(number)) for number in range(4)))

asyncio.run(main())
"""


async def test_acknowledged_lines_survive_a_kill(path):
    chance = random.Random(4)
    for attempt in range(2):
        acknowledged: dict[str, int] = {}
        with program(WRITING, path, f"{attempt}-") as writing:
            for _ in range(chance.randrange(1, 400)):
                name, count = writing.stdout.readline().split()
                acknowledged[name] = int(count)
            writing.send_signal(signal.SIGKILL)
            for text in writing.stdout.read().splitlines():
                if len(said := text.split()) == 2 and said[1].isdigit():
                    acknowledged[said[0]] = max(acknowledged.get(said[0], 0), int(said[1]))
            writing.stderr.read()
        async with SQLiteJournal(path) as journal:
            for name, count in acknowledged.items():
                stored_numbers = await numbers(journal, name)
                assert len(stored_numbers) >= count
                assert stored_numbers == list(range(len(stored_numbers)))


async def test_acknowledged_lines_survive_a_power_cut_even_with_zeros_in_the_log(path):
    async with SQLiteJournal(path) as journal:
        claim = await begin_run(journal)
        copies = []
        for n in range(1, 120):
            await journal.append(claim, [line(n, LONG)])
            if n in (
                17,
                60,
                111,
            ):  # what is on the disk at that instant, but for the index of the log
                copies.append((n, path.read_bytes(), path.with_name("runs.db-wal").read_bytes()))
    for n, content, log in copies:
        for extra in (b"", bytes(50_000), random.Random(n).randbytes(50_000)):
            copy = path.with_name(f"copy-{n}-{len(extra)}-{extra[:1].hex()}.db")
            copy.write_bytes(content)
            copy.with_name(copy.name + "-wal").write_bytes(log + extra)
            async with SQLiteJournal(copy) as journal:
                assert await numbers(journal) == list(range(n + 1))
