"""Metrics of an optimization. `metrics_for` makes a `PartMetric` for the fill or the choice of a
node from the user's metric."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from bae.draft import validate_values
from bae.evals.judge import Judge
from bae.evals.metrics import Score, call_metric, fields_metric, node_transition_metric
from bae.exceptions import BaeError, NodeError
from bae.lm.answers import Wrong, build
from bae.lm.extras import load_dspy
from bae.node import Node
from bae.optimizer.node_schemas import NodePart, is_node_class
from bae.plan import plan_of
from bae.prompts.questions import names_of
from bae.prompts.values import list_fields_to_fill

Metric = Callable[..., Any] | Mapping[type[Node], Callable[..., Any]] | None
"""The metric of an optimization: a DSPy metric `(example, prediction, trace=None)`, a mapping from
node classes to `NodeMetric` functions, a `Judge`, or None for bae's own metrics."""


def metrics_for(cls: type[Node], part: NodePart, metric: Metric = None) -> PartMetric:
    """Make the metric for one part of a node from the metric of the optimization.

    - None: fields are scored by `fields_metric`. A choice is right or wrong.
    - A mapping or a judge: scores only fields. A choice is right or wrong.
    - A function: scores fields and choices. It is called like a DSPy metric, with an example and a
      prediction. The example and the prediction have the fields by name, or `choice`.

    A function with fewer than three parameters is refused, because bae cannot know whether it
    expects two nodes, or an example and a prediction.
    """
    if part not in ("fill", "choice"):
        raise ValueError(f"part={part!r}: give 'fill' or 'choice'")
    return PartMetric(cls, part, metric)


NO_ANSWER: Final = Score(0.0, "there is no valid answer")


class PartMetric:
    """Scores the answers of one part of a node. Call it with an example and an answer. The answer
    is JSON or a node, or None if the LLM gave no valid answer."""

    def __init__(self, node: type[Node], part: NodePart, metric: Any) -> None:
        self.node = node
        self.part: NodePart = part
        self.accept = 1.0
        """The lowest score with which an answer may become an example in a prompt."""
        self._by_nodes: Callable[..., Any] = fields_metric
        self._function: Callable[..., Any] | None = None
        if isinstance(metric, Judge):
            self._by_nodes = metric
        elif isinstance(metric, Mapping):
            metrics = cast("Mapping[Any, Callable[..., Any]]", metric)
            _check_keys(metrics)
            self._by_nodes = metrics.get(node, fields_metric)
        elif metric not in (None, fields_metric, node_transition_metric):
            self._function = _check_function(metric)
        if part == "fill" and isinstance(self._by_nodes, Judge):
            self.accept = self._by_nodes.threshold

    async def __call__(
        self,
        example: Any,
        answer: Mapping[str, Any] | Node | None,
        *,
        index: int | None = None,
        trace: Any = None,
    ) -> Score:
        """Score an answer. `index` is the position of the example and appears in errors. A DSPy
        metric gets `trace`."""
        if answer is None:
            return NO_ANSWER
        place = self._place(example, index)
        if self.part == "choice":
            return await self._score_choice(example, answer, place, trace)
        return await self._score_fill(example, answer, place, trace)

    async def _score_choice(
        self, example: Any, answer: Mapping[str, Any] | Node, place: str, trace: Any
    ) -> Score:
        chosen = answer.get("choice") if isinstance(answer, Mapping) else None
        if "choice" not in example:
            raise BaeError(
                f"{place}: the example has no choice",
                code="bae-metric-example",
                fix=f"make examples with choice_examples({self.node.__name__}, …)",
            )
        expected = example["choice"]
        if chosen not in [*names_of(plan_of(self.node, strict=True).offered)]:
            return Score(0.0, f"{chosen!r} was chosen, which was not offered")
        if self._function is None:
            is_right = node_transition_metric({"choice": expected}, {"choice": chosen})
            why = "" if is_right else f"{chosen} was chosen, where {expected} was right"
            return Score(float(is_right), why)
        names = {"node_type": self.node.__name__, "next_node_type": expected}
        shown = {name: value for name, value in names.items() if name not in example}
        prediction = {"choice": chosen, "next_node_type": chosen}
        return await self._call(example, shown, prediction, trace, place)

    async def _score_fill(
        self, example: Any, answer: Mapping[str, Any] | Node, place: str, trace: Any
    ) -> Score:
        plan, keys, asked = plan_of(self.node, strict=True), self._keys(example), self._asked
        sourced = {field.name for field in plan.context}
        looked_up = {name: example[key] for name, key in keys.items() if name in sourced}
        # The LLM may have seen only a part of the context.
        context = read_back(self.node, looked_up)
        answered = self._build(answer, context) if isinstance(answer, Mapping) else answer
        if isinstance(answered, str):
            return Score(0.0, f"the answer is not valid: {answered}")
        names = {name: key for name, key in keys.items() if name in asked}
        expected = self._build({name: example[key] for name, key in names.items()}, context)
        if isinstance(expected, str):
            raise BaeError(
                f"{place}: the expected answer does not fit {self.node.__name__}: {expected}",
                code="bae-metric-example",
                fix=f"make examples with the class {self.node.__name__} as it is now",
            )
        if self._function is None:
            return await call_metric(self._by_nodes, expected, answered, where=place)
        # Pass the parsed values of both sides, so that the metric can compare them.
        shown = {key: getattr(expected, name) for name, key in names.items()}
        prediction = {key: getattr(answered, name) for name, key in names.items()}
        return await self._call(example, shown, prediction, trace, place)

    async def _call(
        self,
        example: Any,
        shown: Mapping[str, Any],
        prediction: Mapping[str, Any],
        trace: Any,
        place: str,
    ) -> Score:
        """Call the user's metric as DSPy does: with a prediction, and with the example extended by
        `shown`."""
        assert self._function is not None
        dspy = load_dspy("a metric in DSPy's manner")
        if not isinstance(example, dspy.Example):
            inputs = [name for name in example if name not in shown]
            example = dspy.Example(**example).with_inputs(*inputs)
        arguments = (example.copy(**shown), dspy.Prediction(**prediction), trace, None, None)
        return await call_metric(
            self._function,
            *arguments[: _arity(self._function)],
            where=place,
            fix="the metric is called for choices, with .choice, and for fills, with the fields; "
            "to score only fills, give {NodeClass: function of (expected, given)}",
        )

    @property
    def _asked(self) -> tuple[str, ...]:
        return list_fields_to_fill(self.node)

    def _keys(self, example: Any) -> dict[str, str]:
        """Return the key in an example for each field of the node that the example has. If DSPy
        reserves the name of a field, its key ends with an underscore."""
        fields = self.node.__pydantic_fields__
        keys: dict[str, str] = {}
        for name in fields:
            escaped = f"{name}_"
            while escaped in fields:
                escaped += "_"
            # If the key "bae" has bae's metadata, a field of this name has the escaped key.
            key = name if name in example and (name != "bae" or escaped not in example) else escaped
            if key in example:
                keys[name] = key
        return keys

    def _build(self, values: Mapping[str, Any], context: Mapping[str, Any]) -> Node | str:
        """Build a node from an answer's values. If they are invalid, return the reason."""
        values = {name: value for name, value in values.items() if name in self._asked}
        try:
            built = build(self.node, self._asked, values, context)
        except NodeError:
            if not context:
                raise
            built = build(self.node, self._asked, values, {})
        return "; ".join(built.errors) if isinstance(built, Wrong) else built

    def _place(self, example: Any, index: int | None) -> str:
        part = "the choice after" if self.part == "choice" else "the fields of"
        number = "" if index is None else f", example {index}"
        metadata: Any = example.get("bae")
        run = cast("dict[str, Any]", metadata).get("run_id") if isinstance(metadata, dict) else ""
        return f"{part} {self.node.__name__}{number}{f' (run {run})' if run else ''}"


