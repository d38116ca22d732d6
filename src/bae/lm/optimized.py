"""A backend that fills nodes, and chooses among them, through predictors that an optimizer of DSPy
made, and through fresh ones where there are none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from bae.lm.backend import UNPARSED, Answer, Prompt
from bae.lm.dspy_backend import DSPyBackend
from bae.lm.extras import load_dspy
from bae.lm.prompts import choice_instruction, names_of
from bae.lm.schemas import asked_fields
from bae.lm.signatures import model_name, narrowed
from bae.node import Node
from bae.plan import plan_of

if TYPE_CHECKING:
    from bae.lm.dspy_adapter import QuestionAdapter


class OptimizedLM(DSPyBackend):
    """A `DSPyBackend` with optimized predictors for some node classes.

    `optimized` maps a node class to its predictor, made by an optimizer from
    `dspy.Predict(node_to_signature(cls))`, or to any `dspy.Module` around such predictors, or to a
    `NodePredictor`, which has one for the fill of the class and one for the choice of where to go
    on from it. They are used as they are, with their instructions and examples, and given the
    inputs that they have. They are copied when this is made: change one, and make another of
    these. Where `lm` is given it is asked, and otherwise the LM that a predictor has of its own,
    or that of `dspy.settings`. The rest is as for `DSPyBackend`.
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
        self._optimized: dict[type[Node], Any] = {}
        self._choices: dict[type[Node], Any] = {}
        for cls, each in optimized.items():
            self._take(cls, each)
        self._states = {_name(cls): _state(each) for cls, each in self._optimized.items()}
        self._choice_states = {_name(cls): _state(each) for cls, each in self._choices.items()}
        self._asked: Counter[str] = Counter()

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the LM is set to, and the instructions and examples of the predictors."""
        settings = {**super().settings, "optimized": self._states}
        return {**settings, "choices": self._choice_states} if self._choices else settings

    def get_stats(self) -> dict[str, int]:
        """How many nodes were filled so far, `optimized` through an optimized predictor and
        `naive` through a fresh one; a choice through an optimized predictor counts too. Each
        counts once, however often it was asked again."""
        return {"optimized": self._asked["optimized"], "naive": self._asked["naive"]}

    async def answer(self, prompt: Prompt) -> Answer:
        """Send one request, through the optimized predictor where there is one."""
        answer = await super().answer(prompt)
        if not prompt.turns:
            if self._found(prompt) is not None:
                self._asked["optimized"] += 1
            elif prompt.question.target is not None:
                self._asked["naive"] += 1
        return answer

    def _found(self, prompt: Prompt) -> Any:
        question = prompt.question
        if question.target is not None:
            return self._optimized.get(question.target)
        # A choice that a body offers in a context of its own is not the one that was learned.
        if question.source is None or question.context is not None:
            return None
        return self._choices.get(type(question.source))

    def _lm_for(self, prompt: Prompt) -> Any:
        found = self._found(prompt) if self._lm is None else None
        pinned = [each.lm for each in found.predictors() if each.lm] if found is not None else []
        return pinned[0] if pinned else super()._lm_for(prompt)

    async def _predict(self, prompt: Prompt, question: QuestionAdapter) -> Any:
        found = self._found(prompt)
        if found is None:
            return await super()._predict(prompt, question)
        question.optimized = True
        if prompt.question.target is None:
            offered = names_of(prompt.question.types)
            demos = [each for each in found.demos if each.get("choice") in offered]
            await copy(found).acall(known=question.said, demos=demos)
            return UNPARSED
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

    def _take(self, cls: Any, predictor: Any) -> None:
        """Keep what there is of a predictor; the fresh part of one asks as if it were not there."""
        if not (isinstance(cls, type) and issubclass(cls, Node)):
            raise TypeError(f"OptimizedLM(optimized={{{cls!r}: …}}): give it by its node class")
        if not _is_of_two(predictor):
            self._optimized[cls] = self._checked(cls, predictor)
            return
        if predictor.fill is not None and not _is_fresh(predictor.fill, cls.__name__):
            self._optimized[cls] = self._checked(cls, predictor.fill)
        own = choice_instruction(plan_of(cls, strict=True).offered)
        if predictor.choice is not None and not _is_fresh(predictor.choice, own):
            self._choices[cls] = self._copied(predictor.choice)

    def _checked(self, cls: type[Node], predictor: Any) -> Any:
        dspy = load_dspy("OptimizedLM")
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
                    f"it from node_to_signature({cls.__name__}), and optimize it again where the "
                    "class has changed since"
                )
        return self._copied(predictor)

    def _copied(self, predictor: Any) -> Any:
        copied = predictor.deepcopy()
        for mine, given in zip(copied.predictors(), predictor.predictors(), strict=True):
            mine.lm = given.lm if self._lm is None else None
        return copied


def _is_of_two(predictor: Any) -> bool:
    """Whether it is a `NodePredictor`, with one for the fill and one for the choice."""
    one = load_dspy("OptimizedLM").Predict
    missing = object()
    parts = [getattr(predictor, name, missing) for name in ("fill", "choice")]
    return all(part is None or isinstance(part, one) for part in parts)


def _is_fresh(predictor: Any, instruction: str) -> bool:
    """Whether it asks as it would without an optimizer."""
    untouched = predictor.signature.instructions == instruction
    return untouched and not (predictor.demos or predictor.config or predictor.lm)


def _name(cls: type[Node]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


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
