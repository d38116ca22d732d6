"""Limits on requests to a model: how many at once (`Concurrency`), and how many, with how many
tokens, in a span of time (`RateLimit`). Requests beyond a limit queue, first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import isfinite
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Literal

from bae.exceptions import BaeLMError
from bae.lm.backend import Answer, Prompt
from bae.lm.policies.budget import estimated_tokens
from bae.lm.policies.policy import Policy
from bae.usage import Usage, metered

if TYPE_CHECKING:
    from bae.language_model import LM

SHORTEST_WAIT = 0.001
"""Seconds. Clocks are not exact: a shorter wait could be none, again and again."""


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
        async with self._slots:
            self._most = max(self._most, self._slots.taken)
            return await self.ask(prompt)

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
        self._last: deque[_Sent] = deque()
        self._lock = Lock()
        self._first = Slots(1)  # only the first in the queue looks at what was sent
        self._waiting = 0
        self._sent = 0
        self._waited = 0.0

    async def answer(self, prompt: Prompt) -> Answer:
        """Wait until the request fits, then ask the LM inside."""
        sent = await self._admitted(0 if self.tokens is None else estimated_tokens(prompt))
        used = Usage()
        reported: list[Usage] = []
        try:
            with metered() as reported:  # requests that failed
                answer = await self.ask(prompt)
            used = answer.usage
        finally:
            used = Usage.total([*reported, used])
            # An answer from a cache sends nothing. Some LMs do not report tokens.
            sent.tokens = used.tokens or sent.tokens if used.calls else 0
            sent.requests = used.calls
        return answer

    def statistics(self) -> RateStatistics:
        """What was sent in the last span of time, and what waits."""
        with self._lock:
            self._forget(self._clock())
            requests = sum(each.requests for each in self._last)
            tokens = sum(each.tokens for each in self._last)
            return RateStatistics(requests, tokens, self._waiting, self._sent, self._waited)

    async def _admitted(self, tokens: int) -> _Sent:
        came = self._clock()
        with self._lock:
            # Each of those who wait is sent before, so this one is sent no earlier than the last.
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
                            self._last.append(_Sent(now, tokens))
                            return self._last[-1]
                    await self._sleep(max(wait, SHORTEST_WAIT))
        finally:
            with self._lock:
                self._waiting -= 1

    def _wait(self, now: float, requests: int, tokens: int) -> float:
        """Seconds until the last of so many requests, which has so many tokens, can be sent. One
        larger than the limit can when there is nothing else: its size is an estimate."""
        self._forget(now)
        return max(
            self._until(now, "requests", self.requests, requests),
            self._until(now, "tokens", self.tokens, min(tokens, self.tokens or 0)),
        )

    def _until(
        self, now: float, what: Literal["requests", "tokens"], most: int | None, added: int
    ) -> float:
        if most is None:
            return 0.0
        # So much goes through in every span, and the rest when enough of the old has expired.
        spans = max(0, added - 1) // most
        there = sum(getattr(each, what) for each in self._last) + added - spans * most
        at = now
        for old in self._last:
            if there <= most:
                break
            there -= getattr(old, what)
            at = old.at + self.per
        return at - now + spans * self.per

    def _forget(self, now: float) -> None:
        """Drop what is too old to count."""
        while self._last and self._last[0].at + self.per <= now:
            self._last.popleft()

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


@dataclass(slots=True)
class _Sent:
    """A request that was sent: when, and with how many tokens as far as is known."""

    at: float
    tokens: int
    requests: int = 1


class Slots:
    """At most `limit` holders at once, across event loops and threads. Enter it to take a slot;
    waiters get theirs in order, and no slot is lost when one is cancelled while it waits, or at
    the moment a slot is handed to it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
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
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            with self._lock:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                else:
                    self._hand_on()
            raise

    async def __aexit__(self, *error: object) -> None:
        with self._lock:
            self._hand_on()

    def _hand_on(self) -> None:
        """Give a slot to the next waiter, with the lock held."""
        while self._waiting:
            turn = self._waiting.popleft()
            try:
                turn.get_loop().call_soon_threadsafe(_wake, turn)
            except RuntimeError:
                continue  # its loop was closed under it
            return
        self.taken -= 1


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # it was cancelled
        turn.set_result(None)
