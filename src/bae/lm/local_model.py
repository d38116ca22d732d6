"""Models that are loaded once and shared by all runs of a process. A model has slots, each with a
thread of its own; calls wait in one line for a slot, and a call that is cancelled gives its slot
back before the cancellation goes on. `local_call.py` is what happens in a slot."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any
from weakref import WeakSet

from bae.exceptions import BaeLMError
from bae.lm.control_tokens import breaking
from bae.lm.local_call import Call, Heard
from bae.lm.local_engine import (
    Loading,
    begin_as_child,
    end_without_cleaning_up,
    is_running,
    leave_alone,
    load,
)
from bae.threads import in_thread


@dataclass(frozen=True, slots=True)
class Statistics:
    """A model at this moment: its slots, the calls in them, and those in line for one."""

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
        self._line: SimpleQueue[Call | None] = SimpleQueue()
        self._waiting: set[Call] = set()
        self._running: set[Call] = set()
        self._threads: list[threading.Thread] = []
        self._known: set[str] = set()
        self._server: Any = None
        self._broken: Callable[[str], str] = str
        self._closed = False
        self._stopping = False

    async def answer(self, call: Call) -> Heard:
        """Wait for a slot, and in it for the answer.

        When it is cancelled in line, it leaves the line; in a slot, generation is stopped first,
        which takes one token, or one batch of the prompt.
        """
        future = asyncio.wrap_future(call.future)
        self._queue(call)
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
            future.exception()  # seen, and of no use to anyone
            raise cancelled
        return future.result()

    async def load(self) -> None:
        """Load the model, where it is not loaded yet."""
        await in_thread(self._loaded)

    def statistics(self) -> Statistics:
        """What the model is at."""
        with self._lock:
            waiting = sum(not call.future.cancelled() for call in self._waiting)
            loaded = self._server is not None
            return Statistics(self.loading.slots, len(self._running), waiting, loaded)

    def metrics(self) -> str:
        """What llama.cpp itself counts, as text for Prometheus; empty before it is loaded."""
        server = self._server
        return "" if server is None else server.handle_metrics()

    def close(self, *, at_once: bool = False) -> None:
        """End the threads and unload the model, when the calls in slots and in line are done; or
        at once, with nobody left to hear of those."""
        with self._lock:
            self._closed = True
            self._stopping = at_once
            threads = list(self._threads)
            for call in self._running if at_once else ():
                call.stopped = True
            for _ in threads:
                self._line.put(None)
        if at_once:
            self._empty_line(len(threads))
        for thread in threads:
            thread.join()
        if _inherited:
            self.abandon()
        self._server = None

    def abandon(self) -> None:
        """Let go of a model that belongs to the parent process."""
        if self._server is not None:
            leave_alone(self._server)

    def _queue(self, call: Call) -> None:
        with self._lock:
            if self._closed:
                raise BaeLMError(
                    f"{call.who} was closed while it was asked",
                    sent=False,
                    fix="close a backend when its last call is done",
                )
            self._waiting.add(call)
            self._line.put(call)
            if len(self._threads) < self.loading.slots:
                name = f"bae {self.loading.path.stem} {len(self._threads)}"
                # Not to be waited for by the interpreter: it is told to end by `_close_all`.
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _work(self) -> None:
        while (call := self._line.get()) is not None:
            self._serve(call)

    def _serve(self, call: Call) -> None:
        server, failure = None, None
        try:
            server = self._loaded()
        except BaseException as error:
            failure = error
        with self._lock:
            self._waiting.discard(call)
            # From here on the call cannot leave by itself, and has to be stopped.
            if not call.future.set_running_or_notify_cancel():
                return
            self._running.add(call)
            call.stopped = call.stopped or self._stopping
        heard = None
        if failure is None:
            try:
                heard = call.run(server, self._known, self._broken)
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

    def _loaded(self) -> Any:
        with self._loading:
            if self._server is None:
                server = load(self.loading)
                self._broken = breaking(self.loading.path)
                self._server = server
            return self._server

    def _empty_line(self, ends: int) -> None:
        with suppress(Empty):
            while True:
                self._line.get_nowait()
        for _ in range(ends):
            self._line.put(None)


def hold(loading: Loading, holder: object) -> LocalModel:
    """The one model of this process that is loaded so; `holder` is remembered as using it."""
    with _registry:
        model = _models.get(loading)
        if model is None:
            model = _models[loading] = LocalModel(loading)
        model.holders.add(holder)
        return model


def release(loading: Loading, holder: object) -> LocalModel | None:
    """The model that has to be closed, where `holder` was the last to use it."""
    with _registry:
        model = _models.get(loading)
        if model is None or holder not in model.holders:
            return None
        model.holders.discard(holder)
        return None if model.holders else _models.pop(loading)


def _close_all() -> None:
    """Threads that are in the engine when the interpreter goes would crash the process."""
    with _registry:
        models = list(_models.values())
        _models.clear()
    for model in models:
        model.close(at_once=True)


def _begin_as_child() -> None:
    """A forked child has none of the threads, and loads models of its own."""
    global _registry, _inherited
    _registry = threading.Lock()
    begin_as_child()
    for model in _models.values():
        model.abandon()
    _models.clear()
    if not _inherited and is_running():
        _inherited = True
        end_without_cleaning_up()


_models: dict[Loading, LocalModel] = {}
_registry = threading.Lock()
_inherited = False
"""Whether this process was forked from one in which the engine was running."""

atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_as_child)
