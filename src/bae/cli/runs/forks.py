"""Makes a fork of a run for `bae runs fork`, with the fields of the node that --set changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import StoredRun
    from bae.node import Node


async def make_fork(
    graph: Graph[Any, Any],
    file: str | None,
    run: str,
    at: int,
    new_id: str | None,
    sets: Sequence[str],
) -> StoredRun:
    """The new run, which is the same as another up to its step `at`."""
    from bae.cli.runs.meant import run_meant, to_write
    from bae.cli.start.node import read_sets
    from bae.exceptions import JournalError

    async with to_write(file) as journal:
        run_id = await run_meant(journal, run)
        cls = await _class_at(graph, await journal.read(run_id), at) if sets else None
        changed = read_sets(cls, sets) if cls is not None else {}
        try:
            made = await graph.fork(run_id, at=at, journal=journal, new_id=new_id, changed=changed)
        except JournalError as error:
            if error.code == "bae-journal-secret" and error.fix:
                error.fix = "give it to the fork with --set FIELD=VALUE"
            elif error.code == "bae-fork-step" and error.fix:
                error.fix = error.fix.replace("give at= the number", "give --at the number")
            raise
        return await journal.read(made)


async def _class_at(graph: Graph[Any, Any], stored: StoredRun, at: int) -> type[Node] | None:
    """The class of the node at a step of a run; None where there is no such step."""
    from bae.journal.decoder import decode_run

    _, history = await decode_run(graph, stored.lines, partial=True)
    step = history.step("", at)
    return step.node_type if step is not None and step.whole else None
