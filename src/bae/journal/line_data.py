"""The JSON object of a stored line, asked for what it must have, and the errors of a line that
cannot be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic_core import from_json, to_json

from bae.exceptions import JournalError

if TYPE_CHECKING:
    from bae.journal.store import Line

T = TypeVar("T")
Json = dict[str, Any]


class Missing(Exception):
    """Raised where a line lacks something, or has something else in its place."""


class Refused(Exception):
    """Raised where a line does not fit the classes of today; the text says what and why."""


class Data:
    """The JSON object of a line, or one inside it; `held` is the object itself."""

    __slots__ = ("held",)

    def __init__(self, held: Json) -> None:
        self.held = held

    def __contains__(self, key: str) -> bool:
        return key in self.held

    def get(self, key: str, *kinds: type[T]) -> T:
        """The value under a key, of one of these types."""
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
        return Data(cast(Json, self.get(key, dict)))


def damaged(line: Line, what: str, cause: BaseException | None = None) -> JournalError:
    """The error of a line that cannot be read."""
    return JournalError(
        f"line {line.n}, a {line.kind}, {what}",
        code="bae-journal-damaged",
        cause=cause,
        fix="take the journal from a backup; the lines before this one are readable",
    )


def quoted(value: Any) -> str:
    """A value made of what JSON has, as JSON; half of a character pair is replaced."""
    try:
        return to_json(value, inf_nan_mode="constants").decode()
    except (ValueError, TypeError) as error:
        if isinstance(value, str):
            return to_json(value.encode("utf-8", "replace").decode()).decode()
        if isinstance(value, dict):
            entries = cast(Json, value)
            return f"{{{','.join(f'{quoted(k)}:{quoted(v)}' for k, v in entries.items())}}}"
        if isinstance(value, list | tuple):
            return f"[{','.join(quoted(each) for each in cast('list[Any]', value))}]"
        raise JournalError(f"{value!r} cannot be written as JSON", cause=error) from error


def parse_line(line: Line) -> Data:
    """The data of a line; damage is raised as `bae-journal-damaged`."""
    try:
        found = from_json(line.data)
    except ValueError as error:
        raise damaged(line, "is no JSON", error) from error
    if not isinstance(found, dict):
        raise damaged(line, "is no JSON object")
    return Data(cast(Json, found))
