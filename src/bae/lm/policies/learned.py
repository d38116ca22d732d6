"""Learned prompts: for each node class an instruction, and few-shot examples that are shown to the
model before the question. `bae.optimizer` learns them and stores them in files; they work with any
backend, since they are part of the prompt."""

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
"""What a model is asked for about a node: its fields, or its successor."""
_STRICT = ConfigDict(extra="forbid")  # a file with other keys is refused


@dataclass(frozen=True, slots=True, config=_STRICT)
class PromptExample:
    """A question and its answer, as JSON values.

    `known` is the JSON of the prompt: for a fill `{"A": {…}, "context": {…}}`, with the fields of
    the previous node `A` and the resolved values; for a choice `{"A": {…}}`. `answer` is what the
    model is to answer: the fields, or `{"choice": "B"}`, which is `"None"` to stop.
    """

    known: Mapping[str, JsonValue]
    answer: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, config=_STRICT)
class LearnedPrompt:
    """What was learned about one question: an `instruction` in place of the usual one, unless
    empty, and `examples` that are shown before the question."""

    instruction: str = ""
    examples: tuple[PromptExample, ...] = ()


@dataclass(frozen=True, slots=True)
class NodePrompts:
    """The learned prompts of a node class: for the `fill` of its fields, and for the `choice` of
    its successor."""

    fill: LearnedPrompt | None = None
    choice: LearnedPrompt | None = None

    def parts(self) -> tuple[tuple[NodePart, LearnedPrompt | None], ...]:
        """Both prompts, by what they are for."""
        return ("fill", self.fill), ("choice", self.choice)


class WithPrompts(Policy):
    """Asks with learned prompts: `WithPrompts(lm, {Reply: NodePrompts(fill=LearnedPrompt("…"))})`.

    A learned prompt is for the question that a run asks by itself: to fill a node of that class, or
    to choose the successor of one. A body that asks with an instruction or a context of its own is
    not affected. The prompt stays when a wrong answer is asked for again. A choice with a learned
    prompt, and a fill with one, are each asked by themselves, never in one call.

    An LM that is pinned to a node is asked with the same prompts.

    An LM that makes its own prompts, such as a `ScriptedLM`, is asked as if nothing was learned.
    The journal has the question as the graph asks it, without the learned prompt, so that a
    recorded run replays whatever is learned later.
    """

    def __init__(self, lm: LM | str, prompts: Mapping[type[Node], NodePrompts]) -> None:
        super().__init__(lm)
        self.prompts: Mapping[type[Node], NodePrompts] = dict(prompts)
        self._prompts = {
            (cls, part): prompt
            for cls, given in self.prompts.items()
            for part, prompt in _checked(cls, given)
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
        """The settings of the LM inside, and the learned prompts."""
        settings = self.inner.settings
        if not self._applies:
            return settings
        return {**settings, "prompts": [*settings.get("prompts", ()), self._settings]}

    def get_stats(self) -> dict[str, int]:
        """How many questions were answered so far, `optimized` with a learned prompt and `naive`
        without, by LMs that are pinned to nodes too. A question counts once, however often it was
        asked again."""
        return {"optimized": self._asked["optimized"], "naive": self._asked["naive"]}

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the LM inside, with the learned prompt for the question where there is one."""
        learned = self._with_learned(prompt)
        answer = await self.ask(learned)
        if prompt.is_first:
            self._asked["naive" if learned is prompt else "optimized"] += 1
        return answer

    def at_once(
        self, previous: Node | None, fillable: Sequence[type[Node]]
    ) -> Sequence[type[Node]]:
        """Those of `fillable` without a learned prompt; none where the choice itself has one."""
        if self._applies:
            if previous is not None and (type(previous), "choice") in self._prompts:
                return ()
            fillable = [cls for cls in fillable if (cls, "fill") not in self._prompts]
        return super().at_once(previous, fillable)

    def pinned(self, lm: LM) -> LM:
        """The LM that is pinned to a node, with the same prompts; its questions count here."""
        inner = self.inner.pinned(lm)
        if inner is self.inner:
            return self
        asked = as_backend(inner)
        if isinstance(innermost(asked), LMAdapter):  # which makes its own prompts
            return inner
        found = self._pinned.get(id(inner))
        if found is None:
            # The counts, the prompts and those that are pinned are shared with the copy.
            found = self._pinned[id(inner)] = copy(self)
            found.inner = asked  # which is `inner` itself: so its id stays taken
        return found

    async def reject(self, prompt: Prompt) -> None:
        """Pass on that the answer was not valid, to the prompt as it was asked."""
        await super().reject(self._with_learned(prompt))

    def with_learned(self, prompt: Prompt) -> Prompt:
        """The prompt as it is sent, with what was learned for it here, or by the LM inside."""
        return super().with_learned(self._with_learned(prompt))

    @property
    def _applies(self) -> bool:
        return not isinstance(innermost(self), LMAdapter)

    def _with_learned(self, prompt: Prompt) -> Prompt:
        """The prompt with what was learned for it; the same object where nothing was."""
        question, learned = prompt.question, None
        if question.target is not None:
            learned = self._prompts.get((question.target, "fill"))
        elif question.previous is not None:
            learned = self._prompts.get((type(question.previous), "choice"))
        return prompt if learned is None or not self._applies else with_prompt(prompt, learned)


def with_prompt(prompt: Prompt, learned: LearnedPrompt) -> Prompt:
    """A prompt with a learned instruction and its examples; of a choice, those that choose one of
    the types on offer. It is the same object where it asks something else than was learned, in its
    own words, or has its learned prompt already."""
    question = prompt.question
    own = choice_instruction(question.types)
    if question.target is not None:
        own = plan_of(question.target).instruction
    # After it come what is known and, of a choice, the options.
    text = prompt.text
    begins = text == own or text.startswith(f"{own}\n")
    if prompt.examples or not begins:
        return prompt
    instruction, names = learned.instruction.strip() or own, names_of(question.types)
    form = "" if prompt.schema is not None else text_form(cast("type[Node]", question.target))
    examples = (
        FewShot(
            text_of_question(instruction, shown_once(question, each.known), form),
            str(each.answer[question.fields[0]])
            if form
            else text_of_answer(example_answer(prompt, each.answer)),
        )
        for each in learned.examples
        if not names or each.answer.get("choice") in names
    )
    taught = prompt.with_question(f"{instruction}{text[len(own) :]}", examples)
    return replace(taught, question=replace(question, instruction=instruction))


def shown_once(question: Question, known: Mapping[str, Any]) -> Mapping[str, Any]:
    """What an example knows, as the question shows it: without the values in its context that the
    question has from its previous node."""
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
    """Raise ValueError where a class is answered in plain text, and the answer of an example is
    none."""
    names = [field.name for field in plan_of(cls, strict=True).plain if field.fills == "text"]
    for number, example in enumerate(examples, 1):
        for name in names:
            if not isinstance(example.answer.get(name), str):
                raise ValueError(
                    f"{cls.__name__}, example {number} of its fill: the LM answers {name} in plain "
                    f'text, so its answer is to be {{"{name}": "the text"}}'
                )


def _checked(cls: Any, given: Any) -> list[tuple[NodePart, LearnedPrompt]]:
    """The prompts of a class that are not empty, by what they are for."""
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
