"""Limits on requests to a model. `Concurrency` limits the requests in progress. `RateLimit` limits
the requests and tokens per time window. Requests beyond a limit wait in a queue, first come, first
served."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from math import isfinite
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bae.exceptions import BaeLMError
from bae.lm.backend import Answer, Prompt
from bae.lm.policies.budget import at_least_estimated, estimate_tokens
from bae.lm.policies.policy import Policy
from bae.usage import Usage, metered, normalize_usage

if TYPE_CHECKING:
    from bae.language_model import LM

SHORTEST_WAIT = 0.001
"""The shortest wait in seconds. Clocks are not exact, so a shorter wait might not advance the
clock."""


_entered_limits: ContextVar[tuple[Concurrency, ...]] = ContextVar("bae_slots_held", default=())
"""The limits in which the current question has a slot. An adapted LM runs its tools inside the
question, and a tool may ask a further question."""


@dataclass(frozen=True, slots=True)
class ConcurrencyStatistics:
    """The requests to a `Concurrency`."""

    limit: int
    """The most requests that may run at once."""

    running: int
    """Requests in progress now."""

    waiting: int
    """Requests that wait for a slot now."""

    most: int
    """The most requests that ran at once so far."""

    asked: int
    """All requests so far."""


class Concurrency(Policy):
    """Allows at most `limit` concurrent requests. Further requests wait in a queue.

    The limit belongs to this object, across runs, event loops and threads: share the object to
    share the limit. Put this policy inside `Retry`, so that a request has no slot while it waits
    for a retry.
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
        """Wait for a slot, then ask the wrapped LM."""
        self._asked += 1
        entered = _entered_limits.get()
        if self in entered:
            # A tool asks inside a question that has a slot. Waiting for another slot could
            # deadlock.
            return await self.ask(prompt)
        async with self._slots:
            self._most = max(self._most, self._slots.taken)
            token = _entered_limits.set((*entered, self))
            try:
                return await self.ask(prompt)
            finally:
                _entered_limits.reset(token)

    def statistics(self) -> ConcurrencyStatistics:
        """Return the counts of requests."""
        return ConcurrencyStatistics(
            self.limit, self._slots.taken, self._slots.waiting, self._most, self._asked
        )


@dataclass(frozen=True, slots=True)
class RateStatistics:
    """The requests to a `RateLimit`."""

    requests: int
    """Requests in the last time window."""

    tokens: int
    """Tokens in the last time window."""

    waiting: int
    """Requests in the queue now."""

    sent: int
    """All requests sent so far."""

    waited: float
    """Seconds that all sent requests together waited in the queue."""


class RatePlace(NamedTuple):
    """The answer of a `RateStore` to a request."""

    bucket: int
    """The bucket that counts the request, if `wait` is 0."""

    wait: float
    """0 if the request may be sent now. Otherwise the seconds to wait before the next
    `reserve`."""


class RateStore(Protocol):
    """The methods that `RateLimit` calls on a store that processes share, such as
    `bae.lm.PostgresStore`. Several event loops may use one store."""

    async def reserve(
        self, name: str, per: float, requests: int | None, tokens: int | None, asked: int
    ) -> RatePlace:
        """Count a request with `asked` tokens, if the limits of `name` allow the request: at most
        `requests` requests and `tokens` tokens in any `per` seconds. None means no limit. If the
        limits do not allow the request, count nothing and return how long to wait."""
        ...

    def settle(self, name: str, per: float, bucket: int, requests: int, tokens: int) -> None:
        """Add `requests` and `tokens`, which may be negative, to the counts of a bucket. Return
        before the counts are stored."""
        ...

    async def aclose(self) -> None:
        """Close the store. The next use opens it again."""
        ...


