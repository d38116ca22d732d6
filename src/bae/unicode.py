"""Text from other programs that may be invalid Unicode. If the two halves of a surrogate pair
follow each other, they are joined. A half alone is refused or replaced."""

from __future__ import annotations

from typing import Any, Final, cast

LONGEST_TEXT: Final = 8_000
"""How many characters of a text `readable` returns by default."""
LONGEST_INT: Final = 4_300
"""How many digits an int in JSON may have."""
_TOO_LONG: Final = 10**LONGEST_INT


def join_surrogates(text: str) -> str:
    """Join the two halves of each surrogate pair in a text, and return the text. A stream that was
    cut inside a character has such halves. Raises `ValueError` if a half is alone."""
    if text.isascii() or not _has_halves(text):
        return text
    units = text.encode("utf-16-le", "surrogatepass")
    try:
        return units.decode("utf-16-le")
    except UnicodeDecodeError as error:
        at = len(units[: error.start].decode("utf-16-le"))
        raise ValueError(f"character {at} is half of a surrogate pair") from None


def readable(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return a text as valid Unicode. Half a character is replaced. A text with more than `longest`
    characters is cut, and a note says how many are left out. With 0, no text is cut."""
    if longest and len(text) > longest:
        text = f"{text[:longest]}… ({len(text) - longest:,} more characters)"
    if text.isascii() or not _has_halves(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def readable_json(value: Any) -> Any:
    """Return a JSON value with all texts and keys as valid Unicode; see `readable`."""
    if isinstance(value, str):
        return readable(value, 0)
    if isinstance(value, dict):
        parts = cast("dict[str, Any]", value).items()
        return {readable(key, 0): readable_json(part) for key, part in parts}
    return [*map(readable_json, cast("list[Any]", value))] if isinstance(value, list) else value


def join_json_surrogates(value: Any) -> Any:
    """Join the surrogate pairs in all texts and keys of a value that was parsed from JSON, and
    return the value. Raises `ValueError` for half a pair, a number of more than 4,300 digits, and
    too deep nesting."""
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
        return [_join_in(item) for item in cast("list[Any]", value)]
    if isinstance(value, int) and not -_TOO_LONG < value < _TOO_LONG:
        raise ValueError(f"a number of more than {LONGEST_INT:,} digits")
    return value


def _has_halves(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
