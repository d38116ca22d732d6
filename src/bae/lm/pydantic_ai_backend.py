"""Any model that PydanticAI supports: one request a question, the schema in the provider's channel
for structured output. PydanticAI's own retries are off: bae judges the answers itself."""

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
from bae.lm.pydantic_ai_stream import TAGS, Tags, ToldParts, tell_thoughts, without_tags
from bae.lm.responses import MAX_BYTES, bound_responses, responses_arrived
from bae.usage import Usage, text_is_followed

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model

Output = Literal["auto", "native", "tool", "prompted"]


class PydanticAIBackend(Backend):
    """A model of PydanticAI: by its name, as "openai:gpt-5-mini", or one you have made. Without
    one it is that name, made on first use.

    Make one to reach a server of your own:
    `OpenAIChatModel("qwen", provider=OpenAIProvider(base_url="http://localhost:8000/v1"))`. Then
    the client in it is yours: give each event loop that runs at the same time its own backend, and
    make it with `max_retries=0`, or it is copied for every call.

    - `base_url`: the address of the provider. With "openai:MODEL" or "openai-chat:MODEL" it is a
      compatible server, which is asked by chat completions, without the key for OpenAI.
    - `api_key`: its key, where it is not in the environment variable that PydanticAI reads.
    - `model_settings`: what PydanticAI takes as such, as `{"temperature": 0, "max_tokens": 500}`.
    - `timeout`: seconds for a whole call.
    - `max_bytes`: the largest response that is read, after decompression, where PydanticAI has made
      the client. One of yours is not bounded.
    - `output`: how the schema is sent: "native" is the provider's channel for structured output,
      "tool" the arguments of a tool, "prompted" the prompt. "auto" is the first of them that the
      model has; Claude gets as a tool what its channel does not take.
    - `stream`: whether to read the answer as it is written. By default, where the run is observed
      and PydanticAI can stream the model.

    Tools are native where the model's profile says that it calls tools, and the schema goes beside
    them where the model takes both. `Native("web_search")`, `"web_fetch"` and `"code_execution"`
    are those of PydanticAI, with its options, where the model's profile has them.
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
                '"openai:gpt-5-mini", or a model of PydanticAI; a client goes into one: '
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
                "PydanticAIBackend takes base_url and api_key with the name of a model alone: give "
                "them to the provider of the model"
            )
        self._bounded: WeakSet[Any] = WeakSet()
        self._unused: list[Model] = []
        self._streams: bool | None = None
        """Whether the model streams; None as long as that is not known."""
        self.model = self._given if isinstance(self._given, str) else self._given.model_name
        if model is not None:
            # Made here, where waiting for the imports does no harm and a wrong name is seen at
            # once.
            self.least_cost(Usage())
        self._models = PerLoop(lambda: _InLoop(self._next(), self._bound), _InLoop.leave)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The model settings but for secrets and those on time, how the schema is sent, and to
        where."""
        given = {n: v for n, v in self.model_settings.items() if n not in _NO_MATTER}
        said = to_jsonable_python(without_secrets(given))
        return {"model_settings": said, "output": self.output, "base_url": self._about.base_url}

    def set_options(self, options: Mapping[str, str], shown: str, known: Sequence[str]) -> None:
        """Set model settings from the options in the name of an LM: `shown` is that name in errors,
        and `known` are the options that are no model settings."""
        self.model_settings |= read_settings(self._next_kept(), options, shown, known)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The keys of the model, and of the settings."""
        return self._about.secrets

    @property
    def calls_tools(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - read only
        """Whether the model has tool calls, by its profile."""
        return self._about.calls_tools

    @property
    def native_tools(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride] - read only
        """The tools that the model's provider runs, by its profile."""
        return self._about.native_tools

    @property
    def context_window(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride] - read only
        """How many tokens a request may have, by the model's profile."""
        return self._about.window

    @property
    def takes_files(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride] - read only
        """The kinds of files that the model's profile does not say it refuses."""
        return self._about.files

    @property
    def file_limits(self) -> FileLimits:  # pyright: ignore[reportIncompatibleVariableOverride] - read only
        """The limits of the model's provider."""
        return limits_of(self._about.provider, self._about.window)

    def least_cost(self, usage: Usage) -> float | None:
        """What a request with this usage costs, by the prices of the model's provider."""
        return cost_of(self._about.name, usage, self._about.provider)

    async def aclose(self) -> None:
        """Close the connections of the running loop that PydanticAI opened; the next question
        opens new ones."""
        await self._models.aclose()

    async def answer(self, prompt: Prompt) -> Answer:
        """Send one request to the model."""
        model = await (await self._models.get()).enter()
        answer_tool = answer_tool_name(prompt)
        # Which of several models answers next is not known: none gets the message of another.
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
            asked = partial(self._request, model, answer_tool, prompt, parameters, settings)
            response, before = await asked(messages)
            for _ in range(_MOST_PAUSES):  # as long as it runs tools of its own
                if response.state != "suspended":
                    break
                before += usage_of(response)
                more, refused = await asked([*messages, response])
                before += refused
                response = replace(more, parts=[*response.parts, *more.parts])
            options = {"has_tools": bool(prompt.tools)}
            answer = answer_in(response, self._who, answer_tool, echoed, **options)
            return replace(answer, usage=before + answer.usage) if before.calls else answer
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
                # The name has no address, and the provider has a default, such as Ollama's.
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
        """The response of a model, whose parts are told as they arrive where somebody follows them,
        and what was used before that. A model that is not known to stream is asked again without,
        where that may be why it refuses: to be followed makes no run fail."""
        from pydantic_ai.direct import model_request, model_request_stream

        options: dict[str, Any] = {"model_settings": settings}
        options["model_request_parameters"] = parameters
        is_wanted = text_is_followed.get() and self._streams is not False
        if not (is_wanted if self.stream is None else self.stream) or not _can_stream(model):
            response = await model_request(model, messages, **options)
            tell_thoughts(response, self.secrets)
            return response, Usage()
        tags = _tags_of(model)
        told = ToldParts(answer_tool, self.secrets, has_tools=bool(prompt.tools), tags=tags)
        try:
            async with model_request_stream(model, messages, **options) as stream:
                async for event in stream:
                    told.take(event)
                response = stream.get()
        except Exception as error:
            is_known = self.stream or self._streams
            if is_known or not told.is_empty or not _may_be_for_streaming(error):
                raise
            response = await model_request(model, messages, **options)
            tell_thoughts(response, self.secrets)
            self._streams = False
            return response, _ONE_REFUSED
        self._streams = True
        return replace(response, parts=without_tags(response.parts, tags)), Usage()

    @cached_property
    def _about(self) -> _About:
        """What the first model says of itself, which is made for this."""
        made = self._make()
        self._unused.append(made)
        secrets = (*_keys_in(made), *secrets_in(self.model_settings))
        base_url = remove_passwords(_address(made) or "") or None
        profiles = list(_profiles(made))
        kinds = [{each.kind for each in p.get("supported_native_tools", ())} for p in profiles]
        return _About(
            made.model_name,
            made.system,
            base_url,
            secrets,
            len(profiles) > 1,
            all(each.get("supports_tools", True) for each in profiles),
            frozenset(_NATIVES.intersection(*kinds)),
            made.context_window,
            frozenset(
                kind
                for kind in ("image", "document")
                if all(each.get(f"supports_{kind}_input", True) for each in profiles)
            ),
        )

    @property
    def _who(self) -> str:
        at = f", base_url={remove_passwords(self._base_url)!r}" if self._base_url else ""
        return f"PydanticAIBackend({self.model!r}{at})"

    def _make(self) -> Model:
        if not isinstance(self._given, str):
            return self._given
        made = make_model(self._given, self._base_url, self._api_key)
        client: Any = getattr(made, "client", None)
        if hasattr(client, "max_retries"):
            client.max_retries = 0  # as below, and without a copy of the client for each call
        return made

    def _next_kept(self) -> Model:
        """The model that is entered next, for a look at it."""
        if not self._unused:
            self._unused.append(self._make())
        return self._unused[-1]

    def _next(self) -> Model:
        try:
            return self._unused.pop()
        except IndexError:
            return self._make()

    def _bound(self, model: Model) -> None:
        for each in _every_model(model):
            client: Any = getattr(getattr(each, "_provider", None), "_own_http_client", None)
            if client is not None and client not in self._bounded:
                self._bounded.add(client)
                bound_responses(client, self._who, self.max_bytes)

    def _settings_for(self, model: Model, prompt: Prompt) -> Any:
        settings: dict[str, Any] = {"request_timeout": self.timeout}
        client: Any = getattr(model, "client", None)
        if getattr(client, "max_retries", None) != 0 and _takes_max_retries(model):
            settings["max_retries"] = 0  # asking again is for the layer above, which counts it
        settings |= self.model_settings
        if prompt.tools and not prompt.may_call:
            settings["tool_choice"] = "none"  # the tools stay declared
        return settings

    def _parameters(self, model: Model, prompt: Prompt, answer_tool: str) -> Any:
        """The schema, for each way to send it: PydanticAI drops those that it does not take."""
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.output import OutputObjectDefinition
        from pydantic_ai.tools import ToolDefinition

        tools: Any = {"function_tools": tool_definitions(prompt), "native_tools": _natives(prompt)}
        if prompt.schema is None:
            return ModelRequestParameters(output_mode="text", **tools)
        try:
            profile = cast(Mapping[str, Any], model.profile)
        except NotImplementedError:  # several models behind one have no profile in common
            profile = None
        claude = bool(profile and profile.get("anthropic_enforces_strict_schema_limits"))
        schema = dict(prompt.schema)
        output = self.output
        # Where there are several models behind one, each takes what it has.
        if output == "auto" and profile is not None:
            output = "tool" if profile.get("supports_tools", True) else "prompted"
            native = profile.get("supports_json_schema_output", False)
            if prompt.tools and profile.get("google_supports_tool_combination") is False:
                native = False
            if native and not (claude and unfit(schema)):
                output = "native"
        if claude and output == "native":
            schema = with_descriptions(schema)
        # Whether a provider can be strict about the schema is found out from it, but for one thing.
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
    name: str
    provider: str
    base_url: str | None
    secrets: tuple[str, ...]
    is_several: bool
    """Whether there are several models behind it."""
    calls_tools: bool
    native_tools: frozenset[str]
    window: int | None
    files: frozenset[str]


