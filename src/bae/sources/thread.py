"""`Thread`: the value of a field is the earlier turns of the thread that the run belongs to. bae
reads the turns once, when the run begins. A journal stores the number of turns and the ids of the
first and the last run, not the texts."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from time import time
from typing import TYPE_CHECKING, Any

from pydantic.fields import FieldInfo

from bae.assignable import type_name
from bae.exceptions import FieldError, JournalError, Problem, an_error
from bae.markers import Thread
from bae.records import TurnsShown
from bae.sources import FieldPlan, SourceFacts
from bae.turns import Messages

if TYPE_CHECKING:
    from bae.node import Node
    from bae.place import Place
    from bae.plan import NodePlan
    from bae.run import Run
    from bae.sources import Before


class ThreadField(FieldPlan):
    """The plan of a field with a `Thread`."""

    __slots__ = ("turn_calls_read", "turns_read")
    kind = "thread"
    noun = "a Thread"
    style = "trace"
    stored = "turns"
    is_turns = True
    is_recallable = False
    is_immediate = True
    invalid = FieldError, "bae-thread-invalid"
    invalid_fix = "declare the field Messages"

    marker: Thread

    def __init__(self, name: str, info: FieldInfo, marker: Thread) -> None:
        super().__init__(name, info, marker)
        self.turns_read = inf if marker.last is None else marker.last
        self.turn_calls_read = marker.calls

    @classmethod
    def sentence(cls, facts: SourceFacts) -> str:
        return f"from the thread: {facts.by}"

    @classmethod
    def phrase(cls, facts: SourceFacts) -> str:
        return facts.by

    def describe_in_schema(self) -> str:
        return " from the thread"

    def origin(self, cls: type[Node], before: Before | None) -> str:
        last = self.marker.last
        return "the earlier turns" if last is None else f"up to {last} earlier turns"

    def problems(self, plan: NodePlan) -> Iterator[Problem]:
        """Yield a problem if the type of the field is not `Messages`."""
        if self.annotation is not Messages:
            yield an_error(
                "bae-thread-type",
                f"is {type_name(self.annotation)}, and Thread gives it Messages",
                "declare it `Annotated[Messages, Thread()]`, with `from bae import Messages`",
            )

    def find(self, run: Run, node_type: type[Node], place: Place) -> tuple[Any, TurnsShown]:
        """Return the newest turns of the thread, with their record. There are no turns if the run
        belongs to no thread."""
        marker, outermost = self.marker, run.outermost
        known = outermost.turns
        if known is None and outermost.options.turn is not None:
            name = node_type.__name__
            raise JournalError(
                f"{name}.{self.name} is a Thread, and {name} is no node of the graph: the earlier "
                "turns are read when a run begins, for the nodes of its graph",
                code="bae-thread-outside",
                fix="put a Thread on a node of the graph: questions that show this node show the "
                "turns too",
            )
        shown = Messages() if known is None else known.newest(marker.last, marker.limit)
        if not marker.calls:
            shown = shown.without_calls()
        where = time(), run.path, run.step, node_type, place.field
        return shown, TurnsShown(*where, shown, *shown.ends, len(shown), shown.omitted)

    def select_turns(self, known: Messages, count: int, omitted: int) -> Messages | None:
        if count > len(known):
            return None
        shown = Messages(known[len(known) - count :], known.thread, omitted)
        return shown if self.marker.calls else shown.without_calls()
