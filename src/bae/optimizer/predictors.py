"""Predictors of node classes, which DSPy's optimizers work on: one for the fill of the fields and
one for the choice of the next node; made from artifacts, and saved as artifacts."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from pydantic_core import to_jsonable_python

from bae.exceptions import describe
from bae.lm.extras import load_dspy
from bae.lm.policies.learned import LearnedPrompt, PromptExample
from bae.lm.prompts import asked_fields, choice_instruction, names_of
from bae.lm.signatures import (
    choice_signature,
    is_known,
    model_name,
    node_to_signature,
    says,
    with_source,
)
from bae.optimizer.artifacts import (
    Artifact,
    Made,
    load_artifacts,
    misfit,
    save_artifacts,
)
from bae.optimizer.node_schemas import Part, chooses, is_filled, nodes_among, schema_of
from bae.plan import plan_of

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node


_log = logging.getLogger("bae.optimizer")


class NodePredictor:
    """The predictors of a node class, together a `dspy.Module`.

    `fill` is for its fields and `choice` for its successor, each a `dspy.Predict`, or None if no
    model is asked for that. `made` is how they were optimized, and `sources` the classes that the
    examples come from, as in the artifact they were loaded from.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """A module of dspy, which is imported when the first of these is made."""
        return object.__new__(_module_class() if cls is NodePredictor else cls)

    def __init__(
        self, node: type[Node], fill: Any = None, choice: Any = None, made: Made | None = None
    ) -> None:
        load_dspy("NodePredictor").Module.__init__(self)
        self.node = node
        self.fill = fill
        self.choice = choice
        self.made = made
        self.sources: dict[str, dict[str, str]] = {}

    if TYPE_CHECKING:  # by dspy.Module

        def predictors(self) -> list[Any]: ...
        def deepcopy(self) -> Self: ...

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was learned: no examples, and the instructions as they were."""
        return not (has_learned(self, "fill") or has_learned(self, "choice"))

    def forward(self, **inputs: Any) -> Any:
        """Ask for what the inputs are for: `known` alone is for a choice."""
        return self._asked(inputs)(**inputs)

    async def aforward(self, **inputs: Any) -> Any:
        """The same, in async code."""
        return await self._asked(inputs).acall(**inputs)

    def _asked(self, inputs: Mapping[str, Any]) -> Any:
        fits = self.fill is not None and inputs.keys() <= self.fill.signature.input_fields.keys()
        found = self.fill if fits else self.choice
        if found is None:
            raise TypeError(f"{self.node.__name__} has nothing to ask for with {', '.join(inputs)}")
        return found

    def __repr__(self) -> str:
        return f"NodePredictor({self.node.__name__}{', fresh' if self.is_fresh else ''})"


def fresh_predictor(cls: type[Node]) -> NodePredictor:
    """The predictor of a node class without a learned prompt, which asks as any backend does."""
    dspy = load_dspy("fresh_predictor")
    fill = dspy.Predict(with_source(node_to_signature(cls))) if is_filled(cls) else None
    choice = dspy.Predict(_choice_signature(cls)) if chooses(cls) else None
    return NodePredictor(cls, fill, choice)


def has_learned(predictor: NodePredictor, part: Part) -> bool:
    """Whether the `fill` or the `choice` of a predictor has examples, or another instruction than
    the prompt has by itself."""
    found = getattr(predictor, part)
    if found is None:
        return False
    return bool(found.demos) or not says(found.signature, _own_instruction(predictor.node, part))


def artifact_of(predictor: NodePredictor) -> Artifact:
    """What a predictor has learned, to be saved. A part without anything learned is left out, and
    so is an example that the class itself would refuse, with a warning in the log."""
    cls = predictor.node
    return Artifact(
        node=cls.__name__,
        schema=schema_of(cls),
        sources=predictor.sources,
        fill=_learned(predictor, "fill"),
        choice=_learned(predictor, "choice"),
        made=predictor.made,
    )


def predictor_of(cls: type[Node], artifact: Artifact) -> NodePredictor:
    """The predictor with what an artifact has learned: the same instructions and examples."""
    made = fresh_predictor(cls)
    made.made, made.sources = artifact.made, artifact.sources
    for predictor, learned in ((made.fill, artifact.fill), (made.choice, artifact.choice)):
        if predictor is not None and learned is not None:
            instruction = learned.instruction or predictor.signature.instructions
            predictor.signature = predictor.signature.with_instructions(instruction)
            predictor.demos = [_demo(predictor.signature, each) for each in learned.examples]
    return made


def save_optimized(
    optimized: Mapping[type[Node], Any],
    path: str | Path,
    *,
    among: Graph[Any, Any] | Iterable[type[Node]] = (),
) -> list[Path]:
    """Write what predictors have learned into a directory, one JSON file for each node class, and
    return the files.

    Give `NodePredictor`s, or `dspy.Predict`s of `node_to_signature(cls)`. One that has learned
    nothing is not written, and a file that is there for it is left alone. `among` is as for
    `save_artifacts`.
    """
    nodes_among(tuple(optimized), "save_optimized")
    learned = {cls: _as_predictor(cls, each) for cls, each in optimized.items()}
    artifacts = {cls: artifact_of(each) for cls, each in learned.items() if not each.is_fresh}
    return save_artifacts(artifacts, path, among=among)


def load_optimized(
    node_classes: Graph[Any, Any] | Iterable[type[Node]], path: str | Path
) -> dict[type[Node], NodePredictor]:
    """A predictor for every node class of a graph, those of graphs inside it too, or for the
    classes given: with the learned prompts in its file, or fresh if there is none. Raises as
    `load_artifacts` does."""
    from bae.graph import Graph

    classes = nodes_among(node_classes, "load_optimized")
    artifacts = load_artifacts(node_classes if isinstance(node_classes, Graph) else classes, path)
    return {
        cls: predictor_of(cls, artifacts[cls]) if cls in artifacts else fresh_predictor(cls)
        for cls in classes
    }


@cache
def _module_class() -> Any:
    """`NodePredictor` as a module of dspy, made when that is there."""
    dspy: Any = load_dspy("NodePredictor")

    class Module(NodePredictor, dspy.Module):
        pass

    Module.__name__ = Module.__qualname__ = NodePredictor.__name__
    return Module


def _choice_signature(cls: type[Node]) -> Any:
    signature = choice_signature(tuple(names_of(plan_of(cls, strict=True).offered)))
    return signature.with_instructions(_own_instruction(cls, "choice"))


def _own_instruction(cls: type[Node], part: Part) -> str:
    """What the prompt of a part begins with where nothing was learned."""
    plan = plan_of(cls, strict=True)
    return plan.instruction if part == "fill" else choice_instruction(plan.offered)


def _learned(whole: NodePredictor, part: Part) -> LearnedPrompt | None:
    if not has_learned(whole, part):
        return None
    cls, predictor = whole.node, getattr(whole, part)
    signature = predictor.signature
    examples: list[PromptExample] = []
    for number, demo in enumerate(predictor.demos):
        try:
            example = prompt_example(cls, part, signature, dict(demo))
            json.dumps([example.known, example.answer], allow_nan=False)
            wrong = misfit(cls, part, example)
        except ValueError as error:  # what JSON cannot express, as pydantic raises it too
            example, wrong = None, describe(error)
        if example is not None and not wrong:
            examples.append(example)
            continue
        _log.warning(
            "%s: example %d of its %s is left out, since the class does not take it: %s",
            *(cls.__name__, number, part, wrong),
        )
    return LearnedPrompt(signature.instructions, tuple(examples))


# --- values by the names of a signature, and by those that a model is shown -------------------


def known_values(signature: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs in an example or a demonstration, as the JSON that a model is shown."""
    known: dict[str, Any] = {}
    context: dict[str, Any] = {}
    for name, field in signature.input_fields.items():
        if name not in values:
            continue
        value = to_jsonable_python(values[name], by_alias=False)
        if is_known(field) and isinstance(value, dict):
            known |= cast(dict[str, Any], value)
        else:
            context[model_name(name, field)] = value
    return {**known, "context": context} if context else known


