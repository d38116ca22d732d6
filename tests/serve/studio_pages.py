"""A studio on loopback for the tests: a small page, the API of `serving`, and a browser's part."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any

import httpx

from bae.journal import Journal, MemoryJournal
from bae.serve import User, bearer, router
from bae.serve.server import listening
from bae.serve.studio import Studio
from bae.serve.studio_login import Logins
from bae.serve.studio_page import StudioPage
from serving import orders, slow, talk

SCRIPT_TOKEN = "token-of-a-script"
SCRIPT = "console.log('a page');\n" * 50


def write_page(folder: Path) -> Path:
    """A page as Vite builds it, in a folder with other files beside it."""
    page = folder / "page"
    (page / "assets").mkdir(parents=True)
    (page / "index.html").write_text("<!doctype html><title>bae studio</title>\n" * 20)
    (page / "icon.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (page / "assets" / "index-1a.js").write_text(SCRIPT)
    (page / "notes.md").write_text("no file of a page")
    (folder / "secret.txt").write_text("beside the page")
    (page / "linked.txt").symlink_to(folder / "secret.txt")
    return page


@dataclass
class OpenStudio:
    """A studio that is served, and a client without a token."""

    url: str
    studio: Studio
    client: httpx.AsyncClient

    @property
    def ws(self) -> str:
        return self.url.replace("http", "ws", 1) + "/api/feed"

    async def log_in(self, token: str | None = None, **headers: str) -> httpx.Response:
        """Exchange the token of a new link, or another one."""
        body = {"token": self.studio.logins.make_link_token() if token is None else token}
        return await self.client.post("/api/login", json=body, headers=headers)

    async def headers(self) -> dict[str, str]:
        """The headers of a browser that has logged in."""
        return {"authorization": f"Bearer {(await self.log_in()).json()['token']}"}

    async def get(self, path: str) -> Any:
        found = await self.client.get(path, headers={"authorization": f"Bearer {SCRIPT_TOKEN}"})
        assert found.status_code == 200, found.text
        return found.json()


@asynccontextmanager
async def open_studio(
    folder: Path,
    *,
    journal: Journal | None = None,
    file: Path | None = None,
    clock: Callable[[], float] = time,
    **more: Any,
) -> AsyncGenerator[OpenStudio]:
    user = User("ana", more.pop("can", User("ana").can))
    page = folder / "page"
    with Logins(file, clock=clock) as logins:
        api = router(
            more.pop("graphs", {"orders": orders, "slow": slow, "talk": talk}),
            journal=MemoryJournal() if journal is None else journal,
            auth=logins.auth(user, bearer(SCRIPT_TOKEN, user=user)),
        )
        studio = Studio(
            api,
            logins,
            StudioPage(page if page.exists() else write_page(folder)),
            journal="runs.db",
            serve_command="bae studio MODULE --journal runs.db",
            **more,
        )
        async with (
            listening(api, app=studio) as url,
            httpx.AsyncClient(base_url=url, timeout=20) as client,
        ):
            yield OpenStudio(url, studio, client)
