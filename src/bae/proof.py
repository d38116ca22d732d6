"""The proof of a graph: it finds, before the first LM call, what would go wrong in a run. It reads
the plan of each node class, which bae makes from the annotations. `Graph.validate()` reports all
problems together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from bae.assignable import assignable, type_name
from bae.calls import CallPlan, every_call, too_deep
from bae.context_proof import lost_context
from bae.exceptions import Problem, a_warning, an_error
from bae.file_proof import file_problems
from bae.graph_plan import plan_of_graph
from bae.markers import Dep
from bae.node_proof import check_node, recall_on_start
from bae.plan import FieldPlan, NodePlan
from bae.sources.recall import RecallField

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.language_model import Shown
    from bae.node import Node, NodeTypes

V = TypeVar("V")
NestKey = tuple["type[Node]", str, tuple["type[Node]", ...]]
"""The identity of a graph: start, name and end. A node class that is a dependency of several fields
has several graph objects with the same identity."""

DEEPEST: Final = 50
"""How deep graphs may be nested. The outermost graph counts too."""


def prove(graph: Graph[Any, Any]) -> list[Problem]:
    """Return the problems of a graph and of the graphs inside it, errors first."""
    nest = _Nest(graph)
    problems = dict.fromkeys(nest.problems)
    for inner in nest.graphs.values():
        problems |= dict.fromkeys(_prove_graph(inner, nest))
    return sorted(problems, key=lambda problem: problem.severity)


class _Link(NamedTuple):
    """A field of a graph for which another graph runs."""

    outer: Graph[Any, Any]
    """The graph with the field."""
    cls: type[Node]
    """The node class with the field."""
    field: str
    inner: Graph[Any, Any]
    """The graph that runs for the field."""


class _Nest:
    """A graph and the graphs inside it. A graph that several fields use is here once."""

    def __init__(self, root: Graph[Any, Any]) -> None:
        self.root = root
        self.graphs = {_key(root): root}
        self.links: dict[NestKey, list[_Link]] = {}
        """For each graph, its fields for which other graphs run."""
        self.problems: list[Problem] = []
        self._chains: dict[NestKey, list[str]] = {}
        """The longest chain of nested graphs from each graph on, as names."""
        chain = self._walk(root, {(root.start, plan_of_graph(root).is_filled): root.name})
        if len(chain) > DEEPEST:
            self.problems.append(too_deep("graphs are inside each other", chain, DEEPEST))

    def _walk(
        self, graph: Graph[Any, Any], outer_graphs: dict[tuple[type[Node], bool], str]
    ) -> list[str]:
        longest: list[str] = []
        for link in self._find_links(graph):
            inner, key = link.inner, _key(link.inner)
            begin = inner.start, plan_of_graph(inner).is_filled
            if begin in outer_graphs:
                names = " -> ".join([*outer_graphs.values(), inner.name])
                self.problems.append(_cycle_problem(names, link))
                continue
            if key not in self.graphs:
                self.graphs[key] = inner
                self._walk(inner, {**outer_graphs, begin: inner.name})
            longest = max(longest, self._chains.get(key, []), key=len)
        chain = self._chains[_key(graph)] = [graph.name, *longest]
        return chain

    def _find_links(self, graph: Graph[Any, Any]) -> list[_Link]:
        links = self.links[_key(graph)] = [
            _Link(graph, cls, field.name, call.graph)
            for cls, plan in plan_of_graph(graph).plans.items()
            for field in plan.called
            for call in every_call(field.call)
            if call.graph is not None
        ]
        return links

    @cached_property
    def contexts(self) -> dict[NestKey, list[Shown | None]]:
        """The settings `context` that each graph runs with: its own setting, or the settings of the
        graphs in which it runs."""
        ahead: list[tuple[NestKey, Shown | None]] = [(_key(self.root), self.root.context)]
        contexts: dict[NestKey, list[Shown | None]] = {key: [context] for key, context in ahead}
        for key, context in ahead:
            for link in self.links.get(key, ()):
                own_context = link.inner.context
                inner = _key(link.inner), context if own_context is None else own_context
                known_contexts = contexts.setdefault(inner[0], [])
                if inner[1] not in known_contexts:
                    known_contexts.append(inner[1])
                    ahead.append(inner)
        return contexts

    def gaps(
        self, graph: Graph[Any, Any], cls: type[Node], field: RecallField, surely: bool
    ) -> Iterator[list[str]]:
        """Yield paths to `cls`, the node class with a recalled field. On each path, no node before
        `cls` can have a value for the field. With `surely`, nodes on the path may have a value, but
        no node always has one.

        A graph inside another graph sees the outer trace too, so each path begins at the start of
        the root graph. If `graph` runs for several fields, there is at most one path for each of
        these fields.
        """

        def gap(outer: Graph[Any, Any], goal: type[Node]) -> list[str] | None:
            path = path_avoiding(outer.edges, outer.start, goal, holds)
            return None if path is None else [node.__name__ for node in path]

        def holds(node: type[Node]) -> bool:
            return any(sure or not surely for _, sure in field.holders_in(node))

        own_gap = gap(graph, cls)
        if own_gap is None:
            return
        paths: dict[NestKey, list[str]] = {_key(self.root): []}
        """For each graph that can be reached without such a value, the path to the graph."""
        if graph is self.root:
            yield own_gap
            return
        ahead = [self.root]
        for outer in ahead:
            for link in self.links[_key(outer)]:
                inner, is_goal = _key(link.inner), _key(link.inner) == _key(graph)
                if (inner in paths and not is_goal) or inner not in self.graphs:
                    continue
                path = gap(outer, link.cls)
                if path is None:
                    continue
                path = [*paths[_key(outer)], *path]
                if is_goal:
                    yield [*path, *own_gap]
                else:
                    paths[inner] = path
                    ahead.append(link.inner)


def _key(graph: Graph[Any, Any]) -> NestKey:
    return graph.start, graph.name, graph.end


def _cycle_problem(names: str, link: _Link) -> Problem:
    return an_error(
        "bae-dep-cycle",
        f"the graph is a dependency of itself: {names}",
        "break the circle: a graph cannot wait for its own result",
        f"{link.cls.__name__}.{link.field}",
    )


def _prove_graph(graph: Graph[Any, Any], nest: _Nest) -> Iterator[Problem]:
    plans, edges, ends = plan_of_graph(graph).plans, graph.edges, graph.terminal_nodes
    for plan in plans.values():
        yield from check_node(plan)
    yield from _check_options(plans.values())
    if any(plan.unresolved for plan in plans.values()):
        return  # some successors are unknown, so paths prove nothing
    for cls, plan in plans.items():
        for field in plan.called:
            place = f"{cls.__name__}.{field.name}"
            if field.required:  # without a value, any other field gets its default
                for parameters, _, recall in field.recalls():
                    yield from _check_recall(graph, cls, recall, nest, place + parameters)
    filled = plan_of_graph(graph).filled_nodes
    for cls in filled:
        for field in plans[cls].fields.values():
            yield from field.fill_problems(plans[cls])
    if graph.start not in filled:
        for field in plan_of_graph(graph).start_fields:
            place = f"{graph.start.__name__}.{field.name}"
            yield from (problem.at(place) for problem in field.find_start_problems())
    yield from file_problems(graph)
    yield from lost_context(graph, nest.contexts[_key(graph)])
    yield from _check_end(graph, ends)
    for loop in endless_loops(edges, ends):
        if any(plans[cls].problems for cls in loop):
            continue  # the class may have an exit that a problem hides
        names = [cls.__name__ for cls in loop]
        yield a_warning(
            "bae-loop-endless",
            f"the loop has no exit that the types show ({names[-1]} never returns None)",
            "let one of its nodes return None or a node that leads out",
            " -> ".join([*names, names[0]]),
        )


def _check_recall(
    graph: Graph[Any, Any], cls: type[Node], field: RecallField, nest: _Nest, place: str
) -> Iterator[Problem]:
    """Yield the problems of a recalled field, or of a recalled parameter of a field's function."""
    kind = "parameter" if place.endswith(")") else "field"
    type_text = type_name(field.annotation)
    if not field.required:
        return
    gaps = [*nest.gaps(graph, cls, field, surely=False)]
    for gap in gaps:
        if len(gap) == 1:
            yield recall_on_start().at(place)
            return
        fix = (
            f"fill {_with_article(type_text)} before {cls.__name__} on that path, or give the "
            f"{kind} a default"
        )
        skipped = _skipped_note(graph, field, gap)
        if skipped is not None:
            fix = "use the same Dep here, which is not called again"
        note = _unreachable_note(graph, field) if skipped is None else f"; {skipped}"
        yield an_error(
            "bae-recall-path",
            f"{field.marker} can find no {type_text} on the path {' -> '.join(gap)}{note}",
            fix,
            place,
        )
    if gaps:
        return
    for gap in nest.gaps(graph, cls, field, surely=True):
        yield a_warning(
            "bae-recall-unsure",
            f"{field.marker} may find no {type_text} on the path {' -> '.join(gap)}: the fields "
            "there can hold something else",
            f"hold nothing but {_with_article(type_text)} there, or give the {kind} a default",
            place,
        )
    for holder in graph.nodes:
        names = [name for name, _ in field.holders_in(holder)]
        comes_before = len(names) > 1 and cls in _find_reachable(graph.edges, holder)
        if comes_before and names[0] != field.name:
            yield a_warning(
                "bae-recall-ambiguous",
                f"{holder.__name__} holds {_with_article(type_text)} in {', '.join(names)}; "
                f"{names[0]} is taken",
                f"name the {kind} like the field you mean, or give the values types of their own",
                place,
            )


