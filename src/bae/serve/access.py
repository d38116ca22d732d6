"""The users of an API and their rights: the `auth` hook, ready-made hooks, and the checks that
refuse requests from web pages of other sites."""

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
"""What a user may do:

- "read": see runs.
- "run": start, resume and cancel runs.
- "answer": answer gates and tool approvals.
- "edit": fork runs with other values.
- "admin": delete runs.
"""
VERBS: Final[frozenset[Verb]] = frozenset(("read", "run", "answer", "edit", "admin"))


@dataclass(frozen=True, slots=True)
class User:
    """A user of the API. `name` is stored with the user's runs and answers. `can` has the verbs
    that the user may do."""

    name: str
    can: frozenset[Verb] = VERBS
    data: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False, compare=False)
    """Other data about the user. The `auth` hook may set this data for a `visible` function."""


Auth = Callable[[HTTPConnection], Awaitable[User | None]]
"""The `auth` hook: an async function of a request or a WebSocket. The hook returns the user, or
None to refuse the request. If a client sends its token in the first message of a WebSocket, the
hook finds the token in the `Authorization` header."""
Visible = Callable[[User, RunInfo], bool]
"""A function that decides whether a user may see a run. The API calls this function for every run
of a list, so the function must be quick."""
STARTED_BY: Final = "by"
"""The key in a run's metadata for the name of the user who started the run."""


def bearer(token: str | Mapping[str, User], *, user: User | None = None) -> Auth:
    """Return a hook that finds the user by the token in the header `Authorization: Bearer …`.
    `token` is one token, or a mapping of tokens to users. If `token` is one token, `user` is its
    user."""
    users = {token: user or User("token")} if isinstance(token, str) else dict(token)
    if not users or not all(user.strip() and user.isascii() for user in users):
        raise ValueError("bearer(…): give a token of ASCII characters that is not empty")
    encoded_tokens = [(known_token.encode(), owner) for known_token, owner in users.items()]

    async def find_user(request: HTTPConnection) -> User | None:
        sent_token = token_of(request).encode()
        match: User | None = None
        # Compare all tokens: an early end would reveal by its time which token matched.
        for known_token, owner in encoded_tokens:
            if secrets.compare_digest(known_token, sent_token):
                match = owner
        return match

    return find_user


def token_of(request: HTTPConnection) -> str:
    """Return the token in the header of a request, or "" without a token."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def public(*, user: User | None = None) -> Auth:
    """Return a hook that returns the same user for every request. By default, this user may do
    everything."""
    everybody = user or User("public")

    async def find_user(request: HTTPConnection) -> User | None:
        return everybody

    return find_user


LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_OWN_SITE: Final = ("same-origin", "none")


@dataclass(frozen=True, slots=True)
class Gatekeeper:
    """Refuses requests to other host names, and requests from web pages of other sites."""

    hosts: frozenset[str]
    """The host names of the API, with or without a port. "*" allows every host."""
    origins: frozenset[str]
    """The web pages of other sites that may use the API."""

    def check_host(self, request: HTTPConnection) -> str:
        """Return the host that a request names. Raises `Refused` if `hosts` does not allow the
        host."""
        host = request.headers.get("host", "").lower()
        if self.hosts.isdisjoint(("*", host, _host_name(host))):
            raise Refused(
                403,
                "bae-serve-host",
                f"{host[:100]!r} is not served here",
                "allow the host: router(…, hosts=[…]), or bae serve --allow-host",
            )
        return host

    def check(self, request: HTTPConnection) -> None:
        """Raise `Refused` for a request to another host, or from a page of another site."""
        host = self.check_host(request)
        origin = request.headers.get("origin")
        if origin is not None and not self._is_own(origin, host):
            raise Refused(
                403,
                "bae-serve-origin",
                f"a page of {origin[:100]!r} may not use this API",
                "allow the origin: router(…, origins=[…]), or bae serve --allow-origin",
            )
        site = request.headers.get("sec-fetch-site", "none")
        if site not in _OWN_SITE and origin not in self.origins:
            raise Refused(
                403,
                "bae-serve-origin",
                f"a page of another site sent the request ({site[:20]!r})",
                "allow the page's origin: router(…, origins=[…]), or bae serve --allow-origin",
            )

    def headers_for(self, request: HTTPConnection) -> dict[str, str]:
        """Return the CORS headers for a page of one of the `origins`, and no headers for another
        page."""
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
    """Return an origin in lower case. Raises ValueError if no browser would send `origin`, for
    example because it has a path."""
    parts = urlsplit(origin)
    if not parts.scheme or not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}":
        raise ValueError(
            f"{origin!r} is not an origin: give scheme, name and port, without a path, as "
            '"https://shop.example" or "http://127.0.0.1:5173"'
        )
    return origin.lower()


def _host_name(host: str) -> str:
    """Return the name in a Host header, without the port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host
