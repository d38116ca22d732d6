"""A backend that fills nodes, and chooses among them, with what optimizers of DSPy made: the
instructions and the examples of predictors."""

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
    check_outputs,
    known_inputs,
    model_name,
    said_outputs,
    says,
)
from bae.node import Node
from bae.plan import plan_of
from bae.prompts.questions import choice_instruction
from bae.prompts.schemas import fill_schema
from bae.prompts.tools import is_round


class OptimizedLM(DSPyBackend):
    """A `DSPyBackend` with optimized predictors for some node classes.

    `optimized` maps a node class to its predictor, made by an optimizer from
    `dspy.Predict(node_to_signature(cls))` or the `dspy.ChainOfThought` of it, or to a
    `NodePredictor`, which has one for the fill of the class and one for the choice of its
    successor. A node is asked for with the instruction, the examples, the settings and the further
    outputs of its predictor. These are copied when this is made: change a predictor, and make
    another of these. Where `lm` is given it is asked, and otherwise the LM that a predictor has of
    its own, or that of `dspy.settings`. The rest is as for `DSPyBackend`.
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
        for cls, each in self.optimized.items():
            self._take(cls, each)
        self._asked: Counter[str] = Counter()

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the LM is set to, and the instructions and examples of the predictors."""
        learned = {"optimized": self._fills, "choices": self._choices}
        states = {
            part: {f"{cls.__module__}.{cls.__qualname__}": p.state for cls, p in found.items()}
            for part, found in learned.items()
        }
        return {**super().settings, **states}

    def get_stats(self) -> dict[str, int]:
        """How many nodes were filled so far, `optimized` through an optimized predictor and
        `naive` without; a choice through an optimized predictor counts too. Each counts once,
        however often it was asked again."""
        return {"optimized": self._asked["optimized"], "naive": self._asked["naive"]}

    @property
    def stats(self) -> dict[str, int]:
        """`get_stats()`."""
        return self.get_stats()

    async def answer(self, prompt: Prompt) -> Answer:
        """Send one request, with what was learned for it where there is something."""
        found = self._predictor_for(prompt)
        if found is None:
            answer = await super().answer(prompt)
        else:
            lm = found.lm if self._lm is None and found.lm is not None else self.lm
            answer = await self._ask(found.applied_to(prompt), lm, found.config)
        if prompt.is_first:
            if found is not None:
                self._asked["optimized"] += 1
            elif prompt.question.target is not None:
                self._asked["naive"] += 1
        return answer

    def with_learned(self, prompt: Prompt) -> Prompt:
        """The prompt with the instruction and the examples of the predictor for it."""
        found = self._predictor_for(prompt)
        return prompt if found is None else found.applied_to(prompt)

    def _predictor_for(self, prompt: Prompt) -> _Predictor | None:
        question = prompt.question
        if question.target is not None:
            return self._fills.get(question.target)
        # A choice that a body offers in a context of its own is not the one that was learned.
        if question.previous is None or question.context is not None:
            return None
        return self._choices.get(type(question.previous))

    def _take(self, cls: Any, predictor: Any) -> None:
        """Keep what there is of a predictor; the fresh part of one asks as if it were not there."""
        if not (isinstance(cls, type) and issubclass(cls, Node)):
            raise TypeError(f"OptimizedLM(optimized={{{cls!r}: …}}): give it by its node class")
        dspy = load_dspy("OptimizedLM")
        plan, missing = plan_of(cls, strict=True), object()
        fill, choice = (getattr(predictor, part, missing) for part in ("fill", "choice"))
        if isinstance(predictor, dspy.Predict | dspy.ChainOfThought):
            fill, choice = predictor, None
        elif not all(each is None or isinstance(each, dspy.Predict) for each in (fill, choice)):
            raise TypeError(
                f"OptimizedLM(optimized={{{cls.__name__}: {predictor!r}}}): give a dspy.Predict, a "
                "dspy.ChainOfThought or a NodePredictor"
            )
        if fill is predictor or (fill is not None and not _is_fresh(fill, plan.instruction)):
            found = self._fills[cls] = _Predictor.of(fill)
            check_texts(cls, found.learned.examples)
            check_outputs(cls, found.signature)
        if choice is not None and not _is_fresh(choice, choice_instruction(plan.offered)):
            self._choices[cls] = _Predictor.of(choice)


@dataclass(frozen=True, slots=True)
class _Predictor:
    """What of a predictor changes answers."""

    learned: LearnedPrompt
    signature: Any
    config: Mapping[str, Any]
    lm: Any

    @classmethod
    def of(cls, predictor: Any) -> _Predictor:
        (found,) = predictor.predictors()
        signature = found.signature
        examples = tuple(
            PromptExample(known_inputs(signature, demo), said_outputs(signature, demo))
            for demo in map(dict, found.demos)
        )
        learned = LearnedPrompt(signature.instructions, examples)
        return cls(learned, signature, dict(found.config), found.lm)

    @property
    def state(self) -> Any:
        """What changes answers, as JSON."""
        fields = [info.json_schema_extra["desc"] for info in self.signature.fields.values()]
        state = {"prompt": self.learned, "fields": fields, "config": self.config}
        return to_jsonable_python(state, fallback=str)

    def applied_to(self, prompt: Prompt) -> Prompt:
        """The prompt with the instruction and the examples; and for outputs that are no fields of
        the node too, such as a reasoning."""
        applied, question = with_prompt(prompt, self.learned), prompt.question
        if question.target is None or prompt.schema is None or is_round(prompt):
            return applied
        own = question.target.__pydantic_fields__
        outputs = [model_name(name, f) for name, f in self.signature.output_fields.items()]
        if all(name in own for name in outputs):
            return applied
        asked = tuple(name for name in outputs if name in question.fields or name not in own)
        return replace(applied, schema=fill_schema(answer_class(self.signature), asked))


def _is_fresh(predictor: Any, instruction: str) -> bool:
    """Whether it asks as it would without an optimizer."""
    return says(predictor.signature, instruction) and not (
        predictor.demos or predictor.config or predictor.lm
    )
