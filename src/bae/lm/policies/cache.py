"""Answers kept for the next time the same is asked. Equal prompts that come while the first is
still being answered wait for it and share its answer. The stores are in `cache_stores.py`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import to_json

from bae.exceptions import BaeLMError, BudgetError
from bae.lm.backend import UNPARSED, Answer, Backend, Prompt
from bae.lm.policies.cache_stores import CacheStore, MemoryCache, SQLiteCache
from bae.lm.policies.charging import in_force
from bae.lm.policies.policy import Policy
from bae.lm.usage import Usage
from bae.tasks import gone

if TYPE_CHECKING:
    from bae.lm.protocol import LM

VERSION = 1
"""Of the keys and of what is kept under them: answers of another version are not found."""


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """How many questions were answered from the store (`hits`), by the LM (`misses`), and by the
    answer to an equal one that was under way (`joined`); and how many answers could not be kept
    (`unstored`)."""

    hits: int
    misses: int
    joined: int
    unstored: int


class Cached(Policy):
    """Asks an LM only what it was not asked before: `Cached(lm)` for this process, or
    `Cached(lm, "answers.sqlite")` for all to come.

    Two questions are the same when the prompt with its schema, the model and its settings are.
    An answer from the cache has used no call and no token. Only answers that ended by themselves
    are kept, and one that turns out invalid is forgotten. Equal questions that are asked at once
    make one request, which goes on as long as anybody waits for it.

    Put it outside of everything that counts or waits: what is in the cache then costs nothing.
    """

    def __init__(self, lm: LM | str, store: CacheStore | str | Path | None = None) -> None:
        super().__init__(lm)
        if store is None:
            store = MemoryCache()
        elif isinstance(store, str | Path):
            store = SQLiteCache(store)
        self.store: CacheStore = store
        self._flights: dict[tuple[asyncio.AbstractEventLoop, str], _Flight] = {}
        self._hits = self._misses = self._joined = self._unstored = 0

    async def answer(self, prompt: Prompt) -> Answer:
        """The answer that is there, or the one that comes, or else ask what is inside."""
        key = cache_key(self.inner, prompt)
        place = asyncio.get_running_loop(), key
        while True:
            flight = self._flights.get(place)
            joined = flight is not None
            if flight is None:
                task = place[0].create_task(self._look_and_ask(key, prompt))
                flight = self._flights[place] = _Flight(task)
            self._joined += joined
            try:
                return await self._landed(place, flight)
            except BudgetError as error:
                # The budget of whoever asked first is not the concern of those who joined.
                if not joined or any(error.budget is budget for budget in in_force()):
                    raise

    def statistics(self) -> CacheStatistics:
        """What the cache has been good for."""
        return CacheStatistics(self._hits, self._misses, self._joined, self._unstored)

    async def reject(self, prompt: Prompt) -> None:
        """Forget the answer to a prompt, and let what is inside do so."""
        await self.store.drop(cache_key(self.inner, prompt))
        await super().reject(prompt)

    async def aclose(self) -> None:
        """Close the store, and what is inside."""
        await self.store.aclose()
        await super().aclose()

    async def _landed(
        self, place: tuple[asyncio.AbstractEventLoop, str], flight: _Flight
    ) -> Answer:
        """Wait for a request that others may wait for too. The last to give up cancels it, and
        waits until it is gone."""
        flight.waiting += 1
        try:
            await asyncio.wait([flight.task])
        except asyncio.CancelledError:
            if flight.waiting == 1:
                self._flights.pop(place, None)
                await flight.given_up()
            raise
        finally:
            flight.waiting -= 1
            if flight.task.done() and self._flights.get(place) is flight:
                del self._flights[place]
        return flight.share()

    async def _look_and_ask(self, key: str, prompt: Prompt) -> Answer:
        kept = await self.store.get(key)
        if kept is not None:
            found = _read(kept)
            if found is not None:
                self._hits += 1
                return found
        self._misses += 1
        answer = await self.ask(prompt)
        if answer.stop == "end":
            text = _written(answer)
            try:
                if text is None:
                    self._unstored += 1
                else:
                    await self.store.put(key, text)
            except Exception:
                # It is paid for: better an answer that is not kept than none.
                self._unstored += 1
        return answer


class _Flight:
    """A question that is being answered, for all who ask it."""

    def __init__(self, task: asyncio.Task[Answer]) -> None:
        self.task = task
        self.waiting = 0
        self._taken = False

    async def given_up(self) -> None:
        """Cancel it, and wait until it is gone."""
        self.task.cancel()
        try:
            await gone([self.task])
        finally:
            if self.task.done() and not self.task.cancelled():
                self.task.exception()  # which nobody is there to hear of

    def share(self) -> Answer:
        """The answer, or the error. The first to take it has used what it used; and each has an
        error of its own, as those who raise it write into it."""
        first, self._taken = not self._taken, True
        if first or self.task.cancelled():
            return self.task.result()
        error = self.task.exception()
        if error is not None:
            raise _copy(error) from error.__cause__
        answer = self.task.result()
        return replace(answer, usage=_free(answer.usage.models))


def cache_key(backend: Backend, prompt: Prompt) -> str:
    """What a prompt to a backend is known by: the same for equal prompts, models and settings."""
    while isinstance(backend, Policy):
        backend = backend.inner
    parts: Mapping[str, Any] = {
        "version": VERSION,
        "by": type(backend).__qualname__,
        "model": backend.model,
        "settings": backend.settings,
        "system": prompt.system,
        "text": prompt.text,
        "turns": [[turn.answer, turn.correction] for turn in prompt.turns],
        "schema": prompt.schema,
    }
    try:
        text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise BaeLMError(
            f"the settings of {type(backend).__name__}, or a schema, are no JSON, so its answers"
            " cannot be cached",
            code="bae-lm-cache-key",
            cause=error,
            fix=f"have {type(backend).__name__}.settings return JSON values alone",
        ) from error
    return sha256(text.encode()).hexdigest()


def _written(answer: Answer) -> str | None:
    """What is kept of an answer, or None where JSON cannot say it."""
    text = answer.text
    if not text and answer.value is not UNPARSED:
        try:
            text = to_json(answer.value).decode()
        except (ValueError, TypeError):
            return None
    return json.dumps({"version": VERSION, "text": text, "models": answer.usage.models})


def _read(kept: str) -> Answer | None:
    """The answer again; None for what is not readable, which is asked for again."""
    try:
        found = json.loads(kept)
        if found["version"] == VERSION and isinstance(found["text"], str):
            models = cast("list[str]", found["models"])
            return Answer(found["text"], _free(tuple(models)))
    except (ValueError, TypeError, KeyError):
        pass
    return None


def _free(models: tuple[str, ...]) -> Usage:
    return Usage(models=models)


def _copy(error: BaseException) -> BaseException:
    try:
        copied = copy(error)
    except Exception:  # not every exception can be made from its arguments
        return error
    if hasattr(error, "__notes__"):
        copied.__notes__ = list(error.__notes__)
    return copied