def _can_stream(model: Model) -> bool:
    """Whether PydanticAI can stream the answer of a model, and of those behind it."""
    unable: Any = import_module("pydantic_ai.models").Model.request_stream

    def streams(each: Any) -> bool:
        has_function = getattr(each, "stream_function", True) is not None
        return has_function and getattr(each.request_stream, "__func__", None) is not unable

    return all(map(streams, _every_model(model)))


def _may_be_for_streaming(error: Exception) -> bool:
    """Whether a request may have failed because the answer was to be streamed: the server refuses
    the request, as for a model that an account may not stream, or does not send a stream."""
    from pydantic_ai import exceptions as raised

    if isinstance(error, raised.ModelHTTPError):
        is_too_long = isinstance(error, raised.ModelContextWindowExceededError)
        return error.status_code in _NOT_STREAMED and not is_too_long
    return isinstance(error, raised.UnexpectedModelBehavior)


def _tags_of(model: Model) -> Tags:
    """The tags between which a model writes what it thinks."""
    try:
        return cast("Mapping[str, Any]", model.profile).get("thinking_tags", TAGS)
    except NotImplementedError:  # several models behind one
        return TAGS


def _profiles(model: Model) -> Iterator[Mapping[str, Any]]:
    """What is known of the models that may answer. Several models behind one have none in
    common."""
    inner = cast("Sequence[Model]", getattr(model, "models", ()))
    if inner:
        for each in inner:
            yield from _profiles(each)
    else:
        yield cast("Mapping[str, Any]", model.profile)


