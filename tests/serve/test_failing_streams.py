"""Streams and feeds where the user's hook, `visible` or store fails: they end with a reason, and
the log has the error."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from bae.exceptions import JournalError
from bae.journal import MemoryJournal, RunInfo
from bae.serve import User, bearer
from bae.testing import ScriptedLM
from serving import TOKEN, USERS, serving, talk

ERRORS = [
    ValueError("the database is away"),
    RuntimeError("the database is away"),
    TimeoutError("the database is away"),
    OSError("the database is away"),
]
fails = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)


class Failing(MemoryJournal):
    """A store whose lines cannot be read any more."""

    error: Exception | None = None

    async def lines(self, *args: Any, **kwargs: Any) -> Any:
        if self.error is not None and kwargs.get("limit"):
            raise self.error
        return await super().lines(*args, **kwargs)


async def messages_of(url: str, *frames: Any) -> tuple[list[Any], int | None, str | None]:
    """The messages of a WebSocket up to the end of its feed, and how it was closed."""
    told: list[Any] = []
    async with connect(url) as socket:
        for frame in frames:
            await socket.send(json.dumps(frame))
        try:
            while not any("end" in message for message in told):
                told.append(json.loads(await socket.recv()))
        except ConnectionClosed:
            return told, socket.close_code, socket.close_reason
    return told, None, None


@fails
async def test_a_feed_ends_if_the_visibility_check_fails(
    error: Exception, caplog: pytest.LogCaptureFixture
):
    def sees(user: User, run: RunInfo) -> bool:
        if user.name == "ben":
            raise error
        return True

    async with serving(visible=sees) as served, asyncio.timeout(20):
        await served.start(run_id="one")
        for feed in ("runs", "run/one"):
            caplog.clear()
            frames = {"token": "ben"}, {"sub": 1, "feed": feed}
            messages, code, _ = await messages_of(served.ws(), *frames)
            assert (messages[-1]["end"], messages[-1]["type"]) == ("refused", "bae-serve-failed")
            assert code is None
            assert "away" not in json.dumps(messages)
            assert "the database is away" in caplog.text


@fails
async def test_a_failing_auth_hook_closes_the_web_socket_as_failed(
    error: Exception, caplog: pytest.LogCaptureFixture
):
    known = bearer(USERS)

    async def find_user(request: Any) -> User | None:
        if request.headers.get("authorization", "").endswith("broken"):
            raise error
        return await known(request)

    async with serving(auth=find_user) as served, asyncio.timeout(20):
        _, code, reason = await messages_of(served.ws(), {"token": "broken"})
        assert (code, "log" in (reason or "")) == (1011, True)
        assert "the database is away" in caplog.text
        messages, code, _ = await messages_of(
            served.ws(), {"token": TOKEN}, {"sub": 1, "feed": "no"}
        )
        assert (messages[-1]["end"], code) == ("refused", None)


@fails
async def test_a_stream_of_records_ends_if_the_store_fails(
    error: Exception, caplog: pytest.LogCaptureFixture
):
    journal = Failing()
    async with serving(journal) as served, asyncio.timeout(20):
        await served.start(run_id="one")
        journal.error = error
        events = [(kind, data) async for kind, _, data in served.events("one")]
        assert [kind for kind, _ in events] == ["end"]
        assert (events[0][1]["reason"], events[0][1]["code"]) == ("failed", "bae-serve-failed")
        assert "away" not in json.dumps(events)
        assert "the database is away" in caplog.text
        frames = {"token": TOKEN}, {"sub": 1, "feed": "run/one"}
        messages, _, _ = await messages_of(served.ws(), *frames)
        assert (messages[-1]["end"], messages[-1]["type"]) == ("refused", "bae-serve-failed")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (JournalError("/srv/runs.db is locked", code="bae-journal-locked"), "bae-journal-locked"),
        (TimeoutError("/srv/runs.db is locked"), "bae-serve-failed"),
    ],
    ids=["of the journal", "of another kind"],
)
async def test_a_chat_ends_with_an_error_that_names_no_file_of_the_server(
    error: Exception, code: str
):
    journal, lm = Failing(), ScriptedLM({"Reply": [{"text": "Hello."}]})
    async with serving(journal, graphs={"talk": talk}, lm=lm) as served, asyncio.timeout(20):
        said = {"id": "m", "role": "user", "content": "Hi"}
        body = {"threadId": "t", "runId": "one", "messages": [said]}
        assert "Hello." in (await served.client.post("/ag-ui/talk", json=body)).text
        journal.error = error
        told = (await served.client.post("/ag-ui/talk", json=body)).text
        last = json.loads(told.strip().splitlines()[-1].removeprefix("data: "))
        assert (last["type"], last["code"]) == ("RUN_ERROR", code)
        assert "/srv" not in told
