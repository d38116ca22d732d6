"""`Provider`, a model provider on loopback for tests. It is an HTTP server with the APIs of OpenAI
and Anthropic. It gives scripted answers and simulates the faults of real providers."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import isawaitable
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, cast

from pydantic import BaseModel

from bae.exceptions import describe
from bae.lm.extras import need
from bae.prompts.samples import misfit, sample
from bae.testing.scripted import Call, ScriptError
from bae.testing.wire import (
    Block,
    CallBlock,
    Calls,
    Cut,
    Empty,
    Fault,
    Malformed,
    ModelReply,
    Overlong,
    PromptCache,
    RanBlock,
    Received,
    Refusal,
    Stall,
    Status,
    TextBlock,
    ThinkingBlock,
    Wire,
    WrongSchema,
    read_request,
)
from bae.testing.wire_anthropic import MessagesWire
from bae.testing.wire_openai import ChatCompletions, Responses

if TYPE_CHECKING:
    from bae.testing.server import Connection, HTTPRequest, Server

ProviderAnswer = (
    Mapping[str, Any] | Sequence[Any] | str | int | float | BaseModel | Fault | Calls | Call
)
"""The answer to a request: JSON, a plain text, tool calls, or a fault."""
Answering = Callable[[Received], ProviderAnswer | Awaitable[ProviderAnswer]]
"""A function that takes a request and returns its answer."""
_Checked = str | Fault | Calls | Answering
"""An answer as `_check_answer` returns it. A JSON answer is encoded as a text."""
P = ParamSpec("P")


class _Provider:
    """The base class of `Provider` and `ThreadedProvider`."""

    def __init__(self) -> None:
        need("h11", extra="testing", by="Provider")
        self._lock = Lock()
        self._script: deque[_Checked] = deque()
        self._fallback: _Checked | None = None
        self._requests: list[Received] = []
        self._holds: list[asyncio.Event] = []
        self._waiting = 0
        self._cache = PromptCache()
        self._failures: list[BaseException] = []
        self._server: Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._change = asyncio.Event()
        self._url = ""

    # What to answer

    def script(self, *answers: ProviderAnswer | Answering) -> None:
        """Answer the next requests with `answers`, one for each request, in the order of arrival.

        - A dict or a list is sent as JSON, and a text is sent unchanged. If the request asks for
          the answer as a tool call, JSON is sent as the arguments of this call.
        - A `Call`, a list of `Call`, or `Calls(…)` is sent as a message with tool calls.
        - A `Fault` is simulated.
        - A function is called with the `Received` and returns the answer.
        """
        checked = [_check_answer(answer) for answer in answers]
        with self._lock:
            self._script.extend(checked)

    def always(self, answer: ProviderAnswer | Answering | None = None) -> None:
        """Answer all requests after the end of the script with `answer`. Without an argument,
        return to the default, which answers with samples of the request's schema."""
        self._fallback = None if answer is None else _check_answer(answer)

    def assert_complete(self) -> None:
        """Raise AssertionError if the script has answers left."""
        with self._lock:
            unused = list(self._script)
        if unused:
            raise AssertionError(f"the script has unused answers ({len(unused)}): {unused!r}")

    @contextmanager
    def held(self) -> Generator[None]:
        """Hold back answers until the end of the `with` block. This affects requests that arrive
        inside the block."""
        hold = asyncio.Event()
        self._holds.append(hold)
        try:
            yield
        finally:
            self._holds.remove(hold)
            if self._loop is None:
                hold.set()
            else:
                self._loop.call_soon_threadsafe(hold.set)

    # What happened

    @property
    def url(self) -> str:
        """The URL, `http://127.0.0.1:…`, without a path."""
        if not self._url:
            raise RuntimeError("the provider is not running: use it in a `with` block")
        return self._url

    @property
    def requests(self) -> list[Received]:
        """The valid requests for a model's answer so far, the oldest first."""
        return list(self._requests)

    @property
    def received(self) -> int:
        """The number of valid requests for a model's answer so far."""
        return len(self._requests)

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        return 0 if self._server is None else len(self._server.connections)

    @property
    def waiting(self) -> int:
        """The number of requests that `held` holds back or that a `Stall` has stopped."""
        return self._waiting

    async def _arrived(self, count: int = 1, *, timeout: float = 10.0) -> None:
        """Wait until `held` and `Stall` hold back `count` requests at the same time."""
        await self._until(
            lambda: count - self._waiting, timeout, f"of {count} requests are missing"
        )

    async def _idle(self, *, timeout: float = 10.0) -> None:
        """Wait until every request is answered, or its client has disconnected."""
        await self._until(
            lambda: 0 if self._server is None else self._server.busy,
            timeout,
            "connections are still busy",
        )

    async def _disconnected(self, *, left: int = 0, timeout: float = 10.0) -> None:
        """Wait until at most `left` connections are open. The tasks of all other connections have
        then ended too."""

        def count_open() -> int:
            server = self._server
            return 0 if server is None else max(len(server.connections), len(server.tasks)) - left

        beyond = f" beyond {left}" if left else ""
        await self._until(count_open, timeout, f"connections{beyond} are still open")

    async def _until(self, count_left: Callable[[], int], timeout: float, what: str) -> None:
        """Wait until `count_left()` is 0 or less. Check again after every change."""
        try:
            async with asyncio.timeout(timeout):
                while count_left() > 0:
                    await self._change.wait()
        except TimeoutError:
            raise TimeoutError(f"{count_left()} {what} after {timeout:g} s") from None

    def _notify_change(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    # Running

    async def _start(self) -> None:
        from bae.testing.server import Server

        if self._server is not None:
            raise RuntimeError("the provider is running already")
        self._loop = asyncio.get_running_loop()
        self._server = Server(
            self._respond, changed=self._notify_change, failed=self._failures.append
        )
        self._url = f"http://127.0.0.1:{await self._server.start()}"

    async def _stop(self, error: BaseException | None) -> None:
        assert self._server is not None
        try:
            await self._server.close()
        finally:
            self._server, self._loop, self._url = None, None, ""
        failures, self._failures = self._failures, []
        # If a function of the script fails, the client gets status 500 and may hide it. Raise the
        # function's own error here, so that the test fails.
        if failures and error is None:
            raise failures[0]

    # Answering

    async def _respond(self, client: Connection, request: HTTPRequest) -> None:
        anthropic = (
            request.path.startswith("/v1/messages") or "anthropic-version" in request.headers
        )
        default = "/v1/messages" if anthropic else "/v1/chat/completions"
        wire = WIRES.get(request.path, WIRES[default])
        where = f"{request.method} {request.path}"
        if request.path == "/":
            await client.send_all(200, b"", "text/plain")
        elif request.path not in WIRES:
            base = "The base URL for OpenAI's clients ends in /v1, the one for Anthropic's does not"
            here = f"there is nothing here; {', '.join(WIRES)} are. {base}"
            await _refuse(client, wire, 404, f"{where}: {here}")
        elif request.method != "POST":
            await _refuse(client, wire, 405, f"{where}: use POST")
        else:
            await self._post(client, wire, request)

    async def _post(self, client: Connection, wire: Wire, request: HTTPRequest) -> None:
        try:
            body = json.loads(request.body)
            if not isinstance(body, dict):
                raise ValueError("the body is not a JSON object")
            json_body = cast(dict[str, Any], body)
            received = read_request(wire, request.path, request.headers, json_body)
        except (ValueError, RecursionError) as error:
            await _refuse(client, wire, 400, str(error))
            return
        with self._lock:
            self._requests.append(received)
            number = len(self._requests)
        reply = None
        try:
            answer = await self._answer(wire, received)
            if not isinstance(answer, Status):
                reply = self._make_reply(wire, received, answer, number)
        except Exception as error:
            self._failures.append(error)
            answer = Status(500, message=f"no answer could be made: {describe(error)}")
        if holds := list(self._holds):
            with self._count_waiting():
                for hold in holds:
                    await hold.wait()
        if isinstance(answer, Status):
            retry = {} if answer.retry_after is None else {"retry-after": f"{answer.retry_after:g}"}
            message = answer.message or f"this is a fault of status {answer.code}"
            await _refuse(client, wire, answer.code, message, {**answer.headers, **retry})
        elif reply is not None:
            await self._send(client, wire, reply, answer, stream=received.stream)

    async def _answer(self, wire: Wire, received: Received) -> str | Fault | Calls | None:
        if wire.concludes(received.body):
            return "Done."
        with self._lock:
            answer = self._script.popleft() if self._script else self._fallback
        if answer is None or isinstance(answer, str | Fault | Calls):
            return answer
        returned: Any = answer(received)
        checked = _check_answer(await returned if isawaitable(returned) else returned)
        if not isinstance(checked, str | Fault | Calls):
            raise TypeError(f"{answer!r} returned {checked!r}, which cannot be an answer")
        return checked

    def _make_reply(
        self, wire: Wire, received: Received, answer: str | Fault | Calls | None, number: int
    ) -> ModelReply:
        """Return the model's message for an answer. If there is no answer, or the answer is a fault
        of the transport, return a sample of the request's schema."""
        _, tool, forced = wire.channel(received.body)
        if wire.concludes(received.body):
            tool = None
        stop: Literal["end", "cut-off", "refused", "paused"] = "end"
        size = 16
        match answer:
            case Calls():
                blocks = _blocks_of(answer, wire.call_id, number)
                stop = "cut-off" if answer.cut else "paused" if answer.paused else "end"
                size = answer.size
            case Refusal(text=text):
                blocks, stop = [TextBlock(text)], "refused"
            case Empty():
                blocks = []
            case _:
                match answer:
                    case str():
                        text = answer
                    case WrongSchema():
                        text = json.dumps(misfit(received.schema))
                    case _:
                        text = "This is an answer."
                        if received.schema is not None:
                            text = json.dumps(sample(received.schema), ensure_ascii=False)
                        if isinstance(answer, Overlong):
                            text, stop = text[: max(1, len(text) // 2)], "cut-off"
                if not forced and stop == "end" and not _is_object(text):
                    tool = None  # a plain text cannot be the arguments of a call
                blocks = [TextBlock(text)]
                if tool is not None:
                    blocks = [CallBlock(f"{wire.call_id}{number}", tool, text)]
        filled = [block for block in blocks if block.text or not isinstance(block, TextBlock)]
        text = "".join(block.text for block in filled)
        return ModelReply(
            number=number,
            model=received.model,
            blocks=tuple(filled),
            stop=stop,
            counted=self._cache.count(wire, received, text),
            with_usage=wire.with_usage(received.body),
            size=size,
        )

    async def _send(
        self,
        client: Connection,
        wire: Wire,
        reply: ModelReply,
        fault: str | Fault | Calls | None,
        *,
        stream: bool,
    ) -> None:
        """Send the reply, complete or streamed. If `fault` is a fault of the transport, simulate
        it."""
        if stream:
            parts = wire.events(reply)
            if isinstance(fault, Malformed):
                parts[1:] = [parts[2][: len(parts[2]) // 2] + b"\n\n"]
            await client.start(200, "text/event-stream", {"cache-control": "no-cache"})
        else:
            payload = json.dumps(wire.body_of(reply)).encode()
            if isinstance(fault, Malformed):
                payload = b"upstream sent something that is not JSON"
            half = len(payload) // 2
            parts = [payload[:half], payload[half:]]
            await client.start(200, "application/json", {"content-length": str(len(payload))})
        if isinstance(fault, Stall | Cut):
            halves = 0 if isinstance(fault, Stall) else 1
            parts = parts[: fault.after if stream else halves]
        for part in parts:
            await client.send(part)
        if isinstance(fault, Stall):
            with self._count_waiting():
                await asyncio.Event().wait()
        # Without `end`, the server closes the connection.
        if not isinstance(fault, Cut):
            await client.end()

    @contextmanager
    def _count_waiting(self) -> Generator[None]:
        self._waiting += 1
        self._notify_change()
        try:
            yield
        finally:
            self._waiting -= 1
            self._notify_change()


class Provider(_Provider):
    """A model provider on 127.0.0.1. It runs inside an `async with` block.

    Point an Anthropic client at `url`, or an OpenAI client at `url + "/v1"`, with any key. By
    default, the provider answers with a sample of the request's JSON schema. To set other answers,
    call `script` and `always`. To check what the client sent, read `requests`.

    The provider reports token usage: four characters are one token. Like the real APIs, it reports
    cached tokens: for Anthropic up to the client's cache marks, for OpenAI in prompts of 1024
    tokens or more.
    """

    @classmethod
    def in_thread(cls) -> ThreadedProvider:
        """Make a `ThreadedProvider`. Deprecated: call `ThreadedProvider()`."""
        import warnings

        warnings.warn(
            "Provider.in_thread is not public any more, and bae 0.1 is the last version that has "
            "it: call ThreadedProvider()",
            DeprecationWarning,
            stacklevel=2,
        )
        return ThreadedProvider()

    arrived = _Provider._arrived
    idle = _Provider._idle
    disconnected = _Provider._disconnected

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        await self._stop(error)


def _blocking(
    waiting: Callable[Concatenate[_Provider, P], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[ThreadedProvider, P], None]:
    @wraps(waiting)
    def wait(self: ThreadedProvider, *args: P.args, **options: P.kwargs) -> None:
        self.wait_for(waiting(self, *args, **options))

    return wait


class ThreadedProvider(_Provider):
    """A `Provider` for tests that are not async. It runs in a thread of its own, inside a `with`
    block. Its methods are not async either."""

    arrived = _blocking(_Provider._arrived)
    idle = _blocking(_Provider._idle)
    disconnected = _blocking(_Provider._disconnected)

    def __enter__(self) -> Self:
        if self._loop is not None:
            raise RuntimeError("the provider is running already")
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="bae provider", daemon=True)
        self._thread.start()
        self.wait_for(self._start())
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        loop = self._loop
        assert loop is not None
        try:
            self.wait_for(self._stop(error))
        finally:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()

    def wait_for(self, waiting: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the provider's thread and wait until it ends."""
        if self._loop is None:
            waiting.close()
            raise RuntimeError("the provider is not running: use it in `with ThreadedProvider()`")
        asyncio.run_coroutine_threadsafe(waiting, self._loop).result()


WIRES: dict[str, Wire] = {
    "/v1/chat/completions": ChatCompletions(),
    "/v1/responses": Responses(),
    "/v1/messages": MessagesWire(),
}


def _blocks_of(message: Calls, prefix: str, number: int) -> list[Block]:
    """Return the blocks of a message that calls tools, in the order in which a model writes
    them."""
    blocks: list[Block] = [ThinkingBlock(message.thinking)] if message.thinking else []
    for at, (call, result) in enumerate(message.ran, 1):
        blocks.append(RanBlock(f"srv{prefix}{number}_{at}", call.name, call.arguments, result))
    blocks.append(TextBlock(message.text))
    last = len(message.calls) - 1
    for at, call in enumerate(message.calls):
        made_up = f"{prefix}{number}_{at}" if at else f"{prefix}{number}"
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        is_raw = at == last and message.raw is not None
        if is_raw:
            arguments = message.raw or ""
        if message.cut and at == last:
            arguments = arguments[: len(arguments) // 2]
        blocks.append(
            CallBlock(message.ids[at] if message.ids else made_up, call.name, arguments, is_raw)
        )
    return blocks


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


async def _refuse(
    client: Connection,
    wire: Wire,
    status: int,
    message: str,
    headers: Mapping[str, str] | None = None,
) -> None:
    payload = json.dumps(wire.error(status, message)).encode()
    await client.send_all(status, payload, headers=headers)


def _check_answer(answer: Any) -> _Checked:
    """Return an answer in its checked form. `script` and `always` check answers at once, so that an
    error points at the line of the test."""
    if isinstance(answer, str | Fault | Calls):
        return answer
    if isinstance(answer, Call):
        return Calls(answer)
    if isinstance(answer, BaseModel):
        return answer.model_dump_json()
    if callable(answer) and not isinstance(answer, type):
        return cast(Answering, answer)
    if isinstance(answer, list | tuple) and answer:
        items = cast(Sequence[Any], answer)
        if all(isinstance(item, Call) for item in items):
            return Calls(*items)
    try:
        if answer is None or isinstance(answer, type):
            raise TypeError("it is not a value")
        return json.dumps(answer, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ScriptError(
            f"{answer!r:.200} cannot be sent as the answer of a model: {error}",
            code="bae-script-invalid",
            cause=error,
            fix="give a dict, a list or a text, a Pydantic model, a Call of a tool, a fault such "
            "as Status(429), or a function that returns one of these",
        ) from error
