"""Which journal and which run somebody means: `JournalFile` and RUN of the command line, looked up.
What is not there, or could be several, is refused in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bae.cli.completing import NEWEST
from bae.cli.journals import file_to_read, open_to_read, open_to_write
from bae.cli.refusals import refused

if TYPE_CHECKING:
    from bae.journal.store import Journal


def to_read(file: str | None) -> Journal:
    """The journal that is meant, or the exported file; it must be there. Use it in `async with`."""
    return open_to_read(file_to_read(file))


def to_write(file: str | None) -> Journal:
    """The journal that is meant, to be changed; it must be there."""
    return open_to_write(file_to_read(file))


async def run_meant(journal: Journal, said: str | None) -> str:
    """The id of the run that is meant: by its id, by how that begins, or "last" or nothing for the
    newest one."""
    word = said or NEWEST
    found = await _ids(journal, word)
    if len(found) == 1:
        return found[0]
    if found:
        raise refused(
            f"several runs begin with {word}: {', '.join(found)}",
            fix="give more of the id; `bae runs list` shows them",
        )
    if word == NEWEST:
        raise refused("the journal has no runs", fix="run a graph with `bae run`")
    raise refused(f"no run is called {word}, nor begins so", fix="list them with `bae runs list`")


async def _ids(journal: Journal, word: str) -> list[str]:
    """The ids of the runs that a word may mean, the newest first, and at most five of those that
    only begin with it."""
    from bae.exceptions import JournalError

    try:
        return [(await journal.read(word)).info.run_id]
    except JournalError as error:
        if error.code != "bae-run-unknown":
            raise
    if word == NEWEST:
        return [info.run_id for info in await journal.runs(limit=1)]
    found: list[str] = []
    async for info in journal.every_run():
        if info.run_id.startswith(word):
            found.append(info.run_id)
        if len(found) == 5:
            break
    return found
