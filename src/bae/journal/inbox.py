"""Store messages of people to a run. Messages are stored beside the run's answers to gates. The LM
reads them before the next round of a conversation with tools."""

from __future__ import annotations

import json

from bae.exceptions import JournalError
from bae.journal.decoder import StoredHistory, off_loop, read_history
from bae.journal.shape import Json, ShapeView
from bae.journal.store import Journal
from bae.journal.stored_runs import MESSAGE, StoredRun
from bae.sources import find_source_kind


async def tell_run(run_id: str, text: str, journal: Journal) -> int:
    """Store a message for the LM of a run, and return the message's number. Raises `JournalError`
    if no LM would read the message."""
    if not isinstance(text, str) or not text.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"tell(…, {text!r}): give a text")
    stored = await journal.read(run_id)
    if stored.info.status == "ended":
        raise JournalError(
            f"the run {run_id} has ended: no LM reads another message",
            run_id=run_id,
            code="bae-tell-over",
            fix="start another run, or fork this one at an earlier step",
        )
    number = await off_loop(len(stored.lines), _next_number, stored)
    while not await journal.answer(run_id, f"{MESSAGE}{number}", json.dumps(text)):
        number += 1
    return number


def _next_number(stored: StoredRun) -> int:
    history = read_history(stored)
    if not _has_conversation_ahead(history):
        raise JournalError(
            f"the run {stored.info.run_id} has no conversation with tools ahead, so no LM would "
            "read the message",
            run_id=stored.info.run_id,
            code="bae-tell-nobody",
            fix="answer its gates, or fork it at an earlier step with other values",
        )
    return history.message_count + 1


def _has_conversation_ahead(history: StoredHistory) -> bool:
    """Return whether a conversation with tools is in progress, or may begin at a later node."""
    shape, newest = history.shape, history.run.newest
    questions = (question for step in history.steps() for question in step.questions)
    if any(question.loop is not None and question.state != "done" for question in questions):
        return True
    if not shape.graphs or newest is None:
        return True  # the shape has an older format, or the run has no node yet
    classes: Json = shape.graphs[0]["classes"]
    ahead = [*classes.get(newest.name, {}).get("next", ())] if newest.is_complete else [newest.name]
    for name in ahead:
        cls: Json = classes.get(name, {"fields": {}, "next": ()})
        if any(_has_tools(shape, field, set()) for field in cls["fields"].values()):
            return True
        ahead += [next_name for next_name in cls["next"] if next_name not in ahead]
    return False


def _has_tools(shape: ShapeView, use: Json, visited: set[int]) -> bool:
    """Return whether a field has tools, or depends on a field with tools."""
    if "kind" in use and find_source_kind(use["kind"]).fills == "calls":
        return True
    number: int | None = use.get("call")
    if number is None or number in visited:
        return False
    visited.add(number)
    call = shape.calls[number]
    inner_uses = [*call["inputs"].values()]
    if "graph" in call:
        graph: int = call["graph"]
        classes: Json = shape.graphs[graph]["classes"]
        inner_uses += [field for cls in classes.values() for field in cls["fields"].values()]
    return any(_has_tools(shape, inner, visited) for inner in inner_uses)
