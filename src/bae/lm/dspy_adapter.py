"""A DSPy adapter that asks as bae does: the instruction and what is known as JSON, the schema of
the answer by the provider's channel for it, and an answer that is JSON. `dspy_backend.py` asks by
it; set it with `dspy.configure(adapter=…)` to have optimisers ask the same way."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, cast

from pydantic import ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError, to_jsonable_python

from bae.exceptions import faults
from bae.lm.dspy_messages import by_messages
from bae.lm.dspy_package import load_dspy
from bae.lm.dspy_schemas import channel
from bae.lm.prompts import SYSTEM, text_of_answer
from bae.lm.schemas import fill_schema
from bae.lm.signatures import OWN, is_known, model_name
from bae.node import Node

_dspy = load_dspy("JSONSchemaAdapter")


class JSONSchemaAdapter(_dspy.Adapter):
    """Asks for the outputs of a signature as one JSON object, held to a schema.

    What a question says is what any backend of bae says: the instruction, and the inputs as JSON.
    The schema, with the descriptions of the outputs, goes by the channel for structured output,
    which keeps weak and local models to it; where a model has no such channel, in words. Answers
    are read strictly: what is no JSON, or does not fit the types, raises `AdapterParseError`.
    """

    def __init__(self, callbacks: list[Any] | None = None) -> None:
        _dspy.Adapter.__init__(self, callbacks=callbacks)

    def __call__(
        self,
        lm: Any,
        lm_kwargs: dict[str, Any],
        signature: Any,
        demos: list[Any],
        inputs: dict[str, Any],
    ) -> list[dict[str, Any]]:
        """Ask, and read the answer."""
        signature = self.asked(signature)
        answers: list[dict[str, Any]] = []
        for each in self._requests(lm, lm_kwargs, signature, demos, inputs):
            try:
                response = each.ask(lm)
            except _dspy.LMUnsupportedFeatureError:
                response = each.in_words().ask(lm)
            answers.append(self._read(signature, response))
        return answers

    async def acall(
        self,
        lm: Any,
        lm_kwargs: dict[str, Any],
        signature: Any,
        demos: list[Any],
        inputs: dict[str, Any],
    ) -> list[dict[str, Any]]:
        """Ask, and read the answer."""
        signature = self.asked(signature)
        answers: list[dict[str, Any]] = []
        for each in self._requests(lm, lm_kwargs, signature, demos, inputs):
            try:
                response = await each.aask(lm)
            except _dspy.LMUnsupportedFeatureError:
                response = await each.in_words().aask(lm)
            answers.append(self._read(signature, response))
        return answers

    def format(
        self, signature: Any, demos: list[Any], inputs: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """The messages: what all begin with, the examples, and the question."""
        return _dspy.Adapter.format(self, signature, demos, inputs)

    def format_system_message(self, signature: Any) -> str:
        """What all questions begin with."""
        return SYSTEM

    def format_user_message_content(
        self,
        signature: Any,
        inputs: dict[str, Any],
        prefix: str = "",
        suffix: str = "",
        main_request: bool = False,
    ) -> str:
        """The instruction, and the inputs as JSON."""
        known = self.known(signature, inputs, main_request)
        said = [self.instruction_of(signature), _json(known) if known else "", prefix, suffix]
        return "\n\n".join(part for part in said if part)

    def format_assistant_message_content(
        self, signature: Any, outputs: dict[str, Any], missing_field_message: str | None = None
    ) -> str:
        """An answer as the model is to give it: the outputs that are there, as JSON."""
        fields = signature.output_fields
        given = {n: f for n, f in fields.items() if outputs.get(n) is not None}
        return text_of_answer({model_name(n, f): _jsonable(outputs[n]) for n, f in given.items()})

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        """The outputs in an answer, as their types have them."""
        try:
            made = answer_class(signature).model_validate_json(completion)
        except ValidationError as error:
            raise _dspy.AdapterParseError(
                adapter_name=type(self).__name__,
                signature=signature,
                lm_response=completion,
                message="; ".join(faults(error)),
            ) from error
        return {n: getattr(made, model_name(n, f)) for n, f in signature.output_fields.items()}

    def instruction_of(self, signature: Any) -> str:
        """What the model is told to make."""
        return signature.instructions

    def asked(self, signature: Any) -> Any:
        """The signature to ask by, for those that do not ask for all of it."""
        return signature

    def known(
        self, signature: Any, inputs: Mapping[str, Any], main_request: bool
    ) -> dict[str, Any]:
        """The inputs as JSON values; one that JSON cannot say is not for the model."""
        known: dict[str, Any] = {}
        context: dict[str, Any] = {}
        for name, field in signature.input_fields.items():
            if name not in inputs:
                continue
            try:
                value = _jsonable(inputs[name])
            except PydanticSerializationError:
                continue
            if is_known(field) and isinstance(value, dict):
                known |= cast(dict[str, Any], value)
            else:
                context[model_name(name, field)] = value
        return {**known, "context": context} if context else known

    def schema(self, signature: Any) -> Mapping[str, Any]:
        """The JSON schema of the outputs."""
        cls = answer_class(signature)
        return fill_schema(cls, tuple(cls.__pydantic_fields__))

    def heard(self, response: Any) -> None:
        """Be told of a response before it is read, for those that keep it."""

    def _read(self, signature: Any, response: Any) -> dict[str, Any]:
        self.heard(response)
        return self.parse(signature, text_of(response))

    def _requests(
        self,
        lm: Any,
        lm_kwargs: Mapping[str, Any],
        signature: Any,
        demos: list[Any],
        inputs: dict[str, Any],
    ) -> Iterator[_Asked]:
        messages = self.format(signature, demos, inputs)
        given = {**lm.kwargs, **lm_kwargs}
        control = {k: given[k] for k in ("cache", "rollout_id") if given.get(k) is not None}
        body = {**options_of(given), "model": lm.model, "messages": messages}
        own = {k: v for k, v in lm_kwargs.items() if k not in ("n", "num_generations")}
        asked = _Asked(body, self.schema(signature), given.get("prompt_cache"), control, own)
        for number in range(given.get("n") or given.get("num_generations") or 1):
            # A further answer to the same question is to be another one.
            yield asked if not number else replace(asked, control={**control, "cache": False})


def options_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of an LM's settings that are part of a request."""
    return {k: v for k, v in settings.items() if k not in _NOT_SENT and v is not None}