def read_back(cls: type[Node], shown: Mapping[str, Any]) -> dict[str, Any]:
    """Validate the values of fields that a prompt showed. Leave out invalid values."""
    values: dict[str, Any] = {}
    for name, value in shown.items():
        try:
            values[name] = validate_values(cls, {name: value}, frozenset({name}))[name]
        except Exception:  # the node's own validators may raise anything
            continue
    return values


def _check_function(metric: Any) -> Callable[..., Any]:
    """Return the user's function. Raise `TypeError` if it cannot be a DSPy metric."""
    if not callable(metric):
        raise TypeError(
            f"{metric!r} is no metric: give a function (example, prediction, trace=None), a "
            "mapping from node classes to functions (expected, given), or a Judge"
        )
    if _arity(metric) < 3:
        raise TypeError(
            f"the metric {getattr(metric, '__qualname__', metric)!r} takes fewer than three "
            "parameters: give {NodeClass: function} for one of the expected node and the given "
            "one, or let it take (example, prediction, trace=None)"
        )
    return metric


def _check_keys(metrics: Mapping[Any, Any]) -> None:
    for cls, metric in metrics.items():
        if not is_node_class(cls):
            raise TypeError(f"a metric is given for {cls!r}: give metrics by node class")
        if not callable(metric):
            raise TypeError(f"the metric for {cls.__name__} is {metric!r}: give a function")


def _arity(function: Callable[..., Any]) -> int:
    """Return how many arguments of a DSPy metric a function takes. The arguments are the example,
    the prediction, the trace, and two that GEPA adds."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function written in C
        return 3
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return 3
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    required = sum(parameter.default is parameter.empty for parameter in positional)
    return max(required, min(3, len(positional)))
