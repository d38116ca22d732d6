"""The state of one run, or of a graph that runs inside one: what the runner, the resolver and the
dataflow share while it lasts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bae.dataflow import Dataflow, Flight
    from bae.journal import Record
    from bae.lm import LM
    from bae.markers import OpenGate
    from bae.node import Node

Answer = Callable[["OpenGate"], Awaitable[Any]]
"""What answers gates: an async callable that is given the open gate."""


class Waiting(Exception):
    """Raised inside a run where gates have nobody to answer them; it never leaves the run."""

    def __init__(self, gates: Sequence[OpenGate]) -> None:
        super().__init__(f"waiting for {', '.join(gate.place for gate in gates)}")
        self.gates = tuple(gates)
        self.node: Node | None = None
        """The draft whose fields wait, where it is there already."""


def ignore(record: Record) -> None:
    """A journal for work outside a run."""


@dataclass(slots=True, eq=False)
class Run:
    run_id: str = ""
    lm: LM | None = None
    answer: Answer | None = None
    max_iters: int = 10
    prefetch: bool = True
    emit: Callable[[Record], None] = ignore
    flow: Dataflow | None = None
    trace: list[Node] = field(default_factory=list["Node"])
    path: str = ""
    step: int = 0
    outer: Run | None = None
    ahead: list[Flight] = field(default_factory=list["Flight"])
    """Dependencies of the next node that were started early."""

    def seen(self) -> Iterator[Node]:
        """The nodes before now, newest first, those of the surrounding run after this one's."""
        run: Run | None = self
        while run is not None:
            yield from reversed(run.trace)
            run = run.outer
