"""Which choices were right: where a case says what its run should end at, the shape of the graph
says which successors of a node can lead there. `scoring.py` asks."""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Any

from bae.optimizer.scores import Score

if TYPE_CHECKING:
    from bae.evals.measuring import RunMeasure
    from bae.graph import Graph
    from bae.node import Node


class Choosing:
    """The choices that an LM makes in a graph, and what they can lead to."""

    def __init__(self, graph: Graph[Any, Any]) -> None:
        self._offered = {
            cls: plan.offered
            for cls, plan in graph.plans.items()
            if not plan.written and len(plan.offered) > 1
        }
        self._edges = graph.edges
        self._leading: dict[type[Node], frozenset[type[Node]]] = {}

    def scores(self, run: RunMeasure, end: type[Node]) -> dict[type[Node], Score]:
        """How good the last choice from each class was that the run came to: 1 where it can lead
        to the `end`, and 0 where it cannot, or none was made. A choice that can only lead there,
        or not at all, tells nothing and is left out."""
        leading = self._leads_to(end)
        found: dict[type[Node], Score] = {}
        for cls, offered in self._offered.items():
            measured = run.nodes.get(cls)
            if measured is None or not measured.chose:
                continue
            right = [
                each for each in offered if (cls is end if each is NoneType else each in leading)
            ]
            if not right or len(right) == len(offered):
                continue
            chosen = measured.chose[-1]
            if chosen in right:
                found[cls] = Score(1.0)
            else:
                wanted = " or ".join(_name(each) for each in right)
                said = "no valid choice" if chosen is None else f"chose {_name(chosen)}"
                found[cls] = Score(0.0, f"{said}, where {wanted} was expected")
        return found

    def _leads_to(self, end: type[Node]) -> frozenset[type[Node]]:
        """The classes from which a run can come to the end, itself among them."""
        found = self._leading.get(end)
        if found is None:
            reached = {end}
            grown = True
            while grown:
                before = len(reached)
                reached |= {cls for cls, to in self._edges.items() if not reached.isdisjoint(to)}
                grown = len(reached) > before
            found = self._leading[end] = frozenset(reached)
        return found


def _name(chosen: type[Any]) -> str:
    return "the end" if chosen is NoneType else chosen.__name__
