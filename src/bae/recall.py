"""Looking a value up in the trace by its type. Which fields of a node class can hold the type is
worked out once per class; a step only walks the trace backwards."""

from __future__ import annotations

from collections.abc import Iterable
from time import time
from typing import Any

from bae.assignable import assignable, could_hold, type_name, union_members
from bae.draft import validated
from bae.exceptions import RecallError
from bae.markers import Recall
from bae.node import Node
from bae.place import Place
from bae.plan import FieldPlan, NodePlan, plan_of, recall_members
from bae.records import Origin, Recalled
from bae.run import Run

Holders = tuple[tuple[str, bool], ...]
"""Field names, best first, each with whether it is sure to hold the type; `""` is the node."""


def recall_from_trace(trace: Iterable[Node], target_type: Any) -> Any:
    """The newest value of type `target_type` in a trace, Dep and Recall fields skipped.

    Raises `RecallError` where there is none. A node class finds the newest such node.
    """
    members, wanted = recall_members(target_type), type_name(target_type)
    nodes = list(trace)
    for node in reversed(nodes):
        held = _held(node, holders(type(node), members), members)
        if held is not None:
            return held[1]
    raise RecallError(
        f"no {wanted} in the trace",
        path=" -> ".join(type(node).__name__ for node in nodes) or "the trace is empty",
        fix=f"have a node before this one hold a {wanted} that no Dep or Recall made",
    )


def recall(
    run: Run, node_type: type[Node], field: FieldPlan, place: Place, is_recorded: bool = True
) -> tuple[Any, ...]:
    """The value that a field, or a parameter behind one, finds in the trace of a run, recorded for
    its place; nothing where its default is used. Raises `RecallError` where it has none."""
    found = recall_field(field, run)
    if found is not None:
        origin, value = found
        if is_recorded:
            where = time(), run.path, run.step, node_type, place.field
            run.writer.write(Recalled(*where, value, origin, place.parameter))
        return (value,)
    if not field.required:
        return ()
    wanted, name = type_name(field.annotation), node_type.__name__
    what = "parameter" if place.parameter else "field"
    raise RecallError(
        f"{name}.{place.field}{place.parameter}: {field.marker} found no {wanted} in the trace",
        node_type=node_type,
        field_name=place.field,
        path=" -> ".join([*(type(n).__name__ for n in [*run.seen()][::-1]), name]),
        fix=f"have a node before {name} hold a {wanted}, or give the {what} a default",
    )


def recall_ahead(run: Run, plan: NodePlan) -> tuple[dict[str, Any], list[Recalled]] | None:
    """All that a node needs before an LM fills it, where that is recalled, and the records of it,
    which are not written here. None where something else is to be resolved too, where a required
    value is not found, or where one is not valid: the fill itself then reports that."""
    values: dict[str, Any] = {}
    records: list[Recalled] = []
    for field in plan.context:
        found = recall_field(field, run) if field.kind == "recall" else None
        if found is not None:
            origin, values[field.name] = found
            spot = time(), run.path, run.step, plan.node, field.name
            records.append(Recalled(*spot, values[field.name], origin))
        elif field.kind != "recall" or field.required:
            return None
    try:
        validated(plan.node, values)
    except Exception:  # validators are code of the node's own
        return None
    return values, records


def recall_field(field: FieldPlan, run: Run) -> tuple[Origin, Any] | None:
    """Where a Recall field finds its value in the trace of a run, or of one around it, and the
    value; None where it does not."""
    members = field.members
    around: Run | None = run
    while around is not None:
        newest, answer = -1, ("", None)
        # By class, so that a long loop is not walked through again at every step.
        for node_type, places in around.places().items():
            held_by = holders_for(field, node_type)
            if not held_by:
                continue
            for place in reversed(places):
                if place < newest:
                    break
                held = _held(around.trace[place], held_by, members)
                if held is not None:
                    newest, answer = place, held
                    break
        if newest >= 0:
            return Origin(around.path, newest, answer[0]), answer[1]
        around = around.outer
    return None


def holders_for(field: FieldPlan, node_type: type[Node]) -> Holders:
    """The fields of `node_type` that a Recall field may find its value in."""
    found = field.found_in.get(node_type)
    if found is None:
        marker = field.marker
        only = marker.node_type if isinstance(marker, Recall) else None
        fits = only is None or issubclass(node_type, only)
        found = holders(node_type, field.members, field.name) if fits else ()
        if not plan_of(node_type).unresolved:
            field.found_in[node_type] = found
    return found


def holders(node_type: type[Node], members: tuple[Any, ...], name: str = "") -> Holders:
    """The fields of `node_type` whose type is one of `members`; one named `name` comes first."""
    if any(isinstance(m, type) and issubclass(m, Node) for m in members) and any(
        assignable(node_type, m) is True for m in members
    ):
        return (("", True),)
    found: list[tuple[str, bool]] = []
    for field in plan_of(node_type).fields.values():
        if field.kind in ("dep", "recall"):
            continue
        sure = all(_fits(part, members) for part in union_members(field.annotation))
        if sure or any(
            _fits(part, members) or _unknown(part, members)
            for part in union_members(field.annotation)
        ):
            found.append((field.name, sure))
    return tuple(sorted(found, key=lambda holder: holder[0] != name))


def _held(node: Node, held_by: Holders, members: tuple[Any, ...]) -> tuple[str, Any] | None:
    """The field of a node that holds what is looked for, and its value."""
    for name, sure in held_by:
        if not name:
            return "", node
        if name in node.__dict__:
            value = node.__dict__[name]
            if sure or any(
                could_hold(value, member) and not _only_promoted(type(value), member)
                for member in members
            ):
                return name, value
    return None


def _fits(part: Any, members: tuple[Any, ...]) -> bool:
    return any(
        assignable(part, member) is True and not _only_promoted(part, member) for member in members
    )


def _only_promoted(part: Any, member: Any) -> bool:
    """An int is accepted where a float is declared, but it is not the float that was meant."""
    return part is not member and member in (int, float, complex) and part in (bool, int, float)


def _unknown(part: Any, members: tuple[Any, ...]) -> bool:
    return any(assignable(part, member) is None for member in members)
