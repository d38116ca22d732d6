"""With --json stdout has one JSON value and nothing else, whatever happens: what modules,
dependencies and their subprocesses print goes to stderr meanwhile, and an error is told as JSON
where nothing was. Every command goes through `only_json`, which `help.py` calls."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final, TextIO

import typer

RUNS: Final = ("run", "resume", "fork", "answer")
"""The commands whose JSON is how a run came out."""


class _Output:
    """Where JSON goes while a command runs, and whether some was written."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.written = False


_outputs: Final[list[_Output]] = []
"""That of the command at hand; commands that tests call may be inside one another."""


def stream_for_json() -> Any:
    """The stream to write a JSON value to."""
    if not _outputs:
        return sys.stdout
    _outputs[-1].written = True
    return _outputs[-1].stream


@contextmanager
def only_json(wanted: bool, command: str) -> Generator[None]:
    """Keep all else off stdout in the block, if JSON is wanted. An error in it is raised on, and
    told as JSON before that where no JSON was written."""
    if not wanted:
        yield
        return
    with ExitStack() as stack:
        output = _Output(stack.enter_context(_stdout_kept()))
        _outputs.append(output)
        stack.callback(_outputs.remove, output)
        try:
            yield
        except BaseException as error:
            if not output.written and not _says_nothing(error):
                _tell(error, command)
            raise


def _says_nothing(error: BaseException) -> bool:
    """Whether a command ends so without an error, or nobody reads what it says."""
    if isinstance(error, typer.Exit):
        return error.exit_code <= 128  # else a signal has ended it
    return isinstance(error, BrokenPipeError)


def _tell(error: BaseException, command: str) -> None:
    from bae.cli.printing import print_json
    from bae.cli.running.outcomes import error_data, refused_data

    if command in RUNS:
        print_json(refused_data(error))
    else:
        verdict = {"ok": False} if command == "check" else {}
        print_json({**verdict, "error": error_data(error)})


@contextmanager
def _stdout_kept() -> Generator[TextIO]:
    """What stdout was; in the block it is stderr, for subprocesses too."""
    stdout: Any = sys.stdout
    stderr = sys.stderr
    if not _is_real(stdout, 1) or not _is_real(stderr, 2):
        sys.stdout = stderr
        try:
            yield stdout
        finally:
            if sys.stdout is stderr:
                sys.stdout = stdout
        return
    stdout.flush()
    by_line: bool = stdout.line_buffering
    with _left_alone(open(os.dup(1), "w", encoding=stdout.encoding, errors=stdout.errors)) as kept:
        os.dup2(2, 1)
        # What is printed is to stand between what stderr has.
        stdout.reconfigure(line_buffering=True)
        try:
            yield kept
        finally:
            with suppress(OSError):
                stdout.flush()
            os.dup2(kept.fileno(), 1)
            stdout.reconfigure(line_buffering=by_line)


@contextmanager
def _left_alone(stream: TextIO) -> Generator[TextIO]:
    """Close a stream at the end, whether or not anybody reads it."""
    try:
        yield stream
    finally:
        with suppress(OSError):
            stream.close()


def _is_real(stream: Any, number: int) -> bool:
    """Whether a stream is that of the process, which subprocesses have too."""
    given: Any = sys.__stdout__ if number == 1 else sys.__stderr__
    try:
        return stream is given and bool(stream.fileno() == number)
    except (AttributeError, OSError, ValueError):
        return False
