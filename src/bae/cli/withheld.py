"""Secrets that a journal does not keep, given again when a run goes on: by --set Login.token=…, or
asked for at a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bae.cli.refusals import refused
from bae.cli.start import parts_of, read_text
from bae.exceptions import BaeError, JournalError

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node


def withheld(
    graph: Graph[Any, Any], run_id: str, file: str | None, sets: Sequence[str], *, ask: bool
) -> dict[str, Any]:
    """What `Graph.resume` takes as `given`: what --set says, and what is asked for beside it."""
    from bae.cli.questions import ask_field
    from bae.cli.terminal_input import can_ask

    given: dict[str, Any] = {}
    for each in sets:
        place, text = parts_of(each)
        cls, field = _place(graph, place)
        given[f"{cls.__name__}.{field}"] = read_text(cls, field, text).value
    while missing := asyncio.run(_missing(graph, run_id, file, given)):
        if not (ask and can_ask()):
            raise _not_given(run_id, missing)
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
        code="bae-journal-secret",
        fix=f"give it again with {sets}",
    )


def _place(graph: Graph[Any, Any], place: str) -> tuple[type[Node], str]:
    """The class and the field of `Login.token`."""
    from bae.journal.coding.keepable import every_graph

    name, _, field = place.partition(".")
    for each in every_graph(graph):
        for cls in each.plans:
            if cls.__name__ == name and field in cls.__pydantic_fields__:
                return cls, field
    raise refused(
        f"{graph.name} has no field {place}", fix="name it by its node, as --set Login.token=…"
    )


async def _missing(
    graph: Graph[Any, Any], run_id: str, file: str | None, given: dict[str, Any]
) -> list[str]:
    """The fields that must be given, as `Login.token`."""
    from bae.cli.runs.meant import to_write
    from bae.journal.coding.decoding import decoded
    from bae.journal.coding.keepable import every_graph

    async with to_write(file) as journal:
        stored = await journal.read(run_id)
    if stored.info.status == "ended":
        return []
    try:
        await decoded(graph, stored.lines, given=given)
    except BaeError as error:
        if error.code != "bae-journal-secret":
            return []  # the run itself says it, in its own words
        said = error.message.replace(",", " ").split()
        places = [
            f"{cls.__name__}.{name}"
            for each in every_graph(graph)
            for cls in each.plans
            for name in cls.__pydantic_fields__
        ]
        return [place for place in dict.fromkeys(places) if place in said]
    return []
