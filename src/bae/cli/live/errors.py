"""Errors in one line, as the displays show them."""

from __future__ import annotations

from pydantic_core import ValidationError

from bae.cli.texts import in_one_line
from bae.exceptions import BaeError, describe


def said_of(error: BaseException) -> str:
    """An error in one line: what happened, and the causes as far as they add something."""
    try:
        said = error.message if isinstance(error, BaeError) else describe(error)
        cause = error.cause if isinstance(error, BaeError) else None
        while cause is not None and not isinstance(cause, ValidationError):
            said = _with(said, cause)
            cause = cause.cause if isinstance(cause, BaeError) else None
    except Exception:  # whatever it does when it is written out
        said = type(error).__name__
    return in_one_line(said[:1000])


def _with(said: str, cause: BaseException) -> str:
    text = cause.message if isinstance(cause, BaeError) else describe(cause)
    name = type(cause).__name__
    if text in said:
        return said
    if said.endswith(name):  # "… raised TimeoutError"
        return said + text.removeprefix(name)
    return f"{said}: {text}"
