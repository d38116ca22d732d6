"""Models that all runs of a process share. Calls wait in a queue for a slot of the model. A
cancelled call first frees its slot and then raises `CancelledError`."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from bae.lm.local_engine import ENGINE, GeneratedText, Loading, LocalCall, load
from bae.lm.policies.limits import Slots
from bae.threads import in_thread


@dataclass(frozen=True, slots=True)
class Statistics:
    """The slots of a model, and its calls."""

    slots: int
    """How many calls can run at the same time."""
    running: int
    """How many calls have a slot."""
    waiting: int
    """How many calls wait for a slot."""
    loaded: bool
    """Whether the model is in memory."""


class LocalModel:
    """A model and its slots. Get it with `hold`. The first call loads the model. After `close`, the
    model is unloaded when no call uses it."""

    def __init__(self, loading: Loading) -> None:
        self.loading = loading
        self.holders: WeakSet[Any] = WeakSet()
        self._slots = Slots(loading.slots)
        self._loading = threading.Lock()
        self._lock = threading.Lock()
        self._running: dict[LocalCall, threading.Thread] = {}
        self._known_grammars: set[str] = set()
        self._server: Any = None
        self._ended = False

    async def answer(self, call: LocalCall) -> GeneratedText:
        """Wait for a slot, then for the answer.

        A cancelled call that waits leaves the queue. A cancelled call that is running stops the
        generation before it ends. This takes the time of one token, or of one batch of the prompt.
        """
        await self.load()
        async with self._slots:
            answer = Future[GeneratedText]()
            # A daemon thread: the interpreter must not wait for it, since `end` stops it.
            threading.Thread(target=self._serve, args=(call, answer), daemon=True).start()
            waiter = asyncio.wrap_future(answer)
            cancelled: asyncio.CancelledError | None = None
            while not waiter.done():
                try:
                    await asyncio.wait([waiter])
                except asyncio.CancelledError as error:
                    call.stopped = True
                    cancelled = error
            if cancelled is not None:
                waiter.exception()  # retrieve it, or asyncio reports it
                raise cancelled
            return waiter.result()

    async def load(self) -> None:
        """Load the model if it is not loaded yet."""
        if self._server is None:
            await in_thread(self._load)

    def statistics(self) -> Statistics:
        """Return the counts of slots, running calls and waiting calls."""
        slots = self._slots
        return Statistics(slots.limit, slots.taken, slots.waiting, self._server is not None)

    def close(self) -> None:
        """Unload the model after the calls in progress, which refer to it."""
        self._server = None

    def end(self) -> None:
        """Stop all calls and unload the model, at the end of the process."""
        with self._lock:
            self._ended = True
            running = dict(self._running)
        for call, thread in running.items():
            call.stopped = True
            thread.join()
        self._server = None

    def abandon(self) -> None:
        """Keep a forked child from ending the engine's server, which belongs to the parent.

        The fork did not copy the server's threads, so ending the server would wait for them
        forever.
        """
        if self._server is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._server))

    def _serve(self, call: LocalCall, answer: Future[GeneratedText]) -> None:
        with self._lock:
            if self._ended:
                return
            self._running[call] = threading.current_thread()
        generated, failure = None, None
        try:
            generated = call.run(self._load(), self._known_grammars)
        except BaseException as error:
            failure = error
        with self._lock:
            del self._running[call]
            if self._ended:
                return
        if generated is not None:
            answer.set_result(generated)
        else:
            answer.set_exception(failure)

    def _load(self) -> Any:
        with self._loading:
            if self._server is None:
                self._server = load(self.loading)
                if _inherited:
                    self.abandon()
            return self._server


# --- sharing ----------------------------------------------------------------------------------


def hold(loading: Loading, holder: object) -> LocalModel:
    """Return this process's model for `loading`, and add `holder` to the model's users."""
    with _registry:
        model = _models.get(loading)
        if model is None:
            model = _models[loading] = LocalModel(loading)
        model.holders.add(holder)
        return model


def release(loading: Loading, holder: object) -> LocalModel | None:
    """Remove a user of a model. If it was the last user, return the model, and the caller closes
    it. Otherwise return None."""
    with _registry:
        model = _models.get(loading)
        if model is None or holder not in model.holders:
            return None
        model.holders.discard(holder)
        return None if model.holders else _models.pop(loading)


def _end_all() -> None:
    """End all models when the process ends. A thread that is still inside the engine would crash
    the process."""
    with _registry:
        models = list(_models.values())
        _models.clear()
    for model in models:
        model.end()


def _begin_as_child() -> None:
    """Reset a forked child: it has none of the parent's threads, and loads its own models."""
    global _registry, _inherited
    _registry = threading.Lock()
    for model in _models.values():
        model.abandon()
    _models.clear()
    if not _inherited and ENGINE in sys.modules:
        _inherited = True
        # Exit without the cleanup of C++, which would also wait for the parent's threads.
        program = ctypes.CDLL(None)
        with suppress(AttributeError):  # not every system has `on_exit`
            program.on_exit(program._exit, None)


_models: dict[Loading, LocalModel] = {}
_registry = threading.Lock()
_inherited = False
"""Whether this process is a fork of a process that had imported the engine."""

atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_as_child)
