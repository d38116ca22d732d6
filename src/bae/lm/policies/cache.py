"""A cache of answers. A repeated question costs nothing. Equal questions that are asked at the same
time share one request."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from copy import copy
from dataclasses import astuple, dataclass, replace
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

from pydantic_core import to_json

from bae.exceptions import BaeLMError, BudgetError, describe
from bae.lm.adapter import LMAdapter, is_lossless
from bae.lm.backend import UNPARSED, Answer, Backend, Prompt
from bae.lm.policies.budget import budgets_in_force
from bae.lm.policies.cache_stores import CacheStore, MemoryCache, SQLiteCache
from bae.lm.policies.policy import Policy, all_innermost, identity_of, innermost
from bae.postgres.address import is_address
from bae.prompts.messages import CallPart, FilePart, Part, ResultPart
from bae.tasks import cancellations, wait_until_ended
from bae.usage import CallEvent, Meter, Restart, Usage, meter_in_force, report_usage, tell

if TYPE_CHECKING:
    from bae.language_model import LM

T = TypeVar("T")

VERSION = 1
"""The version of the keys and of the stored answers. Entries of another version are ignored."""

_Method = Literal["get", "put", "drop", "aclose"]
_TASKS: Final[dict[_Method, str]] = {
    "get": "look up an answer",
    "put": "store an answer",
    "drop": "drop an invalid answer",
    "aclose": "be closed",
}

_log = logging.getLogger("bae.lm")


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """How a `Cached` answered its questions so far."""

    hits: int
    """Questions answered from the store."""

    misses: int
    """Questions passed to the wrapped LM."""

    joined: int
    """Questions that shared the request of an equal question in progress."""

    unstored: int
    """Answers that could not be stored."""


class Cached(Policy):
    """Answers repeated questions from a cache.

    `Cached(lm)` stores answers in memory. `Cached(lm, "answers.sqlite")` stores them in a file that
    later processes use too.

    Two questions are equal if their prompts, schemas, backend classes, models and settings are
    equal. Your own policies inside the cache must be equal too. An answer from the cache uses no
    call and no token. Only complete answers are stored. Invalid answers are deleted. Equal
    questions that are asked at the same time share one request. If the last caller stops waiting,
    the request is cancelled.

    If the store fails, or takes longer than `store_timeout` seconds, the wrapped LM is asked and
    the run continues. The logger `bae.lm` warns once, until the store works again.

    Put this policy around all policies that count or wait, so that answers from the cache are
    free.
    """

    def __init__(
        self,
        lm: LM | str,
        store: CacheStore | str | Path | None = None,
        *,
        store_timeout: float = 30.0,
    ) -> None:
        super().__init__(lm)
        if not isinstance(cast(object, store_timeout), int | float) or not 0 < store_timeout < inf:
            raise ValueError(f"Cached(store_timeout={store_timeout!r}): give a number above 0")
        if store is None:
            store = MemoryCache()
        elif isinstance(store, str) and is_address(store):
            from bae.lm.policies.postgres_store import PostgresStore

            store = PostgresStore(store)
        elif isinstance(store, str | Path):
            store = SQLiteCache(store)
        elif not all(hasattr(store, name) for name in ("get", "put")):
            raise TypeError(
                f"Cached(lm, {store!r}): give a store, a path, or the address of a database"
            )
        self.store: CacheStore = store
        if not isinstance(store, MemoryCache):
            for backend in all_innermost(self):
                _check_settings(backend)
        self.store_timeout = store_timeout
        self._failing: set[str] = set()
        """The store methods whose last call failed."""
        self._shared = SharedRequests()
        self._hits = self._misses = self._unstored = 0

    async def answer(self, prompt: Prompt) -> Answer:
        """Share an equal request in progress. If there is none, return the stored answer or ask the
        wrapped LM."""
        key = cache_key(self.inner, prompt)
        return await self._shared.answer(key, lambda: self._find_or_ask(key, prompt))

    def statistics(self) -> CacheStatistics:
        """Return how the questions so far were answered."""
        return CacheStatistics(self._hits, self._misses, self._shared.joined, self._unstored)

    async def reject(self, prompt: Prompt) -> None:
        """Delete the stored answer to a prompt, also from caches inside the wrapped LM."""
        key = cache_key(self.inner, prompt)
        await self._use_store("drop", lambda: self.store.drop(key))
        await super().reject(prompt)

    async def aclose(self) -> None:
        """Close the store and the wrapped LM."""
        try:
            await self._use_store("aclose", lambda: self.store.aclose())
        finally:
            await super().aclose()

    async def _find_or_ask(self, key: str, prompt: Prompt) -> Answer:
        _, stored = await self._use_store("get", lambda: _get(self.store, key))
        cached = _read_answer(stored)
        if cached is not None:
            self._hits += 1
            return cached
        self._misses += 1
        answer = await self.ask(prompt)
        text = _dump_answer(prompt, answer) if answer.stop == "end" else ""
        if text is None:
            self._unstored += 1
        elif text:
            try:
                is_stored, _ = await self._use_store("put", lambda: self.store.put(key, text))
            except BaseException:
                report_usage(answer.usage)  # no caller is left to report the usage
                raise
            self._unstored += not is_stored
        return answer

    async def _use_store(
        self, method: _Method, call: Callable[[], Awaitable[T]]
    ) -> tuple[bool, T | None]:
        """Call the store. Return whether the call succeeded, and the call's result. A failure is
        only logged, because the run can continue without the store."""
        bound = asyncio.timeout(self.store_timeout)
        try:
            if isinstance(self.store, MemoryCache):  # it never waits, so it needs no timeout
                result = await call()
            else:
                async with bound:
                    result = await call()
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and cancellations():
                raise
            if method not in self._failing:
                self._failing.add(method)
                late = f"it took more than store_timeout={self.store_timeout:g} s"
                _log.warning(
                    "%r could not %s: %s. The run continues. This is logged once, until it works",
                    self.store,
                    _TASKS[method],
                    late if bound.expired() else describe(error),
                )
            return False, None
        self._failing.discard(method)
        return True, result


async def _get(store: CacheStore, key: str) -> str | None:
    stored = await store.get(key)
    if stored is None or isinstance(cast(object, stored), str):
        return stored
    raise TypeError(f"it returned a {type(stored).__name__}, and not a str or None")


def cache_key(backend: Backend, prompt: Prompt) -> str:
    """Return the cache key of a prompt to a backend. The key is the same if the prompt, the
    settings and `identity_of(backend)` are the same."""
    wrapped = innermost(backend)
    try:
        parts: dict[str, Any] = {
            "version": VERSION,
            **identity_of(backend),
            "settings": backend.settings,  # policies add their own settings
            "system": prompt.system,
            "text": prompt.text,
            "turns": [
                [correction.answer, correction.correction] for correction in prompt.corrections
            ],
            "schema": prompt.schema,
        }
        if examples := prompt.examples:
            parts["examples"] = [[example.asked, example.answer] for example in examples]
        turns = [message for message in prompt.conversation if message.kind == "turn"]
        if turns:
            parts["thread"] = [[turn.role, turn.text] for turn in turns]
        if prompt.question.method:
            parts["method"] = prompt.question.method
        # The key leaves out `Message.echo`.
        rounds = [message for message in prompt.conversation if message.kind == "round"]
        if rounds:
            parts["rounds"] = [[m.role, [*map(_part_to_json, m.parts)]] for m in rounds]
        if files := prompt.files:
            parts["files"] = [[file.label, file.file.key] for file in files]
        if prompt.tools:
            tools = [[t.name, t.description, t.schema, t.native] for t in prompt.tools]
            parts |= {"tools": tools, "may_call": prompt.may_call}
        text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise BaeLMError(
            f"the settings of {type(wrapped).__name__} or the prompt's schema cannot be written as"
            " JSON, so the answer cannot be cached",
            code="bae-lm-cache-key",
            sent=False,
            cause=error,
            fix=f"return only JSON values from {type(wrapped).__name__}.settings",
        ) from error
    return sha256(text.encode()).hexdigest()


def _part_to_json(part: Part) -> list[Any]:
    """Return a message part as JSON values, without the bytes of files."""
    if isinstance(part, ResultPart):
        return [part.kind, part.id, part.name, part.result, part.is_error]
    return [part.kind, part.text] if isinstance(part, FilePart) else [part.kind, *astuple(part)]


def _check_settings(backend: Backend) -> None:
    """Raise if a persistent store could return another LM's answers for this backend."""
    if isinstance(backend, LMAdapter) and not backend.has_settings:
        name = type(backend.lm).__name__
        raise BaeLMError(
            f"{name} has no `settings`, so a store could not tell its answers from the answers of"
            f" another {name}",
            code="bae-lm-cache-key",
            sent=False,
            fix=f"give {name} an attribute `settings`: a mapping of everything that changes its"
            " answers, or {} if nothing does; or cache in memory, with Cached(lm)",
        )


