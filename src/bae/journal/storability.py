"""Report how a journal treats the values of a graph, before the first step: fields that the journal
cannot store, dependencies that are computed again on resume, and secrets that the journal does not
write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from bae.calls import routes
from bae.exceptions import Problem, ProofError
from bae.graph_plan import plan_of_graph
from bae.journal.codec import Unkeepable
from bae.journal.node_codec import NodeCodec, node_codec
from bae.secrets import secret_fields

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node
    from bae.plan import FieldPlan

STORABLE: Final[WeakSet[Graph[Any, Any]]] = WeakSet()
"""The graphs that `prove_storable` has accepted."""


def unkeepable(graph: Graph[Any, Any]) -> list[Problem]:
    """Return the problems that prevent a graph from running with a journal: plain fields and gates
    that no journal can store, and class names that no journal can use. Subgraphs are checked
    too."""
    problems: list[Problem] = []
    for inner in graph.graphs:
        class_by_name: dict[str, type[Node]] = {}
        for cls in inner.nodes:
            name = cls.__name__
            if "/" in name:
                why = "there is a / in its name, which separates the parts of places in a journal"
                fix = "give it a name of its own: class Small(Box[…]) with the same __call__"
                problems.append(Problem("error", "bae-journal-names", name, why, fix))
            other = class_by_name.setdefault(name, cls)
            if other is not cls:
                why = f"two classes of the graph have this name, in {other.__module__} and "
                why += f"{cls.__module__}; a journal knows classes by their names"
                fix = "rename one of them"
                problems.append(Problem("error", "bae-journal-names", name, why, fix))
    for codec, field, place in _fields(graph):
        if field.name in codec.live and not field.is_remade:
            why = f"a journal cannot keep it: {codec.fields[field.name].why}"
            fix = "make it a Dep, which is made again when a run is resumed, or declare plain data"
            problems.append(Problem("error", "bae-journal-field", place, why, fix))
    return problems


def prove_storable(graph: Graph[Any, Any]) -> None:
    """Raise a `ProofError` if a problem prevents a graph from running with a journal."""
    problems = unkeepable(graph)
    if problems:
        listed = "\n".join(str(problem) for problem in problems)
        raise ProofError(
            f"the graph {graph.name} cannot run with a journal:\n{listed}",
            problems=tuple(problems),
            fix="graph.validate(journal=True) lists everything that a journal changes for a graph",
        )
    STORABLE.add(graph)


def notes(graph: Graph[Any, Any]) -> list[Problem]:
    """Report what else a journal changes for a graph: dependencies that are computed again on
    resume, secrets that are not written, and defaults that cannot be stored."""
    problems: list[Problem] = []
    for codec, field, place in _fields(graph):
        name, info, secret = field.name, field.info, secret_fields(codec.cls).get(field.name, "")
        for route in routes(field.call):
            source = codec.call(name, route)
            is_secret = source.verdict == "secret" or (secret and not route)
            if source.verdict == "live":
                why = f"it is made again when a run is resumed: {source.why}"
                problems.append(Problem("note", "bae-journal-live", f"{place}{route}", why))
            elif is_secret:
                why = "a journal does not write it, so it is made again when a run is resumed: "
                why += source.why or secret
                problems.append(Problem("note", "bae-journal-withheld", f"{place}{route}", why))
        if field.is_remade:
            continue
        if secret:
            why = f"a journal does not write it: {secret}"
            fix = "give it again with resume(given={…}), or open the journal with secrets=True"
            problems.append(Problem("note", "bae-journal-withheld", place, why, fix))
        elif not (info.is_required() or info.default_factory or name in codec.live):
            try:
                codec.fields[name].dump(info.default)
            except Unkeepable as error:
                why = f"a journal cannot keep its default: {error}"
                fix = "give it a default that reads back from JSON as it is"
                problems.append(Problem("warning", "bae-journal-field", place, why, fix))
    return problems


def _fields(graph: Graph[Any, Any]) -> Iterator[tuple[NodeCodec, FieldPlan, str]]:
    """Yield each field of a graph and its subgraphs, with the codec of the field's class and the
    place of the field. Each class comes once."""
    plans = {cls: plan for sub in graph.graphs for cls, plan in plan_of_graph(sub).plans.items()}
    for cls, plan in plans.items():
        # A class with unresolved names has no fields here. The proof reports the names.
        for field in () if plan.unresolved else plan.fields.values():
            yield node_codec(cls), field, f"{cls.__name__}.{field.name}"
