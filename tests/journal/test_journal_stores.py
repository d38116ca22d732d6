"""What every journal promises, whatever it keeps its runs in: `check_journal` on bae's stores, and
on stores that break a promise; and what bae's two stores do beyond that."""

import asyncio
import itertools
from dataclasses import replace

import pytest

from bae import Graph, JournalError, Node
from bae.journal import Claim, Journal, MemoryJournal, RunInfo, SQLiteJournal, StoredRun, store
from bae.testing import check_journal
from journal_parts import (
    SHAPE,
    begin_run,
    end_run,
    expect_refusal,
    ids,
    line,
    lines,
    new_run,
    numbers,
)
from postgres_server import journals_of

pytestmark = pytest.mark.once


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def journal(request, tmp_path):
    if request.param == "postgres":
        with journals_of(request.getfixturevalue("postgres")) as made:
            yield made()
        return
    made = MemoryJournal() if request.param == "memory" else SQLiteJournal(tmp_path / "runs.db")
    async with made:
        yield made


# --- the promises --------------------------------------------------------------------------------


async def test_the_memory_journal_keeps_every_promise():
    await check_journal(MemoryJournal)


async def test_the_sqlite_journal_keeps_every_promise_for_several_processes(tmp_path):
    count = itertools.count()
    await check_journal(
        lambda: SQLiteJournal(tmp_path / f"{next(count)}.db"),
        reopen=lambda journal: SQLiteJournal(journal.path),
    )


class SecondOwner(MemoryJournal):
    async def claim(self, run_id):
        try:
            return await super().claim(run_id)
        except JournalError:
            return Claim(run_id, "me too")


class TakesWhenAwaited(MemoryJournal):
    async def append(self, claim, lines):
        await super().append(claim, lines)


class LastAnswerCounts(MemoryJournal):
    async def answer(self, run_id, gate, value):
        await super().answer(run_id, gate, value)
        return True


class OldestFirst(MemoryJournal):
    async def runs(self, **wanted):
        return (await super().runs(**wanted))[::-1]


class NumbersNothing(MemoryJournal):
    async def runs(self, **wanted):
        return [replace(info, change=1) for info in await super().runs(**wanted)]


class DropsMetadata(MemoryJournal):
    def create(self, run, *, claim=True):
        info = replace(run.info, metadata={})
        return super().create(replace(run, info=info), claim=claim)


class ClaimsWhatIsQueued(MemoryJournal):
    def create(self, run, *, claim=True):
        return super().create(run)


class ForgetsNotes(MemoryJournal):
    def note(self, claim, line):
        pass


class ReplacesOneByOne(MemoryJournal):
    async def replace(self, runs, claims=(), *, erase=False):
        for run in runs:
            own = [claim for claim in claims if claim.run_id == run.info.run_id]
            await super().replace([run], own, erase=erase)


class Hangs(MemoryJournal):
    async def delete(self, run_ids):
        await asyncio.Event().wait()


BREAKS = {
    SecondOwner: "A run has one owner",
    TakesWhenAwaited: "`append` takes its lines when it is called",
    LastAnswerCounts: "`answer` stores the first answer to a gate",
    OldestFirst: "`runs` lists the newest runs first",
    NumbersNothing: "`runs(after=…)` lists the runs that have changed",
    DropsMetadata: "metadata: expected {'team': ['a', 1]}, got {}",
    ClaimsWhatIsQueued: 'A run with the status "queued"',
    ForgetsNotes: "A line from `note` is stored",
    ReplacesOneByOne: "`replace` replaces either all of the given runs or none",
}


@pytest.mark.parametrize("broken", BREAKS)
async def test_a_custom_store_is_told_which_promise_it_breaks(broken):
    with pytest.raises(AssertionError) as raised:
        await check_journal(broken)
    assert str(raised.value).startswith(f"{broken.__name__} breaks ")
    assert BREAKS[broken] in str(raised.value)
    assert isinstance(raised.value.__cause__, ExceptionGroup)


async def test_a_store_that_never_answers_fails_its_check_in_time(monkeypatch):
    monkeypatch.setattr("bae.testing.journal_promises.SECONDS", 0.5)
    with pytest.raises(AssertionError, match=r"`delete` removes a run.*\n.*longer than"):
        await check_journal(Hangs)


