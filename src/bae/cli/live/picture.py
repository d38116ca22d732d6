"""What is known of a run while it goes on: its graphs, their steps, each field with where its value
comes from, and what the LM is doing. Plain data without a terminal; `folding.py` makes it of the
records of a run, `rows.py` lays it out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from bae.cli.live.values import Shown
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.node import Node
    from bae.records import Asker, Origin

State = Literal["coming", "going", "done", "failed", "cancelled", "waiting"]
"""How far something is. What is `waiting` waits for a person."""

NOTHING_USED: Final = Usage()


@dataclass(slots=True)
class Asking:
    """The LM at work: filling a node, choosing where to go on, or whatever a body or a dependency
    asks it for."""

    by: str
    began: float
    doing: Literal["filling", "choosing", "asking"] = "asking"
    offered: tuple[str, ...] = ()
    number: int = 1
    """Which answer is awaited."""
    complaint: str = ""
    """What was wrong with the one before."""
    text: str = ""
    """The end of what has arrived of the answer."""
    retry: str = ""
    """Why the request is sent again."""
    retry_at: float = 0.0
    answered: bool = False
    """Whether it has been answered, so that nobody is known to wait for more."""
    usage: Usage = NOTHING_USED


@dataclass(slots=True)
class Source:
    """Work on the value of a field, or of a parameter of the function behind it."""

    field: str
    route: str
    kind: Literal["dep", "map", "gate", "recall"]
    by: str
    began: float
    state: State = "going"
    seconds: float = 0.0
    value: Shown | None = None
    size: int | None = None
    """How long the value is, where it is a collection."""
    error: str = ""
    origin: Origin | None = None
    done: int = 0
    """Items of a map that are done."""
    total: int | None = None
    """How many items there are, where that is known."""
    asking: Asking | None = None
    usage: Usage = NOTHING_USED
    before: bool = False
    """Whether it was done before the run was resumed."""


@dataclass(slots=True)
class Choice:
    """What the LM chose, and among what."""

    chosen: str
    offered: tuple[str, ...]
    seconds: float


class Spot(NamedTuple):
    """Where in a step a graph runs: the field, the way to a parameter, the item of a map."""

    field: str
    route: str
    item: int | None


@dataclass(slots=True)
class Step:
    """One node of a graph, from the first that is done for it until it has been left."""

    number: int
    began: float
    cls: type[Node] | None = None
    named: str = ""
    """The name of the class, where only that is known."""
    node: Node | None = None
    """The node, whole or as far as it is filled."""
    whole: bool = False
    """Whether all its fields are there, so that it was called."""
    state: State = "coming"
    ended: float = 0.0
    sources: dict[tuple[str, str], Source] = dataclasses.field(
        default_factory=dict[tuple[str, str], Source]
    )
    """By field and route."""
    filled: bool = False
    """Whether the LM fills it."""
    filled_in: float = 0.0
    """How many seconds that took."""
    answers: int = 0
    """How many answers it took."""
    given_by: str = ""
    """The node whose body has returned it."""
    asking: Asking | None = None
    choice: Choice | None = None
    usage: Usage = NOTHING_USED
    graphs: dict[Spot, GraphPicture] = dataclasses.field(default_factory=dict[Spot, "GraphPicture"])
    error: str = ""
    before: bool = False
    """Whether it was done before the run was resumed."""
    shown: dict[str, Shown] = dataclasses.field(default_factory=dict[str, Shown])
    """Values of the node that were shown before, so that they are written out once."""

    @property
    def name(self) -> str:
        """The name of the node class."""
        return self.cls.__name__ if self.cls is not None else self.named

    def source(self, asker: Asker) -> Source | None:
        """The source in progress that asks an LM."""
        found = self.sources.get((asker.field, asker.parameter))
        return found if found is not None and found.state == "going" else None


@dataclass(slots=True)
class GraphPicture:
    """A run, or a graph inside it."""

    path: str
    began: float
    name: str = ""
    steps: dict[int, Step] = dataclasses.field(default_factory=dict[int, Step])
    left_out: int = 0
    """Steps that are long over, and kept no more."""
    shown: int = -1
    """The last step that stands on the screen for good, with all before it."""
    outcome: Literal["", "ended", "waiting", "failed", "cancelled"] = ""
    ended: float = 0.0
    error: str = ""

    def newest_first(self) -> list[Step]:
        """Its steps, from the last one back."""
        return [self.steps[number] for number in sorted(self.steps, reverse=True)]

    @property
    def newest(self) -> Step | None:
        """The step it is at."""
        return self.steps[max(self.steps)] if self.steps else None

    def everything(self) -> Iterator[GraphPicture]:
        """This graph and all that are inside it."""
        yield self
        for step in self.steps.values():
            for inner in step.graphs.values():
                yield from inner.everything()
