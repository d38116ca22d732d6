"""Escapes control characters in messages that Python prints during a command: log messages of a
program without logging setup, warnings, and uncaught errors."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from traceback import format_exc, format_exception
from typing import Any


@contextmanager
def messages_escaped() -> Generator[None]:
    """Escape the messages that Python prints during the block."""
    before = logging.lastResort, warnings.showwarning, threading.excepthook, sys.unraisablehook
    configure = logging.basicConfig
    escape_messages()
    try:
        yield
    finally:
        logging.basicConfig = configure
        logging.lastResort, warnings.showwarning = before[:2]
        threading.excepthook, sys.unraisablehook = before[2:]


def escape_messages() -> None:
    """Escape the messages that Python prints until the process ends."""
    if logging.lastResort is not None:
        logging.lastResort = _Stderr(logging.WARNING)
    logging.basicConfig = _set_up_logging
    if warnings.showwarning.__module__ in (
        "warnings",
        "_py_warnings",
    ):  # not the program's own
        warnings.showwarning = _show_warning
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _report_thread
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _report_unraisable


def print_escaped(text: str, end: str = "\n") -> None:
    """Print a text on stderr without control characters. Lines after the first are indented."""
    from bae.cli.wording import in_lines

    with suppress(AttributeError, OSError, ValueError):  # a closed stderr
        sys.stderr.write(f"{in_lines(text.rstrip(), 4)}{end}" if text else "")
        sys.stderr.flush()


class _Stderr(logging.Handler):
    """Prints log messages on stderr, for a program without a log handler."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a log message. If it cannot be formatted, print the error."""
        try:
            print_escaped(self.format(record))
        except Exception:
            if logging.raiseExceptions:
                location = f"{record.pathname}, line {record.lineno}"
                print_escaped(f"--- Logging error --- {location}\n{format_exc()}")


_configure = logging.basicConfig


def _set_up_logging(**options: Any) -> None:
    """Set up logging, in place of `logging.basicConfig`. If there are no options, as in the call by
    `logging.warning`, add a handler that escapes messages."""
    _configure(**options or {"handlers": [_Stderr()]})


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    text = warnings.formatwarning(message, category, filename, lineno, line)
    if file is None:
        print_escaped(text)
    else:
        file.write(text)


def _report_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is SystemExit:
        return
    name = args.thread.name if args.thread is not None else threading.get_ident()
    trace = format_exception(args.exc_type, args.exc_value, args.exc_traceback)
    print_escaped(f"Exception in thread {name}:\n{''.join(trace)}")


def _report_unraisable(unraisable: Any) -> None:
    message = unraisable.err_msg or "Exception ignored in"
    trace = format_exception(unraisable.exc_type, unraisable.exc_value, unraisable.exc_traceback)
    print_escaped(f"{message}: {unraisable.object!r}\n{''.join(trace)}")
