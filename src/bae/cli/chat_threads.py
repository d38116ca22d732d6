"""Threads for `bae chat`: new thread ids, the list of threads, and the cost of a thread."""

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
_MOST_RUNS: Final = 1000
"""Maximum runs that are read to find the newest threads."""


def new_thread_id(name: str) -> str:
    """Make a thread id that people can read and type, such as `support-1118-x7qd`."""
    name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:20] or "chat"
    letters = "".join(_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(4))
    return f"{name}-{time.strftime('%m%d')}-{letters}"


@dataclass(slots=True)
class _ListedThread:
    newest: RunInfo
    runs: int = 0


async def list_threads(journal: Journal, graph: str, current: str, most: int) -> None:
    """Print the newest threads of a graph, at most `most`. `current` is the thread of the chat."""
    threads: dict[str, _ListedThread] = {}
    runs_read = 0
    async for info in journal.every_run(graph=graph):
        runs_read += 1
        if info.thread is not None:
            threads.setdefault(info.thread, _ListedThread(info)).runs += 1
        if runs_read == _MOST_RUNS:
            break
    if not threads:
        note("no threads yet")
        return
    columns = (Column("thread", right=False), Column("turns"), Column("last", right=False))
    rows: list[list[Text]] = []
    for name, thread in [*threads.items()][:most]:
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(thread.newest.updated))
        marked = f"{name} (this one)" if name == current else name
        rows.append([Text(in_one_line(marked), "cyan"), Text(str(thread.runs)), Text(at, "dim")])
    print_table(err(), columns, rows)
    note("/thread ID switches to one, /new begins one")


async def thread_cost(journal: Journal, thread: str) -> str:
    """Describe the usage of all runs of a thread, including replaced turns."""
    runs = 0
    total = Usage()
    before: str | None = None
    while page := await journal.runs(thread=thread, limit=200, before=before):
        for info in page:
            runs += 1
            if info.summary is not None:
                used = info.summary
                total += Usage(calls=used.calls, output_tokens=used.tokens, cost=used.cost)
        before = page[-1].run_id
    facts = [
        count(runs, "run"),
        count(total.calls, "LM call"),
        count(total.tokens, "token"),
    ]
    return " · ".join([*facts, *filter(None, [cost(total)])])
