"""JSON as somebody wrote it: a name that is there twice is an error, and a number keeps its digits,
which pydantic reads as a float before it makes a Decimal of it. `typed.py` and `node.py` read
what they are given with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from decimal import Decimal
from typing import Any, TypeVar, cast

Made = TypeVar("Made")
_Place = tuple[str | int, ...]


class Twice(ValueError):
    """An object of JSON has a name twice."""


class _Number(float):
    """A number that a float does not hold as it was written."""

    text: str


def loads(text: str) -> Any:
    """What JSON says. Raises `Twice`, or another ValueError where it is no JSON."""
    try:
        return json.loads(text, parse_float=_number, object_pairs_hook=_object)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def exactly(said: Any, make: Callable[[Any], Made]) -> tuple[Any, Made]:
    """What is made of JSON that `loads` has read, with every digit of the numbers that become
    Decimals; and that JSON, in which these are texts.

    `make` is called several times where there are such numbers. What it raises for the JSON as it
    stands is raised.
    """
    made = make(plainly(said))
    found = list(_numbers(said))
    texts: frozenset[_Place] = frozenset()
    waiting = [found] if found else []
    while waiting:
        places = waiting.pop()
        tried = texts.union(places)
        # A text will do where it makes the same, and that is a Decimal: a float, a text and a
        # Decimal may all be allowed at once, and then the number must stay one.
        with suppress(Exception):
            other = make(plainly(_told(said, tried)))
            if _alike(made, other):
                texts, made = tried, other
                continue
        if len(places) > 1:
            half = len(places) // 2
            waiting += [places[half:], places[:half]]
    return _told(said, texts), made


def plainly(said: Any) -> Any:
    """JSON that `loads` has read, without the digits that a float does not hold."""
    if isinstance(said, dict):
        return {name: plainly(each) for name, each in cast(dict[str, Any], said).items()}
    if isinstance(said, list):
        return [plainly(each) for each in cast(list[Any], said)]
    return float(said) if isinstance(said, _Number) else said


def _number(text: str) -> float:
    if repr(float(text)) == text and "e" not in text:
        return float(text)
    number = _Number(text)
    number.text = text
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise Twice(f"{json.dumps(name, ensure_ascii=False)} is there twice in one object")
        found[name] = value
    return found


def _numbers(said: Any, place: _Place = ()) -> Iterator[_Place]:
    """Where the numbers are that are more than their floats."""
    if isinstance(said, _Number):
        yield place
    elif isinstance(said, dict):
        for name, each in cast(dict[str, Any], said).items():
            yield from _numbers(each, (*place, name))
    elif isinstance(said, list):
        for index, each in enumerate(cast(list[Any], said)):
            yield from _numbers(each, (*place, index))


def _told(said: Any, texts: frozenset[_Place], place: _Place = ()) -> Any:
    """JSON with texts in place of some of its numbers."""
    if isinstance(said, _Number) and place in texts:
        return said.text
    if isinstance(said, dict):
        named = cast(dict[str, Any], said).items()
        return {name: _told(each, texts, (*place, name)) for name, each in named}
    if isinstance(said, list):
        items = enumerate(cast(list[Any], said))
        return [_told(each, texts, (*place, index)) for index, each in items]
    return said


def _alike(one: Any, two: Any) -> bool:
    """Whether two values are the same but for the digits of their Decimals."""
    if type(one) is not type(two):
        return False
    if isinstance(one, Decimal):
        return float(one) == float(two)
    if isinstance(one, Mapping):
        first, second = cast(Mapping[Any, Any], one), cast(Mapping[Any, Any], two)
        return first.keys() == second.keys() and all(_alike(first[n], second[n]) for n in first)
    if isinstance(one, list | tuple):
        first, second = cast(list[Any], one), cast(list[Any], two)
        return len(first) == len(second) and all(map(_alike, first, second))
    if isinstance(one, set | frozenset):
        first, second = cast(set[Any], one), cast(set[Any], two)
        return len(first) == len(second) and all(any(_alike(a, b) for b in second) for a in first)
    inside, other = _inside(one), _inside(two)
    if inside or other:
        return _alike(inside, other)
    return bool(one == two) or bool(one != one and two != two)  # nan is not itself


def _inside(value: Any) -> dict[str, Any]:
    """What an object is made of."""
    if isinstance(value, type):
        return {}
    found: dict[str, Any] = dict(getattr(value, "__dict__", {}))
    if is_dataclass(value):
        found |= {each.name: getattr(value, each.name, None) for each in fields(value)}
    extra: Mapping[str, Any] | None = getattr(value, "__pydantic_extra__", None)
    return found | dict(extra or {})
