"""A recorded run as a pytest file: code that replays it and says, in plain asserts, which way it
went and where it ended. The command `bae runs test` writes it to a file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

from bae.journal.export import RecordedRuns, write_run
from bae.node import Node
from bae.result import GraphResult

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import StoredRun

WIDTH: Final = 88
"""The longest line that is written."""


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
        match self.kind:
            case "graph":
                return self.attribute
            case "node":
                return f"Graph(start={self.attribute})"
            case "function":
                return f"{self.attribute}()"


class WrittenTest(NamedTuple):
    """A test, and the recording that belongs beside it, with the ending `.jsonl`."""

    source: str
    recording: bytes


async def write_test(graph: Graph[Any, Any], stored: StoredRun, name: GraphName) -> WrittenTest:
    """A test of a run that has ended or waits. It is replayed first, since a test that fails from
    the start helps nobody: where it goes another way by now, that is raised as `ReplayError`."""
    info = stored.info
    result = await graph.replay(info.run_id, journal=RecordedRuns([stored], info.run_id))
    said = f"A run of {_harmless(info.graph)} ({_harmless(info.run_id)})"
    source = source_of_test(result, name, info.graph, said)
    return WrittenTest(source, b"".join(write_run(stored)))


def source_of_test(result: GraphResult[Any], graph: GraphName, name: str, recorded: str) -> str:
    """The source of a test that replays a run and expects `result`.

    The recording lies beside it under its name, with the ending `.jsonl`; `name` is that of the
    graph, and `recorded` says which run it was and when.
    """
    lines = [
        f'"""{recorded} that must still go the same way.',
        "",
        "It is replayed: no LM, no dependency and nobody at a gate is asked, the bodies of nodes",
        "are called. Written by `bae runs test`; edit it as you like.",
        '"""',
        "",
        *_imports(graph),
        "",
        'RECORDED = Path(__file__).with_suffix(".jsonl")',
        "",
        "",
        f"def test_{_snake(name)}_goes_the_way_it_was_recorded():",
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
    if graph.folder:
        # Where tests are run, and what is on the path there, is not known: the file is.
        return [
            "import sys",
            "from pathlib import Path",
            "",
            *ours,
            "",
            f"sys.path.insert(0, str({_folder(graph.folder)}))",
            "",
            own,
        ]
    if _is_first_party(graph.module):
        return ["from pathlib import Path", "", *ours, "", own]
    return ["from pathlib import Path", "", *sorted([*ours, own])]


def _folder(folder: str) -> str:
    """A folder, seen from that of the test, as code."""
    parts = [part for part in folder.split("/") if part not in ("", ".")]
    up = sum(1 for part in parts if part == "..")
    code = f"Path(__file__).parents[{up}]" if up else "Path(__file__).parent"
    if folder.startswith("/"):
        return f"Path({_quoted(folder)})"  # on another drive
    return " / ".join([code, *(_quoted(part) for part in parts[up:])])


def _asserts(end: Node) -> list[str]:
    """What is to hold for the node that the run ended at."""
    found: list[str] = []
    said: list[str] = []
    for name in type(end).__pydantic_fields__:
        if name not in end.__dict__:
            continue
        value = end.__dict__[name]
        if _is_native(value):
            found.append(_assert(f"end.{name}", value))
        elif not _has_set(end, name):
            said.append(_assert(f'said["{name}"]', end.model_dump(mode="json")[name]))
    if said:
        found += ['    said = end.model_dump(mode="json")', *said]
    return found


def _has_set(end: Node, name: str) -> bool:
    """Whether JSON of the field comes out in another order each time, or not at all. The replay
    compares such a field all the same."""

    def found(value: Any) -> bool:
        if isinstance(value, set | frozenset):
            return True
        if isinstance(value, Mapping):
            return any(map(found, cast("Mapping[Any, Any]", value).values()))
        return isinstance(value, list | tuple) and any(map(found, cast("list[Any]", value)))

    try:
        json_of = end.model_dump(mode="json")[name]
        return found(end.model_dump()[name]) or not _is_native(json_of)
    except Exception:  # a field may leave itself out, and its serializers are code of the user's
        return True


