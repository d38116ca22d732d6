"""Models that are loaded once and shared by all runs of a process. A model has slots, each with a
thread; calls queue for a slot, and a cancelled call gives its slot back before the cancellation is
raised."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any
from weakref import WeakSet

from bae.exceptions import BaeLMError
from bae.lm.local_engine import ENGINE, Call, Heard, Loading, load
from bae.threads import in_thread


@dataclass(frozen=True, slots=True)
class Statistics:
    """A model at this moment: its slots, the calls in them, and those that wait for one."""

    slots: int
    running: int
    waiting: int
    loaded: bool


class LocalModel:
    """A model and its slots. Get one with `hold`; it is loaded at the first call."""

    def __init__(self, loading: Loading) -> None:
        self.loading = loading
        self.holders: WeakSet[Any] = WeakSet()
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._queue: SimpleQueue[Call | None] = SimpleQueue()
        self._waiting: set[Call] = set()
        self._running: set[Call] = set()
        self._threads: list[threading.Thread] = []
        self._known_grammars: set[str] = set()
        self._server: Any = None
        self._closed = False
        self._stopping = False

    async def answer(self, call: Call) -> Heard:
        """Wait for a slot, and in it for the answer.

        A call that is cancelled in the queue leaves it; in a slot, generation is stopped first,
        which takes one token, or one batch of the prompt.
        """
        future = asyncio.wrap_future(call.future)
        self._put(call)
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                if call.future.cancel():
                    raise
                call.stopped = True
                cancelled = error
        if cancelled is not None:
            future.exception()  # retrieved, so that asyncio does not report it
            raise cancelled
        return future.result()

    async def load(self) -> None:
        """Load the model, where it is not loaded yet."""
        await in_thread(self._load)

    def statistics(self) -> Statistics:
        """The slots, and the calls in them and in the queue."""
        with self._lock:
            waiting = sum(not call.future.cancelled() for call in self._waiting)
            loaded = self._server is not None
            return Statistics(self.loading.slots, len(self._running), waiting, loaded)

    def close(self, *, at_once: bool = False) -> None:
        """End the threads and unload the model, when the calls in slots and in the queue are done;
        or at once, where nothing waits for those any more."""
        with self._lock:
            self._closed = True
            self._stopping = at_once
            threads = list(self._threads)
            for call in self._running if at_once else ():
                call.stopped = True
            if at_once:
                with suppress(Empty):
                    while True:
                        self._queue.get_nowait()
            for _ in threads:
                self._queue.put(None)
        for thread in threads:
            thread.join()
        if _inherited:
            self.abandon()
        self._server = None

    def abandon(self) -> None:
        """Never take the server down, in a child process whose parent it belongs to: its threads
        were not copied by the fork, and would be waited for without end."""
        if self._server is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._server))

    def _put(self, call: Call) -> None:
        with self._lock:
            if self._closed:
                raise BaeLMError(
                    f"{call.who} was closed while it was asked",
                    sent=False,
                    fix="close a backend when its last call is done",
                )
            self._waiting.add(call)
            self._queue.put(call)
            if len(self._threads) < self.loading.slots:
                name = f"bae {self.loading.path.stem} {len(self._threads)}"
                # A daemon, because `_close_all` ends it: the interpreter is not to wait for it.
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _work(self) -> None:
        while (call := self._queue.get()) is not None:
            self._serve(call)

    def _serve(self, call: Call) -> None:
        server, failure, heard = None, None, None
        try:
            server = self._load()
        except BaseException as error:
            failure = error
        with self._lock:
            self._waiting.discard(call)
            # From here on the call cannot leave by itself, and has to be stopped.
            if not call.future.set_running_or_notify_cancel():
                return
            self._running.add(call)
            call.stopped = call.stopped or self._stopping
        if failure is None:
            try:
                heard = call.run(server, self._known_grammars)
            except BaseException as error:
                failure = error
        with self._lock:
            self._running.discard(call)
        if self._stopping:
            return
        if heard is not None:
            call.future.set_result(heard)
        else:
            call.future.set_exception(failure or RuntimeError("no answer"))

    def _load(self) -> Any:
        with self._loading:
            if self._server is None:
                self._server = load(self.loading)
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


def _close_all() -> None:
    """Threads that are in the engine when the interpreter ends would crash the process."""
    with _registry:
        models = list(_models.values())
        _models.clear()
    for model in models:
        model.close(at_once=True)


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

atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_as_child)
