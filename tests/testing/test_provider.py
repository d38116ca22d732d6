"""The loopback provider, asked over real HTTP by the clients of OpenAI and Anthropic, and by plain
HTTP: its answers, its failures, its recorded requests, and its clean end."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from pydantic import BaseModel

h11 = pytest.importorskip("h11")
httpx = pytest.importorskip("httpx")
openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

import bae  # noqa: E402
from bae.exceptions import BaeLMError  # noqa: E402
from bae.testing import (  # noqa: E402
    Cut,
    Empty,
    Malformed,
    Overlong,
    Provider,
    Received,
    Refusal,
    ScriptError,
    Stall,
    Status,
    ThreadedProvider,
    WrongSchema,
    sample,
)
from bae.testing.wire import tokens_in  # noqa: E402
from naming import describe_value  # noqa: E402
from provider_asks import NAME, TLS, WAYS, Way, asking  # noqa: E402


class Outfit(BaseModel):
    top: str
    pieces: int


SCHEMA = Outfit.model_json_schema()
SHIRT = {"top": "shirt", "pieces": 2}
BOUND = 20
"""Seconds until a test that would wait for ever fails instead."""

every_way = pytest.mark.parametrize("way", WAYS, ids=str)
every_api = pytest.mark.parametrize("way", [w for w in WAYS if not w.tool], ids=str)


@pytest.fixture
async def provider():
    async with asyncio.timeout(BOUND), Provider() as running:
        yield running


@pytest.fixture
async def client(provider):
    async with httpx.AsyncClient(base_url=provider.url, verify=TLS) as plain:
        yield plain


def chat(**more):
    return {"model": "m", "messages": [{"role": "user", "content": "hello"}], **more}


def message(**more):
    return {**chat(), "max_tokens": 10, **more}


# --- answers ----------------------------------------------------------------------------------


@every_way
async def test_an_answer_uses_the_requested_channel(provider, way):
    provider.script(SHIRT)
    async with asking(way, provider) as ask:
        got = await ask("what to wear?", SCHEMA)
        made = await ask("and without a script?", SCHEMA)
    assert json.loads(got.text) == SHIRT
    assert got.called == (NAME if way.tool else None)
    assert got.stop in ("stop", "tool_calls", "completed", "end_turn", "tool_use")
    assert got.refusal is None
    assert json.loads(made.text) == sample(SCHEMA)
    received = provider.requests[0]
    assert received.api == ("anthropic" if way.api == "messages" else "openai")
    assert received.path.endswith(way.api if way.api != "chat" else "chat/completions")
    assert (received.stream, received.text) == (way.stream, "what to wear?")
    assert received.tool == (NAME if way.tool else None)
    assert received.model == received.body["model"] == "m"
    assert received.headers["content-type"] == "application/json"
    # Some clients close the schema on the way.
    assert received.schema["properties"].keys() == SCHEMA["properties"].keys()


@every_api
async def test_a_text_is_sent_unchanged_and_four_characters_are_a_token(provider, way):
    text = 'naïve — "quoted"\nand {not json, 41 letters'
    provider.script(text)
    async with asking(way, provider) as ask:
        got = await ask("y" * 39, None)
    assert (got.text, got.input, got.output, got.cached) == (text, 10, tokens_in(text), 0)
    assert provider.requests[0].tokens == 10
    assert tokens_in("12345") == 2


async def test_answers_are_used_in_order_before_the_answer_of_always(provider):
    provider.script({"n": 1}, [2], Outfit(**SHIRT), 4)
    provider.always("ever")
    async with asking(WAYS[0], provider) as ask:
        texts = [(await ask("?", SCHEMA)).text for _ in range(6)]
        assert texts == ['{"n": 1}', "[2]", '{"top":"shirt","pieces":2}', "4", "ever", "ever"]
        provider.always()
        assert json.loads((await ask("?", SCHEMA)).text) == sample(SCHEMA)
    provider.script(Status(429))
    with pytest.raises(AssertionError, match=r"unused answers \(1\): \[Status\(code=429"):
        provider.assert_complete()


async def test_a_function_can_answer_a_request(provider):
    def loud(received: Received):
        return Status(400) if "fail" in received.text else received.text.upper()

    async def later(received: Received):
        return {"schema": received.schema is not None}

    provider.script(loud, later)
    provider.always(loud)
    async with asking(WAYS[0], provider) as ask:
        assert (await ask("hush", None)).text == "HUSH"
        assert (await ask("hush", SCHEMA)).text == '{"schema": true}'
        with pytest.raises(openai.BadRequestError):
            await ask("fail", None)


@pytest.mark.parametrize(
    "wrong",
    [None, object(), {1, 2}, {"a": {1}}, {"a": float("nan")}, Status, b"bytes"],
    ids=describe_value,
)
def test_an_answer_that_cannot_be_sent_is_refused_by_script(wrong):
    provider = Provider()
    with pytest.raises(ScriptError, match="cannot be sent as the answer of a model") as caught:
        provider.script(SHIRT, wrong)
    assert caught.value.code == "bae-script-invalid"
    provider.assert_complete()  # nothing of a wrong script is taken


async def test_an_error_in_a_tests_answer_function_is_raised_at_the_end():
    def broken(received: Received):
        raise LookupError("a mistake in the test")

    with pytest.raises(LookupError, match="a mistake in the test"):
        async with Provider() as provider, asking(WAYS[0], provider) as ask:
            provider.always(broken)
            with pytest.raises(openai.InternalServerError, match="a mistake in the test"):
                await ask("?", None)


# --- channels ---------------------------------------------------------------------------------


async def test_a_required_tool_is_called_even_with_a_response_format(client, provider):
    tool = {"type": "function", "function": {"name": "wear", "parameters": SCHEMA}}
    response_format = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"type": "object"}},
    }
    for choice, called in (("required", ["wear"]), ("auto", []), ("none", [])):
        asked = chat(tools=[tool], response_format=response_format, tool_choice=choice)
        done = (await client.post("/v1/chat/completions", json=asked)).json()
        calls = done["choices"][0]["message"].get("tool_calls", [])
        assert [call["function"]["name"] for call in calls] == called
        assert provider.requests[-1].tool == (called[0] if called else None)


async def test_the_provider_calls_its_only_or_required_tool_once(client):
    one = {"name": "wear", "input_schema": SCHEMA}
    other = {"name": "ask", "input_schema": SCHEMA}
    called = {"type": "tool_use", "id": "t", "name": "wear", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "fine"}
    returned = [
        {"role": "assistant", "content": [called]},
        {"role": "user", "content": [result]},
    ]
    for asked, stop in (
        ({"tools": [one]}, "tool_use"),
        ({"tools": [one, other]}, "end_turn"),
        ({"tools": [one, other], "tool_choice": {"type": "any"}}, "tool_use"),
        ({"tools": [one], "tool_choice": {"type": "none"}}, "end_turn"),
        ({"tools": [one], "messages": [*message()["messages"], *returned]}, "end_turn"),
    ):
        done = (await client.post("/v1/messages", json=message(**asked))).json()
        assert done["stop_reason"] == stop


async def test_the_provider_supports_the_structured_output_of_the_claude_cli(client, provider):
    """The CLI offers a tool among others, and tells the model when its answer was taken."""
    tools = [{"name": name, "input_schema": SCHEMA} for name in ("Read", "StructuredOutput")]
    provider.script(SHIRT, {"top": "again", "pieces": 1})
    done = (await client.post("/v1/messages", json=message(tools=tools))).json()
    (call,) = done["content"]
    assert (call["name"], call["input"]) == ("StructuredOutput", SHIRT)

    def reported(**result) -> dict:
        tool_result = {"type": "tool_result", "tool_use_id": call["id"], "content": "…", **result}
        messages = [
            *message()["messages"],
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [tool_result]},
        ]
        return message(tools=tools, messages=messages)

    taken = (await client.post("/v1/messages", json=reported())).json()
    assert (taken["stop_reason"], taken["content"][0]["type"]) == ("end_turn", "text")
    wrong = (await client.post("/v1/messages", json=reported(is_error=True))).json()
    assert wrong["content"][0]["input"] == {"top": "again", "pieces": 1}
    provider.assert_complete()


async def test_usage_is_streamed_only_on_request(client):
    for options, last in ((None, "finish_reason"), ({"include_usage": True}, "usage")):
        asked = chat(stream=True, stream_options=options)
        body = (await client.post("/v1/chat/completions", json=asked)).text
        *events, done = [line[6:] for line in body.splitlines() if line]
        assert done == "[DONE]"
        assert f'"{last}": ' in events[-1]
        assert ("usage" in events[-1]) == bool(options)


# --- caching ----------------------------------------------------------------------------------


def caching(*texts: str) -> list[dict]:
    return [
        {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}} for text in texts
    ]


async def test_a_cached_prefix_for_anthropic_is_written_once_and_then_read(client):
    async def usage(**more) -> tuple[int, int, int]:
        reported_usage = (await client.post("/v1/messages", json=message(**more))).json()["usage"]
        return (
            reported_usage["input_tokens"],
            reported_usage["cache_creation_input_tokens"],
            reported_usage["cache_read_input_tokens"],
        )

    first, second = "a" * 400, "b" * 40
    assert await usage(system=caching(first)) == (2, 100, 0)
    assert await usage(system=caching(first)) == (2, 0, 100)
    assert await usage(system=caching(first, second)) == (2, 10, 100)
    assert await usage(system=caching(first, second)) == (2, 0, 110)
    assert await usage(system=caching(second, first)) == (2, 110, 0)
    assert await usage(system=caching(first), model="other") == (2, 100, 0)
    assert await usage(system=first) == (102, 0, 0)
    # Marked at its end, a prompt is found as far as it was cached a few blocks before.
    assert await usage(system=first, cache_control={"type": "ephemeral"}) == (0, 2, 100)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streaming"])
async def test_openai_caches_a_long_prompt_automatically(provider, stream):
    async with asking(Way("chat", stream, tool=False), provider) as ask:
        assert (await ask("a" * 4000, None)).cached == 0
        assert (await ask("a" * 4000, None)).cached == 0  # too short to be cached
        assert (await ask("b" * 5000, None)).cached == 0
        assert (await ask("b" * 5000, None)).cached == 1152


# --- faults -----------------------------------------------------------------------------------

STATUSES = {
    400: (openai.BadRequestError, anthropic.BadRequestError),
    401: (openai.AuthenticationError, anthropic.AuthenticationError),
    403: (openai.PermissionDeniedError, anthropic.PermissionDeniedError),
    404: (openai.NotFoundError, anthropic.NotFoundError),
    429: (openai.RateLimitError, anthropic.RateLimitError),
    500: (openai.InternalServerError, anthropic.InternalServerError),
    529: (openai.InternalServerError, anthropic.InternalServerError),
}


@every_way
async def test_a_faulty_answer_is_reported_in_the_form_of_the_api(provider, way):
    right = sample(SCHEMA)
    provider.script(Malformed(), WrongSchema(), Refusal("not that"), Empty(), Overlong())
    async with asking(way, provider) as ask:
        with pytest.raises(json.JSONDecodeError):
            await ask("?", SCHEMA)
        wrong = json.loads((await ask("?", SCHEMA)).text)
        assert [name for name in right if wrong[name] != right[name]] == ["top"]
        refused = await ask("?", SCHEMA)
        assert (refused.refusal, refused.called) == ("not that", None)
        assert refused.stop in ("stop", "completed", "refusal")
        empty = await ask("?", SCHEMA)
        assert (empty.text, empty.called, empty.output) == ("", None, 0)
        if way.api == "chat" and way.stream:
            with pytest.raises(openai.LengthFinishReasonError):
                await ask("?", SCHEMA)
            return
        got = await ask("?", SCHEMA)
    assert got.stop in ("length", "max_output_tokens", "max_tokens")
    if way.api == "messages" and way.tool:
        # What a tool is called with is parsed, as far as it goes.
        assert "pieces" not in json.loads(got.text)
    else:
        assert json.dumps(right).startswith(got.text)


@every_api
async def test_a_status_is_an_error_in_the_shape_of_the_api(provider, way):
    async with asking(way, provider) as ask:
        for code, kinds in STATUSES.items():
            provider.script(Status(code, retry_after=1.5, message="so", headers={"x-mark": "1"}))
            with pytest.raises(kinds[way.api == "messages"], match="so") as caught:
                await ask("?", SCHEMA)
            headers = caught.value.response.headers
            assert (headers["retry-after"], headers["x-mark"]) == ("1.5", "1")
        assert (await ask("?", SCHEMA)).text  # the connection is as good as before
    assert provider.received == len(STATUSES) + 1
    with pytest.raises(ValueError, match=r"Status\(200\): give an error, 400 to 599"):
        Status(200)


@every_way
async def test_a_cut_answer_is_a_connection_error(provider, way):
    provider.script(Cut(after=2), SHIRT)
    broke = openai.APIConnectionError if way.api != "messages" else anthropic.APIConnectionError
    async with asking(way, provider) as ask:
        with pytest.raises(Exception, match=r"Connection error|peer closed") as caught:
            await ask("?", SCHEMA)
        # Anthropic's client lets the error of its transport through while it streams.
        assert isinstance(caught.value, broke) or "RemoteProtocolError" in repr(caught.value)
        assert json.loads((await ask("?", SCHEMA)).text) == SHIRT


@every_way
async def test_the_provider_notices_a_client_that_leaves_a_stalled_answer(provider, way):
    provider.script(Stall(after=1))
    async with asking(way, provider) as ask:
        task = asyncio.create_task(ask("?", SCHEMA))
        await provider.arrived(1)
        assert (provider.open_connections, provider.waiting) == (1, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await provider.disconnected()
    assert (provider.open_connections, provider.waiting) == (0, 0)


async def test_a_stalled_stream_sends_the_scripted_number_of_events_first(provider, client):
    provider.always(Stall(after=3))
    async with client.stream("POST", "/v1/messages", json=message(stream=True)) as response:
        assert response.headers["content-type"] == "text/event-stream"
        await provider.arrived(1)
        kinds: list[str] = []
        async for line in response.aiter_lines():
            kinds += [line] if line.startswith("event: ") else []
            if len(kinds) == 3:
                break
    assert kinds == ["event: message_start", "event: ping", "event: content_block_start"]
    await provider.disconnected()


# --- holding ----------------------------------------------------------------------------------


async def test_the_provider_handles_200_held_requests_with_100_cancellations(provider):
    async with httpx.AsyncClient(
        base_url=provider.url,
        timeout=BOUND,
        verify=TLS,
        limits=httpx.Limits(max_connections=None),
    ) as client:
        with provider.held():
            tasks = [
                asyncio.create_task(client.post("/v1/messages", json=message())) for _ in range(200)
            ]
            await provider.arrived(200)
            assert provider.open_connections == provider.waiting == 200
            for task in tasks[:100]:
                task.cancel()
            results = await asyncio.gather(*tasks[:100], return_exceptions=True)
            assert {type(error) for error in results} == {asyncio.CancelledError}
            await provider.disconnected(left=100)
            assert provider.open_connections == provider.waiting == 100
            assert not any(task.done() for task in tasks[100:])
        done = await asyncio.gather(*tasks[100:])
    assert {response.status_code for response in done} == {200}
    await provider.disconnected()
    assert provider.received == len(provider.requests) == 200


async def test_a_timed_out_wait_reports_its_progress(provider, client):
    with provider.held():
        task = asyncio.create_task(client.post("/v1/messages", json=message()))
        await provider.arrived(1)
        with pytest.raises(TimeoutError, match=r"1 of 2 requests are missing after 0\.01 s"):
            await provider.arrived(2, timeout=0.01)
        with pytest.raises(TimeoutError, match=r"1 connections are still busy after 0\.01 s"):
            await provider.idle(timeout=0.01)
        with pytest.raises(TimeoutError, match=r"1 connections are still open after 0\.01 s"):
            await provider.disconnected(timeout=0.01)
    await task


# --- HTTP -------------------------------------------------------------------------------------


@pytest.mark.parametrize("anthropics", [False, True])
async def test_an_unknown_address_is_an_error_in_the_shape_of_the_api(client, provider, anthropics):
    headers = {"anthropic-version": "2023-06-01"} if anthropics else {}
    for method, path in (("POST", "/v1/embeddings"), ("GET", "/v2"), ("POST", "/v1/models")):
        response = await client.request(method, path, headers=headers)
        assert response.status_code == 404
        assert ("type" in response.json()) == anthropics
        assert f"{method} {path}: there is nothing here" in response.json()["error"]["message"]
    response = await client.request("GET", "/v1/messages", headers=headers)
    assert response.status_code == 405
    assert (await client.delete("/v1/responses", headers=headers)).status_code == 405
    assert provider.requests == []


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("/v1/messages", b"{", "Expecting"),
        ("/v1/messages", b"\xff", "can't decode"),
        ("/v1/messages", b"[]", "not a JSON object"),
        ("/v1/messages", json.dumps(chat()).encode(), "max_tokens: this parameter is required"),
        ("/v1/messages", json.dumps(message(messages=[])).encode(), "messages: this"),
        (
            "/v1/messages",
            json.dumps(message(messages=["hi"])).encode(),
            "not have the API's format",
        ),
        ("/v1/chat/completions", json.dumps(chat(model="")).encode(), "model: this parameter"),
        (
            "/v1/chat/completions",
            json.dumps(chat(tools=[{"type": "function"}])).encode(),
            "API's format",
        ),
        ("/v1/responses", json.dumps(chat()).encode(), "input: this parameter is required"),
    ],
)
async def test_a_wrong_request_is_refused_in_the_form_of_the_api(client, provider, path, body, why):
    response = await client.post(path, content=body)
    assert response.status_code == 400
    assert why in response.json()["error"]["message"]
    assert provider.requests == []


async def test_the_provider_listens_on_loopback_only_and_closes_other_protocols(provider):
    port = int(provider.url.removeprefix("http://127.0.0.1:"))
    # Another address of the same machine, which a server for all of them would have, too.
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", port), timeout=1)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"what is this?\r\n\r\n")
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    await provider.disconnected()


# --- beginning and end ------------------------------------------------------------------------


async def test_closing_the_provider_ends_every_connection_and_task():
    before = asyncio.all_tasks()
    async with httpx.AsyncClient(timeout=BOUND, verify=TLS) as client:
        with ExitStack() as past_its_end:
            async with Provider() as provider:
                url = provider.url
                provider.script(Stall(), Stall(after=1))
                waiting = []
                for stream in (False, True, False):
                    if len(waiting) == 2:
                        past_its_end.enter_context(provider.held())
                    asked = client.post(f"{url}/v1/messages", json=message(stream=stream))
                    waiting.append(asyncio.create_task(asked))
                    await provider.arrived(len(waiting))
                await client.get(url)  # on a connection that is then kept, and idle
                assert provider.open_connections == 4
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(error) for error in ended} <= {httpx.RemoteProtocolError, httpx.ReadError}
        assert provider.open_connections == 0
        assert asyncio.all_tasks() == before
        with pytest.raises(httpx.ConnectError):
            await client.get(url)


async def test_a_provider_can_be_used_again_and_not_twice_at_once():
    provider = Provider()
    with pytest.raises(RuntimeError, match="not running"):
        provider.url
    for _ in range(2):
        async with provider, httpx.AsyncClient(base_url=provider.url, verify=TLS) as client:
            assert (await client.get("/")).status_code == 200
            with pytest.raises(RuntimeError, match="running already"):
                async with provider:
                    pass


# --- in a thread ------------------------------------------------------------------------------


def test_a_threaded_provider_serves_sync_tests():
    def broken(received: Received):
        raise LookupError("a mistake in the test")

    done: list[str | None] = []
    before = threading.active_count()
    with (
        pytest.raises(LookupError, match="a mistake in the test"),
        ThreadedProvider() as provider,
        openai.OpenAI(base_url=f"{provider.url}/v1", api_key="key", max_retries=0) as client,
    ):

        def post() -> None:
            done.append(client.chat.completions.create(**chat()).choices[0].message.content)

        provider.script(*["held"] * 3, Status(429), broken)
        threads = [threading.Thread(target=post) for _ in range(3)]
        with provider.held():
            for thread in threads:
                thread.start()
            provider.arrived(3)
            assert (provider.waiting, done) == (3, [])
            with pytest.raises(TimeoutError, match="1 of 4"):
                provider.arrived(4, timeout=0.01)
        for thread in threads:
            thread.join(BOUND)
        assert done == ["held"] * 3
        for error in (openai.RateLimitError, openai.InternalServerError):
            with pytest.raises(error):
                post()
        provider.assert_complete()
        provider.idle()
        client.close()
        provider.disconnected()
        assert (provider.received, provider.open_connections) == (5, 0)
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="not running"):
        provider.arrived()


# --- what it needs ----------------------------------------------------------------------------


def test_importing_bae_testing_needs_neither_h11_nor_asyncio_servers():
    program = """
import sys
import bae.testing
loaded = set(sys.modules)
bae.testing.Status, bae.testing.sample
assert not {"h11", "bae.testing.provider", "bae.testing.server"} & loaded, loaded
assert "h11" not in sys.modules
bae.testing.Provider()
assert "h11" in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(bae.__file__).parent.parent)},
    )
    assert done.returncode == 0, done.stderr


def test_a_provider_without_h11_raises_an_error_with_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "h11", None)
    with pytest.raises(BaeLMError, match="Provider needs the package h11") as caught:
        Provider()
    assert caught.value.code == "bae-lm-extra-missing"
    assert ".[testing]" in str(caught.value)
