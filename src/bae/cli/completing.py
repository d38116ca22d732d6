"""What a shell offers when Tab is pressed: files that a graph may be in, names of LMs, the ids of
runs. It is asked while somebody types, so it is quick, says nothing and never fails."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bae.journal.store import RunInfo

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
    from bae.lm.named import KINDS

    names = [f"{kind}:" if needs_rest else kind for kind, (_, needs_rest, _) in KINDS.items()]
    return [name for name in names if name.startswith(incomplete)]


def run_ids(ctx: Any, incomplete: str) -> list[tuple[str, str]]:
    """The newest runs whose ids begin as what is typed, with what each is."""
    try:
        named: str | None = None if ctx is None else ctx.params.get("journal")
        return [
            (info.run_id, f"{info.graph}, {info.status}")
            for info in _newest(named)
            if info.run_id.startswith(incomplete)
        ][:MOST]
    except Exception:  # no journal, a torn one, one that is busy: then there is nothing to offer
        return []


def _newest(named: str | None) -> Iterable[RunInfo]:
    import asyncio

    from bae.cli.journals import file_to_read
    from bae.journal.opening import open_to_read

    async def listed() -> list[RunInfo]:
        async with open_to_read(file_to_read(named or os.environ.get("BAE_JOURNAL"))) as journal:
            return await journal.runs(limit=200)

    return asyncio.run(listed())


_PLAIN: Final = re.compile(r"[\w./~+@%=-]+")
"""Names that no shell makes something else of."""
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
