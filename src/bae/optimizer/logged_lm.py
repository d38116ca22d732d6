"""An LM whose answers a log keeps, and gives when the same is asked again. `calls.py` makes these,
and looks after the file."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from bae.lm.backend import Answer, Prompt
from bae.lm.policies.cache import cache_key
from bae.lm.policies.policy import Policy
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.language_model import LM
    from bae.optimizer.calls import CallLog


class LoggedLM(Policy):
    """An LM asked through a log of calls; `CallLog.around` makes it.

    `used` is what its answers used when they were given, also those that come from the log.
    """

    def __init__(self, lm: LM | str, calls: CallLog, rollout: int | None, hopeful: bool) -> None:
        super().__init__(lm)
        self.hopeful = hopeful
        self.used = Usage()
        self._log = calls
        self._rollout = rollout
        # By the text, which is the same however often a question is asked again.
        self._asked: dict[str, dict[str, None]] = {}
        self._refused: set[str] = set()

    async def answer(self, prompt: Prompt) -> Answer:
        """The answer of the log, or else of the LM."""
        key = cache_key(self.inner, prompt)
        if self._rollout is not None:
            key = sha256(f"{key} rollout {self._rollout}".encode()).hexdigest()
        answer = await self._log.answered(key, self, prompt)
        self.used += self._log.used[key]
        if self.hopeful:
            self._asked.setdefault(prompt.text, {})[key] = None
            if answer.stop == "refused":
                self._refused.add(prompt.text)
        return answer

    async def reject(self, prompt: Prompt) -> None:
        """Pass on that the answer was not valid. Where it was the last, a `hopeful` LM gives up."""
        # The log keeps the answer: it was given, and paid for.
        await super().reject(prompt)
        last = len(prompt.turns) >= self.attempts or prompt.text in self._refused
        if last:
            self._refused.discard(prompt.text)
            await self._log.give_up(list(self._asked.pop(prompt.text, ())))
