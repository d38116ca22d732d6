"""The page of `bae team serve` in a real browser: it asks for the token, follows the team live, and
continues with the next server."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("websockets")

from bae.team.events import ActivityUpdate
from bae.team.models import PlannedTask, Project
from bae.team.store import Store
from bae.team.team_server import serving
from browser import open_page
from git_repositories import make_repository

TOKEN = "s3cret&token"


async def test_the_page_asks_for_the_token_and_follows_the_team_over_a_restart(tmp_path: Path):
    root = str(make_repository(tmp_path / "my shop"))
    async with await Store.open(tmp_path / "team.db") as store:
        project = Project(id=0, name="my shop", root=root, branch="b", test_command=("pytest",))
        await store.save_project(project)
        await store.add_tasks(1, [PlannedTask(key="api", title="The <b>API</b>")])
        await store.add_blocker(1, "Which port?")
        async with AsyncExitStack() as stack:
            async with serving(store, 1, token=TOKEN) as address:
                page = await stack.enter_async_context(open_page(address.url))
                await page.fill("#login input", TOKEN)
                await page.click("#login button")
                await page.wait_for_selector('td:text("The <b>API</b>")')
                assert await page.is_hidden("#login")
                assert "Which port?" in await page.inner_text("#blockers")
                await store.answer_blocker(1, "8080", by="ana")
                await page.wait_for_selector("#questions", state="hidden")
                async with await Store.open(store.path) as other:  # as another process does
                    await other.add_tasks(1, [PlannedTask(key="cli", title="The command")])
                await page.wait_for_selector('td:text("The command")')
            await page.wait_for_selector('#link[data-state="lost"]')
            await store.add_events([ActivityUpdate(1, "works while nobody serves")])
            port = urlsplit(address.url).port or 0
            async with serving(store, 1, token=TOKEN, port=port):
                await page.wait_for_selector('#link[data-state="live"]')
                await page.wait_for_selector('#events :text("works while nobody serves")')
                lines = await page.locator("#events div").all_inner_texts()
    assert [int(line.split()[0]) for line in lines] == [5, 4, 3, 2, 1]  # none missing, none twice
