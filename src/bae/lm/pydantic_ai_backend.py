"""Any model that PydanticAI supports: one request a question, the schema in the provider's channel
for structured output. PydanticAI's own retries are off: bae judges the answers itself."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast
from weakref import WeakSet

from pydantic_core import to_jsonable_python

from bae.exceptions import BaeLMError
from bae.lm.backend import Answer, Backend, Prompt, check_positive
from bae.lm.extras import need
from bae.lm.http import (
    PerLoop,
    error_for,
    malformed_error,
    mask_error,
    remove_passwords,
    secrets_in,
    without_secrets,
)
from bae.lm.prices import cost_of
from bae.lm.provider_schemas import is_untyped, unfit, with_descriptions
from bae.lm.registry import OPENAI_MODEL
from bae.lm.responses import MAX_BYTES, bound_responses, responses_arrived
from bae.usage import Usage, read_amount, read_count, read_name

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

    - `model_settings`: what PydanticAI takes as such, as `{"temperature": 0, "max_tokens": 500}`.
    - `timeout`: seconds for a whole call.
    - `max_bytes`: the largest response that is read, after decompression, where PydanticAI has made
      the client. One of yours is not bounded.
    - `output`: how the schema is sent: "native" is the provider's channel for structured output,
      "tool" the arguments of a tool, "prompted" the prompt. "auto" is the first of them that the
      model has; Claude gets as a tool what its channel does not take.
    """

    def __init__(
        self,
        model: str | Model | None = None,
        *,
        model_settings: Mapping[str, Any] | None = None,
        timeout: float = 600.0,
        max_bytes: int = MAX_BYTES,
        output: Output = "auto",
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
        self.model_settings = dict(model_settings or {})
        self._given = model or f"openai:{OPENAI_MODEL}"
        self._bounded: WeakSet[Any] = WeakSet()
        self._unused: list[Model] = []
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

    @property
    def secrets(self) -> tuple[str, ...]:
        """The keys of the model, and of the settings."""
        return self._about.secrets

    def least_cost(self, usage: Usage) -> float | None:
        """What a request with this usage costs, by the prices of the model's provider."""
        return cost_of(self._about.name, usage, self._about.provider)

    async def aclose(self) -> None:
        """Close the connections of the running loop that PydanticAI opened; the next question
        opens new ones."""
        await self._models.aclose()

    async def answer(self, prompt: Prompt) -> Answer:
        """Send one request to the model."""
        from pydantic_ai.direct import model_request

        model = await (await self._models.get()).enter()
        token = responses_arrived.set([])
        try:
            response = await model_request(
                model,
                _conversation(prompt),
                model_settings=self._settings_for(model),
                model_request_parameters=self._parameters(model, prompt),
            )
            return _answer_in(response, self._who)
        except Exception as error:
            mask_error(error, self.secrets)
            failure = _error_for(self._who, error, self.timeout)
            if failure is error and responses_arrived.get() and not isinstance(error, BaeLMError):
                failure = malformed_error(self._who, error)
            if failure is error:
                raise
            raise failure from error
        finally:
            responses_arrived.reset(token)

    @cached_property
    def _about(self) -> _About:
        """What the first model says of itself, which is made for this."""
        made = self._make()
        self._unused.append(made)
        secrets = (*_keys_in(made), *secrets_in(self.model_settings))
        base_url = remove_passwords(_address(made) or "") or None
        return _About(made.model_name, made.system, base_url, secrets)

    @property
    def _who(self) -> str:
        return f"PydanticAIBackend({self.model!r})"

    def _make(self) -> Model:
        from pydantic_ai.models import infer_model

        if not isinstance(self._given, str):
            return self._given
        try:
            made = infer_model(self._given)
            client: Any = getattr(made, "client", None)
            if hasattr(client, "max_retries"):
                client.max_retries = 0  # as below, and without a copy of the client for each call
            return made
        except (ImportError, RuntimeError) as error:  # what PydanticAI raises is of the latter
            raise _no_such_model(self._given, error) from error

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

    def _settings_for(self, model: Model) -> Any:
        settings: dict[str, Any] = {"request_timeout": self.timeout}
        client: Any = getattr(model, "client", None)
        if getattr(client, "max_retries", None) != 0 and _takes_max_retries(model):
            settings["max_retries"] = 0  # asking again is for the layer above, which counts it
        return {**settings, **self.model_settings}

    def _parameters(self, model: Model, prompt: Prompt) -> Any:
        """The schema, for each way to send it: PydanticAI drops those that it does not take."""
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.output import OutputObjectDefinition
        from pydantic_ai.tools import ToolDefinition

        if prompt.schema is None:
            return ModelRequestParameters(output_mode="text")
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
            if native and not (claude and unfit(schema)):
                output = "native"
        if claude and output == "native":
            schema = with_descriptions(schema)
        # Whether a provider can be strict about the schema is found out from it, but for one thing.
        strict = False if is_untyped(schema) else None
        tool = ToolDefinition(
            name=prompt.name,
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
        )


class _About(NamedTuple):
    name: str
    provider: str
    base_url: str | None
    secrets: tuple[str, ...]


def _conversation(prompt: Prompt) -> list[ModelMessage]:
    from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

    return [
        ModelRequest([UserPromptPart(message.text)], instructions=prompt.system or None)
        if message.role == "user"
        else ModelResponse([TextPart(message.text)])
        for message in prompt.conversation
    ]


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


def _no_such_model(name: str, error: ImportError | RuntimeError) -> BaeLMError:
    """The error for a model that could not be made from its name."""
    from pydantic_ai.exceptions import UserError

    who = f"PydanticAIBackend({name!r})"
    match error:
        case UserError() if error.message.startswith("Unknown model"):
            return BaeLMError(
                f"{who}: PydanticAI knows no model of this name",
                code="bae-lm-not-found",
                cause=error,
                fix='give "provider:model", as "openai:gpt-5-mini"',
            )
        case ImportError():
            provider = name.partition(":")[0]
            return BaeLMError(
                f"{who} needs a package that is not installed",
                code="bae-lm-extra-missing",
                cause=error,
                fix=f"pip install 'pydantic-ai-slim[{provider}]'",
            )
        case _:
            named = re.search("`([A-Z][A-Z0-9_]+)`", str(error))
            variable = named[1] if named else "that it names"
            return BaeLMError(
                f"{who} has no key to ask with",
                code="bae-lm-unauthorized",
                cause=error,
                fix=f"set the environment variable {variable}",
            )


# --- what comes back --------------------------------------------------------------------------


def _answer_in(response: ModelResponse, who: str) -> Answer:
    from pydantic_ai.messages import TextPart, ToolCallPart

    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    for call in response.parts:
        if isinstance(call, ToolCallPart):
            # As the model wrote it, where that is known.
            given: Any = call.args
            text = given if isinstance(given, str) and given else json.dumps(given or {})
            break
    usage = _usage(response)
    match response.finish_reason:
        case "length":
            return Answer(text, usage, "cut-off")
        case "content_filter":
            details = response.provider_details or {}
            return Answer(text or str(details.get("refusal") or ""), usage, "refused")
        case "error":
            raise BaeLMError(
                f"{who} ended its answer with an error",
                code="bae-lm-unavailable",
                retryable=True,
                usage=usage,
                fix="ask again later; bae.lm.Retry(…) does so by itself",
            )
        case _:
            return Answer(text, usage)


def _usage(response: ModelResponse) -> Usage:
    used = response.usage
    model = read_name(response.model_name)
    usage = Usage(
        calls=1,
        input_tokens=read_count(used.input_tokens),
        output_tokens=read_count(used.output_tokens),
        cached_tokens=read_count(used.cache_read_tokens),
        cost=read_amount(used.cost),
        models=(model,) if model else (),
    )
    if usage.cost is not None or used.unmeasured_requests:
        return usage
    written = read_count(used.cache_write_tokens)
    cost = cost_of(model, usage, response.provider_name, cache_write_tokens=written)
    return replace(usage, cost=cost)


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


_NO_MATTER = frozenset({"timeout", "request_timeout", "max_retries"})
"""Model settings that change nothing about an answer."""
