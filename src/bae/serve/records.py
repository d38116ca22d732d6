"""The records of a run over HTTP: a page of JSON, JSON lines, or server-sent events that follow the
run to its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field
from pydantic_core import from_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from bae.journal.feeds import FeedBatch, FeedItem, RunFeed, Subscriber, subscribe
from bae.journal.stored_runs import Line, RunLines
from bae.serve.endpoints import ApiCall, Form, get_row
from bae.serve.problems import make_refusal, wrong_input
from bae.serve.views import LinePage, LineView, dump, take_page
from bae.tasks import wait_until_ended
from bae.threads import in_thread

T = TypeVar("T")

HEARTBEAT: Final = 15.0
"""The seconds after which an idle stream sends a sign of life."""
SENT_AT_ONCE: Final = 1 << 20
"""The maximum number of characters of records that are sent together."""
SEND_SECONDS: Final = 10.0
"""The seconds that a client has to accept data."""


class RecordsQuery(Form):
    """The records to list.

    - `after`: the number of the last record that the client has; -1 for all records.
    - `limit`: the maximum number of records. A page of long records has fewer records. The last
      page ends with the record whose number is `last`.
    """

    after: Annotated[int, Field(ge=-1, le=1 << 40)] = -1
    limit: Annotated[int, Field(ge=1, le=1_000)] = 200


async def list_records(call: ApiCall) -> LinePage | Response:
    """List the records of a run. With `Accept: text/event-stream`, the response follows the run to
    its end."""
    api, run_id, query = call.api, call.path["run"], call.query
    await api.info(call.user, run_id)
    accept = call.request.headers.get("accept", "")
    if "text/event-stream" in accept:
        return EventStream(call, _first_number_after(call))
    page = await api.journal.lines(run_id, after=query.after, limit=query.limit)
    return await in_thread(_make_page, page, "application/x-ndjson" in accept)


def _make_page(page: RunLines, as_lines: bool) -> LinePage | Response:
    lines = take_page(page.lines, lambda line: len(line.data))
    if as_lines:
        text = b"".join(dump(line_view(line)) + b"\n" for line in lines)
        return Response(text, media_type="application/x-ndjson")
    return LinePage(
        records=[line_view(line) for line in lines],
        last=page.total - 1,
        status=page.info.standing(),
    )


def _first_number_after(call: ApiCall) -> int:
    """Return the number of the last record that the client has. A client that reconnects sends the
    number as `Last-Event-ID`. Otherwise the number is `after` of the query."""
    text = call.request.headers.get("last-event-id", "").strip()
    if not text:
        return call.query.after
    if not (text.isascii() and text.isdecimal() and len(text) < 13):
        fix = "send the `id` of the last event that you have, or leave it out"
        raise wrong_input(["header", "last-event-id"], "it is not the number of a record", fix)
    return int(text)


def line_view(line: Line) -> LineView:
    """Return the view of a record."""
    return LineView(
        n=line.n,
        kind=line.kind,
        at=line.at,
        path=line.path,
        step=line.step,
        data=from_json(line.data),
    )


def encode_line(item: FeedItem[Line]) -> str:
    """Return the JSON of a record. The item keeps the JSON for the other subscribers of the run."""
    if not item.encoded:
        item.encoded = dump(line_view(item.value)).decode()
    return item.encoded


class ClientGone(Exception):
    """Raised if a client has closed its connection, or if the client accepts no data."""


@asynccontextmanager
async def sending(seconds: float) -> AsyncGenerator[None]:
    """Send data inside the block. Raises `ClientGone` if the connection is closed, or after
    `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except (OSError, WebSocketDisconnect, RuntimeError) as error:  # TimeoutError is an OSError
        raise ClientGone from error


class EventResponse(Response):
    """A response of server-sent events. Its headers tell proxies not to buffer the events."""

    def __init__(self) -> None:
        super().__init__(
            status_code=200,
            headers={"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"},
            media_type="text/event-stream",
        )
        del self.headers["content-length"]
        self._sending = asyncio.Lock()


class EventStream(EventResponse):
    """The records of a run as server-sent events. Closing the connection does not affect the run.

    - `record`: a record. The id of the event is the record's number.
    - `status`: the status after a change. `live` says whether the run is in progress here.
    - `text`: text in progress, if the run is in progress here.
    - `end`: the last event of every stream.
    """

    def __init__(self, call: ApiCall, after: int) -> None:
        super().__init__()
        self._call, self._after = call, after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return
        api = self._call.api
        feed: RunFeed = api.feeds.run(self._call.path["run"])
        with suppress(ClientGone):
            try:
                async with subscribe(feed, self._after) as lines:
                    tasks = [
                        asyncio.create_task(close_with_client(receive, lines)),
                        asyncio.create_task(self._send_texts(send, lines)),
                    ]
                    try:
                        with api.streaming(lines):
                            async for text in _encode_events(lines, self._is_live):
                                await self._send(send, text)
                    finally:
                        for task in tasks:
                            task.cancel()
                        await wait_until_ended(tasks)
                    reason = lines.end or "closing"
                    await self._send(
                        send, _encode_event("end", {"reason": reason, "last": lines.number})
                    )
            except ClientGone:
                raise
            except Exception as error:
                problem = make_refusal(error, f"the stream of {feed.run_id}").body
                end = {"reason": "failed", "code": problem.type, "detail": problem.detail}
                await self._send(send, _encode_event("end", end))
            await self._send(send, "", more=False)

    def _is_live(self) -> bool:
        return self._call.api.owner.texts.is_live(self._call.path["run"])

    async def _send_texts(self, send: Send, lines: Subscriber[Line]) -> None:
        """Send the text in progress. These events have no number, because no record has the text
        yet."""
        try:
            async for pieces in self._call.api.owner.texts.follow(self._call.path["run"]):
                await self._send(send, "".join(_encode_event("text", p._asdict()) for p in pieces))
        except ClientGone:
            lines.close()

    async def _send(self, send: Send, text: str, *, more: bool = True) -> None:
        message = {"type": "http.response.body", "body": text.encode(), "more_body": more}
        async with sending(SEND_SECONDS), self._sending:
            await send(message)


async def batches(lines: Subscriber[T]) -> AsyncIterator[FeedBatch[T] | None]:
    """Yield the batches of a subscription. Yield None if nothing comes for `HEARTBEAT` seconds."""
    while True:
        limit = asyncio.timeout(HEARTBEAT)
        try:
            async with limit:
                batch = await anext(lines)
        except TimeoutError:
            if not limit.expired():  # the store raised the error
                raise
            yield None
            continue
        except StopAsyncIteration:
            return
        yield batch


async def _encode_events(
    lines: Subscriber[Line], is_live: Callable[[], bool]
) -> AsyncIterator[str]:
    status = ""
    async for batch in batches(lines):
        if batch is None:
            yield ": alive\n\n"
            continue
        for part in split_items(batch.items):
            yield "".join(
                f"id: {item.number}\nevent: record\ndata: {encode_line(item)}\n\n" for item in part
            )
        if batch.state != status:
            status = batch.state
            yield _encode_event("status", {"status": status, "live": is_live()})


def split_items(items: Sequence[FeedItem[Any]]) -> Iterator[Sequence[FeedItem[Any]]]:
    """Yield the items in parts that are small enough to send at once. A longer item is a part of
    its own."""
    if sum(item.size for item in items) <= SENT_AT_ONCE:
        yield items
        return
    part: list[FeedItem[Any]] = []
    for item in items:
        if part and sum(earlier.size for earlier in part) + item.size > SENT_AT_ONCE:
            yield part
            part = []
        part.append(item)
    yield part


def _encode_event(kind: str, data: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"


async def close_with_client(receive: Receive, lines: Subscriber[Any]) -> None:
    """Wait until the client closes the connection, and then close the subscription."""
    while (await receive())["type"] != "http.disconnect":
        pass
    lines.close()


ENDPOINTS: Final = (
    get_row(
        "/runs/{run}/records",
        "List the records of a run, or follow them as server-sent events.",
        list_records,
        LinePage,
        RecordsQuery,
        media=("text/event-stream", "application/x-ndjson"),
    ),
)
