"""Metrics of an optimization: what a user gives, be it nothing, a function in DSPy's manner,
functions by node type or a judge, becomes one `PartMetric` for a node's fill and one for its
choice."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from bae.evals.judge import Judge
from bae.evals.metrics import Score, call_metric, fields_metric, node_transition_metric
from bae.exceptions import BaeError, NodeError
from bae.node import Node
from bae.optimizer.node_schemas import Part, is_node_class
from bae.plan import plan_of

Metric = Callable[..., Any] | Mapping[type[Node], Callable[..., Any]] | None
"""What scores answers: a function `(example, prediction, trace=None)` in DSPy's manner, a mapping
from node classes to a `NodeMetric` each, a `Judge`, or None for bae's own."""


def metrics_for(cls: type[Node], part: Part, metric: Metric = None) -> PartMetric:
    """The metric for one part of a node, of what a user gave for all of them.

    Without one, choices are compared by name, and fields by `fields_metric`. A mapping and a judge
    are for fields alone. A function is called for both, as DSPy calls one, with an example and a
    prediction that have the fields by name, or `choice`. One of two parameters is refused: it might
    be meant for an example and a prediction, or for two nodes.
    """
    if part not in ("fill", "choice"):
        raise ValueError(f"part={part!r}: give 'fill' or 'choice'")
    if metric is not None and not isinstance(metric, Mapping) and not callable(metric):
        raise TypeError(
            f"{metric!r} is no metric: give a function (example, prediction, trace=None), a "
            "mapping from node classes to functions (expected, given), or a Judge"
        )
    return (ChoiceMetric if part == "choice" else FillMetric)(cls, metric)


NO_ANSWER = Score(0.0, "there is no valid answer")


class PartMetric(ABC):
    """How good answers are for one part of a node. Call it with an example and the JSON of an
    answer, or None where the model gave no valid one."""

    part: Part

    def __init__(self, node: type[Node], metric: Any) -> None:
        self.node = node
        self.accept = 1.0
        """The score from which on an answer is good enough to be shown as an example."""

    async def __call__(
        self,
        example: Any,
        answer: Mapping[str, Any] | Node | None,
        *,
        index: int | None = None,
        trace: Any = None,
    ) -> Score:
        """Score an answer. `index`, the place of the example among the others, is for errors;
        `trace` is passed on to a metric in DSPy's manner."""
        if answer is None:
            return NO_ANSWER
        return await self._score(example, answer, _Place(self, example, index), trace)

    @abstractmethod
    async def _score(
        self, example: Any, answer: Mapping[str, Any] | Node, place: _Place, trace: Any
    ) -> Score: ...


class ChoiceMetric(PartMetric):
    """How good the choice of a successor is: right or wrong, unless a function says otherwise."""

    part = "choice"

    def __init__(self, node: type[Node], metric: Any) -> None:
        super().__init__(node, metric)
        self._function = _in_the_manner_of_dspy(metric)

    async def _score(
        self, example: Any, answer: Mapping[str, Any] | Node, place: _Place, trace: Any
    ) -> Score:
        from bae.lm.prompts import names_of

        chosen = answer["choice"] if isinstance(answer, Mapping) and "choice" in answer else None
        try:
            expected = example["choice"]
        except (KeyError, TypeError):
            raise BaeError(
                f"{place}: the example has no choice",
                code="bae-metric-example",
                fix=f"make examples with choice_examples({self.node.__name__}, …)",
            ) from None
        offered = names_of(plan_of(self.node, strict=True).offered)
        if not isinstance(chosen, str) or chosen not in offered:
            return Score(0.0, f"{chosen!r} was chosen, which was not offered")
        if self._function is None:
            same = node_transition_metric({"choice": expected}, {"choice": chosen})
            why = "" if same else f"{chosen} was chosen, where {expected} was right"
            return Score(float(same), why)
        names = {"node_type": self.node.__name__, "next_node_type": expected}
        shown = _example(example, {n: v for n, v in names.items() if n not in example})
        prediction = _prediction({"choice": chosen, "next_node_type": chosen})
        return await _asked(self._function, shown, prediction, trace, place)