def _unreachable_note(graph: Graph[Any, Any], field: RecallField) -> str:
    """Return a note if the class in `Recall(…)` is not in the graph, otherwise an empty text."""
    marker = field.marker
    if marker.node_type is None or marker.node_type in plan_of_graph(graph).plans:
        return ""
    return f"; {marker.node_type.__name__} cannot be reached in this graph"


def _skipped_note(graph: Graph[Any, Any], field: RecallField, gap: Sequence[str]) -> str | None:
    """Return a note on a field of the path that has the type, but comes from `Dep`. The author may
    have meant this field. None if there is no such field."""
    if _unreachable_note(graph, field):
        return None
    for cls, plan in plan_of_graph(graph).plans.items():
        for other in plan.sourced:
            if (
                cls.__name__ in gap[:-1]
                and other.call is not None
                and not other.is_recallable
                and assignable(other.annotation, field.annotation) is True
            ):
                return f"{cls.__name__}.{other.name} is one, but comes from Dep, which Recall skips"
    return None


def _check_options(plans: Iterable[NodePlan]) -> Iterator[Problem]:
    """Yield a problem for each function that several fields use with different options. The fields
    share one call, so their options should be the same."""
    first_uses: dict[Any, tuple[Dep, str]] = {}
    for plan in plans:
        for field in plan.called:
            for call, marker, asker in _find_shared_calls(plan, field):
                first, first_asker = first_uses.setdefault(call.key, (marker, asker))
                if first.scope != marker.scope:
                    app, run = (
                        (first_asker, asker) if first.scope == "app" else (asker, first_asker)
                    )
                    yield an_error(
                        "bae-dep-scope",
                        f"{call.name} is made for each run here, and once for all runs for {app}",
                        f'write Dep({call.name}, scope="app") in both places, or in none',
                        run,
                    )
                elif _options(first) != _options(marker):
                    yield a_warning(
                        "bae-dep-options",
                        f"asks for {call.name} with other options than {first_asker}; the "
                        "options of the first call apply to both",
                        "give both the same options, or cache=False to one",
                        asker,
                    )


