"""A cache of answers. A repeated question costs nothing, and equal questions asked at the same time
share one request."""

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
    """How many questions were answered from the store (`hits`), by the LM (`misses`), and by an
    equal request in progress (`joined`), and how many answers could not be stored (`unstored`)."""

    hits: int
    misses: int
    joined: int
    unstored: int


class Cached(Policy):
    """Answers repeated questions from a cache: `Cached(lm)` in this process, or
    `Cached(lm, "answers.sqlite")` in a file that later processes use too.

    Two questions are equal if their prompts, schemas, models and settings are equal. An answer from
    the cache uses no call and no token. Only complete answers are stored, and invalid answers are
    deleted. Equal questions asked at the same time share one request, which continues as long as a
    caller waits for it.

    If the store fails, or takes longer than `store_timeout` seconds, the run continues: the LM is
    asked, and the logger `bae.lm` warns once until the store works again.

    Put this policy outside all policies that count or wait, so that answers from the cache are
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
            for each in all_innermost(self):
                _check_settings(each)
        self.store_timeout = store_timeout
        self._failing: set[str] = set()
        """The methods of the store whose last call failed."""
        self._shared = SharedRequests()
        self._hits = self._misses = self._unstored = 0

    async def answer(self, prompt: Prompt) -> Answer:
        """Return the stored answer, or wait for an equal request in progress, or ask the LM."""
        key = cache_key(self.inner, prompt)
        return await self._shared.answer(key, lambda: self._look_and_ask(key, prompt))

    def statistics(self) -> CacheStatistics:
        """Counts of hits, misses, joined requests and unstored answers."""
        return CacheStatistics(self._hits, self._misses, self._shared.joined, self._unstored)

    async def reject(self, prompt: Prompt) -> None:
        """Delete the answer to a prompt, here and in caches inside."""
        key = cache_key(self.inner, prompt)
        await self._use_store("drop", lambda: self.store.drop(key))
        await super().reject(prompt)

    async def aclose(self) -> None:
        """Close the store and the LM inside."""
        try:
            await self._use_store("aclose", lambda: self.store.aclose())
        finally:
            await super().aclose()

    async def _look_and_ask(self, key: str, prompt: Prompt) -> Answer:
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
                done, _ = await self._use_store("put", lambda: self.store.put(key, text))
            except BaseException:
                report_usage(answer.usage)  # no caller is left to report it
                raise
            self._unstored += not done
        return answer

    async def _use_store(
        self, method: _Method, call: Callable[[], Awaitable[T]]
    ) -> tuple[bool, T | None]:
        """Call the store. Returns whether the call succeeded, and its result. A failure is only
        logged, since an answer that is not stored is better than no answer."""
        bound = asyncio.timeout(self.store_timeout)
        try:
            if isinstance(self.store, MemoryCache):  # needs no timeout: it never waits
                returned = await call()
            else:
                async with bound:
                    returned = await call()
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and cancellations():
                raise
            if method not in self._failing:
                self._failing.add(method)
                late = f"it took more than store_timeout={self.store_timeout:g} s"
                _log.warning(
                    "%r could not %s: %s. The run continues, and this is logged once until it can",
                    self.store,
                    _TASKS[method],
                    late if bound.expired() else describe(error),
                )
            return False, None
        self._failing.discard(method)
        return True, returned


async def _get(store: CacheStore, key: str) -> str | None:
    stored = await store.get(key)
    if stored is None or isinstance(cast(object, stored), str):
        return stored
    raise TypeError(f"it returned a {type(stored).__name__}, and not a str or None")


def cache_key(backend: Backend, prompt: Prompt) -> str:
    """The key of a prompt to a backend: the same for equal prompts, models and settings."""
    asked = innermost(backend)
    try:
        parts: dict[str, Any] = {
            "version": VERSION,
            **identity_of(backend),
            "settings": backend.settings,  # including the policies around the backend
            "system": prompt.system,
            "text": prompt.text,
            "turns": [
                [correction.answer, correction.correction] for correction in prompt.corrections
            ],
            "schema": prompt.schema,
        }
        if examples := prompt.examples:
            parts["examples"] = [[example.asked, example.answer] for example in examples]
        turns = [each for each in prompt.conversation if each.kind == "turn"]
        if turns:
            parts["thread"] = [[turn.role, turn.text] for turn in turns]
        if prompt.question.method:
            parts["method"] = prompt.question.method
        # The key leaves out `Message.echo`.
        rounds = [each for each in prompt.conversation if each.kind == "round"]
        if rounds:
            parts["rounds"] = [[e.role, [*map(_of_part, e.parts)]] for e in rounds]
        if files := prompt.files:
            parts["files"] = [[file.label, file.file.key] for file in files]
        if prompt.tools:
            tools = [[t.name, t.description, t.schema, t.native] for t in prompt.tools]
            parts |= {"tools": tools, "may_call": prompt.may_call}
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


def _of_part(part: Part) -> list[Any]:
    """A part of a message, without the bytes of files."""
    if isinstance(part, ResultPart):
        return [part.kind, part.id, part.name, part.result, part.is_error]
    return [part.kind, part.text] if isinstance(part, FilePart) else [part.kind, *astuple(part)]


def _check_settings(backend: Backend) -> None:
    """Raise if a persistent store could confuse the answers of this LM with those of another LM."""
    if isinstance(backend, LMAdapter) and not backend.has_settings:
        name = type(backend.lm).__name__
        raise BaeLMError(
            f"{name} has no `settings`, so its answers in a store could be taken for those of"
            f" another {name}",
            code="bae-lm-cache-key",
            sent=False,
            fix=f"give {name} an attribute `settings`, a mapping of what changes its answers, {{}}"
            " where nothing does; or cache in memory, with Cached(lm)",
        )


def text_to_store(prompt: Prompt, answer: Answer) -> str | None:
    """The text to store for an answer, or None if JSON cannot express the answer."""
    if not is_lossless(prompt, answer):
        return None
    if answer.text or answer.value is UNPARSED:
        return answer.text
    try:
        return to_json(answer.value).decode()
    except (ValueError, TypeError):
        return None


def _dump_answer(prompt: Prompt, answer: Answer) -> str | None:
    """An answer as JSON for the store, or None if JSON cannot express it."""
    text = text_to_store(prompt, answer)
    if text is None:
        return None
    stored = {"version": VERSION, "text": text, "models": answer.usage.models}
    return json.dumps({**stored, **calls_to_store(answer)})


def calls_to_store(answer: Answer) -> dict[str, Any]:
    """The tool calls of an answer, as JSON."""
    stored: dict[str, Any] = {}
    if answer.calls:
        stored["calls"] = [astuple(call) for call in answer.calls]
    if answer.ran:
        stored["ran"] = [[astuple(call), _of_part(result)[1:]] for call, result in answer.ran]
    if answer.echo is not None:
        stored["echo"] = answer.echo
    return stored


def with_stored_calls(answer: Answer, stored: Mapping[str, Any]) -> Answer:
    """Add the stored tool calls to an answer. Raises TypeError or ValueError if they cannot be
    read."""
    ran = ((CallPart(*call), ResultPart(*result)) for call, result in stored.get("ran", ()))
    calls = (CallPart(*call) for call in stored.get("calls", ()))
    return replace(answer, calls=tuple(calls), ran=tuple(ran), echo=stored.get("echo"))


def _read_answer(stored: str | None) -> Answer | None:
    """The stored answer, or None if it is missing or unreadable."""
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
    """Requests in progress, by the key of their question. Callers who ask an equal question in the
    meantime share the answer; `joined` counts these callers."""

    def __init__(self) -> None:
        self.joined = 0
        self._requests: dict[tuple[asyncio.AbstractEventLoop, str], _SharedRequest] = {}

    async def answer(self, key: str, ask: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Wait for an equal request in progress, or start a request with `ask`."""
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
                # A budget around the first caller does not limit callers who joined: they ask
                # again. A budget inside the cache limits all of them.
                others = set(request.budgets).difference(budgets_in_force())
                if not joined or error.budget not in others:
                    raise
                tell(Restart(error, 0.0))
            finally:
                if not request.is_open and self._requests.get(place) is request:
                    del self._requests[place]


