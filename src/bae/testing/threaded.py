"""A `Provider` in a thread of its own, for tests that are not async."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from threading import Event, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from bae.testing.answers import Answer, Answering
    from bae.testing.provider import Provider
    from bae.testing.received import Received


class ThreadedProvider:
    """A `Provider` that runs in a thread for the time of a `with`: make it with
    `Provider.in_thread()`. It has what a `Provider` has, and what waits there waits here."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._thread: Thread | None = None
        self._started = Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    def script(self, *answers: Answer | Answering) -> None:
        """Answer the next requests with these, one each; a function is called in the thread."""
        self._provider.script(*answers)

    def always(self, answer: Answer | Answering | None = None) -> None:
        """Answer with this whenever the script is used up; without one, with samples again."""
        self._provider.always(answer)

    def assert_complete(self) -> None:
        """Raise AssertionError when part of the script was never asked for."""
        self._provider.assert_complete()

    def held(self) -> AbstractContextManager[None]:
        """Within this block, answers to requests that arrive wait for its end."""
        return self._provider.held()

    @property
    def url(self) -> str:
        """Where it is: `http://127.0.0.1:…`, without a path."""
        return self._provider.url

    @property
    def requests(self) -> list[Received]:
        """The requests for an answer so far, oldest first, as many as are remembered."""
        return self._provider.requests

    @property
    def received(self) -> int:
        """How many requests for an answer there were, forgotten ones included."""
        return self._provider.received

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return self._provider.open_connections

    @property
    def waiting(self) -> int:
        """How many requests wait for the end of `held`, or are stalled, now."""
        return self._provider.waiting

    def arrived(self, count: int = 1, *, timeout: float = 10.0) -> None:
        """Wait until so many requests are waiting at once, held or stalled."""
        self._wait(self._provider.arrived(count, timeout=timeout))

    def idle(self, *, timeout: float = 10.0) -> None:
        """Wait until every request is answered, or its client gone."""
        self._wait(self._provider.idle(timeout=timeout))

    def disconnected(self, *, left: int = 0, timeout: float = 10.0) -> None:
        """Wait until no connection is open, or no more than `left`, and nothing of the others."""
        self._wait(self._provider.disconnected(left=left, timeout=timeout))

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise RuntimeError("the provider is running already")
        self._failure = None
        self._started.clear()
        self._thread = Thread(target=self._run, name="bae provider", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._loop is None or self._stop is None or self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._thread = None
        if self._failure is not None and error is None:
            raise self._failure

    def _wait(self, waiting: Coroutine[Any, Any, None]) -> None:
        if self._loop is None:
            waiting.close()
            raise RuntimeError("the provider is not running: use it in `with Provider.in_thread()`")
        asyncio.run_coroutine_threadsafe(waiting, self._loop).result()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        async with self._provider:
            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            self._started.set()
            await self._stop.wait()
            self._loop = None
