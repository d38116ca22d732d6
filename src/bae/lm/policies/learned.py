"""Learned prompts: an instruction and few-shot examples for a node class. `bae.optimizer` learns
these prompts and stores them in files. Any backend can use them."""

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
    """A question and its answer, as JSON values."""

    known: Mapping[str, JsonValue]
    """The known values that the prompt shows. For a fill: `{"A": {…}, "context": {…}}`, with the
    fields of the previous node `A` and the resolved values. For a choice: `{"A": {…}}`."""

    answer: Mapping[str, JsonValue]
    """The expected answer. For a fill: the fields. For a choice: `{"choice": "B"}`, or
    `{"choice": "None"}` to end the run."""


@dataclass(frozen=True, slots=True, config=_STRICT)
class LearnedPrompt:
    """The learned prompt of one question."""

    instruction: str = ""
    """The instruction that replaces the usual instruction. Empty to keep the usual instruction."""

    examples: tuple[PromptExample, ...] = ()
    """The few-shot examples, which come before the question."""


@dataclass(frozen=True, slots=True)
class NodePrompts:
    """The learned prompts of a node class."""

    fill: LearnedPrompt | None = None
    """The prompt to fill the node's fields."""

    choice: LearnedPrompt | None = None
    """The prompt to choose the node's successor."""

    def parts(self) -> tuple[tuple[NodePart, LearnedPrompt | None], ...]:
        """Return both prompts, each with its name."""
        return ("fill", self.fill), ("choice", self.choice)


class WithPrompts(Policy):
    """Adds learned prompts to questions:
    `WithPrompts(lm, {Reply: NodePrompts(fill=LearnedPrompt("…"))})`.

    A learned prompt applies when a run fills a node of the class or chooses the node's successor,
    also when the LM corrects an invalid answer. If a body asks with its own instruction or context,
    the learned prompt does not apply. A choice or a fill with a learned prompt is always its own
    request.

    An LM that is pinned to a node gets the same learned prompts. An LM that writes its own prompts,
    such as a `ScriptedLM`, ignores the learned prompts.

    The journal records questions without learned prompts, so a recorded run still replays after
    the prompts have changed.
    """

    def __init__(self, lm: LM | str, prompts: Mapping[type[Node], NodePrompts]) -> None:
        super().__init__(lm)
        self.prompts: Mapping[type[Node], NodePrompts] = dict(prompts)
        self._prompts = {
            (cls, part): prompt
            for cls, node_prompts in self.prompts.items()
            for part, prompt in _check_prompts(cls, node_prompts)
        }
        self._settings = {
            f"{cls.__module__}.{cls.__qualname__}": {
                part: to_jsonable_python(prompt)
                for part, prompt in node_prompts.parts()
                if prompt is not None
            }
            for cls, node_prompts in self.prompts.items()
        }
        self._asked: Counter[str] = Counter()
        self._pinned: dict[int, WithPrompts] = {}

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the wrapped LM and the learned prompts."""
        settings = self.inner.settings
        if not self._applies:
            return settings
        return {**settings, "prompts": [*settings.get("prompts", ()), self._settings]}

    def get_stats(self) -> dict[str, int]:
        """Count the answered questions: "optimized" with a learned prompt, "naive" without.

        Questions to pinned LMs count. Corrections of an invalid answer do not count.
        """
        return {"optimized": self._asked["optimized"], "naive": self._asked["naive"]}

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the wrapped LM. If there is a learned prompt for the question, apply it first."""
        learned = self._with_learned(prompt)
        answer = await self.ask(learned)
        if prompt.is_first:
            self._asked["naive" if learned is prompt else "optimized"] += 1
        return answer

    def at_once(
        self, previous: Node | None, fillable: Sequence[type[Node]]
    ) -> Sequence[type[Node]]:
        """Return the types in `fillable` that have no learned prompt. Empty if there is a learned
        prompt for the choice itself."""
        if self._applies:
            if previous is not None and (type(previous), "choice") in self._prompts:
                return ()
            fillable = [cls for cls in fillable if (cls, "fill") not in self._prompts]
        return super().at_once(previous, fillable)

    def pinned(self, lm: LM) -> LM:
        """Return the pinned LM with the same learned prompts. `get_stats` counts its questions."""
        inner = self.inner.pinned(lm)
        if inner is self.inner:
            return self
        backend = as_backend(inner)
        if isinstance(innermost(backend), LMAdapter):  # such an LM writes its own prompts
            return inner
        wrapped = self._pinned.get(id(inner))
        if wrapped is None:
            # The copy shares the counts, the prompts and the pinned LMs.
            wrapped = self._pinned[id(inner)] = copy(self)
            wrapped.inner = backend  # keeps `inner` alive, so no other object gets its id
        return wrapped

    async def reject(self, prompt: Prompt) -> None:
        """Report an invalid answer to the wrapped LM, with the prompt that was sent to it."""
        await super().reject(self._with_learned(prompt))

    def with_learned(self, prompt: Prompt) -> Prompt:
        """Return the prompt as it is sent, with the learned prompt of this policy or of a policy
        inside it."""
        return super().with_learned(self._with_learned(prompt))

    @property
    def _applies(self) -> bool:
        return not isinstance(innermost(self), LMAdapter)

    def _with_learned(self, prompt: Prompt) -> Prompt:
        """Apply the learned prompt for a question. If there is none, return the same object."""
        question, learned = prompt.question, None
        if question.target is not None:
            learned = self._prompts.get((question.target, "fill"))
        elif question.previous is not None:
            learned = self._prompts.get((type(question.previous), "choice"))
        return prompt if learned is None or not self._applies else with_prompt(prompt, learned)


