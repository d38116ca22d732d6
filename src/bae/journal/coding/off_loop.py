"""Work on the lines of a long run, done where it does not hold up the event loop: reading thousands
of them takes a tenth of a second and more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from bae.threads import in_thread

P = ParamSpec("P")
T = TypeVar("T")

MANY: Final = 500
"""From how many lines on a thread is worth its while."""


async def off_loop(lines: int, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` on so many lines comes to: done in a worker thread where they are many."""
    if lines < MANY:
        return work(*args, **kwargs)
    return await in_thread(work, *args, **kwargs)
