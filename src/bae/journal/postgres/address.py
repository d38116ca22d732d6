"""Where a journal in Postgres is: its address, which is shown without its password."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

SCHEMES: Final = ("postgresql", "postgres")
_SECRET: Final = frozenset({"password", "sslpassword"})
_URL: Final = re.compile(r"^(postgresql|postgres)(\+\w+)?:", re.IGNORECASE)


def is_address(text: str) -> bool:
    """Whether a text is the address of a database rather than a path."""
    return _URL.match(text) is not None


def has_password(url: str) -> bool:
    """Whether an address has a password in it."""
    parts = urlsplit(url)
    return parts.password is not None or any(key in _SECRET for key, _ in _query(parts.query))


def without_password(url: str) -> str:
    """The address without its password, to be shown and stored."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        user = parts.username
        query = [(key, value) for key, value in _query(parts.query) if key not in _SECRET]
        where = host if user is None else f"{quote(user, safe='%')}@{host}"
        return urlunsplit((parts.scheme, where, parts.path, urlencode(query), ""))
    except ValueError:
        return "postgresql://…"


def checked_address(url: str) -> str:
    """An address that can be connected to. Raises ValueError, without its password."""
    shown = without_password(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{shown!r} is no address of a database: {error}") from None
    if parts.scheme not in SCHEMES:
        raise ValueError(
            f"{shown!r} is no address of a database: give it as postgresql://USER@HOST/DATABASE"
        )
    if port is not None and not 0 < port < 65536:
        raise ValueError(f"{shown!r} is no address of a database: its port is {port}")
    return url


def _query(text: str) -> list[tuple[str, str]]:
    return parse_qsl(text, keep_blank_values=True)
