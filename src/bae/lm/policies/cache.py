"""A cache of answers. A question that was answered before costs nothing, and equal questions asked
at the same time share one request."""

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
from bae.prompts.messages import CallPart, FilePart, Part, ResultPart
from bae.tasks import cancellations, gone
from bae.usage import CallEvent, Meter, Restart, Usage, meter_in_force, report, tell

if TYPE_CHECKING:
    from bae.language_model import LM

T = TypeVar("T")

VERSION = 1
"""Of the keys and of the stored answers: those of another version are not found."""

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
    """How many questions were answered from the store (`hits`), by the LM (`misses`), and by the
    answer to an equal one that was in progress (`joined`); and how many answers could not be
    stored (`unstored`)."""

    hits: int
    misses: int
    joined: int
    unstored: int


class Cached(Policy):
    """Asks an LM only what it was not asked before: `Cached(lm)` for this process, or
    `Cached(lm, "answers.sqlite")` for later ones too.

    Two questions are the same when the prompt with its schema, the model and its settings are.
    An answer from the cache uses no call and no token. Only answers that ended by themselves are
    stored, and one that turns out invalid is dropped. Equal questions asked at the same time make
    one request, which continues as long as one caller waits for it.

    A store that fails, or takes longer than `store_timeout` seconds, fails no run: the LM is asked,
    and the logger `bae.lm` warns, once until the store works again.

    Put it outside all policies that count or wait: answers from the cache then cost nothing.
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
        elif isinstance(store, str | Path):
            store = SQLiteCache(store)
        elif not all(hasattr(store, name) for name in ("get", "put")):
            raise TypeError(f"Cached(lm, {store!r}): give a store, or the path of a file")
        self.store: CacheStore = store
        if not isinstance(store, MemoryCache):
            for each in all_innermost(self):
                _check_settings(each)
        self.store_timeout = store_timeout
        self._failing: set[str] = set()
        """The methods of the store that failed when they were last called."""
        self._shared = SharedRequests()
        self._hits = self._misses = self._unstored = 0

    async def answer(self, prompt: Prompt) -> Answer:
        """The stored answer, or that of an equal question in progress, or else ask the LM."""
        key = cache_key(self.inner, prompt)
        return await self._shared.answer(key, lambda: self._look_and_ask(key, prompt))

    def statistics(self) -> CacheStatistics:
        """How often the cache was used."""
        return CacheStatistics(self._hits, self._misses, self._shared.joined, self._unstored)

    async def reject(self, prompt: Prompt) -> None:
        """Drop the answer to a prompt, and have the LM inside do so."""
        key = cache_key(self.inner, prompt)
        await self._use_store("drop", lambda: self.store.drop(key))
        await super().reject(prompt)

    async def aclose(self) -> None:
        """Close the store, and the LM inside."""
        try:
            await self._use_store("aclose", lambda: self.store.aclose())
        finally:
            await super().aclose()

    async def _look_and_ask(self, key: str, prompt: Prompt) -> Answer:
        _, stored = await self._use_store("get", lambda: _get(self.store, key))
        found = _read(stored)
        if found is not None:
            self._hits += 1
            return found
        self._misses += 1
        answer = await self.ask(prompt)
        text = _written(prompt, answer) if answer.stop == "end" else ""
        if text is None:
            self._unstored += 1
        elif text:
            try:
                done, _ = await self._use_store("put", lambda: self.store.put(key, text))
            except BaseException:
                report(answer.usage)  # no caller waits for it any more
                raise
            self._unstored += not done
        return answer

    async def _use_store(
        self, method: _Method, call: Callable[[], Awaitable[T]]
    ) -> tuple[bool, T | None]:
        """Whether the store did as it was asked, and what it returned. Its failures are logged:
        better an answer that is not stored than none."""
        bound = asyncio.timeout(self.store_timeout)
        try:
            if isinstance(self.store, MemoryCache):  # it waits for nothing
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
            "settings": backend.settings,  # with those of the policies around it
            "system": prompt.system,
            "text": prompt.text,
            "turns": [[each.answer, each.correction] for each in prompt.corrections],
            "schema": prompt.schema,
        }
        if examples := prompt.examples:
            parts["examples"] = [[each.asked, each.answer] for each in examples]
        turns = [each for each in prompt.conversation if each.kind == "turn"]
        if turns:
            parts["thread"] = [[each.role, each.text] for each in turns]
        if prompt.question.method:
            parts["method"] = prompt.question.method
        # What a provider wants back verbatim is no part of it: see `Message.echo`.
        rounds = [each for each in prompt.conversation if each.kind == "round"]
        if rounds:
            parts["rounds"] = [[e.role, [*map(_of_part, e.parts)]] for e in rounds]
        if files := prompt.files:
            parts["files"] = [[each.label, each.file.key] for each in files]
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
    """Raise where stored answers could not be told from those of another LM."""
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
    """The text of an answer, from which it can be read again; None if JSON cannot express it."""
    if not is_lossless(prompt, answer):
        return None
    if answer.text or answer.value is UNPARSED:
        return answer.text
    try:
        return to_json(answer.value).decode()
    except (ValueError, TypeError):
        return None


def _written(prompt: Prompt, answer: Answer) -> str | None:
    """An answer as it is stored, or None where JSON cannot express it."""
    text = text_to_store(prompt, answer)
    if text is None:
        return None
    stored = {"version": VERSION, "text": text, "models": answer.usage.models}
    return json.dumps({**stored, **calls_to_store(answer)})


def calls_to_store(answer: Answer) -> dict[str, Any]:
    """What an answer has of tool calls, as JSON."""
    found: dict[str, Any] = {}
    if answer.calls:
        found["calls"] = [astuple(call) for call in answer.calls]
    if answer.ran:
        found["ran"] = [[astuple(call), _of_part(result)[1:]] for call, result in answer.ran]
    if answer.echo is not None:
        found["echo"] = answer.echo
    return found


def with_stored_calls(answer: Answer, stored: Mapping[str, Any]) -> Answer:
    """An answer with the tool calls that are stored of it. Raises TypeError or ValueError where
    they cannot be read."""
    ran = ((CallPart(*call), ResultPart(*result)) for call, result in stored.get("ran", ()))
    calls = (CallPart(*call) for call in stored.get("calls", ()))
    return replace(answer, calls=tuple(calls), ran=tuple(ran), echo=stored.get("echo"))


def _read(stored: str | None) -> Answer | None:
    """The stored answer; None where there is none that can be read, and it has to be asked for."""
    if stored is None:
        return None
    try:
        found = json.loads(stored)
        texts = [found["text"], *found["models"]]
        if found["version"] == VERSION and all(isinstance(each, str) for each in texts):
            return with_stored_calls(Answer(texts[0], Usage(models=tuple(texts[1:]))), found)
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    return None


class SharedRequests:
    """Requests in progress, by a key that is the same for equal questions. Callers who ask the same
    meanwhile share the answer; `joined` counts them."""

    def __init__(self) -> None:
        self.joined = 0
        self._requests: dict[tuple[asyncio.AbstractEventLoop, str], _SharedRequest] = {}

    async def answer(self, key: str, ask: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """The answer to an equal question that is in progress, or else the one that `ask` gives."""
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
                # The budgets around the first caller do not concern those who joined; one that is
                # inside the cache would refuse each of them.
                others = set(request.budgets).difference(budgets_in_force())
                if not joined or error.budget not in others:
                    raise
                tell(Restart(error, 0.0))
            finally:
                if not request.is_open and self._requests.get(place) is request:
                    del self._requests[place]


class _SharedRequest:
    """A request that several callers wait for: a task with the budgets of the first caller. The
    first of those who still wait when it ends has its usage. It `is_open` while it can be
    joined."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, Answer]]) -> None:
        self.budgets = budgets_in_force()
        # By caller, in order; each can leave at once, however many wait.
        self._meters: OrderedDict[asyncio.Future[None], Meter | None] = OrderedDict()
        self._told: list[CallEvent] = []
        self._is_given = False
        self._is_left = False
        self._task = asyncio.get_running_loop().create_task(self._run(ask))
        self._task.add_done_callback(self._wake)

    @property
    def is_open(self) -> bool:
        return not (self._is_left or self._task.done())

    async def result(self) -> Answer:
        """Wait for the answer. Callers who join later are told the events they missed. The last one
        to leave cancels the request and waits until it has ended."""
        waiter, task = asyncio.get_running_loop().create_future(), self._task
        self._meters[waiter] = meter_in_force.get()
        for event in self._told:
            tell(event)
        try:
            await waiter
        except BaseException:
            if len(self._meters) > 1:
                del self._meters[waiter]
                raise
            self._is_left = True
            task.cancel()
            await gone([task])
            if not task.cancelled() and task.exception() is None:
                report(self._usage())  # it was paid for, and no other caller has used it
            raise
        if task.cancelled():
            return task.result()
        error = task.exception()
        if error is not None:
            # Each gets an error of its own, as errors are written to where they are raised.
            first, self._is_given = not self._is_given, True
            raise error if first else _copy(error) from error.__cause__
        return replace(task.result(), usage=self._usage())

    async def _run(self, ask: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        meter_in_force.set((self._report, self._tell))
        return await ask()

    def _usage(self) -> Usage:
        """What the request used, for the first who asks; nothing for the others."""
        used = self._task.result().usage
        first, self._is_given = not self._is_given, True
        return used if first else Usage(models=used.models)

    def _wake(self, _: object) -> None:
        for waiter in self._meters:
            if not waiter.done():  # it was cancelled
                waiter.set_result(None)

    def _report(self, usage: Usage) -> None:
        first = next(iter(self._meters.values()), None)
        if first is not None:
            first[0](usage)

    def _tell(self, event: CallEvent) -> None:
        self._told.append(event)
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
