"""What an HTTP status, or a connection that failed, means for whoever asked: the same code, the
same advice and the same judgement on asking again from every backend that speaks HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from socket import gaierror
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bae import BaeLMError
from bae.lm.http_errors import connection_error, retry_after, status_error, timeout_error


@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (400, "bae-lm-request-refused", False),
        (401, "bae-lm-unauthorised", False),
        (402, "bae-lm-request-refused", False),
        (403, "bae-lm-unauthorised", False),
        (404, "bae-lm-not-found", False),
        (408, "bae-lm-timeout", True),
        (409, "bae-lm-request-refused", True),
        (413, "bae-lm-request-refused", False),
        (422, "bae-lm-request-refused", False),
        (425, "bae-lm-request-refused", True),
        (429, "bae-lm-rate-limited", True),
        (500, "bae-lm-unavailable", True),
        (502, "bae-lm-unavailable", True),
        (503, "bae-lm-unavailable", True),
        (504, "bae-lm-timeout", True),
        (529, "bae-lm-unavailable", True),
    ],
)
def test_a_status_has_a_code_and_says_whether_asking_again_can_help(
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


@pytest.mark.parametrize("status", [400, 401, 429, 500])
@pytest.mark.parametrize(("said", "retryable"), [("true", True), ("false", False)])
def test_a_provider_that_says_whether_to_ask_again_is_believed(
    status: int, said: str, retryable: bool
):
    error = status_error("Toy", status, "", headers={"x-should-retry": said})

    assert error.retryable is retryable


def test_the_wait_a_provider_asks_for_is_kept_and_told():
    error = status_error("Toy", 429, "slow down", headers={"retry-after": "2.5"})

    assert error.retry_after == 2.5
    assert "retry after 2.5 s" in error.message
    assert "RateLimit" in (error.fix or "")


def test_what_the_provider_said_is_cut_to_a_length_that_can_be_read():
    error = status_error("Toy", 500, "<html>" + "x" * 100_000)

    assert len(error.message) < 600
    assert error.message.endswith("…")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 -0000"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 99999999999999999999 07:28:00 GMT"}, None),
        ({"retry-after": "Wed, 99 Oct 2015 07:28:00 GMT"}, None),
    ],
    ids=str,
)
def test_a_wait_is_read_in_every_form_it_has(headers: dict[str, str], seconds: float | None):
    assert retry_after(headers) == seconds


def test_a_wait_until_a_date_is_the_time_until_then():
    until = datetime.now(UTC) + timedelta(seconds=90)
    wait = retry_after({"retry-after": format_datetime(until, usegmt=True)})

    assert wait is not None
    assert 80 < wait <= 90


@given(st.text() | st.from_regex(r"\w{3}, \d{1,3} \w{3} \d{1,30} \d\d:\d\d:\d\d [+-]?\w{1,9}"))
def test_whatever_a_header_says_there_is_a_wait_or_none(said: str):
    for name in ("retry-after", "retry-after-ms"):
        wait = retry_after({name: said})
        assert wait is None or 0 <= wait < float("inf")


def test_a_connection_that_failed_may_be_tried_again():
    cause = ConnectionResetError("reset")
    error = connection_error("Toy(small)", cause)

    assert (error.code, error.retryable, error.status) == ("bae-lm-unreachable", True, None)
    assert error.cause is cause
    assert "Toy(small)" in error.message
    assert error.fix


@pytest.mark.parametrize(("seconds", "said"), [(2.5, "within 2.5 s"), (None, "did not answer")])
def test_an_answer_that_did_not_come_in_time_says_the_bound(seconds: Any, said: str):
    error = timeout_error("Toy", seconds, None)

    assert (error.code, error.retryable) == ("bae-lm-timeout", True)
    assert error.message.endswith(said)
    assert "timeout=" in (error.fix or "")


class ConnectError(Exception):
    """As HTTP clients name it."""


@pytest.mark.parametrize("below", [ConnectError(), ConnectionRefusedError(), gaierror()], ids=repr)
def test_where_no_connection_was_made_nothing_was_sent(below: Exception):
    wrapped = RuntimeError("the SDK failed")
    wrapped.__cause__ = below
    assert not connection_error("Toy", wrapped).sent
    assert not timeout_error("Toy", 1.0, wrapped).sent


@pytest.mark.parametrize("below", [ConnectionResetError(), EOFError(), None], ids=repr)
def test_a_connection_that_broke_off_may_have_carried_the_request(below: Exception | None):
    wrapped = RuntimeError("the SDK failed")
    wrapped.__cause__ = below
    wrapped.__context__ = wrapped.__cause__
    assert connection_error("Toy", wrapped).sent
    assert timeout_error("Toy", 1.0, None).sent
