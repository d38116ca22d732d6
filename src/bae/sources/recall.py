"""`Recall`: bae looks up the value of a field in the trace, by its type. bae finds out once per
class which fields may hold the type. A lookup then reads only these fields, in the newest nodes
first."""

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
from bae.sources import FieldPlan, SourceFacts

if TYPE_CHECKING:
    from bae.calls import CallPlan, CallPlanning
    from bae.place import Place
    from bae.run import Run
    from bae.sources import Before

Holders = tuple[tuple[str, bool], ...]
"""The fields of a node class that may hold the value, the best first. Each has its name, and
whether it is sure to hold the value. An empty name stands for the node itself."""


class RecallField(FieldPlan):
    """The plan of a field or parameter whose value is looked up in the trace."""

    __slots__ = ("holders_by_class", "members")
    kind = "recall"
    noun = "a Recall"
    style = "trace"
    stored = "origin"
    is_recallable = False
    is_immediate = True
    invalid = RecallError, "bae-recall-invalid"
    invalid_fix = "declare the field like the field that it recalls"

    marker: Recall
    members: tuple[Any, ...]
    """The types to look for."""
    holders_by_class: MutableMapping[type[Node], Holders]
    """The fields of each node class that may hold the value. This is a cache."""

    def __init__(self, name: str, info: FieldInfo, marker: Recall) -> None:
        super().__init__(name, info, marker)
        self.members = recall_members(info.annotation)
        self.holders_by_class = {}

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
        """Yield the lookup of the field itself."""
        yield "", None, self

    @property
    def shows_results(self) -> bool:  # type: ignore[override]
        """Whether the recalled field shows the results of its tool calls. Only a `Recall` that
        names a node class has such a field."""
        only = self.marker.node_type
        if only is None:
            return False
        name = self.comes_from(only)
        return bool(name) and plan_of(only).fields[name].shows_results

    @classmethod
    def sentence(cls, facts: SourceFacts) -> str:
        return f"recalled from {facts.by}"

    @classmethod
    def phrase(cls, facts: SourceFacts) -> str:
        return cls.sentence(facts)

    def describe_in_schema(self) -> str:
        only = self.marker.node_type
        return f" recalled from {only.__name__}" if only else " recalled"

    def origin(self, cls: type[Node], before: Before | None) -> str:
        """Describe where the value may come from. If the value may be in more than two places, name
        only the class in the marker."""
        only = self.marker.node_type
        fallback = f"from {only.__name__}" if only else ""
        if before is None:
            return fallback
        names: dict[str, None] = {}
        nodes = [plan.node for plan in before[cls]]
        for node in nodes:
            node_holders = self.holders_in(node)
            if node_holders:
                name, sure = node_holders[0]
                is_known = name and (sure or len(node_holders) == 1)
                names[f"{node.__name__}.{name}" if is_known else node.__name__] = None
            # Recall takes the newest value, so stop at a node that is sure to have a value.
            if not any(sure for _, sure in node_holders):
                nodes += [plan.node for plan in before[node] if plan.node not in nodes]
        if list(names) == [type_name(self.annotation)]:
            return ""  # the type already names the class
        return f"from {' or '.join(names)}" if 0 < len(names) < 3 else fallback

    def find(self, run: Run, node_type: type[Node], place: Place) -> tuple[Any, Recalled] | None:
        """Return the newest value in the trace of the run, or of the nearest run around it that has
        a value. Return None if there is no value."""
        members = self.members
        current: Run | None = run
        while current is not None:
            newest, match = -1, ("", None)
            # Search by class, so that a step in a long loop does not walk the whole trace again.
            for holder, places in current.places().items():
                node_holders = self.holders_in(holder)
                if not node_holders:
                    continue
                for index in reversed(places):
                    if index < newest:
                        break
                    field_value = _find_value(current.trace[index], node_holders, members)
                    if field_value is not None:
                        newest, match = index, field_value
                        break
            if newest >= 0:
                origin = Origin(current.path, newest, match[0])
                where = time(), run.path, run.step, node_type, place.field
                return match[1], Recalled(*where, match[1], origin, place.parameter)
            current = current.outer
        return None

    def comes_from(self, node_type: type[Node]) -> str | None:
        return next((name for name, sure in self.holders_in(node_type)[:1] if sure), None)

    def missing(self, run: Run, node_type: type[Node], place: Place) -> RecallError:
        """Return the error for a trace without such a value."""
        type_text, name = type_name(self.annotation), node_type.__name__
        noun = "parameter" if place.parameter else "field"
        return RecallError(
            f"{name}.{place.field}{place.parameter}: {self.marker} found no {type_text} in the "
            "trace",
            node_type=node_type,
            field_name=place.field,
            path=" -> ".join(
                [*(type(node).__name__ for node in [*run.walk_earlier_nodes()][::-1]), name]
            ),
            fix=f"have a node before {name} hold a {type_text}, or give the {noun} a default",
        )

    def holders_in(self, node_type: type[Node]) -> Holders:
        """Return the fields of `node_type` that may hold the value."""
        cached = self.holders_by_class.get(node_type)
        if cached is None:
            only = self.marker.node_type
            fits = only is None or issubclass(node_type, only)
            cached = holders(node_type, self.members, self.name) if fits else ()
            if not plan_of(node_type).unresolved:
                self.holders_by_class[node_type] = cached
        return cached


