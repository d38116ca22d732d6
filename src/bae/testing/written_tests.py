"""A recorded run as a pytest file: code that replays it and says, in plain asserts, which way it
went and where it ended. The command `python -m bae.journal test` writes it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from bae.node import Node
from bae.result import GraphResult

WIDTH: Final = 88
"""The longest line that is written."""


class GraphName(NamedTuple):
    """Where a graph is found, as `package.module:graph`."""

    module: str
    attribute: str

    @classmethod
    def read(cls, text: str) -> GraphName:
        """Take `package.module:graph` apart; a ValueError says what is wrong with it."""
        module, colon, attribute = text.partition(":")
        parts = [*module.split("."), *attribute.split(".")]
        if not colon or not all(part.isidentifier() for part in parts):
            raise ValueError(f"{text!r} does not name a graph: write package.module:graph")
        return cls(module, attribute)


def source_of_test(result: GraphResult[Any], graph: GraphName, name: str, recorded: str) -> str:
    """The source of a test that replays a run and expects `result`.

    The recording lies beside it under its name, with the ending `.jsonl`; `name` is that of the
    graph, and `recorded` says which run it was and when.
    """
    first = graph.attribute.partition(".")[0]
    own = f"from {graph.module} import {first}"
    imports = ["from bae.testing import replaying"]
    if _is_first_party(graph.module):
        imports += ["", own]
    else:
        imports = sorted([*imports, own])
    lines = [
        f'"""{recorded}.',
        "",
        "It is replayed: no LM, no dependency and nobody at a gate is asked, the bodies of nodes",
        "are called. Written by `python -m bae.journal test`; edit it as you like.",
        '"""',
        "",
        "from pathlib import Path",
        "",
        *imports,
        "",
        'RECORDED = Path(__file__).with_suffix(".jsonl")',
        "",
        "",
        f"def test_{_snake(name)}_goes_the_way_it_was_recorded():",
        "    with replaying(RECORDED) as recorded:",
        f"        result = recorded.run({graph.attribute})",
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
    return re.sub(r"\W+", "_", said).strip("_").lower() or "run"


def _is_first_party(module: str) -> bool:
    """Whether formatters take a module for one of the project's own, seen from here."""
    first = module.partition(".")[0]
    return any(
        (folder / first).is_dir() or (folder / f"{first}.py").is_file()
        for folder in (Path(), Path("src"))
    )
