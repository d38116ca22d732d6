"""Metrics: how good a choice is, and how good filled fields are. What a user gives, be it nothing,
a function in DSPy's manner, functions by node type or a judge, becomes one `PartMetric` for a
node's fill and one for its choice, which the optimisers and their comparison ask."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeVar

from bae.node import Node
from bae.optimizer.default_metrics import fields_metric, node_transition_metric
from bae.optimizer.part_metrics import ChoiceMetric, FillMetric, PartMetric
from bae.optimizer.scores import Score

__all__ = [
    "Metric",
    "NodeMetric",
    "PartMetric",
    "Score",
    "fields_metric",
    "metrics_for",
    "node_transition_metric",
]

N = TypeVar("N", bound=Node)

NodeMetric = Callable[[N, N], float | bool | Score | Awaitable[float | bool | Score]]
"""How good the fields of a node are: a function, async or not, of the expected node and the given
one."""

Metric = Callable[..., Any] | Mapping[type[Node], Callable[..., Any]] | None
"""What scores answers: a function `(example, prediction, trace=None)` in DSPy's manner, a mapping
from node classes to a `NodeMetric` each, a `Judge`, or None for bae's own."""


def metrics_for(
    cls: type[Node], part: Literal["fill", "choice"], metric: Metric = None
) -> PartMetric:
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
