"""A provider is not trusted: every field of its API, every header and every body leads to an
answer, a retry, or an error of bae, in bounded time and memory; prompts go to no other server, and
returned keys are masked."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from copy import deepcopy
from functools import cache
from math import isfinite
from typing import Any

import pytest

from bae import BaeLMError
from bae.exceptions import FillError
from bae.lm import Budget, Retry
from bae.lm.backend import Backend
from bae.usage import Attempt, Usage, metered
from bounded import BOUND
from http_backends import BACKENDS, SHIRT, WIRES, Outfit, prompt
from raw_provider import EVENTS, JSON, Raw, RawProvider, raw_provider

KEY = "sk-ant-very-secret-0123456789"


ONCE = {"attempts": 0, "retries": 0}
BOUNDED = list(BACKENDS)  # those whose HTTP client can be given a bound


@pytest.fixture(params=list(WIRES))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


# --- what the APIs answer -----------------------------------------------------------------------

TEXT = json.dumps(SHIRT)
USED = {
    "input_tokens": 20,
    "output_tokens": 9,
    "cache_read_input_tokens": 3,
    "cache_creation_input_tokens": 2,
}
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-6",
    "content": [{"type": "text", "text": TEXT}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": USED,
}
STREAM: list[dict[str, Any]] = [
    {
        "type": "message_start",
        "message": {**MESSAGE, "content": [], "stop_reason": None, "usage": USED},
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TEXT}},
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": USED,
    },
    {"type": "message_stop"},
]
COMPLETION: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1_700_000_000,
    "model": "gpt-4o-mini",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": TEXT, "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {
        "prompt_tokens": 20,
        "completion_tokens": 9,
        "total_tokens": 29,
        "prompt_tokens_details": {"cached_tokens": 3},
    },
    "system_fingerprint": "fp",
}
WHOLE: dict[str, Any] = {
    "anthropic": STREAM,
    "anthropic-unstreamed": MESSAGE,
    "pydantic-ai-openai": COMPLETION,
    "pydantic-ai-anthropic": STREAM,
    "dspy": COMPLETION,
}


def raw(body: Any, **given: Any) -> Raw:
    """The response with a body of JSON: a list is a stream of events."""
    if not isinstance(body, list):
        return Raw([json.dumps(body).encode()], **given)
    events = [f"event: {_type(part)}\ndata: {json.dumps(part)}\n\n" for part in body]
    return Raw([event.encode() for event in events], kind=EVENTS, **given)


def _type(event: Any) -> str:
    return ascii(event.get("type", ""))[1:-1] if isinstance(event, dict) else ""


async def outcome(backend: Backend) -> Outfit | BaeLMError | FillError:
    """What comes of a question; whatever is neither is raised."""
    told: list[Any] = []
    with metered(told.append) as reported, Budget(calls=1):
        try:
            result = await asyncio.wait_for(backend.fill(Outfit, {}, "Outfit"), BOUND)
        except (BaeLMError, FillError) as error:
            result = error
    assert len(reported) <= 1
    for used in [*reported, *(attempt.usage for attempt in told if isinstance(attempt, Attempt))]:
        is_sound(used)
    return result


def is_sound(used: Usage) -> None:
    for number in (used.calls, used.input_tokens, used.output_tokens, used.cached_tokens):
        assert type(number) is int
        assert 0 <= number < 2**53
    assert used.cost is None or (isfinite(used.cost) and used.cost >= 0)
    for name in used.models:
        assert len(name) <= 200
        assert name.isprintable()


# --- every field --------------------------------------------------------------------------------

ODD: list[Any] = [None, -1, 10**30, float("nan"), "\n\x1b[2J\ud800", "y" * 100_000, {}, [1]]
MISSING = object()


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is something in a JSON value."""
    if at:
        yield at
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(part, (*at, key))


def replace_value(value: Any, at: tuple[Any, ...], to: Any) -> Any:
    made = deepcopy(value)
    holder = made
    for key in at[:-1]:
        holder = holder[key]
    if to is MISSING:
        del holder[at[-1]]
    else:
        holder[at[-1]] = to
    return made


# PydanticAI warns about counts that it does not understand.
@pytest.mark.filterwarnings("ignore:Failed to extract usage")
async def test_any_odd_value_in_a_response_gives_an_answer_or_a_bae_error(
    kind: str,
) -> None:
    good = WHOLE[kind]
    surprises: list[str] = []
    outcomes: set[str] = set()
    async with raw_provider(lambda _: raw(good)) as server, with_key(kind, server) as backend:
        assert await outcome(backend) == Outfit(**SHIRT)
        for turn, at in enumerate(places(good)):
            # Each value comes to some of the places: all of them everywhere takes a minute.
            for odd in (MISSING, KEY, ODD[turn % len(ODD)]):
                body = replace_value(good, at, odd)
                server.respond = lambda _, body=body: raw(body)
                told: list[Any] = []
                try:
                    with metered(told.append) as reported:
                        result = await outcome(backend)
                except Exception as error:
                    surprises.append(f"{at} = {str(odd)[:40]}: {error!r:.200}")
                    continue
                outcomes.add(type(result).__name__)
                texts = every_text(result) if isinstance(result, BaseException) else []
                assert not any(KEY in text for text in [*texts, repr([told, reported, result])]), at
    assert surprises == []
    assert outcomes > {"Outfit", "FillError"}


