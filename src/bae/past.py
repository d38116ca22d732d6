"""`Past`: finds the recorded values of a run, by place or by asker."""

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
"""Returns the recorded node at the step that a run has reached. Returns None if the recorded run
ended there, and `NOTHING` if no node is recorded."""


class Past:
    """The recorded values of a run. This class is the past of a new run, which has no records.
    Subclasses read a history.

    A method that finds a recorded value returns `NOTHING` if the value is not recorded.
    """

    __slots__ = ()

    graph_paths: Mapping[Hashable, str] = MappingProxyType({})
    """The recorded path of each graph that runs once in the whole run, by the key of the graph. In
    the resumed run, another field may be the first to need the graph, with another path."""
    opened: Mapping[str, float] = MappingProxyType({})
    """The time when the run first reached each gate, by the gate's address."""

    # Start and steps.

    def begin(
        self, run: Run, graph: Graph[Any, Any], start: Node
    ) -> tuple[Node, bool, FindNext | None]:
        """Begin a run, or a graph inside it. Return its first node, whether its start is recorded,
        and the function that finds the recorded nodes after it.

        For a new run, the function is None, because even a call that finds nothing would slow down
        a step with a trivial body.
        """
        return start, False, None

    def step_starter(self, run: Run, start_step: StartStep) -> StartStep:
        """Return the function that the run calls at each step. It calls `start_step` if the step is
        not recorded yet."""
        return start_step

    # Recorded values.

    def choice(self, run: Run, plan: NodePlan, about: Scene) -> Any:
        """Return the class that the LM chose as the next node."""
        return NOTHING

    def fill(
        self,
        run: Run,
        plan: NodePlan,
        previous: Node | None,
        resolved: Mapping[str, Any],
        about: Scene,
    ) -> Any:
        """Return the node that the LM filled."""
        return NOTHING

    def value(
        self,
        place: Place,
        node_type: type[Node],
        early: bool = False,
        asked: Arguments | None = None,
    ) -> Any:
        """Return the value of a source that is about to start.

        `early` is True before the inputs of the source start, because a source with a recorded
        value needs no inputs. `asked` are the arguments that come from the run. A value that was
        recorded for other arguments is not returned.
        """
        return NOTHING

    def items(self, place: Place, node_type: type[Node]) -> Mapping[int, Any]:
        """Return the values of the finished items of a map, by item number."""
        return {}

    def gate_answer(self, gate: OpenGate) -> Any:
        """Return the answer that a person gave to a gate while the run was parked."""
        return NOTHING

    def lm_answer(self, asked: AskedLM) -> Any:
        """Return the recorded answer of an LM to the same question from the same place. Each
        answer is returned once."""
        return NOTHING

    def tool_loop(self, path: str, step: int, asker: Asker, question: str) -> ToolLoop | None:
        """Return the conversation with tools that the asker has begun, or None."""
        return None

    def asks_person(self, path: str, step: int, asker: Asker) -> bool:
        """Whether a tool call in a conversation of the asker waits for a person's answer."""
        return False

    def outside(self) -> Past:
        """Return the past for node classes outside the graph. A body or a function may ask an LM to
        fill such a class."""
        return self

    # Completion of nodes.

    def find_unrecorded_fields(
        self, run: Run, plan: NodePlan, absent: Sequence[FieldPlan]
    ) -> Sequence[FieldPlan]:
        """Return those of the `absent` fields that had no value in the recorded node either."""
        return ()

    def complete_node(self, run: Run, node: Node, values: Mapping[str, Any]) -> Node:
        """Return a validated copy of a node with the values of its sources."""
        completed = copy(node)
        complete(completed, values)
        return completed


NO_PAST: Final = Past()
