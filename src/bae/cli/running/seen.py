"""What is known of a run from its records while it goes on: where it is, and what it used.
`outcomes.py` tells it of a run that did not come to its end."""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bae.node import Node
    from bae.observers import ObservedRun
    from bae.records import Record
    from bae.usage import Usage


class Seen:
    """What was seen of a run while it went on: that is all there is of one that was interrupted."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.begun = False
        self._records: list[Record] = []
        self._run: ObservedRun | None = None

    def observe(self, run: ObservedRun, record: Record) -> None:
        """Take a record in."""
        if run.run_id != self.run_id:  # a run that somebody's code started on its own
            return
        from bae.records import TextArrived

        if run is not self._run:  # it begins, or goes on with what was before
            self._run, self._records, self.begun = run, [*run.past], True
        if not isinstance(record, TextArrived):
            self._records.append(record)

    @property
    def stored(self) -> bool:
        """Whether a journal, where one is kept, has the run for certain: nothing happens in a run
        before it is stored that it begins."""
        from bae.records import RunEnded, RunStarted

        return any(not isinstance(each, RunStarted | RunEnded) for each in self._records)

    @property
    def at(self) -> str:
        """The class of the node that was being made or run at last."""
        from bae.plan import plan_of
        from bae.records import (
            ChoiceMade,
            ChoiceStarted,
            FillStarted,
            GateOpened,
            Returned,
            RunForked,
            RunStarted,
            SourceStarted,
            StepStarted,
        )

        name, settled = "", True
        for record in self._records:
            if record.path:
                continue
            match record:
                case RunStarted() | RunForked():
                    name = type(record.node).__name__
                case StepStarted():
                    name = type(record.node).__name__
                    # What is done early for the next one is not where the run is.
                    settled = not plan_of(type(record.node)).written
                case Returned():
                    name, settled = type(record.node).__name__, True
                case ChoiceStarted():
                    settled = False
                case ChoiceMade() if record.chosen is not NoneType:
                    name, settled = record.chosen.__name__, True
                case FillStarted():
                    name = record.target.__name__
                case GateOpened():
                    name = record.gate.node_type.__name__
                case SourceStarted() if settled:
                    name = record.node_type.__name__
                case _:
                    pass
        return name

    @property
    def trace(self) -> list[Node]:
        """The nodes that were reached."""
        from bae.records import RunForked, StepStarted

        nodes: dict[int, Node] = {}
        for record in self._records:
            if isinstance(record, StepStarted | RunForked) and not record.path:
                nodes[record.step] = record.node
        return [nodes[step] for step in sorted(nodes)]

    @property
    def usage(self) -> Usage:
        """What the LM calls used."""
        from bae.recorder import RunJournal

        return RunJournal([*self._records]).usage()