def _assert(what: str, value: Any) -> str:
    if value is None or isinstance(value, bool):
        return f"    assert {what} is {value}"
    start = f"    assert {what} == "
    return start + literal(value, len(start), 4)


def literal(value: Any, column: int, indent: int) -> str:
    """A value as code that begins at a column, on as many lines as it needs; those after the first
    are indented from `indent`."""
    one = _on_one_line(value)
    if column + len(one) <= WIDTH - 1:  # a comma may follow
        return one
    inner = " " * (indent + 4)
    if isinstance(value, str):
        parts = _pieces(value, WIDTH - indent - 8)
        if len(parts) == 1:
            return one
        return "\n".join(["(", *(f"{inner}{_quoted(part)}" for part in parts), " " * indent + ")"])
    if not value or not isinstance(value, list | tuple | dict | set | frozenset):
        return one
    lines: list[str] = []
    if isinstance(value, dict):
        for key, each in cast("dict[Any, Any]", value).items():
            start = f"{inner}{_on_one_line(key)}: "
            lines.append(f"{start}{literal(each, len(start), indent + 4)},")
    else:
        for each in _in_order(cast("list[Any]", value)):
            lines.append(f"{inner}{literal(each, indent + 4, indent + 4)},")
    opens, closes = _BRACKETS[type(cast(object, value))]
    return "\n".join([opens, *lines, " " * indent + closes])


_BRACKETS: Final[dict[type, tuple[str, str]]] = {
    dict: ("{", "}"),
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
}


def _on_one_line(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if not isinstance(value, list | tuple | dict | set | frozenset):
        return repr(value)
    opens, closes = _BRACKETS[type(cast(object, value))]
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value).items()
        inside = ", ".join(f"{_on_one_line(k)}: {_on_one_line(v)}" for k, v in entries)
    else:
        items = cast("list[Any]", value)
        inside = ", ".join(map(_on_one_line, _in_order(items)))
        if isinstance(value, tuple) and len(items) == 1:
            inside += ","
        if isinstance(value, set | frozenset) and not items:
            return f"{type(cast(object, value)).__name__}()"
    return f"{opens}{inside}{closes}"


def _in_order(items: list[Any]) -> list[Any]:
    is_set = isinstance(cast(object, items), set | frozenset)
    return sorted(items, key=repr) if is_set else list(items)


def _is_native(value: Any) -> bool:
    """Whether code can say the value as itself."""
    kind = cast("type[object]", type(value))
    if kind in (str, int, bool, type(None)):
        return True
    if kind is float:
        return math.isfinite(value)
    if kind in (list, tuple, set, frozenset):
        return all(map(_is_native, value))
    return kind is dict and all(_is_native(k) and _is_native(v) for k, v in value.items())


def _quoted(text: str) -> str:
    """The text as code, in the quotes that formatters choose."""
    said = repr(text)
    if said[0] == "'" and '"' not in said:
        return f'"{said[1:-1]}"'
    return said


def _pieces(text: str, room: int) -> list[str]:
    """The text in pieces whose code is no longer than `room`, cut after spaces where there are."""
    pieces = [""]
    for part in re.findall(r"\S*\s*", text):
        for start in range(0, len(part), room // 8) if len(_quoted(part)) > room else (0,):
            cut = part[start : start + room // 8] if len(_quoted(part)) > room else part
            if pieces[-1] and len(_quoted(pieces[-1] + cut)) > room:
                pieces.append("")
            pieces[-1] += cut
    return [piece for piece in pieces if piece]


def _snake(name: str) -> str:
    said = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    said = re.sub(r"\W+", "_", said).strip("_").lower()
    return said if f"test_{said}".isidentifier() else "run"


def _harmless(text: str) -> str:
    """A text of a recording for a docstring. A recording may be another person's, and what would
    end the docstring would be code."""
    return re.sub(r"[^\w .:@/+-]", "?", text)


def _is_first_party(module: str) -> bool:
    """Whether formatters take a module for one of the project's own, seen from here."""
    first = module.partition(".")[0]
    return any(
        (folder / first).is_dir() or (folder / f"{first}.py").is_file()
        for folder in (Path(), Path("src"))
    )
