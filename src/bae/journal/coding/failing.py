"""What a journal writes of an exception: its type, its code, and what it says, or, where the graph
has secrets that are not stored, only the place it speaks of, since any message may quote a value.
`encoding.py` writes lines with it, `keeper.py` the one line that a store has of a run that
failed."""

from __future__ import annotations

from typing import Any, Final

from bae.exceptions import BaeError, describe
from bae.records import RecordedError

_WITHHELD: Final = "withheld"


def error_data(error: BaseException, hide: bool) -> dict[str, Any]:
    """An exception as it stands in a line; without its words where they are to be hidden."""
    kind, code = type(error).__name__, None
    if isinstance(error, BaeError):
        code, message = error.code, error.message.partition("\n")[0]
    elif isinstance(error, RecordedError):
        kind, code, message = error.type_name, error.code, error.message
    else:
        message = describe(error).partition(": ")[2]
    if hide and message:
        message = _hidden(error)
    return {"type": kind, "code": code, "message": message}


def error_line(error: BaseException, hide: bool) -> str:
    """One line about what a run failed with, and about what was behind it."""
    if not isinstance(error, BaeError):
        return type(error).__name__ if hide else describe(error)
    said = _hidden(error) if hide else error.message.splitlines()[0]
    if error.cause is None:
        return f"[{error.code}] {said}"
    behind = type(error.cause).__name__ if hide else describe(error.cause)
    return f"[{error.code}] {said} ({behind})"


def _hidden(error: BaseException) -> str:
    """The place that an error is about, and no word of what it says."""
    cls: type | None = getattr(error, "node_type", None)
    if not isinstance(error, BaeError) or cls is None:
        return _WITHHELD
    field: str = getattr(error, "field_name", "")
    return f"{cls.__name__}{'.' if field else ''}{field}: {_WITHHELD}"
