"""Claude over Anthropic's own SDK: one request, streamed or whole, with the schema in the channel
for structured output where Claude can enforce it, and as a tool elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal, cast

from bae.exceptions import BaeLMError
from bae.lm.backend import Answer, Backend, Prompt, check_positive
from bae.lm.extras import need
from bae.lm.http import (
    PerLoop,
    error_for,
    is_secret_name,
    malformed_error,
    mask,
    mask_error,
    remove_passwords,
    secrets_in,
    timeout_error,
    without_secrets,
)
from bae.lm.prices import cost_of
from bae.lm.provider_schemas import Schema, for_claude, unfit
from bae.lm.responses import MAX_BYTES, bound_responses
from bae.usage import Usage, read_count, read_name, tell

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic, AsyncStream
    from anthropic.types import RawMessageStreamEvent

Channel = Literal["auto", "schema", "tool"]

MODEL = "claude-sonnet-5-5"


class AnthropicBackend(Backend):
    """Claude, asked through the package `anthropic`. Have `ANTHROPIC_API_KEY` set, or give a key.

    - `max_tokens`: the longest answer, with the thinking that goes before it.
    - `temperature`: leave it out for models that take none, as the newer ones do.
    - `stream`: whether to read the answer as it is written. Observers of the run see the pieces,
      and a long answer is not taken for a stalled one.
    - `cache`: whether to have the constant part of the prompt cached by the provider.
    - `timeout`: seconds for a whole call; `idle_timeout` for the time between two pieces of a
      streamed answer, and `connect_timeout` for the connection.
    - `channel`: how the schema is sent. "schema" is the channel for structured output, "tool" the
      input of a tool that the model is to use; "auto" takes the first where Claude can enforce the
      schema (`bae.lm.provider_schemas.unfit` says why not). Give "tool" for models without it.
    - `headers`: sent with every request. `extra`: put into the body of every request, as
      `{"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}`.
    - `max_bytes`: the largest response that is read, after decompression.
    - `http_client`: an `httpx2.AsyncClient` of yours. It stays open, and serves one event loop.
      What it reads is not bounded, and whether it follows redirects is up to you.
    """

    def __init__(
        self,
        model: str = MODEL,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        max_tokens: int = 16_384,
        temperature: float | None = None,
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
        self.temperature = temperature
        self.stream = stream
        self.cache = cache
        self.timeout = timeout
        self.idle_timeout = idle_timeout
        self.connect_timeout = connect_timeout
        self.channel: Channel = channel
        self.max_bytes = max_bytes
        self.extra = dict(extra or {})
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
        """Send one request to Claude."""
        client = await self._clients.get()
        request = self._request(prompt)
        reply = _Reply(self.model, self.secrets)
        bound = asyncio.timeout(self.timeout)
        try:
            async with bound:
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
            return reply.answer()
        except Exception as error:
            mask_error(error, self.secrets)
            failure = self._failure(error, bound, reply)
            if isinstance(failure, BaeLMError):
                failure.usage = reply.used()
            if failure is error:
                raise
            raise failure from error

    @property
    def _who(self) -> str:
        return f"AnthropicBackend({self.model!r})"

    def _failure(self, error: Exception, bound: asyncio.Timeout, reply: _Reply) -> Exception:
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

    def _request(self, prompt: Prompt) -> dict[str, Any]:
        body = dict(self.extra)
        if self.temperature is not None:
            body["temperature"] = self.temperature  # not among the SDK's own arguments any more
        configured = cast(dict[str, Any], body.pop("output_config", {}))
        request: dict[str, Any] = {
            "model": self.model,
            "max_tokens": self.max_tokens,
            "messages": self._messages(prompt),
        }
        cached: dict[str, Any] = {"cache_control": {"type": "ephemeral"}} if self.cache else {}
        if prompt.system:
            request["system"] = [{"type": "text", "text": prompt.system, **cached}]
        schema = None if prompt.schema is None else self._fitting(prompt.schema)
        if schema is not None:
            configured = {**configured, "format": {"type": "json_schema", "schema": schema}}
        elif prompt.schema is not None:
            request["tools"] = [
                {
                    "name": prompt.name,
                    "description": "Give your answer, the whole of it, to this tool.",
                    "input_schema": dict(prompt.schema),
                    **cached,
                }
            ]
            forced = {"type": "tool", "name": prompt.name} if self._takes_force() else _FREE
            request["tool_choice"] = {**forced, "disable_parallel_tool_use": True}
        if configured:
            request["output_config"] = configured
        if body:
            request["extra_body"] = body
        return request

    def _messages(self, prompt: Prompt) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = [*prompt.messages()]
        shown = sum(message.kind == "example" for message in prompt.conversation)
        if self.cache and shown:
            # Up to here, all prompts of this kind are the same.
            last = messages[shown - 1]
            text = {"type": "text", "text": last["content"]}
            last["content"] = [{**text, "cache_control": {"type": "ephemeral"}}]
        return messages

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


# --- what comes back --------------------------------------------------------------------------


@dataclass(slots=True)
class _Reply:
    """A message of Claude as it comes in: its text, the input of its tool, and why it ended."""

    model: str
    secrets: tuple[str, ...] = ()
    text: list[str] = field(default_factory=list[str])
    tool_input: list[str] | None = None
    reason: str | None = None
    explained: str = ""
    counts: dict[str, int] = field(default_factory=dict[str, int])
    began: bool = False
    ended: bool = False

    def take(self, event: RawMessageStreamEvent) -> None:
        """Take a piece of a stream. Thinking is left out."""
        match event.type:
            case "message_start":
                self.model = read_name(event.message.model) or self.model
                self._count(event.message.usage)
            case "content_block_start":
                self._begin(event.content_block)
            case "content_block_delta" if event.delta.type == "text_delta":
                self._add(self.text, event.delta.text)
            case "content_block_delta" if event.delta.type == "input_json_delta":
                if self.tool_input is not None:
                    self._add(self.tool_input, event.delta.partial_json)
            case "message_delta":
                self._stop(event.delta)
                self._count(event.usage)
            case "message_stop":
                self.ended = True
            case _:
                pass

    def take_whole(self, message: Any) -> None:
        """Take a message that was not streamed."""
        if message.content is None:
            raise ValueError("a message without content")
        self.model = read_name(message.model) or self.model
        self._count(message.usage)
        for block in message.content:
            self._begin(block)
        self._stop(message)
        self.ended = True

    def used(self) -> Usage | None:
        """What a message that broke off has used, as far as is known; None where nothing is."""
        return replace(self._usage(), cost=None) if self.counts else None

    def answer(self) -> Answer:
        """The answer of a message that has ended."""
        usage = self._usage()
        # A tool that is given nothing at all is streamed as no text.
        given = None if self.tool_input is None else "".join(self.tool_input) or "{}"
        text = "".join(self.text) if given is None else given
        if self.reason in ("max_tokens", "model_context_window_exceeded"):
            return Answer(text, usage, "cut-off")
        if self.reason == "refusal":
            return Answer("".join(self.text) or self.explained, usage, "refused")
        return Answer(text, usage)

    def _begin(self, block: Any) -> None:
        if block.type == "text":
            self._add(self.text, block.text)
        elif block.type == "tool_use" and self.tool_input is None:
            self.tool_input = []
            self._add(self.tool_input, json.dumps(block.input) if block.input else "")

    def _add(self, to: list[str], piece: str) -> None:
        if piece:
            to.append(piece)
            tell(mask(piece, self.secrets))

    def _stop(self, said: Any) -> None:
        self.reason = said.stop_reason
        details = getattr(said, "stop_details", None)
        self.explained = (details.explanation if details is not None else None) or ""

    def _count(self, usage: Any) -> None:
        """Take the token counts so far; those at the end of a stream are of the whole."""
        for name in _COUNTED:
            found = getattr(usage, name, None)
            if found is not None:
                self.counts[name] = read_count(found)

    def _usage(self) -> Usage:
        fresh, output, read, written = (self.counts.get(name, 0) for name in _COUNTED)
        usage = Usage(
            calls=1,
            input_tokens=fresh + read + written,
            output_tokens=output,
            cached_tokens=read,
            models=(self.model,),
        )
        cost = cost_of(self.model, usage, "anthropic", cache_write_tokens=written)
        return replace(usage, cost=cost)


_FREE: dict[str, str] = {"type": "auto"}
_UNFORCED = ("claude-fable-5-", "claude-mythos-5-", "claude-opus-5-5", "claude-sonnet-5-5")
_COUNTED = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)
