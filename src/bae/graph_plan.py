"""`GraphPlan`: the facts that bae reads from the classes of a graph. The proof and every run of the
graph use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from bae.language_model import Scene

if TYPE_CHECKING:
    from bae.file_proof import ShownFile
    from bae.graph import Graph
    from bae.node import Node
    from bae.plan import FieldPlan, NodePlan
    from bae.secrets import Copies


class GraphPlan:
    """Facts about a graph that follow from its classes.

    Reading an attribute for the first time computes the fact and stores it. While a name in a type
    hint cannot be resolved yet, nothing is stored, and each read computes the fact again.
    """

    plans: dict[type[Node], NodePlan]
    """The plan of every node class, in the order in which the graph reaches the classes."""
    has_sources: bool
    """Whether any field of a node has a source or tools."""
    start_fields: tuple[FieldPlan, ...]
    """The fields that the caller passes with the start node."""
    plans_with_tools: tuple[NodePlan, ...]
    """The plans with a `Tools` field, in this graph and the graphs inside it."""
    shown_files: tuple[ShownFile, ...]
    """The fields with an image or a document that an LM sees, in this graph and the graphs inside
    it."""
    needs_lm: str
    """Why the caller must pass an LM to a run. Empty if a run needs none from the
    caller."""
    turns_read: float
    """The largest number of earlier turns that a `Thread` field shows, in this graph and the graphs
    inside it."""
    turn_calls_read: bool
    """Whether a `Thread` field shows the tool calls of earlier turns too."""
    graphs: tuple[Graph[Any, Any], ...]
    """The graph, followed by the graphs inside it at any depth."""
    hidden: Copies | None
    """The fields that may hold a copy of a `repr=False` field, in this graph and the graphs inside
    it. None if there are no such fields."""

    def __init__(self, graph: Graph[Any, Any]) -> None:
        self.graph = graph
        self.scene = None if graph.system is None else Scene(graph.system)
        self.is_filled = False
        """Whether the graph consists of one node that an LM fills; see `graph_to_fill`."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            find = _FACTS.get(name)
            if find is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            fact = find(self)
            graphs = fact if name == "graphs" else (self.graph,)
            if all("plans" in vars(plan_of_graph(graph)) for graph in graphs):
                vars(self)[name] = fact
            return fact

    @property
    def filled_nodes(self) -> list[type[Node]]:
        """The node classes that an LM fills: the successors of each node with an empty body."""
        if self.is_filled:
            return [self.graph.start]
        empty = [plan for plan in self.plans.values() if not plan.written]
        return list(dict.fromkeys(target for plan in empty for target in plan.successors))

    @property
    def asks_person(self) -> bool:
        """Whether a person supplies the value of a field, in this graph or a graph inside it."""
        return any(field.asks_person for field in self._list_called_fields())

    @property
    def recalls(self) -> bool:
        """Whether a field looks up its value in the trace, in this graph or a graph inside it. If
        this graph runs inside another run, the trace of that run is searched too."""
        return any(any(field.recalls()) for field in self._list_called_fields())

    def _list_called_fields(self) -> Iterator[FieldPlan]:
        graph_plans = [plan_of_graph(graph) for graph in self.graphs]
        for plan in [plan for graph_plan in graph_plans for plan in graph_plan.plans.values()]:
            yield from plan.called


def plan_of_graph(graph: Graph[Any, Any]) -> GraphPlan:
    """Return the plan of a graph. Each graph has one plan object."""
    return graph._plan  # pyright: ignore[reportPrivateUsage]


def _find_plans(graph_plan: GraphPlan) -> dict[type[Node], NodePlan]:
    from bae.plan import plan_of

    plans: dict[type[Node], NodePlan] = {}
    ahead = [graph_plan.graph.start]
    for cls in ahead:
        if cls not in plans:
            plans[cls] = plan_of(cls).without_body() if graph_plan.is_filled else plan_of(cls)
            ahead.extend(plans[cls].successors)
    # A missing name may be defined before the next call, so plans that lack a name are not stored.
    if not any(plan.provisional for plan in plans.values()):
        graph_plan.plans = plans
    return plans


def _has_sources(graph_plan: GraphPlan) -> bool:
    return any(plan.called for plan in graph_plan.plans.values())


