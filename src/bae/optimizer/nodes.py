"""The node classes that a graph or a list stands for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from bae.evals.case_types import every_node
from bae.node import Node

if TYPE_CHECKING:
    from bae.graph import Graph


def nodes_among(nodes: Graph[Any, Any] | Iterable[type[Node]], by: str) -> tuple[type[Node], ...]:
    """The node classes that `nodes` stands for, each once; `by` is who was given them."""
    from bae.graph import Graph

    if isinstance(nodes, Graph):
        return every_node(nodes)
    wrong = TypeError(f"{by} takes a Graph, or node classes, and not {nodes!r}")
    if isinstance(nodes, type) or not isinstance(cast(object, nodes), Iterable):
        raise wrong
    found = tuple(dict.fromkeys(nodes))
    if not all(is_node_class(cls) for cls in found):
        raise wrong
    return found


def is_node_class(value: object) -> bool:
    """Whether something is a class of nodes."""
    return isinstance(value, type) and issubclass(value, Node)
