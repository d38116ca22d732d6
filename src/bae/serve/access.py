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
"""What a user may do: "read" runs, "run" graphs (start, resume and cancel), "answer" gates and tool
approvals, "edit" (fork runs with other values), "admin" (delete)."""
VERBS: Final[frozenset[Verb]] = frozenset(("read", "run", "answer", "edit", "admin"))


@dataclass(frozen=True, slots=True)
class User:
    """A user of the API: a `name`, which is stored with the user's answers, and the verbs that the
    user may do."""

    name: str
    can: frozenset[Verb] = VERBS
    data: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False, compare=False)
    """Other data of the hook about the user, for `visible`."""


Auth = Callable[[HTTPConnection], Awaitable[User | None]]
"""The hook: an async function of a request or a WebSocket. It returns the user, or None to refuse
the request. The token in the first message of a WebSocket is passed as its `Authorization`
header."""
Visible = Callable[[User, RunInfo], bool]
"""Whether a user may see a run. It is called for every run of a list, so it must be quick."""
STARTED_BY: Final = "by"
"""The key in the metadata of a run for the name of the user who started it."""


def bearer(token: str | Mapping[str, User], *, user: User | None = None) -> Auth:
    """Users by the token in `Authorization: Bearer …`. Give one token, or a mapping of tokens to
    users."""
    users = {token: user or User("token")} if isinstance(token, str) else dict(token)
    if not users or not all(user.strip() and user.isascii() for user in users):
        raise ValueError("bearer(…): give a token of ASCII characters that is not empty")
    encoded = [(each.encode(), of) for each, of in users.items()]

    async def find_user(request: HTTPConnection) -> User | None:
        sent_token = token_of(request).encode()
        match: User | None = None
        for each, of in encoded:  # all tokens, so that the time reveals nothing
            if secrets.compare_digest(each, sent_token):
                match = of
        return match

    return find_user


def token_of(request: HTTPConnection) -> str:
    """The token in the header of a request; empty if there is none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def public(*, user: User | None = None) -> Auth:
    """Every client is this user. By default the user may do everything."""
    everybody = user or User("public")

    async def find_user(request: HTTPConnection) -> User | None:
        return everybody

    return find_user


LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_OWN_SITE: Final = ("same-origin", "none")


@dataclass(frozen=True, slots=True)
class Gatekeeper:
    """Refuses requests to other host names, and requests that a web page of another site may have
    caused. A host may be given with or without its port; "*" allows every host."""

    hosts: frozenset[str]
    origins: frozenset[str]

    def check_host(self, request: HTTPConnection) -> str:
        """The host of a request. Raises `Refused` unless it is among `hosts`."""
        host = request.headers.get("host", "").lower()
        if self.hosts.isdisjoint(("*", host, _host_name(host))):
            raise Refused(
                403,
                "bae-serve-host",
                f"{host[:100]!r} is not served here",
                "name it where the API is made: router(…, hosts=[…]), or bae serve --allow-host",
            )
        return host

    def check(self, request: HTTPConnection) -> None:
        """Raise `Refused` for another host, or for a page of another site."""
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
                f"a page of another site sent the request ({site[:20]!r})",
                "name its origin where the API is made: router(…, origins=[…])",
            )

    def headers_for(self, request: HTTPConnection) -> dict[str, str]:
        """The CORS headers of a response to a page of one of the `origins`."""
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
    """An origin as browsers send it, in lower case. Raises ValueError for any other text."""
    parts = urlsplit(origin)
    if not parts.scheme or not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}":
        raise ValueError(
            f"{origin!r} is not an origin: give scheme, name and port, without a path, as "
            '"https://shop.example" or "http://127.0.0.1:5173"'
        )
    return origin.lower()


def _host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host
