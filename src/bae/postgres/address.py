"""Checks the addresses of databases, and removes their passwords from messages."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit, urlunsplit

SCHEMES: Final = ("postgresql", "postgres")
UNREADABLE: Final = "postgresql://…"
"""The text for an address that cannot be parsed. Such an address is never shown, since any part may
be a password."""
_SECRET: Final = re.compile("pass(?!file)|pwd|secret|token")
"""Matches the names of parameters that are not shown, including misspelled names like `passwd`."""
_URL: Final = re.compile(r"\s*(postgresql|postgres)(\+\w+)?:", re.IGNORECASE)
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.%\w]+\]|[\w.-]*)(:(\d{1,5}))?")
_PARAMETER: Final = re.compile(r"[a-z_]+")


def is_address(text: str) -> bool:
    """Whether a text is the address of a database rather than a path."""
    return _URL.match(text) is not None


def has_password(url: str) -> bool:
    """Whether an address has a password. True also if the address cannot be parsed."""
    parts = _split_address(url)
    return (
        parts is None or parts.password is not None or any(map(_SECRET.search, _parse_query(parts)))
    )


def without_password(url: str) -> str:
    """Return the address without its password, for messages and for storage."""
    parts = _split_address(url)
    if parts is None:
        return UNREADABLE
    host, user = parts.netloc.rpartition("@")[2], parts.username
    query = {key: value for key, value in _parse_query(parts).items() if not _SECRET.search(key)}
    where = host if user is None else f"{quote(user, safe='%')}@{host}"
    return urlunsplit((parts.scheme, where, parts.path, urlencode(query), ""))


def checked_address(url: str) -> str:
    """Return the address. If it is not an address of a Postgres database, raise ValueError. The
    message does not contain the password."""
    parts = _split_address(url)
    if parts is None:
        raise ValueError(
            "the address of a database cannot be read, and may have a password in it, so it is "
            "not shown: give it as postgresql://USER@HOST/DATABASE, with %XX for : / ? # @ and "
            "spaces in a user or a password"
        )
    if parts.scheme not in SCHEMES:
        raise ValueError(
            f"{without_password(url)!r} is no address of a database: give it as "
            "postgresql://USER@HOST/DATABASE"
        )
    return url


def _split_address(url: str) -> SplitResult | None:
    """Return the parts of an address, or None if it is unclear which part is the password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    credentials, _, hosts = parts.netloc.rpartition("@")
    matches = [_HOST.fullmatch(host) for host in hosts.split(",")]
    is_clear = (
        parts.scheme
        and "://" in url
        and not re.search(r"[\s\x00-\x1f]", url)
        and "#" not in url
        and "@" not in credentials + parts.path
        and credentials.count(":") <= 1
        and all(match_ is not None and int(match_[3] or 1) in range(1, 65536) for match_ in matches)
        and all(_PARAMETER.fullmatch(key) for key in _parse_query(parts))
    )
    return parts if is_clear else None


def _parse_query(parts: SplitResult) -> dict[str, str]:
    return dict(parse_qsl(parts.query, keep_blank_values=True))
