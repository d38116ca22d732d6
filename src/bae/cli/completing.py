"""What a shell offers when Tab is pressed: files that a graph may be in, names of LMs, the ids of
runs and the gates they wait at. It is asked while a line is typed, so it is quick, says nothing and
never fails."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

from bae.cli.texts import in_one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bae.journal.store import RunInfo

NEWEST: Final = "last"
"""The word for the newest run."""
MOST: Final = 40
"""How many runs are offered."""


def modules(incomplete: str) -> list[str]:
    """Python files whose paths begin as what is typed, and directories."""
    try:
        found = _files(incomplete)
        # A shell puts a blank after the one thing that fits, which is wrong after a directory:
        # offer what is in it instead.
        while len(found) == 1 and found[0].endswith("/"):
            found = _files(found[0])
    except OSError:
        return []
    return [each for each in found if _PLAIN.fullmatch(each)]


def lm_names(incomplete: str) -> list[str]:
    """Names of LMs that begin as what is typed; those that need a model's name end in a colon."""
    from bae.lm.registry import KINDS

    names = [f"{name}:" if kind.needs_rest else name for name, kind in KINDS.items()]
    return [name for name in names if name.startswith(incomplete)]


def run_ids(ctx: Any, incomplete: str) -> list[tuple[str, str]]:
    """The newest runs whose ids begin as what is typed, with what each is; `last` is the newest."""
    try:
        found = [(info.run_id, f"{info.graph}, {info.status}") for info in _newest(ctx)]
    except Exception:  # no journal, a torn one, one that is busy: then there is nothing to offer
        return []
    if found:
        newest, what = found[0]
        found.insert(0, (NEWEST, f"{newest}: {what}"))
    return _offered(found, incomplete)


def open_gates(ctx: Any, incomplete: str) -> list[tuple[str, str]]:
    """The gates that the run before waits at and that begin as what is typed, with the question."""
    try:
        said = (None if ctx is None else ctx.params.get("run")) or NEWEST
        runs = [info for info in _newest(ctx) if said == NEWEST or info.run_id.startswith(said)]
        gates = [gate for gate in runs[0].waiting if not gate.answered] if runs else []
    except Exception:  # as above
        return []
    places = [gate.place for gate in gates]
    named = (gate.place if places.count(gate.place) == 1 else gate.address for gate in gates)
    return _offered(zip(named, (gate.question for gate in gates), strict=True), incomplete)


def _offered(found: Iterable[tuple[str, str]], incomplete: str) -> list[tuple[str, str]]:
    """Words that begin as what is typed, each with what it is. What a shell would make something
    else of is left out: a run may be another person's."""
    return [
        (word, in_one_line(about))
        for word, about in found
        if word.startswith(incomplete) and _PLAIN.fullmatch(word)
    ][:MOST]


def _newest(ctx: Any) -> Iterable[RunInfo]:
    import asyncio

    from bae.cli.journals import file_to_read, open_to_read

    named: str | None = None if ctx is None else ctx.params.get("journal")

    async def listed() -> list[RunInfo]:
        async with open_to_read(file_to_read(named or os.environ.get("BAE_JOURNAL"))) as journal:
            return await journal.runs(limit=200)

    return asyncio.run(listed())


_PLAIN: Final = re.compile(r"(?!-)[\w./~+@%=:,-]+")
"""Words that no shell makes something else of, and that are no option."""
_LEFT_OUT: Final = ("__pycache__", "node_modules")


def _files(incomplete: str) -> list[str]:
    folder, begun = os.path.split(incomplete)
    found: list[str] = []
    with os.scandir(os.path.expanduser(folder) or ".") as entries:
        for entry in entries:
            if not entry.name.startswith(begun) or (entry.name.startswith(".") and not begun):
                continue
            path = os.path.join(folder, entry.name).replace(os.sep, "/")
            if entry.is_dir() and entry.name not in _LEFT_OUT:
                found.append(f"{path}/")
            elif entry.name.endswith(".py"):
                found.append(path)
    return sorted(found)
