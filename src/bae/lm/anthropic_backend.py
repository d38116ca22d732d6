"""Claude over Anthropic's own SDK: one request, streamed or whole, with the schema in the channel
for structured output where Claude can enforce it, and as a tool elsewhere."""

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
    """Claude, asked through the package `anthropic`. Have `ANTHROPIC_API_KEY` set, or give a key.

    - `max_tokens`: the longest answer, with the thinking that goes before it.
    - `temperature`: leave it out for models that take none, as the newer ones do.
    - `effort`: how much the model thinks and writes, as "low"; left out, the model decides.
    - `stream`: whether to read the answer as it is written. Observers of the run see the pieces,
      and a long answer is not taken for a stalled one.
    - `cache`: whether to have the constant part of the prompt cached by the provider, and all of a
      conversation with tools.
    - `timeout`: seconds for a whole call; `idle_timeout` for the time between two pieces of a
      streamed answer, and `connect_timeout` for the connection.
    - `channel`: how the schema is sent. "schema" is the channel for structured output, "tool" the
      input of a tool that the model is to use; "auto" takes the first where Claude can enforce the
      schema (`bae.lm.provider_schemas.unfit` says why not). Give "tool" for models without it.
    - `headers`: sent with every request. `extra`: put into the body of every request, as
      `{"thinking": {"type": "adaptive"}}`.
    - `max_bytes`: the largest response that is read, after decompression.
    - `http_client`: an `httpx2.AsyncClient` of yours. It stays open, and serves one event loop.
      What it reads is not bounded, and whether it follows redirects is up to you.

    Tools are native, and the schema goes beside them. `Native("web_search")`, `"web_fetch"` and
    `"code_execution"` are Anthropic's own; their options are those of the API.
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
        # Imported, and prices read, here, where waiting for it does no harm.
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
            _ = self._unconnected  # a missing key is found now, not in the middle of a run

    @property
    def settings(self) -> Mapping[str, Any]:
        """Everything but keys that changes answers: limits, channel, address and extra content."""
        return {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "channel": self.channel,
            "base_url": remove_passwords(str(self._unconnected.base_url)),
            "headers": _shown_headers(self._headers),
            "extra": without_secrets(self.extra),
        }

    @property
    def secrets(self) -> tuple[str, ...]:
        """The key, and the headers that are secrets."""
        client = self._unconnected
        return tuple(filter(None, (client.api_key, client.auth_token, *self._hidden)))

    def least_cost(self, usage: Usage) -> float | None:
        """What a request with this usage costs, by Anthropic's prices."""
        return cost_of(self.model, usage, "anthropic")

    async def aclose(self) -> None:
        """Close the connections of the running loop; the next question opens new ones."""
        await self._clients.aclose()

    async def answer(self, prompt: Prompt) -> Answer:
        """Send one request to Claude, and more where Claude pauses in the middle of its message, as
        it may while it runs tools of its own."""
        client = await self._clients.get()
        request, answer_tool = self._request(prompt)
        reply = ClaudeMessage(self.model, self.model, self.secrets, answer_tool)
        bound = asyncio.timeout(self.timeout)
        try:
            async with bound:
                await self._exchange(client, request, reply)
                while reply.is_paused:
                    if reply.pauses >= _MOST_PAUSES:
                        raise self._paused()
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
        """Send a request, and read the message that comes back."""
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
            reply.take_whole(message)
        if not reply.ended:
            raise EOFError("the stream ended before the answer did")

    @property
    def _who(self) -> str:
        return f"AnthropicBackend({self.model!r})"

    def _paused(self) -> BaeLMError:
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
        found = error_for(self._who, error, self._idle)
        if found is not error or isinstance(error, BaeLMError):
            return found
        # No JSON, or without the promised content; before that, it may be a wrong argument.
        if reply.began or isinstance(error, ValueError | AttributeError | RecursionError):
            return malformed_error(self._who, error)
        return error

    @property
    def _idle(self) -> float:
        """Seconds between two pieces; an answer that is not streamed comes in one."""
        return self.idle_timeout if self.stream else self.timeout

    @cached_property
    def _unconnected(self) -> AsyncAnthropic:
        """A client that is never connected. It finds the base URL and the key, which may also come
        from the environment or a profile."""
        import httpx2

        nowhere = httpx2.AsyncClient(transport=httpx2.AsyncBaseTransport(), trust_env=False)
        return self._client(nowhere)

    def _client(self, http_client: Any) -> AsyncAnthropic:
        import httpx2
        from anthropic import AnthropicError, AsyncAnthropic

        try:
            made = AsyncAnthropic(
                api_key=self._api_key,
                base_url=self._base_url,
                timeout=httpx2.Timeout(self._idle, connect=self.connect_timeout),
                max_retries=0,  # the layer above asks again, and counts it
                default_headers=self._headers,
                http_client=http_client,
            )
        except AnthropicError as error:
            raise _no_key(self._who, error) from error
        signed = {"authorization", "x-api-key"} & {name.lower() for name in self._headers}
        signed = signed or self._http_client or made.credentials
        if not (signed or made.api_key or made.auth_token):
            raise _no_key(self._who, None)
        return made

    def _connect(self) -> AsyncAnthropic:
        from anthropic import DefaultAsyncHttpxClient

        if self._http_client is not None:
            return self._client(self._http_client)
        # One of the SDK's own would start a task to close itself where it is dropped unused, and
        # follow redirects to other hosts with the prompt.
        made = DefaultAsyncHttpxClient(follow_redirects=False)
        bound_responses(made, self._who, self.max_bytes)
        return self._client(made)

    async def _disconnect(self, client: AsyncAnthropic) -> None:
        if self._http_client is None:
            await client.close()

    def _request(self, prompt: Prompt) -> tuple[dict[str, Any], str | None]:
        """The request, and the name of the tool that takes the answer where the channel for
        structured output does not take its schema."""
        body = dict(self.extra)
        if self.temperature is not None:
            body["temperature"] = self.temperature  # not among the SDK's own arguments any more
        configured = cast(dict[str, Any], body.pop("output_config", {}))
        request: dict[str, Any] = {
            "model": self.model,
            "max_tokens": self.max_tokens,
            "messages": message_params(prompt, self.model, cache=self.cache),
        }
        cached: dict[str, Any] = {"cache_control": CACHED} if self.cache else {}
        if prompt.system:
            request["system"] = [{"type": "text", "text": prompt.system, **cached}]
        if _thinks_manually(body) and has_unsigned_calls(request["messages"]):
            # The model of a `Fallback` that has made these calls has not thought as this one would.
            body["thinking"] = {"type": "disabled"}
        tools = tool_params(prompt.tools)
        if prompt.tools:
            request |= cached  # the API marks the end of the conversation, which grows
            if not prompt.may_call:
                request["tool_choice"] = {"type": "none"}
            container = container_in(prompt)
            if container is not None:
                request["container"] = container
        answer_tool = None
        schema = None if prompt.schema is None else self._fitting(prompt.schema)
        if schema is not None:
            configured = {**configured, "format": {"type": "json_schema", "schema": schema}}
        elif prompt.schema is not None:
            answer_tool = answer_tool_name(prompt)
            marked = {} if prompt.tools else cached
            tools.append(
                {
                    "name": answer_tool,
                    "description": "Give your answer, the whole of it, to this tool.",
                    "input_schema": dict(prompt.schema),
                    **marked,
                }
            )
            if not prompt.tools or not prompt.may_call:
                forced = {"type": "tool", "name": answer_tool} if self._takes_force() else _FREE
                request["tool_choice"] = {**forced, "disable_parallel_tool_use": True}
        if tools:
            request["tools"] = tools
        if configured:
            request["output_config"] = configured
        if body:
            request["extra_body"] = body
        return request, answer_tool

    def _fitting(self, schema: Mapping[str, Any]) -> Schema | None:
        """The schema for the channel for structured output, or None where a tool takes it."""
        if self.channel == "tool":
            return None
        try:
            return _fitted(json.dumps(schema), forced=self.channel == "schema")
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
        """Whether the model can be forced to use a tool: some never can, none while thinking. Those
        are asked to, and one that answers in text instead is asked again."""
        thinking = cast(dict[str, Any], self.extra.get("thinking") or {}).get("type", "disabled")
        return thinking == "disabled" and not self.model.startswith(_UNFORCED)


