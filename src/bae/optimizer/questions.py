"""Ask the questions of one part of a node from examples instead of a run, with or without a learned
prompt. The prompts are exactly the prompts of a run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, cast

from pydantic import create_model
from pydantic_core import from_json

from bae.evals.case_types import every_node
from bae.evals.judge import Refusals
from bae.exceptions import BaeError, BaeLMError, FillError, RouteError
from bae.graph_plan import plan_of_graph
from bae.language_model import PLAIN_SCENE, Scene
from bae.lm.answers import Wrong, read_fill, read_json
from bae.lm.backend import Answer, Prompt
from bae.lm.policies.learned import LearnedPrompt, NodePrompts, WithPrompts, drop_repeated_context
from bae.lm.policies.policy import Policy
from bae.lm.requests import ask
from bae.lm.signatures import dump_inputs
from bae.node import Node
from bae.optimizer.calls import student_for
from bae.optimizer.metrics import read_back
from bae.optimizer.node_schemas import NodePart, chooses
from bae.optimizer.predictors import (
    answer_values,
    output_values,
    prompt_example,
)
from bae.plan import plan_of
from bae.prompts.questions import (
    choice_instruction,
    choice_of,
    fill_question,
    list_fields_to_fill,
    names_of,
    text_form,
)
from bae.prompts.values import text_of_question
from bae.usage import Attempt, CallEvent, metered

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.lm.backend import Backend


class PartQuestions:
    """Makes and asks the questions of one part of a node class.

    `predictor` is the part's predictor with the plain prompt. Examples and demonstrations use the
    names of its signature. With a `graph`, questions have its scene, such as the system text.
    """

    def __init__(
        self, cls: type[Node], part: NodePart, predictor: Any, graph: Graph[Any, Any] | None = None
    ) -> None:
        self.cls = cls
        self.part: NodePart = part
        self.predictor = predictor
        self.signature = predictor.signature
        self.scene = scene_in(graph, cls)
        graphs = () if graph is None or part == "choice" else graph.graphs
        self._recalled = {
            before.name: {
                field.name: origin
                for field in plan_of(cls).context
                if (origin := field.comes_from(before.node)) is not None
            }
            for graph_ in graphs
            for before in plan_of_graph(graph_).plans.values()
            if cls in before.successors
        }
        plan = plan_of(cls, strict=True)
        self.types = plan.offered
        self.instruction = plan.instruction if part == "fill" else choice_instruction(self.types)

    def scene_after(self, previous: Node | None) -> Scene:
        """Return the scene of a question whose previous node was made from an example."""
        recalled = self._recalled.get(type(previous).__name__)
        if previous is None or not recalled:
            return self.scene
        origins = {name: (previous, field) for name, field in recalled.items()}
        return self.scene.recalling({self.cls: origins})

    def known(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs of an example or a demonstration as the JSON that an LLM sees."""
        return dump_inputs(self.signature, values)

    def answer(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the answer in an example, a demonstration or a prediction as JSON, with the names
        that an LLM sees. None if there is no answer."""
        return answer_values(self.cls, self.part, self.signature, values) or None

    def outputs(self, answer: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return an answer with the output names of the signature."""
        return {} if answer is None else output_values(self.signature, answer)

    def learned_prompt(
        self, instruction: str, demos: Iterable[Mapping[str, Any]]
    ) -> LearnedPrompt | None:
        """Make a learned prompt from an instruction and demonstrations. None if there are no
        demonstrations and the instruction is the plain instruction."""
        examples = tuple(
            prompt_example(self.cls, self.part, self.signature, demo) for demo in demos
        )
        changed_instruction = "" if instruction.split() == self.instruction.split() else instruction
        return (
            LearnedPrompt(changed_instruction, examples)
            if changed_instruction or examples
            else None
        )

    async def ask_once(
        self, backend: Backend, known: Mapping[str, Any], learned_prompt: LearnedPrompt | None
    ) -> dict[str, Any] | None:
        """Ask the LLM once. Return None if its answer cannot be read."""
        question = PartQuestion(self, known)
        try:
            answer = await ask(self.with_prompt(backend, question, learned_prompt), question.prompt)
        except FillError:  # from an LM that validates its answers itself
            return None
        if isinstance(answer.value, Node):
            return self.answer_in(answer.value)
        values = read_fill(question.prompt, answer) if self.part == "fill" else read_json(answer)
        return None if isinstance(values, Wrong) else values

    def with_prompt(
        self, backend: Backend, question: PartQuestion, learned_prompt: LearnedPrompt | None
    ) -> Backend:
        """Return the backend with a learned prompt for this part."""
        if learned_prompt is None:
            return backend
        if self.part == "fill":
            return WithPrompts(backend, {self.cls: NodePrompts(fill=learned_prompt)})
        # The class of the previous node is made from the example, so use this class as the key.
        assert question.previous is not None
        return WithPrompts(backend, {type(question.previous): NodePrompts(choice=learned_prompt)})

    def answer_in(self, node: Node) -> dict[str, Any]:
        """Return the fields of a node that an LLM filled, as JSON."""
        try:
            text = node.model_dump_json(
                include=set(list_fields_to_fill(self.cls)),
                by_alias=False,
                round_trip=True,
                warnings=False,
            )
        except Exception as error:  # the node's own serializers may raise anything
            raise BaeError(
                f"{self.cls.__name__} cannot be written as JSON, so nothing can be learned from it",
                code="bae-optimize-unsayable",
                cause=error,
                fix=f"fix the serializers of {self.cls.__name__}, or leave it out with nodes=…",
            ) from error
        return from_json(text)


class PartQuestion:
    """A question of a part, made from the known values of an example."""

    def __init__(self, of: PartQuestions, known: Mapping[str, Any]) -> None:
        form = text_form(of.cls) if of.part == "fill" else ""
        instruction = of.instruction
        nodes = {name: value for name, value in known.items() if name != "context"}
        previous = [node_like(name, fields) for name, fields in nodes.items()]
        if of.part == "choice" and not previous:
            previous.append(node_like(of.cls.__name__, {}))
        self.previous = previous[0] if previous else None
        self.scene = of.scene_after(self.previous)
        self.resolved = read_back(of.cls, known.get("context", {}))
        if of.part == "fill":
            prompt = fill_question(of.cls, {}, of.instruction, None, self.scene)
            question = replace(prompt.question, resolved=self.resolved, previous=self.previous)
            prompt = replace(prompt, question=question)
        else:
            choice = choice_of(of.types, ())
            instruction, prompt = choice.instruction, choice.prompt(self.previous, scene=self.scene)
        shown = drop_repeated_context(prompt.question, known)
        self.prompt = prompt.with_question(text_of_question(instruction, shown, form))


def scene_in(graph: Graph[Any, Any] | None, cls: type[Node]) -> Scene:
    """Return the scene of a question about a class in a run of a graph. If several graphs around
    the class have a system text, the innermost graph is used."""
    graphs = () if graph is None else graph.graphs
    scenes = [
        plan_of_graph(graph_).scene for graph_ in graphs if graph_ is graph or cls in graph_.nodes
    ]
    return next((scene for scene in reversed(scenes) if scene is not None), PLAIN_SCENE)


class Reworded(Policy):
    """Asks the inner LM with another text for each prompt."""

    def __init__(self, lm: Backend, text_for: Callable[[Prompt], str]) -> None:
        super().__init__(lm)
        self._text_for = text_for

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the inner LM with the other text."""
        return await self.ask(prompt.with_question(self._text_for(prompt)))

    async def reject(self, prompt: Prompt) -> None:
        """Report an invalid answer to the inner LM, with the prompt that it was asked."""
        await super().reject(prompt.with_question(self._text_for(prompt)))


def _text_with_known(known: Mapping[str, Any], prompt: Prompt) -> str:
    """Return the text of a prompt, with the known values of an example in place of the prompt's own
    values."""
    question = prompt.question
    instruction, form, filled = question.instruction, "", question.fillable
    if question.target is not None:
        form = text_form(question.target)
    else:
        instruction = choice_of(question.types, filled, filled).instruction
    return text_of_question(instruction, drop_repeated_context(question, known), form)


def node_like(name: str, fields: Any) -> Node:
    """Make a node whose class has this name, with these JSON fields."""
    values = cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}
    return _class_like(name, tuple(values)).model_construct(**values)


@lru_cache(maxsize=256)
def _class_like(name: str, fields: tuple[str, ...]) -> type[Node]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # field names may shadow others, as in the real class
        types: dict[str, Any] = dict.fromkeys(fields, (Any, None))
        return create_model(name, __base__=Node, __module__=__name__, **types)


@dataclass(slots=True)
class RunAnswer:
    """The answer to a question that was asked as a run asks it."""

    answer: dict[str, Any] | None = None
    """The answer as JSON. None if there is no valid answer."""
    valid: bool = False
    """Whether the first answer was valid."""
    refusal: str = ""
    """Why the LM refused the question, such as its length. Empty if it did not."""
    chosen: bool | None = None
    """Whether the LM chose the node, if it was asked to choose and fill in one call. Otherwise
    None."""


class RunAsker:
    """Asks the questions of one part of a node as runs ask them.

    `lm` is the LM of the runs. Only nodes with the same LM can be chosen and filled in one call.
    Pass the `graph` to ask for a fill and the choice before it in one call if a run does so.
    """

    def __init__(
        self, questions: PartQuestions, lm: Any, graph: Graph[Any, Any] | None = None
    ) -> None:
        self._questions = questions
        self._lm = lm
        self._refusals = Refusals()
        plans = [plan_of(cls, strict=True) for cls in (every_node(graph) if graph else ())]
        self._choosers = [
            plan for plan in plans if chooses(plan.node) and questions.cls in plan.successors
        ]

    async def ask(
        self, backend: Backend, known: Mapping[str, Any], learned_prompt: LearnedPrompt | None
    ) -> RunAnswer:
        """Ask a question with or without a learned prompt, and ask again after an invalid answer,
        as a run does."""
        result = RunAnswer()
        verdicts: list[str] = []

        def watch(event: CallEvent) -> None:
            if isinstance(event, Attempt):
                verdicts.append(event.verdict)

        with metered(watch):
            question = PartQuestion(self._questions, known)
            prompted = self._questions.with_prompt(backend, question, learned_prompt)
            reworded = Reworded(prompted, partial(_text_with_known, known))
            try:
                if self._questions.part == "choice":
                    result.answer = await self._choose(backend, reworded, question)
                else:
                    node = await self._fill_in_one_call(backend, reworded, question, result)
                    if node is None:
                        verdicts.clear()  # the verdicts so far are about the choice
                        node = await reworded.fill(
                            self._questions.cls,
                            question.resolved,
                            self._questions.instruction,
                            question.previous,
                            scene=question.scene,
                        )
                    result.answer = self._questions.answer_in(node)
                self._refusals.reset()
            except (FillError, RouteError):
                self._refusals.reset()
            except BaeLMError as error:  # the LM may accept the next question
                if not self._refusals.is_about_the_question(error):
                    raise
                verdicts.clear()
                result.refusal = error.message
        result.valid = bool(verdicts) and all(verdict == "valid" for verdict in verdicts)
        return result

    async def _choose(
        self, backend: Backend, asked: Backend, question: PartQuestion
    ) -> dict[str, Any]:
        """Ask for the choice.

        Where a run chooses and fills in one call, a learned prompt needs two calls. Make the second
        call too, because a run has to pay for it.
        """
        types, previous = self._questions.types, cast(Node, question.previous)
        fillable = self._fillable(self._questions.cls)
        try:
            chosen, node = await asked.route(previous, types, fillable, scene=question.scene)
        except FillError as error:  # the choice is valid, but its fill is not
            if error.node_type not in types:
                raise
            chosen = error.node_type
        else:
            if node is None and chosen in backend.offer(previous, types, fillable).fillable:
                with suppress(FillError):
                    await asked.fill(
                        chosen, {}, plan_of(chosen).instruction, previous, scene=question.scene
                    )
        names = {cls: name for name, cls in names_of(types).items()}
        return {"choice": names[chosen]}

    async def _fill_in_one_call(
        self, backend: Backend, asked: Backend, question: PartQuestion, result: RunAnswer
    ) -> Node | None:
        """If a run chooses and fills the node in one call, ask this way and set `result.chosen`.
        Return the node if the LLM chose and filled it, otherwise None.

        With a learned prompt for the fill, this asks only for the choice.
        """
        cls, previous = self._questions.cls, question.previous
        choosers = [
            chooser for chooser in self._choosers if chooser.name == type(previous).__name__
        ]
        if previous is None or len(choosers) != 1:
            return None
        types, fillable = choosers[0].offered, self._fillable(choosers[0].node)
        if cls not in backend.offer(previous, types, fillable).fillable:
            return None
        result.chosen = False
        try:
            chosen, node = await asked.route(previous, types, fillable, scene=question.scene)
        except RouteError:
            return None
        except FillError as error:
            result.chosen = error.node_type is cls
            if result.chosen:
                raise
            return None
        result.chosen = chosen is cls
        return node if type(node) is cls else None

    def _fillable(self, cls: type[Node]) -> Sequence[type[Node]]:
        """Return the successors that ask the same LM as `cls` in a run."""
        chooser_lm = student_for(cls, self._lm)
        lms = {
            successor: student_for(successor, self._lm)
            for successor in plan_of(cls, strict=True).successors
        }
        return [
            successor
            for successor, lm in lms.items()
            if lm is chooser_lm or (isinstance(lm, str) and lm == chooser_lm)
        ]