class _SharedRequest:
    """A request that several callers wait for: a task under the budgets of the first caller. When
    it ends, the first caller still waiting reports its usage. Callers can join while it
    `is_open`."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, Answer]]) -> None:
        self.budgets = budgets_in_force()
        # By caller, in order. A caller can leave in constant time.
        self._meters: OrderedDict[asyncio.Future[None], Meter | None] = OrderedDict()
        self._events: list[CallEvent] = []
        self._is_delivered = False
        self._is_abandoned = False
        self._task = asyncio.get_running_loop().create_task(self._run(ask))
        self._task.add_done_callback(self._wake)

    @property
    def is_open(self) -> bool:
        return not (self._is_abandoned or self._task.done())

    async def result(self) -> Answer:
        """Wait for the answer. A caller who joins late gets the events so far. The last caller to
        leave cancels the request and waits until it has ended."""
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
                # The answer was paid for, and no caller is left to report it.
                report_usage(self._usage())
            raise
        if task.cancelled():
            return task.result()
        error = task.exception()
        if error is not None:
            # Each caller gets a copy of the error, since notes are added to it where it is raised.
            first, self._is_delivered = not self._is_delivered, True
            raise error if first else _copy(error) from error.__cause__
        return replace(task.result(), usage=self._usage())

    async def _run(self, ask: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        meter_in_force.set((self._report, self._tell))
        return await ask()

    def _usage(self) -> Usage:
        """The usage of the request for the first caller, and no usage for the others."""
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
