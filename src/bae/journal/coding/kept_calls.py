"""How what dependencies return is kept: by the return type they declare, or, for a graph, as the
node it ends at. `nodes.py` asks for it, field by field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bae.calls import MISSING, CallPlan
from bae.exceptions import describe
from bae.journal.coding.nodes import kept_node
from bae.journal.coding.values import Kept, KeptNever, KeptPlain, Unkeepable, Verdict, kept_type

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node


def kept_call(call: CallPlan) -> Kept | KeptGraph:
    """How what a dependency returns is kept."""
    if call.opens:
        return KeptNever(f"{call.name} opens it, and it is closed after the run")
    if call.graph is not None:
        return KeptGraph(call.graph)
    if call.returns is MISSING:
        return KeptPlain()
    try:
        return kept_type(call.returns)
    except Exception as error:  # whatever a type does when it is asked for its schema
        return KeptNever(f"what {call.name} returns has no schema: {describe(error)}")


class KeptGraph:
    """How the nodes that a graph inside a run ends at are kept: as any node, where the whole of it
    can be."""

    def __init__(self, graph: Graph[Any, Any]) -> None:
        self._ends = {cls.__name__: cls for cls in graph.terminal_nodes}
        self.verdict: Verdict = "keep"
        self.why = ""
        for cls in self._ends.values():
            kept = kept_node(cls)
            for name in kept.live:
                self.verdict = "live"
                self.why = f"{cls.__name__}.{name}: {kept.fields[name].why}"
            if kept.secret and self.verdict == "keep":
                self.verdict, self.why = "secret", f"{cls.__name__}.{min(kept.secret)} is one"

    def dump(self, value: Node) -> str:
        """The node as JSON. Raises `Unkeepable` where it is none that the graph ends at."""
        cls = type(value)
        if self._ends.get(cls.__name__) is not cls:
            raise Unkeepable(f"the graph does not end at {cls.__name__}")
        return kept_node(cls).dump_whole(value)

    def load(self, data: Any) -> Node:
        """The node from its JSON."""
        return kept_node(self._ends[data["type"]]).load(data)
