"""The rows of one node: a field each, with its value and where that comes from, and what the LM is
doing. `rows.py` puts them together."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType
from typing import TYPE_CHECKING, Final

from bae.cli.live.errors import said_of
from bae.cli.live.row import Guides, Row, Values
from bae.cli.live.wording import count, spent, took
from bae.cli.texts import in_one_line
from bae.plan import FieldPlan, plan_of
from bae.secrets import may_show
from bae.work import NOTHING_USED, Question, Source, Step

if TYPE_CHECKING:
    from bae.cli.live.runs import RunView

BAR: Final = 12
"""How long the bar of a map is."""
TEXT_LINES: Final = 2
"""Lines of a streaming answer that are shown."""


def field_rows(
    view: RunView, step: Step, guides: Guides, now: float
) -> Iterator[tuple[Source | None, Row]]:
    """The rows of the fields of a step, each with the source of the value."""
    sources = view.sources(step)
    if step.node_type is None:
        for (name, _), source in sources.items():
            yield source, Row(guides, "field", "going", name)
        return
    behind: dict[str, list[Source]] = {}
    for (name, parameter), source in sources.items():
        if parameter:
            behind.setdefault(name, []).append(source)
    for name, plan in plan_of(step.node_type).fields.items():
        source = sources.get((name, ""))
        row = Row(guides, "field", name=name, dim=step.resumed, block=id(step))
        if source is not None:
            _sourced(view, row, source, now)
            if source.state == "failed" and step.whole:
                row.note += " · its default stands"
        else:
            _without_source(view, step, plan, row, behind.get(name, ()))
        yield source, row
        for each in sorted(behind.get(name, ()), key=_depth):
            below = Row(guides, "field", name=_parameter(each), block=id(step))
            _sourced(view, below, each, now)
            yield each, below


def held(view: RunView, step: Step) -> Values:
    """The values of a node that are its own: those that nothing else has a row for."""
    if step.node is None or step.node_type is None:
        return ()
    plans = plan_of(step.node_type).plain
    return tuple(
        (plan.name, view.value(step, plan)) for plan in plans if plan.name in step.node.__dict__
    )


def asking_rows(
    asking: Question, guides: Guides, now: float, view: RunView, step: Step | None = None
) -> Iterator[Row]:
    """What the LM is doing, and the end of what has arrived of its answer. What it does for a field
    is known from that field's own row, unless something went wrong."""
    last = asking.answers[-1].attempt if asking.answers else None
    retry, said = asking.retry, _doing(asking)
    if last is not None and last.verdict == "valid":
        if retry is None and not asking.text:
            return  # it has been answered, and nothing is known to wait for more
        last = None
    quoted = may_show(view.history.met, following=True)
    if retry is not None:
        wait = took(retry.at + retry.wait - now)
        said += f", again {f'in {wait} ' if wait else ''}after {said_of(retry.error)}"
    elif last is not None:
        reason = in_one_line("; ".join(last.errors) or last.verdict)
        said += f", answer {last.number + 1}" + (f" after: {reason}" if quoted else "")
    if step is not None or retry is not None or last is not None:
        yield Row(guides, "lm", "going", "LM", said, took(now - asking.started))
    if asking.text and quoted:
        lines = [line for line in map(str.strip, asking.text.splitlines()) if line]
        for line in lines[-TEXT_LINES:]:
            yield Row(guides, "text", "going", value=in_one_line(line))


def choice_row(choice: Question, guides: Guides, before: bool) -> Row:
    """Where the LM has chosen to go on."""
    offered = " | ".join(map(name_of, plan_of(choice.asker.node).offered))
    seconds = 0.0 if choice.with_fields else choice.took
    note = " · ".join(filter(None, [f"LM chose from {offered}", took(seconds)]))
    name = "" if choice.chosen is None else name_of(choice.chosen)
    return Row(guides, "choice", "done", name, note=note, dim=before)


def name_of(cls: type) -> str:
    """The name of what an LM may choose."""
    return "the end" if cls is NoneType else cls.__name__


def _doing(asking: Question) -> str:
    if asking.asker.kind == "choice":
        return f"choosing from {' | '.join(map(name_of, asking.offered))}"
    if asking.asker.kind == "fill":
        return f"filling {', '.join(plan.name for plan in plan_of(asking.asker.node).plain)}"
    return "answering"


def _sourced(view: RunView, row: Row, source: Source, now: float) -> None:
    state = row.state = view.state(source)
    row.dim = source.resumed
    # The answers to several items of a map are all mixed up.
    row.asking = view.asking(source) if source.kind != "map" else None
    going = source.since is not None and state == "going"
    said = [took(now - source.started if going else source.took)]
    said += spent(sum((each.paid for each in source.asked), NOTHING_USED))
    by = in_one_line(source.by[:1000])
    match source.kind:
        case "recall":
            said = [_recalled(view, source)]
        case "gate":
            said.insert(0, "answered" if state == "done" else "waits for an answer")
            row.value = by
        case "map":
            total = view.items(source)
            over = f", {count(total, 'item')}" if state == "done" and total is not None else ""
            said.insert(0, f"{by}{over}")
            if state != "done":
                row.value = _progress(source.items_done, total)
        case "dep":
            said.insert(0, by)
    if state == "done":
        row.value = view.source_value(source)
    if source.error is not None and state == "failed":
        row.value = view.error(source)
    if state == "cancelled":
        said = [by if source.kind != "gate" else "", "cancelled"]
    if source.resumed:
        said.append("from before")
    row.note = " · ".join(filter(None, said))


def _without_source(
    view: RunView, step: Step, plan: FieldPlan, row: Row, behind: list[Source] | tuple[()]
) -> None:
    """A field that no record tells of by itself."""
    node = step.node
    called = "" if plan.call is None else plan.call.name
    if node is None or plan.name not in node.__dict__:
        row.state = "coming"
        waits = [each.by for each in behind if each.is_open]
        if waits:
            row.note = f"{called} waits for {', '.join(waits)}"
        elif plan.kind == "plain":
            row.note = "" if _is_given(step) else "LM"
        else:
            row.note = called or plan.kind
        return
    row.value = view.value(step, plan)
    if plan.name not in node.__pydantic_fields_set__:
        row.note = "default"
    elif plan.kind != "plain":
        row.note = f"{called}, called before" if called else plan.kind
    elif step.fill is not None:
        row.note = "LM"
    else:
        row.note = f"from {step.before.name}" if step.before is not None else "given"


def _is_given(step: Step) -> bool:
    """Whether code makes the node, though no record has told of it yet: the body of the one before
    it is written, or there is none before it."""
    if step.fill is not None:
        return False
    before = None if step.before is None else step.before.node_type
    return step.number == 0 or (before is not None and plan_of(before).written)


def _progress(done: int, total: int | None) -> str:
    if not total:
        return f"{done:,} done" if done else ""
    full = min(BAR, BAR * done // total)
    return f"{'━' * full}{'─' * (BAR - full)} {done:,}/{total:,}"


def _recalled(view: RunView, source: Source) -> str:
    if source.origin is None:
        return "recalled"
    path, step, field = source.origin
    found = view.history.step(path, step)
    node = f"step {step}" if found is None else found.name
    return f"recalled from {node}" + ("" if field in ("", source.place.field) else f".{field}")


def _depth(source: Source) -> int:
    return len(source.place.parameters)


def _parameter(source: Source) -> str:
    """How a parameter of the function behind a field is named: `(place)(client)` is `<- client`,
    one further in."""
    names = source.place.parameters
    return f"{'  ' * (len(names) - 1)}<- {names[-1]}"