def _options(marker: Dep) -> tuple[object, ...]:
    return marker.timeout, marker.retries, marker.inline, marker.cache


def _find_shared_calls(plan: NodePlan, field: FieldPlan) -> Iterator[tuple[CallPlan, Dep, str]]:
    """Yield the calls that a field shares with others, with the field or parameter that uses each
    call."""
    if field.call is not None and field.is_shared:
        yield field.call, field.marker, f"{plan.name}.{field.name}"
    for caller in every_call(field.call):
        for parameter, below in caller.inputs:
            if below.marker.cache:
                yield below.call, below.marker, f"{caller.name}({parameter})"


def _check_end(graph: Graph[Any, Any], ends: NodeTypes) -> Iterator[Problem]:
    if not graph.end:
        return
    # A wrong return type is reported already, and may be the reason why an end is unreachable.
    routes_known = not any(plan.misrouted for plan in plan_of_graph(graph).plans.values())
    for cls in graph.end:
        plan = plan_of_graph(graph).plans.get(cls)
        if plan is None and routes_known:
            yield _unreachable_problem(graph, cls)
        elif plan is not None and not plan.may_end and (plan.offered or not plan.misrouted):
            yield an_error(
                "bae-end-not-terminal",
                "is named in end=, but no run can end there: its return type has no None",
                f"name where the graph ends: {_list_classes(ends)}"
                if ends
                else f"let {cls.__name__} return None: so far the graph ends nowhere",
                cls.__name__,
            )
    for cls in ends:
        if cls not in graph.end:
            yield an_error(
                "bae-end-incomplete",
                "the graph can end there, but end= does not name it, so .result would not be "
                "what its type says",
                f"write end={_list_classes(ends)}",
                cls.__name__,
            )


