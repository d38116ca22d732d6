"""Tests from recorded runs: `replaying(file)` opens a file of runs, to replay a run from its
recorded values."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from bae.exceptions import JournalError
from bae.graph import run_sync
from bae.journal.export import RecordedRuns, is_sqlite
from bae.node import Node
from bae.threads import in_thread_to_the_end

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Journal
    from bae.journal.stored_runs import RunInfo
    from bae.result import GraphResult

T = TypeVar("T", bound=Node)


def replaying(file: str | os.PathLike[str]) -> Recorded:
    """Open a file of recorded runs, to replay a run in a test:

    ```python
    def test_the_outfit_run_still_goes_the_same_way():
        with replaying("tests/runs/outfit.jsonl") as recorded:
            result = recorded.run(graph)
        assert result.result.top == "a thick jumper"
    ```

    The file comes from `Journal.export`, or is the file of a `SQLiteJournal`. A replay never
    changes the file. It asks no LM and no person and calls no dependency, but it runs the bodies
    that you wrote. If the graph takes another route than the recorded run, or asks an LM another
    question, `run` raises `ReplayError` with the difference. In async tests, use
    `await recorded.arun(graph)`.
    """
    return Recorded(file)


class Recorded:
    """The runs of a file, opened by `replaying`. Use it with `with` or `async with`."""

    def __init__(self, file: str | os.PathLike[str]) -> None:
        self._path = Path(file)
        self._read: RecordedRuns | None = None

    @property
    def runs(self) -> list[RunInfo]:
        """The runs in the file, the newest first."""
        with ThreadPoolExecutor(1) as pool:  # this thread may have a running event loop
            return pool.submit(asyncio.run, self._list_runs()).result()

    def run(
        self,
        graph: Graph[Any, T],
        run_id: str | None = None,
        *,
        dep_cache: dict[Any, Any] | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> GraphResult[T]:
        """Replay a run and return its result, as `graph.run` does.

        Without a `run_id`, the file must have only one run, or only one run of this graph. If the
        run has values that a journal cannot store, such as clients, pass substitutes in
        `dep_cache`. If the run has secrets, pass `given`, such as
        `{"Login.token": SecretStr("…")}`.
        """
        return run_sync(
            lambda: self.arun(graph, run_id, dep_cache=dep_cache, given=given),
            "recorded.run()",
            "await recorded.arun(…)",
        )

    async def arun(
        self,
        graph: Graph[Any, T],
        run_id: str | None = None,
        *,
        dep_cache: dict[Any, Any] | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> GraphResult[T]:
        """Replay a run in an async test. Takes the arguments of `run`."""
        async with await in_thread_to_the_end(self._open) as journal:
            if run_id is None:
                run_id = await self._find_only_run(journal, graph)
            return await graph.replay(run_id, journal=journal, dep_cache=dep_cache, given=given)

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *raised: object) -> None:
        self._read = None

    async def __aenter__(self) -> Self:
        await in_thread_to_the_end(self._open)
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._read = None

    def _open(self) -> Journal:
        """Open the file as a journal. bae only reads it, so a `SQLiteJournal` does not change its
        file."""
        if self._read is not None:
            return self._read
        if is_sqlite(self._path):
            from bae.journal.sqlite import SQLiteJournal

            return SQLiteJournal(self._path)
        self._read = RecordedRuns.of(self._path)
        return self._read

    async def _list_runs(self) -> list[RunInfo]:
        async with self._open() as journal:
            return await journal.runs(limit=_MANY)

    async def _find_only_run(self, journal: Journal, graph: Graph[Any, Any]) -> str:
        runs = await journal.runs(limit=_MANY)
        if len(runs) > 1:
            runs = [info for info in runs if info.graph == graph.name]
        if len(runs) == 1:
            return runs[0].run_id
        if runs:
            run_ids = ", ".join(info.run_id for info in runs[:10])
            what = f"{self._path} has {len(runs)} runs of {graph.name}"
            fix = f"say which: recorded.run(graph, run_id); there are {run_ids}"
        else:
            what = f"{self._path} has no run of {graph.name}"
            fix = "give the graph that was recorded, or a run's id; recorded.runs lists them"
        raise JournalError(what, code="bae-run-unknown", fix=fix)


_MANY: Final = 10_000
"""The maximum number of runs that are listed."""