async def test_a_store_must_respect_owners_in_other_processes(tmp_path):
    class Neighbor(SQLiteJournal):
        async def claim(self, run_id):
            try:
                return await super().claim(run_id)
            except JournalError:
                return Claim(run_id, "me too")

    count = itertools.count()
    with pytest.raises(AssertionError, match="A store does not claim, delete or replace a run"):
        await check_journal(
            lambda: SQLiteJournal(tmp_path / f"{next(count)}.db"),
            reopen=lambda journal: Neighbor(journal.path),
        )


# --- what is built on a store --------------------------------------------------------------------


class Word(Node):
    text: str

    async def __call__(self) -> "Length":
        return Length(count=len(self.text))


class Length(Node):
    count: int

    async def __call__(self) -> None: ...


GRAPH = Graph(start=Word, end=Length)


class EightMethods(MemoryJournal):
    """A store that leaves what it may to the defaults, but for notes."""

    replace = Journal.replace
    fork = Journal.fork
    older = Journal.older


async def test_a_store_of_eight_methods_can_keep_every_promise():
    await check_journal(EightMethods)


async def test_a_store_without_replace_refuses_operations_that_need_it_by_name(tmp_path):
    async with EightMethods() as journal:
        await GRAPH.arun(Word(text="abc"), journal=journal, run_id="run")
        await journal.export(tmp_path / "runs.jsonl")
        with expect_refusal("bae-journal-replace") as raised:
            await journal.redact("run", "Word.text")
        assert "EightMethods cannot redact a run" in raised.value.message
        with expect_refusal("bae-journal-replace") as raised:
            await journal.load(tmp_path / "runs.jsonl", existing="replace")
        assert "EightMethods cannot replace runs by those of a file" in raised.value.message
        assert await journal.load(tmp_path / "runs.jsonl", existing="keep") == []
        assert (await GRAPH.resume("run", journal=journal)).result == Length(count=3)


async def queue(journal: Journal, run_id: str, text: str) -> None:
    """A run that another process has stored to be carried out here."""
    async with MemoryJournal() as other:
        await GRAPH.arun(Word(text=text), journal=other, run_id=run_id)
        run = await other.read(run_id)
    info = replace(run.info, status="queued", updated=run.lines[0].at, summary=None)
    await journal.create(replace(run, info=info, lines=run.lines[:1]), claim=False)


async def test_queued_runs_are_executed_in_order(journal):
    for run_id, text in (("a", "x"), ("b", "xy"), ("c", "xyz")):
        await queue(journal, run_id, text)
    assert await ids(journal, status="queued") == ["c", "b", "a"]
    assert (await GRAPH.resume("b", journal=journal)).result == Length(count=2)
    done = await GRAPH.recover(journal=journal)
    assert [(run.run_id, run.result.result.count) for run in done] == [("a", 1), ("c", 3)]
    assert await ids(journal, status="queued") == []
    assert {info.status for info in await journal.runs()} == {"ended"}


async def test_a_queued_run_is_exported_and_loaded_as_a_queued_run(journal, tmp_path):
    await queue(journal, "a", "x")
    await journal.export(tmp_path / "runs.jsonl")
    async with MemoryJournal() as other:
        await other.load(tmp_path / "runs.jsonl", unfinished="keep")
        assert await other.read("a") == await journal.read("a")
    async with MemoryJournal() as other:
        await other.load(tmp_path / "runs.jsonl")
        assert (await other.read("a")).info.status == "cancelled"


async def test_the_list_of_runs_shows_the_progress_of_each_run(journal):
    await GRAPH.arun(Word(text="abc"), journal=journal, run_id="run")
    summary = (await journal.runs())[0].summary
    assert summary is not None
    assert (summary.steps, summary.node, summary.calls, summary.cost) == (2, "Length", 0, 0.0)


# --- what both stores of bae do ------------------------------------------------------------------


async def test_an_unknown_status_is_refused_with_the_known_statuses(journal):
    await end_run(journal)
    for asked in (
        journal.runs(status="nope"),
        journal.prune(older_than=0, statuses=["nope"]),
        anext(aiter(journal.every_run(status="nope"))),
    ):
        with pytest.raises(ValueError, match="'nope': give one of queued, running, waiting, ended"):
            await asked
    assert await ids(journal) == ["run"]


