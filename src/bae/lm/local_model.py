"""Models that are loaded once and shared by all runs of a process. A model has slots; calls queue
for one, and a cancelled call gives its slot back before the cancellation is raised."""

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

from bae.lm.local_engine import ENGINE, Heard, Loading, LocalCall, load
from bae.lm.policies.limits import Slots
from bae.threads import in_thread


@dataclass(frozen=True, slots=True)
class Statistics:
    """A model at this moment: its slots, the calls in them, and those that wait for one."""

    slots: int
    running: int
    waiting: int
    loaded: bool


class LocalModel:
    """A model and its slots. Get one with `hold`; it is loaded at the first call, and unloaded when
    `close` was called and no call uses it."""

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

    async def answer(self, call: LocalCall) -> Heard:
        """Wait for a slot, and in it for the answer.

        A call that is cancelled in the queue leaves it; in a slot, generation is stopped first,
        which takes one token, or one batch of the prompt.
        """
        await self.load()
        async with self._slots:
            answer = Future[Heard]()
            # A daemon, because `end` stops it: the interpreter is not to wait for it.
            threading.Thread(target=self._serve, args=(call, answer), daemon=True).start()
            heard = asyncio.wrap_future(answer)
            cancelled: asyncio.CancelledError | None = None
            while not heard.done():
                try:
                    await asyncio.wait([heard])
                except asyncio.CancelledError as error:
                    call.stopped = True
                    cancelled = error
            if cancelled is not None:
                heard.exception()  # retrieved, so that asyncio does not report it
                raise cancelled
            return heard.result()

    async def load(self) -> None:
        """Load the model, where it is not loaded yet."""
        if self._server is None:
            await in_thread(self._load)

    def statistics(self) -> Statistics:
        """The slots, and the calls in them and in the queue."""
        slots = self._slots
        return Statistics(slots.limit, slots.taken, slots.waiting, self._server is not None)

    def close(self) -> None:
        """Unload the model, when the calls in progress are done: they hold it."""
        self._server = None

    def end(self) -> None:
        """Stop all calls, where nothing waits for them any more, and unload the model."""
        with self._lock:
            self._ended = True
            running = dict(self._running)
        for call, thread in running.items():
            call.stopped = True
            thread.join()
        self._server = None

    def abandon(self) -> None:
        """Never take the server down, in a child process whose parent it belongs to: its threads
        were not copied by the fork, and would be waited for without end."""
        if self._server is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._server))

    def _serve(self, call: LocalCall, answer: Future[Heard]) -> None:
        with self._lock:
            if self._ended:
                return
            self._running[call] = threading.current_thread()
        heard, failure = None, None
        try:
            heard = call.run(self._load(), self._known_grammars)
        except BaseException as error:
            failure = error
        with self._lock:
            del self._running[call]
            if self._ended:
                return
        if heard is not None:
            answer.set_result(heard)
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
    """The one model of this process that is loaded this way, with `holder` as one of its users."""
    with _registry:
        model = _models.get(loading)
        if model is None:
            model = _models[loading] = LocalModel(loading)
        model.holders.add(holder)
        return model


def release(loading: Loading, holder: object) -> LocalModel | None:
    """The model that has to be closed, where `holder` was its last user."""
    with _registry:
        model = _models.get(loading)
        if model is None or holder not in model.holders:
            return None
        model.holders.discard(holder)
        return None if model.holders else _models.pop(loading)


def _end_all() -> None:
    """Threads that are in the engine when the interpreter ends would crash the process."""
    with _registry:
        models = list(_models.values())
        _models.clear()
    for model in models:
        model.end()


def _begin_as_child() -> None:
    """A forked child has none of the threads, and loads models of its own."""
    global _registry, _inherited
    _registry = threading.Lock()
    for model in _models.values():
        model.abandon()
    _models.clear()
    if not _inherited and ENGINE in sys.modules:
        _inherited = True
        # End without the cleanup of C++, which would wait for threads of the parent too.
        program = ctypes.CDLL(None)
        with suppress(AttributeError):  # not every system has it
            program.on_exit(program._exit, None)


_models: dict[Loading, LocalModel] = {}
_registry = threading.Lock()
_inherited = False
"""Whether this process was forked from one in which the engine was running."""

atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_as_child)
