"""The threads of a journal, for `bae chat`: their ids, their list, and what they cost."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.text import Text

from bae.cli.printing import Column, err, note, print_table
from bae.cli.wording import cost, count, in_one_line
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.journal import Journal, RunInfo

_LETTERS: Final = "bcdfghjkmnpqrstvwxz23456789"
_LOOKED_AT: Final = 1000
"""Runs that are looked at for the newest threads."""


def new_thread_id(name: str) -> str:
    """A new id that can be read and typed, as `support-1118-x7qd`."""
    name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:20] or "chat"
    letters = "".join(_LETTERS[each % len(_LETTERS)] for each in os.urandom(4))
    return f"{name}-{time.strftime('%m%d')}-{letters}"


@dataclass(slots=True)
class _Listed:
    newest: RunInfo
    runs: int = 0


async def list_threads(journal: Journal, graph: str, current: str, most: int) -> None:
    """Print the newest threads of a graph."""
    found: dict[str, _Listed] = {}
    looked_at = 0
    async for info in journal.every_run(graph=graph):
        looked_at += 1
        if info.thread is not None:
            found.setdefault(info.thread, _Listed(info)).runs += 1
        if looked_at == _LOOKED_AT:
            break
    if not found:
        note("no threads yet")
        return
    columns = (Column("thread", right=False), Column("turns"), Column("last", right=False))
    rows: list[list[Text]] = []
    for name, each in [*found.items()][:most]:
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.newest.updated))
        marked = f"{name} (this one)" if name == current else name
        rows.append([Text(in_one_line(marked), "cyan"), Text(str(each.runs)), Text(at, "dim")])
    print_table(err(), columns, rows)
    note("/thread ID switches to one, /new begins one")


async def thread_cost(journal: Journal, thread: str) -> str:
    """What the runs of a thread used, those of turns that were sent again too."""
    runs = 0
    total = Usage()
    before: str | None = None
    while page := await journal.runs(thread=thread, limit=200, before=before):
        for info in page:
            runs += 1
            if info.summary is not None:
                done = info.summary
                total += Usage(calls=done.calls, output_tokens=done.tokens, cost=done.cost)
        before = page[-1].run_id
    facts = [
        count(runs, "run"),
        count(total.calls, "LM call"),
        count(total.tokens, "token"),
    ]
    return " · ".join([*facts, *filter(None, [cost(total)])])