def _natives(prompt: Prompt) -> list[Any]:
    """The tools that the provider runs."""
    from pydantic_ai.native_tools import NATIVE_TOOL_TYPES

    made: list[Any] = []
    for tool in prompt.tools:
        if tool.native is not None:
            try:
                made.append(NATIVE_TOOL_TYPES[tool.name](**tool.native))
            except TypeError as error:
                raise BaeLMError(
                    f"Native({tool.name!r}) has options that PydanticAI does not take: {error}",
                    code="bae-lm-request-refused",
                    sent=False,
                    cause=error,
                    fix=f"give those of pydantic_ai.native_tools for {tool.name}",
                ) from error
    return made


def _thinks_manually(model: Model, settings: Mapping[str, Any]) -> bool:
    """Whether it is Claude, and each message with calls has to begin with thinking."""
    if model.system != "anthropic":
        return False
    thinking = settings.get("anthropic_thinking")
    if thinking is not None:
        return thinking.get("type") == "enabled"
    adapts = cast("Mapping[str, Any]", model.profile).get("anthropic_supports_adaptive_thinking")
    return bool(settings.get("thinking")) and not adapts


def _takes_max_retries(model: Model) -> bool:
    """Whether it has this setting; one that has not would warn."""
    return all("max_retries" not in each.unsupported_settings for each in _every_model(model))


