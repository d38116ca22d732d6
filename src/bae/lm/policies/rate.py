"""A bound on how often a model is asked: so many requests, and so many tokens, in a span of time.
Those that are too many wait in the order they came; `window.py` says how long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import isfinite
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING

from bae.exceptions import BaeLMError
from bae.lm.backend import Answer, Prompt
from bae.lm.policies.estimate import estimated_tokens
from bae.lm.policies.policy import Policy
from bae.lm.policies.slots import Slots
from bae.lm.policies.window import Sent, Window
from bae.usage import Usage, metered

if TYPE_CHECKING:
    from bae.language_model import LM

SHORTEST_WAIT = 0.001
"""Seconds. Clocks are not exact: a wait of less could be none, again and again."""


@dataclass(frozen=True, slots=True)
class RateStatistics:
    """The `requests` and `tokens` of the last span of time, how many are `waiting` now, how many
    were `sent` in all, and the seconds they `waited` before that, added up."""

    requests: int
    tokens: int
    waiting: int
    sent: int
    waited: float


class RateLimit(Policy):
    """Sends at most so many `requests`, with so many `tokens` in and out, in any `per` seconds.

    How many tokens a request comes to is estimated from its prompt before it is sent, and put
    right by what the answer says it used, so the first answers may go past a limit on tokens by
    what the model says. Those who wait do so in the order they came. A request that cannot be sent
    within `longest_wait` seconds fails as soon as that is sure, with the code `bae-lm-rate-wait`.

    The limit is that of the object, whatever runs, event loops and threads it is used in: share
    one to share the limit. `clock` and `sleep` are for tests.
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
        self._window = Window(requests, tokens, per)
        self._lock = Lock()
        self._first = Slots(1)  # only the first in the queue looks at the window
        self._waiting = 0
        self._waiting_tokens = 0
        self._sent = 0
        self._waited = 0.0

    async def answer(self, prompt: Prompt) -> Answer:
        """Wait until the request fits, then ask what is inside."""
        size = estimated_tokens(prompt) if self.tokens is not None else 0
        sent = await self._admitted(size)
        used = Usage()
        reported: list[Usage] = []
        try:
            with metered() as reported:  # requests that failed
                answer = await self.ask(prompt)
            used = answer.usage
        finally:
            used = Usage.total([*reported, used])
            with self._lock:
                # Nothing was sent for an answer from a cache. Some LMs do not say how many tokens.
                tokens = used.tokens or sent.tokens if used.calls else 0
                self._window.correct(sent, used.calls, tokens)
        return answer

    def statistics(self) -> RateStatistics:
        """What was sent of late, and what waits."""
        with self._lock:
            window = self._window
            window.forget(self._clock())
            return RateStatistics(
                window.requests, window.tokens, self._waiting, self._sent, self._waited
            )

    async def _admitted(self, size: int) -> Sent:
        came = self._clock()
        # One that is larger than the limit takes a whole span.
        tokens = size if self.tokens is None else min(size, self.tokens)
        with self._lock:
            if self.longest_wait is not None:
                waiting, theirs = self._waiting, self._waiting_tokens
                self._refuse(self._window.least_wait(came, waiting + 1, theirs + tokens))
            self._waiting += 1
            self._waiting_tokens += tokens
        try:
            async with self._first:
                while True:
                    with self._lock:
                        now = self._clock()
                        wait = self._window.wait(now, size)
                        if self.longest_wait is not None:
                            self._refuse(now - came + wait)
                        if wait <= 0:
                            self._sent += 1
                            self._waited += now - came
                            return self._window.add(now, size)
                    await self._sleep(max(wait, SHORTEST_WAIT))
        finally:
            with self._lock:
                self._waiting -= 1
                self._waiting_tokens -= tokens

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
