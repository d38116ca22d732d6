"""A studio on loopback with the page as it is built, and a browser that has it open."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from bae import Graph
from bae.journal import Journal, MemoryJournal
from bae.lm import LM
from bae.serve import API, User, bearer, router
from bae.serve.server import listening
from bae.serve.studio import Studio
from bae.serve.studio_login import Logins
from bae.serve.studio_page import StudioPage

SCRIPT_TOKEN = "token-of-a-script"
WIDE = {"width": 1280, "height": 800}
PHONE = {"width": 400, "height": 800}


@dataclass
class OpenedStudio:
    """A studio that is served in the event loop of the test."""

    url: str
    studio: Studio

    @property
    def api(self) -> API:
        return self.studio.api

    @property
    def journal(self) -> Journal:
        return self.studio.api.journal

    async def show(self, page: Any, path: str = "/") -> None:
        """Have a browser log in with a new link, and open a path. A page that has a token opens the
        path alone."""
        token = self.studio.logins.make_link_token()
        await page.goto(f"{self.url}{path}#token={token}")
        await page.get_by_role("navigation", name="Pages").wait_for()


@asynccontextmanager
async def open_studio(
    *graphs: Graph[Any, Any],
    journal: Journal | None = None,
    lm: LM | str | None = None,
    port: int = 0,
    logins: Logins | None = None,
    user: User | None = None,
    prepare: Callable[[API], None] = lambda api: None,
    **more: Any,
) -> AsyncGenerator[OpenedStudio]:
    """Serve graphs while the block runs. `prepare` may add teams to the API, `more` is for the
    `Studio`. Give the `logins` and the `port` of another studio to replace it."""
    named: Mapping[str, Graph[Any, Any]] = {graph.name: graph for graph in graphs}
    person = user or User("ana")
    known = logins or Logins(None)
    api = router(
        named,
        journal=MemoryJournal() if journal is None else journal,
        auth=known.auth(person, bearer(SCRIPT_TOKEN, user=person)),
        lm=lm,
    )
    prepare(api)
    command = "bae studio app.py --journal runs.db"
    studio = Studio(
        api,
        known,
        StudioPage(),
        **{
            "journal": "runs.db",
            "serve_command": command,
            "run_commands": {name: f"bae run app.py:{name}" for name in named},
            **more,
        },
    )
    async with listening(api, port=port, app=studio) as url:
        yield OpenedStudio(url, studio)
