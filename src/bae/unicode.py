"""Foreign text that may be invalid Unicode: the halves of a surrogate pair are joined where they
belong together, and refused or replaced where they do not."""

from __future__ import annotations

from typing import Any, Final, cast

LONGEST_TEXT: Final = 8_000
"""How many characters of a text about an error are kept."""
LONGEST_INT: Final = 4_300
"""How many digits of an int JSON is read with."""
_TOO_LONG: Final = 10**LONGEST_INT


def join_surrogates(text: str) -> str:
    """The text, with the halves of surrogate pairs joined where they follow each other, for example
    where a stream was cut between them. Raises `ValueError` for a half without the other."""
    if text.isascii() or not _has_halves(text):
        return text
    units = text.encode("utf-16-le", "surrogatepass")
    try:
        return units.decode("utf-16-le")
    except UnicodeDecodeError as error:
        at = len(units[: error.start].decode("utf-16-le"))
        raise ValueError(f"character {at} is half of a surrogate pair") from None


def readable(text: str, longest: int = LONGEST_TEXT) -> str:
    """The text as valid Unicode, with at most `longest` characters; 0 is no bound. Half a character
    is replaced. A text that was cut says how much is left out."""
    if longest and len(text) > longest:
        text = f"{text[:longest]}… ({len(text) - longest:,} more characters)"
    if text.isascii() or not _has_halves(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def readable_json(value: Any) -> Any:
    """A JSON value with all of its texts and keys readable."""
    if isinstance(value, str):
        return readable(value, 0)
    if isinstance(value, dict):
        parts = cast("dict[str, Any]", value).items()
        return {readable(key, 0): readable_json(each) for key, each in parts}
    return [*map(readable_json, cast("list[Any]", value))] if isinstance(value, list) else value


def whole_json(value: Any) -> Any:
    """A value that was parsed from JSON, with the surrogate pairs of all texts and keys joined.
    Raises `ValueError` if JSON cannot have the value."""
    try:
        return _join_in(value)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _join_in(value: Any) -> Any:
    if isinstance(value, str):
        return join_surrogates(value)
    if isinstance(value, dict):
        parts = cast("dict[Any, Any]", value).items()
        return {join_surrogates(k) if isinstance(k, str) else k: _join_in(v) for k, v in parts}
    if isinstance(value, list):
        return [_join_in(each) for each in cast("list[Any]", value)]
    if isinstance(value, int) and not -_TOO_LONG < value < _TOO_LONG:
        raise ValueError(f"a number of more than {LONGEST_INT:,} digits")
    return value


def _has_halves(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
