"""The promises of a journal in an SQLite file beyond the promises of every journal: its file, its
threads, its commits, its owners."""

import asyncio
import gc
import os
import sqlite3
import struct
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import time

import pytest

from bae.journal import SQLiteJournal
from bae.journal.sqlite.lease import has_died, process_name
from bae.journal.sqlite.run_entries import page_query
from bae.journal.sqlite.schema import LINES_OF_A_RUN
from journal_parts import (
    begin_run,
    end_run,
    execute,
    expect_refusal,
    ids,
    line,
    numbers,
    program,
    run_program,
    with_line,
)

pytestmark = pytest.mark.once

BOUND = 30


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


def threads(path):
    return [thread for thread in threading.enumerate() if thread.name.endswith(str(path))]


def commits(path):
    """How many transactions the log has: frames whose header has the size of the file."""
    data = path.with_name(path.name + "-wal").read_bytes()
    page = struct.unpack(">I", data[8:12])[0]
    salt = data[16:24]
    found = 0
    for at in range(32, len(data) - page, page + 24):
        number, size = struct.unpack(">II", data[at : at + 8])
        if not number or data[at + 8 : at + 16] != salt:
            break
        found += size > 0
    return found


async def until(condition):
    """Ask for something until it is so."""
    async with asyncio.timeout(BOUND):
        while not await condition():
            pass


# The file


async def test_a_journal_file_is_created_by_the_first_write(path):
    journal = SQLiteJournal(path)
    assert not path.exists()
    assert await journal.runs() == []
    with expect_refusal("bae-run-unknown"):
        await journal.read("run")
    assert not path.exists()
    await end_run(journal)
    assert path.exists()
    await journal.close()
    assert sorted(path.parent.iterdir()) == [path]


def test_an_invalid_journal_path_is_refused_at_once(tmp_path):
    for given in ("", ":memory:"):
        with pytest.raises(ValueError, match="MemoryJournal"):
            SQLiteJournal(given)
    for given in (tmp_path, tmp_path / "none" / "runs.db"):
        with expect_refusal("bae-journal-failed") as error:
            SQLiteJournal(given)
        assert str(given) in str(error.value)


def test_invalid_journal_options_are_refused(path):
    for options in ({"durability": "off"}, {"lease": 0}, {"busy_timeout": -1}):
        with pytest.raises(ValueError, match="SQLiteJournal"):
            SQLiteJournal(path, **options)


@pytest.mark.parametrize(("durability", "synchronous"), [("full", 2), ("normal", 1)])
async def test_a_commit_waits_for_the_disk_by_default(path, durability, synchronous):
    async with SQLiteJournal(path, durability=durability) as journal:
        await end_run(journal)
        connection = journal._workers[0].desk.connect()  # the setting is nowhere but there
        assert connection.execute("pragma synchronous").fetchone() == (synchronous,)
    assert execute(path, "pragma journal_mode") == [("wal",)]


async def test_several_journals_may_create_one_file_concurrently(path):
    journals = [SQLiteJournal(path) for _ in range(6)]
    await asyncio.gather(*(end_run(one, f"r{n}") for n, one in enumerate(journals)))
    assert sorted(await ids(journals[0])) == [f"r{n}" for n in range(6)]
    for one in journals:
        await one.close()


# Commits


async def test_waiting_lines_share_a_commit(path):
    async with SQLiteJournal(path) as journal:
        claims = await asyncio.gather(*(begin_run(journal, f"r{n}", 0) for n in range(200)))
        before = commits(path)
        for n in range(5):
            await asyncio.gather(*(journal.append(claim, [line(n)]) for claim in claims))
        assert commits(path) - before < 40  # for a thousand lines
        before = commits(path)
        for n in range(5, 15):
            journal.note(claims[0], line(n))
        await journal.append(claims[0], [line(15)])
        assert commits(path) - before <= 2


async def test_a_cancelled_append_is_still_stored(path):
    async with SQLiteJournal(path) as journal:
        claim = await begin_run(journal)
        waiting = journal.append(claim, [line(1)])
        waiting.cancel()
        await journal.append(claim, [line(2)])
        assert await numbers(journal) == [0, 1, 2]


