"""One question of bae's, asked through whichever DSPy predictor there is for it. `dspy_backend.py`
makes one for every request; the adapter it extends says how a question looks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from bae.lm.dspy_adapter import JSONSchemaAdapter
from bae.lm.signatures import is_known, model_name, narrowed

if TYPE_CHECKING:
    from bae.lm.backend import Prompt


class OneQuestion(JSONSchemaAdapter):
    """Asks for the fields that are asked for and no others, after what was wrong with earlier
    answers, and keeps the responses. A predictor that has instructions of its own, and not just the
    class name, is `optimised`."""

    def __init__(self, prompt: Prompt) -> None:
        super().__init__()
        self.responses: list[Any] = []
        self.optimised = False
        self._instruction, self.said = _parts(prompt)
        self._prompt = prompt

    def inputs(self, signature: Any) -> dict[str, Any]:
        """What there is for the inputs of a signature, by their names in it."""
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
        """The messages, with the examples of the prompt before, and the wrong answers so far, with
        what was wrong with them, after."""
        system, *asked = super().format(signature, demos, inputs)
        said = self._prompt.messages()
        question = 2 * len(self._prompt.examples)  # two messages for each
        return [system, *said[:question], *asked, *said[question + 1 :]]

    def format_system_message(self, signature: Any) -> str:
        """What the prompt begins with."""
        return self._prompt.system

    def instruction_of(self, signature: Any) -> str:
        """The instruction of the prompt, or that of a predictor which has its own."""
        return signature.instructions if self.optimised else self._instruction

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
