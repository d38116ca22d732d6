"""`Arguments` compares the arguments of dependencies by value, so that calls with equal arguments
share one call."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, cast

from pydantic import BaseModel

from bae.records import Unstored


class Arguments:
    """The arguments that a dependency takes from the run. For equal `Arguments`, a run calls the
    dependency once."""

    __slots__ = ("_frozen", "_hash", "below", "key", "own")

    def __init__(
        self, key: Hashable, own: Mapping[str, Any], below: Mapping[Hashable, Any] | None = None
    ) -> None:
        self.key = key
        """The key of the dependency that is called."""
        self.own = own
        """The arguments of the dependency itself, by parameter."""
        self.below = below or {}
        """The arguments of the functions that the dependency waits for, by an internal key."""
        values: dict[Hashable, Any] = {**self.own, **self.below}
        self._frozen = {name: freeze(value) for name, value in values.items()}
        self._hash = hash((key, frozenset(self._frozen.items())))

    def fits(self, other: Arguments) -> bool:
        """Return whether these arguments equal `other`, without comparing values that no journal
        stores."""
        stored = [n for n, value in {**self.own, **self.below}.items() if not _is_unstored(value)]
        frozen, others = self._frozen, other._frozen
        return frozen.keys() == others.keys() and all(frozen[n] == others[n] for n in stored)

    @property
    def is_known(self) -> bool:
        """Whether a journal stores all of the values."""
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
    """Return a hashable form of a value. Two values of one type have equal forms if the values are
    equal; a NaN also equals a NaN. Models, dataclasses and collections are compared by their
    contents. Any other value without a hash equals only itself."""
    try:
        return _freeze(value)
    except Exception:  # the value contains itself, or its class compares or iterates in its own way
        return _Itself(value)


def _freeze(value: Any) -> Hashable:
    cls = cast("type[Any]", type(value))
    if cls is str:
        return cast(Hashable, value)
    if isinstance(value, BaseModel):
        values = {n: value.__dict__.get(n, _ABSENT) for n in cls.__pydantic_fields__}
        return cls, _freeze_mapping(values), freeze(value.__pydantic_extra__)
    if isinstance(value, Mapping):
        return cls, _freeze_mapping(cast("Mapping[Any, Any]", value))
    if isinstance(value, list | tuple):
        return cls, tuple([_freeze(item) for item in cast("list[Any]", value)])
    if isinstance(value, set | frozenset):
        return cls, frozenset([_freeze(item) for item in cast("set[Any]", value)])
    if is_dataclass(value) and not isinstance(value, type):
        values = {
            field.name: getattr(value, field.name) for field in fields(value) if field.compare
        }
        return cls, _freeze_mapping(values)
    if value != value:
        return cls, _NAN
    try:
        hash(value)
    except TypeError:
        return _Itself(value)
    return cls, value


def _freeze_mapping(values: Mapping[Any, Any]) -> Hashable:
    return frozenset([(_freeze(name), _freeze(value)) for name, value in values.items()])


_NAN: Final = "not a number"
_ABSENT: Final = object()


class _Itself:
    """Wraps a value that equals only itself. The wrapper keeps the value alive, so that no other
    value gets the same `id`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)
