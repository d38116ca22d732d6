"""`write_test` makes a pytest file from a recorded run, for `bae runs test`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeGuard, cast

from bae.journal.export import RecordedRuns, write_run
from bae.tools import ToolCall

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.stored_runs import RunInfo, StoredRun
    from bae.node import Node
    from bae.result import GraphResult


class GraphName(NamedTuple):
    """The name under which a test imports its graph."""

    module: str
    attribute: str
    """The name in the module. A name inside another object has dots."""
    kind: Literal["graph", "node", "function"] = "graph"
    """What has this name: a graph, its start node class, or a function that makes the graph."""
    folder: str = ""
    """The folder of the module, relative to the folder of the test. Empty if Python finds the
    module without it."""

    @property
    def code(self) -> str:
        """The code for the graph in a test."""
        if self.kind == "node":
            return f"Graph(start={self.attribute})"
        return self.attribute if self.kind == "graph" else f"{self.attribute}()"


class WrittenTest(NamedTuple):
    """A test and its recording."""

    source: str
    """The code of the test."""
    recording: bytes
    """The recorded runs, for a file beside the test with the same name and the ending `.jsonl`."""


async def write_test(
    graph: Graph[Any, Any], stored: StoredRun, name: GraphName, earlier: Sequence[StoredRun] = ()
) -> WrittenTest:
    """Make a test of a run that has ended or waits. First the run is replayed. If the replay
    differs from the run, raise `ReplayError`, because the test would fail. `earlier` are the runs
    whose turns the run shows to the LLM. They become part of the recording."""
    info, runs = stored.info, [*earlier, stored]
    result = await graph.replay(info.run_id, journal=RecordedRuns(runs, info.run_id))
    recording = b"".join(line for run in runs for line in write_run(run))
    run_id = literal(info.run_id) if earlier else ""
    return WrittenTest(_source(result, name, info, run_id), recording)


def _source(result: GraphResult[Any], graph: GraphName, info: RunInfo, run_id_code: str) -> str:
    name, run_id = _make_harmless(info.graph), _make_harmless(info.run_id)
    lines = [
        f'"""A run of {name} ({run_id}) that must still go the same way.',
        "",
        "It is replayed: no LM, no dependency, no tool and no person is asked, the bodies of",
        "nodes are called. Written by `bae runs test`; edit it as you like.",
        '"""',
        "",
        *_imports(graph),
        "",
        'RECORDED = Path(__file__).with_suffix(".jsonl")',
        "",
        "",
        f"def test_{_snake(info.graph)}_goes_the_way_it_was_recorded():",
        "    with replaying(RECORDED) as recorded:",
        f"        result = recorded.run({', '.join(filter(None, (graph.code, run_id_code)))})",
        "",
        "    path = [type(node).__name__ for node in result.trace]",
        _assert("path", [type(node).__name__ for node in result.trace]),
    ]
    if result.waiting:
        lines.append(
            _assert("[gate.place for gate in result.waiting]", [g.place for g in result.waiting])
        )
    else:
        end = cast("Node", result.result)
        lines += ["    end = result.result", _assert("type(end).__name__", type(end).__name__)]
        lines += _asserts(end)
    return "\n".join([*lines, ""])


def _imports(graph: GraphName) -> list[str]:
    graph_import = f"from {graph.module} import {graph.attribute.partition('.')[0]}"
    ours = ["from bae import Graph"] if graph.kind == "node" else []
    ours.append("from bae.testing import replaying")
    lines = ["from pathlib import Path", "", *ours, ""]
    if graph.folder:
        # The import path of the test run is not known, but the folder of the file is.
        path = f"sys.path.insert(0, str({_folder(graph.folder)}))"
        lines = ["import sys", *lines, path, ""]
    return [*lines, graph_import]


def _folder(folder: str) -> str:
    """Return the code for a folder that is relative to the folder of the test."""
    parts = [part for part in folder.split("/") if part not in ("", ".")]
    up = sum(1 for part in parts if part == "..")
    code = f"Path(__file__).parents[{up}]" if up else "Path(__file__).parent"
    if folder.startswith("/"):
        return f"Path({literal(folder)})"
    return " / ".join([code, *(literal(part) for part in parts[up:])])


def _asserts(end: Node) -> list[str]:
    """Return assertions about the fields of the last node that are plain data. The replay itself
    compares every field."""
    values = {name: end.__dict__.get(name) for name in type(end).__pydantic_fields__}
    lines: list[str] = []
    for name, value in values.items():
        if _is_calls(value):
            called = [call.name for call in value]
            lines.append(_assert(f"[call.name for call in end.{name}]", called))
        elif name in end.__dict__ and _is_plain(value):
            lines.append(_assert(f"end.{name}", value))
    return lines


def _assert(what: str, value: Any) -> str:
    if value is None or isinstance(value, bool):
        return f"    assert {what} is {value}"
    return f"    assert {what} == {literal(value)}"


def literal(value: Any) -> str:
    """Return plain data as code, with double quotes where no escape is needed, as formatters do."""
    code = repr(value)
    return code if '"' in code else code.replace("'", '"')


def _is_calls(value: Any) -> TypeGuard[list[ToolCall]]:
    listed = cast("list[object]", value) if isinstance(value, list) else []
    return bool(listed) and all(isinstance(item, ToolCall) for item in listed)


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


def _make_harmless(text: str) -> str:
    """Return a text of a recording in a form that is safe in a docstring. The recording may be from
    another person, and a text that ends the docstring would run as code."""
    return re.sub(r"[^\w .:@/+-]", "?", text)
