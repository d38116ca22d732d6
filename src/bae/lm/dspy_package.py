"""The package `dspy`: imported when it is first needed, without a word to the network, and what it
leaves open closed at a loop's end. `signatures.py`, `dspy_adapter.py` and `dspy_backend.py` have
it from here."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from inspect import isawaitable
from typing import Any

from bae.lm.extras import need
from bae.lm.http import PerLoop


def load_dspy(by: str) -> Any:
    """The module `dspy`, for `by`, which cannot do without."""
    # LiteLLM, through which dspy asks some providers, fetches a list of prices when it is imported.
    # It brings one along, and that one will do, unless someone has said otherwise.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    return need("dspy", extra="dspy", by=by)


async def _close_litellm(_: None) -> None:
    """Close the connections that LiteLLM, where it was used, holds in the running loop.

    It keeps its clients for the whole process, by the loop they belong to, and has no way of its
    own to close those of one loop.
    """
    if "litellm.caching.llm_caching_handler" not in sys.modules:
        return
    cache: Any = getattr(sys.modules["litellm"], "in_memory_llm_clients_cache", None)
    clients: dict[str, Any] = getattr(cache, "cache_dict", {})
    mine = f"-{id(asyncio.get_running_loop())}"
    for key in [key for key in clients if key.endswith(mine)]:
        client = clients[key]
        cache.delete_cache(key)
        close = getattr(client, "close", None) or getattr(client, "aclose", None)
        with suppress(Exception):  # it is no concern of a run that has ended
            closing = close() if close is not None else None
            if isawaitable(closing):
                await closing


LITELLM = PerLoop[None](lambda: None, _close_litellm)
"""What LiteLLM holds open in a loop. All of a loop's backends share it, so it is closed when the
loop ends, and not when one of them does: `get` it before LiteLLM may be used."""
