"""One order for what has none of its own, so that equal values make equal prompts: sets, the keys
of dicts, and fields that were set in another order than declared. `prompts.py` uses it."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any, cast

from pydantic import BaseModel, PlainSerializer, RootModel, WrapSerializer


def ordered(said: Any, value: Any) -> Any:
    """`said`, which is `value` as JSON, in one order wherever the value has none."""
    if isinstance(said, float):
        return said if isfinite(said) else str(said)
    if not isinstance(said, list | dict):
        return said
    if isinstance(value, RootModel):
        value = cast(Any, value).root
    if isinstance(said, list):
        return _list(cast(list[Any], said), value)
    found = cast(dict[str, Any], said)
    if isinstance(value, BaseModel):
        cls = type(value)
        declared = [*cls.__pydantic_fields__, *cls.__pydantic_computed_fields__]
        return _fields(found, value, declared, _said_by_hand(cls))
    if is_dataclass(value):
        return _fields(found, value, [field.name for field in fields(value)], frozenset())
    if not isinstance(value, Mapping):
        return {key: ordered(each, None) for key, each in found.items()}
    held = cast(Mapping[Any, Any], value)
    values: Iterable[Any] = held.values() if len(held) == len(found) else [None] * len(found)
    entries = [
        (key, ordered(each, of)) for (key, each), of in zip(found.items(), values, strict=True)
    ]
    return dict(entries if isinstance(held, OrderedDict) else sorted(entries, key=lambda e: e[0]))


def _list(said: list[Any], value: Any) -> list[Any]:
    held: Iterable[Any] = [None] * len(said)
    if isinstance(value, Collection) and len(cast(Collection[Any], value)) == len(said):
        held = cast(Collection[Any], value)
    items = [ordered(each, of) for each, of in zip(said, held, strict=True)]
    return sorted(items, key=json.dumps) if isinstance(value, AbstractSet) else items


def _fields(
    said: dict[str, Any], holder: Any, declared: list[str], by_hand: frozenset[str]
) -> dict[str, Any]:
    names = [name for name in declared if name in said]
    names += sorted(said.keys() - set(names))  # extra ones
    # What holds nothing needs no looking up: a computed field is worked out again by that.
    plain = by_hand | {name for name in names if not isinstance(said[name], list | dict)}
    return {
        name: ordered(said[name], None if name in plain else getattr(holder, name, None))
        for name in names
    }


def _said_by_hand(cls: type[BaseModel]) -> frozenset[str]:
    """The fields with a serializer of their own, which has put things in the order it wants."""
    known = cast(frozenset[str] | None, cls.__dict__.get(_BY_HAND))
    if known is not None:
        return known
    named = (s.info.fields for s in cls.__pydantic_decorators__.field_serializers.values())
    found = {name for names in named for name in names}
    for name, field in cls.__pydantic_fields__.items():
        if any(isinstance(each, PlainSerializer | WrapSerializer) for each in field.metadata):
            found.add(name)
    known = frozenset(cls.__pydantic_fields__ if "*" in found else found)
    type.__setattr__(cls, _BY_HAND, known)
    return known


_BY_HAND = "__bae_said_by_hand__"
