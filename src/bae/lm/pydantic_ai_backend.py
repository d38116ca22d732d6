"""A backend for PydanticAI's models. It sends one request for each question, with the schema in the
provider's channel for structured output. PydanticAI's own retries are off, because bae validates
the answers itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from importlib import import_module
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast
from urllib.parse import urlsplit
from weakref import WeakSet

from pydantic_core import to_jsonable_python

from bae.exceptions import BaeLMError
from bae.lm.backend import Answer, Backend, Prompt, check_positive
from bae.lm.extras import need
from bae.lm.file_limits import FileLimits, limits_of
from bae.lm.http import (
    PerLoop,
    error_for,
    malformed_error,
    mask_error,
    remove_passwords,
    secrets_in,
    without_secrets,
)
from bae.lm.kinds import OPENAI_MODEL
from bae.lm.prices import cost_of
from bae.lm.provider_schemas import answer_tool_name, is_untyped, unfit, with_descriptions
from bae.lm.pydantic_ai_messages import (
    answer_in,
    conversation,
    has_unsigned_calls,
    tool_definitions,
    usage_of,
)
from bae.lm.pydantic_ai_models import make_model, read_settings
from bae.lm.pydantic_ai_stream import TAGS, StreamedParts, Tags, tell_thoughts, without_tags
from bae.lm.responses import MAX_BYTES, bound_responses, responses_arrived
from bae.usage import Usage, text_is_followed

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model

Output = Literal["auto", "native", "tool", "prompted"]


class PydanticAIBackend(Backend):
    """Asks a model of PydanticAI: `PydanticAIBackend("openai:gpt-5-mini")`.

    `model` is PydanticAI's name for the model, or one of its model objects. The default is
    "openai:gpt-5-mini".

    Pass a model object to use your own client or server:
    `OpenAIChatModel("qwen", provider=OpenAIProvider(base_url="http://localhost:8000/v1"))`. If
    several event loops run at the same time, give each loop its own backend. Make the client with
    `max_retries=0`, or PydanticAI copies the client for every call.

    - `base_url`: the provider's address. With "openai:MODEL" or "openai-chat:MODEL", the address is
      a server with OpenAI's chat completions, and bae does not send your OpenAI key to it.
    - `api_key`: the key, if it is not in the environment variable that PydanticAI reads.
    - `model_settings`: PydanticAI's model settings, such as `{"temperature": 0, "max_tokens":
      500}`.
    - `timeout`: the most seconds for the whole call.
    - `max_bytes`: the largest response to read, after decompression. Your own client has no such
      bound.
    - `output`: how the schema is sent. "native" uses the provider's channel for structured output,
      "tool" the arguments of a tool, and "prompted" a text in the prompt. "auto" uses the first of
      these three ways that the model supports. If Claude's channel cannot enforce the schema,
      "auto" uses "tool".
    - `stream`: whether to read the answer while the model writes it. By default, bae streams if
      the run has an observer and PydanticAI can stream the model.

    If the model's profile supports tools, tool calls are native. If the model accepts tools and a
    schema together, bae sends both. `Native("web_search")`, `Native("web_fetch")` and
    `Native("code_execution")` are PydanticAI's native tools and take PydanticAI's options. The
    model's profile must support them.
    """

    def __init__(
        self,
        model: str | Model | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        model_settings: Mapping[str, Any] | None = None,
        timeout: float = 600.0,
        max_bytes: int = MAX_BYTES,
        output: Output = "auto",
        stream: bool | None = None,
        attempts: int = 2,
        retries: int = 2,
        one_call: bool = True,
    ) -> None:
        super().__init__(attempts=attempts, retries=retries, one_call=one_call)
        check_positive(self, timeout=timeout, max_bytes=max_bytes)
        need("pydantic_ai", extra="pydantic-ai", by="PydanticAIBackend")
        models: Any = import_module("pydantic_ai.models")
        if not isinstance(model, (str, models.Model, NoneType)):
            raise TypeError(
                f"PydanticAIBackend({type(model).__name__}): give the name of a model, as "
                '"openai:gpt-5-mini", or a model of PydanticAI. A model can use your client: '
                "OpenAIChatModel(name, provider=OpenAIProvider(openai_client=client))"
            )
        self.timeout = timeout
        self.max_bytes = max_bytes
        self.output: Output = output
        self.stream = stream
        self.model_settings = dict(model_settings or {})
        self._given = model or f"openai:{OPENAI_MODEL}"
        self._base_url = base_url
        self._api_key = api_key
        if not isinstance(self._given, str) and (base_url or api_key):
            raise TypeError(
                "PydanticAIBackend takes base_url and api_key only with the name of a model: give "
                "them to the provider of the model object"
            )
        self._bounded: WeakSet[Any] = WeakSet()
        """The HTTP clients whose responses are bounded already."""
        self._unused: list[Model] = []
        """Models that no event loop uses yet."""
        self._streams: bool | None = None
        """Whether the model's server streams. None until a request has shown it."""
        self.model = self._given if isinstance(self._given, str) else self._given.model_name
        if model is not None:
            # This makes the model, so that the first request does not wait for imports and a wrong
            # name fails here.
            self.least_cost(Usage())
        self._models = PerLoop(lambda: _InLoop(self._take_model(), self._bound), _InLoop.leave)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that change answers, without secrets: the model settings, `output` and the
        address."""
        settings = {n: v for n, v in self.model_settings.items() if n not in _NO_EFFECT_ON_ANSWERS}
        shown = to_jsonable_python(without_secrets(settings))
        return {"model_settings": shown, "output": self.output, "base_url": self._about.base_url}

    def set_options(self, options: Mapping[str, str], shown: str, known: Sequence[str]) -> None:
        """Set model settings from the options in an LM's name. Error messages use `shown` for the
        name, and list `known`, the options that are not model settings."""
        self.model_settings |= read_settings(self._peek_model(), options, shown, known)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The keys that the model sends, and the keys in the model settings."""
        return self._about.secrets

    @property
    def calls_tools(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - read only
        """Whether the model calls tools natively, according to its profile."""
        return self._about.calls_tools

    @property
    def native_tools(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride] - read only
        """The tools that the provider runs, according to the model's profile."""
        return self._about.native_tools

    @property
    def context_window(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride] - read only
        """The most tokens that a request may have, according to PydanticAI. None if unknown."""
        return self._about.window

    @property
    def takes_files(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride] - read only
        """The kinds of files that the model takes: all kinds that its profile does not rule out."""
        return self._about.files

    @property
    def file_limits(self) -> FileLimits:  # pyright: ignore[reportIncompatibleVariableOverride] - read only
        """The limits of the model's provider on the files of a request."""
        return limits_of(self._about.provider, self._about.window)

    def least_cost(self, usage: Usage) -> float | None:
        """Return the cost of a request with this usage, by the prices of the model's provider. None
        if unknown."""
        return cost_of(self._about.name, usage, self._about.provider)

    async def aclose(self) -> None:
        """Close the connections that PydanticAI opened in the running event loop. The next question
        opens new ones."""
        await self._models.aclose()

    async def answer(self, prompt: Prompt) -> Answer:
        """Send one request to the model."""
        model = await (await self._models.get()).enter()
        answer_tool = answer_tool_name(prompt)
        # An echo belongs to one model. With several models, any of them may answer, so there is no
        # echo.
        echoed = None if self._about.is_several else f"{self._about.provider}:{self._about.name}"
        messages = conversation(prompt, echoed or "", answer_tool)
        token = responses_arrived.set([])
        try:
            parameters = self._parameters(model, prompt, answer_tool)
            if prompt.tools:
                messages = model.prepare_messages(messages, parameters)
            settings = self._settings_for(model, prompt)
            if prompt.tools and _thinks_manually(model, settings) and has_unsigned_calls(messages):
                settings["anthropic_thinking"] = {"type": "disabled"}
            request = partial(self._request, model, answer_tool, prompt, parameters, settings)
            response, earlier = await request(messages)
            for _ in range(_MOST_PAUSES):  # a provider may pause while it runs its own tools
                if response.state != "suspended":
                    break
                earlier += usage_of(response)
                more, refused = await request([*messages, response])
                earlier += refused
                response = replace(more, parts=[*response.parts, *more.parts])
            options = {"has_tools": bool(prompt.tools)}
            answer = answer_in(response, self._who, answer_tool, echoed, **options)
            return replace(answer, usage=earlier + answer.usage) if earlier.calls else answer
        except Exception as error:
            mask_error(error, self.secrets)
            failure = _error_for(self._who, error, self.timeout)
            if failure is error and responses_arrived.get() and not isinstance(error, BaeLMError):
                failure = malformed_error(self._who, error)
            if failure is error:
                raise
            if self._base_url and isinstance(failure, BaeLMError):
                failure.fix = _fix_for_server(
                    failure, self._base_url, has_schema=bool(prompt.schema)
                )
            elif isinstance(failure, BaeLMError) and failure.code == "bae-lm-unreachable":
                # The address is a default, such as Ollama's, so the user may not know it.
                failure.fix = f"{failure.fix}. The address is {self._about.base_url}"
            raise failure from error
        finally:
            responses_arrived.reset(token)

    async def _request(
        self,
        model: Model,
        answer_tool: str,
        prompt: Prompt,
        parameters: Any,
        settings: Any,
        messages: Sequence[ModelMessage],
    ) -> tuple[ModelResponse, Usage]:
        """Request a response, and stream its parts to observers.

        If the model may have refused the request because of streaming, ask again without streaming.
        So an observer cannot make a run fail. Return the response, and the usage of such a refused
        request.
        """
        from pydantic_ai.direct import model_request, model_request_stream

        options: dict[str, Any] = {"model_settings": settings}
        options["model_request_parameters"] = parameters
        is_observed = text_is_followed.get() and self._streams is not False
        if not (is_observed if self.stream is None else self.stream) or not _can_stream(model):
            response = await model_request(model, messages, **options)
            tell_thoughts(response, self.secrets)
            return response, Usage()
        tags = _tags_of(model)
        parts = StreamedParts(answer_tool, self.secrets, has_tools=bool(prompt.tools), tags=tags)
        try:
            async with model_request_stream(model, messages, **options) as stream:
                async for event in stream:
                    parts.take(event)
                response = stream.get()
        except Exception as error:
            is_known = self.stream or self._streams
            if is_known or not parts.is_empty or not _may_be_for_streaming(error):
                raise
            response = await model_request(model, messages, **options)
            tell_thoughts(response, self.secrets)
            self._streams = False
            return response, _ONE_REFUSED
        self._streams = True
        return replace(response, parts=without_tags(response.parts, tags)), Usage()

    @cached_property
    def _about(self) -> _About:
        """What bae knows about the model. The first access makes a model, which a request then
        uses."""
        model = self._make()
        self._unused.append(model)
        secrets = (*_keys_in(model), *secrets_in(self.model_settings))
        base_url = remove_passwords(_address(model) or "") or None
        profiles = list(_profiles(model))
        kinds = [{tool.kind for tool in p.get("supported_native_tools", ())} for p in profiles]
        return _About(
            model.model_name,
            model.system,
            base_url,
            secrets,
            len(profiles) > 1,
            all(profile.get("supports_tools", True) for profile in profiles),
            frozenset(_NATIVES.intersection(*kinds)),
            model.context_window,
            frozenset(
                kind
                for kind in ("image", "document")
                if all(profile.get(f"supports_{kind}_input", True) for profile in profiles)
            ),
        )

    @property
    def _who(self) -> str:
        at = f", base_url={remove_passwords(self._base_url)!r}" if self._base_url else ""
        return f"PydanticAIBackend({self.model!r}{at})"

    def _make(self) -> Model:
        if not isinstance(self._given, str):
            return self._given
        model = make_model(self._given, self._base_url, self._api_key)
        client: Any = getattr(model, "client", None)
        if hasattr(client, "max_retries"):
            # Now `_settings_for` need not set it, which would copy the client for every call.
            client.max_retries = 0
        return model

    def _peek_model(self) -> Model:
        """Return the model that the next event loop will use. It stays unused."""
        if not self._unused:
            self._unused.append(self._make())
        return self._unused[-1]

    def _take_model(self) -> Model:
        """Return an unused model for an event loop, or make one."""
        try:
            return self._unused.pop()
        except IndexError:
            return self._make()

    def _bound(self, model: Model) -> None:
        for inner in _every_model(model):
            client: Any = getattr(getattr(inner, "_provider", None), "_own_http_client", None)
            if client is not None and client not in self._bounded:
                self._bounded.add(client)
                bound_responses(client, self._who, self.max_bytes)

    def _settings_for(self, model: Model, prompt: Prompt) -> Any:
        settings: dict[str, Any] = {"request_timeout": self.timeout}
        client: Any = getattr(model, "client", None)
        if getattr(client, "max_retries", None) != 0 and _takes_max_retries(model):
            settings["max_retries"] = 0  # bae retries itself, and counts the tries
        settings |= self.model_settings
        if prompt.tools and not prompt.may_call:
            settings["tool_choice"] = "none"  # the tools stay declared
        return settings

    def _parameters(self, model: Model, prompt: Prompt, answer_tool: str) -> Any:
        """Return the tools and the schema in the form of PydanticAI. PydanticAI picks the way to
        send the schema, so the schema is there for each way."""
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.output import OutputObjectDefinition
        from pydantic_ai.tools import ToolDefinition

        tools: Any = {"function_tools": tool_definitions(prompt), "native_tools": _natives(prompt)}
        if prompt.schema is None:
            return ModelRequestParameters(output_mode="text", **tools)
        try:
            profile = cast(Mapping[str, Any], model.profile)
        except NotImplementedError:  # a wrapper of several models has no profile
            profile = None
        claude = bool(profile and profile.get("anthropic_enforces_strict_schema_limits"))
        schema = dict(prompt.schema)
        output = self.output
        # With several models (no profile), "auto" lets each model use the way that it supports.
        if output == "auto" and profile is not None:
            output = "tool" if profile.get("supports_tools", True) else "prompted"
            native = profile.get("supports_json_schema_output", False)
            if prompt.tools and profile.get("google_supports_tool_combination") is False:
                native = False
            if native and not (claude and unfit(schema)):
                output = "native"
        if claude and output == "native":
            schema = with_descriptions(schema)
        # With None, PydanticAI finds out whether the schema can be strict, but it overlooks untyped
        # values.
        strict = False if is_untyped(schema) else None
        tool = ToolDefinition(
            name=answer_tool,
            parameters_json_schema=schema,
            description="Give your answer, the whole of it, to this tool.",
            strict=strict,
            kind="output",
        )
        return ModelRequestParameters(
            output_mode=output,
            output_object=OutputObjectDefinition(schema, prompt.name, strict=strict),
            output_tools=[tool],
            allow_text_output=output != "tool",
            **tools,
        )


class _About(NamedTuple):
    """Facts about a model of PydanticAI."""

    name: str
    provider: str
    base_url: str | None
    secrets: tuple[str, ...]
    is_several: bool
    """Whether the model wraps several models."""
    calls_tools: bool
    native_tools: frozenset[str]
    window: int | None
    files: frozenset[str]


def _can_stream(model: Model) -> bool:
    """Return whether PydanticAI can stream the answers of a model and of all models inside it."""
    base_method: Any = import_module("pydantic_ai.models").Model.request_stream

    def streams(inner: Any) -> bool:
        has_function = getattr(inner, "stream_function", True) is not None
        return has_function and getattr(inner.request_stream, "__func__", None) is not base_method

    return all(map(streams, _every_model(model)))


def _may_be_for_streaming(error: Exception) -> bool:
    """Return whether a request may have failed because it asked for a stream. For example, the
    account may not be allowed to stream this model, or the server cannot stream."""
    from pydantic_ai import exceptions as raised

    if isinstance(error, raised.ModelHTTPError):
        is_too_long = isinstance(error, raised.ModelContextWindowExceededError)
        return error.status_code in _NOT_STREAMED and not is_too_long
    return isinstance(error, raised.UnexpectedModelBehavior)


def _tags_of(model: Model) -> Tags:
    """Return the tags that a model writes around its thoughts."""
    try:
        return cast("Mapping[str, Any]", model.profile).get("thinking_tags", TAGS)
    except NotImplementedError:  # a wrapper of several models has no profile
        return TAGS


def _profiles(model: Model) -> Iterator[Mapping[str, Any]]:
    """Yield the profiles of all models that may answer. A wrapper of several models has no profile
    itself."""
    inner = cast("Sequence[Model]", getattr(model, "models", ()))
    if inner:
        for model in inner:
            yield from _profiles(model)
    else:
        yield cast("Mapping[str, Any]", model.profile)


def _natives(prompt: Prompt) -> list[Any]:
    """Return the tools that the provider runs, in the form of PydanticAI."""
    from pydantic_ai.native_tools import NATIVE_TOOL_TYPES

    natives: list[Any] = []
    for tool in prompt.tools:
        if tool.native is not None:
            try:
                natives.append(NATIVE_TOOL_TYPES[tool.name](**tool.native))
            except TypeError as error:
                raise BaeLMError(
                    f"Native({tool.name!r}) has options that PydanticAI does not take: {error}",
                    code="bae-lm-request-refused",
                    sent=False,
                    cause=error,
                    fix=f"give the options that pydantic_ai.native_tools has for {tool.name}",
                ) from error
    return natives


def _thinks_manually(model: Model, settings: Mapping[str, Any]) -> bool:
    """Return whether the settings enable Claude's thinking with a fixed budget instead of adaptive
    thinking. Claude then requires thinking at the start of each message with calls."""
    if model.system != "anthropic":
        return False
    thinking = settings.get("anthropic_thinking")
    if thinking is not None:
        return thinking.get("type") == "enabled"
    adapts = cast("Mapping[str, Any]", model.profile).get("anthropic_supports_adaptive_thinking")
    return bool(settings.get("thinking")) and not adapts


def _takes_max_retries(model: Model) -> bool:
    """Return whether all models support the setting `max_retries`. A model that does not support it
    would warn."""
    return all("max_retries" not in inner.unsupported_settings for inner in _every_model(model))


def _every_model(model: Any) -> Iterator[Any]:
    """Yield a model and all models inside it."""
    yield model
    for inner in (*getattr(model, "models", ()), getattr(model, "wrapped", None)):
        if inner is not None:
            yield from _every_model(inner)


def _keys_in(model: Model) -> Iterator[str]:
    for inner in _every_model(model):
        client: Any = getattr(inner, "client", None)
        for name in ("api_key", "auth_token"):
            key: Any = getattr(client, name, None)
            if isinstance(key, str):
                yield key


def _address(model: Model) -> str | None:
    try:
        return model.base_url
    except (AttributeError, RuntimeError):  # some models have no address
        return None


class _InLoop:
    """A model in one event loop."""

    def __init__(self, model: Model, bound: Callable[[Model], None]) -> None:
        self.model = model
        self.bound = bound
        self.entered = False
        self.entering = asyncio.Lock()

    async def enter(self) -> Model:
        """Return the model. On the first call, PydanticAI replaces a client that another loop has
        closed."""
        async with self.entering:
            if not self.entered:
                await self.model.__aenter__()
                self.bound(self.model)
                self.entered = True
        return self.model

    async def leave(self) -> None:
        """Close the client if the provider made it. The user's own client stays open."""
        if self.entered:
            self.entered = False
            await self.model.__aexit__(None, None, None)


def _error_for(who: str, error: Exception, timeout: float) -> Exception:
    """Return the error to raise instead of an error from PydanticAI. An error that is not about the
    call is returned unchanged."""
    from pydantic_ai import exceptions as raised

    match error:
        case raised.FallbackExceptionGroup():
            return _error_for(who, error.exceptions[-1], timeout)
        case raised.UserError():
            return BaeLMError(
                f"{who} could not be asked: {error.message}",
                code="bae-lm-request-refused",
                sent=False,
                cause=error,
                fix="check output=… and model_settings=…, and what the model can do",
            )
        case _:
            failure = error_for(who, error, timeout)
            # Providers report a used-up quota as too many requests, but waiting does not help.
            is_quota = isinstance(error, raised.ModelQuotaExceededError)
            if isinstance(failure, BaeLMError) and is_quota:
                failure.retryable = False
            return failure


def _fix_for_server(error: BaeLMError, base_url: str, *, has_schema: bool) -> str | None:
    """Return the fix for an error of a server whose address is in `base_url`."""
    if error.status == 404 and urlsplit(base_url).path in ("", "/"):
        shown = remove_passwords(base_url).rstrip("/")
        return f"{error.fix}: most addresses end in /v1, as {shown}/v1"
    if error.status in (400, 422) and has_schema:
        return (
            f"{error.fix}; if the server does not support json_schema, add ?output=prompted or "
            "?output=tool to the name"
        )
    return error.fix


_NOT_STREAMED = frozenset({400, 405, 406, 415, 422, 501})
"""HTTP statuses of servers that cannot stream, or that do not know an option for streams."""
_ONE_REFUSED = Usage(calls=1)
"""The usage of a request that was refused because of streaming."""
_MOST_PAUSES = 20
"""How often bae continues a message that the provider has paused."""
_NATIVES = frozenset({"web_search", "web_fetch", "code_execution"})
"""The provider tools that need nothing but options."""
_NO_EFFECT_ON_ANSWERS = frozenset({"timeout", "request_timeout", "max_retries"})
"""Model settings that do not change answers."""
