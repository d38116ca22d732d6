"""What a journal makes of a graph's values, reported before the first step: fields that it cannot
keep at all, dependencies that are made again on resume, and secrets that it does not write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from bae.calls import routes
from bae.exceptions import Problem, ProofError
from bae.graph import every_graph
from bae.journal.codec import Unkeepable
from bae.journal.node_codec import NodeCodec, node_codec
from bae.secrets import secret_fields

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node

_STORABLE: Final[WeakSet[Graph[Any, Any]]] = WeakSet()
"""The graphs that are known to have no plain field that a journal cannot store."""


def unkeepable(graph: Graph[Any, Any]) -> list[Problem]:
    """What keeps a graph, or one inside it, from having a journal: plain fields and gates that no
    journal can hold, and classes that one name does not tell apart."""
    fields = [
        Problem(
            "error",
            "bae-journal-field",
            f"{codec.cls.__name__}.{field.name}",
            f"a journal cannot keep it: {codec.fields[field.name].why}",
            "make it a Dep, which is made again when a run is resumed, or declare plain data",
        )
        for codec in _nodes(graph)
        for field in codec.plan.fields.values()
        if field.kind in ("plain", "gate") and field.name in codec.live
    ]
    return [*_unfit_names(graph), *fields]


def _unfit_names(graph: Graph[Any, Any]) -> Iterator[Problem]:
    for each in every_graph(graph):
        named: dict[str, type[Node]] = {}
        for cls in each.plans:
            name = cls.__name__
            if "/" in name:
                why = "there is a / in its name, which parts the names of places in a journal"
                fix = "give it a name of its own: class Small(Box[…]) with the same __call__"
                yield Problem("error", "bae-journal-names", name, why, fix)
            other = named.setdefault(name, cls)
            if other is not cls:
                why = f"two classes of the graph are called so, in {other.__module__} and "
                why += f"{cls.__module__}; a journal knows classes by their names"
                yield Problem("error", "bae-journal-names", name, why, "rename one of them")


def prove_storable(graph: Graph[Any, Any]) -> None:
    """Raise what keeps a graph from having a journal."""
    if graph in _STORABLE:
        return
    problems = unkeepable(graph)
    if problems:
        listed = "\n".join(str(problem) for problem in problems)
        raise ProofError(
            f"the graph {graph.name} cannot run with a journal:\n{listed}",
            problems=tuple(problems),
            fix="graph.validate(journal=True) lists everything that a journal changes for a graph",
        )
    _STORABLE.add(graph)


def notes(graph: Graph[Any, Any]) -> list[Problem]:
    """The dependencies of a graph that are made again on resume, and its secrets."""
    found: list[Problem] = []
    for codec in _nodes(graph):
        for field in codec.plan.fields.values():
            place = f"{codec.cls.__name__}.{field.name}"
            if field.name in codec.secret and field.kind in ("plain", "gate"):
                why = f"a journal does not write it: {secret_fields(codec.cls)[field.name]}"
                fix = "give it again with resume(given={…}), or open the journal with secrets=True"
                found.append(Problem("note", "bae-journal-withheld", place, why, fix))
            elif field.kind in ("dep", "map"):
                found.extend(_of_source(codec, field.name, place))
            elif field.kind == "plain":
                found.extend(_of_default(codec, field.name, place))
    return found


def _of_default(codec: NodeCodec, name: str, place: str) -> Iterator[Problem]:
    """A default that would not read back, which a run finds out when it writes it."""
    info = codec.plan.fields[name].info
    if name in codec.live or info.is_required() or info.default_factory is not None:
        return
    try:
        codec.fields[name].dump(info.default)
    except Unkeepable as error:
        why = f"a journal cannot keep its default: {error}"
        fix = "give it a default that reads back from JSON as it is"
        yield Problem("warning", "bae-journal-field", place, why, fix)


def _of_source(codec: NodeCodec, name: str, place: str) -> Iterator[Problem]:
    for route in routes(codec.plan.fields[name].call):
        source = codec.call(name, route)
        again = "made again when a run is resumed"
        if source.verdict == "live":
            why = f"it is {again}: {source.why}"
            yield Problem("note", "bae-journal-live", f"{place}{route}", why)
        elif source.verdict == "secret" or (not route and name in codec.secret):
            why = f"a journal does not write it, so it is {again}: "
            why += source.why or secret_fields(codec.cls)[name]
            yield Problem("note", "bae-journal-withheld", f"{place}{route}", why)


def _nodes(graph: Graph[Any, Any]) -> Iterator[NodeCodec]:
    """The codecs of the nodes of a graph, and of those inside it, each class once."""
    plans = {cls: plan for each in every_graph(graph) for cls, plan in each.plans.items()}
    # Of a class whose names are not all there yet nothing is known, which the proof says.
    return (node_codec(cls) for cls, plan in plans.items() if not plan.unresolved)
