"""Imported by the process that all others are forked from: the graph is run once, so that all that
is made once per process is made. No thread is left: it would not be there in a fork."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from contextlib import suppress
from importlib import import_module
from typing import Any

from bae.journal import MemoryJournal
from bae.journal.decoder import decode
from bae.threads import THREAD_LIMIT, set_thread_limit
from crash import newsroom, workshop
from crash.child import answer_all
from crash.effects import HERE, Effects
from crash.oracle import Oracle


async def run() -> None:
    HERE.set(Effects(os.devnull, 0))
    options: dict[str, Any] = {"max_iters": newsroom.MAX_ITERS, "journal": MemoryJournal()}
    lm = Oracle()
    await newsroom.graph.arun(newsroom.START, lm, run_id="warm", **options)
    await answer_all("warm", lm, options)
    await workshop.graph.arun(workshop.START, workshop.Foreman(), run_id="tools", **options)
    decode(newsroom.graph, (await options["journal"].read("warm")).lines)


with suppress(ModuleNotFoundError):  # of an extra
    import_module("asyncpg")
logging.getLogger("bae").setLevel(logging.ERROR)
asyncio.run(run())
set_thread_limit(THREAD_LIMIT)
for thread in threading.enumerate():
    if thread is not threading.current_thread():
        thread.join()
gc.freeze()  # or a collection in a child would copy every page of this process
