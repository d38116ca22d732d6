"""The JSON object of a line, asked for what it must have: what is missing, or of another kind than
it should be, is said; and `RecordedError`, which stands for an exception in what is read.
`decoding.py` reads lines through it."""

from __future__ import annotations

from typing import Any, TypeVar, cast

T = TypeVar("T")


class RecordedError(Exception):
    """Stands in a record that was read for the exception that was raised then: `type_name` is the
    name of its class, `code` the code it had if it was a `BaeError`."""

    def __init__(self, type_name: str, message: str, code: str | None = None) -> None:
        super().__init__(type_name, message, code)
        self.type_name = type_name
        self.message = message
        self.code = code

    def __str__(self) -> str:
        code = f"[{self.code}] " if self.code else ""
        return f"{code}{self.type_name}: {self.message}" if self.message else self.type_name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordedError) and self.args == other.args

    def __hash__(self) -> int:
        return hash(self.args)


class Missing(Exception):
    """Raised where a line lacks something, or has something else in its place."""


class Data:
    """The JSON object of a line, or one inside it; `held` is the object itself."""

    __slots__ = ("held",)

    def __init__(self, held: dict[str, Any]) -> None:
        self.held = held

    def __contains__(self, key: str) -> bool:
        return key in self.held

    def get(self, key: str, *kinds: type[T]) -> T:
        """What stands under `key`, of one of these types."""
        value = self.held.get(key, self)
        if value is self:
            raise Missing(f"lacks {key!r}")
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise Missing(f"has {str(value)[:40]!r} for {key!r}")
        return value

    def text(self, key: str) -> str:
        """A text."""
        return self.get(key, str)

    def number(self, key: str) -> float:
        """A number."""
        return float(self.get(key, int, float))

    def listed(self, key: str) -> list[Any]:
        """A list."""
        return cast("list[Any]", self.get(key, list))

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        found = self.listed(key)
        if not all(isinstance(each, str) for each in found):
            raise Missing(f"has something that is no text in {key!r}")
        return tuple(found)

    def inside(self, key: str) -> Data:
        """An object inside."""
        return Data(cast("dict[str, Any]", self.get(key, dict)))
