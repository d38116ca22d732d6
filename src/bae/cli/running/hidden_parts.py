"""Values with parts that are not to be shown, whatever the type of the field says: fields with
`repr=False` of models and dataclasses inside them. `results.py` prints what is left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, cast

from bae.cli.texts import WITHHELD

_DEEPEST: Final = 100


def hides_something(value: Any) -> bool:
    """Whether a value, or anything inside it, has a field with `repr=False`."""
    seen: set[int] = set()
    todo = [(value, 0)]
    while todo:
        each, deep = todo.pop()
        if deep > _DEEPEST or id(each) in seen:
            continue
        seen.add(id(each))
        parts = _named(each)
        if parts is not None:
            if any(hidden for _, _, hidden in parts):
                return True
            todo += [(part, deep + 1) for _, part, _ in parts]
        else:
            todo += [(part, deep + 1) for part in _inside(each)]
    return False


def without_hidden(value: Any, deep: int = 0) -> Any:
    """A value as JSON has it, with what is hidden withheld."""
    if deep > _DEEPEST:
        return "…"
    parts = _named(value)
    if parts is not None:
        return {
            name: WITHHELD if hidden else without_hidden(part, deep + 1)
            for name, part, hidden in parts
        }
    if isinstance(value, Mapping):
        held = cast("Mapping[Any, Any]", value)
        keys: Any = jsonable(dict.fromkeys(held))  # as JSON has them
        return {
            key: without_hidden(each, deep + 1)
            for key, each in zip(keys, held.values(), strict=True)
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [without_hidden(each, deep + 1) for each in cast("list[Any]", value)]
    return jsonable(value)


def jsonable(value: Any) -> Any:
    """A value as JSON has it; one that it cannot have, as it writes itself."""
    from pydantic_core import to_jsonable_python

    try:
        return to_jsonable_python(value, fallback=repr, inf_nan_mode="strings")
    except Exception:  # a serializer of somebody's own, which may raise anything
        return repr(value)


def _named(value: Any) -> list[tuple[str, Any, bool]] | None:
    """The fields of a model or a dataclass, each with whether it is hidden."""
    from pydantic import BaseModel

    if isinstance(value, BaseModel):
        declared = type(value).__pydantic_fields__
        held = {**value.__dict__, **(value.__pydantic_extra__ or {})}
        return [(n, each, n in declared and not declared[n].repr) for n, each in held.items()]
    if is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name, None), not f.repr) for f in fields(value)]
    return None


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from cast("Mapping[Any, Any]", value).keys()
        yield from cast("Mapping[Any, Any]", value).values()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from cast("list[Any]", value)
