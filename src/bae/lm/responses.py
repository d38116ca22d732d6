"""What a provider may send: no more than so many bytes, after decompression, and no redirect."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from contextvars import ContextVar
from functools import cache
from typing import Any, Final

from bae.exceptions import BaeLMError
from bae.lm.http import malformed_error, status_error

responses_arrived: ContextVar[list[int] | None] = ContextVar("bae_responses", default=None)
"""The statuses of the responses to a call, where that is of interest: what fails after one came is
due to what is in it, and what fails before is not."""

MAX_BYTES: Final = 50_000_000
"""What a response may have; an answer of a model has some thousand."""

MOST_COPIED: Final = 20_000_000_000
"""Bytes, for some seconds of work. Anthropic's SDK copies an event of a stream, as far as it is
there, for each line and piece that is added to it, and the event loop waits."""

_END_OF_EVENT: Final = (b"\n\n", b"\r\r", b"\r\n\r\n")


def bound_responses(client: Any, who: str, most: int) -> None:
    """Have an httpx client read no more than `most` bytes of a response, streamed or whole, and
    follow no redirect. A hook decompresses the response piece by piece, as httpx would do it at
    once, however much that is."""

    async def bound(response: Any) -> None:
        arrived = responses_arrived.get()
        if arrived is not None:
            arrived.append(response.status_code)
        if response.is_redirect:
            moved = str(response.headers.get("location", ""))
            raise status_error(who, response.status_code, f"it redirects to {moved!r}")
        encoding = response.headers.pop("content-encoding", "").strip().lower()
        base = next(k for k in type(response.stream).__mro__ if k.__name__ == "AsyncByteStream")
        response.stream = _bounded(base)(response.stream, encoding, who, most)

    # Any other encoding was not asked for, and is not read: the body is then not JSON.
    client.headers["accept-encoding"] = "gzip"
    client.event_hooks["response"].append(bound)


@cache
def _bounded(base: type[Any]) -> type[Any]:
    """A stream of httpx, or of its successor: each takes only its own."""

    class BoundedStream(base):
        def __init__(self, inner: Any, encoding: str, who: str, most: int) -> None:
            self.inner = inner
            self.encoding = encoding
            self.who = who
            self.most = most

        async def __aiter__(self) -> AsyncIterator[bytes]:
            unzip = zlib.decompressobj(zlib.MAX_WBITS | 16) if self.encoding == "gzip" else None
            left, event, copied, last = self.most, 0, 0, b""
            async for chunk in self.inner:
                data = chunk
                if unzip is not None:
                    try:
                        data = b"" if unzip.eof else unzip.decompress(chunk, left + 1)
                    except zlib.error as error:
                        raise malformed_error(self.who, error) from error
                left -= len(data) or len(chunk)  # what decompresses to nothing is read as well
                if left < 0:
                    raise _too_large(self.who, self.most)
                for line in data.splitlines(keepends=True):
                    event += len(line)
                    copied += event
                    if copied > MOST_COPIED:
                        raise malformed_error(self.who, ValueError("an event without an end"))
                    last = (last + line)[-4:]
                    event = 0 if last.endswith(_END_OF_EVENT) else event
                yield data

        async def aclose(self) -> None:
            await self.inner.aclose()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    return BoundedStream


def _too_large(who: str, most: int) -> BaeLMError:
    return BaeLMError(
        f"{who} was sent more than {most} bytes in one response, and stopped reading",
        code="bae-lm-output-too-long",
        fix="check the base URL and any proxy; raise the bound with max_bytes=…, or ask for less",
    )
