"""Who asks, and what they may do: the `auth` hook and its ready-made forms, and the checks that
keep web pages of other sites out."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from bae.journal.stored_runs import RunInfo
from bae.serve.problems import Refused

Verb = Literal["read", "run", "answer", "edit", "admin"]
"""What a user may do: "read" runs, "run" graphs (start, resume and cancel), "answer" gates and tool
approvals, "edit" (fork runs with other values), "admin" (delete)."""
VERBS: Final[frozenset[Verb]] = frozenset(("read", "run", "answer", "edit", "admin"))


@dataclass(frozen=True, slots=True)
class User:
    """Who asks: a `name`, which is stored with the answers of this user, and the verbs that the
    user may do."""

    name: str
    can: frozenset[Verb] = VERBS
    data: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False, compare=False)
    """What else the hook knows, for `visible`."""


Auth = Callable[[HTTPConnection], Awaitable[User | None]]
"""The hook: an async function of the request, or of the WebSocket, that returns the user, or None
where nobody is authenticated. The token that a WebSocket sends as its first message is in the
`Authorization` header."""
Visible = Callable[[User, RunInfo], bool]
"""Whether a user may see a run. Quick, and asked for every run of a list."""
STARTED_BY: Final = "by"
"""The key in the metadata of a run that has the name of the user who started it."""


def bearer(token: str | Mapping[str, User], *, user: User | None = None) -> Auth:
    """Users by the token in `Authorization: Bearer …`: one token, or the user of each token."""
    users = {token: user or User("token")} if isinstance(token, str) else dict(token)
    if not users or not all(each.strip() and each.isascii() for each in users):
        raise ValueError("bearer(…): give a token that is not empty, of ASCII characters")
    encoded = [(each.encode(), of) for each, of in users.items()]

    async def find_user(request: HTTPConnection) -> User | None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        match: User | None = None
        for each, of in encoded:  # all of them, so that the time tells nothing
            if secrets.compare_digest(each, given.strip().encode()):
                match = of
        return match

    return find_user


def public(*, user: User | None = None) -> Auth:
    """Everybody who can reach the server is this user, who may do everything unless you give
    another."""
    everybody = user or User("public")

    async def find_user(request: HTTPConnection) -> User | None:
        return everybody

    return find_user


LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_OWN_SITE: Final = ("same-origin", "none")


@dataclass(frozen=True, slots=True)
class Gatekeeper:
    """Refuses requests under a name that is not served, and those that a web page of another site
    may have caused. A name is given with or without a port; "*" is any."""

    hosts: frozenset[str]
    origins: frozenset[str]

    def check_host(self, request: HTTPConnection) -> str:
        """The host of a request. Raises `Refused` where it is not served."""
        host = request.headers.get("host", "").lower()
        if self.hosts.isdisjoint(("*", host, _name(host))):
            raise Refused(
                403,
                "bae-serve-host",
                f"{host[:100]!r} is not served here",
                "name it where the API is made: router(…, hosts=[…]), or bae serve --allow-host",
            )
        return host

    def check(self, request: HTTPConnection) -> None:
        """Raise `Refused` for a request that is not to be answered."""
        host = self.check_host(request)
        origin = request.headers.get("origin")
        if origin is not None and not self._is_own(origin, host):
            raise Refused(
                403,
                "bae-serve-origin",
                f"a page of {origin[:100]!r} may not use this API",
                "name it where the API is made: router(…, origins=[…]), or bae serve "
                "--allow-origin",
            )
        site = request.headers.get("sec-fetch-site", "none")
        if site not in _OWN_SITE and origin not in self.origins:
            raise Refused(
                403,
                "bae-serve-origin",
                f"a page of another site asks ({site[:20]!r})",
                "name its origin where the API is made: router(…, origins=[…])",
            )

    def headers_for(self, request: HTTPConnection) -> dict[str, str]:
        """What lets a browser give the response to a page of an origin that is named (CORS)."""
        origin = request.headers.get("origin")
        if origin is None or origin not in self.origins:
            return {}
        return {
            "access-control-allow-origin": origin,
            "access-control-allow-methods": "GET, POST, PATCH, DELETE",
            "access-control-allow-headers": "authorization, content-type, last-event-id",
            "access-control-expose-headers": "retry-after",
            "access-control-max-age": "600",
            "vary": "origin",
        }

    def _is_own(self, origin: str, host: str) -> bool:
        if origin in self.origins:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and parts.netloc == host and bool(host)


def parse_origin(origin: str) -> str:
    """An origin as browsers send it. Raises ValueError for what is none, and would never match."""
    parts = urlsplit(origin)
    if not parts.scheme or not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}":
        raise ValueError(
            f"{origin!r} is no origin: give scheme, name and port, without a path, as "
            '"https://shop.example" or "http://127.0.0.1:5173"'
        )
    return origin.lower()


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host
