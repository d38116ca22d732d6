"""Serious faults that axe finds on a page: in both themes, on a screen and on a phone."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

import pytest

from opened_studio import PHONE, WIDE


@asynccontextmanager
async def axe_page(browser: Any) -> AsyncGenerator[Any]:
    """A page of a new user that axe can be loaded into."""
    context = await browser.new_context(viewport=WIDE, reduced_motion="reduce", bypass_csp=True)
    yield await context.new_page()
    await context.close()


async def find_faults(page: Any, label: str) -> list[str]:
    """The faults of the page as it is shown now, one a line."""
    axe = pytest.importorskip("axe_playwright_python.async_playwright").Axe()
    faults: list[str] = []
    await page.get_by_role("heading").first.wait_for(state="attached")
    await page.wait_for_load_state("networkidle")
    for viewport, theme in product((WIDE, PHONE), ("light", "dark")):
        await page.set_viewport_size(viewport)
        await page.emulate_media(color_scheme=theme)
        results = await axe.run(page)
        faults += [
            f"{label} {viewport['width']} {theme}: {each['id']} {node['target']}"
            for each in results.response["violations"]
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]
    await page.set_viewport_size(WIDE)
    return faults
