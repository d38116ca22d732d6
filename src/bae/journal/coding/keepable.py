"""What a journal makes of a graph's values, said before the first step: fields that it cannot keep
at all, dependencies that are made anew on resume, and secrets that it does not write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bae.calls import every_call
from bae.journal.coding.nodes import KeptNode, kept_node
from bae.journal.coding.routes import routes
from bae.problem import Problem

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node


def unkeepable(graph: Graph[Any, Any]) -> list[Problem]:
    """What keeps a graph, or one inside it, from having a journal: plain fields and gates that no
    journal can hold, and classes that one name does not tell apart."""
    return [*_unfit_names(graph), *_held_by_none(graph)]


def _unfit_names(graph: Graph[Any, Any]) -> Iterator[Problem]:
    for each in every_graph(graph):
        named: dict[str, type[Node]] = {}
        for cls in each.plans:
            if "/" in cls.__name__:
                yield Problem(
                    "error",
                    "bae-journal-names",
                    cls.__name__,
                    "there is a / in its name, which parts the names of places in a journal",
                    "give it a name of its own: class Small(Box[…]) with the same __call__",
                )
            other = named.setdefault(cls.__name__, cls)
            if other is not cls:
                yield Problem(
                    "error",
                    "bae-journal-names",
                    cls.__name__,
                    f"two classes of the graph are called so, in {other.__module__} and "
                    f"{cls.__module__}; a journal knows classes by their names",
                    "rename one of them",
                )


def _held_by_none(graph: Graph[Any, Any]) -> list[Problem]:
    return [
        Problem(
            "error",
            "bae-journal-field",
            f"{kept.cls.__name__}.{field.name}",
            f"a journal cannot keep it: {kept.fields[field.name].why}",
            "make it a Dep, which is made anew when a run is resumed, or declare plain data",
        )
        for kept in _nodes(graph)
        for field in kept.plan.fields.values()
        if field.kind in ("plain", "gate") and field.name in kept.live
    ]


def notes(graph: Graph[Any, Any]) -> list[Problem]:
    """The dependencies of a graph that are made anew on resume, and its secrets."""
    found: list[Problem] = []
    for kept in _nodes(graph):
        for field in kept.plan.fields.values():
            place = f"{kept.cls.__name__}.{field.name}"
            if field.name in kept.secret and field.kind in ("plain", "gate"):
                found.append(
                    Problem(
                        "note",
                        "bae-journal-withheld",
                        place,
                        f"a journal does not write it: {_why_secret(kept, field.name)}",
                        "give it again with resume(given={…}), or open the journal with "
                        "secrets=True",
                    )
                )
            elif field.kind in ("dep", "map"):
                found.extend(_of_source(kept, field.name, place))
    return found


def _of_source(kept: KeptNode, name: str, place: str) -> Iterator[Problem]:
    for route in routes(kept.plan.fields[name].call):
        source = kept.call(name, route)
        hidden = not route and name in kept.secret
        if source.verdict == "live":
            why = f"it is made anew when a run is resumed: {source.why}"
            yield Problem("note", "bae-journal-live", f"{place}{route}", why)
        elif source.verdict == "secret" or hidden:
            why = source.why or _why_secret(kept, name)
            yield Problem(
                "note",
                "bae-journal-withheld",
                f"{place}{route}",
                f"a journal does not write it, so it is made anew when a run is resumed: {why}",
            )


def _why_secret(kept: KeptNode, name: str) -> str:
    return kept.fields[name].facts.secret or "the field has repr=False"


def _nodes(graph: Graph[Any, Any]) -> Iterator[KeptNode]:
    """How the nodes of a graph, and of those inside it, are kept, each class once."""
    plans = {cls: plan for each in every_graph(graph) for cls, plan in each.plans.items()}
    # Of a class whose names are not all there yet nothing is known, which the proof says.
    return (kept_node(cls) for cls, plan in plans.items() if not plan.unresolved)


def every_graph(graph: Graph[Any, Any]) -> list[Graph[Any, Any]]:
    """A graph and those that run inside it."""
    graphs = [graph]
    seen = {graph.start}
    for each in graphs:
        for plan in each.plans.values():
            for field in plan.sourced:
                for call in every_call(field.call):
                    if call.graph is not None and call.graph.start not in seen:
                        seen.add(call.graph.start)
                        graphs.append(call.graph)
    return graphs
