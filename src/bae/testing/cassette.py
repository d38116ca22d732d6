"""Recorded runs as tests: `replaying(file)` opens what a run was written to, and runs it again with
every value that was recorded and nothing called. `write_test` makes a pytest file of a run, for the
command `bae runs test`."""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, TypeVar, cast

from bae.exceptions import JournalError
from bae.graph import run_sync
from bae.journal.export import RecordedRuns, is_sqlite, write_run
from bae.node import Node
from bae.threads import in_thread_to_the_end

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Journal, RunInfo, StoredRun
    from bae.result import GraphResult

T = TypeVar("T", bound=Node)


def replaying(file: str | os.PathLike[str]) -> Recorded:
    """The runs of a file, to be replayed in a test:

    ```python
    def test_the_outfit_run_still_goes_the_same_way():
        with replaying("tests/runs/outfit.jsonl") as recorded:
            result = recorded.run(graph)
        assert result.result.top == "a thick jumper"
    ```

    The file is one that `Journal.export` has written, or that of a `SQLiteJournal`; it is never
    changed. No LM, no dependency and no person at a gate is asked; your written bodies are called.
    Where the graph goes another way than it did, or asks an LM something else, `run` raises
    `ReplayError`, which says what is different. In async tests, `await recorded.arun(graph)`.
    """
    return Recorded(file)


class Recorded:
    """The runs of a file, opened by `replaying`. Use it in a `with` or an `async with`."""

    def __init__(self, file: str | os.PathLike[str]) -> None:
        self._path = Path(file)
        self._read: RecordedRuns | None = None

    @property
    def runs(self) -> list[RunInfo]:
        """What runs there are, the newest first: `.run_id`, `.graph`, `.status` and so on."""
        with ThreadPoolExecutor(1) as pool:  # an event loop may be running here
            return pool.submit(asyncio.run, self._listed()).result()

    def run(
        self,
        graph: Graph[Any, T],
        run_id: str | None = None,
        *,
        dep_cache: dict[Any, Any] | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> GraphResult[T]:
        """Replay a run, and answer with its result as `graph.run` does.

        Without a `run_id` it is the one run in the file, or the one of this graph. `dep_cache` has
        stand-ins for what no journal holds, such as clients, and `given` has its secrets, as
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
        """`run` for async tests."""
        async with await in_thread_to_the_end(self._open) as journal:
            if run_id is None:
                run_id = await self._only(journal, graph)
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
        """The journal in the file; a `SQLiteJournal` that is only read changes nothing."""
        if self._read is not None:
            return self._read
        if is_sqlite(self._path):
            from bae.journal.sqlite import SQLiteJournal

            return SQLiteJournal(self._path)
        self._read = RecordedRuns.of(self._path)
        return self._read

    async def _listed(self) -> list[RunInfo]:
        async with self._open() as journal:
            return await journal.runs(limit=_MANY)

    async def _only(self, journal: Journal, graph: Graph[Any, Any]) -> str:
        runs = await journal.runs(limit=_MANY)
        if len(runs) > 1:
            runs = [info for info in runs if info.graph == graph.name]
        if len(runs) == 1:
            return runs[0].run_id
        if runs:
            listed = ", ".join(info.run_id for info in runs[:10])
            what = f"{self._path} has {len(runs)} runs of {graph.name}"
            fix = f"say which: recorded.run(graph, run_id); there are {listed}"
        else:
            what = f"{self._path} has no run of {graph.name}"
            fix = "give the graph that was recorded, or a run's id; recorded.runs lists them"
        raise JournalError(what, code="bae-run-unknown", fix=fix)


_MANY: Final = 10_000


class GraphName(NamedTuple):
    """Where a test imports its graph from: the module and the name in it, with dots where it is in
    something else. The name is that of a graph, of the node class that it starts at, or of a
    function that makes it. `folder`, seen from that of the test, is where the module is found;
    empty where it is found anyway."""

    module: str
    attribute: str
    kind: Literal["graph", "node", "function"] = "graph"
    folder: str = ""

    @property
    def code(self) -> str:
        """The graph, in the code of a test."""
        if self.kind == "node":
            return f"Graph(start={self.attribute})"
        return self.attribute if self.kind == "graph" else f"{self.attribute}()"


class WrittenTest(NamedTuple):
    """A test, and the recording that belongs beside it, with the ending `.jsonl`."""

    source: str
    recording: bytes


async def write_test(graph: Graph[Any, Any], stored: StoredRun, name: GraphName) -> WrittenTest:
    """A test of a run that has ended or waits. It is replayed first: a run that goes another way by
    now is raised as `ReplayError`, and not written as a test that fails from the start."""
    info = stored.info
    result = await graph.replay(info.run_id, journal=RecordedRuns([stored], info.run_id))
    return WrittenTest(_source(result, name, info), b"".join(write_run(stored)))


def _source(result: GraphResult[Any], graph: GraphName, info: RunInfo) -> str:
    name, run_id = _harmless(info.graph), _harmless(info.run_id)
    lines = [
        f'"""A run of {name} ({run_id}) that must still go the same way.',
        "",
        "It is replayed: no LM, no dependency and no person is asked, the bodies of nodes",
        "are called. Written by `bae runs test`; edit it as you like.",
        '"""',
        "",
        *_imports(graph),
        "",
        'RECORDED = Path(__file__).with_suffix(".jsonl")',
        "",
        "",
        f"def test_{_snake(info.graph)}_goes_the_way_it_was_recorded():",
        "    with replaying(RECORDED) as recorded:",
        f"        result = recorded.run({graph.code})",
        "",
        "    path = [type(node).__name__ for node in result.trace]",
        _assert("path", [type(node).__name__ for node in result.trace]),
    ]
    if result.waiting:
        lines.append(
            _assert("[gate.place for gate in result.waiting]", [g.place for g in result.waiting])
        )
    else:
        end = cast(Node, result.result)
        lines += ["    end = result.result", _assert("type(end).__name__", type(end).__name__)]
        lines += _asserts(end)
    return "\n".join([*lines, ""])


