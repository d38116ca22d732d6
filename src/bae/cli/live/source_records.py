"""What the records of dependencies, maps, gates and recalls add to the picture of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from bae.cli.live.errors import is_waiting, said_of
from bae.cli.live.picture import Source, Spot, Step
from bae.cli.live.values import Shown, is_hidden
from bae.cli.texts import in_one_line
from bae.markers import Map
from bae.plan import plan_of

if TYPE_CHECKING:
    from bae.cli.live.folding import RunPicture
    from bae.records import GateOpened, ItemEnded, Recalled, SourceEnded, SourceStarted

FEW: Final = 4
"""The graphs of so many items of a map are kept when they are over: the first ones."""


def started(picture: RunPicture, record: SourceStarted) -> None:
    """Work on a value begins."""
    graph = picture.graph(record)
    before = graph.steps.get(record.step - 1)
    # Dependencies of a node that is sure to come are begun while the one before it is filled.
    if before is not None and not (record.source == "dep" and before.filled):
        picture.leave(graph, record.step - 1, record.at)
    step = picture.step(graph, record.step, record.at, record.node_type)
    spot = record.field, record.parameter
    source = Source(*spot, record.source, _said(record.by), record.at)
    again = step.sources.pop(spot, None)
    if record.source == "map":
        source.total = _items(step, record.field)
        source.done = again.done if again is not None and again.state == "coming" else 0
    elif record.source == "gate":
        source.state = "waiting"
    step.sources[spot] = source


def ended(picture: RunPicture, record: SourceEnded) -> None:
    """The value is there, or is not to be had."""
    step = picture.step(picture.graph(record), record.step, record.at, record.node_type)
    spot = record.field, record.parameter
    source = step.sources.get(spot)
    if source is None:  # of one whose value the caller gave, nothing has begun
        source = Source(*spot, record.source, _said(record.by), record.at - record.seconds)
        step.sources[spot] = source
    source.before = picture.in_past
    source.seconds = record.seconds
    source.asking = None
    if record.error is None:
        source.state, source.error = "done", ""
        source.value = Shown(record.value, hidden=hides(record))
        source.size = _length(record.value)
        if record.source == "map":
            source.total = source.done = source.done if source.size is None else source.size
    elif is_waiting(record.error):
        source.state = "waiting"
    else:
        source.state, source.error = "failed", said_of(record.error)


def item_ended(picture: RunPicture, record: ItemEnded) -> None:
    """An item of a map is done."""
    step = picture.step(picture.graph(record), record.step, record.at, record.node_type)
    source = step.sources.get((record.field, ""))
    if source is None:
        source = Source(record.field, "", "map", "", record.at)
        step.sources[record.field, ""] = source
    source.done += 1
    if record.index >= FEW:
        over = step.graphs.pop(Spot(record.field, "", record.index), None)
        if over is not None:
            picture.let_go(over)


def recalled(picture: RunPicture, record: Recalled) -> None:
    """A value was found in the trace."""
    graph = picture.graph(record)
    picture.leave(graph, record.step - 1, record.at)
    step = picture.step(graph, record.step, record.at, record.node_type)
    source = Source(record.field, "", "recall", "", record.at, "done")
    source.origin, source.before = record.origin, picture.in_past
    source.value = Shown(record.value, hidden=hides(record))
    source.size = _length(record.value)
    step.sources[record.field, ""] = source


def gate_opened(picture: RunPicture, record: GateOpened) -> None:
    """A person is asked."""
    gate = record.gate
    step = picture.step(picture.graph(record), record.step, record.at, gate.node_type)
    spot = gate.field_name, ""
    source = step.sources.get(spot)
    if source is None:
        source = step.sources[spot] = Source(*spot, "gate", _said(gate.question), record.at)
    source.state = "waiting"


def hides(record: SourceEnded | Recalled) -> bool:
    """Whether the value in a record is not to be shown: it is that of a field with `repr=False`, or
    was made for one."""
    return is_hidden(record.node_type.__pydantic_fields__.get(record.field))


def _items(step: Step, field: str) -> int | None:
    """How many items a map goes over, where that is known already."""
    plan = None if step.cls is None else plan_of(step.cls).fields.get(field)
    if plan is None or not isinstance(plan.marker, Map):
        return None
    over = plan.marker.over
    if step.node is not None and over in step.node.__dict__:
        return _length(step.node.__dict__[over])
    source = step.sources.get((over, ""))
    return None if source is None else source.size


def _length(value: Any) -> int | None:
    if isinstance(value, list | tuple | set | frozenset | dict):
        return len(cast("list[Any]", value))
    return None


def _said(text: str) -> str:
    return in_one_line(text[:1000])
