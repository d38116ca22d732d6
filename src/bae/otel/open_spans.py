"""A span that is under way: where it belongs, since when, and how it ends. `run_spans.py` opens and
ends them as the records of a run come in."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from opentelemetry.trace import Link, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from bae.otel.attributes import Attributes, error_text, error_type, of_error, of_usage
from bae.usage import Usage

if TYPE_CHECKING:
    from opentelemetry.context import Context

NOTHING: Final = Usage()


def nanoseconds(at: float) -> int:
    """A time of a record as spans have it."""
    return int(at * 1_000_000_000)


class OpenSpan:
    """A span that has begun: `around` is the context it stands in, `context` that of what is
    inside it, `by` what the records of LM calls inside it say."""

    __slots__ = ("around", "at", "by", "context", "heard", "over", "span", "usage")

    def __init__(
        self,
        tracer: Tracer,
        name: str,
        around: Context,
        at: float,
        attributes: Attributes,
        *,
        by: str = "",
        links: Sequence[Link] = (),
    ) -> None:
        self.around = around
        self.at = at
        self.by = by
        self.usage = NOTHING
        self.heard: float | None = None
        """When the first text of an answer arrived that is not judged yet."""
        self.over = False
        self.span = tracer.start_span(
            name, around, SpanKind.INTERNAL, attributes, links, nanoseconds(at)
        )
        self.context = set_span_in_context(self.span, around)

    def event(self, name: str, at: float, attributes: Attributes) -> None:
        """Something that happened meanwhile."""
        self.span.add_event(name, attributes, nanoseconds(at))

    def end(
        self,
        at: float,
        outcome: str = "",
        error: BaseException | None = None,
        *,
        content: bool = False,
    ) -> None:
        """End it, once: with an `error`, where it failed, or with another `outcome` than the
        usual one."""
        if self.over:
            return
        self.over = True
        at = max(at, self.at)  # clocks are set back now and then
        if self.usage != NOTHING:
            self.span.set_attributes(of_usage(self.usage))
        if outcome:
            self.span.set_attribute("bae.outcome", outcome)
        if error is not None:
            self._fail(at, error, content)
        self.span.end(nanoseconds(at))

    def _fail(self, at: float, error: BaseException, content: bool) -> None:
        self.span.set_attributes(of_error(error))
        if content and not hasattr(error, "type_name"):
            self.span.record_exception(error, timestamp=nanoseconds(at))
        else:
            said: Attributes = {"exception.type": error_type(error)}
            if content:
                said["exception.message"] = str(error)
            self.event("exception", at, said)
        self.span.set_status(Status(StatusCode.ERROR, error_text(error, content=content)))


class OpenStep(OpenSpan):
    """A step: from the first thing done for its node to what follows it. It was `called` when its
    node was whole, and `filled` where the LM had a part in that."""

    __slots__ = ("called", "filled")

    def __init__(
        self, tracer: Tracer, node: str, around: Context, at: float, attributes: Attributes
    ) -> None:
        super().__init__(tracer, f"step {node}", around, at, attributes, by=f"{node}.__call__")
        self.called = self.filled = False


class OpenAsking(OpenSpan):
    """A choice or a fill: calls to the LM, one after another."""

    __slots__ = ("classes", "marked")

    def __init__(
        self,
        tracer: Tracer,
        name: str,
        around: Context,
        at: float,
        attributes: Attributes,
        by: str,
    ) -> None:
        super().__init__(tracer, name, around, at, attributes, by=by)
        self.marked = at
        """When the newest call in it was over, or else when it began."""
        self.classes: tuple[type, ...] | None = None
        """The classes of what is asked about and asked for, where they are known."""


class OpenSource(OpenSpan):
    """A source at work. Of a map it knows when items were done: the next item begins then."""

    __slots__ = ("asks", "ends", "hides", "limit")

    def __init__(
        self,
        tracer: Tracer,
        name: str,
        around: Context,
        at: float,
        attributes: Attributes,
        by: str,
        limit: int,
    ) -> None:
        super().__init__(tracer, name, around, at, attributes, by=by)
        self.limit = limit
        self.asks = ""
        self.hides = False
        """Whether it may have to do with secrets."""
        self.ends: array[float] = array("d")

    def item_began(self, index: int) -> float:
        """When the turn of an item came: so many are worked on at once, in their order."""
        before = index - self.limit
        return self.ends[before] if 0 <= before < len(self.ends) else self.at
