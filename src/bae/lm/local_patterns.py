"""Patterns of texts for the local model: those of dates, addresses and identifiers, and what a
grammar can do with a regular expression."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, Final, NamedTuple


def can_be_enforced(pattern: str) -> bool:
    """Whether grammar engines follow everything in a pattern."""
    return _BEYOND_GRAMMARS.search(pattern) is None


def is_finite(pattern: str) -> bool:
    """Whether texts that match a pattern have a greatest length."""
    bare = re.sub(r"\[\^?\]?[^\]]*\]", "a", re.sub(r"\\.", "a", pattern))
    whole = bare.startswith("^") and bare.endswith("$")
    return whole and re.search(r"[*+]|\{\d*,\}", bare) is None


def shortest_match(pattern: str) -> int:
    """The characters of the shortest text that matches; 0 where Python cannot read the pattern."""
    parser: Any = import_module("re._parser")
    try:
        shortest, _ = parser.parse(pattern).getwidth()
    except (re.error, OverflowError, RecursionError):
        return 0
    return shortest


class Form(NamedTuple):
    """The pattern of a text with a `format`, and its greatest length; None where it has none."""

    pattern: str
    longest: int | None


_DAY: Final = (
    r"([12]\d{3}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])"
    r"|(0[469]|11)-(0[1-9]|[12]\d|30)"
    r"|02-(0[1-9]|1\d|2[0-8]))"
    r"|[12]\d(0[48]|[2468][048]|[13579][26])-02-29)"
).replace(r"\d", "[0-9]")  # to some engines, \d is a digit of any script
_CLOCK: Final = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
_HOURS: Final = "[0-9]{1,2}H([0-5]?[0-9]M)?"
_HEX: Final = "[0-9a-f]"
_LABEL: Final = "[a-z0-9]+(-[a-z0-9]+)*"
_HOST: Final = rf"({_LABEL}\.)+[a-z]{{2,6}}"
_BYTE: Final = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4: Final = rf"({_BYTE}\.){{3}}{_BYTE}"
_IPV6: Final = f"({_HEX}{{1,4}}:){{7}}{_HEX}{{1,4}}"


def _uuid(version: str) -> Form:
    groups = f"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-[89ab]{_HEX}{{3}}-{_HEX}{{12}}"
    return Form(f"^{groups}$", 36)


FORMS: Final = {
    "date": Form(f"^{_DAY}$", 10),
    "date-time": Form(f"^{_DAY}T{_CLOCK}(Z|[+-](0[0-9]|1[0-3]):[0-5][0-9])?$", 25),
    "time": Form(f"^{_CLOCK}$", 8),
    "duration": Form(f"^P([0-9]{{1,3}}D(T{_HOURS})?|T({_HOURS}|[0-9]{{1,3}}M|[0-9]{{1,4}}S))$", 12),
    "uuid": _uuid("[1-5]"),
    **{f"uuid{version}": _uuid(str(version)) for version in (1, 3, 4, 5, 6, 7, 8)},
    "ipv4": Form(f"^{_IPV4}$", 15),
    "ipv6": Form(f"^{_IPV6}$", 39),
    "ipvanyaddress": Form(f"^{_IPV4}$", 15),
    "hostname": Form(f"^{_HOST}$", None),
    "email": Form(rf"^[a-z0-9]+([._-][a-z0-9]+)*@{_HOST}$", None),
    "uri": Form(rf"^https?://{_HOST}(/[A-Za-z0-9._~-]*)*$", None),
}
"""By the word of JSON schemas. A grammar gets a pattern and not the word, because engines know few
of those words and read some more loosely than pydantic."""

_BEYOND_GRAMMARS: Final = re.compile(
    r"\(\?(=|!|<=|<!|>|\(|P=|P>|R|&)"  # lookaround, atomic groups, conditions, references
    r"|\\[bBAZzGK1-9]|\\k"  # word and text boundaries, back-references
    r"|[*+?}]\+"  # possessive repeats
)
