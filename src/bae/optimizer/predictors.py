"""Predictors of node classes for DSPy's optimizers: a predictor for the fill of the fields, and a
predictor for the choice of the next node. Predictors are loaded from artifacts and saved as
artifacts."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bae.exceptions import describe
from bae.lm.extras import load_dspy
from bae.lm.policies.learned import LearnedPrompt, PromptExample
from bae.lm.signatures import (
    answered_outputs,
    check_outputs,
    choice_signature,
    dump_inputs,
    has_instruction,
    is_known,
    model_name,
    node_to_signature,
    with_source,
)
from bae.optimizer.artifacts import (
    Artifact,
    Made,
    load_artifacts,
    misfit,
    save_artifacts,
)
from bae.optimizer.node_schemas import NodePart, chooses, is_filled, nodes_among, schema_of
from bae.plan import plan_of
from bae.prompts.questions import choice_instruction, names_of
from bae.prompts.values import list_fields_to_fill

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node


_log = logging.getLogger("bae.optimizer")


@dataclass(slots=True)
class NodePredictor:
    """The DSPy predictors of a node class."""

    node: type[Node]
    """The node class."""
    fill: Any = None
    """The `dspy.Predict` for the fields. None if no LLM fills them, or if the class has
    `Text(parse)`."""
    choice: Any = None
    """The `dspy.Predict` for the successor. None if no LLM chooses it."""
    made: Made | None = None
    """How the learned prompts were made."""
    sources: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """The `sources` of the predictor's artifact."""

    @property
    def is_fresh(self) -> bool:
        """Whether the prompts are plain, without learned examples or instructions."""
        return not (has_learned(self, "fill") or has_learned(self, "choice"))

    def __repr__(self) -> str:
        return f"NodePredictor({self.node.__name__}{', fresh' if self.is_fresh else ''})"


def fresh_predictor(cls: type[Node]) -> NodePredictor:
    """Make the predictor of a node class with plain prompts."""
    dspy = load_dspy("fresh_predictor")
    fill = dspy.Predict(with_source(node_to_signature(cls))) if is_filled(cls) else None
    choice = dspy.Predict(_choice_signature(cls)) if chooses(cls) else None
    return NodePredictor(cls, fill, choice)


def has_learned(predictor: NodePredictor, part: NodePart) -> bool:
    """Whether the `fill` or the `choice` of a predictor has examples or a new instruction."""
    dspy_predictor = getattr(predictor, part)
    if dspy_predictor is None:
        return False
    return bool(dspy_predictor.demos) or not has_instruction(
        dspy_predictor.signature, _plain_instruction(predictor.node, part)
    )


def artifact_of(predictor: NodePredictor) -> Artifact:
    """Make the artifact of a predictor, to save it. Parts that learned nothing are left out.
    Examples that the class would refuse are left out with a warning in the log."""
    cls = predictor.node
    return Artifact(
        node=cls.__name__,
        schema=schema_of(cls),
        sources=predictor.sources,
        fill=_learned_prompt(predictor, "fill"),
        choice=_learned_prompt(predictor, "choice"),
        made=predictor.made,
    )


def predictor_of(cls: type[Node], artifact: Artifact) -> NodePredictor:
    """Make a predictor with the instructions and examples of an artifact."""
    result = fresh_predictor(cls)
    result.made, result.sources = artifact.made, artifact.sources
    for predictor, learned in ((result.fill, artifact.fill), (result.choice, artifact.choice)):
        if predictor is not None and learned is not None:
            instruction = learned.instruction or predictor.signature.instructions
            predictor.signature = predictor.signature.with_instructions(instruction)
            predictor.demos = [
                demo_of(predictor.signature, example.known, example.answer)
                for example in learned.examples
            ]
    return result


def save_optimized(
    optimized: Mapping[type[Node], Any],
    path: str | Path,
    *,
    among: Graph[Any, Any] | Iterable[type[Node]] = (),
) -> list[Path]:
    """Write the learned prompts of predictors into a directory, one JSON file for each node class,
    and return the files.

    Pass `NodePredictor` objects, or `dspy.Predict` objects made from `node_to_signature(cls)`. If a
    predictor has learned nothing, it is not written, and the existing file of its class does not
    change. `among` is as for `save_artifacts`.
    """
    nodes_among(tuple(optimized), "save_optimized")
    learned = {cls: _to_predictor(cls, given) for cls, given in optimized.items()}
    artifacts = {
        cls: artifact_of(predictor) for cls, predictor in learned.items() if not predictor.is_fresh
    }
    return save_artifacts(artifacts, path, among=among)


