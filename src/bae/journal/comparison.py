"""Compare two stored runs: match their nodes, and find the fields that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

from bae.journal.provenance import Provenance
from bae.journal.report import GraphReport, NodeReport, RunReport


class ComparedField(NamedTuple):
    """A field that differs between two runs, `a` and `b`."""

    name: str
    a: Provenance | None
    """The field in run `a`; None if that run does not have it."""
    b: Provenance | None
    """The field in run `b`; None if that run does not have it."""


@dataclass(frozen=True, slots=True)
class ComparedNode:
    """A node of two runs, `a` and `b`, or of one of them."""

    path: str
    """The path of the node's graph, as `Report#2.summaries[3]`: a node in a path has its visit
    instead of its step."""
    node: str
    """The name of the node's class."""
    visit: int
    """The number of the node among the nodes of its class in its graph, from 1."""
    state: Literal["same", "differs", "a", "b"]
    """If both runs have the node, "same" or "differs". If only one run has the node, the name of
    this run."""
    a: str
    """The place of the node in run `a`; empty if that run does not have it."""
    b: str
    """The place of the node in run `b`; empty if that run does not have it."""
    fields: tuple[ComparedField, ...] = ()
    """The fields that differ."""


def compare_reports(a: RunReport, b: RunReport) -> list[ComparedNode]:
    """Match the nodes of two runs by path, class and visit, and compare their fields. Times are
    ignored."""
    nodes_a, nodes_b = dict(_list_nodes(a)), dict(_list_nodes(b))
    keys_a, keys_b = [*nodes_a], [*nodes_b]
    compared: list[ComparedNode] = []

    matcher = SequenceMatcher(None, keys_a, keys_b, autojunk=False)
    for _, a1, a2, b1, b2 in matcher.get_opcodes():
        keys = dict.fromkeys([*keys_a[a1:a2], *keys_b[b1:b2]])
        compared += [_compare(key, nodes_a.get(key), nodes_b.get(key)) for key in keys]
    by_key: dict[_Key, ComparedNode] = {}
    for node in compared:  # a node at different positions in the runs is listed twice
        by_key.setdefault(_Key(node.path, node.node, node.visit), node)
    return [*by_key.values()]


class _Key(NamedTuple):
    path: str
    node: str
    visit: int


class _Placed(NamedTuple):
    place: str
    node: NodeReport


def _list_nodes(report: RunReport) -> Iterator[tuple[_Key, _Placed]]:
    """Yield each node of a run with its key, which names the node in other runs too. The nodes of
    outer graphs come first."""
    names: dict[str, str] = {"": ""}
    """The keys are paths of graphs and places of nodes. The values are the same paths and places,
    with visits instead of steps."""
    for graph in sorted(report.graphs, key=lambda inner: inner.path.count("/") + bool(inner.path)):
        path = _rename_path(graph, names)
        visits: Counter[str] = Counter()
        for node in graph.nodes:
            visits[node.name] += 1
            key = _Key(path, node.name, visits[node.name])
            place = f"{graph.path}/" if graph.path else ""
            place += f"{node.step}:{node.name}"
            names[place] = f"{path}/{node.name}#{key.visit}" if path else f"{node.name}#{key.visit}"
            yield key, _Placed(place, node)


def _rename_path(graph: GraphReport, names: dict[str, str]) -> str:
    """Return the path of a graph with visits instead of steps. `names` has the node that the graph
    ran for."""
    before, slash, last = graph.path.rpartition("/")
    node, dot, rest = last.partition(".")
    outer = names.get(f"{before}{slash}{node}")
    return graph.path if outer is None else f"{outer}{dot}{rest}"


def _compare(key: _Key, a: _Placed | None, b: _Placed | None) -> ComparedNode:
    if a is None or b is None:
        return ComparedNode(
            *key, "b" if a is None else "a", a.place if a else "", b.place if b else ""
        )
    fields_a = {field.field: field for field in a.node.fields}
    fields_b = {field.field: field for field in b.node.fields}
    names = dict.fromkeys([*fields_a, *fields_b])
    pairs = [ComparedField(name, fields_a.get(name), fields_b.get(name)) for name in names]
    fields = tuple(
        pair for pair in pairs if _get_compared_parts(pair.a) != _get_compared_parts(pair.b)
    )
    return ComparedNode(*key, "differs" if fields else "same", a.place, b.place, fields)


def _get_compared_parts(field: Provenance | None) -> object:
    """Return the parts of a field that a comparison looks at."""
    return None if field is None else (field.state, field.kept, field.value, field.error)
