"""What options refuse, whatever there is: names of nothing, times of nothing, two that exclude each
other. `options.py` and the commands ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer


def never_empty(said: Any) -> Any:
    """What an option names, once or several times. An empty name would be that of this directory,
    and most likely comes of a variable that is not set."""
    given: Sequence[str] = [said] if isinstance(said, str) else said or ()
    if not all(each.strip() for each in given):
        raise typer.BadParameter("this names nothing. Give a name, or leave the option out")
    return said


def above_zero(said: float) -> float:
    """A number of seconds in which something can be done."""
    if not said > 0:
        raise typer.BadParameter(f"{said:g} is no time at all. Give seconds, more than 0")
    return said


def once(said: list[str]) -> list[str]:
    """What may be given once alone, as a list, since all but the last would be lost otherwise."""
    if len(said) > 1:
        raise typer.BadParameter(f"it is there {len(said)} times, and only one can be meant")
    return said


def refuse_both_journals(context: typer.Context, *, no_journal: bool) -> None:
    """Refuse --no-journal beside --journal. A variable may well name a journal."""
    source = context.get_parameter_source("journal")
    if no_journal and source is not None and source.name == "COMMANDLINE":
        raise typer.BadParameter(
            "--journal names one. Leave one of the two out", context, param_hint="'--no-journal'"
        )
