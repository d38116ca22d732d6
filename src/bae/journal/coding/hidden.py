"""What of a graph must not be shown to a journal that keeps no secrets: values of dependencies that
stand in hidden fields, and what an LM is asked and answers where secrets are among it. Worked out
once per graph; `encoding.py` goes by it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from bae.journal.coding.keepable import every_graph
from bae.journal.coding.nodes import KeptNode, kept_node
from bae.journal.coding.routes import call_at, routes
from bae.recall import holders_for
from bae.records import Asker

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node


def hidden_in(graph: Graph[Any, Any]) -> Hidden:
    """What is hidden in a graph, and in those inside it."""
    found = _FOUND.get(graph)
    if found is None:
        found = _FOUND[graph] = Hidden(graph)
    return found


class Hidden:
    """What of a graph, and of those inside it, is a secret."""

    def __init__(self, graph: Graph[Any, Any]) -> None:
        graphs = every_graph(graph)
        nodes = {cls: kept_node(cls) for each in graphs for cls in each.plans}
        self._calls = _calls(nodes.values())
        secret = {cls for cls, kept in nodes.items() if kept.secret or _recalls(kept, nodes)}
        self.any = bool(secret) or any(map(_depends_on_one, nodes.values()))
        """Whether there is a secret at all."""
        self._fields = {name for kept in nodes.values() for name in kept.fields}
        self._asks: dict[Asker, bool] = {}
        for each in graphs:
            for cls, plan in each.plans.items():
                choices = {cls, *plan.successors}
                self._note(Asker("choice", cls), choices & secret)
                for successor in plan.successors:
                    self._note(Asker("fill", successor), {cls, successor} & secret)

    def _note(self, doing: Asker, secret: set[type[Node]]) -> None:
        self._asks[doing] = self._asks.get(doing, False) or bool(secret)

    def call(self, node_type: type[Node], field: str, route: str) -> bool:
        """Whether the value of a dependency is a secret, or stands in a field that is not to be
        shown, here or elsewhere."""
        kept = kept_node(node_type)
        if kept.call(field, route).verdict == "secret" or (not route and field in kept.secret):
            return True
        call = call_at(kept.plan.fields[field], route) if self._calls else None
        return call is not None and call.key in self._calls

    def asks(self, asker: Asker) -> bool:
        """Whether an LM is told, or tells, a secret by an asker. What bodies and functions ask is
        not known, so there any secret of the graph counts."""
        return self._asks.get(asker, self.any)

    def place_of(self, said: str) -> str:
        """The field that a complaint about an answer begins with, and nothing it says: where it is
        of no field, or goes on to a key, those may be values themselves."""
        name = said.partition(":")[0].partition(".")[0]
        return name if name in self._fields else "withheld"


def _calls(nodes: Any) -> set[Hashable]:
    """The dependencies whose value stands in a field that is not to be shown: it is made once, and
    recorded where it was asked for first."""
    return {
        field.call.key
        for kept in nodes
        for field in kept.plan.sourced
        if field.name in kept.secret and field.kind == "dep" and field.call is not None
    }


def _depends_on_one(kept: KeptNode) -> bool:
    return any(
        kept.call(field.name, route).verdict == "secret"
        for field in kept.plan.sourced
        for route in routes(field.call)
    )


def _recalls(kept: KeptNode, nodes: dict[type[Node], KeptNode]) -> bool:
    """Whether a field may find its value in one that is a secret, though it is none itself."""
    return any(
        not other.secret.isdisjoint(name for name, _ in holders_for(field, cls))
        for field in kept.plan.sourced
        if field.kind == "recall"
        for cls, other in nodes.items()
        if other.secret
    )


_FOUND: Final[WeakKeyDictionary[Graph[Any, Any], Hidden]] = WeakKeyDictionary()
