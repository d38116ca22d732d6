"""Clients that hold connections: one for each event loop, closed with it, and made anew when it is
asked for again."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from bae import Graph, Node
from bae.lm import Answer, Prompt
from bae.lm.clients import PerLoop
from bounded import BOUND
from toy_backend import ToyBackend


class Client:
    """Knows the loop it was opened in, and whether it was closed, once, in the same one."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.closed = 0
        self.gone = asyncio.Event()

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        assert asyncio.get_running_loop() is self.loop
        self.closed += 1
        self.gone.set()


class Clients:
    """A `PerLoop` with every client it has made."""

    def __init__(self) -> None:
        self.made: list[Client] = []
        self.held = PerLoop(self._make, lambda client: client.aclose())

    def _make(self) -> Client:
        self.made.append(Client())
        return self.made[-1]


async def test_one_loop_has_one_client_however_many_ask():
    clients = Clients()
    found = await asyncio.gather(*(clients.held.get() for _ in range(20)))

    assert set(found) == set(clients.made)
    assert len(clients.made) == 1
    await clients.held.aclose()


def test_every_loop_has_its_own_client_which_is_closed_with_it():
    clients = Clients()
    for _ in range(3):
        asyncio.run(clients.held.get())

    assert [client.closed for client in clients.made] == [1, 1, 1]
    assert len({id(client.loop) for client in clients.made}) == 3


def test_loops_that_are_over_are_let_go_of():
    clients = Clients()
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def once() -> None:
        await clients.held.get()
        loops.append(weakref.ref(asyncio.get_running_loop()))

    for _ in range(5):
        asyncio.run(once())
    clients.made.clear()  # each knows its loop
    gc.collect()

    assert [loop() for loop in loops] == [None] * 5


def test_a_loop_that_was_closed_without_closing_what_is_open_is_let_go_of_by_the_next():
    clients = Clients()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(clients.held.get())
    loop.close()
    gone = weakref.ref(loop)
    del loop
    asyncio.run(clients.held.get())  # type: ignore[arg-type]
    clients.made.clear()
    gc.collect()

    assert gone() is None


async def test_loops_in_other_threads_have_clients_of_their_own():
    clients = Clients()
    mine = await clients.held.get()

    def elsewhere() -> None:
        asyncio.run(clients.held.get())

    async with asyncio.timeout(BOUND):
        await asyncio.gather(*(asyncio.to_thread(elsewhere) for _ in range(4)))
    assert len(clients.made) == 5
    assert [client.closed for client in clients.made] == [0, 1, 1, 1, 1]
    assert await clients.held.get() is mine
    await clients.held.aclose()


async def test_a_client_that_was_closed_is_made_anew():
    clients = Clients()
    first = await clients.held.get()
    await clients.held.aclose()
    await clients.held.aclose()
    second = await clients.held.get()

    assert (first.closed, second.closed) == (1, 0)
    assert first is not second
    await clients.held.aclose()


async def test_closing_what_was_never_opened_does_nothing():
    clients = Clients()
    await clients.held.aclose()

    assert clients.made == []


async def test_a_client_that_cannot_be_made_is_tried_again_by_the_next():
    made: list[Any] = []

    def make() -> Client:
        made.append("tried")
        if len(made) == 1:
            raise OSError("no room")
        return Client()

    held = PerLoop(make, lambda client: client.aclose())
    with pytest.raises(OSError, match="no room"):
        await held.get()
    assert isinstance(await held.get(), Client)
    await held.aclose()


async def test_an_error_in_closing_is_raised_and_the_next_client_is_new():
    async def fails(client: Client) -> None:
        raise OSError("cannot close")

    held = PerLoop(Client, fails)
    first = await held.get()
    with pytest.raises(OSError, match="cannot close"):
        await held.aclose()
    second = await held.get()
    assert second is not first
    with pytest.raises(OSError, match="cannot close"):
        await held.aclose()


async def test_a_client_of_a_backend_that_nobody_holds_is_closed():
    clients = Clients()
    await clients.held.get()
    (client,) = clients.made
    del clients.held
    gc.collect()
    async with asyncio.timeout(BOUND):
        await client.gone.wait()  # the loop closes it in a task of its own

    assert client.closed == 1


async def test_what_is_made_and_is_nothing_is_closed_too_when_nobody_holds_it():
    closed = asyncio.Event()

    async def close(client: None) -> None:
        closed.set()

    held = PerLoop(lambda: None, close)
    await held.get()
    del held
    gc.collect()
    async with asyncio.timeout(BOUND):
        await closed.wait()


class Ask(Node):
    async def __call__(self) -> Told: ...


class Told(Node):
    text: str

    async def __call__(self) -> None: ...


class Connects(ToyBackend):
    def __init__(self) -> None:
        super().__init__(lambda prompt: {"text": "x"})
        self.clients = Clients()

    async def answer(self, prompt: Prompt) -> Answer:
        client = await self.clients.held.get()
        assert not client.closed
        return await super().answer(prompt)

    async def aclose(self) -> None:
        await self.clients.held.aclose()


def test_a_backend_used_in_sync_runs_one_after_another_leaves_nothing_open():
    lm = Connects()
    graph = Graph(start=Ask)
    for _ in range(3):
        graph.run(Ask(), lm)

    assert [client.closed for client in lm.clients.made] == [1, 1, 1]


async def test_a_backend_keeps_its_client_between_runs_of_one_loop_until_it_is_closed():
    async with Connects() as lm:
        for _ in range(3):
            await Graph(start=Ask).arun(Ask(), lm)
        (client,) = lm.clients.made
        assert client.closed == 0
    assert client.closed == 1


def test_a_run_that_fails_leaves_nothing_open_either():
    lm = Connects()
    lm.answers = [OSError("down")]
    with pytest.raises(Exception, match="down"):
        Graph(start=Ask).run(Ask(), lm)

    assert [client.closed for client in lm.clients.made] == [1]
