"""The streams that the program was given: one that is missing is stood in for, and one that nobody
reads any more is let go of, so that what is done does not depend on who watches. `app.py` begins
with it, `printing.py` has its consoles from here."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from errno import EPIPE
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def stand_in_for_missing() -> None:
    """Give the program the streams that it was started without, as by `>&-`: they lead nowhere.
    Their numbers are taken as well: a file that is opened later would get them, and with it what
    other programs print."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        with suppress(OSError):
            _occupy(number)
        mode = "w" if number else "r"
        setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def let_go(stream: Any) -> None:
    """Have what is still written to a stream go nowhere: whoever read it is gone. Python itself
    would fail with it once more at its end."""
    with suppress(AttributeError, OSError, ValueError):
        number = stream.fileno()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, number)
        os.close(nothing)


def console_of(*, stderr: bool, **options: Any) -> Console:
    """A console for stdout, or for stderr, which goes on where nobody reads it."""
    results, others = _consoles()
    return others(stderr=True, **options) if stderr else results(**options)


@cache
def _consoles() -> tuple[type[Console], type[Console]]:
    from rich.console import Console

    class ForResults(Console):
        def on_broken_pipe(self) -> None:
            # Rich would end the program here. The app does, in its own way.
            self.quiet = True
            raise BrokenPipeError(EPIPE, os.strerror(EPIPE))

    class ForOthers(Console):
        def _check_buffer(self) -> None:
            try:
                super()._check_buffer()
            except OSError:  # a terminal that is gone, a disk that is full
                self.on_broken_pipe()

        def on_broken_pipe(self) -> None:
            self.quiet = True
            let_go(self.file)

    return ForResults, ForOthers


def _occupy(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        nothing = os.open(os.devnull, os.O_RDWR)
        if nothing != number:
            os.dup2(nothing, number)
            os.close(nothing)
        os.set_inheritable(number, True)
