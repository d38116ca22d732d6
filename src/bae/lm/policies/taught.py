"""Asking with what was learnt: for each node class an instruction, and examples that the model is
shown before the question. `bae.optimizer` learns lessons and keeps them in files; any backend asks
by them, since they are part of the prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from bae.lm.backend import Answer, Prompt, Shown
from bae.lm.foreign import Foreign
from bae.lm.policies.policy import Policy, as_backend, innermost
from bae.lm.prompts import (
    choice_instruction,
    names_of,
    text_of_answer,
    text_of_json,
    text_of_question,
)
from bae.node import Node

if TYPE_CHECKING:
    from bae.language_model import LM

Part = Literal["fill", "choice"]


@dataclass(frozen=True, slots=True)
class LessonExample:
    """A question and its answer, as JSON values.

    `known` is what the prompt says is known: for a fill `{"A": {…}, "context": {…}}`, with the
    fields of the node `A` that the run comes from and what was looked up; for a choice
    `{"A": {…}}`. `answer` is what the model is to say: the fields, or `{"choice": "B"}`, which is
    `"None"` to stop.
    """

    known: Mapping[str, Any]
    answer: Mapping[str, Any]

    def __post_init__(self) -> None:
        for name, value in (("known", self.known), ("answer", self.answer)):
            _check(value, Mapping, f"LessonExample({name}=…)", "give a mapping of JSON values")


@dataclass(frozen=True, slots=True)
class Lesson:
    """What was learnt about one question: the `instruction` that the prompt begins with, where it
    is not to be its own, and `examples` that are shown before it."""

    instruction: str = ""
    examples: tuple[LessonExample, ...] = ()

    def __post_init__(self) -> None:
        _check(self.instruction, str, "Lesson(instruction=…)", "give a text")
        _check(self.examples, tuple, "Lesson(examples=…)", "give a tuple of LessonExamples")
        for each in self.examples:
            _check(each, LessonExample, "Lesson(examples=…)", "give a tuple of LessonExamples")


@dataclass(frozen=True, slots=True)
class Lessons:
    """What was learnt for a node class: for the `fill` of its fields, and for the `choice` of where
    to go on from it."""

    fill: Lesson | None = None
    choice: Lesson | None = None

    def __post_init__(self) -> None:
        for name, lesson in (("fill", self.fill), ("choice", self.choice)):
            _check(lesson, Lesson | None, f"Lessons({name}=…)", "give a Lesson, or None")


class Taught(Policy):
    """Asks an LM with lessons: `Taught(lm, {Outfit: Lessons(fill=Lesson("…", (…,)))})`.

    A lesson is for the question that a run asks by itself: to fill a node of that class, or to
    choose where to go on from one. What a body asks for with an instruction of its own, or offers
    in a context of its own, is asked as it says. The lessons stay when a wrong answer is asked for
    again. A taught choice is asked by itself, and a taught fill too, never both in one call.

    A node that has an LM pinned to it is asked for with the same lessons, of that LM.

    An LM that makes its own prompts, such as a `ScriptedLM`, is asked as if there were no lessons.
    The journal has the question as the graph asks it, without the lesson, so that a recorded run
    replays whatever is learnt afterwards.
    """

    def __init__(self, lm: LM | str, lessons: Mapping[type[Node], Lessons]) -> None:
        super().__init__(lm)
        self.lessons: Mapping[type[Node], Lessons] = dict(lessons)
        self._lessons = {
            (cls, part): _Rendered(lesson)
            for cls, given in self.lessons.items()
            for part, lesson in _checked(cls, given)
        }
        self._said = {
            f"{cls.__module__}.{cls.__qualname__}": _said(each)
            for cls, each in self.lessons.items()
        }
        self._asked: Counter[str] = Counter()
        self._pinned: dict[int, Taught] = {}

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the LM inside is set to, and the lessons."""
        settings = self.inner.settings
        if not self._applies:
            return settings
        return {**settings, "lessons": [*settings.get("lessons", ()), self._said]}

    def get_stats(self) -> dict[str, int]:
        """How many questions were answered so far, `optimized` with a lesson and `naive` without,
        by LMs that are pinned to nodes too. A question counts once, however often it was asked
        again."""
        return {"optimized": self._asked["optimized"], "naive": self._asked["naive"]}

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask what is inside, with the lesson for the question where there is one."""
        taught = self._taught(prompt)
        answer = await self.ask(taught)
        if not prompt.turns:
            self._asked["naive" if taught is prompt else "optimized"] += 1
        return answer

    def at_once(self, source: Node | None, fillable: Sequence[type[Node]]) -> Sequence[type[Node]]:
        """Those of `fillable` without a lesson; none where the choice itself is taught."""
        if self._applies:
            if source is not None and (type(source), "choice") in self._lessons:
                return ()
            fillable = [cls for cls in fillable if (cls, "fill") not in self._lessons]
        return super().at_once(source, fillable)

    def pinned(self, lm: LM) -> LM:
        """The LM that is pinned to a node, with the same lessons; what it is asked counts here."""
        inner = self.inner.pinned(lm)
        if inner is self.inner:
            return self
        asked = as_backend(inner)
        if isinstance(innermost(asked), Foreign):  # for which there are no lessons
            return inner
        found = self._pinned.get(id(inner))
        if found is None:
            # What was asked, the lessons and those that are pinned are shared with the copy.
            found = self._pinned[id(inner)] = copy(self)
            found.inner = asked  # which is `inner` itself: so its id stays taken
        return found

    async def reject(self, prompt: Prompt) -> None:
        """Pass on that the answer was not valid, to the prompt as it was asked."""
        await super().reject(self._taught(prompt))

    @property
    def _applies(self) -> bool:
        return not isinstance(innermost(self), Foreign)

    def _taught(self, prompt: Prompt) -> Prompt:
        """The prompt with its lesson; the same where there is none."""
        question = prompt.question
        names = None
        if question.target is not None:
            lesson = self._lessons.get((question.target, "fill"))
            own = question.target.__name__
        elif question.source is not None:
            lesson = self._lessons.get((type(question.source), "choice"))
            own = choice_instruction(question.types)
            names = frozenset(names_of(question.types))
        else:
            return prompt
        # One that begins otherwise asks something else than was learnt; and one with examples has
        # been taught already.
        if lesson is None or prompt.examples or not self._applies or not _begins(prompt, own):
            return prompt
        instruction = lesson.instruction or own
        return replace(
            prompt,
            text=f"{instruction}{prompt.text[len(own) :]}",
            question=replace(question, instruction=instruction),
            examples=lesson.shown(instruction, names),
        )


def _begins(prompt: Prompt, instruction: str) -> bool:
    return prompt.text == instruction or prompt.text.startswith(f"{instruction}\n\n")


@dataclass(slots=True)
class _Rendered:
    """A lesson, and its examples as texts, rendered when they are first needed."""

    lesson: Lesson
    texts: dict[str, tuple[tuple[Shown, Any], ...]] = field(
        default_factory=dict[str, tuple[tuple[Shown, Any], ...]]
    )

    @property
    def instruction(self) -> str:
        return self.lesson.instruction.strip()

    def shown(self, instruction: str, names: frozenset[str] | None) -> tuple[Shown, ...]:
        """The examples; of a choice those that choose what is among the `names` on offer."""
        texts = self.texts.get(instruction)
        if texts is None:
            texts = self.texts[instruction] = tuple(
                (
                    Shown(text_of_question(instruction, each.known), text_of_answer(each.answer)),
                    each.answer.get("choice"),
                )
                for each in self.lesson.examples
            )
        return tuple(shown for shown, chosen in texts if names is None or chosen in names)


def _check(value: object, wanted: Any, where: str, fix: str) -> None:
    if not isinstance(value, wanted):
        raise TypeError(f"{where} is {value!r}: {fix}")


def _checked(cls: Any, given: Any) -> list[tuple[Part, Lesson]]:
    """The lessons for a class that teach something, by what they are for."""
    if not (isinstance(cls, type) and issubclass(cls, Node)):
        raise TypeError(f"Taught(lm, {{{cls!r}: …}}): give the lessons by their node class")
    if not isinstance(given, Lessons):
        raise TypeError(
            f"Taught(lm, {{{cls.__name__}: {given!r}}}): give Lessons(fill=…, choice=…)"
        )
    parts: list[tuple[Part, Lesson | None]] = [("fill", given.fill), ("choice", given.choice)]
    found: list[tuple[Part, Lesson]] = []
    for part, lesson in parts:
        if lesson is None:
            continue
        for number, example in enumerate(lesson.examples, 1):
            fault = _fault(part, example)
            if fault is not None:
                raise ValueError(f"{cls.__name__}, example {number} of its {part}: {fault}")
        if lesson.instruction.strip() or lesson.examples:
            found.append((part, lesson))
    return found


def _fault(part: Part, example: LessonExample) -> str | None:
    for name, value in (("known", example.known), ("answer", example.answer)):
        try:
            text_of_json(value)
        except (TypeError, ValueError) as error:
            return f"its {name} is no JSON: {error}"
    if part == "choice" and not isinstance(example.answer.get("choice"), str):
        return 'its answer is to be {"choice": "the name of the class"}, or "None" to stop'
    return None


def _said(lessons: Lessons) -> dict[str, Any]:
    """The lessons as JSON."""
    parts: dict[str, Lesson | None] = {"fill": lessons.fill, "choice": lessons.choice}
    return {
        part: {
            "instruction": lesson.instruction,
            "examples": [
                {"known": dict(each.known), "answer": dict(each.answer)} for each in lesson.examples
            ],
        }
        for part, lesson in parts.items()
        if lesson is not None
    }
