"""`Arguments`: the arguments of a dependency that come from the run, compared by value, so that
equal arguments are one call."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, cast

from pydantic import BaseModel

from bae.records import Unstored


class Arguments:
    """The arguments of a call that come from the run: its `own` arguments by parameter, and the
    arguments of the functions `below` it, each by its key. They are the key of the call: calls with
    equal values have equal keys."""

    __slots__ = ("_frozen", "_hash", "below", "key", "own")

    def __init__(
        self, key: Hashable, own: Mapping[str, Any], below: Mapping[Hashable, Any] | None = None
    ) -> None:
        self.key = key
        self.own = own
        self.below = below or {}
        values: dict[Hashable, Any] = {**self.own, **self.below}
        self._frozen = {name: freeze(value) for name, value in values.items()}
        self._hash = hash((key, frozenset(self._frozen.items())))

    def fits(self, other: Arguments) -> bool:
        """Whether they are equal, except for values that no journal stores."""
        known = [n for n, value in {**self.own, **self.below}.items() if not _is_unstored(value)]
        frozen, others = self._frozen, other._frozen
        return frozen.keys() == others.keys() and all(frozen[n] == others[n] for n in known)

    @property
    def is_known(self) -> bool:
        """Whether all values among them can be stored in a journal."""
        return not any(map(_is_unstored, (*self.own.values(), *self.below.values())))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Arguments):
            return NotImplemented
        return self.key == other.key and self._frozen == other._frozen

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Arguments({self.key!r}, {self.own!r})"


def _is_unstored(value: object) -> bool:
    return isinstance(value, Unstored)


def freeze(value: Any) -> Hashable:
    """A hashable form that is equal for equal values of one type, including models, dataclasses and
    collections. A NaN equals a NaN here. Any other value without a hash equals only itself."""
    try:
        return _frozen(value)
    except Exception:  # it contains itself, or its class has its own way to compare or iterate
        return _Itself(value)


def _frozen(value: Any) -> Hashable:
    cls = cast("type[Any]", type(value))
    if cls is str:
        return cast(Hashable, value)
    if isinstance(value, BaseModel):
        values = {n: value.__dict__.get(n, _ABSENT) for n in cls.__pydantic_fields__}
        return cls, _of_mapping(values), freeze(value.__pydantic_extra__)
    if isinstance(value, Mapping):
        return cls, _of_mapping(cast("Mapping[Any, Any]", value))
    if isinstance(value, list | tuple):
        return cls, tuple([_frozen(each) for each in cast("list[Any]", value)])
    if isinstance(value, set | frozenset):
        return cls, frozenset([_frozen(each) for each in cast("set[Any]", value)])
    if is_dataclass(value) and not isinstance(value, type):
        values = {
            field.name: getattr(value, field.name) for field in fields(value) if field.compare
        }
        return cls, _of_mapping(values)
    if value != value:
        return cls, _NAN
    try:
        hash(value)
    except TypeError:
        return _Itself(value)
    return cls, value


def _of_mapping(values: Mapping[Any, Any]) -> Hashable:
    return frozenset([(_frozen(name), _frozen(each)) for name, each in values.items()])


_NAN: Final = "not a number"
_ABSENT: Final = object()


class _Itself:
    """A value that equals only itself. It is kept alive, so that no other gets its identity."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)
