"""Limits on responses from providers: a maximum size after decompression, and no redirects."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from contextvars import ContextVar
from functools import cache
from typing import Any, Final

from bae.exceptions import BaeLMError
from bae.lm.http import malformed_error, status_error

responses_arrived: ContextVar[list[int] | None] = ContextVar("bae_responses", default=None)
"""The HTTP statuses of the responses to a call. If a call fails and there is a status, the cause is
the content of a response."""

MAX_BYTES: Final = 50_000_000
"""The largest response in bytes. A usual answer has only some thousand bytes."""

MOST_COPIED: Final = 20_000_000_000
"""The most bytes that an SDK may copy while it parses a stream, which is some seconds of work. For
each new line of an event, Anthropic's SDK copies all earlier lines of the event, and the event loop
waits."""

_END_OF_EVENT: Final = (b"\n\n", b"\r\r", b"\r\n\r\n")


def bound_responses(client: Any, who: str, most: int) -> None:
    """Make an httpx client read at most `most` bytes of a response and follow no redirect. A hook
    decompresses the response chunk by chunk, because httpx would decompress any amount at once."""

    async def bound(response: Any) -> None:
        arrived = responses_arrived.get()
        if arrived is not None:
            arrived.append(response.status_code)
        if response.is_redirect:
            target = str(response.headers.get("location", ""))
            raise status_error(who, response.status_code, f"it redirects to {target!r}")
        encoding = response.headers.pop("content-encoding", "").strip().lower()
        base = next(k for k in type(response.stream).__mro__ if k.__name__ == "AsyncByteStream")
        response.stream = _bounded_stream(base)(response.stream, encoding, who, most)

    # A response in any other encoding stays encoded, so it fails as invalid JSON.
    client.headers["accept-encoding"] = "gzip"
    client.event_hooks["response"].append(bound)


@cache
def _bounded_stream(base: type[Any]) -> type[Any]:
    """Return a bounded stream class with the given base. httpx and its successor each accept only
    streams with their own base class."""

    class BoundedStream(base):
        def __init__(self, inner: Any, encoding: str, who: str, most: int) -> None:
            self.inner = inner
            self.encoding = encoding
            self.who = who
            self.most = most

        async def __aiter__(self) -> AsyncIterator[bytes]:
            unzip = zlib.decompressobj(zlib.MAX_WBITS | 16) if self.encoding == "gzip" else None
            remaining, event, copied, last = self.most, 0, 0, b""
            async for chunk in self.inner:
                data = chunk
                if unzip is not None:
                    try:
                        data = b"" if unzip.eof else unzip.decompress(chunk, remaining + 1)
                    except zlib.error as error:
                        raise malformed_error(self.who, error) from error
                # A chunk that decompresses to nothing counts with its own size.
                remaining -= len(data) or len(chunk)
                if remaining < 0:
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
