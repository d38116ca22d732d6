"""`check`: which unfinished runs of a journal the classes of today would break, before they are
deployed. `changes.py` judges each run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from bae.exceptions import JournalError
from bae.journal.shape.changes import Change, breaking, changes
from bae.journal.shape.shapes import shape_of
from bae.journal.store import Journal, RunInfo, Status

if TYPE_CHECKING:
    from bae.graph import Graph

UNFINISHED: Final[tuple[Status, ...]] = ("running", "waiting", "failed", "cancelled")
"""How a run stands that may still go on."""


@dataclass(frozen=True, slots=True)
class BrokenRun:
    """An unfinished run that cannot go on under the classes of today: `info` is what the journal
    says of it, `changes` what is in its way."""

    info: RunInfo
    changes: tuple[Change, ...]

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.info.run_id

    def __str__(self) -> str:
        info = self.info
        since = datetime.fromtimestamp(info.updated, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        first = f"{info.run_id} ({info.graph}, {info.status} since {since}) cannot go on:"
        lines = [first]
        for change in self.changes:
            lines.append(f"  {change}")
            if change.fix:
                lines.append(f"    fix: {change.fix}")
        return "\n".join(lines)


async def check(
    graph: Graph[Any, Any], journal: Journal, *, was: str | Iterable[str] = ()
) -> list[BrokenRun]:
    """The unfinished runs of a graph that cannot go on under its classes of today:

    ```python
    broken = await bae.journal.check(graph, journal)
    assert not broken, "\\n".join(map(str, broken))
    ```

    Call it with the new code and the journal that is in use, before you deploy; it changes nothing.
    Runs belong to a graph by its name, which is that of its start class unless you gave it one: if
    either was renamed, say what it was called with `was=`. Runs that wait, failed, were cancelled
    or interrupted, or are under way right now are looked at; those whose classes are the same are
    not even read.
    """
    graph.prove()
    names = [graph.name, *([was] if isinstance(was, str) else was)]
    shape = shape_of(graph)
    harmless = {shape.hash}
    broken: list[BrokenRun] = []
    for info in await _unfinished(journal, list(dict.fromkeys(names))):
        if info.shape in harmless:
            continue
        try:
            stored = await journal.read(info.run_id)
            if stored.shape and not any(c.breaks for c in changes(stored.shape, shape)):
                harmless.add(info.shape)
                continue
            found = breaking(stored, graph)
        except JournalError as error:
            if error.code == "bae-run-unknown":
                continue  # it was deleted meanwhile
            found = [_damage(error)]
        if found:
            broken.append(BrokenRun(info, tuple(found)))
    return broken


async def _unfinished(journal: Journal, names: Sequence[str]) -> list[RunInfo]:
    found: dict[str, RunInfo] = {}
    for name in names:
        for status in UNFINISHED:
            # A run may be met twice: it can change how it stands between two pages.
            async for info in journal.every_run(status=status, graph=name):
                found[info.run_id] = info
    return list(found.values())


def _damage(error: JournalError) -> Change:
    return Change(
        "the run",
        f"cannot be read: {error.message}",
        "it cannot go on under any classes",
        breaks=True,
        fix=error.fix or "",
    )