def load_optimized(
    node_classes: Graph[Any, Any] | Iterable[type[Node]], path: str | Path
) -> dict[type[Node], NodePredictor]:
    """Load a predictor for each node class. For a graph, load predictors for all its node classes
    and for those of its inner graphs. A class without a file gets a predictor with plain prompts.
    Raises the same errors as `load_artifacts`."""
    from bae.graph import Graph

    classes = nodes_among(node_classes, "load_optimized")
    artifacts = load_artifacts(node_classes if isinstance(node_classes, Graph) else classes, path)
    return {
        cls: predictor_of(cls, artifacts[cls]) if cls in artifacts else fresh_predictor(cls)
        for cls in classes
    }


def _choice_signature(cls: type[Node]) -> Any:
    signature = choice_signature(tuple(names_of(plan_of(cls, strict=True).offered)))
    return signature.with_instructions(_plain_instruction(cls, "choice"))


def _plain_instruction(cls: type[Node], part: NodePart) -> str:
    """Return the instruction of a part without a learned prompt."""
    plan = plan_of(cls, strict=True)
    return plan.instruction if part == "fill" else choice_instruction(plan.offered)


def _learned_prompt(of: NodePredictor, part: NodePart) -> LearnedPrompt | None:
    if not has_learned(of, part):
        return None
    cls, predictor = of.node, getattr(of, part)
    signature = predictor.signature
    examples: list[PromptExample] = []
    for number, demo in enumerate(predictor.demos):
        try:
            example = prompt_example(cls, part, signature, dict(demo))
            json.dumps([example.known, example.answer], allow_nan=False)
            problem = misfit(cls, part, example)
        except ValueError as error:  # JSON or pydantic cannot express a value
            example, problem = None, describe(error)
        if example is not None and not problem:
            examples.append(example)
            continue
        _log.warning(
            "%s: example %d of its %s is left out, since the class does not take it: %s",
            *(cls.__name__, number, part, problem),
        )
    return LearnedPrompt(signature.instructions, tuple(examples))


# --- values by the names of a signature, and by the names that an LLM sees --------------------


def answer_values(
    cls: type[Node], part: NodePart, signature: Any, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the answer in an example, a demonstration or a prediction as JSON, with the names that
    an LLM sees."""
    outputs = answered_outputs(signature, values)
    asked = list_fields_to_fill(cls) if part == "fill" else ("choice",)
    return {name: outputs[name] for name in asked if name in outputs}


def output_values(signature: Any, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer with the output names of a signature."""
    fields = signature.output_fields.items()
    return {
        name: answer[model_name(name, info)]
        for name, info in fields
        if model_name(name, info) in answer
    }


def prompt_example(
    cls: type[Node], part: NodePart, signature: Any, demo: Mapping[str, Any]
) -> PromptExample:
    """Convert a demonstration to an example in a prompt."""
    answer = answer_values(cls, part, signature, demo)
    return PromptExample(dump_inputs(signature, demo), answer)


def demo_of(signature: Any, known: Mapping[str, Any], answer: Mapping[str, Any]) -> Any:
    """Make the `dspy.Example` of known values and an answer, with the names of a signature."""
    nodes = {name: value for name, value in known.items() if name != "context"}
    context = cast("Mapping[str, Any]", known.get("context") or {})
    inputs: dict[str, Any] = {}
    for name, info in signature.input_fields.items():
        if is_known(info):
            if nodes:
                inputs[name] = nodes
        elif model_name(name, info) in context:
            inputs[name] = context[model_name(name, info)]
    values = {**inputs, **output_values(signature, answer)}
    return load_dspy("demo_of").Example(values).with_inputs(*inputs)


def _to_predictor(cls: type[Node], given: Any) -> NodePredictor:
    if isinstance(given, NodePredictor):
        if given.node is not cls:
            raise TypeError(
                f"save_optimized({{{cls.__name__}: …}}): it has a predictor for "
                f"{given.node.__name__}"
            )
        return given
    is_module = isinstance(given, load_dspy("save_optimized").Module)
    inner: list[Any] = given.predictors() if is_module else []
    if len(inner) != 1:
        raise TypeError(
            f"save_optimized({{{cls.__name__}: {given!r}}}): give a NodePredictor, or a "
            f"dspy.Predict of node_to_signature({cls.__name__})"
        )
    check_outputs(cls, inner[0].signature)
    return NodePredictor(cls, inner[0])
