"""Which journal new runs are kept in. `run.py` and `eval.py` ask."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from bae.private_files import private

if TYPE_CHECKING:
    from bae.graph import Graph


def journal_for(graph: Graph[Any, Any], given: str | None, so: str) -> str | None:
    """The file of the journal to keep. The one that nobody asked for is done without where it
    cannot be had, with a note that says what follows from that."""
    from bae.cli.journals import file_to_write
    from bae.cli.printing import note

    if given is not None:
        return file_to_write(given)
    errors = [p for p in graph.validate(journal=True) if p.severity == "error"]
    without = set(graph.validate())
    why = [f"{p.place}: {p.message}" for p in errors if p not in without]
    file = ""
    if not why:
        try:
            file = file_to_write(None)
            # SQLite takes an empty file for a new one.
            os.close(private(file, os.O_CREAT | os.O_WRONLY))
        except OSError as error:
            why = [f"{error.filename or file} cannot be written: {error.strerror}"]
    if not why:
        return file
    note(f"no journal is kept, so {so}: {why[0]}")
    return None