def with_prompt(prompt: Prompt, learned: LearnedPrompt) -> Prompt:
    """Return a prompt with the learned instruction and examples. For a choice, use only the
    examples that choose an offered type. If a body wrote the instruction, or a learned prompt is
    applied already, return the same prompt."""
    question = prompt.question
    usual = choice_instruction(question.types)
    if question.target is not None:
        usual = plan_of(question.target).instruction
    # After the instruction come the known values and, for a choice, the options.
    text = prompt.text
    is_usual = text == usual or text.startswith(f"{usual}\n")
    if prompt.examples or not is_usual:
        return prompt
    instruction, names = learned.instruction.strip() or usual, names_of(question.types)
    form = "" if prompt.schema is not None else text_form(cast("type[Node]", question.target))
    examples = (
        FewShot(
            text_of_question(instruction, drop_repeated_context(question, example.known), form),
            str(example.answer[question.fields[0]])
            if form
            else text_of_answer(example_answer(prompt, example.answer)),
        )
        for example in learned.examples
        if not names or example.answer.get("choice") in names
    )
    applied = prompt.with_question(f"{instruction}{text[len(usual) :]}", examples)
    return replace(applied, question=replace(question, instruction=instruction))


def drop_repeated_context(question: Question, known: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the known values of an example as the question shows them: without context values that
    come from the previous node, because the previous node shows these values already."""
    origins = (question.scene.origins or {}).get(cast("type[Node]", question.target))
    if not origins or question.previous is None:
        return known
    shown = cast("dict[str, Any]", known.get(type(question.previous).__name__) or {})
    context = cast("Mapping[str, Any]", known.get("context") or {})
    remaining: dict[str, Any] = {}
    for name, value in context.items():
        node, field = origins.get(name, (None, ""))
        shown_value = shown.get(field) if field else shown
        if node is not question.previous or value != shown_value:
            remaining[name] = value
    rest = {name: value for name, value in known.items() if name != "context"}
    return {**rest, "context": remaining} if remaining else rest


def check_texts(cls: type[Node], examples: Sequence[PromptExample]) -> None:
    """Raise ValueError if the LM answers a class in plain text and the answer of an example is not
    a text."""
    names = [field.name for field in plan_of(cls, strict=True).plain if field.fills == "text"]
    for number, example in enumerate(examples, 1):
        for name in names:
            if not isinstance(example.answer.get(name), str):
                raise ValueError(
                    f"{cls.__name__}, example {number} of its fill: the LM answers {name} in plain "
                    f'text, so its answer must be {{"{name}": "the text"}}'
                )


def _check_prompts(cls: Any, prompts: Any) -> list[tuple[NodePart, LearnedPrompt]]:
    """Check the learned prompts of a class. Return the prompts that are not empty."""
    if not (isinstance(cls, type) and issubclass(cls, Node)):
        raise TypeError(f"WithPrompts(lm, {{{cls!r}: …}}): the key must be a node class")
    if not isinstance(prompts, NodePrompts):
        raise TypeError(
            f"WithPrompts(lm, {{{cls.__name__}: {prompts!r}}}): give NodePrompts(fill=…, choice=…)"
        )
    if prompts.fill is not None:
        check_texts(cls, prompts.fill.examples)
    for number, example in enumerate(prompts.choice.examples if prompts.choice else (), 1):
        if not isinstance(example.answer.get("choice"), str):
            raise ValueError(
                f"{cls.__name__}, example {number} of its choice: its answer must be "
                '{"choice": "the name of the class"}, or "None" to stop'
            )
    return [
        (part, prompt)
        for part, prompt in prompts.parts()
        if prompt is not None and (prompt.instruction.strip() or prompt.examples)
    ]
