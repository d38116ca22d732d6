"""What is known of a run from its records while it goes on: where it is, and what it used. That is
all there is of a run that was interrupted."""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bae.history import History
    from bae.node import Node
    from bae.observers import ObservedRun
    from bae.records import Record
    from bae.usage import Usage


class Seen:
    """The history of the run of a command; runs that bodies start by themselves are left out."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._history: History | None = None
        self._run: ObservedRun | None = None

    def observe(self, run: ObservedRun, record: Record) -> None:
        """Take a record in."""
        if run.run_id != self.run_id:
            return
        if self._history is None or run is not self._run:  # it begins, or is resumed
            from bae.history import History

            self._run, self._history = run, History(run.past)
        self._history.add(record)

    @property
    def begun(self) -> bool:
        """Whether there was a record of the run."""
        return self._history is not None

    @property
    def stored(self) -> bool:
        """Whether a journal, where one is kept, has the run for certain: nothing happens in a run
        before it is stored that it begins."""
        steps = [] if self._history is None else [*self._history.steps()]
        return any(step.whole or step.sources for step in steps)

    @property
    def at(self) -> str:
        """The class of the node that was being made or run at last."""
        newest = None if self._history is None else self._history.run.newest
        if newest is None:
            return ""
        before = newest.before
        early = not newest.whole and newest.given is None and newest.fill is None
        if early and before is not None and before.is_open:
            return before.name  # dependencies of the next node have been started early
        chosen = None if newest.choice is None else newest.choice.chosen
        return newest.name if chosen in (None, NoneType) else chosen.__name__

    @property
    def trace(self) -> list[Node]:
        """The nodes that were reached."""
        steps = [] if self._history is None else self._history.run.trace
        return [step.node for step in steps if step.whole and step.node is not None]

    @property
    def usage(self) -> Usage:
        """What the LM calls used."""
        from bae.usage import Usage

        return Usage() if self._history is None else self._history.usage
