"""Promises for work that must end although its task is cancelled."""

import asyncio

import pytest

from bae.tasks import finish_despite_cancel, wait_despite_cancel


async def cancel_while_waiting(
    task: asyncio.Task[object], ready: asyncio.Event, times: int = 2
) -> None:
    """Cancel a task so often, each time once it waits again."""
    await ready.wait()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()


@pytest.mark.parametrize("fails", [False, True])
async def test_protected_work_finishes_before_the_cancellation_is_raised(
    fails: bool,
):
    ready, go, told = asyncio.Event(), asyncio.Event(), list[int]()

    async def work() -> int:
        ready.set()
        await go.wait()
        if fails:
            raise OSError("no disk")
        return 3

    task = asyncio.ensure_future(finish_despite_cancel(work(), told.append))
    await cancel_while_waiting(task, ready)
    assert told == []
    go.set()
    with pytest.raises(asyncio.CancelledError):  # which goes before what the work raises
        await task
    assert told == ([] if fails else [3])


async def test_protected_work_without_a_cancellation_returns_its_value_or_raises():
    async def fails() -> int:
        raise OSError("no disk")

    async def works() -> int:
        return 3

    reported: list[int] = []
    assert await finish_despite_cancel(works(), reported.append) == 3
    assert reported == [3]
    with pytest.raises(OSError, match="no disk"):
        await finish_despite_cancel(fails(), reported.append)
    assert reported == [3]


async def test_protected_work_that_has_not_started_is_cancelled_at_once():
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    reported: list[int] = []
    task = asyncio.ensure_future(finish_despite_cancel(future, reported.append, lambda: True))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reported == []
    assert not future.done()


async def test_wait_despite_cancel_returns_the_last_cancellation():
    ready = asyncio.Event()
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def waits() -> asyncio.CancelledError | None:
        ready.set()
        return await wait_despite_cancel([future])

    task = asyncio.ensure_future(waits())
    await cancel_while_waiting(task, ready)
    future.set_result(1)
    assert isinstance(await task, asyncio.CancelledError)
    assert await wait_despite_cancel([future]) is None
