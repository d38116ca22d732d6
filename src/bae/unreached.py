"""The node classes of a module that no graph of it leads to: an old one that was left behind, or
one that a return type forgets. `bae check` names them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from bae.graph import Graph, every_graph
from bae.node import Node


def unreached(graph: Graph[Any, Any], module: ModuleType) -> list[type[Node]]:
    """The node classes that a module defines and that neither this graph, nor a graph inside it,
    nor another graph of the module leads to. Classes that others are made from are left out, and
    so are those whose name begins with an underscore. Where it is not known where some node leads,
    there are none to name."""
    there: list[Any] = [each for each in vars(module).values() if isinstance(each, Graph)]
    graphs = [inner for each in (graph, *there) for inner in every_graph(each)]
    plans = {cls: plan for each in graphs for cls, plan in each.plans.items()}
    if any(plan.misrouted or plan.unresolved for plan in plans.values()):
        return []
    defined = [
        each
        for name, each in vars(module).items()
        if isinstance(each, type)
        and issubclass(each, Node)
        and each.__module__ == module.__name__
        and not name.startswith("_")
    ]
    known = {*plans, *defined}
    return [
        cls
        for cls in dict.fromkeys(defined)
        if cls not in plans and not any(cls in other.__mro__[1:] for other in known)
    ]
