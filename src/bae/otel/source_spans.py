"""The spans of dependencies, maps with their items, and gates; what was recalled, as an event of
its step. `run_spans.py` hands over the records."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from bae.markers import Map
from bae.otel.attributes import Attributes, of_place
from bae.otel.open_spans import OpenSource, OpenSpan
from bae.plan import plan_of
from bae.secrets import secret_behind

if TYPE_CHECKING:
    from bae.otel.graph_spans import GraphSpans, Spot
    from bae.otel.run_spans import RunSpans
    from bae.records import GateOpened, ItemEnded, Recalled, SourceEnded, SourceStarted


def started(spans: RunSpans, record: SourceStarted) -> None:
    """Work on a value begins, under its step."""
    graph = spans.graph(record)
    graph.go_on(record.step, record.source == "dep", record.at)
    source = _open(spans, graph, record, record.at)
    graph.sources.setdefault(_spot(record), []).append(source)
    spans.make_current(source.context)


def ended(spans: RunSpans, record: SourceEnded) -> None:
    """The value is there, or is not to be had."""
    graph, spot = spans.graphs.get(record.path), _spot(record)
    source = None if graph is None else graph.take(spot, record.by)
    source = source or spans.found_adrift(record.path, spot, record.by)
    if source is None:  # begun before anybody looked
        graph = spans.graph(record)
        source = _open(spans, graph, record, record.at - record.seconds)
    if record.error is None:
        source.end(record.at)
    elif "Waiting" in (type(record.error).__name__, getattr(record.error, "type_name", "")):
        source.end(record.at, "waiting")  # for a person: nothing has failed
    else:
        if graph is not None:
            graph.failed(record.step)
        content = spans.may_quote() and not source.hides
        source.end(record.at, "failed", record.error, content=content)


def item_ended(spans: RunSpans, record: ItemEnded) -> None:
    """An item of a map is done. When it began no record says; its turn came when another was
    done."""
    node = record.node_type
    call = plan_of(node).fields[record.field].call
    there = spans.graph(record).sources.get((record.step, node.__name__, record.field, ""))
    if call is None or not there:
        return
    source = there[-1]
    if call.graph is None:  # the span of a graph is there already, as the graph's own
        said: Attributes = {"bae.item": record.index, "bae.by": source.by}
        began = source.item_began(record.index)
        item = OpenSpan(spans.tracer, f"item {source.by}", source.context, began, said)
        item.end(record.at)
    source.ends.append(record.at)


def gate_opened(spans: RunSpans, record: GateOpened) -> None:
    """A person is asked."""
    node, field = record.gate.node_type.__name__, record.gate.field_name
    there = spans.graph(record).sources.get((record.step, node, field, ""))
    if there:
        before = f"{record.path}/" if record.path else ""
        address = f"{before}{record.step}:{node}.{field}"
        there[-1].event("bae.gate_opened", record.at, {"bae.gate": address})


def recalled(spans: RunSpans, record: Recalled) -> None:
    """A value was found in the trace."""
    graph = spans.graph(record)
    graph.go_on(record.step, False, record.at)
    step = graph.step(record.step, record.node_type, record.at)
    path, number, field = record.origin
    origin = f"{path}/{number}" if path else f"{number}"
    said: Attributes = {
        "bae.field": record.field,
        "bae.origin": f"{origin}.{field}" if field else origin,
    }
    step.event("bae.recalled", record.at, said)


def _open(
    spans: RunSpans, graph: GraphSpans, record: SourceStarted | SourceEnded, at: float
) -> OpenSource:
    node, field = record.node_type.__name__, record.field
    step = graph.step(record.step, record.node_type, at)
    said = of_place(record.path, record.step, node)
    said |= {"bae.field": field, "bae.source": record.source, "bae.by": record.by}
    if record.route:
        said["bae.route"] = record.route
    title, limit = f"{record.source} {record.by}", 1
    if record.source == "gate":
        title = f"gate {node}.{field}"
    elif record.source == "map":
        limit = cast(Map, plan_of(record.node_type).fields[field].marker).limit
    source = OpenSource(spans.tracer, title, step.context, at, said, record.by, limit)
    source.asks = f"{node}.{field}{record.route}"
    source.hides = spans.content and secret_behind(record.node_type, field)
    return source


def _spot(record: SourceStarted | SourceEnded) -> Spot:
    return record.step, record.node_type.__name__, record.field, record.route
