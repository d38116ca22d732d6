"""Output of the commands. Results go to stdout, other output to stderr. The variables `NO_COLOR`,
`FORCE_COLOR`, `TERM` and `COLUMNS` control colors and width."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from errno import EPIPE
from traceback import format_exception
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.segment import Segment
from rich.text import Text
from rich.theme import Theme

from bae.cli.later import call_later
from bae.cli.wording import in_json, in_lines, in_one_line, without_controls
from bae.exceptions import BaeError, describe
from bae.records import error_text
from bae.unicode import readable

if TYPE_CHECKING:
    from bae.cli.loading import raised_at
else:
    (raised_at,) = call_later("bae.cli.loading", "raised_at")

_BELOW: Final = 9
"""Indent of the lines after an error's first line. With it, no line of a message looks like a label
of bae, such as `try:`."""
_LONGEST: Final = 100_000
"""Maximum characters of a traceback."""
_COLORS: Final = Theme({"repr.number": "none", "repr.str": "none"})


def out() -> Console:
    """Return the console for results. Pass `soft_wrap=True` to its `print`, or use `print_hanging`.
    Otherwise, long lines would be broken in a file or a pipe."""
    return _with_width(_Results(highlight=False, theme=_COLORS))


def err() -> Console:
    """Return the console for progress, questions, notes and errors."""
    return _with_width(_Progress(stderr=True, highlight=False, theme=_COLORS))


class _EscapingConsole(Console):
    """A console that escapes all control characters except its own."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(
            segment
            if segment.control or segment.text.isprintable()
            else segment._replace(text=without_controls(segment.text))
            for segment in buffer
        )


class _Results(_EscapingConsole):
    def on_broken_pipe(self) -> None:
        # Rich would end the program here. `run_command` ends it with the exit code of bae.
        self.quiet = True
        raise BrokenPipeError(EPIPE, os.strerror(EPIPE))


class _Progress(_EscapingConsole):
    """A console on stderr. If stderr is closed, the command continues without its output."""

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError:  # a closed terminal, a full disk
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        self.quiet = True
        discard_output(self.file)


def _with_width(console: Console) -> Console:
    if console.width < 1:  # some programs set COLUMNS=0 if they do not know the width
        console.width = 80
    return console


def discard_output(stream: Any) -> None:
    """Discard all further output to a stream. Use it after the reader has closed the stream."""
    with suppress(AttributeError, OSError, ValueError):
        number = stream.fileno()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, number)
        os.close(nothing)


# --- text ---------------------------------------------------------------------------------------


def note(message: str) -> None:
    """Print a note on stderr."""
    print_hanging(err(), Text(in_lines(message, 4), style="dim"), 2)


def print_hanging(console: Console, text: Text, indent: int) -> None:
    """Print text, with long lines wrapped and indented at a terminal. A command line of bae in a
    long line gets its own unbroken line, so that the user can copy it."""
    if not console.is_terminal or console.width <= indent + 20:
        console.print(text, soft_wrap=True)
        return
    lines: list[Text] = []
    for line in text.split("\n"):
        command = _COMMAND.search(line.plain) if line.cell_len > console.width else None
        if command is None:
            lines += _wrap_line(line, console, indent)
            continue
        begin, end = command.span()
        lines += _wrap_line(line[:begin], console, indent) if line.plain[:begin].strip() else []
        lines.append(Text(" " * indent).append_text(line[begin:end]))
        if rest := line.plain[end:].strip():
            after = line[end + line.plain[end:].index(rest) :]
            lines += _wrap_line(Text(" " * indent).append_text(after), console, indent)
    console.print(Text("\n").join(lines), soft_wrap=True)


def _wrap_line(line: Text, console: Console, indent: int) -> list[Text]:
    """Wrap a line at the width of the console. All lines after the first line are indented."""
    pieces = line.wrap(console, console.width, tab_size=8)
    if len(pieces) < 2:
        return [line]
    end = len(pieces[0].plain.rstrip())
    rest = line[end:]
    rest = rest[len(rest.plain) - len(rest.plain.lstrip()) :]
    lines = [line[:end]]
    for piece in rest.wrap(console, console.width - indent):
        piece.rstrip()
        lines.append(Text(" " * indent).append_text(piece))
    return lines


