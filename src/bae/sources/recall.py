"""`Recall`: the value of a field is looked up in the trace by its type. Which fields of a class may
hold the type is computed once per class; a step only walks the trace backwards."""

from __future__ import annotations

import typing
from collections.abc import Hashable, Iterable, Iterator, MutableMapping
from time import time
from types import NoneType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from bae.assignable import assignable, could_hold, type_name, union_members
from bae.exceptions import RecallError
from bae.markers import Recall
from bae.node import Node
from bae.plan import plan_of
from bae.records import Origin, Recalled
from bae.sources import FieldPlan, Told

if TYPE_CHECKING:
    from bae.calls import CallPlan, CallPlanning
    from bae.place import Place
    from bae.run import Run
    from bae.sources import Before

Holders = tuple[tuple[str, bool], ...]
"""Field names, best first, each with whether it is sure to hold the type; `""` is the node."""


class RecallField(FieldPlan):
    """A field, or a parameter behind one, whose value is looked up in the trace."""

    __slots__ = ("found_in", "members")
    kind = "recall"
    noun = "a Recall"
    style = "trace"
    stored = "origin"
    is_recallable = False
    is_immediate = True
    invalid = RecallError, "bae-recall-invalid"
    invalid_fix = "declare the field as the one it is recalled from"

    marker: Recall
    members: tuple[Any, ...]
    """The types that are looked for."""
    found_in: MutableMapping[type[Node], Holders]
    """The fields of each node class that may hold the value."""

    def __init__(self, name: str, info: FieldInfo, marker: Recall) -> None:
        super().__init__(name, info, marker)
        self.members = recall_members(info.annotation)
        self.found_in = {}

    @classmethod
    def plan_parameter(
        cls,
        of: CallPlan,
        name: str,
        hint: Any,
        marker: Recall,
        planning: CallPlanning,
        is_required: bool,
    ) -> None:
        """Plan a parameter that is looked up in the trace."""
        of.recalls += ((name, recalled_parameter(name, hint, marker, is_required)),)
        of.by_value = True

    def recalls(self) -> Iterator[tuple[str, Hashable, RecallField]]:
        """The field itself."""
        yield "", None, self

    @property
    def shows_results(self) -> bool:  # type: ignore[override]
        """Whether the field of the class that it names shows the results of tool calls."""
        only = self.marker.node_type
        if only is None:
            return False
        name = self.comes_from(only)
        return bool(name) and plan_of(only).fields[name].shows_results

    @classmethod
    def sentence(cls, told: Told) -> str:
        """The place where the value was found."""
        return f"recalled from {told.by}"

    @classmethod
    def phrase(cls, told: Told) -> str:
        """The place where the value was found."""
        return cls.sentence(told)

    def schema_words(self) -> str:
        """A note that it is recalled, and the class that it is recalled from."""
        only = self.marker.node_type
        return f" recalled from {only.__name__}" if only else " recalled"

    def origin(self, cls: type[Node], before: Before | None) -> str:
        """The fields in which it may find its value, if there are at most two."""
        only = self.marker.node_type
        fallback = f"from {only.__name__}" if only else ""
        if before is None:
            return fallback
        names: dict[str, None] = {}
        waiting = [plan.node for plan in before[cls]]
        for node in waiting:
            held = self.holders_in(node)
            if held:
                name, sure = held[0]
                known = name and (sure or len(held) == 1)
                names[f"{node.__name__}.{name}" if known else node.__name__] = None
            # The newest value is taken, so do not search behind a node that is sure to have one.
            if not any(sure for _, sure in held):
                waiting += [plan.node for plan in before[node] if plan.node not in waiting]
        if list(names) == [type_name(self.annotation)]:
            return ""  # the type is enough
        return f"from {' or '.join(names)}" if 0 < len(names) < 3 else fallback

    def find(self, run: Run, node_type: type[Node], place: Place) -> tuple[Any, Recalled] | None:
        """The newest value in the trace of a run, or of a run around it."""
        members = self.members
        around: Run | None = run
        while around is not None:
            newest, answer = -1, ("", None)
            # By class, so that a long loop is not walked again at every step.
            for holder, places in around.places().items():
                held_by = self.holders_in(holder)
                if not held_by:
                    continue
                for index in reversed(places):
                    if index < newest:
                        break
                    held = _find_value(around.trace[index], held_by, members)
                    if held is not None:
                        newest, answer = index, held
                        break
            if newest >= 0:
                origin = Origin(around.path, newest, answer[0])
                where = time(), run.path, run.step, node_type, place.field
                return answer[1], Recalled(*where, answer[1], origin, place.parameter)
            around = around.outer
        return None

    def comes_from(self, node_type: type[Node]) -> str | None:
        """The field of the newest node that is sure to hold the value."""
        return next((name for name, sure in self.holders_in(node_type)[:1] if sure), None)

    def missing(self, run: Run, node_type: type[Node], place: Place) -> RecallError:
        """The error if the trace has no such value."""
        wanted, name = type_name(self.annotation), node_type.__name__
        what = "parameter" if place.parameter else "field"
        return RecallError(
            f"{name}.{place.field}{place.parameter}: {self.marker} found no {wanted} in the trace",
            node_type=node_type,
            field_name=place.field,
            path=" -> ".join([*(type(n).__name__ for n in [*run.seen()][::-1]), name]),
            fix=f"have a node before {name} hold a {wanted}, or give the {what} a default",
        )

    def holders_in(self, node_type: type[Node]) -> Holders:
        """The fields of `node_type` in which it may find its value."""
        cached = self.found_in.get(node_type)
        if cached is None:
            only = self.marker.node_type
            fits = only is None or issubclass(node_type, only)
            cached = holders(node_type, self.members, self.name) if fits else ()
            if not plan_of(node_type).unresolved:
                self.found_in[node_type] = cached
        return cached


