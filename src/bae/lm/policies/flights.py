"""A question that is being answered for all who ask it meanwhile. Whoever asked first pays for the
request and has used it; when that one leaves, the next takes over. `cache.py` asks through them
what is not in its store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from copy import copy
from dataclasses import replace
from typing import Any

from bae.exceptions import BudgetError
from bae.lm.backend import Answer
from bae.lm.policies.charging import in_force
from bae.lm.policies.holds import Payer, Shared, around, current
from bae.tasks import gone
from bae.usage import Event, Restart, Usage, meter_in_force, report, tell


class Flights:
    """Questions that are on their way, by a key that is the same for equal ones. `joined` counts
    who has asked what was asked already."""

    def __init__(self) -> None:
        self.joined = 0
        self._under_way: dict[tuple[asyncio.AbstractEventLoop, str], Flight] = {}

    async def answer(self, key: str, ask: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """The answer to a question that is under way, or else the one that `ask` gives."""
        place = asyncio.get_running_loop(), key

        def over(flight: Flight) -> None:
            if self._under_way.get(place) is flight:
                del self._under_way[place]

        while True:
            flight = self._under_way.get(place)
            joined = flight is not None
            if flight is None:
                flight = self._under_way[place] = Flight(ask, over)
            self.joined += joined
            try:
                return await flight.landed()
            except BudgetError as error:
                # The budget of whoever asked first is not the concern of those who joined.
                if not joined or any(error.budget is budget for budget in in_force()):
                    raise
                tell(Restart(error, 0.0))


class Flight:
    """A question on its way. `over` is called when it is, and must not be joined any more."""

    def __init__(
        self, ask: Callable[[], Coroutine[Any, Any, Answer]], over: Callable[[Flight], None]
    ) -> None:
        first = _Waiter()
        self._waiting = [first]
        self._shared = Shared(first)
        self._told: list[Event] = []
        self._over = over
        self._first: _Waiter | None = first
        self._task = asyncio.get_running_loop().create_task(self._fly(ask))
        self._task.add_done_callback(self._land)

    async def landed(self) -> Answer:
        """Wait for the answer. Those who come later are told what they missed. The last to give up
        cancels the request, and waits until it is gone."""
        waiter, self._first = self._first, None
        if waiter is None:
            waiter = _Waiter()
            self._waiting.append(waiter)
            for event in self._told:
                waiter.tell(event)
        try:
            if not self._task.done():
                await waiter.turn
        except BaseException:
            await self._leave(waiter)
            raise
        if waiter.refused is not None:
            raise waiter.refused
        return self._share(waiter)

    async def _fly(self, ask: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        # In a context of its own, which outlives that of whoever asked first.
        current.set(self._shared)
        around.set(self._shared)
        meter_in_force.set((self._used, self._tell))
        return await ask()

    def _used(self, usage: Usage) -> None:
        self._payer.report(usage)

    def _tell(self, event: Event) -> None:
        self._told.append(event)
        for waiter in self._waiting:
            waiter.tell(event)

    @property
    def _payer(self) -> _Waiter:
        payer = self._shared.payer
        assert isinstance(payer, _Waiter)
        return payer

    def _land(self, task: asyncio.Task[Answer]) -> None:
        self._over(self)
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.wake()

    async def _leave(self, waiter: _Waiter) -> None:
        task = self._task
        try:
            if not task.done() and waiter.refused is None:
                self._waiting.remove(waiter)
                if waiter is self._payer:
                    self._hand_over()
                if not self._waiting:
                    self._over(self)
                    task.cancel()
                    await gone([task])
        finally:
            answered = task.done() and not task.cancelled() and task.exception() is None
            if answered and waiter is self._payer:
                report(task.result().usage)  # it was paid for, and nobody else has used it

    def _hand_over(self) -> None:
        """Have the next who waits pay. Those whose budgets do not allow for it are turned away."""
        for waiter in list(self._waiting):
            try:
                self._shared.pass_to(waiter)
                return
            except BudgetError as error:
                self._waiting.remove(waiter)
                waiter.refused = error
                waiter.wake()

    def _share(self, waiter: _Waiter) -> Answer:
        """The answer, or the error. Whoever pays has used what it used; and each has an error of
        its own, as those who raise it write into it."""
        if waiter is self._payer or self._task.cancelled():
            return self._task.result()
        error = self._task.exception()
        if error is not None:
            raise _copy(error) from error.__cause__
        answer = self._task.result()
        return replace(answer, usage=Usage(models=answer.usage.models))


class _Waiter(Payer):
    """One who waits for the answer, and where to that one reports."""

    __slots__ = ("meter", "refused", "turn")

    def __init__(self) -> None:
        super().__init__()
        self.meter = meter_in_force.get()
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.refused: BudgetError | None = None

    def report(self, usage: Usage) -> None:
        if self.meter is not None:
            self.meter[0](usage)

    def tell(self, event: Event) -> None:
        if self.meter is not None and self.meter[1] is not None:
            self.meter[1](event)

    def wake(self) -> None:
        if not self.turn.done():
            self.turn.set_result(None)


def _copy(error: BaseException) -> BaseException:
    try:
        copied = copy(error)
    except Exception:  # not every exception can be made from its arguments
        return error
    if hasattr(error, "__notes__"):
        copied.__notes__ = list(error.__notes__)
    return copied
