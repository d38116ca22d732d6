"""Policies for requests that fail or take too long: `Retry` sends them again, `Timeout` cuts them
off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf, isfinite
from typing import TYPE_CHECKING, cast

from bae.lm.backend import Answer, Prompt
from bae.lm.http import timeout_error
from bae.lm.policies.policy import Policy
from bae.lm.requests import retrying

if TYPE_CHECKING:
    from bae.language_model import LM


class Retry(Policy):
    """Sends a failed request again, up to `retries` times, where that can help: the provider was
    busy or unreachable, or took too long.

    The backoff starts at `first` seconds and grows by `factor`, up to `longest`; each wait is
    shortened at random by up to the share `jitter`. A provider that asks for a longer wait gets
    it, lengthened by as much, unless it asks for more than `longest`: then the error is raised at
    once. In the end the last error is raised, with a note on how often it was tried.
    """

    def __init__(
        self,
        lm: LM | str,
        retries: int = 4,
        *,
        first: float = 0.5,
        longest: float = 60.0,
        factor: float = 2.0,
        jitter: float = 0.5,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        super().__init__(lm)
        if type(retries) is not int or retries < 0:
            raise ValueError(f"Retry(retries={retries!r}): give 0 or more")
        for name, value, least, most in (
            ("first", first, 0.0, None),
            ("longest", longest, 0.0, None),
            ("factor", factor, 1.0, None),
            ("jitter", jitter, 0.0, 1.0),
        ):
            if not isfinite(value) or value < least or (most is not None and value > most):
                bounds = f"from {least:g} to {most:g}" if most is not None else f"{least:g} or more"
                raise ValueError(f"Retry({name}={value!r}): give {bounds}")
        self.times = retries
        self.first = first
        self.longest = longest
        self.factor = factor
        self.jitter = jitter
        self._sleep = sleep

    @property
    def retries(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """None besides those of this policy."""
        return 0

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the LM inside until it answers."""
        return await retrying(
            lambda: self.ask(prompt),
            self.times,
            self.first,
            longest=self.longest,
            factor=self.factor,
            jitter=self.jitter,
            sleep=self._sleep,
        )


class Timeout(Policy):
    """Cancels a request after `seconds`, and raises `BaeLMError` with the code `bae-lm-timeout`,
    which `Retry` retries.

    It bounds everything inside it. Put it inside `Retry`, so that each try has its own time, and
    inside `Concurrency` and `RateLimit`, so that waiting in their queues does not count.
    """

    def __init__(self, lm: LM | str, seconds: float) -> None:
        super().__init__(lm)
        if not isinstance(cast(object, seconds), int | float) or not 0 < seconds < inf:
            raise ValueError(f"Timeout(seconds={seconds!r}): give a number above 0")
        self.seconds = seconds

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the LM inside, for `seconds` at most."""
        bound = asyncio.timeout(self.seconds)
        try:
            async with bound:
                return await self.ask(prompt)
        except TimeoutError as error:
            if not bound.expired():
                raise  # another timeout, from inside
            who = self.model or type(self.inner).__name__
            raise timeout_error(who, self.seconds, error) from error