def recalled_parameter(
    name: str, hint: Any, marker: Recall, is_required: bool = True
) -> RecallField:
    """The plan of a parameter that is looked up in the trace, as a field of its name would be."""
    annotation = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
    info = FieldInfo(annotation=annotation, default=PydanticUndefined if is_required else None)
    field = RecallField(name, info, marker)
    field.found_in = WeakKeyDictionary()  # a function may be older than the classes that use it
    return field


def recall_members(wanted: Any) -> tuple[Any, ...]:
    """The types that a Recall looks for: for `T | None` only T, since None is no value to
    recall."""
    members = union_members(wanted)
    return tuple(m for m in members if m is not NoneType) or members


def recall_from_trace(trace: Iterable[Node], target_type: Any) -> Any:
    """The newest value of type `target_type` in a trace, except in Dep and Recall fields.

    Raises `RecallError` if there is none. For a node class, it is the newest such node.
    """
    members, wanted = recall_members(target_type), type_name(target_type)
    nodes = list(trace)
    for node in reversed(nodes):
        held = _find_value(node, holders(type(node), members), members)
        if held is not None:
            return held[1]
    raise RecallError(
        f"no {wanted} in the trace",
        path=" -> ".join(type(node).__name__ for node in nodes) or "the trace is empty",
        fix=f"have a node before this one hold a {wanted} that no Dep or Recall made",
    )


def holders(node_type: type[Node], members: tuple[Any, ...], name: str = "") -> Holders:
    """The fields of `node_type` whose type is one of `members`; a field named `name` comes
    first."""
    if any(isinstance(m, type) and issubclass(m, Node) for m in members) and any(
        assignable(node_type, m) is True for m in members
    ):
        return (("", True),)
    fields: list[tuple[str, bool]] = []
    for field in plan_of(node_type).fields.values():
        if not field.is_recallable:
            continue
        sure = all(_fits(part, members) for part in union_members(field.annotation))
        if sure or any(
            _fits(part, members) or _unknown(part, members)
            for part in union_members(field.annotation)
        ):
            fields.append((field.name, sure))
    return tuple(sorted(fields, key=lambda holder: holder[0] != name))


def _find_value(node: Node, held_by: Holders, members: tuple[Any, ...]) -> tuple[str, Any] | None:
    """The field of a node that holds a value of these types, and the value."""
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
    """Whether an int is accepted only because a float is declared: it is not the float to
    recall."""
    return part is not member and member in (int, float, complex) and part in (bool, int, float)


def _unknown(part: Any, members: tuple[Any, ...]) -> bool:
    return any(assignable(part, member) is None for member in members)
