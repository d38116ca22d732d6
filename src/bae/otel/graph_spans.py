"""The spans of one graph at work, the run itself or one inside it: its steps, its sources, and the
one choice or fill it waits for. `run_spans.py` has one for each path of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bae.otel.attributes import of_place
from bae.otel.open_spans import OpenAsking, OpenSource, OpenSpan, OpenStep

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from bae.node import Node
    from bae.records import RunEnded

Spot = tuple[int, str, str, str]
"""A step, a node class, a field, and the route to a parameter behind it."""


class GraphSpans:
    """What is open of one graph. Only what is under way is kept, however long the run is."""

    def __init__(self, tracer: Tracer, path: str, whole: OpenSpan, met: set[type[Node]]) -> None:
        self.path = path
        self.whole = whole
        self.asking: OpenAsking | None = None
        """The choice or the fill that is under way: there is one at a time."""
        self.newest: type[Node] | None = None
        """The class of the newest node that was whole."""
        self.sources: dict[Spot, list[OpenSource]] = {}
        self._tracer = tracer
        self._met = met
        self._steps: dict[int, OpenStep] = {}
        self._failed = -1
        """The newest step at which a source has failed."""

    def step(self, number: int, cls: type[Node], at: float) -> OpenStep:
        """The span of a step, begun now where it is not there."""
        found = self._steps.get(number)
        if found is None:
            self._met.add(cls)
            node = cls.__name__
            said = of_place(self.path, number, node)
            found = OpenStep(self._tracer, node, self.whole.context, at, said)
            self._steps[number] = found
        return found

    def step_of(self, number: int) -> OpenStep | None:
        """The span of a step, where it is there, over or not."""
        return self._steps.get(number)

    def end_step(self, number: int, at: float) -> None:
        """What a step did is done."""
        step = self._steps.get(number)
        if step is not None and step.called:
            step.end(at)

    def go_on(self, number: int, early: bool, at: float) -> None:
        """Work for step `number` has begun, so that before it is over: except that dependencies of
        a node that is sure to come are begun `early`, while the one before is being filled."""
        before = self._steps.get(number - 1)
        if before is not None and not (early and before.filled):
            self.end_step(number - 1, at)

    def retire(self, number: int) -> Iterator[tuple[Spot, OpenSource]]:
        """Forget what is long over, now that the node of step `number` is whole. Answers sources
        that nobody waits for any more."""
        for old in [each for each in self._steps if each < number - 1]:
            del self._steps[old]
        yield from self.let_go(number)

    def let_go(self, upto: int | None = None) -> Iterator[tuple[Spot, OpenSource]]:
        """Take out the sources that are open, of steps up to `upto`."""
        for spot in [spot for spot in self.sources if upto is None or spot[0] <= upto]:
            for source in self.sources.pop(spot):
                yield spot, source

    def take(self, spot: Spot, by: str) -> OpenSource | None:
        """Take out the source at a place that does what `by` says."""
        there = self.sources.get(spot, [])
        for source in there:
            if source.by == by:
                there.remove(source)
                if not there:
                    del self.sources[spot]
                return source
        return None

    def failed(self, step: int) -> None:
        """A source has failed at a step."""
        self._failed = max(self._failed, step)

    def doing(self, step: int, by: str) -> OpenSpan:
        """What an LM was asked in the course of: a choice, a fill, a body or a source."""
        if self.asking is not None and self.asking.by == by:
            return self.asking
        body = self._steps.get(step - 1)
        if body is not None and body.by == by:
            return body
        for sources in reversed(self.sources.values()):
            if sources[-1].asks == by:
                return sources[-1]
        return self.whole

    def end(self, ended: RunEnded, *, content: bool) -> None:
        """End everything that is open, with the error where it belongs: the question to the LM it
        came out of, and the step. What was cancelled because of it is only that."""
        at, error = ended.at, ended.error if ended.outcome == "failed" else None
        outcome = "" if ended.outcome == "ended" else ended.outcome
        if self.asking is not None:
            self.asking.end(at, outcome, error, content=content)
            self.asking = None
        guilty = self._guilty(ended.step)
        for number, step in self._steps.items():
            here = number == guilty
            if outcome == "failed" and not here:
                step.end(at, "" if step.called else "cancelled")
            else:
                step.end(at, outcome, error if here else None, content=content)
        self.whole.span.set_attribute("bae.steps", ended.step)
        self.whole.end(at, ended.outcome, error, content=content)

    def interrupt(self, at: float) -> None:
        """End everything that is open, of a graph of which no more is heard."""
        opened = [each for sources in self.sources.values() for each in sources]
        for each in (*opened, self.asking, *self._steps.values(), self.whole):
            if each is not None:
                each.end(at, "interrupted")
        self.sources.clear()

    def _guilty(self, reached: int) -> int:
        """The step that a failure belongs to, of a run that has been through so many nodes: the
        newest one's body may have failed, or the making of the one after it."""
        before = self._steps.get(reached - 1)
        if before is not None and not before.over and self._failed != reached:
            return reached - 1
        return reached if reached in self._steps else reached - 1