def text_to_store(prompt: Prompt, answer: Answer) -> str | None:
    """Return the text to store for an answer. None if JSON cannot express the answer."""
    if not is_lossless(prompt, answer):
        return None
    if answer.text or answer.value is UNPARSED:
        return answer.text
    try:
        return to_json(answer.value).decode()
    except (ValueError, TypeError):
        return None


def _dump_answer(prompt: Prompt, answer: Answer) -> str | None:
    """Return an answer as JSON for the store. None if the answer cannot be stored."""
    text = text_to_store(prompt, answer)
    if text is None:
        return None
    stored = {"version": VERSION, "text": text, "models": answer.usage.models}
    return json.dumps({**stored, **calls_to_store(answer)})


def calls_to_store(answer: Answer) -> dict[str, Any]:
    """Return the tool calls and the `echo` of an answer as JSON values."""
    stored: dict[str, Any] = {}
    if answer.calls:
        stored["calls"] = [astuple(call) for call in answer.calls]
    if answer.ran:
        stored["ran"] = [[astuple(call), _part_to_json(result)[1:]] for call, result in answer.ran]
    if answer.echo is not None:
        stored["echo"] = answer.echo
    return stored


def with_stored_calls(answer: Answer, stored: Mapping[str, Any]) -> Answer:
    """Return an answer with the stored tool calls added. Raise TypeError or ValueError if the
    stored calls cannot be read."""
    ran = ((CallPart(*call), ResultPart(*result)) for call, result in stored.get("ran", ()))
    calls = (CallPart(*call) for call in stored.get("calls", ()))
    return replace(answer, calls=tuple(calls), ran=tuple(ran), echo=stored.get("echo"))


