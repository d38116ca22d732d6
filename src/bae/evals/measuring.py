"""What one run was like: per node class, what its LM work used, how long it took, and how many of
its answers were valid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bae.history import History
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.node import Node
    from bae.place import Place
    from bae.records import Record
    from bae.work import GraphRun, Question, Step


@dataclass(slots=True)
class NodeMeasure:
    """The LM work for the nodes of one class in one run: their fills, the choices from them, and
    what their bodies and dependencies asked by themselves."""

    usage: Usage = field(default_factory=Usage)
    judged: int = 0
    valid: int = 0
    seconds: dict[Place, float] = field(default_factory=dict["Place", float])
    """The time of the LM work for each node that had some."""
    last: Node | None = None
    """The last node of the class that was whole; of those of a map, the one of the last item."""
    chose: list[type[Node] | type[None] | None] = field(
        default_factory=list["type[Node] | type[None] | None"]
    )
    """What the LM chose from the nodes of the class, in the run itself and not in graphs inside;
    None where it was asked and made no valid choice."""


@dataclass(slots=True)
class RunMeasure:
    """One run: its node classes, in the order in which they were met."""

    nodes: dict[type[Node], NodeMeasure] = field(default_factory=dict["type[Node]", NodeMeasure])

    @property
    def usage(self) -> Usage:
        """What all of it used."""
        return Usage.total(node.usage for node in self.nodes.values())


def measure(records: Iterable[Record]) -> RunMeasure:
    """What the records of a run say, taken in their order.

    An answer that chooses and fills at once is the choosing node's, valid or not: one that is not
    valid may well say nothing about which node it fills. A question that was cut off has what its
    answers until then used.
    """
    measured = RunMeasure()
    history = History(records)
    for step in _in_order(history.run):
        if step.node_type is None:
            continue
        questions = [*step.questions]
        if not step.whole and not questions:
            continue
        node = measured.nodes.setdefault(step.node_type, NodeMeasure())
        if step.whole:
            node.last = step.node
        if step.choice is not None and step.graph is history.run:
            node.chose.append(step.choice.chosen)
        for question in questions:
            _count(node, step, question)
    return measured


def _in_order(graph: GraphRun) -> Iterator[Step]:
    """The steps of a graph and of those inside it. Items of a map are worked on side by side: which
    of them ended last is chance, so they come in their order."""
    for step in graph.trace:
        yield step
        for source in step.sources.values():
            for inner in sorted(
                source.graphs, key=lambda each: each.item.index if each.item else -1
            ):
                yield from _in_order(inner)


def _count(node: NodeMeasure, step: Step, question: Question) -> None:
    node.usage += question.paid
    node.judged += len(question.answers)
    node.valid += sum(answer.attempt.verdict == "valid" for answer in question.answers)
    # How long a question took that failed says nothing about the node; where one answer chose and
    # filled, the choice has the time.
    by_choice = question is step.fill and step.filled_by is not question
    if question.state == "done" and not by_choice:
        by_runner = question.asker.kind in ("fill", "choice")
        taken = question.took if by_runner else question.usage.seconds
        node.seconds[step.place] = node.seconds.get(step.place, 0.0) + taken