_COMMAND: Final = re.compile(
    r"(?<![^ ])bae (?:run|chat|runs|check|prompts|eval|optimize|team|lm|graph) \S.*?(?=  |$)"
)


# --- tables -------------------------------------------------------------------------------------

GAP: Final = 2


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    right: bool = True
    """Whether its cells are aligned to the right, as numbers are."""
    rank: int = 0
    """If the table is too wide, columns with the highest rank are left out first. Columns with rank
    0 always stay."""


def print_table(
    console: Console, columns: Sequence[Column], rows: Sequence[Sequence[Text]]
) -> None:
    """Print a table. Missing cells at the end of a row are blank. A name that is too long for the
    first column gets its own line."""
    for line in table_lines(columns, rows, console.width if console.is_terminal else None):
        console.print(line, soft_wrap=True)


def table_lines(
    columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int | None
) -> list[Text]:
    """Return the lines of a table. They are not wider than `width`, if it is not None."""
    all_rows = [[Text(column.title, "bold") for column in columns], *rows]
    widths = [
        max(row[at].cell_len for row in all_rows if at < len(row)) for at in range(len(columns))
    ]
    shown_columns = [*range(len(columns))]

    def too_wide() -> bool:
        return width is not None and sum(widths[at] + GAP for at in shown_columns) - GAP > width

    ranked = sorted(shown_columns[1:], key=lambda at: (columns[at].rank, at), reverse=True)
    droppable = [at for at in ranked if columns[at].rank]
    while too_wide() and droppable:
        if columns[droppable[0]].rank < _MINOR and widths[0] > _NARROWEST:
            widths[0] = _NARROWEST  # before a column is left out, long names get their own lines
            continue
        shown_columns.remove(droppable.pop(0))
    if width is not None and widths[0] == _NARROWEST:
        room = width - sum(widths[at] + GAP for at in shown_columns[1:])
        widths[0] = max(
            len_ for len_ in (0, *(row[0].cell_len for row in all_rows)) if len_ <= room
        )
    lines: list[Text] = []
    for row in all_rows:
        cells = [*row]
        if cells and cells[0].cell_len > widths[0]:
            lines.append(cells[0])
            cells[0] = Text()
            if len(cells) == 1:
                continue
        line = Text(" " * GAP).join(
            _align(cells[at] if at < len(cells) else Text(), widths[at], columns[at].right)
            for at in shown_columns
        )
        line.rstrip()
        lines.append(line)
    for line in lines:
        if width is not None:
            line.truncate(width, overflow="ellipsis")
    return lines


_MINOR: Final = 4
_NARROWEST: Final = 12


def _align(cell: Text, width: int, right: bool) -> Text:
    cell = cell.copy()
    (cell.pad_left if right else cell.pad_right)(width - cell.cell_len)
    return cell


# --- errors -------------------------------------------------------------------------------------


def print_error(error: BaseException) -> None:
    """Print on stderr what failed, where, why and how to fix it."""
    text = Text().append("error", style="bold red")
    if not isinstance(error, BaeError):
        text.append(f" {in_lines(error_text(error), _BELOW)}")
        _append(text, "try", "run it again with --debug, which shows where it comes from")
        print_hanging(err(), text, _BELOW)
        return
    first, line_end, more = in_lines(error.message, 4).partition("\n")
    text.append(f" {first}")
    text.append(f"  [{in_one_line(error.code)}]", style="dim").append(line_end + more)
    if diff := getattr(error, "diff", ""):
        text.append(f"\n{in_lines(diff)}")
    at = raised_at(error)
    fix = error.fix
    if fix and at and not _COMMAND.search(fix):  # the user copies a command to the end of the line
        fix += "; --debug shows the traceback"
    _append(text, "path", error.path)
    _append(text, "cause", describe(error.cause) if error.cause is not None else None)
    _append(text, "at", at)
    _append(text, "try", fix)
    for note_ in getattr(error, "__notes__", ()):
        text.append(f"\n  {in_lines(note_, _BELOW)}", style="dim")
    print_hanging(err(), text, _BELOW)


def _append(text_so_far: Text, label: str, text: str | None) -> None:
    if text:
        text_so_far.append(
            f"\n  {label + ':':<7}", style="bold green" if label == "try" else "bold"
        )
        text_so_far.append(in_lines(text, _BELOW))


