"""How the commands speak: results on stdout, everything else on stderr, in colour where that is a
terminal. `NO_COLOR`, `FORCE_COLOR`, `TERM=dumb` and `COLUMNS` are heeded."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from bae.cli.texts import in_lines, in_one_line
from bae.unicode import readable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from bae.exceptions import BaeError

_BELOW: Final = 9
"""Spaces before the further lines of what an error says: none of them may look like one of ours."""
_LONGEST: Final = 100_000
"""Characters of a traceback."""


def out() -> Console:
    """The console for results. Give `soft_wrap=True` to print, or use `print_hanging`: a line that
    goes into a file or a pipe must stay a line."""
    return _console(stderr=False)


def err() -> Console:
    """The console for progress, questions, notes and errors."""
    return _console(stderr=True)


def print_json(value: Any) -> None:
    """A result for a script, on stdout. Give what `json` can write, or what Pydantic can."""
    from pydantic_core import to_jsonable_python

    from bae.cli.json_output import stream_for_json
    from bae.cli.texts import in_json

    said = to_jsonable_python(value, fallback=repr, inf_nan_mode="strings")
    stream = stream_for_json()
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "")
    stream.write(in_json(said, ascii_only=encoding != "utf8") + "\n")
    stream.flush()


def note(message: str) -> None:
    """A line about something that is not the result, on stderr."""
    from rich.text import Text

    print_hanging(err(), Text(in_lines(message, 4), style="dim"), 2)


def print_hanging(console: Console, text: Text, indent: int) -> None:
    """Print lines. At a terminal, those that are too long go on below, indented, between words. A
    command that ends one, to be copied, has a line of its own then, however long it is."""
    if not console.is_terminal or console.width <= indent + 20:
        console.print(text, soft_wrap=True)
        return
    from rich.text import Text

    lines: list[Text] = []
    for line in text.split("\n"):
        command = _COMMAND.search(line.plain) if line.cell_len > console.width else None
        if command is None:
            lines += _hung(line, console, indent)
            continue
        begin, end = command.span()
        lines += _hung(line[:begin], console, indent) if line.plain[:begin].strip() else []
        lines.append(Text(" " * indent).append_text(line[begin:end]))
        if rest := line.plain[end:].strip():
            after = line[end + line.plain[end:].index(rest) :]
            lines += _hung(Text(" " * indent).append_text(after), console, indent)
    console.print(Text("\n").join(lines), soft_wrap=True)


def _hung(line: Text, console: Console, indent: int) -> list[Text]:
    """A line as several, all but the first one indented."""
    from rich.text import Text

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
    r"(?<![^ ])bae (?:run|runs|check|prompts|eval|optimize|lm|graph) \S.*?(?=  |$)"
)


def tell_error(error: BaeError) -> None:
    """What failed, where, why and what to do, on stderr."""
    from rich.text import Text

    from bae.cli.raised_at import raised_at
    from bae.exceptions import describe

    said = Text()
    first, line_end, more = in_lines(error.message, 4).partition("\n")
    said.append("error", style="bold red").append(f" {first}")
    said.append(f"  [{in_one_line(error.code)}]", style="dim").append(line_end + more)
    diff = getattr(error, "diff", "")
    if diff:
        said.append(f"\n{in_lines(diff)}")
    if error.path:
        said.append("\n  path:  ", style="bold").append(in_lines(error.path, _BELOW))
    if error.cause is not None:
        said.append("\n  cause: ", style="bold").append(in_lines(describe(error.cause), _BELOW))
    if at := raised_at(error):
        said.append("\n  at:    ", style="bold").append(in_lines(at, _BELOW))
    if error.fix:
        fix = error.fix
        if at and not _COMMAND.search(fix):  # which is copied as it stands
            fix += "; --debug shows the traceback"
        said.append("\n  try:   ", style="bold green").append(in_lines(fix, _BELOW))
    for each in getattr(error, "__notes__", ()):
        said.append(f"\n  {in_lines(each, _BELOW)}", style="dim")
    print_hanging(err(), said, _BELOW)


def tell_unexpected(error: BaseException) -> None:
    """An error that nobody has foreseen."""
    from rich.text import Text

    from bae.records import error_text

    said = Text()
    said.append("error", style="bold red").append(f" {in_lines(error_text(error), _BELOW)}")
    said.append("\n  try:   ", style="bold green").append(
        "run it again with --debug, which shows where it comes from"
    )
    print_hanging(err(), said, _BELOW)


def tell_traceback(error: BaseException) -> None:
    """Where an error comes from, as Python tells it."""
    from traceback import format_exception

    from rich.text import Text

    told = readable("".join(format_exception(error)).rstrip("\n"), _LONGEST)
    err().print(Text(in_lines(told, 2)), soft_wrap=True)


@cache
def _colours() -> Any:
    from rich.theme import Theme

    return Theme({"repr.number": "none", "repr.str": "none"})


def _console(*, stderr: bool) -> Console:
    # Made anew each time: the streams may be others by now, as they are in tests.
    from bae.cli.streams import console_of

    console = console_of(stderr=stderr, highlight=False, theme=_colours())
    if console.width < 1:  # COLUMNS=0, which some tools set where they do not know
        console.width = 80
    return console