async def test_every_run_is_listed_once_despite_concurrent_deletes(journal, monkeypatch):
    monkeypatch.setattr(store, "_PAGE", 10)
    for number in range(35):
        await end_run(journal, f"r{number}", graph="AB"[number % 2])
    newest = [f"r{number}" for number in reversed(range(35))]
    assert [info.run_id async for info in journal.every_run()] == newest
    even = [info.run_id async for info in journal.every_run(status="ended", graph="A")]
    assert even == newest[::2]
    assert [info async for info in journal.every_run(status="failed")] == []
    met = []
    async for info in journal.every_run():
        met.append(info.run_id)
        if len(met) == 10:  # the last of a page, and the one before it
            await journal.delete(met[-2:])
    assert met == newest


async def test_a_failed_replacement_leaves_the_old_run(journal):
    await end_run(journal, count=5, data='{"old": 1}')
    await journal.answer("run", "g", "1")
    await end_run(journal, "mine", status="failed")
    new = new_run("run", lines(0, 2, data='{"new": 1}'), status="failed")
    with expect_refusal("bae-run-exists"):
        await journal.put(new)
    wrong = replace(new, lines=(new.lines[0], new.lines[1]._replace(data="\ud800")))
    with pytest.raises((JournalError, UnicodeError)):
        await journal.put(wrong, replace=True)
    assert await numbers(journal) == [0, 1, 2, 3, 4]
    assert (await journal.read("run")).answers == {"g": "1"}
    await journal.put(new, replace=True)
    assert await journal.read("run") == new
    assert await ids(journal) == ["mine", "run"]


async def test_runs_that_share_lines_are_replaced_together(journal):
    await end_run(journal, "a", 5)
    await journal.fork("a", "b", 3, lines(3, 5))
    await journal.fork("b", "c", 4, lines(4, 5))
    runs = [await journal.read(run_id) for run_id in "abc"]
    new = [replace(run, lines=(line(0, '{"new": 1}'), *run.lines[1:])) for run in runs]
    with expect_refusal("bae-run-exists"):
        await journal.replace(new[:2])
    assert [await journal.read(run_id) for run_id in "abc"] == runs
    await journal.replace(new)
    assert [await journal.read(run_id) for run_id in "abc"] == new
    assert await ids(journal) == ["c", "b", "a"]


async def test_a_run_with_shared_lines_is_deleted_with_or_after_its_forks(journal):
    for name in ("a", "z"):
        await end_run(journal, name, 3)
    await journal.fork("a", "b", 2, [])
    await journal.fork("b", "c", 1, [])
    assert await journal.delete(["a", "b"]) == 0
    assert await journal.delete(["none", "c"]) == 1
    assert await journal.delete(["a"]) == 0
    assert await journal.delete(["a", "b", "a"]) == 2
    assert await ids(journal) == ["z"]
    assert await numbers(journal, "z") == [0, 1, 2]


async def test_delete_refuses_a_text_instead_of_a_list_of_ids():
    journal = MemoryJournal()
    await end_run(journal, "a", 1)
    with pytest.raises(TypeError, match="as a list"):
        await journal.delete("abc")
    assert await ids(journal) == ["a"]


async def test_a_journal_refuses_a_claim_of_another_journal(journal, tmp_path):
    for other in (MemoryJournal(), SQLiteJournal(tmp_path / "other.db")):
        async with other:
            claim = await begin_run(other)
            with pytest.raises(JournalError):
                await journal.append(claim, [line(1)])
            journal.note(claim, line(1))
            with pytest.raises(JournalError):
                await journal.release(claim, "ended", [])
            with pytest.raises(JournalError):
                await journal.replace([await other.read("run")], [claim])
            assert await numbers(other) == [0]
    assert await ids(journal) == []


async def test_every_operation_on_a_closed_journal_is_refused(journal):
    await begin_run(journal)
    await journal.close()
    info = RunInfo("new", "Trip", "ended", 1.0, 1.0, "hash")
    for asked in (
        journal.fork("run", "new", 0, []),
        journal.replace([]),
        journal.put(StoredRun(info, SHAPE, (line(0),), {})),
        journal.older(1.0, ["ended"]),
    ):
        with expect_refusal("bae-journal-closed"):
            await asked