@lru_cache(maxsize=256)
def _fitted(schema: str, *, forced: bool) -> Schema | None:
    found = json.loads(schema)
    return for_claude(found) if forced or unfit(found) is None else None


def _thinks_manually(body: Mapping[str, Any]) -> bool:
    """Whether each message with calls has to begin with thinking."""
    return cast("dict[str, Any]", body.get("thinking") or {}).get("type") == "enabled"


def _no_key(who: str, cause: BaseException | None) -> BaeLMError:
    return BaeLMError(
        f"{who} has no key to ask with, or none that works",
        code="bae-lm-unauthorized",
        sent=False,
        cause=cause,
        fix="set the environment variable ANTHROPIC_API_KEY, or give AnthropicBackend(api_key=…)",
    )


def _shown_headers(given: Mapping[str, str]) -> dict[str, str | None]:
    """The headers of every request; of secret ones only the name."""
    sent = {name.lower(): value for name, value in given.items()}
    return {n: None if is_secret_name(n, sent[n]) else sent[n] for n in sorted(sent)}


_FREE: dict[str, str] = {"type": "auto"}
_UNFORCED = ("claude-fable-5-", "claude-mythos-5-", "claude-opus-5-5", "claude-sonnet-5-5")
_MOST_PAUSES = 20
"""How often a message is continued that the provider has paused."""
