"""`JSONStrings`: reads the text of each string in a JSON object that arrives in pieces. It reads
every character once, whatever the size of the pieces."""

from __future__ import annotations

import re
from typing import Final, Literal

JSONPath = tuple[str | int, ...]
"""The path to a value in a JSON object: keys of objects, and indices of lists."""

DEEPEST: Final = 200
"""How deep values may be nested. A deeper object is `broken`."""

_State = Literal["start", "first_key", "key", "colon", "value", "first_item", "after", "end"]
_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]+')
_SPACE: Final = re.compile(r"[ \t\n\r]+")
_SCALAR: Final = re.compile(r"[-+.0-9A-Za-z]+")
_VALUE: Final = re.compile(
    r"true|false|null|NaN|-?Infinity|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
)
_HEX: Final = re.compile(r"[0-9a-fA-F]{0,4}")
_ESCAPES: Final = dict(zip('"\\/bfnrt', '"\\/\b\f\n\r\t', strict=True))
_LOST: Final = "\ufffd"
"""The replacement for half of a surrogate pair."""


class JSONStrings:
    """Reads the strings of one JSON object. Pass the pieces of the object to `feed`, which returns
    the new text of each string.

    An invalid character or a repeated key sets `broken`. From then on, `feed` returns nothing.
    """

    __slots__ = (
        "_escape",
        "_half",
        "_keys",
        "_path",
        "_pieces",
        "_scalar",
        "_state",
        "_where",
        "broken",
        "is_open",
    )

    def __init__(self) -> None:
        self.broken = False
        self.is_open = False
        """Whether a string is open after the last piece."""
        self._state: _State = "start"
        self._path: list[str | int] = []
        """The current key or index in each open object or list."""
        self._keys: list[set[str] | None] = []
        """For each open object, the keys so far. For an open list, None."""
        self._where: JSONPath | None = None
        """The path to the open string. None if the string is a key."""
        self._pieces: list[str] = []
        """The decoded text of the open string that `feed` has not returned yet. The text of a key
        stays here until the key ends."""
        self._escape = ""
        """The beginning of an unfinished escape, such as `\\u00`."""
        self._half = ""
        """The first half of a surrogate pair, until the second half or another character
        follows."""
        self._scalar: list[str] = []
        """The beginning of an unfinished number or word."""

    @property
    def path(self) -> JSONPath | None:
        """The path to the open string. None if no string is open, or if the open string is a
        key."""
        return self._where if self.is_open else None

    def feed(self, text: str) -> list[tuple[JSONPath, str]]:
        """Read the next piece. Return the text that the piece adds to each string, in order."""
        texts: list[tuple[JSONPath, str]] = []
        at = 0
        while at < len(text) and not self.broken:
            at = (
                self._read_string(text, at, texts)
                if self.is_open
                else self._read_between_strings(text, at)
            )
        if self.broken:
            return []
        if self.is_open and self._where is not None and self._pieces:
            texts.append((self._where, "".join(self._pieces)))
            self._pieces.clear()
        return texts

    # Strings.

    def _read_string(self, text: str, at: int, texts: list[tuple[JSONPath, str]]) -> int:
        if self._escape:
            return self._read_escape(text, at)
        if (plain := _PLAIN.match(text, at)) is not None:
            self._drop_half()
            self._pieces.append(plain[0])
            at = plain.end()
            if at == len(text):
                return at
        match text[at]:
            case "\\":
                self._escape = "\\"
            case '"':
                self._drop_half()
                self._end_string(texts)
            case _:
                self.broken = True
        return at + 1

    def _read_escape(self, text: str, at: int) -> int:
        if self._escape == "\\":
            if (short := _ESCAPES.get(text[at])) is not None:
                self._drop_half()
                self._pieces.append(short)
                self._escape = ""
            elif text[at] == "u":
                self._escape = "\\u"
            else:
                self.broken = True
            return at + 1
        digits = _HEX.match(text[at : at + 6 - len(self._escape)])
        assert digits is not None
        if not digits[0]:
            self.broken = True
        self._escape += digits[0]
        if len(self._escape) == 6:
            self._add_code_unit(int(self._escape[2:], 16))
            self._escape = ""
        return at + len(digits[0])

    def _add_code_unit(self, unit: int) -> None:
        if self._half and 0xDC00 <= unit <= 0xDFFF:
            pair = (ord(self._half) - 0xD800) * 0x400 + unit - 0xDC00
            self._pieces.append(chr(0x10000 + pair))
            self._half = ""
            return
        self._drop_half()
        if 0xD800 <= unit <= 0xDBFF:
            self._half = chr(unit)
        else:
            self._pieces.append(_LOST if 0xDC00 <= unit <= 0xDFFF else chr(unit))

    def _drop_half(self) -> None:
        if self._half:
            self._pieces.append(_LOST)
            self._half = ""

    def _begin_string(self, where: JSONPath | None) -> None:
        self.is_open, self._where = True, where
        self._pieces.clear()

    def _end_string(self, texts: list[tuple[JSONPath, str]]) -> None:
        text, keys = "".join(self._pieces), self._keys[-1]
        self.is_open = False
        if self._where is not None:
            if text:
                texts.append((self._where, text))
            self._state = "after"
        elif keys is None or text in keys:
            self.broken = True
        else:
            keys.add(text)
            self._path[-1] = text
            self._state = "colon"

    # Between strings.

    def _read_between_strings(self, text: str, at: int) -> int:
        if self._scalar:
            return self._read_scalar(text, at)
        char = text[at]
        if char in " \t\n\r":
            space = _SPACE.match(text, at)
            return at + 1 if space is None else space.end()
        match self._state, char:
            case "start" | "value" | "first_item", "{":
                self._open("first_key", set())
            case "value" | "first_item", "[":
                self._open("first_item", None)
            case "value" | "first_item", '"':
                self._begin_string(tuple(self._path))
            case "first_key" | "key", '"':
                self._begin_string(None)
            case "colon", ":":
                self._state = "value"
            case "after", ",":
                self._begin_next()
            case ("after" | "first_key", "}") | ("after" | "first_item", "]"):
                self._close(char)
            case "value" | "first_item", _ if _SCALAR.match(char) is not None:
                return self._read_scalar(text, at)
            case _:
                self.broken = True
        return at + 1

    def _open(self, state: _State, keys: set[str] | None) -> None:
        self._state = state
        self._path.append(0 if keys is None else "")
        self._keys.append(keys)
        if len(self._keys) > DEEPEST:
            self.broken = True

    def _begin_next(self) -> None:
        if self._keys[-1] is None:
            index = self._path[-1]
            assert isinstance(index, int)
            self._path[-1] = index + 1
            self._state = "value"
        else:
            self._state = "key"

    def _close(self, char: str) -> None:
        if (char == "]") is not (self._keys[-1] is None):
            self.broken = True
            return
        self._keys.pop()
        self._path.pop()
        self._state = "after" if self._keys else "end"

    def _read_scalar(self, text: str, at: int) -> int:
        more = _SCALAR.match(text, at)
        if more is not None:
            self._scalar.append(more[0])
            return more.end()
        self.broken = _VALUE.fullmatch("".join(self._scalar)) is None
        self._scalar, self._state = [], "after"
        return at
