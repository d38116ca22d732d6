"""A bound on how long one request may take. The asking layer, or `Retry` around it, may send the
request again."""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, cast

from bae.lm.backend import Answer, Prompt
from bae.lm.http import timeout_error
from bae.lm.policies.policy import Policy

if TYPE_CHECKING:
    from bae.language_model import LM


class Timeout(Policy):
    """Gives up on a request after so many seconds: it is cancelled, and `BaeLMError` is raised with
    the code `bae-lm-timeout`, which is worth a retry.

    It bounds everything inside it. Put it inside `Retry`, so that each try has its own time, and
    inside `Concurrency` and `RateLimit`, so that waiting in their queues does not count.
    """

    def __init__(self, lm: LM | str, seconds: float) -> None:
        super().__init__(lm)
        if not isinstance(cast(object, seconds), int | float) or not 0 < seconds < inf:
            raise ValueError(f"Timeout(seconds={seconds!r}): give a number above 0")
        self.seconds = seconds

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask what is inside, and give up in time."""
        bound = asyncio.timeout(self.seconds)
        try:
            async with bound:
                return await self.ask(prompt)
        except TimeoutError as error:
            if not bound.expired():
                raise  # it comes from inside
            who = self.model or type(self.inner).__name__
            raise timeout_error(who, self.seconds, error) from error
