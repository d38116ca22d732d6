"""Any model that PydanticAI supports, asked through its agents: one request a question, the schema
in the provider's channel for structured output. PydanticAI's own retries are off: bae judges the
answers itself."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from pydantic_core import to_jsonable_python

from bae.exceptions import BaeLMError
from bae.lm.backend import Answer, Backend, Prompt
from bae.lm.extras import need
from bae.lm.http import PerLoop, without_password, without_secrets
from bae.lm.prices import cost_of
from bae.lm.provider_schemas import is_untyped, unfit, with_descriptions
from bae.lm.pydantic_ai_reply import answer_of, error_for, response_in
from bae.usage import Usage

if TYPE_CHECKING:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import Model, ModelRequestContext
    from pydantic_ai.profiles import ModelProfile

Output = Literal["auto", "native", "tool", "prompted"]


class PydanticAIBackend(Backend):
    """A model of PydanticAI: by its name, as "openai:gpt-5-mini", or one you have made.

    Make one to reach a server of your own:
    `OpenAIChatModel("qwen", provider=OpenAIProvider(base_url="http://localhost:8000/v1"))`. Then
    the client in it is yours: give each event loop that runs at the same time its own backend, and
    make it with `max_retries=0`, or it is copied for every call.

    - `model_settings`: what PydanticAI takes as such, as `{"temperature": 0, "max_tokens": 500}`.
    - `timeout`: seconds for a whole call.
    - `output`: how the schema is sent: "native" is the provider's channel for structured output,
      "tool" the arguments of a tool, "prompted" the prompt. "auto" is the first of them that the
      model has; Claude gets as a tool what its channel does not take.
    """

    def __init__(
        self,
        model: str | Model,
        *,
        model_settings: Mapping[str, Any] | None = None,
        timeout: float = 600.0,
        output: Output = "auto",
        attempts: int = 2,
        retries: int = 2,
        one_call: bool = True,
    ) -> None:
        super().__init__(attempts=attempts, retries=retries, one_call=one_call)
        if not timeout > 0:
            raise ValueError(f"PydanticAIBackend(timeout={timeout!r}): give a number of seconds")
        need("pydantic_ai", extra="pydantic-ai", by="PydanticAIBackend")
        models: Any = import_module("pydantic_ai.models")
        if not isinstance(model, (str, models.Model)):
            raise _not_a_model(model)
        self.timeout = timeout
        self.output: Output = output
        self.model_settings = dict(model_settings or {})
        self._given = model
        # Made here, where waiting for the imports does no harm and a wrong name is seen at once.
        made = self._make()
        self._unused = [made]
        self.model = model if isinstance(model, str) else made.model_name
        self._base_url = without_password(_address(made) or "") or None
        self._priced = made.model_name, made.system
        self.least_cost(Usage())
        self._models = PerLoop(self._next, _close)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The model settings but for secrets and those on time, how the schema is sent, and to
        where."""
        given = {n: v for n, v in self.model_settings.items() if n not in _NO_MATTER}
        said = to_jsonable_python(without_secrets(given))
        return {"model_settings": said, "output": self.output, "base_url": self._base_url}

    def least_cost(self, usage: Usage) -> float | None:
        """What a request with this usage costs, by the prices of the model's provider."""
        name, provider = self._priced
        return cost_of(name, usage, provider)

    async def aclose(self) -> None:
        """Close the connections of the running loop that PydanticAI opened; the next question
        opens new ones."""
        await self._models.aclose()

    async def answer(self, prompt: Prompt) -> Answer:
        """Send one request to the model."""
        from pydantic_ai import capture_run_messages
        from pydantic_ai.exceptions import UnexpectedModelBehavior

        model = await self._models.get()
        output = self._output_for(model, prompt)
        claude = output == "native" and _is_claude(model)
        agent = _agent(_text_of(prompt.schema), prompt.name, prompt.system, output, claude=claude)
        history, last = _conversation(prompt)
        with capture_run_messages() as messages:
            try:
                await agent.run(
                    last,
                    model=model,
                    message_history=history,
                    model_settings=self._settings_for(model),
                )
            except Exception as error:
                # An answer that it takes for wrong is there, and the layer above judges it.
                answered = response_in(messages[len(history) :]) is not None
                if not (answered and isinstance(error, UnexpectedModelBehavior)):
                    failure = error_for(self._who, error, self.timeout)
                    if failure is error:
                        raise
                    raise failure from error
        response = response_in(messages[len(history) :])
        assert response is not None
        return answer_of(response, self._who)

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

    def _settings_for(self, model: Model) -> Any:
        settings: dict[str, Any] = {"request_timeout": self.timeout}
        client: Any = getattr(model, "client", None)
        if getattr(client, "max_retries", None) != 0 and _takes_max_retries(model):
            settings["max_retries"] = 0  # asking again is for the layer above, which counts it
        return {**settings, **self.model_settings}

    def _output_for(self, model: Model, prompt: Prompt) -> Output:
        if self.output != "auto":
            return self.output
        profile = _profile(model)
        if profile is None:
            return "auto"  # several models behind one: each takes what it has
        native = profile.get("supports_json_schema_output", False)
        if native and not (_is_claude(model) and unfit(prompt.schema)):
            return "native"
        return "tool" if profile.get("supports_tools", True) else "prompted"