def print_traceback(error: BaseException) -> None:
    """Print the traceback of an error in Python's format."""
    text = readable("".join(format_exception(error)).rstrip("\n"), _LONGEST)
    err().print(Text(in_lines(text, 2)), soft_wrap=True)


def error_data(error: BaseException | None) -> dict[str, Any] | None:
    """Return an error as JSON: what failed, where, why and how to fix it. Unknown values are
    None."""
    if error is None:
        return None
    ours = isinstance(error, BaeError)
    cause = error.cause if ours else error.__cause__
    format_message = getattr(error, "format_message", None)  # if the error is about wrong usage
    data = {
        "code": error.code if ours else None,
        "message": error.message
        if ours
        else str(format_message())
        if format_message
        else describe(error),
        "fix": error.fix if ours else None,
        "path": error.path if ours else None,
        "cause": None if cause is None else describe(cause),
        "at": raised_at(error),
        "notes": [*getattr(error, "__notes__", ())],
    }
    if diff := getattr(error, "diff", ""):  # if a replay differs from its recording
        data["diff"] = diff
    return data


# --- JSON ---------------------------------------------------------------------------------------

_json_output: TextIO | None = None
"""The real stdout, if `sys.stdout` goes to stderr in the block of `only_json`."""
_json_written = False
"""Whether JSON has been printed in the block of `only_json`."""


def print_json(value: Any) -> None:
    """Print a result as JSON on stdout. A value that Pydantic cannot serialize is printed as its
    `repr`."""
    global _json_written
    _json_written = True
    data = to_jsonable_python(value, fallback=repr, inf_nan_mode="strings")
    stream = _json_output or sys.stdout
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "")
    stream.write(in_json(data, ascii_only=encoding != "utf8") + "\n")
    stream.flush()


def print_json_line(value: Any) -> None:
    """Print a result as one line of JSON on stdout, for a command with several results."""
    global _json_written
    _json_written = True
    data = to_jsonable_python(value, fallback=repr, inf_nan_mode="strings")
    stream = _json_output or sys.stdout
    stream.write(json.dumps(data) + "\n")
    stream.flush()


def as_data(value: Any) -> Any:
    """Convert a report to JSON values. Dataclasses and named tuples become objects. Times become
    texts in ISO 8601. Values of fields, questions and answers stay as they are."""
    names: Sequence[str] = getattr(value, "_fields", ())
    if is_dataclass(value):
        names = [field.name for field in fields(value)]
    if names:
        return {name: _field_data(name, getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {name: as_data(item) for name, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [as_data(element) for element in cast("Sequence[Any]", value)]
    return value


def _field_data(name: str, value: Any) -> Any:
    if name in ("value", "asked", "answer"):
        return value
    if name == "marks":
        return [iso(mark) for mark in value]
    return iso(value) if name in _TIMES and value is not None else as_data(value)


_TIMES: Final = ("at", "deadline", "end", "lease_until", "start", "started", "updated")


def iso(at: float) -> str:
    """Format a time in ISO 8601 with microseconds and UTC offset."""
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="microseconds")


@contextmanager
def only_json() -> Generator[None]:
    """In the block, let only `print_json` write to stdout. Other output goes to stderr. If the
    block fails before it prints JSON, print the error as JSON, and raise it."""
    global _json_output, _json_written
    with _redirect_stdout() as _json_output:
        _json_written = False
        try:
            yield
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            if not _json_written and not isinstance(error, BrokenPipeError):
                print_json({"ok": False, "error": error_data(error)})
            raise
        finally:
            _json_output = None


@contextmanager
def _redirect_stdout() -> Generator[TextIO]:
    """Redirect stdout to stderr in the block. Yields the real stdout."""
    stdout: Any = sys.stdout
    if stdout is not sys.__stdout__ or sys.stderr is not sys.__stderr__:  # for example in a test
        sys.stdout = sys.stderr
        try:
            yield stdout
        finally:
            sys.stdout = stdout
        return
    stdout.flush()
    real_stdout = os.fdopen(os.dup(1), "w", encoding=stdout.encoding, errors=stdout.errors)
    os.dup2(2, 1)
    stdout.reconfigure(line_buffering=True)  # lines of both streams stay in order
    try:
        yield real_stdout
    finally:
        with suppress(OSError):
            stdout.flush()
        os.dup2(real_stdout.fileno(), 1)
        with suppress(OSError):
            real_stdout.close()
