"""Limits on requests to a model: how many at once (`Concurrency`), and how many, with how many
tokens, in a span of time (`RateLimit`). Requests beyond a limit queue, first come, first served."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from math import isfinite
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING

from bae.exceptions import BaeLMError
from bae.lm.backend import Answer, Prompt
from bae.lm.policies.budget import at_least_estimated, estimate_tokens
from bae.lm.policies.policy import Policy
from bae.usage import Usage, metered, sound

if TYPE_CHECKING:
    from bae.language_model import LM

SHORTEST_WAIT = 0.001
"""Seconds. Clocks are not exact: a shorter wait could be none, again and again."""


_held_here: ContextVar[tuple[Concurrency, ...]] = ContextVar("bae_slots_held", default=())
"""The limits that the question in progress here has a slot of. An LM that is no backend calls tools
while it is asked."""


@dataclass(frozen=True, slots=True)
class ConcurrencyStatistics:
    """How many requests are `running` and `waiting`, the `most` that ever ran at once, and how
    many were `asked` in total."""

    limit: int
    running: int
    waiting: int
    most: int
    asked: int


class Concurrency(Policy):
    """Allows at most `limit` concurrent requests; the rest queue.

    The limit belongs to the object, across runs, event loops and threads: share one to share the
    limit. Put it inside `Retry`: a request that waits to be sent again holds no slot then.
    """

    def __init__(self, lm: LM | str, limit: int) -> None:
        super().__init__(lm)
        if type(limit) is not int or limit < 1:
            raise ValueError(f"Concurrency(limit={limit!r}): give 1 or more")
        self.limit = limit
        self._slots = Slots(limit)
        self._most = 0
        self._asked = 0

    async def answer(self, prompt: Prompt) -> Answer:
        """Wait for a slot, then ask the LM inside."""
        self._asked += 1
        held = _held_here.get()
        if self in held:
            # Asked by a tool of a question that has a slot: waiting for another could take forever.
            return await self.ask(prompt)
        async with self._slots:
            self._most = max(self._most, self._slots.taken)
            token = _held_here.set((*held, self))
            try:
                return await self.ask(prompt)
            finally:
                _held_here.reset(token)

    def statistics(self) -> ConcurrencyStatistics:
        """How many requests run and wait."""
        return ConcurrencyStatistics(
            self.limit, self._slots.taken, self._slots.waiting, self._most, self._asked
        )


@dataclass(frozen=True, slots=True)
class RateStatistics:
    """The `requests` and `tokens` of the last span of time, how many are `waiting` now, how many
    were `sent` in total, and the sum of the seconds they `waited` before that."""

    requests: int
    tokens: int
    waiting: int
    sent: int
    waited: float


class RateLimit(Policy):
    """Sends at most `requests` requests, with `tokens` tokens in and out, in any `per` seconds.

    The tokens of a request are estimated from its prompt before it is sent, and corrected by the
    usage of the answer, so the first answers may exceed a limit on tokens by what the model writes.
    Requests beyond the limit queue. One that cannot be sent within `longest_wait` seconds fails as
    soon as that is certain, with the code `bae-lm-rate-wait`.

    No span of `per` seconds holds more than the limits: that is stricter than a token bucket, which
    is refilled while it is emptied, and also right for providers that count by the minute. The
    limit belongs to the object, across runs, event loops and threads: share one to share the limit.
    `clock` and `sleep` are for tests.
    """

    def __init__(
        self,
        lm: LM | str,
        requests: int | None = None,
        tokens: int | None = None,
        per: float = 60.0,
        *,
        longest_wait: float | None = None,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        super().__init__(lm)
        if requests is None and tokens is None:
            raise ValueError("RateLimit(lm): give requests=, tokens= or both")
        for name, value in (("requests", requests), ("tokens", tokens)):
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"RateLimit({name}={value!r}): give 1 or more")
        if not isfinite(per) or per <= 0:
            raise ValueError(f"RateLimit(per={per!r}): give more than 0 seconds")
        if longest_wait is not None and not longest_wait >= 0:
            raise ValueError(f"RateLimit(longest_wait={longest_wait!r}): give 0 or more seconds")
        self.requests = requests
        self.tokens = tokens
        self.per = per
        self.longest_wait = longest_wait
        self._clock = clock
        self._sleep = sleep
        self._window = _Window(per)
        self._lock = Lock()
        self._first = Slots(1)  # only the first in the queue looks at what was sent
        self._waiting = 0
        self._sent = 0
        self._waited = 0.0

    async def answer(self, prompt: Prompt) -> Answer:
        """Wait until the request fits, then ask the LM inside."""
        estimate = 0 if self.tokens is None else estimate_tokens(prompt)
        sent = await self._admitted(estimate)
        used: list[Usage] = []
        reported: list[Usage] = []
        try:
            with metered() as reported:  # requests that failed
                answer = await self.ask(prompt)
            used.append(sound(answer.usage))
        finally:
            used += reported
            # An answer from a cache sends nothing. Some LMs do not report tokens.
            tokens = sum(at_least_estimated(each, estimate) for each in used if each.calls)
            with self._lock:
                self._window.correct(sent, sum(each.calls for each in used), tokens)
        return answer

    def statistics(self) -> RateStatistics:
        """What was sent in the last span of time, and what waits."""
        with self._lock:
            window = self._window
            window.forget(self._clock())
            requests, tokens = window.requests.total, window.tokens.total
            return RateStatistics(requests, tokens, self._waiting, self._sent, self._waited)

    async def _admitted(self, tokens: int) -> _Sent:
        came = self._clock()
        with self._lock:
            if self.longest_wait is not None:
                # All who wait are sent before, so this one is sent no earlier than the last.
                self._refuse(self._wait(came, self._waiting + 1, tokens))
            self._waiting += 1
        try:
            async with self._first:
                while True:
                    with self._lock:
                        now = self._clock()
                        wait = self._wait(now, 1, tokens)
                        self._refuse(now - came + wait)
                        if wait <= 0:
                            self._sent += 1
                            self._waited += now - came
                            return self._window.add(now, tokens)
                    await self._sleep(max(wait, SHORTEST_WAIT))
        finally:
            with self._lock:
                self._waiting -= 1

    def _wait(self, now: float, requests: int, tokens: int) -> float:
        """Seconds until the last of so many requests, which has so many tokens, can be sent. One
        larger than the limit can when there is nothing else: its size is an estimate."""
        window = self._window
        window.forget(now)
        return max(
            self._until(now, window.requests, self.requests, requests),
            self._until(now, window.tokens, self.tokens, min(tokens, self.tokens or 0)),
        )

    def _until(self, now: float, sent: _Sums, most: int | None, added: int) -> float:
        if most is None:
            return 0.0
        # So much goes through in every span, and the rest when enough of the old has expired.
        spans = max(0, added - 1) // most
        excess = sent.total + added - spans * most - most
        at = self._window.expiry(sent, excess) if excess > 0 else now
        return at - now + spans * self.per

    def _refuse(self, wait: float) -> None:
        if self.longest_wait is None or wait <= self.longest_wait:
            return
        limits = ((self.requests, "requests"), (self.tokens, "tokens"))
        allowed = " and ".join(f"{n} {what}" for n, what in limits if n is not None)
        raise BaeLMError(
            f"{self.model or 'the LM'}: {allowed} are allowed in {self.per:g} s, and this request"
            f" would wait {wait:.1f} s, which is longer than {self.longest_wait:g} s",
            code="bae-lm-rate-wait",
            sent=False,
            fix="ask for less at once, raise longest_wait=…, or raise the limits if the provider "
            "allows more",
        )


@dataclass(slots=True, eq=False)
class _Sent:
    """A request that was sent: when, and with how many tokens as far as is known."""

    at: float
    tokens: int
    requests: int = 1
    position: int = 0
    """In the window, from 1 on; 0 once it is too old to count."""


class _Window:
    """The requests of the last `per` seconds, in order. The work for one request grows with the
    logarithm of their number at most, so a window may hold very many."""

    def __init__(self, per: float) -> None:
        self.per = per
        self.requests = _Sums()
        self.tokens = _Sums()
        self._sent: list[_Sent] = []
        self._forgotten = 0

    def add(self, now: float, tokens: int) -> _Sent:
        """Count a request that is sent now."""
        self._sent.append(_Sent(now, tokens, position=len(self._sent) + 1))
        self.requests.append(1)
        self.tokens.append(tokens)
        return self._sent[-1]

    def correct(self, sent: _Sent, requests: int, tokens: int) -> None:
        """Count a request as what it turned out to be, where it still counts."""
        if sent.position:
            self.requests.add(sent.position, requests - sent.requests)
            self.tokens.add(sent.position, tokens - sent.tokens)
            sent.requests, sent.tokens = requests, tokens

    def forget(self, now: float) -> None:
        """Drop what is too old to count."""
        sent = self._sent
        while self._forgotten < len(sent) and sent[self._forgotten].at + self.per <= now:
            self.correct(sent[self._forgotten], 0, 0)
            sent[self._forgotten].position = 0
            self._forgotten += 1
        if 2 * self._forgotten > len(sent):  # seldom enough to cost a step each
            self._sent, self._forgotten = sent[self._forgotten :], 0
            for position, each in enumerate(self._sent, 1):
                each.position = position
            self.requests = _Sums(each.requests for each in self._sent)
            self.tokens = _Sums(each.tokens for each in self._sent)

    def expiry(self, sums: _Sums, amount: int) -> float:
        """When so much of what was sent is too old to count."""
        return self._sent[sums.reach(amount) - 1].at + self.per


class _Sums:
    """Amounts by position, from 1 on, and their sum: a Fenwick tree."""

    def __init__(self, amounts: Iterable[int] = ()) -> None:
        self.total = 0
        self._tree = [0]
        for amount in amounts:
            self.append(amount)

    def append(self, amount: int) -> None:
        """Add an amount at the end."""
        self.total += amount
        position, width = len(self._tree), 1
        while not position & width:
            amount += self._tree[position - width]
            width *= 2
        self._tree.append(amount)

    def add(self, position: int, amount: int) -> None:
        """Change the amount at a position by so much."""
        self.total += amount
        while amount and position < len(self._tree):
            self._tree[position] += amount
            position += position & -position

    def reach(self, amount: int) -> int:
        """The first position with which the amounts from the start on make up so much."""
        position = 0
        width = 1 << len(self._tree).bit_length()
        while width := width // 2:
            if position + width < len(self._tree) and self._tree[position + width] < amount:
                position += width
                amount -= self._tree[position]
        return position + 1


class Slots:
    """At most `limit` holders at once, across event loops and threads. Enter it to take a slot;
    waiters get theirs in order, and no slot is lost when one is cancelled while it waits, or at
    the moment a slot is handed to it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        # In order, and each can be taken out at once, however many wait.
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._lock = Lock()

    @property
    def waiting(self) -> int:
        """How many callers wait for a slot."""
        return len(self._waiting)

    async def __aenter__(self) -> None:
        with self._lock:
            if self.taken < self.limit:
                self.taken += 1
                return
            waiter = asyncio.get_running_loop().create_future()
            self._waiting[waiter] = None
        try:
            await waiter
        except BaseException:
            with self._lock:
                if waiter in self._waiting:
                    del self._waiting[waiter]
                else:
                    self._hand_on()
            raise

    async def __aexit__(self, *error: object) -> None:
        with self._lock:
            self._hand_on()

    def _hand_on(self) -> None:
        """Give a slot to the next waiter, with the lock held."""
        while self._waiting:
            waiter, _ = self._waiting.popitem(last=False)
            try:
                waiter.get_loop().call_soon_threadsafe(_wake, waiter)
            except RuntimeError:
                continue  # its loop was closed under it
            return
        self.taken -= 1


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():  # it was cancelled
        waiter.set_result(None)
