"""Texts that match a regular expression, for `samples`. Reads the part of the syntax that schemas
use, of any dialect: literals, classes, groups, alternatives, repetition, anchors. What is only
checked and never written (a look-around, a word boundary) is left to the check at the end."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass, field
from random import Random

_WORD = string.ascii_lowercase + string.digits
_ANY = string.ascii_letters + string.digits + " !#%&*+,-./:;<=>@_~^|"
_CLASSES = {"d": string.digits, "w": _WORD + "_", "s": " "}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_MANY = 8
"""How many more times than it must be a part is repeated, at most."""


def matching(
    pattern: str, random: Random, *, shortest: int = 0, longest: int | None = None
) -> str | None:
    """A text that `pattern` is found in and that is of a length within bounds; None when none of
    some hundred tries was."""
    try:
        parsed = _Parser(pattern).alternatives()
    except _Unreadable:
        return None
    try:
        check = re.compile(pattern)
    except re.error:
        check = None  # another dialect: what was written by its rules has to do

    def fits(text: str) -> bool:
        return (
            len(text) >= shortest
            and (longest is None or len(text) <= longest)
            and (check is None or check.search(text) is not None)
        )

    for attempt in range(200):
        # The shortest text first, then ever longer ones.
        spread = min(attempt, _MANY + shortest)
        text = _Writer(random, spread).write(parsed)
        filling = "x" * (shortest - len(text))
        for candidate in (text, text + filling, filling + text):
            if fits(candidate):
                return candidate
    return None


class _Unreadable(Exception):
    """The pattern uses syntax that is not read here."""


@dataclass(slots=True)
class _Part:
    """One of `chars`, or a group, or what a group before wrote, `least` to `most` times."""

    chars: str = ""
    group: _Alternatives | None = None
    number: int | str | None = None
    back: int | str | None = None
    least: int = 1
    most: int | None = 1


@dataclass(slots=True)
class _Alternatives:
    options: list[list[_Part]] = field(default_factory=lambda: [[]])


class _Writer:
    def __init__(self, random: Random, spread: int) -> None:
        self._random = random
        self._spread = spread
        self._written: dict[int | str, str] = {}

    def write(self, alternatives: _Alternatives) -> str:
        return "".join(map(self._part, self._random.choice(alternatives.options)))

    def _part(self, part: _Part) -> str:
        most = part.least + self._spread
        if part.most is not None:
            most = min(most, part.most)
        times = self._random.randint(part.least, most)
        return "".join(self._once(part) for _ in range(times))

    def _once(self, part: _Part) -> str:
        if part.back is not None:
            return self._written.get(part.back, "")
        if part.group is None:
            return self._random.choice(part.chars) if part.chars else ""
        text = self.write(part.group)
        if part.number is not None:
            self._written[part.number] = text
        return text


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._rest = list(reversed(pattern))
        self._groups = 0

    def alternatives(self, *, inside: bool = False) -> _Alternatives:
        found = _Alternatives()
        while self._rest:
            if self._skip(")"):
                if not inside:
                    raise _Unreadable
                return found
            if self._skip("|"):
                found.options.append([])
                continue
            part = self._part()
            if part is not None:
                self._repeated(part)
                found.options[-1].append(part)
        if inside:
            raise _Unreadable
        return found

    def _part(self) -> _Part | None:
        char = self._next()
        match char:
            case "^" | "$":
                return None
            case ".":
                return _Part(_WORD)
            case "[":
                return _Part(self._char_class())
            case "(":
                return self._group()
            case "\\":
                return self._escaped()
            case _:
                return _Part(char)

    def _group(self) -> _Part | None:
        if not self._skip("?"):
            self._groups += 1
            number = self._groups
            return _Part(group=self.alternatives(inside=True), number=number)
        if self._skip(":") or self._skip(">"):
            return _Part(group=self.alternatives(inside=True))
        if self._skip("=") or self._skip("!"):
            self.alternatives(inside=True)
            return None
        self._skip("P")
        if self._skip("="):
            return _Part(back=self._until(")"))
        if self._skip("<"):
            if self._skip("=") or self._skip("!"):
                self.alternatives(inside=True)
                return None
            self._groups += 1
            name = self._until(">")
            return _Part(group=self.alternatives(inside=True), number=name)
        flags = ""
        while self._peek() and self._peek() in "aiLmsuxU-":
            flags += self._next()
        if "x" in flags:
            raise _Unreadable
        if self._skip(")"):
            return None
        if self._skip(":"):
            return _Part(group=self.alternatives(inside=True))
        raise _Unreadable

    def _escaped(self) -> _Part | None:
        char = self._next()
        if char in "bBAzZG":
            return None
        if char.isdigit() and char != "0":
            return _Part(back=int(char))
        if char == "k":
            self._skip("<")
            return _Part(back=self._until(">"))
        return _Part(self._escape(char))

    def _escape(self, char: str) -> str:
        """The characters that an escape stands for, in a class or outside one."""
        if char in "pP":
            return self._unicode_class(negated=char == "P")
        if char.lower() in _CLASSES:
            chars = _CLASSES[char.lower()]
            return chars if char.islower() else "".join(c for c in _ANY if c not in chars)
        if char in "xuU":
            size = {"x": 2, "u": 4, "U": 8}[char]
            digits = self._until("}") if self._skip("{") else "".join(map(self._digit, range(size)))
            try:
                return chr(int(digits, 16))
            except (ValueError, OverflowError):
                raise _Unreadable from None
        return _CONTROLS.get(char, char)

    def _unicode_class(self, *, negated: bool) -> str:
        name = self._until("}") if self._skip("{") else self._next()
        chars = {
            "L": string.ascii_letters,
            "N": string.digits,
            "P": "!#%&*,-./:;?@_",
            "Z": " ",
            "S": "+<=>^|~",
        }.get(name[:1], "")
        chars = {"Lu": string.ascii_uppercase, "Ll": string.ascii_lowercase}.get(name, chars)
        if not chars:
            raise _Unreadable
        return "".join(c for c in _ANY if c not in chars) if negated else chars

    def _char_class(self) -> str:
        negated = self._skip("^")
        chars = ""
        first = True
        while first or self._peek() != "]":
            first = False
            char = self._next()
            if char == "[" and self._peek() == ":":
                chars += self._posix_class()
                continue
            low = self._escape(self._next()) if char == "\\" else char
            if self._peek() == "-" and len(low) == 1 and self._rest[-2:-1] not in (["]"], []):
                self._next()
                high = self._next()
                high = self._escape(self._next()) if high == "\\" else high
                # Some of a wide range will do: a range of Unicode has a million characters.
                chars += "".join(map(chr, range(ord(low), min(ord(high), ord(low) + 127) + 1)))
                continue
            chars += low
        self._next()
        if negated:
            chars = "".join(c for c in _ANY if c not in chars)
        # Letters and digits are the likelier sample; the rest is used where there are none.
        plain = "".join(c for c in chars if c.isalnum())
        if not chars:
            raise _Unreadable
        return plain or chars

    def _posix_class(self) -> str:
        self._next()
        name = self._until(":")
        if not self._skip("]"):
            raise _Unreadable
        known = {
            "alpha": string.ascii_letters,
            "digit": string.digits,
            "alnum": string.ascii_letters + string.digits,
            "upper": string.ascii_uppercase,
            "lower": string.ascii_lowercase,
            "space": " ",
            "punct": "!#%&*,-./:;?@_",
            "xdigit": string.hexdigits,
            "word": _WORD,
        }
        if name not in known:
            raise _Unreadable
        return known[name]

    def _repeated(self, part: _Part) -> None:
        match self._peek():
            case "*":
                part.least, part.most = 0, None
            case "+":
                part.least, part.most = 1, None
            case "?":
                part.least, part.most = 0, 1
            case "{":
                bounds = "".join(reversed(self._rest)).partition("}")[0][1:]
                least, comma, most = bounds.partition(",")
                if not re.fullmatch(r"\d*,?\d*", bounds) or bounds in ("", ","):
                    return  # a brace that stands for itself
                part.least = int(least or 0)
                part.most = (int(most) if most else None) if comma else part.least
                self._until("}")
                self._lazy()
                return
            case _:
                return
        self._next()
        self._lazy()

    def _lazy(self) -> None:
        if not self._skip("?"):
            self._skip("+")

    def _digit(self, _place: int) -> str:
        return self._next()

    def _peek(self) -> str:
        return self._rest[-1] if self._rest else ""

    def _next(self) -> str:
        if not self._rest:
            raise _Unreadable
        return self._rest.pop()

    def _skip(self, char: str) -> bool:
        if self._peek() != char:
            return False
        self._rest.pop()
        return True

    def _until(self, end: str) -> str:
        found = ""
        while (char := self._next()) != end:
            found += char
        return found
