"""The page of examples/stream_to_a_page.py in a real browser: the text of an answer grows while the
model writes it, and void text disappears."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bae import BaeLMError
from bae.lm import Answer, Backend, Prompt, tell
from bounded import BOUND
from browser import open_page
from example_runs import FOLDER, RUNS
from pages import ROOT, blocks

pytestmark = pytest.mark.once

TEXT = 'It rained "a lot".\nNobody minded.'
TITLE = "The last umbrella"


class Writing(Backend):
    """A model that writes half of an answer, and the rest after a signal."""

    def __init__(self) -> None:
        super().__init__(retries=0)
        self.go = asyncio.Event()
        self.left = asyncio.Event()

    async def answer(self, prompt: Prompt) -> Answer:
        if not prompt.is_first:
            return Answer(json.dumps({"title": TITLE}))
        text = json.dumps({"text": TEXT, "title": f"{TITLE} of all of the umbrellas there are"})
        half = text.index("Nobody")
        tell(text[:half])
        try:
            await self.go.wait()
        finally:
            self.left.set()
        if self.go.is_set() and prompt.text.count("snow"):
            raise BaeLMError("the model is tired")
        tell(text[half:])
        return Answer(text)


@asynccontextmanager
async def serve_page(lm: Backend, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """The page, in a browser, from a real server."""
    uvicorn = pytest.importorskip("uvicorn")
    pytest.importorskip("fastapi")
    module = RUNS["stream_to_a_page"].module()
    monkeypatch.setattr(module, "lm", lm)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(module.app, log_level="error"))
    serving = asyncio.create_task(server.serve([listening]))
    try:
        async with (
            asyncio.timeout(2 * BOUND),
            open_page(f"http://127.0.0.1:{listening.getsockname()[1]}/") as page,
        ):
            yield page
    finally:
        server.should_exit = True
        await serving
        listening.close()


def paragraphs(page: Any, *texts: str) -> Any:
    """Waits until these are the paragraphs of the page."""
    return page.wait_for_function(
        """texts => {
            const found = [...document.querySelectorAll("article p")].map(p => p.textContent);
            return JSON.stringify(found) === JSON.stringify(texts);
        }""",
        arg=[*texts],
    )


async def test_the_page_streams_text_and_replaces_an_invalid_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lm = Writing()
    async with serve_page(lm, monkeypatch) as page:
        await page.click("button")
        await paragraphs(page, 'It rained "a lot".\n')
        assert await page.text_content("[role=status]") == "Writing…"
        lm.go.set()
        await page.wait_for_function(
            "document.querySelector('[role=status]').textContent === 'The end.'"
        )
        await paragraphs(page, TEXT, TITLE)


async def test_leaving_the_streaming_page_cancels_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lm = Writing()
    async with serve_page(lm, monkeypatch) as page:
        await page.fill("[name=subject]", "snow")
        await page.click("button")
        await paragraphs(page, 'It rained "a lot".\n')
        lm.go.set()
        await page.wait_for_function(
            "document.querySelector('[role=status]').textContent === 'the model is tired'"
        )
        await paragraphs(page, "")
        lm.go.clear()
        lm.left.clear()
        await page.click("button")
        await paragraphs(page, 'It rained "a lot".\n')
        await page.goto("about:blank")
        await lm.left.wait()


def test_the_streaming_page_in_the_docs_equals_the_example() -> None:
    shown = {block.title: block.text for block in blocks(ROOT / "docs" / "how-to" / "streaming.md")}
    for name in ("stream_to_a_page.py", "page.html"):
        assert shown[name] == (FOLDER / name).read_text("utf-8")
