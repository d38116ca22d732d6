"""What backends that talk to a provider share: one client for each event loop, errors with a code
and advice, and settings without secrets."""

from __future__ import annotations

import asyncio
import gc
import weakref
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from socket import gaierror
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bae import BaeLMError, Graph, Node
from bae.lm import Answer, Prompt
from bae.lm.http import (
    PerLoop,
    connection_error,
    is_secret_name,
    remove_passwords,
    retry_after,
    status_error,
    timeout_error,
    without_secrets,
)
from bounded import BOUND
from end_node import EndNode
from toy_backend import ToyBackend


class Client:
    """Knows the loop it was opened in, and whether it was closed, once, in the same one."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.closed = 0
        self.gone = asyncio.Event()

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        assert asyncio.get_running_loop() is self.loop
        self.closed += 1
        self.gone.set()


class Clients:
    """A `PerLoop` with every client it has made."""

    def __init__(self) -> None:
        self.made: list[Client] = []
        self.held = PerLoop(self._make, lambda client: client.aclose())

    def _make(self) -> Client:
        self.made.append(Client())
        return self.made[-1]


def test_a_new_event_loop_releases_connections_of_a_closed_loop():
    clients = Clients()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(clients.held.get())
    loop.close()
    reference = weakref.ref(loop)
    del loop
    asyncio.run(clients.held.get())  # type: ignore[arg-type]
    clients.made.clear()
    gc.collect()

    assert reference() is None


async def test_each_event_loop_has_its_own_client():
    clients = Clients()
    mine = await clients.held.get()

    def elsewhere() -> None:
        asyncio.run(clients.held.get())

    async with asyncio.timeout(BOUND):
        await asyncio.gather(*(asyncio.to_thread(elsewhere) for _ in range(4)))
    assert len(clients.made) == 5
    assert [client.closed for client in clients.made] == [0, 1, 1, 1, 1]
    assert await clients.held.get() is mine
    await clients.held.aclose()


async def test_an_error_while_closing_a_client_is_raised():
    async def fails(client: Client) -> None:
        raise OSError("cannot close")

    clients = PerLoop(Client, fails)
    first = await clients.get()
    with pytest.raises(OSError, match="cannot close"):
        await clients.aclose()
    second = await clients.get()
    assert second is not first
    with pytest.raises(OSError, match="cannot close"):
        await clients.aclose()


async def test_a_client_of_an_unreferenced_backend_is_closed():
    clients = Clients()
    await clients.held.get()
    (client,) = clients.made
    del clients.held
    gc.collect()
    async with asyncio.timeout(BOUND):
        await client.gone.wait()  # the loop closes it in a task of its own

    assert client.closed == 1


class Ask(Node):
    async def __call__(self) -> Told: ...


class Told(EndNode):
    text: str


class Connects(ToyBackend):
    def __init__(self) -> None:
        super().__init__(lambda prompt: {"text": "x"})
        self.clients = Clients()

    async def answer(self, prompt: Prompt) -> Answer:
        client = await self.clients.held.get()
        assert not client.closed
        return await super().answer(prompt)

    async def aclose(self) -> None:
        await self.clients.held.aclose()


def test_consecutive_sync_runs_leave_no_connection_open():
    lm = Connects()
    graph = Graph(start=Ask)
    for _ in range(3):
        graph.run(Ask(), lm)

    assert [client.closed for client in lm.clients.made] == [1, 1, 1]


@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (400, "bae-lm-request-refused", False),
        (401, "bae-lm-unauthorized", False),
        (403, "bae-lm-unauthorized", False),
        (404, "bae-lm-not-found", False),
        (408, "bae-lm-timeout", True),
        (409, "bae-lm-request-refused", True),
        (429, "bae-lm-rate-limited", True),
        (500, "bae-lm-unavailable", True),
        (504, "bae-lm-timeout", True),
        (529, "bae-lm-unavailable", True),
    ],
)
def test_an_http_status_gives_an_error_code_and_whether_to_retry(
    status: int, code: str, retryable: bool
):
    cause = OSError("below")
    error = status_error("Toy(small)", status, "no\n  luck", cause=cause)

    assert isinstance(error, BaeLMError)
    assert (error.code, error.retryable, error.status) == (code, retryable, status)
    assert error.message == f"Toy(small) answered with status {status}: no luck"
    assert error.fix
    assert error.cause is error.__cause__ is cause
    assert error.retry_after is None


def test_the_retry_advice_of_a_provider_is_followed():
    assert status_error("Toy", 400, "", headers={"x-should-retry": "true"}).retryable
    assert not status_error("Toy", 500, "", headers={"x-should-retry": "false"}).retryable
    error = status_error("Toy", 500, "<html>" + "x" * 100_000)
    assert len(error.message) < 600
    assert error.message.endswith("…")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after": "\t10 "}, 10.0),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "+3"}, None),
        ({"retry-after": "1_0"}, None),
        ({"retry-after": "1e9"}, None),
        ({"retry-after": "\u0663"}, None),
        ({"retry-after": "\xa03"}, None),
        ({"retry-after": "9" * 5000}, None),
        ({"retry-after-ms": "1_0"}, None),
        ({"retry-after-ms": "1_0", "retry-after": "9"}, 9.0),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 2_1 Oct 9015 07:28:00 GMT"}, None),
    ],
    ids=str,
)
def test_every_form_of_a_retry_after_header_is_read(headers: dict[str, str], seconds: float | None):
    assert retry_after(headers) == seconds


def test_a_retry_after_date_becomes_the_remaining_seconds():
    until = datetime.now(UTC) + timedelta(seconds=90)
    wait = retry_after({"retry-after": format_datetime(until, usegmt=True)})

    assert wait is not None
    assert 80 < wait <= 90


@settings(max_examples=30)
@given(st.text() | st.from_regex(r"\w{3}, \d{1,3} \w{3} \d{1,30} \d\d:\d\d:\d\d [+-]?\w{1,9}"))
def test_any_retry_header_gives_a_wait_or_none(said: str):
    for name in ("retry-after", "retry-after-ms"):
        wait = retry_after({name: said})
        assert wait is None or 0 <= wait < float("inf")


@pytest.mark.parametrize(("seconds", "said"), [(2.5, "within 2.5 s"), (None, "did not answer")])
def test_a_late_answer_reports_the_timeout(seconds: Any, said: str):
    error = timeout_error("Toy", seconds, None)

    assert (error.code, error.retryable) == ("bae-lm-timeout", True)
    assert error.message.endswith(said)
    assert "timeout=" in (error.fix or "")


class ConnectError(Exception):
    """As HTTP clients name it."""


@pytest.mark.parametrize(
    ("below", "sent"),
    [
        *((cause, False) for cause in (ConnectError(), ConnectionRefusedError(), gaierror())),
        *((cause, True) for cause in (ConnectionResetError(), EOFError(), None)),
    ],
    ids=repr,
)
def test_a_failed_connection_is_reported_as_not_sent(below: Exception | None, sent: bool):
    wrapped = RuntimeError("the SDK failed")
    wrapped.__cause__ = below
    wrapped.__context__ = below
    assert connection_error("Toy", wrapped).sent == sent
    assert timeout_error("Toy", 1.0, wrapped).sent == sent


@pytest.mark.parametrize(
    "name",
    [
        *("api_key", "ANTHROPIC_API_KEY", "x-api-key", "aws_session_token", "access_tokens"),
        *("client_secret", "vertex_credentials", "Authorization", "X_AUTH", "PGPASS", "password"),
        *("HTTPS_PROXY", "Cookie", "ANTHROPIC_CUSTOM_HEADERS", "bearer", "jwt"),
    ],
)
def test_a_secret_is_recognized_by_its_name(name: str) -> None:
    assert is_secret_name(name, "hidden")
    assert without_secrets({name: "hidden", "region": "eu"}) == {"region": "eu"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_tokens", 500), ("CLAUDE_CODE_MAX_OUTPUT_TOKENS", "500"), ("temperature", 0.5)),
        *(("top_k", 3), ("api_base", "https://here.test/v1"), ("region", "eu"), ("stop", ["a"])),
        ("thinking", {"type": "enabled", "budget_tokens": 2000}),
        ("schema", {"properties": {"key": {"type": "string"}, "token": {"type": "null"}}}),
    ],
)
def test_values_that_are_not_secret_stay_unchanged(name: str, value: Any) -> None:
    assert without_secrets({name: value}) == {name: value}


def test_secrets_are_left_out_at_any_depth() -> None:
    given = {
        "default_headers": {"Authorization": "hidden", "x-team": "blue"},
        "servers": [{"name": "a", "auth": ["me", "hidden"]}, ("https://me:hidden@here.test",)],
        "vertex_credentials": {"private": "hidden"},
    }
    assert without_secrets(given) == {
        "default_headers": {"x-team": "blue"},
        "servers": [{"name": "a"}, ["https://here.test"]],
    }


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("https://me:p@ss@here.test:8/v1", "https://here.test:8/v1"),
        ("https://here.test/@me", "https://here.test/@me"),
        ("https://here.test?api_key=hidden&a=b#c", "https://here.test?api_key=&a=b#c"),
        ("me@here.test", "me@here.test"),
    ],
)
def test_an_address_is_shown_without_its_password(text: str, left: str) -> None:
    assert remove_passwords(text) == left
