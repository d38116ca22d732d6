"""The data of stored lines, looked into and thinned out: which nodes a line stores, at which class
a run stands with it, and how fields, values and messages are taken out. `withholding.py` knows
which are to go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeGuard, cast

from pydantic_core import from_json

from bae.exceptions import JournalError
from bae.journal.files.same_text import SameText
from bae.journal.shape.shapes import Segment, segments
from bae.journal.store import Line, StoredRun

Place = tuple[str, str]
"""A class and a field of it; the field with the route of a parameter behind it, as
`weather(place)`."""

Data = dict[str, Any]

WITHHELD: Final = "withheld"

TELL_OF_CALLS: Final = ("AnswerJudged", "AnswerRestarted", "LMUsed")
"""The lines that tell of LM calls and hold no values."""
SAID: Final = ("asked", "answer", "errors")
"""Where such a line has text of prompts and answers."""
_AT_A_STEP: Final = ("RunStarted", "StepStarted", "Returned", "RunForked", "FillEnded")
_OF_A_FIELD: Final = ("SourceStarted", "SourceEnded", "ItemEnded", "Recalled", "GateOpened")
_NEEDED: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(_OF_A_FIELD, ("node", "field")),
    "Recalled": ("node", "field", "origin"),
    "FillStarted": ("target",),
    "AnswerJudged": ("asker",),
    "LMAnswered": ("asker",),
}


def parsed(run: StoredRun, line: Line) -> Data:
    """The data of a line; what cannot be told to be there cannot be taken out."""
    try:
        data = from_json(line.data)
        if not isinstance(data, dict):
            raise ValueError("it is no JSON object")
        lacking = [key for key in _NEEDED.get(line.kind, ()) if key not in data]
        if lacking:
            raise ValueError(f"it lacks {', '.join(lacking)}")
    except ValueError as error:
        raise JournalError(
            f"line {line.n} of the run {run.info.run_id} cannot be read, so nothing was redacted",
            run_id=run.info.run_id,
            code="bae-journal-damaged",
            cause=error,
            fix="delete the run: what is in it cannot be told",
        ) from error
    return cast(Data, data)


def parts_of(path: str) -> list[Segment]:
    """A path taken apart; nothing where it is none."""
    return segments(path) or []


def is_of(node: str, field: str, route: str, wanted: set[Place]) -> bool:
    """Whether a source, or a parameter behind it, is meant."""
    return (node, field) in wanted or (bool(route) and (node, f"{field}{route}") in wanted)


def nodes_in(line: Line, data: Data) -> Iterator[Data]:
    """The nodes that a line stores."""
    for key in ("node", "value") if line.kind == "LMAnswered" else ("node",):
        node = data.get(key)
        if is_node(node):
            yield node


def is_node(value: Any) -> TypeGuard[Data]:
    """Whether a value is a node as it is stored."""
    if not isinstance(value, dict):
        return False
    said = cast(Data, value)
    return isinstance(said.get("type"), str) and isinstance(said.get("fields"), dict)


def withhold_fields(node: Data, wanted: set[Place] | None) -> list[Any]:
    """Take some fields out of a node, or all of them, and answer what they were."""
    fields = cast(Data, node["fields"])
    names = [n for n in fields if wanted is None or (node["type"], n) in wanted]
    if names:
        node[WITHHELD] = [*node.get(WITHHELD, ()), *names]
    return [fields.pop(name) for name in names]


def said_in(value: Any, wanted: set[Place]) -> Any:
    """What is to be looked for elsewhere: of a node, the fields that are meant."""
    if not is_node(value):
        return value
    meant = {n: v for n, v in value["fields"].items() if (value["type"], n) in wanted}
    return meant or value["fields"]


def stands_at(line: Line, data: Data) -> Iterable[str]:
    """The class of the node at a line's step, where the line tells it."""
    if line.kind in _AT_A_STEP:
        return [node["type"] for node in nodes_in(line, data)]
    if line.kind == "FillStarted":
        return [data["target"]]
    if line.kind in _OF_A_FIELD:
        return [data["node"]]
    return ()


def hush(data: Data) -> bool:
    """Take out what an error says; what it was stays."""
    error = data.get("error")
    if not isinstance(error, dict) or cast(Data, error).get("message") in (None, WITHHELD):
        return False
    cast(Data, error)["message"] = WITHHELD
    return True


def hush_errors(data: Data, same: SameText, names: set[str]) -> int:
    """Take out what was found wrong with an answer, where it is about such a field."""
    errors = cast("list[str]", data.get("errors") or [])
    count = 0
    for index, said in enumerate(errors):
        place, _, about = said.partition(": ")
        named = place.partition(".")[0] in names
        if (named or same.is_in(said)) and about != WITHHELD:
            errors[index] = f"{place}: {WITHHELD}" if named else WITHHELD
            count += 1
    return count