def answer_values(
    cls: type[Node], part: str, signature: Any, values: Mapping[str, Any]
) -> dict[str, Any]:
    """The answer in an example, a demonstration or a prediction, as the JSON of a model."""
    names = {model_name(n, f): n for n, f in signature.output_fields.items() if n in values}
    asked = asked_fields(cls) if part == "fill" else ("choice",)
    return {
        name: to_jsonable_python(values[names[name]], by_alias=False)
        for name in asked
        if name in names
    }


def output_values(signature: Any, answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer by the names of the outputs in a signature."""
    fields = signature.output_fields.items()
    return {n: answer[model_name(n, f)] for n, f in fields if model_name(n, f) in answer}


def prompt_example(
    cls: type[Node], part: str, signature: Any, demo: Mapping[str, Any]
) -> PromptExample:
    """A demonstration as an example in a prompt."""
    known = known_values(signature, demo)
    return PromptExample(known=known, answer=answer_values(cls, part, signature, demo))


def _demo(signature: Any, example: PromptExample) -> Any:
    source = {name: value for name, value in example.known.items() if name != "context"}
    context = cast(dict[str, Any], example.known.get("context", {}))
    inputs: dict[str, Any] = {}
    for name, field in signature.input_fields.items():
        if is_known(field):
            if source:
                inputs[name] = source
        elif model_name(name, field) in context:
            inputs[name] = context[model_name(name, field)]
    outputs = output_values(signature, example.answer)
    return load_dspy("predictor_of").Example(**inputs, **outputs).with_inputs(*inputs)


def _as_predictor(cls: type[Node], given: Any) -> NodePredictor:
    dspy = load_dspy("save_optimized")
    if isinstance(given, NodePredictor):
        if given.node is not cls:
            raise TypeError(
                f"save_optimized({{{cls.__name__}: …}}): it has a predictor for "
                f"{given.node.__name__}"
            )
        return given
    found: list[Any] = given.predictors() if isinstance(given, dspy.Module) else []
    if len(found) != 1:
        raise TypeError(
            f"save_optimized({{{cls.__name__}: {given!r}}}): give a NodePredictor, or a "
            f"dspy.Predict of node_to_signature({cls.__name__})"
        )
    outputs = {model_name(n, f) for n, f in found[0].signature.output_fields.items()}
    missing = [name for name in asked_fields(cls) if name not in outputs]
    if missing:
        raise ValueError(
            f"the predictor for {cls.__name__} has no output {', '.join(missing)}: make it from "
            f"node_to_signature({cls.__name__})"
        )
    return NodePredictor(cls, found[0])
