"""The WebSocket `/feed` with all feeds of a page in one connection. Items are numbered. A client
that reconnects can continue after its last item."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from bae.journal.feeds import Feed, FeedItem, Subscriber, subscribe
from bae.journal.stored_runs import RunInfo
from bae.serve.access import User
from bae.serve.endpoints import NUL, raw_path
from bae.serve.problems import Refused, make_refusal, wrong_input
from bae.serve.records import (
    HEARTBEAT,
    SEND_SECONDS,
    ClientGone,
    encode_line,
    sending,
    split_items,
)
from bae.serve.views import dump, row_of
from bae.tasks import wait_until_ended

if TYPE_CHECKING:
    from bae.serve.api import API

BEHIND: Final = 5_000
"""The maximum number of items that a subscriber may be behind. A slower subscriber gets the end
"gap", and must fetch its data again."""
LONGEST_FRAME: Final = 4_096
SUBSCRIPTIONS: Final = 50
"""The maximum number of feeds that one connection follows."""
TOKEN_SECONDS: Final = 2.0
_SLOW: Final = 1013
_REFUSED: Final = 1008
_FAILED: Final = 1011
_NO_TOKEN: Final = 4401


@dataclass(frozen=True, slots=True)
class ServedFeed:
    """A feed for one user."""

    feed: Feed[Any]
    encode: Callable[[FeedItem[Any]], str]
    """A function that encodes an item as JSON."""
    shows: Callable[[FeedItem[Any]], bool] = lambda _: True
    """A function that returns whether the user may see an item."""
    text_of: str | None = None
    """The run whose text in progress is sent too."""


OpenFeed = Callable[["API", User, str], Awaitable[ServedFeed]]
"""A function that opens a feed for a user. The last argument is the rest of the feed's name, such
as the id of a run. The function raises `Refused` if the user may not see the feed."""


async def _open_run(api: API, user: User, run_id: str) -> ServedFeed:
    await api.info(user, run_id)
    return ServedFeed(api.feeds.run(run_id), encode_line, text_of=run_id)


async def _open_runs(api: API, user: User, rest: str) -> ServedFeed:
    def shows(item: FeedItem[RunInfo]) -> bool:
        return api.may_see(user, item.value)

    return ServedFeed(api.feeds.runs, _encode_run, shows)


def _encode_run(item: FeedItem[RunInfo]) -> str:
    if not item.encoded:
        item.encoded = dump(row_of(item.value)).decode()
    return item.encoded


FEEDS: Final[Mapping[str, OpenFeed]] = {"run": _open_run, "runs": _open_runs}
"""The feeds by the first part of their names, such as `run` in `run/order-7`."""


class Frame(BaseModel):
    """A message that a client sends over the WebSocket.

    - `token`: the token of the user, in the first message.
    - `sub`: the number that the client gives to a subscription.
    - `feed`: the name of the feed to subscribe to.
    - `after`: the number of the last item that the client has. With "now", existing items are
      skipped.
    - `unsub`: the number of a subscription to end.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    token: str | None = None
    sub: Annotated[int, Field(ge=0, le=1 << 31)] | None = None
    feed: str = ""
    after: Annotated[int, Field(ge=-1, le=1 << 53)] | str = -1
    unsub: int | None = None


