"""A backend that uses the instructions and examples of optimized DSPy predictors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic_core import to_jsonable_python

from bae.lm.backend import Answer, Prompt
from bae.lm.dspy_backend import DSPyBackend
from bae.lm.extras import load_dspy
from bae.lm.policies.learned import LearnedPrompt, PromptExample, check_texts, with_prompt
from bae.lm.signatures import (
    answer_class,
    answered_outputs,
    check_outputs,
    dump_inputs,
    has_instruction,
    model_name,
)
from bae.node import Node
from bae.plan import plan_of
from bae.prompts.questions import choice_instruction
from bae.prompts.schemas import fill_schema
from bae.prompts.tools import is_round


class OptimizedLM(DSPyBackend):
    """A `DSPyBackend` with optimized predictors for some node classes.

    `optimized` maps a node class to a predictor that an optimizer made from
    `dspy.Predict(node_to_signature(cls))` or from `dspy.ChainOfThought` of that signature. It may
    also map the class to a `NodePredictor`, which has a predictor for the fill of the class and a
    predictor for the choice of its successor.

    Prompts get the instruction, the examples, the settings and the additional outputs of the
    predictor. The constructor copies them. After a change to a predictor, make another
    `OptimizedLM`.

    bae asks `lm`. If `lm` is None, bae asks the predictor's own LM, and if there is none, the LM of
    `dspy.settings`. The other arguments are those of `DSPyBackend`.
    """

    def __init__(
        self,
        optimized: Mapping[type[Node], Any] | None = None,
        lm: Any = None,
        max_retries: int = 1,
        *,
        timeout: float = 600.0,
        attempts: int | None = None,
        retries: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            lm, max_retries, timeout=timeout, attempts=attempts, retries=retries, **options
        )
        self.optimized = dict(optimized or {})
        self._fills: dict[type[Node], _Predictor] = {}
        self._choices: dict[type[Node], _Predictor] = {}
        for cls, predictor in self.optimized.items():
            self._add_predictor(cls, predictor)
        self._counts: Counter[str] = Counter()

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the LM, and the instructions and examples of the predictors."""
        learned = {"optimized": self._fills, "choices": self._choices}
        states = {
            part: {f"{cls.__module__}.{cls.__qualname__}": p.state for cls, p in by_class.items()}
            for part, by_class in learned.items()
        }
        return {**super().settings, **states}

    def get_stats(self) -> dict[str, int]:
        """Return how many nodes were filled with an optimized predictor (`optimized`), and without
        a predictor (`naive`). A choice with an optimized predictor counts as `optimized`.
        Corrections do not count."""
        return {"optimized": self._counts["optimized"], "naive": self._counts["naive"]}

    @property
    def stats(self) -> dict[str, int]:
        """The result of `get_stats()`."""
        return self.get_stats()

    async def answer(self, prompt: Prompt) -> Answer:
        """Send one request. If the question has a predictor, the request uses it."""
        predictor = self._predictor_for(prompt)
        if predictor is None:
            answer = await super().answer(prompt)
        else:
            lm = predictor.lm if self._lm is None and predictor.lm is not None else self.lm
            answer = await self._ask(predictor.apply_to(prompt), lm, predictor.config)
        if prompt.is_first:
            if predictor is not None:
                self._counts["optimized"] += 1
            elif prompt.question.target is not None:
                self._counts["naive"] += 1
        return answer

    def with_learned(self, prompt: Prompt) -> Prompt:
        """Return the prompt with the instruction, the examples and the additional outputs of its
        predictor."""
        predictor = self._predictor_for(prompt)
        return prompt if predictor is None else predictor.apply_to(prompt)

    def _predictor_for(self, prompt: Prompt) -> _Predictor | None:
        question = prompt.question
        if question.target is not None:
            return self._fills.get(question.target)
        # A body may ask for a choice with its own context. No predictor is optimized for that.
        if question.previous is None or question.context is not None:
            return None
        return self._choices.get(type(question.previous))

    def _add_predictor(self, cls: Any, predictor: Any) -> None:
        """Copy the optimized parts of a predictor. Of a `NodePredictor`, the parts that no
        optimizer changed are ignored."""
        if not (isinstance(cls, type) and issubclass(cls, Node)):
            raise TypeError(f"OptimizedLM(optimized={{{cls!r}: …}}): the key must be a node class")
        dspy = load_dspy("OptimizedLM")
        plan, missing = plan_of(cls, strict=True), object()
        fill, choice = (getattr(predictor, part, missing) for part in ("fill", "choice"))
        if isinstance(predictor, dspy.Predict | dspy.ChainOfThought):
            fill, choice = predictor, None
        elif not all(p is None or isinstance(p, dspy.Predict) for p in (fill, choice)):
            raise TypeError(
                f"OptimizedLM(optimized={{{cls.__name__}: {predictor!r}}}): give a dspy.Predict, a "
                "dspy.ChainOfThought or a NodePredictor"
            )
        if fill is predictor or (fill is not None and not _is_unchanged(fill, plan.instruction)):
            copied = self._fills[cls] = _Predictor.of(fill)
            check_texts(cls, copied.learned.examples)
            check_outputs(cls, copied.signature)
        if choice is not None and not _is_unchanged(choice, choice_instruction(plan.offered)):
            self._choices[cls] = _Predictor.of(choice)


@dataclass(frozen=True, slots=True)
class _Predictor:
    """The parts of a predictor that change answers."""

    learned: LearnedPrompt
    signature: Any
    config: Mapping[str, Any]
    lm: Any

    @classmethod
    def of(cls, predictor: Any) -> _Predictor:
        (inner,) = predictor.predictors()
        signature = inner.signature
        examples = tuple(
            PromptExample(dump_inputs(signature, demo), answered_outputs(signature, demo))
            for demo in map(dict, inner.demos)
        )
        learned = LearnedPrompt(signature.instructions, examples)
        return cls(learned, signature, dict(inner.config), inner.lm)

    @property
    def state(self) -> Any:
        """The learned prompt, the descriptions of the fields and the settings, as JSON values."""
        fields = [info.json_schema_extra["desc"] for info in self.signature.fields.values()]
        state = {"prompt": self.learned, "fields": fields, "config": self.config}
        return to_jsonable_python(state, fallback=str)

    def apply_to(self, prompt: Prompt) -> Prompt:
        """Return the prompt with the instruction, the examples, and the outputs that are no fields
        of the node, such as `reasoning`."""
        applied, question = with_prompt(prompt, self.learned), prompt.question
        if question.target is None or prompt.schema is None or is_round(prompt):
            return applied
        node_fields = question.target.__pydantic_fields__
        outputs = [model_name(name, f) for name, f in self.signature.output_fields.items()]
        if all(name in node_fields for name in outputs):
            return applied
        fields = tuple(
            name for name in outputs if name in question.fields or name not in node_fields
        )
        return replace(applied, schema=fill_schema(answer_class(self.signature), fields))


def _is_unchanged(predictor: Any, instruction: str) -> bool:
    """Whether no optimizer has changed the predictor."""
    return has_instruction(predictor.signature, instruction) and not (
        predictor.demos or predictor.config or predictor.lm
    )
