"""The questions of one part of a node, asked from examples instead of from a run, word for word as
a run asks them, with a learned prompt or without."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import create_model
from pydantic_core import from_json, to_jsonable_python

from bae.draft import validated
from bae.evals.case_types import every_node
from bae.evals.judge import Refusals
from bae.exceptions import BaeError, BaeLMError, FillError, RouteError
from bae.language_model import PLAIN_SCENE, Scene, in_scene
from bae.lm.answers import Wrong, read, read_fill
from bae.lm.backend import Answer, Prompt, choice_with
from bae.lm.policies.learned import LearnedPrompt, NodePrompts, PromptExample, WithPrompts
from bae.lm.policies.policy import Policy
from bae.lm.prompts import (
    asked_fields,
    choice_instruction,
    choice_of,
    fill_prompt,
    names_of,
    text_form,
    text_of_question,
)
from bae.lm.requests import ask
from bae.lm.signatures import is_known, model_name
from bae.node import Node
from bae.optimizer.calls import student_for
from bae.plan import NodePlan, plan_of
from bae.usage import Attempt, Event, metered

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.lm.backend import Backend
    from bae.lm.policies.learned import LearnedPrompt


Part = Literal["fill", "choice"]
PARTS: tuple[Part, ...] = ("fill", "choice")


class PartQuestions:
    """The questions of one part of a node class. `predictor` is the fresh one for it; examples and
    demonstrations have their values by the names in its signature. They are asked in the `scene` of
    the graph that the class runs in, where one is given."""

    def __init__(
        self, cls: type[Node], part: Part, predictor: Any, graph: Graph[Any, Any] | None = None
    ) -> None:
        self.cls = cls
        self.part: Part = part
        self.predictor = predictor
        self.signature = predictor.signature
        self.scene = scene_in(graph, cls)
        self._asked = asked_fields(cls) if part == "fill" else ("choice",)
        plan = plan_of(cls, strict=True)
        self.types = plan.offered
        self.instruction = plan.instruction if part == "fill" else choice_instruction(self.types)

    def known(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What the model is told, as JSON, of the inputs in an example or a demonstration."""
        known: dict[str, Any] = {}
        context: dict[str, Any] = {}
        for name, field in self.signature.input_fields.items():
            if name not in values:
                continue
            value = to_jsonable_python(values[name], by_alias=False)
            if is_known(field) and isinstance(value, dict):
                known |= cast(dict[str, Any], value)
            else:
                context[model_name(name, field)] = value
        return {**known, "context": context} if context else known

    def answer(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer in an example, a demonstration or a prediction, as JSON by the names that the
        model knows; None where there is none."""
        outputs = self.signature.output_fields.items()
        found = {model_name(n, f): values[n] for n, f in outputs if n in values}
        said = {n: to_jsonable_python(found[n], by_alias=False) for n in self._asked if n in found}
        return said or None

    def outputs(self, answer: Mapping[str, Any] | None) -> dict[str, Any]:
        """An answer by the names in the signature."""
        if answer is None:
            return {}
        fields = self.signature.output_fields.items()
        return {n: answer[model_name(n, f)] for n, f in fields if model_name(n, f) in answer}

    def learned_prompt(
        self, instruction: str, demos: Iterable[Mapping[str, Any]]
    ) -> LearnedPrompt | None:
        """The learned prompt of an instruction and demonstrations; None where they are empty."""
        examples = tuple(PromptExample(self.known(each), self.answer(each) or {}) for each in demos)
        own = "" if instruction.split() == self.instruction.split() else instruction
        return LearnedPrompt(own, examples) if own or examples else None

    async def answered(
        self, backend: Backend, known: Mapping[str, Any], learned_prompt: LearnedPrompt | None
    ) -> dict[str, Any] | None:
        """What the model answers, asked once; None where that is nothing one can read."""
        with in_scene(self.scene):
            question = PartQuestion(self, known)
        try:
            answer = await ask(self.taught(backend, question, learned_prompt), question.prompt)
        except FillError:  # of an LM that judges its answers itself
            return None
        if isinstance(answer.value, Node):
            return self.said(answer.value)
        said = read_fill(question.prompt, answer) if self.part == "fill" else read(answer)
        return None if isinstance(said, Wrong) else said

    def taught(
        self, backend: Backend, question: PartQuestion, learned_prompt: LearnedPrompt | None
    ) -> Backend:
        if learned_prompt is None:
            return backend
        if self.part == "fill":
            return WithPrompts(backend, {self.cls: NodePrompts(fill=learned_prompt)})
        # The source is made up of what an example says, and so is its class.
        assert question.source is not None
        return WithPrompts(backend, {type(question.source): NodePrompts(choice=learned_prompt)})

    def said(self, node: Node) -> dict[str, Any]:
        """What an LM has filled in of a node, as JSON."""
        fields = set(self._asked)
        try:
            said = node.model_dump_json(
                include=fields, by_alias=False, round_trip=True, warnings=False
            )
        except Exception as error:  # serializers are code of the node's own
            raise BaeError(
                f"{self.cls.__name__} cannot be said as JSON, so nothing can be learned from it",
                code="bae-optimize-unsayable",
                cause=error,
                fix=f"fix the serializers of {self.cls.__name__}, or leave it out with nodes=…",
            ) from error
        return from_json(said)


class PartQuestion:
    """One question of a part, made from what is known."""

    def __init__(self, of: PartQuestions, known: Mapping[str, Any]) -> None:
        form = text_form(of.cls) if of.part == "fill" else ""
        instruction = of.instruction
        source = {name: value for name, value in known.items() if name != "context"}
        found = [recalled(name, each) for name, each in source.items()]
        if of.part == "choice" and not found:
            found.append(recalled(of.cls.__name__, {}))
        self.source = found[0] if found else None
        self.resolved = dict(_resolved(of.cls, known.get("context", {})))
        if of.part == "fill":
            prompt = fill_prompt(of.cls, asked_fields(of.cls), {}, of.instruction, None)
            question = replace(prompt.question, resolved=self.resolved, source=self.source)
            prompt = replace(prompt, question=question)
        else:
            choice = choice_of(of.types, ())
            instruction, prompt = choice.instruction, choice.prompt(self.source)
        self.prompt = replace(prompt, text=text_of_question(instruction, known, form))


def scene_in(graph: Graph[Any, Any] | None, cls: type[Node]) -> Scene:
    """What a question about a class shows in a run of a graph: by the innermost graph that has the
    class and a system text."""
    around = () if graph is None else graph.graphs
    own = [each.scene for each in around if each is graph or cls in each.plans]
    return next((found for found in reversed(own) if found is not None), PLAIN_SCENE)


class Exactly(Policy):
    """Asks with a text of its own in place of the prompt's."""

    def __init__(self, lm: Backend, text: str) -> None:
        super().__init__(lm)
        self._text = text

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask what is inside, in these words."""
        return await self.ask(replace(prompt, text=self._text))

    async def reject(self, prompt: Prompt) -> None:
        """Pass on that the answer was not valid, to the prompt as it was asked."""
        await super().reject(replace(prompt, text=self._text))


class Told(Policy):
    """Asks with what an example tells in place of what the prompt says is known."""

    def __init__(self, lm: Backend, known: Mapping[str, Any]) -> None:
        super().__init__(lm)
        self._known = known

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask what is inside, told that."""
        return await self.ask(self._told(prompt))

    async def reject(self, prompt: Prompt) -> None:
        """Pass on that the answer was not valid, to the prompt as it was asked."""
        await super().reject(self._told(prompt))

    def _told(self, prompt: Prompt) -> Prompt:
        question = prompt.question
        instruction, form, filled = question.instruction, "", question.fillable
        if question.target is not None:
            form = text_form(question.target)
        else:
            instruction = choice_of(question.types, filled, filled).instruction
        return replace(prompt, text=text_of_question(instruction, self._known, form))


def recalled(name: str, fields: Any) -> Node:
    """A node that says what an example says: of the same name, with the same fields, all JSON."""
    said = cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}
    return _recalled_class(name, tuple(said)).model_construct(**said)


