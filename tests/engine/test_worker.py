"""Runs that are submitted in one process and carried out in another, with the journal alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import SecretStr

from bae import Dep, Graph, JournalError, Node, RunCancelled, RunFailed, fencing_token
from bae.engine import Engine, JournalEngine, Worker, WorkerGraph, queue_status
from bae.exceptions import BaeLMError, GateError
from bae.journal import Journal, MemoryJournal, SQLiteJournal
from bounded import BOUND, error_from
from end_node import EndNode
from engine import shop
from engine.fleet import fleet_of


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[SQLiteJournal]:
    async with SQLiteJournal(tmp_path / "runs.db") as journal:
        yield journal


@asynccontextmanager
async def working(*graphs: Any, **options: Any) -> AsyncIterator[Worker]:
    """A worker of this process inside the block."""
    worker = Worker(*graphs, engine=JournalEngine(poll=0.05), **options)
    task = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(BOUND):
            yield worker
    finally:
        worker.stop()
        await task


async def until(wanted: Callable[[], bool]) -> None:
    """Let other tasks run until they have done something, which has no event."""
    async with asyncio.timeout(BOUND):
        while not wanted():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def until_waiting(journal: Journal, run_id: str) -> None:
    async with asyncio.timeout(BOUND):
        while (await journal.info(run_id)).status != "waiting":  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class Word(Node):
    text: str

    async def __call__(self) -> Length:
        return Length(count=len(self.text))


class Length(Node):
    count: int

    async def __call__(self) -> None: ...


WORDS = Graph(start=Word, end=Length, name="words")


class Held(Node):
    """Waits until a test lets it go, and says that it began."""

    name: str = "held"

    async def __call__(self) -> Length:
        HOLD.began.append(fencing_token())
        HOLD.begun.set()
        await HOLD.go.wait()
        return Length(count=len(HOLD.began))


class Hold:
    def __init__(self) -> None:
        self.began: list[int] = []
        self.begun, self.go = asyncio.Event(), asyncio.Event()


HOLD: Hold
HELD = Graph(start=Held, end=Length, name="held")


@pytest.fixture(autouse=True)
async def hold() -> Hold:
    global HOLD
    HOLD = Hold()
    return HOLD


# --- submit and result --------------------------------------------------------------------------


async def test_a_submitted_run_is_stored_but_not_started(journal: Journal):
    run_id = await HELD.submit(Held(), journal=journal, metadata={"user_id": "ana"}, thread="t")
    info = await journal.info(run_id)
    assert (info.status, info.owner, info.thread) == ("queued", None, "t")
    assert info.metadata == {"user_id": "ana"}
    assert HOLD.began == []


async def test_a_worker_runs_submitted_work_and_result_returns_it(journal: Journal):
    ids = [await WORDS.submit(Word(text="x" * n), journal=journal) for n in range(30)]
    async with working(WORDS, journal=journal, concurrency=3):
        results = [await WORDS.result(run_id, journal=journal) for run_id in ids]
    assert [result.result.count for result in results] == [*range(30)]


async def test_turns_submitted_together_to_a_thread_run_in_order(
    journal: Journal,
):
    threads = ["ana", "bo"] * 10
    ids = [await WORDS.submit(Word(text="x"), journal=journal, thread=thread) for thread in threads]
    later = await WORDS.submit(Word(text="x"), journal=journal, thread="ana", delay=0.2)
    ids.append(await WORDS.submit(Word(text="x"), journal=journal, thread="ana"))
    workers = [
        Worker(WORDS, journal=journal, engine=engine)
        for engine in (JournalEngine(poll=0.05), AtOnce([*reversed(ids)]))
    ]
    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(worker.run())
        for run_id in [*ids, later]:
            await WORDS.result(run_id, journal=journal)
        for worker in workers:
            worker.stop()
    for thread in ("ana", "bo"):
        turns = [info async for info in journal.every_run(thread=thread)]
        happened = sorted(turns, key=lambda info: info.updated)
        order = [info.run_id for info in happened if info.run_id != later]
        assert order == [i for i in ids if i in order]


class AtOnce(Engine):
    """Hands all runs to a worker at the same time, and again until they are over."""

    def __init__(self, ids: list[str]) -> None:
        self.ids = ids

    async def dispatch(self, run_id: str, graph: str, *, delay: float = 0.0) -> None:
        pass

    async def serve(self, worker: Worker) -> None:
        async def carry_out(run_id: str) -> None:
            while (await worker.carry_out(run_id, WORDS.name)).kind == "again":
                pass

        await asyncio.gather(*map(carry_out, self.ids))


async def test_recover_runs_submitted_runs(journal: Journal):
    run_id = await WORDS.submit(Word(text="abc"), journal=journal, max_iters=7)
    (done,) = await WORDS.recover(journal=journal)
    assert (done.run_id, done.result is not None and done.result.result.count) == (run_id, 3)


async def test_a_second_submission_with_the_same_id_is_refused(
    journal: Journal,
):
    await WORDS.submit(Word(text="abc"), journal=journal, run_id="order-1")
    again = WORDS.submit(Word(text="other"), journal=journal, run_id="order-1")
    assert (await error_from(JournalError, again)).code == "bae-run-exists"
    async with working(WORDS, journal=journal):
        result = await WORDS.result("order-1", journal=journal)
    assert result.result.count == 3
    assert len(await journal.runs()) == 1


async def test_a_start_node_with_a_secret_is_refused_with_an_alternative(journal: Journal):
    start = shop.Login(token=SecretStr("s3cret"))
    error = await error_from(JournalError, shop.logins.submit(start, journal=journal))
    assert (error.code, error.places) == ("bae-submit-secret", ("Login.token",))
    assert "Dep" in str(error)
    assert "s3cret" not in str(error)
    assert await journal.runs() == []


async def test_a_journal_that_stores_secrets_accepts_a_start_node_with_a_secret():
    async with MemoryJournal(secrets=True) as journal:
        start = shop.Login(token=SecretStr("s3cret"))
        run_id = await shop.logins.submit(start, journal=journal)
        async with working(shop.logins, journal=journal):
            result = await shop.logins.result(run_id, journal=journal)
    assert result.result == shop.Shipped(run="s3cret")


async def test_a_delayed_run_does_not_begin_before_its_time(journal: Journal):
    await WORDS.submit(Word(text="later"), journal=journal, run_id="later", delay=3600)
    await WORDS.submit(Word(text="soon"), journal=journal, run_id="soon", delay=0.2)
    async with working(WORDS, journal=journal):
        await WORDS.result("soon", journal=journal)
        soon = await journal.read("soon")
        assert soon.lines[1].at >= soon.info.started
        assert (await journal.info("later")).status == "queued"
    assert await WORDS.recover(journal=journal) == []


async def test_result_has_a_timeout_that_reports_what_the_run_waits_for(journal: Journal):
    await WORDS.submit(Word(text="abc"), journal=journal, run_id="a")
    error = await error_from(JournalError, WORDS.result("a", journal=journal, timeout=0.05))
    assert error.code == "bae-result-timeout"
    assert "bae worker" in str(error)
    await shop.refunds.arun(shop.Refund(amount=1), journal=journal, run_id="b")
    waiting = shop.refunds.result("b", journal=journal, timeout=0.05)
    assert "Refund.approved" in (await error_from(JournalError, waiting)).message


class Broken(Node):
    async def __call__(self) -> Length:
        raise GateError("not today", code="shop-closed")


BROKEN = Graph(start=Broken, end=Length, name="broken")


async def test_result_raises_the_error_of_a_run_that_failed_in_another_process(journal: Journal):
    run_id = await BROKEN.submit(Broken(), journal=journal)
    async with working(BROKEN, journal=journal):
        error = await error_from(RunFailed, BROKEN.result(run_id, journal=journal))
    assert (error.code, error.run_id, error.trace) == ("shop-closed", run_id, [Broken()])
    assert "not today" in error.message


async def test_result_raises_an_error_for_a_cancelled_run(journal: Journal):
    run_id = await WORDS.submit(Word(text="abc"), journal=journal)
    await journal.cancel(run_id)
    await error_from(RunCancelled, WORDS.result(run_id, journal=journal))


async def test_a_run_cancelled_on_request_is_exported_and_loaded(journal: Journal, tmp_path: Path):
    await HELD.submit(Held(), journal=journal, run_id="a")
    async with working(HELD, journal=journal):
        await HOLD.begun.wait()
        await journal.cancel("a")
    await journal.export(tmp_path / "runs.jsonl")
    async with MemoryJournal() as other:
        assert await other.load(tmp_path / "runs.jsonl") == ["a"]


# --- workers ------------------------------------------------------------------------------------


async def test_a_worker_never_exceeds_its_concurrency(journal: Journal):
    for number in range(5):
        await HELD.submit(Held(), journal=journal, run_id=f"{number}")
    async with working(HELD, journal=journal, concurrency=2) as worker:
        await HOLD.begun.wait()
        await until(lambda: len(HOLD.began) == 2)
        assert (worker.free, len(worker.run_ids)) == (0, 2)
        HOLD.go.set()
        for number in range(5):
            await HELD.result(f"{number}", journal=journal)


async def test_an_answer_in_another_process_makes_a_worker_continue_the_run(journal: Journal):
    run_id = await shop.refunds.submit(shop.Refund(amount=5), journal=journal)
    async with working(shop.refunds, journal=journal):
        await until_waiting(journal, run_id)
        await shop.refunds.answer(run_id, "approved", True, journal=journal, go_on=False)
        result = await shop.refunds.result(run_id, journal=journal)
    assert result.result == shop.Refunded(paid=5)


async def test_a_stopping_worker_hands_over_its_runs_without_cancelling_them(journal: Journal):
    await HELD.submit(Held(), journal=journal, run_id="a")
    async with working(HELD, journal=journal):
        await HOLD.begun.wait()
    info = await journal.info("a")
    assert (info.standing(), info.owner) == ("interrupted", None)
    HOLD.go.set()
    async with working(HELD, journal=journal):
        result = await HELD.result("a", journal=journal)
    assert result.result.count == 2


async def test_a_task_cancelled_by_the_engine_hands_over_its_run(journal: Journal):
    await HELD.submit(Held(), journal=journal, run_id="a")
    worker = Worker(HELD, journal=journal)
    work = asyncio.create_task(worker.carry_out("a", "held"))
    await HOLD.begun.wait()
    work.cancel()
    await asyncio.wait((work,))
    assert work.cancelled()
    info = await journal.info("a")
    assert (info.standing(), info.owner) == ("interrupted", None)


async def test_the_fencing_token_grows_with_every_process_that_claims_the_run(
    journal: Journal,
):
    await HELD.submit(Held(), journal=journal, run_id="a")
    for count in (1, 2, 3):
        async with working(HELD, journal=journal):
            await HOLD.begun.wait()
            HOLD.begun.clear()
        assert len(HOLD.began) == count
    assert HOLD.began == sorted(set(HOLD.began))
    assert HOLD.began[0] > 0


async def read_token() -> int:
    return fencing_token()


class Tokens(EndNode):
    from_dep: Annotated[int, Dep(read_token)]


async def test_the_fencing_token_is_0_outside_a_run_and_without_a_journal(
    journal: Journal,
):
    graph = Graph(start=Tokens)
    assert (await graph.arun(Tokens())).result.from_dep == 0
    assert (await graph.arun(Tokens(), journal=journal)).result.from_dep == 1
    assert fencing_token() == 0


class Nested(Node):
    async def __call__(self) -> Tokens:
        return (await Graph(start=Tokens).arun(Tokens())).result


async def test_a_run_without_a_journal_does_not_inherit_an_outer_fencing_token(
    journal: Journal,
):
    nested = await Graph(start=Nested, end=Tokens).arun(Nested(), journal=journal)
    assert nested.result.from_dep == 0


class Busy(Node):
    async def __call__(self) -> Length:
        TRIES.append(1)
        if len(TRIES) < 3:
            raise BaeLMError("busy", retryable=True, retry_after=0.01)
        return Length(count=len(TRIES))


TRIES: list[int] = []
BUSY = Graph(start=Busy, end=Length, name="busy")


async def test_a_run_is_retried_after_a_retryable_error(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("bae.engine.worker.FIRST_WAIT", 0.01)
    TRIES.clear()
    run_id = await BUSY.submit(Busy(), journal=journal)
    async with working(BUSY, journal=journal):
        assert (await BUSY.result(run_id, journal=journal)).result.count == 3


async def test_a_run_fails_after_its_last_retry(journal: Journal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bae.engine.worker.FIRST_WAIT", 0.01)
    TRIES.clear()
    run_id = await BUSY.submit(Busy(), journal=journal)
    async with working(BUSY, journal=journal, retries=1):
        error = await error_from(RunFailed, BUSY.result(run_id, journal=journal))
    assert (error.code, len(TRIES)) == ("bae-lm-failed", 2)


async def test_a_worker_supplies_each_graph_with_its_lm_and_secrets(journal: Journal):
    class Password(Node):
        word: SecretStr = SecretStr("")

        async def __call__(self) -> Length:
            return Length(count=len(self.word.get_secret_value()))

    graph = Graph(start=Password, end=Length, name="passwords")
    # A run that began with a secret and was interrupted: its journal does not have the secret.
    await graph.arun(Password(word=SecretStr("four")), journal=journal, run_id="a")
    stored = await journal.read("a")
    interrupted = replace(stored.info, run_id="a", status="running", summary=None)
    await journal.delete(["a"])
    await journal.put(replace(stored, info=interrupted, lines=stored.lines[:1]))
    given = {"Password.word": SecretStr("seven77")}
    async with working(WorkerGraph(graph, given=given), journal=journal):
        assert (await graph.result("a", journal=journal)).result.count == 7


def changed_words() -> Graph[Any, Any]:
    """The graph of the same name, as another version of the program has it."""

    class Word(Node):
        text: str
        language: str  # new, and no run has it

        async def __call__(self) -> Length:
            return Length(count=-1)

    return Graph(start=Word, end=Length, name="words")


async def test_a_run_with_incompatible_classes_is_left_to_another_worker(
    journal: Journal, caplog: pytest.LogCaptureFixture
):
    await WORDS.submit(Word(text="abc"), journal=journal, run_id="old")
    async with working(changed_words(), HELD, journal=journal):
        await HELD.submit(Held(), journal=journal, run_id="other")
        HOLD.go.set()
        await HELD.result("other", journal=journal)
        await until(lambda: "left to another worker" in caplog.text)
    assert (await journal.info("old")).status == "queued"
    assert caplog.text.count("the run old is left to another worker") == 1
    async with working(WORDS, journal=journal):
        assert (await WORDS.result("old", journal=journal)).result.count == 3


async def test_a_worker_refuses_two_graphs_with_one_name(journal: Journal):
    with pytest.raises(ValueError, match="same name"):
        Worker(WORDS, changed_words(), journal=journal)


# --- processes ----------------------------------------------------------------------------------


async def test_a_run_fails_after_it_has_killed_three_workers(
    tmp_path: Path,
):
    where = str(tmp_path / "runs.db")
    async with SQLiteJournal(where) as journal:
        await shop.poison.submit(shop.Poison(), journal=journal, run_id="bad")
        async with fleet_of(1, tmp_path, where, seconds=0.01) as fleet:
            for number in range(5):
                name = f"order-{number}"
                start = shop.Order(run=name)
                await shop.orders.submit(start, journal=journal, run_id=name)
            for _ in range(3):
                await fleet.until(lambda: fleet.workers[-1].poll() is not None)
                fleet.start()
            error = await error_from(RunFailed, shop.poison.result("bad", journal=journal))
            for number in range(5):
                await shop.orders.result(f"order-{number}", journal=journal, timeout=BOUND)
            assert fleet.workers[-1].poll() is None
    assert error.code == "bae-run-poisoned"
    assert "3 processes died" in error.message


async def test_a_worker_process_hands_over_its_runs_on_sigterm(tmp_path: Path):
    where = str(tmp_path / "runs.db")
    async with SQLiteJournal(where) as journal:
        ids = [f"order-{number}" for number in range(4)]
        async with fleet_of(1, tmp_path, where, seconds=3600) as fleet:
            for run_id in ids:
                await shop.orders.submit(shop.Order(run=run_id), journal=journal, run_id=run_id)
            await fleet.until_effects(4)
            fleet.workers[0].terminate()
            assert await asyncio.to_thread(fleet.workers[0].wait, BOUND) == 0
            for run_id in ids:
                info = await journal.info(run_id)
                assert (info.standing(), info.owner) == ("interrupted", None)
            fleet.seconds = 0.01
            fleet.start()
            for run_id in ids:
                await shop.orders.result(run_id, journal=journal, timeout=BOUND)


# --- status, and engines of others --------------------------------------------------------------


async def test_engine_status_counts_queued_delayed_running_and_parked_runs(journal: Journal):
    await WORDS.submit(Word(text="x"), journal=journal)
    await WORDS.submit(Word(text="x"), journal=journal, delay=60)
    await shop.refunds.arun(shop.Refund(amount=1), journal=journal)
    await HELD.submit(Held(), journal=journal)
    async with working(HELD, journal=journal):
        await HOLD.begun.wait()
        status = await queue_status(journal)
    assert (status.queued, status.delayed) == ({"words": 1}, {"words": 1})
    assert (status.running, status.waiting) == ({"held": 1}, {"refunds": 1})
    assert [*status.owners.values()] == [1]
    assert status.oldest["queued"] >= 0


class Away(Engine):
    """An engine that cannot be reached."""

    async def dispatch(self, run_id: str, graph: str, *, delay: float = 0.0) -> None:
        raise ConnectionError("no route")

    async def serve(self, worker: Worker) -> None:
        await worker.stopping.wait()


async def test_a_run_is_submitted_although_the_engine_is_unreachable(
    journal: Journal, caplog: pytest.LogCaptureFixture
):
    run_id = await WORDS.submit(Word(text="abc"), journal=journal, engine=Away())
    assert (await journal.info(run_id)).status == "queued"
    assert "could not be given to the engine" in caplog.text
