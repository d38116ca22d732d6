"""`GraphPlan`: the facts that bae reads from the classes of a graph before it proves
and runs it."""

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
    """The facts that follow from the classes of a graph. Each is computed when it is first read,
    and is a plain attribute from then on. While names are missing, it is computed each time."""

    plans: dict[type[Node], NodePlan]
    """The plan of every node class, the start first, in the order in which they are reached."""
    has_sources: bool
    """Whether any field of any node has a source."""
    given_fields: tuple[FieldPlan, ...]
    """The fields that the caller passes with the start node."""
    plans_with_tools: tuple[NodePlan, ...]
    """The nodes that an LM fills with tools, here and in the graphs inside."""
    shown_files: tuple[ShownFile, ...]
    """The fields with an image or a document that an LM sees, here and in the graphs inside."""
    needs_lm: str
    """Why a run needs an LM passed to it; empty when it does not."""
    turns_read: float
    """How many earlier turns of a thread the nodes may show, here and in the graphs inside."""
    turn_calls_read: bool
    """Whether the nodes show the tool calls of these turns too."""
    graphs: tuple[Graph[Any, Any], ...]
    """The graph and the graphs inside it, all the way down, the outermost first."""
    hidden: Copies | None
    """The fields, here and in the graphs inside, that may hold a copy of a field with `repr=False`;
    None where there are none."""

    def __init__(self, graph: Graph[Any, Any]) -> None:
        self.graph = graph
        self.scene = None if graph.system is None else Scene(graph.system)
        self.is_filled = False
        """Whether the graph is one node that an LM fills; see `graph_to_fill`."""

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
        """The node classes that an LM fills: those that follow an empty body."""
        if self.is_filled:
            return [self.graph.start]
        empty = [plan for plan in self.plans.values() if not plan.written]
        return list(dict.fromkeys(target for plan in empty for target in plan.successors))

    @property
    def asks_person(self) -> bool:
        """Whether a person supplies the value of a field, here or in a graph inside."""
        return any(field.asks_person for field in self._sourced_fields())

    @property
    def recalls(self) -> bool:
        """Whether a field, here or in a graph inside, looks up its value in the trace. The value
        may come from a run around this graph."""
        return any(any(field.recalls()) for field in self._sourced_fields())

    def _sourced_fields(self) -> Iterator[FieldPlan]:
        inside = [plan_of_graph(graph) for graph in self.graphs]
        for plan in [plan for each in inside for plan in each.plans.values()]:
            yield from plan.called


def plan_of_graph(graph: Graph[Any, Any]) -> GraphPlan:
    """The plan of a graph, which is the same object for the same graph."""
    return graph._plan  # pyright: ignore[reportPrivateUsage]


def _find_plans(graph_plan: GraphPlan) -> dict[type[Node], NodePlan]:
    from bae.plan import plan_of

    plans: dict[type[Node], NodePlan] = {}
    ahead = [graph_plan.graph.start]
    for cls in ahead:
        if cls not in plans:
            plans[cls] = plan_of(cls).without_body() if graph_plan.is_filled else plan_of(cls)
            ahead.extend(plans[cls].successors)
    # Names that could not be resolved may be defined by the next call.
    if not any(plan.provisional for plan in plans.values()):
        graph_plan.plans = plans
    return plans


def _find_sources(graph_plan: GraphPlan) -> bool:
    return any(plan.called for plan in graph_plan.plans.values())


def _find_given(graph_plan: GraphPlan) -> tuple[FieldPlan, ...]:
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
    # A node class that is a dependency becomes a graph for every field that asks for it.
    seen = {(graph_plan.graph.start, graph_plan.graph.name)}
    for graph in graphs:
        plans = plan_of_graph(graph).plans.values()
        for field in [field for plan in plans for field in plan.called]:
            for call in every_call(field.call):
                inner = call.graph
                if inner is not None and (inner.start, inner.name) not in seen:
                    seen.add((inner.start, inner.name))
                    graphs.append(inner)
    return tuple(graphs)


def _find_hidden(graph_plan: GraphPlan) -> Copies | None:
    from bae.secrets import hidden_copies

    return hidden_copies(graph_plan.graph) or None


def _find_turns_read(graph_plan: GraphPlan) -> float:
    return max((field.turns_read for field in _fields_of(graph_plan)), default=0)


def _find_turn_calls_read(graph_plan: GraphPlan) -> bool:
    return any(field.turn_calls_read for field in _fields_of(graph_plan))


def _fields_of(graph_plan: GraphPlan) -> Iterator[FieldPlan]:
    for graph in graph_plan.graphs:
        for plan in plan_of_graph(graph).plans.values():
            yield from plan.fields.values()


def _find_need_of_lm(graph_plan: GraphPlan) -> str:
    graph_plan.needs_lm = ""  # for a graph that depends on itself, which the proof refuses
    try:
        return _why_lm(graph_plan)
    finally:
        vars(graph_plan).pop("needs_lm", None)


_FACTS: Final[Mapping[str, Callable[[GraphPlan], Any]]] = {
    "plans": _find_plans,
    "has_sources": _find_sources,
    "given_fields": _find_given,
    "plans_with_tools": _find_plans_with_tools,
    "shown_files": _find_shown_files,
    "needs_lm": _find_need_of_lm,
    "turns_read": _find_turns_read,
    "turn_calls_read": _find_turn_calls_read,
    "graphs": _find_graphs,
    "hidden": _find_hidden,
}


def _why_lm(graph_plan: GraphPlan) -> str:
    from bae.calls import every_call

    for plan in graph_plan.plans.values():
        if why := _node_needs_lm(graph_plan, plan):
            return why
        for field in plan.called:
            for call in every_call(field.call):
                inside = "" if call.graph is None else call.graph.needs_lm
                if why := f"{call.name} asks for it" if call.needs_lm else inside:
                    return f"{plan.name}.{field.name} needs one: {why}"
    return ""


def _node_needs_lm(graph_plan: GraphPlan, plan: NodePlan) -> str:
    if graph_plan.is_filled and plan.plain and plan.lm is None:
        return f"the LM fills {plan.name}"
    if plan.written:
        asks = plan.needs_lm and plan.lm is None
        return f"{plan.name}.__call__ asks for one" if asks else ""
    if len(plan.offered) > 1 and plan.lm is None:
        return f"{plan.name} has an empty body: the LM chooses where it goes on"
    for target in plan.successors:
        if graph_plan.plans[target].lm is None and graph_plan.plans[target].plain:
            return f"{plan.name} has an empty body: the LM goes on from it to {target.__name__}"
    return ""
