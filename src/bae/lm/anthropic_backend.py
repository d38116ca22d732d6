"""The backend for Claude through Anthropic's SDK. If Claude can enforce a schema, the backend sends
the schema as structured output, otherwise as the input schema of a tool."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal, cast

from bae.exceptions import BaeLMError
from bae.lm.anthropic_answers import ClaudeMessage
from bae.lm.anthropic_messages import (
    CACHED,
    NATIVE_TOOLS,
    container_in,
    has_unsigned_calls,
    message_params,
    tool_params,
)
from bae.lm.backend import Answer, Backend, Prompt, check_positive
from bae.lm.extras import need
from bae.lm.file_limits import claude_limits
from bae.lm.http import (
    PerLoop,
    error_for,
    is_secret_name,
    malformed_error,
    mask_error,
    remove_passwords,
    secrets_in,
    timeout_error,
    without_secrets,
)
from bae.lm.options import Effort
from bae.lm.prices import cost_of, window_of
from bae.lm.provider_schemas import Schema, answer_tool_name, for_claude, unfit
from bae.lm.responses import MAX_BYTES, bound_responses
from bae.usage import Usage

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic, AsyncStream
    from anthropic.types import RawMessageStreamEvent

Channel = Literal["auto", "schema", "tool"]
MODEL = "claude-sonnet-5-5"


class AnthropicBackend(Backend):
    """Claude, asked through the package `anthropic`. Set `ANTHROPIC_API_KEY`, or pass `api_key`.

    - `max_tokens`: the most tokens of an answer, including the thinking before it.
    - `temperature`: leave it out for newer models, which do not accept it.
    - `effort`: how much the model thinks and writes, such as "low". By default the model decides.
    - `stream`: whether to read the answer while the model writes it. Observers of the run see the
      pieces, and `idle_timeout` notices a stalled answer early.
    - `cache`: whether the provider caches the constant part of the prompt and conversations with
      tools.
    - `timeout`: seconds for the whole call.
    - `idle_timeout`: seconds between two pieces of a streamed answer.
    - `connect_timeout`: seconds to open the connection.
    - `channel`: how to send the schema. "schema" sends it as structured output. "tool" sends it as
      the input schema of a tool that the model must call, for models without structured output.
      "auto" means "schema" if Claude can enforce the schema, otherwise "tool".
      `bae.lm.provider_schemas.unfit` returns why Claude cannot enforce a schema.
    - `headers`: headers to send with every request.
    - `extra`: added to the body of every request, such as `{"thinking": {"type": "adaptive"}}`.
    - `max_bytes`: the largest response to read, after decompression.
    - `http_client`: your own `httpx2.AsyncClient`, for one event loop. bae does not close it, does
      not limit its responses, and does not change how it follows redirects.

    The model calls tools natively, also if the answer has a schema. `Native("web_search")`,
    `Native("web_fetch")` and `Native("code_execution")` are Anthropic's own tools. They take the
    options of the API.
    """

    calls_tools = True
    takes_files = frozenset({"image", "document"})
    native_tools = frozenset(NATIVE_TOOLS)

    def __init__(
        self,
        model: str = MODEL,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        max_tokens: int = 16_384,
        temperature: float | None = None,
        effort: Effort | None = None,
        stream: bool = True,
        cache: bool = True,
        timeout: float = 600.0,
        idle_timeout: float = 60.0,
        connect_timeout: float = 10.0,
        channel: Channel = "auto",
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
        max_bytes: int = MAX_BYTES,
        http_client: Any = None,
        attempts: int = 2,
        retries: int = 2,
        one_call: bool = True,
    ) -> None:
        super().__init__(attempts=attempts, retries=retries, one_call=one_call)
        check_positive(self, timeout=timeout, idle_timeout=idle_timeout, max_tokens=max_tokens)
        check_positive(self, connect_timeout=connect_timeout, max_bytes=max_bytes)
        # Import packages and read prices now, so that the first request does not have to.
        for module in ("anthropic", "anthropic.resources.messages", "httpx2"):
            need(module, extra="anthropic", by="AnthropicBackend")
        cost_of(model, Usage(), "anthropic")
        self.model = model
        self.max_tokens = max_tokens
        window = window_of(model, "anthropic")
        self.context_window = window and max(window - max_tokens, window // 2)
        self.file_limits = claude_limits(window)
        self.temperature = temperature
        self.stream = stream
        self.cache = cache
        self.timeout = timeout
        self.idle_timeout = idle_timeout
        self.connect_timeout = connect_timeout
        self.channel: Channel = channel
        self.max_bytes = max_bytes
        self.extra = dict(extra or {})
        if effort is not None:
            self.extra["output_config"] = {**self.extra.get("output_config", {}), "effort": effort}
        self._api_key = api_key
        self._base_url = base_url
        self._headers = dict(headers or {})
        self._hidden = tuple(secrets_in({**self.extra, **self._headers}))
        self._http_client = http_client
        self._clients = PerLoop(self._connect, self._disconnect)
        if http_client is None:
            _ = self._offline_client  # reports a missing key now, not in the middle of a run

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that change answers, without API keys and other secrets."""
        return {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "channel": self.channel,
            "base_url": remove_passwords(str(self._offline_client.base_url)),
            "headers": _without_secret_values(self._headers),
            "extra": without_secrets(self.extra),
        }

    @property
    def secrets(self) -> tuple[str, ...]:
        """The key, and the secrets in `headers` and `extra`."""
        client = self._offline_client
        return tuple(filter(None, (client.api_key, client.auth_token, *self._hidden)))

    def least_cost(self, usage: Usage) -> float | None:
        """Return the cost of a request with this usage by Anthropic's prices, or None if
        unknown."""
        return cost_of(self.model, usage, "anthropic")

    async def aclose(self) -> None:
        """Close the connections of the running event loop. The next question opens new
        connections."""
        await self._clients.aclose()

    async def answer(self, prompt: Prompt) -> Answer:
        """Send a request to Claude. While the provider runs its own tools, it may pause the
        message. Each pause takes one more request to continue."""
        client = await self._clients.get()
        request, answer_tool = self._request(prompt)
        reply = ClaudeMessage(self.model, self.model, self.secrets, answer_tool)
        bound = asyncio.timeout(self.timeout)
        try:
            async with bound:
                await self._exchange(client, request, reply)
                while reply.is_paused:
                    if reply.pauses >= _MOST_PAUSES:
                        raise self._paused_too_often()
                    await self._exchange(client, reply.resume(request), reply)
            return reply.answer(echoes=bool(prompt.tools))
        except Exception as error:
            mask_error(error, self.secrets)
            failure = self._failure(error, bound, reply)
            if isinstance(failure, BaeLMError):
                failure.usage = reply.used()
            if failure is error:
                raise
            raise failure from error

    async def _exchange(
        self, client: AsyncAnthropic, request: Mapping[str, Any], reply: ClaudeMessage
    ) -> None:
        """Send a request, and add the response to `reply`."""
        if self.stream:
            stream: AsyncStream[RawMessageStreamEvent] = await client.messages.create(
                **request, stream=True
            )
            reply.began = True
            async with stream:
                async for event in stream:
                    reply.take(event)
        else:
            message = cast(Any, await client.messages.create(**request))
            reply.began = True
            reply.take_message(message)
        if not reply.ended:
            raise EOFError("the stream ended before the answer did")

    @property
    def _who(self) -> str:
        return f"AnthropicBackend({self.model!r})"

    def _paused_too_often(self) -> BaeLMError:
        return BaeLMError(
            f"{self._who} paused {_MOST_PAUSES} times in one answer, and was not continued",
            code="bae-lm-output-too-long",
            fix='bound its own tools, as Native("web_search", max_uses=5) does',
        )

    def _failure(self, error: Exception, bound: asyncio.Timeout, reply: ClaudeMessage) -> Exception:
        from anthropic import CredentialsError

        if bound.expired() and isinstance(error, TimeoutError):
            return timeout_error(self._who, self.timeout, error)
        if isinstance(error, CredentialsError):
            return _no_key(self._who, error)
        failure = error_for(self._who, error, self._idle)
        if failure is not error or isinstance(error, BaeLMError):
            return failure
        # If the response has begun, an unknown error means that the response is malformed. An
        # earlier error may be about a wrong argument.
        if reply.began or isinstance(error, ValueError | AttributeError | RecursionError):
            return malformed_error(self._who, error)
        return error

    @property
    def _idle(self) -> float:
        """The most seconds between two pieces. An answer that is not streamed is one piece."""
        return self.idle_timeout if self.stream else self.timeout

    @cached_property
    def _offline_client(self) -> AsyncAnthropic:
        """A client that never connects. It has the base URL and the key that the SDK finds in the
        arguments, the environment or a profile."""
        import httpx2

        nowhere = httpx2.AsyncClient(transport=httpx2.AsyncBaseTransport(), trust_env=False)
        return self._client(nowhere)

    def _client(self, http_client: Any) -> AsyncAnthropic:
        import httpx2
        from anthropic import AnthropicError, AsyncAnthropic

        try:
            client = AsyncAnthropic(
                api_key=self._api_key,
                base_url=self._base_url,
                timeout=httpx2.Timeout(self._idle, connect=self.connect_timeout),
                max_retries=0,  # bae retries itself and counts the tries
                default_headers=self._headers,
                http_client=http_client,
            )
        except AnthropicError as error:
            raise _no_key(self._who, error) from error
        has_credentials = {"authorization", "x-api-key"} & {name.lower() for name in self._headers}
        has_credentials = has_credentials or self._http_client or client.credentials
        if not (has_credentials or client.api_key or client.auth_token):
            raise _no_key(self._who, None)
        return client

    def _connect(self) -> AsyncAnthropic:
        from anthropic import DefaultAsyncHttpxClient

        if self._http_client is not None:
            return self._client(self._http_client)
        # Do not use the SDK's default client. If dropped unused, it starts a task to close itself.
        # After a redirect, it would send the prompt to another host.
        http_client = DefaultAsyncHttpxClient(follow_redirects=False)
        bound_responses(http_client, self._who, self.max_bytes)
        return self._client(http_client)

    async def _disconnect(self, client: AsyncAnthropic) -> None:
        if self._http_client is None:
            await client.close()

    def _request(self, prompt: Prompt) -> tuple[dict[str, Any], str | None]:
        """Return the request. If the schema goes into a tool, also return the tool's name,
        otherwise None."""
        body = dict(self.extra)
        if self.temperature is not None:
            body["temperature"] = self.temperature  # the SDK no longer has this argument
        output_config = cast(dict[str, Any], body.pop("output_config", {}))
        request: dict[str, Any] = {
            "model": self.model,
            "max_tokens": self.max_tokens,
            "messages": message_params(prompt, self.model, cache=self.cache),
        }
        cached: dict[str, Any] = {"cache_control": CACHED} if self.cache else {}
        if prompt.system:
            request["system"] = [{"type": "text", "text": prompt.system, **cached}]
        if _thinks_manually(body) and has_unsigned_calls(request["messages"]):
            # Another model of a `Fallback` made these calls without Claude's thinking, so the API
            # would refuse them while thinking is enabled.
            body["thinking"] = {"type": "disabled"}
        tools = tool_params(prompt.tools)
        if prompt.tools:
            request |= cached  # the API caches up to the end of the growing conversation
            if not prompt.may_call:
                request["tool_choice"] = {"type": "none"}
            container = container_in(prompt)
            if container is not None:
                request["container"] = container
        answer_tool = None
        schema = None if prompt.schema is None else self._schema_for_channel(prompt.schema)
        if schema is not None:
            output_config = {**output_config, "format": {"type": "json_schema", "schema": schema}}
        elif prompt.schema is not None:
            answer_tool = answer_tool_name(prompt)
            cache_mark = {} if prompt.tools else cached
            tools.append(
                {
                    "name": answer_tool,
                    "description": "Give your answer, the whole of it, to this tool.",
                    "input_schema": dict(prompt.schema),
                    **cache_mark,
                }
            )
            if not prompt.tools or not prompt.may_call:
                tool_choice = (
                    {"type": "tool", "name": answer_tool} if self._takes_force() else _FREE
                )
                request["tool_choice"] = {**tool_choice, "disable_parallel_tool_use": True}
        if tools:
            request["tools"] = tools
        if output_config:
            request["output_config"] = output_config
        if body:
            request["extra_body"] = body
        return request, answer_tool

    def _schema_for_channel(self, schema: Mapping[str, Any]) -> Schema | None:
        """Return the schema for structured output, or None if the schema goes into a tool."""
        if self.channel == "tool":
            return None
        try:
            return _convert_schema(json.dumps(schema), forced=self.channel == "schema")
        except Exception as error:
            raise BaeLMError(
                f"{self._who}: the channel for structured output does not take the schema: "
                f"{unfit(schema)}",
                code="bae-lm-request-refused",
                sent=False,
                cause=error,
                fix='leave out channel="schema"',
            ) from error

    def _takes_force(self) -> bool:
        """Whether the API can force the model to call a tool. Some models can never be forced, and
        no model can be forced while thinking. Such a model may answer in text instead. Then bae
        asks it again."""
        thinking = cast(dict[str, Any], self.extra.get("thinking") or {}).get("type", "disabled")
        return thinking == "disabled" and not self.model.startswith(_UNFORCED)


