"""Texts for `samples`: of a length, in a format (a date, an address, a UUID…), or to a pattern."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from random import Random
from typing import Any
from uuid import UUID

from bae.testing.patterns import matching

_SAYING = (
    "amber birch cedar delta ember fable glade harbour iris jasmine kestrel linen maple north "
    "olive pebble quartz river slate thistle umber velvet willow yarrow zephyr"
)
_WORDS = _SAYING.split()


def text_for(schema: Mapping[str, Any], random: Random) -> str | None:
    """A text that fits the keywords of a schema of type string; None where none was found."""
    shortest: int = schema.get("minLength", 0)
    longest: int | None = schema.get("maxLength")
    if longest is not None and longest < shortest:
        return None
    pattern: str | None = schema.get("pattern")
    if pattern is not None:
        return matching(pattern, random, shortest=shortest, longest=longest)
    make = _FORMATS.get(schema.get("format", ""))
    if make is None:
        return words(random, shortest, longest)
    for _ in range(20):
        text = make(random)
        if len(text) < shortest and schema["format"] in _EXTENSIBLE:
            text += "x" * (shortest - len(text))
        if shortest <= len(text) and (longest is None or len(text) <= longest):
            return text
    return None


def word(random: Random) -> str:
    """One word."""
    return random.choice(_WORDS)


def words(random: Random, shortest: int, longest: int | None) -> str:
    """Some words, as many as the length asks for."""
    text = word(random)
    if random.random() < 0.5:
        text += f" {word(random)}"
    while len(text) < shortest:
        text += f" {word(random)}"
    if longest is not None and len(text) > longest:
        text = text[:longest]
    # A space at the end would be lost to a field that strips its text.
    return f"{text[:-1]}x" if text.endswith(" ") else text


def _day(random: Random) -> str:
    return (date(2020, 1, 1) + timedelta(days=random.randrange(2000))).isoformat()


def _time(random: Random) -> str:
    return f"{random.randrange(24):02}:{random.randrange(60):02}:{random.randrange(60):02}Z"


def _uuid(version: int) -> Callable[[Random], str]:
    def make(random: Random) -> str:
        bits = random.getrandbits(128)
        bits = bits & ~(0xF << 76) | version << 76  # the version
        return str(UUID(int=bits & ~(0x3 << 62) | 0x2 << 62))  # the variant

    return make


def _ipv4(random: Random) -> str:
    return f"10.{random.randrange(256)}.{random.randrange(256)}.{random.randrange(1, 255)}"


def _ipv4_network(random: Random) -> str:
    return f"10.{random.randrange(256)}.{random.randrange(256)}.0/24"


def _ipv6(random: Random) -> str:
    return f"2001:db8::{random.randrange(1, 65536):x}"


def _email(random: Random) -> str:
    return f"{word(random)}{random.randrange(100)}@example.com"


_FORMATS: dict[str, Callable[[Random], str]] = {
    "date": _day,
    "time": _time,
    "date-time": lambda r: f"{_day(r)}T{_time(r)}",
    "duration": lambda r: f"PT{r.randrange(1, 600)}M",
    "email": _email,
    "idn-email": _email,
    "name-email": lambda r: f"{word(r).title()} <{_email(r)}>",
    "uri": lambda r: f"https://example.com/{word(r)}/{r.randrange(1000)}",
    "uri-reference": lambda r: f"/{word(r)}/{r.randrange(1000)}",
    "iri": lambda r: f"https://example.com/{word(r)}/{r.randrange(1000)}",
    "url": lambda r: f"https://example.com/{word(r)}/{r.randrange(1000)}",
    "multi-host-uri": lambda r: f"postgres://{word(r)}@localhost:5432/{word(r)}",
    "hostname": lambda r: f"{word(r)}.example.com",
    "idn-hostname": lambda r: f"{word(r)}.example.com",
    "ipv4": _ipv4,
    "ipv6": _ipv6,
    "ipvanyaddress": _ipv4,
    "ipv4interface": lambda r: f"{_ipv4(r)}/24",
    "ipv6interface": lambda r: f"{_ipv6(r)}/64",
    "ipvanyinterface": lambda r: f"{_ipv4(r)}/24",
    "ipv4network": _ipv4_network,
    "ipv6network": lambda r: f"2001:db8:{r.randrange(1, 65536):x}::/64",
    "ipvanynetwork": _ipv4_network,
    "uuid": _uuid(4),
    **{f"uuid{version}": _uuid(version) for version in range(1, 9)},
    "path": lambda r: f"{word(r)}/{word(r)}.txt",
    "file-path": lambda r: f"{word(r)}/{word(r)}.txt",
    "directory-path": lambda _: ".",
    "json-pointer": lambda r: f"/{word(r)}",
    "regex": lambda r: f"^{word(r)}$",
    "fraction": lambda r: f"{r.randrange(1, 9)}/{r.randrange(10, 20)}",
    "base64": lambda r: b64encode(word(r).encode()).decode(),
    "byte": lambda r: b64encode(word(r).encode()).decode(),
    "base64url": lambda r: urlsafe_b64encode(word(r).encode()).decode(),
    "json-string": lambda r: json.dumps(word(r)),
}
_EXTENSIBLE = {"uri", "uri-reference", "iri", "url", "path", "file-path", "json-pointer"}
"""Formats that stay right when the text goes on."""
