"""What changed classes mean for one run that was stored: which of the changes it can go on with,
and which it cannot. `comparing.py` says what is different; here the run's own lines are read
through the classes of today, so that only runs that truly cannot go on are refused. `resuming.py`
asks before it goes on, `deployment.py` for all runs of a journal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bae.exceptions import JournalError
from bae.journal.shape.comparing import Change, changes
from bae.journal.shape.met import Met, Value
from bae.journal.shape.shapes import segments, shape_of
from bae.plan import plan_of

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import StoredRun
    from bae.node import Node

__all__ = ["Change", "breaking", "changes", "changes_for", "refuse_changes"]


def refuse_changes(stored: StoredRun, graph: Graph[Any, Any]) -> list[Change]:
    """What has changed since a run began, all of it such that the run can go on. Where it cannot,
    that is raised, with every change that is in the way."""
    found = changes_for(stored, graph)
    if any(change.breaks for change in found):
        raise run_changed(stored, found)
    return found


def breaking(stored: StoredRun, graph: Graph[Any, Any]) -> list[Change]:
    """The changes since a run began that it cannot go on with; empty where it can."""
    return [change for change in changes_for(stored, graph) if change.breaks]


def changes_for(stored: StoredRun, graph: Graph[Any, Any]) -> list[Change]:
    """All changes since a run began. Those whose `breaks` is true keep it from going on."""
    shape = shape_of(graph)
    if stored.info.shape == shape.hash:
        return []
    found = changes(stored.shape, shape)
    met = Met.of(stored)
    guilty = {change for change in found if _is_going(change, met)}
    failure = _unreadable(stored, graph)
    if failure is not None:
        # Reading stops at the first line that cannot be read: what else is in the way is said too.
        blamed = {change for change in found if change.breaks and _is_to_blame(change, met, graph)}
        guilty |= (
            blamed
            or {change for change in found if change.breaks and _meets(change, met)}
            or {change for change in found if _is_mentioned(change, met)}
        )
    more = [] if failure is None or guilty else [_not_read(failure)]
    more += _refused_answers(stored, graph, found, guilty)
    return [_judged(change, change in guilty) for change in found] + more


def run_changed(stored: StoredRun, found: Sequence[Change]) -> JournalError:
    """The error of a run that cannot go on under the classes of today."""
    bad = [change for change in found if change.breaks]
    listed = "\n".join(f"  {change}" for change in bad)
    fine = len(found) - len(bad)
    rest = f"\n  (and {fine} that it could go on with)" if fine else ""
    fixes = dict.fromkeys(change.fix for change in bad if change.fix)
    ways = [*fixes, "finish the run with the code it began with", "fork it at a step before that"]
    return JournalError(
        f"the classes of {stored.info.graph} have changed since the run {stored.info.run_id} "
        f"began, and it cannot go on:\n{listed}{rest}",
        run_id=stored.info.run_id,
        code="bae-run-changed",
        fix="; or ".join(ways),
    )


def _judged(change: Change, breaks: bool) -> Change:
    if breaks or not change.breaks:
        return replace(change, breaks=breaks)
    return replace(change, breaks=False, means="nothing that the run has stored is refused")


def _is_going(change: Change, met: Met) -> bool:
    if change.kind != "route-gone":
        return False
    node, _, target = change.place.partition(" -> ")
    return (change.graph, node, target) in met.going


def _meets(change: Change, met: Met) -> bool:
    """Whether the run has anything to do with what has changed."""
    if change.kind == "route-gone":
        return False
    node, field = _named(change.place)
    if change.kind in ("class-gone", "field-new", "validator"):
        return (change.graph, node) in met.classes
    return (change.graph, node, field) in met.values


def _is_mentioned(change: Change, met: Met) -> bool:
    """Whether what is gone stands in a line that nothing depends on."""
    match change.kind:
        case "field-gone":
            return _meets(change, met)
        case "class-gone":
            return (change.graph, change.place) in met.offered
        case _:
            return False


def _is_to_blame(change: Change, met: Met, graph: Graph[Any, Any]) -> bool:
    """Whether a change is the reason that something the run has stored cannot be read."""
    node, field = _named(change.place)
    match change.kind:
        case "class-gone":
            return (change.graph, node) in met.classes
        case "field-new":
            stored = (held for g, name, held in met.nodes if (g, name) == (change.graph, node))
            return any(field not in held for held in stored)
        case "field-gone":
            stored = (held for g, name, held in met.nodes if (g, name) == (change.graph, node))
            return any(field in held for held in stored)
        case "type" | "source" | "default":
            values = met.values.get((change.graph, node, field), [])
            return not all(_is_taken(value, graph, node, field) for value in values)
        case _:
            return False


def _is_taken(value: Value, graph: Graph[Any, Any], node: str, field: str) -> bool:
    """Whether today's class reads a value that was stored for a field."""
    from bae.draft import validated
    from bae.journal.node_codec import node_codec

    try:
        kept = node_codec(_class_at(graph, value.path, node))
        if value.route is None:
            kept.fields[field].load(value.json)
        else:
            loaded = kept.call(field, value.route).load(value.json)
            if not value.route and not value.is_item:
                validated(kept.cls, {field: loaded})
    except Exception:  # whatever a type, or a validator, raises: it is not taken
        return False
    return True


