"""Output of the commands: results on stdout, everything else on stderr, with colors at a terminal.
`NO_COLOR`, `FORCE_COLOR`, `TERM=dumb` and `COLUMNS` apply."""

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
"""Indent of an error's further lines, so that none of them looks like a label of bae."""
_LONGEST: Final = 100_000
"""Maximum characters of a traceback."""
_COLORS: Final = Theme({"repr.number": "none", "repr.str": "none"})


def out() -> Console:
    """The console for results. Pass `soft_wrap=True` to `print`, or use `print_hanging`: a file or
    a pipe must get unbroken lines."""
    return _with_width(_Results(highlight=False, theme=_COLORS))


def err() -> Console:
    """The console for progress, questions, notes and errors."""
    return _with_width(_Progress(stderr=True, highlight=False, theme=_COLORS))


class _Safe(Console):
    """A console that escapes all control characters except its own."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(
            each
            if each.control or each.text.isprintable()
            else each._replace(text=without_controls(each.text))
            for each in buffer
        )


class _Results(_Safe):
    def on_broken_pipe(self) -> None:
        # Rich would end the program here. `run_command` does that in its own way.
        self.quiet = True
        raise BrokenPipeError(EPIPE, os.strerror(EPIPE))


class _Progress(_Safe):
    """A console for progress: the command continues if its reader is gone."""

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError:  # a closed terminal, a full disk
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        self.quiet = True
        discard_output(self.file)


def _with_width(console: Console) -> Console:
    if console.width < 1:  # COLUMNS=0: some tools set it if they do not know the width
        console.width = 80
    return console


def discard_output(stream: Any) -> None:
    """Discard further output to a stream without a reader."""
    with suppress(AttributeError, OSError, ValueError):
        number = stream.fileno()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, number)
        os.close(nothing)


# --- text ---------------------------------------------------------------------------------------


def note(message: str) -> None:
    """Print a line on stderr that is not part of the result."""
    print_hanging(err(), Text(in_lines(message, 4), style="dim"), 2)


def print_hanging(console: Console, text: Text, indent: int) -> None:
    """Print lines. A terminal gets long lines wrapped between words, with an indent. A command at
    the end of a line gets its own unbroken line, to be copied."""
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
    """Wrap a line. Every part but the first is indented."""
    first = line.wrap(console, console.width, tab_size=8)
    if len(first) < 2:
        return [line]
    begun = len(first[0].plain.rstrip())
    rest = line[begun:]
    rest = rest[len(rest.plain) - len(rest.plain.lstrip()) :]
    lines = [line[:begun]]
    for more in rest.wrap(console, console.width - indent):
        more.rstrip()
        lines.append(Text(" " * indent).append_text(more))
    return lines


_COMMAND: Final = re.compile(
    r"(?<![^ ])bae (?:run|chat|runs|check|prompts|eval|optimize|team|lm|graph) \S.*?(?=  |$)"
)


# --- tables -------------------------------------------------------------------------------------

GAP: Final = 2


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, whether it holds right-aligned numbers, and its rank. Columns with the
    highest rank are left out first; rank 0 always stays."""

    title: str
    right: bool = True
    rank: int = 0


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
    """The lines of a table no wider than `width`."""
    every = [[Text(column.title, "bold") for column in columns], *rows]
    widths = [max(row[at].cell_len for row in every if at < len(row)) for at in range(len(columns))]
    shown = [*range(len(columns))]

    def too_wide() -> bool:
        return width is not None and sum(widths[at] + GAP for at in shown) - GAP > width

    ranked = sorted(shown[1:], key=lambda at: (columns[at].rank, at), reverse=True)
    droppable = [at for at in ranked if columns[at].rank]
    while too_wide() and droppable:
        if columns[droppable[0]].rank < _MINOR and widths[0] > _NARROWEST:
            widths[0] = _NARROWEST  # names get their own lines first
            continue
        shown.remove(droppable.pop(0))
    if width is not None and widths[0] == _NARROWEST:
        room = width - sum(widths[at] + GAP for at in shown[1:])
        widths[0] = max(len_ for len_ in (0, *(row[0].cell_len for row in every)) if len_ <= room)
    lines: list[Text] = []
    for row in every:
        cells = [*row]
        if cells and cells[0].cell_len > widths[0]:
            lines.append(cells[0])
            cells[0] = Text()
            if len(cells) == 1:
                continue
        line = Text(" " * GAP).join(
            _align(cells[at] if at < len(cells) else Text(), widths[at], columns[at].right)
            for at in shown
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
    if fix and at and not _COMMAND.search(fix):  # a command is copied, so nothing follows it
        fix += "; --debug shows the traceback"
    _append(text, "path", error.path)
    _append(text, "cause", describe(error.cause) if error.cause is not None else None)
    _append(text, "at", at)
    _append(text, "try", fix)
    for each in getattr(error, "__notes__", ()):
        text.append(f"\n  {in_lines(each, _BELOW)}", style="dim")
    print_hanging(err(), text, _BELOW)


def _append(text_so_far: Text, label: str, text: str | None) -> None:
    if text:
        text_so_far.append(
            f"\n  {label + ':':<7}", style="bold green" if label == "try" else "bold"
        )
        text_so_far.append(in_lines(text, _BELOW))


def print_traceback(error: BaseException) -> None:
    """Print the traceback of an error as Python formats it."""
    told = readable("".join(format_exception(error)).rstrip("\n"), _LONGEST)
    err().print(Text(in_lines(told, 2)), soft_wrap=True)


def error_data(error: BaseException | None) -> dict[str, Any] | None:
    """An error as JSON: what failed, where, why and how to fix it, as far as known."""
    if error is None:
        return None
    ours = isinstance(error, BaeError)
    cause = error.cause if ours else error.__cause__
    usage = getattr(error, "format_message", None)  # of a wrong command line
    data = {
        "code": error.code if ours else None,
        "message": error.message if ours else str(usage()) if usage else describe(error),
        "fix": error.fix if ours else None,
        "path": error.path if ours else None,
        "cause": None if cause is None else describe(cause),
        "at": raised_at(error),
        "notes": [*getattr(error, "__notes__", ())],
    }
    if diff := getattr(error, "diff", ""):  # of a replay that differs from its recording
        data["diff"] = diff
    return data


# --- JSON ---------------------------------------------------------------------------------------

_json_output: TextIO | None = None
"""The real stdout while it is reserved for JSON."""
_json_written = False


def print_json(value: Any) -> None:
    """Print a result for a script on stdout. Any value that Pydantic can serialize works."""
    global _json_written
    _json_written = True
    data = to_jsonable_python(value, fallback=repr, inf_nan_mode="strings")
    stream = _json_output or sys.stdout
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "")
    stream.write(in_json(data, ascii_only=encoding != "utf8") + "\n")
    stream.flush()


