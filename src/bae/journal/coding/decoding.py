"""Lines into records: what a journal has stored of a run, read through the classes of its graph, so
that the records are those that the run wrote. Nothing is imported by a name found in a line: names
are looked up in the graph. `line_reading.py` reads each line, `recording.py` indexes the result for
a run that is resumed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import from_json

from bae.exceptions import JournalError
from bae.journal.coding.inside import graph_at
from bae.journal.coding.line_objects import Data
from bae.journal.coding.line_reading import LineReading, damaged
from bae.journal.coding.off_loop import off_loop
from bae.journal.node_codec import node_codec, secret_needed

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Line
    from bae.records import Record

__all__ = ["decode", "decoded", "graph_at"]


def decode(
    graph: Graph[Any, Any],
    lines: Iterable[Line],
    *,
    given: Mapping[str, Any] | None = None,
    partial: bool = False,
) -> list[Record]:
    """The records of a run, as the run wrote them.

    `given` has the values of plain fields that were withheld as secrets, by `Class.field`; without
    them `JournalError` (`bae-journal-secret`) names all that are missing. With `partial` such a
    field is just absent, which serves to show a run and not to go on with it.
    """
    every = list(lines)
    try:
        return _decoded(graph, every, given or {}, partial)
    except JournalError as error:
        if error.code != "bae-journal-unreadable":
            raise
        from bae.journal.coding.gone import without_gone

        # It may speak of a field that was taken out since, and that nothing depends on.
        left = without_gone(graph, every)
        if left == every:
            raise
    return _decoded(graph, left, given or {}, partial)


async def decoded(
    graph: Graph[Any, Any],
    lines: Sequence[Line],
    *,
    given: Mapping[str, Any] | None = None,
    partial: bool = False,
) -> list[Record]:
    """What `decode` comes to, without holding up the event loop where a run is long."""
    return await off_loop(len(lines), decode, graph, lines, given=given, partial=partial)


def _decoded(
    graph: Graph[Any, Any], lines: Sequence[Line], given: Mapping[str, Any], partial: bool
) -> list[Record]:
    read = LineReading(graph, given, partial)
    parsed = [(line, _object(line)) for line in lines]
    if not partial:
        _ask_for_secrets(read, parsed)
    return [read.record(line, data) for line, data in parsed]


def _object(line: Line) -> Data:
    try:
        found = from_json(line.data)
    except ValueError as error:
        raise damaged(line, "is no JSON", error) from error
    if not isinstance(found, dict):
        raise damaged(line, "is no JSON object")
    return Data(cast(dict[str, Any], found))


def _ask_for_secrets(read: LineReading, parsed: Sequence[tuple[Line, Data]]) -> None:
    """Refuse to go on without the plain fields that were withheld, naming all of them."""
    wanted: dict[str, None] = {}
    for line, data in parsed:
        inside_begins = line.path and line.kind == "RunStarted"
        if inside_begins or not isinstance(data.held.get("node"), dict):
            continue
        node = data.inside("node").held
        withheld: Any = node.get("withheld")
        cls = read.rebuilt.class_at(line.path, node.get("type")) if withheld else None
        if cls is not None and isinstance(withheld, list):
            plain = (field.name for field in node_codec(cls).plan.plain)
            wanted |= {f"{cls.__name__}.{n}": None for n in plain if n in withheld}
    missing = [name for name in wanted if name not in read.given]
    if missing:
        raise secret_needed(missing)