async def test_a_claim_whose_waiter_was_cancelled_is_released(path):
    async with SQLiteJournal(path) as journal:
        await end_run(journal, status="failed")

        async def nobodys():
            return len(runs := await journal.runs()) == 2 and not any(run.owner for run in runs)

        holding = sqlite3.connect(path, isolation_level=None)
        holding.execute("begin immediate")  # so that nothing is decided before they are cancelled
        for asking in (journal.claim("run"), begin_run(journal, "new")):
            task = asyncio.create_task(asking)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        holding.close()
        await until(nobodys)
        assert len(await asyncio.gather(journal.claim("run"), journal.claim("new"))) == 2


async def test_an_unstorable_value_fails_only_its_own_run(path):
    async with SQLiteJournal(path) as journal:
        one, two = await begin_run(journal, "one"), await begin_run(journal, "two")
        wrong = journal.append(one, [line(1, '{"half": "\ud800"}')])
        right = journal.append(two, [line(1)])
        unborn = asyncio.ensure_future(begin_run(journal, "three", data="\ud800"))
        await right
        with expect_refusal("bae-journal-failed") as error:
            await wrong
        assert error.value.run_id == "one"
        with expect_refusal("bae-journal-failed"):
            await unborn
        await journal.append(two, [line(2)])
        with expect_refusal("bae-journal-failed"):  # no line after a gap
            await journal.append(one, [line(2)])
        with expect_refusal("bae-journal-failed"):
            await journal.release(one, "failed", [])
        again = await journal.claim("one")
        await journal.append(again, [line(1)])
        assert await numbers(journal, "two") == [0, 1, 2]
        assert sorted(await ids(journal)) == ["one", "two"]


# Loops, threads and processes


def test_a_journal_can_be_used_after_its_event_loop_closed(path):
    journal = SQLiteJournal(path)

    async def leave():
        claim = await begin_run(journal)
        journal.append(claim, [line(1)])

    asyncio.run(leave())

    async def stay():
        assert await numbers(journal) == [0, 1]
        await journal.close()

    asyncio.run(stay())


async def test_a_garbage_collected_journal_stops_its_threads_and_releases_its_runs(path):
    journal = SQLiteJournal(path)
    claim = await begin_run(journal)
    journal.note(claim, line(1))
    await journal.runs()
    left = threads(path)
    del journal, claim
    gc.collect()
    for thread in left:
        await asyncio.to_thread(thread.join, BOUND)
    async with SQLiteJournal(path) as journal:
        stored = await journal.read("run")
        assert stored.info.is_interrupted(time())
        assert len(stored.lines) == 2
        await journal.claim("run")


async def test_a_closed_journal_has_no_threads_and_owns_no_runs(path):
    async with SQLiteJournal(path, lease=1000) as journal:
        claim = await begin_run(journal)
        journal.note(claim, line(1))
        await journal.runs()
        assert len(threads(path)) == 2
        await journal.close()
        assert threads(path) == []
        with expect_refusal("bae-journal-closed"):
            await journal.append(claim, [line(2)])
    async with SQLiteJournal(path) as other:
        mine = await other.claim("run")
        await other.append(mine, [line(2)])


def test_a_program_that_never_closes_its_journal_loses_nothing(path):
    text = """
import asyncio, sys
from bae.journal import SQLiteJournal
from journal_parts import begin_run, line

async def main():
    journal = SQLiteJournal(sys.argv[1], lease=1000)
    claim = await begin_run(journal)
    await journal.append(claim, [line(1)])
    await journal.runs()
    journal.note(claim, line(2))
    keep.append(journal)

keep = []
asyncio.run(main())
print("done")
"""
    assert run_program(text, path) == "done"

    async def look():
        async with SQLiteJournal(path) as journal:
            assert await numbers(journal) == [0, 1, 2]
            await journal.claim("run")

    asyncio.run(look())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_process_cannot_use_the_files_of_its_parent(path):
    text = """
import asyncio, os, sys, warnings
from bae import JournalError
from bae.journal import SQLiteJournal
from journal_parts import begin_run, line, numbers

warnings.simplefilter("ignore", DeprecationWarning)
journal, unused = SQLiteJournal(sys.argv[1]), SQLiteJournal(sys.argv[1] + "2")

async def code(asked):
    try:
        await asked
    except JournalError as error:
        return error.code

async def in_child(claim):
    journal.note(claim, line(1))
    print(await code(journal.append(claim, [line(1)])))
    print(await code(journal.runs()))
    print(await code(begin_run(journal, "other")))
    print(await code(begin_run(SQLiteJournal(sys.argv[1]), "other")))
    print(await code(begin_run(unused)), flush=True)
    await journal.close()
    await unused.close()

async def in_parent(claim):
    await journal.append(claim, [line(1)])
    print(await numbers(journal))
    await journal.close()
    async with unused:
        print(await numbers(unused))

claim = asyncio.run(begin_run(journal))
child = os.fork()
if not child:
    asyncio.run(in_child(claim))
    sys.exit()
os.waitpid(child, 0)
asyncio.run(in_parent(claim))
"""
    assert run_program(text, path).split("\n") == [
        *["bae-journal-forked"] * 4,
        "None",
        "[0, 1]",
        "[0]",
    ]


