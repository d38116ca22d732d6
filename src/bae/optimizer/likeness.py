"""How alike two values are, from 0 to 1: texts by the words they share, lists and models by their
parts, everything else by being equal. `default_metrics.py` scores filled fields by it;
`word_likeness.py` knows the words of a text."""

from __future__ import annotations

import math
import typing
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from types import NoneType
from typing import Any, Final, cast

from pydantic import BaseModel

from bae.assignable import union_members
from bae.optimizer.word_likeness import text_likeness, word_key

MOST_PAIRS: Final = 10_000
"""How many pairs of items are compared to align two lists. Where there are more, an item is looked
for near its place alone."""


def likeness(expected: object, given: object, declared: Any = Any) -> float:
    """How alike two values are; the order of the two does not matter.

    - Text by its words: the share of those in common (F1), without regard to case and punctuation;
      in scripts without spaces the characters are the words. Only the same words in the same order
      are 1. A label, which is what `declared`, the type of the field, says by `Literal` or an enum,
      is right or wrong.
    - Whole numbers exactly, others but for rounding; a bool is no number.
    - Lists in their order, aligned so that most of their items are alike, over the length of the
      longer: an item that is missing counts once. Tuples that are declared with a type for each
      place are compared by place; sets by what they share, text by its words and labels as such.
    - Models, dataclasses and mappings field by field; a field that is missing is None.
    - Everything else, such as dates, is equal or not.
    """
    declared = _meant(declared)
    if isinstance(expected, Enum) or isinstance(given, Enum):
        return float(_value(expected) == _value(given))
    if isinstance(expected, str) and isinstance(given, str):
        return float(expected == given) if _is_label(declared) else text_likeness(expected, given)
    if expected is None or given is None:
        return float(expected is given)
    if _is_number(expected) and _is_number(given):
        return float(_same_number(expected, given))
    parts, others = _parts(expected), _parts(given)
    if parts is not None and others is not None:
        if _differ_in_class(expected, given):
            return 0.0
        return _mean(_by_name(parts, others, declared))
    if _is_set(expected) and _is_set(given):
        return _shared(cast(Any, expected), cast(Any, given), _argument(declared, 0))
    if _is_list(expected) and _is_list(given):
        if _has_places(declared):
            return _mean(_by_place(cast(Any, expected), cast(Any, given), declared))
        return _aligned(list(cast(Any, expected)), list(cast(Any, given)), _argument(declared, 0))
    return float(_equal(expected, given))


def _meant(declared: Any) -> Any:
    """What a type stands for: without its metadata, its alias, and the None that it allows."""
    members = [member for member in union_members(declared) if member is not NoneType]
    if len(members) != 1:
        return declared
    supertype = getattr(members[0], "__supertype__", None)
    return members[0] if supertype is None else _meant(supertype)


def _is_label(declared: Any) -> bool:
    members = union_members(declared)
    return bool(members) and all(
        typing.get_origin(_meant(each)) is typing.Literal
        for each in members
        if each is not NoneType
    )


def _value(value: object) -> object:
    return value.value if isinstance(value, Enum) else value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal | Fraction) and not isinstance(value, bool)


def _same_number(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        try:
            left, right = float(one), float(other)
        except (OverflowError, ValueError):
            return False
        return math.isclose(left, right) or (math.isnan(left) and math.isnan(right))
    return _equal(one, other)


def _equal(one: object, other: object) -> bool:
    if isinstance(one, bool) != isinstance(other, bool):
        return False  # True is 1 to Python, and to nobody else
    try:
        return one is other or bool(one == other)
    except Exception:  # comparing is code of the values' own
        return False


def _parts(value: object) -> dict[str, tuple[Any, Any]] | None:
    """What a value has by name, each with its declared type; None where it is no such value."""
    if isinstance(value, BaseModel):
        declared = type(value).__pydantic_fields__
        held = {**value.__dict__, **(value.__pydantic_extra__ or {})}
        return {
            name: (each, declared[name].annotation if name in declared else Any)
            for name, each in held.items()
            if name in declared or name in (value.__pydantic_extra__ or {})
        }
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: (getattr(value, f.name, None), Any) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): (each, Any) for name, each in cast(Mapping[Any, Any], value).items()}
    return None


