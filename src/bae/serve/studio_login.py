"""The logins of the studio. A browser exchanges the token of a login link, once, for a token of its
own. A private file stores the hashes of the tokens, so logins survive a restart."""

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
"""The seconds that the token of a login link is valid."""
LOGIN_SECONDS: Final = 30 * 86400.0
"""The seconds that a browser stays logged in."""
TRIES: Final = 10
"""The maximum number of wrong tokens in `TRIES_SECONDS`."""
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
    """Return the path of the file with the logins, in the user's directory for the state of
    programs. The file is not beside the journal, because people may share a journal, and agents may
    read files beside the journal."""
    folder = os.environ.get("XDG_STATE_HOME") or os.environ.get("LOCALAPPDATA")
    return Path(folder or Path.home() / ".local/state", "bae", "studio.db")


class Logins:
    """The tokens of a user's studios, and the addresses of running studios. Without a `file`, the
    tokens and addresses are forgotten when the process ends. `clock` returns the time in seconds
    since 1970."""

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
        """Return a new token for a login link. The token can be exchanged once, within an hour."""
        return self._add("link", LINK_SECONDS)[0]

    def exchange(self, token: str) -> tuple[str, float]:
        """Exchange the token of a login link. Return a token for the browser, and the time when
        that token expires. Raises `Refused` for any other token. After too many wrong tokens,
        raises `Refused` for every token."""
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
        # Two requests may have the same token. This single statement deletes the row for only one
        # of the requests, so the other request gets no token.
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
        """Return whether `token` is the token of a browser that is logged in."""
        row = self._db.execute(
            "select 1 from tokens where hash = ? and kind = 'login' and expires > ?",
            (_hash(token), self._clock()),
        )
        return row.fetchone() is not None

    def forget(self, token: str | None) -> None:
        """Log out the browser with this token. With None, log out all browsers."""
        if token is None:
            self._db.execute("delete from tokens")
        else:
            self._db.execute("delete from tokens where hash = ?", (_hash(token),))

    def auth(self, user: User, more: Auth) -> Auth:
        """Return a hook for `user`. If a request has the token of a browser that is logged in, the
        hook returns `user`. For any other request, it calls the hook `more`."""

        async def find_user(request: HTTPConnection) -> User | None:
            token = token_of(request)
            if token and self.knows(token):
                return user
            return await more(request)

        return find_user

    # Where studios run

    def announce(self, url: str, serves: Mapping[str, Any]) -> None:
        """Store that this process serves `serves` at the address `url`."""
        row = url, os.getpid(), json.dumps(serves, sort_keys=True)
        self._db.execute("insert or replace into servers values (?, ?, ?)", row)

    def withdraw(self, url: str) -> None:
        """Store that this process serves nothing at the address `url` any more."""
        self._db.execute("delete from servers where url = ? and pid = ?", (url, os.getpid()))

    def find_server(self, serves: Mapping[str, Any]) -> str | None:
        """Return the address where a process of this user serves exactly `serves`. Return None if
        there is no such process."""
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
    # Nobody can guess a long random token, so a fast hash is as safe as a slow hash.
    return hashlib.sha256(token.encode()).digest()


def _is_alive(pid: int) -> bool:
    if os.name == "nt":
        return True  # on Windows, `os.kill` would end the process
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError):
        return False
    return True