class RateLimit(Policy):
    """Sends at most `requests` requests, or `tokens` tokens of input and output, in any `per`
    seconds.

    Further requests wait in a queue. If a request cannot be sent within `longest_wait` seconds, it
    fails with the code `bae-lm-rate-wait`, as soon as the wait is certain to be too long.

    Before a request is sent, bae estimates its tokens from the prompt. The answer's usage corrects
    the estimate. The first answers may therefore exceed the limit on tokens.

    The limit applies to every window of `per` seconds, wherever the window starts. Such a limit is
    stricter than a token bucket, and also correct for providers that count by the minute.

    The limit belongs to this object, across runs, event loops and threads: share the object to
    share the limit. With a `store`, processes on several machines share the limit. All
    limits with the same `name` in a store are one limit. The default name is the model's name.
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
        store: RateStore | str | None = None,
        name: str | None = None,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        super().__init__(lm)
        if requests is None and tokens is None:
            raise ValueError("RateLimit(lm): give requests=, tokens= or both")
        for limit, value in (("requests", requests), ("tokens", tokens)):
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"RateLimit({limit}={value!r}): give 1 or more")
        if not isfinite(per) or per <= 0:
            raise ValueError(f"RateLimit(per={per!r}): give more than 0 seconds")
        if longest_wait is not None and not longest_wait >= 0:
            raise ValueError(f"RateLimit(longest_wait={longest_wait!r}): give 0 or more seconds")
        if isinstance(store, str):
            from bae.lm.policies.postgres_store import PostgresStore

            store = PostgresStore(store)
        elif store is not None and not hasattr(store, "reserve"):
            raise TypeError(f"RateLimit(store={store!r}): give a PostgresStore, or its address")
        self.store = store
        self.name = name or self.model or ""
        if store is not None and not self.name:
            raise ValueError("RateLimit(store=…): the model has no name, so give the limit a name=")
        self.requests = requests
        self.tokens = tokens
        self.per = per
        self.longest_wait = longest_wait
        self._clock = clock
        self._sleep = sleep
        self._window = _Window(per)
        self._lock = Lock()
        self._first = Slots(1)  # only the first request in the queue checks the window
        self._waiting = 0
        self._sent = 0
        self._waited = 0.0

    async def answer(self, prompt: Prompt) -> Answer:
        """Wait until the limit allows the request, then ask the wrapped LM."""
        estimate = 0 if self.tokens is None else estimate_tokens(prompt)
        sent = await self._wait_for_turn(estimate)
        used: list[Usage] = []
        reported: list[Usage] = []
        try:
            with metered() as reported:  # the usage of failed requests
                answer = await self.ask(prompt)
            used.append(normalize_usage(answer.usage))
        finally:
            used += reported
            # An answer from a cache has no calls. If an LM reports no tokens, the estimate counts.
            tokens = sum(at_least_estimated(usage, estimate) for usage in used if usage.calls)
            requests = sum(usage.calls for usage in used)
            if self.store is not None:
                more = requests - 1, tokens - sent.reserved
                self.store.settle(self.name, self.per, sent.bucket, *more)
            with self._lock:
                self._window.correct(sent, requests, tokens)
        return answer

    async def aclose(self) -> None:
        """Close the store and the wrapped LM."""
        try:
            if self.store is not None:
                await self.store.aclose()
        finally:
            await super().aclose()

    def statistics(self) -> RateStatistics:
        """Return the counts of the last time window, of the queue and of all requests."""
        with self._lock:
            window = self._window
            window.forget(self._clock())
            requests, tokens = window.requests.total, window.tokens.total
            return RateStatistics(requests, tokens, self._waiting, self._sent, self._waited)

    async def _wait_for_turn(self, tokens: int) -> _Sent:
        arrived = self._clock()
        with self._lock:
            if self.longest_wait is not None:
                # All requests in the queue are sent before this one.
                self._check_wait(self._compute_wait(arrived, self._waiting + 1, tokens))
            self._waiting += 1
        try:
            async with self._first:
                while True:
                    bucket, shared_wait = 0, 0.0
                    if self.store is not None:
                        limits = self.requests, self.tokens
                        place = await self.store.reserve(self.name, self.per, *limits, tokens)
                        bucket, shared_wait = place
                    with self._lock:
                        now = self._clock()
                        wait = shared_wait if self.store else self._compute_wait(now, 1, tokens)
                        if wait > 0 or self.store is None:
                            self._check_wait(now - arrived + wait)
                        if wait <= 0:
                            self._sent += 1
                            self._waited += now - arrived
                            return self._window.add(now, tokens, bucket)
                    await self._sleep(max(wait, SHORTEST_WAIT))
        finally:
            with self._lock:
                self._waiting -= 1

    def _compute_wait(self, now: float, requests: int, tokens: int) -> float:
        """Return the seconds until the last of `requests` requests can be sent. That last request
        has `tokens` tokens. A request larger than the limit can be sent as soon as the window is
        empty, because the size is only an estimate."""
        window = self._window
        window.forget(now)
        return max(
            self._seconds_until(now, window.requests, self.requests, requests),
            self._seconds_until(now, window.tokens, self.tokens, min(tokens, self.tokens or 0)),
        )

    def _seconds_until(self, now: float, sent: _Sums, most: int | None, added: int) -> float:
        """Return the seconds until `added` more fit into the limit `most`."""
        if most is None:
            return 0.0
        # Every window of `per` seconds admits `most`. The rest waits until enough earlier requests
        # have left the window.
        spans = max(0, added - 1) // most
        excess = sent.total + added - spans * most - most
        at = self._window.expiry(sent, excess) if excess > 0 else now
        return at - now + spans * self.per

    def _check_wait(self, wait: float) -> None:
        if self.longest_wait is None or wait <= self.longest_wait:
            return
        limits = ((self.requests, "requests"), (self.tokens, "tokens"))
        allowed = " and ".join(f"{n} {unit}" for n, unit in limits if n is not None)
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
    """A request that was sent."""

    at: float
    """The time at which the request was sent."""
    tokens: int
    """The estimated tokens, or the tokens that the answer reported."""
    requests: int = 1
    """The requests to count: 0 if a cache answered, several if there were retries."""
    position: int = 0
    """The position in the window, from 1 up. 0 if the request is too old to count."""
    bucket: int = 0
    """The bucket of the store that counts the request."""
    reserved: int = 0
    """The tokens that the bucket counted before the answer."""


class _Window:
    """The requests of the last `per` seconds, in order. A window may have very many requests,
    because counting a request takes only logarithmic time."""

    def __init__(self, per: float) -> None:
        self.per = per
        self.requests = _Sums()
        self.tokens = _Sums()
        self._sent: list[_Sent] = []
        self._forgotten = 0

    def add(self, now: float, tokens: int, bucket: int = 0) -> _Sent:
        """Count a request that is sent now."""
        position = len(self._sent) + 1
        self._sent.append(_Sent(now, tokens, 1, position, bucket, tokens))
        self.requests.append(1)
        self.tokens.append(tokens)
        return self._sent[-1]

    def correct(self, sent: _Sent, requests: int, tokens: int) -> None:
        """Correct the counts of a request that is still in the window."""
        if sent.position:
            self.requests.add(sent.position, requests - sent.requests)
            self.tokens.add(sent.position, tokens - sent.tokens)
            sent.requests, sent.tokens = requests, tokens

    def forget(self, now: float) -> None:
        """Drop the requests that are too old to count."""
        sent = self._sent
        while self._forgotten < len(sent) and sent[self._forgotten].at + self.per <= now:
            self.correct(sent[self._forgotten], 0, 0)
            sent[self._forgotten].position = 0
            self._forgotten += 1
        if 2 * self._forgotten > len(sent):  # rare enough for amortized constant time
            self._sent, self._forgotten = sent[self._forgotten :], 0
            for position, request in enumerate(self._sent, 1):
                request.position = position
            self.requests = _Sums(request.requests for request in self._sent)
            self.tokens = _Sums(request.tokens for request in self._sent)

    def expiry(self, sums: _Sums, amount: int) -> float:
        """Return the time at which the oldest requests with the sum `amount` will all be too old to
        count."""
        return self._sent[sums.reach(amount) - 1].at + self.per


class _Sums:
    """A Fenwick tree: amounts by position, from 1 up, with their total."""

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
        """Add `amount` to the amount at a position."""
        self.total += amount
        while amount and position < len(self._tree):
            self._tree[position] += amount
            position += position & -position

    def reach(self, amount: int) -> int:
        """Return the first position at which the amounts so far sum to at least `amount`."""
        position = 0
        width = 1 << len(self._tree).bit_length()
        while width := width // 2:
            if position + width < len(self._tree) and self._tree[position + width] < amount:
                position += width
                amount -= self._tree[position]
        return position + 1


class Slots:
    """A semaphore with `limit` slots across event loops and threads. `async with` takes a slot.
    Waiters get slots in order. If a waiter is cancelled while it gets a slot, the next waiter gets
    that slot."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        # The waiters in order. A waiter is removed in constant time.
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
                    self._pass_on()
            raise

    async def __aexit__(self, *error: object) -> None:
        with self._lock:
            self._pass_on()

    def _pass_on(self) -> None:
        """Give the slot to the next waiter. If nobody waits, free the slot. The caller must have
        locked `_lock`."""
        while self._waiting:
            waiter, _ = self._waiting.popitem(last=False)
            try:
                waiter.get_loop().call_soon_threadsafe(_wake, waiter)
            except RuntimeError:
                continue  # the waiter's event loop was closed
            return
        self.taken -= 1


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():  # a cancelled waiter is done
        waiter.set_result(None)
