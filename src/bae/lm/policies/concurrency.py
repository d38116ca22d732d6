"""A bound on how many requests are under way at once, for a provider that takes no more, or a
machine that can run no more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bae.lm.backend import Answer, Prompt
from bae.lm.policies.policy import Policy
from bae.lm.policies.slots import Slots

if TYPE_CHECKING:
    from bae.language_model import LM


@dataclass(frozen=True, slots=True)
class ConcurrencyStatistics:
    """How many requests are `running` and `waiting`, the `most` that ever ran at once, and how
    many were `asked` in all."""

    limit: int
    running: int
    waiting: int
    most: int
    asked: int


class Concurrency(Policy):
    """Lets at most `limit` requests be under way at once; the others wait in the order they came.

    The limit is that of the object, whatever runs, event loops and threads it is used in: share
    one to share the limit. Put it inside `Retry`: a request that waits to be sent again holds no
    slot then.
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
        """Wait for a slot, then ask what is inside."""
        self._asked += 1
        async with self._slots:
            self._most = max(self._most, self._slots.taken)
            return await self.ask(prompt)

    def statistics(self) -> ConcurrencyStatistics:
        """How full it is, and was."""
        return ConcurrencyStatistics(
            self.limit, self._slots.taken, self._slots.waiting, self._most, self._asked
        )