def print_json_line(value: Any) -> None:
    """Print JSON in one line, for a command with several results."""
    global _json_written
    _json_written = True
    data = to_jsonable_python(value, fallback=repr, inf_nan_mode="strings")
    stream = _json_output or sys.stdout
    stream.write(json.dumps(data) + "\n")
    stream.flush()


def as_data(value: Any) -> Any:
    """A report as JSON values: dataclasses and named tuples become objects, times ISO 8601 texts.
    Values of a run are not changed."""
    names: Sequence[str] = getattr(value, "_fields", ())
    if is_dataclass(value):
        names = [field.name for field in fields(value)]
    if names:
        return {name: _field_data(name, getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {name: as_data(each) for name, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [as_data(each) for each in cast("Sequence[Any]", value)]
    return value


def _field_data(name: str, value: Any) -> Any:
    if name in ("value", "asked", "answer"):
        return value
    if name == "marks":
        return [iso(each) for each in value]
    return iso(value) if name in _TIMES and value is not None else as_data(value)


_TIMES: Final = ("at", "deadline", "end", "lease_until", "start", "started", "updated")


def iso(at: float) -> str:
    """A time in ISO 8601 with microseconds, for programs."""
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="microseconds")


@contextmanager
def only_json() -> Generator[None]:
    """Allow only JSON on stdout in the block. An error is printed as JSON, unless JSON was printed
    before, and raised again."""
    global _json_output, _json_written
    with _stdout_kept() as _json_output:
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
def _stdout_kept() -> Generator[TextIO]:
    """for example in a test"""
    stdout: Any = sys.stdout
    if stdout is not sys.__stdout__ or sys.stderr is not sys.__stderr__:  # for example in a test
        sys.stdout = sys.stderr
        try:
            yield stdout
        finally:
            sys.stdout = stdout
        return
    stdout.flush()
    kept = os.fdopen(os.dup(1), "w", encoding=stdout.encoding, errors=stdout.errors)
    os.dup2(2, 1)
    stdout.reconfigure(line_buffering=True)  # lines of both streams stay in order
    try:
        yield kept
    finally:
        with suppress(OSError):
            stdout.flush()
        os.dup2(kept.fileno(), 1)
        with suppress(OSError):
            kept.close()