@lru_cache(maxsize=256)
def _recalled_class(name: str, fields: tuple[str, ...]) -> type[Node]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that shadow others: so they do in the class
        given: dict[str, Any] = dict.fromkeys(fields, (Any, None))
        return create_model(name, __base__=Node, __module__=__name__, **given)


def _resolved(cls: type[Node], context: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """What was looked up for a node, as far as what the model saw of it can be read back."""
    for name, value in context.items():
        try:
            yield name, validated(cls, {name: value}, frozenset({name}))[name]
        except Exception:  # validators are code of the node's own
            continue


@dataclass(frozen=True, slots=True)
class Settled:
    """What came of a question: the answer, or why there is none; whether nothing had to be asked
    for again; and why the LM would not take it, as where it is too long. `chosen` says of a fill
    whether the run reaches it, if this question decides that: whether the LM chose the
    node when it was asked to choose and fill at once; None where it was not asked so."""

    answer: dict[str, Any] | None
    valid: bool
    why: str = ""
    not_taken: str = ""
    chosen: bool | None = None


class Settling:
    """Asks the questions of one part of a node as runs ask them.

    `lm` is what runs are given as theirs: which LM other nodes ask is seen by it. `graph` says
    from where a run comes: a fill that a run asks for together with the choice of it, in one call,
    is asked for so here, and by itself where there is no graph. An LM that refuses one question
    may take the next, but one that refuses all has failed: see `refusals.py`.
    """

    def __init__(self, of: PartQuestions, lm: Any, graph: Graph[Any, Any] | None = None) -> None:
        self._of = of
        self._lm = lm
        self._refusals = Refusals()
        self._choosers: dict[str, list[NodePlan]] = {}
        for cls in () if graph is None else every_node(graph):
            plan = plan_of(cls, strict=True)
            if not plan.written and len(plan.offered) > 1 and of.cls in plan.successors:
                self._choosers.setdefault(cls.__name__, []).append(plan)

    async def settled(
        self, backend: Backend, known: Mapping[str, Any], learned_prompt: LearnedPrompt | None
    ) -> Settled:
        """Ask until there is an answer, with a learned prompt for this part or without any."""
        with in_scene(self._of.scene):
            question = PartQuestion(self._of, known)
        asked = Told(self._of.taught(backend, question, learned_prompt), known)
        verdicts: list[str] = []

        def watch(event: Event) -> None:
            if isinstance(event, Attempt):
                verdicts.append(event.verdict)

        answer: dict[str, Any] | None = None
        why = not_taken = ""
        at_once = _AtOnce()
        with metered(watch), in_scene(self._of.scene):
            try:
                if self._of.part == "choice":
                    answer = await self._choice(backend, asked, question)
                else:
                    made = await self._made_at_once(backend, asked, question, at_once)
                    if made is None:
                        verdicts.clear()  # those were about the choice
                        made = await asked.fill(
                            self._of.cls, question.resolved, self._of.instruction, question.source
                        )
                    answer = self._of.said(made)
                self._refusals.taken()
            except (FillError, RouteError) as error:
                self._refusals.taken()
                why = error.message
            except BaeLMError as error:  # a run that asks this fails, and the next one need not
                if not self._refusals.is_about_the_question(error):
                    raise
                verdicts.clear()
                why = not_taken = error.message
        valid = bool(verdicts) and all(each == "valid" for each in verdicts)
        return Settled(answer, valid, why, not_taken, at_once.chosen)

    async def _choice(
        self, backend: Backend, asked: Backend, question: PartQuestion
    ) -> dict[str, Any]:
        """What is chosen. Where a run would have it filled by the very answer that chooses, and the
        learned prompt does not let it, it is filled here too: the run asks for that, and pays for
        it."""
        types, source = self._of.types, cast(Node, question.source)
        fillable = self._fillable(self._of.cls)
        try:
            chosen, made = await asked.route(source, types, fillable)
        except FillError as error:  # there is no valid fill, but there is a choice
            if error.node_type not in types:
                raise
            chosen = error.node_type
        else:
            if made is None and chosen in choice_with(backend, types, fillable, source).fillable:
                with suppress(FillError):
                    await asked.fill(chosen, {}, plan_of(chosen).instruction, source)
        names = {cls: name for name, cls in names_of(types).items()}
        return {"choice": names[chosen]}

    async def _made_at_once(
        self, backend: Backend, asked: Backend, question: PartQuestion, at_once: _AtOnce
    ) -> Node | None:
        """The node, where a run has it filled by the very answer that chooses it, and the model
        does choose it. With a learned prompt for the fill it does not, but still asks for the
        choice, and in other words than without: what it chooses is noted `at_once`."""
        cls, source = self._of.cls, question.source
        choosers = [] if source is None else self._choosers.get(type(source).__name__, [])
        if source is None or len(choosers) != 1:
            return None
        types, fillable = choosers[0].offered, self._fillable(choosers[0].node)
        if cls not in choice_with(backend, types, fillable, source).fillable:
            return None
        at_once.chosen = False
        try:
            chosen, made = await asked.route(source, types, fillable)
        except RouteError:
            return None
        except FillError as error:
            if error.node_type is cls:
                at_once.chosen = True
                raise
            return None
        at_once.chosen = chosen is cls
        return made if type(made) is cls else None

    def _fillable(self, cls: type[Node]) -> Sequence[type[Node]]:
        """The successors that ask the same LM in a run."""
        own = student_for(cls, self._lm)
        successors = plan_of(cls, strict=True).successors
        return [each for each in successors if _is_same(student_for(each, self._lm), own)]


@dataclass(slots=True)
class _AtOnce:
    """What an LM chose that was asked to choose and fill at once; None where it was not."""

    chosen: bool | None = None


def _is_same(lm: object, other: object) -> bool:
    return lm is other or (isinstance(lm, str) and lm == other)