ERRORS: list[Any] = [
    *(b"", b"null", b"[]", b'"x"', b"{", b"\xff\xfe", b"<html>" + b"x" * 10_000),
    *({}, {"error": None}, {"error": []}, {"error": {"message": None, "type": ["x"]}}),
    *({"error": {"message": {"message": {"message": 1}}}}, {"error": {"type": 5, "code": {}}}),
    {"type": "error", "error": {"type": "overloaded_error", "message": "\x1b[2J\nnot \ud800"}},
    *(b"[" * 100_000, b'{"error":' * 900 + b"1" + b"}" * 900),
]


async def test_any_odd_response_body_raises_a_bae_error(kind: str) -> None:
    async with raw_provider(lambda _: raw({})) as server, WIRES[kind](server, **ONCE) as backend:
        for turn, body in enumerate(ERRORS):
            for status in (300, (429, 500)[turn % 2]):
                sent = Raw([body], status) if isinstance(body, bytes) else raw(body, status=status)
                server.respond = lambda _, sent=sent: sent
                result = await outcome(backend)
                if status == 300 and isinstance(result, FillError):
                    continue
                assert isinstance(result, BaeLMError)
                assert len(result.message) < 1000
                assert str(result).encode(errors="surrogatepass")
        for body in (b"", b"null", b"[" * 100_000, b"\xff", b'"x"', b"1e999"):
            for content in ("application/json", EVENTS, "", "\xff"):
                sent = Raw([body], kind=content)
                server.respond = lambda _, sent=sent: sent
                assert isinstance(await outcome(backend), BaeLMError | FillError)


WAITS = ["1e9", "-1", "nan", "soon", "Fri, 31 Dec 9999 23:59:59 GMT", "\xb2"]


async def test_no_response_header_makes_a_retry_wait_forever(kind: str) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async with (
        raw_provider(lambda _: raw({})) as server,
        WIRES[kind](server, **ONCE) as backend,
    ):
        lm = Retry(backend, 2, first=0.01, longest=60, sleep=sleep)
        for wait in WAITS:
            headers = {"retry-after": wait, "retry-after-ms": wait}
            refused = raw({"error": {"message": "later"}}, status=429, headers=headers)
            server.respond = lambda _, refused=refused: refused
            with pytest.raises(BaeLMError) as raised:
                await asyncio.wait_for(lm.answer(prompt()), BOUND)
            found = raised.value.retry_after
            assert found is None or 0 <= found < float("inf")
    assert max(slept) <= 120


# --- size ---------------------------------------------------------------------------------------


