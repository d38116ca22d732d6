"""How the commands speak: results on stdout, everything else on stderr, in colour where that is a
terminal. `NO_COLOR`, `FORCE_COLOR`, `TERM=dumb` and `COLUMNS` are heeded."""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from bae.exceptions import BaeError


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

    said = to_jsonable_python(value, fallback=repr, inf_nan_mode="strings")
    sys.stdout.write(json.dumps(said, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def note(message: str) -> None:
    """A line about something that is not the result, on stderr."""
    from rich.text import Text

    err().print(Text(visible(message), style="dim"), soft_wrap=True)


def print_hanging(console: Console, text: Text, indent: int) -> None:
    """Print lines. At a terminal, those that are too long go on below, indented, between words."""
    if not console.is_terminal or console.width <= indent + 20:
        console.print(text, soft_wrap=True)
        return
    from rich.text import Text

    lines: list[Text] = []
    for line in text.split("\n"):
        first = line.wrap(console, console.width, tab_size=8)
        if len(first) < 2:
            lines.append(line)
            continue
        begun = len(first[0].plain.rstrip())
        lines.append(line[:begun])
        rest = line[begun:]
        rest = rest[len(rest.plain) - len(rest.plain.lstrip()) :]
        for more in rest.wrap(console, console.width - indent):
            more.rstrip()
            lines.append(Text(" " * indent).append_text(more))
    console.print(Text("\n").join(lines), soft_wrap=True)


def visible(text: str) -> str:
    """Text without what a terminal would obey: control characters are spelled out."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def tell_error(error: BaeError) -> None:
    """What failed, where, why and what to do, on stderr."""
    from rich.text import Text

    from bae.exceptions import describe

    said = Text()
    said.append("error", style="bold red").append(f" {visible(error.message)}")
    said.append(f"  [{error.code}]", style="dim")
    diff = getattr(error, "diff", "")
    if diff:
        said.append(f"\n{visible(diff)}")
    if error.path:
        said.append("\n  path:  ", style="bold").append(visible(error.path))
    if error.cause is not None:
        said.append("\n  cause: ", style="bold").append(visible(describe(error.cause)))
    if error.fix:
        fix = visible(error.fix).replace("\n", "\n         ")
        said.append("\n  try:   ", style="bold green").append(fix)
    for each in getattr(error, "__notes__", ()):
        said.append(f"\n  {visible(each)}", style="dim")
    print_hanging(err(), said, 9)


def tell_unexpected(error: Exception) -> None:
    """An error that nobody has foreseen."""
    from rich.text import Text

    said = Text()
    said.append("error", style="bold red").append(f" {visible(f'{type(error).__name__}: {error}')}")
    said.append("\n  try:   ", style="bold green").append(
        "run it again with --debug, which shows where it comes from"
    )
    print_hanging(err(), said, 9)


@cache
def _colours() -> Any:
    from rich.theme import Theme

    return Theme({"repr.number": "none", "repr.str": "none"})


def _console(*, stderr: bool) -> Console:
    # Made anew each time: the streams may be others by now, as they are in tests.
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, theme=_colours())