@lru_cache(maxsize=256)
def _convert_schema(schema: str, *, forced: bool) -> Schema | None:
    data = json.loads(schema)
    return for_claude(data) if forced or unfit(data) is None else None


def _thinks_manually(body: Mapping[str, Any]) -> bool:
    """Whether `thinking` is "enabled". Then the API requires that each message with tool calls
    begins with thinking."""
    return cast("dict[str, Any]", body.get("thinking") or {}).get("type") == "enabled"


def _no_key(who: str, cause: BaseException | None) -> BaeLMError:
    return BaeLMError(
        f"{who} has no key to ask with, or none that works",
        code="bae-lm-unauthorized",
        sent=False,
        cause=cause,
        fix="set the environment variable ANTHROPIC_API_KEY, or give AnthropicBackend(api_key=…)",
    )


def _without_secret_values(headers: Mapping[str, str]) -> dict[str, str | None]:
    """Return the headers by lower-case name. A secret header has the value None."""
    lower_headers = {name.lower(): value for name, value in headers.items()}
    return {
        header: None if is_secret_name(header, lower_headers[header]) else lower_headers[header]
        for header in sorted(lower_headers)
    }


_FREE: dict[str, str] = {"type": "auto"}
_UNFORCED = ("claude-fable-5-", "claude-mythos-5-", "claude-opus-5-5", "claude-sonnet-5-5")
_MOST_PAUSES = 20
"""How often bae continues a message that the provider has paused."""