def recalled_parameter(
    name: str, hint: Any, marker: Recall, is_required: bool = True
) -> RecallField:
    """Plan a parameter that is looked up in the trace. The lookup works as for a field with the
    same name and type."""
    annotation = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
    info = FieldInfo(annotation=annotation, default=PydanticUndefined if is_required else None)
    field = RecallField(name, info, marker)
    field.holders_by_class = WeakKeyDictionary()  # the function may outlive the classes that use it
    return field


def recall_members(type_text: Any) -> tuple[Any, ...]:
    """Return the types that a `Recall` looks for. For `T | None` this is only `T`, because a
    `Recall` never finds None."""
    members = union_members(type_text)
    return tuple(member for member in members if member is not NoneType) or members


def recall_from_trace(trace: Iterable[Node], target_type: Any) -> Any:
    """Return the newest value of type `target_type` in a trace, or the newest node if the type is a
    node class. Fields with a `Dep` or `Recall` are skipped.

    Raise `RecallError` if there is no such value.
    """
    members, type_text = recall_members(target_type), type_name(target_type)
    nodes = list(trace)
    for node in reversed(nodes):
        field_value = _find_value(node, holders(type(node), members), members)
        if field_value is not None:
            return field_value[1]
    raise RecallError(
        f"no {type_text} in the trace",
        path=" -> ".join(type(node).__name__ for node in nodes) or "the trace is empty",
        fix=f"have a node before this one hold a {type_text} that no Dep or Recall made",
    )


def holders(node_type: type[Node], members: tuple[Any, ...], name: str = "") -> Holders:
    """Return the fields of `node_type` that may hold a value of the types in `members`. A field
    named `name` comes first."""
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
            _fits(part, members) or _is_undecided(part, members)
            for part in union_members(field.annotation)
        ):
            fields.append((field.name, sure))
    return tuple(sorted(fields, key=lambda holder: holder[0] != name))


def _find_value(
    node: Node, node_holders: Holders, members: tuple[Any, ...]
) -> tuple[str, Any] | None:
    """Return the first field of the node that holds a value of these types, with the value. Return
    None if no field does."""
    for name, sure in node_holders:
        if not name:
            return "", node
        if name in node.__dict__:
            value = node.__dict__[name]
            if sure or any(
                could_hold(value, member) and not _is_only_promoted(type(value), member)
                for member in members
            ):
                return name, value
    return None


def _fits(part: Any, members: tuple[Any, ...]) -> bool:
    return any(
        assignable(part, member) is True and not _is_only_promoted(part, member)
        for member in members
    )


def _is_only_promoted(part: Any, member: Any) -> bool:
    """Return whether an int type is accepted only because Python accepts an int as a float. A
    `Recall` of a float does not find ints."""
    return part is not member and member in (int, float, complex) and part in (bool, int, float)


def _is_undecided(part: Any, members: tuple[Any, ...]) -> bool:
    return any(assignable(part, member) is None for member in members)
