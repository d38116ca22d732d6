"""`repeat`: whether a stored run still goes the way it went, with what became of it. `replay.py`
runs it; here a failure that was recorded and comes again is no difference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bae.exceptions import BaeError, ReplayError
from bae.journal.run_file import RecordedRuns

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import StoredRun


@dataclass(frozen=True, slots=True)
class Repeated:
    """A run that went the same way again: the classes of its nodes, and how it came out: the gates
    that it waits for, or what it failed with."""

    run_id: str
    outcome: Literal["ended", "waiting", "failed"]
    trace: tuple[str, ...]
    waiting: tuple[str, ...] = ()
    error: str = ""


async def repeat(
    graph: Graph[Any, Any], stored: StoredRun, given: Mapping[str, Any] | None = None
) -> Repeated:
    """Replay a run that was read from any journal; `given` has the secrets that no journal keeps. A
    difference is raised as `ReplayError`."""
    info = stored.info
    journal = RecordedRuns([stored], info.run_id)
    try:
        result = await graph.replay(info.run_id, journal=journal, given=given)
    except ReplayError:
        raise
    except BaeError as error:
        if info.status != "failed" or not _is_same(error, info.error):
            raise
        return Repeated(info.run_id, "failed", _names(error.trace or ()), error=info.error)
    waiting = tuple(gate.place for gate in result.waiting)
    return Repeated(info.run_id, "waiting" if waiting else "ended", _names(result.trace), waiting)


def _names(trace: Any) -> tuple[str, ...]:
    return tuple(type(node).__name__ for node in trace)


def _is_same(error: BaseException, recorded: str) -> bool:
    """Whether a failure is the recorded one, of which a journal with secrets has no words."""
    if not isinstance(error, BaeError) or not recorded.startswith(f"[{error.code}]"):
        return False
    return error.message.splitlines()[0] in recorded or "withheld" in recorded