def _unreachable_problem(graph: Graph[Any, Any], cls: type[Node]) -> Problem:
    has_twin = any(other.__name__ == cls.__name__ for other in graph.nodes)
    return an_error(
        "bae-end-unreachable",
        f"is named in end=, but cannot be reached from {graph.start.__name__}"
        + ("; the graph has another class of that name" if has_twin else ""),
        "define the classes that lead to it again (in a notebook, run their cells): they still "
        "refer to the older class"
        if has_twin
        else "return it from a node on the way, or take it out of end=",
        cls.__name__,
    )


def _with_article(name: str) -> str:
    """Return the name of a type with "a" or "an" before it."""
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _list_classes(classes: Sequence[type[Node]]) -> str:
    names = ", ".join(cls.__name__ for cls in classes)
    return f"({names})" if len(classes) > 1 else names


# --- paths through the edges of a graph ---------------------------------------------------------


def path_avoiding(
    edges: Mapping[V, Sequence[V]], start: V, goal: V, avoided: Callable[[V], bool]
) -> list[V] | None:
    """Return the shortest path from `start` to `goal` that passes no place for which `avoided` is
    True. The goal itself is not checked. None if there is no such path."""
    if start == goal:
        return [start]
    came_from: dict[V, V] = {}
    ahead = [start]
    for place in ahead:
        if avoided(place):
            continue
        for following in edges.get(place, ()):
            if following == goal:
                path = [goal, place]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return path[::-1]
            if following not in came_from and following != start:
                came_from[following] = place
                ahead.append(following)
    return None


def endless_loops(edges: Mapping[V, Sequence[V]], exits: Collection[V]) -> list[list[V]]:
    """Return the loops from which no path leads to an exit. Each loop is a list of places in the
    order of a walk."""
    leads_out = set(exits)
    has_grown = True
    while has_grown:
        leading_out = {p for p in edges if p not in leads_out and leads_out.intersection(edges[p])}
        leads_out |= leading_out
        has_grown = bool(leading_out)
    stuck = [place for place in edges if place not in leads_out]
    reach = {place: _find_reachable(edges, place) for place in stuck}
    loops: list[list[V]] = []
    visited: set[V] = set()
    for place in stuck:
        # If every place that can be reached from here leads back here, all of them are in a loop
        # without an exit.
        if place in visited or place not in reach[place]:
            continue
        if all(place in reach[other] for other in reach[place]):
            visited |= reach[place]
            loops.append(_find_loop_through(edges, place))
    return loops


def _find_reachable(edges: Mapping[V, Sequence[V]], start: V) -> set[V]:
    reached: set[V] = set()
    ahead = list(edges.get(start, ()))
    for place in ahead:
        if place not in reached:
            reached.add(place)
            ahead.extend(edges.get(place, ()))
    return reached


def _find_loop_through(edges: Mapping[V, Sequence[V]], place: V) -> list[V]:
    way_back = path_avoiding(edges, edges[place][0], place, lambda _: False)
    assert way_back is not None, "in a loop without an exit, every edge leads back"
    return [place, *way_back[:-1]]