def _imports(graph: GraphName) -> list[str]:
    own = f"from {graph.module} import {graph.attribute.partition('.')[0]}"
    ours = ["from bae import Graph"] if graph.kind == "node" else []
    ours.append("from bae.testing import replaying")
    lines = ["from pathlib import Path", "", *ours, ""]
    if graph.folder:
        # Where tests are run, and what is on the path there, is not known: the file is.
        path = f"sys.path.insert(0, str({_folder(graph.folder)}))"
        lines = ["import sys", *lines, path, ""]
    return [*lines, own]


def _folder(folder: str) -> str:
    """A folder, seen from that of the test, as code."""
    parts = [part for part in folder.split("/") if part not in ("", ".")]
    up = sum(1 for part in parts if part == "..")
    code = f"Path(__file__).parents[{up}]" if up else "Path(__file__).parent"
    if folder.startswith("/"):
        return f"Path({literal(folder)})"  # on another drive
    return " / ".join([code, *(literal(part) for part in parts[up:])])


def _asserts(end: Node) -> list[str]:
    """What is to hold for the node that the run ended at, as far as code can say it as plain data;
    the replay compares every field."""
    values = {name: end.__dict__.get(name) for name in type(end).__pydantic_fields__}
    return [
        _assert(f"end.{name}", value)
        for name, value in values.items()
        if name in end.__dict__ and _is_plain(value)
    ]


def _assert(what: str, value: Any) -> str:
    if value is None or isinstance(value, bool):
        return f"    assert {what} is {value}"
    return f"    assert {what} == {literal(value)}"


def literal(value: Any) -> str:
    """Plain data as code, with the quotes that formatters choose where that is simple."""
    code = repr(value)
    return code if '"' in code else code.replace("'", '"')


def _is_plain(value: Any) -> bool:
    kind = cast("type[object]", type(value))
    if kind is list:
        return all(map(_is_plain, value))
    if kind is dict:
        return all(_is_plain(k) and _is_plain(v) for k, v in value.items())
    return kind in (str, int, bool, type(None)) or (kind is float and math.isfinite(value))


def _snake(name: str) -> str:
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    snake = re.sub(r"\W+", "_", snake).strip("_").lower()
    return snake if f"test_{snake}".isidentifier() else "run"


def _harmless(text: str) -> str:
    """A text of a recording for a docstring. A recording may be another person's, and what would
    end the docstring would be code."""
    return re.sub(r"[^\w .:@/+-]", "?", text)
