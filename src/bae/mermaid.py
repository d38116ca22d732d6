"""A graph as a Mermaid flowchart, drawn from the same plans that run it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node


_WORDS = ("end", "flowchart", "graph", "subgraph")
"""Words of Mermaid's own, in any case of letters: no identifier may be one."""


def draw(graph: Graph[Any, Any]) -> str:
    """One box a node class, one arrow an edge; rounded where the run may end, and dotted arrows
    where the LM chooses among several."""
    names = _names(graph.nodes)
    lines = ["flowchart TD"]
    for cls, plan in graph.plans.items():
        label = cls.__name__
        shape = f'(["{label}"])' if plan.may_end else f'["{label}"]'
        lines.append(f"    {names[cls]}{shape}")
    for cls, plan in graph.plans.items():
        arrow = "-.->" if not plan.written and len(plan.offered) > 1 else "-->"
        lines.extend(f"    {names[cls]} {arrow} {names[target]}" for target in plan.successors)
    return "\n".join(lines) + "\n"


def _names(nodes: tuple[type[Node], ...]) -> dict[type[Node], str]:
    """A distinct identifier for every class, its own name where that is free."""
    names: dict[type[Node], str] = {}
    for cls in nodes:
        name = "".join(c if c.isalnum() or c == "_" else "_" for c in cls.__name__)
        taken = set(names.values())
        unique, count = name, 2
        while unique in taken or unique.lower() in _WORDS:
            unique, count = f"{name}_{count}", count + 1
        names[cls] = unique
    return names
