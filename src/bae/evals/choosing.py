"""Which choices were right: a case may name the nodes that its run should come by; and where it
says what the run should end at, the shape of the graph says which successors of a node can lead
there. `scoring.py` asks."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
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

    def scores(
        self, run: RunMeasure, end: type[Node] | None, named: AbstractSet[type[Node]]
    ) -> dict[type[Node], Score]:
        """How good the choices were from each class that the run came to.

        Where some of the successors are among the `named`, one of these is to be chosen: in a run
        that comes by a class several times, once. Else the last choice is right that can lead to
        the `end`. One that can only lead there, or not at all, tells nothing and is left out.
        """
        found: dict[type[Node], Score] = {}
        for cls, offered in self._offered.items():
            measured = run.nodes.get(cls)
            if measured is None or not measured.chose:
                continue
            # A class that is named for its own fields is no wish to come by it once more.
            right = [each for each in offered if each in named and each is not cls]
            counting = measured.chose
            if not right or len(right) == len(offered):
                right, counting = self._leading_to(end, cls), measured.chose[-1:]
            if not right or len(right) == len(offered):
                continue
            chosen = measured.chose[-1]
            if any(each in right for each in counting):
                found[cls] = Score(1.0)
            else:
                wanted = " or ".join(_name(each) for each in right)
                said = "no valid choice" if chosen is None else f"chose {_name(chosen)}"
                found[cls] = Score(0.0, f"{said}, where {wanted} was expected")
        return found

    def _leading_to(self, end: type[Node] | None, cls: type[Node]) -> list[type[Any]]:
        """The successors of a class that can lead to the end."""
        if end is None:
            return []
        leading = self._leads_to(end)
        return [
            each
            for each in self._offered[cls]
            if (cls is end if each is NoneType else each in leading)
        ]

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
