"""The rows of one node: a field each, with its value and where that comes from, and what the LM is
doing. `rows.py` puts them together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from bae.cli.live.picture import Asking, Choice, GraphPicture, Source, Spot, Step
from bae.cli.live.row import Guides, Row, Values
from bae.cli.live.values import Shown, is_hidden
from bae.cli.live.wording import count, spent, took
from bae.cli.texts import in_one_line
from bae.plan import FieldPlan, plan_of
from bae.secrets import may_show

if TYPE_CHECKING:
    from bae.cli.live.folding import RunPicture

BAR: Final = 12
"""How long the bar of a map is."""
TEXT_LINES: Final = 2
"""Lines of a streaming answer that are shown."""


def field_rows(
    picture: RunPicture, graph: GraphPicture, step: Step, guides: Guides, now: float
) -> Iterator[tuple[str, list[Spot], Row]]:
    """The rows of the fields of a step, each with the name of the field and the graphs that run for
    it."""
    if step.cls is None:
        for spot in step.graphs:
            yield spot.field, [spot], Row(guides, "field", "going", spot.field)
        return
    spots: dict[tuple[str, str], list[Spot]] = {}
    for spot in step.graphs:
        spots.setdefault((spot.field, spot.route), []).append(spot)
    behind: dict[str, list[Source]] = {}
    for (name, route), source in step.sources.items():
        if route:
            behind.setdefault(name, []).append(source)
    for name, plan in plan_of(step.cls).fields.items():
        source = step.sources.get((name, ""))
        row = Row(guides, "field", name=name, dim=step.before, block=id(step))
        if source is not None:
            _sourced(picture, row, source, now)
            if source.state == "failed" and step.whole:
                row.note += " · its default stands"
        else:
            _without_source(graph, step, plan, row, behind.get(name, ()))
        yield name, spots.pop((name, ""), []), row
        for each in sorted(behind.get(name, ()), key=_depth):
            below = Row(guides, "field", name=_parameter(each.route), block=id(step))
            _sourced(picture, below, each, now)
            yield name, spots.pop((name, each.route), []), below
    for (name, route), left in spots.items():
        yield name, left, Row(guides, "field", "going", f"{name}{route}")


def held(step: Step) -> Values:
    """The values of a node that are its own: those that nothing else has a row for."""
    if step.node is None or step.cls is None:
        return ()
    plans = plan_of(step.cls).plain
    return tuple(
        (plan.name, shown(step, plan)) for plan in plans if plan.name in step.node.__dict__
    )


def shown(step: Step, plan: FieldPlan) -> Shown:
    """The value of a field of the node, written out once."""
    known = step.shown.get(plan.name)
    if known is None:
        value = None if step.node is None else step.node.__dict__.get(plan.name)
        known = step.shown[plan.name] = Shown(value, hidden=is_hidden(plan.info))
    return known


def asking_rows(
    asking: Asking, guides: Guides, now: float, picture: RunPicture, step: Step | None = None
) -> Iterator[Row]:
    """What the LM is doing, and the end of what has arrived of its answer. What it does for a field
    is known from that field's own row, unless something went wrong."""
    if asking.answered:
        return
    note = took(now - asking.began)
    quoted = may_show(picture.met, following=True)
    said = _doing(asking, step)
    if asking.retry:
        wait = took(asking.retry_at - now)
        said += f", again {f'in {wait} ' if wait else ''}after {asking.retry}"
    elif asking.complaint:
        reason = f" after: {in_one_line(asking.complaint)}" if quoted else ""
        said += f", answer {asking.number}{reason}"
    if step is not None or asking.retry or asking.complaint:
        yield Row(guides, "lm", "going", "LM", said, note)
    if asking.text and quoted:
        lines = [line for line in map(str.strip, asking.text.splitlines()) if line]
        for line in lines[-TEXT_LINES:]:
            yield Row(guides, "text", "going", value=in_one_line(line))


