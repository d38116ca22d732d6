"""Threads of a journal: one run at a time, whatever happens to the runs and their processes; failed
turns are not shown; threads are read, forked, exported, pruned and deleted in one piece."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, ClassVar

import pytest
import pytest_asyncio

import thread_runs
from bae import Dep, GateError, Graph, Messages, Node, RunCancelled, Thread
from bae.journal import (
    FieldText,
    Journal,
    MemoryJournal,
    RunEnded,
    RunStarted,
    SQLiteJournal,
)
from bae.testing import ScriptedLM, replaying
from end_node import EndNode
from journal_parts import expect_refusal
from thread_runs import Refund, Reply, Say, World, chat, refunds, replying


@pytest.fixture(autouse=True)
def world() -> World:
    thread_runs.WORLD.__init__()
    return thread_runs.WORLD


@pytest_asyncio.fixture(params=["memory", "file"])
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Journal]:
    made = MemoryJournal() if request.param == "memory" else SQLiteJournal(tmp_path / "runs.db")
    async with made as opened:
        yield opened


async def say(journal: Journal, *texts: str, thread: str | None = "ana", **options: Any) -> Any:
    """Say the texts one after the other; the last result."""
    result = None
    for text in texts:
        options = {"run_id": text, **options}
        result = await chat.arun(
            Say(text=text), replying(), thread=thread, journal=journal, **options
        )
        options.pop("run_id")
    return result


def users(history: Messages) -> list[str]:
    return [turn.user for turn in history]


async def standing(journal: Journal, run_id: str) -> str:
    return (await journal.info(run_id)).standing()


# One run at a time


async def test_runs_of_a_thread_execute_in_order(journal: Journal, world: World):
    first = world.waits_at("0")
    texts = [str(number) for number in range(5)]
    tasks: list[asyncio.Task[Any]] = []
    for text in texts:
        tasks.append(asyncio.create_task(say(journal, text)))
        await (first.wait() if text == "0" else asyncio.sleep(0.02))
    other = await say(journal, "elsewhere", thread="ben")
    assert users(other.trace[-1].history) == []
    world.hold["0"].set()
    results = await asyncio.gather(*tasks)
    assert [users(result.trace[-1].history) for result in results] == [
        texts[:number] if number < 5 else texts[1:5] for number in range(5)
    ]
    assert world.looked_up == ["0", "elsewhere", *texts[1:]]


async def test_a_busy_thread_refuses_a_run_that_must_not_wait(journal: Journal, world: World):
    began = world.waits_at("one")
    task = asyncio.create_task(say(journal, "one"))
    await began.wait()
    with expect_refusal("bae-thread-busy") as error:
        await say(journal, "two", busy="refuse")
    assert error.value.busy_run == "one"
    with expect_refusal("bae-thread-busy") as error:
        await say(journal, "two", busy_timeout=0.02)
    assert "0.02 s" in error.value.message
    queued = asyncio.create_task(say(journal, "three"))
    await asyncio.sleep(0.02)
    with expect_refusal("bae-thread-busy") as error:
        await say(journal, "two", busy_timeout=0.02)
    world.hold["one"].set()
    await asyncio.gather(task, queued)
    assert [info.run_id for info in await journal.runs()] == ["three", "one"]


async def test_a_run_may_cancel_and_replace_the_previous_turn(journal: Journal, world: World):
    await say(journal, "zero")
    began = world.waits_at("one")
    task = asyncio.create_task(say(journal, "one"))
    await began.wait()
    result = await say(journal, "two", busy="cancel")
    with pytest.raises(RunCancelled) as cancelled:
        await task
    assert (cancelled.value.code, cancelled.value.run_id) == ("bae-run-cancelled", "one")
    assert not task.cancelled()
    assert users(result.trace[-1].history) == ["zero"]
    assert await standing(journal, "one") == "cancelled"


async def test_a_thread_with_a_parked_turn_reports_its_open_question(
    journal: Journal,
):
    options: Any = {"thread": "ana", "journal": journal}
    await refunds.arun(Refund(text="one"), replying(), **options, run_id="one")
    with expect_refusal("bae-thread-busy") as error:
        await refunds.arun(Refund(text="two"), replying(), **options)
    assert "Refund.approved: Refund it?" in error.value.message
    answered = await refunds.answer("one", "approved", "yes", replying(), journal=journal)
    assert answered.result.text == "re: one"
    await refunds.arun(Refund(text="two"), replying(), **options, run_id="two")
    result = await refunds.arun(Refund(text="three"), replying(), **options, busy="cancel")
    assert result.waiting
    assert await standing(journal, "two") == "cancelled"
    with expect_refusal("bae-thread-busy"):
        await refunds.resume("two", replying(), journal=journal)


async def test_the_gate_of_a_cancelled_turn_refuses_an_answer(journal: Journal):
    options: Any = {"thread": "ana", "journal": journal}
    await refunds.arun(Refund(text="one"), replying(), **options, run_id="one")
    await journal.cancel("one")
    for go_on in (True, False):
        with pytest.raises(GateError) as error:
            await refunds.answer("one", "approved", "yes", replying(), journal=journal, go_on=go_on)
        assert error.value.code == "bae-gate-cancelled"
    assert await standing(journal, "one") == "cancelled"
    again = await refunds.resume("one", replying(), journal=journal)
    assert [gate.place for gate in again.waiting] == ["Refund.approved"]
    ended = await refunds.answer("one", "approved", "yes", replying(), journal=journal)
    assert ended.result.text == "re: one"


@pytest.mark.parametrize("how", [None, "resume", "cancel"])
async def test_an_interrupted_turn_is_resumed_or_cancelled_before_the_next_turn(
    journal: Journal, world: World, how: Any
):
    await say(journal, "zero")
    await record_interrupted_turn(journal, "one")
    result = await say(journal, "two", interrupted=how)
    seen = ["zero"] if how == "cancel" else ["zero", "one"]
    assert users(result.trace[-1].history) == seen
    assert await standing(journal, "one") == ("cancelled" if how == "cancel" else "ended")
    assert world.looked_up.count("one") == 1


async def test_a_streamed_turn_begins_after_the_interrupted_turn_is_resumed(
    journal: Journal, world: World
):
    await say(journal, "zero")
    await record_interrupted_turn(journal, "one")
    stream = chat.stream(Say(text="two"), replying(), thread="ana", journal=journal, run_id="two")
    async with stream as records:
        seen = [record async for record in records]
    assert records.result.run_id == "two"
    assert [record.run_id for record in seen if isinstance(record, RunStarted)] == ["two"]
    texts = [record.delta for record in seen if isinstance(record, FieldText)]
    assert texts == ["re: two"]
    assert await standing(journal, "one") == "ended"


async def test_an_interrupted_turn_that_fails_again_does_not_block_the_thread(
    journal: Journal, world: World
):
    await record_interrupted_turn(journal, "fails", after="SourceStarted")
    result = await say(journal, "two")
    assert users(result.trace[-1].history) == []
    assert await standing(journal, "fails") == "failed"


async def test_an_interrupted_turn_of_another_graph_is_reported_with_a_fix(
    journal: Journal,
):
    await record_interrupted_turn(journal, "one")
    for busy in ("wait", "refuse"):
        with expect_refusal("bae-run-graph") as error:
            await refunds.arun(
                Refund(text="two"), replying(), thread="ana", journal=journal, busy=busy
            )
        assert 'interrupted="cancel"' in (error.value.fix or "")
    options: Any = {"thread": "ana", "journal": journal, "interrupted": "cancel"}
    assert (await refunds.arun(Refund(text="two"), replying(), **options)).waiting
    assert await standing(journal, "one") == "cancelled"


async def record_interrupted_turn(journal: Journal, text: str, after: str = "SourceEnded") -> None:
    """A turn as it is left by a process that was killed after a line of this kind."""
    other = MemoryJournal()
    for info in reversed(await journal.runs()):
        await other.put(await journal.read(info.run_id))
    if text.startswith("fail"):
        with pytest.raises(Exception, match=text):
            await say(other, text)
    else:
        await say(other, text)
    stored = await other.read(text)
    upto = next(line.n for line in stored.lines if line.kind == after) + 1
    info = replace(
        stored.info, status="running", owner=None, lease_until=None, error="", summary=None
    )
    await journal.put(replace(stored, info=info, lines=stored.lines[:upto]))


async def test_later_turns_do_not_see_failed_or_cancelled_turns(journal: Journal, world: World):
    await say(journal, "one")
    with pytest.raises(Exception, match="fail"):
        await say(journal, "fail")
    began = world.waits_at("cut")
    task = asyncio.create_task(say(journal, "cut"))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    result = await say(journal, "two")
    assert users(result.trace[-1].history) == ["one"]
    turns = await chat.thread("ana", journal=journal).turns()
    assert [(turn.run_id, turn.status, turn.is_shown) for turn in turns] == [
        ("one", "ended", True),
        ("fail", "failed", False),
        ("cut", "cancelled", False),
        ("two", "ended", True),
    ]
    assert [(turn.user, turn.reply) for turn in turns] == [
        ("one", "re: one"),
        ("fail", ""),
        ("cut", ""),
        ("two", "re: two"),
    ]


# Cancelling


@pytest.mark.parametrize("who", ["owner", "another"])
async def test_a_run_in_progress_is_cancelled_through_its_journal(
    who: str, world: World, tmp_path: Path
):
    path = tmp_path / "runs.db"
    async with SQLiteJournal(path) as journal, SQLiteJournal(path) as another:
        began = world.waits_at("one")
        task = asyncio.create_task(say(journal, "one"))
        await began.wait()
        info = await (journal if who == "owner" else another).cancel("one")
        assert (info.status, info.run_id) == ("cancelled", "one")
        with pytest.raises(RunCancelled):
            await task
        assert world.working == 0
        assert (await another.cancel("one")).status == "cancelled"
        resumed = asyncio.create_task(chat.resume("one", replying(), journal=journal))
        world.hold["one"].set()
        assert (await resumed).result.text == "re: one"
        assert (await journal.cancel("one")).status == "ended"


async def test_a_run_that_was_cancelled_and_resumed_can_be_cancelled_again(
    journal: Journal, world: World
):
    for count in (1, 2):
        began = world.waits_at("one")
        work = (
            say(journal, "one") if count == 1 else chat.resume("one", replying(), journal=journal)
        )
        task = asyncio.create_task(work)
        await began.wait()
        await journal.cancel("one")
        with pytest.raises(RunCancelled):
            await task
    ends = [line.kind for line in (await journal.read("one")).lines].count("RunEnded")
    assert ends == 2


async def test_a_task_cancelled_by_its_owner_stays_cancelled(journal: Journal, world: World):
    began = world.waits_at("one")
    task = asyncio.create_task(say(journal, "one"))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_cancellation_without_a_wait_is_stored(journal: Journal, world: World):
    began = world.waits_at("one")
    task = asyncio.create_task(say(journal, "one"))
    await began.wait()
    assert (await journal.cancel("one", timeout=0)).status == "running"
    with pytest.raises(RunCancelled):
        await task


async def test_cancelling_a_run_raises_an_error_after_its_timeout(journal: Journal, world: World):
    claim = await journal.create(await make_stored_run("one"))
    assert claim is not None
    with expect_refusal("bae-cancel-timeout") as error:
        await journal.cancel("one", timeout=0.05)
    assert claim.owner in error.value.message
    await journal.release(claim, "ended", [])
    with expect_refusal("bae-run-unknown"):
        await journal.cancel("none")


async def test_the_error_for_an_unstoppable_turn_names_busy_timeout(
    journal: Journal,
):
    stored = await make_stored_run("one")
    claim = await journal.create(replace(stored, info=replace(stored.info, thread="ana")))
    assert claim is not None
    with expect_refusal("bae-cancel-timeout") as error:
        await say(journal, "two", busy="cancel", busy_timeout=0.05)
    assert "with a busy_timeout" in (error.value.fix or "")
    await journal.release(claim, "ended", [])


@pytest.mark.parametrize("status", ["queued", "waiting", "running"])
async def test_a_run_without_an_owner_is_cancelled_at_once(journal: Journal, status: Any):
    stored = await make_stored_run("one")
    await journal.put(replace(stored, info=replace(stored.info, status=status)))
    info = await journal.cancel("one", timeout=0)
    assert (info.status, info.waiting, info.owner) == ("cancelled", (), None)
    assert (await journal.info("one")).status == "cancelled"


async def test_a_queued_run_of_a_busy_thread_is_cancelled(journal: Journal, world: World):
    began = world.waits_at("one")
    task = asyncio.create_task(say(journal, "one"))
    await began.wait()
    stored = await make_stored_run("two")
    await journal.put(replace(stored, info=replace(stored.info, status="queued", thread="ana")))
    assert (await journal.cancel("two")).status == "cancelled"
    world.hold["one"].set()
    await task


async def make_stored_run(run_id: str) -> Any:
    """A run that has begun, and nothing more."""
    other = MemoryJournal()
    await say(other, "any")
    stored = await other.read("any")
    info = replace(stored.info, run_id=run_id, status="running", thread=None)
    return replace(stored, info=info, lines=stored.lines[:1])


async def test_the_stream_of_a_cancelled_run_ends_with_its_end_record(
    journal: Journal, world: World
):
    began = world.waits_at("one")
    stream = chat.stream(Say(text="one"), replying(), journal=journal, run_id="one", thread="t")

    async def cancel() -> None:
        await began.wait()
        await journal.cancel("one")

    task, records = asyncio.create_task(cancel()), list[Any]()
    with pytest.raises(RunCancelled):
        async for record in stream:
            records.append(record)
    await task
    (ended,) = [record for record in records if isinstance(record, RunEnded) and not record.path]
    assert ended.outcome == "cancelled"


# Resuming, replaying and forking


async def test_a_turn_cut_after_any_line_is_resumed_and_replayed_unchanged(
    world: World,
):
    async with MemoryJournal() as journal:
        await say(journal, "one", "two")
        first = await say(journal, "three")
        stored = await journal.read("three")
        for count in range(1, len(stored.lines)):
            async with MemoryJournal() as left:
                for run_id in ("one", "two"):
                    await left.put(await journal.read(run_id))
                info = replace(stored.info, status="running", owner=None, lease_until=None)
                await left.put(replace(stored, info=info, lines=stored.lines[:count]))
                again = await chat.resume("three", replying(), journal=left)
                assert again.trace == first.trace
                assert (await chat.replay("three", journal=left)).trace == first.trace
                after = await say(left, "four")
                assert users(after.trace[-1].history) == ["one", "two", "three"]


async def test_an_ended_turn_is_returned_with_its_history(journal: Journal):
    first = await say(journal, "one", "two")
    again = await chat.resume("two", replying(), journal=journal)
    assert again.trace == first.trace


async def test_a_replay_names_a_deleted_turn_that_its_prompt_showed(journal: Journal):
    await say(journal, "one", "two", "three")
    await journal.delete(["one"])
    with expect_refusal("bae-thread-turn") as error:
        await chat.replay("three", journal=journal)
    assert error.value.run_id == "one"
    result = await say(journal, "four")
    assert users(result.trace[-1].history) == ["two", "three"]
    assert result.trace[-1].history.omitted == 1


async def test_a_fork_in_its_thread_replaces_the_turn_and_all_later_turns(
    journal: Journal,
):
    await say(journal, "one", "two", "three")
    new = await chat.fork("two", at=0, journal=journal, thread="ana", text="edited")
    result = await chat.resume(new, replying(), journal=journal)
    assert users(result.trace[-1].history) == ["one"]
    assert users(await chat.thread("ana", journal=journal).messages()) == ["one", "edited"]
    after = await say(journal, "four")
    assert users(after.trace[-1].history) == ["one", "edited"]
    turns = await chat.thread("ana", journal=journal).turns()
    assert [(t.user, t.is_shown) for t in turns] == [
        ("one", True),
        ("two", False),
        ("three", False),
        ("edited", True),
        ("four", True),
    ]


async def test_a_fork_without_changes_retries_a_turn(journal: Journal):
    await say(journal, "one", "two")
    new = await chat.fork("two", at=0, journal=journal, thread="ana")
    with expect_refusal("bae-thread-busy"):
        await chat.fork("two", at=0, journal=journal, thread="ana")
    lm = ScriptedLM({Reply: {"text": "another reply"}})
    await chat.resume(new, lm, journal=journal)
    messages = await chat.thread("ana", journal=journal).messages()
    assert [(turn.user, turn.reply) for turn in messages] == [
        ("one", "re: one"),
        ("two", "another reply"),
    ]


async def test_a_fork_without_a_thread_sees_the_same_turns(
    journal: Journal,
):
    await say(journal, "one", "two")
    new = await chat.fork("two", at=0, journal=journal, text="what if")
    result = await chat.resume(new, replying(), journal=journal)
    assert users(result.trace[-1].history) == ["one"]
    assert users(await chat.thread("ana", journal=journal).messages()) == ["one", "two"]


async def test_a_turn_cannot_be_forked_into_another_thread(journal: Journal):
    await say(journal, "one", "two")
    await say(journal, "three", thread="ben")
    with expect_refusal("bae-fork-thread") as error:
        await chat.fork("one", at=0, journal=journal, thread="ben", text="edited")
    assert "'ana'" in error.value.message
    assert users(await chat.thread("ben", journal=journal).messages()) == ["three"]
    alone = await chat.fork("one", at=0, journal=journal, text="alone")
    await chat.resume(alone, replying(), journal=journal)
    assert (await journal.info(alone)).thread is None


async def test_a_run_without_a_thread_can_be_forked_into_a_thread(journal: Journal):
    await say(journal, "alone", thread=None)
    await say(journal, "one")
    new = await chat.fork("alone", at=0, journal=journal, thread="ana", text="two")
    result = await chat.resume(new, replying(), journal=journal)
    assert users(result.trace[-1].history) == ["one"]
    assert users(await chat.thread("ana", journal=journal).messages()) == ["one", "two"]


async def test_a_written_test_of_a_turn_includes_the_earlier_turns(
    journal: Journal, tmp_path: Path
):
    from bae.journal.earlier_turns import read_earlier_runs
    from bae.journal.written_test import GraphName, write_test

    await say(journal, "one", "two", "three")
    stored = await journal.read("three")
    earlier = await read_earlier_runs(journal, stored)
    assert [run.info.run_id for run in earlier] == ["one", "two"]
    written = await write_test(chat, stored, GraphName("thread_runs", "chat"), earlier)
    assert 'recorded.run(chat, "three")' in written.source.replace("'", '"')
    recording = tmp_path / "test_chat.jsonl"
    recording.write_bytes(written.recording)
    with replaying(recording) as recorded:
        assert (await recorded.arun(chat, "three")).result.text == "re: three"


# Threads as a whole


async def test_a_forked_thread_and_its_original_are_independent(
    journal: Journal,
):
    await say(journal, "one", "two", "three")
    thread = chat.thread("ana", journal=journal)
    assert await thread.fork("bea", upto="two") == 2
    copy = chat.thread("bea", journal=journal)
    assert users(await copy.messages()) == ["one", "two"]
    with expect_refusal("bae-thread-exists"):
        await thread.fork("bea")
    with expect_refusal("bae-run-unknown"):
        await thread.fork("cat", upto="none")
    assert await thread.delete() == 3
    result = await say(journal, "four", thread="bea")
    assert users(result.trace[-1].history) == ["one", "two"]
    for info in await copy.runs():
        replayed = await chat.replay(info.run_id, journal=journal)
        assert replayed.trace[-1].history.thread == "bea"
    assert await thread.turns() == []


async def test_reading_a_thread_again_reads_only_changes(world: World):
    class Counting(MemoryJournal):
        reads: ClassVar[list[str]] = []

        async def read_texts(self, run_id: str) -> Any:
            self.reads.append(run_id)
            return await super().read_texts(run_id)

    async with Counting() as journal:
        await say(journal, "one", "two", "three")
        thread = chat.thread("ana", journal=journal)
        first = await thread.turns()
        Counting.reads.clear()
        assert await thread.turns() == first
        assert Counting.reads == []
        await journal.redact("two", "Say.text")
        began = world.waits_at("four")
        task = asyncio.create_task(say(journal, "four"))
        await began.wait()
        for _ in range(2):
            shown = [(turn.user, turn.reply) for turn in await thread.turns()]
            assert shown[1:] == [("[withheld]", "re: two"), ("three", "re: three"), ("four", "")]
        assert Counting.reads == ["two", "four", "four"]
        world.hold["four"].set()
        await task
        assert (await thread.turns())[-1].reply == "re: four"


async def test_a_thread_with_running_turns_or_outside_forks_is_not_deleted(
    tmp_path: Path, world: World
):
    async with SQLiteJournal(tmp_path / "runs.db") as journal:
        await say(journal, "one")
        began = world.waits_at("two")
        task = asyncio.create_task(say(journal, "two"))
        await began.wait()
        thread = chat.thread("ana", journal=journal)
        with expect_refusal("bae-thread-busy"):
            await thread.delete()
        world.hold["two"].set()
        await task
        await chat.fork("one", at=0, journal=journal, new_id="apart")
        with expect_refusal("bae-thread-kept") as error:
            await thread.delete()
        assert "one" in error.value.message
        await journal.delete(["apart"])
        assert await thread.delete() == 1


async def test_a_thread_is_exported_and_loaded_with_its_metadata(journal: Journal, tmp_path: Path):
    await say(journal, "one", "two", metadata={"user_id": "u1", "tags": ["a"]})
    await say(journal, "other", thread="ben")
    path = tmp_path / "ana.jsonl"
    assert await chat.thread("ana", journal=journal).export(path) == 2
    async with MemoryJournal() as other:
        await other.load(path)
        result = await say(other, "three")
        assert users(result.trace[-1].history) == ["one", "two"]
        runs = await other.runs(metadata={"user_id": "u1"})
        assert [info.metadata["tags"] for info in runs] == [["a"], ["a"]]


async def test_a_forked_thread_with_a_retried_turn_is_exported_and_loaded(
    journal: Journal, tmp_path: Path
):
    await say(journal, "one", "two")
    again = await chat.fork("two", at=0, journal=journal, thread="ana", text="deux")
    await chat.resume(again, replying(), journal=journal)
    thread, copy = (chat.thread(id, journal=journal) for id in ("ana", "bea"))
    assert await thread.fork("bea") == 2
    assert await thread.delete() == 3
    assert await copy.export(tmp_path / "bea.jsonl") == 2
    async with MemoryJournal() as other:
        await other.load(tmp_path / "bea.jsonl")
        loaded = chat.thread("bea", journal=other)
        assert users(await loaded.messages()) == users(await copy.messages()) == ["one", "deux"]
        result = await say(other, "three", thread="bea")
        assert users(result.trace[-1].history) == ["one", "deux"]
    assert await copy.delete() == 2


async def test_turns_stay_in_their_order_when_runs_are_exported_newest_first(
    journal: Journal, tmp_path: Path
):
    await say(journal, "one", "two", "three")
    newest_first = [info.run_id for info in await journal.runs(thread="ana")]
    assert await journal.export(tmp_path / "ana.jsonl", newest_first) == 3
    async with MemoryJournal() as other:
        assert await other.load(tmp_path / "ana.jsonl") == ["one", "two", "three"]
        result = await say(other, "four")
        assert users(result.trace[-1].history) == ["one", "two", "three"]


async def test_a_redacted_text_is_withheld_from_later_turns(journal: Journal):
    await say(journal, "my number is 42", "two")
    await journal.redact("my number is 42", "Say.text")
    result = await say(journal, "three")
    history = result.trace[-1].history
    assert [(turn.user, turn.reply) for turn in history] == [
        ("[withheld]", "re: my number is 42"),
        ("two", "re: two"),
    ]


async def test_resumed_and_forked_runs_keep_their_metadata(journal: Journal):
    metadata = {"user_id": "u1", "plan": 3}
    await say(journal, "one", metadata=metadata)
    new = await chat.fork("one", at=0, journal=journal)
    await chat.resume(new, replying(), journal=journal)
    assert (await journal.info(new)).metadata == metadata
    assert len(await journal.runs(metadata={"plan": 3})) == 2


# Size and speed


async def test_the_storage_of_a_chat_grows_linearly_with_its_text(tmp_path: Path):
    sizes: list[int] = []
    text = "x" * 2000
    async with SQLiteJournal(tmp_path / "runs.db", durability="normal") as journal:
        for number in range(50):
            await say(journal, f"{number}{text}", run_id=f"r{number}")
            if number in (24, 49):
                stored = [await journal.read(f"r{n}") for n in range(number + 1)]
                sizes.append(sum(len(line.data) for run in stored for line in run.lines))
    first, both = sizes
    assert both < 2.05 * first


# Processes


def start(path: Path, text: str, mode: str = "") -> subprocess.Popen[str]:
    arguments = [sys.executable, "-m", "thread_runs", str(path), text, mode]
    folder = Path(__file__).parents[1]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=folder)


async def return_turns(history: Messages) -> Messages:
    return history


class Plan(EndNode):
    history: Annotated[Messages, Thread(last=None)]
    copied: Annotated[Messages, Dep(return_turns, history="history")]
    note: str


class Draft(Node):
    plan: Annotated[Plan, Dep()]
    text: str

    async def __call__(self) -> Sent:
        return Sent(history=self.plan.history, plan=self.plan, text=self.text)


class Told(Node):
    text: str

    async def __call__(self) -> Draft: ...


class Sent(EndNode):
    history: Annotated[Messages, Thread(last=None)]
    plan: Plan
    text: str


nested = Graph(start=Told, end=Sent)


async def tell(journal: Journal, *texts: str) -> ScriptedLM:
    lm = ScriptedLM()
    for text in texts:
        lm = ScriptedLM({Plan: {"note": "n"}, Draft: {"text": f"re: {text}"}})
        await nested.arun(Told(text=text), lm, thread="ana", journal=journal, run_id=text)
    return lm


async def test_turns_inside_other_values_are_stored_as_references(journal: Journal):
    await tell(journal, "first", "second", "third")
    stored = await journal.read("third")
    assert not any("re: first" in line.data for line in stored.lines)
    node = (await nested.resume("third", journal=journal)).result
    assert [turn.reply for turn in node.history] == ["re: first", "re: second"]
    assert node.history == node.plan.history == node.plan.copied

    forked = await nested.fork("third", at=1, journal=journal, text="other")
    again = (await nested.resume(forked, journal=journal)).result
    assert (again.history, again.text) == (node.history, "other")

    await journal.redact("first", "Told.text")
    node = (await nested.resume("third", journal=journal)).result
    assert users(node.plan.copied) == ["[withheld]", "second"]
    await journal.delete(["first"])
    node = (await nested.resume("third", journal=journal)).result
    assert (users(node.plan.copied), node.plan.copied.omitted) == (["second"], 1)


async def test_turns_given_by_the_caller_are_stored_completely(journal: Journal):
    given = Messages([("by hand", "yes")])
    plan = Plan(history=given, copied=given, note="n")
    sent = Graph(start=Sent)
    await sent.arun(
        Sent(history=given, plan=plan, text="t"), thread="ben", journal=journal, run_id="r"
    )
    assert (await sent.resume("r", journal=journal)).result.plan == plan


async def test_a_prompt_omits_the_turns_inside_its_values(journal: Journal):
    lm = await tell(journal, "first", "second")
    of_plan, of_draft = lm.prompts
    assert [message.role for message in of_plan.conversation] == ["user", "assistant", "user"]
    assert '"history"' not in of_draft.text


@pytest.mark.once
async def test_a_killed_turn_is_resumed_before_the_next_turn(tmp_path: Path):
    path = tmp_path / "runs.db"
    async with SQLiteJournal(path) as journal:
        await say(journal, "one")
    process = start(path, "two", "kill")
    process.communicate(timeout=60)
    assert process.returncode == -9
    async with SQLiteJournal(path) as journal:
        assert await standing(journal, "two") == "interrupted"
        result = await say(journal, "three")
        assert users(result.trace[-1].history) == ["one", "two"]
        assert [turn.reply for turn in result.trace[-1].history] == ["re: one", "re: two"]


@pytest.mark.once
async def test_processes_that_race_for_a_thread_take_turns(tmp_path: Path):
    path = tmp_path / "runs.db"
    async with SQLiteJournal(path) as journal:
        await say(journal, "zero")
    processes = [start(path, f"p{number}") for number in range(3)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert sorted(map(int, outputs)) == [1, 2, 3]
    async with SQLiteJournal(path) as journal:
        messages = await chat.thread("ana", journal=journal).messages()
        assert sorted(users(messages)) == ["p0", "p1", "p2", "zero"]


@pytest.mark.once
async def test_a_turn_of_another_process_can_be_cancelled_by_the_next_turn(tmp_path: Path):
    path = tmp_path / "runs.db"
    process = start(path, "slow", "hold")
    until = monotonic() + 60
    while not os.path.exists(f"{path}.began"):  # noqa: ASYNC240
        assert process.poll() is None
        assert monotonic() < until
        await asyncio.sleep(0.02)
    async with SQLiteJournal(path) as journal:
        result = await say(journal, "next", busy="cancel", busy_timeout=20)
        assert users(result.trace[-1].history) == []
        assert await standing(journal, "slow") == "cancelled"
    process.communicate(timeout=60)
    assert process.returncode == 1