def _unreadable(stored: StoredRun, graph: Graph[Any, Any]) -> JournalError | None:
    """Why the lines of a run cannot be read through the classes of today; None where they can."""
    from bae.journal.coding.decoding import decode

    try:
        decode(graph, stored.lines, partial=True)
    except JournalError as error:
        if error.code != "bae-journal-unreadable":
            raise
        return error
    return None


def _refused_answers(
    stored: StoredRun, graph: Graph[Any, Any], found: Sequence[Change], guilty: set[Change]
) -> list[Change]:
    """Answers to gates that the run has not taken in yet, and that their field refuses now. The
    change that did it is added to the guilty ones, where one is seen."""
    from bae.journal.node_codec import node_codec
    from bae.journal.running.open_gates import open_gates

    more: list[Change] = []
    for gate in open_gates(stored):
        answer = stored.answers.get(gate.address)
        if answer is None:
            continue
        try:
            cls = _class_at(graph, gate.path, gate.node)
            if gate.field not in plan_of(cls).fields:
                continue  # nobody asks any more
            node_codec(cls).read_field(gate.field, answer)
        except KeyError:
            continue  # the class is gone, which is said already
        except JournalError as error:
            seen = {c for c in found if _named(c.place) == (gate.node, gate.field) and c.breaks}
            guilty |= seen
            if not seen:
                more.append(_not_read(error, gate.place))
    return more


def _class_at(graph: Graph[Any, Any], path: str, name: str) -> type[Node]:
    """A class by its name, in the graph that runs at a path; KeyError where there is none."""
    from bae.journal.coding.routes import call_at

    for part in segments(path) or ():
        call = call_at(plan_of(_class_at(graph, "", part.node)).fields[part.field], part.route)
        if call is None or call.graph is None:
            raise KeyError(part.field)
        graph = call.graph
    found = next((cls for cls in graph.plans if cls.__name__ == name), None)
    if found is None:
        raise KeyError(name)
    return found


def _named(place: str) -> tuple[str, str]:
    """The class and the field of a place, which may lead on into the field's type."""
    node, _, rest = place.partition(".")
    field = re.match(r"\w*", rest)
    return node, "" if field is None else field[0]


def _not_read(error: JournalError, place: str = "") -> Change:
    what = error.message.removeprefix(f"{place} ") if place else error.message
    return Change(
        place or "the run",
        f"cannot be read: {what}",
        "the classes do not take what was stored",
        breaks=True,
        fix=error.fix or "",
    )
