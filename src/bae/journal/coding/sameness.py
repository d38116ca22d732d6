"""Whether a value that was read back is the one that was written."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import fields, is_dataclass
from datetime import datetime, time
from decimal import Decimal
from typing import Any, cast

from pydantic import BaseModel

from bae.journal.coding.zones import same_time


def same(one: Any, two: Any) -> bool:
    """Whether two values are of the same types and equal, all the way down. What a model keeps to
    itself, in private attributes, does not count; not a number is the same as itself."""
    if one is two:
        return True
    kind = cast(Any, type(one))
    if kind is not type(two):
        return False
    if kind is float or kind is Decimal:
        return one == two or (one != one and two != two)
    if issubclass(kind, dict):
        return _same_dicts(one, two)
    if issubclass(kind, datetime | time):
        return same_time(one, two)
    if issubclass(kind, list | tuple | deque):
        bound = getattr(one, "maxlen", None) == getattr(two, "maxlen", None)
        return bound and len(one) == len(two) and all(map(same, one, two))
    if issubclass(kind, BaseModel):
        return _same_models(one, two)
    if is_dataclass(kind):
        names = [field.name for field in fields(kind)]
        return all(same(getattr(one, n, None), getattr(two, n, None)) for n in names)
    try:
        return bool(one == two)
    except Exception:
        return False  # not even to be compared


def _same_dicts(one: dict[Any, Any], two: dict[Any, Any]) -> bool:
    if isinstance(one, defaultdict):
        made, other = one.default_factory, cast("defaultdict[Any, Any]", two).default_factory
        if made is not other:
            return False
    return len(one) == len(two) and all(
        same(a, b) and same(one[a], two[b]) for a, b in zip(one, two, strict=True)
    )


def _same_models(one: BaseModel, two: BaseModel) -> bool:
    names = type(one).__pydantic_fields__
    held, other = one.__dict__, two.__dict__
    return all(
        (name in held) is (name in other) and same(held.get(name), other.get(name))
        for name in names
    ) and same(one.__pydantic_extra__, two.__pydantic_extra__)


def is_plain(value: Any) -> bool:
    """Whether a value is made of what JSON has and nothing else, so that it reads back equal."""
    kind = cast(Any, type(value))
    if kind is str or kind is int or kind is bool or value is None:
        return True
    if kind is float:
        return value - value == 0  # a finite one
    if kind is list:
        return all(map(is_plain, cast(list[Any], value)))
    if kind is dict:
        entries = cast(dict[Any, Any], value)
        return all(type(k) is str and is_plain(v) for k, v in entries.items())
    return False
