"""Where in a run a line belongs: the graph that runs at a path, and what is known so far of the run
there, or of the graph inside it. `rebuilding.py` puts nodes together from it."""

from __future__ import annotations

import re
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from bae.exceptions import JournalError
from bae.journal.coding.routes import call_at
from bae.node import Node
from bae.plan import plan_of
from bae.records import Unstored

if TYPE_CHECKING:
    from bae.graph import Graph


class Refused(Exception):
    """Raised where what is recorded does not fit the graph; the text says what and why."""


SEGMENT: Final = re.compile(r"(\d+):(.+)\.(\w+?)((?:\(\w+\))*)(?:\[\d+\])?")
"""A step, a class, a field, the route to a parameter behind it; the item of a map may follow."""


def graph_at(graph: Graph[Any, Any], path: str) -> Graph[Any, Any]:
    """The graph that runs at a path of another, which is that one itself where the path is empty.
    Raises `JournalError` (`bae-journal-unreadable`) where there is none."""
    try:
        return graph_inside(graph, path)
    except Refused as error:
        raise JournalError(
            str(error),
            code="bae-journal-unreadable",
            fix="go on with the classes that the run was begun with",
        ) from error


def graph_inside(graph: Graph[Any, Any], path: str) -> Graph[Any, Any]:
    for segment in path.split("/") if path else ():
        found = SEGMENT.fullmatch(segment)
        if found is None:
            raise Refused(f"{path!r} is no place in a run")
        cls = next((c for c in graph.plans if c.__name__ == found[2]), None)
        field = plan_of(cls).fields.get(found[3]) if cls is not None else None
        call = call_at(field, found[4]) if field is not None else None
        if call is None or call.graph is None:
            raise Refused(f"the graph {graph.name} runs no graph for {segment}")
        graph = call.graph
    return graph


class Inside:
    """What is known of the run, or of one graph inside it: where it stands, and what its sources
    came to, by step."""

    def __init__(self, graph: Graph[Any, Any], path: str) -> None:
        self.graph = graph
        self.path = path
        self.classes = {cls.__name__: cls for cls in reversed(graph.plans)}
        self.trace: dict[int, Node] = {}
        self.drafts: dict[int, Node] = {}
        self.sources: dict[tuple[int, type[Node], str, str], Any] = {}
        self.failures: set[tuple[int, type[Node], str, str]] = set()
        self.items: dict[tuple[int, type[Node], str], dict[int, Any]] = {}
        self.recalls: dict[tuple[int, type[Node], str], Any] = {}

    def cls(self, name: str) -> type[Node]:
        """The node class of a name."""
        found = self.classes.get(name)
        if found is None:
            known = ", ".join(cls.__name__ for cls in self.graph.plans)
            raise Refused(f"the graph {self.graph.name} has no node {name}; it has {known}")
        return found

    def offered(self, name: str | None) -> type[Node] | type[None]:
        """A class that could be chosen; None is the end of the run."""
        return NoneType if name is None else self.cls(name)

    def standing(self, step: int, name: str) -> Node:
        """The node that led to `step`."""
        node = self.trace.get(step - 1)
        if node is None or type(node) is not self.cls(name):
            raise Refused(f"the run does not stand at {name} before step {step}")
        return node

    def last(self) -> Node | None:
        """The node of the newest step."""
        return self.trace[max(self.trace)] if self.trace else None

    def cut(self, step: int) -> None:
        """Forget what is from `step` on."""
        for table in (self.trace, self.drafts):
            for later in [each for each in table if each >= step]:
                del table[later]

    def listed(self, step: int, cls: type[Node], field: str, count: int | None) -> Any:
        """What the items of a map came to, in order. There may be more than counted: items that
        were made anew can have become fewer."""
        items = self.items.get((step, cls, field), {})
        wanted = range(len(items) if count is None else count)
        if not all(index in items for index in wanted):
            raise Refused(f"items of {cls.__name__}.{field} are missing")
        values = [items[index] for index in wanted]
        return next((each for each in values if isinstance(each, Unstored)), values)