class FillMetric(PartMetric):
    """How good the filled fields of a node are."""

    part = "fill"

    def __init__(self, node: type[Node], metric: Any) -> None:
        from bae.lm.prompts import asked_fields

        super().__init__(node, metric)
        self._asked = asked_fields(node)
        self._by_nodes: Callable[..., Any] = fields_metric
        self._function: Callable[..., Any] | None = None
        if isinstance(metric, Judge):
            self._by_nodes = metric
        elif isinstance(metric, Mapping):
            given = cast(Mapping[Any, Callable[..., Any]], metric)
            _check_keys(given)
            self._by_nodes = given.get(node, fields_metric)
        elif metric is not fields_metric:
            self._function = _in_the_manner_of_dspy(metric)
        if isinstance(self._by_nodes, Judge):
            self.accept = self._by_nodes.threshold

    async def _score(
        self, example: Any, answer: Mapping[str, Any] | Node, place: _Place, trace: Any
    ) -> Score:
        context = dict(self._context(example))
        given = self._made(answer, context) if isinstance(answer, Mapping) else answer
        if isinstance(given, str):
            return Score(0.0, f"the answer is not valid: {given}")
        held = {n: example[key] for n, key in self._keys(example) if n in self._asked}
        expected = self._made(held, context)
        if isinstance(expected, str):
            raise BaeError(
                f"{place}: what it expects does not fit {self.node.__name__}: {expected}",
                code="bae-metric-example",
                fix=f"make examples with the class {self.node.__name__} as it is now",
            )
        if self._function is None:
            return await call_metric(self._by_nodes, expected, given, where=str(place))
        # Both sides are the values that the class makes of the JSON, so that they can be compared.
        names = {n: key for n, key in self._keys(example) if n in self._asked}
        shown = _example(example, {key: getattr(expected, n) for n, key in names.items()})
        prediction = _prediction({key: getattr(given, n) for n, key in names.items()})
        return await _asked(self._function, shown, prediction, trace, place)

    def _keys(self, example: Any) -> Iterator[tuple[str, str]]:
        """The fields that an example has, each with what it is called there: a name that DSPy
        needs for itself has an underscore after it."""
        fields = self.node.__pydantic_fields__
        for name in fields:
            key = name
            if key not in example:
                key += "_"
                while key in fields:
                    key += "_"
            if key in example:
                yield name, key

    def _context(self, example: Any) -> Iterator[tuple[str, Any]]:
        """What was looked up for the node, as far as what the model saw of it can be read back:
        fields that cannot be read back are left out."""
        from bae.draft import validated

        sourced = {field.name for field in plan_of(self.node, strict=True).context}
        for name, key in self._keys(example):
            if name in sourced:
                try:
                    yield name, validated(self.node, {name: example[key]}, frozenset({name}))[name]
                except Exception:  # validators are code of the node's own
                    continue

    def _made(self, values: Mapping[str, Any], context: Mapping[str, Any]) -> Node | str:
        """The node of these values, or why there is none."""
        from bae.lm.answers import Wrong, build

        values = {n: v for n, v in values.items() if n in self._asked}
        try:
            built = build(self.node, self._asked, values, context)
        except NodeError:
            if not context:
                raise
            # What the model saw of the context is not all there is of it.
            built = build(self.node, self._asked, values, {})
        return "; ".join(built.errors) if isinstance(built, Wrong) else built


class _Place:
    """Which example of which part a metric was called for, as text."""

    def __init__(self, metric: PartMetric, example: Any, index: int | None) -> None:
        self._metric, self._example, self._index = metric, example, index

    def __str__(self) -> str:
        part = "the choice after" if self._metric.part == "choice" else "the fields of"
        text = f"{part} {self._metric.node.__name__}"
        if self._index is not None:
            text += f", example {self._index}"
        try:
            run = self._example["bae"]["run_id"]
        except (KeyError, TypeError):
            run = ""
        return f"{text} (run {run})" if run else text


async def _asked(
    function: Callable[..., Any], example: Any, prediction: Any, trace: Any, place: _Place
) -> Score:
    given = (example, prediction, trace, None, None)[: _arity(function)]
    return await call_metric(
        function,
        *given,
        where=str(place),
        fix="a metric is called for choices, with .choice, and for filled fields, with these; to "
        "score the fields alone, give {NodeClass: function of (expected, given)}",
    )


def _in_the_manner_of_dspy(metric: Any) -> Callable[..., Any] | None:
    """The function a user gave for every part, if it is one: bae's own are what is taken anyway."""
    if metric is None or isinstance(metric, Mapping | Judge):
        return None
    if metric is node_transition_metric or metric is fields_metric:
        return None
    if _arity(metric) < 3:
        raise TypeError(
            f"the metric {getattr(metric, '__qualname__', metric)!r} takes fewer than three "
            "parameters: give {NodeClass: function} for one of the expected node and the given "
            "one, or let it take (example, prediction, trace=None)"
        )
    return metric


def _arity(function: Callable[..., Any]) -> int:
    """How many of example, prediction, trace, and the two that GEPA adds, a metric takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        return 3
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return 3
    places = [each for each in parameters if each.kind in _PLACES]
    required = sum(each.default is each.empty for each in places)
    return max(required, min(3, len(places)))


_PLACES = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _example(example: Any, more: Mapping[str, Any]) -> Any:
    from bae.lm.extras import load_dspy

    if hasattr(example, "copy") and hasattr(example, "with_inputs"):
        return example.copy(**more)
    made = load_dspy("a metric in DSPy's manner").Example(**{**example, **more})
    return made.with_inputs(*(name for name in example if name not in more))


def _prediction(values: Mapping[str, Any]) -> Any:
    from bae.lm.extras import load_dspy

    return load_dspy("a metric in DSPy's manner").Prediction(**values)


def _check_keys(metrics: Mapping[Any, Any]) -> None:
    for cls, each in metrics.items():
        if not is_node_class(cls):
            raise TypeError(f"a metric is given for {cls!r}: give metrics by node class")
        if not callable(each):
            raise TypeError(f"the metric for {cls.__name__} is {each!r}: give a function")