def _read_answer(stored: str | None) -> Answer | None:
    """Read an answer from the stored text. None if the text is missing or unreadable."""
    if stored is None:
        return None
    try:
        data = json.loads(stored)
        texts = [data["text"], *data["models"]]
        if data["version"] == VERSION and all(isinstance(text, str) for text in texts):
            return with_stored_calls(Answer(texts[0], Usage(models=tuple(texts[1:]))), data)
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    return None


class SharedRequests:
    """The requests in progress. A caller who asks an equal question shares the request's answer."""

    def __init__(self) -> None:
        self.joined = 0
        """How many callers joined a request in progress."""
        self._requests: dict[tuple[asyncio.AbstractEventLoop, str], _SharedRequest] = {}

    async def answer(self, key: str, ask: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Wait for the request in progress with this key. If there is none, start it with `ask`."""
        place = asyncio.get_running_loop(), key
        while True:
            request = self._requests.get(place)
            joined = request is not None and request.is_open
            if request is None or not request.is_open:
                request = self._requests[place] = _SharedRequest(ask)
            self.joined += joined
            try:
                return await request.result()
            except BudgetError as error:
                # If only the first caller is in the block of the budget, a caller who joined asks
                # again. A budget inside the cache limits all callers, so all of them fail.
                others = set(request.budgets).difference(budgets_in_force())
                if not joined or error.budget not in others:
                    raise
                tell(Restart(error, 0.0))
            finally:
                if not request.is_open and self._requests.get(place) is request:
                    del self._requests[place]


class _SharedRequest:
    """A request that several callers wait for. Its task runs under the budgets of the first caller.
    When the task ends, the first caller that is still waiting reports the usage."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, Answer]]) -> None:
        self.budgets = budgets_in_force()
        # The meter of each caller, in the order of arrival. A caller leaves in constant time.
        self._meters: OrderedDict[asyncio.Future[None], Meter | None] = OrderedDict()
        self._events: list[CallEvent] = []
        self._is_delivered = False
        self._is_abandoned = False
        self._task = asyncio.get_running_loop().create_task(self._run(ask))
        self._task.add_done_callback(self._wake)

    @property
    def is_open(self) -> bool:
        """Whether callers can still join."""
        return not (self._is_abandoned or self._task.done())

    async def result(self) -> Answer:
        """Wait for the answer. A late caller first gets the earlier events. If the last caller that
        waits is cancelled, the request is cancelled too, and the caller waits for its end."""
        waiter, task = asyncio.get_running_loop().create_future(), self._task
        self._meters[waiter] = meter_in_force.get()
        for event in self._events:
            tell(event)
        try:
            await waiter
        except BaseException:
            if len(self._meters) > 1:
                del self._meters[waiter]
                raise
            self._is_abandoned = True
            task.cancel()
            await wait_until_ended([task])
            if not task.cancelled() and task.exception() is None:
                report_usage(self._take_usage())  # no caller is left to report the usage
            raise
        if task.cancelled():
            return task.result()
        error = task.exception()
        if error is not None:
            # Later callers get a copy, because code that handles an error adds notes to the error.
            first, self._is_delivered = not self._is_delivered, True
            raise error if first else _copy(error) from error.__cause__
        return replace(task.result(), usage=self._take_usage())

    async def _run(self, ask: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        meter_in_force.set((self._report, self._tell))
        return await ask()

    def _take_usage(self) -> Usage:
        """Return the request's usage on the first call. Later calls return only the models, so
        that the usage is reported once."""
        used = self._task.result().usage
        first, self._is_delivered = not self._is_delivered, True
        return used if first else Usage(models=used.models)

    def _wake(self, _: object) -> None:
        for waiter in self._meters:
            if not waiter.done():  # a cancelled waiter is done
                waiter.set_result(None)

    def _report(self, usage: Usage) -> None:
        first = next(iter(self._meters.values()), None)
        if first is not None:
            first[0](usage)

    def _tell(self, event: CallEvent) -> None:
        self._events.append(event)
        for meter in self._meters.values():
            if meter is not None and meter[1] is not None:
                meter[1](event)


def _copy(error: BaseException) -> BaseException:
    try:
        copied = copy(error)
    except Exception:  # not every exception can be made from its arguments
        return error
    if hasattr(error, "__notes__"):
        copied.__notes__ = list(error.__notes__)
    return copied
