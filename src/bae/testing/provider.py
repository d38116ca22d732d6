"""A model provider on loopback, for tests: a real HTTP server that speaks the APIs of OpenAI and
Anthropic, answers what a test tells it to, and fails as real providers do. `serving` has the
connections, the `wire` modules have the APIs."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from inspect import isawaitable
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from bae.exceptions import describe
from bae.lm.extras import need
from bae.testing.answers import Answer, Answering, Prepared, prepared, spoken
from bae.testing.delivery import refuse_by, send
from bae.testing.endpoints import COUNT_TOKENS, WIRES, get, not_found, refuse, wire_for
from bae.testing.faults import Fault, Status
from bae.testing.received import Received, read
from bae.testing.tokens import PromptCache
from bae.testing.watching import Changes
from bae.testing.wire import Said, Wire

if TYPE_CHECKING:
    from bae.testing.serving import Exchange, Server
    from bae.testing.threaded import ThreadedProvider


class Provider:
    """A model provider on 127.0.0.1, for the time of an `async with`.

    Point a client at `url` (Anthropic) or `url + "/v1"` (OpenAI) with any key. Without more it
    answers every request with a sample made from the request's JSON schema. Say what it answers
    with `script` and `always`; see what it was asked in `requests`.

    Tokens are counted as one for four characters. Prompts are cached as the APIs do it: by
    Anthropic up to where the client says, by OpenAI from 1024 tokens on.

    - `seed`: for other samples.
    - `body_limit`: the bytes a request may have; with more it is refused with status 413.
    - `remember`: how many requests `requests` holds; the oldest are forgotten.
    """

    def __init__(
        self, *, seed: int = 0, body_limit: int = 10_000_000, remember: int = 1000
    ) -> None:
        need("h11", extra="testing", by="Provider")
        for name, value in (("body_limit", body_limit), ("remember", remember)):
            if value < 1:
                raise ValueError(f"Provider({name}={value!r}): give 1 or more")
        self._seed = seed
        self._body_limit = body_limit
        self._lock = Lock()
        self._script: deque[Prepared] = deque()
        self._fallback: Prepared | None = None
        self._requests: deque[Received] = deque(maxlen=remember)
        self._received = 0
        self._holds: list[asyncio.Event] = []
        self._waiting = 0
        self._cache = PromptCache()
        self._failures: list[BaseException] = []
        self._server: Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changes = Changes()
        self._url = ""

    @classmethod
    def in_thread(
        cls, *, seed: int = 0, body_limit: int = 10_000_000, remember: int = 1000
    ) -> ThreadedProvider:
        """The same in a thread of its own, for the time of a plain `with`: for tests that are not
        async. Its methods that wait are not async either."""
        from bae.testing.threaded import ThreadedProvider

        return ThreadedProvider(cls(seed=seed, body_limit=body_limit, remember=remember))

    # --- what to answer -----------------------------------------------------------------------

    def script(self, *answers: Answer | Answering) -> None:
        """Answer the next requests with these, one each, in the order in which they arrive.

        A dict or a list is sent as JSON, a text as it is, by whichever channel the client asked
        for. A fault is done. A function is called with the `Received`, and returns one of these.
        """
        checked = [prepared(answer) for answer in answers]
        with self._lock:
            self._script.extend(checked)

    def always(self, answer: Answer | Answering | None = None) -> None:
        """Answer with this whenever the script is used up; without one, with samples again."""
        self._fallback = None if answer is None else prepared(answer)

    def assert_complete(self) -> None:
        """Raise AssertionError when part of the script was never asked for."""
        with self._lock:
            left = list(self._script)
        if left:
            raise AssertionError(f"the script was not used up; left are {len(left)}: {left!r}")

    @contextmanager
    def held(self) -> Generator[None]:
        """Within this block, answers to requests that arrive wait for its end."""
        hold = asyncio.Event()
        self._holds.append(hold)
        try:
            yield
        finally:
            self._holds.remove(hold)
            self._in_loop(hold.set)

    # --- what happened ------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Where it is: `http://127.0.0.1:…`, without a path."""
        if not self._url:
            raise RuntimeError(
                "the provider is not running: use it in `async with Provider() as …`"
            )
        return self._url

    @property
    def requests(self) -> list[Received]:
        """The requests for an answer so far, oldest first, as many as are remembered."""
        with self._lock:
            return list(self._requests)

    @property
    def received(self) -> int:
        """How many requests for an answer there were, forgotten ones included."""
        return self._received

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return 0 if self._server is None else len(self._server.connections)

    @property
    def waiting(self) -> int:
        """How many requests wait for the end of `held`, or are stalled, now."""
        return self._waiting

    async def arrived(self, count: int = 1, *, timeout: float = 10.0) -> None:
        """Wait until so many requests are waiting at once, held or stalled."""
        await self._changes.until(
            lambda: self._waiting >= count,
            timeout,
            lambda: (
                f"{self._waiting} of {count} requests are waiting, of {self._received} that came,"
            ),
        )

    async def idle(self, *, timeout: float = 10.0) -> None:
        """Wait until every request is answered, or its client gone."""
        await self._changes.until(
            lambda: self._server is None or not self._server.busy,
            timeout,
            lambda: f"{self._server and self._server.busy} connections are still busy",
        )

    async def disconnected(self, *, left: int = 0, timeout: float = 10.0) -> None:
        """Wait until no connection is open, or no more than `left`, and nothing of the others."""
        await self._changes.until(
            lambda: (
                self._server is None
                or max(len(self._server.connections), len(self._server.tasks)) <= left
            ),
            timeout,
            lambda: f"{self.open_connections} connections are still open",
        )

    # --- running ------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        from bae.testing.serving import Server

        if self._server is not None:
            raise RuntimeError("the provider is running already")
        self._loop = asyncio.get_running_loop()
        self._server = Server(
            self._respond,
            changed=self._changes.tell,
            failed=self._failures.append,
            body_limit=self._body_limit,
        )
        await self._server.start()
        self._url = f"http://127.0.0.1:{self._server.port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        try:
            await self._server.close()
        finally:
            self._server, self._loop, self._url = None, None, ""
        failures, self._failures = self._failures, []
        # What a test's own function raised is the test's to see, whatever the client made of it.
        if failures and error is None:
            raise failures[0]

    def _in_loop(self, act: Callable[[], object]) -> None:
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if self._loop is None or here is self._loop:
            act()
        else:
            self._loop.call_soon_threadsafe(act)

    # --- answering ----------------------------------------------------------------------------

    async def _respond(self, exchange: Exchange) -> None:
        request = exchange.request
        wire = wire_for(request.path, request.headers)
        if request.fault is not None:
            await refuse(exchange, wire, 400, f"this is no HTTP request: {request.fault}")
        elif request.body is None:
            limit = f"the request is larger than {self._body_limit} bytes"
            await refuse(exchange, wire, 413, limit)
        elif request.method in ("GET", "HEAD"):
            await get(exchange, wire)
        elif request.path in (*WIRES, COUNT_TOKENS):
            if request.method != "POST":
                await refuse(exchange, wire, 405, f"{request.method} {request.path}: use POST")
                return
            await self._post(exchange, wire, request.body)
        else:
            await refuse(exchange, wire, 404, not_found(request.method, request.path))

    async def _post(self, exchange: Exchange, wire: Wire, payload: bytes) -> None:
        request = exchange.request
        try:
            body = json.loads(payload)
            if not isinstance(body, dict):
                raise ValueError("the body is not a JSON object")
            counting = request.path == COUNT_TOKENS
            if counting:
                body = {"max_tokens": 1, **cast(dict[str, Any], body)}
            received = read(wire, request.path, request.headers, cast(dict[str, Any], body))
        except (ValueError, RecursionError) as error:
            await refuse(exchange, wire, 400, str(error))
            return
        if counting:
            await exchange.whole(200, json.dumps({"input_tokens": received.tokens}).encode())
            return
        with self._lock:
            self._received += 1
            number = self._received
            self._requests.append(received)
        try:
            answer = await self._answer(wire, received)
            said = self._said(wire, received, answer, number)
        except Exception as error:
            self._failures.append(error)
            answer = Status(500, message=f"no answer could be made: {describe(error)}")
            said = None
        if holds := list(self._holds):
            with self._counted():
                for hold in holds:
                    await hold.wait()
        if said is None:
            assert isinstance(answer, Status)
            await refuse_by(exchange, wire, answer)
            return
        fault = answer if isinstance(answer, Fault) else None
        await send(exchange, wire, said, fault, stream=received.stream, waiting=self._counted)

    async def _answer(self, wire: Wire, received: Received) -> str | Fault | None:
        if wire.concludes(received.body):
            return "Done."
        with self._lock:
            answer = self._script.popleft() if self._script else self._fallback
        if answer is None or isinstance(answer, str | Fault):
            return answer
        made: Any = answer(received)
        if isawaitable(made):
            made = await made
        made = prepared(made)
        if not isinstance(made, str | Fault):
            raise TypeError(f"{answer!r} returned {made!r}, which is no answer")
        return made

    def _said(
        self, wire: Wire, received: Received, answer: str | Fault | None, number: int
    ) -> Said | None:
        if isinstance(answer, Status):
            return None
        text, tool, stop = spoken(answer, received, self._seed)
        if wire.concludes(received.body):
            tool = None
        pieces = list(wire.pieces(received.body))
        count = self._cache.marked if wire.api == "anthropic" else self._cache.long
        return Said(
            number=number,
            model=received.model,
            text=text,
            tool=tool,
            stop=stop,
            counted=count(received.model, pieces, text),
            with_usage=wire.with_usage(received.body),
        )

    @contextmanager
    def _counted(self) -> Generator[None]:
        self._waiting += 1
        self._changes.tell()
        try:
            yield
        finally:
            self._waiting -= 1
            self._changes.tell()
