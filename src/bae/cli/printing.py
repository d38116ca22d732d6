"""How the commands speak: results on stdout, everything else on stderr, in color where that is a
terminal. `NO_COLOR`, `FORCE_COLOR`, `TERM=dumb` and `COLUMNS` are heeded."""

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
"""Spaces before the further lines of what an error says: none of them may look like one of ours."""
_LONGEST: Final = 100_000
"""Characters of a traceback."""
_COLORS: Final = Theme({"repr.number": "none", "repr.str": "none"})


def out() -> Console:
    """The console for results. Give `soft_wrap=True` to print, or use `print_hanging`: a line that
    goes into a file or a pipe must stay a line."""
    return _with_width(_Results(highlight=False, theme=_COLORS))


def err() -> Console:
    """The console for progress, questions, notes and errors."""
    return _with_width(_Progress(stderr=True, highlight=False, theme=_COLORS))


class _Safe(Console):
    """Whatever is printed, only Rich itself acts on the terminal."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(
            each
            if each.control or each.text.isprintable()
            else each._replace(text=without_controls(each.text))
            for each in buffer
        )


class _Results(_Safe):
    def on_broken_pipe(self) -> None:
        # Rich would end the program here. `run_command` does, in its own way.
        self.quiet = True
        raise BrokenPipeError(EPIPE, os.strerror(EPIPE))


class _Progress(_Safe):
    """A command continues where the reader of its progress is gone."""

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError:  # a terminal that is gone, a disk that is full
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        self.quiet = True
        discard_output(self.file)


def _with_width(console: Console) -> Console:
    if console.width < 1:  # COLUMNS=0, which some tools set where they do not know
        console.width = 80
    return console


def discard_output(stream: Any) -> None:
    """Have what is still written to a stream go nowhere: its reader is gone."""
    with suppress(AttributeError, OSError, ValueError):
        number = stream.fileno()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, number)
        os.close(nothing)


# --- text ---------------------------------------------------------------------------------------


def note(message: str) -> None:
    """A line about something that is not the result, on stderr."""
    print_hanging(err(), Text(in_lines(message, 4), style="dim"), 2)


def print_hanging(console: Console, text: Text, indent: int) -> None:
    """Print lines. At a terminal, those that are too long continue below, indented, between words.
    A command that ends one, to be copied, has a line of its own then, however long it is."""
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
    """A line as several, all but the first one indented."""
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
    """A column: its title, whether it has numbers, aligned to the right, and its rank: those with
    the highest are left out first, and those of rank 0 stay."""

    title: str
    right: bool = True
    rank: int = 0


def print_table(
    console: Console, columns: Sequence[Column], rows: Sequence[Sequence[Text]]
) -> None:
    """Print a table. A row may be shorter than the others; a name that is too long for the first
    column gets a line of its own."""
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
            widths[0] = _NARROWEST  # before a column that matters goes, names have their own lines
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
    """What failed, where, why and what to do, on stderr."""
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
    if fix and at and not _COMMAND.search(fix):  # a command is copied as it stands
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
    """Where an error comes from, as Python tells it."""
    told = readable("".join(format_exception(error)).rstrip("\n"), _LONGEST)
    err().print(Text(in_lines(told, 2)), soft_wrap=True)


def error_data(error: BaseException | None) -> dict[str, Any] | None:
    """An error, for JSON: what failed, where, why and what to do, as far as it says so."""
    if error is None:
        return None
    ours = isinstance(error, BaeError)
    cause = error.cause if ours else error.__cause__
    usage = getattr(error, "format_message", None)  # of a command line that makes no sense
    data = {
        "code": error.code if ours else None,
        "message": error.message if ours else str(usage()) if usage else describe(error),
        "fix": error.fix if ours else None,
        "path": error.path if ours else None,
        "cause": None if cause is None else describe(cause),
        "at": raised_at(error),
        "notes": [*getattr(error, "__notes__", ())],
    }
    if diff := getattr(error, "diff", ""):  # of a run that is not what was recorded
        data["diff"] = diff
    return data


# --- JSON ---------------------------------------------------------------------------------------

_json_output: TextIO | None = None
"""Stdout, while it is kept free for JSON."""
_json_written = False


def print_json(value: Any) -> None:
    """A result for a script, on stdout: anything that Pydantic can make JSON of."""
    global _json_written
    _json_written = True
    data = to_jsonable_python(value, fallback=repr, inf_nan_mode="strings")
    stream = _json_output or sys.stdout
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "")
    stream.write(in_json(data, ascii_only=encoding != "utf8") + "\n")
    stream.flush()


def print_json_line(value: Any) -> None:
    """The same in one line, for a command that has several results."""
    global _json_written
    _json_written = True
    data = to_jsonable_python(value, fallback=repr, inf_nan_mode="strings")
    stream = _json_output or sys.stdout
    stream.write(json.dumps(data) + "\n")
    stream.flush()


def as_data(value: Any) -> Any:
    """A report as JSON has it: dataclasses and named tuples as objects, times as ISO 8601 writes
    them. What a run holds is left as it is."""
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
    """A time as ISO 8601 has it, to the microsecond, for programs."""
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="microseconds")


@contextmanager
def only_json() -> Generator[None]:
    """Keep all else off stdout in the block. An error in it is raised on, and printed as JSON
    before that where no JSON was."""
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
    """What stdout was; in the block it is stderr, for subprocesses too."""
    stdout: Any = sys.stdout
    if stdout is not sys.__stdout__ or sys.stderr is not sys.__stderr__:  # as in a test
        sys.stdout = sys.stderr
        try:
            yield stdout
        finally:
            sys.stdout = stdout
        return
    stdout.flush()
    kept = os.fdopen(os.dup(1), "w", encoding=stdout.encoding, errors=stdout.errors)
    os.dup2(2, 1)
    stdout.reconfigure(line_buffering=True)  # what is printed stands between what stderr has
    try:
        yield kept
    finally:
        with suppress(OSError):
            stdout.flush()
        os.dup2(kept.fileno(), 1)
        with suppress(OSError):
            kept.close()
