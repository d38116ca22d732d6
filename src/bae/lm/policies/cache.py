"""Answers kept for the next time the same is asked. Equal prompts that come while the first is
still being answered wait for it and share its answer, see `flights.py`. The stores are in
`cache_stores.py`."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import to_json

from bae.exceptions import BaeLMError, describe
from bae.lm.backend import UNPARSED, Answer, Backend, Prompt
from bae.lm.foreign import Foreign, keeps
from bae.lm.policies.cache_stores import CacheStore, MemoryCache, SQLiteCache
from bae.lm.policies.flights import Flights
from bae.lm.policies.policy import Policy, innermost
from bae.usage import Usage, report

if TYPE_CHECKING:
    from bae.language_model import LM

VERSION = 1
"""Of the keys and of what is kept under them: answers of another version are not found."""

_log = logging.getLogger("bae.lm")


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
        elif not all(hasattr(store, name) for name in ("get", "put")):
            raise TypeError(f"Cached(lm, {store!r}): give a store, or the path of a file")
        self.store: CacheStore = store
        if not isinstance(store, MemoryCache):
            _check_settings(innermost(self))
        self._flights = Flights()
        self._hits = self._misses = self._unstored = 0

    async def answer(self, prompt: Prompt) -> Answer:
        """The answer that is there, or the one that comes, or else ask what is inside."""
        key = cache_key(self.inner, prompt)
        return await self._flights.answer(key, lambda: self._look_and_ask(key, prompt))

    def statistics(self) -> CacheStatistics:
        """What the cache has been good for."""
        return CacheStatistics(self._hits, self._misses, self._flights.joined, self._unstored)

    async def reject(self, prompt: Prompt) -> None:
        """Forget the answer to a prompt, and let what is inside do so."""
        await self.store.drop(cache_key(self.inner, prompt))
        await super().reject(prompt)

    async def aclose(self) -> None:
        """Close the store, and what is inside."""
        await self.store.aclose()
        await super().aclose()

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
            text = _written(prompt, answer)
            try:
                if text is None:
                    self._unstored += 1
                else:
                    await self.store.put(key, text)
            except Exception as error:
                # It is paid for: better an answer that is not kept than none.
                self._unstored += 1
                _log.warning("an answer could not be kept by %r: %s", self.store, describe(error))
            except BaseException:
                report(answer.usage)  # nobody waits for it any more
                raise
        return answer


def cache_key(backend: Backend, prompt: Prompt) -> str:
    """What a prompt to a backend is known by: the same for equal prompts, models and settings."""
    asked = innermost(backend)
    try:
        parts: dict[str, Any] = {
            "version": VERSION,
            "by": type(asked).__qualname__,
            "model": asked.model,
            "settings": backend.settings,  # as policies around it say them
            "system": prompt.system,
            "text": prompt.text,
            "turns": [[turn.answer, turn.correction] for turn in prompt.turns],
            "schema": prompt.schema,
        }
        if prompt.examples:
            parts["examples"] = [[each.asked, each.answer] for each in prompt.examples]
        if prompt.question.method:
            parts["method"] = prompt.question.method
        text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise BaeLMError(
            f"the settings of {type(asked).__name__}, or a schema, are no JSON, so its answers"
            " cannot be cached",
            code="bae-lm-cache-key",
            sent=False,
            cause=error,
            fix=f"have {type(asked).__name__}.settings return JSON values alone",
        ) from error
    return sha256(text.encode()).hexdigest()


def _check_settings(backend: Backend) -> None:
    """Raise where answers that are kept for long could not be told from those of another LM."""
    if isinstance(backend, Foreign) and not backend.has_settings:
        name = type(backend.lm).__name__
        raise BaeLMError(
            f"{name} has no `settings`, so its answers in a store could be taken for those of"
            f" another {name}",
            code="bae-lm-cache-key",
            sent=False,
            fix=f"give {name} an attribute `settings`, a mapping of what changes its answers, {{}}"
            " where nothing does; or keep them in memory, with Cached(lm)",
        )


def _written(prompt: Prompt, answer: Answer) -> str | None:
    """What is kept of an answer, or None where JSON cannot say it."""
    if not keeps(prompt, answer):
        return None
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
            return Answer(found["text"], Usage(models=tuple(models)))
    except (ValueError, TypeError, KeyError):
        pass
    return None
