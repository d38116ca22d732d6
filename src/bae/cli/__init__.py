"""The command `bae`: one module a command or group of commands. They read what is typed, call what
the rest of bae offers, and print what it answers; nothing is computed here that a program could not
ask for as well. `app.py` strings them together."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bae.lm.extras import is_there

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what a command line says, `sys.argv` where none is given, and answer the exit code."""
    if not (is_there("typer") and is_there("rich")):
        print(
            "error: the command line of bae needs typer and rich\n"
            "  try:   pip install 'bae-graphs[cli]'",
            file=sys.stderr,
        )
        return 1
    from bae.cli.app import run_command

    code = run_command(sys.argv[1:] if arguments is None else list(arguments))
    if arguments is None:
        from bae.cli.ending import end_in_time

        end_in_time(code)
    return code
