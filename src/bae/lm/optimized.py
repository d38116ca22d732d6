"""A backend that fills nodes through predictors that an optimiser of DSPy made, and through fresh
ones where there are none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from bae.lm.backend import UNPARSED, Answer, Prompt
from bae.lm.dspy_backend import DSPyBackend
from bae.lm.dspy_package import load_dspy
from bae.lm.schemas import asked_fields
from bae.lm.signatures import model_name, narrowed
from bae.node import Node

if TYPE_CHECKING:
    from bae.lm.dspy_question import OneQuestion


class OptimizedLM(DSPyBackend):
    """A `DSPyBackend` with optimised predictors for some node classes.

    `optimized` maps a node class to its predictor, made by an optimiser from
    `dspy.Predict(node_to_signature(cls))`, or to any `dspy.Module` around such predictors. They
    are used as they are, with their instructions and examples, and given the inputs that they
    have. They are copied when this is made: change one, and make another of these. Where `lm` is
    given it is asked, and otherwise the LM that a predictor has of its own, or that of
    `dspy.settings`. The rest is as for `DSPyBackend`.
    """

    def __init__(
        self,
        optimized: Mapping[type[Node], Any],
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
        self._optimized = {cls: self._checked(cls, each) for cls, each in optimized.items()}
        self._states = {
            f"{cls.__module__}.{cls.__qualname__}": _state(each)
            for cls, each in self._optimized.items()
        }
        self._fills: Counter[str] = Counter()

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the LM is set to, and the instructions and examples of the predictors."""
        return {**super().settings, "optimized": self._states}

    def get_stats(self) -> dict[str, int]:
        """How many nodes were filled so far, `optimized` through an optimised predictor and
        `naive` through a fresh one. A fill counts once, however often it was asked again."""
        return {"optimized": self._fills["optimized"], "naive": self._fills["naive"]}

    async def answer(self, prompt: Prompt) -> Answer:
        """Send one request, through the optimised predictor where there is one."""
        answer = await super().answer(prompt)
        target = prompt.question.target
        if target is not None and not prompt.turns:
            self._fills["optimized" if target in self._optimized else "naive"] += 1
        return answer

    def _found(self, prompt: Prompt) -> Any:
        target = prompt.question.target
        return None if target is None else self._optimized.get(target)

    def _lm_for(self, prompt: Prompt) -> Any:
        found = self._found(prompt) if self._lm is None else None
        pinned = [each.lm for each in found.predictors() if each.lm] if found is not None else []
        return pinned[0] if pinned else super()._lm_for(prompt)

    async def _predict(self, prompt: Prompt, question: OneQuestion) -> Any:
        found = self._found(prompt)
        if found is None:
            return await super()._predict(prompt, question)
        question.optimised = True
        if isinstance(found, load_dspy("OptimizedLM").Predict):
            inputs = question.inputs(found.signature)
            given = frozenset({*inputs, *found.signature.output_fields})
            signature = question.asked(narrowed(found.signature, given))
            # A copy has a history of its own, which goes with it.
            await copy(found).acall(**inputs, signature=signature)
            return UNPARSED
        signatures = [each.signature for each in found.predictors()]
        inputs = {n: v for each in signatures for n, v in question.inputs(each).items()}
        prediction = await found.acall(**inputs)
        return {
            model_name(name, field): to_jsonable_python(prediction[name], by_alias=False)
            for each in signatures
            for name, field in each.output_fields.items()
            if name in prediction and model_name(name, field) in prompt.question.fields
        }

    def _checked(self, cls: Any, predictor: Any) -> Any:
        dspy = load_dspy("OptimizedLM")
        if not (isinstance(cls, type) and issubclass(cls, Node)):
            raise TypeError(f"OptimizedLM(optimized={{{cls!r}: …}}): give it by its node class")
        if not isinstance(predictor, dspy.Module):
            raise TypeError(
                f"OptimizedLM(optimized={{{cls.__name__}: {predictor!r}}}): give a dspy.Predict, "
                "or another dspy.Module"
            )
        if isinstance(predictor, dspy.Predict):
            outputs = {model_name(n, f) for n, f in predictor.signature.output_fields.items()}
            missing = [name for name in asked_fields(cls) if name not in outputs]
            if missing:
                raise ValueError(
                    f"the predictor for {cls.__name__} has no output {', '.join(missing)}: make "
                    f"it from node_to_signature({cls.__name__}), and optimise it again where the "
                    "class has changed since"
                )
        copied = predictor.deepcopy()
        for mine, given in zip(copied.predictors(), predictor.predictors(), strict=True):
            mine.lm = given.lm if self._lm is None else None
        return copied


def _state(predictor: Any) -> Any:
    """What of a predictor changes answers, as JSON."""
    found = [
        {
            "instruction": each.signature.instructions,
            "fields": [info.json_schema_extra["desc"] for info in each.signature.fields.values()],
            "examples": [dict(demo) for demo in each.demos],
            "config": each.config,
        }
        for each in predictor.predictors()
    ]
    return to_jsonable_python(found, fallback=str)