# Owners


OWNER = """
import asyncio, sys
from bae.journal import SQLiteJournal
from journal_parts import begin_run

async def main():
    async with SQLiteJournal(sys.argv[1], lease=3600) as journal:
        claims = [await begin_run(journal, name) for name in ("run", "other")]
        print(claims[0].owner, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


seen_to_die = pytest.mark.skipif(
    not Path("/proc/self/ns/pid").exists(), reason="it cannot be seen here that a process is gone"
)


async def test_an_owner_with_an_expired_lease_learns_of_a_takeover(path):
    async with SQLiteJournal(path) as journal, SQLiteJournal(path) as other:
        lost, kept = await begin_run(journal), await begin_run(journal, "other")
        execute(path, "update owners set until = 0")
        claim = await other.claim("run")
        for n in (1, 2):
            with expect_refusal("bae-run-taken"):
                await journal.append(lost, [line(n)])
        await journal.append(kept, [line(1)])
        await other.append(claim, [line(1, '{"of": "new"}')])
        assert (await other.read("run")).lines[1].data == '{"of": "new"}'
        assert await numbers(other, "other") == [0, 1]


async def test_the_lease_of_an_idle_owner_is_renewed(path):
    async with SQLiteJournal(path, lease=1.5) as journal, SQLiteJournal(path) as other:
        claim = await begin_run(journal)
        first = (await other.runs())[0].lease_until

        async def renewed():
            run = (await other.runs())[0]
            assert not run.is_interrupted(time())
            return run.lease_until > first

        await until(renewed)
        with expect_refusal("bae-run-owned"):
            await other.claim("run")
        await journal.release(claim, "failed", [])
        await other.claim("run")


async def test_a_run_started_after_an_idle_time_has_a_new_lease(path):
    async with SQLiteJournal(path, lease=0.2) as journal, SQLiteJournal(path) as other:
        await end_run(journal, "first")
        last = time() + 0.2

        async def over():
            await journal.answer("first", "g", "1")  # commits that are no word of anything
            return time() > last

        await until(over)
        await begin_run(journal, "second")
        with expect_refusal("bae-run-owned"):
            await other.claim("second")


# Lists, deletions, redactions


async def test_the_list_of_runs_is_read_from_an_index_without_sorting(path):
    async with SQLiteJournal(path) as journal:
        await end_run(journal)
    with closing(sqlite3.connect(path)) as connection:
        for status, graph in ((None, None), ("ended", None), (None, "A"), ("failed", "A")):
            text, values = page_query(status, graph)
            wanted = (*values, LINES_OF_A_RUN, 7)
            plan = [row[3] for row in connection.execute(f"explain query plan {text}", wanted)]
            assert not [s for s in plan if s.startswith("SCAN") and "RUNS" in s.upper()], plan
            assert graph is not None or not [s for s in plan if "TEMP B-TREE" in s], plan


async def test_many_runs_are_deleted_in_batches_with_all_their_lines(path):
    async with SQLiteJournal(path, durability="normal") as journal:
        await end_run(journal, "long", 300)
        await asyncio.gather(*(end_run(journal, f"r{n}", 3) for n in range(120)))
        await end_run(journal, "stays", 3)
        names = [name for name in await ids(journal, limit=1000) if name != "stays"]
        assert await journal.delete(names) == 121
        await end_run(journal, "new", 2)
        assert await numbers(journal, "stays") == [0, 1, 2]
    assert execute(path, "select count(*) from lines") == [(5,)]


async def test_an_erasure_is_refused_while_a_reader_keeps_old_lines_in_the_log(path):
    async with SQLiteJournal(path, busy_timeout=0.05) as journal:
        await end_run(journal, data='{"old": 1}')
        reading = sqlite3.connect(path)
        reading.execute("begin")
        reading.execute("select * from lines").fetchone()
        with expect_refusal("bae-journal-locked"):
            await with_line(journal, "run", line(0, '{"new": 1}'), erase=True)
        reading.close()
        assert (await journal.read("run")).lines[0].data == '{"new": 1}'
        await with_line(journal, "run", line(0, '{"new": 1}'), erase=True)
        for file in path.parent.iterdir():
            assert b'{"old": 1}' not in file.read_bytes()


async def test_a_redaction_of_many_runs_rewrites_the_file_at_most_once(path):
    async with SQLiteJournal(path) as journal:
        for number in range(5):
            await end_run(journal, f"r{number}", data='{"old": 1}')
        reading = sqlite3.connect(path)

        def written():
            return reading.execute("pragma schema_version").fetchone()[0]

        before = written()
        runs = [await journal.read(f"r{n}") for n in range(5)]
        changed = [replace(run, lines=(line(0, "{}"),)) for run in runs]
        await journal.replace(changed, erase=True)
        assert written() == before + 1, "a VACUUM counts it up by one"
        await journal.replace(changed, erase=True)
        assert written() == before + 1
        reading.close()


async def test_the_journal_file_is_readable_with_plain_sqlite(path):
    async with SQLiteJournal(path) as journal:
        await end_run(journal, count=2, at=0.0)
    rows = execute(path, "select * from readable order by run, n")
    assert rows[1] == ("run", 1, "StepStarted", "1970-01-01 00:00:01", "", 0, '{"x": 1}')


@seen_to_die
def test_a_process_is_treated_as_dead_only_if_its_death_can_be_checked():
    own = process_name()
    host, _, token = own.split(":")
    assert not has_died(own)
    with subprocess.Popen([sys.executable, "-c", ""]) as other:
        other.wait()
    assert has_died(f"{host}:{other.pid}:{token}")
    assert not has_died(f"{host}:1:{token}"), "it may be of another user"
    assert not has_died(f"elsewhere:{other.pid}:{token}")
    assert not has_died(f"{host.partition('/')[0]}:{other.pid}:{token}"), "of another container"
    assert not has_died(f"{host}::{token}")
    for pid in ("9" * 19, "9" * 5000, "\u0661", f"{other.pid}_0"):  # as no system has them
        assert not has_died(f"{host}:{pid}:{token}")
    assert not has_died("somebody")


@seen_to_die
async def test_runs_of_a_killed_process_can_be_taken_over_replaced_and_deleted(path):
    with program(OWNER, path) as owner:
        name = owner.stdout.readline().strip()
        async with SQLiteJournal(path) as journal:
            stored = await journal.read("other")
            with expect_refusal("bae-run-owned") as error:
                await journal.claim("run")
            assert name in str(error.value)
            with expect_refusal("bae-run-owned"):
                await journal.put(stored, replace=True)
            assert await journal.delete(["run", "other"]) == 0
            owner.kill()
            owner.wait()
            claim = await journal.claim("run")
            await journal.append(claim, [line(1)])
            assert not (await journal.read("run")).info.is_interrupted(time())
            assert await numbers(journal) == [0, 1]
            await journal.put(stored, replace=True)
            assert (await journal.read("other")).info.owner is None
            await journal.release(claim, "failed", [])
            assert await journal.delete(["run", "other"]) == 2
        owner.communicate()
    async with SQLiteJournal(path) as journal:  # which forgets who is dead
        await end_run(journal)
    assert execute(path, "select * from owners") == []


@pytest.mark.skipif(os.name == "nt", reason="there are no such rights")
async def test_a_new_journal_file_is_private_from_the_start(path, monkeypatch):
    modes, connect = [], sqlite3.connect

    def look(*args, **kwargs):
        modes.append(path.exists() and path.stat().st_mode & 0o777)
        return connect(*args, **kwargs)

    monkeypatch.setattr(sqlite3, "connect", look)
    async with SQLiteJournal(path) as journal:
        await begin_run(journal)
    assert set(modes) == {0o600}  # SQLite would create it for everyone


async def test_a_closed_journal_is_one_file_that_can_be_moved(tmp_path):
    for number in range(8):
        path = tmp_path / f"{number}.db"
        async with SQLiteJournal(path) as journal:
            await begin_run(journal, "one")
            await journal.read("one")  # with a connection of its own
        assert [file.name for file in tmp_path.iterdir() if file.stem == str(number)] == [path.name]
