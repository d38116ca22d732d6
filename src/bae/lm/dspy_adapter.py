"""DSPy adapters that ask as bae does: the instruction and the known values as JSON, the schema of
the answer by the provider's channel for it, and an answer that is JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError, to_jsonable_python

from bae.exceptions import faults
from bae.lm.dspy_request import Request, options_of, text_of
from bae.lm.extras import load_dspy
from bae.lm.prompts import SYSTEM, text_of_answer
from bae.lm.schemas import fill_schema
from bae.lm.signatures import OWN, is_known, model_name, narrowed
from bae.node import Node

if TYPE_CHECKING:
    from bae.lm.backend import Prompt

_dspy = load_dspy("JSONSchemaAdapter")


class JSONSchemaAdapter(_dspy.Adapter):
    """Asks for the outputs of a signature as one JSON object, held to a schema. Set it with
    `dspy.configure(adapter=…)` to have optimizers ask as bae does.

    A question is that of any backend of bae: the instruction, and the inputs as JSON. The schema,
    with the descriptions of the outputs, goes by the channel for structured output, or in words
    where a model has none. Answers are read strictly: what is no JSON, or does not fit the types,
    raises `AdapterParseError`.
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
                response = each.send(lm)
            except _dspy.LMUnsupportedFeatureError:
                response = each.in_words().send(lm)
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
                response = await each.asend(lm)
            except _dspy.LMUnsupportedFeatureError:
                response = await each.in_words().asend(lm)
            answers.append(self._read(signature, response))
        return answers

    def format(
        self, signature: Any, demos: list[Any], inputs: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """The messages: the system prompt, the examples, and the question."""
        return _dspy.Adapter.format(self, signature, demos, inputs)

    def format_system_message(self, signature: Any) -> str:
        """The system prompt of all questions."""
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
        """The instruction for the model."""
        return signature.instructions

    def asked(self, signature: Any) -> Any:
        """The signature to ask by: for subclasses that do not ask for all of it."""
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
        """Take a response before it is read: for subclasses that keep it."""

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
    ) -> Iterator[Request]:
        messages = self.format(signature, demos, inputs)
        given = {**lm.kwargs, **lm_kwargs}
        control = {k: given[k] for k in ("cache", "rollout_id") if given.get(k) is not None}
        body = {**options_of(given), "model": lm.model, "messages": messages}
        own = {k: v for k, v in lm_kwargs.items() if k not in ("n", "num_generations")}
        asked = Request(body, self.schema(signature), given.get("prompt_cache"), control, own)
        for number in range(given.get("n") or given.get("num_generations") or 1):
            # A further answer to the same question is to be another one.
            yield asked if not number else replace(asked, control={**control, "cache": False})


class QuestionAdapter(JSONSchemaAdapter):
    """Asks one question of bae's through any DSPy predictor: for the wanted fields and no others,
    after the corrections of earlier answers. It keeps the responses. `optimized` is set for a
    predictor that has an instruction of its own, and not just the class name."""

    def __init__(self, prompt: Prompt) -> None:
        super().__init__()
        self.responses: list[Any] = []
        self.optimized = False
        self._instruction, self.said = _parts(prompt)
        self._prompt = prompt

    def inputs(self, signature: Any) -> dict[str, Any]:
        """The values for the inputs of a signature, by their names in it."""
        found: dict[str, Any] = {}
        source = {key: value for key, value in self.said.items() if key != "context"}
        resolved = self._prompt.question.resolved
        for name, field in signature.input_fields.items():
            known = model_name(name, field)
            if is_known(field):
                if source:
                    found[name] = source
            elif known in resolved:
                found[name] = resolved[known]
        return found

    def format(
        self, signature: Any, demos: list[Any], inputs: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """The messages, with the examples of the prompt before, and the wrong answers so far with
        their corrections after."""
        system, *asked = super().format(signature, demos, inputs)
        said = self._prompt.messages()
        question = 2 * len(self._prompt.examples)  # two messages for each
        return [system, *said[:question], *asked, *said[question + 1 :]]

    def format_system_message(self, signature: Any) -> str:
        """The system prompt of the question."""
        return self._prompt.system

    def instruction_of(self, signature: Any) -> str:
        """The instruction of the prompt, or that of a predictor which has its own."""
        return signature.instructions if self.optimized else self._instruction

    def asked(self, signature: Any) -> Any:
        """The signature without the fields that there is a valid answer for."""
        target, wanted = self._prompt.question.target, self._prompt.question.fields
        if target is None:
            return signature
        outputs = {n: model_name(n, f) for n, f in signature.output_fields.items()}
        done = {
            name
            for name, known in outputs.items()
            if known in target.__pydantic_fields__ and known not in wanted
        }
        return narrowed(signature, frozenset(signature.fields.keys() - done))

    def known(
        self, signature: Any, inputs: Mapping[str, Any], main_request: bool
    ) -> dict[str, Any]:
        """What is known, word for word as bae's own prompt has it."""
        if not main_request:
            return super().known(signature, inputs, main_request)
        resolved = self._prompt.question.resolved
        own: set[str] = set()
        others: dict[str, Any] = {}
        for name, value in inputs.items():
            field = signature.input_fields.get(name)
            known = model_name(name, field) if field is not None else name
            if known in resolved and resolved[known] is value:
                own.add(known)
            else:
                others[name] = value
        # The node the run comes from is shown even where a predictor has no input for it.
        found = {key: value for key, value in self.said.items() if key != "context"}
        found |= super().known(signature, others, main_request)
        shown: Mapping[str, Any] = self.said.get("context", {})
        context = {name: value for name, value in shown.items() if name in own}
        context |= found.pop("context", {})
        return {**found, "context": context} if context else found

    def schema(self, signature: Any) -> Mapping[str, Any]:
        """That of bae's own prompt, where it is for the same outputs."""
        own = self._prompt.schema
        outputs = {model_name(n, f) for n, f in signature.output_fields.items()}
        if self._prompt.question.target is None or outputs == own.get("properties", {}).keys():
            return own
        return super().schema(signature)

    def heard(self, response: Any) -> None:
        """Keep the response."""
        self.responses.append(response)


# Optimizers make a new signature for every change, and do not use old ones again.
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


def _parts(prompt: Prompt) -> tuple[str, dict[str, Any]]:
    """The instruction in a prompt, and what it says is known."""
    instruction = prompt.question.instruction or prompt.text.partition("\n\n")[0]
    said = prompt.text[len(instruction) :].strip()
    try:
        known: Any = json.loads(said or "{}")
    except ValueError:
        known = None
    if not isinstance(known, dict):  # a prompt that was made by hand
        return prompt.text, {}
    return instruction, cast(dict[str, Any], known)


def _jsonable(value: Any) -> Any:
    return to_jsonable_python(value, by_alias=False)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
