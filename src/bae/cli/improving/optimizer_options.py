"""`--option NAME=VALUE` of `bae optimize`: what goes to the optimiser as it is. Which options there
are, `bae.optimizer.by_name` says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import typer


def options_of(optimizer: str, said: Sequence[str]) -> dict[str, Any]:
    """The options that a command line gives. Raises `typer.BadParameter` where the optimiser has no
    such option, or does not take the value."""
    from bae.optimizer.by_name import OPTIONS, checked_options

    given: dict[str, Any] = {}
    for each in said:
        name, equals, text = (part.strip() for part in each.partition("="))
        if not equals or not name:
            known = ", ".join(f"{name}=…" for name in OPTIONS[optimizer])
            raise _wrong(f"{each!r} is no NAME=VALUE: {optimizer} takes {known}")
        if name in given:
            raise _wrong(f"{name} is there twice")
        given[name] = _value(text)
    try:
        checked_options(optimizer, given)
    except (TypeError, ValueError) as error:
        raise _wrong(str(error)) from error
    return given


def _value(text: str) -> Any:
    """A value of JSON. What is none is a text, so that nobody needs quotes inside quotes."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _wrong(why: str) -> typer.BadParameter:
    return typer.BadParameter(why, param_hint="--option")
