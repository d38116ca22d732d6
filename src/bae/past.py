"""`Past`: the records that a run has already, by place or by asker."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from bae.draft import complete
from bae.records import NOTHING

if TYPE_CHECKING:
    from bae.arguments import Arguments
    from bae.given_lm import AskedLM
    from bae.graph import Graph
    from bae.language_model import Scene
    from bae.markers import OpenGate
    from bae.node import Node
    from bae.place import Place
    from bae.plan import FieldPlan, NodePlan
    from bae.records import Asker
    from bae.run import Run
    from bae.work import ToolLoop
    from bae.writer import StartStep


FindNext = Callable[["Run"], Any]
"""Finds the recorded node at the step that a run has reached: the node, None if the run ended
there, or `NOTHING`."""


class Past:
    """The records that a run has already. This is the past of a new run: it is empty, and every
    method returns `NOTHING`."""

    __slots__ = ()

    graph_paths: Mapping[Hashable, str] = MappingProxyType({})
    """The path of each graph that runs once in the whole run, by key. Another field may be the
    first to ask for it now."""
    opened: Mapping[str, float] = MappingProxyType({})
    """When each gate was first reached, by its address."""

    # How a run follows its records.

    def begin(
        self, run: Run, graph: Graph[Any, Any], start: Node
    ) -> tuple[Node, bool, FindNext | None]:
        """The first node of a run, or of a graph inside it; whether its start is recorded; and the
        function that finds the nodes that follow. That is None if nothing is recorded: a step of a
        trivial body must not pay for a call."""
        return start, False, None

    def step_starter(self, run: Run, start_step: StartStep) -> StartStep:
        """The function that is called for each step of a run with a past. It calls `start_step`
        unless the step is recorded."""
        return start_step

    # What is recorded for a place or an asker.

    def choice(self, run: Run, plan: NodePlan, about: Scene) -> Any:
        """The class that the LM chose after a node."""
        return NOTHING

    def fill(
        self,
        run: Run,
        plan: NodePlan,
        previous: Node | None,
        resolved: Mapping[str, Any],
        about: Scene,
    ) -> Any:
        """The node that the LM filled."""
        return NOTHING

    def value(
        self,
        place: Place,
        node_type: type[Node],
        early: bool = False,
        asked: Arguments | None = None,
    ) -> Any:
        """The value of a source that is about to start. `early` is a call before the inputs of the
        source are started, which it does not need if its value is known. `asked` are its arguments
        that come from the run: another value belongs to other arguments."""
        return NOTHING

    def items(self, place: Place, node_type: type[Node]) -> Mapping[int, Any]:
        """The values of the finished items of a map, by number."""
        return {}

    def gate_answer(self, gate: OpenGate) -> Any:
        """The answer that a person has given to a gate in the meantime."""
        return NOTHING

    def lm_answer(self, asked: AskedLM) -> Any:
        """The answer of an LM to the same question from the same place. Each answer counts once."""
        return NOTHING

    def tool_loop(self, path: str, step: int, asker: Asker, question: str) -> ToolLoop | None:
        """The conversation with tools that the asker has begun."""
        return None

    def asks_person(self, path: str, step: int, asker: Asker) -> bool:
        """Whether a person is asked about a call in a conversation that the asker has begun."""
        return False

    def outside(self) -> Past:
        """The past of classes outside the graph."""
        return self

    # How a node is completed.

    def fields_left_out(
        self, run: Run, plan: NodePlan, absent: Sequence[FieldPlan]
    ) -> Sequence[FieldPlan]:
        """The fields that had no value in a recorded node either."""
        return ()

    def complete_node(self, run: Run, node: Node, values: Mapping[str, Any]) -> Node:
        """A copy of a node with the values of its sources, validated as a whole."""
        completed = copy(node)
        complete(completed, values)
        return completed


NO_PAST: Final = Past()