def _differ_in_class(one: object, other: object) -> bool:
    """Two models of different classes are different things; a mapping may stand for either."""
    return not (isinstance(one, Mapping) or isinstance(other, Mapping) or type(one) is type(other))


def _by_name(
    one: dict[str, tuple[Any, Any]], other: dict[str, tuple[Any, Any]], declared: Any
) -> Iterator[float]:
    inside = _argument(declared, 1) if _is_mapping_type(declared) else Any
    for name in one.keys() | other.keys():
        expected, kind = one.get(name, (None, Any))
        given, other_kind = other.get(name, (None, Any))
        chosen = next((each for each in (kind, other_kind, inside) if each is not Any), Any)
        yield likeness(expected, given, chosen)


def _is_mapping_type(declared: Any) -> bool:
    origin = typing.get_origin(declared)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _is_set(value: object) -> bool:
    return isinstance(value, Set)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence | deque) and not isinstance(value, str | bytes | bytearray)


def _has_places(declared: Any) -> bool:
    """Whether a type says what is at each place: a tuple that is not of one type throughout."""
    return typing.get_origin(declared) is tuple and typing.get_args(declared)[1:] != (...,)


def _by_place(one: Sequence[Any], other: Sequence[Any], declared: Any) -> Iterator[float]:
    for place in range(max(len(one), len(other))):
        if place < min(len(one), len(other)):
            yield likeness(one[place], other[place], _argument(declared, place))
        else:
            yield 0.0


def _aligned(one: list[Any], other: list[Any], declared: Any) -> float:
    """The most that the items of two lists can be alike, each paired with one of the other list at
    most and pairs in one order in both, over the length of the longer."""
    longest, shortest = max(len(one), len(other)), min(len(one), len(other))
    # What is alike at both ends need not be compared with everything else.
    first = 0
    while first < shortest and likeness(one[first], other[first], declared) == 1:
        first += 1
    last = 0
    while last < shortest - first and likeness(one[-1 - last], other[-1 - last], declared) == 1:
        last += 1
    if first + last == shortest:
        return shortest / longest if longest else 1.0
    inside = one[first : len(one) - last], other[first : len(other) - last]
    return min(1.0, (first + last + _most_alike(*inside, declared)) / longest)


def _most_alike(one: list[Any], other: list[Any], declared: Any) -> float:
    rows, places = len(one), len(other)
    reach = max(MOST_PAIRS // 2, rows, places)
    best = [0.0] * (places + 1)  # by how many of the other list take part, for the rows so far
    for row, expected in enumerate(one):
        # Near the line from corner to corner, which for short lists is everywhere.
        slant = row * (places - 1)
        low = -((reach - slant) // max(1, rows - 1))
        high = (slant + reach) // max(1, rows - 1)
        low, high = max(0, low), min(places - 1, high)
        corner = best[low]  # the best without either of the two
        for place in range(low, high + 1):
            above = best[place + 1]
            paired = corner + likeness(expected, other[place], declared)
            best[place + 1] = max(above, best[place], paired)
            corner = max(corner, above)
    return best[-1]


def _argument(declared: Any, place: int) -> Any:
    arguments = typing.get_args(declared)
    return arguments[place] if place < len(arguments) else Any


def _shared(one: Set[Any], other: Set[Any], declared: Any) -> float:
    """Twice what they share over what they have: F1, as for words."""
    if not one and not other:
        return 1.0
    label = _is_label(_meant(declared)) or any(isinstance(each, Enum) for each in one | other)
    ours, theirs = (Counter(_key(each, label) for each in side) for side in (one, other))
    return 2 * (ours & theirs).total() / (ours.total() + theirs.total())


def _key(value: Any, label: bool) -> Any:
    value = _value(value)
    if isinstance(value, str) and not label:
        return word_key(value)
    return (bool, value) if isinstance(value, bool) else value


def _mean(parts: Iterator[float]) -> float:
    found = list(parts)
    return math.fsum(found) / len(found) if found else 1.0