def text_of(response: Any) -> str:
    """What a response says, without thoughts and refusals."""
    said: list[str] = []
    for part in response.message.parts:
        if part.type == "text":
            said.append(part.text)
        elif part.type == "data":  # JSON that was parsed on the way
            said.append(_json(part.value))
        elif part.type == "tool_call":
            return _json(part.input)
    return "".join(said)


def refusal_of(response: Any) -> str:
    """What a response says about why there is no answer, if it is a refusal."""
    said = [part.text for part in response.message.parts if part.type == "refusal"]
    if not said:
        # LiteLLM puts it where dspy does not look.
        match response.provider_data:
            case {"choices": [{"message": {"provider_specific_fields": {"refusal": str(told)}}}]}:
                said.append(told)
            case _:
                pass
    return "\n".join(said)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question to a model, by the channel for its schema or in words. `own` is what it is asked
    with, where the settings of the LM itself are not enough."""

    body: Mapping[str, Any]
    schema: Mapping[str, Any]
    prompt_cache: Any
    control: Mapping[str, Any]
    own: Mapping[str, Any]
    by_channel: bool = True

    def ask(self, lm: Any) -> Any:
        request = self._request()
        if request is not None:
            return lm(request, **self.control)
        with by_messages(lm, self.body["messages"]) as asked:
            asked.lm(messages=asked.messages, **self._by_messages())
        return asked.response

    async def aask(self, lm: Any) -> Any:
        request = self._request()
        if request is not None:
            return await lm.acall(request, **self.control)
        with by_messages(lm, self.body["messages"]) as asked:
            await asked.lm.acall(messages=asked.messages, **self._by_messages())
        return asked.response

    def in_words(self) -> _Asked:
        system, *rest = self.body["messages"]
        told = f"{system['content']}\n\nThe schema: {_json(self.schema)}"
        body = {**self.body, "messages": [{**system, "content": told}, *rest]}
        return replace(self, body=body, by_channel=False)

    def _request(self) -> Any:
        """None where something that the LM is set to has no place in a request."""
        try:
            request = _dspy.lm15.request_from_openai_chat({**self.body, **self._channel()})
        except _dspy.lm15.UnsupportedFeatureError:
            return None
        if self.prompt_cache is None:
            return request
        return replace(request, config=replace(request.config, cache=self.prompt_cache))

    def _by_messages(self) -> dict[str, Any]:
        return {**self.own, **self.control, **self._channel()}

    def _channel(self) -> dict[str, Any]:
        return channel(self.body["model"], self.schema) if self.by_channel else {}


# Signatures are made anew by whoever changes them, and old ones are not asked by again.
@lru_cache(maxsize=1024)
def answer_class(signature: Any) -> type[Node]:
    """The outputs of a signature as a class, by the names a model knows them by."""
    fields: dict[str, Any] = {}
    for name, info in signature.output_fields.items():
        kind: Any = str if info.annotation is _dspy.Reasoning else info.annotation
        about: dict[str, Any] = {
            "default": info.default,
            "default_factory": info.default_factory,
            "examples": info.examples,
            "discriminator": info.discriminator,
        }
        extra = cast(dict[str, Any], info.json_schema_extra)
        if extra["desc"] != f"${{{name}}}":  # what dspy puts where nothing is said
            about["description"] = extra["desc"]
        about["json_schema_extra"] = {k: v for k, v in extra.items() if k not in OWN} or None
        typed = Annotated[(kind, *info.metadata)] if info.metadata else kind
        fields[model_name(name, info)] = typed, FieldInfo(**about)
    title = "Answer" if signature.__name__ == "StringSignature" else signature.__name__
    return create_model(title, __base__=Node, __module__=__name__, **fields)


def _jsonable(value: Any) -> Any:
    return to_jsonable_python(value, by_alias=False)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_NOT_SENT = frozenset(
    {
        "api_base", "api_key", "api_version", "azure_ad_token_provider", "base_url", "cache",
        "custom_llm_provider", "extra_headers", "extra_query", "headers", "n", "num_generations",
        "organization", "project", "prompt_cache", "rollout_id", "timeout",
    }
)  # fmt: skip
"""Settings of an LM that are for the connection, or for dspy, and no part of a request."""
