"""Two stored runs side by side: their nodes by place, and the fields that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

from bae.journal.provenance import Provenance
from bae.journal.report import GraphReport, NodeReport, RunReport


class ComparedField(NamedTuple):
    """A field that differs. It is None for a run that has no such field there."""

    name: str
    a: Provenance | None
    b: Provenance | None


@dataclass(frozen=True, slots=True)
class ComparedNode:
    """A node of two runs. `path` is the path of its graph, with visits in place of steps. `visit`
    counts the nodes of the class there from 1. `state` is "same", "differs", or names the only run
    that has the node. `a` and `b` are its places, and `fields` the fields that differ."""

    path: str
    node: str
    visit: int
    state: Literal["same", "differs", "a", "b"]
    a: str
    b: str
    fields: tuple[ComparedField, ...] = ()


def compare_reports(a: RunReport, b: RunReport) -> list[ComparedNode]:
    """The nodes of two runs, aligned by path, class and visit. Times do not count as
    differences."""
    nodes_a, nodes_b = dict(_nodes(a)), dict(_nodes(b))
    keys_a, keys_b = [*nodes_a], [*nodes_b]
    compared: list[ComparedNode] = []
    # Each key is there once, so matching nodes are in the same order in both runs.
    matcher = SequenceMatcher(None, keys_a, keys_b, autojunk=False)
    for _, a1, a2, b1, b2 in matcher.get_opcodes():
        keys = dict.fromkeys([*keys_a[a1:a2], *keys_b[b1:b2]])
        compared += [_compare(key, nodes_a.get(key), nodes_b.get(key)) for key in keys]
    seen: dict[_Key, ComparedNode] = {}
    for each in compared:  # a node that both have, in another order, is listed twice
        seen.setdefault(_Key(each.path, each.node, each.visit), each)
    return [*seen.values()]


class _Key(NamedTuple):
    path: str
    node: str
    visit: int


class _Placed(NamedTuple):
    place: str
    node: NodeReport


def _nodes(report: RunReport) -> Iterator[tuple[_Key, _Placed]]:
    """The nodes of a run by a key that names them in another run too; the outer graphs first."""
    names: dict[str, str] = {"": ""}
    """By the path of a graph and of each node in it, the same path with visits in place of
    steps."""
    for graph in sorted(report.graphs, key=lambda each: each.path.count("/") + bool(each.path)):
        path = _path_of(graph, names)
        met: Counter[str] = Counter()
        for node in graph.nodes:
            met[node.name] += 1
            key = _Key(path, node.name, met[node.name])
            place = f"{graph.path}/" if graph.path else ""
            place += f"{node.step}:{node.name}"
            names[place] = f"{path}/{node.name}#{key.visit}" if path else f"{node.name}#{key.visit}"
            yield key, _Placed(place, node)


def _path_of(graph: GraphReport, names: dict[str, str]) -> str:
    """The path of a graph, which begins with the place of the node that it ran for."""
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
    fields = tuple(pair for pair in pairs if _what(pair.a) != _what(pair.b))
    return ComparedNode(*key, "differs" if fields else "same", a.place, b.place, fields)


def _what(field: Provenance | None) -> object:
    return None if field is None else (field.state, field.kept, field.value, field.error)