async def serve_feeds(api: API, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one WebSocket."""
    websocket = WebSocket(scope, receive, send)
    path = raw_path(scope)
    try:
        if path != "/feed" and path not in api.sockets:
            known = ", ".join(("/feed", *api.sockets))
            raise Refused(404, "bae-serve-path", f"there is no WebSocket here, but at {known}")
        api.check_site(websocket)
    except Refused as refused:
        await websocket.accept()  # without it, a browser would not get the reason
        await websocket.close(_REFUSED, _cut_reason(refused.body.detail))
        return
    if path != "/feed":
        await api.sockets[path](websocket)
        return
    await websocket.accept()
    connection = _Connection(api, websocket)
    with suppress(ClientGone):
        try:
            await connection.serve()
        except ClientGone:
            raise
        except Refused as refused:
            await connection.close(_REFUSED, refused.body.detail)
        except Exception as error:  # the `auth` hook has raised it
            await connection.close(_FAILED, make_refusal(error, path).body.detail)


class _Connection:
    def __init__(self, api: API, websocket: WebSocket) -> None:
        self._api, self._websocket = api, websocket
        self._identity = websocket
        """The connection with the user's token in its `Authorization` header."""
        self._sending = asyncio.Lock()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._end: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

    async def serve(self) -> None:
        user = await self._authenticate()
        if user is None:
            return
        jobs = [
            asyncio.create_task(self._listen(user)),
            asyncio.create_task(self._send_heartbeats()),
            asyncio.create_task(self._close_with_server()),
        ]
        try:
            code, reason = await self._end
        finally:
            tasks = [*jobs, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await wait_until_ended(tasks)
        if code:
            await self.close(code, reason)

    async def close(self, code: int, reason: str) -> None:
        """Close the connection with a code and a reason."""
        async with sending(SEND_SECONDS):
            await self._websocket.close(code, _cut_reason(reason))

    async def _authenticate(self) -> User | None:
        user = await self._api.get_user(self._websocket)
        if user is None:
            token = ""
            with suppress(TimeoutError, ValueError):
                async with asyncio.timeout(TOKEN_SECONDS):
                    token = (await self._receive()).token or ""
            if token.isascii() and token.isprintable():
                self._identity = _with_token(self._websocket, token)
                user = await self._api.get_user(self._identity)
        if user is None:
            await self.close(_NO_TOKEN, 'send {"token": "…"} as the first message')
        elif "read" not in user.can:
            await self.close(_REFUSED, f"{user.name} may not read")
            return None
        return user

    async def _listen(self, user: User) -> None:
        try:
            while True:
                frame = await self._receive()
                if frame.unsub is not None:
                    await self._end_subscription(frame.unsub)
                elif frame.sub is not None:
                    await self._end_subscription(frame.sub)
                    if len(self._tasks) >= SUBSCRIPTIONS:
                        raise ValueError(f"at most {SUBSCRIPTIONS} feeds are followed at once")
                    task = asyncio.create_task(self._follow(user, frame.sub, frame))
                    self._tasks[frame.sub] = task
        except ClientGone:
            self._end_connection(0, "")
        except ValueError as error:
            self._end_connection(_REFUSED, str(error))

    async def _receive(self) -> Frame:
        """Return the next message of the client. Raises ValueError for an invalid message, and
        `ClientGone` if the connection is closed."""
        try:
            message = await self._websocket.receive()
        except RuntimeError as error:  # the connection is closed
            raise ClientGone from error
        if message["type"] == "websocket.disconnect":
            raise ClientGone
        text = message.get("text")
        if text is None or len(text) > LONGEST_FRAME:
            raise ValueError(f"a message is a text of at most {LONGEST_FRAME} characters")
        try:
            return Frame.model_validate_json(text)
        except ValidationError:
            raise ValueError('send {"sub": 1, "feed": "runs", "after": 0}') from None

    async def _end_subscription(self, number: int) -> None:
        task = self._tasks.pop(number, None)
        if task is not None:
            task.cancel()
            await wait_until_ended([task])

    async def _follow(self, user: User, number: int, frame: Frame) -> None:
        """Send the items of one feed until the feed ends."""
        name, _, rest = frame.feed.partition("/")
        text_task: asyncio.Task[None] | None = None
        try:
            if name not in self._api.feed_kinds:
                names = ", ".join(self._api.feed_kinds)
                raise Refused(404, "bae-serve-path", f"no feed {name[:50]!r}; there are {names}")
            if NUL in unquote(rest):
                raise Refused(404, "bae-serve-path", "there is no feed with a NUL in its name")
            served = await self._api.feed_kinds[name](self._api, user, unquote(rest))
            after = None if frame.after == "now" else frame.after
            if isinstance(after, str):
                raise wrong_input(["after"], "it is not a number", 'give a number or "now"')
            async with subscribe(served.feed, after, behind=BEHIND) as items:
                state = ""
                await self._send(f'{{"sub":{number},"last":{items.number},"items":[]}}')
                if served.text_of is not None:
                    text_task = asyncio.create_task(self._send_texts(number, served.text_of, items))
                async for batch in items:
                    visible_items = [item for item in batch.items if served.shows(item)]
                    if visible_items or batch.state != state:
                        state = batch.state
                        tail = f',"status":{json.dumps(state)}' if state else ""
                        if served.text_of is not None:
                            live = self._api.owner.texts.is_live(served.text_of)
                            tail += f',"live":{json.dumps(live)}'
                        for part in split_items(visible_items):
                            texts = ",".join(map(served.encode, part))
                            last = part[-1].number if part is not visible_items else items.number
                            await self._send(
                                f'{{"sub":{number},"last":{last},"items":[{texts}]{tail}}}'
                            )
                    await asyncio.sleep(0)
                last = items.number
                end = items.end
            await self._send(json.dumps({"sub": number, "end": end, "last": last}))
        except ClientGone:
            return
        except Exception as error:
            problem = make_refusal(error, f"the feed {frame.feed[:200]!r}").body
            message = {"sub": number, "end": "refused", **problem.model_dump(exclude_defaults=True)}
            with suppress(ClientGone):
                await self._send(json.dumps(message))
        finally:
            if self._tasks.get(number) is asyncio.current_task():
                del self._tasks[number]  # an ended feed must not count against `SUBSCRIPTIONS`
            if text_task is not None:
                text_task.cancel()
                await wait_until_ended([text_task])

    async def _send_texts(self, number: int, run_id: str, items: Subscriber[Any]) -> None:
        """Send the text in progress of a run, and the thoughts of models."""
        try:
            async for pieces in self._api.owner.texts.follow(run_id, thoughts=True):
                await self._send(json.dumps({"sub": number, "text": pieces}))
        except ClientGone:
            items.close()

    async def _send(self, text: str) -> None:
        try:
            async with self._sending, sending(SEND_SECONDS):
                await self._websocket.send_text(text)
        except ClientGone:
            self._end_connection(_SLOW, f"too slow: the client read nothing for {SEND_SECONDS:g} s")
            raise

    async def _send_heartbeats(self) -> None:
        number = 0
        with suppress(ClientGone):
            while True:
                await asyncio.sleep(HEARTBEAT)
                number += 1
                await self._send(f'{{"ping":{number}}}')
                await self._check_user()

    async def _check_user(self) -> None:
        """Close the connection if the user has logged out, or if the token has expired."""
        try:
            if await self._api.get_user(self._identity) is None:
                self._end_connection(_NO_TOKEN, "the token has become invalid")
        except Exception as error:  # the `auth` hook has raised it
            if not self._end.done():
                self._end.set_exception(error)

    async def _close_with_server(self) -> None:
        await self._api.owner.closing.wait()
        self._end_connection(1012, "the server stops")

    def _end_connection(self, code: int, reason: str) -> None:
        if not self._end.done():
            self._end.set_result((code, reason))


def _cut_reason(text: str) -> str:
    """Return the reason for closing a connection, cut to fit into a frame."""
    return text.encode()[:120].decode(errors="ignore")


def _with_token(websocket: WebSocket, token: str) -> WebSocket:
    """Return the connection with a token in its `Authorization` header, which browsers cannot send
    for a WebSocket."""
    headers = [*websocket.scope["headers"], (b"authorization", f"Bearer {token}".encode())]
    return WebSocket({**websocket.scope, "headers": headers}, _receive_nothing, _send_nothing)


async def _receive_nothing() -> Any:
    return {"type": "websocket.disconnect"}


async def _send_nothing(message: Any) -> None:
    return None