def _conversation(prompt: Prompt) -> tuple[list[ModelMessage], str]:
    """The messages so far, and the text of the last one."""
    from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

    *before, last = prompt.messages()
    history: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart(said["content"])])
        if said["role"] == "user"
        else ModelResponse(parts=[TextPart(said["content"])])
        for said in before
    ]
    return history, last["content"]


def _text_of(schema: Mapping[str, Any]) -> str:
    # Schemas are made once per class: the same object comes again and again.
    known = _texts.get(id(schema))
    if known is None or known[0] is not schema:
        if len(_texts) >= 256:
            _texts.clear()
        known = _texts[id(schema)] = schema, json.dumps(schema)
    return known[1]


_texts: dict[int, tuple[Mapping[str, Any], str]] = {}


@lru_cache(maxsize=256)
def _agent(
    schema: str, name: str, system: str, output: Output, *, claude: bool
) -> Agent[None, Any]:
    """The agent for questions with this schema. The model and its settings are given each time."""
    from pydantic_ai import Agent, NativeOutput, PromptedOutput, StructuredDict, ToolOutput
    from pydantic_ai.capabilities import Hooks

    found = json.loads(schema)
    asked = with_descriptions(found) if claude else found
    # A schema that refers to itself cannot be given by a type, and one with definitions would be
    # written out, so the type is any object at all then and the schema is put into the request.
    refers = "$defs" in asked
    anything = StructuredDict({"type": "object"} if refers else dict(asked), name=name)

    async def send_schema(ctx: Any, request: ModelRequestContext) -> ModelRequestContext:
        sent = request.model_request_parameters
        if sent.output_object is not None:
            sent = replace(sent, output_object=replace(sent.output_object, json_schema=asked))
        tools = [replace(tool, parameters_json_schema=asked) for tool in sent.output_tools]
        return replace(request, model_request_parameters=replace(sent, output_tools=tools))

    # Whether a provider can be strict about the schema is found out from it, but for one thing.
    strict = False if is_untyped(asked) else None
    kinds: dict[Output, Any] = {
        "auto": anything,
        "native": NativeOutput(anything, name=name, strict=strict),
        "tool": ToolOutput(anything, name=name, description=_TOOL, strict=strict),
        "prompted": PromptedOutput(anything, name=name),
    }
    return Agent(
        output_type=kinds[output],
        instructions=system or None,
        name="bae",
        retries=0,
        capabilities=[Hooks(before_model_request=send_schema)] if refers else [],
    )


def _takes_max_retries(model: Any) -> bool:
    """Whether it has this setting; one that has not would warn. Models may wrap others."""
    inner = [*getattr(model, "models", ()), *filter(None, [getattr(model, "wrapped", None)])]
    unsupported: frozenset[str] = model.unsupported_settings
    return "max_retries" not in unsupported and all(map(_takes_max_retries, inner))


def _is_claude(model: Model) -> bool:
    profile: Any = _profile(model) or {}
    return bool(profile.get("anthropic_enforces_strict_schema_limits", False))


def _profile(model: Model) -> ModelProfile | None:
    try:
        return model.profile
    except NotImplementedError:
        return None


def _address(model: Model) -> str | None:
    try:
        return model.base_url
    except (AttributeError, RuntimeError):  # some have none to tell
        return None


async def _close(model: Model) -> None:
    async with model:
        pass  # leaving it closes the client that its provider has made, and none of the user's


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


def _not_a_model(given: object) -> TypeError:
    """The error for what is neither the name of a model nor a model."""
    kind = type(given)
    made = "OpenAIChatModel(name, provider=OpenAIProvider(openai_client=client))"
    if kind.__module__.partition(".")[0] == "anthropic":
        made = "AnthropicModel(name, provider=AnthropicProvider(anthropic_client=client))"
    return TypeError(
        f"PydanticAIBackend({kind.__name__}): give the name of a model, as "
        f'"openai:gpt-5-mini", or a model of PydanticAI; a client goes into one: {made}'
    )


_NO_MATTER = frozenset({"timeout", "request_timeout", "max_retries"})
"""Model settings that change nothing about an answer."""

_TOOL = "Give your answer, the whole of it, to this tool."