def _every_model(model: Any) -> Iterator[Any]:
    """A model, and those that it wraps."""
    yield model
    for inner in (*getattr(model, "models", ()), getattr(model, "wrapped", None)):
        if inner is not None:
            yield from _every_model(inner)


def _keys_in(model: Model) -> Iterator[str]:
    for each in _every_model(model):
        client: Any = getattr(each, "client", None)
        for name in ("api_key", "auth_token"):
            key: Any = getattr(client, name, None)
            if isinstance(key, str):
                yield key


def _address(model: Model) -> str | None:
    try:
        return model.base_url
    except (AttributeError, RuntimeError):  # some have none to tell
        return None


class _InLoop:
    """A model in one event loop. When it is entered, PydanticAI replaces a client that was closed
    with another loop; leaving it closes the client that its provider has made, and none of the
    user's."""

    def __init__(self, model: Model, bound: Callable[[Model], None]) -> None:
        self.model = model
        self.bound = bound
        self.entered = False
        self.entering = asyncio.Lock()

    async def enter(self) -> Model:
        async with self.entering:
            if not self.entered:
                await self.model.__aenter__()
                self.bound(self.model)
                self.entered = True
        return self.model

    async def leave(self) -> None:
        if self.entered:
            self.entered = False
            await self.model.__aexit__(None, None, None)


def _error_for(who: str, error: Exception, timeout: float) -> Exception:
    """The error to raise in place of one PydanticAI raised; what is no failure of the call stays
    as it is."""
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
            found = error_for(who, error, timeout)
            # No money left is reported as too many requests, and waiting does not help.
            if isinstance(found, BaeLMError) and isinstance(error, raised.ModelQuotaExceededError):
                found.retryable = False
            return found


def _fix_for_server(error: BaeLMError, base_url: str, *, has_schema: bool) -> str | None:
    """What to do about an error of a server at an address of the caller's."""
    if error.status == 404 and urlsplit(base_url).path in ("", "/"):
        shown = remove_passwords(base_url).rstrip("/")
        return f"{error.fix}: most addresses end in /v1, as {shown}/v1"
    if error.status in (400, 422) and has_schema:
        return f"{error.fix}; a server without json_schema is asked with ?output=prompted or =tool"
    return error.fix


_NOT_STREAMED = frozenset({400, 405, 406, 415, 422, 501})
"""HTTP statuses of servers that do not stream, or do not know an option of a stream."""
_ONE_REFUSED = Usage(calls=1)
_MOST_PAUSES = 20
"""How often a message is continued that the provider has paused."""
_NATIVES = frozenset({"web_search", "web_fetch", "code_execution"})
"""The tools of providers that need no more than options."""
_NO_MATTER = frozenset({"timeout", "request_timeout", "max_retries"})
"""Model settings that change nothing about an answer."""