def _find_start_fields(graph_plan: GraphPlan) -> tuple[FieldPlan, ...]:
    return () if graph_plan.is_filled else graph_plan.plans[graph_plan.graph.start].plain


def _find_plans_with_tools(graph_plan: GraphPlan) -> tuple[NodePlan, ...]:
    plans = {
        cls: plan for graph in graph_plan.graphs for cls, plan in plan_of_graph(graph).plans.items()
    }
    return tuple(plan for plan in plans.values() if plan.tools is not None)


def _find_shown_files(graph_plan: GraphPlan) -> tuple[ShownFile, ...]:
    from bae.file_proof import find_shown_files

    return find_shown_files(graph_plan.graph)


def _find_graphs(graph_plan: GraphPlan) -> tuple[Graph[Any, Any], ...]:
    from bae.calls import every_call

    graphs: list[Graph[Any, Any]] = [graph_plan.graph]
    # Each field that depends on a node class has a graph object of its own. The start and the name
    # tell whether two such graphs are the same.
    identities = {(graph_plan.graph.start, graph_plan.graph.name)}
    for graph in graphs:
        plans = plan_of_graph(graph).plans.values()
        for field in [field for plan in plans for field in plan.called]:
            for call in every_call(field.call):
                inner = call.graph
                if inner is not None and (inner.start, inner.name) not in identities:
                    identities.add((inner.start, inner.name))
                    graphs.append(inner)
    return tuple(graphs)


def _find_hidden_fields(graph_plan: GraphPlan) -> Copies | None:
    from bae.secrets import hidden_copies

    return hidden_copies(graph_plan.graph) or None


def _count_turns_read(graph_plan: GraphPlan) -> float:
    return max((field.turns_read for field in _list_fields(graph_plan)), default=0)


def _reads_turn_calls(graph_plan: GraphPlan) -> bool:
    return any(field.turn_calls_read for field in _list_fields(graph_plan))


def _list_fields(graph_plan: GraphPlan) -> Iterator[FieldPlan]:
    for graph in graph_plan.graphs:
        for plan in plan_of_graph(graph).plans.values():
            yield from plan.fields.values()


def _find_need_of_lm(graph_plan: GraphPlan) -> str:
    graph_plan.needs_lm = ""  # ends the recursion if a graph depends on itself
    try:
        return _explain_need_of_lm(graph_plan)
    finally:
        vars(graph_plan).pop("needs_lm", None)


_FACTS: Final[Mapping[str, Callable[[GraphPlan], Any]]] = {
    "plans": _find_plans,
    "has_sources": _has_sources,
    "start_fields": _find_start_fields,
    "plans_with_tools": _find_plans_with_tools,
    "shown_files": _find_shown_files,
    "needs_lm": _find_need_of_lm,
    "turns_read": _count_turns_read,
    "turn_calls_read": _reads_turn_calls,
    "graphs": _find_graphs,
    "hidden": _find_hidden_fields,
}


def _explain_need_of_lm(graph_plan: GraphPlan) -> str:
    from bae.calls import every_call

    for plan in graph_plan.plans.values():
        if reason := _explain_need_of_node(graph_plan, plan):
            return reason
        for field in plan.called:
            for call in every_call(field.call):
                inner_reason = "" if call.graph is None else call.graph.needs_lm
                if reason := f"{call.name} asks for it" if call.needs_lm else inner_reason:
                    return f"{plan.name}.{field.name} needs one: {reason}"
    return ""


def _explain_need_of_node(graph_plan: GraphPlan, plan: NodePlan) -> str:
    if graph_plan.is_filled and plan.plain and plan.lm is None:
        return f"the LM fills {plan.name}"
    if plan.written:
        needs_lm = plan.needs_lm and plan.lm is None
        return f"{plan.name}.__call__ asks for one" if needs_lm else ""
    if len(plan.offered) > 1 and plan.lm is None:
        return f"{plan.name} has an empty body: the LM chooses the next node"
    for target in plan.successors:
        if graph_plan.plans[target].lm is None and graph_plan.plans[target].plain:
            return f"{plan.name} has an empty body: the LM fills the next node, {target.__name__}"
    return ""
