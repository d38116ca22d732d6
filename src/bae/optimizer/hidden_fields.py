"""Which fields of nodes are not for examples: those that are kept out of journals and logs, and
those that get their values from there. `examples.py` says nothing of them, and `collecting.py`
leaves out what cannot be told without them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import NoneType
from typing import TYPE_CHECKING

from pydantic import SecretBytes, SecretStr

from bae.assignable import union_members
from bae.journal.coding.nodes import KeptNode, kept_node
from bae.lm.schemas import shown_fields
from bae.recall import holders_for

if TYPE_CHECKING:
    from bae.node import Node
    from bae.plan import FieldPlan

Hidden = Mapping["type[Node]", frozenset[str]]
"""The fields of classes that are not to be told, by class."""


def hidden_fields(classes: Iterable[type[Node]]) -> Hidden:
    """The fields of classes that hold a secret (`SecretStr`, `Field(repr=False)`), or may recall
    one, or share a dependency with one, among these classes."""
    kept = [kept_node(cls) for cls in dict.fromkeys(classes)]
    calls = {
        call.key
        for each in kept
        for name in each.secret
        if (call := each.plan.fields[name].call) is not None
    }
    return {
        each.cls: each.secret.union(
            field.name
            for field in each.plan.sourced
            if (field.call is not None and field.call.key in calls) or _recalls(field, kept)
        )
        for each in kept
    }


def lacking(node: Node, hidden: frozenset[str], names: Iterable[str] | None = None) -> list[str]:
    """The fields of a node that the LM has seen, or given, and that cannot be told: they are
    hidden, or are not there because somebody has redacted them. Of `names` alone, where given."""
    cls = type(node)
    wanted = cls.__pydantic_fields__.keys() if names is None else set(names)
    return [
        name
        for name in cls.__pydantic_fields__
        if name in wanted
        and (name in hidden or name not in node.__dict__)
        and name in shown_fields(cls)
        and not _is_masked(cls, name)
        and not cls.__pydantic_fields__[name].exclude
    ]


def _recalls(field: FieldPlan, kept: Iterable[KeptNode]) -> bool:
    """Whether a field may find its value in one that is a secret, though it is none itself."""
    return field.kind == "recall" and any(
        not each.secret.isdisjoint(name for name, _ in holders_for(field, each.cls))
        for each in kept
        if each.secret
    )


def _is_masked(cls: type[Node], name: str) -> bool:
    """Whether an LM sees of a field only that there is something: nothing is missed without it."""
    members = union_members(cls.__pydantic_fields__[name].annotation)
    return all(each in (SecretStr, SecretBytes, NoneType) for each in members)
