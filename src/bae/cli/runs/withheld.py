"""Secrets that a journal does not keep, given again when a run goes on: by --set Login.token=…, or
asked for at a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bae.cli.refusals import refused
from bae.cli.start.node import read_text
from bae.cli.start.places import parts_of, refuse_twice
from bae.exceptions import BaeError, JournalError

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import StoredRun
    from bae.node import Node


def withheld(
    graph: Graph[Any, Any], stored: StoredRun, sets: Sequence[str], *, ask: bool
) -> dict[str, Any]:
    """What `Graph.resume` and `Graph.replay` take as `given`: what --set says, and what is asked
    for beside it."""
    from bae.cli.running.terminal_input import can_ask
    from bae.cli.start.questions import ask_field

    given: dict[str, Any] = {}
    refuse_twice([[parts_of(each)[0]] for each in sets])
    for each in sets:
        place, text = parts_of(each)
        cls, field = _place(graph, place)
        given[f"{cls.__name__}.{field}"] = read_text(cls, field, text).value
    while missing := asyncio.run(_missing(graph, stored, given)):
        if not (ask and can_ask()):
            raise _not_given(stored.info.run_id, missing)
        for place in missing:
            cls, field = _place(graph, place)
            typed = None
            while typed is None:
                typed = ask_field(cls, field)
            given[place] = typed.value
    return given


def _not_given(run_id: str, missing: Sequence[str]) -> JournalError:
    sets = " ".join(f"--set {place}=…" for place in missing)
    return JournalError(
        f"the run needs {', '.join(missing)}, which the journal does not have: it is a secret, or "
        "was redacted",
        run_id=run_id,
        places=missing,
        code="bae-journal-secret",
        fix=f"give it again with {sets}",
    )


def _place(graph: Graph[Any, Any], place: str) -> tuple[type[Node], str]:
    """The class and the field of `Login.token`."""
    name, _, field = place.partition(".")
    for each in graph.graphs:
        for cls in each.plans:
            if cls.__name__ == name and field in cls.__pydantic_fields__:
                return cls, field
    raise refused(
        f"{graph.name} has no field {place}", fix="name it by its node, as --set Login.token=…"
    )


async def _missing(graph: Graph[Any, Any], stored: StoredRun, given: dict[str, Any]) -> list[str]:
    """The fields that must be given, as `Login.token`."""
    from bae.journal.decoder import decode_run

    try:
        await decode_run(graph, stored.lines, given=given)
    except BaeError as error:
        # Of anything else the run itself speaks, in its own words.
        return list(error.places) if isinstance(error, JournalError) else []
    return []
