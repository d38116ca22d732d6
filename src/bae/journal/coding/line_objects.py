"""The JSON object of a line, asked for what it must have."""

from __future__ import annotations

from typing import Any, TypeVar, cast

T = TypeVar("T")


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
