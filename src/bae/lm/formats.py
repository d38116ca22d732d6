"""Texts with a form, as patterns: dates, addresses, identifiers. A grammar is held to a pattern of
ours, and not to the word `format`, because engines know few of those words, and read some more
loosely than pydantic does. `bounds.py` puts them into schemas."""

from __future__ import annotations

from typing import Final, NamedTuple


class Form(NamedTuple):
    """The pattern of a text, and how long such a text can get; None where it has no end."""

    pattern: str
    longest: int | None


_DAY: Final = (
    r"([12]\d{3}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])"
    r"|(0[469]|11)-(0[1-9]|[12]\d|30)"
    r"|02-(0[1-9]|1\d|2[0-8]))"
    r"|[12]\d(0[48]|[2468][048]|[13579][26])-02-29)"
).replace(r"\d", "[0-9]")  # to a regex engine of its own, \d can be a digit of any script
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
    "uuid1": _uuid("1"),
    "uuid3": _uuid("3"),
    "uuid4": _uuid("4"),
    "uuid5": _uuid("5"),
    "uuid6": _uuid("6"),
    "uuid7": _uuid("7"),
    "uuid8": _uuid("8"),
    "ipv4": Form(f"^{_IPV4}$", 15),
    "ipv6": Form(f"^{_IPV6}$", 39),
    "ipvanyaddress": Form(f"^{_IPV4}$", 15),
    # A network of one address has no bits set beyond its mask, which no pattern can count.
    "ipv4network": Form(f"^{_IPV4}/32$", 18),
    "ipv6network": Form(f"^{_IPV6}/128$", 43),
    "ipvanynetwork": Form(f"^{_IPV4}/32$", 18),
    "ipv4interface": Form(f"^{_IPV4}/(3[0-2]|[12]?[0-9])$", 18),
    "ipv6interface": Form(f"^{_IPV6}/(12[0-8]|1[01][0-9]|[1-9]?[0-9])$", 43),
    "ipvanyinterface": Form(f"^{_IPV4}/(3[0-2]|[12]?[0-9])$", 18),
    "hostname": Form(f"^{_HOST}$", None),
    "email": Form(rf"^[a-z0-9]+([._-][a-z0-9]+)*@{_HOST}$", None),
    "uri": Form(rf"^https?://{_HOST}(/[A-Za-z0-9._~-]*)*$", None),
    # Whole groups of four, so that a text of letters and digits decodes.
    "base64": Form("^([A-Za-z0-9+/]{4})*$", None),
    "base64url": Form("^([A-Za-z0-9_-]{4})*$", None),
}
"""By the word that JSON schemas have for them. A format that is not here is left to validation."""