def choice_row(choice: Choice, guides: Guides, before: bool) -> Row:
    """Where the LM has chosen to go on."""
    others = " | ".join(choice.offered)
    note = " · ".join(filter(None, [f"LM chose from {others}", took(choice.seconds)]))
    return Row(guides, "choice", "done", choice.chosen, note=note, dim=before)


def _doing(asking: Asking, step: Step | None) -> str:
    if asking.doing == "choosing":
        return f"choosing from {' | '.join(asking.offered)}"
    if asking.doing == "filling" and step is not None and step.cls is not None:
        return f"filling {', '.join(plan.name for plan in plan_of(step.cls).plain)}"
    return "answering"


def _sourced(picture: RunPicture, row: Row, source: Source, now: float) -> None:
    row.state = source.state
    row.dim = source.before
    row.asking = source.asking
    said = [took(source.seconds if source.state != "going" else now - source.began)]
    said += spent(source.usage if source.asking is None else source.usage + source.asking.usage)
    match source.kind:
        case "recall":
            said = [_recalled(picture, source)]
        case "gate":
            said.insert(0, "answered" if source.state == "done" else "waits for an answer")
            row.value = source.by
        case "map":
            over = source.total if source.state == "done" else None
            items = "" if over is None else f", {count(over, 'item')}"
            said.insert(0, f"{source.by}{items}")
            if source.state != "done":
                row.value = _progress(source)
        case "dep":
            said.insert(0, source.by)
    if source.value is not None:
        row.value = source.value
    if source.error:
        row.value = source.error
    if source.state == "cancelled":
        said = [source.by if source.kind != "gate" else "", "cancelled"]
    if source.before:
        said.append("from before")
    row.note = " · ".join(filter(None, said))


def _without_source(
    graph: GraphPicture, step: Step, plan: FieldPlan, row: Row, behind: list[Source] | tuple[()]
) -> None:
    """A field that no record tells of by itself."""
    node = step.node
    called = "" if plan.call is None else plan.call.name
    if node is None or plan.name not in node.__dict__:
        row.state = "coming"
        waits = [each.by for each in behind if each.state == "going"]
        if waits:
            row.note = f"{called} waits for {', '.join(waits)}"
        elif plan.kind == "plain":
            row.note = "" if _is_given(graph, step) else "LM"
        else:
            row.note = called or plan.kind
        return
    row.value = shown(step, plan)
    if plan.name not in node.__pydantic_fields_set__:
        row.note = "default"
    elif plan.kind != "plain":
        row.note = f"{called}, called before" if called else plan.kind
    elif step.filled:
        row.note = "LM"
    else:
        row.note = f"from {step.given_by}" if step.given_by else "given"


def _is_given(graph: GraphPicture, step: Step) -> bool:
    """Whether code makes the node, though no record has told of it yet: the body of the one before
    it is written, or there is none before it."""
    before = graph.steps.get(step.number - 1)
    if step.filled:
        return False
    return step.number == 0 or (before is not None and _is_written(before))


def _is_written(step: Step) -> bool:
    return step.cls is not None and plan_of(step.cls).written


def _progress(source: Source) -> str:
    if not source.total:
        return f"{source.done:,} done" if source.done else ""
    full = min(BAR, BAR * source.done // source.total)
    return f"{'━' * full}{'─' * (BAR - full)} {source.done:,}/{source.total:,}"


def _recalled(picture: RunPicture, source: Source) -> str:
    if source.origin is None:
        return "recalled"
    path, step, field = source.origin
    found = picture.step_at(path, step)
    node = f"step {step}" if found is None else found.name
    return f"recalled from {node}" + ("" if field in ("", source.field) else f".{field}")


def _depth(source: Source) -> int:
    return source.route.count("(")


def _parameter(route: str) -> str:
    """How a parameter of the function behind a field is named: `(place)(client)` is `<- client`,
    one further in."""
    names = route.strip("()").split(")(")
    return f"{'  ' * (len(names) - 1)}<- {names[-1]}"
