"""The logins of the studio: tokens of links, which are valid once, and tokens of browsers. A
private file has the hashes of the tokens, so logins survive a restart."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from time import time
from typing import Any, Final, Self

from starlette.requests import HTTPConnection

from bae.exceptions import BaeError
from bae.private_files import make_private
from bae.serve.access import Auth, User, token_of
from bae.serve.problems import Refused

LINK_SECONDS: Final = 3600.0
"""How many seconds the token of a link is valid."""
LOGIN_SECONDS: Final = 30 * 86400.0
"""How many seconds a browser stays logged in."""
TRIES: Final = 10
"""How many wrong tokens are accepted in `TRIES_SECONDS`."""
TRIES_SECONDS: Final = 60.0
_TABLES: Final = """
create table if not exists tokens (
    hash blob primary key, kind text not null, expires real not null
) without rowid;
create table if not exists servers (
    url text primary key, pid integer not null, serves text not null
) without rowid;
"""


def login_file() -> Path:
    """The file of the logins, in the user's directory for the state of programs. It is not
    beside the journal: a journal may be shared, and agents may read the files beside it."""
    folder = os.environ.get("XDG_STATE_HOME") or os.environ.get("LOCALAPPDATA")
    return Path(folder or Path.home() / ".local/state", "bae", "studio.db")


class Logins:
    """The tokens of a user's studios, and the addresses of running studios. Without a file, they
    are forgotten when the process ends. `clock` returns the time in seconds since 1970."""

    def __init__(self, file: Path | None, *, clock: Callable[[], float] = time) -> None:
        self._clock = clock
        self._wrong_token_times: deque[float] = deque(maxlen=TRIES)
        if file is not None:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not file.exists():
                make_private(file)
        try:
            name = ":memory:" if file is None else file
            self._db = sqlite3.connect(name, timeout=5, isolation_level=None)
            self._db.executescript(_TABLES)
            self._db.execute("delete from tokens where expires <= ?", (clock(),))
        except sqlite3.Error as error:
            raise BaeError(
                f"logins cannot be stored in {file}",
                error,
                code="bae-studio-logins",
                fix="delete the file: browsers then log in again with a new link",
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def make_link_token(self) -> str:
        """A new token for a link. It can be exchanged once, within an hour."""
        return self._add("link", LINK_SECONDS)[0]

    def exchange(self, token: str) -> tuple[str, float]:
        """Exchange the token of a link. Returns a token for the browser, and when it expires.
        Raises `Refused` for any other token, and for every token after too many wrong tokens."""
        now = self._clock()
        if (
            len(self._wrong_token_times) == TRIES
            and now - self._wrong_token_times[0] < TRIES_SECONDS
        ):
            seconds = int(TRIES_SECONDS - (now - self._wrong_token_times[0])) + 1
            raise Refused(
                429,
                "bae-studio-tries",
                "too many wrong tokens were tried",
                f"try again in {seconds} s",
                headers={"retry-after": str(seconds)},
            )
        # With one statement, only one of several requests with the same token gets the row.
        deletion = self._db.execute(
            "delete from tokens where hash = ? and kind = 'link' and expires > ?",
            (_hash(token), now),
        )
        if deletion.rowcount != 1:
            self._wrong_token_times.append(now)
            raise Refused(
                401,
                "bae-studio-login",
                "this link was used already, is older than an hour, or belongs to another studio",
                "press Enter where `bae studio` runs, or run it again: it prints a new link",
            )
        return self._add("login", LOGIN_SECONDS)

    def knows(self, token: str) -> bool:
        """Whether a browser is logged in with a token."""
        row = self._db.execute(
            "select 1 from tokens where hash = ? and kind = 'login' and expires > ?",
            (_hash(token), self._clock()),
        )
        return row.fetchone() is not None

    def forget(self, token: str | None) -> None:
        """Log out the browser with a token; None logs out all browsers."""
        if token is None:
            self._db.execute("delete from tokens")
        else:
            self._db.execute("delete from tokens where hash = ?", (_hash(token),))

    def auth(self, user: User, more: Auth) -> Auth:
        """A hook that returns `user` if a request has the token of a browser that is logged in.
        It passes other requests to the hook `more`."""

        async def find_user(request: HTTPConnection) -> User | None:
            token = token_of(request)
            if token and self.knows(token):
                return user
            return await more(request)

        return find_user

    # Where studios run

    def announce(self, url: str, serves: Mapping[str, Any]) -> None:
        """Store what this process serves at an address."""
        row = url, os.getpid(), json.dumps(serves, sort_keys=True)
        self._db.execute("insert or replace into servers values (?, ?, ?)", row)

    def withdraw(self, url: str) -> None:
        """Store that this process no longer serves at an address."""
        self._db.execute("delete from servers where url = ? and pid = ?", (url, os.getpid()))

    def find_server(self, serves: Mapping[str, Any]) -> str | None:
        """The address of a process of this user that serves exactly the given parts."""
        rows = self._db.execute(
            "select url, pid from servers where serves = ?", (json.dumps(serves, sort_keys=True),)
        )
        return next((url for url, pid in rows.fetchall() if _is_alive(pid)), None)

    def _add(self, kind: str, seconds: float) -> tuple[str, float]:
        token, expires = secrets.token_urlsafe(32), self._clock() + seconds
        row = _hash(token), kind, expires
        self._db.execute("insert into tokens values (?, ?, ?)", row)
        return token, expires


def _hash(token: str) -> bytes:
    # A token is random and long: a slow hash would protect nothing more.
    return hashlib.sha256(token.encode()).digest()


def _is_alive(pid: int) -> bool:
    if os.name == "nt":
        return True  # on Windows, this check would end the process
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError):
        return False
    return True