@cache
def bomb(size: int) -> bytes:
    """So many bytes of a text that never ends, compressed."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = b" " * 1_000_000
    return b"".join(
        [*(squeeze.compress(block) for _ in range(size // len(block))), squeeze.flush()]
    )


def without_end() -> Iterator[bytes]:
    for _ in range(1_000):
        yield b": a comment of a stream that does not end, or white space in JSON\n\n" * 1_000


def after_the_end() -> Iterator[bytes]:
    yield gzip.compress(b"{}")
    yield from without_end()


@pytest.mark.parametrize("kind", BOUNDED, indirect=True)
async def test_a_decompressed_response_has_a_size_limit(kind: str) -> None:
    for encoding, status, body in (
        ("", 200, without_end()),
        ("gzip", 200, [bomb(20_000_000)]),
        ("GZIP ", 500, [bomb(20_000_000)]),
        ("gzip", 200, after_the_end()),
    ):
        content = EVENTS if isinstance(WHOLE[kind], list) and status == 200 else JSON
        headers = {"content-encoding": encoding} if encoding else {}
        sent = Raw(body, status, kind=content, headers=headers)
        async with raw_provider(lambda _, sent=sent: sent) as server:
            async with WIRES[kind](server, max_bytes=1_000_000) as backend:
                result = await outcome(backend)
            assert isinstance(result, BaeLMError)
            assert (result.code, result.retryable) == ("bae-lm-output-too-long", False)
            assert "more than 1000000 bytes" in result.message
            assert "max_bytes=" in (result.fix or "")
            assert len(server.bodies) == 1
            assert server.sent < 30_000_000


@pytest.mark.parametrize("kind", ["anthropic"], indirect=True)
async def test_an_endless_server_sent_event_does_not_block_the_event_loop(kind: str) -> None:
    body = [b"data: " + b"x" * 5_000_000, *[b"a\r\r\n" * 10_000] * 100]
    async with (
        raw_provider(lambda _: Raw(body, kind="application/json")) as server,
        WIRES[kind](server, retries=0) as backend,
    ):
        result = await outcome(backend)
    assert isinstance(result, BaeLMError)
    assert result.code == "bae-lm-unparsable"


@pytest.mark.parametrize("kind", BOUNDED, indirect=True)
async def test_a_response_may_only_use_the_requested_compression(kind: str) -> None:
    plain = raw(WHOLE[kind])
    squeezed = gzip.compress(b"".join(plain.body))
    pieces = [squeezed[at : at + 7] for at in range(0, len(squeezed), 7)]
    nonsense = [b"\x1f\x8b\x00nonsense" * 10]
    cases = [(plain.body, ""), ([squeezed], "gzip"), (pieces, "gzip")]
    cases += [(nonsense, encoding) for encoding in ("br", "gzip, gzip", "gzip")]
    async with raw_provider(lambda _: plain) as server, WIRES[kind](server, **ONCE) as backend:
        for body, encoding in cases:
            headers = {"content-encoding": encoding} if encoding else {}
            sent = Raw(body, kind=plain.kind, headers=headers)
            server.respond = lambda _, sent=sent: sent
            result = await outcome(backend)
            if body is nonsense:
                assert isinstance(result, BaeLMError)
            else:
                assert result == Outfit(**SHIRT)
            assert "accept-encoding: gzip\r\n" in server.heads[-1].lower()


# --- redirects ----------------------------------------------------------------------------------


async def test_a_prompt_does_not_follow_a_redirect(kind: str) -> None:
    async with raw_provider(lambda _: raw(WHOLE[kind])) as other:
        elsewhere = other.url.replace("127.0.0.1", "localhost")
        for status, place in ((301, other.url), (307, other.url), (307, elsewhere), (307, "\xff")):
            moved = Raw([], status, headers={"location": place, "content-length": "0"})
            async with (
                raw_provider(lambda _, moved=moved: moved) as server,
                WIRES[kind](server, retries=0) as backend,
            ):
                result = await outcome(backend)
            assert isinstance(result, BaeLMError)
            assert len(server.bodies) == 1
            if kind in BOUNDED:
                assert (result.status, result.retryable) == (status, False)
                assert "base_url=" in (result.fix or "")
    assert other.bodies == []


# --- keys ---------------------------------------------------------------------------------------


def every_text(error: BaseException | None) -> Iterator[str]:
    """The printed error with its causes and its texts."""
    while error is not None:
        yield from (str(error), repr(error), *map(repr, error.args))
        yield from (str(value) for value in vars(error).values())
        error = error.__cause__ or error.__context__


@asynccontextmanager
async def with_key(kind: str, server: RawProvider) -> AsyncIterator[Backend]:
    if kind.startswith("pydantic-ai"):
        made = WIRES[kind](server, **ONCE)
        made._given.client.api_key = KEY  # pyright: ignore
        backend = type(made)(made._given, **ONCE)  # pyright: ignore
    else:
        backend = WIRES[kind](server, api_key=KEY, **ONCE)
    async with backend:
        yield backend


async def test_a_key_echoed_in_an_error_is_masked(kind: str) -> None:
    said = f"{'no ' * 160}the key {KEY} is wrong, see https://me:hidden@here.test/?api_key=hidden"
    everywhere = {"error": {"message": said, "type": KEY, "code": KEY, "param": [KEY]}, KEY: KEY}
    async with raw_provider(lambda _: raw({})) as server, with_key(kind, server) as backend:
        for status, body in (
            (401, everywhere),
            (500, everywhere),
            (401, {"message": said}),
            (500, f"<html>{said}"),
        ):
            refused = Raw([json.dumps(body).encode()], status, headers={"request-id": KEY})
            server.respond = lambda _, refused=refused: refused
            result = await outcome(backend)
            assert isinstance(result, BaeLMError)
            assert KEY in server.heads[-1]
            for text in every_text(result):
                assert KEY[:-5] not in text
                assert "hidden" not in text


async def test_a_key_echoed_in_an_answer_is_masked(kind: str) -> None:
    good = json.loads(json.dumps(WHOLE[kind]).replace("a blue shirt", f"a {KEY} shirt"))
    async with (
        raw_provider(lambda _: raw(good)) as server,
        with_key(kind, server) as backend,
    ):
        told: list[Any] = []
        with metered(told.append):
            result = await backend.fill(Outfit, {}, "Outfit")
    assert result.top == "a *** shirt"
    assert KEY not in repr(told)


async def test_a_key_that_dspy_reads_from_the_environment_is_masked_in_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    good = json.loads(json.dumps(COMPLETION).replace("a blue shirt", f"a {KEY} shirt"))
    async with (
        raw_provider(lambda _: raw(good)) as server,
        WIRES["dspy"](server, api_key=None) as backend,
    ):
        result = await backend.fill(Outfit, {}, "Outfit")
    assert KEY in server.heads[0]
    assert result.top == "a *** shirt"


async def test_a_key_from_the_environment_is_masked_in_errors(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_PROVIDER_API_KEY", KEY)
    refused = Raw([json.dumps({"error": {"message": f"no: {KEY}"}}).encode()], 400)
    async with (
        raw_provider(lambda _: refused) as server,
        WIRES[kind](server, retries=0) as backend,
    ):
        result = await outcome(backend)
    assert not any(KEY in text for text in every_text(result))  # pyright: ignore
