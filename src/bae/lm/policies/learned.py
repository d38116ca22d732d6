"""Learned prompts: an instruction and few-shot examples for a node class. `bae.optimizer` learns
them and stores them in files. They are part of the prompt, so they work with any backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import ConfigDict, JsonValue
from pydantic.dataclasses import dataclass
from pydantic_core import to_jsonable_python

from bae.lm.adapter import LMAdapter
from bae.lm.backend import Answer, FewShot, Prompt, Question
from bae.lm.policies.policy import Policy, as_backend, innermost
from bae.node import Node
from bae.plan import plan_of
from bae.prompts.questions import choice_instruction, names_of, text_form
from bae.prompts.tools import example_answer
from bae.prompts.values import text_of_answer, text_of_question

if TYPE_CHECKING:
    from bae.language_model import LM

NodePart = Literal["fill", "choice"]
"""The two questions about a node: fill its fields, or choose its successor."""
_STRICT = ConfigDict(extra="forbid")  # a file with other keys is refused


@dataclass(frozen=True, slots=True, config=_STRICT)
class PromptExample:
    """A question and its answer, as JSON values.

    `known` is the JSON of the prompt. For a fill it is `{"A": {…}, "context": {…}}`, with the
    fields of the previous node `A` and the resolved values; for a choice it is `{"A": {…}}`.
    `answer` is the expected answer: the fields, or `{"choice": "B"}`. The choice `"None"` ends the
    run.
    """

    known: Mapping[str, JsonValue]
    answer: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, config=_STRICT)
class LearnedPrompt:
    """The learned prompt of one question. The `instruction` replaces the usual instruction, unless
    it is empty; the `examples` are shown before the question."""

    instruction: str = ""
    examples: tuple[PromptExample, ...] = ()


@dataclass(frozen=True, slots=True)
class NodePrompts:
    """The learned prompts of a node class: to `fill` its fields, and for the `choice` of its
    successor."""

    fill: LearnedPrompt | None = None
    choice: LearnedPrompt | None = None

    def parts(self) -> tuple[tuple[NodePart, LearnedPrompt | None], ...]:
        """Both prompts with their names."""
        return ("fill", self.fill), ("choice", self.choice)


class WithPrompts(Policy):
    """Asks with learned prompts: `WithPrompts(lm, {Reply: NodePrompts(fill=LearnedPrompt("…"))})`.

    A learned prompt applies when a run fills a node of that class or chooses its successor, also
    when an invalid answer is asked for again. It does not apply to a body that asks with its own
    instruction or context. A choice or a fill with a learned prompt is always its own request.

    An LM that is pinned to a node gets the same prompts. An LM that writes its own prompts, such as
    a `ScriptedLM`, ignores them.

    The journal records the question without the learned prompt, so a recorded run still replays
    after the prompts have changed.
    """

    def __init__(self, lm: LM | str, prompts: Mapping[type[Node], NodePrompts]) -> None:
        super().__init__(lm)
        self.prompts: Mapping[type[Node], NodePrompts] = dict(prompts)
        self._prompts = {
            (cls, part): prompt
            for cls, given in self.prompts.items()
            for part, prompt in _check_prompts(cls, given)
        }
        self._settings = {
            f"{cls.__module__}.{cls.__qualname__}": {
                part: to_jsonable_python(prompt)
                for part, prompt in each.parts()
                if prompt is not None
            }
            for cls, each in self.prompts.items()
        }
        self._asked: Counter[str] = Counter()
        self._pinned: dict[int, WithPrompts] = {}

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the LM inside and the learned prompts."""
        settings = self.inner.settings
        if not self._applies:
            return settings
        return {**settings, "prompts": [*settings.get("prompts", ()), self._settings]}

    def get_stats(self) -> dict[str, int]:
        """How many questions were answered with a learned prompt (`optimized`) and without
        (`naive`), including questions to pinned LMs. Corrections of an answer do not count."""
        return {"optimized": self._asked["optimized"], "naive": self._asked["naive"]}

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the LM inside, with the learned prompt for the question if there is one."""
        learned = self._with_learned(prompt)
        answer = await self.ask(learned)
        if prompt.is_first:
            self._asked["naive" if learned is prompt else "optimized"] += 1
        return answer

    def at_once(
        self, previous: Node | None, fillable: Sequence[type[Node]]
    ) -> Sequence[type[Node]]:
        """The types in `fillable` without a learned prompt. Empty if the choice itself has one."""
        if self._applies:
            if previous is not None and (type(previous), "choice") in self._prompts:
                return ()
            fillable = [cls for cls in fillable if (cls, "fill") not in self._prompts]
        return super().at_once(previous, fillable)

    def pinned(self, lm: LM) -> LM:
        """The pinned LM with the same prompts. Its questions count in `get_stats`."""
        inner = self.inner.pinned(lm)
        if inner is self.inner:
            return self
        asked = as_backend(inner)
        if isinstance(innermost(asked), LMAdapter):  # it writes its own prompts
            return inner
        wrapped = self._pinned.get(id(inner))
        if wrapped is None:
            # The copy shares the counts, the prompts and the pinned LMs.
            wrapped = self._pinned[id(inner)] = copy(self)
            wrapped.inner = asked  # keeps `inner` alive, so its id stays unique
        return wrapped

    async def reject(self, prompt: Prompt) -> None:
        """Report an invalid answer to the LM inside, with the prompt that it was asked."""
        await super().reject(self._with_learned(prompt))

    def with_learned(self, prompt: Prompt) -> Prompt:
        """The prompt as it is sent: with the learned prompt from here or from the LM inside."""
        return super().with_learned(self._with_learned(prompt))

    @property
    def _applies(self) -> bool:
        return not isinstance(innermost(self), LMAdapter)

    def _with_learned(self, prompt: Prompt) -> Prompt:
        """The prompt with its learned prompt. The same object if there is none."""
        question, learned = prompt.question, None
        if question.target is not None:
            learned = self._prompts.get((question.target, "fill"))
        elif question.previous is not None:
            learned = self._prompts.get((type(question.previous), "choice"))
        return prompt if learned is None or not self._applies else with_prompt(prompt, learned)


def with_prompt(prompt: Prompt, learned: LearnedPrompt) -> Prompt:
    """Apply a learned prompt: its instruction and its examples. For a choice, only the examples
    that choose an offered type. Returns the same prompt if it has its own instruction, or has a
    learned prompt already."""
    question = prompt.question
    own = choice_instruction(question.types)
    if question.target is not None:
        own = plan_of(question.target).instruction
    # After the instruction come the known values and, for a choice, the options.
    text = prompt.text
    begins = text == own or text.startswith(f"{own}\n")
    if prompt.examples or not begins:
        return prompt
    instruction, names = learned.instruction.strip() or own, names_of(question.types)
    form = "" if prompt.schema is not None else text_form(cast("type[Node]", question.target))
    examples = (
        FewShot(
            text_of_question(instruction, shown_once(question, example.known), form),
            str(example.answer[question.fields[0]])
            if form
            else text_of_answer(example_answer(prompt, example.answer)),
        )
        for example in learned.examples
        if not names or example.answer.get("choice") in names
    )
    applied = prompt.with_question(f"{instruction}{text[len(own) :]}", examples)
    return replace(applied, question=replace(question, instruction=instruction))


def shown_once(question: Question, known: Mapping[str, Any]) -> Mapping[str, Any]:
    """The known values of an example in the form of the question: without the values in its context
    that come from the previous node, which shows them already."""
    origins = (question.scene.origins or {}).get(cast("type[Node]", question.target))
    if not origins or question.previous is None:
        return known
    shown = cast("dict[str, Any]", known.get(type(question.previous).__name__) or {})
    context = cast("Mapping[str, Any]", known.get("context") or {})
    left: dict[str, Any] = {}
    for name, value in context.items():
        node, field = origins.get(name, (None, ""))
        there = shown.get(field) if field else shown
        if node is not question.previous or value != there:
            left[name] = value
    rest = {name: value for name, value in known.items() if name != "context"}
    return {**rest, "context": left} if left else rest


def check_texts(cls: type[Node], examples: Sequence[PromptExample]) -> None:
    """Raise ValueError if a class is answered in plain text and the answer of an example is not a
    text."""
    names = [field.name for field in plan_of(cls, strict=True).plain if field.fills == "text"]
    for number, example in enumerate(examples, 1):
        for name in names:
            if not isinstance(example.answer.get(name), str):
                raise ValueError(
                    f"{cls.__name__}, example {number} of its fill: the LM answers {name} in plain "
                    f'text, so its answer is to be {{"{name}": "the text"}}'
                )


def _check_prompts(cls: Any, given: Any) -> list[tuple[NodePart, LearnedPrompt]]:
    """Check the prompts of a class, and return those that are not empty."""
    if not (isinstance(cls, type) and issubclass(cls, Node)):
        raise TypeError(f"WithPrompts(lm, {{{cls!r}: …}}): give the prompts by their node class")
    if not isinstance(given, NodePrompts):
        raise TypeError(
            f"WithPrompts(lm, {{{cls.__name__}: {given!r}}}): give NodePrompts(fill=…, choice=…)"
        )
    if given.fill is not None:
        check_texts(cls, given.fill.examples)
    for number, example in enumerate(given.choice.examples if given.choice else (), 1):
        if not isinstance(example.answer.get("choice"), str):
            raise ValueError(
                f"{cls.__name__}, example {number} of its choice: its answer is to be "
                '{"choice": "the name of the class"}, or "None" to stop'
            )
    return [
        (part, prompt)
        for part, prompt in given.parts()
        if prompt is not None and (prompt.instruction.strip() or prompt.examples)
    ]
