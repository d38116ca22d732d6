"""Sending a request again when that can help. The rule is `retrying`: the asking layer uses it for
the `retries` of a backend, and the policy `Retry` around any LM."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from math import isfinite
from typing import TYPE_CHECKING, TypeVar

from bae.exceptions import BaeLMError, describe
from bae.lm.backend import Answer, Prompt
from bae.lm.policies.policy import Policy
from bae.usage import Restart, tell

if TYPE_CHECKING:
    from bae.language_model import LM

T = TypeVar("T")


class Retry(Policy):
    """Sends a request that failed again, up to `retries` times, where that can help: the provider
    was busy or unreachable, or took too long.

    The waits are `first` seconds, then `factor` times longer each, up to `longest`; each is
    shortened at random by up to the share `jitter`. A provider that asks for a longer wait gets
    it, lengthened by as much, unless it asks for more than `longest`: then the error is raised at
    once. What is raised in the end is the last error, with a note on how often it was tried.
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
        """None: the asking layer has no need to, as this does."""
        return 0

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask what is inside until it answers."""
        return await retrying(
            lambda: self.ask(prompt),
            self.times,
            first=self.first,
            longest=self.longest,
            factor=self.factor,
            jitter=self.jitter,
            sleep=self._sleep,
        )


async def retrying(
    ask: Callable[[], Awaitable[T]],
    retries: int,
    *,
    first: float = 0.5,
    longest: float = 60.0,
    factor: float = 2.0,
    jitter: float = 0.5,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> T:
    """Call `ask` until it succeeds, at most `retries` times more than once.

    The waits are `first`, then `factor` times longer each, up to `longest`, and each is shortened
    at random by up to the share `jitter`, so that many who failed at once do not come back at
    once. A provider that asks for a longer wait gets it, and up to as much more; one that asks for
    more than `longest` is not asked again. Whoever watches is told of every new try. The last
    error is raised as it is, with a note on what was tried.
    """
    waited = 0.0
    delay = min(first, longest)
    before: BaseException | None = None
    for tries in range(1, retries + 2):
        try:
            return await ask()
        except Exception as error:
            again = worth_retrying(error)
            asked = getattr(error, "retry_after", None) or 0.0
            if again and tries <= retries and asked <= longest:
                spread = delay * jitter * random.random()
                pause = max(delay - spread, asked + spread if asked else 0.0)
                before = error
                tell(Restart(error, pause))
            else:
                if before is not None:
                    error.add_note(
                        f"tried {tries} times, with {waited:.1f} s of waiting between; the failure"
                        f" before this was {describe(before)}"
                    )
                if again and tries <= retries:
                    error.add_note(
                        f"not tried again: the provider asks to wait {asked:g} s, and the longest"
                        f" allowed is {longest:g} s"
                    )
                raise
        delay = min(delay * factor, longest)
        waited += pause
        await sleep(pause)
    raise AssertionError  # the last failure is raised


def worth_retrying(error: BaseException) -> bool:
    """Whether sending the same request again may help."""
    if isinstance(error, BaeLMError):
        return error.retryable
    return isinstance(error, ConnectionError | TimeoutError)
